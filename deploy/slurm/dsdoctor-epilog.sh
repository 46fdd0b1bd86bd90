#!/bin/bash
# Epilog of Slurm: looks at what the job left behind (a lost GPU, an Xid, ECC errors, memory that nobody owns) and drains the node on it.
# It always exits 0: another code would drain the node without a reason.

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/dsdoctor-common.sh"

examine "${DSDOCTOR_EPILOG_LIMIT_S:-20}" "${DSDOCTOR_EPILOG_ONLY:-}"
if [ "$unfit" = yes ]; then drain; fi
exit 0
