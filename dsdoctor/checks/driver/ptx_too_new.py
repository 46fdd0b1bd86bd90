"""The GPU could run torch's kernels only from PTX that is newer than the driver understands.

What it looks at
    Whether torch's build has machine code for this GPU; when it has only PTX, whether the driver's CUDA version is at least the one that
    made the PTX; and whether CUDA answered 222 (unsupported PTX version).

Why it matters
    Minor-version compatibility covers machine code. PTX is compiled by the driver at load, and a driver compiles PTX only up to its own CUDA
    version: "the provided PTX was compiled with an unsupported toolchain" (222). The same driver gap is harmless as long as nothing needs PTX.

Sources
    NVIDIA CUDA Compatibility: minor-version compatibility, limits; CUDA runtime error 222.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD, driver_version, no_gpu
from dsdoctor.facts import Gpu, KernelDriver, NvmlVersions, Section, State, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import CudaToolkits, DriverBranches, Torch
from dsdoctor.versions import ComputeCapability, CudaVersion, GpuTarget

UNSUPPORTED_PTX = 222
"""cudaErrorUnsupportedPtxVersion."""

CU128 = TorchBuild(version="2.8.0+cu128", cuda="12.8")
PTX_ONLY = TorchRuntime(imported=True, cuda_available=True, arch_list=("sm_80", "sm_90", "compute_90"))
H100 = (Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability="9.0"),)
B200 = (Gpu(index=0, name="NVIDIA B200", compute_capability="10.0"),)

CASES = (
    Case(
        title="PTX of CUDA 12.8 on a driver of CUDA 12.4",
        sections={
            "torch_build": CU128,
            "torch_runtime": PTX_ONLY,
            "gpus": B200,
            "nvml_versions": NvmlVersions(driver="550.54.15", cuda_driver="12.4"),
        },
        status=Status.FAIL,
        says="12.4",
    ),
    Case(
        title="CUDA answered 222",
        sections={
            "torch_build": CU128,
            "torch_runtime": TorchRuntime(
                imported=True, cuda_available=False, cuda_error="error 222: unsupported toolchain", cuda_error_code=222
            ),
            "nvml_versions": NvmlVersions(driver="550.54.15", cuda_driver="12.4"),
        },
        status=Status.FAIL,
        says="222",
    ),
    Case(
        title="machine code for the GPU: the gap is harmless",
        sections={
            "torch_build": CU128,
            "torch_runtime": PTX_ONLY,
            "gpus": H100,
            "nvml_versions": NvmlVersions(driver="550.54.15", cuda_driver="12.4"),
        },
        status=Status.PASS,
    ),
    Case(
        title="PTX, and a driver as new as its toolkit",
        sections={
            "torch_build": CU128,
            "torch_runtime": PTX_ONLY,
            "gpus": B200,
            "nvml_versions": NvmlVersions(driver="570.86.15", cuda_driver="12.8"),
        },
        status=Status.PASS,
    ),
    Case(
        title="PTX, and the driver's CUDA version is not known",
        sections={"torch_build": CU128, "torch_runtime": PTX_ONLY, "gpus": B200},
        status=Status.UNKNOWN,
        says="driver",
    ),
    Case(title="no torch build known", sections={"gpus": B200}, status=Status.UNKNOWN, says="torch build"),
    Case(
        title="a CPU build",
        sections={"torch_build": TorchBuild(version="2.11.0+cpu"), "gpus": B200},
        status=Status.NOT_APPLICABLE,
        says="without CUDA",
    ),
    Case(
        title="no GPU",
        sections={"torch_build": CU128, "gpus": absent("there is no NVIDIA GPU")},
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU",
    ),
)


@check(
    "driver.ptx-too-new",
    Severity.ERROR,
    explains=("smoke.*", "torch.cuda-unavailable"),
    settle='python -c "import torch; print(torch.cuda.get_arch_list()); torch.zeros(1).cuda()"',
    cases=CASES,
)
def ptx_too_new(
    torch_build: TorchBuild,
    torch_runtime: Section[TorchRuntime],
    gpus: Section[tuple[Gpu, ...]],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    driver_branches_matrix: DriverBranches,
    torch_matrix: Torch,
    cuda_toolkits_matrix: CudaToolkits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A GPU that torch serves by PTX only needs a driver of at least torch's CUDA version."""
    cuda = CudaVersion.parse(torch_build.cuda or "")
    if cuda is None:
        yield NO_CUDA_BUILD
        return
    runtime = torch_runtime.value
    own = _driver_cuda(kernel_driver, nvml_versions, driver_branches_matrix)
    if runtime is not None and runtime.cuda_error_code == UNSUPPORTED_PTX:
        answer = Evidence(where="torch_runtime.cuda_error", value=runtime.cuda_error)
        yield _finding("a kernel", cuda, own, (answer,), cuda_toolkits_matrix, driver_branches_matrix, remedies)
        return
    row = torch_matrix.arches(torch_build.version, cuda)
    targets = runtime.arch_list if runtime and runtime.arch_list else row.targets() if row else ()
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
    elif gpus.value is None:
        yield Doubt(subject="GPU", reason=f"the GPUs are not known ({gpus.why or 'not asked'})")
    elif not targets:
        yield Doubt(subject=f"torch {torch_build.version}", reason="for which GPUs it carries code is not known")
    for gpu in gpus.value or ():
        capability = ComputeCapability.parse(gpu.compute_capability)
        parsed = [target for text in targets if (target := GpuTarget.parse(text))]
        usable = [target for target in parsed if capability and target.runs_on(capability)]
        if not usable or any(not target.is_ptx for target in usable):
            continue
        if own is None:
            yield Doubt(subject=f"GPU {gpu.index}", reason="torch serves it by PTX only, and the driver's CUDA version is not known")
        elif own < cuda:
            evidence = (
                Evidence(where="nvml_versions.cuda_driver", value=str(own)),
                Evidence(where="torch_runtime.arch_list", value=" ".join(targets)),
                Evidence(where=f"gpus[{gpu.index}].compute_capability", value=gpu.compute_capability),
            )
            yield _finding(f"GPU {gpu.index} ({gpu.name})", cuda, own, evidence, cuda_toolkits_matrix, driver_branches_matrix, remedies)


def _driver_cuda(
    kernel_driver: Section[KernelDriver], nvml_versions: Section[NvmlVersions], branches: DriverBranches
) -> CudaVersion | None:
    said = CudaVersion.parse(nvml_versions.value.cuda_driver) if nvml_versions.value else None
    reading = driver_version(kernel_driver, nvml_versions)
    return said or (branches.native_cuda(reading[0]) if reading else None)


def _finding(
    subject: str,
    cuda: CudaVersion,
    own: CudaVersion | None,
    evidence: tuple[Evidence, ...],
    toolkits: CudaToolkits,
    branches: DriverBranches,
    remedies: Remedies,
) -> Finding:
    enough = branches.branches_for(cuda)
    branch = str(enough[0].branch) if enough else ""
    driver = f"the driver compiles PTX up to CUDA {own}" if own else "the driver is older than that"
    limit = next((fact for fact in toolkits.limits if fact.id == "ptx"), None)
    return Finding(
        subject=subject,
        summary=f"Kernels for {subject} exist only as PTX of CUDA {cuda}, and {driver} (error 222).",
        cause="The driver compiles PTX when it loads a kernel, and only up to its own CUDA version. Machine code built for the GPU would need no compiling.",
        evidence=evidence,
        expected=f"machine code for this GPU in the package, or a driver of CUDA {cuda} or newer{f' (branch {branch})' if branch else ''}",
        remedies=(
            *remedies("newer-driver", branch=branch)[:1],
            *remedies("jit-compiler", cuda=str(own or ""))[:1],
            *remedies("rebuild")[:1],
        ),
        sources=limit.basis.sources if limit else (),
    )
