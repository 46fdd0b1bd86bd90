"""FP8 matrix products on this GPU fail, or give wrong numbers.

What it looks at
    The smoke tests fp8-cast and fp8-gemm on each GPU: all 256 FP8 numbers cast to their definition and back, and products scaled per tensor and per row through
    torch._scaled_mm, compared in FP64 with the very FP8 numbers and with the numbers before the cast.

Why it matters
    DeepSeek's weights and most of its products are FP8. A product that is off by more than rounding gives text that looks right and is not. Against the FP8
    numbers the error is 1.7e-3 (the rounding of the BF16 output), against the unquantised ones 3.7e-2 (the rounding to FP8): only
    the first says something about the node. A GPU before compute capability 8.9 has no FP8 units, and that is no failure.

Sources
    OCP FP8 specification; measured on an H200 with torch 2.11.0+cu130.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, fp8_able, judged, of_tests, refused_everywhere
from dsdoctor.checks.smoke._samples import A100, BUSY, H200, ILLEGAL, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent, unreadable
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, Gpus, SmokeThresholds

CAST = ran("fp8-cast", "torch cast", decode_mismatches=0, encode_mismatches=0, saturates=0)
RIGHT = ran("fp8-gemm", "torch._scaled_mm", rel_error=1.66e-3, calc_diff=1.4e-6, rel_error_unquantised=3.74e-2, nonfinite=0)
WRONG = ran("fp8-gemm", "torch._scaled_mm", rel_error=0.19, calc_diff=0.02, rel_error_unquantised=0.2, nonfinite=0)
OLD_TORCH = "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"

CASES = (
    Case(
        title="wrong numbers",
        sections={"smoke": (CAST, WRONG), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="rel_error 0.19",
    ),
    Case(
        title="a byte that is cast to another number",
        sections={"smoke": (ran("fp8-cast", "torch cast", decode_mismatches=1, encode_mismatches=0), RIGHT), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="decode_mismatches 1",
    ),
    Case(
        title="the kernel ends in a fault of the GPU",
        sections={"smoke": (CAST, said("error", "fp8-gemm", "torch._scaled_mm", ILLEGAL)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="gpu.xid",
    ),
    Case(
        title="no machine code for this GPU",
        sections={
            "smoke": (
                said("error", "fp8-gemm", "torch._scaled_mm", "CUDA error: no kernel image is available for execution on the device"),
            ),
            "gpus": H200[:1],
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="torch.lacks-gpu-arch",
    ),
    Case(
        title="the process crashed",
        sections={"smoke": (said("crash", "fp8-gemm", "", "SIGSEGV", stderr="Fatal Python error: Segmentation fault"),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Segmentation fault",
    ),
    Case(
        title="refused on a GPU that can do it",
        sections={"smoke": (CAST, said("refused", "fp8-gemm", "torch._scaled_mm", OLD_TORCH)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="No implementation here",
    ),
    Case(title="right", sections={"smoke": (CAST, RIGHT), "gpus": H200[:1]}, status=Status.PASS),
    Case(
        title="refused per row, right per tensor",
        sections={
            "smoke": (CAST, RIGHT, said("refused", "fp8-gemm", "torch._scaled_mm", "rowwise scaling is not supported")),
            "gpus": H200[:1],
        },
        status=Status.PASS,
    ),
    Case(
        title="an A100 has no FP8 units",
        sections={"smoke": (CAST, said("refused", "fp8-gemm", "torch._scaled_mm", OLD_TORCH)), "gpus": A100},
        status=Status.NOT_APPLICABLE,
        says="not for this GPU",
    ),
    Case(
        title="too little memory was free",
        sections={"smoke": (CAST, said("skipped", "fp8-gemm", "", "0.4 GiB of GPU memory free, 1.5 needed")), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="0.4 GiB",
    ),
    Case(
        title="other tests were chosen",
        sections={"smoke": (said("skipped", "pcie", "", BUSY),)},
        status=Status.NOT_APPLICABLE,
        says="not run",
    ),
    Case(title="torch does not start", sections={"smoke": unreadable("cuda error: error 802")}, status=Status.UNKNOWN, says="802"),
    Case(title="no torch", sections={"smoke": absent("torch is not installed for this interpreter")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.fp8-gemm", Severity.ERROR, settle="dsdoctor smoke fp8-cast fp8-gemm", cases=CASES)
def fp8_gemm(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    gpus_matrix: Gpus,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the cast and the products; a refusal counts only where the GPU has FP8 units."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    yield from judged(of_tests(smoke, "fp8-cast", "fp8-gemm"), ground, "fp8-gemm")
    products = of_tests(smoke, "fp8-gemm")
    yield from refused_everywhere(
        products, ("fp8-gemm",), ground, lambda gpu: fp8_able(gpu, gpus_matrix), what="an FP8 product", severity=Severity.ERROR
    )
