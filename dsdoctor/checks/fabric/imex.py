"""The IMEX service of a multi-node NVLink system does not run.

What it looks at
    Whether the GPUs belong to a fabric that reaches over several nodes (a cluster UUID that is not zero), the service nvidia-imex and its version, the IMEX
    channels in /dev, and whether all GPUs of this node are in one clique.

Why it matters
    On GB200 and GB300 racks GPUs of different nodes share memory over NVLink through nvidia-imex. It must run on every node of the domain, of the driver's version,
    before CUDA starts; otherwise jobs of one node work and jobs of several fail or fall back to the network. Boards whose NVLink ends at the node need none.

Sources
    NVIDIA IMEX service guide; NCCL user guide, multi-node NVLink.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version
from dsdoctor.checks.fabric._reading import COMPLETED, NO_FABRIC, fabric_evidence, in_a_fabric, is_compute_tray, service
from dsdoctor.checks.gpu._reading import numbered
from dsdoctor.facts import (
    Container,
    DeviceNode,
    FabricState,
    Gpu,
    KernelDriver,
    NvmlVersions,
    Section,
    Service,
    Settling,
    State,
    absent,
    not_asked,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches, GpuLimits
from dsdoctor.versions import DriverVersion

IMEX = "nvidia-imex"
CHANNELS = "/dev/nvidia-caps-imex-channels/"
DOMAIN = "6a1f2c9e-0000-4000-8000-000000000001"


def tray(uuid: str = DOMAIN, cliques: tuple[int, ...] = (7, 7, 7, 7)) -> tuple[Gpu, ...]:
    """The GPUs of a GB200 tray."""
    return tuple(
        Gpu(
            index=index,
            name="NVIDIA GB200",
            compute_capability="10.0",
            fabric=FabricState(state="completed", cluster_uuid=uuid, clique_id=clique),
        )
        for index, clique in enumerate(cliques)
    )


def imex_is(state: str, version: str = "") -> tuple[Service, ...]:
    """The service in this state."""
    return (Service(name=IMEX, state=state, version=version),)


CASES = (
    Case(
        title="a rack without IMEX",
        sections={"gpus": tray(), "services": imex_is("not-installed")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="nvidia-imex",
    ),
    Case(
        title="a board that is no rack, and fills its cluster UUID",
        sections={
            "gpus": tuple(Gpu(index=gpu.index, name="NVIDIA B200", fabric=gpu.fabric) for gpu in tray()),
            "services": imex_is("not-installed"),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(title="it failed", sections={"gpus": tray(), "services": imex_is("failed")}, status=Status.FAIL, says="failed"),
    Case(
        title="another version than the driver",
        sections={
            "gpus": tray(),
            "services": imex_is("active", "580.126.20"),
            "kernel_driver": KernelDriver(version="580.159.04"),
        },
        status=Status.FAIL,
        says="580.126.20",
    ),
    Case(
        title="the GPUs of one node in two cliques",
        sections={"gpus": tray(cliques=(7, 7, 8, 8)), "services": imex_is("active")},
        status=Status.FAIL,
        says="cliques",
    ),
    Case(
        title="a container without a channel",
        sections={
            "gpus": tray(),
            "services": not_asked("in a container"),
            "container": Container(runtime="docker"),
            "device_nodes": (DeviceNode(path="/dev/nvidia0", openable=True),),
        },
        status=Status.FAIL,
        says="channel",
    ),
    Case(title="it is starting", sections={"gpus": tray(), "services": imex_is("activating")}, status=Status.UNKNOWN, says="starting"),
    Case(
        title="it is starting, and nobody waits any more",
        sections={"gpus": tray(), "services": imex_is("activating"), "settling": Settling(waited_s=60.0, unsettled=(IMEX,))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="after 60 s",
    ),
    Case(title="it runs", sections={"gpus": tray(), "services": imex_is("active")}, status=Status.PASS),
    Case(
        title="an H200 board, whose cluster UUID is zero",
        sections={"gpus": tray("00000000-0000-0000-0000-000000000000", (0, 0)), "services": imex_is("not-installed")},
        status=Status.NOT_APPLICABLE,
        says="no GPU belongs to an NVLink domain of several nodes",
    ),
    Case(
        title="the services cannot be seen",
        sections={"gpus": tray(), "services": not_asked("in a container")},
        status=Status.UNKNOWN,
        says="in a container",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN),
)


@check(
    "fabric.imex",
    Severity.WARNING,
    explains=("smoke.collectives",),
    settle="nvidia-imex-ctl -N; systemctl status nvidia-imex; ls /dev/nvidia-caps-imex-channels",
    cases=CASES,
)
def imex(
    gpus: tuple[Gpu, ...],
    services: Section[tuple[Service, ...]],
    device_nodes: Section[tuple[DeviceNode, ...]],
    container: Section[Container],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    driver_branches_matrix: DriverBranches,
    gpu_limits_matrix: GpuLimits,
    settling: Section[Settling],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Ask for IMEX only where the fabric itself says that it reaches beyond this node."""
    members = [gpu for gpu in gpus if gpu.fabric is not None and gpu.fabric.state == COMPLETED and _is_set(gpu.fabric.cluster_uuid)]
    if not members:
        yield NotApplicable(reason="no GPU belongs to an NVLink domain of several nodes") if in_a_fabric(gpus) else NO_FABRIC
        return
    rule = driver_branches_matrix.rule("imex")
    sources = rule.basis.sources if rule else ()
    domains = {(gpu.fabric.cluster_uuid, gpu.fabric.clique_id) for gpu in members if gpu.fabric}
    if len(domains) > 1:
        yield Finding(
            subject=numbered(members),
            summary=f"The GPUs of this node are in {len(domains)} NVLink cliques or clusters; they should be in one.",
            cause="A partition of the rack cuts through this node, or part of its GPUs registered before the partition was changed.",
            evidence=tuple(Evidence(where=f"gpus[{gpu.index}].fabric", value=_domain(gpu)) for gpu in members[:8]),
            expected="one cluster UUID and one clique id on all GPUs of the node",
            remedies=remedies("domain") or remedies("bypass"),
            sources=sources,
        )
    channels = [node for node in device_nodes.value or () if node.path.startswith(CHANNELS)]
    # A rack is sure; other boards have been seen to fill the cluster UUID as well.
    severity = Severity.WARNING if is_compute_tray(gpus, gpu_limits_matrix) else Severity.INFO
    if container.state is State.KNOWN and device_nodes.value is not None and not channels:
        yield Finding(
            subject="IMEX channel",
            severity=severity,
            summary="This container has no IMEX channel, so it cannot share memory with GPUs of other nodes over NVLink.",
            cause="The channel is a device file that has to be handed into the container.",
            evidence=(Evidence(where="device_nodes", value=f"nothing below {CHANNELS}"), *fabric_evidence(members)[:1]),
            expected=f"{CHANNELS}channel0",
            remedies=remedies("no-channel"),
            sources=sources,
        )
        return
    found = service(services, IMEX)
    if found is None or found.state == "unknown":
        if not channels:
            yield Doubt(subject=IMEX, reason=f"whether it runs is not known ({services.why or 'its state cannot be seen from here'})")
        return
    reading = driver_version(kernel_driver, nvml_versions)
    version = DriverVersion.parse(found.version)
    differs = version is not None and reading is not None and version != reading[0]
    waited_s = settling.value.waited_s if settling.value else 0.0
    if found.state == "activating" and not differs and not waited_s:
        yield Doubt(subject=IMEX, reason="it is starting", settle="dsdoctor check --settle 120 --only fabric")
        return
    if found.state == "active" and not differs:
        return
    yield Finding(
        subject=IMEX,
        severity=severity,
        summary=f"{IMEX} {found.version} is not of the driver's version {reading[1].value}."
        if differs and reading
        else f"The GPUs belong to a multi-node NVLink domain, and {IMEX} is {_state(found.state, waited_s)} on this node.",
        cause="Jobs over several nodes fail or fall back to the network; jobs on this node alone work.",
        evidence=(
            Evidence(where=f"services: {IMEX}", value=f"{found.state} {found.version}".strip()),
            Evidence(where=f"gpus[{members[0].index}].fabric", value=_domain(members[0])),
        ),
        expected=f"{IMEX} active on every node of the domain, of the version of the driver",
        remedies=remedies("domain") or remedies("bypass"),
        sources=sources,
    )


def _state(state: str, waited_s: float) -> str:
    return f"still starting after {waited_s:.0f} s of waiting" if state == "activating" else state.replace("-", " ")


def _is_set(uuid: str) -> bool:
    return any(letter not in "0-" for letter in uuid)


def _domain(gpu: Gpu) -> str:
    return f"cluster {gpu.fabric.cluster_uuid}, clique {gpu.fabric.clique_id}" if gpu.fabric else "not known"
