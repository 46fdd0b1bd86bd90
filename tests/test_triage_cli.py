"""`dsdoctor triage` on the command line: one document in every form, and nothing in it that came from the text can steer a terminal or a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.render import markdown

EVIDENCE = (
    "| NVIDIA-SMI 580.105.08   Driver Version: 580.105.08   CUDA Version: 13.0 |\n|   0  NVIDIA H200 \n"
    "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   64M   0% /dev/shm\n"
    "RuntimeError: <b>@someone</b> ``` \x1b]0;evil\x07\x1b[31m| # [x](http://evil)\x00\n"
)


def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = CliRunner().invoke(command_line(["triage"]), ["triage", *arguments], input=stdin)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evidence") / "paste.txt"
    path.write_text(EVIDENCE, encoding="utf-8")
    return path


def test_json_is_one_report_with_the_facts_and_how_it_was_understood(evidence: Path) -> None:
    code, out, _ = run("--format", "json", str(evidence))
    report = json.loads(out)
    assert report["schema"] == "dsdoctor.report/1"
    assert report["origin"]["kind"] == "triage"
    assert report["facts"]["nvml_versions"]["value"]["driver"] == "580.105.08"
    assert any("nvidia-smi" in notice["text"] and "df" in notice["text"] for notice in report["notices"])
    assert code == (1 if report["counts"]["errors"] else 0)


def test_standard_input_is_read_and_a_text_of_nothing_is_said_to_be_one() -> None:
    code, out, _ = run("--format", "json", "-", stdin=b"hello\nworld\n")
    report = json.loads(out)
    assert (code, report["verdict"], report["diagnosis"]) == (0, "unknown", [])
    assert report["notices"][0]["text"] == "2 lines read; nothing in them was recognised"


def test_no_form_lets_the_text_steer_its_reader(evidence: Path) -> None:
    for arguments in (("--verbose",), ("--format", "markdown"), ("--format", "json"), ("--explain-parse",)):
        _, out, _ = run(*arguments, str(evidence))
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out), arguments


def test_explain_parse_names_lines_and_formats(evidence: Path) -> None:
    code, out, _ = run("--explain-parse", str(evidence))
    assert code == 0
    assert re.search(r"1-2\s+nvidia-smi: nvml versions, gpus", out)
    assert re.search(r"3-4\s+df: shared memory", out)
    parsed = json.loads(run("--explain-parse", "--format", "json", str(evidence))[1])
    assert parsed["schema"] == "dsdoctor.parse/1"
    assert {"file", "first", "last", "format", "lines", "sections"} == set(parsed["understood"][0])


def test_a_file_that_is_not_there_is_a_sentence_and_two() -> None:
    code, out, err = run("--format", "json", "/nowhere.txt")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert "no such file" in err


@pytest.mark.parametrize(
    "text", ["<script>", "@someone", "# title", "- item", "1. item", "a | b", "[x](y)", "**bold**", "`code`", "~~~", "\u202eabc"]
)
def test_prose_in_markdown_is_shown_as_it_is(text: str) -> None:
    shown = markdown.prose(text)
    assert not re.search(r"(?<!\\)[<>\[\]|`*#~]", shown)
    assert not re.search(r"@\w", shown)
    assert not re.match(r"[-+]\s|\d+\.\s", shown)
    assert "\u202e" not in shown


@pytest.mark.parametrize("text", ["plain", "a `tick`", "```", "`", "x ``` y ````"])
def test_code_in_markdown_cannot_be_closed_from_inside(text: str) -> None:
    shown = markdown.code(text)
    ticks = re.match(r"`+", shown)
    assert ticks is not None
    assert ticks[0] not in re.findall(r"`+", shown[len(ticks[0]) : -len(ticks[0])])
    fence = markdown.fence([text, "second"]).split("\n")
    assert fence[0].removesuffix("sh") == fence[-1]
    assert all(not line.startswith(fence[-1]) for line in fence[1:-1])


def test_a_line_that_fits_several_causes_is_shown_with_what_tells_them_apart() -> None:
    line = b"NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)\n"
    for arguments in ((), ("--format", "markdown")):
        code, out, _ = run(*arguments, "-", stdin=line)
        assert code == 0
        assert "RmInitAdapter failed" in out
        assert out.index("power, slot or card") < out.index("open kernel modules") < out.index("older than the GPU")
        assert "modinfo nvidia | grep license" in out


@pytest.mark.parametrize("text", [b"", bytes(range(256)) * 40, b"Call me Ishmael. Some years ago, never mind how long precisely.\n" * 60])
def test_a_text_without_evidence_is_said_to_be_one_and_what_to_paste(text: bytes) -> None:
    _, terminal, _ = run("-", stdin=text)
    _, markdown_text, _ = run("--format", "markdown", "-", stdin=text)
    assert "UNKNOWN: nothing in the text was recognised" in terminal
    assert "Nothing in this text was recognised" in markdown_text
    assert all("python -m torch.utils.collect_env" in out for out in (terminal, markdown_text))
    assert len(terminal.splitlines()) < 20  # nobody reads sixty lines that say that nothing is known


def test_a_report_on_a_text_is_about_what_the_text_says(evidence: Path) -> None:
    _, out, _ = run(str(evidence))
    assert "not asked" not in out
    assert "Not judged from this text" in out
    assert "not asked" in run("--verbose", str(evidence))[1]
