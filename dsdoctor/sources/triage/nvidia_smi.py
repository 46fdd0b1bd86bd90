"""`nvidia-smi` as people paste it: the table, its header alone, `--version`, `-L`, `nvlink` and `--query-gpu`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.facts import DriverLibrary, MigInstance, NvLink, State
from dsdoctor.sources.kernel_text import normal_address
from dsdoctor.sources.texts import DRIVER_VERSION
from dsdoctor.sources.triage.fact import Absence, Fact, Found, Parser, Said, mebibytes
from dsdoctor.sources.triage.lines import Line

TABLE = "nvidia-smi"
GPU_LIMIT = 1024

_DRIVER = re.compile(rf"(?:\b(?:Driver|DRIVER|KMD) [Vv]ersion|^\|? ?NVIDIA-SMI version)\s{{0,40}}:\s{{0,8}}({DRIVER_VERSION})\b")
_CUDA = re.compile(r"\bCUDA(?: UMD)? Version\s{0,60}:\s{0,8}(\d{1,2}\.\d{1,2})\b")
_NVML = re.compile(rf"^NVML version\s{{0,40}}: ({DRIVER_VERSION}|\d{{3}}\.\d{{1,3}})\s*$")
_NVML_LIBRARY = re.compile(rf"\s{{0,8}}NVML library version: ({DRIVER_VERSION}|\d{{3}}\.\d{{1,3}})\s*$")
"""What nvidia-smi adds when it does not fit the kernel module."""
_ROW = re.compile(r"\|\s{1,4}(\d{1,4})\s{1,4}(?=[A-Za-z])([^|]{2,80})")
_NAME_AND_MODE = re.compile(r"(.*?\S)(?:\s+(On|Off|N/A|TCC|WDDM|MCDM))?\s*$")
_ADDRESS = re.compile(r"\b[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_USAGE = re.compile(r"(\d{1,8})MiB\s{0,8}/\s{0,8}(\d{1,8})MiB")
_POWER = re.compile(r"(\d{1,5})W\s{0,8}/\s{0,8}(\d{1,5})W")
_STATE = re.compile(r"\|\s{0,4}(?:\d{1,3}%|N/A|ERR!)\s{1,6}(\d{1,3})C\s{1,6}P(\d{1,2})\b")
_COMPUTE_MODES = {"Default": 0, "Prohibited": 2, "E. Process": 3}


def _table(lines: Sequence[Line]) -> Iterator[Found]:
    gpu = ""
    part = "gpus"
    for line in lines:
        text = line.text
        if "ersion" in text:
            yield from _header(line)
            yield from _library(line)
        if not text.startswith("|") and not text.startswith(" |"):
            if not text.startswith("+"):
                gpu = ""
            continue
        text = text.strip()
        if "Processes:" in text or "MIG devices:" in text:
            part, gpu = "other", ""
        elif "GPU" in text and ("Name " in text or text.endswith("Name")) and "Process" not in text:
            part = "gpus"
            yield Said(line, TABLE)
        elif "No running processes found" in text:
            yield Said(line, TABLE)
        if part != "gpus" or "NVIDIA-SMI" in text:
            continue
        row = _ROW.match(text)
        if row and not row[2].startswith("N/A"):
            gpu = str(int(row[1]))
            yield from _first_row(gpu, row[2], text, line)
        elif gpu and "|" in text[1:]:
            yield from _further_row(gpu, text, line)


def _header(line: Line) -> Iterator[Found]:
    text = line.text
    is_smi = "NVIDIA-SMI" in text or "CUDA" in text or text.startswith(("DRIVER version", "Driver Version", "Driver version"))
    driver = _DRIVER.search(text) if is_smi else None
    if driver and "CUDA Driver Version" not in text and "NVIDIA-SMI version" not in text:
        yield Fact("nvml_versions", "driver", driver[1], line, format=TABLE)
    cuda = _CUDA.search(text)
    if cuda and (driver or text.startswith(("CUDA Version ", "CUDA UMD Version "))):
        yield Fact("nvml_versions", "cuda_driver", cuda[1], line, format=TABLE)


def _library(line: Line) -> Iterator[Found]:
    found = _NVML_LIBRARY.match(line.text)
    if found:
        record = DriverLibrary(
            soname="libnvidia-ml.so.1", path="loaded by nvidia-smi", version=found[1], kind="driver", found_via=TABLE, loaded_first=True
        )
        yield Fact("driver_libraries", "", record, line, "nvidia-smi", TABLE)


def _first_row(gpu: str, named: str, text: str, line: Line) -> Iterator[Found]:
    found = _NAME_AND_MODE.match(named)
    name = " ".join(found[1].split()) if found else ""
    if name and not name.endswith("..."):
        yield Fact("gpus", "name", name, line, gpu, TABLE)
    if found and found[2] in ("On", "Off"):
        yield Fact("gpus", "persistence_mode", found[2] == "On", line, gpu, TABLE)
    address = _ADDRESS.search(text)
    if address:
        yield Fact("gpus", "pci_address", normal_address(address[0]), line, gpu, TABLE)
    cells = text.split("|")
    if len(cells) >= 5:
        yield from _ecc(gpu, cells[3].strip(), line)


def _ecc(gpu: str, cell: str, line: Line) -> Iterator[Found]:
    if cell.isdecimal() and len(cell) < 16:
        yield Fact("gpus", "ecc_enabled", True, line, gpu, TABLE)
        yield Fact("gpus", "ecc.volatile_uncorrected", int(cell), line, gpu, TABLE)
    elif cell == "Off":
        yield Fact("gpus", "ecc_enabled", False, line, gpu, TABLE)


def _further_row(gpu: str, text: str, line: Line) -> Iterator[Found]:
    usage = _USAGE.search(text)
    if usage:
        yield Fact("gpus", "memory_used_bytes", int(usage[1]) << 20, line, gpu, TABLE)
        yield Fact("gpus", "memory_total_bytes", int(usage[2]) << 20, line, gpu, TABLE)
    power = _POWER.search(text)
    if power:
        yield Fact("gpus", "power_w", float(power[1]), line, gpu, TABLE)
        yield Fact("gpus", "power_limit_w", float(power[2]), line, gpu, TABLE)
    state = _STATE.match(text)
    if state:
        yield Fact("gpus", "temperature_c", int(state[1]), line, gpu, TABLE)
        yield Fact("gpus", "performance_state", int(state[2]), line, gpu, TABLE)
    cells = [cell.strip() for cell in text.split("|")]
    last = cells[-2] if len(cells) >= 4 else ""
    load, _, mode = last.partition("%")
    if usage and mode.strip() in _COMPUTE_MODES and load.strip().isdecimal():
        yield Fact("gpus", "utilization_percent", int(load.strip()[:3]), line, gpu, TABLE)
        yield Fact("gpus", "compute_mode", _COMPUTE_MODES[mode.strip()], line, gpu, TABLE)
    if not usage and last in ("Enabled", "Disabled", "Enabled*", "Disabled*"):
        yield Fact("gpus", "mig_enabled", last.startswith("Enabled"), line, gpu, TABLE)


def _no_devices(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        if line.text.strip() == "No devices were found":
            yield Absence("gpus", State.ABSENT, "nvidia-smi: No devices were found", line, TABLE)


# --- nvidia-smi -L and nvlink -----------------------------------------------------------------------------------------

_LISTED = re.compile(r"\s{0,8}GPU (\d{1,4}): (\S[^()]{0,80}?)(?: \(UUID: ([^()\s]{1,80})\))?\s*$")
_MIG = re.compile(r"\s{1,8}MIG (\d[\w.+]{1,20})\s{1,20}Device\s{1,8}(\d{1,3}): \(UUID: ([^()\s]{1,80})\)")
_LINK = re.compile(r"\s{0,16}Link (\d{1,2}): (?:(\d{1,5}(?:\.\d{1,4})?) GB/s|<inactive>)\s*$")
_COUNTER = re.compile(r"\s{0,16}Link (\d{1,2}): (Replay|Recovery|CRC) Errors: (\d{1,18})\s*$")
_LIST = "nvidia-smi -L"
_NVLINK = "nvidia-smi nvlink"


def _listing(lines: Sequence[Line]) -> Iterator[Found]:
    gpu = ""
    instances: dict[str, dict[int, tuple[MigInstance, Line]]] = {}
    links: dict[str, dict[int, dict[str, Any]]] = {}
    where: dict[str, Line] = {}
    for line in lines:
        text = line.text
        if "GPU " not in text and "MIG " not in text and "Link " not in text:
            continue
        listed = _LISTED.match(text)
        if listed:
            gpu = str(int(listed[1]))
            where.setdefault(gpu, line)
            if listed[3]:
                yield Fact("gpus", "name", listed[2], line, gpu, _LIST)
            if listed[3] and "<" not in listed[3]:
                yield Fact("gpus", "uuid", listed[3], line, gpu, _LIST)
            continue
        mig = _MIG.match(text)
        if mig and gpu:
            instance = MigInstance(index=int(mig[2]), uuid=mig[3], name=f"MIG {mig[1]}")
            instances.setdefault(gpu, {})[instance.index] = instance, line
            continue
        link = _LINK.match(text)
        if link and gpu:
            values = links.setdefault(gpu, {}).setdefault(int(link[1]), {})
            values["active"] = link[2] is not None
            if link[2]:
                values["speed_mb_per_s"] = round(float(link[2]) * 1000)
            yield Said(line, _NVLINK)
            continue
        counter = _COUNTER.match(text)
        if counter and gpu:
            values = links.setdefault(gpu, {}).setdefault(int(counter[1]), {"active": True})
            values[f"{counter[2].lower()}_errors"] = int(counter[3])
            yield Said(line, _NVLINK)
    for number, found in instances.items():
        yield Fact("gpus", "mig_enabled", True, next(iter(found.values()))[1], number, _LIST)
        yield Fact("gpus", "mig_instances", tuple(item for item, _ in found.values()), next(iter(found.values()))[1], number, _LIST)
    for number, of_gpu in links.items():
        made = tuple(NvLink(index=index, **values) for index, values in sorted(of_gpu.items()))
        yield Fact("gpus", "nvlinks", made, where[number], number, _NVLINK)


# --- nvidia-smi --query-gpu -------------------------------------------------------------------------------------------

Convert = Callable[[str], Any]


def _text(value: str) -> str | None:
    return value or None


def _number(value: str) -> int | None:
    word = value.split()[0] if value.split() else ""
    return int(word) if word.isdecimal() and len(word) < 16 else None


def _decimal(value: str) -> float | None:
    word = value.split()[0] if value.split() else ""
    return float(word) if re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", word) else None


def _switch(value: str) -> bool | None:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False, "Active": True, "Not Active": False}.get(value)


def _mebibytes(value: str) -> int | None:
    return mebibytes(value)


QUERY: Mapping[str, tuple[str, Convert]] = {
    "name": ("name", _text),
    "gpu_name": ("name", _text),
    "uuid": ("uuid", _text),
    "gpu_uuid": ("uuid", _text),
    "pci.bus_id": ("pci_address", lambda value: normal_address(value) or None),
    "gpu_bus_id": ("pci_address", lambda value: normal_address(value) or None),
    "compute_cap": ("compute_capability", lambda value: value if re.fullmatch(r"\d{1,2}\.\d", value) else None),
    "memory.total": ("memory_total_bytes", _mebibytes),
    "memory.used": ("memory_used_bytes", _mebibytes),
    "utilization.gpu": ("utilization_percent", _number),
    "temperature.gpu": ("temperature_c", _number),
    "temperature.memory": ("memory_temperature_c", _number),
    "power.draw": ("power_w", _decimal),
    "power.limit": ("power_limit_w", _decimal),
    "enforced.power.limit": ("power_limit_w", _decimal),
    "power.default_limit": ("power_default_limit_w", _decimal),
    "clocks.sm": ("sm_clock_mhz", _number),
    "clocks.current.sm": ("sm_clock_mhz", _number),
    "clocks.max.sm": ("sm_clock_max_mhz", _number),
    "clocks.mem": ("memory_clock_mhz", _number),
    "clocks.max.mem": ("memory_clock_max_mhz", _number),
    "pcie.link.gen.current": ("pcie.generation", _number),
    "pcie.link.gen.gpucurrent": ("pcie.generation", _number),
    "pcie.link.gen.max": ("pcie.max_generation", _number),
    "pcie.link.gen.gpumax": ("pcie.max_generation", _number),
    "pcie.link.width.current": ("pcie.width", _number),
    "pcie.link.width.max": ("pcie.max_width", _number),
    "persistence_mode": ("persistence_mode", _switch),
    "pstate": ("performance_state", lambda value: _number(value.removeprefix("P"))),
    "mig.mode.current": ("mig_enabled", _switch),
    "mig.mode.pending": ("mig_pending", _switch),
    "ecc.mode.current": ("ecc_enabled", _switch),
    "ecc.mode.pending": ("ecc_pending", _switch),
    "ecc.errors.uncorrected.volatile.total": ("ecc.volatile_uncorrected", _number),
    "ecc.errors.corrected.volatile.total": ("ecc.volatile_corrected", _number),
    "ecc.errors.uncorrected.aggregate.total": ("ecc.aggregate_uncorrected", _number),
    "ecc.errors.corrected.aggregate.total": ("ecc.aggregate_corrected", _number),
    "vbios_version": ("vbios_version", _text),
    "inforom.img": ("inforom_version", _text),
}
_ASKED = re.compile(r"--query-gpu[= ]([\w.,]{1,2000})")
_QUERY = "nvidia-smi --query-gpu"
_COLUMN_WORDS = ("--query-", "name", "memory.", "driver_version", "pci", "index")
_NO_VALUE = ("", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU requires reset]")


def _query(lines: Sequence[Line]) -> Iterator[Found]:
    """CSV rows; the columns are named by the command or by a header line."""
    columns: list[str] = []
    row = 0
    for line in lines:
        text = line.text.strip()
        if not columns and not any(word in text for word in _COLUMN_WORDS):
            continue
        asked = _ASKED.search(text)
        if asked:
            columns, row = [name for name in asked[1].split(",") if name], 0
            yield Said(line, _QUERY)
            continue
        if "," not in text and (len(columns) != 1 or not text):
            columns = [] if text else columns
            continue
        cells = [cell.strip() for cell in text.split(",")]
        names = [cell.partition(" [")[0] for cell in cells]
        if any(name.startswith("gpu_") for name in names) or "--query-" in text:
            columns = []  # processes, retired pages or clocks; a query of GPUs names its columns without gpu_
        elif len(names) > 1 and sum(name in QUERY or name in ("index", "driver_version", "timestamp") for name in names) >= 2:
            columns, row = names, 0
            yield Said(line, _QUERY)
        elif columns and len(cells) == len(columns) and names != columns:
            yield from _csv_row(dict(zip(columns, cells)), row, line)
            row += 1


def _csv_row(values: Mapping[str, str], row: int, line: Line) -> Iterator[Found]:
    given = values.get("index", "")
    gpu = given if given.isdecimal() and len(given) < 5 else str(row)
    if row > GPU_LIMIT:
        return
    for name, value in values.items():
        if value in _NO_VALUE:
            continue
        if name == "driver_version" and re.fullmatch(DRIVER_VERSION, value):
            yield Fact("nvml_versions", "driver", value, line, format=_QUERY)
        elif name in QUERY:
            field, convert = QUERY[name]
            converted = convert(value)
            if converted is not None:
                yield Fact("gpus", field, converted, line, gpu, _QUERY)


PARSERS = (
    Parser(TABLE, ("NVIDIA-SMI", "Driver Version", "DRIVER version", "KMD Version", "|   0  ", "NVIDIA", "NVML library version"), _table),
    Parser(TABLE, ("No devices were found",), _no_devices),
    Parser(_LIST, ("(UUID: ", "GB/s", "<inactive>", "GPU 0:", "MIG"), _listing),
    Parser(_QUERY, ("--query-gpu", "memory.total", "driver_version", "compute_cap", "pcie.link"), _query),
)
