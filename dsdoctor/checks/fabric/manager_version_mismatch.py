"""Fabric Manager and the driver have different versions.

What it looks at
    The version that nv-fabricmanager says of itself, and the version of the loaded driver.

Why it matters
    Fabric Manager works with exactly its own driver release. With any other it refuses to start, and CUDA answers 802 (system not yet initialized). It comes about when an unattended
    upgrade moved one of the two packages, or when the driver was upgraded and the machine not rebooted. Upgrading Fabric Manager to the newest is the wrong cure.

Often said, and not so
    "Below driver 470 an A100 needs NVSwitch disabled": it does not. From 450.51.05 on HGX A100 works with Fabric Manager; the rule is
    that its version equals the driver's exactly. Source: NVIDIA Fabric Manager guide; release notes of 450.51.05.

Sources
    NVIDIA Fabric Manager User Guide; GPU Operator issues 1043, 375, 545.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version
from dsdoctor.checks.fabric._reading import COMPLETED, FABRIC_MANAGER, in_a_fabric, no_fabric, service, switch_evidence, switches_here
from dsdoctor.facts import (
    Container,
    FabricState,
    Gpu,
    KernelDriver,
    NvmlVersions,
    PciDevice,
    Section,
    Service,
    State,
    Virtualization,
    not_asked,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches
from dsdoctor.versions import DriverVersion

SWITCHES = (PciDevice(address="0000:03:00.0", kind="nvswitch", vendor_id="10de", device_id="22a3"),)
DRIVER = KernelDriver(version="580.159.04")
WAITING = tuple(Gpu(index=index, fabric=FabricState(state="in-progress")) for index in range(8))
REGISTERED = tuple(Gpu(index=index, fabric=FabricState(state="completed")) for index in range(8))


def manager(version: str, state: str = "failed") -> tuple[Service, ...]:
    """The service of this version."""
    return (Service(name=FABRIC_MANAGER, state=state, version=version),)


CASES = (
    Case(
        title="the driver was upgraded, Fabric Manager was not",
        sections={"kernel_driver": DRIVER, "services": manager("580.126.20"), "pci_devices": SWITCHES, "gpus": WAITING},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="580.126.20",
    ),
    Case(
        title="one patch number apart is a mismatch too",
        sections={"kernel_driver": DRIVER, "services": manager("580.159.03"), "pci_devices": SWITCHES},
        status=Status.FAIL,
        says="580.159.03",
    ),
    Case(
        title="the package was upgraded under a service that still runs",
        sections={"kernel_driver": DRIVER, "services": manager("595.80", "active"), "pci_devices": SWITCHES, "gpus": REGISTERED},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="next start",
    ),
    Case(
        title="the same version",
        sections={"kernel_driver": DRIVER, "services": manager("580.159.04", "active"), "pci_devices": SWITCHES},
        status=Status.PASS,
    ),
    Case(
        title="a machine without a fabric may carry any",
        sections={"kernel_driver": DRIVER, "services": manager("535.129.03", "inactive"), "pci_devices": (), "gpus": (Gpu(index=0),)},
        status=Status.NOT_APPLICABLE,
        says="no NVSwitch, and no GPU that asks for a fabric",
    ),
    Case(
        title="it does not say its version",
        sections={"kernel_driver": DRIVER, "services": manager("", "active"), "pci_devices": SWITCHES},
        status=Status.UNKNOWN,
        says="version",
    ),
    Case(
        title="the driver is not known",
        sections={"services": manager("580.159.04"), "pci_devices": SWITCHES},
        status=Status.UNKNOWN,
        says="driver",
    ),
    Case(
        title="in a container the manager of the host cannot be seen",
        sections={
            "gpus": WAITING,
            "pci_devices": SWITCHES,
            "container": Container(runtime="docker"),
            "services": not_asked("in a container"),
        },
        status=Status.UNKNOWN,
        says="in a container",
    ),
    Case(
        title="in a container, and the fabric works",
        sections={"gpus": REGISTERED, "container": Container(runtime="docker"), "services": not_asked("in a container")},
        status=Status.NOT_APPLICABLE,
        says="the GPUs are registered, and Fabric Manager itself is not seen from here",
    ),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="NVSwitch"),
)


@check(
    "fabric.manager-version-mismatch",
    Severity.ERROR,
    explains=("fabric.manager-not-running", "fabric.not-initialized", "gpu.nvlink-down", "torch.cuda-unavailable", "smoke.*"),
    settle="nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    cases=CASES,
)
def manager_version_mismatch(
    services: Section[tuple[Service, ...]],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    container: Section[Container],
    virtualization: Section[Virtualization],
    driver_branches_matrix: DriverBranches,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the two versions number by number, where this machine runs a fabric."""
    members, switches = in_a_fabric(gpus.value or ()), switches_here(pci_devices)
    if gpus.value is None and pci_devices.value is None:
        yield Doubt(subject="Fabric Manager", reason="whether this node has an NVSwitch is not known: neither GPUs nor PCI bus were read")
        return
    if not switches and (not members or virtualization.state is State.KNOWN):
        yield no_fabric(members, gpus)
        return
    registered = bool(members) and all(gpu.fabric and gpu.fabric.state == COMPLETED for gpu in members)
    found = service(services, FABRIC_MANAGER)
    # The program in a container is not the one that runs the fabric.
    if found is None or found.state == "unknown" or container.state is State.KNOWN:
        if not registered:
            yield Doubt(subject="Fabric Manager", reason=f"the services of the host are not known ({services.why or 'not seen from here'})")
        else:
            yield NotApplicable(reason="the GPUs are registered, and Fabric Manager itself is not seen from here")
        return
    if found.state == "not-installed":
        yield NotApplicable(reason="Fabric Manager is not installed")
        return
    reading = driver_version(kernel_driver, nvml_versions)
    version = DriverVersion.parse(found.version)
    if version is None:
        yield Doubt(subject="Fabric Manager", reason=f"its version is not known ({found.version or 'it did not say'})")
    if reading is None:
        yield Doubt(subject="driver", reason="the version of the driver is not known")
    if version is None or reading is None or version == reading[0]:
        return
    rule = driver_branches_matrix.rule("fabric-manager-version")
    works = found.state == "active" and registered
    yield Finding(
        subject="Fabric Manager",
        severity=Severity.WARNING if works or rule is None or not rule.basis.may_carry_error else Severity.ERROR,
        summary=f"Fabric Manager {found.version} is installed, and driver {reading[1].value} is loaded; they must be of exactly the same version.",
        cause=(
            "The running service was started before the package changed, so the fabric still works; the next start will fail."
            if works
            else "Fabric Manager refuses to work with another driver release, and CUDA answers error 802."
        ),
        evidence=(
            Evidence(where=f"services: {FABRIC_MANAGER}", value=f"{found.version}, {found.state}"),
            reading[1],
            *switch_evidence(switches),
        ),
        expected=f"Fabric Manager {reading[1].value}",
        remedies=remedies("general", branch=str(reading[0].branch)),
        sources=rule.basis.sources if rule else (),
    )
