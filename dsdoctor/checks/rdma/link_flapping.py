"""The link of a network adapter goes down and comes back.

What it looks at
    How often each RDMA port lost its link since the adapter was started, and in logs how often an interface lost its carrier.

Why it matters
    Each loss ends or stalls every collective that uses the rail (NCCL gives up after its timeout), while every look in between finds the link up. A cable, a transceiver or a switch port is about to
    fail. The counter of an adapter has no clock: re-cabling and reboots of a switch count too, so by itself it is worth knowing only; a log with several losses is a fault.

Sources
    InfiniBand Architecture Specification, PortCounters (LinkDowned, 255 is its highest value); rules of public node-health projects (three losses).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped
from dsdoctor.checks.rdma._reading import no_ports
from dsdoctor.facts import LogEvent, PciDevice, RdmaPort, Section, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

LOST = "link-lost-carrier"
"""Id of the signature."""
COUNTER_FULL = 255


def port(count: int | None, name: str = "mlx5_1") -> tuple[RdmaPort, ...]:
    """A port that lost its link so often."""
    return (RdmaPort(adapter="mlx5_0", state="active", link_downed=0), RdmaPort(adapter=name, state="active", link_downed=count))


def log(times: int, *interfaces: str) -> tuple[LogEvent, ...]:
    """Lines about these interfaces, so many together."""
    return tuple(
        LogEvent(signature=LOST, text=f"{name}: Lost carrier", where="syslog:3", captures={"interface": name}, times=times)
        for name in interfaces
    )


CASES = (
    Case(title="three losses in a log", sections={"log_events": log(3, "ib6")}, status=Status.FAIL, severity=Severity.WARNING, says="ib6"),
    Case(title="two losses in a log", sections={"log_events": log(2, "ib6")}, status=Status.PASS),
    Case(title="two interfaces, each twice (a switch was rebooted)", sections={"log_events": log(4, "ib6", "ib7")}, status=Status.PASS),
    Case(
        title="a counter of unknown age",
        sections={"rdma_ports": port(3)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="mlx5_1",
    ),
    Case(title="a counter at its end", sections={"rdma_ports": port(255)}, status=Status.FAIL, says="255 times or more"),
    Case(title="twice since it was started", sections={"rdma_ports": port(2)}, status=Status.PASS),
    Case(title="never", sections={"rdma_ports": port(0)}, status=Status.PASS),
    Case(
        title="no counter",
        sections={"rdma_ports": (RdmaPort(adapter="mlx5_0", state="active"),)},
        status=Status.UNKNOWN,
        says="counter",
    ),
    Case(title="no adapter", sections={"rdma_ports": absent("no RDMA adapter")}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
    Case(title="/sys is not there", sections={"rdma_ports": unreadable("no /sys")}, status=Status.UNKNOWN, says="/sys"),
)


@check(
    "rdma.link-flapping",
    Severity.WARNING,
    explains=("smoke.collectives",),
    settle="sudo dmesg -T | grep -i 'link down'; perfquery -x | grep -i LinkDowned",
    cases=CASES,
)
def link_flapping(
    rdma_ports: Section[tuple[RdmaPort, ...]],
    log_events: Section[tuple[LogEvent, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Count losses by interface in a log, and look at the counters of the ports."""
    row = health_limits_matrix.limit("link-losses")
    lost = [event for event in log_events.value or () if event.signature == LOST]
    names = list(dict.fromkeys(event.captures.get("interface", "an interface") for event in lost))
    # Lines that say the same are one event that counts them; the count is that of all interfaces together.
    times = max((event.times for event in lost), default=0)
    if names and times >= row.amount * len(names):
        who = ", ".join(names)
        yield Finding(
            subject=who,
            severity=capped(row.severity, row.basis),
            summary=f"{who} lost {'its link' if len(names) == 1 else 'their links'} {times} times in this log.",
            cause=f"{row.text} Cable, transceiver or switch port are about to fail, or somebody works on them.",
            evidence=tuple(Evidence(where=event.where or "log_events", value=event.text) for event in lost[:4]),
            expected="a link that stays",
            remedies=remedies("general"),
            sources=row.basis.sources,
        )
    for port_ in rdma_ports.value or ():
        if port_.link_downed is not None and port_.link_downed >= row.amount:
            often = f"{port_.link_downed} times" + (" or more" if port_.link_downed == COUNTER_FULL else "")
            yield Finding(
                subject=port_.adapter,
                severity=Severity.INFO,
                summary=f"{port_.adapter} lost its link {often} since the adapter was started.",
                cause="The counter has no clock: re-cabling and reboots of a switch count too. Read it again after a day of work.",
                evidence=(Evidence(where=f"rdma_ports[{port_.adapter}].link_downed", value=str(port_.link_downed)),),
                expected="a counter that does not grow",
                remedies=remedies("general"),
                sources=row.basis.sources,
            )
    if lost:
        return
    if not rdma_ports.value:
        yield no_ports(rdma_ports, pci_devices)
    elif all(port_.link_downed is None for port_ in rdma_ports.value):
        yield Doubt(subject="RDMA ports", reason="no port shows its counter of lost links")
