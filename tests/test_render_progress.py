"""Progress: alive on a terminal, silent everywhere else, and gone when it is over."""

from __future__ import annotations

import io
import re

import pytest

from dsdoctor.render.progress import checklist


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Ascii(Terminal):
    encoding = "ANSI_X3.4-1968"


class Gone(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def screen(text: str) -> list[str]:
    """What a terminal shows after this text: carriage return, cursor up, erase line and erase below."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[\d*[AKJ]|\r|\n|[^\x1b\r\n]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece.endswith("A"):
            row -= int(piece[2:-1])
        elif piece.endswith("K"):
            lines[row] = lines[row][:column]
        elif piece.endswith("J"):
            lines = [*lines[:row], lines[row][:column]]
        else:
            lines[row] = lines[row][:column] + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return lines


@pytest.fixture(autouse=True)
def _terminal_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def test_probes_are_shown_while_they_run_and_gone_afterwards() -> None:
    stream = Terminal()
    with checklist(stream) as note:
        for probe in ("host", "nvml", "torch"):
            note(probe, "started", 0.0)
        assert screen(stream.getvalue()) == ["[…] host, nvml, torch"]
        note("nvml", "ok", 0.21)
        assert screen(stream.getvalue()) == ["[✓] nvml: done, 0.2 s", "[…] host, torch"]
        note("torch", "timed_out", 120.0)
        note("host", "crashed", 0.1)
        assert screen(stream.getvalue()) == ["[✓] nvml: done, 0.2 s", "[✗] torch: gave no answer, 120.0 s", "[✗] host: crashed, 0.1 s", ""]
    assert screen(stream.getvalue()) == [""]


def test_it_is_gone_after_an_error_too() -> None:
    stream = Terminal()

    def interrupted() -> None:
        with checklist(stream) as note:
            note("nvml", "started", 0.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen(stream.getvalue()) == [""]


def test_many_probes_stay_on_one_line() -> None:
    stream = Terminal()
    with checklist(stream) as note:
        for number in range(40):
            note(f"probe_{number}", "started", 0.0)
        assert max(len(line) for line in screen(stream.getvalue())) <= 79


def test_nothing_is_written_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    file, closed, dumb = io.StringIO(), io.StringIO(), Terminal()
    closed.close()
    for stream in (file, closed):
        with checklist(stream) as note:
            note("nvml", "started", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    with checklist(dumb) as note:
        note("nvml", "started", 0.0)
    assert file.getvalue() == dumb.getvalue() == ""


def test_a_terminal_without_unicode() -> None:
    stream = Ascii()
    with checklist(stream) as note:
        note("nvml", "started", 0.0)
        note("nvml", "garbage", 0.0)
    assert stream.getvalue().isascii()


def test_a_terminal_that_goes_away_does_not_end_the_run() -> None:
    with checklist(Gone()) as note:
        note("nvml", "started", 0.0)
        note("nvml", "ok", 0.0)
