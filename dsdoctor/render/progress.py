"""A live list of the running probes on standard error; nothing at all when that is not a terminal.

No thread draws it: it changes when a probe starts or ends. When the run is over the list is taken away, so that only the report stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

Listener = Callable[[str, str, float], None]
"""Called with probe name, what happened (started, or an outcome of ProbeRun) and seconds."""

_SAID = {"ok": "done", "timed_out": "gave no answer", "killed_by_signal": "was killed", "garbage": "answered nonsense"}
_LINE_LIMIT = 70


@contextmanager
def checklist(stream: TextIO) -> Iterator[Listener]:
    """A listener that draws on the stream while the block runs."""
    drawing = _Drawing(stream) if is_live(stream) else None
    try:
        yield drawing.note if drawing else _silent
    finally:
        if drawing:
            drawing.erase()


def is_live(stream: TextIO) -> bool:
    """Whether a line on the stream can be drawn anew."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # the stream is closed
        return False


def put(stream: TextIO, text: str) -> None:
    """Write at once; a terminal that went away must not end the run."""
    with suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def _silent(probe: str, event: str, seconds: float) -> None:
    return None


class _Drawing:
    """One line for each probe that ended, and a last line that names those still running."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._running: list[str] = []
        self._lines = 0
        unicode = (stream.encoding or "").lower().startswith("utf")
        self._fine, self._wrong, self._waiting = ("✓", "✗", "…") if unicode else ("+", "x", "...")

    def note(self, probe: str, event: str, seconds: float) -> None:
        """Take in that a probe started or ended, and draw."""
        if event == "started":
            self._running.append(probe)
            self._write("")
            return
        self._running = [name for name in self._running if name != probe]
        mark = self._fine if event == "ok" else self._wrong
        self._write(f"[{mark}] {probe}: {_SAID.get(event, event.replace('_', ' '))}, {seconds:.1f} s"[:_LINE_LIMIT] + "\n")
        self._lines += 1

    def erase(self) -> None:
        """Take the whole list off the screen."""
        up = f"\x1b[{self._lines}A" if self._lines else ""
        put(self._stream, f"\r{up}\x1b[J")

    def _write(self, ended: str) -> None:
        waiting = f"[{self._waiting}] {', '.join(self._running)}" if self._running else ""
        put(self._stream, f"\r\x1b[K{ended}{waiting if len(waiting) <= _LINE_LIMIT else waiting[: _LINE_LIMIT - 3] + '...'}")
