"""Read shared memory and the directories that the stack writes to. Nothing is created or written.

A network file system whose server is gone never answers. Each directory is therefore asked about in a thread of its own, and one that
does not answer in time is reported as such while the others are complete.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dsdoctor.facts import Directory, MountPoint, Section, SharedMemory, absent, known, unreadable
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import readable

T = TypeVar("T")

MOUNTINFO = "/proc/self/mountinfo"
ANSWER_WAIT_S = 4.0
FIRST_OF_LIST = frozenset({"DG_JIT_CACHE_DIR"})
"""Variables that may name several directories, separated by colons; the first is written to."""
LAYER_OPTIONS = ("lowerdir", "upperdir", "workdir")
PSEUDO_FILE_SYSTEMS = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devpts", "securityfs"})
KERNEL_FILE_SYSTEMS = frozenset(
    {"binfmt_misc", "bpf", "configfs", "debugfs", "devtmpfs", "efivarfs", "fusectl", "mqueue", "nsfs", "pstore", "rpc_pipefs", "tracefs"}
)
PRIVATE_PLACES = (
    "/etc/", "/proc/", "/sys/", "/usr/bin/", "/usr/lib/", "/run/", "/snap/",
    "/var/lib/docker/", "/var/lib/containerd/", "/var/lib/containers/", "/var/lib/kubelet/",
)  # fmt: skip
"""Where container engines and services mount single files, layers and sockets for themselves."""
NAMES_SOMEBODY = re.compile(r"^[a-z_]*(?:addr|user|uid|gid|name|domain|host|dir|key|pass|secret|token|cred)[a-z_]*=", re.IGNORECASE)
"""Mount options that carry a name, an address or a place."""
MOUNTS_LIMIT = 300


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Fill the sections shared_memory, directories and mounts."""
    mounts = read_mounts(host)
    return {"shared_memory": _shared_memory(host, mounts), "directories": _directories(host, mounts), "mounts": _mount_points(mounts)}


# --- mounts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo."""

    mount_point: str
    root: str
    """The part of the file system that is mounted, / for all of it."""
    file_system: str
    source: str
    options: tuple[str, ...]
    """Of this mount and of the file system, each once."""


def read_mounts(host: Host) -> tuple[Mount, ...]:
    """The mounts this process sees, oldest first; empty when they cannot be read."""
    try:
        return parse_mountinfo(host.read_text(MOUNTINFO))
    except OSError:
        return ()


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in a text of /proc/self/mountinfo (proc(5)); lines of another form are left out."""
    return tuple(mount for line in text.split("\n") if (mount := _mount(line)))


def _mount(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 6 or len(right) < 3 or not left[4].startswith("/"):
        return None
    options = [*left[5].split(","), *right[2].split(",")]
    return Mount(
        mount_point=unescaped(left[4]),
        root=unescaped(left[3]),
        file_system=right[0],
        source=unescaped(right[1]),
        options=tuple(dict.fromkeys(unescaped(option) for option in options if option)),
    )


def unescaped(text: str) -> str:
    r"""Text of mountinfo with its octal escapes (a space is \040) put back."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds a path (links already followed); of several on one point the last one, which covers the others."""
    held_by = None
    for mount in mounts:
        inside = path == mount.mount_point or path.startswith(mount.mount_point.rstrip("/") + "/")
        if inside and (held_by is None or len(mount.mount_point) >= len(held_by.mount_point)):
            held_by = mount
    return held_by


def told_options(mount: Mount | None) -> tuple[str, ...]:
    """The options of a mount without the layer directories of an overlay, which fill pages and tell nothing."""
    return tuple(option for option in mount.options if not option.startswith(LAYER_OPTIONS)) if mount else ()


def _mount_points(mounts: Sequence[Mount]) -> Section[Any]:
    """What is mounted, the last one of each path. Nothing is asked of the file systems: one whose server is gone would not answer."""
    last = {mount.mount_point: mount for mount in mounts}
    told = [
        MountPoint(
            path=readable(path),
            file_system=mount.file_system,
            options=tuple(option for option in told_options(mount) if not NAMES_SOMEBODY.search(option)),
        )
        for path, mount in sorted(last.items())
        if mount.file_system not in PSEUDO_FILE_SYSTEMS | KERNEL_FILE_SYSTEMS and not path.startswith(PRIVATE_PLACES)
    ]
    return known(tuple(told[:MOUNTS_LIMIT]), MOUNTINFO) if mounts else unreadable(f"{MOUNTINFO} cannot be read")


# --- shared memory ----------------------------------------------------------------------------------------------------


def _shared_memory(host: Host, mounts: Sequence[Mount]) -> Section[Any]:
    path = "/dev/shm"
    if not host.exists(path):
        return absent("/dev/shm does not exist", "stat") if host.exists("/dev") else unreadable("/dev cannot be read", "stat")
    try:
        size = host.file_system(path)
    except OSError as error:
        return unreadable(f"/dev/shm: {error.strerror or error}", "statvfs")
    mount = mount_of(host.real_path(path), mounts)
    return known(
        SharedMemory(path=path, total_bytes=size.total_bytes, free_bytes=size.free_bytes, mount_options=told_options(mount)),
        f"statvfs, {MOUNTINFO}" if mount else "statvfs",
    )


# --- directories ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a directory is for, and how its owner finds it: the first variable that is set, else the default."""

    name: str
    variables: tuple[tuple[str, str], ...]
    """Variable, and what is appended to its value."""
    default: str


PURPOSES = (
    Purpose("triton-cache", (("TRITON_CACHE_DIR", ""), ("TRITON_HOME", "/.triton/cache")), "~/.triton/cache"),
    Purpose("torch-extensions", (("TORCH_EXTENSIONS_DIR", ""), ("XDG_CACHE_HOME", "/torch_extensions")), "~/.cache/torch_extensions"),
    Purpose("torchinductor", (("TORCHINDUCTOR_CACHE_DIR", ""), ("TMPDIR", "/torchinductor_{user}")), "/tmp/torchinductor_{user}"),
    Purpose(
        "huggingface-cache",
        (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "/hub"), ("XDG_CACHE_HOME", "/huggingface/hub")),
        "~/.cache/huggingface/hub",
    ),
    Purpose("vllm-cache", (("VLLM_CACHE_ROOT", ""), ("XDG_CACHE_HOME", "/vllm")), "~/.cache/vllm"),
    Purpose("sglang-cache", (("SGLANG_JIT_CACHE_ROOT", ""),), "~/.cache/sglang"),
    Purpose("deepgemm-cache", (("DG_JIT_CACHE_DIR", ""),), "~/.deep_gemm"),
    Purpose("deepep-cache", (("EP_JIT_CACHE_DIR", ""),), "~/.deep_ep"),
    Purpose("flashinfer-cache", (("FLASHINFER_WORKSPACE_BASE", "/.cache/flashinfer"),), "~/.cache/flashinfer"),
    Purpose("cuda-cache", (("CUDA_CACHE_PATH", ""),), "~/.nv/ComputeCache"),
    Purpose("tmp", (("TMPDIR", ""),), "/tmp"),
    Purpose("home", (("HOME", ""),), "~"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """One directory to look at."""

    purpose: str
    path: str
    configured_by: str


def _directories(host: Host, mounts: Sequence[Mount]) -> Section[Any]:
    if not host.is_directory("/"):
        return unreadable("the root directory cannot be read", "stat")
    places = places_to_look(host)
    found = ask_all([_question(host, place, mounts) for place in places], ANSWER_WAIT_S)
    directories = tuple(answer or _without_answer(place, mounts) for place, answer in zip(places, found))
    return known(directories, "environment, statvfs, access")


def places_to_look(host: Host) -> tuple[Place, ...]:
    """Where each directory is in this environment; those that depend on an unknown home or user are left out."""
    home, user = _home_and_user(host)
    places = []
    for purpose in PURPOSES:
        variable, suffix = next(((name, rest) for name, rest in purpose.variables if host.environment.get(name)), ("", ""))
        path = _value(host, variable).rstrip("/") + suffix or "/" if variable else purpose.default
        if ("{user}" in path and not user) or (path.startswith("~") and not home):
            continue
        path = path.replace("{user}", user)
        if path == "~" or path.startswith("~/"):
            path = home.rstrip("/") + path[1:] or "/"
        path = os.path.join(host.environment.get("PWD", ""), path)
        if path.startswith("/") and "\0" not in path:
            places.append(Place(purpose.name, os.path.normpath(path), variable))
    return tuple(places)


def _value(host: Host, variable: str) -> str:
    value = host.environment[variable]
    return value.partition(":")[0] if variable in FIRST_OF_LIST else value


def _home_and_user(host: Host) -> tuple[str, str]:
    """Home directory and user name: from the environment, else from /etc/passwd, else empty."""
    environment = host.environment
    home = environment.get("HOME", "")
    user = next((environment[name] for name in ("LOGNAME", "USER", "LNAME", "USERNAME") if environment.get(name)), "")
    if not (home and user):
        entry = _passwd_entry(host)
        home, user = home or entry[5], user or entry[0]
    return home, re.sub(r'[\\/:*?"<>|]', "_", user)


def _passwd_entry(host: Host) -> list[str]:
    try:
        uid = re.search(r"^Uid:\s+(\d+)", host.read_text("/proc/self/status"), re.MULTILINE)
        entries = [line.split(":") for line in host.read_text("/etc/passwd").splitlines()]
    except OSError:
        return [""] * 7
    return next((entry for entry in entries if uid and len(entry) == 7 and entry[2] == uid[1]), [""] * 7)


def _question(host: Host, place: Place, mounts: Sequence[Mount]) -> Callable[[], Directory]:
    return lambda: examine(host, place, mounts)


def examine(host: Host, place: Place, mounts: Sequence[Mount]) -> Directory:
    """All facts of one directory; where it does not exist yet, those of the nearest parent that does. May block on a dead mount."""
    exists = host.exists(place.path)
    nearest = place.path
    while nearest != "/" and not host.exists(nearest):
        nearest = os.path.dirname(nearest)
    mount = mount_of(host.real_path(nearest), mounts)
    is_directory = host.is_directory(nearest)
    try:
        size = host.file_system(nearest)
        counts_inodes = os.statvfs(host.local(nearest)).f_files > 0  # btrfs, among others, counts none and reports 0 free
        why = "" if is_directory else f"{nearest} is not a directory"
    except OSError as error:
        size, counts_inodes, why = None, False, f"{nearest}: {error.strerror or error}"
    return Directory(
        purpose=place.purpose,
        path=readable(place.path),
        configured_by=place.configured_by,
        exists=exists,
        writable=None if host.rights_differ else is_directory and host.is_writable(nearest) and not _refuses_writes(mount),
        free_bytes=size.free_bytes if size else None,
        free_inodes=size.free_inodes if size and counts_inodes else None,
        total_bytes=size.total_bytes if size else None,
        file_system=mount.file_system if mount else "",
        mount_options=told_options(mount),
        why=why,
    )


def _refuses_writes(mount: Mount | None) -> bool:
    """Whether the mount takes no new file whatever the permissions say: read-only, or a view of the kernel such as /proc."""
    return mount is not None and ("ro" in mount.options or mount.file_system in PSEUDO_FILE_SYSTEMS)


def _without_answer(place: Place, mounts: Sequence[Mount]) -> Directory:
    mount = mount_of(place.path, mounts)
    return Directory(
        purpose=place.purpose,
        path=readable(place.path),
        configured_by=place.configured_by,
        exists=False,
        file_system=mount.file_system if mount else "",
        mount_options=told_options(mount),
        why=f"the file system gave no answer within {ANSWER_WAIT_S:.0f} s",
    )


def ask_all(questions: Sequence[Callable[[], T]], wait_s: float) -> list[T | None]:
    """Ask all questions at once, each in its own thread; None stands for an answer that did not come within `wait_s` seconds.

    A thread that is stuck in the kernel is left behind; it ends with the process.
    """
    answers: list[T | None] = [None] * len(questions)

    def ask(number: int) -> None:
        answers[number] = questions[number]()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(questions))]
    deadline = time.monotonic() + wait_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(answers)
