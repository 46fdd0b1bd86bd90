"""How GPUs and network cards hang on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsdoctor.facts import Gpu, PciDevice
from dsdoctor.findings import NotApplicable

MELLANOX = "15b3"
WATCH = "dsdoctor check --quick --watch 60"
"""Reads counters twice."""

VIRTUAL_MACHINE = NotApplicable(reason="a virtual machine: bridges and IOMMU are the matter of its host")
NO_GPU_ON_THE_BUS = NotApplicable(reason="there is no NVIDIA GPU on the PCI bus")
NO_BRIDGE = NotApplicable(reason="no bridge shows above the GPUs")


def by_address(devices: Iterable[PciDevice]) -> Mapping[str, PciDevice]:
    """The devices by their addresses."""
    return {device.address: device for device in devices}


def rdma_nics(devices: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The network cards that can do RDMA: ConnectX cards, and those with an InfiniBand device (mlx5_0, bnxt_re0, irdma0 …)."""
    return tuple(
        device
        for device in devices
        if device.kind == "nic"
        and (
            device.vendor_id == MELLANOX or any(name.startswith(("mlx", "bnxt_re", "irdma", "efa", "rdmap")) for name in device.interfaces)
        )
    )


def gpus_use_nvlink(gpus: Iterable[Gpu]) -> bool:
    """Whether every GPU has a link that is up, so that traffic between them does not take PCIe."""
    found = [any(link.active for link in gpu.nvlinks or ()) for gpu in gpus]
    return bool(found) and all(found)


def nobody_to_talk_to(cards: Sequence[PciDevice], nics: Sequence[PciDevice], only_to_nics: bool) -> NotApplicable | None:
    """Why no two devices here talk to each other over PCIe; None where they may."""
    if not cards:
        return NO_GPU_ON_THE_BUS
    if nics:
        return None
    if len(cards) < 2:
        return NotApplicable(reason="one GPU and no RDMA card: nobody to talk to over PCIe")
    return NotApplicable(reason="the GPUs talk by NVLink, and there is no RDMA card") if only_to_nics else None
