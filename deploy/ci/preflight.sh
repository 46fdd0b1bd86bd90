#!/bin/sh
# Is this node fit for the job that comes next? For any CI: everything is said by environment variables, nothing is uploaded.
#
#   DSDOCTOR_PROFILE  DSDOCTOR_ONLY  DSDOCTOR_IGNORE  DSDOCTOR_WAIVERS  DSDOCTOR_FAIL_ON   as the options of `dsdoctor check`
#   DSDOCTOR_PYTHON   the interpreter to examine; default: the active environment, else python3 on PATH
#   DSDOCTOR_ARGS     more options, separated by spaces
#   DSDOCTOR_FORMAT   what is printed (terminal); GitHub's runner wants `github`
#   DSDOCTOR_REPORTS  folder for report.json, junit.xml, report.sarif, report.gitlab.json and summary.md (dsdoctor-reports)
#   DSDOCTOR_COMMAND  a dsdoctor that is there, such as "python3 /opt/dsdoctor.pyz"; without it one is installed, into an
#                     environment of its own that is removed at the end:
#   DSDOCTOR_SOURCE   what pip installs, such as dsdoctor==0.1.0; default: the checkout around this file, else dsdoctor
#   DSDOCTOR_RUN_WITH a Python from 3.10 on (python3)
#
# Exit: that of `dsdoctor check`; 3 also when dsdoctor cannot be installed.
set -eu

say() { printf 'dsdoctor preflight: %s\n' "$1" >&2; }

run_with=${DSDOCTOR_RUN_WITH:-python3}
reports=${DSDOCTOR_REPORTS:-dsdoctor-reports}
mkdir -p "$reports"

command=${DSDOCTOR_COMMAND:-}
if [ -z "$command" ]; then
  home=$(mktemp -d "${RUNNER_TEMP:-${TMPDIR:-/tmp}}/dsdoctor-XXXXXX")
  trap 'rm -rf "$home"' EXIT
  if ! "$run_with" -m venv "$home"; then
    say "$run_with cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)"
    exit 3
  fi
  around=$(cd "$(dirname "$0")/../.." && pwd)
  source=${DSDOCTOR_SOURCE:-}
  if [ -z "$source" ]; then
    if [ -f "$around/action.yml" ]; then source=$around; else source=dsdoctor; fi
  fi
  set --
  [ ! -f "$around/deploy/constraints.txt" ] || set -- --constraint "$around/deploy/constraints.txt"
  if ! "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$@" "$source"; then
    say "$source cannot be installed; a node without an index takes the single file: DSDOCTOR_COMMAND='python3 dsdoctor.pyz'"
    exit 3
  fi
  command="$home/bin/dsdoctor"
fi

# The doctor's own environment is never the patient.
python=${DSDOCTOR_PYTHON:-}
if [ -z "$python" ] && [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
  python=$(command -v python3 || command -v python || true)
fi

set -- check --format "${DSDOCTOR_FORMAT:-terminal}" --fail-on "${DSDOCTOR_FAIL_ON:-error}"
for form in report.json junit.xml report.sarif report.gitlab.json summary.md; do
  rm -f "$reports/$form"
  set -- "$@" --output "$reports/$form"
done
[ -z "$python" ] || set -- "$@" --python "$python"
[ -z "${DSDOCTOR_ONLY:-}" ] || set -- "$@" --only "$DSDOCTOR_ONLY"
[ -z "${DSDOCTOR_IGNORE:-}" ] || set -- "$@" --ignore "$DSDOCTOR_IGNORE"
[ -z "${DSDOCTOR_WAIVERS:-}" ] || set -- "$@" --waivers "$DSDOCTOR_WAIVERS"
set -f # words, no file names
for profile in ${DSDOCTOR_PROFILE:-}; do
  set -- "$@" --profile "$profile"
done
# shellcheck disable=SC2086 # options are words
set -- "$@" ${DSDOCTOR_ARGS:-}

code=0
# shellcheck disable=SC2086 # "python3 dsdoctor.pyz" is two words
$command "$@" || code=$?
set +f

verdict=unknown
if [ -s "$reports/report.json" ]; then
  verdict=$(sed -n 's/^ *"verdict": *"\([a-z]*\)".*/\1/p' "$reports/report.json" | head -n 1)
fi
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  if [ -s "$reports/summary.md" ]; then
    cat "$reports/summary.md" >>"$GITHUB_STEP_SUMMARY"
  else
    printf '## dsdoctor: no report\n\nIt ended with exit code %s; the log says why.\n' "$code" >>"$GITHUB_STEP_SUMMARY"
  fi
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
  printf 'verdict=%s\nexit-code=%s\nreports=%s\n' "$verdict" "$code" "$reports" >>"$GITHUB_OUTPUT"
fi
exit "$code"
