"""Fabric Manager does not run on a node with NVSwitches.

What it looks at
    NVSwitches on the PCI bus, GPUs that wait for a fabric, the service nvidia-fabricmanager, and whether CUDA answered 802.

Why it matters
    On 8-GPU boards of A100, H100, H200 and B200 the NVSwitches are set up by Fabric Manager. Without it CUDA says "Error 802: system not yet initialized", while nvidia-smi
    looks healthy. The package does not come with the driver, and does not start by itself everywhere. PCIe cards, four-GPU boards and single GPUs of a virtual machine need none;
    in a virtual machine that got no switches, and on GB200 compute trays, it runs elsewhere: there the fabric state counts (fabric.not-initialized).

Sources
    NVIDIA Fabric Manager User Guide; GPU Operator issue 610.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.fabric._reading import (
    COMPLETED,
    FABRIC_MANAGER,
    fabric_evidence,
    in_a_fabric,
    is_compute_tray,
    no_fabric,
    service,
    switch_evidence,
    switches_here,
)
from dsdoctor.facts import (
    Container,
    FabricState,
    Gpu,
    PciDevice,
    Section,
    Service,
    Settling,
    State,
    TorchRuntime,
    Virtualization,
    absent,
    not_asked,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches, GpuLimits

NOT_INITIALIZED = 802
"""cudaErrorSystemNotReady."""

SWITCHES = tuple(PciDevice(address=f"0000:0{number}:00.0", kind="nvswitch", vendor_id="10de", device_id="22a3") for number in range(3, 7))


def h200s(state: str, number: int = 8, name: str = "NVIDIA H200") -> tuple[Gpu, ...]:
    """That many GPUs in this fabric state."""
    return tuple(Gpu(index=index, name=name, compute_capability="9.0", fabric=FabricState(state=state)) for index in range(number))


def manager(state: str) -> tuple[Service, ...]:
    """The service in this state."""
    return (Service(name=FABRIC_MANAGER, state=state, version="580.159.04"), Service(name="nvidia-imex", state="not-installed"))


CASES = (
    Case(
        title="not installed on an NVSwitch node",
        sections={"gpus": h200s("in-progress"), "pci_devices": SWITCHES, "services": manager("not-installed")},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="not installed",
    ),
    Case(
        title="an A100 board, whose GPUs report no fabric state",
        sections={"gpus": h200s("not-supported", name="NVIDIA A100-SXM4-80GB"), "pci_devices": SWITCHES, "services": manager("failed")},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="failed",
    ),
    Case(
        title="it stopped after the fabric was set up",
        sections={"gpus": h200s("completed"), "pci_devices": SWITCHES, "services": manager("inactive")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="not running",
    ),
    Case(
        title="a board whose switches do not show on the bus",
        sections={
            "gpus": h200s("not-started", name="NVIDIA B200"),
            "pci_devices": (),
            "services": manager("inactive"),
            "virtualization": absent("bare metal"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="not running",
    ),
    Case(
        title="error 802, and the unit could not be found",
        sections={
            "services": manager("not-installed"),
            "torch_runtime": TorchRuntime(imported=True, cuda_error_code=802, cuda_error="Error 802: system not yet initialized"),
        },
        status=Status.FAIL,
        says="802",
    ),
    Case(
        title="it is starting",
        sections={"gpus": h200s("in-progress"), "pci_devices": SWITCHES, "services": manager("activating")},
        status=Status.UNKNOWN,
        says="it is starting",
    ),
    Case(
        title="it is starting, and nobody waits any more",
        sections={
            "gpus": h200s("in-progress"),
            "pci_devices": SWITCHES,
            "services": manager("activating"),
            "settling": Settling(waited_s=60.0, unsettled=("nvidia-fabricmanager",)),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="after 60 s",
    ),
    Case(
        title="it runs",
        sections={"gpus": h200s("completed"), "pci_devices": SWITCHES, "services": manager("active")},
        status=Status.PASS,
    ),
    Case(
        title="one H200 of a virtual machine needs none",
        sections={"gpus": h200s("not-supported", 1), "pci_devices": (), "services": manager("not-installed")},
        status=Status.NOT_APPLICABLE,
        says="no NVSwitch, and no GPU that asks for a fabric",
    ),
    Case(
        title="a guest that got GPUs without switches",
        sections={
            "gpus": h200s("completed", 4),
            "pci_devices": (),
            "services": manager("not-installed"),
            "virtualization": Virtualization(hypervisor="kvm"),
        },
        status=Status.NOT_APPLICABLE,
        says="no NVSwitch here: the fabric is run outside this machine",
    ),
    Case(
        title="a board whose switches do not show on the bus, and whose GPUs are registered",
        sections={
            "gpus": h200s("completed", name="NVIDIA B200"),
            "pci_devices": (),
            "services": manager("active"),
            "virtualization": absent("bare metal"),
        },
        status=Status.PASS,
    ),
    Case(
        title="a GB200 compute tray",
        sections={"gpus": h200s("in-progress", 4, "NVIDIA GB200"), "pci_devices": (), "services": manager("inactive")},
        status=Status.NOT_APPLICABLE,
        says="a compute tray, whose fabric is run by the switch trays",
    ),
    Case(
        title="in a container the services of the host cannot be seen",
        sections={"gpus": h200s("in-progress"), "pci_devices": SWITCHES, "services": not_asked("in a container")},
        status=Status.UNKNOWN,
        says="in a container",
    ),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="NVSwitch"),
)


@check(
    "fabric.manager-not-running",
    Severity.ERROR,
    explains=("fabric.not-initialized", "gpu.nvlink-down", "torch.cuda-unavailable", "smoke.*"),
    settle="systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric",
    cases=CASES,
)
def manager_not_running(
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    services: Section[tuple[Service, ...]],
    torch_runtime: Section[TorchRuntime],
    virtualization: Section[Virtualization],
    container: Section[Container],
    driver_branches_matrix: DriverBranches,
    gpu_limits_matrix: GpuLimits,
    settling: Section[Settling],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Ask for the service only where something shows that this machine runs a fabric."""
    here, switches = gpus.value or (), switches_here(pci_devices)
    if is_compute_tray(here, gpu_limits_matrix):
        yield NotApplicable(reason="a compute tray, whose fabric is run by the switch trays")
        return
    members = in_a_fabric(here)
    waiting = [gpu for gpu in members if gpu.fabric is not None and gpu.fabric.state != COMPLETED]
    runtime = torch_runtime.value
    says_802 = runtime is not None and runtime.cuda_error_code == NOT_INITIALIZED
    runs_it_here = bool(switches) or (virtualization.state is not State.KNOWN and (says_802 or bool(waiting)))
    if not runs_it_here:
        if gpus.value is None and pci_devices.value is None:
            yield Doubt(
                subject="Fabric Manager", reason="whether this node has an NVSwitch is not known: neither GPUs nor PCI bus were read"
            )
        elif not members or virtualization.state is State.KNOWN:
            yield no_fabric(members, gpus)
        return
    found = service(services, FABRIC_MANAGER)
    settled = bool(members) and not waiting and not says_802
    if found is None or found.state == "unknown":
        if not settled:
            why = services.why or "its state cannot be seen from here"
            yield Doubt(subject="Fabric Manager", reason=f"this node needs it, and whether it runs is not known ({why})")
        return
    if found.state == "active":
        return
    waited_s = settling.value.waited_s if settling.value else 0.0
    if found.state == "activating" and not waited_s:
        if not settled:
            yield Doubt(subject="Fabric Manager", reason="it is starting", settle="dsdoctor check --settle 120 --only fabric")
        return
    rule = driver_branches_matrix.rule("fabric-manager-required")
    missing = found.state == "not-installed"
    evidence = (
        Evidence(where=f"services: {FABRIC_MANAGER}", value=found.state),
        *switch_evidence(switches),
        *fabric_evidence(waiting or members)[:2],
        *((Evidence(where="torch_runtime.cuda_error", value=runtime.cuda_error or "802"),) if says_802 and runtime else ()),
    )
    states = {
        "not-installed": "not installed",
        "failed": "has failed and is not running",
        "activating": f"still starting after {waited_s:.0f} s of waiting",
    }
    state = states.get(found.state, "installed, but not running")
    yield Finding(
        subject="Fabric Manager",
        severity=Severity.WARNING if settled or rule is None or not rule.basis.may_carry_error else Severity.ERROR,
        summary=f"This node has an NVSwitch fabric, and Fabric Manager ({FABRIC_MANAGER}) is {state}."
        if found.state != "failed"
        else f"This node has an NVSwitch fabric, and Fabric Manager ({FABRIC_MANAGER}) {state}.",
        cause="The GPUs are registered, so programs run now; after the next reset or reboot they will not."
        if settled
        else "Nobody sets up the switches, so CUDA answers error 802 (system not yet initialized) although nvidia-smi looks healthy.",
        evidence=evidence,
        expected=f"{FABRIC_MANAGER} active, of exactly the version of the driver",
        remedies=remedies("not-installed" if missing else "stopped" if found.state == "failed" or settled else "not-started"),
        sources=rule.basis.sources if rule else (),
    )
