"""Every row of matrices/log-signatures describes its own example, reads in bounded time, and names checks, cases and facts that exist."""

from __future__ import annotations

import re
import re._parser as regex_parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS
from dsdoctor.facts import LogEvent, Sections
from dsdoctor.findings import Disruption
from dsdoctor.matrix import Knowledge
from dsdoctor.remedies import rows_of
from dsdoctor.rows import LogReading, LogRole, LogSignature, LogSignatures, filled, names_in
from dsdoctor.sources.triage.events import AFTER, Matcher, anchor_of
from dsdoctor.sources.triage.lines import document, pages

KNOWLEDGE = Knowledge()
SIGNATURES: LogSignatures = KNOWLEDGE.matrix("log_signatures_matrix")
ROWS = [pytest.param(row, id=row.id) for row in SIGNATURES.signatures]


def every_reading() -> Iterator[tuple[LogSignature, LogReading]]:
    return ((row, reading) for row in SIGNATURES.signatures for reading in row.readings)


def events_of(text: str) -> tuple[LogEvent, ...]:
    matcher = Matcher(SIGNATURES)
    for page in pages(document("log.txt", text)):
        matcher.feed(page)
    return matcher.finish()


@pytest.mark.parametrize("row", ROWS)
def test_an_example_matches_its_own_row_and_no_other(row: LogSignature) -> None:
    assert {event.signature for event in events_of(row.example)} == {row.id, *row.also}


@pytest.mark.parametrize("row", ROWS)
def test_an_example_is_found_in_the_middle_of_a_log(row: LogSignature) -> None:
    around = "INFO 11-29 13:00:00 loading\n" * 5
    found = [event for event in events_of(f"{around}[rank0]: {row.example}\n{around}") if event.signature == row.id]
    if not row.pattern.startswith("^"):
        assert [event.where for event in found] == ["log.txt:6"]


def test_ids_are_unique() -> None:
    ids = [row.id for row in SIGNATURES.signatures]
    assert len(ids) == len(set(ids))


def repeats(parsed: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Each repetition in a pattern: least, most, and whether another one of more than one length stands in it."""
    for operator, argument in parsed:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, inner = argument
            inside = list(repeats(inner))
            yield least, most, any(low != high for low, high, _ in inside)
            yield from inside
        elif name == "SUBPATTERN":
            yield from repeats(argument[3])
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from repeats(branch)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from repeats(argument[1])


def test_patterns_cannot_run_away() -> None:
    for row in SIGNATURES.signatures:
        for _, most, nested in repeats(regex_parser.parse(row.pattern)):
            assert not (nested and most is not regex_parser.MAXREPEAT and most > 20), "a repetition inside a long repetition"
            assert not (nested and most is regex_parser.MAXREPEAT), "a repetition inside an unbounded one"


def test_literals_stand_in_the_pattern_s_lines() -> None:
    for row in SIGNATURES.signatures:
        assert any(literal in row.example for literal in row.literals), row.id
        assert all(anchor_of(literal) for literal in row.literals), row.id


def test_readings_name_what_exists() -> None:
    for row, reading in every_reading():
        cases = {one.case for one in rows_of(reading.check, KNOWLEDGE.load_table)}
        assert set(reading.cases) <= cases, f"{reading.check} has the cases {sorted(cases)}"
        assert reading.severity in ("error", "warning", "info"), row.id
        assert Disruption(reading.disruption), row.id
        assert reading.expected, "a finding shows what was expected beside what is"
        assert filled(reading.subject, {}).strip() or names_in(reading.subject, required=True), row.id
        known = {one.id for one in SIGNATURES.signatures}
        for condition in (*reading.beside, *reading.unless):
            assert condition.startswith("=") or condition in known, condition


def test_what_must_be_known_is_captured() -> None:
    for row, reading in every_reading():
        given_by = set(re.compile(row.pattern).groupindex)
        given_by |= {name.removesuffix(suffix) for name in given_by for suffix in ("_cudnn_code", "_nccl_code", "_code", "_tuple", "_2")}
        for condition in reading.beside:
            if condition.startswith("="):
                given_by.add(condition[1:].partition(":")[0])
            elif other := SIGNATURES.signature(condition):
                given_by |= set(re.compile(other.pattern).groupindex)
        given_by |= {"package", "line"}  # derived from the library's name
        for text in (reading.subject, reading.summary, reading.cause, reading.expected, reading.advice):
            assert names_in(text, required=True) <= given_by, text


def test_what_a_row_proves_or_suggests_is_a_check() -> None:
    """Else it could neither be explained nor filtered, and would be left out of the report."""
    for row in SIGNATURES.signatures:
        named = {one.check for one in row.readings} | {one.check for one in row.suggests}
        assert named <= {check.id for check in CHECKS}, row.id


def test_roles_fit() -> None:
    for row in SIGNATURES.signatures:
        speaks = bool(row.readings or row.suggests)
        if row.role is LogRole.CLUE:
            assert not row.suggests, row.id
            assert all(one.beside for one in row.readings), f"{row.id}: no fault by itself"
        else:
            assert speaks == (row.role in (LogRole.ERROR, LogRole.SYMPTOM)), row.id


def test_yields_are_fields_of_the_snapshot() -> None:
    for row in SIGNATURES.signatures:
        for path in row.yields:
            section, _, name = path.partition(".")
            assert section in Sections.__dataclass_fields__, row.id
            assert name, row.id


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read(text: str) -> None:
    assert all(len(event.text) <= 700 for event in events_of(text))


def needs_other_lines(row: LogSignature) -> bool:
    return bool(row.readings) and all(reading.beside for reading in row.readings)


@given(st.sampled_from([row.example for row in SIGNATURES.signatures]), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_a_cut_line_proves_nothing_else(example: str, length: int) -> None:
    row = next(one for one in SIGNATURES.signatures if one.example == example)
    found = {event.signature for event in events_of(example[:length])}
    proves_nothing = {one.id for one in SIGNATURES.signatures if one.role is LogRole.CLUE or needs_other_lines(one)}
    assert found <= {row.id, *row.also} | proves_nothing


def test_a_long_line_and_many_lines_are_read() -> None:
    bait = "ibv_reg_mr failed " * 20_000 + "undefined symbol: cu" * 20_000
    assert events_of(bait + "\n" + "Failed to initialize NVML: Unknown Error\n" * 3000)[-1].times == 3000
    assert AFTER < 2000


def test_optional_parts() -> None:
    assert filled("driver[ {driver}][ ({cuda})] is old", {"driver": "535"}) == "driver 535 is old"
