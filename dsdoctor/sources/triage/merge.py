"""Puts sections together from the facts of many lines: the first evidence for a value counts, what disagrees with it is kept as a note."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsdoctor.facts import NvLink, Section, Sections, known
from dsdoctor.sources.triage.fact import NAMELESS, Absence, Fact

SHOWN_PLACES = 3
CONFLICT_LIMIT = 50
VALUE_SHOWN = 80

KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "gpus": ("index", int),
    "packages": ("name", str),
    "environment": ("name", str),
    "services": ("name", str),
    "pci_devices": ("address", str),
    "directories": ("path", str),
    "cuda_libraries": ("path", str),
    "cuda_toolkits": ("path", str),
    "driver_libraries": ("path", str),
}
"""The field of a record that its key fills."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "interpreter": {"path": "", "chosen_by": ""},
    "libc": {"family": "glibc"},
    "container": {"runtime": "unknown"},
    "pci_devices": {"kind": "other"},
    "shared_memory": {"path": "/dev/shm"},
    "directories": {"exists": True},
    "driver_module_file": {"path": "nvidia.ko"},
}
"""Values of required fields that the text need not say."""

INNER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"remapped_rows": {"correctable": 0, "failure": False}}
"""The same for a record inside a record: what a shortened `nvidia-smi -q` leaves out first."""

NEEDED: Mapping[str, tuple[str, ...]] = {"torch_build": ("version", "cuda"), "shared_memory": ("total_bytes", "free_bytes")}
"""Fields without which a record would say more than the text: a build whose CUDA is not told is no CPU build."""

JOINED = {("kernel_log", "xids"), ("kernel_log", "lines"), ("loaded_modules", "names"), ("loaded_modules", "asked_for")}
"""Tuples that several places add to."""

METADATA_FORMATS = ("pip list", "pip show")

CHANGING = (
    "memory_used_bytes", "temperature_c", "temperature_margin_c", "memory_temperature_c", "power_w", "utilization_percent", "performance_state",
    "sm_clock_mhz", "memory_clock_mhz", "clock_event_reasons", "processes", "pcie.generation", "pcie.replay_count", "free_bytes",
    "available_bytes", "uptime_s", "where", "hard",
)  # fmt: skip
"""Fields that differ from one moment to the next, so that two readings are no contradiction."""


@dataclass(slots=True)
class _Record:
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, Fact] = field(default_factory=dict)
    whole: Any = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The sections, and what did not fit into them."""

    sections: Sections
    conflicts: tuple[str, ...]
    """Values that the text gives in two ways, and records that it does not tell enough about."""


def merge(facts: Iterable[Fact], absences: Iterable[Absence] = ()) -> Merged:
    """Sections from facts, which come in the order of their weight."""
    grouped: dict[str, dict[str, _Record]] = {}
    conflicts: dict[str, None] = {}
    for fact in facts:
        record = grouped.setdefault(fact.section, {}).setdefault(fact.key, _Record())
        if not fact.field:
            record.whole = fact.value if record.whole is None else record.whole
            record.lines.setdefault("", fact)
        elif fact.field not in record.values:
            record.values[fact.field] = fact.value
            record.lines[fact.field] = fact
        elif (fact.section, fact.field) in JOINED:
            record.values[fact.field] = tuple(dict.fromkeys(record.values[fact.field] + fact.value))
        elif fact.field == "nvlinks":
            record.values[fact.field] = _joined_links(record.values[fact.field], fact.value)
        elif record.values[fact.field] != fact.value:
            _disagree(record, fact, conflicts)
    _name_the_nameless(grouped.get("gpus", {}))
    found: dict[str, Section[Any]] = {}
    for name, records in grouped.items():
        value = _value(name, records, conflicts)
        if value is not None:
            found[name] = known(value, _places(records.values()))
    for absence in absences:
        if absence.section not in found:
            found[absence.section] = Section(absence.state, None, absence.why, absence.line.where)
    return Merged(Sections(**found), tuple(conflicts)[:CONFLICT_LIMIT])


def _joined_links(first: Iterable[NvLink], second: Iterable[NvLink]) -> tuple[NvLink, ...]:
    """Links by number; a counter or speed that the first reading lacks is taken from the second."""
    links = {link.index: link for link in first}
    for link in second:
        known_link = links.setdefault(link.index, link)
        lacking = {item.name: getattr(link, item.name) for item in dataclasses.fields(link) if getattr(known_link, item.name) in (None, "")}
        links[link.index] = dataclasses.replace(known_link, **lacking)
    return tuple(links[index] for index in sorted(links))


def _differ_in_local_part(one: str, other: str) -> bool:
    return one.partition("+")[0] == other.partition("+")[0] and ("+" in one) != ("+" in other)


def _name_the_nameless(gpus: dict[str, _Record]) -> None:
    """Values of a GPU that the text does not name belong to the only GPU there is, else they make the first."""
    nameless = gpus.pop(NAMELESS, None)
    if nameless is None:
        return
    record = gpus.setdefault(next(iter(gpus)) if len(gpus) == 1 else "0", _Record())
    for name, value in nameless.values.items():
        record.values.setdefault(name, value)
        record.lines.setdefault(name, nameless.lines[name])


def _disagree(record: _Record, fact: Fact, conflicts: dict[str, None]) -> None:
    first = record.values[fact.field]
    if fact.field == "version" and _differ_in_local_part(str(first), str(fact.value)):
        # torch.__version__ tells the build where the metadata of the distribution may not; packages are named by their metadata.
        from_metadata = fact.format in METADATA_FORMATS and record.lines["version"].format not in METADATA_FORMATS
        if from_metadata if fact.section == "packages" else "+" in fact.value:
            record.values["version"] = fact.value
            record.lines["version"] = fact
    elif fact.field not in CHANGING and len(conflicts) < CONFLICT_LIMIT:
        where = record.lines[fact.field].line.where
        name = f"{fact.section}{f'[{fact.key}]' if fact.key else ''}.{fact.field}"
        one, other = str(first)[:VALUE_SHOWN], str(fact.value)[:VALUE_SHOWN]
        conflicts[f"{name}: {one} ({where}) and {other} ({fact.line.where}); the first was taken"] = None


def _places(records: Iterable[_Record]) -> str:
    places: dict[str, None] = {}
    for record in records:
        for fact in record.lines.values():
            places[fact.line.where] = None
            if len(places) > SHOWN_PLACES:
                return f"{', '.join(list(places)[:SHOWN_PLACES])} …"
    return ", ".join(place for place in places if place)


def _value(section: str, records: Mapping[str, _Record], conflicts: dict[str, None]) -> Any:
    """The value of a section; None when nothing in it is complete."""
    container, kind = _kinds()[section]
    made: dict[str, Any] = {}
    for key, record in records.items():
        value = record.whole if record.whole is not None else _build(section, key, kind, record, conflicts)
        if value is not None:
            made[key] = value
    if not made:
        return None
    if container is tuple:
        flat = [item for value in made.values() for item in (value if isinstance(value, tuple) else (value,))]
        return tuple(sorted(flat, key=lambda gpu: gpu.index) if section == "gpus" else flat)
    return made if container is Mapping else next(iter(made.values()))


def _build(section: str, key: str, kind: Any, record: _Record, conflicts: dict[str, None]) -> Any:
    values = {**DEFAULTS.get(section, {}), **record.values}
    if section in KEYS:
        name, convert = KEYS[section]
        values[name] = convert(key)
    names = {item.name for item in dataclasses.fields(kind)}
    if "where" in names and "where" not in values:
        values["where"] = next(iter(record.lines.values())).line.where
    if any(name not in record.values for name in NEEDED.get(section, ())):
        return None
    lacking = [item.name for item in dataclasses.fields(kind) if _is_required(item) and item.name not in values]
    if lacking:
        place = next(iter(record.lines.values())).line.where
        if len(conflicts) < CONFLICT_LIMIT:
            conflicts[f"{section}{f'[{key}]' if key else ''}: the text does not say {' and '.join(dict.fromkeys(lacking))} ({place})"] = (
                None
            )
        return None
    return kind(**_nested(kind, values))


def _nested(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted values gathered to the records inside a record; such a record is left out where a required value is missing."""
    flat = {name: value for name, value in values.items() if "." not in name}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        outer, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(outer, {})[rest] = value
    for outer, told in inner.items():
        part = _record_kind(kind, outer)
        parts = {**INNER_DEFAULTS.get(outer, {}), **told}
        if all(item.name in parts for item in dataclasses.fields(part) if _is_required(item)):
            flat.setdefault(outer, part(**parts))
    return flat


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


@functools.cache
def _record_kind(kind: Any, name: str) -> Any:
    """The record class of a field such as `PcieLink | None`."""
    hint = typing.get_type_hints(kind)[name]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(item for item in typing.get_args(hint) if item is not type(None))
    return hint


@functools.cache
def _kinds() -> Mapping[str, tuple[Any, Any]]:
    """For each section how it holds records (tuple, Mapping or None) and their class."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, hint in typing.get_type_hints(Sections).items():
        inside = typing.get_args(hint)[0]
        origin = typing.get_origin(inside)
        if origin is tuple:
            found[name] = tuple, typing.get_args(inside)[0]
        elif origin is not None:
            found[name] = Mapping, typing.get_args(inside)[1]
        else:
            found[name] = None, inside
    return found
