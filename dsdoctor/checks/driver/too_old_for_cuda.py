"""The NVIDIA driver is older than the CUDA version in use needs.

What it looks at
    The version of the loaded driver, the CUDA version torch was built for, and whether a forward-compatibility libcuda is loaded in its place.

Why it matters
    Every CUDA major has a minimum driver (525.60.13 for CUDA 12, 580.65.06 for CUDA 13). Below it nothing of that major starts: torch says "The NVIDIA
    driver on your system is too old (found version 12020)" or "No CUDA GPUs are available". Above it, every minor of the major runs (minor-version
    compatibility): the driver that the toolkit's release notes name beside it is for the full feature set, and is no reason to upgrade by itself.
    Before CUDA 11 every minor has a floor of its own (410.48 for 10.0, 418.39 for 10.1, 440.33 for 10.2).
    An extension that fails to load with an undefined symbol of libcuda (cuTensorMapEncodeTiled …) is the same fault seen from the other end.

Often said, and not so
    "The driver must be at least as new as the CUDA runtime": only across majors. Within a major any driver from its minimum on works
    (11.x from 450.80.02, 12.x from 525.60.13, 13.x from 580.65.06), and a data-centre GPU crosses majors with a compat package. Source:
    NVIDIA CUDA Compatibility.

Sources
    NVIDIA CUDA Compatibility (minor-version and forward compatibility); the CUDA toolkit release notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD, driver_version, first_libcuda, no_driver_version
from dsdoctor.facts import DriverLibrary, Gpu, KernelDriver, NvmlVersions, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import CudaMajor, CudaToolkits, DriverBranches, ForwardCompat, Gpus
from dsdoctor.versions import CudaVersion, DriverVersion

if TYPE_CHECKING:
    from dsdoctor.advise.answer import Pin
    from dsdoctor.advise.for_checks import NodeAdvice

CU130 = TorchBuild(version="2.11.0+cu130", cuda="13.0")
CU128 = TorchBuild(version="2.8.0+cu128", cuda="12.8")
COMPAT = (DriverLibrary(soname="libcuda.so.1", path="/usr/local/cuda-13.0/compat/libcuda.so.580.65.06", version="580.65.06", kind="compat",
                        found_via="LD_LIBRARY_PATH", loaded_first=True),)  # fmt: skip

CASES = (
    Case(
        title="driver 535 under torch for CUDA 13",
        sections={"torch_build": CU130, "kernel_driver": KernelDriver(version="535.129.03")},
        status=Status.FAIL,
        says="535.129.03",
    ),
    Case(
        title="the last driver before the floor of CUDA 13",
        sections={"torch_build": CU130, "nvml_versions": NvmlVersions(driver="575.57.08")},
        status=Status.FAIL,
        says="580",
    ),
    Case(
        title="the first driver of CUDA 13",
        sections={"torch_build": CU130, "kernel_driver": KernelDriver(version="580.65.06")},
        status=Status.PASS,
    ),
    Case(
        title="CUDA 12.8 on a 535 driver: minor-version compatibility",
        sections={"torch_build": CU128, "kernel_driver": KernelDriver(version="535.129.03")},
        status=Status.PASS,
    ),
    Case(
        title="before CUDA 11 each minor has its own floor",
        sections={"torch_build": TorchBuild(version="1.5.0", cuda="10.2"), "nvml_versions": NvmlVersions(driver="418.87.00")},
        status=Status.FAIL,
        says="440.33",
    ),
    Case(
        title="the driver of CUDA 10.1 under torch for it",
        sections={"torch_build": TorchBuild(version="1.5.0+cu101", cuda="10.1"), "nvml_versions": NvmlVersions(driver="418.87.00")},
        status=Status.PASS,
    ),
    Case(
        title="a forward-compatibility libcuda is loaded and torch works with it",
        sections={
            "torch_build": CU130,
            "kernel_driver": KernelDriver(version="535.129.03"),
            "driver_libraries": COMPAT,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True),
        },
        status=Status.PASS,
    ),
    Case(
        title="the loaded libcuda is older than torch's CUDA, seen at run time",
        sections={"torch_build": CU130, "torch_runtime": TorchRuntime(imported=True, cuda_available=False, driver_cuda="12.2")},
        status=Status.FAIL,
        says="12.2",
    ),
    Case(
        title="a driver newer than every table",
        sections={"torch_build": CU130, "kernel_driver": KernelDriver(version="999.10.01")},
        status=Status.PASS,
    ),
    Case(
        title="torch for a CUDA major that no row knows",
        sections={"torch_build": TorchBuild(version="9.0.0+cu150", cuda="15.0"), "kernel_driver": KernelDriver(version="580.65.06")},
        status=Status.UNKNOWN,
        says="newer than this knowledge",
    ),
    Case(title="the driver is not known", sections={"torch_build": CU130}, status=Status.UNKNOWN, says="driver"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a CPU build needs no driver",
        sections={"torch_build": TorchBuild(version="2.13.0+cpu"), "kernel_driver": KernelDriver(version="470.82.01")},
        status=Status.NOT_APPLICABLE,
        says="torch is built without CUDA",
    ),
)


@check(
    "driver.too-old-for-cuda",
    Severity.ERROR,
    explains=(
        "torch.cuda-unavailable",
        "torch.import-fails",
        "package.abi-mismatch",
        "smoke.*",
        "env.cuda-visible-devices",
        "driver.ptx-too-new",
        "attention.fa3-unusable",
    ),
    settle="nvidia-smi --query-gpu=name,driver_version --format=csv",
    cases=CASES,
)
def too_old_for_cuda(
    torch_build: TorchBuild,
    torch_runtime: Section[TorchRuntime],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    driver_libraries: Section[tuple[DriverLibrary, ...]],
    gpus: Section[tuple[Gpu, ...]],
    cuda_toolkits_matrix: CudaToolkits,
    driver_branches_matrix: DriverBranches,
    forward_compat_matrix: ForwardCompat,
    gpus_matrix: Gpus,
    remedies: Remedies,
    advice: NodeAdvice,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the driver with the floor of torch's CUDA major."""
    cuda = CudaVersion.parse(torch_build.cuda or "")
    runtime = torch_runtime.value
    if cuda is None:
        yield NO_CUDA_BUILD
        return
    if runtime is not None and runtime.cuda_available:
        return
    floor = cuda_toolkits_matrix.floor(cuda)
    minimum = DriverVersion.parse(floor.min_driver) if floor else None
    if floor is None or minimum is None:
        newest = cuda_toolkits_matrix.newest
        relation = "newer than this knowledge" if newest is None or cuda > newest else "not in this knowledge"
        yield Doubt(subject=f"CUDA {cuda}", reason=f"{relation}, which knows no minimum driver for it")
        return
    reading = driver_version(kernel_driver, nvml_versions)
    loaded = CudaVersion.parse(runtime.driver_cuda) if runtime else None
    if reading is None:
        if loaded is None:
            yield no_driver_version(kernel_driver)
            return
        if loaded >= cuda or (floor.minor is None and loaded.major == cuda.major):
            return
        driver, seen, node_has = None, Evidence(where="torch_runtime.driver_cuda", value=str(loaded)), f"loads a libcuda of CUDA {loaded}"
    else:
        driver, seen = reading
        node_has = f"has driver {seen.value}"
        if driver_branches_matrix.is_developer_beta(driver):
            yield Doubt(subject=f"driver {seen.value}", reason="a developer beta, whose number does not compare with production drivers")
            return
        if driver >= minimum:
            return
        libcuda = first_libcuda(driver_libraries.value or ())
        if libcuda is not None and libcuda.kind == "compat" and runtime is None:
            yield Doubt(
                subject=f"driver {seen.value}",
                reason=f"older than CUDA {cuda if floor.minor is not None else cuda.major} needs, but a forward-compatibility libcuda ({libcuda.path}) is loaded first",
                settle='python -c "import torch; torch.cuda.init()"',
            )
            return
    older = advice.newest_torch() if driver else None
    eligible = [forward_compat_matrix.eligible(row.product_class) for gpu in gpus.value or () if (row := gpus_matrix.product(gpu.name))]
    yield Finding(
        subject=f"torch {torch_build.version}",
        summary=f"torch {torch_build.version} is built for CUDA {cuda}, which needs driver {minimum} or newer; this node {node_has}.",
        cause=(
            f"No program built for CUDA {cuda.major} (here {cuda.tag}) can start on this driver, whatever its minor version; "
            if floor.minor is None
            else f"No program built for CUDA {cuda} can start on this driver: before CUDA 11 each minor version asks for its own; "
        )
        + "torch then says that the driver is too old, or that no GPU is available.",
        evidence=(seen, Evidence(where="torch_build.cuda", value=f"{torch_build.cuda} (torch {torch_build.version})")),
        expected=(older and advice.newest_torch_sentence())
        or f"driver {minimum} or newer for CUDA {cuda if floor.minor is not None else cuda.major}",
        remedies=_remedies(remedies, cuda, floor, older, all(eligible) and bool(eligible)),
        sources=floor.basis.sources,
    )


def _remedies(remedies: Remedies, cuda: CudaVersion, floor: CudaMajor, older: Pin | None, datacenter: bool) -> tuple[Remedy, ...]:
    case = "administer" if floor.minor is None else "before-cuda-11"
    chosen = remedies(case, branch=str(floor.min_driver_branch), cuda=str(cuda))[:1]
    if older is not None:
        chosen += remedies("no-root", cu=older.build, cuda=str(CudaVersion.parse(older.build)), torch_version=older.version)[:1]
    if datacenter:
        chosen += remedies("forward-compat", cuda=str(cuda), major=str(cuda.major), minor=str(cuda.minor))[:1]
    return chosen
