"""Reads pasted evidence as a snapshot: clean lines, one parser for each format, and every value with the line that says it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dsdoctor import __version__
from dsdoctor.facts import SCHEMA, LogEvent, Origin, Snapshot, known, not_asked
from dsdoctor.sources.triage import (
    commands,
    environment_dump,
    hardware,
    kernel_log,
    key_values,
    link_lines,
    linker,
    notes,
    nvidia_smi,
    nvidia_smi_query,
    peer_copies,
    pip_list,
    services,
    shell,
    system,
    topo_matrix,
)
from dsdoctor.sources.triage.fact import Absence, Fact, Found, Parser
from dsdoctor.sources.triage.lines import Document, Page, document, open_document, pages
from dsdoctor.sources.triage.merge import merge

__all__ = ["PARSERS", "Document", "Parsed", "Understood", "document", "open_document", "read"]

PARSERS: tuple[Parser, ...] = (
    *nvidia_smi_query.PARSERS,
    *nvidia_smi.PARSERS,
    *topo_matrix.PARSERS,
    *peer_copies.PARSERS,
    *key_values.PARSERS,
    *pip_list.PARSERS,
    *environment_dump.PARSERS,
    *system.PARSERS,
    *hardware.PARSERS,
    *link_lines.PARSERS,
    *linker.PARSERS,
    *services.PARSERS,
    *kernel_log.PARSERS,
    *shell.PARSERS,
    *commands.PARSERS,
    *notes.PARSERS,
)

PAGES_PER_PARSER = 16
"""A page holds 64 thousand characters; what stands in a file behind so many pages of one format adds nothing new."""
SHORT_DOCUMENT_LINES = 400
FACTS_PER_PARSER = 20_000


class Matcher(Protocol):
    """Takes clean lines page by page and finds what matrices/log-signatures describes (`events.Matcher`)."""

    def feed(self, page: Page) -> None:
        """Take the next page."""

    def finish(self) -> tuple[LogEvent, ...]:
        """What was found, in order."""

    def facts(self) -> Iterable[Fact]:
        """What the messages found state about the node."""


@dataclass(frozen=True, slots=True)
class Understood:
    """Consecutive lines that were understood as one format."""

    file: str
    first: int
    last: int
    format: str
    lines: int
    """How many lines between the first and the last said something."""
    sections: tuple[str, ...]
    """The sections that they filled."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The snapshot that the evidence makes, and how it was understood."""

    snapshot: Snapshot
    understood: tuple[Understood, ...]
    conflicts: tuple[str, ...]
    """Values that stand in the text in two ways, and records that are not complete."""
    failures: tuple[str, ...]
    """Parsers that failed, and how: a fault of ours that must not hide the rest."""
    lines: int
    """How many lines were read."""


def read(
    documents: Iterable[Document],
    matcher: Matcher | None = None,
) -> Parsed:
    """Read the documents, in order, as evidence about one machine."""
    found: list[Found] = []
    names: list[str] = []
    failures: list[str] = []
    count = 0
    for source in documents:
        names.append(source.name)
        of_document, lines = _read_document(source, matcher, failures)
        found += of_document
        count += lines
    events = matcher.finish() if matcher is not None else ()
    from_log = tuple(matcher.facts()) if matcher is not None else ()
    facts = [item for item in found if isinstance(item, Fact)]
    merged = merge(itertools.chain(facts, from_log), [item for item in found if isinstance(item, Absence)])
    log_events = known(events, "pasted text") if matcher is not None and count else not_asked("no log was given")
    return Parsed(
        snapshot=Snapshot(
            schema=SCHEMA,
            dsdoctor=__version__,
            taken_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
            origin=Origin(kind="triage", label=_label(names)),
            sections=replace(merged.sections, log_events=log_events),
        ),
        understood=tuple(_understood([*found, *from_log])),
        conflicts=merged.conflicts,
        failures=tuple(failures),
        lines=count,
    )


def _label(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more files" if len(names) > 3 else shown or "nothing"


def _read_document(source: Document, matcher: Matcher | None, failures: list[str]) -> tuple[list[Found], int]:
    """What the parsers find in one document. Each sees only the pages that hold one of its words, and the page behind."""
    chosen: list[list[Page]] = [[] for _ in PARSERS]
    continues = [False] * len(PARSERS)
    count = 0
    first: Page | None = None
    for page in pages(source):
        first = first or page
        count += len(page.lines)
        if matcher is not None:
            matcher.feed(page)
        for index, parser in enumerate(PARSERS):
            if len(chosen[index]) >= PAGES_PER_PARSER:
                continue
            hinted = parser.may_read(page)
            if hinted or continues[index]:
                chosen[index].append(page)
            continues[index] = hinted
    found: list[Found] = []
    for parser, its_pages in zip(PARSERS, chosen):
        if not parser.hints and first is not None and count == len(first.lines) and count <= SHORT_DOCUMENT_LINES:
            its_pages = [first]
        if its_pages:
            lines = its_pages[0].lines if len(its_pages) == 1 else tuple(line for page in its_pages for line in page.lines)
            try:
                found += itertools.islice(parser.parse(lines), FACTS_PER_PARSER)
            except Exception as error:
                failures.append(f"the parser for {parser.name} failed on {source.name}: {type(error).__name__}: {error}")
    return sorted(found, key=_line_number), count


def _line_number(item: Found) -> int:
    return item.line.number


def _understood(found: Iterable[Found]) -> Iterator[Understood]:
    """Lines by format, neighbours joined; of a line that two formats know, both are told."""
    by_format: dict[tuple[str, str], dict[int, set[str]]] = {}
    order: dict[str, None] = {}
    for item in found:
        order[item.line.file] = None
        sections = by_format.setdefault((item.line.file, item.format), {}).setdefault(item.line.number, set())
        if isinstance(item, (Fact, Absence)):
            sections.add(item.section)
    blocks: list[Understood] = []
    for (file, format), numbers in by_format.items():
        run: list[int] = []
        for number in sorted(numbers):
            if run and number - run[-1] > GAP_LINES:
                blocks.append(_block(file, format, run, numbers))
                run = []
            run.append(number)
        if run:
            blocks.append(_block(file, format, run, numbers))
    positions = {file: position for position, file in enumerate(order)}
    return iter(sorted(blocks, key=lambda block: (positions[block.file], block.first, block.format)))


GAP_LINES = 12
"""Lines that say nothing inside a block of one format."""


def _block(file: str, format: str, run: Sequence[int], numbers: dict[int, set[str]]) -> Understood:
    sections = dict.fromkeys(section for number in run for section in sorted(numbers[number]))
    return Understood(file, run[0], run[-1], format, len(run), tuple(sections))
