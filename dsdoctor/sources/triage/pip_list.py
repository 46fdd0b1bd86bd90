"""Package lists: pip and uv list, freeze and show, conda list, dpkg; also the `[pip3]` lines of collect_env."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.facts import DriverLibrary
from dsdoctor.sources.texts import DRIVER_VERSION, STACK, normalised
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said, package
from dsdoctor.sources.triage.lines import Line

LIST = "pip list"
SHOW = "pip show"
PACMAN = "pacman -Q"
INSTALL = "pip install"
DPKG = "dpkg -l"
PACKAGE_LIMIT = 5000

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}"
_VERSION = r"\d[A-Za-z0-9.!+_-]{0,80}"
_FROZEN = re.compile(rf"[\s*-]{{0,8}}(?:\[(?:pip3?|conda|uv)\]\s{{1,8}})?({_NAME})(?:\[[\w,-]{{1,60}}\])?==({_VERSION})(?=\s|$|;)")
_UV_ADDED = re.compile(rf"\s{{0,2}}\+ ({_NAME})==({_VERSION})\s*$")
_UV_REMOVED = re.compile(rf"\s{{0,2}}- {_NAME}=={_VERSION}\s*$")
"""What uv says at the end: `- torch==2.9.0+cu130` went, `+ torch==2.9.0` came."""
_CONDA_LINE = re.compile(rf"\[conda\]\s{{1,8}}({_NAME})\s{{1,40}}({_VERSION})(?:\s|$)")
_COLUMNS = re.compile(rf"\s{{0,4}}({_NAME})\s{{1,80}}v?({_VERSION})(?:\s{{1,80}}(\S{{1,200}}))?(?:\s{{1,80}}(\S{{1,80}}))?\s*$")
_HEADER = re.compile(r"(?:Package|# Name|#\s+Name|Name)\s{2,}Version\b")
_INSTALLED = re.compile(r"Successfully installed (?=\S)")
_INSTALLED_PACKAGE = re.compile(rf"({_NAME}?)-({_VERSION})")
_FIELD = re.compile(r"(Name|Version|Location|Requires): (.{0,4000})$")
_DPKG = re.compile(r"[a-z]i\s{1,4}([a-z0-9][a-z0-9+.-]{1,80})(?::\w{1,10})?\s{1,80}(?:\d:)?(\S{1,80})\s")
_DRIVER_PACKAGE = re.compile(
    r"libnvidia-compute(?:-\d+(?:-server|-open)?)?|libcuda1|libnvidia-ml1|nvidia-utils(?:-\d+(?:-server)?)?|nvidia-smi|nvidia-libopencl1"
)
_FABRIC_PACKAGE = re.compile(r"nvidia-fabric-?manager(?:-\d+)?")
_DISTRIBUTION = re.compile(rf"({DRIVER_VERSION})(?=[-~+]|$)")
_PYTORCH = {"pytorch": "torch"}
"""Names that conda gives to packages of PyPI."""


def _lists(lines: Sequence[Line]) -> Iterator[Found]:
    in_table = False
    replaces = any(_UV_ADDED.match(line.text) for line in lines)
    for line in lines:
        text = line.text
        if replaces and text.lstrip()[:1] in ("-", "+"):
            if added := _UV_ADDED.match(text):
                yield from _one(added[1], added[2], line)
            elif _UV_REMOVED.match(text):
                yield Said(line, LIST)
            continue
        if not text or len(text) > 600:
            in_table = in_table and bool(text)
            continue
        frozen = _FROZEN.match(text) if "==" in text else None
        if frozen:
            yield from _one(frozen[1], frozen[2], line)
            continue
        if text.startswith("[conda]"):
            conda = _CONDA_LINE.match(text)
            if conda:
                yield from _one(conda[1], conda[2], line)
            continue
        if _HEADER.match(text):
            in_table = True
            yield Said(line, LIST)
            continue
        row = _COLUMNS.match(text)
        if row and _is_row(row, in_table):
            yield from _one(row[1], row[2], line)
        elif not text.startswith("-"):
            in_table = False


def _is_row(row: re.Match[str], in_table: bool) -> bool:
    """Inside a table every row counts; outside, only a package of the stack with a version that has a dot and nothing behind it."""
    if in_table:
        return True
    name, version = normalised(row[1]), row[2]
    alone = row[3] is None or row[3] in ("pypi_0", "pypi", "(from") or row[3].startswith(("/", "py3", "cuda"))
    return alone and "." in version and bool(STACK.fullmatch(name) or name in _PYTORCH) and not name.startswith("cuda-")


def _one(name: str, version: str, line: Line) -> Iterator[Found]:
    yield from package(_PYTORCH.get(normalised(name), name), version.rstrip(".,;"), line, LIST)


def _installed(lines: Sequence[Line]) -> Iterator[Found]:
    """`Successfully installed torch-2.6.0 triton-3.2.0`, as pip ends; what a later run installed counts."""
    last: dict[str, tuple[str, str, Line]] = {}
    for line in lines:
        begin = _INSTALLED.match(line.text.lstrip())
        for word in line.text.lstrip()[begin.end() :].split() if begin else ():
            if told := _INSTALLED_PACKAGE.fullmatch(word):
                last[normalised(told[1])] = told[1], told[2], line
    for name, version, line in last.values():
        yield from package(name, version, line, INSTALL)


def _show(lines: Sequence[Line]) -> Iterator[Found]:
    name: tuple[str, Line] | None = None
    for line in lines:
        field = _FIELD.match(line.text)
        if not field:
            continue
        if field[1] == "Name" and re.fullmatch(_NAME, field[2]):
            name = field[2], line
        elif name and field[1] == "Version" and re.fullmatch(_VERSION, field[2]):
            yield from package(name[0], field[2], line, SHOW)
        elif name and field[1] == "Location":
            yield Fact("packages", "location", field[2].strip(), line, normalised(name[0]), SHOW)


_PACMAN = re.compile(rf"(?:lib32-)?(nvidia-utils) ({DRIVER_VERSION})-\d{{1,3}}(?:\.\d)?\s*$")


def _pacman(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        row = _PACMAN.match(line.text)
        if row:
            record = DriverLibrary(
                soname="libnvidia-ml.so.1", path=f"package {row[1]}", version=row[2], kind="driver", found_via=PACMAN, loaded_first=True
            )
            yield Fact("driver_libraries", "", record, line, "package", PACMAN)


def _dpkg(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        row = _DPKG.match(line.text)
        version = _DISTRIBUTION.match(row[2]) if row else None
        if not row or not version:
            continue
        if _DRIVER_PACKAGE.fullmatch(row[1]):
            record = DriverLibrary(
                soname="libnvidia-ml.so.1", path=f"package {row[1]}", version=version[1], kind="driver", found_via=DPKG, loaded_first=True
            )
            yield Fact("driver_libraries", "", record, line, "package", DPKG)
        elif _FABRIC_PACKAGE.fullmatch(row[1]):
            yield Fact("services", "version", version[1], line, "nvidia-fabricmanager", DPKG)
            yield Fact("services", "found_via", DPKG, line, "nvidia-fabricmanager", DPKG)


_STACK_HINTS = (
    "torch", "pytorch", "PyTorch", "torchvision", "torchaudio", "triton", "vllm", "sglang", "sgl-kernel", "sgl_kernel", "flash-attn", "flash_attn", "flashinfer",
    "flashinfer-python", "flashinfer_python", "flash-mla", "nvidia", "xformers", "transformers", "deep-gemm", "deep_gemm", "deep-ep", "deep_ep", "deepspeed",
)  # fmt: skip

PARSERS = (
    Parser(LIST, ("==", "Version", "[conda]", *_STACK_HINTS), _lists),
    Parser(INSTALL, ("Successfully installed",), _installed),
    Parser(SHOW, ("Name: ",), _show),
    Parser(PACMAN, ("nvidia-utils",), _pacman),
    Parser(DPKG, ("ii  ", "hi  ", "ri  "), _dpkg),
)
