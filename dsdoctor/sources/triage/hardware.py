"""The PCI bus and kernel modules: lspci in all its lengths, lsmod, /proc/modules, modinfo, /proc/driver/nvidia."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.sources.kernel_text import normal_address
from dsdoctor.sources.texts import NVIDIA, RELEVANT_MODULES, generation_of, kind_of, parse_plain_version, parse_version, width_of
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said
from dsdoctor.sources.triage.lines import Line

LSPCI = "lspci"
LSMOD = "lsmod"
MODINFO = "modinfo"
PROC = "/proc/driver/nvidia"
FULL_LIST = 20
"""From this many modules on, with a header, a list is taken as the whole list."""

_DEVICE = re.compile(
    r"((?:[0-9a-f]{4,6}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|<\w{1,20}>) ([A-Z0-9][\w /()-]{2,50}?)(?: \[([0-9a-f]{4})\])?: (.{1,200})$"
)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_LINK = re.compile(r"\s{1,40}(LnkCap|LnkSta):\s{1,8}(?:Port #\d{1,3}, )?Speed ([\d.]{1,5})GT/s[^,]{0,20}, Width x(\d{1,3})")
_ACS = re.compile(r"\s{1,40}ACSCtl:\s.{0,40}ReqRedir([+-])\sCmpltRedir([+-])")
_BOUND = re.compile(r"\s{1,40}Kernel driver in use: ([\w-]{1,40})")
_NUMA = re.compile(r"\s{1,40}NUMA node: (\d{1,4})\s*$")
_GROUP = re.compile(r"\s{1,40}IOMMU group: (\d{1,6})\s*$")
_BUSES = re.compile(r"\s{1,40}Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=[0-9a-f]{2}")
_ASKED = re.compile(r"\blspci\s.{0,40}?-s ?((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
"""The one device that a command asks for: where grep drops its first line, the rest still is about it."""
DEPTH_LIMIT = 16
_CLASSES = {
    "VGA compatible controller": "0300", "3D controller": "0302", "Display controller": "0380", "Bridge": "0680", "Infiniband controller": "0207",
    "InfiniBand controller": "0207", "Ethernet controller": "0200", "Network controller": "0280", "Non-Volatile memory controller": "0108",
}  # fmt: skip
_VENDORS = {"NVIDIA": NVIDIA, "Mellanox": "15b3", "Advanced Micro Devices": "1022", "Intel": "8086", "Broadcom": "14e4"}


def _lspci(lines: Sequence[Line]) -> Iterator[Found]:
    key = ""
    bridges: dict[str, str] = {}
    found: dict[str, Line] = {}
    for line in lines:
        text = line.text
        if not text[:1].isspace():
            device = _DEVICE.match(text)
            asked = _ASKED.search(text) if "lspci" in text else None
            key = (normal_address(asked[1]) or "") if asked else ""
            if device:
                kind, vendor = _kind(device)
                if kind:
                    key = normal_address(device[1]) or device[1]
                    found.setdefault(key, line)
                    yield from _device(device, kind, vendor, key, line)
        elif key:
            buses = _BUSES.match(text) if "Bus: primary" in text else None
            if buses and ":" in key:
                bridges[f"{key.partition(':')[0]}:{buses[2]}"] = key
            for field, value in _detail(text):
                yield Fact("pci_devices", field, value, line, key, LSPCI)
    yield from _wiring(found, bridges)


def _wiring(found: Mapping[str, Line], bridges: Mapping[str, str]) -> Iterator[Found]:
    """The bridges above each device, nearest first, and its root: `lspci -v` tells which bus begins below which bridge."""
    if not bridges:
        return
    for key, line in found.items():
        parents: list[str] = []
        bus = key.rpartition(":")[0]
        while bus in bridges and len(parents) < DEPTH_LIMIT:
            parents.append(bridges[bus])
            bus = parents[-1].rpartition(":")[0]
        yield Fact("pci_devices", "parents", tuple(parents), line, key, LSPCI)
        yield Fact("pci_devices", "root", f"pci{bus}", line, key, LSPCI)


def _kind(device: re.Match[str]) -> tuple[str, str]:
    ids = _IDS.search(device[4])
    vendor = ids[1] if ids else next((code for name, code in _VENDORS.items() if device[4].startswith(name)), "")
    if device[2].startswith("PCI bridge"):
        return "bridge", vendor
    return kind_of(device[3] or _CLASSES.get(device[2], ""), vendor), vendor


def _device(device: re.Match[str], kind: str, vendor: str, key: str, line: Line) -> Iterator[Found]:
    yield Fact("pci_devices", "kind", kind, line, key, LSPCI)
    if vendor:
        yield Fact("pci_devices", "vendor_id", vendor, line, key, LSPCI)
    ids = _IDS.search(device[4])
    if ids:
        yield Fact("pci_devices", "device_id", ids[2], line, key, LSPCI)


def _detail(text: str) -> Iterator[tuple[str, Any]]:
    if "Lnk" in text and (link := _LINK.match(text)):
        generation, width = generation_of(f"{link[2]} GT/s"), width_of(link[3])
        maximal = "max_" if link[1] == "LnkCap" else ""
        if generation:
            yield f"link.{maximal}generation", generation
        if width:
            yield f"link.{maximal}width", width
    elif "ACSCtl" in text and (acs := _ACS.match(text)):
        yield "acs_redirect", "+" in (acs[1], acs[2])
    elif "Kernel driver" in text and (bound := _BOUND.match(text)):
        yield "driver", bound[1]
    elif "NUMA node" in text and (numa := _NUMA.match(text)):
        yield "numa_node", int(numa[1])
    elif "IOMMU group" in text and (group := _GROUP.match(text)):
        yield "iommu_group", int(group[1])


# --- modules ----------------------------------------------------------------------------------------------------------

_MODULE = re.compile(
    r"([a-z]\w{1,60})\s{1,60}(\d{3,10})\s{1,8}(?:-?\d{1,6}|- - Live 0x[0-9a-f]{1,16}(?: \(\w{1,8}\))?)(?:\s{1,8}[\w,-]{1,2000})?\s*$"
)
_PROC_MODULE = re.compile(r"([a-z]\w{1,60}) \d{3,10} (?:\d{1,6}|-) \S{1,2000} (?:Live|Loading|Unloading) 0x")
_FILTER = re.compile(r"lsmod\s*\|\s*(?:e?grep|rg|findstr)\s(?:-\w{1,8}\s){0,4}[\"']?([\w|\\. -]{1,200}?)[\"']?\s*$")
_ALONE = re.compile(r"(nouveau|nova_core|nova|vfio_pci|nvidia(?:_\w{2,12})?)\s*$")


def _lsmod(lines: Sequence[Line]) -> Iterator[Found]:
    names: list[str] = []
    asked: list[str] = []
    whole = False
    first: Line | None = None
    rows = 0
    for line in lines:
        text = line.text
        wanted = _FILTER.search(text) if "lsmod" in text else None
        if wanted:
            asked += [word for word in re.split(r"[\\|\s]+", wanted[1]) if re.fullmatch(r"\w{2,60}", word)]
            first = first or line
            yield Said(line, LSMOD)
        elif text.startswith("Module ") and "Used by" in text:
            whole, first = True, first or line
            yield Said(line, LSMOD)
        else:
            row = _PROC_MODULE.match(text) or _MODULE.match(text)
            if row:
                rows += 1
                if row[1].startswith(RELEVANT_MODULES):
                    names.append(row[1])
                    first = first or line
                    yield Said(line, LSMOD)
    if first and (names or asked or whole):
        yield Fact("loaded_modules", "names", tuple(sorted(set(names))), first, format=LSMOD)
        if not whole or asked or rows < FULL_LIST:
            yield Fact("loaded_modules", "asked_for", tuple(dict.fromkeys([*asked, *names])), first, format=LSMOD)


def _alone(lines: Sequence[Line]) -> Iterator[Found]:
    """The one word that `lsmod | grep -o` or a tired hand left."""
    filled = [line for line in lines if line.text.strip()]
    if len(filled) <= 3:
        for line in filled:
            found = _ALONE.match(line.text.strip())
            if found:
                yield Fact("loaded_modules", "names", (found[1],), line, format=LSMOD)
                yield Fact("loaded_modules", "asked_for", (found[1],), line, format=LSMOD)


_MODINFO = re.compile(r"(filename|version|signer|sig_id|sig_key|signature):\s{1,20}(\S.{0,300})$")


def _modinfo(lines: Sequence[Line]) -> Iterator[Found]:
    inside = False
    for line in lines:
        found = _MODINFO.match(line.text)
        if not found:
            inside = inside and bool(line.text)
            continue
        name, value = found.groups()
        if name == "filename":
            inside = re.search(r"/nvidia(?:-current)?\.ko", value) is not None
            if inside:
                yield Fact("driver_module_file", "path", value.strip(), line, format=MODINFO)
        elif inside and name == "version" and parse_plain_version(value):
            yield Fact("driver_module_file", "version", value, line, format=MODINFO)
        elif inside and name in ("signer", "sig_id", "sig_key", "signature"):
            yield Fact("driver_module_file", "signed", True, line, format=MODINFO)
            if name == "signer":
                yield Fact("driver_module_file", "signer", value.strip(), line, format=MODINFO)


_PARAMETER = re.compile(r"([A-Z]\w{1,60}): (\"[^\"]{0,400}\"|-?\d{1,12}|\"?\S{0,80})\s*$")


def _proc(lines: Sequence[Line]) -> Iterator[Found]:
    options: dict[str, str] = {}
    first: Line | None = None
    for line in lines:
        text = line.text
        if "NVRM version:" in text:
            version, flavour = parse_version(text[text.index("NVRM version:") :])
            if version:
                yield Fact("kernel_driver", "version", version, line, format=PROC)
                yield Fact("kernel_driver", "flavour", flavour, line, format=PROC)
        elif "loading NVIDIA UNIX" in text:
            version, flavour = parse_version("NVRM version:" + text[text.index("loading") + 7 :])
            if version:
                yield Fact("kernel_driver", "version", version, line, format="kernel log")
                yield Fact("kernel_driver", "flavour", flavour, line, format="kernel log")
        elif text.startswith("ResmanDebugLevel:"):
            first = line
        if first:
            found = _PARAMETER.match(text)
            if found:
                options.setdefault(found[1], found[2].strip('"'))
                yield Said(line, PROC)
            elif text:
                break
    if first and options:
        yield Fact("kernel_driver", "options", options, first, format=PROC)


PARSERS = (
    Parser(LSPCI, ("controller", "PCI bridge", "Bridge [", "LnkSta", "ACSCtl"), _lspci),
    Parser(LSMOD, ("nvidia", "nvidia_", "nouveau", "nova_core", "lsmod", "ib_", "mlx5_", "gdrdrv", "Used by"), _lsmod),
    Parser(LSMOD, (), _alone),
    Parser(MODINFO, ("filename:",), _modinfo),
    Parser(PROC, ("NVRM version:", "loading NVIDIA UNIX", "ResmanDebugLevel"), _proc),
)
