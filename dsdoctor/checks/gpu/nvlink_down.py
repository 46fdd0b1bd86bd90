"""NVLinks of a GPU are down, missing or slow.

What it looks at
    Which links each GPU lists and which of them are up, against one another and against the number and the rate that the product has.

Why it matters
    Traffic between GPUs then takes the links that are left, or PCIe: collectives get several times slower, and on boards with NVSwitch CUDA or NCCL may not
    start. The name alone proves nothing: PCIe cards and NVL pairs have links only with a bridge, a virtual machine with one GPU often has them switched off, and
    a driver that runs with NvLinkDisable=1 shows none (driver.module-options).

Sources
    NVML nvmlDeviceGetNvLinkState; NVIDIA Fabric Manager user guide; rules of DCGM and NVIDIA Health Validation (no inactive link).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.facts import Gpu, KernelDriver, LogEvent, Missing, NvLink, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimit, GpuLimits, HealthLimits

ALL_INACTIVE = "nvlink-all-inactive"
"""Id of the signature."""
NOT_SUPPORTED = Missing(State.ABSENT, "Not Supported (NVML code 3)")

SOURCES = (
    "NVIDIA Fabric Manager user guide — https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    "NVIDIA Health Validation: checks and actions (no inactive NVLink) — https://docs.nvidia.com/health-validation/reference/checks/xid.md",
)


def gpu_with(index: int, up: int, down: int = 0, name: str = "NVIDIA H200", speed_mb_per_s: int | None = None) -> Gpu:
    """A GPU with that many links up and down."""
    links = tuple(NvLink(index=number, active=number < up, remote="switch", speed_mb_per_s=speed_mb_per_s) for number in range(up + down))
    return Gpu(index=index, name=name, nvlinks=links)


WITHOUT = Gpu(index=0, name="NVIDIA H200", missing={"nvlinks": NOT_SUPPORTED})

CASES = (
    Case(
        title="one link of one GPU is down",
        sections={"gpus": (gpu_with(0, 18), gpu_with(1, 17, 1))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="link 17",
    ),
    Case(
        title="all links of all GPUs are down",
        sections={"gpus": (gpu_with(0, 0, 18), gpu_with(1, 0, 18))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="all 18 NVLinks",
    ),
    Case(
        title="all down because the driver was told so",
        sections={
            "gpus": (gpu_with(0, 0, 18), gpu_with(1, 0, 18)),
            "kernel_driver": KernelDriver(version="580.159.04", options={"NvLinkDisable": "1"}),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="NvLinkDisable",
    ),
    Case(
        title="fewer links than the product has",
        sections={"gpus": (gpu_with(0, 16), gpu_with(1, 18))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="16 of 18",
    ),
    Case(
        title="nvidia-smi says it in words",
        sections={
            "gpus": (Gpu(index=6, name="NVIDIA A100-SXM4-80GB"),),
            "log_events": (
                LogEvent(signature=ALL_INACTIVE, text="NVML: Unable to retrieve NVLink information as all links are inactive", where="x:2"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="every link inactive",
    ),
    Case(
        title="nvidia-smi says so of a card whose bridge nobody plugged",
        sections={
            "gpus": (Gpu(index=0, name="NVIDIA H100 PCIe"), Gpu(index=1, name="NVIDIA H100 PCIe")),
            "log_events": (LogEvent(signature=ALL_INACTIVE, text="all links are inactive", where="x:2"),),
        },
        status=Status.NOT_APPLICABLE,
        says="no GPU here lists an NVLink",
    ),
    Case(
        title="links that trained lower",
        sections={"gpus": (gpu_with(0, 18, speed_mb_per_s=20_000), gpu_with(1, 18, speed_mb_per_s=26_562))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="20.0 GB/s",
    ),
    Case(
        title="links at their rate",
        sections={"gpus": (gpu_with(0, 18, speed_mb_per_s=26_562), gpu_with(1, 18, speed_mb_per_s=22_600))},
        status=Status.PASS,
    ),
    Case(title="all links up", sections={"gpus": tuple(gpu_with(index, 18) for index in range(8))}, status=Status.PASS),
    Case(
        title="H800 has eight",
        sections={"gpus": (gpu_with(0, 8, name="NVIDIA H800"), gpu_with(1, 8, name="NVIDIA H800"))},
        status=Status.PASS,
    ),
    Case(
        title="one H200 of a virtual machine, NVLink not supported",
        sections={"gpus": (WITHOUT,)},
        status=Status.NOT_APPLICABLE,
        says="one GPU, and no NVLink of it is in use",
    ),
    Case(
        title="one GPU whose links are all down is how a tenant is kept apart",
        sections={"gpus": (gpu_with(0, 0, 18),)},
        status=Status.NOT_APPLICABLE,
        says="one GPU, and no NVLink of it is in use",
    ),
    Case(
        title="PCIe cards without a bridge",
        sections={"gpus": (gpu_with(0, 0, 12, "NVIDIA H100 PCIe"), gpu_with(1, 0, 12, "NVIDIA H100 PCIe"))},
        status=Status.PASS,
    ),
    Case(
        title="cards without NVLink",
        sections={"gpus": (Gpu(index=0, name="NVIDIA L40S"), Gpu(index=1, name="NVIDIA L40S"))},
        status=Status.NOT_APPLICABLE,
        says="no GPU here lists an NVLink",
    ),
    Case(
        title="the links were not read",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200"), Gpu(index=1, name="NVIDIA H200"))},
        status=Status.UNKNOWN,
        says="NVLinks",
    ),
    Case(
        title="under MIG NVLink is not checkable",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200", mig_enabled=True), Gpu(index=1, name="NVIDIA H200", mig_enabled=True))},
        status=Status.UNKNOWN,
        says="MIG",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.nvlink-down",
    Severity.ERROR,
    explains=("smoke.bandwidth", "smoke.collectives"),
    settle="nvidia-smi nvlink -s",
    cases=CASES,
)
def nvlink_down(
    gpus: tuple[Gpu, ...],
    log_events: Section[tuple[LogEvent, ...]],
    kernel_driver: Section[KernelDriver],
    gpu_limits_matrix: GpuLimits,
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge links that are down, then links that are not even listed."""
    disabled = kernel_driver.value is not None and kernel_driver.value.options.get("NvLinkDisable", "0") != "0"
    said_inactive = [event for event in log_events.value or () if event.signature == ALL_INACTIVE]
    unknown = []
    for gpu in gpus:
        product = gpu_limits_matrix.product(gpu.name)
        if gpu.nvlinks is None:
            if said_inactive and _has_nvlink(product) and not disabled and (len(gpus) > 1 or gpu.index):
                yield _all_down(gpu, said_inactive, product, remedies)
            elif len(gpus) > 1 and _has_nvlink(product) and not disabled and not is_not_there(gpu, "nvlinks"):
                unknown.append((gpu, why_unknown(gpu, "nvlinks")))
            continue
        down = [link.index for link in gpu.nvlinks if not link.active]
        up = len(gpu.nvlinks) - len(down)
        with_bridge = product is not None and bool(product.nvlink_only_with)
        if down and up:
            yield _finding(
                gpu,
                f"{len(down)} of {len(gpu.nvlinks)} NVLinks of {named(gpu)} {'is' if len(down) == 1 else 'are'} down: "
                f"link {', '.join(map(str, down))}.",
                Severity.WARNING if with_bridge or len(gpus) == 1 else Severity.ERROR,
                "The link did not train: the GPU, the board or bridge between, or the switch at its other end.",
                f"{len(gpu.nvlinks)} links up",
                remedies,
            )
        elif down and len(gpus) > 1 and not with_bridge:
            yield _finding(
                gpu,
                f"On {named(gpu)} all {len(down)} NVLinks are down.",
                Severity.WARNING if disabled else Severity.ERROR,
                "The driver was loaded with NvLinkDisable=1."
                if disabled
                else "Fabric Manager does not run or has another version, or the links did not train.",
                f"{len(down)} links up",
                remedies,
            )
        elif up and product is not None and _has_nvlink(product) and up < product.nvlink_links and len(gpus) > 1:
            yield _finding(
                gpu,
                f"{named(gpu)} lists {up} of {product.nvlink_links} NVLinks that the product has.",
                capped("warning", product.basis),
                "Links that were found bad at boot are left out, or the machine (or its hypervisor) wires fewer.",
                f"{product.nvlink_links} links",
                remedies,
                product.basis.sources,
            )
        yield from _slow(gpu, product, health_limits_matrix, remedies)
    yield from doubts("NVLinks", unknown)
    if not any(link.active for gpu in gpus for link in gpu.nvlinks or ()):
        if len(gpus) < 2:
            yield NotApplicable(reason="one GPU, and no NVLink of it is in use")
        elif not any(gpu.nvlinks for gpu in gpus):
            yield NotApplicable(reason="no GPU here lists an NVLink")


def _has_nvlink(product: GpuLimit | None) -> bool:
    """Whether the product always has NVLink, without a bridge that somebody has to plug."""
    return product is not None and product.nvlink_links > 0 and not product.nvlink_only_with


def _all_down(gpu: Gpu, said: Sequence[LogEvent], product: GpuLimit | None, remedies: Remedies) -> Finding:
    """What nvidia-smi says in words instead of a list."""
    return Finding(
        subject=named(gpu),
        summary=f"On {named(gpu)} all NVLinks are down: nvidia-smi finds every link inactive.",
        cause="Fabric Manager does not run or has another version, or the links did not train. Traffic between the GPUs is slower, or takes PCIe.",
        evidence=tuple(Evidence(where=event.where or "log_events", value=event.text) for event in said[:2]),
        expected=f"{product.nvlink_links} links up" if product else "links up",
        remedies=remedies("general", gpu=str(gpu.index))[:2] + remedies("bypass")[:1],
        sources=SOURCES,
    )


def _slow(gpu: Gpu, product: GpuLimit | None, limits: HealthLimits, remedies: Remedies) -> Iterator[Finding]:
    """Links that are up and slower than those of the product."""
    row = limits.limit("nvlink-speed-share")
    expected = product.nvlink_gb_per_s_per_link if product else None
    if product is None or expected is None:
        return
    least_mb_per_s = row.amount * expected * 1000
    slow = [link for link in gpu.nvlinks or () if link.active and link.speed_mb_per_s and link.speed_mb_per_s < least_mb_per_s]
    if slow:
        yield _finding(
            gpu,
            f"{len(slow)} NVLink{'s' if len(slow) > 1 else ''} of {named(gpu)} {'run' if len(slow) > 1 else 'runs'} at "
            f"{(slow[0].speed_mb_per_s or 0) / 1000:.1f} GB/s; the product has {expected:g} GB/s a link.",
            capped(row.severity, row.basis),
            row.text,
            f"{expected:g} GB/s a link",
            remedies,
            product.basis.sources,
        )


def _finding(
    gpu: Gpu, summary: str, severity: Severity, cause: str, expected: str, remedies: Remedies, sources: tuple[str, ...] = ()
) -> Finding:
    links = gpu.nvlinks or ()
    down = [str(link.index) for link in links if not link.active]
    return Finding(
        subject=named(gpu),
        severity=severity,
        summary=summary,
        cause=f"{cause} Traffic between the GPUs is slower, or takes PCIe.",
        evidence=(
            Evidence(
                where=gpu.where or f"gpus[{gpu.index}].nvlinks",
                value=f"{len(links) - len(down)} up, {len(down)} down" + (f" ({', '.join(down)})" if down else ""),
            ),
        ),
        expected=expected,
        remedies=remedies("general", gpu=str(gpu.index))[:2] + remedies("bypass")[:1],
        sources=sources or SOURCES,
    )
