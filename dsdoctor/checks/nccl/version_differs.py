"""Ranks of one job load different NCCL releases.

What it looks at
    In pasted logs: NCCL's own complaint, the releases that ranks name, and communicators that were completed. On a node: whether the smoke test collectives started its ranks. What other nodes load one node cannot
    show; compare recordings of the nodes (dsdoctor diff).

Why it matters
    From 2.23.4 on all ranks must have the full version in common, else the start ends in ncclInvalidUsage; before that, nothing is compared, and mixed releases hang or fail somewhere. Images that moved under a tag,
    and a libnccl of the system that is found first on some nodes, are the usual reasons.

Sources
    NCCL, src/init.cc and release notes of 2.23.4; NCCL issues 1267 and 1328.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import LogEvent, Section, SmokeResult
from dsdoctor.findings import Doubt, NotApplicable, Severity, Status
from dsdoctor.rows import Nccl
from dsdoctor.versions import LibraryVersion

VERSION_LINE, COMPLETED, MISMATCH = "nccl-version", "nccl-init-complete", "nccl-versions-differ"
"""Signatures of matrices/log-signatures."""
COMPARED = "same-full-version"
"""The fact of matrices/nccl that says since when the releases of all ranks are compared."""
TEST = "collectives"


def said(version: str) -> LogEvent:
    """The line in which a rank names its NCCL."""
    return LogEvent(signature=VERSION_LINE, text=f"NCCL version {version}+cuda13.0", captures={"nccl_said": version})


def completed(ranks: int) -> LogEvent:
    """The end of a start of all ranks."""
    text = f"ncclCommInitRankConfig comm 0x1 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 9c000 commId 0x2 - Init COMPLETE"
    return LogEvent(signature=COMPLETED, text=text, captures={"ranks": str(ranks)})


CASES = (
    Case(
        title="NCCL names two ranks",
        sections={
            "log_events": (
                LogEvent(
                    signature=MISMATCH,
                    text="init.cc:1030 NCCL WARN Mismatched NCCL version detected : rank 0 version 22805 rank 8 version 23004",
                    where="rank8.log:19",
                    captures={
                        "rank": "0",
                        "one": "2.28.5",
                        "one_nccl_code": "22805",
                        "rank_b": "8",
                        "other": "2.30.4",
                        "other_nccl_code": "23004",
                    },
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="2.30.4",
    ),
    Case(title="the ranks of a log started together", sections={"log_events": (said("2.28.9"), completed(16))}, status=Status.PASS),
    Case(
        title="the ranks of this node started together",
        sections={"smoke": (SmokeResult(test=TEST, path="nccl", outcome="ran", values={"ranks": 8}),)},
        status=Status.PASS,
    ),
    Case(
        title="a log names two releases, which may be two runs",
        sections={"log_events": (said("2.27.5"), said("2.28.9"))},
        status=Status.UNKNOWN,
        says="2.27.5, 2.28.9",
    ),
    Case(
        title="an older NCCL, which compares nothing",
        sections={"log_events": (said("2.21.5"), completed(16))},
        status=Status.UNKNOWN,
        says="2.21.5",
    ),
    Case(title="a log without NCCL", sections={"log_events": ()}, status=Status.UNKNOWN, says="does not say"),
    Case(title="one node alone, and no log", sections={}, status=Status.NOT_APPLICABLE, says="one node"),
)


@check(
    "nccl.version-differs",
    Severity.ERROR,
    explains=("smoke.collectives",),
    settle="NCCL_DEBUG=VERSION <job> 2>&1 | grep 'NCCL version' | sort -u",
    cases=CASES,
)
def version_differs(
    log_events: Section[tuple[LogEvent, ...]], smoke: Section[tuple[SmokeResult, ...]], nccl_matrix: Nccl
) -> Iterator[Doubt | NotApplicable]:
    """See whether ranks started together; the complaint itself is a line that matrices/log-signatures reads."""
    if any(result.test == TEST and result.outcome == "ran" for result in smoke.value or ()):
        return
    if log_events.value is None:
        yield NotApplicable(reason="one node was examined, and no log was given")
        return
    named = sorted({event.captures["nccl_said"] for event in log_events.value if "nccl_said" in event.captures})
    started = any(event.signature == COMPLETED and event.captures.get("ranks") != "1" for event in log_events.value)
    rule = next((fact for fact in nccl_matrix.cross_rank if fact.id == COMPARED), None)
    since = LibraryVersion.parse(rule.since) if rule else None
    versions = [version for text in named if (version := LibraryVersion.parse(text))]
    if len(named) > 1:
        yield Doubt(
            subject="NCCL", reason=f"the log names several releases ({', '.join(named)}), which may be several ranks or several runs"
        )
    elif not (started and since and versions and versions[0] >= since):
        which = f"it names {named[0]}; " if named else ""
        yield Doubt(subject="NCCL", reason=f"{which}the log does not say which NCCL each rank loaded")
