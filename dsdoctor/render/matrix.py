"""Matrices as text and as JSON: a table of the rows, or whole rows with what they rest on; the problems of a file; what a refresh found."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from dsdoctor.lint import PATTERNS, Problem, identity_keys
from dsdoctor.matrix import PROFILES
from dsdoctor.matrix_commands import Found
from dsdoctor.refresh import Refreshed
from dsdoctor.render.json import complete, to_text
from dsdoctor.render.terminal import Style
from dsdoctor.rows import Basis
from dsdoctor.rows_profile import Profile

MATRIX_SCHEMA = "dsdoctor.matrix/1"
LINT_SCHEMA = "dsdoctor.matrix-lint/1"
REFRESH_SCHEMA = "dsdoctor.matrix-refresh/1"
WORDS_OF_SUMMARY = ("what", "text", "title", "meaning", "symptom", "summary", "effect", "support")
LONGEST_KEY = 44
SHOWN_ROWS = 400


def table(matrix: Any, found: Sequence[Found], *, width: int, colour: bool, unicode: bool) -> str:
    """One line for each row: its key and what it says in short. Releases of packages are counted, not listed."""
    style = Style(width=width, colour=colour, unicode=unicode)
    lines = [style.paint(matrix.matrix, "bold"), *style.wrap(f"{_title(matrix)} Seen {matrix.seen}.")]
    for name in dict.fromkeys(item.table for item in found if not item.table.endswith(".releases")):
        rows = [item for item in found if item.table == name]
        if not dataclasses.is_dataclass(rows[0].row):
            lines += ["", *style.wrap(f"{name}: {', '.join(item.key for item in rows)}", rest="  ")]
            continue
        lines += ["", style.paint(f"{name} ({len(rows)})", "bold")]
        size = min(max(len(item.key) for item in rows), LONGEST_KEY)
        for item in rows[:SHOWN_ROWS]:
            lines += _row_line(item, size, style)
    lines += ["", *style.wrap(f"One row with its sources: dsdoctor matrix show {name_of(matrix)} KEY", rest="  ")]
    return "\n".join(lines)


def name_of(matrix: Any) -> str:
    """The name by which `matrix show` finds it."""
    return f"{PROFILES}/{matrix.matrix}" if isinstance(matrix, Profile) else str(matrix.matrix)


def _row_line(item: Found, size: int, style: Style) -> list[str]:
    key = style.clean(item.key)
    summary = _summary(item.row)
    if len(key) > size:
        return [f"  {shortened(key, style.width - 2)}", *(style.wrap(summary, "    ") if summary and summary != item.key else [])]
    if not summary or summary == item.key:
        return [f"  {key}"]
    aligned = style.clean(summary)
    room = style.width - size - 4
    if room >= len(aligned):
        return [f"  {key:<{size}}  {aligned}"]
    return [f"  {key:<{size}}  {shortened(aligned, room)}"]


def shortened(text: str, room: int) -> str:
    """The beginning of a text, cut between words where it does not fit."""
    if len(text) <= room:
        return text
    cut = text[: max(room - 2, 8)]
    return f"{cut.rpartition(' ')[0] or cut} …"


def _summary(row: Any) -> str:
    if not dataclasses.is_dataclass(row) or isinstance(row, type):
        return str(row)
    said = next((text for name in WORDS_OF_SUMMARY if isinstance(text := getattr(row, name, ""), str) and text), "")
    releases = getattr(row, "releases", ())
    if said and not releases:
        return said
    if releases:
        newest = getattr(row, "newest", "") or getattr(releases[0], "version", releases[0])
        return f"newest {newest}, {len(releases)} releases" + (f"; {said}" if said else "")
    named = {*identity_keys(type(row)), *PATTERNS, "note", "yanked"}
    values = ((field.name, getattr(row, field.name)) for field in dataclasses.fields(row) if field.name not in named)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values if isinstance(value, (str, int, float)) and value)


def rows(matrix: Any, found: Sequence[Found], *, width: int, colour: bool, unicode: bool) -> str:
    """Rows with everything in them, their basis and their sources."""
    style = Style(width=width, colour=colour, unicode=unicode)
    blocks = []
    for item in found:
        lines = [
            style.paint(f"{matrix.matrix}: {item.key}", "bold") + style.paint(f"  ({item.table})", "dim"),
            *_fields(item.row, style, "  "),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _fields(row: Any, style: Style, indent: str) -> list[str]:
    if not dataclasses.is_dataclass(row) or isinstance(row, type):
        return style.wrap(str(row), indent)
    lines: list[str] = []
    bases: list[tuple[str, Basis]] = []
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Basis):
            bases.append((field.name, value))
        elif value not in ("", None, (), {}):
            lines += _field(field.name, value, style, indent)
    for name, basis in bases:
        lines += _basis(name, basis, style, indent)
    return lines


def _field(name: str, value: Any, style: Style, indent: str) -> list[str]:
    label = name.replace("_", " ")
    if dataclasses.is_dataclass(value):
        return [f"{indent}{label}:", *_fields(value, style, f"{indent}  ")]
    if isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
        if all(hasattr(item, "version") for item in value):
            return style.wrap(f"{label}: {', '.join(item.version for item in value)}", indent, f"{indent}  ")
        return [f"{indent}{label}:", *(line for item in value for line in [f"{indent}  -", *_fields(item, style, f"{indent}    ")])]
    if isinstance(value, tuple) and sum(len(str(item)) for item in value) > style.width - 20:
        return [f"{indent}{label}:", *(line for item in value for line in style.wrap(str(item), f"{indent}  - ", f"{indent}    "))]
    if isinstance(value, Mapping) and all(not dataclasses.is_dataclass(item) for item in value.values()):
        return [
            f"{indent}{label}:",
            *(line for key, item in value.items() for line in style.wrap(f"{key}: {_scalar(item)}", f"{indent}  ", f"{indent}    ")),
        ]
    if isinstance(value, Mapping):
        return [
            f"{indent}{label}:",
            *(line for key, item in value.items() for line in [f"{indent}  {key}:", *_fields(item, style, f"{indent}    ")]),
        ]
    return style.wrap(f"{label}: {_scalar(value)}", indent, f"{indent}  ")


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_scalar, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "any version"
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _basis(name: str, basis: Basis, style: Style, indent: str) -> list[str]:
    checked = f", a second source agreed {basis.audited}" if basis.audited else f", read again {basis.reread}" if basis.reread else ""
    certainty = f", certainty {basis.certainty.value}" if basis.certainty else ""
    weight = "error" if basis.may_carry_error else "warning" if basis.may_carry_warning else "info"
    label = "basis" if name == "basis" else f"basis of {name.removesuffix('_basis').replace('_', ' ')}"
    lines = style.wrap(
        f"{label}: {basis.confidence.value}, seen {basis.seen}{checked}{certainty}; a check may make of it: {weight} at most",
        indent,
        f"{indent}  ",
    )
    if basis.read:
        lines += style.wrap(f"read: {basis.read}", f"{indent}  ", f"{indent}    ")
    for source in basis.sources:
        lines += style.wrap(f"source: {source}", f"{indent}  ", f"{indent}    ")
    return lines


def rows_json(matrix: Any, found: Sequence[Found], digest: str) -> str:
    """The rows as one JSON document (`dsdoctor.matrix/1`)."""
    return to_text(
        {
            "schema": MATRIX_SCHEMA,
            "matrix": matrix.matrix,
            "seen": matrix.seen,
            "digest": digest,
            "rows": [{"table": item.table, "key": item.key, "row": complete(item.row)} for item in found],
        }
    )


def problems(found: Sequence[Problem], path: str, *, width: int, unicode: bool) -> str:
    """The problems of a file or directory, one on each line, or that there are none."""
    style = Style(width=width, unicode=unicode)
    if not found:
        return f"{style.harmless(path)}: no problems"
    lines = [style.harmless(str(problem)) for problem in found]
    return "\n".join([*lines, f"{len(found)} problem{'' if len(found) == 1 else 's'}; the built-in matrices are not touched by this"])


def problems_json(found: Sequence[Problem], path: str) -> str:
    """The same as one JSON document (`dsdoctor.matrix-lint/1`)."""
    return to_text({"schema": LINT_SCHEMA, "path": path, "problems": [dataclasses.asdict(problem) for problem in found]})


MARKS = {"new": "+", "changed": "~", "withdrawn": "!", "gone": "-", "unread": "?"}


def refreshed(found: Refreshed, *, width: int, unicode: bool) -> str:
    """What a refresh found: one line for each row that differs, and what was written."""
    style = Style(width=width, unicode=unicode)
    lines: list[str] = []
    for change in found.changes:
        lines += style.wrap(f"{MARKS[change.kind]} {change.matrix}: {change.package} {change.version} {change.kind}", rest="  ")
        for detail in change.details:
            lines += style.wrap(detail, "    ", "      ")
    compared = f"{found.packages} packages with {found.versions} rows compared"
    if not found.changes:
        lines.append(f"{compared}: nothing differs.")
    else:
        number = len(found.changes)
        lines += style.wrap(f"{compared}: {number} {'differs' if number == 1 else 'differ'}.")
    if found.written:
        lines += [f"written: {path}" for path in found.written]
    elif found.changes:
        lines += style.wrap("Nothing was written; --write writes the rows.")
    return "\n".join(lines)


def refreshed_json(found: Refreshed) -> str:
    """The same as one JSON document (`dsdoctor.matrix-refresh/1`)."""
    return to_text({"schema": REFRESH_SCHEMA, **complete(found)})


def _title(matrix: Any) -> str:
    return (type(matrix).__doc__ or "").partition("\n")[0].strip()
