"""The limit on open files is too low for many GPUs.

What it looks at
    The soft and the hard limit on open files (ulimit -n) and the number of GPUs.

Why it matters
    Every rank opens sockets and memory handles to its peers; engines add a socket for each client. At the limit they stop with "Too many open
    files", often only under load. NCCL raises its soft limit to the hard one when it starts, vLLM and SGLang raise theirs to 65535: what
    counts is the hard limit. A low soft limit under a high hard one, the default of most Linux systems, is only worth knowing.

Sources
    NCCL bootstrap.cc (the soft limit is set to the hard one); vLLM and SGLang (set_ulimit, 65535).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.facts import Gpu, Limit, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds

EIGHT_GPUS = tuple(Gpu(index=index) for index in range(8))

CASES = (
    Case(
        title="eight GPUs, 4096 files and no more",
        sections={"limits": {"nofile": Limit(soft=4096, hard=4096)}, "gpus": EIGHT_GPUS},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="4096",
    ),
    Case(
        title="eight GPUs, 1024 files that may be raised to 524288: the default of systemd",
        sections={"limits": {"nofile": Limit(soft=1024, hard=524288)}, "gpus": EIGHT_GPUS},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="hard limit",
    ),
    Case(
        title="20000 files are enough for two GPUs",
        sections={"limits": {"nofile": Limit(soft=20000, hard=20000)}, "gpus": EIGHT_GPUS[:2]},
        status=Status.PASS,
    ),
    Case(
        title="one GPU has no peers",
        sections={"limits": {"nofile": Limit(soft=1024, hard=4096)}, "gpus": EIGHT_GPUS[:1]},
        status=Status.PASS,
    ),
    Case(
        title="a million files",
        sections={"limits": {"nofile": Limit(soft=1048576, hard=1048576)}, "gpus": EIGHT_GPUS},
        status=Status.PASS,
    ),
    Case(
        title="1024 files, and nobody said how many GPUs there are",
        sections={"limits": {"nofile": Limit(soft=1024, hard=1024)}},
        status=Status.UNKNOWN,
        says="how many GPUs",
    ),
    Case(
        title="the limit on open files is not among those read",
        sections={"limits": {}, "gpus": EIGHT_GPUS},
        status=Status.UNKNOWN,
        says="open files",
    ),
    Case(
        title="no GPU",
        sections={"limits": {"nofile": Limit(soft=1024, hard=1024)}, "gpus": absent("there is no NVIDIA GPU")},
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU",
    ),
)


@check("system.open-files-limited", Severity.WARNING, settle="ulimit -Sn; ulimit -Hn", cases=CASES)
def open_files_limited(
    limits: Mapping[str, Limit],
    gpus: Section[tuple[Gpu, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the nofile limits with what that many GPUs need."""
    limit = limits.get("nofile")
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
        return
    if limit is None:
        yield Doubt(subject="nofile", reason="the limit on open files is not known")
        return
    needs = system_needs_matrix.of("open-files", len(gpus.value) if gpus.value is not None else 8)
    need = max((row for row in needs if limit.soft is not None and limit.soft < row.amount), key=lambda row: row.amount, default=None)
    if need is None:
        return
    if gpus.value is None:
        yield Doubt(
            subject="nofile",
            reason=f"the limit is {limit.soft} open files; whether that is enough depends on how many GPUs there are",
            settle="nvidia-smi -L",
        )
        return
    raisable = limit.hard is None or limit.hard >= need.amount
    hard = "unlimited" if limit.hard is None else str(limit.hard)
    yield Finding(
        subject="nofile",
        summary=f"The limit on open files (nofile, ulimit -n) is {limit.soft} for {len(gpus.value)} GPUs"
        + (
            f"; the hard limit of {hard} lets programs raise it."
            if raisable
            else f", and the hard limit of {hard} lets nobody raise it enough."
        ),
        cause=need.text,
        evidence=(
            Evidence(where="limits.nofile.soft", value=str(limit.soft)),
            Evidence(where="limits.nofile.hard", value=hard),
            Evidence(where="gpus", value=str(len(gpus.value))),
        ),
        expected=f"at least {need.amount}",
        remedies=(
            remedies("raisable", hard_limit=str(need.amount) if limit.hard is None else hard)[: 1 if raisable else 0] + remedies("general")
        )[:3],
        sources=need.basis.sources,
        severity=Severity.INFO if raisable else Severity(need.severity),
    )
