"""A finding told in plain text, for formats that give it one field of text; and where each finding of a check stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsdoctor.findings import Counts, Diagnosis, Remedy, Report, Severity
from dsdoctor.render.terminal import Style, cost_words, settle

LINE_LIMIT = 400
SHOWN_EVIDENCE = 6
SHOWN_REMEDIES = 3
_STYLE = Style(width=120)
_NO_CHARACTER = re.compile(f"[\ufdd0-\ufdef{''.join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))}]")
"""What Unicode never assigns, and HTML and XML refuse."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding of one check: its own problem, or one that follows from another."""

    severity: Severity
    subject: str
    summary: str
    text: str


def line(text: str, limit: int = LINE_LIMIT) -> str:
    """Text of the report on one line: no control character, no character that XML or HTML refuses, not longer than the limit."""
    clean = _NO_CHARACTER.sub("", _STYLE.clean(text))
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def block(text: str) -> str:
    """Text that keeps its line breaks, such as a command, without control characters."""
    return _NO_CHARACTER.sub("", _STYLE.harmless(text))


def area(check: str) -> str:
    """The area of a check id: `driver` of `driver.absent`."""
    return line(check).split(".")[0]


def sentence(subject: str, summary: str) -> str:
    """What is wrong, with the subject in front where the summary does not name it."""
    return line(summary) if line(subject) in line(summary) else f"{line(subject)}: {line(summary)}"


def account(item: Diagnosis) -> str:
    """What is wrong, how we know and what to do, as lines of plain text."""
    lines = [sentence(item.subject, item.summary) or line(item.check)]
    lines += [line(item.cause)] if item.cause else []
    lines += [
        f"How we know: {f'{line(entry.where)}: ' if entry.where else ''}{line(entry.value)}" for entry in item.evidence[:SHOWN_EVIDENCE]
    ]
    lines += [f"Expected: {line(item.expected)}"] if item.expected else []
    for number, remedy in enumerate(item.remedies[:SHOWN_REMEDIES], 1):
        lines += remedy_lines(number, remedy)
    lines += [f"Owner: {line(item.owner)}"] if item.owner else []
    lines += [f"This explains: {line(entry.check)} ({line(entry.subject)})" for entry in item.explains]
    return "\n".join([*lines, f"More: dsdoctor explain {line(item.check)}"])


def remedy_lines(number: int, remedy: Remedy) -> list[str]:
    """One way to mend it, with its cost and its cautions."""
    when = f" (when {line(remedy.when)})" if remedy.when else ""
    cautions = [f"  {word}: {line(text)}" for word, text in (("Not when", remedy.not_when), ("Risk", remedy.risk)) if text]
    commands = [f"  $ {part.rstrip()}" for command in remedy.commands for part in block(command).splitlines() if part.strip()]
    steps = [f"  - {line(step)}" for step in remedy.steps if step != remedy.summary]
    verify = [f"  To see that it is mended: {line(remedy.verify.command)}"] if remedy.verify else []
    return [f"What to do, {number}: {line(remedy.summary)}{when}; {cost_words(remedy)}", *cautions, *commands, *steps, *verify]


def by_check(report: Report) -> dict[str, list[Told]]:
    """The findings of each check, root causes and what follows from them."""
    found: dict[str, list[Told]] = {}
    for item in report.diagnosis:
        found.setdefault(item.check, []).append(Told(item.severity, line(item.subject), line(item.summary), account(item)))
        for entry in item.explains:
            text = f"{sentence(entry.subject, entry.summary)}\nFollows from {line(item.check)}: {line(item.summary)}"
            found.setdefault(entry.check, []).append(Told(entry.severity, line(entry.subject), line(entry.summary), text))
    return found


def amounts(counts: Counts) -> str:
    """How many problems there are, and how many questions are open: `2 errors, 1 warning, 0 notes`."""
    pairs = ((counts.errors, "error"), (counts.warnings, "warning"), (counts.infos, "note"))
    words = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in pairs]
    words += [f"{counts.unknown} could not tell"] if counts.unknown else []
    words += [f"{counts.crashed} crashed"] if counts.crashed else []
    return ", ".join(words)


def open_questions(report: Report) -> str:
    """What would settle most of the open questions, in one sentence; empty when there are none."""
    if not report.counts.unknown:
        return ""
    count, command = settle(report.outcomes)
    advice = f" This would settle {count} of them: {line(command)}" if command else ""
    return f"{report.counts.unknown} of {len(report.outcomes)} checks could not tell.{advice}"


def subjects(told: Sequence[Told]) -> str:
    """The problems of a check in one sentence each."""
    return line("; ".join(sentence(item.subject, item.summary) for item in told))
