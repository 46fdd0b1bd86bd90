"""`dataclass` for the many small record types: the same as the standard one, made in a fraction of the time.

The standard decorator compiles six methods for every class; with two hundred record types that was a third of the start-up of `dsdoctor check`.
Here comparison, hash, text form and immutability are shared functions, and `__init__` is compiled when the first record of a type is made:
most types have none in a run. Type checkers see the standard decorator.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, slots=False, kw_only=False, eq=True):
        """Make a record type; `frozen` needs `slots`, because a field may be set exactly once."""

        def decorate(cls):
            made = dataclasses.dataclass(slots=slots, kw_only=kw_only, init=False, repr=False, eq=False)(cls)
            made.__init__ = _first_init(made)
            made.__repr__ = _repr
            if eq:
                made.__eq__ = _equal
                made.__hash__ = _hash
            if frozen:
                made.__setattr__ = _set_once
                made.__delattr__ = _refuse_deletion
            return made

        return decorate


def _first_init(made: Any) -> Any:
    """The `__init__` that gives way to the real one when it is called."""

    def __init__(self: Any, *arguments: Any, **values: Any) -> None:
        made.__init__ = _compiled_init(made)
        made.__init__(self, *arguments, **values)

    return __init__


def _compiled_init(made: Any) -> Any:
    """The `__init__` of the fields; it fills the slots themselves, so that no field asks whether it may be set."""
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body, names = [], {"_nothing": object()}
    for field in dataclasses.fields(made):
        name, default = field.name, ""
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"], default = field.default, f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"], default = field.default_factory, "=_nothing"
        parameters[field.kw_only is True].append(f"{name}{default}")
        value = f"_make_{name}() if {name} is _nothing else {name}" if default == "=_nothing" else name
        slot: Any = getattr(made, name, None)
        if hasattr(slot, "__set__"):
            names[f"_set_{name}"] = slot.__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"self.{name} = {value}")
    by_name = ["*", *parameters[True]] if parameters[True] else []
    source = f"def __init__({', '.join(['self', *parameters[False], *by_name])}):\n " + "\n ".join(body or ["pass"])
    exec(source, names)
    return names["__init__"]


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in record.__dataclass_fields__)


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__dataclass_fields__)})"


def _equal(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _set_once(self: Any, name: str, value: Any) -> None:
    """A slot is empty until `__init__` fills it; after that the record does not change."""
    if hasattr(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
