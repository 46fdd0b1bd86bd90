"""The report as JUnit XML: an area is a suite, a check a case.

A check that found something at or above the threshold fails; one that could not tell, does not apply or is waived is skipped with its
reason; one that crashed is an error. A finding below the threshold is told in the output of its case, which passes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from dsdoctor.findings import Outcome, Report, Severity, Status
from dsdoctor.render.account import Told, area, by_check, line, subjects

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_SKIPPED = {Status.UNKNOWN: "could not tell", Status.NOT_APPLICABLE: "does not apply", Status.WAIVED: "waived"}


def render(report: Report, fail_on: Severity | None = Severity.ERROR) -> str:
    """The XML document; findings at or above `fail_on` (None: none) are failures."""
    findings = by_check(report)
    areas: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        areas.setdefault(area(outcome.check), []).append(outcome)
    root = ET.Element("testsuites")
    for name, outcomes in areas.items():
        suite = ET.SubElement(root, "testsuite", name=name)
        if _TIME.match(report.taken_at):
            suite.set("timestamp", report.taken_at[:19])
        _properties(suite, report)
        for outcome in outcomes:
            _case(suite, outcome, findings.get(outcome.check, ()), fail_on)
        _total(suite, outcomes)
    _total(root, report.outcomes)
    del root.attrib["skipped"]  # Jenkins' schema has it for a suite only, and refuses the document
    root.set("name", f"dsdoctor: {report.verdict.value}")
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _properties(suite: ET.Element, report: Report) -> None:
    values = [
        ("dsdoctor", report.dsdoctor), ("verdict", report.verdict.value), ("node", report.origin.label), ("python", report.target),
        ("knowledge", report.knowledge.date), *(("notice", notice.text) for notice in report.notices),
    ]  # fmt: skip
    properties = ET.SubElement(suite, "properties")
    for name, value in values:
        ET.SubElement(properties, "property", name=name, value=line(value))


def _case(suite: ET.Element, outcome: Outcome, told: Sequence[Told], fail_on: Severity | None) -> None:
    case = ET.SubElement(
        suite, "testcase", name=line(outcome.check), classname=f"dsdoctor.{area(outcome.check)}", time=f"{outcome.elapsed_s:.3f}"
    )
    text = "\n\n".join(item.text for item in told)
    settle = f"\nThis would settle it: {line(outcome.settle)}" if outcome.settle else ""
    if outcome.status is Status.FAIL:
        if fail_on is not None and outcome.severity.rank <= fail_on.rank:
            ET.SubElement(case, "failure", type=outcome.severity.value, message=subjects(told) or line(outcome.title)).text = text
        else:
            ET.SubElement(case, "system-out").text = f"{outcome.severity.value}: {text}"
    elif outcome.status is Status.CRASHED:
        message = f"a fault of dsdoctor itself, not of this node: {line(outcome.reason)}"
        ET.SubElement(case, "error", type="crashed", message=message).text = message
    elif outcome.status in _SKIPPED:
        ET.SubElement(case, "skipped", message=f"{_SKIPPED[outcome.status]}: {line(outcome.reason)}{settle}")


def _total(element: ET.Element, outcomes: Sequence[Outcome]) -> None:
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(kind, str(sum(1 for _ in element.iter(tag))))
    element.set("time", f"{sum(outcome.elapsed_s for outcome in outcomes):.3f}")  # Jenkins refuses a fourth decimal
