"""CUDA libraries, what the loader would take of them, and what compiled extensions miss: on small ELF files compiled here."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.facts import Section, State
from dsdoctor.plain import to_plain
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope, Target

libraries = importlib.import_module("dsdoctor.probes.libraries")
elf = importlib.import_module("dsdoctor.probes.elf")

CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None or sys.platform != "linux", reason="needs a C compiler")

SET_DEVICE = "_ZN3c104cuda9SetDeviceEi"


def compile_library(path: Path, source: str = "", *flags: str, soname: str = "") -> Path:
    """A small shared library; undefined symbols are allowed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = [f"-Wl,-soname,{soname}"] if soname else []
    subprocess.run(
        [
            str(CC),
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-x",
            "c",
            "-",
            "-o",
            str(path),
            "-Wl,--hash-style=gnu",
            "-Wl,--no-as-needed",
            *name,
            *flags,
        ],
        input=source or "int dsdoctor_test_symbol;",
        text=True,
        check=True,
        capture_output=True,
    )
    return path


def needing(*paths: Path) -> list[str]:
    """Linker flags that put the sonames of these libraries into NEEDED."""
    return ["-x", "none", *(str(path) for path in paths)]


class Env:
    """A site-packages tree with a torch, and a system library directory."""

    def __init__(self, root: Path) -> None:
        self.site = root / "env/lib/python3.12/site-packages"
        self.torch = self.site / "torch/lib"
        self.system = root / "system"
        self.system.mkdir(parents=True)
        self.torch.mkdir(parents=True)

    def target(self) -> Target:
        prefix = str(self.site.parents[2])
        return Target(path=f"{prefix}/bin/python", chosen_by="--python", prefix=prefix, base_prefix="/usr", site_packages=(str(self.site),))

    def collect(self, **environment: str) -> dict[str, Section[Any]]:
        sections = libraries.collect(Host(environment=environment), Scope(target=self.target()))
        assert read_sections({name: to_plain(section) for name, section in sections.items()}) == sections
        return dict(sections)

    def own(self, name: str, version: str, *paths: Path, size: int | None = None) -> None:
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        rows = [f"{path.relative_to(self.site)},sha256=x,{path.stat().st_size if size is None else size}\n" for path in paths]
        (info / "RECORD").write_text("".join(rows))
        (info / "METADATA").write_text("")


@pytest.fixture
def env(tmp_path: Path) -> Env:
    return Env(tmp_path)


def only(rows: Iterable[Any], **wanted: str) -> Any:
    (row,) = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    return row


# --- ELF --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_symbols(tmp_path_factory: pytest.TempPathFactory) -> Path:
    defined = "\n".join(f"int symbol_{number}_{number * 7919 % 1000};" for number in range(3000))
    wanted = "\n".join(f"extern int wanted_{number}; int *p{number} = &wanted_{number};" for number in range(50))
    weak = "extern int maybe __attribute__((weak)); int *q = &maybe;"
    return compile_library(tmp_path_factory.mktemp("elf") / "libmany.so", f"{defined}\n{wanted}\n{weak}", soname="libmany.so.1")


@functools.cache
def full_symbol_table(path: str) -> tuple[set[str], set[str]]:
    """Defined and undefined strong dynamic symbols in the words of pyelftools."""
    from elftools.elf.elffile import ELFFile

    defined, undefined = set(), set()
    with open(path, "rb") as file:
        for symbol in ELFFile(file).get_section_by_name(".dynsym").iter_symbols():
            if not symbol.name:
                continue
            if symbol["st_shndx"] == "SHN_UNDEF":
                if symbol["st_info"]["bind"] != "STB_WEAK":
                    undefined.add(symbol.name)
            else:
                defined.add(symbol.name)
    return defined, undefined


def system_libraries() -> list[str]:
    hits = [libraries.search(Host(environment={}), name, {}) for name in ("libc.so.6", "libstdc++.so.6", "libm.so.6")]
    return [found[0].path for found in hits if found]


@needs_cc
def test_gnu_hash_lookup_agrees_with_the_full_symbol_table(many_symbols: Path) -> None:
    for path in [str(many_symbols), *system_libraries()]:
        defined, undefined = full_symbol_table(path)
        with elf.Elf(Host(environment={}), path) as library:
            assert {name for name in defined if not library.exports(name)} == set()
            assert set(library.undefined()) == undefined
            assert not any(library.exports(name) for name in undefined - defined)
    assert undefined is not None


@needs_cc
@settings(max_examples=300, deadline=None)
@given(name=st.one_of(st.text(max_size=30), st.integers(0, 4000).map(lambda number: f"symbol_{number}_{number * 7919 % 1000}")))
def test_any_name_can_be_looked_up(many_symbols: Path, name: str) -> None:
    defined, _ = full_symbol_table(str(many_symbols))
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    with elf.Elf(Host(environment={}), str(many_symbols)) as library:
        assert library.exports(name) == (name in defined)


@needs_cc
def test_symbols_are_found_without_a_gnu_hash_table(tmp_path: Path) -> None:
    path = compile_library(tmp_path / "libold.so", "int here; extern int gone; int *p = &gone;", "-Wl,--hash-style=sysv")
    with elf.Elf(Host(environment={}), str(path)) as library:
        assert library.exports("here")
        assert not library.exports("gone")
        assert list(library.undefined()) == ["gone"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    other = compile_library(directory / "libother.so", soname="libother.so.1")
    source = "int here; extern int gone; int *p = &gone;"
    return compile_library(directory / "libsmall.so", source, *needing(other), soname="libsmall.so.1")


@needs_cc
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_files_are_errors_with_a_name(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.one_of(st.integers(0, 1023), st.integers(0, len(content) - 1)))
        content[place % len(content)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = small.with_name("damaged.so")
    path.write_bytes(bytes(content[:cut]))
    try:
        with elf.Elf(Host(environment={}), str(path)) as library:
            for ask in (
                lambda: library.needed, lambda: library.soname, lambda: library.runpath, lambda: list(library.undefined()),
                lambda: library.exports("here"), library.versions_needed, library.versions_defined,
            ):  # fmt: skip
                try:
                    ask()
                except elf.ElfError:
                    continue
    except elf.ElfError:
        return


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(60), b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(20)])
def test_other_files_are_no_elf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.so").write_bytes(content)
    with pytest.raises(elf.ElfError):
        elf.Elf(Host(environment={}), str(tmp_path / "x.so"))
    with pytest.raises(OSError, match="x"):
        elf.Elf(Host(environment={}), str(tmp_path / "gone_x.so"))


def test_highest_version_is_a_number_not_a_text() -> None:
    versions = ["GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3.9"]
    assert elf.highest(versions, "GLIBC") == "2.34"
    assert elf.highest(versions, "GLIBCXX") == "3.4.30"
    assert elf.highest([], "GLIBC") == ""


# --- copies on disk ---------------------------------------------------------------------------------------------------


def recorded(root: Path, *paths: str) -> Host:
    for path in paths:
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_bytes(b"12345")
    return Host(root=str(root), environment={"LD_LIBRARY_PATH": "/apps/cudnn/lib:/apps/cuda-12.8/lib64"})


SITE = "/opt/env/lib/python3.12/site-packages"
TARGET = Target(path="/opt/env/bin/python", chosen_by="--python", prefix="/opt/env", base_prefix="/usr", site_packages=(SITE,))


def test_copies_carry_their_origin_and_version(tmp_path: Path) -> None:
    host = recorded(
        tmp_path,
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
        f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9",
        f"{SITE}/nvidia/cu13/lib/libcublasLt.so.13",
        f"{SITE}/torchvision.libs/libcudart.faf08d9a.so.13",
        "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13.0.96",
        "/usr/lib64/libcudnn.so.9.14.0",
        "/usr/lib64/libnccl.so.2.28.3",
        "/usr/lib64/libnvrtc-builtins.so.13.0",
        "/usr/lib64/libcupti.so.13",
        "/apps/cudnn/lib/libcudnn.so.8.0.3",
        "/apps/cuda-12.8/lib64/libnvJitLink.so.12.8.93",
    )
    (tmp_path / "usr/lib64/libcudnn.so.9").symlink_to("libcudnn.so.9.14.0")
    info = tmp_path / SITE.lstrip("/") / "nvidia_cudnn_cu13-9.19.0.56.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("nvidia/cudnn/lib/libcudnn.so.9,sha256=x,5\nnvidia/cudnn/lib/libcudnn_graph.so.9,sha256=x,999\n")
    rows = libraries.collect(host, Scope(target=TARGET))["cuda_libraries"].value
    found = {row.path: (row.family, row.soname, row.version, row.origin, row.package, row.cuda_major) for row in rows}
    assert found == {
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": ("cudnn", "libcudnn.so.9", "9.19.0.56", "wheel", "nvidia-cudnn-cu13", 13),
        # Its size is not the recorded one: somebody put another file there.
        f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9": ("cudnn", "libcudnn_graph.so.9", "", "wheel", "nvidia-cudnn-cu13", 13),
        f"{SITE}/nvidia/cu13/lib/libcublasLt.so.13": ("cublaslt", "libcublasLt.so.13", "", "wheel", "", 13),
        f"{SITE}/torchvision.libs/libcudart.faf08d9a.so.13": ("cudart", "libcudart.faf08d9a.so.13", "", "bundled", "torchvision", 13),
        "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13.0.96": ("cudart", "libcudart.so.13", "13.0.96", "toolkit", "", 13),
        "/usr/lib64/libcudnn.so.9.14.0": ("cudnn", "libcudnn.so.9", "9.14.0", "system", "", None),
        "/usr/lib64/libnccl.so.2.28.3": ("nccl", "libnccl.so.2", "2.28.3", "system", "", None),
        "/apps/cudnn/lib/libcudnn.so.8.0.3": ("cudnn", "libcudnn.so.8", "8.0.3", "system", "", None),
        "/apps/cuda-12.8/lib64/libnvJitLink.so.12.8.93": ("nvjitlink", "libnvJitLink.so.12", "12.8.93", "toolkit", "", 12),
    }


def test_debian_package_of_a_system_library(tmp_path: Path) -> None:
    host = recorded(tmp_path, "/usr/lib64/libcudnn_ops.so.9.14.0")
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "libcudnn9-dev-cuda-13.list").write_text("/usr/include/cudnn.h\n")
    (lists / "libcudnn9-cuda-13:amd64.list").write_text("/usr/lib64/libcudnn_ops.so.9.14.0\n")
    (row,) = libraries.collect(host, Scope(target=TARGET))["cuda_libraries"].value
    assert (row.package, row.cuda_major) == ("libcudnn9-cuda-13", 13)


@pytest.mark.parametrize(("size_of", "owner"), [("nvidia_nccl_cu12", "2.29.3"), ("nvidia_nccl_cu13", "2.29.7"), ("", "")])
def test_of_two_wheels_that_claim_a_library_the_recorded_size_decides(tmp_path: Path, size_of: str, owner: str) -> None:
    host = recorded(tmp_path, f"{SITE}/nvidia/nccl/lib/libnccl.so.2")
    for name, version in (("nvidia_nccl_cu12", "2.29.3"), ("nvidia_nccl_cu13", "2.29.7")):
        info = tmp_path / SITE.lstrip("/") / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"nvidia/nccl/lib/libnccl.so.2,sha256=x,{5 if name == size_of else 77}\n")
    (row,) = libraries.collect(host, Scope(target=TARGET))["cuda_libraries"].value
    assert row.version == owner
    assert row.package == (size_of.replace("_", "-") or "nvidia-nccl-cu12, nvidia-nccl-cu13")


@given(st.text(max_size=60))
def test_any_file_name_has_a_family_or_none(name: str) -> None:
    assert libraries.family_of(name) in {
        "", "cudart", "cublas", "cublaslt", "cudnn", "nccl", "nvshmem", "nvrtc", "cusparselt", "cusparse", "nvjitlink",
    }  # fmt: skip
    assert isinstance(libraries.version_in_name(name) + libraries.soname_in_name(name), str)


# --- what the loader would take ---------------------------------------------------------------------------------------


def really_mapped(library: Path, environment: dict[str, str]) -> set[str]:
    """Every file that the real loader maps when it opens the library."""
    script = "import ctypes,sys;ctypes.CDLL(sys.argv[1]);print(open('/proc/self/maps').read())"
    said = subprocess.run([sys.executable, "-c", script, str(library)], env=environment, capture_output=True, text=True, check=True).stdout
    return {line.split(None, 5)[5] for line in said.splitlines() if line.count("/") > 1}


@needs_cc
@pytest.mark.parametrize(
    ("dtags", "via", "place"), [("--disable-new-dtags", "RPATH", "wheel"), ("--enable-new-dtags", "LD_LIBRARY_PATH", "system")]
)
def test_rpath_beats_ld_library_path_and_runpath_does_not(env: Env, dtags: str, via: str, place: str) -> None:
    wheel = compile_library(env.site / "nvidia/cu13/lib/libcudart.so.13", soname="libcudart.so.13")
    shutil.copy(wheel, env.system / "libcudart.so.13.0.96")
    (env.system / "libcudart.so.13").symlink_to("libcudart.so.13.0.96")
    env.own("nvidia_cuda_runtime", "13.0.88", wheel)
    asker = compile_library(env.torch / "libtorch_global_deps.so", "", f"-Wl,{dtags},-rpath,$ORIGIN/../../nvidia/cu13/lib", *needing(wheel))
    environment = {"LD_LIBRARY_PATH": str(env.system)}
    (hit,) = env.collect(**environment)["loader_hits"].value
    assert (hit.family, hit.via, hit.asked_by) == ("cudart", via, "libtorch_global_deps.so")
    assert (hit.path, hit.version) == {
        "wheel": (str(wheel), "13.0.88"),
        "system": (str(env.system / "libcudart.so.13.0.96"), "13.0.96"),
    }[place]
    assert hit.path in really_mapped(asker, environment)


@needs_cc
def test_cudnn_front_from_the_wheel_and_its_sub_library_from_the_system(env: Env) -> None:
    """What an H200 node did with a system cuDNN in LD_LIBRARY_PATH: torch has an RPATH, libcudnn.so.9 has a RUNPATH."""
    front = compile_library(
        env.site / "nvidia/cudnn/lib/libcudnn.so.9", "", "-Wl,--enable-new-dtags,-rpath,$ORIGIN", soname="libcudnn.so.9"
    )
    graph = compile_library(env.site / "nvidia/cudnn/lib/libcudnn_graph.so.9", soname="libcudnn_graph.so.9")
    for library in (front, graph):
        shutil.copy(library, env.system)
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cudnn/lib"
    compile_library(env.torch / "libtorch_cuda.so", "", rpath, *needing(front))
    hits = {hit.soname: (hit.path, hit.via, hit.asked_by) for hit in env.collect(LD_LIBRARY_PATH=str(env.system))["loader_hits"].value}
    assert hits == {
        "libcudnn.so.9": (str(front), "RPATH", "libtorch_cuda.so"),
        "libcudnn_graph.so.9": (str(env.system / "libcudnn_graph.so.9"), "LD_LIBRARY_PATH", "libcudnn.so.9"),
    }
    alone = {hit.soname: hit.via for hit in env.collect()["loader_hits"].value}
    assert alone == {"libcudnn.so.9": "RPATH", "libcudnn_graph.so.9": "RUNPATH"}


@needs_cc
def test_preloaded_library_answers_to_its_inner_name(env: Env) -> None:
    wheel = compile_library(env.site / "nvidia/nccl/lib/libnccl.so.2", soname="libnccl.so.2")
    preloaded = compile_library(env.system / "my-nccl.so", soname="libnccl.so.2")
    compile_library(env.torch / "libtorch_cuda.so", "", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/nccl/lib", *needing(wheel))
    (hit,) = env.collect(LD_PRELOAD=f"/nowhere.so {preloaded}")["loader_hits"].value
    assert (hit.path, hit.via) == (str(preloaded), "LD_PRELOAD")


@needs_cc
def test_library_that_only_torch_itself_would_open(env: Env) -> None:
    wheel = compile_library(env.site / "nvidia/nccl/lib/libnccl.so.2", soname="libnccl.so.2")
    compile_library(env.torch / "libtorch_cuda.so", "", *needing(wheel))
    (hit,) = env.collect()["loader_hits"].value
    assert (hit.path, hit.via) == (str(wheel), "site-packages")


def test_no_torch_and_no_target(env: Env) -> None:
    shutil.rmtree(env.site / "torch")
    found = env.collect()
    assert found["loader_hits"].state is State.ABSENT
    assert found["extensions"].value == ()
    nobody = libraries.collect(Host(environment={}), Scope(target=None))
    assert (nobody["extensions"].state, nobody["loader_hits"].state) == (State.NOT_ASKED, State.NOT_ASKED)
    assert nobody["cuda_libraries"].state is State.KNOWN


# --- extensions -------------------------------------------------------------------------------------------------------


def flash_attn(env: Env, *needed: Path, source: str = "") -> Path:
    flash = f"extern int {SET_DEVICE}; int *p = &{SET_DEVICE};"
    path = compile_library(env.site / "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", source or flash, *needing(*needed))
    env.own("flash_attn", "2.5.7", path)
    return path


@needs_cc
def test_extension_built_against_another_torch_misses_a_symbol(env: Env) -> None:
    c10 = compile_library(env.torch / "libc10.so", "int _ZN3c104cuda9SetDeviceEa;", soname="libc10.so")
    flash_attn(env, c10)
    row = only(env.collect()["extensions"].value, package="flash-attn")
    (missing,) = row.missing_symbols
    assert (missing.symbol, missing.provider, missing.readable) == (SET_DEVICE, "libc10_cuda", "c10::cuda::SetDevice")
    assert row.package_version == "2.5.7"
    assert row.needed == ("libc10.so",)
    assert row.missing_libraries == ()


@needs_cc
def test_extension_that_fits_misses_nothing(env: Env) -> None:
    c10 = compile_library(env.torch / "libc10_cuda.so", f"int {SET_DEVICE};", soname="libc10_cuda.so")
    flash_attn(env, c10)
    row = only(env.collect()["extensions"].value, package="flash-attn")
    assert (row.missing_symbols, row.missing_libraries) == ((), ())


@needs_cc
def test_extension_for_cuda_on_a_cpu_torch_misses_its_libraries(env: Env, tmp_path: Path) -> None:
    gone = [compile_library(tmp_path / name, soname=name) for name in ("libtorch_cuda.so", "libcudart.so.12", "libtorch_cpu.so")]
    compile_library(env.torch / "libtorch_cpu.so", soname="libtorch_cpu.so")
    flash_attn(env, *gone, source="extern int weak __attribute__((weak)); int *p = &weak;")
    for path in gone:
        path.unlink()
    row = only(env.collect()["extensions"].value, package="flash-attn")
    assert row.missing_libraries == ("libtorch_cuda.so", "libcudart.so.12")
    assert row.missing_symbols == ()
    assert row.cuda_major == 12


@needs_cc
def test_torch_itself_misses_a_symbol_of_an_older_nccl(env: Env) -> None:
    nccl = compile_library(env.site / "nvidia/nccl/lib/libnccl.so.2", "int ncclCommInitAll;", soname="libnccl.so.2")
    source = "extern int ncclCommResume, ncclCommInitAll, _ZN2at6TensorE; int *a=&ncclCommResume, *b=&ncclCommInitAll, *c=&_ZN2at6TensorE;"
    compile_library(env.torch / "libtorch_cuda.so", source, "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib", *needing(nccl))
    env.own("nvidia_nccl_cu13", "2.29.7", size=1)
    row = only(env.collect()["extensions"].value, package="torch")
    assert [(missing.symbol, missing.provider) for missing in row.missing_symbols] == [("ncclCommResume", "libnccl")]


@needs_cc
def test_nothing_is_called_missing_where_the_loader_cannot_be_asked(env: Env, tmp_path: Path) -> None:
    gone = compile_library(tmp_path / "libsomething.so.1", soname="libsomething.so.1")
    flash_attn(env, gone)
    target = env.target()
    site = str(env.site).removeprefix(str(tmp_path))
    moved = Target(path="/env/bin/python", chosen_by="--python", prefix="/env", site_packages=(site,))
    host = Host(root=str(tmp_path), environment={})
    row = only(libraries.collect(host, Scope(target=moved))["extensions"].value, package="flash-attn")
    assert row.missing_libraries == ()
    assert target.site_packages[0].endswith(site)


@needs_cc
def test_garbage_among_extensions_is_passed_over(env: Env) -> None:
    for name in ("a.so", "b.abi3.so"):
        (env.site / "vllm").mkdir(exist_ok=True)
        (env.site / "vllm" / name).write_bytes(b"\x7fELF\x02\x01garbage")
    compile_library(env.site / "vllm/_C.abi3.so", "int PyInit__C;")
    assert [os.path.basename(row.path) for row in env.collect()["extensions"].value] == ["_C.abi3.so"]


@pytest.mark.parametrize(
    ("symbol", "name", "provider"),
    [
        (SET_DEVICE, "c10::cuda::SetDevice", "libc10_cuda"),
        ("_ZNK2at10TensorBase4sizeEl", "at::TensorBase::size", "libtorch_cpu"),
        ("_ZTVN5torch8autograd4NodeE", "torch::autograd::Node", "libtorch_cpu"),
        ("_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringE", "c10::Error", "libc10"),
        ("_ZN2at4cuda24getCurrentDeviceProperties", "", "libtorch_cuda"),
        ("aoti_torch_cuda_guard", "", "libtorch_cuda"),
        ("_Z16THPVariable_WrapN2at10TensorBaseE", "", "libtorch_python"),
    ],
)
def test_symbols_of_torch_are_recognised(symbol: str, name: str, provider: str) -> None:
    assert libraries.TORCH_SYMBOL.match(symbol)
    assert libraries.torch_provider(symbol) == provider
    if name:
        assert libraries.readable(symbol) == name


@pytest.mark.parametrize("symbol", ["PyLong_FromLong", "_ZNSt6vectorE", "cudaMalloc", "_ZN4vllm5torchE", "memcpy", "_ZN8at_least3fooEv"])
def test_other_symbols_are_not_torch(symbol: str) -> None:
    assert not libraries.TORCH_SYMBOL.match(symbol)


@given(st.text(max_size=80), st.text(alphabet="_ZNK0123456789abcSt", max_size=60))
def test_any_text_is_a_symbol(text: str, mangled: str) -> None:
    for symbol in (text, mangled, f"_ZN{mangled}"):
        assert isinstance(libraries.readable(symbol), str)
        assert libraries.torch_provider(symbol)


def test_libstdcxx_of_this_machine() -> None:
    section = libraries.collect(Host(environment={}), Scope(target=None))["libstdcxx"]
    if section.state is State.KNOWN:
        assert all(copy.highest_glibcxx.startswith("3.4") for copy in section.value)
        assert section.value[0].origin == "system"
