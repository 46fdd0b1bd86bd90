"""What people write by hand above their output: `16 x NVIDIA A100`, `Ubuntu 24.04.3 LTS, 6.8.0-90-generic`, `glibc 2.28, Python 3.12`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.sources.triage.fact import NAMELESS, Fact, Found, Parser, package
from dsdoctor.sources.triage.key_values import cards, distribution
from dsdoctor.sources.triage.lines import Line
from dsdoctor.sources.triage.system import kernel, toolkit

FORMAT = "note"
LINE_LIMIT = 200
GPUS_LIMIT = 1024

_MANY = re.compile(
    r"\s{0,4}(\d{1,4})\s?[x×]\s?(NVIDIA [A-Z][\w -]{1,50}?|[ABHLTV]\d{2,3}[\w -]{0,30}?)(?:\s{1,4}(\d{4,7})\s?MiB)?\s*(?:\(.{0,80}\)|,.{0,80})?$"
)
_ONE = re.compile(r"(NVIDIA (?:GeForce |RTX |Tesla |TITAN )?[A-Z0-9][\w -]{0,40})$")
_CAPABLE = re.compile(
    r"(?:\b(\d{1,4})\s?[x×]\s?)?\b(NVIDIA (?:GeForce |Quadro |Tesla )?(?:[A-Z0-9][\w-]{0,12} ){0,5}[A-Z0-9][\w-]{0,14})"
    r" ?\((?:[^()]{0,40}[, ])?(?:sm_?(\d{1,2})(\d)a?|(?:compute capability|CC|cc) ?(\d{1,2})\.(\d))\b[^()]{0,60}\)"
)
"""A GPU in a sentence, with what it can do in brackets: `an NVIDIA H200 (sm_90) node`."""
_LABEL = re.compile(r"(?:[-*•] {0,4})?\**(?:Hardware|Machine|Server|Node|Setup)\**:\** {0,4}", re.IGNORECASE)
_STATUS = re.compile(r"\[(?:INFO|PASS|OK|WARN|WARNING|FAIL|ERROR)\] ")
_GLIBC = re.compile(r"glibc[ -](\d\.\d{1,3})$", re.IGNORECASE)
_PYTHON = re.compile(r"python (3\.\d{1,2}(?:\.\d{1,3})?)$", re.IGNORECASE)
_TORCH = re.compile(r"(?:pytorch|torch)[ =]{1,2}(\d\.\d{1,2}\S{0,60})$", re.IGNORECASE)
_PACKAGE = re.compile(
    r"[-*•]?\s{0,4}(torch|pytorch|torchvision|torchaudio|triton|vllm|sglang|xformers|flash[-_]attn)(?: ?={1,2} ?|[ -]| \()v?"
    r"(\d{1,2}\.\d{1,3}(?:\.\d{1,3})?(?:\.?(?:post|dev|rc|a|b)\d{1,8})?(?:\+\w{2,20})?)\)?$",
    re.IGNORECASE,
)
"""A package with its version, however it is written: `torch-2.1.1`, `* torchaudio = 2.0.1`, `Torchvision 0.16.0+cu118`."""
_DRIVER = re.compile(r"(?:nvidia )?driver (?:version )?(\d{3}\.\d{1,3}(?:\.\d{1,3})?)$", re.IGNORECASE)
_KERNEL = re.compile(r"(?:kernel )?(\d\.\d{1,3}\.\d{1,3}-\S{1,60})$")
_DISTRIBUTION = re.compile(r"(?:ubuntu|debian|rocky|rhel|centos|almalinux|fedora)\b.{0,60}$", re.IGNORECASE)


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        text = line.text.strip()
        if not text or len(text) > LINE_LIMIT or text[0] in "|+{<(/":
            continue
        if status := _STATUS.match(text):
            yield from _status(text[status.end() :], line)
            continue
        capable = _CAPABLE.findall(text)
        if capable:
            yield from _with_capability(capable, line)
            continue
        label = _LABEL.match(text)
        many = _MANY.match(text[label.end() :] if label else text)
        if many:
            for index in range(min(int(many[1]), GPUS_LIMIT)):
                yield Fact("gpus", "name", many[2].strip(), line, str(index), FORMAT)
                if many[3]:
                    yield Fact("gpus", "memory_total_bytes", int(many[3]) << 20, line, str(index), FORMAT)
        elif ":" not in text and not ("==" in text and text[0] in "-+"):  # what uv removed and added, or a bulleted freeze
            yield from _cards(text, line)
            for part in text.split(","):
                if told := _PACKAGE.match(part.strip()):
                    yield from package({"pytorch": "torch"}.get(told[1].lower(), told[1]), told[2], line, FORMAT)
                elif "=" not in text:
                    yield from _part(part.strip(), line)


def _with_capability(found: Sequence[tuple[str, ...]], line: Line) -> Iterator[Found]:
    """One GPU of a sentence; where a sentence compares two, neither is known to be the one of this machine."""
    if len({one[1] for one in found}) > 1:
        return
    count, name, *numbers = found[0]
    capability = ".".join(number for number in numbers if number)
    for index in range(min(int(count or 1), GPUS_LIMIT)):
        key = str(index) if count else NAMELESS
        yield Fact("gpus", "name", name, line, key, FORMAT)
        yield Fact("gpus", "compute_capability", capability, line, key, FORMAT)


def _cards(text: str, line: Line) -> Iterator[Found]:
    """`GPU 3090`, `2x RTX 4090 24G`, `A10 GPU`: a bare number or model is a GPU only where the line says so."""
    found = re.fullmatch(r"(?:GPUs? )?(.{2,60})", text)
    known = cards(found[1]) if found else None
    if known and re.search(r"GPU|TX|GeForce|Tesla|\d ?G", text, re.IGNORECASE):
        for index in range(min(known[0], GPUS_LIMIT)):
            yield Fact("gpus", "name", known[1], line, str(index) if known[0] > 1 else NAMELESS, FORMAT)


def _status(text: str, line: Line) -> Iterator[Found]:
    """A line of another doctor: `[INFO] CUDA: nvcc 13.2, driver 580.159.03`."""
    if found := re.search(r"\bdriver (?:version:? )?(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b", text, re.IGNORECASE):
        yield Fact("nvml_versions", "driver", found[1], line, format=FORMAT)
    if found := re.search(r"\bnvcc:? (\d{1,2}\.\d{1,2})(?![\d.]*\d)", text, re.IGNORECASE):
        yield from toolkit("nvcc", "", found[1], line, FORMAT)
    if found := re.search(r"\bcompute (?:capability:? )?(\d{1,2}\.\d)\b", text, re.IGNORECASE):
        index = re.search(r"\b(?:CUDA|GPU) ?\[?(\d{1,3})\b", text)
        yield Fact("gpus", "compute_capability", found[1], line, str(int(index[1])) if index else NAMELESS, FORMAT)


def _part(text: str, line: Line) -> Iterator[Found]:
    if found := _GLIBC.match(text):
        yield Fact("libc", "version", found[1], line, format=FORMAT)
    elif found := _PYTHON.match(text):
        yield Fact("interpreter", "version", found[1], line, format=FORMAT)
    elif found := _TORCH.match(text):
        yield from package("torch", found[1], line, FORMAT)
    elif found := _DRIVER.search(text):
        yield Fact("nvml_versions", "driver", found[1], line, format=FORMAT)
    elif found := _KERNEL.match(text):
        yield from kernel(found[1], line, FORMAT)
    elif _DISTRIBUTION.match(text):
        yield from distribution(text[:1].upper() + text[1:], line, FORMAT)
    elif found := _ONE.match(text):
        yield Fact("gpus", "name", found[1].strip(), line, NAMELESS, FORMAT)


PARSERS = (Parser(FORMAT, (), _parse),)
