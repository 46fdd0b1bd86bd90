"""Kernel logs: dmesg, journalctl -k, syslog and /dev/kmsg, through the parser that the live probe uses; and what the driver says of its clients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.facts import DriverLibrary
from dsdoctor.sources.kernel_text import read_lines
from dsdoctor.sources.texts import DRIVER_VERSION
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


API_MISMATCH = "API mismatch"
MESSAGE_LINES = 5
"""The driver breaks the message into so many lines, each with `NVRM:` in front."""
_LINE_START = re.compile(r"#012|[#*>\s]{0,8}\b(?:kernel: )?NVRM: ")
_CLIENT = re.compile(
    rf"client(?: '(?P<name>[^']{{1,40}})' \(pid \d{{1,10}}\))?(?: has the)? version:? (?P<has>{DRIVER_VERSION})"
    rf"|NVIDIA driver component has version:? (?P<component>{DRIVER_VERSION})"
)
_MODULE = re.compile(rf"kernel module(?: has)?(?: the)? version:? ({DRIVER_VERSION})")


def _refused_clients(lines: Sequence[Line]) -> Iterator[Found]:
    """`API mismatch`: the module names its own version and that of the libraries which a process came with."""
    for index, line in enumerate(lines):
        if API_MISMATCH not in line.text:
            continue
        parts = [line.text[line.text.index(API_MISMATCH) :]]
        for other in lines[index + 1 : index + MESSAGE_LINES]:
            if API_MISMATCH in other.text:
                break
            parts.append(other.text)
        message = " ".join(_LINE_START.sub(" ", " ".join(parts)).split())
        client, module = _CLIENT.search(message), _MODULE.search(message)
        if not client or not module:
            continue
        yield Fact("kernel_driver", "version", module[1], line, format=FORMAT)
        who = f"user space ({client['name']})" if client["name"] else "user space"
        version = client["has"] or client["component"]
        record = DriverLibrary(soname=who, path="in the kernel log", version=version, kind="driver", found_via=FORMAT, loaded_first=True)
        yield Fact("driver_libraries", "", record, line, who, FORMAT)


PARSERS = (
    Parser(FORMAT, (API_MISMATCH,), _refused_clients),
    Parser(
        FORMAT,
        ("NVRM", "nvidia-nvlink", "nouveau", "NovaCore", "nova_core", "AER: ", "PCIe Bus Error", "DMAR: ", "AMD-Vi: ", "segfault at", "oom-kill",
         "Out of memory: Killed", "nvidia: ", "nvidia_uvm: ", "Lockdown: ", "fallen off the bus", "nvidia-peermem"),
        _parse,
    ),
)  # fmt: skip
