"""For which GPUs a library carries code: the headers of its fat binaries, without the code itself.

A fat binary is a row of containers; each holds one entry for each target, machine code (sm_90a) or PTX (compute_120). The layout is not
documented by NVIDIA: it was read off published wheels and agrees with what `cuobjdump --list-elf --list-ptx` prints for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from .elf import Elf, ElfError

Read = Callable[[int, int], bytes]
"""Bytes at an offset of the file, by offset and size."""

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, size of this header, size of the entries behind it."""
ENTRY = struct.Struct("<HHIQ12xI8xQ")
"""Kind, version, size of this header, size of the code behind it; SM number; flags."""
MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
ARCHITECTURE_SPECIFIC, FAMILY_SPECIFIC = 0x100000, 0x200000
"""Flags of targets such as sm_90a and sm_120f."""
ALIGNMENT = 8
ENTRIES_READ = 1024
"""Enough for every library that was looked at but torch's own; each entry costs one page of reading."""


def gpu_targets(library: Elf) -> tuple[str, ...]:
    """Targets such as sm_80, sm_90a and compute_120 for which the library has code, sorted; empty when it carries none."""
    found = set()
    left = ENTRIES_READ
    with library.scattered() as read:
        for name in SECTIONS:
            for target in _targets(read, *library.section(name)):
                found.add(target)
                left -= 1
                if not left:
                    return _sorted(found)
    return _sorted(found)


def _targets(read: Read, place: int, size: int) -> Iterator[str]:
    end = place + size
    while place + CONTAINER.size <= end:
        magic, _, header, length = CONTAINER.unpack(read(place, CONTAINER.size))
        if magic != MAGIC:
            place += ALIGNMENT
            if magic:  # neither a container nor the padding between two of them
                return
            continue
        yield from _entries(read, place + header, min(place + header + length, end))
        place += header + length
        place += -place % ALIGNMENT


def _entries(read: Read, place: int, end: int) -> Iterator[str]:
    while place + ENTRY.size <= end:
        kind, _, header, length, number, flags = ENTRY.unpack(read(place, ENTRY.size))
        if header < ENTRY.size:
            raise ElfError("a damaged fat binary")
        suffix = "a" if flags & ARCHITECTURE_SPECIFIC else "f" if flags & FAMILY_SPECIFIC else ""
        if kind in (PTX, MACHINE_CODE):
            yield f"{'sm' if kind == MACHINE_CODE else 'compute'}_{number}{suffix}"
        place += header + length


def _sorted(targets: set[str]) -> tuple[str, ...]:
    return tuple(sorted(targets, key=lambda target: (target.startswith("compute"), int("".join(filter(str.isdigit, target))), target)))
