"""Names of nodes in short: node[001-256,300], as Slurm and ClusterShell write them, and in the order a person expects."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
_PLAIN = re.compile(r"[\w.:@+/-]+")


def folded(names: Iterable[str]) -> str:
    """All names, those that differ only in their last number as one; a name with brackets, commas or spaces stands alone."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    alone: list[str] = []
    for name in names:
        found = _LAST_NUMBER.fullmatch(name) if _PLAIN.fullmatch(name) else None
        if found is None:
            alone.append(name)
            continue
        prefix, digits, suffix = found.groups()
        # Numbers without leading zeros fold with each other, whatever their length; padded ones only with their like.
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((prefix, suffix, width), []).append(int(digits))
    _adopt(groups)
    parts = []
    for (prefix, suffix, width), numbers in groups.items():
        ranges = _ranges(sorted(set(numbers)), width)
        single = len(ranges) == 1 and "-" not in ranges[0]
        parts.append((natural(f"{prefix}{min(numbers)}"), f"{prefix}{ranges[0] if single else '[' + ','.join(ranges) + ']'}{suffix}"))
    parts += [(natural(name), name) for name in dict.fromkeys(alone)]
    return ",".join(text for _, text in sorted(parts))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that puts node2 before node10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _adopt(groups: dict[tuple[str, str, int], list[int]]) -> None:
    """node[01-12]: numbers that need no zero at that width belong to those that do."""
    for prefix, suffix, width in [key for key in groups if key[2]]:
        bare = groups.get((prefix, suffix, 0), [])
        groups[prefix, suffix, width] += [number for number in bare if len(str(number)) == width]
        rest = [number for number in bare if len(str(number)) != width]
        if rest:
            groups[prefix, suffix, 0] = rest
        else:
            groups.pop((prefix, suffix, 0), None)


def _ranges(numbers: list[int], width: int) -> list[str]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in ranges]
