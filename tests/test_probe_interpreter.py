"""What is installed for the patient's Python: from dist-info trees, RECORD files and the interpreter's own words."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import Section, State
from dsdoctor.plain import to_plain
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.target import locate

interpreter = importlib.import_module("dsdoctor.probes.interpreter")
PYTHON = f"python3.{sys.version_info[1]}"


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """A real virtual environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    return tmp_path / "env"


def site(env: Path) -> Path:
    return env / "lib" / PYTHON / "site-packages"


def install(env: Path, name: str, version: str, files: dict[str, str] | None = None, metadata: str = "") -> Path:
    """A dist-info as pip writes it; `files` are path → digest of RECORD."""
    info = site(env) / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n\nBody\nRequires-Dist: not-a-header\n"
    )
    (info / "RECORD").write_text("".join(f"{path},{digest},10\n" for path, digest in (files or {}).items()))
    (info / "INSTALLER").write_text("pip\n")
    return info


def collect(env: Path | str, **environment: str) -> dict[str, Section[Any]]:
    host = Host(environment={"PATH": os.environ["PATH"], **environment})
    sections = interpreter.collect(host, Scope(target=locate(host, str(env))))
    assert set(sections) == {"interpreter", "packages", "file_conflicts", "torch_build", "python_headers"}
    assert read_sections({name: to_plain(section) for name, section in sections.items()}) == sections
    return dict(sections)


def test_empty_venv(env: Path) -> None:
    found = collect(env)
    record = found["interpreter"].value
    assert record.version == ".".join(str(part) for part in sys.version_info[:3])
    assert record.abi_tag == f"cp3{sys.version_info[1]}"
    assert (record.kind, record.prefix, record.start_error) == ("venv", str(env), "")
    assert record.externally_managed is False
    assert record.site_packages == (str(site(env)),)
    assert found["packages"].value == ()
    assert found["file_conflicts"].value == ()
    assert found["torch_build"].state is State.ABSENT
    assert found["python_headers"].value.include_directory.endswith(PYTHON)


def test_packages_with_requirements_of_the_stack_only(env: Path) -> None:
    install(env, "vllm", "0.19.0", metadata="Requires-Dist: torch==2.11.0\nRequires-Dist: flashinfer-python (==0.6.7) ; extra == 'x'")
    install(env, "Some_Thing.else", "1.0", metadata="Requires-Dist: torch")
    by_name = {package.name: package for package in collect(env)["packages"].value}
    assert by_name["vllm"].requires == ("torch==2.11.0", "flashinfer-python (==0.6.7) ; extra == 'x'")
    assert by_name["vllm"].installer == "pip"
    assert by_name["vllm"].location == str(site(env))
    assert (by_name["some-thing-else"].version, by_name["some-thing-else"].requires) == ("1.0", ())


def test_old_forms_of_metadata_are_read_and_remains_are_not(env: Path, tmp_path: Path) -> None:
    (site(env) / "old-2.0-py3.11.egg-info").mkdir()
    (site(env) / "bare.egg-info").mkdir()
    (site(env) / "bare.egg-info/PKG-INFO").write_text("Metadata-Version: 1.0\nVersion: 3.1\n")
    source = tmp_path / "source"
    (source / "flash_attn.egg-info").mkdir(parents=True)
    (source / "flash_attn.egg-info/PKG-INFO").write_text("Version: 2.8.3\n")
    (site(env) / "flash-attn.egg-link").write_text(f"{source}\n.\n")
    (site(env) / "lost.egg-link").write_text("")
    (site(env) / "~orch-2.0.dist-info").mkdir()
    (site(env) / "nodash.dist-info").mkdir()
    found = {package.name: package.version for package in collect(env)["packages"].value}
    assert found == {"old": "2.0", "bare": "3.1", "flash-attn": "2.8.3", "lost": ""}


def test_complete_dist_info_beats_the_remains_of_another_version(env: Path) -> None:
    install(env, "torch", "2.11.0")
    (site(env) / "torch-2.9.0.dist-info").mkdir()
    assert [(package.name, package.version) for package in collect(env)["packages"].value] == [("torch", "2.11.0")]


def test_two_nccl_wheels_own_one_library(env: Path) -> None:
    same = {"nvidia/__init__.py": "sha256=same", "nvidia/nccl/__pycache__/x.cpython-312.pyc": "sha256=a"}
    install(
        env, "nvidia_nccl_cu12", "2.29.3", {**same, "nvidia/nccl/lib/libnccl.so.2": "sha256=a", "nvidia/nccl/include/nccl.h": "sha256=a"}
    )
    install(
        env, "nvidia_nccl_cu13", "2.29.7", {**same, "nvidia/nccl/lib/libnccl.so.2": "sha256=b", "nvidia/nccl/include/nccl.h": "sha256=b"}
    )
    (conflict,) = collect(env)["file_conflicts"].value
    assert conflict.path == str(site(env) / "nvidia/nccl/lib/libnccl.so.2")
    assert conflict.packages == ("nvidia-nccl-cu12", "nvidia-nccl-cu13")


def test_conflicts_are_capped_for_each_pair_and_name_libraries_first(env: Path) -> None:
    for name, digest in (("sgl_kernel", "a"), ("sglang_kernel", "b")):
        files = {f"sgl_kernel/m{number:03}.py": f"sha256={digest}" for number in range(100)}
        install(env, name, "0.3", {**files, "sgl_kernel/common_ops.abi3.so": f"sha256={digest}"})
    conflicts = collect(env)["file_conflicts"].value
    assert len(conflicts) == 20
    assert conflicts[0].path.endswith("common_ops.abi3.so")


def test_torch_version_is_read_without_running_it(env: Path) -> None:
    (site(env) / "torch").mkdir()
    (site(env) / "torch/version.py").write_text(
        "from typing import Optional\nraise SystemExit\n__all__ = ['__version__', 'cuda']\n__version__ = '2.11.0+cu130'\ndebug = False\n"
        "cuda: Optional[str] = '13.0'\ngit_version = '70d99e9'\nhip: Optional[str] = None\n"
    )
    build = collect(env)["torch_build"].value
    assert (build.version, build.cuda, build.hip, build.git_version) == ("2.11.0+cu130", "13.0", None, "70d99e9")


@pytest.mark.parametrize("text", [None, "", "__version__ = compute()\n", "\0\0"])
def test_torch_without_a_readable_version_is_unreadable(env: Path, text: str | None) -> None:
    (site(env) / "torch").mkdir()
    if text is not None:
        (site(env) / "torch/version.py").write_text(text)
    section = collect(env)["torch_build"]
    assert section.state is State.UNREADABLE
    assert "torch/version.py" in section.why


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexit 127\n", "exit status 127"),
        ("#!/bin/sh\nkill -SEGV $$\n", "SIGSEGV"),
        ("#!/bin/sh\necho 'error while loading shared libraries: libpython3.12.so.1.0' >&2\nexit 127\n", "libpython3.12.so.1.0"),
        ("#!/bin/sh\necho garbage > /dev/fd/$DSDOCTOR_RESULT_FD\n", "no answer that can be read"),
        ("#!/bin/sh\necho '[1]' > /dev/fd/$DSDOCTOR_RESULT_FD\n", "no answer that can be read"),
        ("#!/bin/sh\necho '{\"version\": 3}' > /dev/fd/$DSDOCTOR_RESULT_FD\n", "no answer that can be read"),
        ("#!/nowhere/python\n", "No such file or directory"),
    ],
)
def test_broken_interpreter_leaves_what_the_files_say(env: Path, script: str, said: str) -> None:
    install(env, "torch", "2.11.0")
    (env / "bin/python").unlink()
    (env / "bin/python").write_text(script)
    (env / "bin/python").chmod(0o755)
    found = collect(env)
    assert said in found["interpreter"].value.start_error
    assert found["interpreter"].value.version == f"3.{sys.version_info[1]}"
    assert said in found["interpreter"].found_via
    assert [package.name for package in found["packages"].value] == ["torch"]
    assert found["python_headers"].state is State.KNOWN


def test_dangling_interpreter(env: Path) -> None:
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to("/nowhere/python3.12")
    install(env, "torch", "2.11.0")
    host = Host(environment={"VIRTUAL_ENV": str(env), "PATH": ""})
    (env / "bin/python3").unlink()
    found = interpreter.collect(host, Scope(target=locate(host, None)))
    assert found["interpreter"].value.start_error
    assert len(found["packages"].value) == 1


def test_no_target_is_not_asked() -> None:
    assert {section.state for section in interpreter.collect(Host(), Scope(target=None)).values()} == {State.NOT_ASKED}


def test_recorded_tree_answers_from_files(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.12").write_text("")
    (tmp_path / "usr/bin/python3.12").chmod(0o755)
    (tmp_path / "usr/lib/python3.12").mkdir(parents=True)
    (tmp_path / "usr/lib/python3.12/EXTERNALLY-MANAGED").write_text("")
    (tmp_path / "usr/lib/python3/dist-packages/numpy-1.26.4.dist-info").mkdir(parents=True)
    host = Host(root=str(tmp_path), environment={})
    found = interpreter.collect(host, Scope(target=locate(host, "/usr/bin/python3.12")))
    assert found["interpreter"].value.externally_managed is True
    assert found["interpreter"].value.version == "3.12"
    assert [package.name for package in found["packages"].value] == ["numpy"]
    assert found["python_headers"].value.present is False


@given(st.text(max_size=400))
def test_any_text_is_a_metadata_and_a_version_file(text: str) -> None:
    assert all(isinstance(line, str) and "\n" not in line for line in interpreter.requirements(text))
    build = interpreter.parse_torch_version(text, "/x")
    assert build is None or build.version is not None


@given(st.text(alphabet=st.characters(blacklist_characters=',"\n\r', blacklist_categories=("Cs",)), min_size=1), st.integers(0, 10**9))
def test_record_lines_are_read_back(path: str, size: int) -> None:
    assert interpreter._record_fields(f"{path},sha256=x,{size}") == (path, "sha256=x", str(size))
    assert interpreter._record_fields(f'"{path},{path}",,') == (f"{path},{path}", "", "")
