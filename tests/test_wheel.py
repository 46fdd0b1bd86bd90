"""The built wheel holds what it should and nothing else, and works from a fresh environment."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all workers of a run: two builds at the same time write over each other in the checkout."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("*.whl"))


def test_the_wheel_has_exactly_our_top_level_names(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert "dsdoctor" in tops
    assert all(name == "dsdoctor" or name.endswith(".dist-info") for name in tops), tops


def test_every_matrix_probe_and_script_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"dsdoctor/matrices/{path.relative_to(ROOT / 'matrices')}" for path in (ROOT / "matrices").rglob("*.yaml")}
    expected |= {f"dsdoctor/probes/{path.relative_to(ROOT / 'probes')}" for path in (ROOT / "probes").rglob("*.py")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "dsdoctor").rglob("*.py")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "dsdoctor").rglob("*.json*")}
    assert len(expected) > 60
    assert not expected - inside


def test_every_matrix_is_compiled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in names:
        if name.startswith("dsdoctor/matrices/") and name.endswith(".yaml"):
            assert name.replace(".yaml", ".json") in names


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    code = "import dsdoctor, sys; print(dsdoctor.__file__)"
    where = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert str(site) in where
    done = subprocess.run(
        [sys.executable, "-m", "dsdoctor", "list", "checks", "--format", "json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["items"]) >= 45


def test_the_wheel_works_unopened(wheel: Path, tmp_path: Path) -> None:
    """From inside a zip archive, as dsdoctor.pyz runs it: matrices are read there, and the target gets its scripts as files."""
    environment = {**os.environ, "PYTHONPATH": str(wheel), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    code = (
        "import json, os, sys, dsdoctor\nfrom dsdoctor.cli import main\nfrom dsdoctor.sources.host import Host\n"
        "from dsdoctor.sources.target import locate, run_script, script_folder\n"
        "smoke = run_script(Host(), locate(Host(), sys.executable), 'smoke_shared.py', timeout_s=20, arguments=('--device', 'quantum'))\n"
        "print(json.dumps([dsdoctor.__file__, sorted(os.listdir(script_folder())), smoke.stderr]), file=sys.stderr)\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "--quick", "--only", "system.python-unreadable,driver.absent", "--python", sys.executable, "--format", "json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    place, scripts, smoke = json.loads(done.stderr)
    assert place.startswith(str(wheel))
    assert scripts == sorted(path.name for path in (ROOT / "probes" / "in_target").glob("*.py"))
    assert "quantum" in smoke, "a script did not find those beside it"
    report = json.loads(done.stdout)
    assert report["facts"]["interpreter"]["found_via"] == "files and the interpreter itself"
    assert report["knowledge"]["digest"].startswith("sha256:")
    assert not list(tmp_path.iterdir()), "the copy of the scripts stays behind"
