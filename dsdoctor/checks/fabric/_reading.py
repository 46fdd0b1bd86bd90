"""What shows that a node has an NVSwitch fabric, and who runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsdoctor.checks._reading import no_gpu
from dsdoctor.facts import Gpu, PciDevice, Section, Service, State
from dsdoctor.findings import Evidence, NotApplicable
from dsdoctor.rows import GpuLimits

FABRIC_MANAGER = "nvidia-fabricmanager"
NO_FABRIC = NotApplicable(reason="no NVSwitch, and no GPU that asks for a fabric")
COMPLETED, UNSUPPORTED = "completed", "not-supported"


def switches_here(pci_devices: Section[tuple[PciDevice, ...]]) -> tuple[PciDevice, ...]:
    """The NVSwitches on the PCI bus of this machine."""
    return tuple(device for device in pci_devices.value or () if device.kind == "nvswitch")


def in_a_fabric(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that belong to a fabric, whatever the state of their registration. No state, or 'not supported', asks for no fabric."""
    return tuple(gpu for gpu in gpus if gpu.fabric is not None and gpu.fabric.state not in ("", UNSUPPORTED))


def no_fabric(members: Sequence[Gpu], gpus: Section[tuple[Gpu, ...]]) -> NotApplicable:
    """Why this machine has no fabric to run."""
    if members:
        return NotApplicable(reason="no NVSwitch here: the fabric is run outside this machine")
    return no_gpu(gpus) if gpus.state is State.ABSENT else NO_FABRIC


def is_compute_tray(gpus: Iterable[Gpu], limits: GpuLimits) -> bool:
    """Whether these GPUs sit in a compute tray (GB200, GB300), whose fabric is run by the switch trays."""
    return any(product is not None and bool(product.host_link) for product in (limits.product(gpu.name) for gpu in gpus))


def service(services: Section[tuple[Service, ...]], name: str) -> Service | None:
    """The service of that name."""
    return next((item for item in services.value or () if item.name == name), None)


def switch_evidence(switches: tuple[PciDevice, ...]) -> tuple[Evidence, ...]:
    """The NVSwitches as evidence."""
    return (Evidence(where="pci_devices", value=f"NVSwitch at {', '.join(device.address for device in switches[:6])}"),) if switches else ()


def fabric_evidence(gpus: Iterable[Gpu]) -> tuple[Evidence, ...]:
    """The fabric state of each GPU as evidence."""
    return tuple(
        Evidence(
            where=gpu.where or f"gpus[{gpu.index}].fabric",
            value=", ".join(text for text in (gpu.fabric.state, gpu.fabric.status) if text),
        )
        for gpu in gpus
        if gpu.fabric is not None
    )[:8]
