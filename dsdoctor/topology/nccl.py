"""NCCL topology files: read one (a dump or a cloud vendor's), write one that NCCL accepts as NCCL_TOPO_FILE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from dsdoctor.errors import InputError, UsageError
from dsdoctor.facts import PcieLink
from dsdoctor.sources.texts import generation_of, kind_of, width_of
from dsdoctor.topology.graph import SWITCH, Device, Numa, NvLinks, Processor, Switch, Topology, cpus_of_mask, mask_of_cpus, natural

GT_PER_S = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""PCI Express Base Specification, by generation."""
HIDDEN_SWITCH = "fffffff:ff:ff.0"
"""How NVML names an NVSwitch whose address is not visible; NCCL's dumps carry it so."""
SWITCH_CLASS, GPU_CLASS, BRIDGE_CLASS = "0x068000", "0x030200", "0x060400"
DEEPEST = 32
_NOTES = ("NCCL's file names no host bridges: PHB stands here for what nvidia-smi may call NODE.",)
_NO_NVLINKS = "It lists no NVLinks (NCCL asks the driver for them when it starts): the matrix shows PCI paths only."


# --- reading ----------------------------------------------------------------------------------------------------------


def read(root: ElementTree.Element, label: str) -> Topology:
    """The graph of a NCCL topology file. Such a file knows processors, switches and devices, but no host bridges."""
    if root.get("version") not in (None, "1", "2"):
        raise InputError(f"{label}: a NCCL topology of version {root.get('version')}; known is version 1")
    devices: list[Device] = []
    switches: list[Switch] = []
    numa_nodes: list[Numa] = []
    processor = Processor()
    for cpu in root.findall("cpu"):
        number = _number(cpu.get("numaid"))
        number = None if number is None or number < 0 else number
        processor = Processor(
            architecture=cpu.get("arch", ""), vendor=cpu.get("vendor", ""), family=cpu.get("familyid", ""), model=cpu.get("modelid", "")
        )
        cpus = cpus_of_mask(cpu.get("affinity", ""))
        if number is not None:
            numa_nodes.append(Numa(index=number, cpus=cpus))
        seat = Device(
            name="",
            kind="",
            root=f"cpu{cpu.get('numaid', '')}",
            numa_node=number,
            cpus=cpus,
            numa_affinity="" if number is None else str(number),
        )
        for child in cpu:
            devices += _read_node(child, seat, switches, label)
    if not devices:
        raise InputError(f"{label}: a NCCL topology without any device")
    is_dump = root.find(".//gpu") is not None
    return Topology(
        label=label, source="nccl-xml", nvlinks_known=is_dump, processor=processor, numa_nodes=tuple(sorted(numa_nodes, key=lambda node: node.index)),
        switches=tuple(switches), devices=tuple(_named(devices)), notes=_NOTES if is_dump else (*_NOTES, _NO_NVLINKS),
    )  # fmt: skip


def _read_node(node: ElementTree.Element, seat: Device, switches: list[Switch], label: str) -> Iterator[Device]:
    """The devices of a pci or nic element and below; switches are appended."""
    if len(seat.switches) > DEEPEST:
        raise InputError(f"{label}: switches nested more than {DEEPEST} deep")
    if node.tag == "nic":
        for net in node.findall("net"):
            yield replace(seat, kind="ethernet", model=net.get("name", ""), is_virtual=True)
        return
    if node.tag != "pci":
        return
    address = (node.get("busid") or "").lower()
    vendor, device = (_identity(node.get(name)) for name in ("vendor", "device"))
    code = node.get("class", "")
    kind = kind_of(code, vendor or "10de" if code.startswith("0x03") else vendor)
    link = PcieLink(generation=generation_of(node.get("link_speed", "")), width=width_of(node.get("link_width", "")))
    if code.startswith("0x0604") or (not kind and node.find("pci") is not None):
        above = seat.switches[0] if seat.switches else ""
        switches.append(
            Switch(address=address, above=above, root=seat.root, numa_node=seat.numa_node, link=link, vendor_id=vendor, device_id=device)
        )
        for child in node:
            yield from _read_node(child, replace(seat, switches=(address, *seat.switches)), switches, label)
        return
    found = replace(seat, address=address, vendor_id=vendor, device_id=device, pci_class=code, link=link)
    gpu = node.find("gpu")
    if gpu is not None or kind == "gpu":
        yield _read_gpu(found, gpu)
    elif kind == "nic" or node.find("nic") is not None:
        nets = [net.get("name", "") for net in node.iterfind("nic/net")]
        yield replace(found, kind="nic", model=nets[0] if nets else "", interfaces=tuple(nets))
    elif kind == "nvswitch":
        yield replace(found, kind="nvswitch")


def _read_gpu(found: Device, gpu: ElementTree.Element | None) -> Device:
    capability = gpu.get("sm", "") if gpu is not None else ""
    links = gpu.findall("nvlink") if gpu is not None else []
    bundles: dict[str, int] = {}
    for link in links:
        is_switch = link.get("tclass", "").startswith("0x0680")
        target = SWITCH if is_switch else link.get("target", "").lower()
        bundles[target] = bundles.get(target, 0) + (_number(link.get("count")) or 0)
    number = _number(gpu.get("dev")) if gpu is not None else None
    return replace(
        found, kind="gpu", index=-1 if number is None else number,
        compute_capability=f"{capability[:-1]}.{capability[-1]}" if re.fullmatch(r"\d{2,3}", capability) else "",
        nvlinks=tuple(NvLinks(target=target, count=count) for target, count in bundles.items() if count),
    )  # fmt: skip


def _named(devices: Sequence[Device]) -> Iterator[Device]:
    """GPUs by the number that the file gives, else by their address; adapters in the order of their names, else of the file."""
    gpus = [device for device in devices if device.kind == "gpu"]
    if any(gpu.index < 0 for gpu in gpus):
        gpus = [replace(gpu, index=number) for number, gpu in enumerate(sorted(gpus, key=lambda gpu: (len(gpu.address), gpu.address)))]
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        yield replace(gpu, name=f"GPU{gpu.index}")
    adapters = [device for device in devices if device.kind == "nic"]
    ordered = sorted(adapters, key=lambda device: (natural(device.model) if device.model else (), len(device.address), device.address))
    for number, adapter in enumerate(ordered):
        yield replace(adapter, name=f"NIC{number}")
    for device in devices:
        if device.kind == "ethernet":
            yield replace(device, name=device.model or "net")
    for number, device in enumerate(device for device in devices if device.kind == "nvswitch"):
        yield replace(device, name=f"NVSwitch{number}")


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,6}", text) else None


def _identity(text: str | None) -> str:
    value = (text or "").lower().removeprefix("0x")
    return value if re.fullmatch(r"[0-9a-f]{4}", value) and value not in ("0000", "ffff") else ""


# --- writing ----------------------------------------------------------------------------------------------------------


def write(topology: Topology) -> str:
    """A NCCL topology file. What NCCL finds out by itself at start (ranks, GDR, processor model) is left to it."""
    if any(not gpu.address for gpu in topology.gpus) or not topology.gpus:
        raise UsageError(f"{topology.label}: a NCCL topology needs PCI addresses, and this source names none")
    homes = sorted(
        {_home(device) for device in topology.devices if device.kind != "nvswitch"}, key=lambda number: -1 if number is None else number
    )
    lines = ['<system version="1">']
    for home in homes:
        here = [device for device in topology.devices if _home(device) == home and device.kind in ("gpu", "nic", "ethernet")]
        lines += _cpu(topology, home, here)
        if home == homes[0]:
            lines += _virtual_nets(topology)
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def _home(device: Device) -> int | None:
    """The NUMA node that the firmware names; NCCL writes -1 where it names none."""
    return None if device.numa_assumed else device.numa_node


def _cpu(topology: Topology, home: int | None, here: Sequence[Device]) -> list[str]:
    processor, node = topology.processor, topology.numa(home)
    attributes = [
        ("numaid", "-1" if home is None else str(home)), ("affinity", mask_of_cpus(node.cpus) if node and node.cpus else ""),
        ("arch", processor.architecture), ("vendor", processor.vendor), ("familyid", processor.family), ("modelid", processor.model),
    ]  # fmt: skip
    return [f"  <cpu{_attributes(attributes)}>", *_below("", topology, here, "    ")]


def _virtual_nets(topology: Topology) -> list[str]:
    """Paravirtual adapters, below the first processor as NCCL itself places them."""
    names = [device.model for device in topology.devices if device.kind == "ethernet" and device.is_virtual and device.model]
    nets = [f"      <net{_attributes([('name', name)])}/>" for name in names]
    return ["    <nic>", *nets, "    </nic>"] if nets and _may_name_nets(topology) else []


def _may_name_nets(topology: Topology) -> bool:
    """Whether adapters may be named in the file.

    NCCL does not look at the processor above an adapter that it finds in the file (ncclTopoFillNet), and then misses the family of an
    Intel processor; with one processor, or where the family is known, that cannot happen.
    """
    homes = {_home(device) for device in topology.devices if device.kind != "nvswitch"}
    processor = topology.processor
    return len(homes) == 1 or bool(processor.architecture and processor.vendor and (processor.vendor != "GenuineIntel" or processor.family))


def _below(switch: str, topology: Topology, devices: Sequence[Device], indent: str) -> list[str]:
    """The elements below a switch, or below the processor for an empty name, in the order of their addresses."""
    parts: list[tuple[str, list[str]]] = []
    for item in topology.switches:
        inside = [device for device in devices if item.address in device.switches]
        if item.above == switch and inside:
            opening = f"{indent}<pci{_attributes([('busid', _bus_id(item.address)), ('class', BRIDGE_CLASS), *_identities(item), *_speed(item.link)])}>"
            parts.append((item.address, [opening, *_below(item.address, topology, devices, f"{indent}  "), f"{indent}</pci>"]))
    for device in devices:
        if (device.switches[0] if device.switches else "") == switch and device.kind in ("gpu", "nic") and device.address:
            parts.append((device.address, _device(device, topology, indent)))
    return [line for _, lines in sorted(parts, key=lambda part: (len(part[0]), part[0])) for line in lines]


def _device(device: Device, topology: Topology, indent: str) -> list[str]:
    code = device.pci_class or (GPU_CLASS if device.kind == "gpu" else "0x020000")
    opening = (
        f"{indent}<pci{_attributes([('busid', _bus_id(device.address)), ('class', code), *_identities(device), *_speed(device.link)])}"
    )
    if device.kind == "nic":
        names = [name for name in (device.model,) if name]
        if not names or not _may_name_nets(topology):
            return [f"{opening}/>"]
        return [f"{opening}>", f"{indent}  <nic>", *(f"{indent}    <net{_attributes([('name', name)])}/>" for name in names), f"{indent}  </nic>", f"{indent}</pci>"]  # fmt: skip
    if not device.compute_capability:
        return [f"{opening}/>"]
    gpu = [("dev", str(device.index)), ("sm", device.compute_capability.replace(".", ""))]
    links = [
        (HIDDEN_SWITCH, bundle.count, SWITCH_CLASS) if bundle.target == SWITCH else (bundle.target, bundle.count, GPU_CLASS)
        for bundle in device.nvlinks
        if bundle.target
    ]  # fmt: skip
    inner = [
        f"{indent}    <nvlink{_attributes([('target', target), ('count', str(count)), ('tclass', code)])}/>"
        for target, count, code in links
    ]
    body = [f"{indent}  <gpu{_attributes(gpu)}>", *inner, f"{indent}  </gpu>"] if inner else [f"{indent}  <gpu{_attributes(gpu)}/>"]
    return [f"{opening}>", *body, f"{indent}</pci>"]


def _bus_id(address: str) -> str:
    return address if not address.startswith("~") else f"ffff:ff:{int(address[1:]) + 1:02x}.0"


def _identities(item: Device | Switch) -> list[tuple[str, str]]:
    return [("vendor", f"0x{item.vendor_id}" if item.vendor_id else ""), ("device", f"0x{item.device_id}" if item.device_id else "")]


def _speed(link: PcieLink | None) -> list[tuple[str, str]]:
    """The most that the link can do: NCCL plans with it, and a link at rest runs slower."""
    if link is None:
        return []
    generation, width = link.max_generation or link.generation, link.width
    return [
        ("link_speed", f"{GT_PER_S[generation]} GT/s PCIe" if generation in GT_PER_S else ""),
        ("link_width", str(width) if width else ""),
    ]


def _attributes(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in pairs if value)
