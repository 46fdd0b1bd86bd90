"""`nvidia-smi -q` and `nvidia-smi -q -x`: every GPU in full, as text by indentation or as XML by lines (also cut short)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.facts import GpuProcess
from dsdoctor.sources.kernel_text import normal_address
from dsdoctor.sources.texts import DRIVER_VERSION
from dsdoctor.sources.triage.fact import NAMELESS, Fact, Found, Parser, Said, mebibytes
from dsdoctor.sources.triage.lines import Line

FORMAT = "nvidia-smi -q"
DEPTH_LIMIT = 12

Path = tuple[str, ...]


def _number(text: str) -> int | None:
    found = re.match(r"-?\d{1,15}(?=x?(?:\s|$))", text)
    return int(found[0]) if found else None


def _decimal(text: str) -> float | None:
    found = re.match(r"\d{1,9}(?:\.\d{1,6})?(?= W|$)", text)
    return float(found[0]) if found else None


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False}.get(text)


def _text(text: str) -> str | None:
    return None if text in ("N/A", "", "redacted") else text


def _version(text: str) -> str | None:
    return text if re.fullmatch(DRIVER_VERSION, text) else None


def _device_id(text: str) -> str | None:
    found = re.fullmatch(r"0x([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text)
    return f"{found[2]}:{found[1]}".lower() if found else None


def _fabric_state(text: str) -> str | None:
    states = {"N/A": "not-supported", "Not Supported": "not-supported", "Not Started": "not-started", "In Progress": "in-progress"}
    return "completed" if text == "Completed" else states.get(text)


def _of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    return lambda text: values.get(text)


_RECOVERY = _of({"None": 0, "Reset": 1, "GPU Reset": 1, "Reboot": 2, "Node Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4})
_COMPUTE_MODE = _of({"Default": 0, "Prohibited": 2, "Exclusive_Process": 3})
_VIRTUALIZATION = _of({"None": "none", "Pass-Through": "passthrough", "VGPU": "vgpu", "Host VGPU": "host-vgpu", "Host VSGA": "host-vsga"})

READINGS: Mapping[Path, tuple[str, Callable[[str], Any]]] = {
    ("Product Name",): ("name", _text),
    ("Persistence Mode",): ("persistence_mode", _switch),
    ("MIG Mode", "Current"): ("mig_enabled", _switch),
    ("MIG Mode", "Pending"): ("mig_pending", _switch),
    ("GPU UUID",): ("uuid", _text),
    ("Minor Number",): ("minor_number", _number),
    ("VBIOS Version",): ("vbios_version", _text),
    ("Board Part Number",): ("board_part_number", _text),
    ("Inforom Version", "Image Version"): ("inforom_version", _text),
    ("GPU Virtualization Mode", "Virtualization Mode"): ("virtualization_mode", _VIRTUALIZATION),
    ("GPU Recovery Action",): ("recovery_action", _RECOVERY),
    ("GSP Firmware Version",): ("gsp_firmware", _text),
    ("PCI", "Device Id"): ("pci_device_id", _device_id),
    ("PCI", "Bus Id"): ("pci_address", lambda text: normal_address(text) or None),
    ("PCI", "GPU Link Info", "PCIe Generation", "Max"): ("pcie.max_generation", _number),
    ("PCI", "GPU Link Info", "PCIe Generation", "Current"): ("pcie.generation", _number),
    ("PCI", "GPU Link Info", "Link Width", "Max"): ("pcie.max_width", _number),
    ("PCI", "GPU Link Info", "Link Width", "Current"): ("pcie.width", _number),
    ("PCI", "Replays Since Reset"): ("pcie.replay_count", _number),
    ("Performance State",): ("performance_state", lambda text: _number(text.removeprefix("P"))),
    ("FB Memory Usage", "Total"): ("memory_total_bytes", mebibytes),
    ("FB Memory Usage", "Used"): ("memory_used_bytes", mebibytes),
    ("Compute Mode",): ("compute_mode", _COMPUTE_MODE),
    ("Utilization", "GPU"): ("utilization_percent", _number),
    ("ECC Mode", "Current"): ("ecc_enabled", _switch),
    ("ECC Mode", "Pending"): ("ecc_pending", _switch),
    ("ECC Errors", "Aggregate", "SRAM Threshold Exceeded"): ("ecc.sram_threshold_exceeded", _switch),
    ("Remapped Rows", "Correctable Error"): ("remapped_rows.correctable", _number),
    ("Remapped Rows", "Uncorrectable Error"): ("remapped_rows.uncorrectable", _number),
    ("Remapped Rows", "Pending"): ("remapped_rows.pending", _switch),
    ("Remapped Rows", "Remapping Failure Occurred"): ("remapped_rows.failure", _switch),
    ("Retired Pages", "Single Bit ECC"): ("retired_pages.single_bit", _number),
    ("Retired Pages", "Double Bit ECC"): ("retired_pages.double_bit", _number),
    ("Retired Pages", "Pending Page Blacklist"): ("retired_pages.pending", _switch),
    ("Retired Pages", "Single Bit ECC", "Retired Count"): ("retired_pages.single_bit", _number),
    ("Retired Pages", "Double Bit ECC", "Retired Count"): ("retired_pages.double_bit", _number),
    ("Temperature", "GPU Current Temp"): ("temperature_c", _number),
    ("Temperature", "GPU T.Limit Temp"): ("temperature_margin_c", _number),
    ("Temperature", "Memory Current Temp"): ("memory_temperature_c", _number),
    ("GPU Power Readings", "Average Power Draw"): ("power_w", _decimal),
    ("GPU Power Readings", "Power Draw"): ("power_w", _decimal),
    ("Power Readings", "Power Draw"): ("power_w", _decimal),
    ("GPU Power Readings", "Current Power Limit"): ("power_limit_w", _decimal),
    ("Power Readings", "Power Limit"): ("power_limit_w", _decimal),
    ("GPU Power Readings", "Default Power Limit"): ("power_default_limit_w", _decimal),
    ("Power Readings", "Default Power Limit"): ("power_default_limit_w", _decimal),
    ("Clocks", "SM"): ("sm_clock_mhz", _number),
    ("Clocks", "Memory"): ("memory_clock_mhz", _number),
    ("Max Clocks", "SM"): ("sm_clock_max_mhz", _number),
    ("Max Clocks", "Memory"): ("memory_clock_max_mhz", _number),
    ("Fabric", "State"): ("fabric.state", _fabric_state),
    ("Fabric", "Status"): ("fabric.status", _text),
    ("Fabric", "CliqueId"): ("fabric.clique_id", _number),
    ("Fabric", "ClusterUUID"): ("fabric.cluster_uuid", _text),
}
"""Where a value stands under its GPU, the field that it fills, and how it is read."""

REASONS = {
    "Idle": "gpu_idle",
    "Applications Clocks Setting": "applications_clocks_setting",
    "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Power Brake Slowdown": "hw_power_brake_slowdown",
    "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_thermal_slowdown",
    "Display Clock Setting": "display_clock_setting",
}
REASON_BLOCKS = ("Clocks Event Reasons", "Clocks Throttle Reasons")

XML_NAMES: Mapping[str, str] = {
    "product_name": "Product Name", "persistence_mode": "Persistence Mode", "mig_mode": "MIG Mode", "current_mig": "Current", "pending_mig": "Pending",
    "uuid": "GPU UUID", "minor_number": "Minor Number", "vbios_version": "VBIOS Version", "board_part_number": "Board Part Number",
    "inforom_version": "Inforom Version", "img_version": "Image Version", "gpu_virtualization_mode": "GPU Virtualization Mode",
    "virtualization_mode": "Virtualization Mode", "gpu_recovery_action": "GPU Recovery Action", "gsp_firmware_version": "GSP Firmware Version",
    "pci": "PCI", "pci_device_id": "Device Id", "pci_bus_id": "Bus Id", "pci_gpu_link_info": "GPU Link Info", "pcie_gen": "PCIe Generation",
    "max_link_gen": "Max", "current_link_gen": "Current", "link_widths": "Link Width", "max_link_width": "Max", "current_link_width": "Current",
    "replay_counter": "Replays Since Reset", "performance_state": "Performance State", "fb_memory_usage": "FB Memory Usage", "total": "Total", "used": "Used",
    "compute_mode": "Compute Mode", "utilization": "Utilization", "gpu_util": "GPU", "ecc_mode": "ECC Mode", "current_ecc": "Current", "pending_ecc": "Pending",
    "ecc_errors": "ECC Errors", "volatile": "Volatile", "aggregate": "Aggregate", "sram_threshold_exceeded": "SRAM Threshold Exceeded",
    "sram_correctable": "SRAM Correctable", "sram_uncorrectable": "SRAM Uncorrectable", "sram_uncorrectable_parity": "SRAM Uncorrectable Parity",
    "sram_uncorrectable_secded": "SRAM Uncorrectable SEC-DED", "dram_correctable": "DRAM Correctable", "dram_uncorrectable": "DRAM Uncorrectable",
    "remapped_rows": "Remapped Rows", "remapped_row_corr": "Correctable Error", "remapped_row_unc": "Uncorrectable Error", "remapped_row_pending": "Pending",
    "remapped_row_failure": "Remapping Failure Occurred", "retired_pages": "Retired Pages", "multiple_single_bit_retirement": "Single Bit ECC",
    "double_bit_retirement": "Double Bit ECC", "retired_count": "Retired Count", "pending_blacklist": "Pending Page Blacklist", "temperature": "Temperature", "gpu_temp": "GPU Current Temp", "gpu_temp_tlimit": "GPU T.Limit Temp",
    "memory_temp": "Memory Current Temp", "gpu_power_readings": "GPU Power Readings", "power_readings": "Power Readings",
    "average_power_draw": "Average Power Draw", "power_draw": "Power Draw", "current_power_limit": "Current Power Limit", "power_limit": "Power Limit",
    "default_power_limit": "Default Power Limit", "clocks": "Clocks", "max_clocks": "Max Clocks", "sm_clock": "SM", "mem_clock": "Memory", "fabric": "Fabric",
    "state": "State", "status": "Status", "cliqueId": "CliqueId", "clusterUuid": "ClusterUUID", "processes": "Processes", "process_info": "Process",
    "pid": "Process ID", "type": "Type", "used_memory": "Used GPU Memory", "driver_version": "Driver Version", "cuda_version": "CUDA Version",
    "attached_gpus": "Attached GPUs", "clocks_event_reasons": "Clocks Event Reasons", "clocks_throttle_reasons": "Clocks Throttle Reasons",
    **{f"clocks_{kind}_reason_{tag}": words for kind in ("event", "throttle") for tag, words in (
        ("gpu_idle", "Idle"), ("applications_clocks_setting", "Applications Clocks Setting"), ("sw_power_cap", "SW Power Cap"),
        ("hw_slowdown", "HW Slowdown"), ("hw_thermal_slowdown", "HW Thermal Slowdown"), ("hw_power_brake_slowdown", "HW Power Brake Slowdown"),
        ("sync_boost", "Sync Boost"), ("sw_thermal_slowdown", "SW Thermal Slowdown"), ("display_clocks_setting", "Display Clock Setting"))},
}  # fmt: skip
"""XML tags as the words of the text output, so that both are read by one table."""

Entry = tuple[Path, str, Line]
"""Where a value stands (under its GPU), its text, and the line. A path `("GPU",)` starts the next GPU with its bus address."""

_GPU = re.compile(r"\s{0,4}GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_PAIR = re.compile(r"(\s{0,60})(\S[^:]{0,60}?)\s{1,60}: (.{0,200})$")
_BLOCK = re.compile(r"(\s{0,60})([A-Z][\w ./()-]{0,60}?)\s*$")
_TAG = re.compile(r"\s{0,40}<(\w{1,60})(?: id=\"([^\"]{1,40})\")?>(?:([^<>]{0,200})</\w{1,60}>)?\s*$")
_END = re.compile(r"\s{0,40}</(\w{1,60})>\s*$")


def _text_entries(lines: Sequence[Line]) -> Iterator[Entry]:
    """Entries of the text output; blocks are known by their indentation."""
    stack: list[tuple[int, str]] = []
    for line in lines:
        text = line.text
        if not text or text.startswith(("|", "+", "=", "<")):
            continue
        gpu = _GPU.match(text)
        if gpu:
            stack = []
            yield ("GPU",), gpu[1], line
            continue
        pair = _PAIR.match(text)
        block = None if pair else _BLOCK.match(text)
        found = pair or block
        if not found:
            stack = []
            continue
        indent = len(found[1].expandtabs())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        path = (*(name for _, name in stack), found[2])
        if pair:
            yield path, pair[3].strip(), line
        elif len(stack) < DEPTH_LIMIT:
            stack.append((indent, found[2]))
            yield path, "", line


def _xml_entries(lines: Sequence[Line]) -> Iterator[Entry]:
    """Entries of the XML output, tag by tag, so that a part of a file is read as far as it goes."""
    stack: list[str] = []
    for line in lines:
        text = line.text
        end = _END.match(text)
        if end:
            if end[1] in stack:
                del stack[len(stack) - 1 - stack[::-1].index(end[1]) :]
            continue
        tag = _TAG.match(text)
        if not tag:
            continue
        if tag[1] == "gpu" and tag[2]:
            stack = []
            yield ("GPU",), tag[2], line
        elif tag[1] == "nvidia_smi_log":
            stack = []
        else:
            path = (*(XML_NAMES.get(name, name) for name in stack), XML_NAMES.get(tag[1], tag[1]))
            yield path, (tag[3] or "").strip(), line
            if tag[3] is None and len(stack) < DEPTH_LIMIT:
                stack.append(tag[1])


def _facts(entries: Iterable[Entry]) -> Iterator[Found]:
    gpu = -1
    block: list[Entry] = []
    seen: dict[str, int] = {}
    for path, value, line in entries:
        if path == ("GPU",):
            yield from _of_gpu(gpu, block)
            address = normal_address(value)
            gpu, block = seen.setdefault(address, len(seen)), []
            if address:
                yield Fact("gpus", "pci_address", address, line, str(gpu), FORMAT)
        elif gpu < 0 and path[-1] == "Driver Version" and _version(value):
            yield Fact("nvml_versions", "driver", value, line, format=FORMAT)
        elif gpu < 0 and path[-1] in ("CUDA Version", "CUDA UMD Version") and re.fullmatch(r"\d{1,2}\.\d{1,2}", value):
            yield Fact("nvml_versions", "cuda_driver", value, line, format=FORMAT)
        elif gpu < 0 and path[-1] == "Attached GPUs" and value.isdecimal() and len(value) < 5:
            yield Fact("nvml_versions", "gpu_count", int(value), line, format=FORMAT)
        else:
            block.append((path, value, line))
    # Parts of one GPU, pasted without the line that names it.
    yield from _of_gpu(gpu, block)


def _of_gpu(gpu: int, block: Sequence[Entry]) -> Iterator[Found]:
    key = str(gpu) if gpu >= 0 else NAMELESS
    errors: dict[tuple[str, str], tuple[int, Line]] = {}
    reasons: list[str] = []
    reasons_at: Line | None = None
    processes: list[dict[str, str]] = []
    processes_at: Line | None = None
    for path, value, line in block:
        reading = READINGS.get(path) if gpu >= 0 else _reading_of_part(path)
        if reading:
            field, convert = reading
            converted = convert(value) if value else None
            if converted is not None:
                yield Fact("gpus", field, converted, line, key, FORMAT)
            elif value:
                yield Said(line, FORMAT)
        elif path[-1] in REASONS and any(name in path for name in REASON_BLOCKS):
            reasons_at = reasons_at or line
            if value == "Active":
                reasons.append(REASONS[path[-1]])
        elif len(path) > 1 and path[-2] in ("Volatile", "Aggregate") and "orrectable" in path[-1]:
            count = _number(value)
            kind = "uncorrected" if "Uncorrectable" in path[-1] else "corrected"
            if count is not None:
                so_far, at = errors.get((path[-2], kind), (0, line))
                errors[path[-2], kind] = so_far + count, at
        elif path[-1] == "Processes" and value in ("None", ""):
            processes_at = line
        elif path[-1] in ("Process ID", "Type", "Used GPU Memory") and "Processes" in path:
            if path[-1] == "Process ID":
                processes.append({})
            if processes:
                processes[-1][path[-1]] = value
    for path, value, line in block:
        if gpu >= 0 and path == ("Fabric", "Status") and value == "Success":
            yield Fact("gpus", "fabric.status_code", 0, line, key, FORMAT)
    for (scope, kind), (count, line) in errors.items():
        yield Fact("gpus", f"ecc.{scope.lower()}_{kind}", count, line, key, FORMAT)
    if reasons_at:
        yield Fact("gpus", "clock_event_reasons", tuple(reasons), reasons_at, key, FORMAT)
    if processes_at:
        yield Fact("gpus", "processes", tuple(_processes(processes)), processes_at, key, FORMAT)


def _reading_of_part(path: Path) -> tuple[str, Callable[[str], Any]] | None:
    """The reading for a path in a part of the output; it may lack the outer blocks, but not the one that a value stands in."""
    return next((READINGS[path[-length:]] for length in (4, 3, 2) if len(path) >= length and path[-length:] in READINGS), None)


def _processes(found: Iterable[Mapping[str, str]]) -> Iterator[GpuProcess]:
    for values in found:
        pid, kind = values.get("Process ID", ""), values.get("Type", "")
        if pid.isdecimal() and len(pid) < 12:
            memory = mebibytes(values.get("Used GPU Memory", ""))
            yield GpuProcess(pid=int(pid), kind="graphics" if kind == "G" else "compute", used_memory_bytes=memory)


def _as_text(lines: Sequence[Line]) -> Iterator[Found]:
    return _facts(_text_entries(lines))


def _as_xml(lines: Sequence[Line]) -> Iterator[Found]:
    return _facts(_xml_entries(lines))


PARSERS = (
    Parser(
        FORMAT,
        ("NVSMI LOG", "Attached GPUs", "FB Memory Usage", "Remapped Rows", "Fabric", "ECC Errors", "Clocks Event Reasons", "Clocks Throttle Reasons",
         "MIG Mode", "GPU Link Info", "Product Name"),
        _as_text,
    ),
    Parser("nvidia-smi -q -x", ("<nvidia_smi_log>", "<gpu id=", "<fb_memory_usage>", "</driver_version>"), _as_xml),
)  # fmt: skip
