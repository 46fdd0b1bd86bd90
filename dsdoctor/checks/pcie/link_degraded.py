"""The PCIe link of a GPU is narrower or slower than it could be.

What it looks at
    Width and generation of the link of each GPU against the most that GPU and slot can do. The width counts at any time. The generation counts only while the GPU
    works (performance state 0 and in use): an idle GPU lowers it to save power, so one idle reading proves nothing. Where NVML told nothing, the width is that of the PCI bus (lspci).

Why it matters
    Loading weights, offloading, and peer traffic of cards without NVLink run at half, a quarter or an eighth of the speed, without an error anywhere. A card that is not quite
    seated, a riser, a slot that shares its lanes, or a link that trained down once and stays there (Gen2 instead of Gen5, also under load) are the usual causes.

Often said, and not so
    "The link width must be 32x; A100 on driver 470 has x32, and x16 on H100 is a degradation": x16 is the widest link of these GPUs and
    is full width (A100 Gen4 x16, H100 and H200 Gen5 x16). No driver decides the width; a check for 32 could never pass.

    "Drivers up to 470 do not see the Gen5 link of an H100": they do not support the GPU at all; Hopper begins with CUDA 11.8 and R520.
    Sources: product pages of A100 and H100; NVIDIA CUDA GPU architectures.

Sources
    NVML PCIe link getters; nvidia-smi manual (pcie.link.gen); DCGM health rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.checks.pcie._reading import by_address
from dsdoctor.facts import Gpu, PciDevice, PcieLink, Section, State, absent
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

RETRAIN = Remedy(
    summary="Let the link train again",
    when="the generation stays low under load, the width is right",
    inspect=("sudo lspci -vv -s <bdf> | grep -E 'LnkCap|LnkSta|LnkCtl2'",),
    steps=(
        "a target speed in LnkCtl2 below the maximum, or the bit that disables autonomous speed changes, keeps the link down: clear both on card and port (setpci)",
        "then retrain the link from the port above (its LnkCtl, bit 5), or reboot",
    ),
    verify=Verify(command="sudo lspci -vv -s <bdf> | grep LnkSta:", prints="the maximum speed, without (downgraded), while the GPU works"),
    disruption=Disruption.REBOOT,
    needs_root=True,
    drain=True,
    risk="writing to the wrong register or device can hang the machine",
)

SOURCES = (
    "nvidia-smi manual (pcie.link) — https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    "NVIDIA DCGM, health watches — https://github.com/NVIDIA/DCGM",
)


def gpu_with(
    generation: int | None = 5, width: int | None = 16, busy: int = 0, state: int = 0, max_width: int = 16, index: int = 0
) -> tuple[Gpu, ...]:
    """One GPU with this link, and how busy it is."""
    link = PcieLink(generation=generation, width=width, max_generation=5, max_width=max_width)
    return (Gpu(index=index, name="NVIDIA H200", pci_address="0000:19:00.0", pcie=link, utilization_percent=busy, performance_state=state),)


NARROW_SLOT = (
    PciDevice(address="0000:19:00.0", kind="gpu", parents=("0000:18:00.0",)),
    PciDevice(address="0000:18:00.0", kind="bridge", link=PcieLink(width=8, max_width=8, max_generation=5)),
)

CASES = (
    Case(
        title="eight of sixteen lanes", sections={"gpus": gpu_with(width=8)}, status=Status.FAIL, severity=Severity.WARNING, says="8 of 16"
    ),
    Case(
        title="generation 2 of 5 while it works",
        sections={"gpus": gpu_with(generation=2, busy=100)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="under load",
    ),
    Case(
        title="a slot with eight lanes",
        sections={"gpus": gpu_with(width=8), "pci_devices": NARROW_SLOT},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="slot",
    ),
    Case(
        title="only the bus is known",
        sections={"pci_devices": (PciDevice(address="0000:65:00.0", kind="gpu", link=PcieLink(width=4, max_width=16)),)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="4 of 16",
    ),
    Case(
        title="only the bus is known, and the width is whole",
        sections={"pci_devices": (PciDevice(address="0000:65:00.0", kind="gpu", link=PcieLink(width=16, max_width=16)),)},
        status=Status.UNKNOWN,
        says="generation",
    ),
    Case(title="neither NVML nor the bus was read", sections={}, status=Status.UNKNOWN, says="not asked"),
    Case(title="full width, full generation", sections={"gpus": gpu_with()}, status=Status.PASS),
    Case(title="a card with eight lanes", sections={"gpus": gpu_with(width=8, max_width=8)}, status=Status.PASS),
    Case(
        title="idle at generation 1 proves nothing", sections={"gpus": gpu_with(generation=1, state=8)}, status=Status.UNKNOWN, says="idle"
    ),
    Case(
        title="in performance state 0, but hardly in use",
        sections={"gpus": gpu_with(generation=4, busy=49)},
        status=Status.UNKNOWN,
        says="under load",
    ),
    Case(title="just busy enough", sections={"gpus": gpu_with(generation=4, busy=50)}, status=Status.FAIL, says="4 of 5"),
    Case(title="the link was not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="PCIe link"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "pcie.link-degraded",
    Severity.WARNING,
    explains=("smoke.bandwidth", "capacity.load-time"),
    settle="nvidia-smi --query-gpu=index,pcie.link.gen.gpucurrent,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "utilization.gpu --format=csv    # while the GPU works",
    cases=CASES,
)
def link_degraded(
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the width always, the generation under load only."""
    busy = health_limits_matrix.limit("pcie-busy-percent")
    devices = by_address(pci_devices.value or ())
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
        return
    if gpus.value is None:
        yield from _by_the_bus(gpus, devices, remedies)
        return
    unknown = []
    for gpu in gpus.value:
        link = gpu.pcie or (devices[gpu.pci_address].link if gpu.pci_address in devices else None)
        if link is None or ((link.width is None or link.max_width is None) and (link.generation is None or link.max_generation is None)):
            if not is_not_there(gpu, "pcie"):
                unknown.append((gpu, why_unknown(gpu, "pcie", "pcie.width", "pcie.max_width")))
            continue
        port = _port_above(gpu, devices)
        if link.width is not None and link.max_width is not None and link.width < link.max_width:
            yield _narrow(named(gpu), gpu.pci_address, link, port, _evidence(gpu, link), remedies)
        most = min((value for value in (link.max_generation, port.max_generation if port else None) if value is not None), default=None)
        if link.generation is None or most is None or link.generation >= most:
            continue
        if gpu.performance_state in (0, None) and gpu.utilization_percent is not None and gpu.utilization_percent >= busy.amount:
            yield Finding(
                subject=named(gpu),
                severity=capped(busy.severity, busy.basis),
                summary=f"The PCIe link of {named(gpu)} runs at generation {link.generation} of {most} under load.",
                cause=f"{busy.text} It trained down, or is held there (target speed, autonomous speed disabled).",
                evidence=_evidence(gpu, link),
                expected=f"Gen{most} while the GPU works, not Gen{link.generation}",
                remedies=(RETRAIN, *remedies("general", bdf=gpu.pci_address)[:1]),
                sources=SOURCES,
            )
        else:
            unknown.append((gpu, "the generation is below its maximum, which an idle GPU does by itself; read it under load"))
    yield from doubts("PCIe link", unknown)
    if all(is_not_there(gpu, "pcie") for gpu in gpus.value):
        yield NotApplicable(reason="no GPU here has a PCIe link of its own")


def _port_above(gpu: Gpu, devices: Mapping[str, PciDevice]) -> PcieLink | None:
    """The link of the port that the GPU is plugged into."""
    device = devices.get(gpu.pci_address)
    port = devices.get(device.parents[0]) if device is not None and device.parents else None
    return port.link if port else None


def _by_the_bus(gpus: Section[tuple[Gpu, ...]], devices: Mapping[str, PciDevice], remedies: Remedies) -> Iterator[Finding | Doubt]:
    """Where NVML told nothing: the width that the bus shows of each GPU."""
    cards = [device for device in devices.values() if device.kind == "gpu" and device.link is not None]
    for card in cards:
        link = card.link
        if link is not None and link.width is not None and link.max_width is not None and link.width < link.max_width:
            port = devices.get(card.parents[0]) if card.parents else None
            shown = Evidence(where=f"pci_devices: {card.address}", value=_described(link))
            yield _narrow(f"the GPU at {card.address}", card.address, link, port.link if port else None, (shown,), remedies)
    why = "the generation under load is not known" if cards else gpus.why or "not asked"
    yield Doubt(subject="GPUs", reason=f"PCIe link: {why}")


def _narrow(who: str, address: str, link: PcieLink, port: PcieLink | None, evidence: tuple[Evidence, ...], remedies: Remedies) -> Finding:
    by_slot = port is not None and port.max_width == link.width
    return Finding(
        subject=who,
        severity=Severity.INFO if by_slot else Severity.WARNING,
        summary=f"{who[:1].upper()}{who[1:]} uses {link.width} of {link.max_width} PCIe lanes (x{link.width}, not x{link.max_width})"
        + (": its slot has no more." if by_slot else "."),
        cause="The slot is wired for fewer lanes, or the firmware divides it (bifurcation)."
        if by_slot
        else "The slot is wired for fewer lanes or shares them (bifurcation, x8/x8 on desktop processors), the card, a riser or a cable is not well seated, "
        "or lanes are broken. Width does not fall at idle.",
        evidence=evidence,
        expected=f"x{link.max_width}",
        remedies=remedies("general", bdf=address),
        sources=SOURCES,
        fleet_case="width",
    )


def _evidence(gpu: Gpu, link: PcieLink) -> tuple[Evidence, ...]:
    return (
        Evidence(where=gpu.where or f"gpus[{gpu.index}].pcie", value=_described(link)),
        Evidence(
            where=gpu.where or f"gpus[{gpu.index}]",
            value=f"performance state {_shown(gpu.performance_state)}, {_shown(gpu.utilization_percent)} % in use",
        ),
    )


def _described(link: PcieLink) -> str:
    generation = "" if link.generation is None else f"generation {link.generation} of {_shown(link.max_generation)}, "
    return f"{generation}x{_shown(link.width)} of x{_shown(link.max_width)}"


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
