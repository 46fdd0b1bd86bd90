"""Judgement: one problem per file, listed in `CHECKS` in the order of a report."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from dsdoctor.checks._check import Check
from dsdoctor.errors import unknown_name

CHECKS: tuple[Check, ...] = ()


def select(checks: Sequence[Check], *, only: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks whose id, area or glob is in `only` (all when empty) and not in `ignore`. A name that fits nothing is a UsageError."""
    for name in (*only, *ignore):
        if not any(_fits(item, name) for item in checks):
            raise unknown_name("check or area", name, {*(item.id for item in checks), *(item.area for item in checks)})
    return tuple(
        item for item in checks if (not only or any(_fits(item, name) for name in only)) and not any(_fits(item, name) for name in ignore)
    )


def _fits(check: Check, name: str) -> bool:
    return name == check.area or fnmatch.fnmatchcase(check.id, name)
