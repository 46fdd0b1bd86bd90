"""The engine: three answers, root causes first, one cause one remedy, and a check that fails never hides the rest."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dsdoctor.checks._check import Check, check
from dsdoctor.diagnose import Waiver, diagnose, exit_code
from dsdoctor.facts import Libc, Origin, Platform, Section, Sections, Snapshot, absent, known, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, KnowledgeStamp, Severity, Status, Verdict

TODAY = datetime.date(2026, 11, 29)


class NoKnowledge:
    def matrix(self, name: str) -> Any:
        return {"name": name}

    def remedies(self, check_id: str, sections: Sections) -> Any:
        return lambda *case, **fill: ()

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> None:
        return None

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        return KnowledgeStamp(digest="0", date="2026-11-29")


def found(subject: str = "it", **more: Any) -> Finding:
    return Finding(subject=subject, summary=f"{subject} is broken", evidence=(Evidence(where="libc.version", value="2.3"),), **more)


def judge(sections: Sections, *checks: Check, **more: Any):
    node = Snapshot(schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="live", label="x"), sections=sections)
    return diagnose(node, NoKnowledge(), checks, today=TODAY, **more)


@check("a.needs-libc", Severity.ERROR, explains=("b.*",), settle="ldd --version")
def needs_libc(libc: Libc) -> Iterator[Finding | Doubt]:
    if libc.version == "2.3":
        yield found("libc")
    elif libc.version == "9":
        yield Doubt(subject="libc 9", reason="newer than this release knows")


@check("b.follows", Severity.ERROR)
def follows(platform: Platform) -> Iterator[Finding]:
    yield found("consequence")


@check("c.warns", Severity.WARNING)
def warns(platform: Platform) -> Iterator[Finding]:
    yield found("slow")
    yield found("slower", severity=Severity.INFO)


@check("d.raises", Severity.ERROR)
def raises(platform: Platform) -> Iterator[Finding]:
    yield found("never seen")
    raise KeyError("oops")


@check("e.copes", Severity.ERROR)
def copes(libc: Section[Libc], some_matrix: Any, today: datetime.date) -> Iterator[Finding]:
    assert some_matrix == {"name": "some_matrix"}
    assert today == TODAY
    if libc.value is None:
        yield found("guess")


LIBC_OLD = known(Libc(family="glibc", version="2.3"))
LIBC_GOOD = known(Libc(family="glibc", version="2.39"))
LIBC_NEWER = known(Libc(family="glibc", version="9"))
UBUNTU = known(Platform(os_id="ubuntu"))


@pytest.mark.parametrize(
    ("libc", "status", "reason"),
    [
        (LIBC_OLD, Status.FAIL, ""),
        (LIBC_GOOD, Status.PASS, ""),
        (LIBC_NEWER, Status.UNKNOWN, "libc 9: newer than this release knows"),
        (unreadable("permission denied"), Status.UNKNOWN, "libc: permission denied"),
        (absent("statically linked"), Status.NOT_APPLICABLE, "statically linked"),
        (Sections().libc, Status.UNKNOWN, "libc: not asked"),
    ],
)
def test_three_answers(libc: Section[Libc], status: Status, reason: str) -> None:
    report = judge(Sections(libc=libc), needs_libc)
    assert (report.outcomes[0].status, report.outcomes[0].reason) == (status, reason)
    assert report.outcomes[0].settle == ("ldd --version" if status is Status.UNKNOWN else "")


def test_consequences_are_folded_under_their_cause() -> None:
    report = judge(Sections(libc=LIBC_OLD, platform=UBUNTU), follows, warns, needs_libc)
    assert [item.check for item in report.diagnosis] == ["a.needs-libc", "c.warns", "c.warns"]
    assert [item.subject for item in report.diagnosis[0].explains] == ["consequence"]
    assert report.counts.errors == 2
    assert report.verdict is Verdict.BROKEN
    assert exit_code(report) == 1


def test_a_consequence_stands_alone_without_its_cause() -> None:
    report = judge(Sections(libc=LIBC_GOOD, platform=UBUNTU), follows, needs_libc)
    assert [item.check for item in report.diagnosis] == ["b.follows"]


def test_checks_that_explain_each_other_do_not_hide_each_other() -> None:
    @check("x.one", Severity.ERROR, explains=("x.two",))
    def one(platform: Platform) -> Iterator[Finding]:
        yield found("one")

    @check("x.two", Severity.ERROR, explains=("x.one",))
    def two(platform: Platform) -> Iterator[Finding]:
        yield found("two")

    report = judge(Sections(platform=UBUNTU), one, two)
    assert len(report.diagnosis) == 1
    assert len(report.diagnosis[0].explains) == 1


@pytest.mark.parametrize(("subject", "follows"), [("fa3-fwd 0.0.1", True), ("DeepGEMM (fa3-fwd 1)", True), ("fa3-fwd-other 1", False)])
def test_a_cause_that_concerns_one_package_explains_that_package_only(subject: str, follows: bool) -> None:
    @check("x.cause", Severity.ERROR, explains=("x.effect",))
    def cause(platform: Platform) -> Iterator[Finding]:
        yield replace(found("cause"), explains_only=("fa3-fwd",))

    @check("x.effect", Severity.ERROR)
    def effect(platform: Platform) -> Iterator[Finding]:
        yield found(subject)

    report = judge(Sections(platform=UBUNTU), cause, effect)
    assert len(report.diagnosis) == (1 if follows else 2)


@pytest.mark.parametrize(("value", "follows"), [("OSError: /v/deep_gemm/_C.so", True), ("OSError: /v/deep_gemm/_C.sox", False)])
def test_a_file_of_the_package_may_stand_in_the_evidence_alone(value: str, follows: bool) -> None:
    @check("x.cause", Severity.ERROR, explains=("x.effect",))
    def cause(platform: Platform) -> Iterator[Finding]:
        yield replace(found("cause"), explains_only=("deep-gemm", "/v/deep_gemm/_C.so"))

    @check("x.effect", Severity.ERROR)
    def effect(platform: Platform) -> Iterator[Finding]:
        yield replace(found("GPU 0"), evidence=(Evidence(where="smoke[deepgemm].reason", value=value),))

    report = judge(Sections(platform=UBUNTU), cause, effect)
    assert len(report.diagnosis) == (1 if follows else 2)


def test_a_mild_cause_does_not_swallow_a_grave_consequence() -> None:
    @check("x.mild", Severity.INFO, explains=("b.*",))
    def mild(platform: Platform) -> Iterator[Finding]:
        yield found("mild")

    report = judge(Sections(platform=UBUNTU), mild, follows)
    assert [item.check for item in report.diagnosis] == ["b.follows", "x.mild"]


def test_a_check_that_raises_is_an_outcome_and_the_report_is_complete() -> None:
    report = judge(Sections(libc=LIBC_GOOD, platform=UBUNTU), needs_libc, raises, warns)
    assert [outcome.status for outcome in report.outcomes] == [Status.PASS, Status.CRASHED, Status.FAIL]
    assert "KeyError: 'oops'" in report.outcomes[1].reason
    assert report.counts.crashed == 1
    assert exit_code(report) == 3
    assert exit_code(report, fail_on=Severity.WARNING) == 1


def test_optional_sections_matrices_and_the_day_are_handed_over() -> None:
    assert judge(Sections(), copes).outcomes[0].status is Status.FAIL
    assert judge(Sections(libc=LIBC_GOOD), copes).outcomes[0].status is Status.PASS


def test_nothing_learnt_is_never_healthy() -> None:
    report = judge(Sections(), needs_libc)
    assert report.verdict is Verdict.UNKNOWN
    assert exit_code(report) == 0
    assert exit_code(report, strict=True) == 1


def test_exit_codes_follow_fail_on() -> None:
    report = judge(Sections(platform=UBUNTU), warns)
    assert report.verdict is Verdict.DEGRADED
    assert [exit_code(report, fail_on=level) for level in (Severity.ERROR, Severity.WARNING, Severity.INFO, None)] == [0, 1, 1, 0]


def test_a_waiver_silences_one_subject_and_says_so() -> None:
    waiver = Waiver(check="c.*", subject="slow", reason="accepted by the site")
    report = judge(Sections(platform=UBUNTU), warns, waivers=(waiver,))
    assert [item.subject for item in report.diagnosis] == ["slower"]
    assert "accepted by the site" in report.outcomes[0].reason


def test_a_waived_check_is_counted_as_waived() -> None:
    report = judge(Sections(platform=UBUNTU), follows, waivers=(Waiver(check="b.follows", reason="known"),))
    assert report.outcomes[0].status is Status.WAIVED
    assert report.counts.waived == 1
    assert not report.diagnosis


def test_an_expired_waiver_is_a_warning_and_silences_nothing() -> None:
    waiver = Waiver(check="b.follows", reason="until the upgrade", until=datetime.date(2026, 11, 28))
    report = judge(Sections(platform=UBUNTU), follows, waivers=(waiver,))
    assert report.diagnosis
    assert "expired on 2026-11-28" in report.notices[0].text


def test_a_parameter_that_does_not_exist_is_refused_when_the_check_is_made() -> None:
    with pytest.raises(TypeError, match="wrong_name"):
        check("x.y", Severity.ERROR)(lambda wrong_name: iter(()))
