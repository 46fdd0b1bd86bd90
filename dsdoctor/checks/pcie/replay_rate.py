"""A PCIe link repeats packets, because they arrive damaged.

What it looks at
    The replay counter of each GPU, and how long the machine has been up: the rate over that whole time, or a number so large that no time explains it.

Why it matters
    A link repairs damaged packets by sending them again, which costs bandwidth; many of them announce a link that will fail (the GPU then falls off the bus). A few since boot are normal. Only two
    readings under load show the present rate; this check sees one, so it speaks up only where even the mean since boot is too high.

Sources
    NVML nvmlDeviceGetPcieReplayCounter; NVIDIA DCGM, PCIe health watch (a bit error rate of 1e-12) and diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.facts import Gpu, PcieLink, Platform, Section, absent
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

TELL_THE_HOST = Remedy(
    summary="Tell whoever runs the host",
    steps=("a guest cannot mend the link: read the counter twice, some minutes apart and under load, and report both",),
    verify=Verify(command="nvidia-smi -q | grep -i replay", prints="a counter that does not grow under load"),
    disruption=Disruption.REBOOT,
)


def counting(replays: int | None, generation: int = 5) -> tuple[Gpu, ...]:
    """An H200 at x16 that has counted so many replays."""
    link = PcieLink(generation=generation, width=16, max_generation=generation, max_width=16, replay_count=replays)
    return (Gpu(index=0, name="NVIDIA H200", pcie=link),)


CASES = (
    Case(
        title="thousands within an hour",
        sections={"gpus": counting(5000), "platform": Platform(uptime_s=3600.0)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="per minute",
    ),
    Case(
        title="just above the rate of generation 5 x16 (31 a minute)",
        sections={"gpus": counting(1860), "platform": Platform(uptime_s=3600.0)},
        status=Status.FAIL,
        says="31.0 per minute",
    ),
    Case(title="just below", sections={"gpus": counting(1800), "platform": Platform(uptime_s=3600.0)}, status=Status.PASS),
    Case(title="a few in the first minute", sections={"gpus": counting(79), "platform": Platform(uptime_s=60.0)}, status=Status.PASS),
    Case(title="one since boot", sections={"gpus": counting(1)}, status=Status.PASS),
    Case(title="a huge number of unknown age", sections={"gpus": counting(100_000)}, status=Status.FAIL, says="100000"),
    Case(title="many, of unknown age", sections={"gpus": counting(99_999)}, status=Status.PASS),
    Case(title="not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="replay counter"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("pcie.replay-rate", Severity.WARNING, explains=("smoke.bandwidth",), settle="nvidia-smi -q | grep -i replay", cases=CASES)
def replay_rate(
    gpus: tuple[Gpu, ...], platform: Section[Platform], health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the mean rate since boot with what a healthy link of that generation and width may count."""
    least, huge = health_limits_matrix.limit("pcie-replays"), health_limits_matrix.limit("pcie-replays-of-unknown-age")
    uptime_s = platform.value.uptime_s if platform.value else None
    unknown = []
    for gpu in gpus:
        link = gpu.pcie
        if link is None or link.replay_count is None:
            if not is_not_there(gpu, "pcie") and not is_not_there(gpu, "pcie.replay_count"):
                unknown.append((gpu, why_unknown(gpu, "pcie.replay_count", "pcie")))
            continue
        count = link.replay_count
        rate = health_limits_matrix.replay_rate(link.max_generation or link.generation or 0)
        if count < least.amount:
            continue
        if uptime_s and rate is not None:
            allowed = rate.per_lane_per_minute * (link.max_width or link.width or 1)
            per_minute = count * 60 / uptime_s
            row, is_too_many = least, per_minute > allowed
            shown, expected = f"{per_minute:.1f} per minute since boot", f"at most {allowed:.0f} per minute"
        else:
            row, is_too_many = huge, count >= huge.amount
            shown, expected = "since the last reset, whenever that was", "a few since the last reset"
        if is_too_many:
            yield Finding(
                subject=named(gpu),
                severity=capped(row.severity, row.basis),
                summary=f"The PCIe link of {named(gpu)} has repeated {count} packets ({shown}).",
                cause="Card, riser, cable or slot damage what they carry. Read the counter again under load: it is the growth that counts.",
                evidence=(
                    Evidence(where=gpu.where or f"gpus[{gpu.index}].pcie.replay_count", value=str(count)),
                    *((Evidence(where="platform.uptime_s", value=f"{uptime_s:.0f}"),) if uptime_s else ()),
                ),
                expected=expected,
                remedies=remedies("general", gpu=str(gpu.index)) or (TELL_THE_HOST,),
                sources=row.basis.sources,
            )
    yield from doubts("replay counter", unknown)
    if all(gpu.pcie is None or gpu.pcie.replay_count is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here counts the packets that it repeats")
