"""The graph from facts of this machine or of a recording: PCI tree, GPUs, NVLinks, NUMA nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsdoctor.errors import InputError
from dsdoctor.facts import Gpu, NvLink, PciDevice, Section, Sections
from dsdoctor.topology.graph import SWITCH, UNKNOWN, Device, Numa, NvLinks, Processor, Switch, Topology, natural
from dsdoctor.topology.tree import is_rdma_name, port_above, switches_above, switches_of

PCI_CLASSES = {"gpu": "0x030200", "nvswitch": "0x068000", "nic": "0x020000"}
PARAVIRTUAL_VENDORS = frozenset({"1af4", "15ad", "1414", "5853"})
"""virtio, VMware, Microsoft, Xen."""
_INFINIBAND_DRIVERS = frozenset({"mlx5_core", "mlx4_core", "efa", "irdma", "erdma", "hfi1"})


def topology(sections: Sections, label: str) -> Topology:
    """How the node of these sections is wired. Raises InputError when they name no device at all."""
    pci = sections.pci_devices.value or ()
    gpus = sections.gpus.value or ()
    if not pci and not gpus:
        raise InputError(f"{label}: neither the PCI bus nor GPUs are known: {_why(sections.pci_devices)}; {_why(sections.gpus)}")
    hypervisor = _hypervisor(sections)
    numa_nodes = _numa_nodes(sections)
    processor = _processor(sections)
    devices = _placed([*_gpus(gpus, pci), *_adapters(pci), *_nvswitches(pci)], numa_nodes)
    if processor.architecture == "arm64":  # the memory of a GPU may be a NUMA node there, and NVML was not asked
        devices = [replace(device, gpu_numa_id=UNKNOWN) if device.kind == "gpu" else device for device in devices]
    notes = [*_notes(sections, devices, numa_nodes), *(_virtual_note(hypervisor) if hypervisor else [])]
    records = {
        device.address: Switch(
            address=device.address, link=device.link, vendor_id=device.vendor_id, device_id=device.device_id, numa_node=device.numa_node
        )
        for device in pci
        if device.kind == "bridge"
    }
    return Topology(
        label=label, source="facts", hypervisor=hypervisor, processor=processor, numa_nodes=numa_nodes,
        switches=switches_of(devices, records), devices=tuple(devices), notes=tuple(notes),
        nvlinks_known=bool(gpus) and all(gpu.nvlinks is not None or not _may_have_nvlinks(gpu) for gpu in gpus),
    )  # fmt: skip


def _why(section: Section[Any]) -> str:
    return section.why or section.state.value.replace("_", " ")


def _hypervisor(sections: Sections) -> str:
    if sections.virtualization.value:
        return sections.virtualization.value.hypervisor
    modes = {gpu.virtualization_mode for gpu in sections.gpus.value or ()}
    return "a hypervisor" if modes & {"passthrough", "vgpu"} else ""


def _virtual_note(hypervisor: str) -> list[str]:
    name = "the hypervisor" if hypervisor in ("unknown", "a hypervisor") else hypervisor
    return [
        f"This is a virtual machine: the PCI tree and the NUMA nodes are those that {name} shows, not the wiring of the host. Paths over PCI "
        "Express are what programs see here; which devices share a real switch cannot be told from inside. NVLinks are real: NVML reports them."
    ]


def _processor(sections: Sections) -> Processor:
    platform, cpu = sections.platform.value, sections.cpu.value
    architecture = platform.architecture if platform else ""
    return Processor(architecture={"aarch64": "arm64"}.get(architecture, architecture), vendor=cpu.vendor if cpu else "")


def _numa_nodes(sections: Sections) -> tuple[Numa, ...]:
    cpu = sections.cpu.value
    nodes = cpu.numa_nodes if cpu else ()
    return tuple(
        Numa(index=node.index, cpus=node.cpus, memory_bytes=node.memory_bytes) for node in sorted(nodes, key=lambda node: node.index)
    )


# --- devices ----------------------------------------------------------------------------------------------------------


def _gpus(gpus: Sequence[Gpu], pci: Sequence[PciDevice]) -> list[Device]:
    on_bus = {device.address: device for device in pci if device.kind == "gpu"}
    if not gpus:
        return [_from_bus(device, f"GPU{index}", index) for index, device in enumerate(on_bus.values())]
    known = [_gpu(gpu, on_bus.get(gpu.pci_address)) for gpu in sorted(gpus, key=lambda gpu: gpu.index)]
    listed = {gpu.pci_address for gpu in gpus}
    others = [device for address, device in on_bus.items() if address not in listed]
    return [*known, *(_from_bus(device, f"gpu@{device.address}", -1) for device in others)]


def _gpu(gpu: Gpu, seat: PciDevice | None) -> Device:
    vendor, _, device = gpu.pci_device_id.partition(":")
    placed = _from_bus(seat, f"GPU{gpu.index}", gpu.index) if seat else Device(name=f"GPU{gpu.index}", kind="gpu", index=gpu.index)
    return replace(
        placed,
        model=gpu.name, address=gpu.pci_address, compute_capability=gpu.compute_capability,
        vendor_id=placed.vendor_id or vendor, device_id=placed.device_id or device, pci_class=PCI_CLASSES["gpu"],
        link=(gpu.pcie or placed.link), nvlinks=_bundles(gpu.nvlinks or ()),
        nvlinks_inactive=sum(not link.active for link in gpu.nvlinks or ()),
        numa_node=placed.numa_node if placed.numa_node is not None else gpu.numa_node,
    )  # fmt: skip


def _bundles(links: Sequence[NvLink]) -> tuple[NvLinks, ...]:
    active = [link for link in links if link.active]
    counts = Counter(_target(link) for link in active)
    return tuple(
        NvLinks(target=target, count=count, mb_per_s=min((link.speed_mb_per_s for link in active if _target(link) == target and link.speed_mb_per_s), default=None))
        for target, count in counts.items()
    )  # fmt: skip


def _target(link: NvLink) -> str:
    """An end that NVML does not show is taken for an NVSwitch, as NCCL takes it: they are hidden in virtual machines."""
    remote = link.remote.lower()
    return remote if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", remote) else SWITCH


def _from_bus(device: PciDevice, name: str, index: int = 0) -> Device:
    return Device(
        name=name, kind="gpu" if device.kind == "gpu" else device.kind, index=index, address=device.address,
        port=port_above(device.parents), switches=switches_above(device.parents), root=device.root, numa_node=device.numa_node,
        link=device.link, vendor_id=device.vendor_id, device_id=device.device_id, pci_class=PCI_CLASSES.get(device.kind, ""),
        is_virtual=device.kind == "nic" and device.vendor_id in PARAVIRTUAL_VENDORS, interfaces=device.interfaces,
    )  # fmt: skip


def rdma_name(device: PciDevice) -> str:
    """The RDMA name of an adapter (mlx5_0), empty when it has none."""
    named = next((name for name in device.interfaces if is_rdma_name(name)), "")
    if named or device.driver not in _INFINIBAND_DRIVERS or len(device.interfaces) < 2:
        return named
    return device.interfaces[0]  # sysfs lists infiniband/ before net/


def _adapters(pci: Sequence[PciDevice]) -> list[Device]:
    """RDMA adapters first, numbered as topo -m numbers them; then the others, under their network name."""
    adapters = [device for device in pci if device.kind == "nic"]
    rdma = sorted((device for device in adapters if rdma_name(device)), key=lambda device: natural(rdma_name(device)))
    others = [device for device in adapters if not rdma_name(device) and device.interfaces]
    return [
        *(replace(_from_bus(device, f"NIC{number}"), model=rdma_name(device)) for number, device in enumerate(rdma)),
        *(replace(_from_bus(device, device.interfaces[0]), kind="ethernet", model=device.interfaces[0]) for device in others),
    ]


def _nvswitches(pci: Sequence[PciDevice]) -> list[Device]:
    return [_from_bus(device, f"NVSwitch{number}") for number, device in enumerate(item for item in pci if item.kind == "nvswitch")]


def _placed(devices: Sequence[Device], numa_nodes: Sequence[Numa]) -> list[Device]:
    """The devices with the processors near them. On a node with one NUMA node everything is near it, whatever the firmware says."""
    only = numa_nodes[0].index if len(numa_nodes) == 1 else None
    cpus = {node.index: node.cpus for node in numa_nodes}
    placed = []
    for device in devices:
        number = device.numa_node if device.numa_node is not None else only
        placed.append(
            replace(
                device, numa_node=number, numa_assumed=device.numa_node is None and number is not None,
                cpus=cpus.get(number, "") if number is not None else "", numa_affinity="" if number is None else str(number),
            )
        )  # fmt: skip
    return placed


# --- what the reader should know --------------------------------------------------------------------------------------


def _notes(sections: Sections, devices: Sequence[Device], numa_nodes: Sequence[Numa]) -> list[str]:
    notes = []
    gpus = [device for device in devices if device.kind == "gpu"]
    if sections.gpus.value is None and gpus:
        notes.append(f"GPUs are numbered by their PCI address and NVLinks are not shown: NVML was not read ({_why(sections.gpus)}).")
    elif silent := [gpu.index for gpu in sections.gpus.value or () if gpu.nvlinks is None and _may_have_nvlinks(gpu)]:
        notes.append(f"The NVLinks of GPU {', '.join(map(str, silent))} are not known: the matrix shows their PCI paths only.")
    if any(link.active and not link.remote for gpu in sections.gpus.value or () for link in gpu.nvlinks or ()):
        notes.append("NVML does not show where some NVLinks end: they are taken to end at NVSwitches, as NCCL does.")
    if hidden := [gpu.address for gpu in gpus if gpu.index < 0]:
        notes.append(f"On the bus but not shown by NVML (another container's, or lost): {', '.join(hidden)}.")
    if sections.pci_devices.value is None:
        notes.append(f"The PCI tree is not known ({_why(sections.pci_devices)}): only NVLinks are shown.")
    if len(numa_nodes) > 1 and (lost := [gpu.name for gpu in gpus if gpu.numa_node is None]):
        notes.append(f"The firmware names no NUMA node for {', '.join(lost)}.")
    return notes


def _may_have_nvlinks(gpu: Gpu) -> bool:
    missing = gpu.missing.get("nvlinks")
    return missing is None or missing.state.value != "absent"
