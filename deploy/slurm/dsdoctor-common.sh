# shellcheck shell=bash
# What the Slurm scripts share: examine this node within a limit, drain it with a reason, log the rest.
# Settings stand in /etc/dsdoctor/slurm.env, as bash:
#
#   DSDOCTOR=(/opt/dsdoctor/bin/dsdoctor)            the command
#   DSDOCTOR_OPTIONS=(--quick --expect site.yaml)    of every run
#   DSDOCTOR_ONLY=driver,gpu,fabric,pcie,rdma,expect what is looked at: the node, not the environment of a job
#   export SLURM_CONF=/srv/slurm/slurm.conf          where it is not in its usual place: slurmd tells a health check nothing
#   DSDOCTOR_RESUME=yes                              the health check resumes a node that it drained itself and that is fit again

export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}" # slurmd starts a health check without one
DSDOCTOR=(/opt/dsdoctor/bin/dsdoctor)
DSDOCTOR_OPTIONS=(--quick)
DSDOCTOR_ONLY=driver,gpu,fabric,pcie,rdma
DSDOCTOR_RESUME=no
OWN_MARK="dsdoctor:"

settings="${DSDOCTOR_ENV:-/etc/dsdoctor/slurm.env}"
# shellcheck source=/dev/null
[ ! -r "$settings" ] || . "$settings"

node="${SLURMD_NODENAME:-$(hostname -s)}"

log() {
    if command -v logger >/dev/null 2>&1; then logger -t dsdoctor -- "$node: $*" 2>/dev/null || true; fi
    printf 'dsdoctor: %s: %s\n' "$node" "$*" >&2
}

# examine LIMIT_S [AREAS]: sets unfit and line. Only exit 1 with a finding's line says that the node is unfit: 2 and 3 are about the doctor, 124 and
# 137 about the limit, 126 and 127 about the installation, and a Python that fails before dsdoctor starts also ends with 1.
examine() {
    local limit="$1" areas="${2:-$DSDOCTOR_ONLY}" code
    line="$(timeout --kill-after=2 "$limit" "${DSDOCTOR[@]}" check "${DSDOCTOR_OPTIONS[@]}" --only "$areas" --exit-style default --format npd 2>/dev/null)"
    code=$?
    line="${line%%$'\n'*}"
    unfit=unknown
    case "$code" in
        0) unfit=no ;;
        1) if [[ "$line" =~ ^[a-z0-9-]+\.[a-z0-9._-]+:\  ]]; then unfit=yes; fi ;;
        124 | 137) line="no answer in $limit s" ;;
    esac
    case "$unfit" in
        yes) log "unfit: $line" ;;
        unknown) log "could not judge (exit $code: ${line:-no message}); the node stays as it is" ;;
    esac
}

# The state and the reason of this node, as "drained|reason"; empty when the controller does not answer.
state_and_reason() {
    timeout 5 sinfo --noheader --nodes="$node" --format='%T|%E' 2>/dev/null | head -n 1
}

drain() {
    local now
    now="$(state_and_reason)"
    case "$now" in
        *drain*"|$OWN_MARK"* | *drain*"|none" | *drain*"|") ;;
        *drain*) # a person's reason is never overwritten
            log "already drained for another reason (${now#*|}); left so"
            return 0
            ;;
    esac
    timeout 5 scontrol update "NodeName=$node" State=DRAIN "Reason=$OWN_MARK $line" || log "scontrol could not drain the node"
}

# Only what was drained by us: the health check calls it where the site wants that.
resume_own() {
    local now
    [ "$DSDOCTOR_RESUME" = yes ] || return 0
    now="$(state_and_reason)"
    case "$now" in
        *drain*"|$OWN_MARK"*)
            log "fit again; resumed (it was: ${now#*|})"
            timeout 5 scontrol update "NodeName=$node" State=RESUME || log "scontrol could not resume the node"
            ;;
    esac
}
