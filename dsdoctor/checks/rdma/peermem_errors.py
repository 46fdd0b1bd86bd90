"""The module that lets network cards reach GPU memory complains (nvidia-peermem).

What it looks at
    Error lines of nvidia-peermem in the kernel log of this boot.

Why it matters
    "detected invalid context" comes when a program freed GPU memory, or died, while a network card still had it registered. It ends nothing by itself, but it goes along with hanging collectives and ranks
    that died without a word: look at what the job did at that time. Other lines mean that a registration failed, and that traffic took the way through host memory.

Sources
    NVIDIA open-gpu-kernel-modules, nvidia-peermem; reports of NCCL users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import KernelLog, KernelLogLine, unreadable
from dsdoctor.findings import Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies

ERROR = re.compile(r"\bnvidia[-_]peermem\b.*\bERROR\b", re.IGNORECASE)
SOURCE = "NVIDIA open-gpu-kernel-modules, nvidia-peermem — https://github.com/NVIDIA/open-gpu-kernel-modules"
LINE = KernelLogLine(text="nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing")

CASES = (
    Case(
        title="memory was freed under a registration",
        sections={"kernel_log": KernelLog(lines=(LINE, LINE))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2 times",
    ),
    Case(title="a quiet log", sections={"kernel_log": KernelLog()}, status=Status.PASS),
    Case(
        title="the log may not be read",
        sections={"kernel_log": unreadable("not permitted")},
        status=Status.UNKNOWN,
        says="permitted",
    ),
)


@check("rdma.peermem-errors", Severity.INFO, settle="sudo dmesg -T | grep -i peermem", cases=CASES)
def peermem_errors(kernel_log: KernelLog, remedies: Remedies) -> Iterator[Finding]:
    """One note for all lines of this boot."""
    lines = [line for line in kernel_log.lines if ERROR.search(line.text)]
    if lines:
        yield Finding(
            subject="nvidia-peermem",
            summary=f"nvidia-peermem reported an error{'' if len(lines) == 1 else f' {len(lines)} times'}.",
            cause="A program freed GPU memory, or died, while a network card had it registered.",
            evidence=tuple(
                Evidence(where=line.where or "kernel_log.lines", value=line.text) for line in (lines[0], *lines[-1:])[: len(lines)]
            ),
            expected="no such line while jobs run",
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
