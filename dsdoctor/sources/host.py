"""The only door to the machine: files, directories, the environment and short commands.

Probes take a Host and nothing else, so that a recorded tree under another root examines as the machine it came from.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field

from dsdoctor.record import dataclass
from dsdoctor.sources.child import Ended, run

READ_LIMIT_BYTES = 4 << 20
OWN = "/proc/self"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Size of a file system (`statvfs`), in bytes and inodes."""

    total_bytes: int
    free_bytes: int
    free_inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine, or a recorded tree under `root`.

    Paths are always written as on the machine (`/proc/meminfo`); links are followed inside the root. `commands` answers commands on a
    recorded tree: the joined argument list maps to what the command said; a command that is not there does not exist.
    """

    root: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    commands: Mapping[str, Ended] | None = None
    own_interpreter: str = sys.executable
    process: str = ""
    """The folder of /proc (outside the root) of the process that is examined: then /proc/self means that one, and nothing is started."""
    rights_differ: bool = False
    """Whether that process may open and write other files than this one."""

    def read_text(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str:
        """The text of a file, at most `limit_bytes`; undecodable bytes are replaced. Raises OSError."""
        return self.read_bytes(path, limit_bytes).decode("utf-8", "replace")

    def read_bytes(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes:
        """The first bytes of a file. Never blocks on a pipe or device. Raises OSError."""
        descriptor = os.open(self.local(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            chunks, left = [], limit_bytes
            while left > 0 and (chunk := file.read(min(left, 1 << 16))):
                chunks.append(chunk)
                left -= len(chunk)
        return b"".join(chunks)

    def first_line(self, path: str) -> str | None:
        """The first line of a small file, stripped, or None when it cannot be read."""
        try:
            text = self.read_text(path, 1 << 16)
        except OSError:
            return None
        return text.partition("\n")[0].strip()

    def exists(self, path: str) -> bool:
        """Whether the path is there (links followed)."""
        return os.path.exists(self.local(path))

    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory (links followed)."""
        return os.path.isdir(self.local(path))

    def list_directory(self, path: str) -> tuple[str, ...]:
        """Sorted names in a directory. Raises OSError."""
        return tuple(sorted(os.listdir(self.local(path))))

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Paths that match, as on the machine, sorted."""
        if self.root == "/":
            return tuple(sorted(glob.glob(pattern)))
        prefix = self.root.rstrip("/")
        return tuple(sorted(found[len(prefix) :] for found in glob.glob(glob.escape(prefix) + pattern)))

    def read_link(self, path: str) -> str | None:
        """The target text of a symbolic link, or None."""
        parent, name = os.path.split(path)
        try:
            return os.readlink(os.path.join(self.local(parent), name))
        except OSError:
            return None

    def real_path(self, path: str) -> str:
        """The path with all links followed, as on the machine."""
        local = self.local(path)
        return local if self.root == "/" else local[len(self.root.rstrip("/")) :] or "/"

    def status(self, path: str) -> os.stat_result:
        """`stat` of the path, links followed. Raises OSError."""
        return os.stat(self.local(path))

    def is_executable(self, path: str) -> bool:
        """Whether the path is a file that may be run."""
        try:
            mode = self.status(path).st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) and os.access(self.local(path), os.X_OK)

    def is_writable(self, path: str) -> bool:
        """Whether this process may write to the path, by mode, owner and mount."""
        return os.access(self.local(path), os.W_OK)

    def open_error(self, path: str) -> OSError | None:
        """None when the device can be opened for reading and writing, else the error. Opens and closes, nothing more."""
        try:
            os.close(os.open(self.local(path), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            return error
        return None

    def file_system(self, path: str) -> FileSystem:
        """Size of the file system that holds the path. Raises OSError."""
        found = os.statvfs(self.local(path))
        return FileSystem(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_favail)

    def which(self, name: str) -> str | None:
        """The first executable of that name on PATH."""
        search = self.environment.get("PATH", os.defpath)
        if self.root == "/":
            return shutil.which(name, path=search)
        candidates = (os.path.join(folder, name) for folder in search.split(os.pathsep) if folder)
        return next((path for path in candidates if self.is_executable(path)), None)

    def run(self, argv: Sequence[str], timeout_s: float = 5.0, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a short read-only command; it is killed with everything it started when the time is up."""
        if self.commands is not None:
            return self.commands.get(" ".join(argv), Ended(outcome="not_found", detail=f"{argv[0]}: not recorded"))
        if self.root != "/":
            return Ended(outcome="not_found", detail="a recorded tree runs no commands")
        return run(argv, timeout_s=timeout_s, environment=self.environment if environment is None else environment)

    def local(self, path: str) -> str:
        """The path on the machine that runs the doctor, links followed inside the root."""
        if self.process and (path == OWN or path.startswith(f"{OWN}/")):
            return self.process + path.removeprefix(OWN)
        if self.root == "/":
            return os.path.realpath(path)
        resolved = ""
        pending = [part for part in path.split("/") if part]
        for _ in range(4096):
            if not pending:
                break
            part = pending.pop(0)
            if part == "..":
                resolved = resolved.rpartition("/")[0]
                continue
            if part == ".":
                continue
            candidate = f"{resolved}/{part}"
            try:
                target = os.readlink(self.root.rstrip("/") + candidate)
            except OSError:
                resolved = candidate
                continue
            if target.startswith("/"):
                resolved = ""
            pending = [piece for piece in target.split("/") if piece] + pending
        return self.root.rstrip("/") + (resolved or "/")
