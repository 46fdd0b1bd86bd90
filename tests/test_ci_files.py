"""The GitHub Action and the GitLab template: valid by their schemas, and their scripts run as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

ROOT = Path(__file__).resolve().parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
GITLAB: dict[str, Any] = yaml.safe_load((ROOT / "deploy/ci/gitlab.yml").read_text())
STEP: dict[str, Any] = ACTION["runs"]["steps"][0]
PREFLIGHT = (ROOT / "deploy/ci/preflight.sh").read_text()
HERE = f"{sys.executable} -m dsdoctor"
ONE_CHECK = "system.python-unreadable"


@pytest.mark.parametrize(
    ("document", "schema"), [(ACTION, "vendor.github-actions"), (GITLAB, "vendor.gitlab-ci")], ids=["action", "gitlab"]
)
def test_the_file_is_valid_by_its_schema(document: dict[str, Any], schema: str) -> None:
    jsonschema.Draft7Validator(get_builtin_schema(schema)).validate(document)


def test_every_input_reaches_the_script_as_a_value() -> None:
    used = {name for value in STEP["env"].values() for name in re.findall(r"inputs\.([\w-]+)", value)}
    assert used == set(ACTION["inputs"])
    assert "${{" not in STEP["run"]
    assert all(f"{{{name}:-" in PREFLIGHT for name in STEP["env"])
    assert {re.fullmatch(r"\$\{\{ steps\.check\.outputs\.([\w-]+) \}\}", item["value"])[1] for item in ACTION["outputs"].values()} == {  # type: ignore[index]
        "verdict", "exit-code", "reports",
    }  # fmt: skip


def run_action(folder: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
    """One step as GitHub's runner starts it, in a workspace of its own: process, outputs, summary."""
    values = {name: str(item["default"]) for name, item in ACTION["inputs"].items()} | {"command": HERE} | inputs
    given = {
        name: "" if "format(" in text else re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
        for name, text in STEP["env"].items()
    }
    workspace, temp = folder / "workspace", folder / "temp"
    workspace.mkdir()
    temp.mkdir()
    script, output, summary = temp / "step.sh", temp / "output", temp / "summary"
    script.write_text(STEP["run"])
    output.touch()
    summary.touch()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}, **given,
        "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(temp),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)], cwd=workspace, env=environment, capture_output=True, text=True, timeout=100
    )  # fmt: skip
    told = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return done, told, summary.read_text()


def test_a_step_annotates_reports_and_ends_as_check_does(tmp_path: Path) -> None:
    inputs = {"args": "--quick --strict", "only": f"{ONE_CHECK},driver.absent", "fail-on": "info", "python": sys.executable}
    done, told, summary = run_action(tmp_path, **inputs)
    reports = tmp_path / "workspace" / "dsdoctor-reports"
    report = json.loads((reports / "report.json").read_text())
    assert told == {"verdict": report["verdict"], "exit-code": str(done.returncode), "reports": "dsdoctor-reports"}
    assert {outcome["check"] for outcome in report["outcomes"]} == {ONE_CHECK, "driver.absent"}
    assert done.returncode == int(bool(report["diagnosis"]) or report["counts"]["unknown"] > 0), done.stderr
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in done.stdout.splitlines())
    assert summary.startswith(f"## dsdoctor: {report['verdict']}")
    assert ElementTree.parse(reports / "junit.xml").getroot().get("tests") == "2"
    assert sorted(path.name for path in reports.iterdir()) == [
        "junit.xml",
        "report.gitlab.json",
        "report.json",
        "report.sarif",
        "summary.md",
    ]
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["dsdoctor-reports"]


def test_a_step_that_cannot_examine_says_so(tmp_path: Path) -> None:
    stale = tmp_path / "old"
    stale.mkdir()
    (stale / "report.json").write_text('{\n  "verdict": "healthy"\n}')
    done, told, summary = run_action(tmp_path, args="--only nonsense $(touch owned) *", reports=str(stale))
    assert done.returncode == 2
    assert (told["verdict"], told["exit-code"]) == ("unknown", "2")
    assert "exit code 2" in summary
    assert not list((tmp_path / "workspace").iterdir()), "an option became a command"


def test_what_cannot_be_installed_is_a_fault_of_the_step_not_of_the_node(tmp_path: Path) -> None:
    done, _, _ = run_action(tmp_path, command="", **{"run-with": "false"})
    assert done.returncode == 3
    assert "python3-venv" in done.stderr
    assert not list((tmp_path / "temp").glob("dsdoctor-*"))


def test_the_gitlab_job_leaves_what_it_promises(tmp_path: Path) -> None:
    job = GITLAB[".dsdoctor"]
    variables = {
        **job["variables"],
        "DSDOCTOR_COMMAND": HERE,
        "DSDOCTOR_PYTHON": sys.executable,
        "DSDOCTOR_ARGS": f"--quick --only {ONE_CHECK}",
    }
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(job["script"])], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    promised = job["artifacts"]["reports"]
    assert ElementTree.parse(tmp_path / promised["junit"]).getroot().get("tests") == "1"
    assert isinstance(json.loads((tmp_path / promised["codequality"]).read_text()), list)
    assert {path.name for path in tmp_path.iterdir()} == {path.rstrip("/") for path in job["artifacts"]["paths"]}
