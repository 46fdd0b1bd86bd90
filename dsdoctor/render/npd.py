"""The report as the message of a custom plugin of node-problem-detector: one line of at most 80 bytes.

80 is `max_output_length` where the plugin's configuration says nothing; what is longer would be cut there, also within a character. Source:
node-problem-detector, custom plugin monitor.
"""

from __future__ import annotations

from dsdoctor.findings import Report, Severity, Verdict
from dsdoctor.render.account import line, sentence

LIMIT_BYTES = 80


def render(report: Report, fail_on: Severity | None) -> str:
    """The first problem with its check, or that the node is fit, or that nothing could be told."""
    failing = [item for item in report.diagnosis if fail_on is not None and item.severity.rank <= fail_on.rank]
    if failing:
        more = f" (+{len(failing) - 1})" if len(failing) > 1 else ""
        return _cut(f"{failing[0].check}: {sentence(failing[0].subject, failing[0].summary)}", more)
    counts = report.counts
    if counts.crashed or report.verdict is Verdict.UNKNOWN:
        return _cut(f"cannot tell: {counts.passed} checks passed, {counts.unknown} unknown, {counts.crashed} crashed")
    return _cut(f"fit: {counts.passed} checks passed, {counts.unknown} could not tell")


def failure(message: str) -> str:
    """The line for a run that ended without a report."""
    return _cut(f"cannot tell: {message}")


def _cut(text: str, tail: str = "") -> str:
    """The text on one line, cut so that it ends with `tail` within the limit."""
    whole = line(text).encode()
    room = LIMIT_BYTES - len(tail.encode())
    return (whole if len(whole) <= room else whole[: room - 3] + b"...").decode(errors="ignore") + tail
