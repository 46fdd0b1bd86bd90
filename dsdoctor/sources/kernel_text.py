"""What a kernel log says about GPUs and the bus: a parser for every way such a log is printed.

It reads records of /dev/kmsg, `dmesg` in all its time formats, `journalctl -k`, syslog files and bare messages, line by line. Live logs
and pasted ones are read by the same code; for pasted ones each event says its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from dsdoctor.facts import KernelLog, KernelLogLine, Xid

T = TypeVar("T")

KEPT_EVENTS = 150
LINE_LIMIT = 600

_KMSG_RECORD = re.compile(r"(\d{1,5}),\d+,(\d+),[^;]*;(.*)", re.DOTALL)
_LEVEL = re.compile(r"<\d{1,3}>|[a-z0-9]+\s*:[a-z]+\s*:\s+")
_SINCE_BOOT = re.compile(r"\[\s*(\d+\.\d+)\]\s?")
_CALLER = re.compile(r"\[\s*[TC]\d+\]\s?")
_DATE = re.compile(
    r"\[[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d \d{4}\]\s?"  # dmesg -T
    r"|\[[A-Z][a-z]{2}\s?\d+ \d\d:\d\d\]\s?|\[\s*[<+]\s*\d+\.\d+>?\]\s?"  # dmesg --reltime, -d
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s+"  # ISO 8601
    r"|[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?\s+"  # syslog
)
_SENDER = re.compile(r"(?:\S+ )?kernel:\s+")
_HISTORY_ROW = re.compile(r"NVRM:\s{3,}")
"""Rows of the table that the driver prints after a GSP timeout; the line that announces it is kept."""

_NUMBER = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b")

_XID = re.compile(r"NVRM: Xid \((?P<where>[^)]*)\): (?P<code>\d{1,6})\b")
_PCI_ADDRESS = re.compile(r"(?<![0-9a-f])(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?(?![0-9a-f:])", re.IGNORECASE)

_ABOUT_GPUS = re.compile(
    r"\bNVRM\b|\bSXid\b|nvidia-nvlink|nouveau|\bnova[_-]?core\b|\bNovaCore\b|fallen off the bus"
    r"|\bnvidia(?:-uvm|-modeset|-drm|-peermem|_uvm|_drm|_modeset|_peermem)?[: ](?=.*(?:module|symbol|version magic|signature|taint|ERROR|Unknown|error))"
    r"|unsigned module|\bLockdown: .*module|module verification failed|module with unavailable key"
    r"|\bAER: |PCIe Bus Error|\bDPC: |pciehp.*Link Down"
    r"|\bDMAR: .*(?:fault|DMA (?:Read|Write))|AMD-Vi: .*IO_PAGE_FAULT"
    r"|segfault at .* in lib(?:nccl|cuda|nvidia|cudnn|cublas|torch)"
    r"|\bOut of memory: Killed process|oom-kill:",
)


def read(text: str, *, file: str = "", first_line: int = 1) -> KernelLog:
    """Parse a whole log, newest event last. `file` and `first_line` say where the text stood, for pasted logs."""

    def where(number: int) -> str:
        return f"{file}:{number}" if file else ""

    return read_lines(enumerate(text.split("\n"), first_line), where)


def read_lines(numbered: Iterable[tuple[int, str]], where: Callable[[int], str]) -> KernelLog:
    """Parse numbered lines; keeps the first event of each kind, and the newest of all: at most a few hundred."""
    xids: list[Xid] = []
    lines: list[KernelLogLine] = []
    for number, raw in numbered:
        if not _ABOUT_GPUS.search(raw):
            continue
        seconds, message = split_line(raw)
        message = message[:LINE_LIMIT]
        match = _XID.search(message)
        if match:
            xids.append(
                Xid(
                    code=int(match["code"]),
                    pci_address=normal_address(match["where"]),
                    text=message[match.start() :],
                    seconds_since_boot=seconds,
                    where=where(number),
                )
            )
        elif not _HISTORY_ROW.match(message):
            lines.append(KernelLogLine(text=message, seconds_since_boot=seconds, where=where(number)))
    return KernelLog(
        xids=_first_and_newest(xids, lambda xid: (xid.code, xid.pci_address), KEPT_EVENTS),
        lines=_first_and_newest(lines, _kind_of_line, KEPT_EVENTS),
    )


def split_line(raw: str) -> tuple[float | None, str]:
    """Seconds since boot (None where the line does not tell) and the message of one line, without level, time, host and sender."""
    line = raw.strip("\r\n")
    record = _KMSG_RECORD.fullmatch(line)
    if record:
        return int(record[2]) / 1e6, record[3].strip()
    seconds = None
    rest = line.lstrip()
    # A syslog line may carry the kernel's own time behind its date and sender, so each prefix is looked for until none is left.
    for _ in range(6):
        match = _LEVEL.match(rest) or _SINCE_BOOT.match(rest) or _CALLER.match(rest) or _DATE.match(rest) or _SENDER.match(rest)
        if not match:
            break
        if match.re is _SINCE_BOOT:
            seconds = float(match[1])
        rest = rest[match.end() :]
    return seconds, rest.strip()


def normal_address(text: str) -> str:
    """The PCI address in a text as the kernel writes it: `PCI:0000:9C:00` is 0000:9c:00.0. Empty when there is none."""
    match = _PCI_ADDRESS.search(text.removeprefix("PCI:"))
    if not match:
        return ""
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def _first_and_newest(events: Sequence[T], kind: Callable[[T], Hashable], newest: int) -> tuple[T, ...]:
    """The first event of each kind and the newest of all, in order, so that a flood of one kind cannot hide another."""
    first: dict[Hashable, int] = {}
    for position, event in enumerate(events):
        first.setdefault(kind(event), position)
    kept = set(list(first.values())[:newest]) | set(range(max(0, len(events) - newest), len(events)))
    return tuple(events[position] for position in sorted(kept))


def _kind_of_line(line: KernelLogLine) -> Hashable:
    return _NUMBER.sub("#", line.text)[:60]
