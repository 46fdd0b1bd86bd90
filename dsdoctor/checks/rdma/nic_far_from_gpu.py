"""A GPU has no network card near it.

What it looks at
    For each GPU on bare metal, where its nearest RDMA card hangs: under the same PCIe switch or root port, on the same NUMA node, or under the other processor; also when NCCL_IB_HCA leaves only
    some of the cards.

Why it matters
    Traffic of that GPU to other nodes crosses the link between the processors: it is slower, disturbs the others, and NCCL does not use GPUDirect RDMA over that distance. With several GPUs the slowest rail sets the pace. On one node nothing of this matters, and
    in a virtual machine the PCI tree is not that of the hardware.

Sources
    NVIDIA NCCL user guide, environment variables (NCCL_IB_HCA, NCCL_NET_GDR_LEVEL).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.checks.pcie._reading import NO_GPU_ON_THE_BUS, rdma_nics
from dsdoctor.facts import EnvironmentVariable, PciDevice, Section, State, Virtualization, absent, known
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status, counted
from dsdoctor.remedies import Remedies

SOURCE = "NVIDIA NCCL user guide: environment variables — https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
CHOICE = "NCCL_IB_HCA"
BARE_METAL = absent("no hypervisor")
TWO_NODES = (EnvironmentVariable(name="SLURM_NNODES", value="2"),)


def node(*places: tuple[str, int | None]) -> tuple[PciDevice, ...]:
    """GPUs and network cards by NUMA node, each under a root of its own."""
    return tuple(
        PciDevice(
            address=f"0000:{number + 1}1:00.0",
            kind=kind,
            vendor_id="10de" if kind == "gpu" else "15b3",
            root=f"pci0000:{number + 1}0",
            numa_node=numa,
            interfaces=(f"mlx5_{number}",) if kind == "nic" else (),
        )
        for number, (kind, numa) in enumerate(places)
    )


CASES = (
    Case(
        title="the card hangs under the other processor",
        sections={"pci_devices": node(("gpu", 0), ("gpu", 1), ("nic", 0)), "virtualization": BARE_METAL, "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0000:21:00.0",
    ),
    Case(
        title="the same on what may be one node",
        sections={"pci_devices": node(("gpu", 0), ("gpu", 1), ("nic", 0)), "virtualization": BARE_METAL},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="a variable leaves the far one only",
        sections={
            "pci_devices": node(("gpu", 0), ("nic", 0), ("nic", 1)),
            "virtualization": BARE_METAL,
            "environment": (*TWO_NODES, EnvironmentVariable(name=CHOICE, value="=mlx5_2:1")),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says=CHOICE,
    ),
    Case(
        title="a card on each side",
        sections={"pci_devices": node(("gpu", 0), ("gpu", 1), ("nic", 0), ("nic", 1)), "virtualization": BARE_METAL},
        status=Status.PASS,
    ),
    Case(
        title="the NUMA nodes are not known",
        sections={"pci_devices": node(("gpu", None), ("nic", None)), "virtualization": BARE_METAL},
        status=Status.UNKNOWN,
        says="NUMA",
    ),
    Case(
        title="in a guest the tree is not that of the hardware",
        sections={"pci_devices": node(("gpu", 0), ("nic", 1)), "virtualization": known(Virtualization(hypervisor="kvm"))},
        status=Status.NOT_APPLICABLE,
        says="virtual",
    ),
    Case(title="no RDMA card", sections={"pci_devices": node(("gpu", 0))}, status=Status.NOT_APPLICABLE, says="no RDMA"),
    Case(title="no PCI bus", sections={"pci_devices": absent("no PCI bus")}, status=Status.NOT_APPLICABLE),
)


@check("rdma.nic-far-from-gpu", Severity.WARNING, explains=("smoke.collectives",), settle="nvidia-smi topo -m", cases=CASES)
def nic_far_from_gpu(
    pci_devices: tuple[PciDevice, ...],
    virtualization: Section[Virtualization],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look for GPUs whose every RDMA card is on another NUMA node."""
    gpus, cards = [device for device in pci_devices if device.kind == "gpu"], rdma_nics(pci_devices)
    if not gpus:
        yield NO_GPU_ON_THE_BUS
        return
    if not cards:
        yield NotApplicable(reason="there is no RDMA network card")
        return
    if virtualization.state is State.KNOWN:
        yield NotApplicable(reason="a virtual machine: its PCI tree is virtual")
        return
    variables = values(environment.value)
    chosen = _chosen(cards, variables.get(CHOICE, ""))
    far: list[PciDevice] = []
    unknown: list[PciDevice] = []
    for gpu in gpus:
        near = [_is_near(gpu, card) for card in chosen]
        if True in near:
            continue
        (unknown if None in near else far).append(gpu)
    if unknown:
        yield Doubt(subject=f"{counted(len(unknown), 'GPU')}", reason="which NUMA node they or the network cards hang on is not known")
    if not far:
        return
    nodes = several_nodes(variables)
    yield Finding(
        subject=", ".join(gpu.address for gpu in far),
        severity=Severity.WARNING if nodes else Severity.INFO,
        summary=f"{counted(len(far), 'GPU')} of {len(gpus)} {'has' if len(far) == 1 else 'have'} no RDMA card near: {', '.join(gpu.address for gpu in far[:8])}"
        + (f", with what {CHOICE} leaves." if len(chosen) < len(cards) else "."),
        cause="Their traffic to other nodes crosses the link between the processors, without GPUDirect RDMA."
        + ("" if nodes else " For work on one node it does not matter."),
        evidence=(
            *(Evidence(where=f"pci_devices[{gpu.address}]", value=f"NUMA node {gpu.numa_node}") for gpu in far[:4]),
            *(Evidence(where=f"pci_devices[{card.address}]", value=f"{_name(card)}, NUMA node {card.numa_node}") for card in chosen[:6]),
            *((Evidence(where=f"environment.{CHOICE}", value=variables[CHOICE]),) if variables.get(CHOICE) else ()),
            *((nodes,) if nodes else ()),
        ),
        expected="an RDMA card on the NUMA node of each GPU",
        remedies=remedies("general"),
        sources=(SOURCE,),
    )


def _chosen(cards: Sequence[PciDevice], choice: str) -> tuple[PciDevice, ...]:
    """The cards that a list of names leaves; all where it is empty, excludes, or names none of them."""
    if not choice or choice.startswith("^"):
        return tuple(cards)
    exact = choice.startswith("=")
    names = [name.partition(":")[0].strip() for name in choice.lstrip("=").split(",")]
    left = [
        card
        for card in cards
        if any(own == name or (not exact and own.startswith(name)) for own in card.interfaces for name in names if name)
    ]
    return tuple(left or cards)


def _is_near(gpu: PciDevice, card: PciDevice) -> bool | None:
    """Whether they share a bridge, a root or a NUMA node; None where that is not known."""
    if set(gpu.parents) & set(card.parents) or (gpu.root and gpu.root == card.root):
        return True
    if gpu.numa_node is None or card.numa_node is None:
        return None
    return gpu.numa_node == card.numa_node


def _name(card: PciDevice) -> str:
    return ", ".join(card.interfaces[:2]) or card.address
