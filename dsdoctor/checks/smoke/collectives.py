"""Collectives over the GPUs of this node hang, fail, give wrong values or are slow.

What it looks at
    The smoke test collectives: one process a GPU, a barrier, all-reduce, all-to-all, all-gather and reduce-scatter with NCCL, each value compared, then the rate of each on
    256 MiB. With left-over switches such as NCCL_P2P_DISABLE in the environment everything is run once more without them.

Why it matters
    Tensor and expert parallelism wait for these in every layer. A rank that never comes holds all others until a time-out of minutes, so the one that is
    behind is named, with NCCL's first warning. A left-over switch costs a factor of ten and nothing is logged. Wrong values between GPUs come from
    an IOMMU or from access control (ACS) in PCIe switches.

Often said, and not so
    "An all-to-all that takes 5 ms is a deadlock; fall back to a ring all-reduce": the first call alone may take seconds, torch waits 10
    minutes by default, and an all-reduce does not compute an all-to-all (all-gather with reduce-scatter does). A known all-to-all
    deadlock is that of NCCL 2.19 with cuMem, mended in 2.20.3. Sources: torch.distributed; NCCL release notes of 2.20.3.

Sources
    NCCL user guide; measured on nodes with two and four H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, judged, of_tests, where, written
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeLimit, SmokeThresholds

TEST = "collectives"
RATE = "bus_gb_per_s"
FACTOR = "faster_by"
WITHOUT = " without "
"""Stands in the path between a collective and the switches it ran without."""
FOUR = H200


def on_all(path: str, notes: dict[str, str] | None = None, **values: float) -> SmokeResult:
    """A result over all GPUs of the node."""
    return ran(TEST, path, gpu=None, notes={"ranks": "4", "transport": "P2P/CUMEM", **(notes or {})}, more=values)


SMALL = on_all("all-reduce small", wrong=0)
GOOD = (SMALL, on_all("all-reduce", wrong=0, bus_gb_per_s=339), on_all("all-to-all", wrong=0, bus_gb_per_s=292))
LEFT_OVER = (
    SMALL,
    on_all("all-reduce", {"transport": "SHM/direct/direct"}, wrong=0, bus_gb_per_s=24.5),
    on_all("all-reduce without NCCL_P2P_DISABLE", wrong=0, bus_gb_per_s=339, faster_by=13.8),
)
LATE = said("hang", TEST, "", "rank 3 is at 'ready to join' while the others wait at 'joining the group'", gpu=None, rank="3")
INTERFACE = said(
    "error",
    TEST,
    "",
    "rank 0 while joining the group: DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, invalid usage",
    gpu=None,
    first_warning="rank 0: Bootstrap : no socket interface found",
)

CASES = (
    Case(
        title="a rank never comes",
        sections={"smoke": (LATE,), "gpus": FOUR},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="rank 3 is at 'ready to join'",
    ),
    Case(
        title="NCCL_SOCKET_IFNAME names no interface",
        sections={"smoke": (INTERFACE,), "gpus": FOUR},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="network.wrong-interface",
    ),
    Case(
        title="words arrive changed",
        sections={"smoke": (SMALL, on_all("all-to-all values", wrong=1024)), "gpus": FOUR},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="wrong 1024",
    ),
    Case(
        title="a left-over NCCL_P2P_DISABLE",
        sections={"smoke": LEFT_OVER, "gpus": FOUR},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="13.8 times as slow",
    ),
    Case(
        title="slow for another reason",
        sections={"smoke": (SMALL, on_all("all-reduce", wrong=0, bus_gb_per_s=24.5)), "gpus": FOUR},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="5 % of NVLink",
    ),
    Case(title="right and fast", sections={"smoke": GOOD, "gpus": FOUR}, status=Status.PASS),
    Case(
        title="GPUs without NVLink: only the values are judged",
        sections={
            "smoke": (SMALL, on_all("all-reduce", wrong=0, bus_gb_per_s=12)),
            "gpus": (Gpu(index=0, name="NVIDIA H100 PCIe"), Gpu(index=1, name="NVIDIA H100 PCIe")),
        },
        status=Status.PASS,
    ),
    Case(
        title="one GPU",
        sections={"smoke": (said("skipped", TEST, "", "needs 2 GPUs, 1 chosen", gpu=None),), "gpus": FOUR[:1]},
        status=Status.NOT_APPLICABLE,
        says="needs 2 GPUs",
    ),
    Case(
        title="values right, no rates since a GPU is in use",
        sections={"smoke": (SMALL, said("skipped", TEST, "rates", "in use by process 4711", gpu=None)), "gpus": FOUR},
        status=Status.UNKNOWN,
        says="4711",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.collectives", Severity.ERROR, settle="dsdoctor smoke collectives", cases=CASES)
def collectives(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge values and rates; where a left-over switch explains the rates, it alone is told."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    results = of_tests(smoke, TEST)
    factor = next(row for row in smoke_thresholds_matrix.limits if row.test == TEST and row.value == FACTOR)
    faster = [result for result in results if {FACTOR, RATE} <= result.values.keys() and not factor.is_good(result.values[FACTOR])]
    if faster:
        yield left_over(faster, results, factor, ground)
        results = tuple(replace(result, values={"wrong": result.values.get("wrong", 0.0)}) for result in results)
    yield from judged(results, ground, TEST)


def left_over(faster: Sequence[SmokeResult], results: Sequence[SmokeResult], factor: SmokeLimit, ground: Ground) -> Finding:
    """The finding for switches without which the same collectives are several times as fast."""
    worst = max(faster, key=lambda result: result.values[FACTOR])
    collective, _, switches = worst.path.partition(WITHOUT)
    now = {result.path: result.values[RATE] for result in results if RATE in result.values}
    return Finding(
        subject=switches,
        severity=Severity.WARNING,
        summary=f"{switches} makes {collective} {written(worst.values[FACTOR])} times as slow: "
        f"{written(now.get(collective, 0.0))} GB/s of the bus instead of {written(worst.values[RATE])}.",
        cause=factor.text,
        evidence=tuple(
            Evidence(
                where=f"{where(result)}.{FACTOR}",
                value=f"{written(result.values[FACTOR])} ({written(now.get(result.path.partition(WITHOUT)[0], 0.0))} and "
                f"{written(result.values[RATE])} GB/s)",
            )
            for result in faster
        ),
        expected="no such switch, unless a fault that is still there calls for it",
        remedies=(*ground.remedies.of(factor.see, variable=switches.partition(",")[0]), *ground.remedies())[:3],
        sources=factor.basis.sources,
    )
