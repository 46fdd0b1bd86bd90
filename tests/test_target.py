"""Finding the patient's interpreter from files alone, and running scripts in it."""

from __future__ import annotations

import ast
import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsdoctor.errors import UsageError
from dsdoctor.sources.host import Host
from dsdoctor.sources.target import locate, run_script


def executable(path: Path, text: str = "#!/bin/sh\nexit 127\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def tree(root: Path, *directories: str) -> None:
    for directory in directories:
        (root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)


def host_at(root: Path, own: str = "/usr/bin/python3", **environment: str) -> Host:
    return Host(root=str(root), environment=environment, own_interpreter=own)


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    """A Debian-like tree: system Python, a venv that uv made, a conda environment."""
    executable(tmp_path / "usr/bin/python3.12")
    (tmp_path / "usr/bin/python3").symlink_to("python3.12")
    tree(
        tmp_path, "/usr/lib/python3.12", "/usr/lib/python3.10", "/usr/lib/python3/dist-packages", "/usr/local/lib/python3.12/dist-packages"
    )
    tree(tmp_path, "/opt/venv/lib/python3.12/site-packages", "/opt/venv/bin")
    (tmp_path / "opt/venv/bin/python").symlink_to("/usr/bin/python3.12")
    (tmp_path / "opt/venv/pyvenv.cfg").write_text(
        "home = /usr/bin\nimplementation = CPython\nuv = 0.9.2\nversion_info = 3.12.3\ninclude-system-site-packages = false\n"
    )
    executable(tmp_path / "opt/conda/envs/llm/bin/python3.11")
    (tmp_path / "opt/conda/envs/llm/bin/python").symlink_to("python3.11")
    tree(
        tmp_path, "/opt/conda/envs/llm/conda-meta", "/opt/conda/envs/llm/lib/python3.11/site-packages", "/opt/conda/envs/llm/lib/python3.1"
    )
    return tmp_path


def test_system_python_of_debian_keeps_its_dist_packages(debian: Path) -> None:
    target = locate(host_at(debian), "/usr/bin/python3")
    assert (target.kind, target.prefix, target.base_prefix, target.python_version) == ("system", "/usr", "/usr", "3.12")
    assert target.path == "/usr/bin/python3"
    assert target.site_packages == ("/usr/local/lib/python3.12/dist-packages", "/usr/lib/python3/dist-packages")


def test_virtual_env_is_preferred_and_its_link_is_not_followed(debian: Path) -> None:
    target = locate(host_at(debian, VIRTUAL_ENV="/opt/venv", CONDA_PREFIX="/opt/conda/envs/llm"), None)
    assert (target.path, target.chosen_by) == ("/opt/venv/bin/python", "VIRTUAL_ENV")
    assert (target.kind, target.prefix, target.base_prefix) == ("uv", "/opt/venv", "/usr")
    assert target.site_packages == ("/opt/venv/lib/python3.12/site-packages",)


def test_deleted_virtual_env_falls_to_the_next_rung_and_says_so(debian: Path) -> None:
    target = locate(host_at(debian, VIRTUAL_ENV="/opt/deleted", CONDA_PREFIX="/opt/conda/envs/llm"), None)
    assert target.path == "/opt/conda/envs/llm/bin/python"
    assert target.kind == "conda"
    assert target.python_version == "3.11"
    assert target.chosen_by.startswith("CONDA_PREFIX")
    assert "VIRTUAL_ENV=/opt/deleted" in target.chosen_by


def test_venv_whose_base_python_is_gone_is_still_the_patient(debian: Path) -> None:
    (debian / "usr/bin/python3.12").unlink()
    for target in (locate(host_at(debian, VIRTUAL_ENV="/opt/venv"), None), locate(host_at(debian), "/opt/venv/bin/python")):
        assert target.path == "/opt/venv/bin/python"
        assert target.site_packages == ("/opt/venv/lib/python3.12/site-packages",)


def test_venv_with_system_site_packages_sees_both(debian: Path) -> None:
    (debian / "opt/venv/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = True\nversion = 3.12.3\n")
    tree(debian, "/home/a/.local/lib/python3.12/site-packages")
    target = locate(host_at(debian, HOME="/home/a"), "/opt/venv")
    assert target.kind == "venv"
    assert target.site_packages == (
        "/opt/venv/lib/python3.12/site-packages",
        "/home/a/.local/lib/python3.12/site-packages",
        "/usr/local/lib/python3.12/dist-packages",
        "/usr/lib/python3/dist-packages",
    )


def test_user_site_and_pythonpath_come_first_for_a_system_python(debian: Path) -> None:
    tree(debian, "/home/a/.local/lib/python3.12/site-packages", "/apps/pkgs")
    target = locate(host_at(debian, HOME="/home/a", PYTHONPATH="/apps/pkgs:/nowhere:relative"), "/usr/bin/python3")
    assert target.site_packages[:2] == ("/apps/pkgs", "/home/a/.local/lib/python3.12/site-packages")
    alone = locate(host_at(debian, HOME="/home/a", PYTHONNOUSERSITE="1"), "/usr/bin/python3")
    assert not any(".local" in site for site in alone.site_packages)


@pytest.mark.parametrize("own", ["/root/.local/share/pipx/venvs/dsdoctor/bin/python", "/root/.local/share/uv/tools/dsdoctor/bin/python"])
def test_doctor_in_a_tool_environment_examines_the_python_on_path(debian: Path, own: str) -> None:
    executable(debian / own.lstrip("/"))
    target = locate(host_at(debian, own=own, PATH="/nowhere:/usr/bin"), None)
    assert (target.path, target.chosen_by) == ("/usr/bin/python3", "PATH")


def test_doctor_in_a_plain_environment_examines_its_own(debian: Path) -> None:
    target = locate(host_at(debian, own="/opt/venv/bin/python", PATH="/usr/bin"), None)
    assert (target.path, target.chosen_by) == ("/opt/venv/bin/python", "own")


def test_pyenv_shim_is_looked_through(debian: Path) -> None:
    executable(debian / "root/.pyenv/shims/python3")
    executable(debian / "root/.pyenv/versions/3.11.7/bin/python3")
    tree(debian, "/root/.pyenv/versions/3.11.7/lib/python3.11/site-packages")
    (debian / "root/.pyenv/version").write_text("3.11.7\n")
    own = "/root/.local/share/pipx/venvs/dsdoctor/bin/python"
    target = locate(host_at(debian, own=own, PATH="/root/.pyenv/shims"), None)
    assert target.path == "/root/.pyenv/versions/3.11.7/bin/python3"
    assert target.site_packages == ("/root/.pyenv/versions/3.11.7/lib/python3.11/site-packages",)


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("/opt/nothing", "no such file or directory"),
        ("/opt", "a directory without bin/python"),
        ("/opt/notes.txt", "may not be executed"),
        ("python9.9", "no such command on PATH"),
    ],
)
def test_python_that_is_none_is_a_usage_error_that_names_it(debian: Path, python: str, problem: str) -> None:
    (debian / "opt/notes.txt").write_text("hello")
    with pytest.raises(UsageError) as caught:
        locate(host_at(debian, PATH="/usr/bin"), python)
    assert problem in str(caught.value)
    assert python in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("content", ["", "home", "= = =\n\0\xff", "home =\nversion = three\n"])
def test_damaged_pyvenv_cfg_does_no_harm(debian: Path, content: str) -> None:
    (debian / "opt/venv/pyvenv.cfg").write_text(content)
    target = locate(host_at(debian, VIRTUAL_ENV="/opt/venv"), None)
    assert target.path == "/opt/venv/bin/python"
    assert target.site_packages[:1] == ("/opt/venv/lib/python3.12/site-packages",)


def test_scripts_run_without_the_current_directory_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "packaging", "sysconfig", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    host = Host(environment={"PATH": os.environ["PATH"]})
    ended = run_script(host, locate(host, sys.executable), "describe.py", timeout_s=20)
    assert ended.ok, ended.stderr
    assert '"version"' in ended.result


@pytest.mark.parametrize("script", ["describe.py", "torch_facts.py"])
def test_scripts_are_python_3_6_and_use_the_standard_library_only(script: str) -> None:
    text = (importlib.resources.files("dsdoctor.probes") / "in_target" / script).read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    imported = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported - {"torch"} <= set(sys.stdlib_module_names)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_interpreter_that_hangs_is_stopped(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", "#!/bin/sh\nexec sleep 60\n")
    host = Host(environment={"PATH": os.environ["PATH"]})
    assert run_script(host, locate(host, str(python)), "describe.py", timeout_s=0.3).outcome == "timed_out"


def test_real_venv(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    target = locate(Host(environment={}), str(tmp_path / "env"))
    assert target.kind == "venv"
    assert target.prefix == str(tmp_path / "env")
    assert target.python_version == f"3.{sys.version_info[1]}"
    assert target.site_packages == (str(tmp_path / f"env/lib/python3.{sys.version_info[1]}/site-packages"),)
