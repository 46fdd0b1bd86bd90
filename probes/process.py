"""What a running process has mapped, and how it was started: for `--pid`, in place of a child that imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsdoctor.facts import Command, MappedLibrary, Section, TorchRuntime, absent, known, not_asked, unreadable
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import SECRET_WORDS, told_value
from dsdoctor.sources.triage.commands import parse_options

from .libraries import owned_copies
from .torch import mapped_libraries

FOUND_VIA = "/proc/PID/maps of the process"
REPLACED = " (deleted)"
MAPS_LIMIT_BYTES = 32 << 20
COMMAND_LIMIT_BYTES = 1 << 16
ENGINE_MODULES = re.compile(r"(?:vllm|sglang|torch|deepspeed|ray)(?:\.[\w.]+)?")
PROGRAMS = ("vllm", "sglang", "torchrun", "deepspeed", "accelerate")
VALUE_LIMIT = 200


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Sections mapped_libraries, torch_runtime and commands."""
    return {**_mapped(host, scope), "commands": _commands(host)}


def _mapped(host: Host, scope: Scope) -> dict[str, Section[Any]]:
    try:
        paths = parse_maps(host.read_text("/proc/self/maps", MAPS_LIMIT_BYTES))
    except OSError as error:
        nothing = unreadable(f"/proc/PID/maps: {error.strerror or error}", FOUND_VIA)
        return {"mapped_libraries": nothing, "torch_runtime": nothing}
    copies = owned_copies(host, scope.target) if scope.target else {}
    mapped = mapped_libraries({"mapped": list(paths)}, "", copies)
    has_torch = any(path.rpartition("/")[2].startswith("libtorch_cpu.so") for path in paths)
    without = absent("the process has not loaded torch", FOUND_VIA)
    return {
        "mapped_libraries": known(mapped.value or (), FOUND_VIA),
        "torch_runtime": known(_runtime(mapped.value or ()), FOUND_VIA) if has_torch else without,
    }


def parse_maps(text: str) -> tuple[str, ...]:
    """The shared objects in a text of /proc/PID/maps, in the order of their addresses; those that are gone from the disk too."""
    fields = (line.split(None, 5) for line in text.splitlines())
    paths = (field[5].removesuffix(REPLACED) for field in fields if len(field) == 6 and field[5].startswith("/") and ".so" in field[5])
    return tuple(dict.fromkeys(paths))


def _runtime(mapped: Iterable[MappedLibrary]) -> TorchRuntime:
    """What is known of torch without asking it: that it was imported, and the versions of what it loaded."""
    versions: dict[str, str] = {}
    for library in mapped:
        if library.version and not library.soname.startswith("libcudnn_"):
            versions.setdefault(library.family, library.version)
    return TorchRuntime(
        imported=True, runtime_cuda=_cuda(versions.get("cudart", "")), cudnn_version=versions.get("cudnn", ""),
        nccl_loaded=versions.get("nccl", ""),
    )  # fmt: skip


def _cuda(version: str) -> str:
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else ""


# --- the command line -------------------------------------------------------------------------------------------------


def _commands(host: Host) -> Section[Any]:
    try:
        words = [word for word in host.read_text("/proc/self/cmdline", COMMAND_LIMIT_BYTES).split("\0") if word]
    except OSError as error:
        return unreadable(f"/proc/PID/cmdline: {error.strerror or error}")
    command = command_of(words)
    return known((command,), "/proc/PID/cmdline") if command else not_asked("the command line names no engine and no launcher")


def command_of(words: Sequence[str]) -> Command | None:
    """The engine or launcher in a command line, with its options; values that may be secrets are left out."""
    for position, word in enumerate(words):
        name = word.rpartition("/")[2]
        if word == "-m" and position + 1 < len(words) and ENGINE_MODULES.fullmatch(words[position + 1]):
            program, rest = words[position + 1], words[position + 2 :]
        elif name in PROGRAMS:
            program, rest = name, words[position + 1 :]
        else:
            continue
        if rest and re.fullmatch(r"[a-z]{2,12}", rest[0]) and program in ("vllm", "sglang"):
            program, rest = f"{program} {rest[0]}", rest[1:]
        options = {name: _harmless(name, value) for name, value in parse_options(rest).items()}
        if rest and not rest[0].startswith("-") and program in ("vllm serve", "sglang serve"):
            options = {"model": told_value(rest[0])[:VALUE_LIMIT], **options}
        shown = " ".join(f"--{name} {value}".rstrip() for name, value in options.items())
        return Command(program=program, text=f"{program} {shown}".rstrip(), options=options, where="/proc/PID/cmdline")
    return None


def _harmless(name: str, value: str) -> str:
    return "<redacted>" if value and SECRET_WORDS.search(name) else told_value(value)[:VALUE_LIMIT]
