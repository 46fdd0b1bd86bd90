"""The errors a user can meet, each one sentence long and each with an exit code of the contract."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DsdoctorError(Exception):
    """Something that stops the run and that the user can mend (exit code 2)."""


class UsageError(DsdoctorError):
    """The arguments ask for something that does not exist."""


class InputError(DsdoctorError):
    """A file that was given cannot be read as what it should be."""


class MatrixError(DsdoctorError):
    """A matrix has a row that is malformed; the message names file, line and key."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest names that do."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names[:12])}{' …' if len(names) > 12 else ''}"
    return UsageError(f"unknown {kind} '{name}': {hint}")
