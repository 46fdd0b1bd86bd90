"""The report as metrics in Prometheus' text format, for the textfile collector of node_exporter.

States are labels with the value 1 or 0, so that an alert names what it waits for: `dsdoctor_check_status{status="fail"} == 1`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from dsdoctor.findings import Report, Status, Verdict
from dsdoctor.render.account import line

Labels = Sequence[tuple[str, str]]


def render(report: Report) -> str:
    """The metrics, each with its help and type; no series stands there twice."""
    counts, outcomes = report.counts, report.outcomes
    severities = {"error": counts.errors, "warning": counts.warnings, "info": counts.infos}
    build = [("version", report.dsdoctor), ("knowledge_date", report.knowledge.date), ("node", report.origin.label)]
    families = [
        _family("dsdoctor_info", "Which dsdoctor judged with which knowledge.", {_labels(build): 1}),
        _family(
            "dsdoctor_verdict", "Whether the node can run its stack: 1 at the verdict that holds.",
            {_labels([("verdict", verdict.value)]): int(verdict is report.verdict) for verdict in Verdict},
        ),
        _family(
            "dsdoctor_findings", "Findings of each severity, with those that follow from others.",
            {_labels([("severity", name)]): number for name, number in severities.items()},
        ),
        _family(
            "dsdoctor_checks", "Checks that ended in each status.",
            {_labels([("status", status.value)]): sum(outcome.status is status for outcome in outcomes) for status in Status},
        ),
        _family(
            "dsdoctor_check_status", "The status in which a check ended: 1.",
            {_labels([("check", outcome.check), ("status", outcome.status.value)]): 1 for outcome in outcomes},
        ),
        _family(
            "dsdoctor_check_info", "What a check is about, and how bad it is.",
            {_labels([("check", o.check), ("severity", o.severity.value), ("title", o.title)]): 1 for o in outcomes},
        ),
        _family(
            "dsdoctor_finding_info", "A root cause that was found.",
            {
                _labels([("check", i.check), ("severity", i.severity.value), ("subject", i.subject), ("summary", i.summary)]): 1
                for i in report.diagnosis
            },
        ),
        _family("dsdoctor_knowledge_stale", "1 when the knowledge is too old to be relied on.", {"": int(report.knowledge.stale)}),
        _family("dsdoctor_taken_timestamp_seconds", "When the facts were taken, in seconds since 1970.", _taken(report.taken_at)),
    ]  # fmt: skip
    return "".join(f"{row}\n" for family in families for row in family)


def _family(name: str, help: str, samples: Mapping[str, float]) -> Iterable[str]:
    if not samples:
        return []
    return [f"# HELP {name} {help}", f"# TYPE {name} gauge", *(f"{name}{labels} {value}" for labels, value in samples.items())]


def _labels(pairs: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return line(text).replace("\\", "\\\\").replace('"', '\\"')


def _taken(text: str) -> dict[str, float]:
    """The time as seconds; nothing where the report does not say it."""
    try:
        taken = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return {"": int((taken if taken.tzinfo else taken.replace(tzinfo=datetime.timezone.utc)).timestamp())}
    except (ValueError, OverflowError):
        return {}
