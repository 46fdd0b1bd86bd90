"""Broken environments, built here from real ELF files: what is found with no import agrees with what the import then says.

Each is a virtual environment as pip leaves it (dist-info, RECORD, libraries with their NEEDED and symbols). The real wheels they stand for
are installed and compared by benchmarks/environments.py.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import shutil
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import CudaLibrary, EnvironmentVariable, Gpu, LoaderHit, Origin, Section, Sections, Snapshot, TorchBuild, known
from dsdoctor.findings import Diagnosis, Report, Severity, Status
from dsdoctor.matrix import Knowledge
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.target import locate

from .test_probe_libraries import SET_DEVICE, compile_library, needing, needs_cc

KNOWLEDGE = Knowledge()
PROBES = {name: importlib.import_module(f"dsdoctor.probes.{name}") for name in ("interpreter", "libraries", "torch")}
H200 = known((Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),))

TORCH = """
import ctypes, glob, os, types
from .version import __version__
here = os.path.dirname(__file__)
for name in ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so"):
    path = os.path.join(here, "lib", name)
    if os.path.exists(path):
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
def init():
    raise AssertionError("Torch not compiled with CUDA enabled")
cuda = types.SimpleNamespace(is_available=lambda: False, init=init, device_count=lambda: 0, is_initialized=lambda: False)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "")
"""
"""It opens its libraries as torch does, and knows of no GPU."""


class Environment:
    """A virtual environment with a torch, as pip would leave it."""

    def __init__(self, root: Path, torch: str, cuda: str | None, symbols: Mapping[str, str]) -> None:
        self.root = root
        self.prefix = root / "env"
        self.site = self.prefix / f"lib/python3.{sys.version_info[1]}/site-packages"
        self.site.mkdir(parents=True)
        (self.prefix / "bin").mkdir()
        base = Path(sys.base_prefix) / "bin"
        (self.prefix / "bin/python").symlink_to(base / f"python3.{sys.version_info[1]}")
        (self.prefix / "pyvenv.cfg").write_text(f"home = {base}\nversion = {sys.version.split()[0]}\n")
        version = f"__version__ = '{torch}'\ncuda = {cuda!r}\n"
        self.torch = {name: self.library(f"torch/lib/{name}.so", source) for name, source in symbols.items()}
        self.install("torch", torch, {"torch/__init__.py": TORCH, "torch/version.py": version})

    def library(self, place: str, source: str = "", *needed: Path, flags: tuple[str, ...] = ()) -> Path:
        """Compile a library into site-packages; its soname is its name."""
        return compile_library(self.site / place, source, *flags, *needing(*needed), soname=Path(place).name)

    def absent(self, name: str, source: str = "") -> Path:
        """A library to link against that is not there when the program runs."""
        return compile_library(self.root / "build" / name, source, soname=name)

    def install(self, name: str, version: str, files: Mapping[str, str | Path]) -> None:
        """Write the files of a package and its RECORD, over whatever is there."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        rows = []
        for place, content in files.items():
            path = self.site / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                if content != path:
                    shutil.copy(content, path)
            else:
                path.write_text(content)
            digest = urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            rows.append(f"{place},sha256={digest},{path.stat().st_size}\n")
        (self.site / info).mkdir()
        (self.site / info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        (self.site / info / "RECORD").write_text("".join(rows))

    def facts(self, *probes: str, **environment: str) -> dict[str, Section[Any]]:
        """What these probes find."""
        host = Host(environment=environment)
        scope = Scope(target=locate(host, str(self.prefix)))
        found: dict[str, Section[Any]] = {}
        for name in probes:
            found |= PROBES[name].collect(host, scope)
        return found

    def examined(self, **environment: str) -> Examined:
        """The judgement from files alone, and the one with what importing torch and the packages said."""
        files = self.facts("interpreter", "libraries", **environment)
        imports = self.facts("torch", **environment)
        variables = known(tuple(EnvironmentVariable(name=name, value=value) for name, value in environment.items()))
        return Examined(
            early=judge({**files, "environment": variables}), late=judge({**files, **imports, "environment": variables}), imports=imports
        )


@dataclass(frozen=True)
class Examined:
    """An environment, judged twice."""

    early: Report
    late: Report
    imports: Mapping[str, Section[Any]]

    @property
    def errors(self) -> list[str]:
        """What the imports that failed said."""
        section = self.imports["module_imports"]
        assert section.value is not None, section.why
        return [item.error for item in section.value if item.outcome != "imported"]


def judge(facts: Mapping[str, Section[Any]]) -> Report:
    areas = ("package", "torch", "cudnn", "nccl", "cuda", "attention", "system")
    checks = [check for check in CHECKS if check.area in areas]
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1",
        taken_at="2026-11-29T00:00:00Z",
        origin=Origin(kind="live", label="an environment"),
        sections=Sections(gpus=H200, **facts),
    )
    return diagnose(snapshot, KNOWLEDGE, checks, today=datetime.date(2026, 11, 29))


def finding(report: Report, check: str) -> Diagnosis:
    """The one finding of a check that is a cause."""
    (found,) = [item for item in report.diagnosis if item.check == check]
    return found


def all_that_is_said(found: Diagnosis) -> str:
    texts = [found.summary, found.cause, *(item.value for item in found.evidence), *(item.summary for item in found.explains)]
    return "\n".join(texts)


def cuda13(root: Path, *, cudart: bool = True) -> Environment:
    """torch 2.11.0 for CUDA 13 with its own CUDA runtime."""
    env = Environment(
        root, "2.11.0+cu130", "13.0", {"libc10": "int c10;", "libc10_cuda": "int _ZN3c104cuda9SetDeviceEa;", "libtorch_cuda": ""}
    )
    if cudart:
        runtime = env.library("nvidia/cu13/lib/libcudart.so.13")
        env.install("nvidia-cuda-runtime", "13.0.96", {"nvidia/cu13/lib/libcudart.so.13": runtime})
    return env


@needs_cc
def test_a_torch_for_the_cpu_on_a_node_with_a_gpu(tmp_path: Path) -> None:
    env = Environment(tmp_path, "2.13.0+cpu", None, {"libc10": "int c10;", "libtorch_cpu": "int at;"})
    found = env.examined()
    assert "2.13.0+cpu" in finding(found.early, "torch.cpu-only-build").summary
    runtime = found.imports["torch_runtime"].value
    assert (runtime.imported, runtime.cuda_available) == (True, False)
    assert finding(found.late, "torch.cpu-only-build").severity is Severity.ERROR


@needs_cc
def test_an_extension_that_was_built_for_another_torch(tmp_path: Path) -> None:
    env = cuda13(tmp_path)
    path = f"flash_attn_2_cuda.cpython-3{sys.version_info[1]}-x86_64-linux-gnu.so"
    extension = env.library(path, f"extern int {SET_DEVICE}; int *p = &{SET_DEVICE};", env.torch["libc10_cuda"])
    env.install("flash-attn", "2.8.3", {path: extension})
    found = env.examined()
    early = finding(found.early, "package.abi-mismatch")
    assert "c10::cuda::SetDevice of libc10_cuda" in early.summary
    assert found.errors
    for error in found.errors:
        assert f"undefined symbol: {SET_DEVICE}" in error
    late = finding(found.late, "package.abi-mismatch")
    assert (late.summary, late.remedies) == (early.summary, early.remedies)
    assert SET_DEVICE in all_that_is_said(early)


@needs_cc
def test_fa3_fwd_for_cuda_12_beside_cuda_13(tmp_path: Path) -> None:
    env = cuda13(tmp_path)
    extension = env.library("fa3_fwd/_C.abi3.so", "", env.absent("libcudart.so.12"), env.torch["libc10"])
    files = {"fa3_fwd/_C.abi3.so": extension, "fa3_fwd/__init__.py": "", "fa3_fwd_interface.py": "import torch, fa3_fwd._C"}
    env.install("fa3-fwd", "0.0.1", files)
    found = env.examined()
    early = finding(found.early, "package.abi-mismatch")
    assert "libcudart.so.12" in early.summary
    assert "built for CUDA 12; torch brings the libraries of CUDA 13" in early.cause
    assert {item.check for item in early.explains} == {"attention.fa3-unusable"}
    assert found.errors[0] == "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    late = finding(found.late, "package.abi-mismatch")
    assert "libcudart.so.12: cannot open shared object file" in all_that_is_said(late)
    assert (late.summary, late.remedies) == (early.summary, early.remedies)


@needs_cc
@pytest.mark.parametrize("winner", ["cu12", "cu13"])
def test_two_nccl_wheels_in_one_folder(tmp_path: Path, winner: str) -> None:
    env = cuda13(tmp_path, cudart=False)
    place = "nvidia/nccl/lib/libnccl.so.2"
    sources = {"cu12": "int ncclCommInitAll;", "cu13": "int ncclCommInitAll, ncclCommResume; int pad[4096] = {1};"}
    builds = {name: compile_library(tmp_path / name / "libnccl.so.2", source, soname="libnccl.so.2") for name, source in sources.items()}
    rpath = ("-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/nccl/lib",)
    env.library("torch/lib/libtorch_cuda.so", "extern int ncclCommResume; int *p = &ncclCommResume;", builds["cu13"], flags=rpath)
    for name in sorted(builds, key=lambda name: name == winner):
        env.install(f"nvidia-nccl-{name}", {"cu12": "2.27.5", "cu13": "2.28.9"}[name], {place: builds[name]})
    found = env.examined()
    (duplicate,) = [item for item in found.early.diagnosis if item.check == "nccl.duplicate"]
    error = found.imports["torch_runtime"].value.import_error
    if winner == "cu13":
        assert (duplicate.severity, "2.28.9 (nvidia-nccl-cu13)" in duplicate.summary, error) == (Severity.INFO, True, "")
        return
    assert "the one that is there now is 2.27.5 (nvidia-nccl-cu12)" in duplicate.summary
    assert any("nvidia-nccl-cu13==2.28.9" in command for remedy in duplicate.remedies for command in remedy.commands)
    assert "undefined symbol: ncclCommResume" in error
    assert "ncclCommResume" in all_that_is_said(finding(found.early, "package.abi-mismatch"))


@needs_cc
def test_sglang_kernel_and_sgl_kernel_overwrite_each_other(tmp_path: Path) -> None:
    env = cuda13(tmp_path)
    place = "sgl_kernel/sm90/common_ops.abi3.so"
    load = "import ctypes, os, torch\nctypes.CDLL(os.path.dirname(__file__) + '/sm90/common_ops.abi3.so')\n"
    new = env.library(place, "int of_the_newer_one[64] = {1};", env.site / "nvidia/cu13/lib/libcudart.so.13")
    env.install("sglang-kernel", "0.4.10", {place: new, "sgl_kernel/__init__.py": load + "new = True\n"})
    old = env.library(place, "", env.absent("libnvrtc.so.12"))
    env.install("sgl-kernel", "0.3.21", {place: old, "sgl_kernel/__init__.py": load})
    found = env.examined()
    early = finding(found.early, "package.file-conflict")
    assert early.subject == "sgl-kernel, sglang-kernel"
    assert "those on disk now are of sgl-kernel 0.3.21" in early.summary
    assert "package.abi-mismatch" in {item.check for item in early.explains}
    assert found.errors[0] == "OSError: libnvrtc.so.12: cannot open shared object file: No such file or directory"
    assert "libnvrtc.so.12" in all_that_is_said(early)


@needs_cc
def test_a_mixture_of_both_is_called_one(tmp_path: Path) -> None:
    env = cuda13(tmp_path)
    env.install("sglang-kernel", "0.4.10", {"sgl_kernel/a.py": "new = 1\n", "sgl_kernel/b.py": "new = 2\n"})
    env.install("sgl-kernel", "0.3.21", {"sgl_kernel/a.py": "old = 1\n", "sgl_kernel/b.py": "old = 2\n"})
    (env.site / "sgl_kernel/a.py").write_text("new = 1\n")
    found = finding(judge(env.facts("interpreter")), "package.file-conflict")
    assert found.summary.endswith("what is on disk now is a mixture of both.")
    assert found.severity is Severity.WARNING


def versioned(path: Path, versions: list[str]) -> Path:
    """A libstdc++.so.6 that provides these GLIBCXX versions, one symbol each."""
    source = "".join(f"int of_{version.replace('.', '_')};" for version in versions)
    nodes = "".join(f"GLIBCXX_{version} {{ global: of_{version.replace('.', '_')}; }};\n" for version in versions)
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_suffix(".map")
    script.write_text(nodes)
    return compile_library(path, source, f"-Wl,--version-script={script}", soname="libstdc++.so.6")


@needs_cc
def test_a_conda_libstdcxx_that_is_too_old(tmp_path: Path) -> None:
    env = cuda13(tmp_path)
    (env.prefix / "pyvenv.cfg").unlink()
    (env.prefix / "conda-meta").mkdir()
    (env.prefix / "conda-meta/history").write_text("")
    newer = versioned(tmp_path / "build/libstdc++.so.6", ["3.4.29", "3.4.30"])
    older = versioned(env.prefix / "lib/libstdc++.so.6", ["3.4.29"])
    extension = env.library("deep_gemm/_C.so", "extern int of_3_4_30; int *p = &of_3_4_30;", newer)
    env.install("deep-gemm", "2.5.0", {"deep_gemm/_C.so": extension, "deep_gemm/__init__.py": "from . import _C"})
    # conda's own python finds its lib by an RPATH; the one here is told by the variable.
    environment = {"LD_LIBRARY_PATH": str(older.parent), "PYTHONHOME": sys.base_prefix, "PYTHONPATH": str(env.site)}
    found = env.examined(**environment)
    early = finding(found.early, "system.libstdcxx-too-old")
    assert f"asks for GLIBCXX_3.4.30, and the libstdc++ that is loaded, {older}, provides 3.4.29 at most" in early.summary
    assert "(conda)" in all_that_is_said(early)
    error = found.errors[0]
    assert "version `GLIBCXX_3.4.30' not found" in error
    assert str(older) in error
    late = finding(found.late, "system.libstdcxx-too-old")
    assert "GLIBCXX_3.4.30' not found" in all_that_is_said(late)


@needs_cc
def test_what_the_package_itself_opens_first_is_not_missing(tmp_path: Path) -> None:
    """The header asks for a library that is in no search path; the package opens it by its path, and the import works."""
    env = cuda13(tmp_path)
    helper = env.library("tilelang/lib/extra/libhelper.so.1", "int helper;")
    extension = env.library("tilelang/lib/libtilelang.so", "extern int helper; int *p = &helper;", helper)
    code = (
        "import ctypes, os\nhere = os.path.dirname(__file__)\n"
        "ctypes.CDLL(here + '/lib/extra/libhelper.so.1', ctypes.RTLD_GLOBAL)\nctypes.CDLL(here + '/lib/libtilelang.so')\n"
    )
    env.install("tilelang", "0.1.12", {"tilelang/lib/libtilelang.so": extension, "tilelang/__init__.py": code})
    found = env.examined()
    assert finding(found.early, "package.abi-mismatch").subject == "tilelang 0.1.12"
    (imported,) = found.imports["module_imports"].value
    assert (imported.outcome, imported.loaded) == ("imported", (str(extension),))
    outcomes = {outcome.check: outcome.status for outcome in found.late.outcomes}
    assert (outcomes["package.abi-mismatch"], outcomes["package.import-fails"]) == (Status.PASS, Status.PASS)


@pytest.mark.parametrize(
    ("code", "outcome", "error"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed", "killed by signal 11"),
        ("import os; os._exit(0)", "crashed", "it ended the process"),
        ("import sys; sys.exit('no')", "failed", "SystemExit: no"),
        ("raise ImportError('flash_mla needs a GPU')", "failed", "ImportError: flash_mla needs a GPU"),
        ("import not_there", "failed", "ModuleNotFoundError: No module named 'not_there'"),
        ("print('x' * 100000)\ndef get_mla_metadata(): pass", "imported", ""),
    ],
)
def test_an_import_may_end_in_any_way(tmp_path: Path, code: str, outcome: str, error: str) -> None:
    env = Environment(tmp_path, "2.11.0+cu130", "13.0", {})
    env.install("flash-mla", "1.0.0", {"flash_mla/__init__.py": code})
    found = env.facts("torch")
    (imported,) = found["module_imports"].value
    assert (imported.package, imported.module, imported.outcome, imported.error) == ("flash-mla", "flash_mla", outcome, error)
    assert imported.callables == (("get_mla_metadata",) if outcome == "imported" else ())
    assert found["torch_runtime"].value.imported


def test_an_import_makes_no_caches_in_the_home_of_the_user(tmp_path: Path) -> None:
    env = Environment(tmp_path, "2.11.0+cu130", "13.0", {})
    home = tmp_path / "home"
    home.mkdir()
    env.install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": "import pathlib; (pathlib.Path.home() / '.cache').mkdir()"})
    (imported,) = env.facts("torch", HOME=str(home))["module_imports"].value
    assert (imported.outcome, list(home.iterdir())) == ("imported", [])


def test_a_package_that_would_compile_itself_is_not_imported(tmp_path: Path) -> None:
    env = Environment(tmp_path, "2.11.0+cu130", "13.0", {})
    env.install("deep-gemm", "2.5.0", {"deep_gemm/__init__.py": f"open({str(tmp_path / 'built')!r}, 'w')"})
    assert env.facts("torch")["module_imports"].value == ()
    assert not (tmp_path / "built").exists()


@needs_cc
def test_targets_in_a_fat_binary_are_read(tmp_path: Path) -> None:
    """The layout of published wheels: containers of entries, one a target, with padding between the containers."""
    entry = "0x{kind:04x},0,0x40,0,0x10,0,0,0, 0,0,0,0,0,0,{sm},0,0,0,0,0,{low},{high},0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0"
    entries = [(2, 80, 0x11, 0), (2, 90, 0x11, 0x10), (1, 120, 0x2011, 0x20)]
    words = [entry.format(kind=kind, sm=sm, low=low, high=high) for kind, sm, low, high in entries]
    size = len(entries) * 80
    data = f"0xed50,0xba55,1,16,{size},0,0,0,{','.join(words)},0,0,0,0"
    source = f'__attribute__((section(".nv_fatbin"))) unsigned short fat[] = {{{data}, {data}}};'
    path = compile_library(tmp_path / "kernels.so", source)
    elf, fatbin = (importlib.import_module(f"dsdoctor.probes.{name}") for name in ("elf", "fatbin"))
    with elf.Elf(Host(), str(path)) as library:
        assert fatbin.gpu_targets(library) == ("sm_80", "sm_90a", "compute_120f")
    with elf.Elf(Host(), str(compile_library(tmp_path / "plain.so"))) as library:
        assert fatbin.gpu_targets(library) == ()
    broken = path.read_bytes().replace(b"\x40\x00\x00\x00\x10", b"\x00\x00\x00\x00\x10")
    (tmp_path / "broken.so").write_bytes(broken)
    with elf.Elf(Host(), str(tmp_path / "broken.so")) as library, pytest.raises(elf.ElfError):
        fatbin.gpu_targets(library)


# --- what put a library there -----------------------------------------------------------------------------------------


def with_cudnn(root: Path) -> Environment:
    """torch with the cuDNN of its own wheel, 9.19.0: torch has an RPATH, cuDNN's front a RUNPATH, as in the published wheels."""
    env = cuda13(root, cudart=False)
    front = env.library("nvidia/cudnn/lib/libcudnn.so.9", flags=("-Wl,--enable-new-dtags,-rpath,$ORIGIN",))
    graph = env.library("nvidia/cudnn/lib/libcudnn_graph.so.9")
    env.install("nvidia-cudnn-cu13", "9.19.0.56", {str(path.relative_to(env.site)): path for path in (front, graph)})
    env.library("torch/lib/libtorch_cuda.so", "", front, flags=("-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cudnn/lib",))
    return env


def copy_of(folder: Path, version: str, *names: str) -> Path:
    """Copies of cuDNN of a release in a folder, with their links."""
    for name in names:
        compile_library(folder / f"{name}.so.{version}", soname=f"{name}.so.9")
        (folder / f"{name}.so.9").symlink_to(f"{name}.so.{version}")
    return folder


def only_cause(env: Environment, check: str, **environment: str) -> Diagnosis:
    variables = known(tuple(EnvironmentVariable(name=name, value=value) for name, value in environment.items()))
    return finding(judge({**env.facts("interpreter", "libraries", **environment), "environment": variables}), check)


def steps(found: Diagnosis) -> str:
    return "\n".join(text for remedy in found.remedies for text in (remedy.summary, *remedy.commands, *remedy.steps))


@needs_cc
def test_a_library_path_puts_other_parts_behind_the_front_of_the_wheel(tmp_path: Path) -> None:
    env = with_cudnn(tmp_path)
    folder = copy_of(tmp_path / "cudnn914", "9.14.0", "libcudnn", "libcudnn_graph")
    found = only_cause(env, "cudnn.mixed-sublibraries", LD_LIBRARY_PATH=f"/opt/other:{folder}")
    assert found.severity is Severity.ERROR
    assert f"{folder} in LD_LIBRARY_PATH puts {folder} before the wheel" in found.cause
    assert str(folder) in steps(found)


@needs_cc
@pytest.mark.parametrize(("version", "severity"), [("9.14.0", Severity.ERROR), ("9.24.0", Severity.WARNING)])
def test_a_preloaded_cudnn_is_an_error_only_when_it_is_older(tmp_path: Path, version: str, severity: Severity) -> None:
    env = with_cudnn(tmp_path)
    folder = copy_of(tmp_path / "preloaded", version, "libcudnn", "libcudnn_graph")
    found = only_cause(env, "cudnn.shadowed", LD_PRELOAD=f"{folder}/libcudnn.so.9", LD_LIBRARY_PATH=str(folder))
    assert (found.severity, f"LD_PRELOAD={folder}/libcudnn.so.9 puts it first" in found.cause) == (severity, True)


@needs_cc
def test_the_rpath_of_the_python_of_conda_comes_before_the_wheels(tmp_path: Path) -> None:
    env = cuda13(tmp_path, cudart=False)
    wheel = env.library("nvidia/nccl/lib/libnccl.so.2")
    env.install("nvidia-nccl-cu13", "2.28.9", {"nvidia/nccl/lib/libnccl.so.2": wheel})
    env.library("torch/lib/libtorch_cuda.so", "", wheel)
    (env.prefix / "conda-meta").mkdir()
    (env.prefix / "bin/python").unlink()
    compile_library(env.prefix / "bin/python", "", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib")
    compile_library(env.prefix / "lib/libnccl.so.2.27.5", soname="libnccl.so.2")
    (env.prefix / "lib/libnccl.so.2").symlink_to("libnccl.so.2.27.5")
    found = only_cause(env, "nccl.shadowed")
    assert found.cause.startswith("the RPATH of python, as conda builds it, puts it first.")
    assert "conda remove --force" in steps(found)


def test_a_folder_of_the_loader_s_configuration_is_named_with_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc/ld.so.conf.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n/opt/first\n")
    (folder / "cudnn.conf").write_text("# cuDNN of the site\n/opt/cudnn/lib/\n")
    loader = importlib.import_module("dsdoctor.sources.loader")
    assert loader.configuration(Host(root=str(tmp_path))) == {
        "/opt/cudnn/lib": "/etc/ld.so.conf.d/cudnn.conf",
        "/opt/first": "/etc/ld.so.conf",
    }


@pytest.mark.parametrize(
    ("via", "configured_by", "said", "done"),
    [
        ("ld.so.cache", "/etc/ld.so.conf.d/cudnn.conf", "/etc/ld.so.conf.d/cudnn.conf (read by ldconfig) puts it first", "run ldconfig"),
        ("ld.so.preload", "", "/etc/ld.so.preload puts it first", ""),
        ("default-directory", "", "the configuration of the system's loader (ldconfig) puts it first", "run ldconfig"),
    ],
)
def test_what_the_system_put_first_is_named(via: str, configured_by: str, said: str, done: str) -> None:
    own = CudaLibrary(family="cudnn", soname="libcudnn.so.9", path="/s/nvidia/cudnn/lib/libcudnn.so.9", version="9.19.0.56", origin="wheel")
    other = CudaLibrary(family="cudnn", soname="libcudnn.so.9", path="/opt/cudnn/lib/libcudnn.so.9.14.0", version="9.14.0", origin="system")
    hit = LoaderHit(family="cudnn", soname="libcudnn.so.9", path=other.path, via=via, version="9.14.0", configured_by=configured_by)
    facts = {
        "cuda_libraries": known((own, other)),
        "loader_hits": known((hit,)),
        "torch_build": known(TorchBuild(version="2.11.0", cuda="13.0")),
    }
    found = finding(judge(facts), "cudnn.shadowed")
    assert said in found.cause
    assert done in steps(found)
