"""The patient's Python and what is installed in it: from files first, then in the interpreter's own words."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dsdoctor.facts import (
    FileConflict,
    Interpreter,
    Package,
    PythonHeaders,
    Section,
    TorchBuild,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope, Target
from dsdoctor.sources.target import run_script
from dsdoctor.sources.texts import STACK, normalised

DESCRIBE_TIMEOUT_S = 15.0
METADATA_LIMIT_BYTES = 256 << 10
CONFLICTS_PER_PAIR = 20
HASHED_BYTES = 256 << 10

MAY_SHARE_FILES = re.compile(
    r"nvidia-.*|sgl-.*|sglang-kernel|flash-attn.*|flash-mla|fa3-fwd|deep-gemm|deep-ep|torch|triton|pytorch-triton|triton-kernels|triton-.*"
    r"|flashinfer-python|xformers"
)
"""Packages that are known to write into each other's directories; their RECORD files are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One *.dist-info or *.egg-info found on disk."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    site: str
    metadata: str
    """The dist-info or egg-info, or empty."""


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One line of a RECORD file (PEP 376)."""

    path: str
    digest: str
    size_bytes: int | None


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Sections interpreter, packages, file_conflicts, torch_build and python_headers."""
    target = scope.target
    if target is None:
        return {name: not_asked("no target interpreter") for name in SECTIONS}
    # Of a running process only files are read: it may belong to another user.
    answer, start_error = ({}, "") if host.process else ask(host, target, min(DESCRIBE_TIMEOUT_S, scope.deadline_s / 2))
    via = "files and the interpreter itself" if answer else f"files ({start_error})" if start_error else "files"
    sites = site_directories(host, target, answer)
    found = distributions(host, sites)
    return {
        "interpreter": known(interpreter(host, target, answer, start_error, sites), via),
        "packages": packages(host, found, sites),
        "file_conflicts": file_conflicts(host, found),
        "torch_build": torch_build(host, sites),
        "python_headers": python_headers(host, target, answer),
    }


SECTIONS = ("interpreter", "packages", "file_conflicts", "torch_build", "python_headers")


# --- the interpreter --------------------------------------------------------------------------------------------------


def ask(host: Host, target: Target, timeout_s: float) -> tuple[Mapping[str, Any], str]:
    """What the interpreter says about itself; nothing, and why, when it does not start or answers nonsense."""
    ended = run_script(host, target, "describe.py", timeout_s=timeout_s)
    try:
        answer = json.loads(ended.result)
    except (ValueError, RecursionError):
        return {}, ended.said() if not ended.ok else "the interpreter gave no answer that can be read"
    if not isinstance(answer, dict) or not isinstance(answer.get("version"), str):
        return {}, "the interpreter gave no answer that can be read"
    return answer, ""


def interpreter(host: Host, target: Target, answer: Mapping[str, Any], start_error: str, sites: Sequence[str]) -> Interpreter:
    """The record of the interpreter; its own word where it gave one, the tree of files otherwise."""
    return Interpreter(
        path=target.path,
        chosen_by=target.chosen_by,
        version=str(answer.get("version", "")) or target.python_version,
        implementation=str(answer.get("implementation", "")),
        prefix=str(answer.get("prefix", "")) or target.prefix,
        base_prefix=str(answer.get("base_prefix", "")) or target.base_prefix,
        kind=target.kind,
        site_packages=tuple(sites),
        abi_tag=str(answer.get("abi_tag", "")),
        externally_managed=bool(answer.get("externally_managed")) if answer else bool(_markers(host, target)),
        start_error=start_error,
    )


def _markers(host: Host, target: Target) -> tuple[str, ...]:
    # PEP 668: the marker lies in the standard library directory; environments made from it are free to be changed.
    return host.glob(f"{target.prefix}/lib/python{target.python_version or '3.*'}/EXTERNALLY-MANAGED") if target.kind == "system" else ()


def python_headers(host: Host, target: Target, answer: Mapping[str, Any]) -> Section[PythonHeaders]:
    """Where Python.h should be, and whether it is there."""
    if answer.get("include_directory"):
        headers = PythonHeaders(include_directory=str(answer["include_directory"]), present=bool(answer.get("has_python_h")))
        return known(headers, "sysconfig of the interpreter")
    if not target.python_version:
        return unreadable("the interpreter did not answer, and its files do not tell its version")
    directories = host.glob(f"{target.base_prefix}/include/python{target.python_version}*")
    holding = next((directory for directory in directories if host.exists(f"{directory}/Python.h")), None)
    usual = f"{target.base_prefix}/include/python{target.python_version}"
    return known(PythonHeaders(include_directory=holding or usual, present=holding is not None), "files")


def site_directories(host: Host, target: Target, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Where packages may lie, in the order of the interpreter's real sys.path where it told it."""
    path = answer.get("path")
    told = [entry for entry in path if isinstance(entry, str)] if isinstance(path, list) else []
    library = re.compile(r"/lib(64)?/python3(\.\d+t?)?(/lib-dynload|\.zip)?$")
    seen: dict[str, str] = {}
    for directory in [entry for entry in told if not library.search(entry)] or target.site_packages:
        seen.setdefault(host.real_path(directory), directory)
    return tuple(seen.values())


# --- packages ---------------------------------------------------------------------------------------------------------


def packages(host: Host, found: Sequence[Distribution], sites: Sequence[str]) -> Section[tuple[Package, ...]]:
    """Every installed distribution; requirements and installer for those of the stack."""
    if not sites:
        return unreadable("no site-packages directory was found")
    return known(tuple(_package(host, distribution) for distribution in found), "dist-info directories")


def distributions(host: Host, sites: Iterable[str]) -> tuple[Distribution, ...]:
    """The distributions that importlib.metadata would find in these directories, the first of each name only, sorted by name."""
    found: dict[str, Distribution] = {}
    for site in sites:
        here: dict[str, Distribution] = {}
        for distribution in _in_directory(host, site):
            rival = here.get(distribution.name)
            if rival is None or _freshness(host, distribution) > _freshness(host, rival):
                here[distribution.name] = distribution
        found = {**here, **found}
    return tuple(sorted(found.values(), key=lambda distribution: distribution.name))


def requirements(metadata: str) -> tuple[str, ...]:
    """Requires-Dist lines of a METADATA text."""
    headers = re.split(r"\r?\n\r?\n", metadata, maxsplit=1)[0]
    return tuple(re.findall(r"^Requires-Dist:[ \t]*(.*?)[ \t\r]*$", headers, re.MULTILINE))


def _in_directory(host: Host, site: str) -> Iterator[Distribution]:
    try:
        names = host.list_directory(site)
    except OSError:
        return
    for entry in names:
        stem, _, suffix = entry.rpartition(".")
        place = f"{site}/{entry}"
        if entry.startswith("~"):
            continue  # what pip leaves behind when it could not remove a package
        if suffix == "dist-info" and "-" in stem:
            name, _, version = stem.rpartition("-")
            yield Distribution(name=normalised(name), version=version, site=site, metadata=place)
        elif suffix == "egg-info":
            name, _, rest = stem.partition("-")
            version = re.sub(r"-py\d.*$", "", rest) or _stated_version(host, f"{place}/PKG-INFO")
            yield Distribution(name=normalised(name), version=version, site=site, metadata=place)
        elif suffix == "egg-link":
            yield _linked(host, site, stem, place)


def _linked(host: Host, site: str, name: str, place: str) -> Distribution:
    source = host.first_line(place) or ""
    metadata = next(iter(host.glob(f"{source}/{re.sub('[-.]', '_', name)}.egg-info")), "") if source.startswith("/") else ""
    version = _stated_version(host, f"{metadata}/PKG-INFO") if metadata else ""
    return Distribution(name=normalised(name), version=version, site=source or site, metadata=metadata)


def _stated_version(host: Host, path: str) -> str:
    found = re.search(r"^Version:[ \t]*(\S+)", _text(host, path, METADATA_LIMIT_BYTES), re.MULTILINE)
    return found[1] if found else ""


def _freshness(host: Host, distribution: Distribution) -> tuple[bool, float]:
    """A complete dist-info beats the remains of one, a newer one the older."""
    try:
        return host.exists(f"{distribution.metadata}/METADATA"), host.status(distribution.metadata).st_mtime
    except OSError:
        return False, 0.0


def _package(host: Host, distribution: Distribution) -> Package:
    requires: tuple[str, ...] = ()
    installer = ""
    if STACK.fullmatch(distribution.name) and distribution.metadata.endswith(".dist-info"):
        requires = requirements(_text(host, f"{distribution.metadata}/METADATA", METADATA_LIMIT_BYTES))
        installer = _text(host, f"{distribution.metadata}/INSTALLER", 1 << 10).strip()
    return Package(name=distribution.name, version=distribution.version, location=distribution.site, installer=installer, requires=requires)


def _text(host: Host, path: str, limit_bytes: int) -> str:
    try:
        return host.read_text(path, limit_bytes)
    except OSError:
        return ""


# --- files that two packages own --------------------------------------------------------------------------------------


def file_conflicts(host: Host, found: Iterable[Distribution]) -> Section[tuple[FileConflict, ...]]:
    """Files that two installed distributions both own with different content, at most 20 for each pair of them."""
    sharing = [distribution for distribution in found if MAY_SHARE_FILES.fullmatch(distribution.name)]
    owners: dict[str, list[tuple[str, RecordEntry]]] = {}
    for distribution in sharing:
        for entry in record_of(host, distribution):
            if entry.path.endswith((".py", ".cubin")) or ".so" in entry.path:
                owners.setdefault(os.path.normpath(f"{distribution.site}/{entry.path}"), []).append((distribution.name, entry))
    pairs: dict[tuple[str, str], list[FileConflict]] = {}
    for path, claims in sorted(owners.items(), key=lambda item: (".so" not in item[0], item[0])):
        for (first, one), (second, other) in combinations(claims, 2):
            kept = pairs.setdefault((first, second), [])
            # Wheels of one family own the same empty __init__.py files; the same content harms nobody.
            if (one.digest != other.digest or not one.digest) and len(kept) < CONFLICTS_PER_PAIR:
                kept.append(FileConflict(path=path, packages=(first, second), holder=_holder(host, path, ((first, one), (second, other)))))
    return known(tuple(conflict for kept in pairs.values() for conflict in kept), f"RECORD files of {len(sharing)} packages")


def _holder(host: Host, path: str, claims: Sequence[tuple[str, RecordEntry]]) -> str:
    """The package whose record the file fits: by its size, and by its content where both recorded the same size and it is small."""
    try:
        size = host.status(path).st_size
        fitting = [(name, entry) for name, entry in claims if entry.size_bytes == size]
        if len(fitting) > 1 and size <= HASHED_BYTES:
            digest = base64.urlsafe_b64encode(hashlib.sha256(host.read_bytes(path, HASHED_BYTES)).digest()).rstrip(b"=").decode()
            fitting = [(name, entry) for name, entry in fitting if entry.digest == f"sha256={digest}"]
    except OSError:
        return ""
    return fitting[0][0] if len(fitting) == 1 else ""


def record_of(host: Host, distribution: Distribution) -> Iterator[RecordEntry]:
    """The files a distribution says it owns, without bytecode; nothing when it has no RECORD."""
    for line in _text(host, f"{distribution.metadata}/RECORD", 32 << 20).splitlines():
        path, digest, size = _record_fields(line)
        if path and not path.endswith(".pyc"):
            yield RecordEntry(path, digest, int(size) if size.isdecimal() else None)


def _record_fields(line: str) -> tuple[str, str, str]:
    """Path, digest and size of a RECORD line; only a path with a comma or a quote is quoted."""
    path, _, tail = line.rpartition(",")
    path, _, digest = path.rpartition(",")
    if path.startswith('"') and path.endswith('"'):
        path = path[1:-1].replace('""', '"')
    return path, digest, tail


# --- torch ------------------------------------------------------------------------------------------------------------


def torch_build(host: Host, sites: Iterable[str]) -> Section[TorchBuild]:
    """What torch/version.py of the first torch on the path says."""
    for site in sites:
        directory = f"{site}/torch"
        if not host.is_directory(directory):
            continue
        try:
            text = host.read_text(f"{directory}/version.py", 1 << 16)
        except OSError as error:
            return unreadable(f"{directory}/version.py: {error.strerror or error}")
        build = parse_torch_version(text, directory)
        return known(build, "torch/version.py") if build else unreadable(f"{directory}/version.py names no version")
    return absent("torch is not installed for this interpreter")


def parse_torch_version(text: str, location: str) -> TorchBuild | None:
    """Parse the assignments of torch/version.py without running it; None when it names no version."""
    values = {
        name: value
        for name, _, value in re.findall(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*(['\"])([^'\"\n]*)\2", text, re.MULTILINE)
    }  # fmt: skip
    if "__version__" not in values:
        return None
    return TorchBuild(
        version=values["__version__"],
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        git_version=values.get("git_version", ""),
        location=location,
    )
