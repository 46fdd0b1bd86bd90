"""Exit styles: what a monitor, node-problem-detector and Node Health Check read from a run, also from one that makes no report."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor import cli, exit_styles
from dsdoctor.facts import Origin
from dsdoctor.findings import Counts, Diagnosis, KnowledgeStamp, Report, Severity, Verdict
from dsdoctor.render import formats, npd

FIT = Report(
    schema="dsdoctor.report/1",
    dsdoctor="0",
    taken_at="2026-11-29T00:00:00Z",
    origin=Origin(kind="live", label="this machine"),
    verdict=Verdict.HEALTHY,
    counts=Counts(passed=61),
    knowledge=KnowledgeStamp(digest="", date="2026-11-29"),
)


def found(severity: Severity, **counts: int) -> Report:
    item = Diagnosis(check="gpu.lost", severity=severity, subject="GPU 3", summary="the driver lost it")
    verdict = {Severity.ERROR: Verdict.BROKEN, Severity.WARNING: Verdict.DEGRADED}.get(severity, Verdict.HEALTHY)
    return dataclasses.replace(FIT, verdict=verdict, diagnosis=(item,), counts=Counts(**counts))


ERROR, WARNING, INFO = Severity
CRASHED = dataclasses.replace(FIT, counts=Counts(passed=60, crashed=1))
UNTOLD = dataclasses.replace(FIT, verdict=Verdict.UNKNOWN, counts=Counts(unknown=61))
DOUBTFUL = dataclasses.replace(FIT, counts=Counts(passed=60, unknown=1))


@pytest.mark.parametrize(
    ("report", "fail_on", "strict", "default", "nagios", "npd_code", "nhc"),
    [
        (FIT, ERROR, False, 0, 0, 0, 0),
        (found(ERROR), ERROR, False, 1, 2, 1, 1),
        (found(WARNING), ERROR, False, 0, 1, 0, 0),
        (found(WARNING), WARNING, False, 1, 2, 1, 1),
        (found(INFO), ERROR, False, 0, 0, 0, 0),
        (found(ERROR), None, False, 0, 1, 0, 0),
        (CRASHED, ERROR, False, 3, 3, 2, 0),
        (found(ERROR, crashed=1), ERROR, False, 1, 2, 1, 1),
        (UNTOLD, ERROR, False, 0, 3, 2, 0),
        (DOUBTFUL, ERROR, False, 0, 0, 0, 0),
        (DOUBTFUL, ERROR, True, 1, 3, 2, 1),
    ],
)
def test_the_codes(report: Report, fail_on: Severity | None, strict: bool, default: int, nagios: int, npd_code: int, nhc: int) -> None:
    codes = [exit_styles.code(style, report, fail_on, strict) for style in ("default", "nagios", "npd", "nhc")]
    assert codes == [default, nagios, npd_code, nhc]


@given(st.text(max_size=300), st.text(max_size=60))
def test_a_message_of_node_problem_detector_is_one_line_of_80_bytes(summary: str, subject: str) -> None:
    item = Diagnosis(check="gpu.lost", severity=ERROR, subject=subject, summary=summary)
    for text in (npd.render(dataclasses.replace(FIT, diagnosis=(item, item, item)), ERROR), npd.failure(summary), npd.render(FIT, ERROR)):
        assert len(text.encode()) <= 80
        assert len(text.splitlines()) == 1
    assert npd.render(dataclasses.replace(FIT, diagnosis=(item, item, item)), ERROR).endswith(" (+2)")


def test_the_lines() -> None:
    broken = found(ERROR)
    assert formats.render(broken, "npd", ERROR) == "gpu.lost: GPU 3: the driver lost it"
    assert formats.render(UNTOLD, "npd", ERROR) == "cannot tell: 0 checks passed, 61 unknown, 0 crashed"
    assert formats.render(broken, "nhc", ERROR) == "ERROR:  dsdoctor:  Health check failed:  gpu.lost: GPU 3: the driver lost it"
    assert formats.render(broken, "nhc", None) == formats.render(FIT, "nhc", ERROR) == ""
    assert formats.render(DOUBTFUL, "nhc", ERROR, strict=True).startswith("ERROR:  dsdoctor:  Health check failed:  1 checks")
    assert formats.render(found(WARNING), "nagios", ERROR, state="WARNING").startswith("DSDOCTOR WARNING - ")


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    return end.value.code, capsys.readouterr().out


HEALTHY, TOO_OLD = "example:h200-healthy", "example:driver-too-old"


@pytest.mark.parametrize(
    ("style", "arguments", "code", "says"),
    [
        ("nagios", (HEALTHY,), 0, r"DSDOCTOR OK - .*\n"),
        ("nagios", (TOO_OLD,), 2, r"DSDOCTOR CRITICAL - .*\n"),
        ("nagios", (TOO_OLD, "--fail-on", "never"), 1, r"DSDOCTOR WARNING - .*\n"),
        ("nagios", ("/nowhere.json",), 3, r"DSDOCTOR UNKNOWN - .*/nowhere\.json.*\n"),
        ("nagios", (HEALTHY, "--no-such-option"), 3, r"DSDOCTOR UNKNOWN - .*--no-such-option.*\n"),
        ("npd", (HEALTHY,), 0, r"fit: \d+ checks passed.*\n"),
        ("npd", (TOO_OLD,), 1, r"driver\.too-old-for-cuda: .*\n"),
        ("npd", ("/nowhere.json",), 2, r"cannot tell: .*\n"),
        ("npd", (HEALTHY, "--fail-on", "sometimes"), 2, r"cannot tell: .*\n"),
        ("nhc", (HEALTHY,), 0, ""),
        ("nhc", (TOO_OLD,), 1, r"ERROR:  dsdoctor:  Health check failed:  driver\.too-old-for-cuda: .*\n"),
        ("nhc", ("/nowhere.json",), 0, ""),
        ("default", ("/nowhere.json",), 2, ""),
        ("unheard-of", (HEALTHY,), 2, ""),
    ],
)
def test_runs(capsys: pytest.CaptureFixture[str], style: str, arguments: tuple[str, ...], code: int, says: str) -> None:
    assert (told := ended(capsys, "replay", *arguments, "--exit-style", style))[0] == code
    assert re.fullmatch(says, told[1])


def test_a_format_that_is_asked_for_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(capsys, "replay", TOO_OLD, "--exit-style=nagios", "--format", "json")
    assert code == 2
    assert text.startswith("{")
