"""Environment variables: `env`, `export`, `docker run -e`, Dockerfiles, Kubernetes manifests, os.environ, and what NCCL says it was given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.sources.texts import SECRET_IN_VALUE, matters, told_value
from dsdoctor.sources.triage.fact import Fact, Found, Parser
from dsdoctor.sources.triage.lines import Line

FORMAT = "environment"

_ASSIGNMENT = re.compile(
    r"\s{0,12}(?:[$#] )?(?:- )?(?:(?:sudo )?export |declare -x |setenv |ENV |-e |--env |env )?([A-Z][A-Z0-9_]{1,60})=(.*)$"
)
_IN_COMMAND = re.compile(
    r"(?:(?:^|\s)(?:-e|--env)[= ][\"']?|^(?:[$#] )?(?:env |export )?|(?<=\s))([A-Z][A-Z0-9_]{1,60})=(\"[^\"]{0,400}\"|'[^']{0,400}'|[^\s\\\"']{0,400})"
)
_QUOTED = re.compile(r"(\"[^\"]{0,400}\"|'[^']{0,400}')\s+[^\s\\]")
"""A value in quotation marks before the command that it is set for."""
_MANIFEST_NAME = re.compile(r"\s{0,40}- name: [\"']?([A-Z][A-Z0-9_]{1,60})[\"']?\s*$")
_MANIFEST_VALUE = re.compile(r"\s{0,40}value: [\"']?(.{0,400}?)[\"']?\s*$")
_MAPPED_BLOCK = re.compile(r"(\s{1,40})environment:\s*$")
_MAPPED = re.compile(r"(\s{2,44})([A-Z][A-Z0-9_]{2,60}): {1,8}[\"']?([^\"'\n#]{1,400}?)[\"']?\s*$")
"""A Compose file that gives the environment as a mapping."""
_PYTHON = re.compile(r"os\.environ\[[\"']([A-Z][A-Z0-9_]{1,60})[\"']\]\s?=\s?[\"']([^\"']{0,400})[\"']")
_NCCL = re.compile(r"(?:NCCL INFO )?(NCCL_[A-Z0-9_]{1,50}) set (?:by environment )?to (\S{0,200})")
_DESCRIBED = re.compile(r"\s{2,12}([A-Z][A-Z0-9_]{2,60}):\s{1,40}(\S.{0,400})$")
"""`kubectl describe pod`, under Environment:."""

_PLACEHOLDER = re.compile(
    r"(?:,?(?:\$\{?\w{1,60}\}?|\$\{[^{}]{1,120}\}|\$\([^()]{1,200}\)?|\{\{.{1,120}\}\}|\{\w{1,60}\}|<[^<>]{1,80}>|%\w{1,60}%|…|\.\.\.)){1,16}"
)
"""What a script or a manual has in the place of a value, which the text then does not tell."""

WORDS_IN_VALUE = ("NVIDIA_REQUIRE_CUDA", "CFLAGS", "CXXFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TORCH_CUDA_ARCH_LIST")
"""Variables whose values hold blanks without quotes."""


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    waiting = ""
    described = False
    mapped = ""
    for line in lines:
        text = line.text
        if block := _MAPPED_BLOCK.match(text):
            mapped = block[1]
            continue
        if mapped:
            entry = _MAPPED.match(text)
            if entry and len(entry[1]) > len(mapped):
                yield from _variable(entry[2], entry[3], line)
                continue
            mapped = ""
        if described or "Environment:" in text:
            described = "Environment:" in text or bool(_DESCRIBED.match(text))
            found = _DESCRIBED.match(text)
            if found:
                yield from _variable(found[1], found[2], line)
                continue
        if "name: " in text and (named := _MANIFEST_NAME.match(text)):
            waiting = named[1]
            continue
        if waiting and (valued := _MANIFEST_VALUE.match(text)):
            yield from _variable(waiting, valued[1], line)
        waiting = ""
        if "=" in text:
            yield from _assigned(line)
        elif " set " in text and (told := _NCCL.search(text)):
            yield from _variable(told[1], told[2].rstrip("."), line)


def _assigned(line: Line) -> Iterator[Found]:
    text = line.text
    python = _PYTHON.search(text) if "os.environ" in text else None
    if python:
        yield from _variable(python[1], python[2], line)
        return
    found = _ASSIGNMENT.match(text)
    quoted = _QUOTED.match(found[2].strip()) if found else None
    if found and quoted and found[1] not in WORDS_IN_VALUE:
        yield from _variable(found[1], quoted[1], line)
    elif found and (found[1] in WORDS_IN_VALUE or " " not in found[2].strip() or found[2].strip()[:1] in "\"'"):
        yield from _variable(found[1], found[2], line)
    elif found or " -e " in text or "--env" in text:
        for name, value in _IN_COMMAND.findall(text[:4096]):
            yield from _variable(name, value, line)


def _variable(name: str, value: str, line: Line) -> Iterator[Found]:
    value = value.strip().removesuffix("\\").strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    if matters(name) and not SECRET_IN_VALUE.search(value) and not _PLACEHOLDER.fullmatch(value):
        yield Fact("environment", "value", told_value(value), line, name, FORMAT)


_HINTS = (
    "CUDA_", "NCCL_", "NVIDIA_", "NVSHMEM_", "TRITON_", "TORCH_", "PYTORCH_", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "GLOO_", "UCX_", "RAY_",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CC=", "CXX=", "PATH=", "HF_", "MASTER_ADDR", "CUDAHOSTCXX", "TMPDIR", "OMP_", "XDG_CACHE_HOME",
)  # fmt: skip

PARSERS = (Parser(FORMAT, _HINTS, _parse),)
