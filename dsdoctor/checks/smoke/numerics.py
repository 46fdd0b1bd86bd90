"""A numeric building block gives other numbers than it should on this GPU.

What it looks at
    The smoke test numerics (only with --full): softmax, logsumexp over chunks, reordering, the gate's best eight experts, RoPE up to 164K tokens, a ring window, a paged cache and an
    MoE round trip, each against FP64.

Why it matters
    These prove the maths library and the compiler of this stack, not DeepSeek's code. A sound node passes all of them; a deviation points to a broken build, to precision
    switches such as TF32 that somebody turned on, or to the GPU. The limits are this project's proposal, so a deviation is a warning.

Often said, and not so
    "BF16 overflows at about 60000": that is FP16 (65504). BF16 reaches 3.39e38; what it lacks is precision (7 bits of mantissa, FP16
    has 10). FP8 E4M3 ends at 448. Source: the formats themselves (IEEE 754 half precision, bfloat16, OCP FP8).

Sources
    The arithmetic emulated with torch on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, judged, of_tests
from dsdoctor.checks.smoke._samples import H200, ILLEGAL, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

GOOD = {
    "softmax_error_fp32": 3.4e-7,
    "softmax_nonfinite": 0.0,
    "gate_same_set_fp32": 1.0,
    "rope_error_163840": 5.5e-3,
    "moe_lost_rows": 0.0,
}

CASES = (
    Case(
        title="positions lost their precision",
        sections={"smoke": (ran("numerics", "torch", more=GOOD, rope_error_163840=2.0),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="rope_error_163840 2",
    ),
    Case(
        title="the gate chooses other experts",
        sections={"smoke": (ran("numerics", "torch", more=GOOD, gate_same_set_fp32=0.95),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="gate_same_set_fp32 0.95",
    ),
    Case(
        title="a kernel ends in a fault",
        sections={"smoke": (said("error", "numerics", "torch", ILLEGAL),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="gpu.xid",
    ),
    Case(title="right", sections={"smoke": (ran("numerics", "torch", more=GOOD),), "gpus": H200[:1]}, status=Status.PASS),
    Case(
        title="too little memory was free",
        sections={"smoke": (said("skipped", "numerics", "torch", "0.2 GiB of GPU memory free, 1.5 needed"),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="0.2 GiB",
    ),
    Case(title="only with --full", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.numerics", Severity.ERROR, settle="dsdoctor smoke numerics", cases=CASES)
def numerics(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge every number against its limit."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    yield from judged(of_tests(smoke, "numerics"), ground, "numerics")
