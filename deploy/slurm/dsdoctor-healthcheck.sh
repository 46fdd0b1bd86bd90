#!/bin/bash
# HealthCheckProgram of Slurm: drains the node, with the reason, when dsdoctor finds it unfit.
# Slurm kills it after 60 s; it needs at most 40 s and 2 s for the doctor and 10 s for scontrol. It always exits 0: newer slurmd do not register
# until it does.

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/dsdoctor-common.sh"

examine 40
case "$unfit" in
    yes) drain ;;
    no) resume_own ;;
esac
exit 0
