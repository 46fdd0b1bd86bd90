"""Find CUDA toolkits, the nvcc and ptxas that wheels carry, and the host compilers that a build here would use.

Versions are read from files where files tell them; a program is started only for the rest, and only a few.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsdoctor.facts import CudaToolkit, HostCompiler, Section, absent, known
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import parse_compiler_version, parse_tool_version

PROGRAM_TIMEOUT_S = 3.0
TOOLKIT_PROGRAMS_MAX = 5
COMPILER_PROGRAMS_MAX = 8


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Fill the sections cuda_toolkits and host_compilers."""
    return {"cuda_toolkits": _cuda_toolkits(host, scope), "host_compilers": _host_compilers(host)}


class Programs:
    """Asks programs for their version, each once, and at most `left` of them."""

    def __init__(self, host: Host, left: int) -> None:
        self._host = host
        self._left = left
        self._said: dict[str, str] = {}

    def version_text(self, program: str) -> str:
        """What `program --version` printed; empty when it failed or no more programs may be started."""
        real = self._host.real_path(program)
        if real not in self._said:
            if self._left <= 0:
                return ""
            self._left -= 1
            ended = self._host.run((program, "--version"), timeout_s=PROGRAM_TIMEOUT_S)
            self._said[real] = ended.stdout if ended.ok else ""
        return self._said[real]


# --- CUDA toolkits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where a toolkit may be."""

    path: str
    nvcc: str = ""
    ptxas: str = ""
    version: str = ""
    """Where the place itself tells it: the wheel's metadata."""


def _cuda_toolkits(host: Host, scope: Scope) -> Section[Any]:
    programs = Programs(host, TOOLKIT_PROGRAMS_MAX)
    cuda_home = host.environment.get("CUDA_HOME") or host.environment.get("CUDA_PATH") or ""
    home = host.real_path(cuda_home) if cuda_home.startswith("/") else ""
    first = next(_toolkits_on_path(host), None)
    toolkits = []
    for candidate in _distinct(host, _candidates(host, scope, cuda_home)):
        version, cuda_version = _versions(host, candidate, programs)
        real = host.real_path(candidate.path)
        toolkits.append(
            CudaToolkit(
                path=candidate.path,
                version=version,
                cuda_version=cuda_version,
                nvcc=candidate.nvcc,
                ptxas=candidate.ptxas,
                is_cuda_home=real == home,
                is_first_on_path=first is not None and real == host.real_path(first.path),
            )
        )
    looked = "CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*, /opt/cuda*, conda, wheels"
    return known(tuple(toolkits), looked) if toolkits else absent("no CUDA toolkit, and no wheel that carries nvcc or ptxas", looked)


def _candidates(host: Host, scope: Scope, cuda_home: str) -> Iterator[Candidate]:
    yield from _toolkits_on_path(host)
    folders = [cuda_home, host.environment.get("CUDA_PATH", "")]
    folders += [path for pattern in ("/usr/local/cuda*", "/opt/cuda*", "/opt/nvidia/cuda*") for path in host.glob(pattern)]
    folders += [host.environment.get("CONDA_PREFIX", "")]
    if scope.target and scope.target.kind == "conda":
        folders.append(scope.target.prefix)
    for folder in folders:
        candidate = _toolkit_in(host, folder.rstrip("/"))
        if candidate:
            yield candidate
    for folder in scope.target.site_packages if scope.target else ():
        yield from _wheels_in(host, folder)


def _toolkits_on_path(host: Host) -> Iterator[Candidate]:
    """A toolkit for each nvcc on PATH, in the order in which a shell finds them."""
    for folder in host.environment.get("PATH", os.defpath).split(os.pathsep):
        nvcc = os.path.join(folder, "nvcc")
        if not folder.startswith("/") or not host.is_executable(nvcc):
            continue
        real = host.real_path(nvcc)
        if os.path.basename(real) != "nvcc":  # a link to a compiler cache, which stands for the nvcc it is called as
            real = nvcc
        root = os.path.dirname(os.path.dirname(real))
        yield Candidate(root, nvcc, _executable(host, os.path.join(os.path.dirname(real), "ptxas")))


def _toolkit_in(host: Host, folder: str) -> Candidate | None:
    if not folder.startswith("/") or not host.is_directory(folder):
        return None
    nvcc, ptxas = _executable(host, f"{folder}/bin/nvcc"), _executable(host, f"{folder}/bin/ptxas")
    signs = ("version.json", "version.txt", "include/cuda.h", "targets", "nvvm", "lib64/libcudart.so")
    if nvcc or ptxas or any(host.exists(f"{folder}/{sign}") for sign in signs if not _is_shared_prefix(host, folder)):
        return Candidate(folder, nvcc, ptxas)
    return None


def _is_shared_prefix(host: Host, folder: str) -> bool:
    """Whether other things live here too (/usr, a conda environment), so that only nvcc or ptxas tell of a toolkit."""
    return folder in ("/usr", "/usr/local", "/opt", host.environment.get("CONDA_PREFIX", "")) or host.is_directory(f"{folder}/conda-meta")


def _wheels_in(host: Host, site_packages: str) -> Iterator[Candidate]:
    """Packages that carry nvcc or ptxas: nvidia/cu13, nvidia/cuda_nvcc (CUDA 12) and Triton."""
    for pattern in ("nvidia/cu[0-9]*", "nvidia/cuda_nvcc"):
        for folder in host.glob(f"{_literal(site_packages)}/{pattern}"):
            nvcc, ptxas = _executable(host, f"{folder}/bin/nvcc"), _executable(host, f"{folder}/bin/ptxas")
            if nvcc or ptxas:
                yield Candidate(folder, nvcc, ptxas, _wheel_version(host, site_packages, os.path.basename(folder)))
    backend = f"{site_packages}/triton/backends/nvidia"
    ptxas = _executable(host, f"{backend}/bin/ptxas")
    if ptxas:
        yield Candidate(backend, "", ptxas)


def _wheel_version(host: Host, site_packages: str, folder: str) -> str:
    """Version of the nvcc wheel that fills a folder: nvidia-cuda-nvcc (CUDA 13) or nvidia-cuda-nvcc-cu12; empty when not told."""
    pattern = "nvidia_cuda_nvcc_cu*-*.dist-info" if folder == "cuda_nvcc" else "nvidia_cuda_nvcc-*.dist-info"
    versions = [path.removesuffix(".dist-info").rpartition("-")[2] for path in host.glob(f"{_literal(site_packages)}/{pattern}")]
    return versions[0] if len(versions) == 1 and re.fullmatch(r"[0-9]+(\.[0-9]+)+", versions[0]) else ""


def _literal(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def _executable(host: Host, path: str) -> str:
    return path if host.is_executable(path) else ""


def _distinct(host: Host, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Each toolkit once, under the first name it was found by."""
    seen = set()
    for candidate in candidates:
        real = host.real_path(candidate.path)
        if real not in seen:
            seen.add(real)
            yield candidate


def _versions(host: Host, candidate: Candidate, programs: Programs) -> tuple[str, str]:
    """Full version and CUDA release (major.minor), from the first source that tells it."""
    version = candidate.version or parse_version_json(_read(host, f"{candidate.path}/version.json"))
    version = version or parse_version_txt(_read(host, f"{candidate.path}/version.txt"))
    if version:
        return version, ".".join(version.split(".")[:2])
    program = candidate.nvcc or candidate.ptxas
    if program:
        version, release = parse_tool_version(programs.version_text(program))
        if release:
            return version, release
    return "", parse_cuda_header(_read(host, f"{candidate.path}/include/cuda.h")) or _release_in_name(host, candidate.path)


def _read(host: Host, path: str) -> str:
    try:
        return host.read_text(path, 1 << 16)
    except OSError:
        return ""


def parse_version_json(text: str) -> str:
    """The toolkit's version in a version.json, empty when there is none."""
    try:
        version = json.loads(text)["cuda"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return version if isinstance(version, str) and re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", version) else ""


def parse_version_txt(text: str) -> str:
    """The toolkit's version in the version.txt of toolkits before 11.1, empty when there is none."""
    match = re.match(r"CUDA Version ([0-9]+(?:\.[0-9]+){1,3})", text)
    return match[1] if match else ""


def parse_cuda_header(text: str) -> str:
    """CUDA release from the CUDA_VERSION of cuda.h: 13.0 for 13000; empty when it does not say."""
    match = re.search(r"^#define CUDA_VERSION ([0-9]{4,6})\s*$", text, re.MULTILINE)
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else ""


def _release_in_name(host: Host, path: str) -> str:
    match = re.fullmatch(r"cuda-([0-9]+\.[0-9]+)(\.[0-9]+)?", os.path.basename(host.real_path(path)))
    return match[1] if match else ""


# --- host compilers ---------------------------------------------------------------------------------------------------

COMPILER_VARIABLES = ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN")
COMPILER_NAMES = ("gcc", "g++", "cc", "c++", "clang", "clang++")
FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
WRAPPERS = frozenset({"ccache", "sccache", "distcc", "icecc"})


def _host_compilers(host: Host) -> Section[Any]:
    """One record for each way a compiler is chosen; a variable that names no program leaves none."""
    programs = Programs(host, COMPILER_PROGRAMS_MAX)
    found = tuple(
        HostCompiler(name=os.path.basename(path), path=path, version=parse_compiler_version(programs.version_text(path)), chosen_by=chooser)
        for path, chooser in _compilers(host)
    )
    looked = ", ".join((*COMPILER_VARIABLES, *FLAG_VARIABLES, "PATH"))
    return known(found, looked) if found else absent("no C or C++ compiler is named by a variable or on PATH", looked)


def _compilers(host: Host) -> Iterator[tuple[str, str]]:
    """Paths of compilers, and what chose them."""
    for variable in COMPILER_VARIABLES:
        path = _program(host, compiler_in_command(host.environment.get(variable, "")))
        if path:
            yield path, variable
    for variable in FLAG_VARIABLES:
        path = _program(host, ccbin_in_flags(host.environment.get(variable, "")))
        if path:
            yield path, variable
    for name in COMPILER_NAMES:
        path = host.which(name) or ""
        if path:
            yield path, "PATH"


def compiler_in_command(command: str) -> str:
    """The compiler in a command such as `ccache gcc -m64`, empty when there is none."""
    words = [word for word in _words(command) if os.path.basename(word) not in WRAPPERS]
    return words[0] if words else ""


def ccbin_in_flags(flags: str) -> str:
    """The host compiler that nvcc flags name, empty when they name none; the last one counts."""
    words = _words(flags)
    named = ""
    for number, word in enumerate(words):
        match = re.fullmatch(r"(?:-ccbin|--?compiler-bindir)(?:=(.*))?", word)
        if match:
            named = match[1] or (words[number + 1] if match[1] is None and number + 1 < len(words) else "")
    return named


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _program(host: Host, named: str) -> str:
    """The path of a program that is named by path, by name or (for nvcc) by its directory; empty when it is not there."""
    if not named.startswith("/"):
        return host.which(named) or "" if named and "/" not in named else ""
    if host.is_directory(named):
        return next((path for name in COMPILER_NAMES if (path := _executable(host, f"{named.rstrip('/')}/{name}"))), "")
    return _executable(host, named)
