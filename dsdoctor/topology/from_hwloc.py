"""The graph from hwloc's XML (`lstopo --of xml`), versions 1 to 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from dsdoctor.errors import InputError
from dsdoctor.sources.texts import kind_of
from dsdoctor.topology.graph import SWITCH, Device, Numa, NvLinks, Switch, Topology, cpus_of_mask, natural, numbers_in
from dsdoctor.topology.tree import is_rdma_name, port_above, switches_above, switches_of

DEEPEST = 64
HOST_BRIDGE = "0-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where in the tree an object hangs."""

    numa_node: int | None = None
    cpus: str = ""
    root: str = ""
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A device with the numbers by which distances name it."""

    device: Device
    keys: tuple[str, ...]


def topology(root: ElementTree.Element, label: str) -> Topology:
    """The graph of a hwloc topology; its NVLinks where hwloc was built with NVML."""
    numa_nodes: dict[int, Numa] = {}
    records: dict[str, Switch] = {}
    found = [item for child in root.findall("object") for item in _walk(child, _Place(), numa_nodes, records, label, 0)]
    if not found and not numa_nodes:
        raise InputError(f"{label}: a hwloc topology without NUMA nodes and devices; record it with: lstopo --whole-io --of xml")
    found = [replace(item, device=device) for item, device in zip(found, _named([item.device for item in found]))]
    links, note = _nvlinks(root, found)
    devices = [replace(item.device, nvlinks=links.get(item.device.name, ())) for item in found]
    order = {"gpu": 0, "nic": 1, "ethernet": 2, "nvswitch": 3}
    devices.sort(key=lambda device: (order[device.kind], natural(device.name)))
    notes = ["hwloc gives the rate of a PCIe link, not its generation and width.", *([note] if note else [])]
    if not any(device.kind == "gpu" for device in devices):
        notes.append("It names no GPU: hwloc may have run without I/O devices (lstopo --whole-io).")
    return Topology(
        label=label, source="hwloc", numa_nodes=tuple(numa_nodes[index] for index in sorted(numa_nodes)),
        switches=switches_of(devices, records), devices=tuple(devices), notes=tuple(notes), nvlinks_known=bool(links),
    )  # fmt: skip


def _walk(
    node: ElementTree.Element, place: _Place, numa_nodes: dict[int, Numa], records: dict[str, Switch], label: str, depth: int
) -> Iterator[_Found]:
    if depth > DEEPEST:
        raise InputError(f"{label}: objects nested more than {DEEPEST} deep")
    kind = node.get("type", "")
    if kind in ("NUMANode", "NUMA") and (index := _number(node.get("os_index"))) is not None:
        memory = node.get("local_memory", "")
        numa_nodes[index] = Numa(
            index=index, cpus=cpus_of_mask(node.get("cpuset", "")), memory_bytes=int(memory) if memory.isdecimal() else None
        )
    nodes = numbers_in(cpus_of_mask(node.get("nodeset", ""))) if node.get("nodeset") else ()
    if len(nodes) == 1:
        place = replace(place, numa_node=nodes[0], cpus=cpus_of_mask(node.get("cpuset", "")) or place.cpus)
    if kind == "Bridge" and node.get("bridge_type", "").startswith(HOST_BRIDGE):
        place = replace(place, root=node.get("bridge_pci", "") or f"bridge{node.get('gp_index', '')}", parents=())
    elif kind == "Bridge":
        address = node.get("pci_busid", "").lower()
        vendor, device = _identities(node.get("pci_type", ""))
        records[address] = Switch(address=address, link_gb_per_s=_rate(node), vendor_id=vendor, device_id=device, numa_node=place.numa_node)
        place = replace(place, parents=(address, *place.parents))
    elif kind == "PCIDev":
        device_found = _device(node, place)
        if device_found:
            yield device_found
    for child in node.findall("object"):
        yield from _walk(child, place, numa_nodes, records, label, depth + 1)


def _device(node: ElementTree.Element, place: _Place) -> _Found | None:
    vendor, device = _identities(node.get("pci_type", ""))
    code = node.get("pci_type", "")[:4]
    kind = kind_of(f"0x{code}", vendor)
    if node.get("subtype") == "NVSwitch":
        kind = "nvswitch"
    if kind not in ("gpu", "nic", "nvswitch"):
        return None
    inside = [item for item in node.iter("object") if item.get("type") == "OSDev"]
    names = [item.get("name", "") for item in inside]
    index = next((int(name[4:]) for name in names if re.fullmatch(r"(?:nvml|cuda)\d{1,4}", name)), -1)
    rdma = next((name for name in names if is_rdma_name(name)), "")
    model = next((info.get("value", "") for item in inside for info in item.findall("info") if info.get("name") == "GPUModel"), "")
    keys = [f"PCIDev:{node.get('gp_index')}", *(f"OSDev:{item.get('gp_index')}" for item in inside)]
    found = Device(
        name="", kind="ethernet" if kind == "nic" and not rdma and names else kind, index=index, address=node.get("pci_busid", "").lower(),
        model=rdma or (names[0] if kind == "nic" and names else model), port=port_above(place.parents), switches=switches_above(place.parents),
        root=place.root, numa_node=place.numa_node, numa_affinity="" if place.numa_node is None else str(place.numa_node), cpus=place.cpus,
        link_gb_per_s=_rate(node), pci_class=f"0x{code}00" if re.fullmatch("[0-9a-f]{4}", code) else "", vendor_id=vendor, device_id=device,
        interfaces=tuple(names) if kind == "nic" else (),
    )  # fmt: skip
    return _Found(device=found, keys=tuple(keys))


def _named(devices: Sequence[Device]) -> list[Device]:
    """The devices with their names: GPUs by their NVML number, else by address; adapters by their RDMA name."""
    gpus = [device for device in devices if device.kind == "gpu"]
    ordered = sorted(gpus, key=lambda gpu: (gpu.index, len(gpu.address), gpu.address))
    numbers = {gpu.address: gpu.index if all(item.index >= 0 for item in gpus) else number for number, gpu in enumerate(ordered)}
    adapters = sorted((device for device in devices if device.kind == "nic"), key=lambda device: natural(device.model or device.address))
    names = {device.address: f"NIC{number}" for number, device in enumerate(adapters)}
    switches = [device.address for device in devices if device.kind == "nvswitch"]
    names |= {address: f"NVSwitch{number}" for number, address in enumerate(switches)}
    return [
        replace(device, name=f"GPU{numbers[device.address]}", index=numbers[device.address])
        if device.kind == "gpu"
        else replace(device, name=names.get(device.address) or device.model or device.address)
        for device in devices
    ]


# --- NVLinks ----------------------------------------------------------------------------------------------------------


def _nvlinks(root: ElementTree.Element, found: Sequence[_Found]) -> tuple[Mapping[str, tuple[NvLinks, ...]], str]:
    """The NVLinks of each GPU by name, from the matrix NVLinkBandwidth (MB/s between ends), and what to know about it."""
    table = next((item for item in root if item.tag.startswith("distances2") and item.get("name") == "NVLinkBandwidth"), None)
    if table is None:
        return {}, "It lists no NVLinks (hwloc without NVML): the matrix shows PCI paths only."
    ends = " ".join(item.text or "" for item in table.findall("indexes")).split()
    kind = f"{table.get('type', '')}:" if table.get("type") else ""
    ends = [end if ":" in end else f"{kind}{end}" for end in ends]
    values = [int(word) for item in table.findall("u64values") for word in (item.text or "").split() if word.isdecimal()]
    if len(values) != len(ends) ** 2 or not values:
        return {}, "The NVLink bandwidths in it are cut short: NVLinks are not shown."
    by_key = {key: item.device for item in found for key in item.keys}
    one_link = min((value for value in values if value), default=0)
    links: dict[str, tuple[NvLinks, ...]] = {}
    for row, end in enumerate(ends):
        gpu = by_key.get(end)
        if gpu is None or gpu.kind != "gpu":
            continue
        counts: dict[str, int] = {}
        for column, other_end in enumerate(ends):
            other, value = by_key.get(other_end), values[row * len(ends) + column]
            if other is not None and value and column != row and other.address != gpu.address:
                target = SWITCH if other.kind == "nvswitch" else other.address
                counts[target] = counts.get(target, 0) + value // one_link
        links[gpu.name] = tuple(NvLinks(target=target, count=count, mb_per_s=one_link) for target, count in counts.items() if count)
    return links, f"NVLinks are counted from bandwidths: {one_link} MB/s, the smallest in the file, is taken for one link."


# --- values -----------------------------------------------------------------------------------------------------------


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 7 else None


def _identities(pci_type: str) -> tuple[str, str]:
    found = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", pci_type)
    return (found[1], found[2]) if found else ("", "")


def _rate(node: ElementTree.Element) -> float | None:
    text = node.get("pci_link_speed", "")
    return float(text) if re.fullmatch(r"\d{1,4}(?:\.\d{1,9})?", text) and float(text) > 0 else None
