"""Read a recording, a report or a shipped example as a snapshot, and write snapshots and other files whole or not at all.

A recording comes from strangers and from broken disks: whatever is in the file, the answer is a snapshot or one sentence that names
the file, the place in it and what was expected there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gzip
import json
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from dsdoctor import __version__
from dsdoctor.errors import InputError, UsageError, unknown_name
from dsdoctor.facts import SCHEMA, Origin, Section, Sections, Snapshot, State
from dsdoctor.plain import PlainError, from_plain, to_plain

READ_LIMIT_BYTES = 64 << 20
UNPACKED_LIMIT_BYTES = 256 << 20
EXAMPLE_PREFIX = "example:"
REPORT_SCHEMA = "dsdoctor.report/1"
GZIP_MAGIC = b"\x1f\x8b"
WHAT_IT_TAKES = "a recording (dsdoctor record) or a JSON report (dsdoctor check --format json)"


def load(path: str) -> Snapshot:
    """The snapshot in a file (JSON, gzip or not), in `example:NAME`, or on standard input (`-`). Raises InputError or UsageError."""
    if path.startswith(EXAMPLE_PREFIX):
        name = path[len(EXAMPLE_PREFIX) :]
        if name not in example_names():
            raise unknown_name("example", name, example_names())
        return parse(_example_bytes(name), path)
    return parse(_read(path), "standard input" if path == "-" else path)


def parse(content: bytes, name: str) -> Snapshot:
    """The snapshot in the bytes of a recording or report; `name` is what errors call it."""
    document = _read_json(_decode(_unpack(content, name), name), name)
    if not isinstance(document, dict):
        raise InputError(f"{name}: expected {WHAT_IT_TAKES}, found a JSON {_kind(document)}")
    schema = document.get("schema")
    if schema == REPORT_SCHEMA:
        document = _recording_in(document, name)
    elif schema != SCHEMA:
        raise InputError(f"{name}: {_foreign(schema)}")
    try:
        snapshot: Snapshot = from_plain(Snapshot, document)
    except PlainError as error:
        raise InputError(f"{name}: {_problem(error)}{_newer_hint(document.get('dsdoctor'))}") from None
    _refuse_inconsistent(snapshot.sections, name)
    return dataclasses.replace(snapshot, origin=dataclasses.replace(snapshot.origin, kind="replay", label=_label(snapshot.origin, name)))


def save(snapshot: Snapshot, path: str) -> None:
    """Write a recording; packed when the name ends in .gz, to standard output for `-`. Raises UsageError with the system's reason."""
    text = json.dumps(to_plain(snapshot), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    if path.endswith(".gz"):
        _write_bytes(path, gzip.compress(text.encode(), mtime=0))
    else:
        write_atomically(path, text)


def write_atomically(path: str, text: str) -> None:
    """Write a text file so that readers see the old content or the new one, never half of it. Raises UsageError.

    `-` is standard output; a device or pipe is written to directly.
    """
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    _write_bytes(path, text.encode("utf-8", "replace"))


def example_names() -> tuple[str, ...]:
    """Names of the recordings that ship with the doctor, sorted."""
    from importlib.resources import files

    names = (item.name for item in files("dsdoctor.examples").iterdir())
    return tuple(sorted(name.removesuffix(".json.gz") for name in names if name.endswith(".json.gz")))


def example_description(name: str) -> str:
    """What a shipped recording shows, in one line: the label it was recorded with."""
    if name not in example_names():
        raise unknown_name("example", name, example_names())
    document = _read_json(_decode(_unpack(_example_bytes(name), name), name), name)
    origin = document.get("origin", {}) if isinstance(document, dict) else {}
    return str(origin.get("label", ""))


def _example_bytes(name: str) -> bytes:
    from importlib.resources import files

    return files("dsdoctor.examples").joinpath(f"{name}.json.gz").read_bytes()


def _read(path: str) -> bytes:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(READ_LIMIT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(READ_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}; expected {WHAT_IT_TAKES}") from None
    if len(content) > READ_LIMIT_BYTES:
        raise InputError(f"{path}: larger than {READ_LIMIT_BYTES >> 20} MiB; a recording is a few hundred KiB")
    return content


def _unpack(content: bytes, name: str) -> bytes:
    if not content.startswith(GZIP_MAGIC):
        return content
    import io

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(UNPACKED_LIMIT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        what = "cut short" if isinstance(error, EOFError) else "damaged"
        raise InputError(f"{name}: the gzip data is {what}; copy or record it again") from None
    if len(unpacked) > UNPACKED_LIMIT_BYTES:
        raise InputError(f"{name}: unpacks to more than {UNPACKED_LIMIT_BYTES >> 20} MiB; that is no recording")
    return unpacked


def _decode(content: bytes, name: str) -> str:
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"  # PowerShell's > writes UTF-16
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not text (byte {error.start} is no {encoding[:5].upper()}); expected {WHAT_IT_TAKES}") from None
    if not text.strip():
        raise InputError(f"{name}: empty; expected {WHAT_IT_TAKES}")
    return text


def _read_json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise InputError(
                f"{name}: the JSON ends in the middle (line {error.lineno}); the file was cut short, record it again"
            ) from None
        if error.pos == 0 or not text.lstrip().startswith(("{", "[")):
            raise InputError(f"{name}: not JSON; expected {WHAT_IT_TAKES}; pasted text is read by dsdoctor triage") from None
        raise InputError(f"{name}: broken JSON at line {error.lineno}, column {error.colno}: {error.msg.lower()}") from None
    except _DuplicateKey as error:
        raise InputError(f"{name}: the key '{error}' stands twice in one object") from None
    except RecursionError:
        raise InputError(f"{name}: nested too deeply; that is no recording") from None
    except ValueError as error:
        raise InputError(f"{name}: {str(error).partition(';')[0]}") from None


class _DuplicateKey(Exception):
    """A JSON object that names a key twice, so that readers could disagree about it."""


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _recording_in(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The snapshot that a report was made from: its facts, with the report's own head."""
    if not isinstance(report.get("facts"), Mapping):
        raise InputError(f"{name}: this report carries no facts, so that it cannot be judged again")
    head = {key: report[key] for key in ("dsdoctor", "taken_at", "origin", "probe_runs") if key in report}
    return {"schema": SCHEMA, **head, "sections": report["facts"]}


def _foreign(schema: Any) -> str:
    if isinstance(schema, str) and re.fullmatch(r"dsdoctor\.(snapshot|report)/\d+", schema):
        return f"made by a newer dsdoctor ({schema}); upgrade dsdoctor to read it (this is {__version__})"
    if isinstance(schema, str) and schema.startswith("dsdoctor.error/"):
        return f"this is the error of a run that made no report; expected {WHAT_IT_TAKES}"
    if isinstance(schema, str):
        return f"a JSON document of another kind (schema '{schema[:60]}'); expected {WHAT_IT_TAKES}"
    return f"a JSON document without dsdoctor's schema; expected {WHAT_IT_TAKES}"


def _problem(error: PlainError) -> str:
    """The error in one short sentence: of all the keys that exist, only the nearest."""
    if not error.problem.startswith("unknown key"):
        return str(error)
    near = difflib.get_close_matches(error.path.rpartition(".")[2], error.problem.partition(" has ")[2].split(", "), n=1)
    return f"{error.path}: unknown key{f', did you mean {near[0]}?' if near else ''}"


def _newer_hint(made_by: Any) -> str:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", version)[:3])

    if isinstance(made_by, str) and numbers(made_by) > numbers(__version__):
        return f"; it was made by dsdoctor {made_by[:20]}, this is {__version__}: upgrade"
    return ""


def _refuse_inconsistent(sections: Sections, name: str) -> None:
    for field in dataclasses.fields(sections):
        section: Section[Any] = getattr(sections, field.name)
        if (section.state is State.KNOWN) != (section.value is not None):
            problem = "known, but without a value" if section.value is None else f"{section.state.value}, but with a value"
            raise InputError(f"{name}: sections.{field.name}: {problem}")


def _label(origin: Origin, name: str) -> str:
    """The file, with the words that its maker gave."""
    return name if origin.label in ("", "this machine", name) else f"{name} ({origin.label})"


def _write_bytes(path: str, content: bytes) -> None:
    target = os.path.realpath(path)
    try:
        existing = os.stat(target) if os.path.exists(target) else None
        if existing is not None and stat.S_ISDIR(existing.st_mode):
            raise UsageError(f"cannot write {path}: it is a directory")
        if existing is not None and not stat.S_ISREG(existing.st_mode):
            with open(target, "wb", buffering=0) as file:
                file.write(content)
            return
        mode = stat.S_IMODE(existing.st_mode) if existing else 0o666 & ~_umask()
        _replace(target, content, mode)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from None


def _replace(target: str, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)[:40]}.", dir=os.path.dirname(target))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _kind(document: Any) -> str:
    return {list: "list", str: "text", bool: "true or false", type(None): "null"}.get(type(document), "number")
