"""Load the probes, checks and matrices of the doctor and of installed plugins, all through the same door.

A plugin is a module named in the entry-point group `dsdoctor.plugins`; it exports any of `PROBES`, `CHECKS` and `MATRICES` (the path of a
folder of matrix files). A plugin that cannot be loaded becomes a notice in the report; the others go on.
"""

from __future__ import annotations

import configparser
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from dsdoctor.findings import Notice, Severity
from dsdoctor.purpose import NOTHING, Purpose
from dsdoctor.record import dataclass

if TYPE_CHECKING:
    from dsdoctor.checks._check import Check
    from dsdoctor.sources.probe import Probe

GROUP = "dsdoctor.plugins"
BUILT_IN_PROBES = "dsdoctor.probes"
BUILT_IN_CHECKS = "dsdoctor.checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything the doctor works with, built in or plugged in."""

    probes: tuple[Probe, ...] = ()
    checks: tuple[Check, ...] = ()
    matrices: tuple[str, ...] = ()
    """Folders whose rows stand before the built-in ones."""
    notices: tuple[Notice, ...] = ()
    purpose: Purpose = NOTHING
    """What the user wants the node for."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One installed plugin: its name and the module that holds it."""

    name: str
    module: str


def load_probes(entry_points: Iterable[EntryPoint] | None = None) -> tuple[Probe, ...]:
    """The probes alone, without importing the checks: they can run while the rest is loaded. Plugins that fail are reported by `load`."""
    probes: list[Probe] = list(importlib.import_module(BUILT_IN_PROBES).PROBES)
    for entry in installed(sys.path) if entry_points is None else entry_points:
        plugin = _import(entry)
        if not isinstance(plugin, Notice) and not _clashes(probes, (), plugin):
            probes += getattr(plugin, "PROBES", ())
    return tuple(probes)


def process_probes(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    """The probes for a running process: of these, those that start nothing in its name, and the one that reads what it has mapped."""
    built_in = importlib.import_module(BUILT_IN_PROBES)
    return (*(probe for probe in probes if probe.name not in built_in.STARTS_CHILDREN), built_in.PROCESS_PROBE)


def disk_probe() -> Probe:
    """The probe that reads from a model directory, for when one is named."""
    probe: Probe = importlib.import_module(BUILT_IN_PROBES).DISK_PROBE
    return probe


def endpoint_probe() -> Probe:
    """The probe that asks a service."""
    found: Probe = importlib.import_module(BUILT_IN_PROBES).ENDPOINT_PROBE
    return found


def smoke_test_names() -> tuple[str, ...]:
    """The names of the GPU tests."""
    return tuple(importlib.import_module(f"{BUILT_IN_PROBES}.smoke_tests").NAMES)


def load(entry_points: Iterable[EntryPoint] | None = None) -> Parts:
    """The built-in parts, then those of the plugins (`None`: the installed ones)."""
    probes: list[Probe] = list(importlib.import_module(BUILT_IN_PROBES).PROBES)
    checks: list[Check] = list(importlib.import_module(BUILT_IN_CHECKS).CHECKS)
    matrices: list[str] = []
    notices: list[Notice] = []
    for entry in installed(sys.path) if entry_points is None else entry_points:
        plugin = _import(entry)
        if isinstance(plugin, Notice):
            notices.append(plugin)
        elif clash := _clashes(probes, checks, plugin):
            notices.append(_failed(entry, f"it brings names that exist already ({', '.join(clash)})"))
        else:
            probes += getattr(plugin, "PROBES", ())
            checks += getattr(plugin, "CHECKS", ())
            matrices += [str(folder) for folder in _as_folders(getattr(plugin, "MATRICES", ()))]
    return Parts(probes=tuple(probes), checks=tuple(checks), matrices=tuple(matrices), notices=tuple(notices))


def _import(entry: EntryPoint) -> ModuleType | Notice:
    try:
        return importlib.import_module(entry.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _failed(entry, f"{type(error).__name__}: {error}")


def _failed(entry: EntryPoint, why: str) -> Notice:
    return Notice(severity=Severity.WARNING, text=f"plugin {entry.name} could not be loaded: {why}")


def _clashes(probes: Sequence[Probe], checks: Sequence[Check], plugin: ModuleType) -> list[str]:
    """Names of the plugin that exist already. A plugin is taken whole or not at all."""
    same_probes = {probe.name for probe in probes} & {probe.name for probe in getattr(plugin, "PROBES", ())}
    same_checks = {check.id for check in checks} & {check.id for check in getattr(plugin, "CHECKS", ())}
    return sorted(same_probes | same_checks)


def installed(search_path: Sequence[str]) -> tuple[EntryPoint, ...]:
    """The plugins named in the dist-info folders on the path. Reads their files: `importlib.metadata` would cost more than all checks."""
    found: dict[str, EntryPoint] = {}
    for folder in search_path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                for entry in _entry_points(os.path.join(folder, name, "entry_points.txt")):
                    found.setdefault(entry.name, entry)
    return tuple(found.values())


def _entry_points(path: str) -> list[EntryPoint]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return []
    if f"[{GROUP}]" not in text:
        return []
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    return [EntryPoint(name, value.strip()) for name, value in parser.items(GROUP)]


def _as_folders(matrices: object) -> Iterable[object]:
    return (matrices,) if isinstance(matrices, (str, os.PathLike)) else tuple(matrices)  # type: ignore[arg-type]
