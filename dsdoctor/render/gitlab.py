"""The report as GitLab code-quality JSON: one entry for each root cause and each crash of ours.

GitLab wants a path and a line for each entry. A node has no source files: the path names the area and the check, and exists in no repository.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from dsdoctor.findings import Report, Severity, Status
from dsdoctor.render.account import area, line, sentence
from dsdoctor.render.json import to_text

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}


def render(report: Report) -> str:
    """The JSON list; fingerprints stay the same as long as check and subject do."""
    found = [
        (item.check, item.subject, sentence(item.subject, item.summary) or line(item.check), item.severity) for item in report.diagnosis
    ]
    found += [
        (outcome.check, "crashed", f"{line(outcome.check)} crashed, a fault of dsdoctor itself: {line(outcome.reason)}", Severity.WARNING)
        for outcome in report.outcomes
        if outcome.status is Status.CRASHED
    ]
    seen: Counter[tuple[str, str]] = Counter()
    entries = []
    for check, subject, text, severity in found:
        seen[check, subject] += 1
        entries.append(_entry(check, f"{subject}\0{seen[check, subject]}", text, severity))
    return to_text(entries)


def _entry(check: str, identity: str, text: str, severity: Severity) -> dict[str, Any]:
    return {
        "description": text,
        "check_name": line(check),
        "fingerprint": hashlib.sha256(f"{check}\0{identity}".encode("utf-8", "replace")).hexdigest(),
        "severity": _SEVERITIES[severity],
        "location": {"path": f"node/{area(check)}/{line(check).replace('/', '_')}", "lines": {"begin": 1}},
    }
