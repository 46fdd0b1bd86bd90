"""Answers that mean something only after the command that asked: `$ ulimit -l` and `8192`, `which nvcc`, `ls -d /usr/local/cuda*`, `python -c …`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dsdoctor.facts import State
from dsdoctor.sources.texts import DRIVER_VERSION, matters, told_value
from dsdoctor.sources.triage.fact import Absence, Fact, Found, Parser, Said, package
from dsdoctor.sources.triage.lines import Line
from dsdoctor.sources.triage.system import kernel, limit

FORMAT = "shell"
ANSWER_LINES = 400

_PROMPT = re.compile(
    r"\s{0,4}(?:\([\w.-]{1,40}\) )?(?:[\w.-]{1,40}@[\w.-]{1,60}[: ][^$#\n]{0,120}[$#]|[$%]|\[[^\]]{1,80}\][$#]|>>>)\s{1,4}(\S.{0,2000})$"
)

_PRINTED = re.compile(r"\s{0,4}(print\(.{0,40}torch\.(?:__version__|version\.cuda|cuda\.is_available|cuda\.device_count).{0,200}\))\s*$")
"""A line of a script whose output was pasted below it."""

_DKMS = re.compile(rf"\s{{0,4}}nvidia(?:-srv|-current|-open)?(?:/|, )({DRIVER_VERSION}), \S{{1,80}}, \w{{1,12}}: installed\b")

Answer = Callable[[re.Match[str], Sequence[Line]], Iterator[Found]]


def _ulimit(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        value = line.text.strip()
        if value == "unlimited" or re.fullmatch(r"\d{1,18}", value):
            yield from limit(asked[1], value, line, "ulimit")


def _which_nvcc(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        found = re.fullmatch(r"(/\S{0,200}?)/bin/nvcc", line.text.strip())
        if found:
            path = found[1] or "/"
            yield Fact("cuda_toolkits", "nvcc", line.text.strip(), line, path, FORMAT)
            yield Fact("cuda_toolkits", "is_first_on_path", True, line, path, FORMAT)


def _toolkits(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer:
        for word in line.text.split():
            found = re.fullmatch(r"(/usr/local/cuda-(\d{1,2}\.\d{1,2}))(?:\.\d{1,2})?/?", word)
            if found:
                yield Fact("cuda_toolkits", "cuda_version", found[2], line, found[1], FORMAT)


def _torch(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    """`torch.__version__`, with or without `torch.version.cuda` and `torch.cuda.is_available()`, in the order in which they were asked for."""
    asked_for = re.findall(
        r"torch\.__version__|torch\.version\.cuda|torch\.cuda\.is_available\(\)|torch\.cuda\.device_count\(\)", asked.string
    )
    words = [(word.strip("'\",()"), line) for line in answer[:8] for word in line.text.split()]
    for (word, line), name in zip(words, asked_for):
        if name == "torch.__version__" and re.fullmatch(r"\d\.\d{1,2}\.\S{1,60}", word):
            yield from package("torch", word, line, FORMAT)
        elif name == "torch.version.cuda" and re.fullmatch(r"None|\d{1,2}\.\d{1,2}", word):
            yield Fact("torch_build", "cuda", None if word == "None" else word, line, format=FORMAT)
        elif name == "torch.cuda.is_available()" and word in ("True", "False"):
            yield Fact("torch_runtime", "imported", True, line, format=FORMAT)
            yield Fact("torch_runtime", "cuda_available", word == "True", line, format=FORMAT)
        elif name == "torch.cuda.device_count()" and word.isdecimal() and len(word) < 5:
            yield Fact("torch_runtime", "device_count", int(word), line, format=FORMAT)
        else:
            return


def _version(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    """`torchvision.__version__` of one package."""
    for line in answer[:1]:
        word = line.text.strip().strip("'\"")
        if re.fullmatch(r"\d{1,3}\.\d{1,3}[\w.+!-]{0,60}", word):
            yield from package(asked[1], word, line, FORMAT)


def _include(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        found = re.fullmatch(r"/\S{1,200}/include/python(3\.\d{1,2})\w?", line.text.strip())
        if found:
            yield Said(line, FORMAT)
            yield Fact("interpreter", "version", found[1], line, format=FORMAT)


def _uname(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        text = line.text.strip()
        if text in ("x86_64", "aarch64"):
            yield Fact("platform", "architecture", text, line, format="uname")
        elif asked[1] == "r" and re.fullmatch(r"\d{1,2}\.\d{1,3}\.\S{1,100}", text):
            yield from kernel(text, line, "uname")


def _echo(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        if matters(asked[1]):
            yield Fact("environment", "value", told_value(line.text.strip()), line, asked[1], FORMAT)
    if not answer:
        return


def _wsl(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer:
        if re.search(r"\blibcuda\.so", line.text):
            yield Fact("wsl", "version", 2, line, format=FORMAT)
            yield Fact("wsl", "libcuda_directory", "/usr/lib/wsl/lib", line, format=FORMAT)


def _no_gpu(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        if "command not found" in line.text:
            yield Absence("nvml_versions", State.UNREADABLE, "nvidia-smi is not there", line, FORMAT)


def _loaded_module(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:1]:
        if re.fullmatch(DRIVER_VERSION, line.text.strip()):
            yield Fact("kernel_driver", "version", line.text.strip(), line, format=FORMAT)


def _module_on_disk(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    """`modinfo -F version nvidia`, or the lines that grep left of `modinfo nvidia`."""
    for line in answer[:4]:
        found = re.fullmatch(rf"(?:version:\s{{1,20}})?({DRIVER_VERSION})", line.text.strip())
        if found:
            yield Fact("driver_module_file", "version", found[1], line, format=FORMAT)


def _dkms(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    """`dkms status`: the version that is built, where it is one only."""
    built = [(found[1], line) for line in answer if (found := _DKMS.match(line.text))]
    if len({version for version, _ in built}) == 1:
        yield Fact("driver_module_file", "version", *built[0], format="dkms status")


def _toolkit_version(asked: re.Match[str], answer: Sequence[Line]) -> Iterator[Found]:
    for line in answer[:2]:
        if "version" in line.text:
            yield Said(line, "nvidia-ctk")


ANSWERS: tuple[tuple[re.Pattern[str], Answer], ...] = (
    (re.compile(r".{0,200}?\bulimit\s+(?:-[SH]\s?)?-([lnsuv])\b"), _ulimit),
    (re.compile(r"(?:which|command -v|type -p)\s+nvcc\b"), _which_nvcc),
    (re.compile(r"ls\s.{0,40}/usr/local(?:/cuda|/?\s*\|)"), _toolkits),
    (
        re.compile(r"\S{0,200}python3?\b.{0,20}-c\s.{0,400}torch\.(?:__version__|version\.cuda|cuda\.is_available|cuda\.device_count)"),
        _torch,
    ),
    (re.compile(r"(?:print\()?(torchvision|torchaudio|triton|vllm|sglang|flash_attn|xformers|transformers)\.__version__"), _version),
    (re.compile(r"(?:print\()?torch\.(?:__version__|version\.cuda|cuda\.is_available)"), _torch),
    (re.compile(r"\S{0,200}python3?\b.{0,20}-c\s.{0,400}sysconfig"), _include),
    (re.compile(r"uname\s+-([rma])\b"), _uname),
    (re.compile(r"echo\s+\"?\$\{?([A-Z][A-Z0-9_]{1,60})\}?\"?\s*$"), _echo),
    (re.compile(r"printenv\s+([A-Z][A-Z0-9_]{1,60})\s*$"), _echo),
    (re.compile(r"ls\s.{0,40}/usr/lib/wsl/lib"), _wsl),
    (re.compile(r"nvidia-smi\b"), _no_gpu),
    (re.compile(r"nvidia-ctk --version"), _toolkit_version),
    (re.compile(r"(?:sudo )?dkms status\b"), _dkms),
    (re.compile(r"cat\s+/sys/module/nvidia/version\b"), _loaded_module),
    (
        re.compile(
            r"(?:sudo )?(?:/sbin/)?modinfo\s(?:-F ?version nvidia|.{0,20}\bnvidia(?:\.ko)?(?: -F ?version|\s{0,4}\|.{0,40}version))\b"
        ),
        _module_on_disk,
    ),
)


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    index = 0
    while index < len(lines):
        prompt = _PROMPT.match(lines[index].text)
        printed = None if prompt else _PRINTED.match(lines[index].text)
        index += 1
        if printed:
            command, index = _script(printed[1], lines, index)
        elif prompt:
            command = prompt[1]
        else:
            continue
        for pattern, read in ANSWERS:
            asked = pattern.match(command)
            if asked:
                end = index
                while (
                    end < len(lines)
                    and end - index < ANSWER_LINES
                    and not _PROMPT.match(lines[end].text)
                    and not _PRINTED.match(lines[end].text)
                ):
                    end += 1
                found = tuple(read(asked, lines[index:end]))
                if found:
                    yield Said(lines[index - 1], FORMAT)
                yield from found
                break


def _script(command: str, lines: Sequence[Line], index: int) -> tuple[str, int]:
    """Lines that print one after the other, as one command: their answers come in the same order."""
    while index < len(lines) and (more := _PRINTED.match(lines[index].text)):
        command, index = f"{command}; {more[1]}", index + 1
    return command, index


_ASKED_LIMIT = re.compile(r"\bulimit\s{1,4}(?:-[SH]\s?)?-l(?!\s{1,4}(?:unlimited|\d))\b")
_VALUE = r"[`\"'*]{0,2}(?P<value>unlimited|\d{1,12})(?P<unit> ?(?:[kK](?:i?B|bytes)?))?\b(?![\w/.-]*\w)"
_SAYS = r"gives?|gave|returns?|returned|shows?|showed|prints?|printed|says?|said|reports?|reported|outputs?|answers?|answered|yields?|is|was|get|got|see"
_TOLD_BEHIND = re.compile(
    rf"[`\"')*\s]{{0,6}}(?:\S.{{0,40}}?\b(?:{_SAYS})\b(?: me| only| just| back| that| it is)?|=|:|->|=>|→)[:\s]{{0,4}}{_VALUE}"
)
_TOLD_BELOW = re.compile(rf"(?:\S.{{0,30}}?\b(?:{_SAYS})\b(?: me| only| just| back)?[:\s]{{0,4}})?{_VALUE}")
_ENDS_THERE = re.compile(r"[`\"')*:;.\s]{0,8}$")
BELOW_LINES = 3


def _told_limit(lines: Sequence[Line]) -> Iterator[Found]:
    """`ulimit -l` and its answer in a sentence: behind the command, or on the next line that says something."""
    for index, line in enumerate(lines):
        asked = _ASKED_LIMIT.search(line.text)
        if not asked:
            continue
        rest = line.text[asked.end() :]
        told, place = _TOLD_BEHIND.match(rest), line
        if not told and _ENDS_THERE.match(rest):
            place = next((other for other in lines[index + 1 : index + 1 + BELOW_LINES] if other.text.strip()), line)
            told = _TOLD_BELOW.match(place.text.strip()) if place is not line else None
        if told:
            yield from limit("l", told["value"], place, "ulimit")


PARSERS = (
    Parser("ulimit", ("ulimit -l", "ulimit -S -l", "ulimit -H -l"), _told_limit),
    Parser(FORMAT, ("$ ", "# ", "% ", ">>> ", "print(torch"), _parse),
)
