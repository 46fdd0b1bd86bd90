"""Another kernel module than NVIDIA's drives a GPU.

What it looks at
    The kernel driver that each NVIDIA GPU on the PCI bus is bound to, and whether nouveau or nova_core is loaded while nvidia is not.

Why it matters
    A device has one driver. When nouveau, nova_core or vfio-pci took the GPU at boot, the NVIDIA module loads but finds nothing to drive ("The NVIDIA probe
    routine was not called", "No devices were found"). vfio-pci is right on a host that hands its GPUs to virtual machines, and wrong where they should be used.

Sources
    NVIDIA Driver Installation Guide: disabling nouveau; Linux kernel documentation of VFIO.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import LoadedModules, PciDevice, Section
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

OPEN_COMMUNITY_MODULES = ("nouveau", "nova_core", "nova_drm")
PASS_THROUGH = "vfio-pci"


def gpu_with(driver: str) -> PciDevice:
    """An H100 bound to that kernel driver."""
    return PciDevice(address="0000:19:00.0", kind="gpu", vendor_id="10de", device_id="2330", driver=driver)


CASES = (
    Case(
        title="nouveau has the GPU",
        sections={"pci_devices": (gpu_with("nouveau"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="nouveau",
    ),
    Case(title="nova_core has the GPU", sections={"pci_devices": (gpu_with("nova_core"),)}, status=Status.FAIL, says="nova_core"),
    Case(
        title="vfio-pci has one of two GPUs",
        sections={"pci_devices": (gpu_with("vfio-pci"), gpu_with("nvidia"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="vfio-pci",
    ),
    Case(
        title="lsmod shows nouveau and no nvidia",
        sections={"loaded_modules": LoadedModules(names=("nouveau", "drm"))},
        status=Status.FAIL,
        says="nouveau",
    ),
    Case(title="nvidia has the GPU", sections={"pci_devices": (gpu_with("nvidia"),)}, status=Status.PASS),
    Case(title="no driver at all is another problem", sections={"pci_devices": (gpu_with(""),)}, status=Status.PASS),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="PCI"),
    Case(title="no NVIDIA GPU on the bus", sections={"pci_devices": ()}, status=Status.NOT_APPLICABLE, says="no NVIDIA GPU"),
)


@check(
    "driver.wrong-module-bound",
    Severity.ERROR,
    explains=("driver.absent", "torch.cuda-unavailable", "gpu.lost", "smoke.*"),
    settle="lspci -nnk -d 10de:",
    cases=CASES,
)
def wrong_module_bound(
    pci_devices: Section[tuple[PciDevice, ...]], loaded_modules: Section[LoadedModules], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Every NVIDIA GPU should be bound to the nvidia module."""
    gpus = [device for device in pci_devices.value or () if device.kind == "gpu"]
    names = loaded_modules.value.names if loaded_modules.value else ()
    if pci_devices.value is None:
        loaded = [name for name in names if name in OPEN_COMMUNITY_MODULES]
        if loaded and "nvidia" not in names:
            yield _finding("GPU", loaded[0], Severity.ERROR, Evidence(where="loaded_modules", value=", ".join(loaded)), remedies)
        elif loaded_modules.value is None:
            yield Doubt(subject="GPU", reason="neither the PCI bus nor the loaded modules are known")
        return
    if not gpus:
        yield NotApplicable(reason="there is no NVIDIA GPU on the PCI bus")
    for gpu in gpus:
        evidence = Evidence(where=f"pci_devices: {gpu.address}", value=f"bound to {gpu.driver}")
        if gpu.driver in OPEN_COMMUNITY_MODULES:
            yield _finding(f"GPU at {gpu.address}", gpu.driver, Severity.ERROR, evidence, remedies)
        elif gpu.driver == PASS_THROUGH:
            alone = all(other.driver == PASS_THROUGH for other in gpus)
            yield _finding(f"GPU at {gpu.address}", gpu.driver, Severity.ERROR if alone else Severity.WARNING, evidence, remedies)


def _finding(subject: str, module: str, severity: Severity, evidence: Evidence, remedies: Remedies) -> Finding:
    passes_through = module == PASS_THROUGH
    return Finding(
        subject=subject,
        severity=severity,
        summary=f"The kernel module {module} drives the {subject}, so the NVIDIA driver cannot.",
        cause=(
            "The GPU is set aside for a virtual machine. That is right on a virtualisation host, and wrong if this machine should use it."
            if passes_through
            else f"{module} took the GPU at boot, before the NVIDIA module could."
        ),
        evidence=(evidence,),
        expected="bound to nvidia",
        remedies=remedies("vfio" if passes_through else "nouveau"),
    )
