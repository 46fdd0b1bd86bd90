"""The answer on a fleet for a person: what is wrong and where, what most nodes have, what to do. Also its tables as CSV.

Names of nodes and texts come from reports that anybody may have written: control characters are taken out, and no cell is a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from dsdoctor.findings import Severity, counted
from dsdoctor.fleet.answer import Consensus, Fleet, Group, Problem, Work
from dsdoctor.render import json as json_render
from dsdoctor.render.account import line
from dsdoctor.render.terminal import Style, cost_words, verify_lines

SHOWN_PROBLEMS = 30
SHOWN_WORK = 10
SHOWN_HOSTS = 400
"""Characters of a folded list of nodes; JSON and CSV have all."""
NODE_COLUMNS = ("node", "group", "verdict", "reason", "problems", "checks", "differs_in", "taken_at", "dsdoctor", "source")
_DIFFERS = "fleet.node-differs"


def render_json(fleet: Fleet) -> str:
    """One JSON document (`dsdoctor.fleet/1`)."""
    return json_render.to_lines(json_render.complete(fleet))


# --- tables -----------------------------------------------------------------------------------------------------------


def nodes_csv(fleet: Fleet) -> str:
    """One row for each node."""
    by_number = {problem.number: problem for problem in fleet.problems}
    rows = []
    for node in fleet.nodes:
        problems = [by_number[number] for number in node.problems]
        checks = dict.fromkeys(problem.check for problem in problems if problem.severity is not Severity.INFO)
        differs = [problem.subject for problem in problems if problem.check == _DIFFERS]
        serious = sum(problem.severity is not Severity.INFO for problem in problems)
        rows.append(
            (node.name, node.group, node.verdict, node.reason, serious, " ".join(checks), " ".join(differs), node.taken_at, node.dsdoctor, node.source)
        )  # fmt: skip
    return table(NODE_COLUMNS, rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV (RFC 4180) that a spreadsheet shows and does not compute."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return "" if value is None else value
    text = line(value, 2000)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


# --- the screen -------------------------------------------------------------------------------------------------------


def render(fleet: Fleet, *, width: int, colour: bool = False, unicode: bool = True, verbose: bool = False) -> str:
    """The answer as text, without a newline at its end."""
    style = Style(width=width, colour=colour, unicode=unicode)
    blocks = [
        _head(fleet, style),
        *_problems(fleet, style, verbose),
        _notes(fleet, style),
        *(_group(group, style, verbose) for group in fleet.groups if group.nodes > 1),
        _alone(fleet, style),
        *_work(fleet, style, verbose),
        _rejected(fleet, style),
        _tail(fleet, style),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def amounts(fleet: Fleet) -> str:
    """How many nodes of which verdict."""
    counts = fleet.counts
    pairs = (
        (counts.healthy, "healthy"), (counts.degraded, "degraded"), (counts.broken, "broken"), (counts.unknown, "not known"),
        (counts.no_report, "without a report"),
    )  # fmt: skip
    return f"{counted(counts.nodes, 'node')}: {', '.join(f'{number} {word}' for number, word in pairs if number)}"


def problem_amounts(fleet: Fleet) -> str:
    """How many problems of which severity."""
    counts = fleet.counts
    return f"{counted(counts.errors, 'error')}, {counted(counts.warnings, 'warning')}, {counted(counts.infos, 'note')}"


def shortened(hosts: str) -> str:
    """A folded list that fits on a few lines."""
    if len(hosts) <= SHOWN_HOSTS:
        return hosts
    return f"{hosts[: hosts.rfind(',', 0, SHOWN_HOSTS)]}, … (JSON and CSV name all)"


def gathered(problems: Sequence[Problem]) -> list[tuple[Problem, ...]]:
    """Problems in order; facts in which the very same nodes differ stand together."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        alike = (problem.check, problem.group, problem.hosts) if problem.check == _DIFFERS else (str(problem.number),)
        groups.setdefault(alike, []).append(problem)
    return [tuple(group) for group in groups.values()]


def _head(fleet: Fleet, style: Style) -> list[str]:
    title = f"dsdoctor {fleet.dsdoctor}"
    grouped = f", grouped by {', '.join(fleet.group_by)}" if len(fleet.groups) > 1 else ""
    lines = style.wrap(f"{title}: {amounts(fleet)}{grouped}", rest="  ")
    lines[0] = lines[0].replace(title, style.paint(title, "bold"), 1)
    for notice in fleet.notices:
        lines += style.wrap(f"! {notice}", rest="  ", colour="yellow")
    colours = {"healthy": "green", "degraded": "yellow", "broken": "red", "unknown": "yellow"}
    word = fleet.verdict.upper()
    verdict = style.wrap(f"{word}: {problem_amounts(fleet)}", rest="  ")
    verdict[0] = verdict[0].replace(word, style.paint(style.paint(word, colours[fleet.verdict]), "bold"), 1)
    return [*lines, "", *verdict]


def _problems(fleet: Fleet, style: Style, verbose: bool) -> list[list[str]]:
    serious = gathered([problem for problem in fleet.problems if problem.severity is not Severity.INFO])
    shown = serious if verbose else serious[:SHOWN_PROBLEMS]
    blocks = [_problem(group, style) for group in shown]
    if len(shown) < len(serious):
        blocks.append(style.wrap(f"and {counted(len(serious) - len(shown), 'more problem')} (--verbose)"))
    return blocks


def _problem(group: tuple[Problem, ...], style: Style) -> list[str]:
    first = group[0]
    word, colour = {Severity.ERROR: ("ERROR", "red"), Severity.WARNING: ("WARNING", "yellow"), Severity.INFO: ("NOTE", "blue")}[
        first.severity
    ]
    lead = f"{first.number}. {word}"
    place = f" ({first.group})" if first.group and first.origin == "fleet" else ""
    lines = style.wrap(f"{lead} {first.check}: {counted(first.nodes, 'node')}{place}", rest="   ")
    lines[0] = lines[0].replace(lead, style.paint(style.paint(lead, colour), "bold"), 1)
    lines += style.wrap(shortened(first.hosts), "   ", "     ", "cyan")
    for problem in group:
        lines += style.wrap(problem.summary, "   ", "     ", "bold")
    if first.cause:
        lines += style.wrap(first.cause, "   ", "   ")
    if first.expected and first.origin == "node":
        lines += style.wrap(f"expected: {first.expected}", "   ", "     ")
    if len({detail.text for detail in first.details}) > 1:
        for detail in first.details:
            lines += style.wrap(f"{detail.node}: {detail.text}", "     ", "       ")
    return lines


def _notes(fleet: Fleet, style: Style) -> list[str]:
    notes = [problem for problem in fleet.problems if problem.severity is Severity.INFO]
    if not notes:
        return []
    lines = [style.paint("Notes", "bold")]
    for problem in notes[:SHOWN_PROBLEMS]:
        subject = f" {problem.subject}" if problem.subject else ""
        lines += style.wrap(f"i {problem.check}{subject}, {counted(problem.nodes, 'node')}: {problem.summary}", "  ", "    ")
    return lines


def _group(group: Group, style: Style, verbose: bool) -> list[str]:
    lines = [style.paint(style.clean(f"What {group.nodes} nodes with {group.name} have in common"), "bold")]
    shown = [fact for fact in group.facts if verbose or fact.others or "." not in fact.fact]
    for fact in shown:
        lines += style.wrap(f"{fact.title}: {_value(group, fact)}", "  ", "    ")
    hidden = len(group.facts) - len(shown)
    if hidden:
        lines += style.wrap(
            f"and {counted(hidden, 'package, variable or option')[:-1] if hidden == 1 else f'{hidden} packages, variables and options'} that are the same (--verbose)",
            "  ",
        )
    if group.varying:
        lines += style.wrap(f"not compared, since they differ by their nature: {', '.join(group.varying)}", "  ", "    ")
    return lines


def _value(group: Group, fact: Consensus) -> str:
    if fact.value is None:
        return "; ".join(f"{item.value} on {shortened(item.hosts)}" for item in fact.others)
    silent = group.nodes - fact.known
    return fact.value + (f" ({fact.agree} of {fact.known})" if fact.others else "") + (f" ({silent} do not say)" if silent else "")


def _alone(fleet: Fleet, style: Style) -> list[str]:
    alone = [group for group in fleet.groups if group.nodes == 1]
    if not alone or len(fleet.groups) == 1:
        return []
    lines = [style.paint("Alone of their kind, so compared with nothing", "bold")]
    for group in alone[:SHOWN_PROBLEMS]:
        lines += style.wrap(f"{group.hosts}: {group.name}", "  ", "    ")
    return lines


def _work(fleet: Fleet, style: Style, verbose: bool) -> list[list[str]]:
    if not fleet.work:
        return []
    shown = fleet.work if verbose else fleet.work[:SHOWN_WORK]
    blocks = [[style.paint("What to do, from what disturbs least", "bold"), *_one_work(1, shown[0], style)]]
    blocks += [_one_work(number, item, style) for number, item in enumerate(shown[1:], 2)]
    if len(shown) < len(fleet.work):
        blocks.append(
            style.wrap(f"and {counted(len(fleet.work) - len(shown), 'more remedy')[:-1]}ies (--verbose)".replace("yies", "ies"), "  ")
        )
    return blocks


def _one_work(number: int, item: Work, style: Style) -> list[str]:
    remedy = item.remedy
    lines = style.wrap(f"{number}) {remedy.summary}", "  ", "     ")
    lines += style.wrap(f"on: {shortened(item.hosts)}", "     ", "       ", "cyan")
    lines += style.wrap(f"for: {', '.join(item.checks)}; {cost_words(remedy)}", "     ", "       ")
    for head, text in (("when", remedy.when), ("not when", remedy.not_when), ("risk", remedy.risk)):
        lines += style.wrap(f"{head}: {text}", "     ", "       ") if text else []
    lines += [text for command in remedy.inspect for text in style.command(command, "       ")]
    lines += [text for command in remedy.commands for text in style.command(command, "       ")]
    lines += [text for step in remedy.steps if step != remedy.summary for text in style.wrap(f"- {step}", "     ", "       ")]
    return lines + (["     verify:", *verify_lines(remedy.verify, style, "       ")] if remedy.verify else [])


def _rejected(fleet: Fleet, style: Style) -> list[str]:
    if not fleet.rejected:
        return []
    lines = [style.paint(f"Left out: {fleet.counts.rejected} that {'is' if fleet.counts.rejected == 1 else 'are'} no report", "bold")]
    for item in fleet.rejected:
        more = f" and {item.count - len(item.sources)} more" if item.count > len(item.sources) else ""
        lines += style.wrap(f"{', '.join(item.sources)}{more}: {item.reason}", "  ", "    ")
    return lines


def _tail(fleet: Fleet, style: Style) -> list[str]:
    if fleet.verdict == "healthy":
        return style.wrap("No node differs in what was compared, and no report tells of a problem.")
    return style.wrap("Every node and every finding: -o nodes.csv -o findings.csv. Two nodes in full: dsdoctor diff A.json B.json")
