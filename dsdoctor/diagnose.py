"""Judge a snapshot: snapshot × knowledge × checks → report, root causes first. Pure: no I/O, no clock.

A check that raises is a `crashed` outcome and never hides the rest.
"""

from __future__ import annotations

import datetime
import fnmatch
import re
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dsdoctor import __version__
from dsdoctor.checks._check import Check
from dsdoctor.facts import Section, Sections, Snapshot, State
from dsdoctor.findings import (
    SCHEMA,
    Consequence,
    Counts,
    Diagnosis,
    Doubt,
    Finding,
    Fitness,
    FleetWords,
    KnowledgeStamp,
    NotApplicable,
    Notice,
    Outcome,
    Report,
    Severity,
    Status,
    Verdict,
)
from dsdoctor.plain import to_plain
from dsdoctor.purpose import NOTHING
from dsdoctor.record import dataclass


class KnowledgeSource(Protocol):
    """What judgement needs of the knowledge: matrices by name, remedies bound to a check and a reader, advice about a node, and a stamp."""

    def matrix(self, name: str) -> Any:
        """The matrix of that parameter name, loaded on first use."""

    def remedies(self, check_id: str, sections: Sections) -> Any:
        """The remedies of a check, for the platform that the sections describe."""

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> FleetWords | None:
        """What fleet tools call a finding of a check."""

    def advice(self, sections: Sections) -> Any:
        """What can run on the node that the sections describe; nothing is loaded before it is asked."""

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        """Digest and date of the knowledge in force."""


class PurposeSource(Protocol):
    """What judgement needs of the user's purpose: chosen profiles, and plans of the models that have to fit."""

    def fitness(self, sections: Sections) -> Fitness:
        """What the node is judged for."""

    def sharpened(self, name: str, matrix: Any) -> Any:
        """A matrix with the limits that the chosen profiles add."""

    def plans(self, sections: Sections) -> Any:
        """Whether the models fit the GPUs that the sections describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A finding that the site accepts: by check id or glob, optionally one subject, with a reason and an expiry."""

    check: str
    reason: str
    subject: str = "*"
    until: datetime.date | None = None


@dataclass(frozen=True, slots=True)
class _Judged:
    check: Check
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    log_order: int | None = None
    """Position of the first log line that proves it."""


def diagnose(
    snapshot: Snapshot,
    knowledge: KnowledgeSource,
    checks: Sequence[Check],
    *,
    today: datetime.date,
    waivers: Sequence[Waiver] = (),
    notices: Sequence[Notice] = (),
    purpose: PurposeSource = NOTHING,
) -> Report:
    """The report on one snapshot. `today` decides what is stale or expired; every other answer follows from the arguments."""
    started = time.perf_counter()
    judged = [_judge(check, snapshot, knowledge, purpose, today) for check in checks]
    has_trouble = False
    if snapshot.sections.log_events.value:
        judged, has_trouble = _with_log(judged, snapshot.sections, knowledge)
    all_notices = [*notices, *_probe_notices(snapshot), *_expired(waivers, today)]
    judged = [_waive(item, waivers, today) for item in judged]
    diagnosis = _fold(judged, knowledge)
    outcomes = tuple(item.outcome for item in judged)
    stamp = knowledge.stamp(today)
    if stamp.stale:
        all_notices.append(
            Notice(severity=Severity.WARNING, text=f"the knowledge is of {stamp.date}, more than 120 days old: upgrade dsdoctor")
        )
    interpreter = snapshot.sections.interpreter.value
    return Report(
        schema=SCHEMA,
        dsdoctor=__version__,
        taken_at=snapshot.taken_at,
        origin=snapshot.origin,
        target=interpreter.path if interpreter else "",
        verdict=_verdict(diagnosis, outcomes, has_trouble),
        counts=_count(diagnosis, outcomes),
        diagnosis=diagnosis,
        outcomes=outcomes,
        notices=tuple(all_notices),
        knowledge=stamp,
        facts=to_plain(snapshot.sections),
        probe_runs=snapshot.probe_runs,
        timings={
            **{run.probe: run.elapsed_s for run in snapshot.probe_runs},
            "diagnose": round(time.perf_counter() - started, 4),
        },
        fitness=purpose.fitness(snapshot.sections),
    )


def exit_code(report: Report, *, fail_on: Severity | None = Severity.ERROR, strict: bool = False) -> int:
    """The exit code of the contract: 3 a check of ours crashed, 1 findings at or above `fail_on` (None: never), else 0.

    `strict` makes unknown outcomes count as findings.
    """
    worst = report.worst()
    if fail_on is not None and worst is not None and worst.rank <= fail_on.rank:
        return 1
    if report.counts.crashed:
        return 3
    return 1 if strict and report.counts.unknown else 0


def _judge(check: Check, snapshot: Snapshot, knowledge: KnowledgeSource, purpose: PurposeSource, today: datetime.date) -> _Judged:
    sections = snapshot.sections

    def outcome(status: Status, reason: str = "", severity: Severity = check.severity, doubts: tuple[Doubt, ...] = ()) -> Outcome:
        unsettled = status in (Status.UNKNOWN, Status.CRASHED)
        return Outcome(
            check=check.id,
            status=status,
            severity=severity,
            reason=reason,
            title=check.title,
            doubts=doubts,
            settle=next((doubt.settle for doubt in doubts if doubt.settle), check.settle) if unsettled else "",
            elapsed_s=round(time.perf_counter() - started, 5),
        )

    started = time.perf_counter()
    blocked = _blocked(check, sections)
    if blocked:
        return _Judged(check, outcome(*blocked))
    try:
        arguments: dict[str, Any] = {name: getattr(sections, name).value for name in check.sections}
        arguments |= {name: getattr(sections, name) for name in check.optional_sections}
        arguments |= {name: purpose.sharpened(name, knowledge.matrix(name)) for name in check.matrices}
        if "remedies" in check.extras:
            arguments["remedies"] = knowledge.remedies(check.id, sections)
        if "advice" in check.extras:
            arguments["advice"] = knowledge.advice(sections)
        if "purpose" in check.extras:
            arguments["purpose"] = purpose
        if "plans" in check.extras:
            arguments["plans"] = purpose.plans(sections)
        if "today" in check.extras:
            arguments["today"] = today
        if "probed" in check.extras:
            arguments["probed"] = bool(snapshot.probe_runs)
        said = list(check.judge(**arguments))
    except Exception as error:  # a check of ours that fails is an outcome, never the end of the report
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _Judged(check, outcome(Status.CRASHED, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"))
    findings = tuple(item for item in said if isinstance(item, Finding))
    doubts = tuple(item for item in said if isinstance(item, Doubt))
    if findings:
        worst = min((item.severity or check.severity for item in findings), key=lambda severity: severity.rank)
        return _Judged(check, outcome(Status.FAIL, severity=worst, doubts=doubts), findings)
    if doubts:
        return _Judged(check, outcome(Status.UNKNOWN, "; ".join(f"{doubt.subject}: {doubt.reason}" for doubt in doubts), doubts=doubts))
    aside = next((item for item in said if isinstance(item, NotApplicable)), None)
    return _Judged(check, outcome(Status.NOT_APPLICABLE, aside.reason) if aside else outcome(Status.PASS))


def _with_log(judged: Sequence[_Judged], sections: Sections, knowledge: KnowledgeSource) -> tuple[list[_Judged], bool]:
    """The judgements together with what log lines prove and suggest, and whether any line tells of trouble at all."""
    from dsdoctor.checks._from_log import World, doubts, joined, proofs, tells_of_trouble

    names = ("companions", "cuda_toolkits", "driver_branches", "gpus", "health_limits", "torch")
    world = World(signatures=knowledge.matrix("log_signatures_matrix"), **{name: knowledge.matrix(f"{name}_matrix") for name in names})
    all_judged = {item.check.id: item for item in judged}
    for proof in proofs(sections, world, lambda check_id: knowledge.remedies(check_id, sections)):
        item = all_judged.get(proof.check)
        if item is None:  # not among the checks that were asked for
            continue
        if item.findings and item.log_order is None:
            first, *others = item.findings
            findings = (joined(first, item.check.severity, proof.finding), *others)
        else:
            findings = (*item.findings, proof.finding)
        worst = min((one.severity or item.check.severity for one in findings), key=lambda each: each.rank)
        outcome = replace(item.outcome, status=Status.FAIL, severity=worst, reason="", settle="")
        order = proof.order if item.log_order is None else item.log_order
        all_judged[proof.check] = replace(item, outcome=outcome, findings=findings, log_order=order)
    failed = [name for name, item in all_judged.items() if item.findings]
    for check_id, doubt in doubts(sections, world, failed):
        item = all_judged.get(check_id)
        if item is None:
            continue
        reason = f"{doubt.subject}: {doubt.reason}"
        outcome = replace(
            item.outcome,
            status=Status.UNKNOWN,
            reason=reason,
            settle=doubt.settle or item.outcome.settle,
            doubts=(*item.outcome.doubts, doubt),
        )
        all_judged[check_id] = replace(item, outcome=outcome)
    return list(all_judged.values()), tells_of_trouble(sections, world)


def _blocked(check: Check, sections: Sections) -> tuple[Status, str] | None:
    """Why a check cannot judge: something it needs is not there (not applicable) or not known (unknown)."""
    unknown = None
    for name in check.sections:
        section: Section[Any] = getattr(sections, name)
        if section.state is State.ABSENT:
            return Status.NOT_APPLICABLE, section.why or f"{name}: absent"
        if section.state is not State.KNOWN and unknown is None:
            unknown = Status.UNKNOWN, f"{name.replace('_', ' ')}: {section.why or section.state.value.replace('_', ' ')}"
    return unknown


def _waive(item: _Judged, waivers: Sequence[Waiver], today: datetime.date) -> _Judged:
    in_force = [waiver for waiver in waivers if waiver.until is None or waiver.until >= today]
    kept, reasons = [], []
    for finding in item.findings:
        waiver = next(
            (w for w in in_force if fnmatch.fnmatchcase(item.check.id, w.check) and fnmatch.fnmatchcase(finding.subject, w.subject)), None
        )
        if waiver is None:
            kept.append(finding)
        else:
            reasons.append(f"{finding.subject}: {waiver.reason}")
    if not reasons:
        return item
    if kept:
        return replace(item, findings=tuple(kept), outcome=replace(item.outcome, reason=f"waived in part: {'; '.join(reasons)}"))
    return replace(item, findings=(), outcome=replace(item.outcome, status=Status.WAIVED, reason="; ".join(reasons)))


def _expired(waivers: Iterable[Waiver], today: datetime.date) -> list[Notice]:
    return [
        Notice(severity=Severity.WARNING, text=f"the waiver for {waiver.check} ({waiver.reason}) expired on {waiver.until}")
        for waiver in waivers
        if waiver.until is not None and waiver.until < today
    ]


def _probe_notices(snapshot: Snapshot) -> list[Notice]:
    return [
        Notice(severity=Severity.WARNING, text=f"probe {run.probe} {run.outcome.replace('_', ' ')}: {run.detail}")
        for run in snapshot.probe_runs
        if run.outcome != "ok"
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    check: Check
    finding: Finding
    log_order: int | None = None

    @property
    def severity(self) -> Severity:
        return self.finding.severity or self.check.severity

    def explains(self, other: _Found) -> bool:
        """Whether the other finding follows from this one; a mild cause never swallows a grave consequence."""
        patterns = (*self.check.explains, *self.finding.explains)
        return (
            self.check.id != other.check.id
            and self.severity.rank <= other.severity.rank
            and any(fnmatch.fnmatchcase(other.check.id, pattern) for pattern in patterns)
            and self._concerns(other)
        )

    def _concerns(self, other: _Found) -> bool:
        names = "|".join(map(re.escape, self.finding.explains_only))
        texts = (other.finding.subject, *(evidence.value for evidence in other.finding.evidence))
        return not names or any(re.search(rf"(?<![\w-])(?:{names})(?![\w-])", text) for text in texts)


def _fold(judged: Sequence[_Judged], knowledge: KnowledgeSource) -> tuple[Diagnosis, ...]:
    """Findings by severity, then in the order of the log, then of the checks, each consequence under the root cause that explains it."""
    found = sorted(
        (_Found(item.check, finding, item.log_order) for item in judged for finding in item.findings),
        key=lambda item: (item.severity.rank, item.log_order is None, item.log_order or 0),
    )
    cause_of: dict[int, int] = {}
    for number, item in enumerate(found):
        for candidate, cause in enumerate(found):
            if cause.explains(item) and _root(candidate, cause_of) != number:
                cause_of[number] = candidate
                break
    consequences: dict[int, list[_Found]] = {}
    for number in sorted(cause_of):
        consequences.setdefault(_root(number, cause_of), []).append(found[number])
    return tuple(_diagnosis(item, consequences.get(number, ()), knowledge) for number, item in enumerate(found) if number not in cause_of)


def _root(number: int, cause_of: Mapping[int, int]) -> int:
    while number in cause_of:
        number = cause_of[number]
    return number


def _fleet(item: _Found, knowledge: KnowledgeSource) -> FleetWords | None:
    return knowledge.fleet_words(item.check.id, item.finding.fleet_case, item.severity)


def _diagnosis(item: _Found, consequences: Sequence[_Found], knowledge: KnowledgeSource) -> Diagnosis:
    finding = item.finding
    return Diagnosis(
        check=item.check.id,
        severity=item.severity,
        subject=finding.subject,
        summary=finding.summary,
        cause=finding.cause,
        evidence=finding.evidence,
        expected=finding.expected,
        remedies=finding.remedies,
        owner=finding.owner,
        explains=tuple(
            Consequence(
                check=one.check.id,
                severity=one.severity,
                subject=one.finding.subject,
                summary=one.finding.summary,
                fleet=_fleet(one, knowledge),
            )
            for one in consequences
        ),
        sources=finding.sources or tuple(dict.fromkeys(source for remedy in finding.remedies for source in remedy.sources)),
        fleet=_fleet(item, knowledge),
    )


def _count(diagnosis: Sequence[Diagnosis], outcomes: Sequence[Outcome]) -> Counts:
    statuses = [outcome.status for outcome in outcomes]
    severities = [item.severity for item in diagnosis] + [entry.severity for item in diagnosis for entry in item.explains]
    return Counts(
        passed=statuses.count(Status.PASS),
        failed=statuses.count(Status.FAIL),
        unknown=statuses.count(Status.UNKNOWN),
        crashed=statuses.count(Status.CRASHED),
        not_applicable=statuses.count(Status.NOT_APPLICABLE),
        waived=statuses.count(Status.WAIVED),
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        infos=severities.count(Severity.INFO),
    )


def _verdict(diagnosis: Sequence[Diagnosis], outcomes: Sequence[Outcome], has_trouble: bool) -> Verdict:
    """The worst finding decides; without one, something must have passed, and no line may tell of a failure that nothing explains."""
    severities = {item.severity for item in diagnosis}
    if Severity.ERROR in severities:
        return Verdict.BROKEN
    if Severity.WARNING in severities:
        return Verdict.DEGRADED
    passed = any(outcome.status is Status.PASS for outcome in outcomes)
    return Verdict.HEALTHY if passed and not has_trouble else Verdict.UNKNOWN
