"""What a report on pasted text tells beside its findings: causes that lines only suggest, and what to paste next."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsdoctor.findings import Report, Status
from dsdoctor.record import dataclass

NEXT_TO_PASTE: Mapping[str, tuple[str, ...]] = {
    "python -m torch.utils.collect_env": ("torch build", "torch runtime", "packages", "libc", "gpus", "environment"),
    "nvidia-smi -q": ("gpus", "nvml versions", "driver"),
    "sudo dmesg": ("kernel log",),
    "sudo lspci -vvv": ("pci devices",),
    "env": ("environment",),
    "pip list": ("packages",),
    "df -h /dev/shm": ("shared memory",),
    "ulimit -a": ("limits",),
}
"""Commands whose output triage reads, the most telling first, and the sections of facts that it fills."""

_SUGGESTED = re.compile(r"'(?P<line>.*)': (?:\d+ of \d+ causes that fit|it would fit): (?P<cause>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause that would fit a line."""

    check: str
    text: str
    settle: str
    """What would tell it from the others."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A line that proves nothing by itself, and the causes that would fit it, the likeliest first."""

    where: str
    line: str
    causes: tuple[Cause, ...]


def is_pasted(report: Report) -> bool:
    """Whether the report is about pasted text, in which most questions are simply not touched."""
    return report.origin.kind == "triage"


def anything_recognised(report: Report) -> bool:
    """Whether any fact or known message stood in the text."""
    return any(
        section.get("state") in ("known", "absent", "unreadable") and (name != "log_events" or section.get("value"))
        for name, section in report.facts.items()
    )


def suspicions(report: Report) -> tuple[Suspicion, ...]:
    """The lines that fit causes without proving one, in the order of the text."""
    found: dict[tuple[str, str], list[tuple[str, Cause]]] = {}
    for outcome in report.outcomes:
        for doubt in outcome.doubts:
            told = _SUGGESTED.fullmatch(doubt.reason)
            if told:
                cause = Cause(outcome.check, told["cause"], doubt.settle)
                found.setdefault((doubt.subject, told["line"]), []).append((doubt.reason, cause))
    return tuple(
        Suspicion(where, line, tuple(cause for _, cause in sorted(causes, key=lambda item: item[0])))
        for (where, line), causes in found.items()
    )


def paste_next(report: Report) -> tuple[int, str]:
    """The command whose output would answer most of what the text does not say, and how many checks wait for that; 0 and empty when none does."""
    waiting = [outcome.reason for outcome in report.outcomes if outcome.status is Status.UNKNOWN]
    counts = {
        command: sum(any(reason.lower().startswith(f"{section}: not asked") for section in sections) for reason in waiting)
        for command, sections in NEXT_TO_PASTE.items()
    }
    best = max(counts, key=lambda command: counts[command])
    return (counts[best], best) if counts[best] else (0, "")
