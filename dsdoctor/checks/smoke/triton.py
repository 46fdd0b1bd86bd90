"""A Triton kernel does not compile or run, or gives wrong numbers.

What it looks at
    The smoke test triton: a block-scaled FP8 product in a kernel of our own, compiled into a fresh cache, and each thing that the compiler needs: a C compiler, Python.h,
    ptxas, libcuda, a directory that can be written.

Why it matters
    Serving engines run Triton kernels from their start on, and torch.compile is made of them. An old file in the cache hides a broken compiler until the
    cache is lost, so the test uses a cache of its own and looks at yours apart. What is missing is named; the checks of
    toolchain and system say how to get it.

Sources
    Triton, runtime/build.py and backends/nvidia; measured on an H200 with Triton 3.6.0.
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

RIGHT = ran("triton", "triton", rel_error=7.1e-5, calc_diff_unquantised=6.8e-4, nonfinite=0, first_call_s=2.5)
CACHE = ran("triton", "configured cache", gpu=None, notes={"directory": "/root/.triton/cache"})
NO_COMPILER = said(
    "error",
    "triton",
    "triton",
    "PermissionError: [Errno 13] Permission denied: ''",
    missing="compiler",
    need_compiler="missing: no C compiler: CC is not set, neither gcc nor clang is on PATH",
)
NO_HEADERS = said(
    "error",
    "triton",
    "triton",
    "CalledProcessError: Command '['/usr/bin/gcc', ...]' returned non-zero exit status 1.",
    compiler_said="main.c:5:10: fatal error: Python.h: No such file or directory",
)
READ_ONLY = said("error", "triton", "configured cache", "[Errno 30] Read-only file system: '/opt/cache/triton'", gpu=None)

CASES = (
    Case(
        title="no compiler",
        sections={"smoke": (CACHE, NO_COMPILER), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="toolchain.no-compiler",
    ),
    Case(
        title="no Python.h",
        sections={"smoke": (CACHE, NO_HEADERS), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="toolchain.no-python-headers",
    ),
    Case(
        title="the configured cache cannot be written",
        sections={"smoke": (READ_ONLY, RIGHT), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="system.cache-not-writable",
    ),
    Case(
        title="the compiler never ended",
        sections={"smoke": (said("hang", "triton", "", "no answer within its deadline", stderr='  File "driver.py", line 12 in load'),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="driver.py",
    ),
    Case(
        title="wrong numbers",
        sections={"smoke": (CACHE, ran("triton", "triton", rel_error=0.05, nonfinite=0)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="rel_error 0.05",
    ),
    Case(title="right", sections={"smoke": (CACHE, RIGHT), "gpus": H200[:1]}, status=Status.PASS),
    Case(
        title="an A100 has no FP8 to compile for",
        sections={"smoke": (said("refused", "triton", "triton", "type fp8e4nv not supported in this architecture"),), "gpus": A100},
        status=Status.NOT_APPLICABLE,
        says="not for this GPU",
    ),
    Case(
        title="Triton is not installed",
        sections={"smoke": (said("skipped", "triton", "", "triton is not installed", gpu=None),)},
        status=Status.NOT_APPLICABLE,
        says="not installed",
    ),
    Case(
        title="the doctor's time was up",
        sections={"smoke": (said("skipped", "triton", "", "the doctor's time was up"),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="time was up",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.triton", Severity.ERROR, settle="dsdoctor smoke triton", cases=CASES)
def triton(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    gpus_matrix: Gpus,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the kernel and the configured cache."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    results = of_tests(smoke, "triton")
    yield from judged(results, ground, "triton")
    yield from refused_everywhere(
        results, ("triton",), ground, lambda gpu: fp8_able(gpu, gpus_matrix), what="an FP8 product in Triton", severity=Severity.ERROR
    )
