"""No NVIDIA driver is loaded.

What it looks at
    The loaded kernel module (/proc/driver/nvidia), the NVIDIA devices on the PCI bus, and what nvmlInit answered.

Why it matters
    Without the kernel module nothing on this node can use a GPU: torch says "Found no NVIDIA driver on your system", nvidia-smi says that it
    "couldn't communicate with the NVIDIA driver". The usual reasons are a driver that was never installed, a kernel upgrade for which no module
    was built, a module that Secure Boot refused, or another module (nouveau, vfio-pci) that owns the GPU. Under WSL the driver is the one of
    Windows and there is no kernel module to see; in a container the host's driver has to be handed in.

Sources
    NVIDIA Driver Installation Guide; NVML return codes 9 (driver not loaded) and 12 (library not found).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import (
    Container,
    DriverModuleFile,
    KernelDriver,
    NvmlStart,
    PciDevice,
    Section,
    State,
    Wsl,
    unreadable,
)
from dsdoctor.facts import absent as section_absent
from dsdoctor.findings import Doubt, Evidence, Finding, Remedy, Severity, Status, counted
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches

NOT_LOADED = 9
"""NVML_ERROR_DRIVER_NOT_LOADED."""

NO_MODULE = section_absent("no nvidia module is loaded")
H100 = PciDevice(address="0000:19:00.0", kind="gpu", vendor_id="10de", device_id="2330")

CASES = (
    Case(
        title="eight GPUs on the bus, no module",
        sections={
            "kernel_driver": NO_MODULE,
            "pci_devices": (H100,) * 8,
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=12),
        },
        status=Status.FAIL,
        says="8 NVIDIA GPUs",
    ),
    Case(title="no GPU at all", sections={"kernel_driver": NO_MODULE, "pci_devices": ()}, status=Status.FAIL, says="no NVIDIA GPU"),
    Case(
        title="nvidia-smi says that the driver is not loaded, nothing else is known",
        sections={"nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=9, error_text="Driver Not Loaded")},
        status=Status.FAIL,
        says="driver is loaded",
    ),
    Case(title="the module is loaded", sections={"kernel_driver": KernelDriver(version="580.159.04")}, status=Status.PASS),
    Case(
        title="under WSL there is no module, and NVML works",
        sections={"kernel_driver": NO_MODULE, "wsl": Wsl(version=2), "nvml_start": NvmlStart(library="/usr/lib/wsl/lib/libnvidia-ml.so.1")},
        status=Status.PASS,
    ),
    Case(
        title="/proc cannot be read", sections={"kernel_driver": unreadable("permission denied")}, status=Status.UNKNOWN, says="permission"
    ),
)


@check(
    "driver.absent",
    Severity.ERROR,
    explains=("container.*", "gpu.lost", "fabric.*", "smoke.*", "toolchain.*", "env.cuda-visible-devices", "torch.cuda-unavailable"),
    settle="nvidia-smi; lspci -nnk -d 10de:",
    cases=CASES,
)
def absent(
    kernel_driver: Section[KernelDriver],
    pci_devices: Section[tuple[PciDevice, ...]],
    nvml_start: Section[NvmlStart],
    driver_module_file: Section[DriverModuleFile],
    container: Section[Container],
    wsl: Section[Wsl],
    driver_branches_matrix: DriverBranches,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """A driver is there when its module is loaded, or when NVML started."""
    nvml_started = nvml_start.value is not None and nvml_start.value.error_code is None
    if kernel_driver.value is not None or nvml_started:
        return
    nvml_says_not_loaded = nvml_start.value is not None and nvml_start.value.error_code == NOT_LOADED
    if kernel_driver.state is not State.ABSENT and not nvml_says_not_loaded:
        yield Doubt(subject="driver", reason=kernel_driver.why or "nobody looked for the kernel module")
        return
    gpus = [device for device in pci_devices.value or () if device.kind == "gpu"]
    evidence = [Evidence(where="kernel_driver", value=kernel_driver.why or "not known")]
    if nvml_start.value is not None:
        evidence.append(
            Evidence(where="nvml_start", value=f"error {nvml_start.value.error_code}: {nvml_start.value.error_text or 'no NVML'}")
        )
    if pci_devices.value is not None:
        evidence.append(Evidence(where="pci_devices", value=", ".join(gpu.address for gpu in gpus[:8]) or "no NVIDIA GPU"))
    if wsl.value is not None:
        yield _finding("Windows hands no GPU to this WSL.", "Under WSL the driver is the one of Windows.", evidence, remedies())
    elif pci_devices.value is not None and not gpus:
        yield _finding(
            "There is no NVIDIA GPU on the PCI bus of this machine, and no NVIDIA driver is loaded.",
            "Either this machine has none, or all of them are gone from the bus (power, seating, a virtual machine without pass-through).",
            evidence,
            remedies(),
        )
    elif container.value is not None and not driver_module_file.value:
        yield _finding(
            f"The NVIDIA kernel driver of the host is not loaded{_waiting(len(gpus))}.",
            "A container uses the kernel module of its host; it cannot load one.",
            evidence,
            remedies("not-installed"),
        )
    elif driver_module_file.value is not None:
        evidence.append(Evidence(where="driver_module_file.path", value=driver_module_file.value.path))
        yield _finding(
            f"An NVIDIA kernel module is installed for the running kernel, but it is not loaded{_waiting(len(gpus))}.",
            "Nothing loaded it, the kernel refused it (Secure Boot), or another module owns the GPU.",
            evidence,
            remedies("not-loaded"),
        )
    else:
        yield _finding(
            f"No NVIDIA kernel driver is loaded{_waiting(len(gpus))}.",
            "The driver was never installed, or the kernel was upgraded and no module was built for it.",
            evidence,
            (*remedies("not-installed", branch=str(driver_branches_matrix.supported()[-1].branch))[:2], *remedies("not-built")[:1]),
        )


def _waiting(gpus: int) -> str:
    return f", and {counted(gpus, 'NVIDIA GPU')} {'waits' if gpus == 1 else 'wait'} on the PCI bus" if gpus else ""


def _finding(summary: str, cause: str, evidence: list[Evidence], remedies: tuple[Remedy, ...]) -> Finding:
    return Finding(
        subject="NVIDIA driver",
        summary=summary,
        cause=cause,
        evidence=tuple(evidence),
        expected="a loaded nvidia kernel module",
        remedies=remedies,
    )
