"""Exit codes for callers that read them in another way than the contract does.

| style | 0 | 1 | 2 | 3 |
| --- | --- | --- | --- | --- |
| default | nothing from `--fail-on` on | findings | usage, unreadable input | a fault of ours |
| nagios | OK | WARNING | CRITICAL | UNKNOWN |
| npd | OK | NonOK | Unknown | |
| nhc | fit, or it could not be judged | findings | | |

Sources: the Nagios plugin development guidelines (a wrong option is UNKNOWN); node-problem-detector's custom plugins, where 1 is NonOK and
everything that is neither 0 nor 1 Unknown; LBNL Node Health Check, whose callers take every code but 0 for a sick node, so that a fault of
ours must be 0 there.
"""

from __future__ import annotations

from dsdoctor.diagnose import exit_code
from dsdoctor.findings import Report, Severity, Verdict

OK, WARNING, CRITICAL, UNKNOWN = range(4)
NAGIOS_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
NPD_UNKNOWN = 2


def code(style: str, report: Report, fail_on: Severity | None, strict: bool) -> int:
    """The exit code of a run that made a report; 0 to 3, or of `npd` 0 to 2."""
    if style == "default":
        return exit_code(report, fail_on=fail_on, strict=strict)
    ours = exit_code(report, fail_on=fail_on)
    untold = ours != 0 or report.verdict is Verdict.UNKNOWN or (strict and report.counts.unknown > 0)
    if style == "nagios":
        worst = report.worst()
        mild = worst is not None and worst.rank <= Severity.WARNING.rank
        return CRITICAL if ours == 1 else UNKNOWN if untold else WARNING if mild else OK
    if style == "npd":
        return 1 if ours == 1 else NPD_UNKNOWN if untold else OK
    return 1 if ours == 1 or (strict and report.counts.unknown) else 0


def of_failure(style: str, ours: int) -> int:
    """The exit code of a run that ended without a report."""
    return {"nagios": UNKNOWN, "npd": NPD_UNKNOWN, "nhc": OK}.get(style, ours)
