"""FlashAttention-3 is installed and fails, is wrong, or runs as slowly as FlashAttention-2.

What it looks at
    The smoke tests fa3 (each provider: flash-attn-3, fa3-fwd, vLLM's and SGLang's copies, torch's own switch; lengths of 113 and 203, head sizes 80, 96 and 192/128, grouped
    heads, FP8 with its factors, all against FP64) and fa3-rate.

Why it matters
    An engine whose FlashAttention-3 does not import falls back to FlashAttention-2 without a word and is half as fast: on an H200 the one forward ran at 755 TFLOP/s,
    the other at 332. The last line of the failed import tells why. What is required is a head size that is a multiple of 8 (of 16 in FP8) and
    a last dimension without gaps; neither 64, nor a sequence length of 128, nor contiguous outer dimensions, as some guides have it.

Sources
    FlashAttention, hopper/; measured on an H200 with fa3-fwd 0.0.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, judged, of_tests, refused_everywhere, where, written
from dsdoctor.checks.smoke._samples import A100, BUSY, H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, Gpus, SmokeThresholds
from dsdoctor.versions import ComputeCapability

FA3 = {"generation": "FA3"}
RIGHT = ran("fa3", "fa3-fwd", notes=FA3, rel_error=1.97e-3, error_share=0.21, nonfinite=0)
FP8 = ran("fa3", "fa3-fwd fp8", notes=FA3, fp8_rel_error=4.5e-2, nonfinite=0)
FAST = ran("fa3-rate", "fa3-fwd", notes=FA3, tflops=755)
SLOW = ran("fa3-rate", "fa3-fwd", notes={**FA3, "clock_event_reasons": "none"}, tflops=330, sm_clock_mhz=1980, power_w=600)
CAPPED = ran("fa3-rate", "fa3-fwd", notes={**FA3, "clock_event_reasons": "hw_thermal_slowdown"}, tflops=330)
FA2 = ran("fa3-rate", "sdpa-flash", notes={"generation": "FA2"}, tflops=332)
SYMBOL = "ImportError: /v/vllm/_vllm_fa3_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
NOT_THERE = said("skipped", "fa3", "FA3", "no FlashAttention-3 is installed (looked for flash_attn_interface)", provider="none")
NOT_FOR = said("refused", "fa3", "FA3", "FA3 is for compute capability 9.0 (Hopper), this GPU has 8.0")
HOOK = said("refused", "fa3", "torch hook", "No module named 'flash_attn_interface'", generation="FA3")

CASES = (
    Case(
        title="vLLM's copy does not import: FlashAttention-2 runs",
        sections={
            "smoke": (said("error", "fa3", "vllm", f"vLLM falls back to FlashAttention-2: {SYMBOL}", generation="FA3"),),
            "gpus": H200[:1],
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="package.abi-mismatch",
    ),
    Case(
        title="built for CUDA 12 beside a torch of CUDA 13",
        sections={
            "smoke": (said("error", "fa3", "fa3-fwd", "ImportError: libcudart.so.12: cannot open shared object file", generation="FA3"),),
            "gpus": H200[:1],
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="another CUDA major",
    ),
    Case(
        title="wrong numbers",
        sections={"smoke": (ran("fa3", "fa3-fwd", notes=FA3, rel_error=0.4, error_share=12, nonfinite=0), FAST), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="rel_error 0.4",
    ),
    Case(
        title="as slow as FlashAttention-2",
        sections={"smoke": (RIGHT, SLOW, FA2), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="332 TFLOP/s (FlashAttention-2)",
    ),
    Case(
        title="slow, but the GPU was too hot",
        sections={"smoke": (RIGHT, CAPPED), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="hw_thermal_slowdown",
    ),
    Case(
        title="FlashAttention-4 fails, which this stack does not run",
        sections={"smoke": (RIGHT, FAST, said("error", "fa3", "flash-attn-4", "DSLRuntimeError: no", generation="FA4")), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="flash-attn-4",
    ),
    Case(title="right and fast", sections={"smoke": (RIGHT, FP8, HOOK, FAST, FA2), "gpus": H200[:1]}, status=Status.PASS),
    Case(
        title="it is not installed",
        sections={"smoke": (NOT_THERE, FA2), "gpus": H200[:1]},
        status=Status.NOT_APPLICABLE,
        says="no FlashAttention-3",
    ),
    Case(title="an A100", sections={"smoke": (NOT_FOR,), "gpus": A100}, status=Status.NOT_APPLICABLE, says="not for this GPU"),
    Case(
        title="right, and no rate since the GPU is in use",
        sections={"smoke": (RIGHT, said("skipped", "fa3-rate", "", BUSY)), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="4711",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.fa3", Severity.ERROR, settle="dsdoctor smoke fa3 fa3-rate", cases=CASES)
def fa3(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    gpus_matrix: Gpus,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge every provider; a refusal counts only where no provider runs on a Hopper GPU."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    for item in judged(of_tests(smoke, "fa3", "fa3-rate"), ground, "fa3", "fa3-rate"):
        if isinstance(item, Finding) and ".tflops" in item.evidence[0].where:
            yield replace(item, evidence=(*item.evidence, *rates_of_fa2(smoke)))
        elif isinstance(item, NotApplicable) and "is installed" in item.reason:
            (how, *_) = remedies.of("attention.fa3-unusable", "build")
            yield NotApplicable(reason=f"{item.reason}. To have it: {how.summary} ({'; '.join(how.commands or how.steps)})")
        else:
            yield item

    def hopper(gpu: Gpu) -> bool | None:
        product = gpus_matrix.product(gpu.name)
        capability = ComputeCapability.parse(gpu.compute_capability) or (product.capability if product else None)
        return gpus_matrix.has("wgmma", capability) if capability else None

    yield from refused_everywhere(of_tests(smoke, "fa3"), ("fa3",), ground, hopper, what="FlashAttention-3", severity=Severity.WARNING)


def rates_of_fa2(smoke: Iterable[SmokeResult]) -> Iterator[Evidence]:
    """What FlashAttention-2 reached on the same GPUs, to compare with."""
    for result in of_tests(smoke, "fa3-rate"):
        if result.notes.get("generation") == "FA2" and "tflops" in result.values:
            yield Evidence(where=f"{where(result)}.tflops", value=f"{written(result.values['tflops'])} TFLOP/s (FlashAttention-2)")
