"""A forward-compatibility libcuda is loaded although the driver's own should be.

What it looks at
    The copy of libcuda that a process started now would load, where it comes from, its version against the loaded kernel module, and
    whether CUDA answered 803 (system has unsupported display driver / cuda driver combination).

Why it matters
    The packages cuda-compat-* carry the libcuda of a newer driver. They are for a kernel driver that is OLDER than the package. When the driver
    is newer than or equal to it, the compat copy shadows the right one and CUDA fails with 803 or misses features. It happens when an image puts
    /usr/local/cuda/compat into LD_LIBRARY_PATH or ld.so.conf and the host's driver is upgraded later. So 803 often means that the driver is
    newer than the image, not older.

Sources
    NVIDIA CUDA Compatibility: forward compatibility; CUDA runtime error 803.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_LIBCUDA, driver_version, first_libcuda
from dsdoctor.facts import Container, DriverLibrary, KernelDriver, NvmlVersions, Section, TorchRuntime
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCodes
from dsdoctor.versions import DriverVersion

SYSTEM_DRIVER_MISMATCH = 803
"""cudaErrorSystemDriverMismatch."""


def compat(version: str) -> tuple[DriverLibrary, ...]:
    """A compat copy that is loaded first."""
    path = f"/usr/local/cuda/compat/libcuda.so.{version}"
    return (
        DriverLibrary(soname="libcuda.so.1", path=path, version=version, kind="compat", found_via="LD_LIBRARY_PATH", loaded_first=True),
    )


OWN = (DriverLibrary(soname="libcuda.so.1", path="/usr/lib/libcuda.so.580.95.05", version="580.95.05", kind="driver", found_via="ld.so.cache",
                     loaded_first=True),)  # fmt: skip

CASES = (
    Case(
        title="the driver is newer than the compat library of the image",
        sections={"kernel_driver": KernelDriver(version="580.95.05"), "driver_libraries": compat("550.54.15")},
        status=Status.FAIL,
        says="550.54.15",
    ),
    Case(
        title="CUDA answered 803",
        sections={
            "kernel_driver": KernelDriver(version="580.95.05"),
            "driver_libraries": compat("580.95.05"),
            "torch_runtime": TorchRuntime(imported=True, cuda_available=False, cuda_error="Error 803", cuda_error_code=803),
        },
        status=Status.FAIL,
        says="803",
    ),
    Case(
        title="an older driver with a newer compat library: that is what it is for",
        sections={"kernel_driver": KernelDriver(version="535.129.03"), "driver_libraries": compat("580.65.06")},
        status=Status.PASS,
    ),
    Case(
        title="the driver's own libcuda",
        sections={"kernel_driver": KernelDriver(version="580.95.05"), "driver_libraries": OWN},
        status=Status.PASS,
    ),
    Case(
        title="the driver's version is not known", sections={"driver_libraries": compat("550.54.15")}, status=Status.UNKNOWN, says="driver"
    ),
    Case(title="nobody looked for libcuda", sections={"kernel_driver": KernelDriver(version="580.95.05")}, status=Status.UNKNOWN),
    Case(title="the loader finds no libcuda", sections={"driver_libraries": ()}, status=Status.NOT_APPLICABLE, says="no libcuda"),
)


@check(
    "driver.compat-library-shadows",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*"),
    settle="ldconfig -p | grep libcuda.so.1; echo $LD_LIBRARY_PATH; cat /proc/driver/nvidia/version",
    cases=CASES,
)
def compat_library_shadows(
    driver_libraries: tuple[DriverLibrary, ...],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    torch_runtime: Section[TorchRuntime],
    container: Section[Container],
    error_codes_matrix: ErrorCodes,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A compat libcuda that is loaded first must be newer than the kernel module."""
    libcuda = first_libcuda(driver_libraries)
    if libcuda is None:
        yield NO_LIBCUDA
        return
    if libcuda.kind != "compat":
        return
    reading = driver_version(kernel_driver, nvml_versions)
    answered = torch_runtime.value.cuda_error_code if torch_runtime.value else None
    own = DriverVersion.parse(libcuda.version)
    if answered != SYSTEM_DRIVER_MISMATCH:
        if torch_runtime.value is not None and torch_runtime.value.cuda_available:
            return
        if reading is None or own is None:
            yield Doubt(
                subject=libcuda.path, reason="a compat libcuda is loaded first; the version of the driver or of the library is not known"
            )
            return
        if reading[0] < own:
            return
    error = error_codes_matrix.cuda_error(SYSTEM_DRIVER_MISMATCH)
    evidence = [Evidence(where="driver_libraries", value=f"{libcuda.path} is loaded first ({libcuda.found_via})")]
    if reading is not None:
        evidence.append(reading[1])
    if answered == SYSTEM_DRIVER_MISMATCH and torch_runtime.value is not None:
        evidence.append(Evidence(where="torch_runtime.cuda_error", value=torch_runtime.value.cuda_error))
    driver = f"the driver is {reading[1].value}" if reading else "the driver's own libcuda is not used"
    yield Finding(
        subject=libcuda.path,
        summary=f"The forward-compatibility libcuda {libcuda.version} in {libcuda.path.rpartition('/')[0]} is loaded instead of the driver's own; {driver}.",
        cause=(
            "A compat library works only with a kernel driver older than itself. Here it shadows the right libcuda, and CUDA fails with error 803 "
            "(unsupported display driver / cuda driver combination). The driver is not too old: it is newer than, or as new as, the image."
        ),
        evidence=tuple(evidence),
        expected="the libcuda of the driver itself, or a compat library newer than the driver",
        remedies=remedies(),
        sources=error.basis.sources if error else (),
    )
