"""Everything a renderer shows of one topology, worked out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dsdoctor.errors import unknown_name
from dsdoctor.rows import GpuLimits
from dsdoctor.rows_topology import Topologies
from dsdoctor.topology import advice, links, reference
from dsdoctor.topology.graph import Device, Topology


@dataclass(frozen=True, slots=True)
class Fault:
    """What a report found on a device, in a few words."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A topology, what is degraded, what is suggested, and how it compares."""

    topology: Topology
    degraded: Mapping[str, str]
    link_words: Mapping[str, links.Told]
    """PCIe link of each device (by name) and switch (by address)."""
    nvlink_words: Mapping[str, links.Told]
    advice: advice.Advice
    comparison: reference.Comparison | None
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """What a report found, by the name of the device or the address of the switch."""

    @property
    def columns(self) -> tuple[Device, ...]:
        """The devices of the matrix, in the order of topo -m."""
        return (*self.topology.gpus, *self.topology.nics)

    @property
    def differing(self) -> frozenset[str]:
        """Names of devices that differ from the reference."""
        return frozenset(name for item in self._differences for name in item.devices)

    @property
    def differing_pairs(self) -> frozenset[tuple[str, str]]:
        """Cells that differ from the reference, both ways round."""
        pairs = [pair for item in self._differences for pair in item.pairs]
        return frozenset([*pairs, *((other, one) for one, other in pairs)])

    @property
    def _differences(self) -> tuple[reference.Difference, ...]:
        return self.comparison.differences if self.comparison else ()

    @property
    def title(self) -> str:
        """8 × NVIDIA H100 80GB HBM3, 8 RDMA adapters, 2 NUMA nodes."""
        topology = self.topology
        parts = [f"{number} × {model or 'GPU'}" for model, number in Counter(gpu.model for gpu in topology.gpus).items()] or ["no GPU"]
        counts = [
            (len(topology.nics), "RDMA adapter"),
            (len(topology.of_kind("nvswitch")), "NVSwitch"),
            (len(topology.numa_nodes), "NUMA node"),
        ]
        plural = {"NVSwitch": "NVSwitches"}
        return ", ".join(parts + [f"{n} {word if n == 1 else plural.get(word, word + 's')}" for n, word in counts if n])


def of(topology: Topology, limits: GpuLimits, references: Topologies, reference_id: str = "") -> Picture:
    """Work everything out. `reference_id` names the machine to compare with; empty: the one that fits. Raises UsageError."""
    row = references.topology(reference_id) if reference_id else None
    if reference_id and row is None:
        raise unknown_name("reference topology", reference_id, [item.id for item in references.topologies])
    return Picture(
        topology=topology, degraded=links.all_degraded(topology, limits), link_words=_link_words(topology),
        nvlink_words={gpu.name: links.nvlinks(gpu, limits) for gpu in topology.gpus}, advice=advice.advise(topology, limits),
        comparison=reference.compare(topology, row, "asked for") if row else reference.choose(topology, references),
    )  # fmt: skip


def of_facts(topology: Topology, faults: Mapping[str, Fault]) -> Picture:
    """What the facts alone show, without knowledge about products, and what a report found on which device."""
    return Picture(
        topology=topology, degraded=links.all_degraded(topology, None), link_words=_link_words(topology),
        nvlink_words={gpu.name: links.nvlinks(gpu, None) for gpu in topology.gpus}, advice=advice.NO_ADVICE, comparison=None, faults=faults,
    )  # fmt: skip


def _link_words(topology: Topology) -> dict[str, links.Told]:
    words = {device.name: links.pcie(device) for device in topology.devices}
    return words | {switch.address: links.pcie(switch) for switch in topology.switches}
