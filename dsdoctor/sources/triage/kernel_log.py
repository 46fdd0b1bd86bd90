"""Kernel logs: dmesg, journalctl -k, syslog and /dev/kmsg, through the parser that the live probe uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.sources.kernel_text import read_lines
from dsdoctor.sources.triage.fact import Fact, Found, Parser
from dsdoctor.sources.triage.lines import Line

FORMAT = "kernel log"
LINE_LIMIT = 600
_KERNEL_PREFIX = re.compile(r"kernel:|\[\s*\d+\.\d+\]|\d+,\d+,\d+,|\[[A-Z][a-z]{2} [A-Z][a-z]{2} |kern\s*:|<\d+>")
_KERNEL_WORDS = re.compile(
    r"NVRM: |nvidia[\w-]*: |nvidia-nvlink|nouveau[: ]|NovaCore |nova_?core[: ]|pcieport |mlx5_core |DMAR: |AMD-Vi: |AER: |Lockdown: |PKCS#7"
    r"|[\w.:/-]{1,30}\[\d{1,8}\]: segfault at |oom-kill:|Out of memory: Killed"
)


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    numbered = [
        (index, f"{line.prefix}{line.text}"[:LINE_LIMIT])
        for index, line in enumerate(lines)
        if _KERNEL_WORDS.match(line.text) or (line.prefix and _KERNEL_PREFIX.search(line.prefix))
    ]
    log = read_lines(numbered, lambda index: str(index))
    for xid in log.xids:
        line = lines[int(xid.where)]
        yield Fact("kernel_log", "xids", (_placed(xid, line),), line, format=FORMAT)
    for entry in log.lines:
        line = lines[int(entry.where)]
        yield Fact("kernel_log", "lines", (_placed(entry, line),), line, format=FORMAT)


def _placed(entry: object, line: Line) -> object:
    from dataclasses import replace

    return replace(entry, where=line.where)  # type: ignore[type-var]


PARSERS = (
    Parser(
        FORMAT,
        ("NVRM", "nvidia-nvlink", "nouveau", "NovaCore", "nova_core", "AER: ", "PCIe Bus Error", "DMAR: ", "AMD-Vi: ", "segfault at", "oom-kill",
         "Out of memory: Killed", "nvidia: ", "nvidia_uvm: ", "Lockdown: ", "fallen off the bus", "nvidia-peermem"),
        _parse,
    ),
)  # fmt: skip
