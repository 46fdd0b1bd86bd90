"""What torch says in a child that may crash, hang or answer nonsense: with packages named torch made for the purpose."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import CudaLibrary, Section, State
from dsdoctor.plain import to_plain
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.target import locate

torch = importlib.import_module("dsdoctor.probes.torch")

WORKING = """
import types, warnings
version = types.SimpleNamespace(cuda="13.0")
def is_available():
    warnings.warn("CUDA initialization: Error 803: system has unsupported display driver / cuda driver combination")
    return False
def init():
    raise RuntimeError("No CUDA GPUs are available")
cuda = types.SimpleNamespace(
    is_available=is_available, init=init, device_count=lambda: 2, is_initialized=lambda: False,
    nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)))
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_90 sm_100")
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91900))
"""


@pytest.fixture(scope="module")
def plain_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


@pytest.fixture
def env(plain_env: Path) -> Path:
    package = site(plain_env) / "torch"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").unlink(missing_ok=True)
    return plain_env


def site(env: Path) -> Path:
    return env / f"lib/python3.{sys.version_info[1]}/site-packages"


def collect(env: Path, code: str | None = None, deadline_s: float = 30.0) -> dict[str, Section[Any]]:
    if code is not None:
        (site(env) / "torch/__init__.py").write_text(code)
    host = Host(environment={"PATH": os.environ["PATH"]})
    sections = torch.collect(host, Scope(target=locate(host, str(env)), deadline_s=deadline_s))
    assert set(sections) == {"torch_runtime", "mapped_libraries", "module_imports"}
    assert read_sections({name: to_plain(section) for name, section in sections.items()}) == sections
    return dict(sections)


def test_every_answer_of_a_torch_without_a_usable_driver(env: Path) -> None:
    found = collect(env, WORKING)
    runtime = found["torch_runtime"].value
    assert runtime.imported
    assert runtime.cuda_available is False
    assert runtime.cuda_error == "No CUDA GPUs are available"
    assert runtime.cuda_error_code == 803
    assert runtime.device_count == 2
    assert runtime.arch_list == ("sm_90", "sm_100")
    assert (runtime.cudnn_version, runtime.nccl_compiled) == ("9.19.0", "2.28.9")
    assert runtime.import_s is not None
    assert found["mapped_libraries"].value == ()
    assert found["torch_runtime"].found_via == torch.FOUND_VIA


def test_bytecode_is_not_written_into_the_patient(env: Path) -> None:
    collect(env, WORKING)
    assert not list(site(env).rglob("*.pyc"))


@pytest.mark.parametrize(
    "code",
    ["print('x' * 100000)\nraise ImportError('libtorch_cuda.so: undefined symbol: ncclCommResume')", "1/0", "raise SystemExit(3)", "def"],
)
def test_import_that_raises(env: Path, code: str) -> None:
    found = collect(env, code)
    runtime = found["torch_runtime"].value
    assert runtime.imported is False
    assert runtime.import_error.startswith(
        ("ImportError: libtorch_cuda.so: undefined symbol", "ZeroDivisionError", "SystemExit", "SyntaxError")
    )
    assert found["mapped_libraries"].state is State.KNOWN


def test_import_that_crashes(env: Path) -> None:
    found = collect(env, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert found["torch_runtime"].value.import_error == "killed by SIGSEGV while importing torch"
    assert found["torch_runtime"].value.imported is False
    assert found["mapped_libraries"].state is State.UNREADABLE


def test_import_that_leaves_without_a_word(env: Path) -> None:
    runtime = collect(env, "import os\nos._exit(0)\n")["torch_runtime"].value
    assert runtime.import_error == "ended with status 0 while importing torch"


def test_import_that_hangs(env: Path) -> None:
    runtime = collect(env, "import threading\nthreading.Event().wait()\n", deadline_s=0.5)["torch_runtime"].value
    assert runtime.imported is False
    assert runtime.import_error.endswith("while importing torch")
    assert "no answer within" in runtime.import_error


@pytest.mark.parametrize(
    ("broken", "stage", "field"),
    [
        ("cuda.is_available", "asking whether CUDA is available", "cuda_error"),
        ("cuda.init", "initialising CUDA", "cuda_error"),
        ("backends.cudnn.version", "loading cuDNN", "cudnn_error"),
    ],
)
def test_crash_later_keeps_what_was_learnt(env: Path, broken: str, stage: str, field: str) -> None:
    found = collect(env, WORKING + f"import os\n{broken} = lambda: os.kill(os.getpid(), 11)\n")
    runtime = found["torch_runtime"].value
    assert runtime.imported
    assert runtime.arch_list == ("sm_90", "sm_100")
    assert getattr(runtime, field) == f"killed by SIGSEGV while {stage}"
    assert stage in found["torch_runtime"].found_via
    assert found["mapped_libraries"].state is State.UNREADABLE
    assert stage in found["mapped_libraries"].why


def test_hang_in_the_driver_keeps_what_was_learnt(env: Path) -> None:
    code = WORKING + "import threading\ncuda.init = threading.Event().wait\n"
    runtime = collect(env, code, deadline_s=0.5)["torch_runtime"].value
    assert runtime.imported
    assert runtime.cuda_error.endswith("while initialising CUDA")


def test_cudnn_that_does_not_fit_is_quoted(env: Path) -> None:
    text = "cuDNN version incompatibility: PyTorch was compiled  against (9, 19, 0) but found runtime version (9, 14, 0)."
    runtime = collect(env, WORKING + f"def version(): raise RuntimeError({text!r})\nbackends.cudnn.version = version\n")[
        "torch_runtime"
    ].value
    assert runtime.cudnn_error == " ".join(text.split())
    assert runtime.cudnn_version == ""


def test_first_operation_that_fails(env: Path) -> None:
    code = WORKING + (
        "def ones(*a, **k): raise RuntimeError('CUDA error: no kernel image is available for execution on the device')\n"
        "cuda.init = lambda: None\ncuda.is_initialized = lambda: True\ncuda.get_device_capability = lambda index: (12, index)\n"
    )
    runtime = collect(env, code)["torch_runtime"].value
    assert runtime.operation_error == "CUDA error: no kernel image is available for execution on the device"
    assert runtime.device_capabilities == ("12.0", "12.1")


def test_empty_package_named_torch(env: Path) -> None:
    runtime = collect(env, "")["torch_runtime"].value
    assert runtime.imported
    assert "cuda" in runtime.cuda_error


def test_files_beside_the_caller_shadow_nothing(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("packaging", "json", "warnings", "torch", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert collect(env, WORKING)["torch_runtime"].value.imported


def test_no_torch_starts_no_child(plain_env: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (env / "bin/python").unlink()
    (env / "bin/python").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (env / "bin/python").chmod(0o755)
    assert {section.state for section in collect(env).values()} == {State.ABSENT}
    assert not (tmp_path / "started").exists()


def test_remains_of_torch_are_no_torch(tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (site(env) / "torch-2.11.0.dist-info").mkdir()
    assert {section.state for section in collect(env).values()} == {State.ABSENT}


def test_interpreter_that_does_not_start(env: Path, tmp_path: Path) -> None:
    host = Host(environment={"PATH": ""})
    target = locate(host, str(env))
    broken = type(target)(path=str(tmp_path / "gone"), chosen_by="own", prefix=target.prefix, site_packages=target.site_packages)
    sections = torch.collect(host, Scope(target=broken))
    assert sections["torch_runtime"].state is State.UNREADABLE
    assert "gone" in sections["torch_runtime"].why


def test_no_target_is_not_asked() -> None:
    assert {section.state for section in torch.collect(Host(), Scope(target=None)).values()} == {State.NOT_ASKED}


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "imported",
    "import_error",
    "cuda_available",
    "device_count",
    "arch_list",
    "mapped",
    "versions",
    "cuda_warnings",
    "import_s",
    "cudnn_version",
]


@given(facts=st.dictionaries(st.sampled_from(FIELDS), ANSWERS), garbage=st.text(max_size=50))
def test_any_answer_gives_sections(facts: dict[str, Any], garbage: str) -> None:
    text = "\n".join([garbage, '{"stage": "loading cuDNN"}', json.dumps({"facts": facts}), '{"stage": 3}', "[" * 100])
    stage, said = torch.read_answer(text)
    assert stage == "loading cuDNN"
    sections = {"torch_runtime": torch.runtime(said, stage, "killed"), "mapped_libraries": torch.mapped_libraries(said, "killed", {})}
    assert read_sections({name: to_plain(section) for name, section in sections.items()}) == sections
    assert sections["torch_runtime"].value.cudnn_error == "killed"


def test_error_codes_are_found_where_torch_names_them() -> None:
    recorded = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before … Error 34: CUDA driver is a stub library"
    )
    assert torch.error_code([recorded]) == 34
    assert torch.error_code(["CUDA initialization: Error 803: system has unsupported …"]) == 803
    assert torch.error_code(["No CUDA GPUs are available", ""]) is None


def test_version_of_a_mapped_library() -> None:
    facts = {"mapped": ["/s/libcudnn.so.9.14.0", "/v/nvidia/nccl/lib/libnccl.so.2", "/v/libcudart.so.13", "/lib/libc.so.6", "/d/libcuda.so.1"],
             "versions": {"/v/nvidia/nccl/lib/libnccl.so.2": "2.29.7", "/v/libcudart.so.13": "13.0"}}  # fmt: skip
    versions = {"/v/nvidia/nccl/lib/libnccl.so.2": "2.28.9", "/v/libcudart.so.13": "13.0.96"}
    owned = {path: CudaLibrary(family="", soname="", path=path, version=version, origin="wheel") for path, version in versions.items()}
    rows = torch.mapped_libraries(facts, "", owned).value
    assert [(row.family, row.soname, row.version) for row in rows] == [
        ("cudnn", "libcudnn.so.9", "9.14.0"),
        ("nccl", "libnccl.so.2", "2.29.7"),  # the file in the wheel's place is not the wheel's
        ("cudart", "libcudart.so.13", "13.0.96"),
        ("cuda", "libcuda.so.1", ""),
    ]
    assert [row.origin for row in rows] == ["", "wheel", "wheel", "driver"]


def test_how_a_child_ended() -> None:
    assert torch.how_it_ended(Ended(outcome="exited", code=1, stderr="a: b")) == "ended with status 1"
    assert torch.how_it_ended(Ended(outcome="timed_out", elapsed_s=5.2)) == "no answer within 5 s"


@pytest.mark.skipif("DSDOCTOR_TORCH_PYTHON" not in os.environ, reason="DSDOCTOR_TORCH_PYTHON names no interpreter with torch")
def test_real_torch() -> None:
    found = collect(Path(os.environ["DSDOCTOR_TORCH_PYTHON"]), deadline_s=120)
    runtime = found["torch_runtime"].value
    assert runtime.imported
    assert runtime.import_error == ""
    assert runtime.cuda_available in (True, False)
    assert found["mapped_libraries"].state is State.KNOWN
