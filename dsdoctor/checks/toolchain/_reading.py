"""Answers that the checks of compilers share."""

from __future__ import annotations

from dsdoctor.facts import Section, SmokeResult
from dsdoctor.findings import NotApplicable, Severity

NOTHING_COMPILES = NotApplicable(reason="nothing that is installed compiles when it runs")


def severity_of(lacked: str, written: str, smoke: Section[tuple[SmokeResult, ...]]) -> Severity:
    """An error once a kernel did not compile here for want of it ('compiler', 'python_headers'); else what the row says."""
    proven = any(result.outcome != "ran" and lacked in result.notes.get("missing", "").split(", ") for result in smoke.value or ())
    return Severity.ERROR if proven else Severity(written)
