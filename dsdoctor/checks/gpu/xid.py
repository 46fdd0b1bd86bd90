"""The driver reported faults of a GPU in the kernel log (Xid).

What it looks at
    The Xid lines of this boot, one GPU at a time, with the action that NVIDIA's catalogue names for each code, and what the driver says now (the recovery
    action of NVML, or the last Xid 154).

Why it matters
    An Xid is where a crash of CUDA has its real reason. Most codes concern one program: it died, the GPU is fine. Some ask for a reset or a reboot, and
    until then every new job on that GPU fails too. Codes that the catalogue marks as information are not reported here, and Xid 45 is the usual trace of
    a program that was killed. A log of this boot also keeps what a reset has mended since: when the driver asks for nothing now, old faults weigh less.

Sources
    NVIDIA Xid catalogue (actions per code); NVML field GPU_RECOVERY_ACTION.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.gpu._reading import capped, named
from dsdoctor.facts import Gpu, KernelLog, Section, State, Xid, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCodes, HealthLimits, XidSeverity

RECOVERY_CHANGED = 154
NO_ACTION = re.compile(r"\bto\b[^(]{0,20}\(\s*None\s*\)", re.IGNORECASE)
"""The end of the line of Xid 154 when the GPU asks for nothing any more."""

MOST_LINES = 6

ADDRESS = "0000:9c:00.0"


def said(code: int, text: str = "", address: str = ADDRESS, at_s: float | None = None) -> Xid:
    """An Xid of a GPU."""
    return Xid(code=code, pci_address=address, text=f"NVRM: Xid (PCI:{address[:-2]}): {code}, {text}", seconds_since_boot=at_s)


def log(*xids: Xid) -> KernelLog:
    """A kernel log with these Xids."""
    return KernelLog(xids=xids)


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
        severity=Severity.WARNING,
        says="asks for nothing",
    ),
    Case(
        title="the last Xid 154 says that nothing is asked any more",
        sections={"kernel_log": log(said(95), said(154, "action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="asks for nothing",
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
        title="Xid 45 beside another one says nothing more",
        sections={"kernel_log": log(said(45), said(13))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="Xid 13",
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
    error_codes_matrix: ErrorCodes,
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Group the Xids by GPU, and name the worst of each with what it asks for."""
    if not kernel_log.xids and gpus.state is State.ABSENT:
        yield no_gpu(gpus)
    by_address: dict[str, list[Xid]] = {}
    for event in kernel_log.xids:
        by_address.setdefault(event.pci_address, []).append(event)
    here = {gpu.pci_address: gpu for gpu in gpus.value or ()}
    for address, events in by_address.items():
        yield from _of_gpu(address, here.get(address), events, error_codes_matrix, health_limits_matrix, remedies)


def _of_gpu(
    address: str, gpu: Gpu | None, events: Sequence[Xid], codes: ErrorCodes, limits: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    subject = named(gpu) if gpu else f"GPU at {address}" if address else "a GPU"
    rows = {event.code: _row(event.code, codes, limits) for event in events}
    for code in sorted(code for code, row in rows.items() if row is None):
        yield Doubt(subject=subject, reason=f"Xid {code} is not in this catalogue: unknown, not harmless and not fatal")
    judged = {code: row for code, row in rows.items() if row is not None and row.severity}
    grave = {code: row for code, row in judged.items() if row.severity != Severity.INFO.value}
    if set(grave) == {RECOVERY_CHANGED} and _is_settled(gpu, events):
        grave = {}
    program = {code: row for code, row in judged.items() if row.severity == Severity.INFO.value}
    if grave:
        yield _fault(subject, gpu, [event for event in events if event.code in {*grave, RECOVERY_CHANGED}], grave, events, codes, remedies)
    if len(set(rows)) > 1:
        program = {code: row for code, row in program.items() if row.remedy != "workflow-xid-45"}
    if program:
        yield _of_a_program(subject, gpu, [event for event in events if event.code in program], program, codes, remedies)


def _row(code: int, codes: ErrorCodes, limits: HealthLimits) -> XidSeverity | None:
    known = codes.xid(code)
    return limits.xid_bucket(known.bucket) if known else None


def _is_settled(gpu: Gpu | None, events: Sequence[Xid]) -> bool:
    """Whether the driver asks for nothing now: NVML says so, or the last Xid of this GPU does."""
    if gpu is not None and gpu.recovery_action is not None:
        return gpu.recovery_action == 0
    changes = [event for event in events if event.code == RECOVERY_CHANGED]
    return bool(changes) and events[-1] is changes[-1] and NO_ACTION.search(changes[-1].text) is not None


def _fault(
    subject: str,
    gpu: Gpu | None,
    lines: Sequence[Xid],
    grave: dict[int, XidSeverity],
    events: Sequence[Xid],
    codes: ErrorCodes,
    remedies: Remedies,
) -> Finding:
    settled = _is_settled(gpu, events)
    # 154 only names what the others ask for, so it comes last among equals.
    ordered = sorted(grave, key=lambda code: (capped(grave[code].severity, grave[code].basis).rank, code == RECOVERY_CHANGED, code))
    worst = ordered[0]
    row = grave[worst]
    known, severity = codes.xid(worst), capped(row.severity, row.basis)
    bucket = codes.xid_bucket(known.bucket) if known else None
    return Finding(
        subject=subject,
        severity=Severity.WARNING if settled and severity is Severity.ERROR else severity,
        summary=f"The driver reported {_list(ordered, lines, codes)} on {subject}.",
        cause=(f"NVIDIA's catalogue on Xid {worst}: {bucket.text}." if bucket else "")
        + (" The driver asks for nothing now: the GPU was reset since then, or the error has passed." if settled else ""),
        evidence=_evidence(lines),
        expected="no Xid that asks for an action since the last reset of the GPU",
        remedies=tuple(
            remedy for case in dict.fromkeys(grave[code].remedy for code in ordered[:2]) for remedy in remedies(case, **_fill(gpu))[:2]
        )[:3],
        sources=row.basis.sources,
    )


def _of_a_program(
    subject: str, gpu: Gpu | None, lines: Sequence[Xid], program: dict[int, XidSeverity], codes: ErrorCodes, remedies: Remedies
) -> Finding:
    ordered = sorted(program)
    row = program[ordered[0]]
    killed = ordered == [code for code in ordered if program[code].remedy == "workflow-xid-45"]
    return Finding(
        subject=subject,
        severity=Severity.INFO,
        summary=f"Programs died on {subject}: {_list(ordered, lines, codes)}.",
        cause=(
            "Most often the trace of a program that was killed; on an NVSwitch system also of a Fabric Manager that stopped."
            if killed
            else "The GPU is usable. The reason lies in the program (a bad address, a wrong kernel for this GPU); "
            "when different programs fail in the same way, have the GPU tested."
        ),
        evidence=_evidence(lines),
        expected="no Xid while the load runs",
        remedies=remedies(row.remedy, **_fill(gpu))[:2],
        sources=row.basis.sources,
    )


def _fill(gpu: Gpu | None) -> dict[str, str]:
    return {"gpu": str(gpu.index)} if gpu else {}


def _list(ordered: Sequence[int], lines: Sequence[Xid], codes: ErrorCodes) -> str:
    """'Xid 48 (double-bit ECC error), Xid 31 (12 times)'."""
    counts = Counter(event.code for event in lines)
    parts = []
    for code in ordered:
        known = codes.xid(code)
        notes = [text for text in (known.meaning if known else "", f"{counts[code]} times" if counts[code] > 1 else "") if text]
        parts.append(f"Xid {code}" + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(parts)


def _evidence(lines: Sequence[Xid]) -> tuple[Evidence, ...]:
    """The first line of each code, and the newest line."""
    first = {event.code: event for event in reversed(lines)}
    chosen = sorted({id(event): event for event in (*first.values(), lines[-1])}.values(), key=lines.index)
    return tuple(
        Evidence(
            where=event.where or "kernel_log.xids",
            value=(f"[{event.seconds_since_boot:.0f} s after boot] " if event.seconds_since_boot is not None else "") + event.text,
        )
        for event in chosen[:MOST_LINES]
    )
