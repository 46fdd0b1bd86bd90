"""The command line as a user or a script meets it: exit codes, one JSON document, closed pipes, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsdoctor.cli import COMMANDS, command_line

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "example:driver-too-old"


def dsdoctor(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsdoctor", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **environment},
        timeout=60,
    )


def here(*arguments: str) -> Any:
    """The same inside this process: what a command prints and its exit code, without the start of an interpreter."""
    return CliRunner().invoke(command_line(arguments[:1] if arguments[0] in COMMANDS else COMMANDS), list(arguments))


def test_a_replay_of_a_broken_example_exits_1_and_says_what_to_do() -> None:
    done = dsdoctor("replay", EXAMPLE)
    assert done.returncode == 1
    assert "driver" in done.stdout
    assert "580" in done.stdout
    assert "\x1b" not in done.stdout
    report = json.loads(dsdoctor("replay", EXAMPLE, "--format", "json").stdout)
    commands = json.dumps([item["remedies"] for item in report["diagnosis"]])
    assert all(len(line) <= 80 or json.dumps(line.strip())[1:-1] in commands for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "code"), [((), 1), (("--fail-on", "never"), 0), (("--only", "system"), 0), (("--ignore", "driver,torch,smoke"), 0)]
)
def test_exit_codes_follow_the_options(options: tuple[str, ...], code: int) -> None:
    assert here("replay", EXAMPLE, *options).exit_code == code


def test_json_is_one_document_and_the_exit_code_is_the_same() -> None:
    done = here("replay", EXAMPLE, "--format", "json")
    report = json.loads(done.stdout)
    assert done.exit_code == 1
    assert report["schema"] == "dsdoctor.report/1"
    assert report["diagnosis"][0]["check"] == "driver.too-old-for-cuda"
    assert report["origin"]["kind"] == "replay"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "/nowhere.json"), "/nowhere.json"),
        (("replay", "example:no-such-node"), "no-such-node"),
        (("check", "--only", "driver.to-old-for-cuda"), "driver.too-old-for-cuda"),
        (("check", "--python", "/nowhere/python"), "/nowhere/python"),
        (("check", "--gpu", "zero"), "zero"),
        (("check", "--waivers", "/nowhere.yaml"), "/nowhere.yaml"),
        (("explain", "driver.abscent"), "driver.absent"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments: tuple[str, ...], says: str) -> None:
    done = here(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    as_json = here(*arguments, "--format", "json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["exit_code"] == 2


@pytest.mark.parametrize("arguments", [("check", "--no-such-option"), ("replay",), ("frobnicate",), ("list", "nothing")])
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m dsdoctor replay {EXAMPLE} -v | head -n 1", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_recording_is_written_whole_and_replays_to_the_same_report(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    assert dsdoctor("record", "--quick", "-o", str(path)).returncode == 0
    first, second = (json.loads(here("replay", str(path), "--format", "json", "--fail-on", "never").stdout) for _ in range(2))
    for report in (first, second):
        report.pop("timings")
        for outcome in report["outcomes"]:
            outcome.pop("elapsed_s")
    assert first == second
    assert sorted(item.name for item in tmp_path.iterdir()) == ["node.json"]


def test_a_report_file_replays_like_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = here("replay", EXAMPLE, "-o", str(path))
    assert done.exit_code == 1
    again = here("replay", str(path), "--format", "json")
    assert json.loads(again.stdout)["diagnosis"] == json.loads(path.read_text())["diagnosis"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_exit_2(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert dsdoctor("record", "--quick", "-o", str(tmp_path / "node.json")).returncode == 2


def test_an_output_folder_that_does_not_exist_is_exit_2() -> None:
    done = here("replay", EXAMPLE, "-o", "/nowhere/report.json")
    assert done.exit_code == 2
    assert "/nowhere/report.json" in done.stderr


def test_quick_asks_no_torch_and_says_so() -> None:
    done = dsdoctor("check", "--quick", "--format", "json", "--fail-on", "never")
    facts = json.loads(done.stdout)["facts"]
    assert facts["torch_runtime"]["state"] == "not_asked"
    assert "--quick" in facts["torch_runtime"]["why"]


def test_dsdoctor_alone_is_check(tmp_path: Path) -> None:
    done = dsdoctor("--quick", "--format", "json", "--fail-on", "never", cwd=tmp_path)
    assert json.loads(done.stdout)["origin"]["kind"] == "live"


def test_a_hostile_working_directory_shadows_nothing(tmp_path: Path) -> None:
    for name in ("json", "packaging", "typing", "yaml", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dsdoctor")), "check", "--quick", "--fail-on", "never"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_fault_of_ours_is_exit_3_and_the_report_is_complete(tmp_path: Path) -> None:
    (tmp_path / "faulty_plugin.py").write_text(
        "from dsdoctor.checks._check import check\nfrom dsdoctor.findings import Severity\n"
        "@check('acme.broken', Severity.ERROR)\ndef broken(interpreter):\n    raise KeyError('oops')\nCHECKS = (broken,)\n"
    )
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[dsdoctor.plugins]\nfaulty = faulty_plugin\n")
    done = dsdoctor("replay", "example:h200-healthy", PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert "acme.broken" in done.stdout
    assert "Driver" in done.stdout


def test_explain_prints_every_check() -> None:
    checks = json.loads(here("list", "checks", "--format", "json").stdout)["items"]
    assert len(checks) >= 45
    page = here("explain", "driver.too-old-for-cuda").stdout
    assert "Why it matters" in page
    assert "525.60.13" in page


def test_help_is_short_and_names_every_command() -> None:
    text = dsdoctor("--help").stdout
    assert all(command in text for command in ("check", "record", "replay", "diff", "explain", "list"))
