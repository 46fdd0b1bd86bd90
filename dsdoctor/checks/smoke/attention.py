"""Attention on this GPU fails, or gives wrong numbers.

What it looks at
    The smoke test attention: torch's scaled_dot_product_attention on each back end alone (math, flash, efficient, cuDNN) against FP64, and attention over parts of the keys merged
    by their sums; flashmla where FlashMLA is installed.

Why it matters
    One back end that is wrong or crashes is chosen silently as soon as a shape fits it. A back end that refuses is normal, as long as another one runs. The
    merge of split keys is what every decoding kernel does with long contexts; it must not change the result.

Sources
    FlashAttention's tolerance rule; measured on an H200: 1.6e-3 for math, 2.0e-3 for the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, judged, of_tests, refused_everywhere
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

MATH = ran("attention", "sdpa-math", rel_error=1.6e-3, error_share=0.2, nonfinite=0)
FLASH = ran("attention", "sdpa-flash", rel_error=1.97e-3, error_share=0.2, nonfinite=0)
CUDNN = "cuDNN version incompatibility: PyTorch was compiled  against (9, 19, 0) but found runtime version (9, 14, 0)."
MERGE = ran("attention", "split-kv float32", merge_rel_error=4e-7, nonfinite=0)
NO_KERNEL = "No available kernel. Aborting execution."

CASES = (
    Case(
        title="the flash back end is wrong",
        sections={"smoke": (MATH, ran("attention", "sdpa-flash", rel_error=0.3, error_share=9, nonfinite=0)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="sdpa-flash",
    ),
    Case(
        title="cuDNN of another version was loaded",
        sections={"smoke": (MATH, FLASH, said("refused", "attention", "sdpa-cudnn", CUDNN)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="cudnn.version-mismatch",
    ),
    Case(
        title="the merge of split keys is off",
        sections={"smoke": (MATH, ran("attention", "split-kv float32", merge_rel_error=6e-4, nonfinite=0)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="split-kv",
    ),
    Case(
        title="no back end runs",
        sections={"smoke": (said("refused", "attention", "sdpa-math", NO_KERNEL),), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="No available kernel",
    ),
    Case(
        title="right, and one back end is not for this GPU",
        sections={"smoke": (MATH, FLASH, MERGE, said("refused", "attention", "sdpa-cudnn", NO_KERNEL)), "gpus": H200[:1]},
        status=Status.PASS,
    ),
    Case(
        title="FlashMLA is not installed",
        sections={"smoke": (MATH, FLASH, said("skipped", "flashmla", "", "flash_mla is not installed", gpu=None)), "gpus": H200[:1]},
        status=Status.PASS,
    ),
    Case(
        title="out of memory",
        sections={"smoke": (said("skipped", "attention", "sdpa-math", "OutOfMemoryError: CUDA out of memory."),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="out of memory",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.attention", Severity.ERROR, settle="dsdoctor smoke attention", cases=CASES)
def attention(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge every back end; that one of them refuses counts only when none runs."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    yield from judged(of_tests(smoke, "attention", "flashmla"), ground, "attention")
    yield from refused_everywhere(
        of_tests(smoke, "attention"), ("attention",), ground, lambda gpu: True, what="attention", severity=Severity.ERROR
    )
