"""The GPU has no FP8 units.

What it looks at
    The compute capability of each GPU, and whether packages are installed that run FP8 models (vLLM, SGLang, DeepGEMM).

Why it matters
    DeepSeek-V3 and R1 are published in FP8 with block scales. GPUs before compute capability 8.9 (A100, A800, A10, V100 …) cannot compute in it: Triton says
    "type fp8e4nv not supported in this architecture", other kernels "not supported on CUDA arch < 89". It is the silicon: no driver, CUDA or Triton
    changes it. Weights in BF16, INT8 or INT4 run there, with their own need of memory.

Often said, and not so
    "FP8 (E4M3) works on A100 and A800 through torch.compile and vLLM, or as a weight cache in training": FP8 conversion and matrix
    instructions begin with 8.9 and 9.0. An A100 can store FP8 and must compute in something else. Source: ptxas of CUDA 11.8 to 13.5.

Sources
    ptxas of CUDA 11.8 to 13.5 (mma with e4m3 operands); vLLM issue 15336.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import numbered
from dsdoctor.facts import Gpu, Package, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Gpus
from dsdoctor.versions import ComputeCapability

FEATURE = "fp8-mma"
FP8_PACKAGES = ("vllm", "sglang", "deep-gemm", "sgl-deep-gemm")

A800 = Gpu(index=0, name="NVIDIA A800-SXM4-80GB", compute_capability="8.0")
VLLM = (Package(name="vllm", version="0.11.0"),)

CASES = (
    Case(
        title="A800 with vLLM",
        sections={"gpus": (A800,), "packages": VLLM},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="FP8",
    ),
    Case(title="A800 and nothing that asks for FP8", sections={"gpus": (A800,)}, status=Status.FAIL, severity=Severity.INFO, says="8.0"),
    Case(
        title="an A100 known by name only",
        sections={"gpus": (Gpu(index=0, name="NVIDIA A100-SXM4-80GB"),), "packages": VLLM},
        status=Status.FAIL,
        says="A100",
    ),
    Case(
        title="Ada has it",
        sections={"gpus": (Gpu(index=0, name="NVIDIA L40S", compute_capability="8.9"),), "packages": VLLM},
        status=Status.PASS,
    ),
    Case(
        title="Ampere just below",
        sections={"gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6"),)},
        status=Status.FAIL,
        says="8.6",
    ),
    Case(title="Hopper has it", sections={"gpus": (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)}, status=Status.PASS),
    Case(
        title="a product that no row knows, and no capability",
        sections={"gpus": (Gpu(index=0, name="NVIDIA Z9000"),)},
        status=Status.UNKNOWN,
        says="compute capability",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.no-fp8",
    Severity.WARNING,
    explains=("smoke.fp8-gemm", "smoke.fp8-block", "deepgemm.requirements"),
    settle="nvidia-smi --query-gpu=name,compute_cap --format=csv",
    cases=CASES,
)
def no_fp8(
    gpus: tuple[Gpu, ...], packages: Section[tuple[Package, ...]], gpus_matrix: Gpus, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    """Ask the matrix for FP8 matrix units, once per product."""
    wanting = [package for package in packages.value or () if package.name in FP8_PACKAGES]
    feature = gpus_matrix.feature(FEATURE)
    kinds = {(gpu.name, gpu.compute_capability) for gpu in gpus}
    for name, text in sorted(kinds):
        same = [gpu for gpu in gpus if (gpu.name, gpu.compute_capability) == (name, text)]
        product = gpus_matrix.product(name)
        capability = ComputeCapability.parse(text) or (product.capability if product else None)
        has = gpus_matrix.has(FEATURE, capability) if capability else None
        if has is None:
            yield Doubt(
                subject=name or numbered(same), reason="its compute capability is not known, or no row says whether it has FP8 units"
            )
        if has is not False:
            continue
        yield Finding(
            subject=name or numbered(same),
            severity=Severity.WARNING if wanting else Severity.INFO,
            summary=f"{name or numbered(same)} (compute capability {capability}) cannot compute in FP8"
            + (f", and {wanting[0].name} {wanting[0].version} is installed." if wanting else "."),
            cause="Block-scaled FP8 checkpoints such as DeepSeek-V3 need FP8 matrix units (compute capability 8.9 and later: Ada, Hopper, Blackwell). "
            "It is the silicon; no newer driver, CUDA or Triton helps.",
            evidence=(
                Evidence(where="gpus.compute_capability", value=text or f"{capability} (by the name of the product)"),
                *(Evidence(where="packages", value=f"{package.name} {package.version}") for package in wanting[:3]),
            ),
            expected="a GPU with FP8 units, or weights in BF16, INT8 or INT4",
            remedies=remedies("general"),
            sources=feature.basis.sources if feature else (),
        )
