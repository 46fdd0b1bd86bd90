"""FP8 products with DeepSeek's block scales fail, or give wrong numbers.

What it looks at
    The smoke tests fp8-block (torch, 1x128 activations and 128x128 weights, with float and power-of-two scales), deepgemm and, on Blackwell, mxfp8.

Why it matters
    This is the recipe in which the weights of DeepSeek-V3 and R1 are stored. torch itself has it from 2.10 on, on Hopper with cuBLASLt 12.9 or newer; elsewhere a Triton kernel or
    DeepGEMM does it, so a refusal by one of them is no fault as long as another one runs. Against the FP8 numbers 1.7e-3 is expected, and
    DeepGEMM's measure against the unquantised numbers stays below 1e-3.

Sources
    DeepGEMM's tests; measured on an H200 with torch 2.11.0+cu130.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, fp8_able, judged, of_tests, refused_everywhere
from dsdoctor.checks.smoke._samples import A100, H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, Gpus, SmokeThresholds

TESTS = ("fp8-block", "deepgemm", "mxfp8")

RIGHT = ran("fp8-block", "torch.nn.functional.scaled_mm", rel_error=1.67e-3, calc_diff_unquantised=6.8e-4, nonfinite=0)
WRONG = ran("fp8-block", "torch._scaled_mm", rel_error=0.21, calc_diff_unquantised=0.03, nonfinite=0)
TRITON = ran("triton", "triton", rel_error=7.1e-5, calc_diff_unquantised=6.8e-4, nonfinite=0)
TOO_OLD = said("refused", "fp8-block", "torch.nn.functional.scaled_mm", "torch 2.8.0+cu128 has no torch.nn.functional.scaled_mm")
NO_NVCC = said(
    "error", "deepgemm", "deepgemm", "RuntimeError: NVCC compilation failed", compiler_said="ptxas fatal   : Unsupported .version 9.1"
)

CASES = (
    Case(
        title="one entry of torch is wrong",
        sections={"smoke": (RIGHT, WRONG), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="torch._scaled_mm",
    ),
    Case(
        title="NaN",
        sections={"smoke": (ran("fp8-block", "torch._scaled_mm", nonfinite=512),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="nonfinite 512",
    ),
    Case(
        title="DeepGEMM does not compile",
        sections={"smoke": (RIGHT, NO_NVCC), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="driver.ptx-too-new",
    ),
    Case(
        title="no implementation, though Hopper can",
        sections={"smoke": (TOO_OLD,), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="no torch.nn.functional.scaled_mm",
    ),
    Case(title="torch is too old, Triton does it", sections={"smoke": (TOO_OLD, TRITON), "gpus": H200[:1]}, status=Status.PASS),
    Case(title="right", sections={"smoke": (RIGHT,), "gpus": H200[:1]}, status=Status.PASS),
    Case(title="an A100", sections={"smoke": (TOO_OLD,), "gpus": A100}, status=Status.NOT_APPLICABLE, says="not for this GPU"),
    Case(title="which GPU it is, nobody knows", sections={"smoke": (TOO_OLD,)}, status=Status.UNKNOWN, says="not known"),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.fp8-block", Severity.ERROR, settle="dsdoctor smoke fp8-block deepgemm triton", cases=CASES)
def fp8_block(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    gpus_matrix: Gpus,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge every implementation; that one of them refuses counts only when none runs."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    yield from judged(of_tests(smoke, *TESTS), ground, "fp8-block")
    yield from refused_everywhere(
        of_tests(smoke, *TESTS, "triton"),
        ("fp8-block",),
        ground,
        lambda gpu: fp8_able(gpu, gpus_matrix),
        what="a block-scaled FP8 product",
        severity=Severity.WARNING,
    )
