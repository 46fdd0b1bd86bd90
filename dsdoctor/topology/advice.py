"""What follows from the wiring: which GPUs belong together, and which processors and adapters each should use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dsdoctor.facts import PcieLink
from dsdoctor.rows import GpuLimits
from dsdoctor.topology.graph import NEAR, PATHS, UNKNOWN, Device, Topology

GROUP_SIZES = (2, 4, 8)
EXHAUSTIVE_UP_TO = 8
"""GPUs; with more, groups are formed one after the other."""
_RANK = {UNKNOWN: 0, **{path: len(PATHS) - number for number, path in enumerate(PATHS)}}
NVLINK_RANK = len(PATHS) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """GPUs that work together, and the worst path among them."""

    gpus: tuple[int, ...]
    path: str
    gb_per_s: float | None
    """Of that path, one direction; None when it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The best way to form groups of one size."""

    size: int
    groups: tuple[Group, ...]
    left_over: tuple[int, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a process that uses one GPU should be bound to."""

    gpu: int
    numa_node: int | None
    cpus: str
    nics: tuple[str, ...]
    """RDMA names of the nearest adapters."""
    nic_path: str
    """How it reaches them; empty without adapters."""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that is suggested, and why the rest is not."""

    groupings: tuple[Grouping, ...]
    bindings: tuple[Binding, ...]
    nccl_ib_hca: str
    """Value of NCCL_IB_HCA, empty when none is suggested."""
    remarks: tuple[str, ...]


NO_ADVICE = Advice(groupings=(), bindings=(), nccl_ib_hca="", remarks=())


def advise(topology: Topology, limits: GpuLimits) -> Advice:
    """Suggestions for this node. In a virtual machine only what is real there is suggested."""
    gpus = topology.gpus
    remarks: list[str] = []
    groupings: list[Grouping] = []
    if len(gpus) > 1 and topology.nvlinks_known:
        groupings = [grouping(topology, gpus, size, limits) for size in GROUP_SIZES if size <= len(gpus)]
    elif len(gpus) > 1:
        remarks.append("No groups are suggested: NVLinks are not known here, and they decide which GPUs belong together.")
    bindings = tuple(_binding(topology, gpu) for gpu in gpus)
    if len(topology.numa_nodes) == 1 and gpus:
        remarks.append("One NUMA node: there is nothing to bind GPUs to.")
    hca, why_not = _ib_hca(topology, bindings)
    remarks += [why_not] if why_not else []
    return Advice(groupings=tuple(groupings), bindings=bindings, nccl_ib_hca=hca, remarks=tuple(remarks))


# --- rates ------------------------------------------------------------------------------------------------------------


def pcie_gb_per_s(link: PcieLink | None, rate: float | None, limits: GpuLimits) -> float | None:
    """What a PCIe link can carry in one direction at its best generation and its present width."""
    if rate is not None:
        return rate
    generation = (link.max_generation or link.generation) if link else None
    return limits.pcie_gb_per_s(generation, link.width) if link and generation and link.width else None


def nvlink_gb_per_s(gpu: Device, limits: GpuLimits | None) -> float | None:
    """What one NVLink of this GPU carries in one direction: of the product, else as the driver says."""
    product = limits.product(gpu.model) if limits and gpu.model else None
    if product and product.nvlink_gb_per_s_per_link:
        return product.nvlink_gb_per_s_per_link
    said = min((links.mb_per_s for links in gpu.nvlinks if links.mb_per_s), default=None)
    return said / 1000 if said else None


def path_gb_per_s(topology: Topology, one: Device, other: Device, limits: GpuLimits) -> float | None:
    """What the path between two GPUs can carry at best, one direction."""
    path = topology.path(one, other)
    if path.startswith("NV") and path[2:].isdecimal():
        rates = [nvlink_gb_per_s(gpu, limits) for gpu in (one, other)]
        return int(path[2:]) * min(rate for rate in rates if rate) if all(rates) else None
    if path == UNKNOWN:
        return None
    ends = [pcie_gb_per_s(gpu.link, gpu.link_gb_per_s, limits) for gpu in (one, other)]
    return min(rate for rate in ends if rate) if all(ends) else None


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class _Worth:
    """How good a path is: NVLinks before PCI, then by rate, then by how near the GPUs are on the bus."""

    rank: int
    rate: float
    nearness: int


def grouping(topology: Topology, gpus: Sequence[Device], size: int, limits: GpuLimits) -> Grouping:
    """The groups of one size whose worst path is best; among equals the ones that are nearest on the bus."""
    worth = {
        (one.index, other.index): _worth(topology, one, other, limits) for one, other in itertools.permutations(gpus, 2)
    }  # fmt: skip

    def of_group(group: tuple[int, ...]) -> _Worth:
        return min(worth[pair] for pair in itertools.combinations(group, 2))

    numbers = tuple(gpu.index for gpu in gpus)
    if len(numbers) <= EXHAUSTIVE_UP_TO:
        # The worst group decides, then the next worst; among equals the first partition, which keeps neighbours together.
        chosen = max(_partitions(numbers, size), key=lambda groups: sorted(map(of_group, groups)))
    else:
        chosen = _one_after_the_other(numbers, size, of_group)
    by_index = {gpu.index: gpu for gpu in gpus}
    groups = tuple(_group(topology, [by_index[number] for number in numbers_], worth, limits) for numbers_ in chosen)
    used = {number for group in chosen for number in group}
    values = set(worth.values())
    same = len({(value.rank, value.rate) for value in values}) == 1
    what = "bandwidth" if groups and groups[0].gb_per_s else "path"
    remark = "" if not same else f"all pairs have the same {what}" + ("" if len(values) == 1 else "; these are nearest to each other")
    return Grouping(size=size, groups=groups, left_over=tuple(number for number in numbers if number not in used), remark=remark)


def _worth(topology: Topology, one: Device, other: Device, limits: GpuLimits) -> _Worth:
    path = topology.path(one, other)
    bus = topology.pci_path(one, other)
    if bus == UNKNOWN and one.numa_node is not None and other.numa_node is not None:
        bus = "NODE" if one.numa_node == other.numa_node else "SYS"
    is_nvlink = path.startswith("NV") or path == "C2C"
    rate = path_gb_per_s(topology, one, other, limits)
    if rate is None and is_nvlink:
        rate = float(path[2:]) if path[2:].isdecimal() else 1.0
    return _Worth(NVLINK_RANK if is_nvlink else _RANK.get(path, 0), rate or 0.0, _RANK.get(bus, 0))


def _partitions(numbers: tuple[int, ...], size: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to form as many groups of a size as possible."""
    if len(numbers) < size:
        yield ()
        return
    spare = len(numbers) % size
    first, rest = numbers[0], numbers[1:]
    for others in itertools.combinations(rest, size - 1):
        group = (first, *others)
        for tail in _partitions(tuple(number for number in rest if number not in others), size):
            yield (group, *tail)
    if spare:
        yield from _partitions(rest, size)


def _one_after_the_other(numbers: tuple[int, ...], size: int, worth: Callable[[tuple[int, ...]], _Worth]) -> tuple[tuple[int, ...], ...]:
    """Groups for many GPUs: each takes, one by one, the partner that keeps its worst path best."""
    left, groups = list(numbers), []
    while len(left) >= size:
        group: tuple[int, ...] = (left.pop(0),)
        while len(group) < size:
            best = _best_partner(group, left, worth)
            left.remove(best)
            group = (*group, best)
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def _best_partner(group: tuple[int, ...], left: Sequence[int], worth: Callable[[tuple[int, ...]], _Worth]) -> int:
    return max(left, key=lambda number: (worth((*group, number)), -abs(number - group[-1]), -number))


def _group(topology: Topology, gpus: Sequence[Device], worth: dict[tuple[int, int], _Worth], limits: GpuLimits) -> Group:
    one, other = min(itertools.combinations(gpus, 2), key=lambda pair: worth[pair[0].index, pair[1].index])
    return Group(
        gpus=tuple(gpu.index for gpu in gpus), path=topology.path(one, other), gb_per_s=path_gb_per_s(topology, one, other, limits)
    )


# --- processors and adapters ------------------------------------------------------------------------------------------


def _binding(topology: Topology, gpu: Device) -> Binding:
    paths = {nic: topology.path(gpu, nic) for nic in topology.nics}
    best = max(paths.values(), key=lambda path: _RANK.get(path, 0), default="")
    nearest = tuple(nic.model or nic.name for nic, path in paths.items() if path == best and path != UNKNOWN)
    several = len(topology.numa_nodes) > 1 and gpu.numa_node is not None
    cpus = gpu.cpus
    commands = []
    if several:
        # CUDA numbers GPUs of different products by their speed unless told otherwise.
        order = "" if len({item.model for item in topology.gpus}) == 1 else "CUDA_DEVICE_ORDER=PCI_BUS_ID "
        chosen = f"{order}CUDA_VISIBLE_DEVICES={gpu.index}"
        commands.append(f"{chosen} numactl --cpunodebind={gpu.numa_node} --membind={gpu.numa_node} COMMAND")
        commands += [f"{chosen} taskset -c {cpus} COMMAND"] if cpus else []
    return Binding(
        gpu=gpu.index, numa_node=gpu.numa_node, cpus=cpus, nics=nearest, nic_path=best if nearest else "", commands=tuple(commands)
    )


def _ib_hca(topology: Topology, bindings: Sequence[Binding]) -> tuple[str, str]:
    """The adapters that share a switch with a GPU as a value of NCCL_IB_HCA, or why none is suggested."""
    if not topology.nics or not bindings:
        return "", ""
    if any(not nic.model for nic in topology.nics):
        return "", "NCCL_IB_HCA is not suggested: this source does not name the adapters."
    near = {name for binding in bindings if binding.nic_path in NEAR for name in binding.nics}
    chosen, others = _of_one_kind([nic for nic in topology.nics if nic.model in near], [set(binding.nics) for binding in bindings])
    if not chosen and topology.hypervisor:
        return "", "NCCL_IB_HCA is not suggested: the virtual PCI tree does not show which adapter is near which GPU."
    if not chosen and topology.source != "facts":
        return (
            "",
            "NCCL_IB_HCA is not suggested: no adapter shares a PCIe switch with a GPU here (a virtual machine would hide the switches).",
        )
    if not chosen:
        return "", "No adapter shares a PCIe switch with a GPU: traffic between nodes passes the processor whichever adapter is used."
    # The leading = asks for whole names: without it mlx5_1 would take mlx5_10 too.
    left_out = f"Left out of NCCL_IB_HCA, since they are of another kind and near some GPUs only: {', '.join(others)}." if others else ""
    return "=" + ",".join(chosen), left_out


def _of_one_kind(near: Sequence[Device], per_gpu: Sequence[set[str]]) -> tuple[list[str], list[str]]:
    """The adapters of the kinds that every GPU has near it, and the rest; all of them where no kind is near every GPU.

    A server carries further adapters for storage and management on some of the same switches.
    """
    names: dict[str, list[str]] = {}
    for nic in near:
        names.setdefault(f"{nic.vendor_id}:{nic.device_id}", []).append(nic.model)
    everywhere = [kind for kind, here in names.items() if all(nics & set(here) for nics in per_gpu)]
    chosen = [nic.model for nic in near if not everywhere or f"{nic.vendor_id}:{nic.device_id}" in everywhere]
    return chosen, [nic.model for nic in near if nic.model not in chosen]
