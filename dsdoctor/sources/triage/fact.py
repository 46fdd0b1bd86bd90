"""What one line of evidence says: the piece from which sections are put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsdoctor.facts import State
from dsdoctor.sources.texts import normalised
from dsdoctor.sources.triage.lines import WORD, Line, Page

NAMELESS = "?"
"""The key of a GPU that a part of an output does not name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of one record."""

    section: str
    """Of `dsdoctor.facts.Sections`."""
    field: str
    """Of the section's record, dotted for a record inside it; empty when the value is the whole record."""
    value: Any
    line: Line
    key: str = ""
    """Which record, in a section that holds several: a GPU's index, a package's name, a variable's name, a path."""
    format: str = ""
    """What the line was understood as."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A line that says that the subject of a whole section is not there, or could not be read."""

    section: str
    state: State
    why: str
    line: Line
    format: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A line that was understood and only says what needs no fact: a header, a command whose output follows."""

    line: Line
    format: str


Found = Fact | Absence | Said


@dataclass(frozen=True, slots=True)
class Parser:
    """One format: how a page that may hold it is known, and how its lines are read."""

    name: str
    hints: tuple[str, ...]
    """Literals; the parser reads pages in which one stands, and the page after. Without any it reads short documents only.

    A hint begins and ends where a word does, save for an underscore at its end: `ib_` also stands in `ib_core`.
    """
    parse: Callable[[Sequence[Line]], Iterable[Found]]

    def may_read(self, page: Page) -> bool:
        """Whether one of the hints stands in the page."""
        return any((not word or word in page.words) and hint in page.text for word, hint in _anchored(self.hints))


@functools.cache
def _anchored(hints: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each hint with its longest whole word, which is looked up first; empty where it has none."""
    return tuple((max((word for word in WORD.findall(hint) if not word.endswith("_")), key=len, default=""), hint) for hint in hints)


def line_of(where: str, text: str) -> Line:
    """The line for an event that names its place as file:number."""
    file, _, number = where.rpartition(":")
    return Line(text, file, int(number) if number.isdecimal() else 0)


def package(name: str, version: str, line: Line, format: str) -> Iterator[Fact]:
    """The facts in `torch 2.4.0+cu121`: a package; of torch also its build, where the version names it."""
    key = normalised(name)
    if not key or not version[:1].isalnum():
        return
    yield Fact("packages", "version", version, line, key, format)
    if key == "torch":
        yield from torch_build(version, line, format)


def torch_build(version: str, line: Line, format: str) -> Iterator[Fact]:
    """What a version of torch tells about its build: +cu121 is CUDA 12.1, +cpu is none."""
    yield Fact("torch_build", "version", version, line, format=format)
    local = version.partition("+")[2].split(".")[0]
    if local == "cpu":
        yield Fact("torch_build", "cuda", None, line, format=format)
    elif local.startswith("cu") and local[2:].isdecimal() and len(local) in (4, 5):
        yield Fact("torch_build", "cuda", f"{local[2:-1]}.{local[-1]}", line, format=format)
    elif version.partition("+")[2].startswith("rocm"):
        yield Fact("torch_build", "cuda", None, line, format=format)
        yield Fact("torch_build", "hip", version.partition("+rocm")[2], line, format=format)


def mebibytes(text: str) -> int | None:
    """Bytes in `143771 MiB` or `143771MiB`; None for [N/A] and anything else."""
    number = text.strip().removesuffix("MiB").strip()
    return int(number) << 20 if number.isdecimal() and len(number) < 12 else None
