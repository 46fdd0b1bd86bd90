"""Something holds the clocks of a GPU down.

What it looks at
    The reasons that the driver gives for the present clocks (clock event reasons), the degrees left to the slowdown, and the power limit against its default.

Why it matters
    A GPU that is too hot, or whose power supply asks for less, runs at half its clocks or below, and in a job of many GPUs all wait for the slowest. Idle GPUs
    and GPUs that work at their power limit give reasons too: those are normal. One reading is a moment; look again under load before
    anybody opens the machine. A lowered power limit is often on purpose (the budget of the rack), and then only worth knowing.

Sources
    NVML clock event reasons; nvidia-smi manual; rules of DCGM, gpud and AzNHC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.facts import Gpu, absent
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ClockReason, HealthLimits

TELL_THE_HOST = Remedy(
    summary="Tell whoever runs the host",
    steps=(
        "a guest can change neither cooling nor power: report the GPU (UUID), the reason and the time",
        "in a cloud: stop and start the machine, so that it is placed on another host",
    ),
    verify=Verify(command="nvidia-smi -q -d PERFORMANCE", prints="no HW or thermal slowdown under load"),
    disruption=Disruption.REBOOT,
    drain=True,
)


def with_reasons(*reasons: str, limit_w: float = 700.0, margin_c: int = 48) -> tuple[Gpu, ...]:
    """One H200 with these clock event reasons."""
    return (
        Gpu(
            index=0,
            name="NVIDIA H200",
            clock_event_reasons=reasons,
            power_limit_w=limit_w,
            power_default_limit_w=700.0,
            sm_clock_mhz=1980,
            sm_clock_max_mhz=1980,
            temperature_c=39,
            temperature_margin_c=margin_c,
        ),
    )


CASES = (
    Case(
        title="too hot",
        sections={"gpus": with_reasons("hw_slowdown", "hw_thermal_slowdown")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="too hot",
    ),
    Case(
        title="the power supply brakes it",
        sections={"gpus": with_reasons("hw_slowdown", "hw_power_brake_slowdown")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="power brake",
    ),
    Case(
        title="half the default power limit",
        sections={"gpus": with_reasons("sw_power_cap", limit_w=350.0)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="350 W",
    ),
    Case(title="just above nine tenths of it", sections={"gpus": with_reasons("sw_power_cap", limit_w=631.0)}, status=Status.PASS),
    Case(title="just below", sections={"gpus": with_reasons("gpu_idle", limit_w=629.0)}, status=Status.FAIL, says="629 W"),
    Case(
        title="no degree left under load",
        sections={"gpus": with_reasons("sw_power_cap", margin_c=0)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="margin 0",
    ),
    Case(title="one degree left", sections={"gpus": with_reasons("sw_power_cap", margin_c=1)}, status=Status.PASS),
    Case(title="idle, and a driver that gives no margin then", sections={"gpus": with_reasons("gpu_idle", margin_c=0)}, status=Status.PASS),
    Case(title="idle", sections={"gpus": with_reasons("gpu_idle")}, status=Status.PASS),
    Case(title="large matrix products at the power limit", sections={"gpus": with_reasons("sw_power_cap")}, status=Status.PASS),
    Case(title="no reason at all", sections={"gpus": with_reasons()}, status=Status.PASS),
    Case(title="a bit that no row names", sections={"gpus": with_reasons("bit_12")}, status=Status.UNKNOWN, says="bit_12"),
    Case(title="not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="clock event reasons"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.throttled", Severity.WARNING, explains=("smoke.rate", "smoke.bandwidth"), settle="nvidia-smi -q -d PERFORMANCE,POWER", cases=CASES
)
def throttled(gpus: tuple[Gpu, ...], health_limits_matrix: HealthLimits, remedies: Remedies) -> Iterator[Finding | Doubt | NotApplicable]:
    """Sort the reasons into faults and normal ones, and compare the power limit with its default."""
    unknown = []
    for gpu in gpus:
        if gpu.clock_event_reasons is None:
            if not is_not_there(gpu, "clock_event_reasons"):
                unknown.append((gpu, why_unknown(gpu, "clock_event_reasons")))
        else:
            rows = [(reason, health_limits_matrix.clock_reason(reason)) for reason in gpu.clock_event_reasons]
            unknown += [(gpu, f"'{reason}' is not in this knowledge") for reason, row in rows if row is None]
            faults = [row for _, row in rows if row is not None and row.severity]
            if faults:
                yield _held_down(gpu, faults, remedies)
            if not any(row.thermal for row in faults):
                yield from _too_hot(gpu, health_limits_matrix, remedies)
        yield from _lowered(gpu, health_limits_matrix, remedies)
    yield from doubts("clock event reasons", unknown)
    if all(gpu.clock_event_reasons is None and gpu.power_limit_w is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here says what holds its clocks down")


def _held_down(gpu: Gpu, faults: Sequence[ClockReason], remedies: Remedies) -> Finding:
    hot = any(row.thermal for row in faults)
    # hw_slowdown stands for either of the two that follow it, and says nothing more where one of them is there.
    precise = [row for row in faults if row.reason != "hw_slowdown"] or list(faults)
    return Finding(
        subject=named(gpu),
        severity=min((capped(row.severity, row.basis) for row in faults), key=lambda severity: severity.rank),
        summary=f"The clocks of {named(gpu)} are held down now: {'; '.join(row.text for row in precise)}.",
        cause=(
            "Cooling: fans, air flow, inlet temperature, the seat of the heat sink."
            if hot
            else "Power supply, its cables, or the limit of the chassis."
        )
        + " This is one reading: a reason that stays under load is a fault, one that passes is not.",
        evidence=(
            Evidence(where=gpu.where or f"gpus[{gpu.index}].clock_event_reasons", value=", ".join(gpu.clock_event_reasons or ())),
            Evidence(where=f"gpus[{gpu.index}]", value=_state(gpu)),
        ),
        expected="no thermal, slowdown or power-brake reason under load",
        remedies=remedies("hardware", gpu=str(gpu.index)) or (TELL_THE_HOST,),
        sources=faults[0].basis.sources,
    )


def _too_hot(gpu: Gpu, limits: HealthLimits, remedies: Remedies) -> Iterator[Finding]:
    """The margin of a GPU that works; an idle one reads 0 with some drivers."""
    row = limits.limit("temperature-margin-c")
    margin_c = gpu.temperature_margin_c
    if margin_c is None or margin_c > row.amount or "gpu_idle" in (gpu.clock_event_reasons or ()):
        return
    yield Finding(
        subject=named(gpu),
        severity=capped(row.severity, row.basis),
        summary=f"{named(gpu)} has no degree left to the temperature at which its clocks are lowered (margin {margin_c} °C).",
        cause=f"{row.text} Cooling: fans, air flow, inlet temperature, the seat of the heat sink.",
        evidence=(
            Evidence(where=gpu.where or f"gpus[{gpu.index}].temperature_margin_c", value=str(margin_c)),
            Evidence(where=f"gpus[{gpu.index}]", value=_state(gpu)),
        ),
        expected="a margin above 0 under load",
        remedies=remedies("hardware", gpu=str(gpu.index)) or (TELL_THE_HOST,),
        sources=row.basis.sources,
    )


def _lowered(gpu: Gpu, limits: HealthLimits, remedies: Remedies) -> Iterator[Finding]:
    row = limits.limit("lowered-power-limit-share")
    limit_w, default_w = gpu.power_limit_w, gpu.power_default_limit_w
    if limit_w is None or not default_w or limit_w >= row.amount * default_w:
        return
    yield Finding(
        subject=named(gpu),
        severity=capped(row.severity, row.basis),
        summary=f"The power limit of {named(gpu)} is {limit_w:.0f} W; its default is {default_w:.0f} W.",
        cause=f"{row.text} Somebody lowered it, perhaps for the power budget of the rack.",
        evidence=(
            Evidence(where=gpu.where or f"gpus[{gpu.index}].power_limit_w", value=f"{limit_w:g}"),
            Evidence(where=gpu.where or f"gpus[{gpu.index}].power_default_limit_w", value=f"{default_w:g}"),
        ),
        expected=f"{default_w:.0f} W, unless somebody wants less",
        remedies=remedies("limits", gpu=str(gpu.index), watts=f"{default_w:.0f}"),
        sources=row.basis.sources,
        fleet_case="power-limit",
    )


def _state(gpu: Gpu) -> str:
    clock = f"SM clock {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz" if gpu.sm_clock_mhz is not None else ""
    heat = f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    margin = f"{gpu.temperature_margin_c} °C left to the slowdown" if gpu.temperature_margin_c is not None else ""
    use = f"{gpu.utilization_percent} % in use" if gpu.utilization_percent is not None else ""
    return ", ".join(text for text in (clock, heat, margin, use) if text) or "nothing more is known"
