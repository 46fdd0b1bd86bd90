"""The report as one JSON document (`dsdoctor.report/1`), and the document that stands in its place when a run failed."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

from dsdoctor.findings import Report

ERROR_SCHEMA = "dsdoctor.error/1"


def render(report: Report) -> str:
    """The JSON text of a report: every field of the contract, in its order; facts only as far as they are known."""
    return to_lines(complete(report))


def error_document(message: str, code: int) -> str:
    """The JSON text for a run that ended without a report: what went wrong, and the exit code."""
    return to_text({"schema": ERROR_SCHEMA, "error": message, "exit_code": code})


def complete(value: Any) -> Any:
    """The JSON form with every field present, also those that hold their default."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: complete(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): complete(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [complete(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN; a reader that is strict would refuse the whole document
    return value


def to_text(document: Any) -> str:
    """Indented JSON that any reader takes: no NaN, and no half surrogates from undecodable names."""
    return _any_reader(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def to_lines(document: Mapping[str, Any]) -> str:
    """JSON with a line for each field, and for each item of a field that has items: a third smaller than all indented, and readable with grep."""
    return _any_reader(_lines(document, depth=2))


def _lines(value: Any, depth: int, indent: str = "") -> str:
    inner = f"{indent}  "
    if depth and value and isinstance(value, dict):
        items = [f"{inner}{json.dumps(name, ensure_ascii=False)}: {_lines(item, depth - 1, inner)}" for name, item in value.items()]
    elif depth and value and isinstance(value, list):
        items = [f"{inner}{_lines(item, 0)}" for item in value]
    else:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join((opening, ",\n".join(items), f"{indent}{closing}"))


def _any_reader(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
