"""How the dynamic loader of glibc finds a library: its configuration, its cache and its order of search.

Read from files only, so that it answers for a recorded tree as for this machine. The rules are those of ld.so(8); the layout of the cache is
that of glibc's `sysdeps/generic/dl-cache.h` ("glibc-ld.so.cache1.1", also behind the older "ld.so-1.7.0" table).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsdoctor.sources.host import Host

CACHE_PATH = "/etc/ld.so.cache"
CONFIGURATION_PATH = "/etc/ld.so.conf"
CACHE_LIMIT_BYTES = 32 << 20
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_HEADER_BYTES = 48
CACHE_ENTRY = struct.Struct("<iIIIQ")
PATH_LIMIT_BYTES = 4096
INCLUDE_DEPTH = 8

CACHE_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
"""Type (libc6) and required architecture of a cache entry that a 64-bit process of this architecture may load."""
CACHE_LABELS = {"x86_64": "x86-64", "aarch64": "AArch64"}
"""How `ldconfig -p` writes them."""
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
INTERPRETERS = {"/lib64/ld-linux-x86-64.so.2": "x86_64", "/lib/ld-linux-aarch64.so.1": "aarch64"}
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

Cache = Mapping[str, tuple[str, ...]]
"""Soname to paths, in the order of the loader's preference."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One copy of a library that the loader would reach; the first of a search is the one that is loaded."""

    soname: str
    path: str
    """As the loader opens it."""
    real_path: str
    """Links followed."""
    via: str
    """LD_PRELOAD, ld.so.preload, RPATH, LD_LIBRARY_PATH, RUNPATH, ld.so.cache or default-directory."""


def search(
    host: Host,
    soname: str,
    environment: Mapping[str, str],
    rpath: Sequence[str] = (),
    *,
    runpath: Sequence[str] = (),
    cache: Cache | None = None,
    architecture: str = "",
) -> tuple[Hit, ...]:
    """Every copy of `soname` that the loader would reach, in its order; copies that are the same file are named once.

    `rpath` and `runpath` belong to the library that asks, already expanded; an asker that has a RUNPATH ignores its RPATH. Pass `cache`
    (from `read_cache`) to search for many names. Files of another architecture are passed over, as the loader does.
    """
    machine = architecture or architecture_of(host)
    entries = read_cache(host, machine) if cache is None else cache
    hits: list[Hit] = []
    seen: set[str] = set()
    for via, path in _candidates(host, soname, environment, () if runpath else rpath, runpath, entries, machine):
        if not host.exists(path) or is_other_architecture(host, path, machine):
            continue
        real = host.real_path(path)
        if real not in seen:
            seen.add(real)
            hits.append(Hit(soname, path, real, via))
    return tuple(hits)


def _candidates(
    host: Host,
    soname: str,
    environment: Mapping[str, str],
    rpath: Sequence[str],
    runpath: Sequence[str],
    cache: Cache,
    architecture: str,
) -> Iterator[tuple[str, str]]:
    library_path = library_path_directories(environment, architecture)
    preloads = (("LD_PRELOAD", environment.get("LD_PRELOAD", "")), ("ld.so.preload", _text_or_empty(host, "/etc/ld.so.preload")))
    for via, value in preloads:
        for entry in re.split(r"[\s:]+", value):
            if os.path.basename(entry) == soname and "/" in entry:
                yield via, expand(entry, architecture=architecture)
    for via, directories in (("RPATH", rpath), ("LD_LIBRARY_PATH", library_path), ("RUNPATH", runpath)):
        for directory in directories:
            yield via, os.path.join(directory, soname)
    for path in cache.get(soname, ()):
        yield "ld.so.cache", path
    for directory in default_directories(architecture):
        yield "default-directory", os.path.join(directory, soname)


def library_path_directories(environment: Mapping[str, str], architecture: str = "") -> tuple[str, ...]:
    """The absolute directories of LD_LIBRARY_PATH, in order (empty and relative entries depend on the process and are left out)."""
    entries = re.split(r"[:;]", environment.get("LD_LIBRARY_PATH", ""))
    return tuple(expand(entry, architecture=architecture) for entry in entries if entry.startswith("/"))


def default_directories(architecture: str) -> tuple[str, ...]:
    """The directories that are searched last, of all distributions together."""
    multiarch = MULTIARCH.get(architecture)
    first = (f"/lib/{multiarch}", f"/usr/lib/{multiarch}") if multiarch else ()
    return (*first, "/lib64", "/usr/lib64", "/lib", "/usr/lib")


def expand(entry: str, *, origin: str = "", architecture: str = "") -> str:
    """A search path entry with `$ORIGIN`, `$LIB` and `$PLATFORM` filled in where they are known."""
    library_directory = f"lib/{MULTIARCH[architecture]}" if architecture in MULTIARCH else "lib64"
    for name, value in (("ORIGIN", origin), ("LIB", library_directory), ("PLATFORM", architecture)):
        if value:
            entry = re.sub(rf"\${name}(?![A-Za-z0-9_])|\${{{name}}}", value.replace("\\", r"\\"), entry)
    return entry


def architecture_of(host: Host) -> str:
    """x86_64 or aarch64, by the dynamic loader that is installed; the running kernel's word where none is found."""
    for path, architecture in INTERPRETERS.items():
        if host.exists(path):
            return architecture
    return os.uname().machine


def is_other_architecture(host: Host, path: str, architecture: str) -> bool:
    """Whether the file is an ELF file for another machine or word size; a file that is no ELF at all is not passed over by the loader."""
    expected = ELF_MACHINES.get(architecture)
    if expected is None:
        return False
    try:
        header = host.read_bytes(path, 20)
    except OSError:
        return False
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return False
    is_64_bit, is_little_endian = header[4] == 2, header[5] == 1
    return not is_64_bit or not is_little_endian or int.from_bytes(header[18:20], "little") != expected


# --- the cache --------------------------------------------------------------------------------------------------------


def read_cache(host: Host, architecture: str = "") -> Cache:
    """The loader's cache as soname → paths; empty when there is none or it is not understood."""
    try:
        data = host.read_bytes(CACHE_PATH, CACHE_LIMIT_BYTES)
    except OSError:
        return {}
    return parse_cache(data, architecture or architecture_of(host))


def parse_cache(data: bytes, architecture: str) -> Cache:
    """Parse a binary ld.so.cache, keeping what a 64-bit process of `architecture` may load. Damaged entries are left out."""
    start = data.find(CACHE_MAGIC)
    wanted = CACHE_FLAGS.get(architecture)
    if start < 0 or wanted is None or len(data) - start < CACHE_HEADER_BYTES:
        return {}
    table = memoryview(data)[start:]
    (declared,) = struct.unpack_from("<I", table, len(CACHE_MAGIC))
    count = min(declared, (len(table) - CACHE_HEADER_BYTES) // CACHE_ENTRY.size)
    pairs = []
    for index in range(count):
        flags, key, value, _, _ = CACHE_ENTRY.unpack_from(table, CACHE_HEADER_BYTES + index * CACHE_ENTRY.size)
        if flags != wanted:
            continue
        soname, path = _string_at(data, start + key), _string_at(data, start + value)
        if soname and path.startswith("/"):
            pairs.append((soname, path))
    return _grouped(pairs)


def parse_ldconfig(text: str, architecture: str = "x86_64") -> Cache:
    """Parse what `ldconfig -p` prints, as `parse_cache` does for the binary."""
    label = CACHE_LABELS.get(architecture, architecture)
    found = re.finditer(r"^\s*(\S+) \(([^)]*)\) => (/.*?)\s*$", text, re.MULTILINE)
    return _grouped((match[1], match[3]) for match in found if label in re.split(r",\s*", match[2]))


def _string_at(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + PATH_LIMIT_BYTES)
    return "" if end < 0 else data[offset:end].decode("utf-8", "replace")


def _grouped(pairs: Iterable[tuple[str, str]]) -> Cache:
    found: dict[str, list[str]] = {}
    for soname, path in pairs:
        paths = found.setdefault(soname, [])
        if path not in paths:
            paths.append(path)
    return {soname: tuple(paths) for soname, paths in found.items()}


# --- the configuration ------------------------------------------------------------------------------------------------


def configured_directories(host: Host) -> tuple[str, ...]:
    """The directories of /etc/ld.so.conf and the files it includes, in the order in which ldconfig reads them."""
    return tuple(configuration(host))


def configuration(host: Host) -> dict[str, str]:
    """Each directory of /etc/ld.so.conf and the files it includes, with the file that names it first."""
    found: dict[str, str] = {}
    for directory, path in _configured(host, CONFIGURATION_PATH, INCLUDE_DEPTH):
        found.setdefault(directory, path)
    return found


def _configured(host: Host, path: str, depth: int) -> Iterator[tuple[str, str]]:
    for raw in _text_or_empty(host, path).splitlines():
        line = raw.partition("#")[0].strip()
        word, _, rest = line.partition(" ") if " " in line else line.partition("\t")
        if word == "include":
            if depth > 0:
                for pattern in rest.split():
                    for included in host.glob(os.path.join(os.path.dirname(path), pattern)):
                        yield from _configured(host, included, depth - 1)
        elif line.startswith("/"):
            yield line.partition("=")[0].rstrip("/") or "/", path


def _text_or_empty(host: Host, path: str) -> str:
    try:
        return host.read_text(path, 1 << 20)
    except OSError:
        return ""
