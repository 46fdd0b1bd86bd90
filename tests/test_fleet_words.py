"""Xids and findings in the words of fleet tools: every bucket of the catalogue has them, every word is used, and NVLink 5 lines are decoded by their bits."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.checks.gpu._nvlink_xid import decode
from dsdoctor.facts import Xid
from dsdoctor.findings import Severity
from dsdoctor.matrix import Knowledge
from dsdoctor.rows_health import NvlinkXidRule

KNOWLEDGE = Knowledge()
WORDS = KNOWLEDGE.matrix("fleet-words")
CODES = KNOWLEDGE.matrix("error-codes")
NVLINK = KNOWLEDGE.matrix("nvlink-xids")
OLD_DRIVER, NEW_DRIVER = 570, 580


def test_every_bucket_of_the_xid_catalogue_has_its_words_and_every_row_is_reached_by_a_code() -> None:
    rows = {row.case: row for row in WORDS.findings if row.check == "gpu.xid" and row.case}
    buckets = {row.bucket for row in CODES.xids}
    assert set(rows) == buckets
    assert {row.code for row in CODES.xids} == set(range(1, 173))
    for code in CODES.xids:
        row = WORDS.of("gpu.xid", code.bucket, "error")
        assert row.case == code.bucket, f"Xid {code.code} is caught by another row"
    reached = {rows[code.bucket].action for code in CODES.xids}
    assert reached == {word.word for word in WORDS.recommended_actions}


def test_every_recovery_action_of_the_driver_has_its_words() -> None:
    asked = {f"action-{row.code}" for row in CODES.recovery_actions if row.code}
    assert {row.case for row in WORDS.findings if row.check == "gpu.recovery-action"} == asked


def test_words_are_those_of_the_vocabulary_and_all_of_it_is_used() -> None:
    assert {row.dcgm for row in WORDS.findings} == {word.word for word in WORDS.dcgm_severities}
    assert {row.action for row in WORDS.findings} == {word.word for word in WORDS.recommended_actions}


def test_the_schema_of_the_report_knows_the_same_words() -> None:
    fleet = json.loads(files("dsdoctor").joinpath("report.schema.json").read_text())["$defs"]["fleet"]["oneOf"][1]["properties"]
    assert set(fleet["dcgm_severity"]["enum"]) == {word.word for word in WORDS.dcgm_severities}
    assert set(fleet["recommended_action"]["enum"]) == {word.word for word in WORDS.recommended_actions}


def test_every_check_has_words_and_every_row_is_for_a_check() -> None:
    for check in CHECKS:
        for severity in Severity:
            assert KNOWLEDGE.fleet_words(check.id, "", severity) is not None
    for row in WORDS.findings:
        assert any(row.describes(check.id, row.case, row.severity or "error") for check in CHECKS), row.check


@pytest.mark.parametrize("case", ["failure", ""])
def test_a_note_asks_for_nothing(case: str) -> None:
    words = KNOWLEDGE.fleet_words("gpu.row-remap", case, Severity.INFO)
    assert words is not None
    assert (words.dcgm_severity, words.recommended_action) == ("MONITOR", "NONE")


# --- the lines of NVLink 5 --------------------------------------------------------------------------------------------


def line(rule: NvlinkXidRule, bits: str, severity: str = "Fatal") -> Xid:
    information, status = int(bits.replace("-", "0"), 2), rule.error_status[-1] if rule.error_status else 0x5
    text = (
        f"NVRM: Xid (PCI:0018:01:00): {rule.code}, {rule.units[-1]} {severity} XC0 i0 Link 08 ({information:#010x} {status:#010x} 0x0 0x0)"
    )
    return Xid(code=rule.code, pci_address="0018:01:00.0", text=text)


def test_every_rule_decodes_its_own_line_in_the_layout_of_its_driver() -> None:
    assert len(NVLINK.rules) > 50
    assert NVLINK.codes() == frozenset(range(144, 151))
    for rule in NVLINK.rules:
        for bits, branch in ((rule.bits, OLD_DRIVER), (rule.bits_new, NEW_DRIVER)):
            decoded = decode(line(rule, bits), NVLINK, branch)
            assert decoded is not None
            assert decoded.bucket == rule.bucket, (rule.code, rule.units, bits)
            assert decoded.link == 8
            assert decoded.is_fatal
            assert decode(line(rule, bits), NVLINK, None) is not None


def test_the_layout_changes_at_its_branch() -> None:
    rule = next(row for row in NVLINK.rules if row.units == ("NETIR_BER_EVENT",))
    assert decode(line(rule, rule.bits_new), NVLINK, 574).bucket == ""
    assert decode(line(rule, rule.bits_new), NVLINK, 575).bucket == rule.bucket
    assert decode(line(rule, rule.bits), NVLINK, 575).bucket == ""


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x0045",
        "NVRM: Xid (PCI:0018:01:00): 149",
        "NVRM: Xid (PCI:0018:01:00): 149, pid=1, name=x, something else",
        "",
    ],
)
def test_a_line_without_its_details_is_not_decoded(text: str) -> None:
    assert decode(Xid(code=149, pci_address="", text=text), NVLINK, NEW_DRIVER) is None
