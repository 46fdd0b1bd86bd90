"""A variable sends the traffic between nodes to an interface that cannot carry it.

What it looks at
    NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME against the network cards of this node, and whether the job runs on several nodes.

Why it matters
    The loopback interface reaches this node only: on one node everything works, on two the ranks wait for each other or say "connection refused, remote=[127.0.0.1]". A name that no interface
    has makes NCCL say "Bootstrap : no socket interface found". The two read their variables differently: for NCCL a name is a beginning, ^ excludes and = asks for the exact name; Gloo
    takes exact names only and fails on ^ and =. Bonds, bridges and the interfaces of containers are no cards, so for those this check cannot say whether they are there.

Sources
    NCCL user guide, environment variables; PyTorch documentation of Gloo; recordings of H200 nodes; NCCL in marin issue 6940.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.facts import Container, EnvironmentVariable, PciDevice, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import EnvVars

NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
SOURCES = {
    NCCL: "NVIDIA NCCL user guide: environment variables — https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    GLOO: "PyTorch: distributed communication package, choosing the network interface — https://docs.pytorch.org/docs/stable/distributed.html",
}
LOOPBACK = "lo"
NAME_OF_A_CARD = re.compile(r"(?:en[ops]|ib[ps]?)\d[0-9a-z]*", re.ASCII)
"""Names that systemd gives to PCI cards only; eth0, bond0, br0 or a name with a dot can be anything."""


def environment_of(**variables: str) -> tuple[EnvironmentVariable, ...]:
    """An environment with these variables."""
    return tuple(EnvironmentVariable(name=name, value=value) for name, value in variables.items())


CARDS = (
    PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_0", "enp90s0np0")),
    PciDevice(address="0000:9a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_1", "ib0")),
)
HOST = absent("a plain host")

CASES = (
    Case(
        title="loopback in a job of two nodes",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="lo", SLURM_NNODES="2"), "pci_devices": CARDS},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="this node only",
    ),
    Case(
        title="loopback, and nothing shows a second node",
        sections={"environment": environment_of(GLOO_SOCKET_IFNAME="lo"), "pci_devices": CARDS},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="GLOO_SOCKET_IFNAME",
    ),
    Case(
        title="a card that this node does not have",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp161s0"), "pci_devices": CARDS, "container": HOST},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="enp161s0",
    ),
    Case(
        title="Gloo takes no signs",
        sections={"environment": environment_of(GLOO_SOCKET_IFNAME="=enp90s0np0"), "pci_devices": CARDS, "container": HOST},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Gloo",
    ),
    Case(
        title="everything but the loopback interface is excluded",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="^enp,ib"), "pci_devices": CARDS, "container": HOST},
        status=Status.UNKNOWN,
        says="excludes every card",
    ),
    Case(
        title="the beginning of a name",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp90"), "pci_devices": CARDS, "container": HOST},
        status=Status.PASS,
    ),
    Case(
        title="an exact name",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="=enp90s0np0", GLOO_SOCKET_IFNAME="enp90s0np0"), "pci_devices": CARDS},
        status=Status.PASS,
    ),
    Case(
        title="the beginning of a name is not enough for an exact match",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="=enp90"), "pci_devices": CARDS, "container": HOST},
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="docker and loopback excluded",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="^docker,lo"), "pci_devices": CARDS},
        status=Status.PASS,
    ),
    Case(title="neither is set", sections={"environment": environment_of(NCCL_DEBUG="INFO"), "pci_devices": CARDS}, status=Status.PASS),
    Case(title="set and empty is not set", sections={"environment": environment_of(NCCL_SOCKET_IFNAME="")}, status=Status.PASS),
    Case(
        title="a bond is no card",
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
        title="the cards are not known",
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
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    env_vars_matrix: EnvVars,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Read each variable as its library does, and hold it against the cards of this node."""
    variables = values(environment)
    cards = [name for device in pci_devices.value or () if device.kind == "nic" for name in device.interfaces if not name.startswith("mlx")]
    for variable in (NCCL, GLOO):
        value = variables.get(variable, "").strip()
        if not value:
            continue
        row = env_vars_matrix.variable(variable)
        sources = row.basis.sources if row else (SOURCES[variable],)
        evidence = (
            Evidence(where=f"environment.{variable}", value=value),
            Evidence(
                where="pci_devices", value=f"network cards: {', '.join(cards) or 'none'}" if pci_devices.value is not None else "not known"
            ),
        )
        if variable == GLOO and value[0] in "^=":
            yield _finding(
                variable,
                f"{variable} is {value}, and Gloo does not know the sign {value[0]}: it looks for an interface of exactly that name.",
                "The signs ^ and = belong to NCCL_SOCKET_IFNAME. Process groups with Gloo (also those of vLLM and of torch) fail to start.",
                Severity.ERROR,
                evidence,
                remedies,
                sources,
            )
            continue
        yield from _judge(variable, value, cards, pci_devices, container, several_nodes(variables), evidence, remedies, sources)


def _judge(
    variable: str,
    value: str,
    cards: Sequence[str],
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    nodes: Evidence | None,
    evidence: tuple[Evidence, ...],
    remedies: Remedies,
    sources: tuple[str, ...],
) -> Iterator[Finding | Doubt]:
    excludes = value.startswith("^")
    is_exact = variable == GLOO or value.lstrip("^").startswith("=")
    names = [name.strip() for name in value.lstrip("^=").split(",") if name.strip()]
    if excludes:
        if cards and all(_fits(card, names, is_exact) for card in cards):
            yield Doubt(
                subject=variable, reason=f"'{value}' excludes every card of this node; whether another interface is left is not known"
            )
        return
    if names and all(name == LOOPBACK for name in names):
        yield _finding(
            variable,
            f"{variable} is {value}: the loopback interface reaches this node only.",
            "Ranks on other nodes cannot connect; they wait, or say 'connection refused' with the address 127.0.0.1."
            if nodes
            else "On one node it works. A job of several nodes cannot connect with it.",
            Severity.ERROR if nodes else Severity.INFO,
            (*evidence, *((nodes,) if nodes else ())),
            remedies,
            sources,
        )
        return
    if any(_fits(card, names, is_exact) for card in cards):
        return
    shown = ", ".join(names) or value
    if pci_devices.value is None:
        yield Doubt(subject=variable, reason=f"it asks for {shown}, and the interfaces of this node are not known")
    elif container.state is State.ABSENT and cards and names and all(NAME_OF_A_CARD.fullmatch(name) for name in names):
        yield _finding(
            variable,
            f"{variable} asks for {shown}, and this node has no such network card.",
            "NCCL then says 'Bootstrap : no socket interface found'. Nodes of one cluster may name their cards differently: "
            "set the variable on each node, or use a beginning that all share.",
            Severity.ERROR,
            evidence,
            remedies,
            sources,
        )
    else:
        yield Doubt(
            subject=variable,
            reason=f"it asks for {shown}, which no network card here is called; whether there is a bond, a bridge or a virtual interface of that name is not known",
            settle="ip -br addr",
        )


def _fits(card: str, names: Sequence[str], is_exact: bool) -> bool:
    return any(card == name if is_exact else card.startswith(name) for name in names)


def _finding(
    variable: str,
    summary: str,
    cause: str,
    severity: Severity,
    evidence: tuple[Evidence, ...],
    remedies: Remedies,
    sources: tuple[str, ...],
) -> Finding:
    return Finding(
        subject=variable,
        severity=severity,
        summary=summary,
        cause=cause,
        evidence=evidence,
        expected="the interface that reaches the other nodes, or the variable unset",
        remedies=remedies("general"),
        sources=sources,
    )
