"""What differs between two nodes, or between one node then and now: facts and findings.

Lists are compared by what identifies their items (GPUs by index, packages by name, libraries by family and path), so that one package more
is one difference. What changes from second to second (temperatures, clocks, free space) is kept apart as `volatile`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsdoctor.facts import Snapshot
from dsdoctor.findings import Report, Severity, counted
from dsdoctor.plain import to_plain

SCHEMA = "dsdoctor.diff/1"

IDENTITY: Mapping[str, tuple[str, ...]] = {
    "gpus": ("index",),
    "nvlinks": ("index",),
    "mig_instances": ("index",),
    "numa_nodes": ("index",),
    "packages": ("name",),
    "environment": ("name",),
    "cuda_libraries": ("family", "path"),
    "mapped_libraries": ("family", "path"),
    "driver_libraries": ("soname", "path"),
    "loader_hits": ("family", "soname", "asked_by"),
    "libstdcxx": ("path",),
    "directories": ("purpose",),
    "mounts": ("path",),
    "device_nodes": ("path",),
    "network_interfaces": ("kind", "name"),
    "rdma_ports": ("adapter", "port"),
    "services": ("name",),
    "pci_devices": ("address",),
    "cuda_toolkits": ("path",),
    "host_compilers": ("name", "chosen_by"),
    "file_conflicts": ("path",),
    "extensions": ("package", "path"),
    "missing_symbols": ("symbol",),
    "xids": ("code", "pci_address"),
    "lines": ("text",),
}
"""List of records (section or field) and the fields that say which item it is."""

VOLATILE = frozenset(
    {"uptime_s", "boot_id", "elapsed_s", "import_s", "seconds_since_boot", "found_via", "where", "pid"}
    | {"temperature_c", "temperature_margin_c", "memory_temperature_c", "power_w", "utilization_percent", "performance_state"}
    | {"sm_clock_mhz", "memory_clock_mhz", "clock_event_reasons", "memory_used_bytes", "processes", "generation"}
    | {"available_bytes", "free_bytes", "free_inodes", "replay_count", "replay_errors", "volatile_corrected", "aggregate_corrected"}
    | {"link_downed"}
)
"""Fields that differ between two looks at the same healthy node."""

OF_A_RUN = frozenset({"growth", "settling"})
"""Sections that tell of the examination, not of the node."""

NOT_SET = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """One fact that is not the same: where it stands, and its value on each side."""

    section: str
    path: str
    """Within the section: `[3].ecc.volatile_uncorrected`, `[torch].version`; empty for the section itself."""
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDifference:
    """A finding that only one side has."""

    check: str
    severity: Severity
    subject: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs between two nodes or two looks at one."""

    schema: str = SCHEMA
    left: str
    """What was compared, in words."""
    right: str
    facts: tuple[FactDifference, ...] = ()
    volatile: tuple[FactDifference, ...] = ()
    findings_only_left: tuple[FindingDifference, ...] = ()
    findings_only_right: tuple[FindingDifference, ...] = ()
    not_compared: tuple[str, ...] = ()
    """Sections that only one side looked for: nothing can be said about them."""

    @property
    def findings_differ(self) -> bool:
        """Whether one side has a finding that the other has not."""
        return bool(self.findings_only_left or self.findings_only_right)


def diff(left: Snapshot | Report, right: Snapshot | Report) -> Difference:
    """What differs between two snapshots (facts only) or two reports (facts and findings)."""
    left_facts, right_facts = _facts(left), _facts(right)
    stable: list[FactDifference] = []
    volatile: list[FactDifference] = []
    not_compared = []
    for section in dict.fromkeys((*left_facts, *right_facts)):
        if section in OF_A_RUN:
            continue
        states = [(facts.get(section) or {}).get("state", "not_asked") for facts in (left_facts, right_facts)]
        if "not_asked" in states:
            not_compared += [section] if states[0] != states[1] else []
            continue
        for found in _section(section, left_facts[section], right_facts[section]):
            (volatile if _is_volatile(found.path) else stable).append(found)
    only_left, only_right = _findings(left), _findings(right)
    return Difference(
        left=_words(left),
        right=_words(right),
        facts=tuple(stable),
        volatile=tuple(volatile),
        findings_only_left=_without(only_left, only_right),
        findings_only_right=_without(only_right, only_left),
        not_compared=tuple(not_compared),
    )


def _facts(side: Snapshot | Report) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = to_plain(side.sections) if isinstance(side, Snapshot) else side.facts
    return facts


def _words(side: Snapshot | Report) -> str:
    return f"{side.origin.label} ({side.taken_at.replace('T', ' ').replace('Z', ' UTC')})"


def _findings(side: Snapshot | Report) -> list[FindingDifference]:
    if isinstance(side, Snapshot):
        return []
    findings: list[FindingDifference] = []
    for item in side.diagnosis:
        findings.append(FindingDifference(check=item.check, severity=item.severity, subject=item.subject, summary=item.summary))
        findings += [
            FindingDifference(check=entry.check, severity=entry.severity, subject=entry.subject, summary=entry.summary)
            for entry in item.explains
        ]
    return findings


def _without(these: Sequence[FindingDifference], those: Sequence[FindingDifference]) -> tuple[FindingDifference, ...]:
    """Findings about a subject that the other side has no finding of that check about; the wording may differ."""
    there = {(item.check, item.subject) for item in those}
    return tuple(item for item in these if (item.check, item.subject) not in there)


# --- facts ------------------------------------------------------------------------------------------------------------


def _section(name: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[FactDifference]:
    if left["state"] != right["state"]:
        yield FactDifference(section=name, path="", left=_state_words(left), right=_state_words(right))
    elif left["state"] == "known":
        for path, one, other in _walk(name, "", left.get("value"), right.get("value")):
            yield FactDifference(section=name, path=path, left=one, right=other)


def _state_words(section: Mapping[str, Any]) -> str:
    if section["state"] == "known":
        value = section.get("value")
        return f"known: {len(value)} {'item' if len(value) == 1 else 'items'}" if isinstance(value, list) else f"known: {_shown(value)}"
    return f"{section['state'].replace('_', ' ')}{f': {why}' if (why := section.get('why')) else ''}"


def _walk(field: str, path: str, left: Any, right: Any) -> Iterator[tuple[str, str, str]]:
    """Path, left and right value of everything that differs."""
    if left == right:
        return
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in dict.fromkeys((*left, *right)):
            if key not in left or key not in right:
                yield f"{path}.{key}", _shown_or_not_set(left, key), _shown_or_not_set(right, key)
            else:
                yield from _walk(key, f"{path}.{key}", left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list) and field in IDENTITY:
        ours, theirs = _by_identity(field, left), _by_identity(field, right)
        for key in dict.fromkeys((*ours, *theirs)):
            if key not in ours or key not in theirs:
                yield f"{path}[{key}]", _item(field, ours.get(key)), _item(field, theirs.get(key))
            else:
                yield from _walk("", f"{path}[{key}]", ours[key], theirs[key])
    elif isinstance(left, list) and isinstance(right, list) and _is_flat([*left, *right]):
        ours_only, theirs_only = Counter(left) - Counter(right), Counter(right) - Counter(left)
        if ours_only or theirs_only:
            yield path, ", ".join(ours_only.elements()) or "nothing more", ", ".join(theirs_only.elements()) or "nothing more"
        else:
            yield path, f"order: {', '.join(left)}", f"order: {', '.join(right)}"
    else:
        yield path, _shown(left), _shown(right)


def _is_flat(items: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in items)


def _by_identity(field: str, items: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for item in items:
        key = " ".join(str(item[name]) for name in IDENTITY[field] if item.get(name) not in (None, ""))
        times[key] += 1
        found[key if times[key] == 1 else f"{key} #{times[key]}"] = item
    return found


def _item(field: str, item: Any) -> str:
    """A whole item in short: what it says beside its identity."""
    if item is None:
        return "not there"
    rest = {key: value for key, value in item.items() if key not in IDENTITY[field] and key not in VOLATILE}
    for telling in ("version", "value", "state", "name"):
        if isinstance(text := rest.get(telling), str):
            return text
    return _shown(rest) if rest and len(json.dumps(rest)) < 60 else "there"


def _shown_or_not_set(record: Mapping[str, Any], key: str) -> str:
    return _shown(record[key]) if key in record else NOT_SET


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _is_volatile(path: str) -> bool:
    return any(part.partition("[")[0] in VOLATILE for part in _names_in(path))


def _names_in(path: str) -> list[str]:
    """The field names of a path, without what stands in brackets (a file name there may hold dots)."""
    names, depth, name = [], 0, ""
    for character in path:
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif depth == 0:
            if character == ".":
                names.append(name)
                name = ""
            else:
                name += character
    return [*names, name]


# --- what it looks like -----------------------------------------------------------------------------------------------


def render_json(difference: Difference) -> str:
    """One JSON document (`dsdoctor.diff/1`)."""
    from dsdoctor.render.json import complete, to_text

    return to_text(complete(difference))


def render_diff(difference: Difference, *, width: int, colour: bool = False, unicode: bool = True) -> str:
    """For a person: the findings that differ first, then the facts section by section."""
    from dsdoctor.render.terminal import Style

    style = Style(width=width, colour=colour, unicode=unicode)
    blocks = [[*style.wrap(difference.left, "left:  "), *style.wrap(difference.right, "right: ")]]
    for side, findings in (("left", difference.findings_only_left), ("right", difference.findings_only_right)):
        if findings:
            lines = [style.paint(f"Found only on the {side}", "bold")]
            for item in findings:
                lines += style.wrap(f"{item.severity.value} {item.check} ({item.subject}): {item.summary}", "  ", "    ")
            blocks.append(lines)
    by_section: dict[str, list[FactDifference]] = {}
    for fact in difference.facts:
        by_section.setdefault(fact.section, []).append(fact)
    for section, facts in by_section.items():
        lines = [style.paint(section.replace("_", " "), "bold")]
        for fact in _gathered(facts):
            lines += style.wrap(fact.path.lstrip(".") or "the whole section", "  ", "    ")
            lines += style.wrap(fact.left, "    left:  ")
            lines += style.wrap(fact.right, "    right: ")
        blocks.append(lines)
    if difference.not_compared:
        blocks.append(style.wrap(f"Looked for on one side only, so not compared: {', '.join(difference.not_compared)}.", rest="  "))
    blocks.append(style.wrap(_summary(difference), rest="  "))
    return "\n\n".join("\n".join(block) for block in blocks)


def _gathered(facts: Sequence[FactDifference]) -> list[FactDifference]:
    """The same difference on several items as one: [0].vbios_version and [1].vbios_version become [0, 1].vbios_version."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    order: list[FactDifference] = []
    for fact in facts:
        index, _, rest = fact.path[1:].partition("]")
        if not (fact.path.startswith("[") and index.isdecimal()):
            order.append(fact)
            continue
        key = (rest, fact.left, fact.right)
        if key not in groups:
            order.append(fact)
        groups.setdefault(key, []).append(index)
    gathered = []
    for fact in order:
        index, _, rest = fact.path[1:].partition("]")
        indices = groups.get((rest, fact.left, fact.right)) if fact.path.startswith("[") and index.isdecimal() else None
        gathered.append(replace(fact, path=f"[{', '.join(indices)}]{rest}") if indices else fact)
    return gathered


def _summary(difference: Difference) -> str:
    if not difference.facts and not difference.findings_differ:
        text = "No difference in what was compared"
    else:
        findings = len(difference.findings_only_left) + len(difference.findings_only_right)
        text = f"{counted(len(difference.facts), 'fact')} and {counted(findings, 'finding')} differ"
    ignored = f"; left out because they change all the time: {counted(len(difference.volatile), 'value')} (--format json has them)"
    return f"{text}{ignored if difference.volatile else ''}."
