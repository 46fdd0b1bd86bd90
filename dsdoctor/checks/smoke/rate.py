"""A GPU computes more slowly than its product should.

What it looks at
    The smoke tests bf16-rate and fp8-rate: large square products of random data, as share of the product's dense peak, with the clocks, the power and the reasons for low
    clocks of that moment.

Why it matters
    In a job of many GPUs all wait for the slowest. An H200 reaches 77 % of its peak in BF16 and 73 % in FP8. Most low rates have an outer cause: a power limit
    below the default, heat, another process. Then the reason is named and the finding is a warning. Rates are not measured on a GPU that is in use or cut into MIG slices.

Sources
    Measured on an H200; achieved rates of others in the GPU limits.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, judged, of_tests
from dsdoctor.checks.smoke._samples import BUSY, H200, UNHEARD_OF, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

FREE = {"clock_event_reasons": "none"}
CAPPED = {"clock_event_reasons": "hw_thermal_slowdown, sw_power_cap"}
GOOD = (ran("bf16-rate", "torch.mm", notes=FREE, tflops=757), ran("fp8-rate", "torch._scaled_mm", notes=FREE, tflops=1438))
L40S = (Gpu(index=0, name="NVIDIA L40S", compute_capability="8.9"),)

CASES = (
    Case(
        title="one GPU of four is slow at free clocks",
        sections={
            "smoke": (*GOOD, ran("bf16-rate", "torch.mm", gpu=1, notes=FREE, tflops=412, sm_clock_mhz=1980, power_w=410)),
            "gpus": H200,
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="GPU 1",
    ),
    Case(
        title="slow because it is hot",
        sections={"smoke": (ran("bf16-rate", "torch.mm", notes=CAPPED, tflops=412),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="hw_thermal_slowdown",
    ),
    Case(
        title="a little slow",
        sections={"smoke": (ran("fp8-rate", "torch._scaled_mm", notes=FREE, tflops=1100),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="56 %",
    ),
    Case(
        title="slow on a product that was not measured",
        sections={"smoke": (ran("bf16-rate", "torch.mm", notes=FREE, tflops=120),), "gpus": L40S},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="not measured on this product",
    ),
    Case(title="fast", sections={"smoke": GOOD, "gpus": H200[:1]}, status=Status.PASS),
    Case(
        title="a little slow on a product that was not measured",
        sections={"smoke": (ran("bf16-rate", "torch.mm", notes=FREE, tflops=240),), "gpus": L40S},
        status=Status.PASS,
    ),
    Case(
        title="in use",
        sections={"smoke": (said("skipped", "bf16-rate", "torch.mm", BUSY),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="4711",
    ),
    Case(
        title="a GPU newer than this release",
        sections={"smoke": (ran("bf16-rate", "torch.mm", notes=FREE, tflops=412),), "gpus": UNHEARD_OF},
        status=Status.UNKNOWN,
        says="X900",
    ),
    Case(title="which GPU it is, nobody knows", sections={"smoke": GOOD}, status=Status.UNKNOWN, says="not known"),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.rate", Severity.ERROR, settle="dsdoctor smoke bf16-rate fp8-rate", cases=CASES)
def rate(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge both rates as shares of the product's peak."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    yield from judged(of_tests(smoke, "bf16-rate", "fp8-rate"), ground, "bf16-rate", "fp8-rate")
