"""The page of one check, and the lists of checks, probes, profiles, matrices and examples, as text and as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsdoctor.checks._check import Case, Check
from dsdoctor.facts import Section
from dsdoctor.findings import Remedy, Severity
from dsdoctor.matrix import stem_of
from dsdoctor.plain import to_plain
from dsdoctor.render.json import complete, to_text
from dsdoctor.render.terminal import Style, remedy_lines, verify_lines

if TYPE_CHECKING:
    from dsdoctor.plugins import Parts
    from dsdoctor.remedies import RemedyRow
    from dsdoctor.rows_health import FleetWord, FleetWords

EXPLAIN_SCHEMA = "dsdoctor.explain/1"
LIST_SCHEMA = "dsdoctor.list/1"
SHOWN_FACTS = 400
SMALLEST_COLUMN = 24

_SEVERITIES = {
    Severity.ERROR: "error: the stack does not run, or computes wrong results",
    Severity.WARNING: "warning: it runs, but slower, or a hazard is near",
    Severity.INFO: "info: worth knowing",
}


# --- one check --------------------------------------------------------------------------------------------------------


def explain(check: Check, rows: Sequence[RemedyRow] | None = None, *, width: int, colour: bool = False, unicode: bool = True) -> str:
    """The page of a check: what it looks at and why it matters, what to do, and worked examples. `rows`: None takes the built-in ones."""
    style = Style(width=width, colour=colour, unicode=unicode)
    remedies = rows_of(check.id) if rows is None else rows
    blocks = [
        [style.paint(check.id, "bold"), *style.wrap(check.title)],
        *_paragraphs(check.documentation.partition("\n")[2], style),
        _facts_of(check, style),
        _remedies(remedies, style),
        _sources(remedies, style),
        _fleet(check.id, style),
        *(_case(case, style) for case in check.cases),
        ["Run it alone:", *style.command(f"dsdoctor check --only {check.id}", "  ")],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def explain_json(check: Check, rows: Sequence[RemedyRow] | None = None) -> str:
    """The same page as one JSON document (`dsdoctor.explain/1`)."""
    return to_text(
        {
            "schema": EXPLAIN_SCHEMA,
            "check": check.id,
            "severity": check.severity.value,
            "title": check.title,
            "documentation": check.documentation,
            "needs": {
                "sections": list(check.sections),
                "optional_sections": list(check.optional_sections),
                "matrices": [stem_of(name) for name in check.matrices],
            },
            "explains": list(check.explains),
            "settle": check.settle,
            "fleet": [
                {"case": row.case, "severity": row.severity, "dcgm_severity": row.dcgm, "recommended_action": row.action}
                for row in _fleet_rows(check.id)
            ],
            "remedies": [complete(row) for row in (rows_of(check.id) if rows is None else rows)],
            "cases": [
                {
                    "title": case.title,
                    "sections": {name: _plain(value) for name, value in case.sections.items()},
                    "status": case.status.value,
                    "severity": case.severity.value if case.severity else None,
                    "says": case.says,
                    "options": case.options,
                }
                for case in check.cases
            ],
        }
    )


def rows_of(check_id: str) -> tuple[RemedyRow, ...]:
    """The built-in remedy rows of a check, for every platform; none for a check that has no file of them (a plugin's)."""
    from dsdoctor import remedies
    from dsdoctor.errors import MatrixError
    from dsdoctor.matrix import Knowledge

    try:
        return remedies.rows_of(check_id, Knowledge().load_table)
    except (KeyError, OSError, MatrixError):
        return ()


def _paragraphs(text: str, style: Style) -> list[list[str]]:
    """Documentation: prose is wrapped at its own indent, list items with a hanging one; table lines stay as they are."""
    blocks = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        pieces: list[tuple[str, str, str]] = []
        for line in paragraph.splitlines():
            words = line.strip()
            indent = line[: len(line) - len(line.lstrip())]
            is_item = words.startswith(("- ", "* ", "|"))
            if pieces and not is_item and pieces[-1][1] == indent and not pieces[-1][2].startswith("|"):
                pieces[-1] = (pieces[-1][0], indent, f"{pieces[-1][2]} {words}")
            elif words:
                pieces.append((indent, f"{indent}  " if is_item else indent, words))
        blocks.append([line for first, rest, words in pieces for line in style.wrap(words, first, rest)])
    return blocks


def _facts_of(check: Check, style: Style) -> list[str]:
    lines = style.wrap(f"Severity: {_SEVERITIES[check.severity]}", rest="  ")
    optional = [f"{name} (if known)" for name in check.optional_sections]
    for title, names in (
        ("Looks at", [*check.sections, *optional]),
        ("Judges by", [f"matrix {stem_of(name)}" for name in check.matrices]),
        ("Explains", list(check.explains)),
    ):
        lines += style.wrap(f"{title}: {', '.join(names)}", rest="  ") if names else []
    if check.settle:
        lines += ["When it cannot tell, this settles it:", *style.command(check.settle, "  ")]
    return lines


def _remedies(rows: Sequence[RemedyRow], style: Style) -> list[str]:
    """Every row, for every platform; its sources by their number in the list below."""
    numbers = _source_numbers(rows)
    lines = [style.paint("What to do", "bold")] if rows else []
    for number, row in enumerate(rows, 1):
        place = ", by the administrator of the host" if row.where == "host" else ""
        case = "" if row.case in ("", "every") else f", case {row.case}"
        lines += [""] if number > 1 else []
        lines += remedy_lines(number, _as_remedy(row, f"[{row.platform}{place}{case}] {row.summary}"), style, True)
        for name in row.uses:
            lines += style.wrap(f"- first: {name}", "        ", "          ")
        for name in row.then:
            lines += style.wrap(f"- then: {name}", "        ", "          ")
        if row.verify:
            lines += ["        verify:", *verify_lines(row.verify, style, "          ")]
        cited = ", ".join(str(numbers[source]) for source in row.basis.sources)
        lines += style.wrap(f"basis: {row.basis.confidence.value}{f', source {cited}' if cited else ''}", "        ", "          ")
    return lines


def _source_numbers(rows: Sequence[RemedyRow]) -> dict[str, int]:
    sources = dict.fromkeys(source for row in rows for source in row.basis.sources)
    return {source: number for number, source in enumerate(sources, 1)}


def _sources(rows: Sequence[RemedyRow], style: Style) -> list[str]:
    lines = [style.paint("Sources of the remedies", "bold")] if rows else []
    for source, number in _source_numbers(rows).items():
        lines += style.wrap(f"{number}. {source}", "  ", "     ")
    return lines


def _fleet_rows(check_id: str) -> tuple[FleetWord, ...]:
    from dsdoctor.matrix import Knowledge

    words: FleetWords = Knowledge().matrix("fleet-words")
    return words.rows_of(check_id)


def _fleet(check_id: str, style: Style) -> list[str]:
    """What fleet tools call its findings."""
    lines = [style.paint("For fleet tools", "bold")]
    for row in _fleet_rows(check_id):
        which = row.case or (f"every finding of severity {row.severity}" if row.severity else "every other finding")
        lines += style.wrap(f"{which}: DCGM severity {row.dcgm}, NVSentinel recommendedAction {row.action}", "  ", "    ")
    return lines


def _as_remedy(row: RemedyRow, summary: str) -> Remedy:
    return Remedy(
        summary=summary, when=row.when, commands=row.commands, steps=row.steps, inspect=row.inspect, disruption=row.disruption,
        needs_root=row.needs_root, drain=row.drain, risk=row.risk, not_when=row.not_when,
    )  # fmt: skip


def _case(case: Case, style: Style) -> list[str]:
    answer = case.status.value.replace("_", " ") + (f" ({case.severity.value})" if case.severity else "")
    lines = style.wrap(f"Example: {case.title}", rest="  ", colour="bold")
    if case.options:
        lines += style.wrap(f"asked: {case.options}", "  ", "    ")
    for name, value in case.sections.items():
        text = json.dumps(_plain(value), ensure_ascii=False)
        lines += style.wrap(f"{name}: {text if len(text) <= SHOWN_FACTS else f'{text[:SHOWN_FACTS]}…'}", "  ", "    ")
    return lines + style.wrap(f"answer: {answer}{f', says: {case.says}' if case.says else ''}", "  ", "    ")


def _plain(value: Any) -> Any:
    """A case's section as a reader thinks of it: the value when known, else the state and why."""
    if isinstance(value, Section) and value.value is not None:
        return to_plain(value.value)
    return to_plain(value)


# --- lists ------------------------------------------------------------------------------------------------------------


def listing(what: str, parts: Parts, *, as_json: bool, width: int) -> str:
    """A list of `checks`, `probes`, `profiles`, `matrices` or `examples`, as a table or as JSON (`dsdoctor.list/1`)."""
    sources: Mapping[str, Callable[[Parts], list[dict[str, Any]]]] = {
        "checks": _checks, "probes": _probes, "profiles": _profiles, "matrices": _matrices, "examples": _examples,
    }  # fmt: skip
    items = sources[what](parts)
    if as_json:
        return to_text({"schema": LIST_SCHEMA, "what": what, "items": items})
    if not items:
        return f"There are no {what}."
    return table([[_cell(value) for value in item.values()] for item in items], width)


def _checks(parts: Parts) -> list[dict[str, Any]]:
    return [{"check": check.id, "severity": check.severity.value, "title": check.title} for check in parts.checks]


def _probes(parts: Parts) -> list[dict[str, Any]]:
    return [
        {"probe": probe.name, "cost": probe.cost, "where": probe.where, "timeout_s": probe.timeout_s, "provides": list(probe.provides)}
        for probe in parts.probes
    ]


def _profiles(parts: Parts) -> list[dict[str, Any]]:
    from pathlib import Path

    from dsdoctor.matrix import Knowledge

    knowledge = Knowledge(tuple(Path(folder) for folder in parts.matrices))
    profiles = [knowledge.profile(name) for name in knowledge.profile_names()]
    return [{"profile": profile.name, "title": profile.title, "aliases": list(profile.aliases)} for profile in profiles]


def _matrices(parts: Parts) -> list[dict[str, Any]]:
    import importlib

    from dsdoctor.matrix import KINDS

    items = []
    for name, place in sorted(KINDS.items()):
        module, _, kind = place.partition(":")
        documentation = inspect.getdoc(getattr(importlib.import_module(module), kind)) or ""
        items.append({"matrix": name, "title": documentation.partition("\n")[0].rstrip(".")})
    return items


def _examples(parts: Parts) -> list[dict[str, Any]]:
    from dsdoctor.sources import replay

    return [
        {"example": f"{replay.EXAMPLE_PREFIX}{name}", "description": replay.example_description(name)} for name in replay.example_names()
    ]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:g} s" if isinstance(value, float) else str(value)


def table(rows: Sequence[Sequence[str]], width: int) -> str:
    """Columns as wide as their longest cell; the last one is wrapped, on lines of its own where no room is left beside the others."""
    style = Style(width=width)
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows))[:-1]]
    lines: list[str] = []
    for row in rows:
        lead = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths))
        if width - len(lead) < SMALLEST_COLUMN:
            lines += [lead.rstrip(), *style.wrap(row[-1], "    ")]
        else:
            last = style.wrap(row[-1], " " * len(lead)) or [""]
            lines += [f"{lead}{last[0].strip()}".rstrip(), *last[1:]]
    return "\n".join(lines)
