"""The driver reported faults of a GPU in the kernel log (Xid).

What it looks at
    The Xid lines since the driver was loaded, one GPU at a time, with the action that NVIDIA's catalogue names for each code (144 to 150 are decoded by unit, bits and
    driver branch), and what the driver says now (the recovery action of NVML, or the last Xid 154).

Why it matters
    An Xid is where a crash of CUDA has its real reason. Most codes concern one program: it died, the GPU is fine. Some ask for a reset or a reboot, and
    until then every new job on that GPU fails too. Codes that the catalogue marks as information are not reported here, and Xid 45 is the usual trace of
    a program that was killed. A log of this boot also keeps what a reset has mended since: when the driver asks for nothing now, old faults are a note, so that a
    healed node turns green by itself. Where the driver does not say (before 570), a fault of the last two hours counts in full, an older one less.

Sources
    NVIDIA Xid catalogue (actions per code); NVML field GPU_RECOVERY_ACTION.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version, no_gpu
from dsdoctor.checks.gpu._nvlink_xid import Decoded, decode
from dsdoctor.checks.gpu._reading import capped, named
from dsdoctor.facts import Gpu, KernelDriver, KernelLog, KernelLogLine, NvmlVersions, Platform, Section, State, Xid, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCodes, HealthLimits, XidSeverity

if TYPE_CHECKING:
    from dsdoctor.rows_health import NvlinkXids

RECOVERY_CHANGED, XID_154 = 154, "XID_154"
KILLED = "workflow-xid-45"
"""Case of the remedy of Xid 45."""
NO_ACTION = re.compile(r"\bto\b[^(]{0,20}\(\s*None\s*\)", re.IGNORECASE)
"""The end of the line of Xid 154 when the GPU asks for nothing any more."""

PREVIOUS = re.compile(r"\bcaused by previous Xid (\d{1,3})\b")
DRIVER_LOADED = re.compile(r"\bloading NVIDIA UNIX\b")
"""The driver was loaded anew: what it reported before is over."""

MOST_LINES = 6

ADDRESS = "0000:9c:00.0"


def said(code: int, text: str = "", address: str = ADDRESS, at_s: float | None = None) -> Xid:
    """An Xid of a GPU."""
    return Xid(code=code, pci_address=address, text=f"NVRM: Xid (PCI:{address[:-2]}): {code}, {text}", seconds_since_boot=at_s)


def log(*xids: Xid) -> KernelLog:
    """A kernel log with these Xids."""
    return KernelLog(xids=xids)


def nvlink(code: int, details: str) -> Xid:
    """An Xid of NVLink 5."""
    return said(code, f"{details} 0x00000000 0x00000000 0x00000000 0x00000000)")


R580, R570 = KernelDriver(version="580.159.04"), KernelDriver(version="570.133.20")


CASES = (
    Case(
        title="a double-bit error, a remap, and the driver asks for a reset",
        sections={
            "kernel_log": log(
                said(48, "DBE in the framebuffer"), said(63, "row marked"), said(94, "Contained"), said(154, "(Drain and Reset)")
            ),
            "gpus": (Gpu(index=2, name="NVIDIA A100 80GB PCIe", pci_address=ADDRESS, recovery_action=4),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="Xid 48",
    ),
    Case(title="the system processor timed out", sections={"kernel_log": log(said(119, "Timeout of GSP"))}, status=Status.FAIL, says="119"),
    Case(
        title="a reset since then: the driver asks for nothing",
        sections={"kernel_log": log(said(119)), "gpus": (Gpu(index=0, pci_address=ADDRESS, recovery_action=0),)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="asks for nothing",
    ),
    Case(
        title="the last Xid 154 says that nothing is asked any more",
        sections={"kernel_log": log(said(95), said(154, "action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="asks for nothing",
    ),
    Case(
        title="a page fault after Xid 154 said that nothing is asked any more",
        sections={"kernel_log": log(said(95), said(154, "action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), said(31))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="Xid 31",
    ),
    Case(
        title="page faults of a program",
        sections={"kernel_log": log(*(said(31, "MMU Fault") for _ in range(12)))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="12 times",
    ),
    Case(
        title="killed programs leave Xid 45",
        sections={"kernel_log": log(said(45, "Ch 00000008"))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="killed",
    ),
    Case(
        title="Xid 45 names the Xid that caused it, whose own line the log does not have",
        sections={"kernel_log": log(said(45, "pid=4711, name=python3, Ch 00000001 caused by previous Xid 149"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Xid 149",
    ),
    Case(
        title="Xid 45 beside another one says nothing more",
        sections={"kernel_log": log(said(45), said(13))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="Xid 13",
    ),
    Case(
        title="three hours ago, and the driver does not say what it asks for",
        sections={"kernel_log": log(said(119, at_s=100.0)), "platform": Platform(uptime_s=10_900.0)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="3.0 hours",
    ),
    Case(
        title="one hour ago",
        sections={"kernel_log": log(said(119, at_s=100.0)), "platform": Platform(uptime_s=3_700.0)},
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="page faults of a program, three hours ago",
        sections={"kernel_log": log(said(31, at_s=100.0)), "platform": Platform(uptime_s=10_900.0)},
        status=Status.PASS,
    ),
    Case(
        title="the driver was loaded anew since then",
        sections={
            "kernel_log": KernelLog(
                xids=(said(119, at_s=100.0),),
                lines=(KernelLogLine(text="NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04", seconds_since_boot=500.0),),
            )
        },
        status=Status.PASS,
    ),
    Case(
        title="an NVLink 5 link that went down",
        sections={"kernel_log": log(nvlink(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6")), "kernel_driver": R570},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="NETIR_LINK_EVT, link 8",
    ),
    Case(
        title="an NVLink 5 error that the catalogue calls information",
        sections={"kernel_log": log(nvlink(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 02 (0x00000013")), "kernel_driver": R580},
        status=Status.PASS,
    ),
    Case(
        title="the same bits mean nothing to a driver that lays them out in the other way",
        sections={"kernel_log": log(nvlink(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 02 (0x00000013")), "kernel_driver": R570},
        status=Status.UNKNOWN,
        says="fits no row",
    ),
    Case(title="only what the catalogue calls information", sections={"kernel_log": log(said(63), said(43), said(92))}, status=Status.PASS),
    Case(title="a quiet log", sections={"kernel_log": log()}, status=Status.PASS),
    Case(title="a code newer than the catalogue", sections={"kernel_log": log(said(185))}, status=Status.UNKNOWN, says="185"),
    Case(title="a log that may not be read", sections={"kernel_log": unreadable("not permitted")}, status=Status.UNKNOWN, says="permitted"),
    Case(
        title="a quiet log of a machine without GPU",
        sections={"kernel_log": log(), "gpus": absent("there is no NVIDIA GPU")},
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU",
    ),
)


@check(
    "gpu.xid",
    Severity.ERROR,
    explains=("smoke.*", "torch.cuda-unavailable", "gpu.ecc-uncorrectable"),
    settle="sudo dmesg -T | grep -E 'NVRM: Xid|SXid'",
    cases=CASES,
)
def xid(
    kernel_log: KernelLog,
    gpus: Section[tuple[Gpu, ...]],
    platform: Section[Platform],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    error_codes_matrix: ErrorCodes,
    health_limits_matrix: HealthLimits,
    nvlink_xids_matrix: NvlinkXids,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Group the Xids by GPU, and name the worst of each with what it asks for."""
    if not kernel_log.xids and gpus.state is State.ABSENT:
        yield no_gpu(gpus)
    reading = driver_version(kernel_driver, nvml_versions)
    ground = _Ground(
        error_codes_matrix,
        health_limits_matrix,
        nvlink_xids_matrix,
        branch=reading[0].branch if reading else None,
        uptime_s=platform.value.uptime_s if platform.value else None,
        remedies=remedies,
    )
    loaded_at = max((line.seconds_since_boot or 0.0 for line in kernel_log.lines if DRIVER_LOADED.search(line.text)), default=0.0)
    by_address: dict[str, list[Xid]] = {}
    for event in kernel_log.xids:
        if event.seconds_since_boot is None or event.seconds_since_boot >= loaded_at:
            by_address.setdefault(event.pci_address, []).append(event)
    here = {gpu.pci_address: gpu for gpu in gpus.value or ()}
    for address, events in by_address.items():
        yield from _of_gpu(address, here.get(address), tuple(_with_causes(events)), ground)


def _with_causes(events: Sequence[Xid]) -> Iterator[Xid]:
    """The Xids, each before the first Xid 45 that names it as the cause, also where the log has lost its own line."""
    there = {event.code for event in events}
    for event in events:
        previous = PREVIOUS.search(event.text)
        if previous and int(previous[1]) not in there:
            there.add(int(previous[1]))
            yield replace(event, code=int(previous[1]))
        yield event


@dataclass(frozen=True, slots=True)
class _Ground:
    """What Xids are judged by."""

    codes: ErrorCodes
    limits: HealthLimits
    nvlink: NvlinkXids
    branch: int | None
    """Of the driver."""
    uptime_s: float | None
    remedies: Remedies

    def age_s(self, event: Xid) -> float | None:
        """How long ago it was, where log and clock tell."""
        if self.uptime_s is None or event.seconds_since_boot is None:
            return None
        return max(0.0, self.uptime_s - event.seconds_since_boot)

    def is_recent(self, event: Xid) -> bool:
        """Whether it is within the window; without a time it is."""
        age_s = self.age_s(event)
        return age_s is None or age_s <= self.limits.limit("xid-window-seconds").amount


@dataclass(frozen=True, slots=True)
class _Read:
    """One Xid, and what the catalogue makes of it."""

    event: Xid
    row: XidSeverity
    decoded: Decoded | None = None


def _of_gpu(address: str, gpu: Gpu | None, events: Sequence[Xid], ground: _Ground) -> Iterator[Finding | Doubt]:
    subject = named(gpu) if gpu else f"GPU at {address}" if address else "a GPU"
    mended = [number for number, event in enumerate(events) if event.code == RECOVERY_CHANGED and NO_ACTION.search(event.text)]
    events = events[mended[-1] + 1 :] or events if mended else events
    read: list[_Read] = []
    unknown: dict[int, str] = {}
    for event in events:
        found = _read(event, ground)
        if isinstance(found, str):
            unknown[event.code] = found
        else:
            read.append(found)
    for code in sorted(unknown):
        yield Doubt(subject=subject, reason=f"Xid {code} {unknown[code]}: unknown, not harmless and not fatal")
    judged = [item for item in read if item.row.severity]
    grave = [item for item in judged if item.row.severity != Severity.INFO.value]
    settled = _is_settled(gpu, events)
    if settled and all(item.row.bucket == XID_154 for item in grave):
        grave = []
    if grave:
        changes = [item for item in read if item.event.code == RECOVERY_CHANGED and item not in grave]
        yield _fault(subject, gpu, sorted([*grave, *changes], key=read.index), grave, settled, ground)
    program = [item for item in judged if item.row.severity == Severity.INFO.value and ground.is_recent(item.event)]
    if len({event.code for event in events}) > 1:
        program = [item for item in program if item.row.remedy != KILLED]
    if program:
        yield _of_a_program(subject, gpu, program, ground)


def _read(event: Xid, ground: _Ground) -> _Read | str:
    """The row of an event, or why there is none."""
    known = ground.codes.xid(event.code)
    row = ground.limits.xid_bucket(known.bucket) if known else None
    if row is None:
        return "is not in this catalogue"
    if event.code not in ground.nvlink.codes():
        return _Read(event, row)
    decoded = decode(event, ground.nvlink, ground.branch)
    if decoded is None:
        return _Read(event, row)
    exact = ground.limits.xid_bucket(decoded.bucket) if decoded.bucket else None
    if exact is None and not decoded.is_fatal:
        return f"({decoded.words}) fits no row of this catalogue"
    return _Read(event, exact or row, decoded)


def _is_settled(gpu: Gpu | None, events: Sequence[Xid]) -> bool:
    """Whether the driver asks for nothing now: NVML says so, or the last Xid of this GPU does."""
    if gpu is not None and gpu.recovery_action is not None:
        return gpu.recovery_action == 0
    changes = [event for event in events if event.code == RECOVERY_CHANGED]
    return bool(changes) and events[-1] is changes[-1] and NO_ACTION.search(changes[-1].text) is not None


def _fault(subject: str, gpu: Gpu | None, shown: Sequence[_Read], grave: Sequence[_Read], settled: bool, ground: _Ground) -> Finding:
    # 154 only names what the others ask for, so it comes last among equals.
    ordered = sorted(grave, key=lambda item: (_severity(item).rank, item.event.code == RECOVERY_CHANGED, item.event.code))
    worst = ordered[0]
    bucket = ground.codes.xid_bucket(worst.row.bucket)
    asked_for = gpu is not None and bool(gpu.recovery_action)
    ages = [age_s for item in grave if (age_s := ground.age_s(item.event)) is not None]
    is_old = not asked_for and not any(ground.is_recent(item.event) for item in grave)
    cases = dict.fromkeys(item.row.remedy for item in ordered)
    return Finding(
        subject=subject,
        severity=Severity.INFO if settled else max(_severity(worst), Severity.WARNING, key=_rank) if is_old else _severity(worst),
        summary=f"The driver reported {_list(ordered, shown, ground.codes)} on {subject}.",
        cause=(f"NVIDIA's catalogue on Xid {worst.event.code}: {bucket.text}." if bucket else "")
        + (
            " The driver asks for nothing now: the GPU was reset since then, or the error has passed."
            if settled
            else f" The last was {min(ages) / 3600:.1f} hours ago, and whether the GPU was reset since then is not known."
            if is_old and ages
            else ""
        ),
        evidence=_evidence(shown),
        expected="no Xid that asks for an action since the last reset of the GPU",
        remedies=tuple(remedy for case in list(cases)[:2] for remedy in ground.remedies(case, **_fill(gpu))[:2])[:3],
        sources=worst.row.basis.sources,
        fleet_case=worst.row.bucket,
    )


def _severity(item: _Read) -> Severity:
    return capped(item.row.severity, item.row.basis)


def _rank(severity: Severity) -> int:
    return severity.rank


def _of_a_program(subject: str, gpu: Gpu | None, program: Sequence[_Read], ground: _Ground) -> Finding:
    ordered = sorted(program, key=lambda item: item.event.code)
    killed = all(item.row.remedy == KILLED for item in program)
    return Finding(
        subject=subject,
        severity=Severity.INFO,
        summary=f"Programs died on {subject}: {_list(ordered, program, ground.codes)}.",
        cause=(
            "Most often the trace of a program that was killed; on an NVSwitch system also of a Fabric Manager that stopped."
            if killed
            else "The GPU is usable. The reason lies in the program (a bad address, a wrong kernel for this GPU); "
            "when different programs fail in the same way, have the GPU tested."
        ),
        evidence=_evidence(program),
        expected="no Xid while the load runs",
        remedies=ground.remedies(ordered[0].row.remedy, **_fill(gpu))[:2],
        sources=ordered[0].row.basis.sources,
        fleet_case=ordered[0].row.bucket,
    )


def _fill(gpu: Gpu | None) -> dict[str, str]:
    return {"gpu": str(gpu.index)} if gpu else {}


def _list(ordered: Sequence[_Read], lines: Sequence[_Read], codes: ErrorCodes) -> str:
    """'Xid 48 (double-bit ECC error), Xid 31 (12 times), Xid 149 (NETIR_LINK_EVT, link 8)'."""
    counts = Counter(item.event.code for item in lines)
    first = {item.event.code: item for item in reversed(ordered)}
    parts = []
    for code in dict.fromkeys(item.event.code for item in ordered):
        known, decoded = codes.xid(code), first[code].decoded
        meaning = decoded.words if decoded else known.meaning if known else ""
        notes = [text for text in (meaning, f"{counts[code]} times" if counts[code] > 1 else "") if text]
        parts.append(f"Xid {code}" + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(parts)


def _evidence(lines: Sequence[_Read]) -> tuple[Evidence, ...]:
    """The first line of each code, and the newest line."""
    events = [item.event for item in lines]
    first = {event.code: event for event in reversed(events)}
    chosen = sorted({id(event): event for event in (*first.values(), events[-1])}.values(), key=events.index)
    return tuple(
        Evidence(
            where=event.where or "kernel_log.xids",
            value=(f"[{event.seconds_since_boot:.0f} s after boot] " if event.seconds_since_boot is not None else "") + event.text,
        )
        for event in chosen[:MOST_LINES]
    )
