"""Read the dynamic section and symbols of a 64-bit little-endian ELF file, touching only the pages it needs.

A library of the stack may be a gigabyte with a hundred thousand symbols: a name is looked up through the GNU hash table, as the loader does
it, in the same few reads whatever the size. Layouts: System V gABI, and the GNU hash section as emitted by binutils and lld.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from types import TracebackType

from dsdoctor.sources.host import Host

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
DYNAMIC_TAG = struct.Struct("<qQ")
SYMBOL = struct.Struct("<IBBHQQ")
HASH_HEADER = struct.Struct("<IIII")
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
VERSION_NEED = struct.Struct("<HHIII")
VERSION_NEED_NAME = struct.Struct("<IHHII")
VERSION_DEFINITION = struct.Struct("<HHHHIII")

PT_LOAD, PT_DYNAMIC = 1, 2
SHT_NOBITS, SHT_DYNSYM = 8, 11
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 6, 10, 14, 15, 29
DT_GNU_HASH, DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
WEAK = 2
MAX_ENTRIES = 1 << 20
MAX_NAME_BYTES = 1 << 16


class ElfError(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is damaged."""


class Elf:
    """One open ELF file; use it as a context manager. Every method raises ElfError on a damaged file."""

    def __init__(self, host: Host, path: str) -> None:
        """Open and map the file. Raises OSError or ElfError."""
        self.path = path
        self._local = host.local(path)
        descriptor = os.open(self._local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.pread(descriptor, 6, 0) != b"\x7fELF\x02\x01":
                raise ElfError(f"{path}: not a 64-bit little-endian ELF file")
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        try:
            self._read_headers()
        except ElfError:
            self._map.close()
            raise

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._map.close()

    @property
    def soname(self) -> str:
        """DT_SONAME, or empty."""
        return next(self._names(DT_SONAME), "")

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED, in order."""
        return tuple(self._names(DT_NEEDED))

    @property
    def rpath(self) -> tuple[str, ...]:
        """DT_RPATH entries as written (with `$ORIGIN`); the loader searches them before LD_LIBRARY_PATH."""
        return tuple(entry for text in self._names(DT_RPATH) for entry in text.split(":") if entry)

    @property
    def runpath(self) -> tuple[str, ...]:
        """DT_RUNPATH entries as written; the loader searches them after LD_LIBRARY_PATH."""
        return tuple(entry for text in self._names(DT_RUNPATH) for entry in text.split(":") if entry)

    def undefined(self) -> Iterator[str]:
        """Names of the symbols that other libraries must provide; weak ones, that may stay undefined, are left out."""
        table, count = self._symbol_table()
        for name, info, _, section, _, _ in SYMBOL.iter_unpack(self._slice(table, count * SYMBOL.size)):
            if section == 0 and name and info >> 4 != WEAK:
                yield self._string(name)

    def exports(self, name: str) -> bool:
        """Whether the library defines the dynamic symbol, by its GNU hash table (by its whole symbol table where it has none)."""
        if DT_GNU_HASH not in self._tags:
            return name in self._defined
        encoded = name.encode()
        hashed = gnu_hash(encoded)
        buckets, first, bloom_size, shift = self._hash_header
        bloom = self._hash_offset + HASH_HEADER.size
        word = self._u64(bloom + 8 * ((hashed // 64) % bloom_size))
        if not (word >> (hashed % 64)) & (word >> ((hashed >> shift) % 64)) & 1:
            return False
        bucket_table = bloom + 8 * bloom_size
        index = self._u32(bucket_table + 4 * (hashed % buckets))
        if index < first:
            return False
        chain = bucket_table + 4 * buckets - 4 * first
        for candidate in range(index, index + MAX_ENTRIES):
            entry = self._u32(chain + 4 * candidate)
            if entry | 1 == hashed | 1 and self._is_defined_as(candidate, encoded):
                return True
            if entry & 1:
                return False
        raise ElfError(f"{self.path}: endless hash chain")

    def versions_needed(self) -> tuple[tuple[str, str], ...]:
        """(library, symbol version) pairs that the file requires: ('libc.so.6', 'GLIBC_2.34')."""
        if DT_VERNEED not in self._tags:
            return ()
        found = []
        offset = self._offset(self._tags[DT_VERNEED][0])
        for _ in range(min(self._tags.get(DT_VERNEEDNUM, [0])[0], MAX_ENTRIES)):
            _, names, library, first, following = VERSION_NEED.unpack(self._slice(offset, VERSION_NEED.size))
            place = offset + first
            for _ in range(names):
                _, _, _, name, step = VERSION_NEED_NAME.unpack(self._slice(place, VERSION_NEED_NAME.size))
                found.append((self._string(library), self._string(name)))
                if not step:
                    break
                place += step
            if not following:
                break
            offset += following
        return tuple(found)

    def versions_defined(self) -> tuple[str, ...]:
        """Symbol versions that the library provides: GLIBCXX_3.4.30."""
        if DT_VERDEF not in self._tags:
            return ()
        found = []
        offset = self._offset(self._tags[DT_VERDEF][0])
        for _ in range(min(self._tags.get(DT_VERDEFNUM, [0])[0], MAX_ENTRIES)):
            *_, first, following = VERSION_DEFINITION.unpack(self._slice(offset, VERSION_DEFINITION.size))
            found.append(self._string(self._u32(offset + first)))
            if not following:
                break
            offset += following
        return tuple(found)

    def section(self, name: str) -> tuple[int, int]:
        """Offset and size in bytes of a named section; two zeros where there is none (a stripped file has no section headers)."""
        names = self._section_header(self._section_names)
        for index in range(self._section_count):
            at, kind, _, _, offset, size, *_ = self._section_header(index)
            start = names[4] + at
            if kind != SHT_NOBITS and self._map[start : start + len(name) + 1] == name.encode() + b"\0":
                return offset, min(size, max(0, len(self._map) - offset))
        return 0, 0

    @contextlib.contextmanager
    def scattered(self) -> Iterator[Callable[[int, int], bytes]]:
        """A reader (offset, size) of few bytes at many places: it fetches single pages, where a mapping brings what lies around them."""
        descriptor = os.open(self._local, os.O_RDONLY | os.O_CLOEXEC)

        def read(offset: int, size: int) -> bytes:
            data = os.pread(descriptor, size, offset)
            if len(data) != size:
                raise ElfError(f"{self.path}: truncated")
            return data

        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            yield read
        finally:
            os.close(descriptor)

    # --- layout -------------------------------------------------------------------------------------------------------

    def _read_headers(self) -> None:
        header = HEADER.unpack(self._slice(0, HEADER.size))
        programs, program_size, program_count = header[5], header[9], header[10]
        self._sections, self._section_size, self._section_count, self._section_names = header[6], header[11], header[12], header[13]
        entries = [
            PROGRAM_HEADER.unpack(self._slice(programs + index * program_size, PROGRAM_HEADER.size)) for index in range(program_count)
        ]
        self._loads: list[tuple[int, int, int]] = [
            (address, size, offset) for kind, _, offset, address, _, size, _, _ in entries if kind == PT_LOAD
        ]
        self._tags: dict[int, list[int]] = {}
        for kind, _, offset, _, _, size, _, _ in entries:
            if kind == PT_DYNAMIC:
                for tag, value in DYNAMIC_TAG.iter_unpack(self._slice(offset, size - size % DYNAMIC_TAG.size)):
                    if tag == 0:
                        break
                    self._tags.setdefault(tag, []).append(value)

    def _symbol_table(self) -> tuple[int, int]:
        """Offset and number of entries of the dynamic symbol table."""
        for index in range(self._section_count):
            _, kind, _, _, offset, size, *_ = self._section_header(index)
            if kind == SHT_DYNSYM:
                return offset, size // SYMBOL.size
        if DT_SYMTAB not in self._tags or DT_GNU_HASH not in self._tags:
            return 0, 0
        # Without section headers: what is undefined comes before what is hashed.
        return self._offset(self._tags[DT_SYMTAB][0]), min(self._hash_header[1], MAX_ENTRIES)

    def _section_header(self, index: int) -> tuple[int, ...]:
        if index >= self._section_count:
            return (0,) * 10
        return SECTION_HEADER.unpack(self._slice(self._sections + index * self._section_size, SECTION_HEADER.size))

    @cached_property
    def _defined(self) -> frozenset[str]:
        table, count = self._symbol_table()
        rows = SYMBOL.iter_unpack(self._slice(table, count * SYMBOL.size))
        return frozenset(self._string(name) for name, _, _, section, _, _ in rows if section and name)

    @cached_property
    def _hash_offset(self) -> int:
        return self._offset(self._tags[DT_GNU_HASH][0])

    @cached_property
    def _hash_header(self) -> tuple[int, int, int, int]:
        buckets, first, bloom_size, shift = HASH_HEADER.unpack(self._slice(self._hash_offset, HASH_HEADER.size))
        if not buckets or not bloom_size:
            raise ElfError(f"{self.path}: damaged GNU hash table")
        return buckets, first, bloom_size, shift

    @cached_property
    def _symbols(self) -> int:
        if DT_SYMTAB not in self._tags:
            raise ElfError(f"{self.path}: no dynamic symbol table")
        return self._offset(self._tags[DT_SYMTAB][0])

    @cached_property
    def _strings(self) -> tuple[int, int]:
        if DT_STRTAB not in self._tags:
            raise ElfError(f"{self.path}: no dynamic string table")
        return self._offset(self._tags[DT_STRTAB][0]), self._tags.get(DT_STRSZ, [0])[0]

    def _is_defined_as(self, index: int, name: bytes) -> bool:
        at, _, _, section, _, _ = SYMBOL.unpack(self._slice(self._symbols + index * SYMBOL.size, SYMBOL.size))
        start = self._strings[0] + at
        return section != 0 and self._map[start : start + len(name) + 1] == name + b"\0"

    def _names(self, tag: int) -> Iterator[str]:
        return (self._string(value) for value in self._tags.get(tag, ()))

    def _string(self, index: int) -> str:
        start, size = self._strings
        if index >= min(size, len(self._map) - start):
            raise ElfError(f"{self.path}: a name outside the string table")
        end = self._map.find(b"\0", start + index, min(start + size, start + index + MAX_NAME_BYTES))
        if end < 0:
            raise ElfError(f"{self.path}: a name without an end")
        return self._map[start + index : end].decode("utf-8", "replace")

    def _offset(self, address: int) -> int:
        for start, size, offset in self._loads:
            if start <= address < start + size and offset + address - start < len(self._map):
                return offset + address - start
        raise ElfError(f"{self.path}: an address outside the file")

    def _slice(self, offset: int, size: int) -> bytes:
        data = self._map[offset : offset + size]
        if len(data) != size:
            raise ElfError(f"{self.path}: truncated")
        return data

    def _u32(self, offset: int) -> int:
        try:
            number: int = U32.unpack_from(self._map, offset)[0]
        except struct.error:
            raise ElfError(f"{self.path}: truncated") from None
        return number

    def _u64(self, offset: int) -> int:
        try:
            number: int = U64.unpack_from(self._map, offset)[0]
        except struct.error:
            raise ElfError(f"{self.path}: truncated") from None
        return number


@lru_cache(maxsize=1 << 16)
def gnu_hash(name: bytes) -> int:
    """The hash of a symbol name in a GNU hash table (Bernstein's, start 5381, times 33)."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def highest(versions: Iterable[str], family: str) -> str:
    """The highest version number of a family such as GLIBC or GLIBCXX among symbol versions, or empty."""
    numbers = [match[1] for version in versions if (match := re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", version))]
    return max(numbers, key=lambda text: tuple(int(part) for part in text.split(".")), default="")
