"""NVLinks count errors.

What it looks at
    The replay, recovery and CRC counters of each link, how they grow between two readings (`--watch`, or the GPU tests in between), and what the kernel log says about fatal errors of an
    NVSwitch (SXid).

Why it matters
    Links repair single errors by sending again; a healthy link counts none, so replays and recoveries announce a link that will fail, and every
    collective waits for it. The counters run since the driver was loaded or the GPU was reset: what matters is whether they grow under load.
    Old counts that do not grow while the GPU works are a note; CRC errors are judged by their rate alone.

Sources
    NVML fields 161 to 163; limits of NVIDIA DCGM and of public node-health projects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, named, why_unknown
from dsdoctor.facts import CounterGrowth, Gpu, Growth, KernelLog, KernelLogLine, NvLink, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimit, HealthLimits

FATAL_SXID = re.compile(r"SXid \([^)]*\): \d+, Fatal\b")
CRC = "CRC errors"
COUNTERS = (("replay errors", "nvlink-replay-errors"), ("recovery errors", "nvlink-recovery-errors"), (CRC, "nvlink-crc-errors"))

SXID_SOURCE = (
    "NVIDIA Fabric Manager user guide (SXid errors) — https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)


def h100(replay: int | None = 0, recovery: int | None = 0, crc: int | None = 0) -> tuple[Gpu, ...]:
    """An H100 whose last link has these counts."""
    clean = tuple(NvLink(index=number, active=True, replay_errors=0, recovery_errors=0, crc_errors=0) for number in range(17))
    last = NvLink(index=17, active=True, replay_errors=replay, recovery_errors=recovery, crc_errors=crc)
    return (Gpu(index=3, name="NVIDIA H100 80GB HBM3", nvlinks=(*clean, last)),)


def grew(kind: str, before: int, after: int, seconds: float = 10.0, under_load: bool = True) -> Growth:
    """Two readings of GPU 3, whose link 17 counted all of it."""
    counters = (
        CounterGrowth(gpu=3, counter=f"nvlinks.{kind}", before=before, after=after),
        CounterGrowth(gpu=3, counter=f"nvlinks[17].{kind}", before=before, after=after),
    )
    return Growth(seconds=seconds, under_load=under_load, counters=counters)


CASES = (
    Case(
        title="replays come while the GPU works",
        sections={"gpus": h100(replay=5), "growth": grew("replay_errors", 3, 5)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="2 more",
    ),
    Case(
        title="old replays, and none while the GPU worked",
        sections={"gpus": h100(replay=5), "growth": grew("replay_errors", 5, 5)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="none came",
    ),
    Case(
        title="a hundred CRC errors a second",
        sections={"gpus": h100(crc=1500), "growth": grew("crc_errors", 500, 1500)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="100 CRC errors a second",
    ),
    Case(
        title="ninety-nine a second",
        sections={"gpus": h100(crc=1490), "growth": grew("crc_errors", 500, 1490)},
        status=Status.PASS,
    ),
    Case(title="one replay", sections={"gpus": h100(replay=1)}, status=Status.FAIL, severity=Severity.WARNING, says="link 17"),
    Case(title="recoveries", sections={"gpus": h100(recovery=4)}, status=Status.FAIL, severity=Severity.WARNING, says="4 recovery"),
    Case(title="very many CRC errors", sections={"gpus": h100(crc=5_000_000)}, status=Status.FAIL, severity=Severity.INFO, says="5000000"),
    Case(
        title="a fatal error of a switch",
        sections={
            "gpus": h100(),
            "kernel_log": KernelLog(
                lines=(KernelLogLine(text="nvidia-nvswitch1: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),)
            ),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="NVSwitch",
    ),
    Case(title="all counters are zero", sections={"gpus": h100()}, status=Status.PASS),
    Case(
        title="some CRC errors since the last reset",
        sections={"gpus": h100(crc=99_999)},
        status=Status.UNKNOWN,
        says="two readings",
    ),
    Case(
        title="a switch error that is not fatal",
        sections={
            "gpus": h100(),
            "kernel_log": KernelLog(lines=(KernelLogLine(text="nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 28006, Non-fatal, Link 46 MC"),)),
        },
        status=Status.PASS,
    ),
    Case(
        title="no NVLink", sections={"gpus": (Gpu(index=0, name="NVIDIA L40S"),)}, status=Status.NOT_APPLICABLE, says="no NVLink is in use"
    ),
    Case(
        title="links are up and their counters are not known",
        sections={"gpus": (Gpu(index=0, nvlinks=(NvLink(index=0, active=True),)),)},
        status=Status.UNKNOWN,
        says="counters",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.nvlink-errors",
    Severity.WARNING,
    explains=("smoke.bandwidth", "smoke.collectives"),
    settle="dsdoctor check --quick --watch 60 --only gpu.nvlink-errors",
    cases=CASES,
)
def nvlink_errors(
    gpus: tuple[Gpu, ...],
    growth: Section[Growth],
    kernel_log: Section[KernelLog],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare each counter of each link with the limit of its kind."""
    limits = tuple((noun, health_limits_matrix.limit(id)) for noun, id in COUNTERS)
    unknown = []
    for gpu in gpus:
        links = gpu.nvlinks or ()
        if any(link.active for link in links) and all(count is None for link in links for count in _counts(link)):
            unknown.append((gpu, why_unknown(gpu, "nvlinks")))
        above = [
            (link, noun, count, row)
            for link in links
            for count, (noun, row) in zip(_counts(link), limits)
            if count is not None and count >= row.amount and not (noun == CRC and growth.value is not None)
        ]
        if above:
            yield _finding(gpu, above, growth.value, remedies)
        crc = sum(link.crc_errors or 0 for link in links)
        grown = growth.value.of_gpu(gpu.index, "nvlinks.crc_errors") if growth.value else None
        if grown is not None and growth.value is not None:
            yield from _crc_rate(gpu, growth.value, health_limits_matrix, remedies)
        elif crc and not any(noun == CRC for _, noun, _, _ in above):
            unknown.append((gpu, f"{crc} CRC errors since the last reset; how fast they come, only two readings show"))
    yield from doubts("error counters of the NVLinks", unknown)
    if all(count is None for gpu in gpus for link in gpu.nvlinks or () for count in _counts(link)):
        yield NotApplicable(reason="no NVLink is in use")
    lines = [line for line in kernel_log.value.lines if FATAL_SXID.search(line.text)] if kernel_log.value else []
    if lines:
        yield Finding(
            subject="NVSwitch",
            summary=f"An NVSwitch reported {'a fatal error' if len(lines) == 1 else f'{len(lines)} fatal errors'} (SXid).",
            cause="Links of that switch are down until the GPUs and the switch are reset; Fabric Manager's log names the GPUs that it serves.",
            evidence=tuple(Evidence(where=line.where or "kernel_log.lines", value=line.text) for line in lines[:4]),
            expected="no fatal SXid since boot",
            remedies=remedies(),
            sources=(SXID_SOURCE,),
        )


def _counts(link: NvLink) -> tuple[int | None, int | None, int | None]:
    return link.replay_errors, link.recovery_errors, link.crc_errors


def _crc_rate(gpu: Gpu, growth: Growth, limits: HealthLimits, remedies: Remedies) -> Iterator[Finding]:
    """Links whose CRC errors come too fast; the limit is for one link."""
    row = limits.limit("nvlink-crc-errors-per-second")
    rates = {
        item.counter.partition(".")[0]: item.grown / growth.seconds
        for item in growth.counters
        if item.gpu == gpu.index and item.counter.startswith("nvlinks[") and item.counter.endswith(".crc_errors") and growth.seconds > 0
    }
    fast = {link: rate for link, rate in rates.items() if rate >= row.amount}
    if fast:
        rate = max(fast.values())
        yield Finding(
            subject=named(gpu),
            severity=capped(row.severity, row.basis),
            summary=f"NVLinks of {named(gpu)} count up to {rate:.0f} CRC errors a second (on {len(fast)} of its links).",
            cause=row.text,
            evidence=tuple(Evidence(where=f"growth: {name}", value=f"{each:.1f} a second") for name, each in list(fast.items())[:8]),
            expected=f"fewer than {row.amount:.0f} a second on each link",
            remedies=remedies("general", gpu=str(gpu.index)),
            sources=row.basis.sources,
        )


def _came(gpu: Gpu, growth: Growth | None) -> int | None:
    """How many replays and recoveries came between two readings; None where there is one reading."""
    if growth is None:
        return None
    found = [growth.of_gpu(gpu.index, f"nvlinks.{kind}") for kind in ("replay_errors", "recovery_errors")]
    return sum(item.grown for item in found if item is not None) if any(found) else None


def _finding(gpu: Gpu, above: list[tuple[NvLink, str, int, HealthLimit]], growth: Growth | None, remedies: Remedies) -> Finding:
    severities = [capped(row.severity, row.basis) for _, _, _, row in above]
    shown = [f"link {link.index}: {count} {noun}" for link, noun, count, _ in above]
    came = _came(gpu, growth)
    is_old = came == 0 and growth is not None and growth.under_load
    now = (
        " The counters say nothing about when it happened."
        if came is None or growth is None
        else f" In the {growth.seconds:.0f} s between two readings {'none came' if came == 0 else f'{came} more came'}"
        + (", while the GPU worked." if growth.under_load else ".")
    )
    return Finding(
        subject=named(gpu),
        severity=Severity.INFO if is_old else min(severities, key=lambda severity: severity.rank),
        summary=f"NVLinks of {named(gpu)} count errors: {', '.join(shown[:3])}"
        + (f" and {len(shown) - 3} more." if len(shown) > 3 else "."),
        cause=" ".join(dict.fromkeys(row.text for _, _, _, row in above)) + now,
        evidence=(Evidence(where=gpu.where or f"gpus[{gpu.index}].nvlinks", value="; ".join(shown[:18])),),
        expected="counters that stay at 0 under load",
        remedies=remedies("general", gpu=str(gpu.index)),
        sources=above[0][3].basis.sources,
    )
