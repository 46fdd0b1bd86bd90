"""Looks matrices up for a user: all rows of one, or the rows that a key names, wherever in the matrix they stand."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsdoctor.errors import MatrixError, UsageError, unknown_name
from dsdoctor.lint import HEAD_KEYS, identity_keys, lint
from dsdoctor.matrix import PROFILES, Knowledge, matrix_names

SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One row of a matrix."""

    table: str
    key: str
    row: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AllProfiles:
    """What a node can be judged for; one of them whole: dsdoctor matrix show profiles/NAME."""

    matrix: str
    seen: str
    profiles: Mapping[str, Any]


def open_matrix(name: str, knowledge: Knowledge) -> Any:
    """The matrix of a name; UsageError with the nearest names when there is none."""
    stem = name.removesuffix(".yaml").removesuffix("_matrix").replace("_", "-")
    if stem.startswith(f"{PROFILES}/"):
        wanted, known = stem.removeprefix(f"{PROFILES}/"), knowledge.profile_names()
        if wanted not in known:
            raise unknown_name("profile", wanted, known)
        return knowledge.profile(wanted)
    if stem == PROFILES:
        profiles = {wanted: knowledge.profile(wanted) for wanted in knowledge.profile_names()}
        return AllProfiles(matrix=PROFILES, seen=max(profile.seen for profile in profiles.values()), profiles=profiles)
    if stem not in matrix_names():
        raise unknown_name("matrix", name, (*matrix_names(), PROFILES))
    return knowledge.matrix(stem)


def rows(matrix: Any) -> tuple[Found, ...]:
    """Every row of every table. Releases of a package stand after it, as `vllm==0.33.0`."""
    return tuple(found for field in dataclasses.fields(matrix) if field.name not in HEAD_KEYS for found in _rows(matrix, field.name))


def _rows(matrix: Any, table: str) -> Iterator[Found]:
    value = getattr(matrix, table)
    if isinstance(value, Mapping):
        for key, row in value.items():
            yield Found(table=table, key=str(key), row=row)
            for release in getattr(row, "releases", ()):
                yield Found(table=f"{table}.releases", key=f"{key}=={getattr(release, 'version', release)}", row=release)
    elif isinstance(value, tuple):
        for number, row in enumerate(value, 1):
            yield Found(table=table, key=key_of(row) or str(number), row=row)


def key_of(row: Any) -> str:
    """The words that tell a row from its neighbours."""
    if not dataclasses.is_dataclass(row) or isinstance(row, type):
        return str(row)
    values = [getattr(row, key) for key in identity_keys(type(row))]
    return " ".join(
        ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values if value not in ("", None, ())
    )


def look_up(matrix: Any, key: str) -> tuple[Found, ...]:
    """The rows that a key names: by their own key, by a GPU's name as NVML prints it, or by a part of the key.

    UsageError when none does, with the nearest keys, or with the date of the knowledge when the version is newer than all rows.
    """
    known = rows(matrix)
    wanted = _plain(key)
    for names in (_is_key, _is_product, _is_part):
        if found := tuple(item for item in known if names(item, wanted)):
            return found
    newest = _newer_than_all(wanted, known)
    if newest:
        raise UsageError(f"{matrix.matrix} has no row '{key}': it is newer than this knowledge ({matrix.seen}); the newest row is {newest}")
    keys = list(dict.fromkeys(item.key for item in known))
    near = difflib.get_close_matches(wanted.removeprefix("nvidia "), [_plain(item) for item in keys], n=3, cutoff=0.5)
    shown = [item for item in keys if _plain(item) in near]
    if not shown:
        raise unknown_name(f"row of {matrix.matrix}", key, keys)
    raise UsageError(f"{matrix.matrix} has no row '{key}': did you mean {' or '.join(shown[:3])}?")


def _plain(text: str) -> str:
    return re.sub(r"\s*==\s*|\s+", " ", text).strip().lower()


def _is_key(item: Found, wanted: str) -> bool:
    return _plain(item.key) == wanted


def _is_product(item: Found, wanted: str) -> bool:
    pattern = getattr(item.row, "name_regex", "")
    return bool(pattern) and re.fullmatch(pattern, wanted.removeprefix("nvidia "), re.IGNORECASE) is not None


def _is_part(item: Found, wanted: str) -> bool:
    parts = [getattr(item.row, key) for key in identity_keys(type(item.row))] if dataclasses.is_dataclass(item.row) else []
    texts = [text for part in parts for text in (part if isinstance(part, tuple) else (part,))]
    return any(_plain(str(text)) == wanted for text in (*texts, *(getattr(item.row, name, "") for name in ("library", "product", "topic"))))


def _newer_than_all(wanted: str, known: Sequence[Found]) -> str:
    """The newest key, when what is wanted is a version above every row of the same package or table; else nothing."""
    package, _, version = wanted.rpartition(" ")
    numbers = _numbers(version)
    if numbers is None:
        return ""
    rivals = [(value, item.key) for item in known if (value := _version_of(item, package)) is not None]
    return max(rivals)[1] if rivals and numbers > max(rivals)[0] else ""


def _version_of(item: Found, package: str) -> tuple[int, ...] | None:
    name, _, version = _plain(item.key).rpartition(" ")
    return _numbers(version) if name == package else None


def _numbers(text: str) -> tuple[int, ...] | None:
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else None


def overlays(directories: Sequence[str]) -> tuple[Path, ...]:
    """The overlay directories that a user named, each of them checked; MatrixError with every problem when one cannot be used."""
    folders = tuple(Path(folder) for folder in directories)
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--matrix wants a directory with files such as gpus.yaml; '{folder}' is none")
        if problems := lint(folder):
            more = len(problems) - SHOWN_PROBLEMS
            told = [str(problem) for problem in problems[:SHOWN_PROBLEMS]] + ([f"… and {more} more"] if more > 0 else [])
            raise MatrixError(
                "\n".join((f"the matrices in {folder} cannot be used:", *told, f"see all of them with: dsdoctor matrix lint {folder}"))
            )
    return folders
