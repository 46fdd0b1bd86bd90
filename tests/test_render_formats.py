"""Each form of the report is read by a consumer that is not ours, also when every text in it is hostile."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import jsonschema
import junitparser
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families
from sarif_pydantic import Sarif
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.facts import Gpu, Origin, PciDevice, Sections, known
from dsdoctor.findings import (
    Consequence,
    Counts,
    Diagnosis,
    Doubt,
    Evidence,
    KnowledgeStamp,
    Notice,
    Outcome,
    Remedy,
    Report,
    Severity,
    Status,
    Verdict,
    Verify,
)
from dsdoctor.plain import to_plain
from dsdoctor.render import formats

HERE = Path(__file__).resolve().parent
EXAMPLE = "example:driver-too-old"
HOSTILE = (
    "a\"b'c\\d\n::error title=x::y\r\n##[error]z ]]> <script>alert(1)</script> &amp; 100% %0A ,: | `x` $(id) "
    "\x1b[31mred\x1b[0m \x00\x07\x85\u2028\u202e\ufffe\ud800 é 日本 😀"
)
FORMATS = ("terminal", "json", "markdown", "junit", "sarif", "github", "gitlab", "prometheus", "nagios", "html")
LEVEL = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}
SARIF = {
    # SARIF 2.1.0, the parts that we write: 3.13 log, 3.14 run, 3.19 tool component, 3.20 invocation, 3.27 result, 3.35 suppression, 3.49 rule
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"$ref": "#/$defs/run"}},
    },
    "$defs": {
        "run": {
            "type": "object",
            "required": ["tool", "invocations", "results"],
            "additionalProperties": False,
            "properties": {
                "tool": {
                    "type": "object",
                    "required": ["driver"],
                    "additionalProperties": False,
                    "properties": {
                        "driver": {
                            "type": "object",
                            "required": ["name"],
                            "additionalProperties": False,
                            "properties": {
                                "name": {"const": "dsdoctor"},
                                "version": {"type": "string"},
                                "rules": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/rule"}},
                            },
                        }
                    },
                },
                "invocations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["executionSuccessful"],
                        "additionalProperties": False,
                        "properties": {
                            "executionSuccessful": {"type": "boolean"},
                            "toolExecutionNotifications": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["message"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "level": LEVEL,
                                        "message": MESSAGE,
                                        "associatedRule": {"type": "object", "required": ["id"]},
                                    },
                                },
                            },
                        },
                    },
                },
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
                "properties": {"type": "object"},
            },
        },
        "rule": {
            "type": "object",
            "required": ["id"],
            "additionalProperties": False,
            "properties": {"id": {"type": "string"}, "shortDescription": MESSAGE, "help": MESSAGE, "properties": {"type": "object"}},
        },
        "result": {
            "type": "object",
            "required": ["message", "ruleId", "level"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "kind": {"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
                "level": LEVEL,
                "message": MESSAGE,
                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                "suppressions": {
                    "type": "array",
                    "items": {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": ["inSource", "external"]}}},
                },
                "locations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"logicalLocations": {"type": "array", "items": {"type": "object", "required": ["name"]}}},
                    },
                },
            },
            "if": {"required": ["kind"]},
            "then": {"properties": {"level": {"const": "none"}}},
        },
    },
}
GITLAB = {
    # GitLab documentation, "Code Quality report format": the fields that it needs
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string"},
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "pattern": r"^(?!\./|/)"},
                    "lines": {"type": "object", "required": ["begin"], "properties": {"begin": {"type": "integer", "minimum": 1}}},
                },
            },
        },
    },
}
JUNIT = xmlschema.XMLSchema(str(HERE / "schemas" / "junit.xsd"))


def report_with(text: str, ids: str = "") -> Report:
    """A report in which every status and severity occurs and every free text is `text`; `ids` also stands in check ids."""
    remedy = Remedy(
        summary=text, when=text, commands=(f"true {text}",), steps=(text,), inspect=(text,), verify=Verify(command=text, prints=text),
        risk=text, not_when=text, sources=(text,),
    )  # fmt: skip
    follows = Consequence(check=f"torch.cuda-unavailable{ids}", severity=Severity.ERROR, subject=text, summary=text)
    problems = [("driver.absent", Severity.ERROR, (follows,)), ("gpu.throttled", Severity.WARNING, ()), ("env.note", Severity.INFO, ())]
    diagnosis = [
        Diagnosis(
            check=f"{check}{ids}", severity=severity, subject=text, summary=text, cause=text, evidence=(Evidence(where=text, value=text),),
            expected=text, remedies=(remedy,), explains=explains, sources=(text,),
        )
        for check, severity, explains in problems
    ]  # fmt: skip
    ends = [
        ("driver.absent", Status.FAIL, Severity.ERROR), ("driver.branch-eol", Status.WAIVED, Severity.WARNING),
        ("torch.cuda-unavailable", Status.FAIL, Severity.ERROR), ("gpu.throttled", Status.FAIL, Severity.WARNING),
        ("gpu.lost", Status.PASS, Severity.ERROR), ("gpu.xid", Status.UNKNOWN, Severity.ERROR), ("env.note", Status.FAIL, Severity.INFO),
        ("fabric.imex", Status.NOT_APPLICABLE, Severity.ERROR), ("pcie.replay-rate", Status.CRASHED, Severity.WARNING),
    ]  # fmt: skip
    gpus = tuple(Gpu(index=index, name=text, pci_address=f"0000:0{index}:00.0") for index in range(2))
    adapter = PciDevice(address=text, kind="nic", parents=(text,), root=text, driver="mlx5_core", interfaces=(text, "eth0"))
    told = (Status.PASS, Status.FAIL)
    outcomes = [
        Outcome(
            check=f"{check}{ids}", status=status, severity=severity, reason="" if status in told else text, elapsed_s=0.00002, title=text,
            settle=text if status is Status.UNKNOWN else "", doubts=(Doubt(subject=text, reason=text),) if status is Status.UNKNOWN else (),
        )
        for check, status, severity in ends
    ]  # fmt: skip
    return Report(
        schema="dsdoctor.report/1", dsdoctor="0.1.0", taken_at=text, origin=Origin(kind="replay", label=text), target=text,
        verdict=Verdict.BROKEN, diagnosis=tuple(diagnosis), outcomes=tuple(outcomes), notices=(Notice(severity=Severity.WARNING, text=text),),
        counts=Counts(passed=1, failed=4, unknown=1, crashed=1, not_applicable=1, waived=1, errors=2, warnings=1, infos=1),
        knowledge=KnowledgeStamp(digest="sha256:00", date="2026-11-29"),
        facts=to_plain(Sections(gpus=known(gpus), pci_devices=known((adapter,)))),
    )  # fmt: skip


EMPTY = Report(
    schema="dsdoctor.report/1", dsdoctor="0.1.0", taken_at="2026-11-29T12:00:00Z", origin=Origin(kind="live", label="this machine"),
    verdict=Verdict.HEALTHY, counts=Counts(), knowledge=KnowledgeStamp(digest="sha256:00", date="2026-11-29"),
)  # fmt: skip
ANY_TEXT = st.one_of(
    st.text(st.characters(blacklist_categories=[]), max_size=60),
    st.text(st.sampled_from("\"'\\\n\r%:,|<>&]`=${} \ud800\ufffe\x1b::error"), max_size=40),
)


# --- readers that are not ours ------------------------------------------------------------------------------------------


def read_junit(text: str) -> ElementTree.Element:
    JUNIT.validate(text)
    suites = junitparser.JUnitXml.fromstring(text.encode())
    assert suites.tests == sum(suite.tests for suite in suites)
    return ElementTree.fromstring(text.encode())


def read_sarif(text: str) -> dict[str, Any]:
    document = json.loads(text)
    jsonschema.Draft202012Validator(SARIF).validate(document)
    assert Sarif.model_validate_json(text).runs[0].tool.driver.name == "dsdoctor"
    run: dict[str, Any] = document["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    return run


def read_gitlab(text: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(text)
    jsonschema.Draft202012Validator(GITLAB).validate(entries)
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    return entries


def read_prometheus(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(dict(samples)) == len(samples), "a series that stands there twice makes the collector refuse the file"
    return dict(samples)


def read_github(text: str) -> list[tuple[str, str, str]]:
    """Level, title and message of each line, unescaped as the runner does: documented workflow commands, nothing else."""
    found = []
    for line in text.split("\n"):
        told = re.fullmatch(r"::(error|warning|notice) title=((?:[^%:,\r\n]|%25|%3A|%2C|%0A|%0D)+)::((?:[^%\r\n]|%25|%0A|%0D)+)", line)
        assert told, line
        found.append((told[1], unescaped(told[2], "%3A:", "%2C,"), unescaped(told[3])))
    return found


def unescaped(text: str, *more: str) -> str:
    for pair in (*more, "%0D\r", "%0A\n", "%25%"):
        text = text.replace(pair[:3], pair[3:])
    return text


def read_nagios(text: str) -> tuple[str, str, dict[str, int]]:
    told = re.fullmatch(r"DSDOCTOR (OK|WARNING|CRITICAL|UNKNOWN) - ([^|\n]*) \| ([^|\n]*)", text)
    assert told, text
    values = re.findall(r"(?:^| )([a-z]+)=(\d+);;;0(?= |$)", told[3])
    assert " ".join(f"{name}={value};;;0" for name, value in values) == told[3]
    return told[1], told[2], {name: int(value) for name, value in values}


class Page(HTMLParser):
    """The elements of a page, every one of them closed in its turn, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name == "href"]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


SVG_ATTRIBUTES = {"xmlns", "viewbox", "width", "height", "role", "aria-label", "x", "y", "x1", "y1", "x2", "y2", "rx", "d"}


def read_html(text: str) -> Page:
    html5lib.HTMLParser(strict=True).parse(text)
    page = Page(text)
    assert not set(page.elements) & {"script", "link", "img", "iframe", "object", "form", "image", "use", "foreignobject"}
    assert page.attributes <= {"lang", "charset", "name", "content", "http-equiv", "class", "id", "href", "tabindex"} | SVG_ATTRIBUTES
    assert all(re.fullmatch(r"#finding-\d+", address) for address in page.addresses)
    assert "url(" not in text
    assert "@import" not in text
    return page


def read_markdown(text: str) -> list[str]:
    """The kinds of its parts: text of a stranger makes no link, no picture and no element."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    kinds = [inner.type for token in tokens for inner in (token, *(token.children or ()))]
    assert not set(kinds) & {"link_open", "image", "html_inline", "html_block"}
    return kinds


READERS: dict[str, Any] = {
    "json": json.loads, "junit": read_junit, "sarif": read_sarif, "github": read_github, "gitlab": read_gitlab,
    "prometheus": read_prometheus, "nagios": read_nagios, "html": read_html, "markdown": read_markdown,
}  # fmt: skip


# --- any text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("ids", ["", HOSTILE])
def test_hostile_text_stays_data(name: str, ids: str) -> None:
    READERS[name](formats.render(report_with(HOSTILE, ids), name, Severity.ERROR))


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_lets_a_control_character_through(name: str) -> None:
    text = formats.render(report_with(HOSTILE, HOSTILE), name, Severity.ERROR)
    if name == "json":
        text = re.sub(r"\\u[0-9a-f]{4}", "", text)  # JSON keeps the text as it is, escaped
        text = re.sub("[\x7f-\x9f\u2028\u202e\ufffe]", "", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\u202a-\u202e\ufeff\ud800-\udfff]", text)
    text.encode()


@pytest.mark.parametrize("name", [name for name in READERS if name != "json"])
@given(text=ANY_TEXT)
@settings(max_examples=40, deadline=None)
def test_every_text_can_be_read_back(name: str, text: str) -> None:
    READERS[name](formats.render(report_with(text, text), name, Severity.INFO))


@pytest.mark.parametrize("name", READERS)
def test_a_report_on_which_nothing_was_judged_is_readable(name: str) -> None:
    READERS[name](formats.render(EMPTY, name, Severity.ERROR))


# --- what each form says ------------------------------------------------------------------------------------------------


def cases(fail_on: Severity | None) -> dict[str, str]:
    root = read_junit(formats.render(report_with("some text"), "junit", fail_on))
    children = {case.get("name", ""): [child.tag for child in case] for case in root.iter("testcase")}
    return {name: tags[0] if tags else "passed" for name, tags in children.items()}


def test_junit_tells_every_status_apart() -> None:
    assert cases(Severity.ERROR) == {
        "driver.absent": "failure", "driver.branch-eol": "skipped", "torch.cuda-unavailable": "failure", "gpu.throttled": "system-out",
        "gpu.lost": "passed", "gpu.xid": "skipped", "env.note": "system-out", "fabric.imex": "skipped", "pcie.replay-rate": "error",
    }  # fmt: skip


@pytest.mark.parametrize(("fail_on", "failures"), [(None, 0), (Severity.ERROR, 2), (Severity.WARNING, 3), (Severity.INFO, 4)])
def test_junit_fails_from_the_threshold_on(fail_on: Severity | None, failures: int) -> None:
    assert list(cases(fail_on).values()).count("failure") == failures


def test_junit_totals_are_what_stands_there() -> None:
    root = read_junit(formats.render(report_with("some text"), "junit", Severity.ERROR))
    totals = {total: sum(int(suite.get(total, "0")) for suite in root) for total in ("tests", "failures", "errors", "skipped")}
    assert totals == {"tests": 9, "failures": 2, "errors": 1, "skipped": 3}
    assert all(root.get(total) == str(totals[total]) for total in ("tests", "failures", "errors"))
    assert [suite.get("name") for suite in root] == ["driver", "torch", "gpu", "env", "fabric", "pcie"]


def test_junit_says_why_something_was_skipped_and_what_a_failure_follows_from() -> None:
    root = read_junit(formats.render(report_with("some text"), "junit", Severity.ERROR))
    skipped = {case.get("name"): case[0].get("message", "") for case in root.iter("testcase") if case.find("skipped") is not None}
    assert skipped["gpu.xid"].startswith("could not tell: some text")
    assert skipped["driver.branch-eol"] == "waived: some text"
    follows = root.find(".//testcase[@name='torch.cuda-unavailable']/failure")
    assert follows is not None
    assert "Follows from driver.absent" in (follows.text or "")


def test_sarif_has_a_level_for_each_finding_and_no_file() -> None:
    text = formats.render(report_with("some text"), "sarif", None)
    run = read_sarif(text)
    told = Counter((result["ruleId"], result.get("kind", "fail"), result["level"]) for result in run["results"])
    assert told == Counter(
        [
            ("driver.absent", "fail", "error"), ("torch.cuda-unavailable", "fail", "error"), ("gpu.throttled", "fail", "warning"),
            ("env.note", "fail", "note"), ("gpu.xid", "open", "none"), ("driver.branch-eol", "fail", "warning"),
        ]
    )  # fmt: skip
    assert "physicalLocation" not in text
    assert [bool(result.get("suppressions")) for result in run["results"] if result["ruleId"] == "driver.branch-eol"] == [True]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_github_annotates_root_causes_and_unescapes_to_the_text() -> None:
    found = read_github(formats.render(report_with("50% of a,b: it"), "github", None))
    assert [level for level, _, _ in found] == ["error", "warning", "notice", "error", "warning", "notice"]
    assert found[0][1] == "driver.absent: 50% of a,b: it"
    assert found[0][2].startswith("50% of a,b: it\n")
    assert "$ true 50% of a,b: it" in found[0][2]
    assert "2 errors, 1 warning, 1 note" in found[-1][2]


def test_gitlab_names_root_causes_and_keeps_fingerprints() -> None:
    first, again = (read_gitlab(formats.render(report_with("some text"), "gitlab", None)) for _ in range(2))
    assert first == again
    assert [(entry["check_name"], entry["severity"]) for entry in first] == [
        ("driver.absent", "critical"), ("gpu.throttled", "major"), ("env.note", "info"), ("pcie.replay-rate", "major"),
    ]  # fmt: skip


def test_the_same_finding_twice_is_no_clash() -> None:
    """GitLab keeps one of the entries with the same fingerprint; a collector refuses a file in which a series stands twice."""
    report = report_with("some text")
    twice = dataclasses.replace(report, diagnosis=(*report.diagnosis, *report.diagnosis))
    assert len(read_gitlab(formats.render(twice, "gitlab", None))) == 7
    read_prometheus(formats.render(twice, "prometheus", None))


def test_prometheus_says_verdict_counts_and_statuses() -> None:
    samples = read_prometheus(formats.render(report_with('a "b" \\ c'), "prometheus", None))
    assert samples["dsdoctor_verdict", (("verdict", "broken"),)] == 1
    assert samples["dsdoctor_verdict", (("verdict", "healthy"),)] == 0
    assert samples["dsdoctor_findings", (("severity", "error"),)] == 2
    assert samples["dsdoctor_check_status", (("check", "gpu.xid"), ("status", "unknown"))] == 1
    assert samples["dsdoctor_checks", (("status", "fail"),)] == 4
    titles = {dict(labels)["title"] for name, labels in samples if name == "dsdoctor_check_info"}
    assert titles == {'a "b" \\ c'}
    assert not [name for name, _ in samples if name == "dsdoctor_taken_timestamp_seconds"], "the report does not say when"


def test_prometheus_says_when_the_facts_were_taken() -> None:
    assert read_prometheus(formats.render(EMPTY, "prometheus", None))["dsdoctor_taken_timestamp_seconds", ()] == 1795953600


@pytest.mark.parametrize(
    ("report", "state", "starts"), [(EMPTY, "OK", "healthy, 0 errors"), (report_with("a|b"), "CRITICAL", "broken, 2 errors, 1 warning")]
)
def test_nagios_is_one_line_with_state_and_numbers(report: Report, state: str, starts: str) -> None:
    told, text, values = read_nagios(formats.render(report, "nagios", None))
    assert told == state
    assert text.startswith(starts)
    assert values["errors"] == report.counts.errors


def test_html_shows_the_text_as_text() -> None:
    page = read_html(formats.render(report_with("<script>alert(1)</script> & more"), "html", None))
    assert page.elements["article"] == 3
    assert "<script>alert(1)</script> & more" in page.text


# --- on the command line ------------------------------------------------------------------------------------------------


def dsdoctor(*arguments: str) -> Any:
    return CliRunner().invoke(command_line(arguments[:1]), list(arguments))


def test_one_run_writes_every_form_and_keeps_the_exit_code(tmp_path: Path) -> None:
    suffixes = (".json", ".md", ".xml", ".sarif", ".gitlab.json", ".prom", ".html", ".txt")
    files = [tmp_path / f"report{suffix}" for suffix in suffixes]
    done = dsdoctor("replay", EXAMPLE, "--format", "github", *(part for file in files for part in ("-o", str(file))))
    assert done.exit_code == 1, done.stderr
    assert read_github(done.stdout.rstrip("\n"))[0][1].startswith("driver.too-old-for-cuda")
    report, markdown, suites, sarif, gitlab, metrics, page, text = (file.read_text(encoding="utf-8") for file in files)
    diagnosis = json.loads(report)["diagnosis"]
    root = read_junit(suites)
    assert root.get("tests") == str(len(json.loads(report)["outcomes"]))
    assert root.get("failures") == str(json.loads(report)["counts"]["errors"])
    assert {item["check"] for item in diagnosis} <= {result["ruleId"] for result in read_sarif(sarif)["results"]}
    assert [item["check"] for item in diagnosis] == [entry["check_name"] for entry in read_gitlab(gitlab)]
    assert read_prometheus(metrics)["dsdoctor_verdict", (("verdict", "broken"),)] == 1
    assert read_html(page).elements["article"] == len(diagnosis)
    assert markdown.startswith("## dsdoctor: broken")
    assert "BROKEN" in text
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in files}


@pytest.mark.parametrize("name", ["junit", "sarif", "gitlab", "prometheus", "nagios", "html"])
def test_stdout_is_nothing_but_the_format(name: str) -> None:
    done = dsdoctor("replay", "example:h200-healthy", "--format", name)
    assert done.exit_code == 0, done.stderr
    READERS[name](done.stdout if name == "prometheus" else done.stdout.rstrip("\n"))


def test_an_unknown_suffix_is_refused_with_the_known_ones_before_anything_is_written(tmp_path: Path) -> None:
    done = dsdoctor("replay", EXAMPLE, "-o", str(tmp_path / "good.json"), "-o", str(tmp_path / "report.yaml"))
    assert done.exit_code == 2
    assert all(suffix in done.stderr for suffix in ("report.yaml", ".json", ".md", ".xml", ".sarif", ".prom", ".html", ".txt"))
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_report_says_so_to_its_reader() -> None:
    github, nagios, junit = (dsdoctor("replay", "/no|where.json", "--format", name) for name in ("github", "nagios", "junit"))
    assert [done.exit_code for done in (github, nagios, junit)] == [2, 2, 2]
    assert read_github(github.stdout.rstrip("\n"))[0][0] == "error"
    assert re.fullmatch(r"DSDOCTOR UNKNOWN - [^|\n]*/no/where.json[^|\n]*\n", nagios.stdout)
    assert junit.stdout == ""


def test_machine_formats_take_one_recording() -> None:
    done = dsdoctor("replay", EXAMPLE, EXAMPLE, "--format", "junit")
    assert done.exit_code == 2
    assert "one recording at a time" in done.stderr
