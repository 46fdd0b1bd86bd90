"""A GPU gives different bits for the same product.

What it looks at
    The smoke test silent-corruption on each GPU: one large BF16 product many times, each compared bit for bit with the first, the first one with FP64 in a corner; and whether
    GPUs of one product, given the same numbers, agree.

Why it matters
    cuBLAS promises the same bits for the same call on one stream of one GPU. A GPU that breaks that promise corrupts weights, caches and checkpoints without an
    error anywhere. It is rare and serious: take the GPU out and prove it. Between two GPUs of one product a difference can also come
    from another kernel that was chosen, so it is only a warning.

Sources
    cuBLAS documentation, results reproducibility; NVIDIA DCGM diagnostics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, gpus_of, judged, of_tests, sources_of, where
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

TEST = "silent-corruption"


def product(gpu: int, checksum: str = "a1", inputs: str = "77", differing_runs: float = 0) -> SmokeResult:
    """A result of one H200."""
    notes = {"product": "NVIDIA H200", "checksum": checksum, "input_checksum": inputs}
    return ran(TEST, "torch.matmul", gpu=gpu, notes=notes, runs=20, differing_runs=differing_runs, rel_error=1.7e-3, nonfinite=0)


CASES = (
    Case(
        title="one run of twenty differs",
        sections={"smoke": (product(0), product(1, differing_runs=1)), "gpus": H200[:2]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="GPU 1",
    ),
    Case(
        title="two GPUs of one product disagree",
        sections={"smoke": (product(0), product(1), product(2, "b2")), "gpus": H200[:3]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="GPU 2",
    ),
    Case(title="all alike", sections={"smoke": (product(0), product(1)), "gpus": H200[:2]}, status=Status.PASS),
    Case(
        title="other random numbers: nothing to compare between GPUs",
        sections={"smoke": (product(0), product(1, "b2", "88")), "gpus": H200[:2]},
        status=Status.PASS,
    ),
    Case(
        title="too little memory was free",
        sections={"smoke": (said("skipped", TEST, "torch.matmul", "0.2 GiB of GPU memory free, 1.5 needed"),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="0.2 GiB",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.silent-corruption", Severity.ERROR, settle="dsdoctor smoke silent-corruption", cases=CASES)
def silent_corruption(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge each GPU against itself, then the GPUs of one product against each other."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    results = of_tests(smoke, TEST)
    yield from judged(results, ground, TEST)
    alike: dict[tuple[str, str], list[SmokeResult]] = {}
    for result in results:
        if result.outcome == "ran" and "checksum" in result.notes and not result.values.get("differing_runs"):
            alike.setdefault((result.notes.get("product", ""), result.notes.get("input_checksum", "")), []).append(result)
    for same in alike.values():
        yield from odd_ones(same, ground)


def odd_ones(same: Sequence[SmokeResult], ground: Ground) -> Iterator[Finding]:
    """GPUs whose product differs from that of most GPUs that were given the same numbers."""
    sums = [result.notes["checksum"] for result in same]
    most = max(dict.fromkeys(sums), key=sums.count)
    odd = [result for result in same if result.notes["checksum"] != most]
    if odd:
        yield Finding(
            subject=gpus_of(odd, ground),
            severity=Severity.WARNING,
            summary=f"{gpus_of(odd, ground)} gives other bits than the other GPUs of this product for the same numbers.",
            cause="Each GPU agrees with itself. The library may have chosen another kernel; if clocks, driver and torch are the same, have the GPU tested.",
            evidence=tuple(Evidence(where=f"{where(result)}.notes[checksum]", value=result.notes["checksum"]) for result in same[:8]),
            expected="the same checksum on all GPUs of one product",
            remedies=ground.help(),
            sources=sources_of(TEST, ground),
        )
