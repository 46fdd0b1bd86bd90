"""A variable sends NCCL or Gloo to a network interface or adapter that is not there, is down, or reaches this node only.

What it looks at
    NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA against the network interfaces and RDMA adapters that a process here can use, and whether the job runs on
    several nodes. Where those are not known (older recordings, pasted text), against the network cards on the PCI bus.

Why it matters
    A name that no interface has ends even a job on one node ("Bootstrap : no socket interface found"). The loopback interface reaches this node only: on one node everything works, on
    two the ranks wait for each other or say "connection refused, remote=[127.0.0.1]". An adapter that is not there is passed over without a word, and the traffic between nodes goes
    over TCP or over fewer adapters. The libraries read their variables differently: for NCCL a name is a beginning, ^ before the list excludes and = asks for exact names (^= for
    both), a port may follow after a colon; Gloo takes exact names only, needs every one of them, and fails on ^ and =.

Sources
    NCCL user guide, environment variables; PyTorch documentation of Gloo; recordings of H200 nodes; NCCL in marin issue 6940.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._samples import environment_of
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.facts import Container, EnvironmentVariable, NetworkInterface, PciDevice, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import EnvVars

NCCL, GLOO, ADAPTERS = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"
GUIDE = "NVIDIA NCCL user guide: environment variables — https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
SOURCES = {
    NCCL: GUIDE,
    ADAPTERS: GUIDE,
    GLOO: "PyTorch: distributed communication package, choosing the network interface — https://docs.pytorch.org/docs/stable/distributed.html",
}
LOOPBACK = "lo"
RDMA = "rdma"
NAME_OF_A_CARD = re.compile(r"(?:en[ops]|ib[ps]?)\d[0-9a-z]*", re.ASCII)
"""Names that systemd gives to PCI cards only; eth0, bond0, br0 or a name with a dot can be anything."""


CARDS = (
    PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_0", "enp90s0np0")),
    PciDevice(address="0000:9a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_1", "ib0")),
)
HOST = absent("a plain host")
LO = NetworkInterface(name="lo", kind="virtual", up=True, loopback=True)
ETH0 = NetworkInterface(name="eth0", kind="ethernet", up=True)
CONTAINER = (LO, ETH0)
DOCKER = NetworkInterface(name="docker0", kind="virtual", up=False)
NODE = (
    LO,
    DOCKER,
    NetworkInterface(name="enp90s0np0", kind="ethernet", up=True, speed_mbit_per_s=400_000),
    NetworkInterface(name="bond0.12", kind="virtual", up=True),
    NetworkInterface(name="mlx5_0", kind="rdma", up=True),
    NetworkInterface(name="mlx5_10", kind="rdma", up=True),
)
TWO_NODES = {"SLURM_NNODES": "2"}


def _with(interfaces: tuple[NetworkInterface, ...], **variables: str) -> dict[str, object]:
    return {"environment": environment_of(**variables), "network_interfaces": interfaces}


CASES = (
    Case(
        title="NCCL is told a name that nothing here has (two H200 in a container)",
        sections=_with(CONTAINER, NCCL_SOCKET_IFNAME="eth77"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="no interface whose name begins with eth77: this node has lo and eth0",
    ),
    Case(
        title="the beginning of a name is not enough for an exact match",
        sections=_with(NODE, NCCL_SOCKET_IFNAME="=enp90"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="no interface named enp90",
    ),
    Case(
        title="for Gloo neither, and each name of the list must be there",
        sections=_with(NODE, GLOO_SOCKET_IFNAME="enp90s0np0,enp91s0np0"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="enp91s0np0",
    ),
    Case(
        title="everything is excluded",
        sections=_with(CONTAINER, NCCL_SOCKET_IFNAME="^eth,lo"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="excludes every interface",
    ),
    Case(
        title="the only interface of that name is down",
        sections=_with(NODE, NCCL_SOCKET_IFNAME="docker"),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="docker0 is down",
    ),
    Case(
        title="Gloo takes no signs",
        sections=_with(NODE, GLOO_SOCKET_IFNAME="=enp90s0np0"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Gloo",
    ),
    Case(
        title="loopback in a job of two nodes",
        sections=_with(CONTAINER, NCCL_SOCKET_IFNAME="lo", **TWO_NODES),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="this node only",
    ),
    Case(
        title="loopback, and nothing shows a second node",
        sections=_with(CONTAINER, GLOO_SOCKET_IFNAME="lo"),
        status=Status.FAIL,
        severity=Severity.INFO,
        says="GLOO_SOCKET_IFNAME",
    ),
    Case(
        title="adapters that this node does not have",
        sections=_with(NODE, NCCL_IB_HCA="mlx5_4:1,mlx5_5:1"),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="this node has mlx5_0 and mlx5_10",
    ),
    Case(
        title="some of the adapters are there",
        sections=_with(NODE, NCCL_IB_HCA="=mlx5_0,mlx5_1"),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="mlx5_1",
    ),
    Case(
        title="adapters are named where there is none, and one node is all that is known of",
        sections=_with(CONTAINER, NCCL_IB_HCA="mlx5"),
        status=Status.FAIL,
        severity=Severity.INFO,
        says="no RDMA adapter",
    ),
    Case(title="a beginning of adapters, and an exclusion", sections=_with(NODE, NCCL_IB_HCA="^mlx5_10"), status=Status.PASS),
    Case(title="mlx5_1 is the beginning of mlx5_10", sections=_with(NODE, NCCL_IB_HCA="mlx5_1:1"), status=Status.PASS),
    Case(
        title="the beginning of a name, an exact one, and a VLAN on a bond",
        sections=_with(NODE, NCCL_SOCKET_IFNAME="enp90,nothing", GLOO_SOCKET_IFNAME="bond0.12"),
        status=Status.PASS,
    ),
    Case(title="docker and loopback excluded", sections=_with(NODE, NCCL_SOCKET_IFNAME="^docker,lo"), status=Status.PASS),
    Case(title="all but an exact name", sections=_with(NODE, NCCL_SOCKET_IFNAME="^=enp90s0np0,lo"), status=Status.PASS),
    Case(title="none is set", sections=_with(NODE, NCCL_DEBUG="INFO"), status=Status.PASS),
    Case(title="set and empty is not set", sections={"environment": environment_of(NCCL_SOCKET_IFNAME="")}, status=Status.PASS),
    Case(
        title="only the cards are known, and the name is that of a card that is not there",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp161s0"), "pci_devices": CARDS, "container": HOST},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="enp161s0",
    ),
    Case(
        title="only the cards are known: the beginning of a name, and an adapter",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp90", NCCL_IB_HCA="mlx5_1"), "pci_devices": CARDS, "container": HOST},
        status=Status.PASS,
    ),
    Case(
        title="only the cards are known: everything but the loopback interface is excluded",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="^enp,ib"), "pci_devices": CARDS, "container": HOST},
        status=Status.UNKNOWN,
        says="excludes every card",
    ),
    Case(
        title="only the cards are known, and a bond is none",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="bond0"), "pci_devices": CARDS, "container": HOST},
        status=Status.UNKNOWN,
        says="bond0",
    ),
    Case(
        title="in a container the cards are not what counts",
        sections={
            "environment": environment_of(NCCL_SOCKET_IFNAME="enp161s0"),
            "pci_devices": CARDS,
            "container": Container(runtime="docker"),
        },
        status=Status.UNKNOWN,
        says="enp161s0",
    ),
    Case(
        title="neither interfaces nor cards are known",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp161s0")},
        status=Status.UNKNOWN,
        says="not known",
    ),
)


@check(
    "network.wrong-interface",
    Severity.ERROR,
    explains=("smoke.collectives",),
    settle="ip -br addr; env | grep -E 'NCCL|GLOO'",
    cases=CASES,
)
def wrong_interface(
    environment: tuple[EnvironmentVariable, ...],
    network_interfaces: Section[tuple[NetworkInterface, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    env_vars_matrix: EnvVars,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Read each variable as its library does, and hold it against what this node has."""
    variables = values(environment)
    for name in (NCCL, GLOO, ADAPTERS):
        value = variables.get(name, "").strip()
        if not value:
            continue
        row = env_vars_matrix.variable(name)
        wish = Wish.of(name, value, row.basis.sources if row else (SOURCES[name],), several_nodes(variables), remedies)
        if name == GLOO and value[0] in "^=":
            yield wish.finding(
                f"{name} is {value}, and Gloo does not know the sign {value[0]}: it looks for an interface of exactly that name.",
                "The signs ^ and = belong to NCCL_SOCKET_IFNAME. Process groups with Gloo (also those of vLLM and of torch) fail to start.",
                Severity.ERROR,
                _here(network_interfaces.value or ()),
            )
        elif network_interfaces.value is None:
            yield from _by_cards(wish, pci_devices, container)
        elif name == ADAPTERS:
            yield from _by_adapters(wish, [item for item in network_interfaces.value if item.kind == RDMA], variables.get("NCCL_NET", ""))
        else:
            yield from _by_interfaces(wish, [item for item in network_interfaces.value if item.kind != RDMA])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one variable asks for, as its library reads it."""

    variable: str
    value: str
    names: tuple[str, ...]
    excludes: bool
    exact: bool
    sources: tuple[str, ...]
    nodes: Evidence | None
    """What shows that the job runs on several nodes."""
    remedies: Remedies

    @staticmethod
    def of(variable: str, value: str, sources: tuple[str, ...], nodes: Evidence | None, remedies: Remedies) -> Wish:
        """Signs, names and ports of a value; for Gloo all of it are exact names."""
        of_nccl = variable != GLOO
        excludes = of_nccl and value.startswith("^")
        exact = not of_nccl or value.removeprefix("^").startswith("=")
        listed = value.removeprefix("^").removeprefix("=") if of_nccl else value
        names = (entry.partition(":")[0].strip() if of_nccl else entry.strip() for entry in listed.split(","))
        return Wish(
            variable=variable, value=value, names=tuple(name for name in names if name), excludes=excludes, exact=exact,
            sources=sources, nodes=nodes, remedies=remedies,
        )  # fmt: skip

    def fits(self, name: str) -> bool:
        """Whether one of the names of the list means this interface; an exclusion is not looked at."""
        return any(name == wanted if self.exact else name.startswith(wanted) for wanted in self.names)

    def takes(self, name: str) -> bool:
        """Whether the library uses this interface."""
        return self.fits(name) != self.excludes

    def missing(self, there: Sequence[NetworkInterface]) -> tuple[str, ...]:
        """The names of the list that mean nothing of what is there."""
        return tuple(
            wanted
            for wanted in self.names
            if not any(item.name == wanted if self.exact else item.name.startswith(wanted) for item in there)
        )

    def finding(
        self, summary: str, cause: str, severity: Severity, evidence: tuple[Evidence, ...], case: str = "general", **fill: str
    ) -> Finding:
        """A finding about this variable."""
        return Finding(
            subject=self.variable,
            severity=severity,
            summary=summary,
            cause=cause,
            evidence=(Evidence(where=f"environment.{self.variable}", value=self.value), *evidence),
            expected="adapters of this node, or the variable unset"
            if self.variable == ADAPTERS
            else "the interface that reaches the other nodes, or the variable unset",
            remedies=self.remedies(case, **fill),
            sources=self.sources,
        )

    def about_loopback(self, evidence: tuple[Evidence, ...]) -> Finding:
        """The finding where only the loopback interface is used."""
        return self.finding(
            f"{self.variable} is {self.value}: the loopback interface reaches this node only.",
            "Ranks on other nodes cannot connect; they wait, or say 'connection refused' with the address 127.0.0.1."
            if self.nodes
            else "On one node it works. A job of several nodes cannot connect with it.",
            Severity.ERROR if self.nodes else Severity.INFO,
            (*evidence, *((self.nodes,) if self.nodes else ())),
        )


def _here(there: Sequence[NetworkInterface]) -> tuple[Evidence, ...]:
    shown = [f"{item.name} ({'up' if item.up else 'down' if item.up is False else 'state not known'})" for item in there]
    return (Evidence(where="network_interfaces", value=", ".join(shown) or "none"),)


def _listed(names: Sequence[str], word: str) -> str:
    """Names in a sentence, at most eight of them."""
    shown = list(names[:8]) + ([f"{len(names) - 8} more"] if len(names) > 8 else [])
    return f" {word} ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part) if shown else "none"


def _by_interfaces(wish: Wish, there: Sequence[NetworkInterface]) -> Iterator[Finding]:
    """Where every interface is known: what the library would take, and whether that carries traffic."""
    taken = [item for item in there if wish.takes(item.name)]
    missing = wish.missing(there) if not wish.excludes and (wish.variable == GLOO or not taken) else ()
    usable = [item.name for item in there if item.up and not item.loopback and item.kind != "virtual"]
    fill = {"interface": usable[0]} if len(usable) == 1 else {}
    here = _listed([item.name for item in there], "and")
    if missing or not taken:
        of_what = f"named {_listed(missing, 'or')}" if wish.exact else f"whose name begins with {_listed(missing, 'or')}"
        asks = (
            f"which excludes every interface here ({here})"
            if wish.excludes
            else f"and there is no interface {of_what}: this node has {here}"
        )
        yield wish.finding(
            f"{wish.variable} is {wish.value}, {asks}.",
            "Gloo then says that it finds no address for it, and no process group starts."
            if wish.variable == GLOO
            else "NCCL then says 'Bootstrap : no socket interface found', also in a job on this node alone. Nodes of one cluster may name their "
            "interfaces differently: set the variable on each node, or use a beginning that all share.",
            Severity.ERROR,
            _here(there),
            **fill,
        )
    elif all(item.loopback for item in taken):
        yield wish.about_loopback(_here(there))
    elif all(item.up is False or item.loopback for item in taken):
        down = [item.name for item in taken if not item.loopback]
        yield wish.finding(
            f"{wish.variable} is {wish.value}, and {_listed(down, 'and')} {'is' if len(down) == 1 else 'are'} down.",
            "An interface without a carrier reaches no other node, and newer releases of NCCL pass it over.",
            Severity.ERROR if wish.nodes else Severity.WARNING,
            _here(there),
            **fill,
        )


def _by_adapters(wish: Wish, there: Sequence[NetworkInterface], forced_net: str) -> Iterator[Finding]:
    """NCCL_IB_HCA where every adapter is known: without a match NCCL takes TCP without a word, with some of them fewer adapters."""
    names = [item.name for item in there]
    taken = [name for name in names if wish.takes(name)]
    missing = () if wish.excludes else wish.missing(there)
    if not there:
        yield wish.finding(
            f"{wish.variable} is {wish.value}, and there is no RDMA adapter on this node.",
            "Between nodes NCCL uses TCP then. A job on this node alone does not need an adapter.",
            Severity.ERROR if forced_net.strip().upper() == "IB" else Severity.WARNING if wish.nodes else Severity.INFO,
            (Evidence(where="network_interfaces", value="no RDMA adapter"), *((wish.nodes,) if wish.nodes else ())),
            "adapters",
        )
    elif not taken:
        asks = "which excludes every adapter" if wish.excludes else f"and there is no adapter {_listed(missing, 'or')}"
        yield wish.finding(
            f"{wish.variable} is {wish.value}, {asks}: this node has {_listed(names, 'and')}.",
            "NCCL finds no adapter then, and the traffic between nodes goes over TCP.",
            Severity.ERROR,
            _here(there),
            "adapters",
            adapters=",".join(item.name for item in there if item.up is not False),
        )
    elif missing:
        yield wish.finding(
            f"{wish.variable} is {wish.value}, and there is no adapter {_listed(missing, 'or')}: NCCL uses {_listed(taken, 'and')}.",
            "GPUs whose adapter is not used send through that of another one, so that the traffic between nodes is slower.",
            Severity.WARNING,
            _here(there),
            "adapters",
        )


def _by_cards(wish: Wish, pci_devices: Section[tuple[PciDevice, ...]], container: Section[Container]) -> Iterator[Finding | Doubt]:
    """Where only the cards on the bus are known: bonds, bridges and what a container sees are not among them."""
    of_cards = [name for device in pci_devices.value or () if device.kind == "nic" for name in device.interfaces]
    cards = of_cards if wish.variable == ADAPTERS else [name for name in of_cards if not name.startswith("mlx")]
    if wish.excludes:
        if cards and not any(wish.takes(card) for card in cards):
            yield Doubt(
                subject=wish.variable,
                reason=f"'{wish.value}' excludes every card of this node; whether another interface is left is not known",
            )
        return
    evidence = (
        (Evidence(where="pci_devices", value=f"network cards: {', '.join(cards) or 'none'}"),) if pci_devices.value is not None else ()
    )
    if wish.names and all(name == LOOPBACK for name in wish.names):
        yield wish.about_loopback(evidence)
        return
    if any(wish.takes(card) for card in cards):
        return
    shown = ", ".join(wish.names) or wish.value
    if pci_devices.value is None:
        yield Doubt(subject=wish.variable, reason=f"it asks for {shown}, and the interfaces of this node are not known")
    elif container.state is State.ABSENT and cards and wish.names and all(NAME_OF_A_CARD.fullmatch(name) for name in wish.names):
        yield wish.finding(
            f"{wish.variable} asks for {shown}, and this node has no such network card.",
            "NCCL then says 'Bootstrap : no socket interface found'. Nodes of one cluster may name their cards differently: "
            "set the variable on each node, or use a beginning that all share.",
            Severity.ERROR,
            evidence,
        )
    else:
        yield Doubt(
            subject=wish.variable,
            reason=f"it asks for {shown}, which no network card here is called; whether there is a bond, a bridge or a virtual interface of that name is not known",
            settle="ip -br addr",
        )
