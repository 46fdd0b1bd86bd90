"""The report as a check of LBNL Node Health Check says it: nothing where all is well, else one line that begins with ERROR.

Resource managers that read a health script's output (TORQUE's pbs_mom) take a line that begins with ERROR as the node's message. Source: LBNL
Node Health Check, `die` in its driver script.
"""

from __future__ import annotations

from dsdoctor.findings import Report, Severity
from dsdoctor.render.account import line, sentence


def render(report: Report, fail_on: Severity | None, strict: bool) -> str:
    """The line about the first problem, or nothing."""
    failing = [item for item in report.diagnosis if fail_on is not None and item.severity.rank <= fail_on.rank]
    if failing:
        more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
        return _error(f"{failing[0].check}: {sentence(failing[0].subject, failing[0].summary)}{more}")
    return _error(f"{report.counts.unknown} checks could not tell") if strict and report.counts.unknown else ""


def _error(text: str) -> str:
    return f"ERROR:  dsdoctor:  Health check failed:  {line(text)}"
