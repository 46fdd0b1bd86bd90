"""A PCIe link repeats packets, because they arrive damaged.

What it looks at
    The replay counter of each GPU, and how it grows between two readings (`--watch`, or the GPU tests in between). With one reading: the rate over the whole time since boot, or a number
    so large that no time explains it.

Why it matters
    A link repairs damaged packets by sending them again, which costs bandwidth; many of them announce a link that will fail (the GPU then falls off the bus). A few since boot are normal. Only two
    readings under load show the present rate: where there is one reading and it counts more than a few, the check cannot tell.

Sources
    NVML nvmlDeviceGetPcieReplayCounter; NVIDIA DCGM, PCIe health watch (a bit error rate of 1e-12) and diagnostic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.checks.pcie._reading import WATCH
from dsdoctor.facts import CounterGrowth, Gpu, Growth, PcieLink, Platform, Section, absent
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimit, HealthLimits

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


def grew(before: int, after: int, seconds: float = 60.0) -> Growth:
    """Two readings of GPU 0."""
    counter = CounterGrowth(gpu=0, counter="pcie.replay_count", before=before, after=after)
    return Growth(seconds=seconds, under_load=True, counters=(counter,))


CASES = (
    Case(
        title="32 in a minute, where generation 5 x16 may have 31",
        sections={"gpus": counting(132), "growth": grew(100, 132)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="32 packets in 60 s",
    ),
    Case(title="31 in a minute", sections={"gpus": counting(131), "growth": grew(100, 131)}, status=Status.PASS),
    Case(
        title="31 in ten seconds are still no minute's worth",
        sections={"gpus": counting(131), "growth": grew(100, 131, 10.0)},
        status=Status.PASS,
    ),
    Case(
        title="many since boot, and none of them now",
        sections={"gpus": counting(5000), "platform": Platform(uptime_s=3600.0), "growth": grew(5000, 5000)},
        status=Status.PASS,
    ),
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
    Case(
        title="just below: the mean since boot says nothing of now",
        sections={"gpus": counting(1800), "platform": Platform(uptime_s=3600.0)},
        status=Status.UNKNOWN,
        says="two readings",
    ),
    Case(title="a few in the first minute", sections={"gpus": counting(79), "platform": Platform(uptime_s=60.0)}, status=Status.PASS),
    Case(title="one since boot", sections={"gpus": counting(1)}, status=Status.PASS),
    Case(title="a huge number of unknown age", sections={"gpus": counting(100_000)}, status=Status.FAIL, says="100000"),
    Case(title="many, of unknown age", sections={"gpus": counting(99_999)}, status=Status.UNKNOWN, says="two readings"),
    Case(title="not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="replay counter"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("pcie.replay-rate", Severity.WARNING, explains=("smoke.bandwidth",), settle=f"{WATCH} --only pcie.replay-rate", cases=CASES)
def replay_rate(
    gpus: tuple[Gpu, ...],
    growth: Section[Growth],
    platform: Section[Platform],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the growth, else the mean since boot, with what a healthy link of that generation and width may count."""
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
        allowed = rate.per_lane_per_minute * (link.max_width or link.width or 1) if rate is not None else None
        grown = growth.value.of_gpu(gpu.index, "pcie.replay_count") if growth.value else None
        if grown is not None and growth.value is not None and allowed is not None:
            if grown.grown > math.ceil(allowed * max(1.0, growth.value.seconds / 60)):
                yield _finding(
                    gpu,
                    least,
                    f"has repeated {grown.grown} packets in {growth.value.seconds:.0f} s"
                    + (", while the GPU worked." if growth.value.under_load else "."),
                    (Evidence(where="growth", value=f"pcie.replay_count: {grown.before} to {grown.after}"),),
                    f"at most {math.ceil(allowed)} a minute",
                    remedies,
                )
            continue
        if count < least.amount:
            continue
        since_boot = (Evidence(where="platform.uptime_s", value=f"{uptime_s:.0f}"),) if uptime_s else ()
        if uptime_s and allowed is not None and count * 60 / uptime_s > allowed:
            text = f"has repeated {count} packets ({count * 60 / uptime_s:.1f} per minute since boot)."
            yield _finding(gpu, least, text, since_boot, f"at most {allowed:.0f} per minute", remedies)
        elif not uptime_s and count >= huge.amount:
            text = f"has repeated {count} packets (since the last reset, whenever that was)."
            yield _finding(gpu, huge, text, since_boot, "a few since the last reset", remedies)
        else:
            unknown.append((gpu, f"{count} since the last reset; whether it grows, only two readings show"))
    yield from doubts("replay counter", unknown)
    if all(gpu.pcie is None or gpu.pcie.replay_count is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here counts the packets that it repeats")


def _finding(gpu: Gpu, row: HealthLimit, problem: str, more: tuple[Evidence, ...], expected: str, remedies: Remedies) -> Finding:
    count = gpu.pcie.replay_count if gpu.pcie else None
    return Finding(
        subject=named(gpu),
        severity=capped(row.severity, row.basis),
        summary=f"The PCIe link of {named(gpu)} {problem}",
        cause="Card, riser, cable or slot damage what they carry. It is the growth under load that counts.",
        evidence=(Evidence(where=gpu.where or f"gpus[{gpu.index}].pcie.replay_count", value=str(count)), *more),
        expected=expected,
        remedies=remedies("general", gpu=str(gpu.index)) or (TELL_THE_HOST,),
        sources=row.basis.sources,
    )
