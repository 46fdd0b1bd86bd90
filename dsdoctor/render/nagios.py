"""The report as the one line of a monitoring plugin: state, reason, and performance data behind the bar.

The exit code stays the contract's (0 fine, 1 findings, 2 usage, 3 our fault) unless `--exit-style nagios` is asked for; the first words of
the line say the state in the monitor's terms.
"""

from __future__ import annotations

from dsdoctor.findings import Report, Verdict
from dsdoctor.render.account import amounts, line

_STATES = {Verdict.HEALTHY: "OK", Verdict.DEGRADED: "WARNING", Verdict.BROKEN: "CRITICAL", Verdict.UNKNOWN: "UNKNOWN"}


def render(report: Report, state: str = "") -> str:
    """The line: the worst root cause first, then the counts; `state` where the exit code decides it, else the verdict does."""
    counts = report.counts
    first = f"; {report.diagnosis[0].check}: {report.diagnosis[0].summary}" if report.diagnosis else ""
    values = {
        "errors": counts.errors, "warnings": counts.warnings, "infos": counts.infos, "passed": counts.passed,
        "failed": counts.failed, "unknown": counts.unknown, "crashed": counts.crashed, "waived": counts.waived,
    }  # fmt: skip
    data = " ".join(f"{name}={number};;;0" for name, number in values.items())
    return f"DSDOCTOR {state or _STATES[report.verdict]} - {_words(f'{report.verdict.value}, {amounts(counts)}{first}')} | {data}"


def failure(message: str) -> str:
    """The line for a run that ended without a report."""
    return f"DSDOCTOR UNKNOWN - {_words(message)}"


def _words(text: str) -> str:
    """One line that cannot begin performance data: the bar separates them."""
    return line(text).replace("|", "/")
