"""Frozen dataclasses to plain JSON data and back, strictly.

Used for snapshots, reports, child results and matrix rows: an unknown key, a missing key or a value of the wrong type is refused
with the path to it (``sections.gpus[0].index``).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class PlainError(ValueError):
    """Data that does not have the expected shape; ``path`` says where."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'document'}: {problem}")
        self.path = path
        self.problem = problem


def to_plain(value: Any) -> Any:
    """The JSON form of a dataclass, enum, tuple, mapping or scalar; fields that hold their default are left out."""
    if value is None or (isinstance(value, (str, int, float, bool)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {name: to_plain(item) for name, default in _fields(value.__class__) if (item := getattr(value, name)) != default}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: Any, data: Any, path: str = "") -> Any:
    """Read plain data as ``kind`` (a dataclass, enum, tuple, mapping, optional or scalar type), or raise PlainError."""
    return _reader(kind)(data, path)


_REQUIRED = object()


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, _default_of(field)) for field in dataclasses.fields(kind))


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED


@functools.cache
def _reader(kind: Any) -> Any:
    if kind is Any or kind is object:
        return lambda data, path: data
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, arguments)
    if origin is tuple:
        return _read_tuple(arguments)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind)
    if dataclasses.is_dataclass(kind if isinstance(kind, type) else origin):
        return _read_dataclass(kind)
    if kind in (str, int, float, bool):
        return _read_scalar(kind)
    raise TypeError(f"cannot read {kind!r} from plain data")


def _read_scalar(kind: type) -> Any:
    def read(data: Any, path: str) -> Any:
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
            raise PlainError(path, f"expected {_type_name(kind)}, found {_shown(data)}")
        return data

    return read


def _read_enum(kind: type[enum.Enum]) -> Any:
    def read(data: Any, path: str) -> Any:
        try:
            return kind(data)
        except ValueError:
            raise PlainError(path, f"expected one of {', '.join(str(m.value) for m in kind)}, found {_shown(data)}") from None

    return read


def _read_optional(kind: Any, arguments: tuple[Any, ...]) -> Any:
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) == len(arguments):
        raise TypeError(f"{kind!r}: only optional unions can be read")
    if len(inner) > 1:
        readers = [_reader(argument) for argument in inner]

        def read_any(data: Any, path: str) -> Any:
            if data is None:
                return None
            for reader in readers[:-1]:
                try:
                    return reader(data, path)
                except PlainError:
                    continue
            return readers[-1](data, path)

        return read_any
    reader = _reader(inner[0])
    return lambda data, path: None if data is None else reader(data, path)


def _read_tuple(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item_reader = _reader(arguments[0])

        def read(data: Any, path: str) -> Any:
            if not isinstance(data, (list, tuple)):
                raise PlainError(path, f"expected a list, found {_shown(data)}")
            return tuple(item_reader(item, f"{path}[{number}]") for number, item in enumerate(data))

        return read
    readers = [_reader(argument) for argument in arguments]

    def read_fixed(data: Any, path: str) -> Any:
        if not isinstance(data, (list, tuple)) or len(data) != len(readers):
            raise PlainError(path, f"expected a list of {len(readers)}, found {_shown(data)}")
        return tuple(reader(item, f"{path}[{number}]") for number, (reader, item) in enumerate(zip(readers, data)))

    return read_fixed


def _read_mapping(arguments: tuple[Any, ...]) -> Any:
    value_reader = _reader(arguments[1])

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, Mapping):
            raise PlainError(path, f"expected a mapping, found {_shown(data)}")
        return {str(key): value_reader(item, f"{path}.{key}") for key, item in data.items()}

    return read


def _read_dataclass(kind: Any) -> Any:
    cls = typing.get_origin(kind) or kind
    parameters = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(kind)))
    hints = typing.get_type_hints(cls)
    readers = {name: (_reader(_substitute(hints[name], parameters)), default is _REQUIRED) for name, default in _fields(cls)}

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, Mapping):
            raise PlainError(path, f"expected a mapping ({cls.__name__}), found {_shown(data)}")
        prefix = f"{path}." if path else ""
        values = {}
        for key, item in data.items():
            entry = readers.get(key)
            if entry is None:
                raise PlainError(f"{prefix}{key}", f"unknown key; {cls.__name__} has {', '.join(sorted(readers))}")
            values[key] = entry[0](item, f"{prefix}{key}")
        for name, (_, required) in readers.items():
            if required and name not in values:
                raise PlainError(f"{prefix}{name}", "missing")
        return cls(**values)

    return read


def _substitute(hint: Any, parameters: dict[Any, Any]) -> Any:
    if hint in parameters:
        return parameters[hint]
    arguments = typing.get_args(hint)
    if not parameters or not arguments:
        return hint
    replaced = tuple(_substitute(argument, parameters) for argument in arguments)
    if replaced == arguments:
        return hint
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[replaced]  # noqa: UP007
    return origin[replaced]


def _type_name(kind: type) -> str:
    return {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}[kind.__name__]


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}…"
