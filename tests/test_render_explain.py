"""The page of a check and the lists."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Gpu, Libc, Section, unreadable
from dsdoctor.findings import Disruption, Finding, Severity, Status, Verify
from dsdoctor.plugins import Parts, load
from dsdoctor.remedies import RemedyRow
from dsdoctor.render import explain
from dsdoctor.rows import Basis, Confidence

CASES = (
    Case(
        title="an old C library",
        sections={"libc": Libc(family="glibc", version="2.17")},
        status=Status.FAIL,
        says="2.17",
        severity=Severity.WARNING,
    ),
    Case(title="no permission", sections={"libc": unreadable("denied")}, status=Status.UNKNOWN),
)


@check("system.old", Severity.ERROR, explains=("package.*",), settle="ldd --version", cases=CASES)
def old(libc: Libc, gpus: Section[tuple[Gpu, ...]], cuda_toolkits_matrix: object) -> Iterator[Finding]:
    yield from ()


ROWS = (
    RemedyRow(
        platform="docker", where="host", case="image", when="the image is old", summary="Take a newer image", commands=("docker pull x",),
        uses=("procedure-a",), then=("procedure-b",), verify=Verify(command="ldd --version", prints="2.28"), needs_root=True,
        disruption=Disruption.RESTART_PROCESS, basis=Basis(sources=("A document, https://example.com",), confidence=Confidence.DOCUMENTED),
    ),
)  # fmt: skip


def test_the_page_has_everything_in_order() -> None:
    text = explain.explain(old, ROWS, width=80)
    order = [
        "system.old", "The page of a check", "Severity: error", "Looks at: libc, gpus (if known)", "Judges by: matrix cuda-toolkits",
        "Explains: package.*", "ldd --version", "What to do", "1) [docker, by the administrator of the host, case image] Take a newer image",
        "when: the image is old", "cost: needs root, restarts", "docker pull x", "- first: procedure-a", "- then: procedure-b",
        "prints: 2.28", "basis: documented, source 1", "Sources of the remedies 1. A document, https://example.com", "Example: an old C library", '"version": "2.17"',
        "answer: fail (warning), says: 2.17", "Example: no permission", "unreadable", "answer: unknown", "dsdoctor check --only system.old",
    ]  # fmt: skip
    flowing = " ".join(text.split())
    positions = [flowing.index(piece) for piece in order]
    assert positions == sorted(positions)
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())


def test_a_check_without_remedies_and_cases_has_a_page_too() -> None:
    text = explain.explain(check("plugin.thing", Severity.INFO)(old.judge), width=80)
    assert "plugin.thing" in text
    assert "What to do" not in text


def test_the_page_as_json() -> None:
    document = json.loads(explain.explain_json(old, ROWS))
    assert document["schema"] == "dsdoctor.explain/1"
    assert document["needs"] == {"sections": ["libc"], "optional_sections": ["gpus"], "matrices": ["cuda-toolkits"]}
    assert document["remedies"][0]["commands"] == ["docker pull x"]
    assert document["cases"][0] == {
        "title": "an old C library", "sections": {"libc": {"family": "glibc", "version": "2.17"}}, "status": "fail", "severity": "warning", "says": "2.17",
        "options": "",
    }  # fmt: skip
    assert document["cases"][1]["sections"]["libc"] == {"state": "unreadable", "why": "denied"}


@pytest.mark.parametrize("what", ["checks", "probes", "matrices", "examples"])
def test_lists_are_tables_and_json(what: str) -> None:
    parts = Parts(checks=(old,), probes=load(()).probes)
    document = json.loads(explain.listing(what, parts, as_json=True, width=80))
    assert document["schema"] == "dsdoctor.list/1"
    text = explain.listing(what, parts, as_json=False, width=80)
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    for item in document["items"]:
        assert str(next(iter(item.values()))) in text
    assert document["items"] or text == f"There are no {what}."


def test_a_table_without_room_puts_the_last_column_below() -> None:
    assert explain.table([["a" * 30, "the last column"], ["b", "x"]], 40).splitlines() == ["a" * 30, "    the last column", "b", "    x"]
    assert explain.table([["a", "one two three"], ["bcd", ""]], 30).splitlines() == ["a    one two three", "bcd"]


def test_documentation_is_wrapped_and_keeps_its_indents_and_lists() -> None:
    text = "Prose that\nruns on.\n\nHeading\n    indented prose\n    runs on\n\n- one\n  goes on\n- two\n\n| a | b |\n| 1 | 2 |\n"
    assert explain._paragraphs(text, explain.Style(width=80)) == [
        ["Prose that runs on."], ["Heading", "    indented prose runs on"], ["- one goes on", "- two"], ["| a | b |", "| 1 | 2 |"],
    ]  # fmt: skip
    assert explain._paragraphs("- " + "word " * 20, explain.Style(width=60))[0][1].startswith("  word")
