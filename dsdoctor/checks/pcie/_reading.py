"""How GPUs and network cards hang on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsdoctor.facts import Gpu, PciDevice

MELLANOX = "15b3"


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
