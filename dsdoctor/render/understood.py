"""Which lines of pasted evidence were understood as what: as remarks on a report, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dsdoctor.facts import LogEvent
from dsdoctor.findings import Notice, Severity
from dsdoctor.render.terminal import Style

SCHEMA = "dsdoctor.parse/1"
LOG = "log"
"""Format of lines that are known messages."""
SHOWN_FORMATS = 16
SHOWN_CONFLICTS = 6


class Block(Protocol):
    """Consecutive lines that were understood as one format."""

    @property
    def file(self) -> str:
        """Name of the document."""

    @property
    def first(self) -> int:
        """First line."""

    @property
    def last(self) -> int:
        """Last line."""

    @property
    def format(self) -> str:
        """What the lines are."""

    @property
    def lines(self) -> int:
        """How many of them said something."""

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of facts that they filled."""


def notices(
    blocks: Sequence[Block], events: Sequence[LogEvent], conflicts: Sequence[str], failures: Sequence[str], lines: int
) -> tuple[Notice, ...]:
    """What was understood, in one sentence; where the text contradicts itself; parsers that failed."""
    found = [Notice(severity=Severity.INFO, text=_sentence(blocks, len({event.where for event in events}), lines))]
    contradictions = [conflict for conflict in conflicts if "the first was taken" in conflict]
    found += [Notice(severity=Severity.INFO, text=f"the text says two things: {conflict}") for conflict in contradictions[:SHOWN_CONFLICTS]]
    found += [Notice(severity=Severity.WARNING, text=failure) for failure in failures]
    return tuple(found)


def _sentence(blocks: Sequence[Block], messages: int, lines: int) -> str:
    read = f"{lines} line{'' if lines == 1 else 's'} read"
    formats: dict[str, int] = {}
    for block in blocks:
        formats[block.format] = formats.get(block.format, 0) + block.lines
    shown = [f"{name} ({count})" for name, count in list(formats.items())[:SHOWN_FORMATS]]
    if messages and LOG not in formats:
        shown.append(f"{LOG} ({messages})")
    if not shown:
        return f"{read}; nothing in {'it' if lines == 1 else 'them'} was recognised"
    return f"{read}, understood as {', '.join(shown)}{' …' if len(formats) > SHOWN_FORMATS else ''}; --explain-parse shows each line"


def document(blocks: Iterable[Block], events: Iterable[LogEvent], conflicts: Sequence[str], lines: int) -> Mapping[str, Any]:
    """The same as plain data."""
    return {
        "schema": SCHEMA,
        "lines": lines,
        "understood": [
            {
                "file": one.file,
                "first": one.first,
                "last": one.last,
                "format": one.format,
                "lines": one.lines,
                "sections": list(one.sections),
            }
            for one in blocks
        ],
        "messages": [{"where": event.where, "signature": event.signature, "times": event.times, "text": event.text} for event in events],
        "conflicts": list(conflicts),
    }


def render(blocks: Sequence[Block], events: Sequence[LogEvent], conflicts: Sequence[str], lines: int, *, width: int, unicode: bool) -> str:
    """The same as text, by file and line."""
    style = Style(width=width, unicode=unicode)
    shown = [f"{lines} line{'' if lines == 1 else 's'} read."]
    file = ""
    for block in blocks:
        if block.file != file:
            file = block.file
            shown.append(style.clean(file))
        place = str(block.first) if block.first == block.last else f"{block.first}-{block.last}"
        fills = ", ".join(name.replace("_", " ") for name in block.sections) or "no fact"
        shown += style.wrap(f"{place:>11}  {block.format}: {fills}", "  ", " " * 15)
    if not blocks:
        shown.append("No output of a tool was recognised.")
    if events:
        shown.append("Messages that are known")
        for event in events:
            times = f" ({event.times} times)" if event.times > 1 else ""
            shown += style.wrap(f"{event.where or '-'}  {event.signature}{times}: {event.text[:200]}", "  ", "      ")
    if conflicts:
        shown.append("Contradictions and gaps")
        for conflict in conflicts:
            shown += style.wrap(conflict, "  ", "    ")
    return "\n".join(shown)
