"""The processes of this doctor, so that its own use of a GPU is not taken for a stranger's."""

from __future__ import annotations

import contextlib
import os

from dsdoctor.sources.host import Host


def own_processes(host: Host) -> frozenset[int]:
    """Processes of this doctor: those below it, and itself. Its other probes use the GPU at the same time and are no stranger's work."""
    # The probes of a run are sessions of their own; then the parent is the doctor.
    root = os.getppid() if os.getsid(0) == os.getpid() else os.getpid()
    children: dict[int, list[int]] = {}
    for path in host.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = host.read_text(path, 4096)
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.split("/")[2]))
    found, pending = set(), [root]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, ())
    return frozenset(found)
