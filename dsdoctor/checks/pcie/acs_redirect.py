"""PCIe bridges send traffic between devices the long way round (ACS redirection).

What it looks at
    The access control services (ACS) of the bridges above GPUs and RDMA cards, on bare metal: request or completion redirect switched on.

Why it matters
    With redirection on, what one device sends to another goes up to the root complex instead of straight through the switch. Peer-to-peer traffic between GPUs without NVLink, and
    between GPU and network card (GPUDirect RDMA), becomes slow, hangs, or delivers wrong data. In a virtual machine nothing can and should be changed: ACS is what keeps
    guests apart. GPUs that talk by NVLink are not touched, their way to the network card is. The bits can be read by root only.

Sources
    NVIDIA NCCL user guide, GPU troubleshooting; NCCL issue 2079; PCI Express Base Specification, ACS.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.pcie._reading import NO_BRIDGE, VIRTUAL_MACHINE, by_address, gpus_use_nvlink, nobody_to_talk_to, rdma_nics
from dsdoctor.facts import Gpu, NvLink, PciDevice, Section, State, Virtualization, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status, counted
from dsdoctor.remedies import Remedies

SOURCE = (
    "NVIDIA NCCL user guide: GPU troubleshooting — "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html"
)
BARE_METAL = absent("no hypervisor")
NVLINKED = tuple(Gpu(index=index, name="NVIDIA H200", nvlinks=(NvLink(index=0, active=True),)) for index in range(2))


def tree(*redirects: bool | None, nic: bool = False) -> tuple[PciDevice, ...]:
    """GPUs, each behind a bridge of its own with this answer, and perhaps a ConnectX card behind a bridge without redirection."""
    devices = []
    for number, redirect in enumerate(redirects):
        gpu, port = f"0000:{number + 1}1:00.0", f"0000:00:0{number + 1}.1"
        devices += [
            PciDevice(address=gpu, kind="gpu", vendor_id="10de", driver="nvidia", parents=(port,)),
            PciDevice(address=port, kind="bridge", vendor_id="1022", acs_redirect=redirect),
        ]
    if nic:
        devices += [
            PciDevice(address="0000:91:00.0", kind="nic", vendor_id="15b3", parents=("0000:00:08.1",), interfaces=("mlx5_0", "ib0")),
            PciDevice(address="0000:00:08.1", kind="bridge", vendor_id="1022", acs_redirect=False),
        ]
    return tuple(devices)


CASES = (
    Case(
        title="two cards behind root ports that redirect",
        sections={"pci_devices": tree(True, True), "virtualization": BARE_METAL},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0000:00:01.1",
    ),
    Case(
        title="NVLink between the GPUs, and a network card",
        sections={"pci_devices": tree(True, True, nic=True), "virtualization": BARE_METAL, "gpus": NVLINKED},
        status=Status.FAIL,
        says="GPUDirect RDMA",
    ),
    Case(title="no redirection", sections={"pci_devices": tree(False, False), "virtualization": BARE_METAL}, status=Status.PASS),
    Case(
        title="one GPU and nobody to talk to",
        sections={"pci_devices": tree(True), "virtualization": BARE_METAL},
        status=Status.NOT_APPLICABLE,
        says="one GPU and no RDMA card: nobody to talk to over PCIe",
    ),
    Case(
        title="NVLink between the GPUs, no RDMA card",
        sections={"pci_devices": tree(True, True), "virtualization": BARE_METAL, "gpus": NVLINKED},
        status=Status.NOT_APPLICABLE,
        says="the GPUs talk by NVLink, and there is no RDMA card",
    ),
    Case(
        title="in a virtual machine there is nothing to change",
        sections={"pci_devices": tree(True, True), "virtualization": Virtualization(hypervisor="kvm")},
        status=Status.NOT_APPLICABLE,
        says="a virtual machine: bridges and IOMMU are the matter of its host",
    ),
    Case(
        title="a virtual machine without bridges",
        sections={"pci_devices": tuple(device for device in tree(None, None) if device.kind == "gpu")},
        status=Status.NOT_APPLICABLE,
        says="no bridge shows above the GPUs",
    ),
    Case(
        title="only root can read it",
        sections={"pci_devices": tree(None, None), "virtualization": BARE_METAL},
        status=Status.UNKNOWN,
        says="root",
    ),
    Case(title="no PCI bus to see", sections={"pci_devices": unreadable("/sys is not there")}, status=Status.UNKNOWN, says="/sys"),
)


@check(
    "pcie.acs-redirect",
    Severity.WARNING,
    explains=("pcie.p2p-broken", "smoke.bandwidth", "smoke.collectives"),
    settle="sudo lspci -vvv | grep -E '^[0-9a-f].*bridge|ACSCtl'",
    cases=CASES,
)
def acs_redirect(
    pci_devices: tuple[PciDevice, ...], gpus: Section[tuple[Gpu, ...]], virtualization: Section[Virtualization], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find redirecting bridges above devices that talk to each other over PCIe."""
    cards = [device for device in pci_devices if device.kind == "gpu"]
    if cards and virtualization.state is State.KNOWN:
        yield VIRTUAL_MACHINE
        return
    nics = rdma_nics(pci_devices)
    only_to_nics = gpus_use_nvlink(gpus.value or ())
    if aside := nobody_to_talk_to(cards, nics, only_to_nics):
        yield aside
        return
    devices = by_address(pci_devices)
    bridges = {parent for device in (*cards, *nics) for parent in device.parents if parent in devices}
    if not bridges:
        yield NO_BRIDGE
        return
    redirecting = sorted(address for address in bridges if devices[address].acs_redirect)
    unread = [address for address in bridges if devices[address].acs_redirect is None]
    if unread and not redirecting:
        yield Doubt(
            subject=f"{counted(len(unread), 'PCI bridge')}", reason="whether they redirect can be read by root only (configuration space)"
        )
    if not redirecting:
        return
    below = [device for device in (*cards, *nics) if set(device.parents) & set(redirecting)]
    who = "GPU and network card (GPUDirect RDMA)" if only_to_nics else "GPUs" + (" and network cards (GPUDirect RDMA)" if nics else "")
    yield Finding(
        subject=", ".join(redirecting[:4]) + (f" and {len(redirecting) - 4} more" if len(redirecting) > 4 else ""),
        summary=f"ACS redirection is on in {counted(len(redirecting), 'PCI bridge')} above {counted(len(below), 'device')}: "
        f"{', '.join(redirecting[:4])}{' …' if len(redirecting) > 4 else ''}.",
        cause=f"Peer-to-peer traffic between {who} is sent up to the root complex: it is slow, hangs, or is not possible. "
        "The kernel or the firmware switches it on together with the IOMMU.",
        evidence=tuple(
            Evidence(where=f"pci_devices: {address}", value="ACSCtl: ReqRedir+ or CmpltRedir+, above " + _below(address, below))
            for address in redirecting[:6]
        ),
        expected="ReqRedir- CmpltRedir- on every bridge between the devices",
        remedies=remedies("general", bridges=",".join(redirecting)),
        sources=(SOURCE,),
    )


def _below(address: str, devices: list[PciDevice]) -> str:
    found = [f"{device.kind} {device.address}" for device in devices if address in device.parents]
    return ", ".join(found[:4]) or "no device"
