"""An IOMMU translates what the GPUs send to each other and to network cards.

What it looks at
    Whether an IOMMU is in use and how (translated, or passed through), on bare metal, and whether there are devices that talk to each other over PCIe.

Why it matters
    With translation every peer-to-peer transfer goes through the root complex to be translated: GPUDirect P2P and RDMA become slow or hang, while copies to host memory look fine. The host
    itself needs no translation (iommu=pt lets its own DMA pass); a host that hands devices to virtual machines needs the IOMMU, and inside a guest there is nothing to change.

Sources
    NVIDIA NCCL user guide, GPU troubleshooting (IO virtualization, PCI access control); Linux kernel parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.pcie._reading import NO_GPU_ON_THE_BUS, VIRTUAL_MACHINE, gpus_use_nvlink, nobody_to_talk_to, rdma_nics
from dsdoctor.facts import Gpu, Iommu, NvLink, PciDevice, Platform, Section, State, Virtualization, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = (
    "NVIDIA NCCL user guide: GPU troubleshooting — "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html"
)
X86_64 = "x86_64"
TWO_GPUS = tuple(PciDevice(address=f"0000:{number}1:00.0", kind="gpu", vendor_id="10de", driver="nvidia") for number in (4, 6))
NIC = PciDevice(address="0000:91:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_0",))
NVLINKED = tuple(Gpu(index=index, nvlinks=(NvLink(index=0, active=True),)) for index in range(2))
TRANSLATED = Iommu(enabled=True, mode="translated", evidence="GPU groups of type DMA-FQ")
BARE_METAL = absent("no hypervisor")

CASES = (
    Case(
        title="two cards on a host that translates",
        sections={"iommu": TRANSLATED, "pci_devices": TWO_GPUS, "virtualization": BARE_METAL},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="translates",
    ),
    Case(
        title="NVLink between the GPUs, and a network card",
        sections={"iommu": TRANSLATED, "pci_devices": (*TWO_GPUS, NIC), "virtualization": BARE_METAL, "gpus": NVLINKED},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="GPUDirect RDMA",
    ),
    Case(
        title="NVLink between the GPUs, no RDMA card",
        sections={"iommu": TRANSLATED, "pci_devices": TWO_GPUS, "virtualization": BARE_METAL, "gpus": NVLINKED},
        status=Status.NOT_APPLICABLE,
        says="the GPUs talk by NVLink, and there is no RDMA card",
    ),
    Case(
        title="passed through",
        sections={"iommu": Iommu(enabled=True, mode="passthrough"), "pci_devices": TWO_GPUS, "virtualization": BARE_METAL},
        status=Status.PASS,
    ),
    Case(title="no IOMMU in use", sections={"iommu": Iommu(enabled=False), "pci_devices": TWO_GPUS}, status=Status.PASS),
    Case(
        title="one GPU",
        sections={"iommu": TRANSLATED, "pci_devices": TWO_GPUS[:1], "virtualization": BARE_METAL},
        status=Status.NOT_APPLICABLE,
        says="one GPU and no RDMA card: nobody to talk to over PCIe",
    ),
    Case(
        title="in a guest",
        sections={"iommu": TRANSLATED, "pci_devices": TWO_GPUS, "virtualization": Virtualization(hypervisor="kvm")},
        status=Status.NOT_APPLICABLE,
        says="a virtual machine: bridges and IOMMU are the matter of its host",
    ),
    Case(
        title="on an ARM server nothing here judges it",
        sections={
            "iommu": TRANSLATED,
            "pci_devices": TWO_GPUS,
            "virtualization": BARE_METAL,
            "platform": Platform(architecture="aarch64"),
        },
        status=Status.UNKNOWN,
        says="aarch64",
    ),
    Case(
        title="in use, and nothing says how",
        sections={"iommu": Iommu(enabled=True), "pci_devices": TWO_GPUS, "virtualization": BARE_METAL},
        status=Status.UNKNOWN,
        says="how",
    ),
    Case(title="cannot be read", sections={"iommu": unreadable("neither folder is there")}, status=Status.UNKNOWN, says="folder"),
)


@check(
    "pcie.iommu-translation",
    Severity.WARNING,
    explains=("pcie.p2p-broken", "smoke.bandwidth", "smoke.collectives"),
    settle="cat /sys/kernel/iommu_groups/*/type | sort | uniq -c; cat /proc/cmdline",
    cases=CASES,
)
def iommu_translation(
    iommu: Iommu,
    pci_devices: Section[tuple[PciDevice, ...]],
    gpus: Section[tuple[Gpu, ...]],
    virtualization: Section[Virtualization],
    platform: Section[Platform],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Translation harms where devices talk to each other over PCIe on bare metal."""
    cards = [device for device in pci_devices.value or () if device.kind == "gpu"]
    if pci_devices.value is not None and not cards:
        yield NO_GPU_ON_THE_BUS
        return
    if virtualization.state is State.KNOWN:
        yield VIRTUAL_MACHINE
        return
    if not iommu.enabled or iommu.mode == "passthrough":
        return
    if pci_devices.value is None:
        yield Doubt(subject="IOMMU", reason="it is in use, and which devices talk to each other is not known (no PCI bus)")
        return
    nics = rdma_nics(pci_devices.value)
    only_to_nics = gpus_use_nvlink(gpus.value or ())
    if aside := nobody_to_talk_to(cards, nics, only_to_nics):
        yield aside
        return
    architecture = platform.value.architecture if platform.value else ""
    if architecture not in ("", X86_64):
        yield Doubt(
            subject="IOMMU", reason=f"it is in use on {architecture}, where this knowledge cannot say whether translation slows transfers"
        )
        return
    if not iommu.mode:
        yield Doubt(
            subject="IOMMU", reason=f"it is in use, and how (translated or passed through) is not known ({iommu.evidence or 'no evidence'})"
        )
        return
    who = "GPU and network card (GPUDirect RDMA)" if only_to_nics else "GPUs" + (" and network cards (GPUDirect RDMA)" if nics else "")
    yield Finding(
        subject="IOMMU",
        summary=f"The IOMMU translates the DMA of this host, also that between {who}.",
        cause="Peer-to-peer transfers go up to the root complex to be translated, which makes them slow or lets them hang.",
        evidence=(
            Evidence(where="iommu", value=f"{iommu.mode}: {iommu.evidence}" if iommu.evidence else iommu.mode),
            Evidence(where="pci_devices", value=f"{len(cards)} GPUs, {len(nics)} RDMA cards"),
        ),
        expected="passed through (iommu=pt) or off, unless this host hands devices to virtual machines",
        remedies=(remedies("passthrough")[:2] + remedies("off")[:1]) or remedies(),
        sources=(SOURCE,),
    )
