"""The toolchain probe: which CUDA toolkits and host compilers are here, which one wins, and how little it needs to start."""

import importlib
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.facts import State
from dsdoctor.plain import to_plain
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope, Target

probe = importlib.import_module("dsdoctor.probes.toolchain")

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
RECORDING = SHARED / "recordings" / "h200"
needs_recording = pytest.mark.skipif(not RECORDING.is_dir(), reason="recordings are not here")

NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {}, V{}\n"
PTXAS = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release {}, V{}\n"
SITE = "/opt/venv/lib/python3.12/site-packages"


def plant(root, files=(), programs=(), links=()):
    for path, content in dict(files).items():
        file = Path(f"{root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for path in programs:
        file = Path(f"{root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        file.chmod(0o755)
    for path, target in dict(links).items():
        link = Path(f"{root}{path}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def says(text):
    return Ended(outcome="exited", code=0, stdout=text)


def examined(root, commands=(), site_packages=(), kind="venv", **environment):
    target = Target(path="/opt/venv/bin/python", chosen_by="--python", prefix="/opt/venv", kind=kind, site_packages=tuple(site_packages))
    host = Host(root=str(root), environment=environment, commands=dict(commands))
    return probe.collect(host, Scope(target=target))


def toolkits(root, *arguments, **keywords):
    return examined(root, *arguments, **keywords)["cuda_toolkits"].value


# --- toolkits ---------------------------------------------------------------------------------------------------------


@needs_recording
def test_h200_image(tmp_path):
    environment = dict(line.split("=", 1) for line in (RECORDING / "env.txt").read_text().splitlines())
    plant(
        tmp_path,
        programs=["/usr/local/cuda-13.0/bin/nvcc", "/usr/local/cuda-13.0/bin/ptxas", "/usr/bin/x86_64-linux-gnu-gcc-13"],
        links={"/usr/local/cuda": "/usr/local/cuda-13.0", "/usr/bin/gcc": "x86_64-linux-gnu-gcc-13"},
    )
    commands = {
        "/usr/local/cuda/bin/nvcc --version": says((RECORDING / "nvcc.txt").read_text()),
        "/usr/bin/gcc --version": says((RECORDING / "gcc.txt").read_text()),
    }
    found = examined(tmp_path, commands, **environment)
    (toolkit,) = found["cuda_toolkits"].value
    assert (toolkit.path, toolkit.nvcc) == ("/usr/local/cuda-13.0", "/usr/local/cuda/bin/nvcc")
    assert (toolkit.version, toolkit.cuda_version) == ("13.0.88", "13.0")
    assert (toolkit.is_cuda_home, toolkit.is_first_on_path) == (True, True)
    (compiler,) = found["host_compilers"].value
    assert (compiler.name, compiler.path, compiler.version, compiler.chosen_by) == ("gcc", "/usr/bin/gcc", "13.3.0", "PATH")


def test_distribution_nvcc_shadows_a_newer_toolkit(tmp_path):
    """A recorded user's node: CUDA_HOME unset, the distribution's nvcc 11.5 on PATH, 13.0 beside it."""
    plant(
        tmp_path,
        {"/usr/local/cuda-13.0/version.json": '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}'},
        ["/usr/bin/nvcc", "/usr/local/cuda-13.0/bin/nvcc"],
        {"/usr/local/cuda": "cuda-13.0"},
    )
    old, new = toolkits(tmp_path, {"/usr/bin/nvcc --version": says(NVCC.format("11.5", "11.5.119"))}, PATH="/usr/bin")
    assert (old.path, old.cuda_version, old.is_first_on_path, old.is_cuda_home) == ("/usr", "11.5", True, False)
    assert (new.path, new.version, new.cuda_version, new.is_first_on_path) == ("/usr/local/cuda", "13.0.2", "13.0", False)


def test_cuda_home_wins_over_cuda_path(tmp_path):
    plant(
        tmp_path, {"/opt/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}', "/opt/cuda-12.8/version.txt": "CUDA Version 12.8.0\n"}
    )
    found = {toolkit.path: toolkit for toolkit in toolkits(tmp_path, CUDA_HOME="/opt/cuda-12.4/", CUDA_PATH="/opt/cuda-12.8")}
    assert (found["/opt/cuda-12.4"].is_cuda_home, found["/opt/cuda-12.4"].version) == (True, "12.4.1")
    assert (found["/opt/cuda-12.8"].is_cuda_home, found["/opt/cuda-12.8"].cuda_version) == (False, "12.8")


def test_wheels_tell_their_version_without_starting_anything(tmp_path):
    plant(
        tmp_path,
        {f"{SITE}/nvidia_cuda_nvcc-13.0.88.dist-info/METADATA": "", f"{SITE}/nvidia_cuda_nvcc_cu12-12.8.93.dist-info/METADATA": ""},
        [f"{SITE}/nvidia/cu13/bin/nvcc", f"{SITE}/nvidia/cu13/bin/ptxas", f"{SITE}/nvidia/cuda_nvcc/bin/ptxas"],
    )
    found = {toolkit.path: toolkit for toolkit in toolkits(tmp_path, site_packages=[SITE])}
    wheel13, wheel12 = found[f"{SITE}/nvidia/cu13"], found[f"{SITE}/nvidia/cuda_nvcc"]
    assert (wheel13.version, wheel13.cuda_version, wheel13.nvcc) == ("13.0.88", "13.0", f"{SITE}/nvidia/cu13/bin/nvcc")
    assert (wheel12.version, wheel12.nvcc, wheel12.ptxas) == ("12.8.93", "", f"{SITE}/nvidia/cuda_nvcc/bin/ptxas")


def test_ptxas_of_triton(tmp_path):
    ptxas = f"{SITE}/triton/backends/nvidia/bin/ptxas"
    plant(tmp_path, programs=[ptxas])
    (found,) = toolkits(tmp_path, {f"{ptxas} --version": says(PTXAS.format("12.8", "12.8.93"))}, site_packages=[SITE])
    assert (found.ptxas, found.version, found.cuda_version) == (ptxas, "12.8.93", "12.8")


def test_conda_environment_counts_only_with_nvcc(tmp_path):
    plant(tmp_path, {"/opt/conda/conda-meta/history": "", "/opt/conda/targets/x": "", "/opt/conda/include/cuda.h": ""})
    assert examined(tmp_path, CONDA_PREFIX="/opt/conda")["cuda_toolkits"].state is State.ABSENT
    plant(tmp_path, programs=["/opt/conda/bin/nvcc"])
    (found,) = toolkits(tmp_path, {"/opt/conda/bin/nvcc --version": says(NVCC.format("12.6", "12.6.85"))}, CONDA_PREFIX="/opt/conda")
    assert (found.path, found.cuda_version) == ("/opt/conda", "12.6")


def test_runtime_image_has_a_toolkit_without_nvcc(tmp_path):
    plant(tmp_path, {"/usr/local/cuda-12.9/targets/x86_64-linux/lib/libcudart.so.12": ""})
    (found,) = toolkits(tmp_path)
    assert (found.path, found.nvcc, found.cuda_version) == ("/usr/local/cuda-12.9", "", "12.9")


@pytest.mark.parametrize(
    "answer",
    [
        says("Segmentation fault"),
        says(""),
        Ended(outcome="timed_out", elapsed_s=3.0),
        Ended(outcome="signal", code=11),
        Ended(outcome="exited", code=1, stdout=NVCC.format("99.9", "99.9.1")),
    ],
)
def test_nvcc_that_does_not_answer_falls_back_to_the_header(tmp_path, answer):
    plant(tmp_path, {"/usr/local/cuda/include/cuda.h": "/* */\n#define CUDA_VERSION 12080\n"}, ["/usr/local/cuda/bin/nvcc"])
    (found,) = toolkits(tmp_path, {"/usr/local/cuda/bin/nvcc --version": answer})
    assert (found.nvcc, found.version, found.cuda_version) == ("/usr/local/cuda/bin/nvcc", "", "12.8")


def test_link_to_a_compiler_cache_keeps_its_own_place(tmp_path):
    plant(tmp_path, programs=["/usr/bin/ccache"], links={"/opt/masks/bin/nvcc": "/usr/bin/ccache"})
    (found,) = toolkits(tmp_path, PATH="/opt/masks/bin")
    assert (found.path, found.nvcc, found.version) == ("/opt/masks", "/opt/masks/bin/nvcc", "")


class Counting(Host):
    """A host that notes which programs were started."""

    started: list[str] = []  # noqa: RUF012

    def run(self, argv, timeout_s=5.0, environment=None):
        self.started.append(argv[0])
        return super().run(argv, timeout_s, environment)


def test_only_a_handful_of_programs_is_started(tmp_path):
    plant(tmp_path, programs=[f"/usr/local/cuda-{minor}/bin/nvcc" for minor in range(30)])
    plant(tmp_path, programs=[f"/bin/{name}" for name in probe.COMPILER_NAMES], links={"/usr/bin/gcc": "/bin/gcc"})
    Counting.started.clear()
    host = Counting(root=str(tmp_path), environment={"PATH": "/usr/bin:/bin", "CC": "gcc", "CXX": "/bin/gcc"}, commands={})
    found = probe.collect(host, Scope(target=None))
    assert len(found["cuda_toolkits"].value) == 30
    assert len(Counting.started) == probe.TOOLKIT_PROGRAMS_MAX + len(probe.COMPILER_NAMES)


# --- host compilers ---------------------------------------------------------------------------------------------------


def test_how_each_compiler_was_chosen(tmp_path):
    plant(tmp_path, programs=["/usr/bin/g++", "/opt/gcc12/bin/gcc", "/opt/gcc11/bin/g++", "/usr/bin/clang", "/opt/g++-10"])
    environment = {
        "PATH": "/usr/bin",
        "CC": "ccache /opt/gcc12/bin/gcc -m64",
        "CXX": "g++",
        "CUDAHOSTCXX": "/opt/gcc/bin/g++",
        "NVCC_CCBIN": "/opt/gcc11/bin",
        "NVCC_PREPEND_FLAGS": "-O2 -ccbin /opt/g++-10",
    }
    commands = {"/opt/gcc12/bin/gcc --version": says("gcc (GCC) 12.2.1 20230801 (Red Hat 12.2.1-7)\n"), "/usr/bin/g++ --version": says("?")}
    found = [(item.path, item.version, item.chosen_by) for item in examined(tmp_path, commands, **environment)["host_compilers"].value]
    assert found == [
        ("/opt/gcc12/bin/gcc", "12.2.1", "CC"),
        ("/usr/bin/g++", "", "CXX"),
        ("/opt/gcc11/bin/g++", "", "NVCC_CCBIN"),
        ("/opt/g++-10", "", "NVCC_PREPEND_FLAGS"),
        ("/usr/bin/g++", "", "PATH"),
        ("/usr/bin/clang", "", "PATH"),
    ]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("gcc (Ubuntu 13.3.0-6ubuntu2~24.04.1) 13.3.0\nCopyright (C) 2023 Free Software Foundation, Inc.\n", "13.3.0"),
        ("g++ (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)\n", "11.4.1"),
        ("gcc (Gentoo 13.2.1_p20240210 p14) 13.2.1 20240210\n", "13.2.1"),
        ("x86_64-conda-linux-gnu-cc (conda-forge gcc 12.4.0-1) 12.4.0\n", "12.4.0"),
        ("gcc (SUSE Linux) 7.5.0\n", "7.5.0"),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu\n", "18.1.3"),
        ("\nnvc++ 24.9-0 64-bit target on x86-64 Linux -tp sapphirerapids\n", "24.9"),
        ("bash: gcc: command not found\n", ""),
        ("", ""),
    ],
)
def test_compiler_versions(text, version):
    assert probe.parse_compiler_version(text) == version


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("-ccbin /a", "/a"),
        ("-ccbin=/a -O2", "/a"),
        ("--compiler-bindir /a -ccbin /b", "/b"),
        ("-ccbin", ""),
        ("-ccbin=", ""),
        ("-Xcompiler -fPIC", ""),
        ("'unbalanced", ""),
    ],
)
def test_host_compiler_in_nvcc_flags(flags, named):
    assert probe.ccbin_in_flags(flags) == named


# --- nothing and nonsense ---------------------------------------------------------------------------------------------


def test_empty_tree(tmp_path):
    found = examined(tmp_path, CUDA_HOME="/nowhere", CC="/nowhere/gcc", PATH=":relative:/usr/bin")
    assert found["cuda_toolkits"].state is State.ABSENT
    assert found["host_compilers"].state is State.ABSENT


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=200), st.text(max_size=40), st.text(max_size=40))
def test_nonsense_is_survived(content, value, output):
    with tempfile.TemporaryDirectory() as root:
        files = {f"/usr/local/cuda/{name}": content for name in ("version.json", "version.txt", "include/cuda.h")}
        plant(root, files, ["/usr/local/cuda/bin/nvcc", "/usr/bin/gcc"])
        commands = {"/usr/local/cuda/bin/nvcc --version": says(output), "/usr/bin/gcc --version": says(output)}
        variables = {name: value.replace("\0", "") for name in ("CC", "CXX", "NVCC_PREPEND_FLAGS", "CUDA_HOME", "CONDA_PREFIX")}
        found = examined(root, commands, site_packages=[value.replace("\0", "")], PATH="/usr/bin", **variables)
    plain = json.loads(json.dumps({name: to_plain(section) for name, section in found.items()}))
    assert read_sections(plain).keys() == found.keys()
    assert [toolkit.nvcc for toolkit in found["cuda_toolkits"].value] == ["/usr/local/cuda/bin/nvcc"]


# --- parsers ----------------------------------------------------------------------------------------------------------

PARTS = st.integers(0, 999)


@given(st.integers(9, 30), st.integers(0, 9), PARTS)
def test_versions_are_read_as_written(major, minor, build):
    release, version = f"{major}.{minor}", f"{major}.{minor}.{build}"
    assert probe.parse_tool_version(NVCC.format(release, version)) == (version, release)
    assert probe.parse_tool_version(PTXAS.format(release, version)) == (version, release)
    assert probe.parse_version_json(json.dumps({"cuda_nvcc": {"version": "1.2"}, "cuda": {"version": version}})) == version
    assert probe.parse_version_txt(f"CUDA Version {version}\n") == version
    assert probe.parse_cuda_header(f"#define CUDA_VERSION {major * 1000 + minor * 10}\n") == release


@given(st.text())
def test_parsers_take_any_text(text):
    probe.parse_tool_version(text)
    probe.parse_version_json(text)
    probe.parse_version_txt(text)
    probe.parse_cuda_header(text)
    probe.parse_compiler_version(text)
    probe.compiler_in_command(text)
    probe.ccbin_in_flags(text)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"cuda": 13}', '{"cuda": {"version": 13.0}}', '{"cuda": {"version": "latest"}}', "[" * 100_000]
)
def test_version_json_of_another_form(text):
    assert probe.parse_version_json(text) == ""
