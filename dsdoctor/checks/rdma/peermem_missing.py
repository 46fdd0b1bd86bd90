"""Network cards cannot reach the memory of the GPUs directly (GPUDirect RDMA).

What it looks at
    RDMA cards on the PCI bus, the modules nvidia_peermem and nv_peer_mem, the kind of the NVIDIA kernel module and the version of the kernel (DMA-BUF), and whether the job runs on several nodes.

Why it matters
    Without nvidia-peermem or DMA-BUF everything between nodes is copied through host memory: NCCL says "GPU Direct RDMA Disabled", and an all-reduce falls to a fraction of its speed. DeepEP and NVSHMEM
    between nodes do not start. One of the two ways is enough. A module that is loaded is not yet registered with the network driver (look at /sys/kernel/mm/memory_peers).
    On one node nothing of this matters.

Sources
    NVIDIA GPU Operator, GPUDirect RDMA; NCCL user guide; NCCL issues 1676 and 1939.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.checks.pcie._reading import rdma_nics
from dsdoctor.facts import EnvironmentVariable, KernelDriver, LoadedModules, PciDevice, Platform, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches
from dsdoctor.versions import LibraryVersion

PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
OPEN = "open"

CARD = (PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_0", "ib0")),)
WITHOUT = LoadedModules(names=("nvidia", "nvidia_uvm", "mlx5_core", "mlx5_ib"))
PROPRIETARY = KernelDriver(version="550.90.07", flavour="proprietary")
TWO_NODES = (EnvironmentVariable(name="SLURM_NNODES", value="2"),)

CASES = (
    Case(
        title="two nodes, a proprietary driver and no peermem",
        sections={"pci_devices": CARD, "loaded_modules": WITHOUT, "kernel_driver": PROPRIETARY, "environment": TWO_NODES},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="nvidia_peermem",
    ),
    Case(
        title="the same on what may be one node",
        sections={"pci_devices": CARD, "loaded_modules": WITHOUT, "kernel_driver": PROPRIETARY},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="on one node",
    ),
    Case(
        title="an open driver on a kernel that is too old",
        sections={
            "pci_devices": CARD,
            "loaded_modules": WITHOUT,
            "kernel_driver": KernelDriver(version="580.95.05", flavour="open"),
            "platform": Platform(kernel_release="5.11.0-46-generic"),
            "environment": TWO_NODES,
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="5.12",
    ),
    Case(
        title="an open driver on the first kernel with DMA-BUF",
        sections={
            "pci_devices": CARD,
            "loaded_modules": WITHOUT,
            "kernel_driver": KernelDriver(version="580.95.05", flavour="open"),
            "platform": Platform(kernel_release="5.12.0"),
            "environment": TWO_NODES,
        },
        status=Status.PASS,
    ),
    Case(
        title="peermem is loaded",
        sections={
            "pci_devices": CARD,
            "loaded_modules": LoadedModules(names=("nvidia", "nvidia_peermem")),
            "kernel_driver": PROPRIETARY,
            "environment": TWO_NODES,
        },
        status=Status.PASS,
    ),
    Case(
        title="no RDMA card",
        sections={
            "pci_devices": (PciDevice(address="0000:00:03.0", kind="nic", vendor_id="1af4", interfaces=("eth0",)),),
            "loaded_modules": WITHOUT,
            "kernel_driver": PROPRIETARY,
        },
        status=Status.NOT_APPLICABLE,
        says="there is no RDMA network card",
    ),
    Case(
        title="nothing says of which kind the driver is",
        sections={"pci_devices": CARD, "loaded_modules": WITHOUT, "environment": TWO_NODES},
        status=Status.UNKNOWN,
        says="kind",
    ),
    Case(
        title="the modules are not known",
        sections={"pci_devices": CARD, "kernel_driver": PROPRIETARY},
        status=Status.UNKNOWN,
        says="modules",
    ),
    Case(title="no PCI bus", sections={"pci_devices": absent("no PCI bus")}, status=Status.NOT_APPLICABLE),
)


@check(
    "rdma.peermem-missing",
    Severity.WARNING,
    explains=("deepep.requirements", "smoke.bandwidth"),
    settle="lsmod | grep nvidia_peermem; ls /sys/kernel/mm/memory_peers; modinfo -F license nvidia; uname -r",
    cases=CASES,
)
def peermem_missing(
    pci_devices: tuple[PciDevice, ...],
    loaded_modules: Section[LoadedModules],
    kernel_driver: Section[KernelDriver],
    platform: Section[Platform],
    environment: Section[tuple[EnvironmentVariable, ...]],
    driver_branches_matrix: DriverBranches,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Neither of the two ways to the memory of a GPU is open."""
    nics = rdma_nics(pci_devices)
    if not nics:
        yield NotApplicable(reason="there is no RDMA network card")
        return
    if kernel_driver.state is State.ABSENT:
        yield NotApplicable(reason=kernel_driver.why or "no driver is loaded")
        return
    if loaded_modules.value is None:
        yield Doubt(subject="GPUDirect RDMA", reason=f"the loaded modules are not known ({loaded_modules.why or 'nobody looked'})")
        return
    if any(name in PEER_MODULES for name in loaded_modules.value.names):
        return
    rule = driver_branches_matrix.rule("dma-buf")
    flavour = kernel_driver.value.flavour if kernel_driver.value else ""
    release = platform.value.kernel_release if platform.value else ""
    kernel, minimum = LibraryVersion.parse(release.partition("-")[0]), LibraryVersion.parse(rule.min_kernel if rule else "")
    if not flavour:
        yield Doubt(
            subject="GPUDirect RDMA",
            reason="no peer memory module is loaded, and of which kind the NVIDIA module is (open or proprietary) is not known",
        )
        return
    if flavour == OPEN and (kernel is None or minimum is None):
        yield Doubt(
            subject="GPUDirect RDMA", reason="no peer memory module is loaded, and the version of the kernel (for DMA-BUF) is not known"
        )
        return
    if flavour == OPEN and kernel is not None and minimum is not None and kernel >= minimum:
        return
    nodes = several_nodes(values(environment.value))
    yield Finding(
        subject="GPUDirect RDMA",
        severity=Severity.WARNING if nodes else Severity.INFO,
        summary="Network cards cannot reach the memory of the GPUs: nvidia_peermem is not loaded, and DMA-BUF is not possible here"
        + (f" (Linux {release} is older than {rule.min_kernel})." if flavour == OPEN and rule else " (proprietary kernel module)."),
        cause="Traffic between nodes is copied through host memory. " + ("" if nodes else "For work on one node it does not matter."),
        evidence=(
            Evidence(where="loaded_modules", value=f"without {' and '.join(PEER_MODULES)}"),
            Evidence(where="kernel_driver.flavour", value=flavour),
            Evidence(where="pci_devices", value=f"{len(nics)} RDMA cards: {', '.join(nic.address for nic in nics[:4])}"),
            *((nodes,) if nodes else ()),
        ),
        expected="nvidia_peermem loaded and registered, or the open kernel module on Linux 5.12 or newer",
        remedies=remedies("peermem") or remedies("dma-buf"),
        sources=rule.basis.sources if rule else (),
    )
