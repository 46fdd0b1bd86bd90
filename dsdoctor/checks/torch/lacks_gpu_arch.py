"""The installed torch, or another package with kernels, has no code for this GPU.

What it looks at
    The compute capability of each GPU against the targets that torch was compiled for (torch.cuda.get_arch_list() of the installed
    build, else those of the official binaries of its release), against the targets of other packages' extensions where they were read,
    and what the first operation on the GPU said.

Why it matters
    Machine code runs on GPUs of the same major and an equal or newer minor (sm_80 on 8.6, sm_100 on 10.3), PTX (compute_90) on newer
    ones, code with an "a" suffix on its own capability only. Without either, each kernel ends in "no kernel image is available for
    execution on the device" (209). A build for CUDA 12.4 has nothing for Blackwell (sm_100, sm_120); builds for CUDA 13 have nothing
    for Volta and older.

Sources
    PyTorch RELEASE.md (compatibility matrix); CUDA binary utilities and PTX ISA (target suffixes); CUDA runtime error 209.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD, no_gpu
from dsdoctor.checks.package._requirements import architecture_of
from dsdoctor.checks.torch._gpus import serves
from dsdoctor.checks.torch._said import quoted
from dsdoctor.facts import (
    Extension,
    Gpu,
    KernelDriver,
    Platform,
    Section,
    State,
    TorchBuild,
    TorchRuntime,
    absent,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Basis, Gpus, Torch
from dsdoctor.versions import ComputeCapability, CudaVersion

if TYPE_CHECKING:
    from dsdoctor.advise.answer import Pin
    from dsdoctor.advise.for_checks import NodeAdvice

NO_IMAGE = "no kernel image is available"
"""cudaErrorNoKernelImageForDevice (209)."""

TARGETS = "CUDA binary utilities: GPU targets — https://docs.nvidia.com/cuda/cuda-binary-utilities/index.html"
CU124 = TorchBuild(version="2.6.0+cu124", cuda="12.4")
CU124_LIST = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
RTX_5090 = (Gpu(index=0, name="NVIDIA GeForce RTX 5090", compute_capability="12.0"),)
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)
L40S = (Gpu(index=0, name="NVIDIA L40S", compute_capability="8.9"),)

CASES = (
    Case(
        title="RTX 5090 (sm_120) under torch for CUDA 12.4",
        sections={
            "torch_build": CU124,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, arch_list=CU124_LIST),
            "gpus": RTX_5090,
            "kernel_driver": KernelDriver(version="580.95.05"),
            "platform": Platform(architecture="x86_64"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="sm_120",
    ),
    Case(
        title="Volta under an official build for CUDA 13",
        sections={
            "torch_build": TorchBuild(version="2.11.0+cu130", cuda="13.0"),
            "gpus": (Gpu(index=0, name="Tesla V100-SXM2-16GB", compute_capability="7.0"),),
            "platform": Platform(architecture="x86_64"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="cu126",
    ),
    Case(
        title="the first operation says so",
        sections={
            "torch_build": TorchBuild(version="2.8.0a0+local", cuda="12.8"),
            "torch_runtime": TorchRuntime(
                imported=True,
                cuda_available=True,
                operation_error="CUDA error: no kernel image is available for execution on the device",
                device_capabilities=("12.0",),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="no kernel image",
    ),
    Case(
        title="another package has kernels for Hopper only",
        sections={
            "torch_build": TorchBuild(version="2.11.0+cu130", cuda="13.0"),
            "torch_runtime": TorchRuntime(imported=True, arch_list=("sm_80", "sm_90", "sm_120")),
            "gpus": RTX_5090,
            "extensions": (Extension(package="some-kernels", package_version="1.0", path="/s/k.so", gpu_targets=("sm_90a",)),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="some-kernels",
    ),
    Case(
        title="8.9 runs the code for 8.6",
        sections={
            "torch_build": CU124,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, arch_list=CU124_LIST),
            "gpus": L40S,
        },
        status=Status.PASS,
    ),
    Case(
        title="only PTX: slow at first, but it runs",
        sections={
            "torch_build": CU124,
            "torch_runtime": TorchRuntime(imported=True, arch_list=("sm_90", "compute_90")),
            "gpus": RTX_5090,
        },
        status=Status.PASS,
    ),
    Case(
        title="H200 under the official build",
        sections={
            "torch_build": TorchBuild(version="2.11.0+cu130", cuda="13.0"),
            "gpus": H200,
            "platform": Platform(architecture="x86_64"),
        },
        status=Status.PASS,
    ),
    Case(
        title="nothing is known about the targets of this build",
        sections={"torch_build": TorchBuild(version="2.3.0+cu121", cuda="12.1"), "gpus": H200},
        status=Status.UNKNOWN,
        says="targets",
    ),
    Case(title="the GPUs are not known", sections={"torch_build": CU124}, status=Status.UNKNOWN, says="GPU"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed"), "gpus": H200}, status=Status.NOT_APPLICABLE),
    Case(
        title="a build without CUDA has no code for any GPU",
        sections={"torch_build": TorchBuild(version="2.11.0+cpu")},
        status=Status.NOT_APPLICABLE,
        says="without CUDA",
    ),
)


@check(
    "torch.lacks-gpu-arch",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*"),
    settle='python -c "import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())"',
    cases=CASES,
)
def lacks_gpu_arch(
    torch_build: TorchBuild,
    torch_runtime: Section[TorchRuntime],
    gpus: Section[tuple[Gpu, ...]],
    extensions: Section[tuple[Extension, ...]],
    platform: Section[Platform],
    torch_matrix: Torch,
    gpus_matrix: Gpus,
    remedies: Remedies,
    advice: NodeAdvice,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Each GPU must be served by torch's targets."""
    cuda = CudaVersion.parse(torch_build.cuda or "")
    if cuda is None:
        yield NO_CUDA_BUILD
        return
    runtime = torch_runtime.value
    devices = _devices(gpus, runtime)
    architecture = architecture_of(platform.value)
    targets, where, basis = _targets(torch_build, cuda, runtime, architecture, torch_matrix)
    said = runtime.operation_error if runtime and NO_IMAGE in runtime.operation_error else ""
    if not devices and not said:
        yield (
            no_gpu(gpus) if gpus.state is State.ABSENT else Doubt(subject="GPU", reason="the compute capability of the GPUs is not known")
        )
        return
    lacking = {name: capability for name, capability in devices.items() if targets and not serves(targets, capability)}
    if lacking or said:
        lacks, capability = next(iter((lacking or devices).items()), ("", None))
        best = _build(advice.for_gpu(lacks, capability) if capability else advice, torch_build.version.partition("+")[0], cuda.tag)
        family = gpus_matrix.architecture(capability) if capability else ""
        who = ", ".join(lacking) or ", ".join(devices) or "the GPU"
        sm = f" ({capability.sm}{f', {family}' if family else ''})" if capability else ""
        fill = {"torch_version": best.version, "cu": best.build} if best else {}
        yield Finding(
            subject=f"torch {torch_build.version}",
            severity=Severity.ERROR if said or basis is None or basis.may_carry_error else Severity.WARNING,
            summary=f"torch {torch_build.version} has no code for {who}{sm}"
            + (f": {quoted(said)}." if said and not lacking else "; it was compiled for " + " ".join(targets) + ".")
            + (f" torch {best.version}+{best.build} has it." if best else ""),
            cause="Neither machine code nor PTX of this build runs on that GPU: the first kernel ends in error 209, no kernel image.",
            evidence=(
                *((Evidence(where="torch_runtime.operation_error", value=said),) if said else ()),
                *((Evidence(where=where, value=" ".join(targets)),) if targets else ()),
                *(Evidence(where=f"compute capability of {name}", value=str(found)) for name, found in (lacking or devices).items()),
            ),
            expected=f"a build whose targets hold {capability.sm}" if capability else "a build with code for this GPU",
            remedies=remedies("torch", **fill),
            sources=(basis or torch_matrix.binary_arches[0].basis).sources,
        )
    elif not targets:
        yield Doubt(subject=f"torch {torch_build.version}", reason="the targets it was compiled for are not known")
    yield from _other_packages(extensions, devices, remedies)


def _build(advice: NodeAdvice, version: str, tag: str) -> Pin | None:
    """Another build of the installed release that runs here, else the newest torch that does."""
    found = (advice.torch_build(version), advice.newest_torch())
    return next((pin for pin in found if pin is not None and (pin.version, pin.build) != (version, tag)), None)


def _devices(gpus: Section[tuple[Gpu, ...]], runtime: TorchRuntime | None) -> dict[str, ComputeCapability]:
    """Name and capability of each GPU; equal GPUs once."""
    found = [(gpu.name or f"GPU {gpu.index}", gpu.compute_capability) for gpu in gpus.value or ()]
    if not any(text for _, text in found):
        found = [(f"GPU {index}", text) for index, text in enumerate(runtime.device_capabilities if runtime else ())]
    return {name: capability for name, text in found if (capability := ComputeCapability.parse(text)) is not None}


def _targets(
    build: TorchBuild, cuda: CudaVersion, runtime: TorchRuntime | None, architecture: str, matrix: Torch
) -> tuple[Sequence[str], str, Basis | None]:
    """The targets of the installed build, and where that is known from; the basis is None where the build itself said it."""
    if runtime is not None and runtime.arch_list:
        return runtime.arch_list, "torch_runtime.arch_list", None
    official = build.version.partition("+")[2] in ("", cuda.tag)
    row = matrix.arches(build.version, cuda) if official and architecture == "x86_64" else None  # the table is of the x86_64 builds
    return (row.targets(), f"matrices/torch: binaries of {row.torch} for CUDA {row.cuda}", row.basis) if row else ((), "", None)


def _other_packages(
    extensions: Section[tuple[Extension, ...]], devices: Mapping[str, ComputeCapability], remedies: Remedies
) -> Iterator[Finding]:
    """Packages none of whose extensions has code for a GPU; their own checks say more where there are any."""
    by_package: dict[tuple[str, str], set[str]] = {}
    for extension in extensions.value or ():
        if extension.package != "torch":
            by_package.setdefault((extension.package, extension.package_version), set()).update(extension.gpu_targets)
    for (package, version), targets in by_package.items():
        lacking = {name: capability for name, capability in devices.items() if targets and not serves(targets, capability)}
        if not lacking:
            continue
        name, capability = next(iter(lacking.items()))
        fill = {"version": version} if version else {}
        yield Finding(
            subject=f"{package} {version}".rstrip(),
            severity=Severity.WARNING,
            summary=f"The kernels of {package} {version} have no code for {name} ({capability.sm}): they are for {' '.join(sorted(targets))}.",
            cause='Its first kernel ends in "no kernel image is available for execution on the device" (209). torch itself is fine.',
            evidence=(
                Evidence(where=f"extensions[{package}].gpu_targets", value=" ".join(sorted(targets))),
                Evidence(where=f"compute capability of {name}", value=str(capability)),
            ),
            expected=f"code for {capability.sm}",
            remedies=remedies("other-package", package=package, cc=str(capability), **fill),
            sources=(TARGETS,),
        )
