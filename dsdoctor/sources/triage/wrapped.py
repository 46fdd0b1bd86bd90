"""Which neighbouring lines of a page are one message that something wrapped: a mail program, a terminal, an editor.

Wrapping at a width fills each line as far as words allow: a line and the first word of the next one do not fit into the width together. The width
itself is the longest line around. Lines of a log that merely follow one another seldom pass that test; where they do, a pattern must still match
across their joint before anything is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsdoctor.sources.triage.lines import Line, Page

LEAST_WIDTH, MOST_WIDTH = 60, 132
"""Widths, in columns, at which text is wrapped. Narrower lines are lists; wider ones were not wrapped."""
MOST_LINES = 40
AROUND = 8
"""So many lines before and behind tell the width."""

_STARTS_ANEW = re.compile(
    r"[\s\[|$#=]|[-*+] |[-+]{3}|>>> |Traceback \(|File \"|During handling|The above exception|[A-Z]\w{0,40}(?:Error|Exception|Warning|Interrupt)\b"
    r"|(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|NCCL|NVRM)\b|(?!Version=\d)[\w./-]{1,60}(?:=|: ?$)"
)
"""How a line of its own begins; a wrapped message rarely goes on that way."""


_COLUMNS = re.compile(r"\t|\S {3}|\S {1,20}: \S+$")
"""Of a table, or of names and values."""


class Message(NamedTuple):
    """Consecutive lines of a page that may be one message."""

    first: int
    """Index of its first line."""
    last: int
    start: int
    """Position in the page's text."""
    end: int


def flowed(page: Page, starts: Sequence[int]) -> tuple[str, tuple[Message, ...]]:
    """The page's text with a space in place of each newline inside a wrapped message, and those messages; every position stays as it is."""
    messages = tuple(_messages(page.lines, starts))
    if not messages:
        return page.text, ()
    parts = []
    position = 0
    for message in messages:
        parts += [page.text[position : message.start], page.text[message.start : message.end].replace("\n", " ")]
        position = message.end
    return "".join([*parts, page.text[position:]]), messages


def _messages(lines: Sequence[Line], starts: Sequence[int]) -> Iterator[Message]:
    open_at = -1
    last = -1
    for index, line in enumerate(lines):
        if line.prefix or not line.text or index == 0 or not _continues(lines, index):
            continue
        if index != last + 1 or index - open_at >= MOST_LINES:
            if open_at >= 0:
                yield _message(lines, starts, open_at, last)
            open_at = index - 1
        last = index
    if open_at >= 0:
        yield _message(lines, starts, open_at, last)


def _message(lines: Sequence[Line], starts: Sequence[int], first: int, last: int) -> Message:
    return Message(first, last, starts[first], starts[last] + len(lines[last].text))


def _continues(lines: Sequence[Line], index: int) -> bool:
    """Whether a line without a prefix goes on with the message of the line before it."""
    line, before = lines[index], lines[index - 1]
    if not before.text or line.number != before.number + 1:
        return False
    if before.text.endswith(" \\"):
        return True  # a command that a shell reads as one line
    length = len(before.prefix) + len(before.text)
    word = line.text.partition(" ")[0]
    if length + 1 + len(word) <= LEAST_WIDTH or (length > MOST_WIDTH and " " in before.text.strip()):
        return False
    if before.text[-1] in "|+" or _STARTS_ANEW.match(line.text) or _COLUMNS.search(line.text) or _COLUMNS.search(before.text):
        return False
    if " " not in line.text and " " not in before.text:
        return False  # a list of paths or names
    around = lines[max(0, index - AROUND) : index + AROUND]
    width = max(len(other.prefix) + len(other.text) for other in around if " " in other.text.strip() or other is before)
    return width <= MOST_WIDTH and length + 1 + len(word) > width
