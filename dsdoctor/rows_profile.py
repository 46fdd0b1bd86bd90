"""The rows of matrices/profiles: what a node must have to be fit for something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, SmokeLimit, Source

NEEDS = ("shared-memory", "locked-memory", "open-files", "main-memory", "free-space", "rdma-devices")
"""What a node can be asked for: bytes, a count of files, a count of devices."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provider:
    """A distribution that has a component in it, by itself or bundled."""

    package: str
    specifiers: str = ""
    """PEP 440 range of the releases that do; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Component:
    """Something that must be installed, in one of several ways."""

    name: str
    only_as: tuple[str, ...] = ()
    """Required only where the profile is asked for by one of these names; empty: always."""
    beside: tuple[str, ...] = ()
    """Looked for only beside one of these packages, which use it and may bring it along; empty: always."""
    provided_by: tuple[Provider, ...]
    """One of these is enough; the usual one first."""
    want: str
    """What `dsdoctor advise --want` is asked where it is missing."""
    severity: str = "error"
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequiredTest:
    """A GPU test that must have run."""

    smoke_test: str
    gpus_from: int = 1
    """Required on a node with that many GPUs."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeNeed:
    """How much of something the node must have."""

    need: str
    amount: int
    gpus_from: int = 1
    """It holds from that many GPUs on."""
    nodes_from: int = 1
    """It holds where that many nodes work together (`--nodes`)."""
    only_as: tuple[str, ...] = ()
    """It holds only where the profile is asked for by one of these names; empty: always."""
    directory: str = ""
    """For free-space: the purpose of the directory, such as huggingface-cache."""
    severity: str
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuNeed:
    """Which GPUs serve."""

    capabilities: tuple[str, ...]
    """Compute capabilities such as 9.0, or 10.x for a family; one of them."""
    only_as: tuple[str, ...] = ()
    severity: str = "error"
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """What a node must have to be fit for one thing."""

    matrix: str
    """The name of the profile, as the file is called."""
    schema: int
    seen: str
    sources: Mapping[str, Source] = field(default_factory=dict)
    title: str
    """What a node with it is fit for, in a line."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further names, and the model that each of them stands for; empty text: no model."""
    seen_as: tuple[str, ...] = ()
    """Distributions by which it is recognised where no profile was chosen."""
    model: str = ""
    """The model that has to fit, as `dsdoctor plan` knows it."""
    components: tuple[Component, ...] = ()
    gpus: tuple[GpuNeed, ...] = ()
    smoke: tuple[RequiredTest, ...] = ()
    needs: tuple[NodeNeed, ...] = ()
    thresholds: tuple[SmokeLimit, ...] = ()
    """Limits for the numbers of GPU tests, beside those of matrices/smoke-thresholds."""

    @property
    def name(self) -> str:
        """The name of the profile."""
        return self.matrix
