#!/bin/bash
# Prolog of Slurm: a job does not start on a node that dsdoctor finds unfit.
# Then the node is drained with our reason, and exit 1 makes Slurm requeue the job (held, unless SchedulerParameters has nohold_on_prolog_fail).
# Everything else, a fault of dsdoctor too, lets the job start. scontrol is called in the bad case only: Slurm commands do not belong into a prolog
# that every job runs. The limit stays below MessageTimeout (10 s by default).

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/dsdoctor-common.sh"

examine "${DSDOCTOR_PROLOG_LIMIT_S:-8}" "${DSDOCTOR_PROLOG_ONLY:-}"
if [ "$unfit" = yes ]; then
    drain
    exit 1
fi
exit 0
