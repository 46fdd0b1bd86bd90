"""A program crashed inside NCCL, says the kernel.

What it looks at
    Lines of the kernel log of this boot that name a segmentation fault in libnccl, within the last two hours where log and clock tell.

Why it matters
    The rank is gone without a traceback, and the other ranks wait for it until their timeout: their message ("watchdog caught collective operation timeout") is the consequence. Usual reasons are two NCCL
    libraries in one process, a network plugin built for another NCCL, or buffers that were freed while a collective still used them.

Sources
    Linux kernel (page fault messages); NCCL issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import KernelLog, KernelLogLine, Platform, Section, unreadable
from dsdoctor.findings import Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

CRASH = re.compile(r"(?P<program>[^\s\[]{1,60})\[\d+\]: (?:segfault at|general protection fault).* in libnccl")
SOURCE = "Linux kernel: page fault messages (arch/x86/mm/fault.c) — https://docs.kernel.org/"


def crash(at_s: float | None = None) -> KernelLogLine:
    """A rank that crashed."""
    return KernelLogLine(
        text="pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]",
        seconds_since_boot=at_s,
    )


CASES = (
    Case(
        title="a rank crashed",
        sections={"kernel_log": KernelLog(lines=(crash(),))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="pt_main_thread",
    ),
    Case(
        title="three hours ago",
        sections={"kernel_log": KernelLog(lines=(crash(100.0),)), "platform": Platform(uptime_s=10_900.0)},
        status=Status.PASS,
    ),
    Case(
        title="a crash elsewhere",
        sections={
            "kernel_log": KernelLog(lines=(KernelLogLine(text="python3[7]: segfault at 0 ip 1 sp 2 error 4 in libtorch_cpu.so[1+2]"),))
        },
        status=Status.PASS,
    ),
    Case(title="a quiet log", sections={"kernel_log": KernelLog()}, status=Status.PASS),
    Case(title="the log may not be read", sections={"kernel_log": unreadable("not permitted")}, status=Status.UNKNOWN, says="permitted"),
)


@check("nccl.crashed", Severity.WARNING, settle="sudo dmesg -T | grep libnccl", cases=CASES)
def crashed(
    kernel_log: KernelLog, platform: Section[Platform], health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding]:
    """One finding for all crashes that are not long past."""
    window_s = health_limits_matrix.limit("xid-window-seconds").amount
    uptime_s = platform.value.uptime_s if platform.value else None
    lines = [
        (line, match)
        for line in kernel_log.lines
        if (match := CRASH.search(line.text))
        and (uptime_s is None or line.seconds_since_boot is None or uptime_s - line.seconds_since_boot <= window_s)
    ]
    if lines:
        programs = ", ".join(dict.fromkeys(match["program"] for _, match in lines))
        yield Finding(
            subject="libnccl",
            summary=f"A program ({programs}) crashed inside NCCL{'' if len(lines) == 1 else f', {len(lines)} times'}.",
            cause="The rank is gone without a traceback, and the others wait for it until their timeout.",
            evidence=tuple(Evidence(where=line.where or "kernel_log.lines", value=line.text) for line, _ in lines[:4]),
            expected="no crash in libnccl",
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
