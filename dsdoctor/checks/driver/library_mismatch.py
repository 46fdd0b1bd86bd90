"""The loaded kernel module and the driver's user-space libraries have different versions.

What it looks at
    The version of the loaded kernel module, the version of the libcuda and libnvidia-ml that a process started now would load, the module
    file that the next boot would load, and whether nvmlInit answered 18 (library/driver version mismatch).

Why it matters
    Module and libraries must be of exactly the same release. After a package upgrade the old module stays loaded until a reboot or reload, and
    every new process fails: nvidia-smi says "Failed to initialize NVML: Driver/library version mismatch", CUDA answers 803 or 804. Processes that
    already run go on, which hides the fault until the next start. In a container the libraries were handed in by the host when it was created.

Often said, and not so
    "Downgrade with nvidia-uninstall, then rm -rf /usr/lib/nvidia* /var/lib/nvidia*": never. nvidia-uninstall belongs to the runfile
    installer alone, and deleting the files of a package leaves the package manager with a broken state (and misses the libraries, which
    lie elsewhere). Use the package manager, or the runfile's own uninstaller, then reboot. Source: NVIDIA driver installation guide,
    removing the driver.

Sources
    NVML return code 18; NVIDIA Driver Installation Guide.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Container, DriverLibrary, DriverModuleFile, KernelDriver, NvmlStart, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import DriverVersion

MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH."""

OF_THE_OLD_VERSION = ("driver.too-old-for-cuda", "driver.too-old-for-gpu", "driver.ptx-too-new", "driver.branch-eol", "driver.known-bad")


def library(version: str, kind: str = "driver", soname: str = "libcuda.so.1") -> DriverLibrary:
    """A copy of a driver library that would be loaded first."""
    path = f"/usr/lib/x86_64-linux-gnu/{soname.removesuffix('.1')}.{version}"
    return DriverLibrary(soname=soname, path=path, version=version, kind=kind, found_via="ld.so.cache", loaded_first=True)


CASES = (
    Case(
        title="driver upgraded, not rebooted",
        sections={
            "kernel_driver": KernelDriver(version="570.133.20"),
            "driver_libraries": (library("580.95.05"), library("580.95.05", soname="libnvidia-ml.so.1")),
            "driver_module_file": DriverModuleFile(path="/lib/modules/6.8.0/updates/dkms/nvidia.ko", version="580.95.05"),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=18, error_text="Driver/library version mismatch"),
        },
        status=Status.FAIL,
        says="reboot",
    ),
    Case(
        title="NVML says mismatch, no version is known",
        sections={"nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=18, error_text="Driver/library version mismatch")},
        status=Status.FAIL,
        says="kernel module",
    ),
    Case(
        title="NVML says mismatch, and modinfo shows another module than the loaded one",
        sections={
            "kernel_driver": KernelDriver(version="570.133.20"),
            "driver_module_file": DriverModuleFile(path="/lib/modules/6.8.0/updates/dkms/nvidia.ko", version="580.95.05"),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=18, error_text="Driver/library version mismatch"),
        },
        status=Status.FAIL,
        says="the loaded kernel module is 570.133.20, the one on disk is 580.95.05",
    ),
    Case(
        title="NVML says mismatch, and a listing of the folder shows the library",
        sections={
            "kernel_driver": KernelDriver(version="570.133.20"),
            "driver_libraries": (
                DriverLibrary(
                    soname="libnvidia-ml.so.1",
                    path="/usr/lib64/libnvidia-ml.so.580.95.05",
                    version="580.95.05",
                    kind="driver",
                    found_via="ls -l",
                ),
            ),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=18, error_text="Driver/library version mismatch"),
        },
        status=Status.FAIL,
        says="580.95.05",
    ),
    Case(
        title="libraries upgraded, but no module was built for them",
        sections={
            "kernel_driver": KernelDriver(version="570.133.20"),
            "driver_libraries": (library("570.158.01", soname="libnvidia-ml.so.1"),),
            "driver_module_file": DriverModuleFile(path="/lib/modules/6.8.0/updates/dkms/nvidia.ko", version="570.133.20"),
        },
        status=Status.FAIL,
        says="DKMS did not build",
    ),
    Case(
        title="a container that was started before the host's upgrade",
        sections={
            "kernel_driver": KernelDriver(version="580.95.05"),
            "driver_libraries": (library("570.133.20"),),
            "container": Container(runtime="docker"),
        },
        status=Status.FAIL,
        says="container",
    ),
    Case(
        title="everything of one release",
        sections={"kernel_driver": KernelDriver(version="580.159.04"), "driver_libraries": (library("580.159.04"),)},
        status=Status.PASS,
    ),
    Case(
        title="a compat libcuda is another matter",
        sections={"kernel_driver": KernelDriver(version="535.129.03"), "driver_libraries": (library("580.65.06", kind="compat"),)},
        status=Status.UNKNOWN,
        says="no driver library",
    ),
    Case(
        title="only the module is known",
        sections={"kernel_driver": KernelDriver(version="580.159.04")},
        status=Status.UNKNOWN,
        says="libraries",
    ),
    Case(
        title="no driver",
        sections={"kernel_driver": absent("no nvidia kernel module is loaded")},
        status=Status.NOT_APPLICABLE,
        says="no nvidia kernel module",
    ),
)


@check(
    "driver.library-mismatch",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*", "gpu.lost", "container.no-gpu-access", "driver.absent"),
    settle="cat /proc/driver/nvidia/version; ls -l $(ldconfig -p | awk '/libcuda.so.1/ {print $NF; exit}')*",
    cases=CASES,
)
def library_mismatch(
    kernel_driver: Section[KernelDriver],
    driver_libraries: Section[tuple[DriverLibrary, ...]],
    driver_module_file: Section[DriverModuleFile],
    nvml_start: Section[NvmlStart],
    container: Section[Container],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the module's version with that of each driver library that loads first."""
    refused = nvml_start.value is not None and nvml_start.value.error_code == MISMATCH
    started = nvml_start.value is not None and nvml_start.value.error_code is None
    module = DriverVersion.parse(kernel_driver.value.version) if kernel_driver.value else None
    copies = [copy for copy in driver_libraries.value or () if copy.kind == "driver" and copy.version]
    firsts = [copy for copy in copies if copy.loaded_first] or (copies if refused else [])
    different = [copy for copy in firsts if module is not None and DriverVersion.parse(copy.version) not in (None, module)]
    if not refused and not different:
        if kernel_driver.state is State.ABSENT and not started:
            yield NotApplicable(reason=kernel_driver.why or "no driver is loaded")
        elif module is None and not started:
            yield Doubt(subject="driver", reason="the version of the kernel module is not known")
        elif module is not None and not firsts and not started:
            why = (
                "no driver library is loaded first"
                if driver_libraries.value is not None
                else "the versions of the driver libraries are not known"
            )
            yield Doubt(subject="driver", reason=why)
        return
    evidence = []
    if kernel_driver.value is not None:
        evidence.append(Evidence(where="kernel_driver.version", value=kernel_driver.value.version))
    evidence += _of_libraries(different)
    if refused and nvml_start.value is not None:
        evidence.append(Evidence(where="nvml_start", value=f"error {MISMATCH}: {nvml_start.value.error_text}"))
    on_disk = driver_module_file.value.version if driver_module_file.value else None
    if on_disk:
        evidence.append(Evidence(where="driver_module_file.version", value=on_disk))
    loaded = f"the loaded kernel module is {kernel_driver.value.version}" if kernel_driver.value else ""
    other = (
        f"{different[0].soname} is {different[0].version}"
        if different
        else f"{firsts[0].soname} is {firsts[0].version}"
        if firsts and not loaded
        else f"the one on disk is {on_disk}"
        if on_disk and kernel_driver.value and on_disk != kernel_driver.value.version
        else ""
    )
    versions = f": {', '.join(part for part in (loaded, other) if part)}" if other or loaded else ""
    yield Finding(
        subject="NVIDIA driver",
        summary=f"The NVIDIA kernel module and the driver libraries (NVML, libcuda) are of different versions (driver/library version mismatch){versions}.",
        cause=_cause(on_disk, different, kernel_driver.value, container.value is not None),
        evidence=tuple(evidence),
        expected="kernel module and user-space libraries of exactly the same release",
        remedies=_remedies(remedies, on_disk, different, module, container.value is not None),
        # The version of a module that an upgrade has left behind tells nothing about the driver this node is to have.
        explains=OF_THE_OLD_VERSION if module is not None and _newest(different, module) > module else (),
    )


def _of_libraries(copies: list[DriverLibrary]) -> list[Evidence]:
    """One line for the copies of each version and folder."""
    together: dict[tuple[str, str], list[str]] = {}
    for copy in copies:
        folder = copy.path.rpartition("/")[0]
        together.setdefault((copy.version, f"in {folder}" if folder else copy.path), []).append(copy.soname)
    return [
        Evidence(where="driver_libraries", value=f"{version} {place}: {', '.join(sonames)}")
        for (version, place), sonames in together.items()
    ]


def _newest(copies: list[DriverLibrary], module: DriverVersion) -> DriverVersion:
    """The newest of the module and these copies."""
    return max((module, *(version for copy in copies if (version := DriverVersion.parse(copy.version)))))


def _cause(on_disk: str | None, different: list[DriverLibrary], kernel: KernelDriver | None, in_container: bool) -> str:
    if in_container:
        return "The driver of the host was changed after this container got its libraries, or the image brings libraries of its own."
    if on_disk and different and on_disk == different[0].version:
        return "The driver was upgraded on disk while the old kernel module stayed loaded. A reboot (or a reload of the modules) ends it."
    if on_disk and kernel and on_disk == kernel.version:
        return (
            "The kernel module is the installed one, the libraries are not: two package sources, an upgrade that stopped half-way, "
            "or a module that DKMS did not build."
        )
    return "Usually the driver packages were upgraded while the old kernel module stayed loaded; a reboot or a reload of the kernel module ends it."


def _remedies(
    remedies: Remedies, on_disk: str | None, different: list[DriverLibrary], module: DriverVersion | None, in_container: bool
) -> tuple[Remedy, ...]:
    if in_container:
        return remedies("container")
    if on_disk and different and on_disk != different[0].version:
        if module is not None and DriverVersion.parse(on_disk) == module and _newest(different, module) > module:
            return (*remedies("module-not-built")[:1], *remedies("user-space-wrong"))
        return remedies("user-space-wrong")
    return remedies("upgraded")
