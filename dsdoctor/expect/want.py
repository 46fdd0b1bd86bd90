"""What an expectation wants of a value: a number, a version, a text, true or false, a package version; read from its written form.

| form | written as |
| --- | --- |
| number | `8`, `">= 8"`, `">= 7, <= 9"`, `unlimited` |
| version | `580` (the branch), `580.159.04`, `">= 580, < 590"`; a bound holds as far as it goes: `<= 580` includes 580.159.04 |
| text | a glob (`NVIDIA H200*`), case aside, or a list of them |
| truth | `true` or `false` |
| package | `2.11.0` or a version specifier of Python packages (`">= 2.8, != 2.9.1"`) |

Where an expectation names one thing of many (a module, a mount, a variable), `present` and `absent` are wanted too.
"""

from __future__ import annotations

import enum
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsdoctor.versions import LibraryVersion

Value = str | float | bool

PRESENT, ABSENT = "present", "absent"
UNLIMITED = "unlimited"
_COMPARES: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<|=)\s*(\S.*?)\s*")
_NUMBER = re.compile(r"[+-]?\d{1,20}(?:\.\d{1,9})?")


class Form(enum.Enum):
    """What kind of value it is, and how a want for it is written."""

    NUMBER = "a number such as 8, or bounds such as '>= 7, <= 9'"
    VERSION = "a version such as 580.159.04, or bounds such as '>= 580, < 590'"
    TEXT = "a text, which may be a glob such as 'NVIDIA H200*', or a list of them"
    TRUTH = "true or false"
    PACKAGE = "a version such as 2.11.0, or a specifier such as '>= 2.8, != 2.9.1'"


class WantError(ValueError):
    """A want that is not written in its form."""


@dataclass(frozen=True, slots=True)
class Want:
    """One wanted value or range."""

    text: str
    """As written; lists joined by 'or'."""
    fits: Callable[[Value], bool | None]
    """Whether a value is as wanted; None when the value is not understood."""

    @property
    def absent(self) -> bool:
        """Whether the thing should not be there."""
        return self.text == ABSENT

    @property
    def present(self) -> bool:
        """Whether it is enough that the thing is there."""
        return self.text == PRESENT


def parse(form: Form, texts: Sequence[str], *, named: bool) -> Want:
    """The want in its written form, one text or a list; `named`: also `present` and `absent` mean something. Raises WantError."""
    if not texts or not all(text.strip() for text in texts):
        raise WantError("expected a value")
    if len(texts) > 1 and form is not Form.TEXT:
        raise WantError("a list is for texts; give bounds such as '>= 7, <= 9'")
    text = " or ".join(part.strip() for part in texts)
    if named and text in (PRESENT, ABSENT):
        return Want(text, lambda value: text == PRESENT)
    return Want(text, _PARSERS[form]([part.strip() for part in texts]))


def _number(texts: Sequence[str]) -> Callable[[Value], bool | None]:
    bounds = [(compare, _to_number(word)) for compare, word in _bounds(texts[0])]

    def fits(value: Value) -> bool | None:
        if isinstance(value, (str, bool)):
            return None
        return all(compare(value, bound) for compare, bound in bounds)

    return fits


def _to_number(word: str) -> float:
    if word == UNLIMITED:
        return math.inf
    if not _NUMBER.fullmatch(word):
        raise WantError(f"'{word[:40]}' is not a number")
    return float(word) if "." in word else int(word)


def _version(texts: Sequence[str]) -> Callable[[Value], bool | None]:
    bounds = []
    for compare, word in _bounds(texts[0]):
        bound = LibraryVersion.parse(word)
        if bound is None:
            raise WantError(f"'{word[:40]}' is not a version")
        bounds.append((compare, bound.numbers))

    def fits(value: Value) -> bool | None:
        found = LibraryVersion.parse(value)
        if found is None or any(len(found.numbers) < len(bound) and found.numbers == bound[: len(found.numbers)] for _, bound in bounds):
            return None
        return all(compare(found.numbers[: len(bound)], bound) for compare, bound in bounds)

    return fits


def _bounds(text: str) -> list[tuple[Callable[[Any, Any], bool], str]]:
    bounds = []
    for part in text.split(","):
        found = _BOUND.fullmatch(part)
        if found is None and re.match(r"\s*[<>=!~^]", part):
            raise WantError(f"'{part.strip()[:40]}' is no bound")
        bounds.append((_COMPARES[found[1]], found[2]) if found else (operator.eq, part.strip()))
    if len(bounds) > 1 and any(not _BOUND.fullmatch(part) for part in text.split(",")):
        raise WantError("with a comma, each part wants >=, <=, >, <, = or !=")
    return bounds


def _text(texts: Sequence[str]) -> Callable[[Value], bool | None]:
    globs = [text.lower() for text in texts]
    return lambda value: any(fnmatch.fnmatchcase(" ".join(str(value).lower().split()), glob) for glob in globs)


def _truth(texts: Sequence[str]) -> Callable[[Value], bool | None]:
    wanted = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(texts[0].lower())
    if wanted is None:
        raise WantError(f"'{texts[0][:40]}' is neither true nor false")
    return lambda value: value is wanted if isinstance(value, bool) else None


def _package(texts: Sequence[str]) -> Callable[[Value], bool | None]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    written = texts[0]
    try:
        specifier = SpecifierSet(written if re.match(r"\s*[<>=!~]", written) else f"=={written}")
    except InvalidSpecifier:
        raise WantError(f"'{written[:40]}' is neither a version nor a specifier") from None

    def fits(value: Value) -> bool | None:
        try:
            return specifier.contains(Version(str(value)), prereleases=True)
        except InvalidVersion:
            return None

    return fits


_PARSERS: dict[Form, Callable[[Sequence[str]], Callable[[Value], bool | None]]] = {
    Form.NUMBER: _number,
    Form.VERSION: _version,
    Form.TEXT: _text,
    Form.TRUTH: _truth,
    Form.PACKAGE: _package,
}
