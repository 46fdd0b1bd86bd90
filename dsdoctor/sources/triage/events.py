"""Finds the lines of a log that matrices/log-signatures describes, in time linear in the text and in bounded memory.

Each row names literals that its lines hold; a page without their longest word costs one set lookup, and the pattern is tried only around
places where the whole literal stands.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsdoctor.facts import LogEvent
from dsdoctor.matrix import Knowledge
from dsdoctor.rows import LogSignature, LogSignatures, filled
from dsdoctor.sources.triage.fact import Fact
from dsdoctor.sources.triage.lines import Line, Page
from dsdoctor.versions import CudaVersion

BEFORE, AFTER = 400, 1600
"""How much of a line around a literal is looked at, in characters."""
KEPT_PER_SIGNATURE = 8
TRIED_PER_SIGNATURE = 20_000
TEXT_LIMIT = 600

WORD = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class _Pattern:
    row: LogSignature
    compiled: re.Pattern[str]
    literals: tuple[tuple[str, str], ...]
    """Anchor word and literal."""


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
            self._patterns.append(_Pattern(row, re.compile(row.pattern), literals))

    def feed(self, page: Page) -> None:
        """Take the next page of lines."""
        words = page.words
        starts: list[int] = []
        for pattern in self._patterns:
            if self._tried.get(pattern.row.id, 0) >= TRIED_PER_SIGNATURE:
                continue
            present = [literal for anchor, literal in pattern.literals if anchor in words and literal in page.text]
            if present:
                starts = starts or _starts(page)
                self._try(pattern, present, page, starts)
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

    def _try(self, pattern: _Pattern, literals: list[str], page: Page, starts: list[int]) -> None:
        name = pattern.row.id
        done: set[int] = set()
        for literal in literals:
            at = page.text.find(literal)
            while at >= 0 and self._tried.get(name, 0) < TRIED_PER_SIGNATURE:
                self._tried[name] = self._tried.get(name, 0) + 1
                index = bisect_right(starts, at) - 1
                line = page.lines[index]
                inside = at - starts[index]
                window = line.text[max(0, inside - BEFORE) : inside + AFTER]
                found = None if index in done else pattern.compiled.search(window)
                if found:
                    done.add(index)
                    self._times[name] = self._times.get(name, 0) + 1
                    self._keep(name, found, window, line, self._order + index)
                at = page.text.find(literal, at + len(literal))

    def _keep(self, name: str, found: re.Match[str], window: str, line: Line, order: int) -> None:
        kept = self._kept.setdefault(name, [])
        captures = _captures(found)
        if len(kept) >= KEPT_PER_SIGNATURE or any(
            other.event.captures == captures and other.event.text == window.strip() for other in kept
        ):
            return
        first = max(0, found.start() - BEFORE // 4)
        shown = window if len(window) <= TEXT_LIMIT else window[first : first + TEXT_LIMIT]
        kept.append(_Kept(LogEvent(signature=name, text=shown.strip(), where=line.where, order=order, captures=captures), line))


def load_matcher(knowledge: Knowledge) -> Matcher:
    """A matcher for the signatures in force."""
    return Matcher(knowledge.matrix("log_signatures_matrix"))


def anchor_of(literal: str) -> str:
    """The longest word of a literal that the text has as a word too: one inside, else the one it begins with."""
    words = list(WORD.finditer(literal))
    inside = [found[0] for found in words if found.start() > 0 and found.end() < len(literal)]
    return max(inside or [found[0] for found in words[:1]], key=len, default=literal)


def _starts(page: Page) -> list[int]:
    starts, position = [], 0
    for line in page.lines:
        starts.append(position)
        position += len(line.text) + 1
    return starts


def _captures(found: re.Match[str]) -> Mapping[str, str]:
    """The named groups that took part; `x_code` also as the CUDA version `x`, `x_tuple` also with dots."""
    captures = {name: value.strip() for name, value in found.groupdict().items() if value and value.strip()}
    for name, value in tuple(captures.items()):
        if name.endswith("_code") and value.isdecimal() and (version := CudaVersion.from_code(int(value))) is not None:
            captures[name.removesuffix("_code")] = str(version)
        elif name.endswith("_tuple"):
            captures[name.removesuffix("_tuple")] = ".".join(re.findall(r"\d+", value))
    return captures


def _typed(name: str, value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if name.endswith("_code") else value
