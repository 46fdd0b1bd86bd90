"""A port of an RDMA adapter has a link that is slower than it should be, or that nobody has set up.

What it looks at
    State and rate of each port against those of the other ports of the same board.

Why it matters
    Ranks wait for the slowest rail. A port that trained at half its rate (a bad cable or transceiver, a switch port with another profile) halves every collective between nodes, without an error anywhere. An
    InfiniBand port in state INIT has a good cable and no subnet manager, ARMED waits for the last step: neither carries traffic.

Sources
    Linux kernel, InfiniBand sysfs interface; NVIDIA NCCL user guide, networking troubleshooting; rules of public node-health projects.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.rdma._reading import no_ports
from dsdoctor.facts import PciDevice, RdmaPort, Section, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = (
    "NVIDIA NCCL user guide: networking troubleshooting — "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html"
)
ACTIVE = "active"


def rails(*rates: float | None, states: tuple[str, ...] = (), board: str = "MT_0000000838") -> tuple[RdmaPort, ...]:
    """One port for each rate."""
    return tuple(
        RdmaPort(
            adapter=f"mlx5_{number}",
            link_layer="InfiniBand",
            state=states[number] if states else ACTIVE,
            rate_gbit_per_s=rate,
            board_id=board,
        )
        for number, rate in enumerate(rates)
    )


CASES = (
    Case(
        title="one rail at half its rate",
        sections={"rdma_ports": rails(400, 400, 200, 400)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="mlx5_2",
    ),
    Case(
        title="no subnet manager",
        sections={"rdma_ports": rails(400, 400, states=(ACTIVE, "init"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="subnet manager",
    ),
    Case(title="all alike", sections={"rdma_ports": rails(400, 400, 400, 400)}, status=Status.PASS),
    Case(
        title="a slower card of another board",
        sections={
            "rdma_ports": (*rails(400, 400), RdmaPort(adapter="mlx5_bond_0", state=ACTIVE, rate_gbit_per_s=200, board_id="MT_0000000884"))
        },
        status=Status.PASS,
    ),
    Case(
        title="a port without a cable is the matter of rdma.link-down",
        sections={"rdma_ports": rails(400, 10, states=(ACTIVE, "down"))},
        status=Status.PASS,
    ),
    Case(title="the rates were not read", sections={"rdma_ports": rails(None, None)}, status=Status.UNKNOWN, says="rate"),
    Case(title="no adapter", sections={"rdma_ports": absent("no RDMA adapter")}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
    Case(title="nobody looked, and there is no card", sections={"pci_devices": ()}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
    Case(title="/sys is not there", sections={"rdma_ports": unreadable("no /sys")}, status=Status.UNKNOWN, says="/sys"),
)


@check("rdma.link-degraded", Severity.WARNING, explains=("smoke.collectives",), settle="ibstat | grep -E 'CA |State|Rate'", cases=CASES)
def link_degraded(
    rdma_ports: Section[tuple[RdmaPort, ...]], pci_devices: Section[tuple[PciDevice, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Ports of one board should be alike."""
    ports = rdma_ports.value or ()
    if not ports:
        yield no_ports(rdma_ports, pci_devices)
        return
    waiting = [port for port in ports if port.state in ("init", "armed")]
    if waiting:
        yield Finding(
            subject=_names(waiting),
            summary=f"{_names(waiting)} {'has' if len(waiting) == 1 else 'have'} a link, and the subnet manager has not set it up (state {waiting[0].state}).",
            cause="No subnet manager runs in this fabric, or it does not reach this port. No traffic goes over it.",
            evidence=tuple(_evidence(port) for port in waiting[:8]),
            expected="state ACTIVE",
            remedies=remedies("subnet-manager"),
            sources=(SOURCE,),
        )
    active = [port for port in ports if port.state == ACTIVE]
    for board in dict.fromkeys((port.board_id or port.adapter_type, port.link_layer) for port in active):
        alike = [port for port in active if (port.board_id or port.adapter_type, port.link_layer) == board]
        best = max((port.rate_gbit_per_s for port in alike if port.rate_gbit_per_s is not None), default=None)
        slow = [port for port in alike if best is not None and port.rate_gbit_per_s is not None and port.rate_gbit_per_s < best]
        if slow and best is not None:
            yield Finding(
                subject=_names(slow),
                summary=f"{_names(slow)} {'runs' if len(slow) == 1 else 'run'} at {slow[0].rate_gbit_per_s:g} Gbit/s, other ports of the same board at {best:g}.",
                cause="Cable, transceiver or switch port let the link train lower, or its rate was set. Traffic between nodes goes at the pace of the slowest rail.",
                evidence=tuple(_evidence(port) for port in (*slow, *(port for port in alike if port not in slow))[:8]),
                expected=f"{best:g} Gbit/s on all of them",
                remedies=remedies("general"),
                sources=(SOURCE,),
            )
    if active and all(port.rate_gbit_per_s is None for port in active):
        yield Doubt(subject="RDMA ports", reason="the rate of no port was read")


def _names(ports: list[RdmaPort]) -> str:
    return ", ".join(port.adapter + (f" port {port.port}" if port.port != 1 else "") for port in ports)


def _evidence(port: RdmaPort) -> Evidence:
    rate = "rate not known" if port.rate_gbit_per_s is None else f"{port.rate_gbit_per_s:g} Gbit/s"
    return Evidence(
        where=f"rdma_ports[{port.adapter}]", value=f"{port.state or 'state not known'}, {rate}, {port.link_layer or 'link layer not known'}"
    )
