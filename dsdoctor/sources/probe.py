"""What a probe is, and the target interpreter it may look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsdoctor.facts import Section
from dsdoctor.record import dataclass
from dsdoctor.sources.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The interpreter to examine (the patient), located from outside without running it."""

    path: str
    """The executable, as the user would call it."""
    chosen_by: str
    """--python, VIRTUAL_ENV, CONDA_PREFIX or own."""
    prefix: str
    base_prefix: str = ""
    kind: str = ""
    """venv, conda, uv or system."""
    python_version: str = ""
    """major.minor, where the tree of files tells it."""
    site_packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where this node meets others for collectives across all of them."""

    address: str
    """HOST:PORT on the first node."""
    node: int
    """This node's number, from 0."""
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the user asked the probes to look at."""

    target: Target | None
    gpu_indices: tuple[int, ...] | None = None
    deadline_s: float = 60.0
    model_directory: str = ""
    """A checkpoint directory whose read rate is wanted."""
    smoke_tests: tuple[str, ...] = ()
    """Names of the GPU tests to run; empty means the default set."""
    smoke_level: str = "default"
    """default or full."""
    service: str = ""
    """The address of a service to ask, already checked; the one use of the network in an examination."""
    scratch: str = ""
    """A private directory of this examination in which probes that use a GPU leave each other room; empty where none could be made."""
    meeting: Meeting | None = None
    """For the test collectives alone: run it across nodes; CPUs stand in on nodes without a GPU."""


Collect = Callable[[Host, Scope], Mapping[str, Section[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One source of facts. It never raises on purpose, never judges, never prints; it runs in a child of its own that can be killed."""

    name: str
    provides: tuple[str, ...]
    """Sections it fills; all of them become `unreadable` when it does not finish."""
    module: str
    """Module with `collect(host, scope)`; imported in the child, so that it costs nothing elsewhere."""
    cost: str
    """instant (reads files), process (starts programs) or gpu (uses GPU time)."""
    where: str = "here"
    """here, or target: it runs the target interpreter."""
    timeout_s: float = 10.0
    quick: bool = True
    """Whether `--quick` runs it too."""
    whole_node: bool = False
    """Whether it looks at the machine as a whole, whichever process is examined (`--pid`)."""
