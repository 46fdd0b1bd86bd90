"""The report as Markdown, fit to paste into an issue: short, no colour, commands in fences, nothing that the page would read as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsdoctor.findings import Diagnosis, Remedy, Report, Severity
from dsdoctor.render import evidence
from dsdoctor.render.terminal import Style, cost_words, settle

SHOWN_EVIDENCE = 6
SHOWN_REMEDIES = 3
TEXT_LIMIT = 400
_STYLE = Style(width=120)
_MARKUP = re.compile(r"([\\`*{}\[\]<>#|~]|(?<!\w)_|_(?!\w))|(?<![\w/])@(?=\w)|^(?=[-+]\s)|^(\d+)(?=\.\s)")
_WORDS = {Severity.ERROR: "Error", Severity.WARNING: "Warning", Severity.INFO: "Note"}


def render(report: Report) -> str:
    """The report as Markdown text, without a newline at its end."""
    blocks = [
        f"## dsdoctor: {report.verdict.value}",
        _head(report),
        *(_diagnosis(number, item) for number, item in enumerate(report.diagnosis, 1)),
        *(_suspicion(found) for found in evidence.suspicions(report)),
        _nothing(report),
        _unsettled(report),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(report: Report) -> str:
    counts = report.counts
    amounts = ((counts.errors, "error"), (counts.warnings, "warning"), (counts.infos, "note"))
    words = ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in amounts)
    words += f"; {counts.unknown} of {len(report.outcomes)} checks could not tell" if counts.unknown else ""
    fitness = f" For: {prose(report.fitness.told)}." if report.fitness.told else ""
    notices = "".join(f"\n\n> {prose(notice.text)}" for notice in report.notices)
    return f"{prose(report.origin.label)}, {prose(report.taken_at)}, dsdoctor {prose(report.dsdoctor)}, knowledge of {report.knowledge.date}: {words}.{fitness}{notices}"


def _diagnosis(number: int, item: Diagnosis) -> str:
    parts = [f"### {number}. {_WORDS[item.severity]}: {prose(item.summary)}", f"Check {code(item.check)}, {prose(item.subject)}."]
    if item.cause:
        parts.append(prose(item.cause))
    known = [f"- {f'{code(entry.where)}: ' if entry.where else ''}{code(entry.value)}" for entry in item.evidence[:SHOWN_EVIDENCE]]
    if len(item.evidence) > SHOWN_EVIDENCE:
        known.append(f"- and {len(item.evidence) - SHOWN_EVIDENCE} more")
    if known:
        parts.append("\n".join(["**How we know**", "", *known]))
    if item.expected:
        parts.append(f"Expected: {prose(item.expected)}")
    parts += [_remedy(place, remedy) for place, remedy in enumerate(item.remedies[:SHOWN_REMEDIES], 1)]
    if item.owner:
        parts.append(f"Owner: {prose(item.owner)}")
    if item.explains:
        follows = sorted({f"{code(entry.check)} ({prose(entry.subject)})" for entry in item.explains})
        parts.append(f"This explains: {', '.join(follows)}")
    return "\n\n".join(parts)


def _remedy(number: int, remedy: Remedy) -> str:
    when = f" (when {prose(remedy.when)})" if remedy.when else ""
    parts = [f"**What to do, {number}: {prose(remedy.summary)}**{when}; {cost_words(remedy)}"]
    cautions = [f"{word}: {prose(text)}" for word, text in (("Not when", remedy.not_when), ("Risk", remedy.risk)) if text]
    if cautions:
        parts.append("  \n".join(cautions))
    if remedy.commands:
        parts.append(fence(remedy.commands))
    steps = [step for step in remedy.steps if step != remedy.summary]
    if steps:
        parts.append("\n".join(f"- {prose(step)}" for step in steps))
    if remedy.verify:
        shows = f", which then prints: {prose(remedy.verify.prints)}" if remedy.verify.prints else ""
        parts.append(f"To see that it is mended{shows}\n\n{fence([remedy.verify.command])}")
    return "\n\n".join(parts)


def _suspicion(found: evidence.Suspicion) -> str:
    """A line that fits causes without proving one."""
    many = len(found.causes) > 1
    head = f"### Not proved: {'several causes fit' if many else 'a cause that would fit'}\n\n{code(found.where)}: {code(found.line)}"
    causes = [
        f"{number}. {prose(cause.text)} ({code(cause.check)})" + (f"; tell it apart by {code(cause.settle)}" if cause.settle else "")
        for number, cause in enumerate(found.causes, 1)
    ]
    return "\n\n".join([head, "\n".join(causes)])


def _nothing(report: Report) -> str:
    if report.diagnosis:
        return ""
    if evidence.is_pasted(report) and not evidence.anything_recognised(report):
        return "Nothing in this text was recognised, so nothing was judged. A log from its first error on helps, and the outputs of tools."
    return "No problem was found in what was read; that is not the same as a healthy machine."


def _unsettled(report: Report) -> str:
    if evidence.is_pasted(report):
        waiting, command = evidence.paste_next(report)
        return f"What would help most is the output of this ({waiting} checks wait for it):\n\n{fence([command])}" if command else ""
    count, command = settle(report.outcomes)
    return f"The output of this command would settle {count} of the open questions:\n\n{fence([command])}" if command else ""


def prose(text: str) -> str:
    """Text on one line that a page shows as it is: no markup, no mention of a user, no control character."""
    return _MARKUP.sub(
        lambda found: f"\\{found[0]}" if found[1] else f"{found[0]}\u2060" if found[0] == "@" else f"\\{found[0]}", _short(text)
    )


def code(text: str) -> str:
    """Text as inline code, also when it holds backticks."""
    short = _short(text)
    longest = max((len(run) for run in re.findall("`+", short)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if short.startswith("`") or short.endswith("`") else ""
    return f"{ticks}{pad}{short}{pad}{ticks}" if short else ""


def fence(commands: Iterable[str]) -> str:
    """Commands in a fence that none of them can close."""
    lines: Sequence[str] = [line.rstrip() for command in commands for line in _STYLE.harmless(command).splitlines() if line.strip()]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join([f"{ticks}sh", *lines, ticks])


def _short(text: str) -> str:
    clean = _STYLE.clean(text)
    return clean if len(clean) <= TEXT_LIMIT else f"{clean[: TEXT_LIMIT - 1]}…"
