"""The graph: NUMA nodes, PCIe switches, devices and NVLinks, and the path between any two devices.

Names of paths are those of `nvidia-smi topo -m`: X, NV#, PIX, PXB, PHB, NODE, SYS; `?` where the source does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dsdoctor.facts import PcieLink

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Of the PCI bus, the nearest first."""
UNKNOWN = "?"
SWITCH = "switch"
"""Target of NVLinks that end at an NVSwitch."""
NEAR = ("PIX", "PXB")
"""Paths that stay below the processor: GPUDirect traffic does not pass its root complex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinks:
    """The active NVLinks of one GPU that end at the same place."""

    target: str
    """PCI address of a GPU, or `switch`."""
    count: int
    mb_per_s: int | None = None
    """Of one link, one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, a network adapter or an NVSwitch."""

    name: str
    """GPU0, NIC0, NVSwitch0."""
    kind: str
    """gpu, nic or nvswitch."""
    model: str = ""
    """Product name of a GPU, RDMA or network name of an adapter."""
    index: int = 0
    """Of a GPU: the number that NVML uses; -1 for one that it does not show."""
    address: str = ""
    port: str = ""
    """The port right above it: of a switch, or of the processor."""
    switches: tuple[str, ...] = ()
    """PCIe switches above it, nearest first, by the address of their upstream port."""
    root: str = ""
    """Host bridge."""
    numa_node: int | None = None
    numa_assumed: bool = False
    """The firmware named no NUMA node, and there is only this one."""
    cpus: str = ""
    """Processors near it, kernel list format."""
    numa_affinity: str = ""
    """As `topo -m` writes it: usually one number."""
    gpu_numa_id: str = "N/A"
    link: PcieLink | None = None
    link_gb_per_s: float | None = None
    """Of the PCIe link, where the source names a rate and not generation and width."""
    compute_capability: str = ""
    pci_class: str = ""
    """0x030200 …"""
    vendor_id: str = ""
    device_id: str = ""
    nvlinks: tuple[NvLinks, ...] = ()
    nvlinks_inactive: int = 0
    is_virtual: bool = False
    """A paravirtual adapter: its place on the bus says nothing about hardware."""
    interfaces: tuple[str, ...] = ()

    @property
    def nvlink_count(self) -> int:
        """Active NVLinks."""
        return sum(links.count for links in self.nvlinks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A PCIe switch."""

    address: str
    """Of its upstream port; `~0`, `~1` for one that follows from a matrix and has no address."""
    above: str = ""
    """The switch above it, if any."""
    root: str = ""
    numa_node: int | None = None
    link: PcieLink | None = None
    link_gb_per_s: float | None = None
    vendor_id: str = ""
    device_id: str = ""

    @property
    def is_inferred(self) -> bool:
        """Whether it follows from paths only."""
        return self.address.startswith("~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numa:
    """A NUMA node."""

    index: int
    cpus: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What NCCL wants to know of the processor."""

    architecture: str = ""
    vendor: str = ""
    family: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How one node is wired, as far as its source tells."""

    label: str
    """What was read, in words."""
    source: str
    """facts, topo-m, nccl-xml or hwloc."""
    hypervisor: str = ""
    """Set when the PCI tree is one that a hypervisor made up."""
    processor: Processor = Processor()
    numa_nodes: tuple[Numa, ...] = ()
    switches: tuple[Switch, ...] = ()
    devices: tuple[Device, ...] = ()
    nvlinks_known: bool = True
    """Whether the source tells of NVLinks at all; without them the matrix holds PCI paths only."""
    stated: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Paths that the source names itself."""
    notes: tuple[str, ...] = ()
    """What the reader should know before believing the picture."""

    def of_kind(self, *kinds: str) -> tuple[Device, ...]:
        """The devices of these kinds, in their order."""
        return tuple(device for device in self.devices if device.kind in kinds)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs that NVML shows, in the order of their index."""
        return tuple(device for device in self.of_kind("gpu") if device.index >= 0)

    @property
    def hidden_gpus(self) -> tuple[Device, ...]:
        """GPUs on the bus that NVML does not show: another container's, or lost ones."""
        return tuple(device for device in self.of_kind("gpu") if device.index < 0)

    @property
    def nics(self) -> tuple[Device, ...]:
        """The network adapters."""
        return self.of_kind("nic")

    @property
    def gpu_model(self) -> str:
        """The product of all GPUs; empty when they differ or it is not told."""
        models = {gpu.model for gpu in self.gpus}
        return models.pop() if len(models) == 1 else ""

    def numa(self, index: int | None) -> Numa | None:
        """The NUMA node of that number."""
        return next((node for node in self.numa_nodes if node.index == index), None)

    def path(self, one: Device, other: Device) -> str:
        """How two devices reach each other: the cell of the matrix."""
        if one.name == other.name:
            return "X"
        said = self.stated.get((one.name, other.name))
        if said:
            return said
        links = nvlinks_between(one, other)
        return f"NV{links}" if links else self.pci_path(one, other)

    def pci_path(self, one: Device, other: Device) -> str:
        """How two devices reach each other over PCI Express, whatever NVLinks there are."""
        said = self.stated.get((one.name, other.name), "")
        if said:
            return said if said in PATHS else UNKNOWN
        if one.is_virtual or other.is_virtual:
            return UNKNOWN
        if one.port and one.port == other.port:
            return "PIX"
        if one.switches and other.switches and one.switches[0] == other.switches[0]:
            return "PIX"
        if set(one.switches) & set(other.switches):
            return "PXB"
        if one.root and one.root == other.root:
            return "PHB"
        if one.numa_node is None or other.numa_node is None or not one.root or not other.root:
            return UNKNOWN
        return "NODE" if one.numa_node == other.numa_node else "SYS"

    def matrix(self, devices: Sequence[Device]) -> tuple[tuple[str, ...], ...]:
        """The paths between all of these devices."""
        return tuple(tuple(self.path(row, column) for column in devices) for row in devices)


def nvlinks_between(one: Device, other: Device) -> int:
    """How many NVLinks join two GPUs: direct ones, or as many as both have to the switches."""
    direct = sum(links.count for links in one.nvlinks if links.target and links.target == other.address)
    if direct:
        return direct
    return min(_switched(one), _switched(other))


def _switched(gpu: Device) -> int:
    return sum(links.count for links in gpu.nvlinks if links.target == SWITCH)


# --- number lists ------------------------------------------------------------------------------------------------------


def numbers_in(text: str) -> tuple[int, ...]:
    """The numbers of a list in kernel format: 0-3,8 is 0, 1, 2, 3, 8. Nothing for a malformed list."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if not found:
            return ()
        first, last = int(found[1]), int(found[2] or found[1])
        numbers += range(first, last + 1)
    return tuple(numbers)


def list_of(numbers: Iterable[int]) -> str:
    """Numbers as a list in kernel format."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def cpus_of_mask(mask: str) -> str:
    """Processors of a hexadecimal mask such as 00000000,0000ffff (highest word first), in kernel list format."""
    digits = re.sub(r"0x", "", mask.lower())
    words = digits.split(",")
    if len(words) > 1 and not all(re.fullmatch(r"[0-9a-f]{0,8}", word) for word in words):
        return ""
    joined = "".join(word.zfill(8) for word in words) if len(words) > 1 else digits
    if not re.fullmatch(r"[0-9a-f]{1,4096}", joined):
        return ""
    value = int(joined, 16)
    return list_of(bit for bit in range(value.bit_length()) if value >> bit & 1)


def mask_of_cpus(cpus: str) -> str:
    """The hexadecimal mask of a list, in words of eight digits, highest first."""
    numbers = numbers_in(cpus)
    value = sum(1 << number for number in set(numbers))
    words = max(1, (value.bit_length() + 31) // 32)
    return ",".join(f"{value >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key by which mlx5_2 comes before mlx5_10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part)
