"""Waivers: what a site accepts, with a reason; a slip in the file is named with its line."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor import waivers
from dsdoctor.diagnose import Waiver
from dsdoctor.errors import InputError

KNOWN = ("driver.branch-eol", "driver.known-bad", "pcie.acs-redirect", "pcie.link-degraded")


def refusal(text: str) -> str:
    with pytest.raises(InputError) as error:
        waivers.parse(text, "site.yaml", known=KNOWN)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_of_waivers(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        "waivers:\n"
        "  - check: driver.branch-eol\n"
        "    subject: driver 535*\n"
        "    reason: the upgrade is\n"
        "      planned\n"
        "    until: 2027-01-31\n"
        "  - {check: 'pcie.*', reason: needed by the hypervisor}\n"
    )
    assert waivers.load(str(path), known=KNOWN) == (
        Waiver(check="driver.branch-eol", subject="driver 535*", reason="the upgrade is planned", until=datetime.date(2027, 1, 31)),
        Waiver(check="pcie.*", reason="needed by the hypervisor"),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "waivers:\n", "waivers: []\n"])
def test_no_waivers(text: str) -> None:
    assert waivers.parse(text, "site.yaml", known=KNOWN) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("waivers:\n- check: driver.known-bad\n", "site.yaml:2: the waiver has no reason"),
        ("waivers:\n- reason: x\n", "site.yaml:2: the waiver has no check"),
        ("waivers:\n- check: driver.known-bad\n  reason:\n", "site.yaml:3: reason: expected text"),
        ("waivers:\n- check: driver.known-bad\n  reason: ' '\n", "site.yaml:3: reason: expected text"),
        (
            "waivers:\n- check: driver.known-bad\n  reason: x\n  untill: 2027-01-01\n",
            "site.yaml:4: unknown key 'untill': did you mean until?",
        ),
        (
            "waivers:\n- check: driver.known-bad\n  reason: x\n  until: soon\n",
            "site.yaml:4: until: expected a date such as 2027-01-31, found 'soon'",
        ),
        ("waivers:\n- check: driver.known-bad\n  reason: x\n  until: 2027-02-30\n", "site.yaml:4: until: expected a date"),
        (
            "waivers:\n- check: driver.known-bda\n  reason: x\n",
            "site.yaml:2: no check is called 'driver.known-bda': did you mean driver.known-bad",
        ),
        ("waivers:\n- check: zzz.*\n  reason: x\n", "site.yaml:2: no check is called 'zzz.*' (see dsdoctor list checks)"),
        ("waivers:\n- check: a\n  check: b\n  reason: x\n", "site.yaml:3: the key 'check' stands twice"),
        ("waiver: []\n", "site.yaml:1: unknown key 'waiver': did you mean waivers?"),
        ("waivers: {a: b}\n", "site.yaml:1: waivers: expected a list"),
        ("waivers:\n- driver.known-bad\n", "site.yaml:2: expected a waiver with the keys check and reason"),
        ("- check: driver.known-bad\n", "site.yaml:1: expected 'waivers:' with a list under it"),
        ("waivers:\n- check: [a\n", "site.yaml:3: not YAML"),
        ("a: 1\n---\nb: 2\n", "site.yaml:2: not YAML"),
        ("waivers: \x00", "site.yaml: not YAML"),
    ],
)
def test_slips_are_named_with_their_line(text: str, says: str) -> None:
    assert refusal(text).startswith(says)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "is a directory"), (binary, "not UTF-8 text".lower())):
        with pytest.raises(InputError) as error:
            waivers.load(str(path), known=KNOWN)
        assert says in str(error.value)


@given(st.text(alphabet="waivers:-{}[]# \n\t'\"check.*&!%|>@driver", max_size=80))
@settings(max_examples=200, deadline=None)
def test_no_text_is_more_than_an_error(text: str) -> None:
    try:
        found = waivers.parse(text, "site.yaml", known=KNOWN)
    except InputError:
        return
    assert all(item.reason for item in found)
