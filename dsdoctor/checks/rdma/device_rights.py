"""This process may not open the RDMA devices.

What it looks at
    The device files /dev/infiniband/uverbs*, whether this process can open them, and the RDMA cards on the PCI bus.

Why it matters
    NCCL, NVSHMEM and DeepEP open these files. Without them, or without the right to, they fall back to TCP with a line in a log that nobody reads, or stop. In a container
    the files must be handed in (--device=/dev/infiniband), on a host the module ib_uverbs makes them, for everybody.

Sources
    rdma-core; NVIDIA NCCL user guide, networking troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.checks.pcie._reading import rdma_nics
from dsdoctor.facts import Container, DeviceNode, EnvironmentVariable, PciDevice, Section, State, absent, known
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

VERBS = "/dev/infiniband/uverbs"
SOURCE = "rdma-core: libibverbs — https://github.com/linux-rdma/rdma-core"
CARD = (PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3", driver="mlx5_core", interfaces=("mlx5_0",)),)
TWO_NODES = (EnvironmentVariable(name="SLURM_NNODES", value="2"),)
REFUSED = DeviceNode(path=f"{VERBS}0", openable=False, mode="crw-------", why="Permission denied")
OPEN = DeviceNode(path=f"{VERBS}0", openable=True, mode="crw-rw-rw-")

CASES = (
    Case(
        title="the file may not be opened",
        sections={"device_nodes": (REFUSED,), "pci_devices": CARD, "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Permission denied",
    ),
    Case(
        title="the same on what may be one node",
        sections={"device_nodes": (REFUSED,), "pci_devices": CARD},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="cards, and no file in the container",
        sections={"device_nodes": (), "pci_devices": CARD, "container": known(Container(runtime="docker")), "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="handed",
    ),
    Case(
        title="cards, and no file on the host",
        sections={"device_nodes": (), "pci_devices": CARD, "container": absent("a plain host"), "environment": TWO_NODES},
        status=Status.FAIL,
        says="ib_uverbs",
    ),
    Case(title="they open", sections={"device_nodes": (OPEN,), "pci_devices": CARD}, status=Status.PASS),
    Case(title="no RDMA card", sections={"device_nodes": (), "pci_devices": ()}, status=Status.NOT_APPLICABLE, says="no RDMA"),
    Case(
        title="opening gave no answer",
        sections={"device_nodes": (DeviceNode(path=f"{VERBS}0", openable=None, why="no answer within 2 s"),), "pci_devices": CARD},
        status=Status.UNKNOWN,
        says="no answer",
    ),
    Case(title="nobody looked", sections={"pci_devices": CARD}, status=Status.UNKNOWN, says="device files"),
)


@check(
    "rdma.device-rights",
    Severity.WARNING,
    explains=("deepep.requirements",),
    settle="ls -l /dev/infiniband; id",
    cases=CASES,
)
def device_rights(
    device_nodes: Section[tuple[DeviceNode, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Every verbs device should open for this process."""
    cards = rdma_nics(pci_devices.value or ())
    verbs = [node for node in device_nodes.value or () if node.path.startswith(VERBS)]
    if not verbs and not cards and pci_devices.value is not None:
        yield NotApplicable(reason="there is no RDMA card")
        return
    if device_nodes.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject="/dev/infiniband", reason=f"the device files are not known ({device_nodes.why or 'nobody looked'})")
        return
    nodes = several_nodes(values(environment.value))
    severity = Severity.WARNING if nodes else Severity.INFO
    refused = [node for node in verbs if node.openable is False]
    unanswered = [node for node in verbs if node.openable is None]
    if refused:
        yield Finding(
            subject=refused[0].path if len(refused) == 1 else "/dev/infiniband",
            severity=severity,
            summary=f"This process may not open {', '.join(node.path for node in refused[:3])} ({refused[0].why or 'refused'}).",
            cause="RDMA does not start; traffic between nodes takes TCP." + ("" if nodes else " For work on one node it does not matter."),
            evidence=(
                *(
                    Evidence(where=f"device_nodes[{node.path}]", value=f"{node.mode} {node.why}".strip() or "refused")
                    for node in refused[:6]
                ),
                *((nodes,) if nodes else ()),
            ),
            expected="crw-rw-rw-, and openable",
            remedies=remedies("container" if container.state is State.KNOWN else "host"),
            sources=(SOURCE,),
        )
    elif unanswered:
        yield Doubt(subject=unanswered[0].path, reason=f"whether it opens is not known ({unanswered[0].why or 'no answer'})")
    elif cards and not verbs and pci_devices.value is not None:
        inside = container.state is State.KNOWN
        yield Finding(
            subject="/dev/infiniband",
            severity=severity,
            summary=f"{len(cards)} RDMA card{'s are' if len(cards) > 1 else ' is'} on the PCI bus, and there is no device file to use {'them' if len(cards) > 1 else 'it'} by.",
            cause=(
                "The device files were not handed into the container."
                if inside
                else "The module ib_uverbs is not loaded, or no driver took the cards."
            )
            + ("" if nodes else " For work on one node it does not matter."),
            evidence=(
                Evidence(where="device_nodes", value=f"nothing that begins with {VERBS}"),
                Evidence(where="pci_devices", value=", ".join(f"{card.address} ({card.driver or 'no driver'})" for card in cards[:4])),
                *((nodes,) if nodes else ()),
            ),
            expected=f"{VERBS}0 and more, openable by the job",
            remedies=remedies("container" if inside else "host"),
            sources=(SOURCE,),
            explains=("rdma.link-down",),
        )
    elif pci_devices.value is None and not verbs:
        yield Doubt(subject="/dev/infiniband", reason="no RDMA device file is there, and whether there are RDMA cards is not known")
