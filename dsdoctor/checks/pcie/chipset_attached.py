"""A GPU hangs on the chipset instead of the processor.

What it looks at
    The bridges between each GPU and the root of the PCI bus (is one of them a part of a desktop chipset?), and the width of the slot.

Why it matters
    Behind the chipset a card has four lanes at most, which it shares with disks and network. Every collective goes at the pace of the slowest card, while nvidia-smi topo -m shows
    PHB for all of them. Leave that card out of the group, or move it to a slot of the processor. Four lanes without a chipset in between are an M.2 adapter, a
    mining riser or an eGPU box: as slow, and not provable from here.

Sources
    PCI ID database; device numbers of Intel chipset ports; reports of three-card desktops (club-3090).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped
from dsdoctor.checks.pcie._reading import NO_BRIDGE, NO_GPU_ON_THE_BUS, VIRTUAL_MACHINE, by_address
from dsdoctor.facts import Gpu, PciDevice, PcieLink, Section, State, Virtualization, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

BARE_METAL = absent("no hypervisor")


def card(*bridges: PciDevice, width: int | None = 4) -> tuple[PciDevice, ...]:
    """A GPU below these bridges, the nearest first."""
    link = PcieLink(width=width, max_width=16) if width is not None else None
    gpu = PciDevice(
        address="0000:05:00.0",
        kind="gpu",
        vendor_id="10de",
        driver="nvidia",
        parents=tuple(bridge.address for bridge in bridges),
        link=link,
    )
    return (gpu, *bridges)


def bridge(address: str, vendor: str, device: str, max_width: int = 16) -> PciDevice:
    """A bridge with that many lanes below it."""
    return PciDevice(
        address=address, kind="bridge", vendor_id=vendor, device_id=device, link=PcieLink(width=max_width, max_width=max_width)
    )


AMD_CHIPSET = bridge("0000:03:04.0", "1022", "43f5", 4)
AMD_ROOT = bridge("0000:00:02.1", "1022", "14db", 4)
INTEL_CHIPSET = bridge("0000:00:1c.4", "8086", "7abc", 4)
INTEL_CPU = bridge("0000:00:01.0", "8086", "a70d", 16)

CASES = (
    Case(
        title="four lanes behind an AMD chipset",
        sections={"pci_devices": card(AMD_CHIPSET, AMD_ROOT), "virtualization": BARE_METAL},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="chipset",
    ),
    Case(
        title="four lanes of an Intel chipset",
        sections={"pci_devices": card(INTEL_CHIPSET), "virtualization": BARE_METAL},
        status=Status.FAIL,
        says="0000:00:1c.4",
    ),
    Case(title="sixteen lanes of the processor", sections={"pci_devices": card(INTEL_CPU, width=16)}, status=Status.PASS),
    Case(title="eight lanes", sections={"pci_devices": card(INTEL_CPU, width=8)}, status=Status.PASS),
    Case(
        title="one lane is a matter of the slot",
        sections={"pci_devices": card(bridge("0000:00:03.1", "1022", "1453", 1), width=1)},
        status=Status.UNKNOWN,
        says="riser",
    ),
    Case(
        title="a virtual machine shows no real bridges",
        sections={"pci_devices": card(INTEL_CHIPSET), "virtualization": Virtualization(hypervisor="kvm")},
        status=Status.NOT_APPLICABLE,
        says="a virtual machine: bridges and IOMMU are the matter of its host",
    ),
    Case(
        title="no bridge at all",
        sections={"pci_devices": card(width=16)},
        status=Status.NOT_APPLICABLE,
        says="no bridge shows above the GPUs",
    ),
    Case(title="the width is not known", sections={"pci_devices": card(AMD_CHIPSET, width=None)}, status=Status.UNKNOWN, says="width"),
    Case(title="no PCI bus to see", sections={"pci_devices": unreadable("/sys is not there")}, status=Status.UNKNOWN, says="/sys"),
)


@check(
    "pcie.chipset-attached",
    Severity.WARNING,
    explains=("smoke.bandwidth", "pcie.link-degraded"),
    settle="lspci -tv; nvidia-smi topo -m",
    cases=CASES,
)
def chipset_attached(
    pci_devices: tuple[PciDevice, ...],
    gpus: Section[tuple[Gpu, ...]],
    virtualization: Section[Virtualization],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A narrow link proves nothing alone; with a bridge of a chipset above it, it does."""
    if not any(device.kind == "gpu" for device in pci_devices):
        yield NO_GPU_ON_THE_BUS
        return
    if virtualization.state is State.KNOWN:
        yield VIRTUAL_MACHINE
        return
    narrow, devices = health_limits_matrix.limit("narrow-slot-lanes"), by_address(pci_devices)
    if not any(parent in devices for device in pci_devices if device.kind == "gpu" for parent in device.parents):
        yield NO_BRIDGE
    by_nvml = {gpu.pci_address: gpu.pcie.width for gpu in gpus.value or () if gpu.pcie}
    for device in pci_devices:
        above = [devices[parent] for parent in device.parents if parent in devices]
        if device.kind != "gpu" or not above:
            continue
        width = by_nvml.get(device.address) or (device.link.width if device.link else None)
        rows = [(item, row) for item in above if (row := health_limits_matrix.chipset_bridge(item.vendor_id, item.device_id, item.address))]
        if width is None:
            if rows:
                yield Doubt(
                    subject=f"GPU at {device.address}",
                    reason="a bridge of a chipset may be above it, and the width of its link is not known",
                )
            continue
        if width > narrow.amount:
            continue
        if not rows:
            yield Doubt(
                subject=f"GPU at {device.address}",
                reason=f"it has x{width} only: a bad seat, an M.2 adapter, a riser, or a slot of the chipset that is not recognised",
                settle="lspci -tv",
            )
            continue
        found, row = rows[0]
        yield Finding(
            subject=f"GPU at {device.address}",
            severity=capped(narrow.severity, row.basis),
            summary=f"The GPU at {device.address} hangs on the chipset: x{width}, shared with other devices.",
            cause=f"{narrow.text} In a group of GPUs all the others wait for it.",
            evidence=(
                Evidence(where=f"pci_devices: {found.address}", value=f"{found.vendor_id}:{found.device_id}: {row.text}"),
                Evidence(where=f"pci_devices: {device.address}", value=f"x{width}, below {', '.join(device.parents)}"),
            ),
            expected="a slot that is wired to the processor",
            remedies=remedies("general"),
            sources=row.basis.sources,
        )
