"""Finds the lines of a log that matrices/log-signatures describes, in time linear in the text and in bounded memory.

Each row names literals that its lines hold; a page without their longest word costs one set lookup, and the pattern is tried only around
places where the whole literal stands. A message that was wrapped over several lines is matched as one, in the text whose newlines inside it are spaces.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsdoctor.facts import LogEvent
from dsdoctor.matrix import Knowledge
from dsdoctor.rows import LogSignature, LogSignatures, filled
from dsdoctor.sources.triage.fact import Fact
from dsdoctor.sources.triage.lines import Line, Page
from dsdoctor.sources.triage.wrapped import Message, flowed
from dsdoctor.versions import CudaVersion, LibraryVersion

BEFORE, AFTER = 400, 1600
"""How much of a line around a literal is looked at, in characters. Where that is in vain, the next look is half of AFTER further on."""
KEPT_PER_SIGNATURE = 8
TRIED_PER_SIGNATURE = 20_000
TEXT_LIMIT = 600

WORD = re.compile(r"[A-Za-z0-9_]+")
ANOTHER = re.compile(r"_\d$")
"""At the end of the name of a group: another place in the pattern for the same thing."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    row: LogSignature
    compiled: re.Pattern[str]
    literals: tuple[tuple[str, str], ...]
    """Anchor word and literal."""
    looks_ahead: bool
    """Whether a text further on can forbid a match, so that the whole message must be looked at."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A page as it is searched."""

    page: Page
    starts: tuple[int, ...]
    flowed: str
    messages: tuple[Message, ...]

    def message_at(self, index: int) -> Message | None:
        """The wrapped message that a line belongs to."""
        place = bisect_right(self.messages, index, key=lambda message: message.first) - 1
        return self.messages[place] if place >= 0 and self.messages[place].last >= index else None


@dataclass(frozen=True, slots=True)
class _Found:
    match: re.Match[str]
    window: str
    start: int
    """Of the window, in the page's text."""

    @property
    def position(self) -> int:
        """Of the match, in the page's text."""
        return self.start + self.match.start()

    @property
    def shown(self) -> str:
        """The text around the match, as evidence shows it."""
        if len(self.window) <= TEXT_LIMIT:
            return self.window.strip()
        first = max(0, self.match.start() - BEFORE // 4)
        return self.window[first : first + TEXT_LIMIT].strip()


@dataclass(frozen=True, slots=True)
class _Kept:
    event: LogEvent
    line: Line


@dataclass(slots=True)
class Matcher:
    """Takes cleaned lines page by page and keeps the first events of each signature."""

    signatures: LogSignatures
    _patterns: list[_Pattern] = field(default_factory=list)
    _order: int = 0
    _kept: dict[str, list[_Kept]] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)
    _tried: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.signatures.signatures:
            literals = tuple((anchor_of(literal), literal) for literal in row.literals)
            self._patterns.append(_Pattern(row, re.compile(row.pattern), literals, "(?!" in row.pattern))

    def feed(self, page: Page) -> None:
        """Take the next page of lines."""
        starts = _starts(page)
        text = _Text(page, starts, *flowed(page, starts))
        for pattern in self._patterns:
            if self._tried.get(pattern.row.id, 0) >= TRIED_PER_SIGNATURE:
                continue
            present = [literal for anchor, literal in pattern.literals if anchor in page.words and literal in text.flowed]
            if present:
                self._try(pattern, present, text)
        self._order += len(page.lines)

    def finish(self) -> tuple[LogEvent, ...]:
        """The events in the order of their lines."""
        found = [replace(kept.event, times=self._times[name]) for name, all_kept in self._kept.items() for kept in all_kept]
        return tuple(sorted(found, key=lambda event: event.order))

    def facts(self) -> Iterator[Fact]:
        """What the lines state about the node: the `yields` of their rows."""
        rows = {pattern.row.id: pattern.row for pattern in self._patterns}
        for kept in sorted((kept for all_kept in self._kept.values() for kept in all_kept), key=lambda kept: kept.event.order):
            for path, template in rows[kept.event.signature].yields.items():
                value = filled(template, {**kept.event.captures, "line": kept.event.text})
                section, _, name = path.partition(".")
                if value:
                    yield Fact(section=section, field=name, value=_typed(name, value), line=kept.line, format="log")

    def _try(self, pattern: _Pattern, literals: list[str], text: _Text) -> None:
        name = pattern.row.id
        done: set[int] = set()
        for literal in literals:
            at = text.flowed.find(literal)
            while at >= 0 and self._tried.get(name, 0) < TRIED_PER_SIGNATURE:
                self._tried[name] = self._tried.get(name, 0) + 1
                index = bisect_right(text.starts, at) - 1
                found = None if index in done else _match(pattern, text, at, index)
                if found:
                    first = bisect_right(text.starts, found.position) - 1
                    if first not in done:
                        self._times[name] = self._times.get(name, 0) + 1
                        self._keep(name, found, text.page.lines[first], self._order + first)
                    done |= {index, first}
                end = text.starts[index] + len(text.page.lines[index].text)
                looked_at = end if index in done else min(end, at + AFTER // 2)
                at = text.flowed.find(literal, max(looked_at, at + len(literal)))

    def _keep(self, name: str, found: _Found, line: Line, order: int) -> None:
        kept = self._kept.setdefault(name, [])
        captures = _captures(found.match)
        shown = found.shown
        if len(kept) < KEPT_PER_SIGNATURE and not any((other.event.captures, other.event.text) == (captures, shown) for other in kept):
            kept.append(_Kept(LogEvent(signature=name, text=shown, where=line.where, order=order, captures=captures), line))


def _match(pattern: _Pattern, text: _Text, at: int, index: int) -> _Found | None:
    """The match around a position: inside its line, else across the lines of the wrapped message that it belongs to."""
    start = text.starts[index]
    in_line = _search(pattern, text.flowed, at, start, start + len(text.page.lines[index].text))
    message = text.message_at(index)
    if message is None or (in_line and not pattern.looks_ahead):
        return in_line
    in_message = _search(pattern, text.flowed, at, message.start, message.end)
    return in_line if in_line and in_message else in_message


def _search(pattern: _Pattern, text: str, at: int, start: int, end: int) -> _Found | None:
    first = max(start, at - BEFORE)
    window = text[first : min(end, at + AFTER)]
    match = pattern.compiled.search(window)
    return _Found(match, window, first) if match else None


def load_matcher(knowledge: Knowledge) -> Matcher:
    """A matcher for the signatures in force."""
    return Matcher(knowledge.matrix("log_signatures_matrix"))


def anchor_of(literal: str) -> str:
    """The longest word of a literal that the text has as a word too: one inside, else the one it begins with."""
    words = list(WORD.finditer(literal))
    inside = [found[0] for found in words if found.start() > 0 and found.end() < len(literal)]
    return max(inside or [found[0] for found in words[:1]], key=len, default=literal)


def _starts(page: Page) -> tuple[int, ...]:
    return tuple(itertools.accumulate((len(line.text) + 1 for line in page.lines[:-1]), initial=0))


_CODES: Mapping[str, Callable[[int], object | None]] = {
    "_cudnn_code": LibraryVersion.from_cudnn_code,
    "_nccl_code": LibraryVersion.from_nccl_code,
    "_code": CudaVersion.from_code,
}
"""Ends of the names of captures that hold a version as one number; the first that fits counts."""


def _captures(found: re.Match[str]) -> Mapping[str, str]:
    """The named groups that took part, `x_2` under the name of `x`, which a pattern may have once only; `x_code` (`x_nccl_code`, `x_cudnn_code`) also as the version `x`, `x_tuple` also with dots."""
    captures: dict[str, str] = {}
    for name, value in found.groupdict().items():
        if value and value.strip():
            captures.setdefault(ANOTHER.sub("", name), value.strip())
    for name, value in tuple(captures.items()):
        suffix = next((suffix for suffix in _CODES if name.endswith(suffix)), "")
        if suffix and value.isdecimal() and (version := _CODES[suffix](int(value))) is not None:
            captures[name.removesuffix(suffix)] = str(version)
        elif name.endswith("_tuple"):
            captures[name.removesuffix("_tuple")] = ".".join(re.findall(r"\d+", value))
    return captures


def _typed(name: str, value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if name.endswith("_code") else value
