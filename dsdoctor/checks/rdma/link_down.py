"""An RDMA adapter has no link.

What it looks at
    The RDMA adapters (mlx5_0, bnxt_re0 …) and whether one of their ports is active, the network cards on the PCI bus, and whether the job runs on several nodes. In pasted logs: engines that find no RDMA device.

Why it matters
    Between nodes NCCL then takes TCP, or fewer rails than the other nodes, and the slowest node sets the pace of all. InfiniBand that stays in state INIT waits for a subnet manager. A second port without a cable is
    usual, and on one node nothing of this matters. In a container, /dev/infiniband must be handed in; without it no adapter shows, however well the link is.

Sources
    NVIDIA NCCL user guide, networking troubleshooting; rdma-core.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.checks.pcie._reading import rdma_nics
from dsdoctor.facts import Container, EnvironmentVariable, LogEvent, NetworkInterface, PciDevice, Section, State, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

ADAPTER = "rdma"
"""Kind of an interface that is an RDMA adapter."""
SOURCE = (
    "NVIDIA NCCL user guide: networking troubleshooting — "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html"
)

CARD = (PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3"),)
TWO_NODES = (EnvironmentVariable(name="SLURM_NNODES", value="2"),)


def adapters(*up: bool | None) -> tuple[NetworkInterface, ...]:
    """An Ethernet interface, and RDMA adapters in these states."""
    ethernet = NetworkInterface(name="eth0", kind="ethernet", up=True)
    return (ethernet, *(NetworkInterface(name=f"mlx5_{number}", kind=ADAPTER, up=state) for number, state in enumerate(up)))


CASES = (
    Case(
        title="one rail of eight is down, and the job uses two nodes",
        sections={"network_interfaces": adapters(True, True, True, False, True, True, True, True), "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="mlx5_3",
    ),
    Case(
        title="all are down",
        sections={"network_interfaces": adapters(False, False), "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="TCP",
    ),
    Case(
        title="a port without a cable, and what may be one node",
        sections={"network_interfaces": adapters(True, False)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="without a cable",
    ),
    Case(
        title="a container that was not given /dev/infiniband",
        sections={
            "network_interfaces": adapters(),
            "pci_devices": CARD,
            "container": Container(runtime="docker"),
            "environment": TWO_NODES,
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="container",
    ),
    Case(
        title="a log in which an engine finds none",
        sections={
            "log_events": (LogEvent(signature="no-rdma-device", text="No RDMA devices found, falling back to TCP", where="prefill.log:7"),)
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="No RDMA devices found",
    ),
    Case(title="every adapter has a link", sections={"network_interfaces": adapters(True, True)}, status=Status.PASS),
    Case(
        title="an adapter whose state was not read",
        sections={"network_interfaces": adapters(True, None)},
        status=Status.UNKNOWN,
        says="mlx5_1",
    ),
    Case(title="/sys is not there", sections={"network_interfaces": unreadable("no /sys")}, status=Status.UNKNOWN, says="/sys"),
    Case(title="no RDMA adapter", sections={"network_interfaces": adapters()}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
)


@check(
    "rdma.link-down",
    Severity.WARNING,
    explains=("deepep.requirements",),
    settle="ibv_devinfo | grep -E 'hca_id|state'; ls /dev/infiniband",
    cases=CASES,
)
def link_down(
    network_interfaces: Section[tuple[NetworkInterface, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look for adapters without an active port, and for a container that sees none."""
    nodes = several_nodes(values(environment.value))
    cards = rdma_nics(pci_devices.value or ())
    if network_interfaces.value is None:
        if pci_devices.value is not None and not cards:
            yield NotApplicable(reason="there is no RDMA adapter")
        else:
            yield Doubt(subject="RDMA adapters", reason=f"the adapters are not known ({network_interfaces.why or 'not asked'})")
        return
    found = [interface for interface in network_interfaces.value if interface.kind == ADAPTER]
    if not found and cards and nodes and container.state is State.KNOWN:
        yield Finding(
            subject="RDMA adapters",
            summary=f"{len(cards)} RDMA card{'s are' if len(cards) > 1 else ' is'} on the PCI bus, and the container sees no adapter.",
            cause="The job runs on several nodes; without /dev/infiniband in the container its traffic takes TCP.",
            evidence=(nodes, *(Evidence(where=f"pci_devices[{card.address}]", value="no adapter") for card in cards[:8])),
            expected="the adapters of the host in the container",
            remedies=remedies("container") or remedies(),
            sources=(SOURCE,),
        )
        return
    if not found:
        yield NotApplicable(reason="there is no RDMA adapter")
        return
    for adapter in found:
        if adapter.up is None:
            yield Doubt(subject=adapter.name, reason="the state of its ports was not read")
    down = [adapter for adapter in found if adapter.up is False]
    if not down:
        return
    names = ", ".join(adapter.name for adapter in down)
    everywhere = len(down) == len(found)
    yield Finding(
        subject=names,
        severity=Severity.WARNING if nodes else Severity.INFO,
        summary=f"No RDMA adapter has a link ({names})."
        if everywhere
        else f"{len(down)} of {len(found)} RDMA adapters have no link: {names}.",
        cause=("Traffic between nodes takes TCP." if everywhere else "Traffic between nodes has fewer rails than the cards could give.")
        + (" The job runs on several nodes." if nodes else " A port without a cable is usual, and on one node it does not matter."),
        evidence=(
            *(Evidence(where=f"network_interfaces[{adapter.name}].up", value="no active port") for adapter in down[:8]),
            *((nodes,) if nodes else ()),
        ),
        expected="an active port on each adapter that the job uses",
        remedies=remedies("general") or remedies(),
        sources=(SOURCE,),
    )
