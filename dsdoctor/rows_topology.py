"""Rows about how known machines are wired, for `dsdoctor topo` to compare with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReferenceTopology:
    """How one kind of machine is wired. What its sources do not tell is None or empty, and is not compared."""

    id: str
    title: str
    name_regex: str
    """Matches the whole product name of its GPUs, with or without the leading 'NVIDIA '."""
    gpus: int
    nvlinks_per_pair: int | None = None
    """NVLinks between any two GPUs, as topo -m counts them."""
    nvswitches: int | None = None
    nics: int | None = None
    """RDMA adapters for the traffic between nodes."""
    near_nics_per_gpu: int | None = None
    """Adapters that a GPU reaches over PIX or PXB."""
    numa: tuple[tuple[int, ...], ...] = ()
    """GPU numbers that share a NUMA node; which number the node has differs between firmwares."""
    shared_switch: tuple[tuple[int, ...], ...] = ()
    """GPU numbers that share the PCIe switch right above them."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    gpu_addresses: tuple[str, ...] = ()
    """Where the platform gives every machine the same addresses."""
    note: str = ""
    basis: Basis

    def is_for(self, product: str) -> bool:
        """Whether its GPUs carry that product name."""
        return re.fullmatch(self.name_regex, product.removeprefix("NVIDIA ").strip(), re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topologies:
    """How known machines are wired."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    topologies: tuple[ReferenceTopology, ...]

    def topology(self, id: str) -> ReferenceTopology | None:
        """The row of an id."""
        return next((row for row in self.topologies if row.id == id), None)
