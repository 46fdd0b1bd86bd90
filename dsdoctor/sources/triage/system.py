"""The operating system and its limits: df, free, ulimit, /proc files, uname, os-release, lscpu, ldd, gcc and nvcc --version, id."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from dsdoctor.facts import HostCompiler
from dsdoctor.sources.texts import parse_compiler_version, parse_limits, parse_os_release, parse_tool_version
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said
from dsdoctor.sources.triage.lines import Line

# --- file systems and memory ------------------------------------------------------------------------------------------

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"\d{1,12}(?:\.\d{1,3})?[KMGTP]?i?B?"
_DF = re.compile(
    rf"(\S{{1,200}})\s{{1,60}}(?:[a-z]\w{{1,20}}\s{{1,20}})?({_SIZE})\s{{1,30}}({_SIZE}|-)\s{{1,30}}({_SIZE}|-)\s{{1,30}}(\d{{1,3}})%\s{{1,30}}(/\S{{0,200}})\s*$"
)
_PURPOSES = {"/": "root", "/tmp": "tmp", "/home": "home", "/root": "home", "/var": "var", "/var/tmp": "tmp"}


def size_bytes(text: str, unit_shift: int = 0) -> int | None:
    """Bytes in `64M`, `1.5G`, `125Gi`; a number without a unit counts in 2**unit_shift bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)([KMGTP]?)(?:i?B?)", text.strip(), re.IGNORECASE)
    if not found:
        return None
    shift = _UNITS[found[2].upper()] if found[2] else unit_shift
    return int(float(found[1]) * (1 << shift))


def _df(lines: Sequence[Line]) -> Iterator[Found]:
    unit_shift = 10
    for line in lines:
        text = line.text
        if text.startswith("Filesystem"):
            unit_shift = 20 if "1M-blocks" in text else 30 if "1G-blocks" in text else 0 if "B-blocks" in text else 10
            yield Said(line, "df")
            continue
        row = _DF.match(text) if "%" in text else None
        if not row:
            continue
        total, free = size_bytes(row[2], unit_shift), size_bytes(row[4], unit_shift)
        if total is None or free is None:
            continue
        if row[6] == "/dev/shm" or row[1] == "shm":
            yield Fact("shared_memory", "total_bytes", total, line, format="df")
            yield Fact("shared_memory", "free_bytes", free, line, format="df")
            continue
        path = row[6]
        yield Fact("directories", "purpose", _PURPOSES.get(path, "mount"), line, path, "df")
        yield Fact("directories", "total_bytes", total, line, path, "df")
        yield Fact("directories", "free_bytes", free, line, path, "df")
        if row[1] in ("overlay", "tmpfs", "nfs", "ext4", "xfs"):
            yield Fact("directories", "file_system", row[1], line, path, "df")


_FREE = re.compile(
    r"(Mem|Swap):\s{1,30}(\S{1,20})\s{1,30}(\S{1,20})\s{1,30}(\S{1,20})(?:\s{1,30}(\S{1,20})\s{1,30}(\S{1,20})\s{1,30}(\S{1,20}))?\s*$"
)
_MEMINFO = re.compile(r"(MemTotal|MemAvailable|SwapTotal):\s{1,20}(\d{1,15}) kB\s*$")
_MEMORY_FIELDS = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes", "SwapTotal": "swap_bytes"}
KIBIBYTES_FROM = 1 << 20
"""Plain numbers of `free` at least this large count kibibytes; smaller ones were rounded with -m or -g, and which is not told."""


def _free(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        row = _FREE.match(line.text)
        if row:
            exact = row[2].isdecimal()
            if exact and row[1] == "Mem" and int(row[2]) < KIBIBYTES_FROM:
                yield Said(line, "free")
                continue
            total = size_bytes(row[2], 10)
            available = size_bytes(row[7], 10) if row[7] else None
            if total and row[1] == "Mem":
                yield Fact("memory", "total_bytes", total, line, format="free")
                if available is not None:
                    yield Fact("memory", "available_bytes", available, line, format="free")
            elif total is not None and row[1] == "Swap" and (not exact or int(row[2]) >= KIBIBYTES_FROM):
                yield Fact("memory", "swap_bytes", total, line, format="free")
            continue
        told = _MEMINFO.match(line.text)
        if told:
            yield Fact("memory", _MEMORY_FIELDS[told[1]], int(told[2]) * 1024, line, format="/proc/meminfo")


# --- limits and identity ----------------------------------------------------------------------------------------------

_ULIMIT = re.compile(r"([a-z][a-z -]{3,40}?)\s{1,30}\((?:[\w ]{1,20}, )?-([a-zA-Z])\)\s{1,8}(unlimited|\d{1,20})\s*$")
_ULIMIT_NAMES = {"l": ("memlock", 1024), "n": ("nofile", 1), "s": ("stack", 1024), "u": ("nproc", 1), "c": ("core", 512), "v": ("as", 1024)}
_ID = re.compile(r"uid=(\d{1,10})\(")
_TRACED = re.compile(
    r"\b(?:getrlimit|prlimit64)\((?:\d{1,10}, )?RLIMIT_(MEMLOCK|NOFILE), (?:NULL, )?"
    r"\{rlim_cur=([\w*]{1,40}), rlim_max=([\w*]{1,40})\}\)\s{1,40}= 0\b"
)
"""How strace shows the limits that a process asks for; one that it sets has its NULL behind the values."""


def limit(option: str, value: str, line: Line, format: str) -> Iterator[Found]:
    """The soft limit that `ulimit -l` and its like print; what the hard limit is they do not say, and it is at least that."""
    if option in _ULIMIT_NAMES:
        name, unit = _ULIMIT_NAMES[option]
        amount = None if value == "unlimited" else int(value) * unit
        yield Fact("limits", "soft", amount, line, name, format)
        yield Fact("limits", "hard", amount, line, name, format)


def _amount(text: str) -> int | None:
    """`8192*1024` as a number; None for RLIM64_INFINITY."""
    factors = text.split("*")
    return math.prod(int(factor) for factor in factors) if all(factor.isdecimal() for factor in factors) else None


def _limits(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        text = line.text
        if "(" in text and (row := _ULIMIT.match(text)):
            yield from limit(row[2], row[3], line, "ulimit -a")
        elif text.startswith("Max "):
            for name, found in parse_limits(text).items():
                yield Fact("limits", "soft", found.soft, line, name, "/proc/PID/limits")
                yield Fact("limits", "hard", found.hard, line, name, "/proc/PID/limits")
        elif "RLIMIT_" in text and (traced := _TRACED.search(text)):
            yield Fact("limits", "soft", _amount(traced[2]), line, traced[1].lower(), "strace")
            yield Fact("limits", "hard", _amount(traced[3]), line, traced[1].lower(), "strace")
        elif "uid=" in text and (who := _ID.search(text)):
            yield Fact("identity", "uid", int(who[1]), line, format="id")


# --- operating system -------------------------------------------------------------------------------------------------

_UNAME = re.compile(r"Linux \S{1,100} (\d{1,2}\.\d{1,3}\.\S{1,100}) #.{0,200}?\b(x86_64|aarch64)\b")
_RELEASE = re.compile(
    r"(\d{1,2}\.\d{1,3}\.\d{1,3}[-.]\S{0,80}?(?:generic|el\d\S*|WSL2|amzn\S*|azure\S*|aws|gcp|\.x86_64|\.aarch64))(?: (x86_64|aarch64))?\s*$"
)
_WSL = re.compile(r"(?:\S{0,60}-)?microsoft-standard(?:-WSL2)?\b|\bmicrosoft-standard-WSL2\b")
_GLIBC = re.compile(r"ldd \(.{0,60}\) (\d\.\d{1,3})\s*$")
_OS_RELEASE = {"ID": "os_id", "VERSION_ID": "os_version", "PRETTY_NAME": "os_name", "ID_LIKE": "os_id_like"}
_OS_LINE = re.compile(r"(ID|VERSION_ID|PRETTY_NAME|ID_LIKE)=(.{1,100})$")
_LSCPU = re.compile(r"(Architecture|CPU\(s\)|Vendor ID|Model name|Socket\(s\)|Hypervisor vendor):\s{1,60}(\S.{0,120})$")
_HYPERVISORS = {"KVM": "kvm", "VMware": "vmware", "Microsoft": "hyperv", "Xen": "xen"}


def kernel(release: str, line: Line, format: str, architecture: str | None = None) -> Iterator[Found]:
    """What the release of a kernel tells, also whether it is the one of WSL."""
    yield Fact("platform", "kernel_release", release, line, format=format)
    if architecture:
        yield Fact("platform", "architecture", architecture, line, format=format)
    if "microsoft" in release.lower():
        yield Fact("wsl", "version", 1 if release.endswith("-Microsoft") else 2, line, format=format)
        yield Fact("wsl", "kernel_release", release, line, format=format)


def _system(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        text = line.text
        if text.startswith("Linux ") and (uname := _UNAME.match(text)):
            yield from kernel(uname[1], line, "uname", uname[2])
        elif "=" in text and (told := _OS_LINE.match(text)):
            value = parse_os_release(text).get(told[1], "")
            if value:
                yield Fact(
                    "platform", _OS_RELEASE[told[1]], tuple(value.split()) if told[1] == "ID_LIKE" else value, line, format="os-release"
                )
        elif text.startswith("ldd (") and (libc := _GLIBC.match(text)):
            yield Fact("libc", "version", libc[1], line, format="ldd --version")
        elif ":" in text and (cpu := _LSCPU.match(text)):
            yield from _cpu(cpu[1], cpu[2].strip(), line)


def _cpu(name: str, value: str, line: Line) -> Iterator[Found]:
    if name == "Architecture" and value in ("x86_64", "aarch64"):
        yield Fact("platform", "architecture", value, line, format="lscpu")
    elif name in ("CPU(s)", "Socket(s)") and value.isdecimal() and len(value) < 6:
        yield Fact("cpu", "logical_cpus" if name == "CPU(s)" else "sockets", int(value), line, format="lscpu")
    elif name in ("Vendor ID", "Model name") and value != "-":
        yield Fact("cpu", "vendor" if name == "Vendor ID" else "model", value, line, format="lscpu")
    elif name == "Hypervisor vendor" and value in _HYPERVISORS:
        yield Fact("virtualization", "hypervisor", _HYPERVISORS[value], line, format="lscpu")


def _bare_release(lines: Sequence[Line]) -> Iterator[Found]:
    """`uname -r` without the command, in a text of a few lines."""
    filled = [line for line in lines if line.text.strip()]
    for line in filled if len(filled) <= 3 else ():
        text = line.text.strip()
        wsl = _WSL.search(text)
        release = _RELEASE.match(text)
        if wsl:
            architecture = next((name for name in ("x86_64", "aarch64") if name in text), None)
            yield from kernel(release[1] if release else wsl[0], line, "uname", architecture)
        elif release:
            yield from kernel(
                release[1], line, "uname", release[2] or next((name for name in ("x86_64", "aarch64") if text.endswith(name)), None)
            )


# --- compilers --------------------------------------------------------------------------------------------------------

_COMPILER = re.compile(r"(gcc|g\+\+|cc|c\+\+|clang)(?:-\d{1,2})? \(|(?:\w{1,20} )?clang version ")


def _compilers(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        text = line.text
        if "Cuda compilation tools" in text or "release " in text:
            version, release = parse_tool_version(text)
            short = re.search(r"Cuda compilation tools, release (\d{1,2}\.\d{1,2})", text)
            if short and not text.lstrip().startswith("NVCC:"):
                yield from toolkit("nvcc", version, release or short[1], line, "nvcc --version")
                yield Fact("cuda_toolkits", "is_first_on_path", True, line, "nvcc", "nvcc --version")
        elif len(text) < 200 and (named := _COMPILER.match(text)):
            version = parse_compiler_version(text)
            if version:
                name = named[1] or "clang"
                record = HostCompiler(name=name, path=name, version=version, chosen_by="PATH")
                yield Fact("host_compilers", "", record, line, name, f"{name} --version")


def toolkit(path: str, version: str, release: str, line: Line, format: str) -> Iterator[Found]:
    """A toolkit; where only the words of nvcc are known, its path is `nvcc`."""
    yield Fact("cuda_toolkits", "cuda_version", release, line, path, format)
    if version:
        yield Fact("cuda_toolkits", "version", version, line, path, format)


PARSERS = (
    Parser("df", ("Filesystem", "% /"), _df),
    Parser("free", ("Mem:", "MemTotal:"), _free),
    Parser(
        "ulimit", ("locked memory", "open files", "stack size", "max user processes", "uid=", "RLIMIT_MEMLOCK", "RLIMIT_NOFILE"), _limits
    ),
    Parser("system", ("Linux ", "PRETTY_NAME=", "VERSION_ID=", "ID=", "ldd (", "Architecture:", "Model name:", "CPU(s):"), _system),
    Parser("uname", (), _bare_release),
    Parser("compilers", ("Cuda compilation tools", "gcc", "g++", "clang version", "cc ("), _compilers),
)
