"""dsdoctor.pyz as a user of a node without pip starts it. Built by .ci/run, which names it in DSDOCTOR_PYZ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PYZ = os.environ.get("DSDOCTOR_PYZ", "")
pytestmark = pytest.mark.skipif(not PYZ, reason="DSDOCTOR_PYZ names no file: python deploy/pyz/build.py -o dsdoctor.pyz")


def run(*arguments: str, folder: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """With an interpreter that sees no installed package, and almost no environment."""
    small = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), **(environment or {})}
    return subprocess.run([sys.executable, "-I", "-S", PYZ, *arguments], cwd=folder, env=small, capture_output=True, text=True, timeout=60)


def test_it_says_its_version(tmp_path: Path) -> None:
    done = run("--version", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dsdoctor ")


def test_it_lists_and_replays(tmp_path: Path) -> None:
    checks = json.loads(run("list", "checks", "--format", "json", folder=tmp_path).stdout)
    assert len(checks["items"]) >= 45
    done = run("replay", "example:driver-too-old", "--format", "json", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["diagnosis"][0]["check"] == "driver.too-old-for-cuda"


def test_it_examines_another_interpreter_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("check", "--quick", "--fail-on", "never", "--python", sys.executable, "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["interpreter"]["found_via"] == "files and the interpreter itself"
    assert not list(tmp_path.iterdir())


def test_a_site_reads_its_own_yaml(tmp_path: Path) -> None:
    """The parser of YAML works without its C part."""
    (tmp_path / "waivers.yaml").write_text("waivers:\n  - check: driver.absent\n    reason: no GPU here\n    until: 2099-01-01\n")
    done = run("check", "--quick", "--only", "driver.absent", "--waivers", "waivers.yaml", "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["errors"] == 0


def test_no_part_of_it_needs_one_kind_of_machine() -> None:
    names = zipfile.ZipFile(PYZ).namelist()
    assert not [name for name in names if name.endswith((".so", ".pyd"))]
    assert "dsdoctor/matrices/gpus.json" in names
    assert not [name for name in names if name.endswith("direct_url.json")]
    assert Path(PYZ).read_bytes().startswith(b"#!/usr/bin/env python3\n")


def test_a_reader_that_leaves_is_no_fault() -> None:
    done = subprocess.run(f"'{sys.executable}' '{PYZ}' list checks | head -n 1", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
