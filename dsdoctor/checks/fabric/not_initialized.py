"""A GPU has not joined the NVSwitch fabric.

What it looks at
    The fabric state that NVML reports for each GPU, the result of its registration and its health, and whether CUDA answered 802.

Why it matters
    Where there is a fabric, CUDA does not start before the registration is complete: "Error 802: system not yet initialized", with an nvidia-smi that looks healthy. State
    N/A asks for no fabric and is healthy: PCIe cards and single GPUs of a virtual machine print it. In the first minutes after boot "In Progress" is normal. On boards with
    NVLink 5 (B200, B300) the switches are managed over InfiniBand, and the fabric waits for ever when ib_umad and mlx5_ib are not loaded.

Sources
    NVIDIA Fabric Manager User Guide; GPU Operator issue 2781; recordings of H200 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.fabric._reading import COMPLETED, FABRIC_MANAGER, fabric_evidence, in_a_fabric, is_compute_tray, no_fabric, service
from dsdoctor.checks.gpu._reading import numbered
from dsdoctor.facts import (
    FabricState,
    Gpu,
    LoadedModules,
    Platform,
    Section,
    Service,
    Settling,
    State,
    TorchRuntime,
    Virtualization,
    absent,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches, GpuLimits, HealthLimits

NOT_INITIALIZED = 802
"""cudaErrorSystemNotReady."""

IB_MODULES = ("ib_umad", "mlx5_ib")
SUBNET_MANAGER = "nvlsm"
NVLINK_5_CAPABILITIES = ("10.0", "10.3")

# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: two bits for each answer (0 not supported, 1 yes, 2 no), four for the configuration (1: correct).
HEALTH_ANSWERS = (
    (0, "degraded bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "recovery after an access timeout"),
)
CONFIGURATION_SHIFT, CONFIGURATION_CORRECT = 8, 1
CONFIGURATIONS = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}


def in_state(state: str, number: int = 8, capability: str = "9.0", **fields: object) -> tuple[Gpu, ...]:
    """That many GPUs in this fabric state."""
    fabric = FabricState(state=state, **fields)  # type: ignore[arg-type]
    return tuple(Gpu(index=index, compute_capability=capability, fabric=fabric) for index in range(number))


CASES = (
    Case(
        title="registration still runs an hour after boot",
        sections={"gpus": in_state("in-progress"), "platform": Platform(uptime_s=3600.0)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="in-progress",
    ),
    Case(
        title="a B200 board without the InfiniBand modules",
        sections={"gpus": in_state("in-progress", capability="10.0"), "loaded_modules": LoadedModules(names=("nvidia", "nvidia_uvm"))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="ib_umad",
    ),
    Case(
        title="a B200 board whose subnet manager does not run",
        sections={
            "gpus": in_state("in-progress", capability="10.0"),
            "loaded_modules": LoadedModules(names=("nvidia", "ib_umad", "mlx5_ib")),
            "services": (Service(name="nvlsm", state="inactive"),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="nvlsm",
    ),
    Case(
        title="just booted, and waited for long enough",
        sections={
            "gpus": in_state("in-progress"),
            "platform": Platform(uptime_s=100.0),
            "settling": Settling(waited_s=120.0, unsettled=("fabric of GPU 0",)),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="just booted",
        sections={"gpus": in_state("in-progress"), "platform": Platform(uptime_s=119.0)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="119 s",
    ),
    Case(
        title="two minutes after boot it should be done",
        sections={"gpus": in_state("in-progress"), "platform": Platform(uptime_s=120.0)},
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="registration ended with an error",
        sections={"gpus": in_state("completed", status="Unknown Error", status_code=999)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Unknown Error",
    ),
    Case(
        title="registered, with degraded bandwidth",
        sections={"gpus": in_state("completed", status="Success", status_code=0, health_mask=0b01_10_10_01 | 1 << 8)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="degraded bandwidth",
    ),
    Case(
        title="registered, and wrongly set up",
        sections={"gpus": in_state("completed", status="Success", status_code=0, health_mask=0b10_10_10_10 | 5 << 8)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="too few NVLinks",
    ),
    Case(
        title="CUDA answers 802",
        sections={"torch_runtime": TorchRuntime(imported=True, cuda_error="Error 802: system not yet initialized", cuda_error_code=802)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="802",
    ),
    Case(
        title="four H200s of a virtual machine",
        sections={"gpus": in_state("completed", 4, status="Success", status_code=0, health_mask=0)},
        status=Status.PASS,
    ),
    Case(
        title="healthy in every answer",
        sections={"gpus": in_state("completed", status="Success", status_code=0, health_mask=0b10_10_10_10 | 1 << 8 | 1 << 12)},
        status=Status.PASS,
    ),
    Case(
        title="N/A asks for no fabric",
        sections={"gpus": in_state("not-supported", 1)},
        status=Status.NOT_APPLICABLE,
        says="no NVSwitch, and no GPU that asks for a fabric",
    ),
    Case(
        title="an older driver that reports no fabric at all",
        sections={"gpus": (Gpu(index=0, name="NVIDIA L40S"),)},
        status=Status.NOT_APPLICABLE,
        says="no NVSwitch, and no GPU that asks for a fabric",
    ),
    Case(
        title="a state that nobody here knows",
        sections={"gpus": in_state("state 9")},
        status=Status.UNKNOWN,
        says="state 9",
    ),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="GPUs"),
    Case(
        title="no GPU",
        sections={"gpus": absent("NVML runs and finds no GPU")},
        status=Status.NOT_APPLICABLE,
        says="NVML runs and finds no GPU",
    ),
)


@check(
    "fabric.not-initialized",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "gpu.nvlink-down", "smoke.*", "env.cuda-visible-devices"),
    settle="nvidia-smi -q | grep -A3 Fabric",
    cases=CASES,
)
def not_initialized(
    gpus: Section[tuple[Gpu, ...]],
    torch_runtime: Section[TorchRuntime],
    services: Section[tuple[Service, ...]],
    loaded_modules: Section[LoadedModules],
    platform: Section[Platform],
    virtualization: Section[Virtualization],
    driver_branches_matrix: DriverBranches,
    settling: Section[Settling],
    gpu_limits_matrix: GpuLimits,
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Everything but 'completed with success' is a fault where a GPU belongs to a fabric."""
    runtime = torch_runtime.value
    says_802 = runtime is not None and runtime.cuda_error_code == NOT_INITIALIZED
    members = in_a_fabric(gpus.value or ())
    waiting = [gpu for gpu in members if gpu.fabric and gpu.fabric.state in ("not-started", "in-progress")]
    strange = [gpu for gpu in members if gpu.fabric and gpu.fabric.state not in ("not-started", "in-progress", COMPLETED)]
    failed = [gpu for gpu in members if gpu.fabric and gpu.fabric.state == COMPLETED and gpu.fabric.status_code]
    rule = driver_branches_matrix.rule("fabric-state")
    sources = rule.basis.sources if rule else ()
    cuda = (Evidence(where="torch_runtime.cuda_error", value=runtime.cuda_error or "802"),) if says_802 and runtime else ()
    if waiting or failed or says_802:
        settle_s = health_limits_matrix.limit("fabric-settle-seconds").amount
        uptime_s = platform.value.uptime_s if platform.value else None
        waited_s = settling.value.waited_s if settling.value else 0.0
        just_booted = bool(waiting) and not failed and uptime_s is not None and uptime_s < settle_s and waited_s < settle_s
        missing = (*_missing_modules(waiting, loaded_modules), *_missing_subnet_manager(waiting, services, gpu_limits_matrix))
        yield Finding(
            subject=numbered(waiting or failed) if waiting or failed else "CUDA",
            severity=Severity.WARNING if just_booted else Severity.ERROR,
            summary=_summary(waiting, failed),
            cause=_cause(uptime_s if just_booted else None, missing, service(services, FABRIC_MANAGER)),
            evidence=(
                *fabric_evidence(waiting or failed)[:4],
                *cuda,
                *_more(missing, services),
                *((Evidence(where="settling.waited_s", value=f"{waited_s:.0f}"),) if waited_s else ()),
            ),
            expected="fabric state Completed, status Success (or N/A, where no fabric is asked for)",
            remedies=_remedies(remedies, just_booted, missing, virtualization),
            sources=sources,
            fleet_case="just-booted" if just_booted else "",
        )
    if strange:
        states = sorted({gpu.fabric.state for gpu in strange if gpu.fabric})
        yield Doubt(subject=numbered(strange), reason=f"the fabric state is '{', '.join(states)}', which is not known here")
    yield from _unwell(members, sources, remedies)
    if gpus.value is None and gpus.state is not State.ABSENT and not says_802:
        yield Doubt(subject="GPUs", reason=f"the GPUs are not known ({gpus.why or 'nobody looked'})")
    if not members:
        yield no_fabric(members, gpus)


def _summary(waiting: Sequence[Gpu], failed: Sequence[Gpu]) -> str:
    if waiting:
        states = sorted({gpu.fabric.state for gpu in waiting if gpu.fabric})
        return f"{numbered(waiting)} {'has' if len(waiting) == 1 else 'have'} not joined the NVSwitch fabric (state {', '.join(states)})."
    if failed:
        results = sorted({gpu.fabric.status or str(gpu.fabric.status_code) for gpu in failed if gpu.fabric})
        return f"The registration of {numbered(failed)} with the NVSwitch fabric ended with: {', '.join(results)}."
    return "CUDA answers error 802 (system not yet initialized): the NVSwitch fabric is not ready."


def _cause(uptime_s: float | None, missing: Sequence[str], manager: Service | None) -> str:
    if uptime_s is not None:
        return f"The machine has been up for {uptime_s:.0f} s only: wait a little and look again before you act (or let --settle wait)."
    if missing:
        return (
            "The NVSwitches of NVLink 5 boards are managed over InfiniBand by the subnet manager nvlsm, and what it takes is not there or does not run: "
            f"{', '.join(missing)}. CUDA answers error 802 until the fabric is up."
        )
    if manager is not None and manager.state == "active":
        return "Fabric Manager runs, but the registration is stale or does not end. CUDA answers error 802 until it does."
    return "Fabric Manager does not run, or does not come to an end. CUDA answers error 802 until the fabric is up."


def _missing_modules(waiting: Sequence[Gpu], loaded_modules: Section[LoadedModules]) -> tuple[str, ...]:
    """The InfiniBand modules that an NVLink 5 board needs and that are not loaded."""
    if loaded_modules.value is None or not any(gpu.compute_capability in NVLINK_5_CAPABILITIES for gpu in waiting):
        return ()
    asked_for = loaded_modules.value.asked_for or IB_MODULES
    return tuple(name for name in IB_MODULES if name in asked_for and name not in loaded_modules.value.names)


def _missing_subnet_manager(waiting: Sequence[Gpu], services: Section[tuple[Service, ...]], limits: GpuLimits) -> tuple[str, ...]:
    """The subnet manager that an NVLink 5 board needs, where it surely does not run. A rack's runs on its switch trays."""
    found = service(services, SUBNET_MANAGER)
    is_board = any(gpu.compute_capability in NVLINK_5_CAPABILITIES for gpu in waiting) and not is_compute_tray(waiting, limits)
    return (SUBNET_MANAGER,) if is_board and found is not None and found.state in ("inactive", "failed", "not-installed") else ()


def _more(missing: Sequence[str], services: Section[tuple[Service, ...]]) -> tuple[Evidence, ...]:
    manager = service(services, FABRIC_MANAGER)
    return (
        *((Evidence(where="loaded_modules, services", value=f"without {', '.join(missing)}"),) if missing else ()),
        *((Evidence(where=f"services: {FABRIC_MANAGER}", value=manager.state),) if manager else ()),
    )


def _remedies(remedies: Remedies, just_booted: bool, missing: Sequence[str], virtualization: Section[Virtualization]) -> tuple[Remedy, ...]:
    if just_booted:
        return remedies("just-booted")
    if virtualization.state is State.KNOWN:
        return remedies("partition")
    if missing:
        return remedies("missing-ib-modules") or remedies("stale")
    return remedies("stale") or remedies("just-booted")


def _unwell(members: Sequence[Gpu], sources: tuple[str, ...], remedies: Remedies) -> Iterator[Finding]:
    by_problem: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in members:
        by_problem.setdefault(_problems(gpu.fabric.health_mask or 0) if gpu.fabric else (), []).append(gpu)
    for problems, gpus in by_problem.items():
        if problems:
            yield Finding(
                subject=numbered(gpus),
                severity=Severity.WARNING,
                summary=f"The fabric reports of {numbered(gpus)}: {', '.join(problems)}.",
                cause="The GPUs are registered, and part of the fabric between them does not work as it should.",
                evidence=tuple(
                    Evidence(where=gpu.where or f"gpus[{gpu.index}].fabric.health_mask", value=f"{gpu.fabric.health_mask or 0:#x}")
                    for gpu in gpus[:4]
                    if gpu.fabric
                ),
                expected="no problem in the fabric health of nvidia-smi -q",
                remedies=remedies("stale") or remedies("just-booted"),
                sources=sources,
            )


def _problems(mask: int) -> tuple[str, ...]:
    """What a health mask complains of; answers that the product does not give are no complaint."""
    found = [text for shift, text in HEALTH_ANSWERS if mask >> shift & 0b11 == 1]
    configuration = mask >> CONFIGURATION_SHIFT & 0xF
    if configuration > CONFIGURATION_CORRECT:
        found.append(f"incorrect configuration: {CONFIGURATIONS.get(configuration, configuration)}")
    return tuple(found)
