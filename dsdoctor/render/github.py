"""The report as GitHub workflow commands: one annotation for each root cause, and one line that says how it stands.

The step summary is the Markdown form. GitHub shows the first ten annotations of a level in a step; the worst come first.
"""

from __future__ import annotations

from dsdoctor.findings import Report, Severity, Status
from dsdoctor.render.account import account, amounts, line, open_questions

MESSAGE_LIMIT = 4000
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_DATA = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
_PROPERTY = (*_DATA, (":", "%3A"), (",", "%2C"))


def render(report: Report) -> str:
    """One workflow command a line; nothing that stands in the report can begin another one."""
    lines = [_annotation(_COMMANDS[item.severity], f"{item.check}: {item.subject}", account(item)) for item in report.diagnosis]
    lines += [
        _annotation("error", f"{outcome.check} crashed", f"A fault of dsdoctor itself, not of this node: {line(outcome.reason)}")
        for outcome in report.outcomes
        if outcome.status is Status.CRASHED
    ]
    lines += [_annotation(_COMMANDS[notice.severity], "dsdoctor", line(notice.text)) for notice in report.notices]
    summary = ". ".join(part for part in (amounts(report.counts), open_questions(report)) if part)
    return "\n".join([*lines, _annotation("notice", f"dsdoctor: {report.verdict.value}", f"{line(report.origin.label)}: {summary}")])


def failure(message: str) -> str:
    """The annotation for a run that ended without a report."""
    return _annotation("error", "dsdoctor", line(message))


def _annotation(command: str, title: str, message: str) -> str:
    shown = message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 1]}…"
    shown = shown or title  # the runner drops an annotation without a message
    return f"::{command} title={_escape(line(title, 200), _PROPERTY)}::{_escape(shown, _DATA)}"


def _escape(text: str, table: tuple[tuple[str, str], ...]) -> str:
    """The percent sign first, so that no escape is escaped again."""
    for character, code in table:
        text = text.replace(character, code)
    return text
