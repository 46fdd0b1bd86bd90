"""The report as SARIF 2.1.0: a check is a rule, a finding a result.

A node has no source files, so a result names its subject as a logical location and no physical one. A question that stays open is a result
of kind `open`, an accepted finding one with a suppression, a crash of ours a notification: the three things that SARIF has for them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from dsdoctor.findings import Diagnosis, Outcome, Report, Severity, Status
from dsdoctor.render.account import account, area, line, sentence
from dsdoctor.render.json import to_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """The SARIF document with one run."""
    rules = [_rule(outcome) for outcome in {line(outcome.check): outcome for outcome in report.outcomes}.values()]
    places = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [result for item in report.diagnosis for result in _results(item)]
    results += [result for outcome in report.outcomes for result in _without_finding(outcome)]
    for result in results:
        if result["ruleId"] in places:
            result["ruleIndex"] = places[result["ruleId"]]
    run = {
        "tool": {"driver": {"name": "dsdoctor", "version": line(report.dsdoctor), "rules": rules}},
        "invocations": [_invocation(report)],
        "results": results,
        "properties": {"verdict": report.verdict.value, "node": line(report.origin.label), "knowledge": line(report.knowledge.date)},
    }
    return to_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(outcome: Outcome) -> dict[str, Any]:
    check = line(outcome.check)
    title = line(outcome.title) or check
    return {
        "id": check,
        "shortDescription": {"text": title},
        "help": {"text": f"{title}. What it looks at, why it matters and what to do: dsdoctor explain {check}"},
        "properties": {"tags": [area(check)]},
    }


def _result(check: str, subject: str, text: str, **more: Any) -> dict[str, Any]:
    identity = hashlib.sha256(f"{check}\0{subject}".encode("utf-8", "replace")).hexdigest()
    place = [{"logicalLocations": [{"name": line(subject), "kind": "resource"}]}] if line(subject) else []
    return {
        "ruleId": line(check), "message": {"text": text}, "locations": place, "partialFingerprints": {"checkAndSubject/v1": identity}, **more,
    }  # fmt: skip


def _results(item: Diagnosis) -> list[dict[str, Any]]:
    """The root cause, then what follows from it."""
    follows = f"Follows from {line(item.check)} ({line(item.subject)}): {line(item.summary)}"
    return [
        _result(item.check, item.subject, account(item), level=_LEVELS[item.severity]),
        *(
            _result(entry.check, entry.subject, f"{sentence(entry.subject, entry.summary)}\n{follows}", level=_LEVELS[entry.severity])
            for entry in item.explains
        ),
    ]


def _without_finding(outcome: Outcome) -> list[dict[str, Any]]:
    if outcome.status is Status.UNKNOWN:
        settle = f"\nThis would settle it: {line(outcome.settle)}" if outcome.settle else ""
        return [_result(outcome.check, "", f"Could not tell: {line(outcome.reason)}{settle}", kind="open", level="none")]
    if outcome.status is Status.WAIVED:
        suppression = {"kind": "external", "status": "accepted", "justification": line(outcome.reason)}
        title = line(outcome.title) or line(outcome.check)
        return [_result(outcome.check, "", title, level=_LEVELS[outcome.severity], suppressions=[suppression])]
    return []


def _invocation(report: Report) -> dict[str, Any]:
    crashes = [
        {
            "level": "error",
            "message": {"text": f"{line(outcome.check)} crashed, a fault of dsdoctor itself: {line(outcome.reason)}"},
            "associatedRule": {"id": line(outcome.check)},
        }
        for outcome in report.outcomes
        if outcome.status is Status.CRASHED
    ]
    notices = [
        {"level": _LEVELS[notice.severity], "message": {"text": line(notice.text)}} for notice in report.notices if line(notice.text)
    ]
    return {"executionSuccessful": not crashes, "toolExecutionNotifications": [*crashes, *notices]}
