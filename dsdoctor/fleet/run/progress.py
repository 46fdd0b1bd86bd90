"""How far a fleet is, on standard error: a line that is redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from dsdoctor.fleet.run.collect import Answer, Progress, Show
from dsdoctor.render.progress import is_live, put

EVERY_S = 15.0
"""Between lines where nothing can be redrawn."""
NAMED = 4
TOLD = 20
"""Nodes without a report that are told at once; the answer has all."""
LATE_S = 2.0


def shown_on(stream: TextIO) -> Show:
    """A listener for `collect` that writes to this stream."""
    return _Live(stream).show if is_live(stream) else _Lines(stream).show


def sentence(progress: Progress) -> str:
    """`12 of 16 nodes answered, 1 without a report; waiting for node03 (42 s), node07 (41 s) …`"""
    waiting = sorted(progress.asked.items(), key=lambda item: (item[1], item[0]))
    now = time.monotonic()
    named = ", ".join(f"{name} ({now - since:.0f} s)" for name, since in waiting[:NAMED] if now - since >= LATE_S)
    more = " …" if len(waiting) > NAMED and named else ""
    without = f", {progress.without} without a report" if progress.without else ""
    answered = progress.reports + progress.without
    return f"{answered} of {progress.total} node{'' if progress.total == 1 else 's'} answered{without}{f'; waiting for {named}{more}' if named else ''}"


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last = stream, time.monotonic()

    def show(self, progress: Progress, answer: Answer | None) -> None:
        if answer is not None and answer.report is None and progress.without <= TOLD:
            put(self._stream, f"dsdoctor: {answer.node.name}: {answer.reason}\n")
        if answer is None and time.monotonic() - self._last >= EVERY_S:
            self._last = time.monotonic()
            put(self._stream, f"dsdoctor: {sentence(progress)}\n")


class _Live:
    """Nodes without a report stay on the screen; below them one line tells how far the others are, and goes at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, progress: Progress, answer: Answer | None) -> None:
        width = shutil.get_terminal_size((80, 24)).columns - 1
        told = answer is not None and answer.report is None and progress.without <= TOLD
        left = f"{answer.node.name}: {answer.reason}\n" if answer is not None and told else ""
        line = sentence(progress) if progress.reports + progress.without < progress.total else ""
        put(self._stream, f"\r\x1b[K{left}{line[:width]}")
