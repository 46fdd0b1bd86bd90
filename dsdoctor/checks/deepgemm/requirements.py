"""DeepGEMM does not fit the GPUs, torch or CUDA toolkit of this node.

What it looks at
    DeepGEMM where it is installed by itself (deep-gemm, sgl-deep-gemm), the compute capability of the GPUs, the version of torch, and the CUDA toolkit with which it compiles
    its kernels when they are first called. In pasted logs: its own assertions.

Why it matters
    DeepGEMM compiles at run time: what does not fit shows at the first call, after minutes of loading weights. Its kernels are for Hopper (9.0) and data-centre Blackwell (10.x); support of
    others came release by release, so an installed build is judged, never the GPU alone. Releases from September 2026 on want CUDA 12.9 for every GPU. vLLM and SGLang bring copies of their own,
    which this check does not see.

Sources
    DeepGEMM README and csrc/jit/compiler.hpp; matrices/kernel-libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._kernel_library import Said, installed, not_installed, of_an_unknown_line, on_gpus, on_toolkit, on_torch
from dsdoctor.facts import CudaToolkit, EnvironmentVariable, Gpu, LogEvent, Package, Section, SmokeResult, TorchBuild
from dsdoctor.findings import Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.rows_stack import KernelLibraries

LIBRARY = "DeepGEMM"
DISTRIBUTIONS = ("deep-gemm", "sgl-deep-gemm")
WITHOUT_NVCC = "DG_JIT_USE_NVRTC"

DEEP_GEMM = (Package(name="deep-gemm", version="2.1.0"),)
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)
B200 = (Gpu(index=0, name="NVIDIA B200", compute_capability="10.0"),)
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
RTX_PRO = (Gpu(index=0, name="NVIDIA RTX PRO 6000", compute_capability="11.0"),)
TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")


def _toolkit(cuda: str) -> tuple[CudaToolkit, ...]:
    path = f"/usr/local/cuda-{cuda}"
    return (CudaToolkit(path=path, cuda_version=cuda, nvcc=f"{path}/bin/nvcc", is_cuda_home=True),)


CASES = (
    Case(
        title="Blackwell with the toolkit 12.6",
        sections={"packages": DEEP_GEMM, "gpus": B200, "torch_build": TORCH, "cuda_toolkits": _toolkit("12.6")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="12.9",
    ),
    Case(
        title="a torch before its oldest release",
        sections={"packages": DEEP_GEMM, "gpus": H200, "torch_build": TorchBuild(version="2.0.1+cu118", cuda="11.8")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="2.0.1",
    ),
    Case(
        title="installed on Ampere, where nothing need use it",
        sections={"packages": DEEP_GEMM, "gpus": A100, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="A100",
    ),
    Case(
        title="a log with its assertion",
        sections={
            "log_events": (
                LogEvent(
                    signature="deepgemm-arch",
                    text="RuntimeError: Assertion error (csrc/apis/layout.hpp:59): Unknown SF transformation",
                    where="server.log:88",
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Unknown SF transformation",
    ),
    Case(
        title="Hopper, torch 2.11 and CUDA 13.0",
        sections={"packages": DEEP_GEMM, "gpus": H200, "torch_build": TORCH, "cuda_toolkits": _toolkit("13.0")},
        status=Status.PASS,
    ),
    Case(
        title="an old toolkit that is not used: NVRTC compiles",
        sections={
            "packages": DEEP_GEMM,
            "gpus": B200,
            "torch_build": TORCH,
            "cuda_toolkits": _toolkit("12.6"),
            "environment": (EnvironmentVariable(name=WITHOUT_NVCC, value="1"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="12.8 on Hopper: enough for the older releases only",
        sections={"packages": DEEP_GEMM, "gpus": H200, "torch_build": TORCH, "cuda_toolkits": _toolkit("12.8")},
        status=Status.UNKNOWN,
        says="from 2026-09-10",
    ),
    Case(
        title="a GPU that its documents do not name",
        sections={"packages": DEEP_GEMM, "gpus": RTX_PRO, "torch_build": TORCH},
        status=Status.UNKNOWN,
        says="11.0",
    ),
    Case(title="the packages are not known", sections={"gpus": H200}, status=Status.UNKNOWN, says="packages"),
    Case(
        title="only the engine's copy",
        sections={"packages": (Package(name="vllm", version="0.30.0"),), "gpus": H200},
        status=Status.NOT_APPLICABLE,
        says="vllm judges the copy that it brings",
    ),
)


@check(
    "deepgemm.requirements",
    Severity.WARNING,
    explains=("smoke.fp8-block",),
    settle="pip list | grep -i deep.gemm; nvidia-smi --query-gpu=compute_cap --format=csv,noheader; nvcc --version",
    cases=CASES,
)
def requirements(
    packages: tuple[Package, ...],
    gpus: Section[tuple[Gpu, ...]],
    torch_build: Section[TorchBuild],
    smoke: Section[tuple[SmokeResult, ...]],
    cuda_toolkits: Section[tuple[CudaToolkit, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    kernel_libraries_matrix: KernelLibraries,
    remedies: Remedies,
) -> Iterator[Said]:
    """Compare an installed DeepGEMM with the GPUs, torch and the toolkit that compiles its kernels."""
    found = installed(packages, LIBRARY, kernel_libraries_matrix, DISTRIBUTIONS, smoke=smoke.value or ())
    if not found:
        yield not_installed(packages, LIBRARY)
    compiles_with_nvcc = all(variable.name != WITHOUT_NVCC or variable.value in ("", "0") for variable in environment.value or ())
    for one in found:
        if not one.lines:
            yield of_an_unknown_line(one)
            continue
        yield from on_gpus(one, gpus, remedies, "without")
        yield from on_torch(one, torch_build, remedies, "build")
        if compiles_with_nvcc:
            yield from on_toolkit(one, gpus, cuda_toolkits, remedies, "compiler")
