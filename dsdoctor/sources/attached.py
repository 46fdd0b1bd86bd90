"""Attach to a running process: look at the node as it sees it, with its root, environment, limits and interpreter.

Only files are read. Nothing is sent to the process, and neither its interpreter nor a program on its PATH is started: it may belong to
another user, and the doctor may run as root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from dsdoctor.errors import UsageError
from dsdoctor.record import dataclass
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Target
from dsdoctor.sources.target import examine

PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?t?)?")
LIBPYTHON = re.compile(r"/libpython\d[^/]*\.so")
SITE_PACKAGES = re.compile(r"(/[^\n]*?)/lib(?:64)?/python3\.\d+t?/site-packages/")
REPLACED = " (deleted)"
"""What the kernel puts behind the name of a file that is gone since."""
READ_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A process, and the machine as it sees it."""

    pid: int
    host: Host
    target: Target


def attach(host: Host, pid: int, folder: str = "") -> Attached:
    """The process of a number on this machine. `folder` is where its entries of /proc are, by default those of `host`.

    Raises UsageError when there is no such process, when it may not be looked at, or when it is not Python.
    """
    folder = folder or f"{host.local('/proc')}/{pid}"
    executable = _executable(folder, pid)
    maps = _text(f"{folder}/maps")
    if not PYTHON.fullmatch(os.path.basename(executable)) and not LIBPYTHON.search(maps):
        raise UsageError(
            f"--pid {pid}: it runs {executable}, which is not Python; name the Python process of the engine (ps -ef | grep -i python)"
        )
    view = replace(
        host, root=_root(host, folder), environment=_environment(folder), commands={}, own_interpreter=executable, process=folder,
        rights_differ=_rights_differ(folder),
    )  # fmt: skip
    path = next((path for path in _interpreters(view, folder, executable, maps) if view.exists(path)), executable)
    return Attached(pid=pid, host=view, target=examine(view, path, f"--pid {pid}"))


def _executable(folder: str, pid: int) -> str:
    if not os.path.isdir(folder):
        raise UsageError(f"--pid {pid}: there is no such process; it may have ended (ps -p {pid})")
    try:
        return os.readlink(f"{folder}/exe").removesuffix(REPLACED)
    except PermissionError:
        owner = re.search(r"^Uid:\s+(\d+)", _text(f"{folder}/status"), re.MULTILINE)
        whose = f"user {owner[1]}" if owner else "another user"
        how = "root lacks the capability SYS_PTRACE here" if os.geteuid() == 0 else "run dsdoctor as that user, or as root"
        raise UsageError(f"--pid {pid}: it belongs to {whose} and may not be looked at; {how}") from None
    except OSError:
        raise UsageError(f"--pid {pid}: it has ended, or is a thread of the kernel: nothing runs there that could be examined") from None


def _text(path: str) -> str:
    """A file of /proc, at most its beginning; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(READ_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _environment(folder: str) -> dict[str, str]:
    """The variables that the process was started with; a title that it gave itself may have overwritten them."""
    pairs = (item.partition("=") for item in _text(f"{folder}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals and re.fullmatch(r"[A-Za-z_]\w*", name)}


def _root(host: Host, folder: str) -> str:
    """The root directory of the process, as a path on the machine that runs the doctor."""
    if host.root != "/":
        return host.root
    try:
        is_ours = os.readlink(f"{folder}/root") == "/" and os.readlink(f"{folder}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        is_ours = False
    return "/" if is_ours else f"{folder}/root"


def _rights_differ(folder: str) -> bool:
    """Whether the process may open and write other files than the doctor: another user, or another cgroup, which rules over devices."""
    status = re.search(r"^Uid:\s+\d+\s+(\d+)", _text(f"{folder}/status"), re.MULTILINE)
    same_user = status is not None and int(status[1]) == os.geteuid()
    return not same_user or _text(f"{folder}/cgroup") != _text("/proc/self/cgroup")


def _interpreters(host: Host, folder: str, executable: str, maps: str) -> Iterator[str]:
    """Where its interpreter may be, the surest first.

    /proc/PID/exe has links followed and so forgets a virtual environment; the first word of the command line and the files that are mapped
    remember it. A process that gave itself a title (VLLM::Worker) has lost its command line, and often its environment.
    """
    first = _text(f"{folder}/cmdline").partition("\0")[0]
    if "/" in first and not first.startswith("/"):
        try:
            first = os.path.normpath(os.path.join(os.readlink(f"{folder}/cwd"), first))
        except OSError:
            first = ""
    elif first and PYTHON.fullmatch(first):
        first = host.which(first) or ""
    if first.startswith("/") and PYTHON.fullmatch(os.path.basename(first)) and host.real_path(first) == host.real_path(executable):
        yield first
    prefixes = list(dict.fromkeys(found[1] for found in SITE_PACKAGES.finditer(maps)))
    prefixes += [host.environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if host.environment.get(name, "").startswith("/")]
    for prefix in prefixes:
        path = f"{prefix.rstrip('/')}/bin/python"
        if host.real_path(path) == host.real_path(executable):
            yield path
