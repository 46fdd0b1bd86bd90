"""Compare a node with how its kind of machine is wired."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsdoctor.rows_topology import ReferenceTopology, Topologies
from dsdoctor.topology.graph import NEAR, Device, Topology

SHOWN_PAIRS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as on the reference."""

    what: str
    expected: str
    found: str
    devices: tuple[str, ...] = ()
    """Names of what the picture marks."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Cells of the matrix that it marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A reference, what differs from it, and what could not be compared."""

    reference: ReferenceTopology
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]
    chosen_by: str
    """Why this reference: asked for, addresses, product."""


def compare(topology: Topology, reference: ReferenceTopology, chosen_by: str) -> Comparison:
    """What differs. Where the source or the reference does not tell, nothing is said to differ."""
    parts = [_count, _nvlinks, _nvswitches, _numa, _nics, _near_nics, _shared_switch, _pcie]
    found = [item for part in parts for item in part(topology, reference)]
    return Comparison(
        reference=reference, chosen_by=chosen_by,
        differences=tuple(item for item in found if isinstance(item, Difference)),
        not_compared=tuple(item for item in found if isinstance(item, str)),
    )  # fmt: skip


def choose(topology: Topology, references: Topologies) -> Comparison | None:
    """The reference that this node is of: by its PCI addresses, else by the product of its GPUs; the likest of several. None when none is."""
    addresses = tuple(gpu.address for gpu in topology.gpus)
    for row in references.topologies:
        if row.gpu_addresses and row.gpu_addresses == addresses and (not topology.gpu_model or row.is_for(topology.gpu_model)):
            return compare(topology, row, "same PCI addresses")
    if not topology.gpu_model:
        return None
    rows = [row for row in references.topologies if row.is_for(topology.gpu_model) and not row.gpu_addresses]
    compared = [
        compare(topology, row, f"{topology.gpu_model}, the likest of {len(rows)}" if len(rows) > 1 else topology.gpu_model) for row in rows
    ]
    exact = [item for item in compared if not item.differences]
    if exact:
        return max(exact, key=lambda item: _told(item.reference))
    return min(compared, key=lambda item: len(item.differences), default=None)


def _told(row: ReferenceTopology) -> int:
    """How much a reference says: of several that fit, the one that says most is the one."""
    told = (row.nvlinks_per_pair, row.nvswitches, row.nics, row.near_nics_per_gpu, row.numa, row.shared_switch, row.pcie_width)
    return sum(value not in (None, ()) for value in told)


# --- the parts --------------------------------------------------------------------------------------------------------


def _count(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if len(topology.gpus) == row.gpus:
        return
    if topology.hidden_gpus:
        yield f"number of GPUs: NVML shows {len(topology.gpus)} here, and {len(topology.hidden_gpus)} more are on the bus"
    elif topology.hypervisor and len(topology.gpus) < row.gpus:
        yield f"number of GPUs: this virtual machine was given {len(topology.gpus)} of {row.gpus}"
    else:
        yield Difference(what="GPUs", expected=str(row.gpus), found=str(len(topology.gpus)))


def _nvlinks(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if row.nvlinks_per_pair is None:
        return
    if not topology.nvlinks_known:
        yield f"NVLinks (expected NV{row.nvlinks_per_pair} between any two GPUs): this source does not list them"
        return
    expected = f"NV{row.nvlinks_per_pair}"
    pairs = [(one, other) for one, other in itertools.combinations(topology.gpus, 2) if topology.path(one, other) != expected]
    if pairs:
        told = [f"{one.name}–{other.name} {topology.path(one, other)}" for one, other in pairs[:SHOWN_PAIRS]]
        hidden = len(pairs) - SHOWN_PAIRS
        more = f" and {hidden} more" if hidden > 0 else ""
        culprits, paths = _in_every(pairs), {topology.path(one, other) for one, other in pairs}
        if len(culprits) == 1 and len(paths) == 1 and len(pairs) == len(topology.gpus) - 1:
            told, more = [f"{culprits[0]} has {paths.pop()} to all others"], ""
        yield Difference(
            what="NVLinks", expected=f"{expected} between any two GPUs", found=", ".join(told) + more,
            pairs=tuple((one.name, other.name) for one, other in pairs), devices=culprits,
        )  # fmt: skip


def _in_every(pairs: Sequence[tuple[Device, Device]]) -> tuple[str, ...]:
    """The GPUs that all of the pairs have in common: with some down, those are the ones to look at."""
    common = set.intersection(*({one.name, other.name} for one, other in pairs))
    return tuple(sorted(common))


def _nvswitches(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    seen = len(topology.of_kind("nvswitch"))
    if row.nvswitches is None or topology.source in ("topo-m", "nccl-xml"):
        return
    if topology.hypervisor:
        yield f"NVSwitches ({row.nvswitches}): the host keeps them from this virtual machine"
    elif seen != row.nvswitches:
        yield Difference(what="NVSwitches on the PCI bus", expected=str(row.nvswitches), found=str(seen))


def _numa(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if not row.numa:
        return
    if any(gpu.numa_node is None or gpu.numa_assumed for gpu in topology.gpus):
        yield "NUMA nodes of the GPUs: not told here"
        return
    found = _grouped((gpu.index, gpu.numa_node) for gpu in topology.gpus)
    yield from _partition("GPUs by NUMA node", row.numa, found, topology)


def _partition(
    what: str, expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]], topology: Topology
) -> Iterator[Difference | str]:
    if topology.hidden_gpus:
        yield f"{what}: NVML does not show all GPUs"
        return
    wanted = {frozenset(group) for group in expected}
    if {frozenset(group) for group in found} != wanted:
        moved = {number for group in found if frozenset(group) not in wanted for number in group}
        names = tuple(gpu.name for gpu in topology.gpus if gpu.index in moved)
        yield Difference(what=what, expected=_groups_text(expected), found=_groups_text(found), devices=names)


def _grouped(pairs: Iterator[tuple[int, object]]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for number, key in pairs:
        groups.setdefault(key, []).append(number)
    return sorted(groups.values())


def _groups_text(groups: Sequence[Sequence[int]]) -> str:
    return " | ".join(" ".join(map(str, group)) for group in groups)


def _nics(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if row.nics is not None and len(topology.nics) != row.nics:
        yield Difference(what="RDMA adapters", expected=str(row.nics), found=str(len(topology.nics)))


def _shows_switches(topology: Topology) -> bool:
    """Whether the source can tell which devices share a switch: a virtual PCI tree without any cannot."""
    return bool(topology.switches) or not topology.hypervisor


def _near_nics(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if row.near_nics_per_gpu is None or not topology.gpus:
        return
    if not _shows_switches(topology):
        yield "adapters near each GPU: the virtual PCI tree does not show switches"
        return
    far = [gpu for gpu in topology.gpus if sum(topology.path(gpu, nic) in NEAR for nic in topology.nics) < row.near_nics_per_gpu]
    if far:
        found = ", ".join(f"{gpu.name} {sum(topology.path(gpu, nic) in NEAR for nic in topology.nics)}" for gpu in far)
        yield Difference(
            what="adapters on the PCIe switches of a GPU (PIX or PXB)", expected=f"at least {row.near_nics_per_gpu} for each GPU", found=found,
            devices=tuple(gpu.name for gpu in far),
        )  # fmt: skip


def _shared_switch(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    if not row.shared_switch or topology.source == "topo-m":
        return
    if not _shows_switches(topology):
        yield "PCIe switches: the virtual PCI tree does not show them"
        return
    found = _grouped((gpu.index, gpu.switches[0] if gpu.switches else gpu.name) for gpu in topology.gpus)
    yield from _partition("GPUs by PCIe switch", row.shared_switch, found, topology)


def _pcie(topology: Topology, row: ReferenceTopology) -> Iterator[Difference | str]:
    slow = []
    for gpu in topology.gpus:
        link = gpu.link
        generation = (link.max_generation or link.generation) if link else None
        if link and (
            (row.pcie_width and link.width and link.width < row.pcie_width)
            or (row.pcie_generation and generation and generation < row.pcie_generation)
        ):
            slow.append((gpu, f"{gpu.name} Gen{generation or '?'} x{link.width or '?'}"))
    if slow:
        yield Difference(
            what="PCIe links of the GPUs", expected=f"Gen{row.pcie_generation} x{row.pcie_width}", found=", ".join(text for _, text in slow),
            devices=tuple(gpu.name for gpu, _ in slow),
        )  # fmt: skip
