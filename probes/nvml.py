"""What NVML says: whether it starts, the driver's versions, and every GPU.

Each value is one getter that may fail alone (an old driver lacks it, the product does not have it, the process may not ask), so `READINGS`
is a table of questions and the reader keeps, for each value without an answer, the reason. A call that hangs or crashes ends the child
that this probe runs in; nothing here guards against that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsdoctor.facts import (
    EccCounters,
    FabricState,
    Gpu,
    GpuProcess,
    MigInstance,
    Missing,
    NvLink,
    NvmlStart,
    NvmlVersions,
    PcieLink,
    RemappedRows,
    RetiredPages,
    Section,
    State,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

from .own_processes import own_processes

LIBRARY = "libnvidia-ml.so.1"
FOUND_VIA = "NVML"

Ask = Callable[[Any, Any], Any]
"""One question: takes the NVML bindings and a GPU handle, gives the answer or raises."""

Decode = Callable[[Any], Any]
"""Turns an answer into the value of a field; None when the answer holds no value."""
NO_GPU = "there is no NVIDIA GPU on the PCI bus"
PCI_DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """The sections nvml_start, nvml_versions and gpus."""
    if host.root != "/":
        return dict.fromkeys(("nvml_start", "nvml_versions", "gpus"), not_asked("a recorded tree has no NVML to ask"))
    try:
        import pynvml as nvml
    except Exception as error:
        why = f"the Python bindings nvidia-ml-py cannot be imported: {type(error).__name__}: {error}"
        return dict.fromkeys(("nvml_start", "nvml_versions", "gpus"), unreadable(why))
    start = _start(nvml, host)
    if start.error_code is not None:
        why = f"NVML did not start: {_with_code(start.error_text, start.error_code)}"
        no_library = "No such file" in start.error_text
        nothing = absent(NO_GPU, PCI_DEVICES) if no_library and _bus_has_no_gpu(host) else unreadable(why, start.library)
        return {"nvml_start": known(start, FOUND_VIA), "nvml_versions": nothing, "gpus": nothing}
    # No nvmlShutdown: the end of this child closes everything, and a shutdown can hang where the reads did not.
    return {"nvml_start": known(start, FOUND_VIA), "nvml_versions": _versions(nvml), "gpus": _gpus(nvml, host, scope)}


def _bus_has_no_gpu(host: Host) -> bool:
    """Whether the PCI bus can be read and holds no NVIDIA GPU; WSL shows its GPU elsewhere."""
    classes = [(host.first_line(f"{device}/vendor"), host.first_line(f"{device}/class") or "") for device in host.glob(f"{PCI_DEVICES}/*")]
    gpus = [vendor for vendor, kind in classes if vendor == NVIDIA and kind.startswith(DISPLAY_CLASS)]
    return bool(classes) and not gpus and not host.exists("/dev/dxg")


# --- start and versions -----------------------------------------------------------------------------------------------


def _start(nvml: Any, host: Host) -> NvmlStart:
    """Load the library and start it. The loader is asked first, since the bindings hide its reason (not found, wrong class, cut short)."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        code = nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return NvmlStart(library=LIBRARY, error_code=code, error_text=f"{_words(nvml.NVMLError(code))}: {error}")
    library = _mapped_library(host)
    try:
        # Without this flag a node with a driver and no GPU looks like a driver that does not start.
        nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)
    except nvml.NVMLError as error:
        return NvmlStart(library=library, error_code=_code(error), error_text=_words(error))
    return NvmlStart(library=library)


def _mapped_library(host: Host) -> str:
    """Path of the libnvidia-ml that this process has mapped."""
    try:
        maps = host.read_text("/proc/self/maps")
    except OSError:
        return LIBRARY
    paths = (line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count(" ") >= 5 and "/libnvidia-ml.so" in line)
    return next(paths, LIBRARY)


def _versions(nvml: Any) -> Section[NvmlVersions]:
    answers = _read(nvml, None, VERSIONS)
    if "driver" not in answers.found:
        return unreadable(f"the driver version cannot be read: {answers.missing['driver'].why}", FOUND_VIA)
    return known(NvmlVersions(**answers.found, gpu_count=_count(nvml)), FOUND_VIA)


def _count(nvml: Any) -> int | None:
    """How many GPUs NVML knows, whichever of them are asked about."""
    try:
        return int(nvml.nvmlDeviceGetCount())
    except (nvml.NVMLError, AttributeError, ValueError):
        return None


# --- how to ask -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One question to NVML and the fields its answer fills. A dotted field belongs to a record inside the Gpu."""

    ask: Ask
    fields: Mapping[str, Decode]


def getter(name: str, *arguments: Any) -> Ask:
    """A plain getter that returns its value."""
    return lambda nvml, handle: _function(nvml, name)(handle, *arguments)


def system(name: str) -> Ask:
    """A getter of the whole driver, without a GPU."""
    return lambda nvml, handle: _function(nvml, name)()


def filled(name: str, structure: type[ctypes.Structure], version: int | None) -> Ask:
    """A getter of the library itself that fills one of the structures below; a versioned one starts with its size and version number."""

    def ask(nvml: Any, handle: Any) -> Any:
        record = structure() if version is None else structure(ctypes.sizeof(structure) | version << 24)
        try:
            call = ctypes.CDLL(LIBRARY)[name]
        except AttributeError:
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
        code = call(handle, ctypes.byref(record))
        if code != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(code)
        return record

    return ask


def field_value(field_id: int) -> Ask:
    """One NVML field by its number (numbers are stable; the bindings of an older release lack the newer names)."""

    def ask(nvml: Any, handle: Any) -> Any:
        answer = nvml.nvmlDeviceGetFieldValues(handle, [field_id])[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return _number(answer)

    return ask


def first_of(*asks: Ask) -> Ask:
    """The first of these questions that both the driver and the bindings understand."""

    def ask(nvml: Any, handle: Any) -> Any:
        for attempt in asks[:-1]:
            try:
                return attempt(nvml, handle)
            except nvml.NVMLError as error:
                if _code(error) not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                    raise
        return asks[-1](nvml, handle)

    return ask


def _function(nvml: Any, name: str) -> Any:
    found = getattr(nvml, name, None)
    if found is None:
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def _number(answer: Any) -> int | float:
    """The value of a c_nvmlFieldValue_t by its type: double, unsigned int, unsigned long, unsigned long long, signed long long, …"""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: int | float = getattr(answer.value, members[answer.valueType])
    return number


# --- what a missing answer means --------------------------------------------------------------------------------------


def _code(error: BaseException) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _words(error: BaseException) -> str:
    """The words for an NVML error, also when the library has none for it."""
    try:
        return str(error)
    except Exception:
        return "NVML error"


def _with_code(text: str, code: int) -> str:
    return f"{text.rstrip('.')} (NVML code {code})"


def _missing(nvml: Any, error: Exception) -> Missing:
    """What the product does not have is absent; everything else (an old driver, no permission, any other error) is unreadable."""
    code = _code(error)
    if code is None:
        return Missing(State.UNREADABLE, f"{type(error).__name__}: {error}")
    is_absent = code in (nvml.NVML_ERROR_NOT_SUPPORTED, getattr(nvml, "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", None))
    return Missing(State.ABSENT if is_absent else State.UNREADABLE, _with_code(_words(error), code))


@dataclass(slots=True)
class Answers:
    """What a round of questions found, and why the rest has no value."""

    found: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    lost: bool = False


def _read(nvml: Any, handle: Any, readings: tuple[Reading, ...]) -> Answers:
    """Ask every question. A GPU that is lost is asked no more: its calls can be slow to fail."""
    answers = Answers()
    for number, reading in enumerate(readings):
        try:
            answer = reading.ask(nvml, handle)
        except Exception as error:
            answers.lost = _is_lost(nvml, error)
            unanswered = readings[number:] if answers.lost else (reading,)
            answers.missing |= _all_missing(unanswered, _missing(nvml, error))
            if answers.lost:
                break
            continue
        for name, decode in reading.fields.items():
            value = _decoded(decode, answer)
            (answers.missing if isinstance(value, Missing) else answers.found)[name] = value
    return answers


def _all_missing(readings: tuple[Reading, ...], why: Missing) -> dict[str, Missing]:
    return {name: why for reading in readings for name in reading.fields}


def _is_lost(nvml: Any, error: Exception) -> bool:
    return bool(_code(error) == nvml.NVML_ERROR_GPU_IS_LOST)


def _decoded(decode: Decode, answer: Any) -> Any:
    try:
        value = decode(answer)
    except Exception as error:
        return Missing(State.UNREADABLE, f"NVML answered nonsense ({type(error).__name__}: {error})")
    return Missing(State.ABSENT, "NVML gives no value") if value is None else value


# --- what answers mean ------------------------------------------------------------------------------------------------


def _same(answer: Any) -> Any:
    return answer


def _text(answer: Any) -> str | None:
    """A text that any terminal can show; none when it is empty."""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text) or None


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _cuda_version(number: int) -> str | None:
    """13000 is 13.0, 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else None


def _pci_address(info: Any) -> str:
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _pci_device_id(info: Any) -> str:
    return f"{info.pciDeviceId & 0xFFFF:04x}:{info.pciDeviceId >> 16:04x}"


def _performance_state(state: int) -> int | None:
    """0 to 15; NVML answers 32 for unknown."""
    return state if state < 32 else None


def _remapped_rows(answer: Any) -> RemappedRows:
    correctable, uncorrectable, pending, failure = answer
    return RemappedRows(correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failure=bool(failure))


CLOCK_EVENT_REASONS = {
    "GpuIdle": "gpu_idle",
    "ApplicationsClocksSetting": "applications_clocks_setting",
    "SwPowerCap": "sw_power_cap",
    "HwSlowdown": "hw_slowdown",
    "SyncBoost": "sync_boost",
    "SwThermalSlowdown": "sw_thermal_slowdown",
    "HwThermalSlowdown": "hw_thermal_slowdown",
    "HwPowerBrakeSlowdown": "hw_power_brake_slowdown",
    "DisplayClockSetting": "display_clock_setting",
    "BoardLimit": "board_limit",
    "Reliability": "reliability",
}


def _ask_clock_event_reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Names of the reasons that hold the clocks down now; a bit nobody named keeps its number, so that none is lost."""
    mask = CLOCK_EVENT_MASK(nvml, handle)
    names = {
        getattr(nvml, f"nvmlClocksEventReason{name}", getattr(nvml, f"nvmlClocksThrottleReason{name}", 0)): ours
        for name, ours in CLOCK_EVENT_REASONS.items()
    }
    bits = [1 << number for number in range(64) if mask >> number & 1]
    return tuple(names.get(bit, f"bit_{bit.bit_length() - 1}") for bit in bits)


CLOCK_EVENT_MASK = first_of(getter("nvmlDeviceGetCurrentClocksEventReasons"), getter("nvmlDeviceGetCurrentClocksThrottleReasons"))


def _ask_text(name: str) -> Ask:
    """A getter of a text; the bytes survive when they are not UTF-8, which the bindings refuse."""

    def ask(nvml: Any, handle: Any) -> Any:
        try:
            return _function(nvml, name)(handle)
        except UnicodeDecodeError as error:
            return error.object

    return ask


def _ask_gsp_firmware(nvml: Any, handle: Any) -> bytes:
    """With a buffer of our own (NVML_GSP_FIRMWARE_VERSION_BUF_SIZE), which every release of the bindings takes."""
    version = ctypes.create_string_buffer(64)
    _function(nvml, "nvmlDeviceGetGspFirmwareVersion")(handle, version)
    return version.value


def _ask_memory(nvml: Any, handle: Any) -> Any:
    """Version 2 counts what the driver keeps for itself apart from what is used, as nvidia-smi shows it."""
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=_function(nvml, "nvmlMemory_v2"))


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t."""

    _fields_ = (
        ("cluster_uuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique_id", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class FabricInfoV2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t. The structure of nvidia-ml-py 12 is too long: it reads every state as not supported."""

    _fields_ = (("version", ctypes.c_uint), *FabricInfo._fields_, ("health_mask", ctypes.c_uint))


class MarginTemperature(ctypes.Structure):
    """nvmlMarginTemperature_v1_t; nvidia-ml-py 12 lacks it."""

    _fields_ = (("version", ctypes.c_uint), ("margin_c", ctypes.c_int))


class SramErrorStatus(ctypes.Structure):
    """nvmlEccSramErrorStatus_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("counters", ctypes.c_ulonglong * 11), ("threshold_exceeded", ctypes.c_uint))


FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
FABRIC_INFO = first_of(filled("nvmlDeviceGetGpuFabricInfoV", FabricInfoV2, 2), filled("nvmlDeviceGetGpuFabricInfo", FabricInfo, None))


def _ask_fabric(nvml: Any, handle: Any) -> FabricState:
    info = FABRIC_INFO(nvml, handle)
    state = FABRIC_STATES[info.state] if info.state < len(FABRIC_STATES) else f"state {info.state}"
    if state != "completed":  # the other members mean nothing before the registration has ended
        return FabricState(state=state)
    uuid = bytes(info.cluster_uuid).hex()
    return FabricState(
        state=state,
        status="Success" if info.status == nvml.NVML_SUCCESS else _words(nvml.NVMLError(info.status)),
        status_code=info.status,
        cluster_uuid="-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])),
        clique_id=info.clique_id,
        health_mask=getattr(info, "health_mask", None),
    )


COMPUTE_PROCESSES = first_of(getter("nvmlDeviceGetComputeRunningProcesses_v3"), getter("nvmlDeviceGetComputeRunningProcesses_v2"))
GRAPHICS_PROCESSES = first_of(getter("nvmlDeviceGetGraphicsRunningProcesses_v3"), getter("nvmlDeviceGetGraphicsRunningProcesses_v2"))


def _ask_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found = [("compute", process) for process in COMPUTE_PROCESSES(nvml, handle)]
    try:
        found += [("graphics", process) for process in GRAPHICS_PROCESSES(nvml, handle)]
    except nvml.NVMLError as error:
        if _code(error) != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
    return tuple(GpuProcess(pid=process.pid, kind=kind, used_memory_bytes=process.usedGpuMemory) for kind, process in found)


MIG_SLOTS = 64
"""More than any GPU has; bounds the loop when a driver answers nonsense."""


def _ask_mig_instances(nvml: Any, handle: Any) -> tuple[MigInstance, ...]:
    found = []
    for index in range(min(MIG_SLOTS, _function(nvml, "nvmlDeviceGetMaxMigDeviceCount")(handle))):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError as error:
            if _code(error) in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # an empty slot
            raise
        found.append(MigInstance(index=index, **_read(nvml, instance, MIG_READINGS).found))
    return tuple(found)


SEVERAL_CORRECTED, UNCORRECTABLE = 0, 1
"""nvmlPageRetirementCause_t."""


def _ask_retired(cause: int) -> Ask:
    """How many pages were retired for a cause: their addresses, which is all that NVML gives, are counted."""
    return lambda nvml, handle: len(_function(nvml, "nvmlDeviceGetRetiredPages")(handle, cause))


NVLINK_FIELDS = {"replay_errors": 161, "recovery_errors": 162, "crc_errors": 163, "speed_mb_per_s": 164}
"""NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, …_RECOVERY, …_CRC and NVML_FI_DEV_NVLINK_GET_SPEED; their scope is the link.

The version of a link is left out: on H100 NVML has answered the code of NVLink 5 for links of NVLink 4. The speed tells.
"""


def _ask_nvlinks(nvml: Any, handle: Any) -> tuple[NvLink, ...]:
    """Every link the GPU has, up or down."""
    links = []
    for index in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = bool(nvml.nvmlDeviceGetNvLinkState(handle, index))
        except nvml.NVMLError as error:
            if _code(error) == nvml.NVML_ERROR_INVALID_ARGUMENT:
                break  # past the last link
            if _code(error) == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            raise
        links.append(NvLink(index=index, active=active, remote=_nvlink_remote(nvml, handle, index), **_nvlink_values(nvml, handle, index)))
    if not links:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return tuple(links)


def _nvlink_values(nvml: Any, handle: Any, link: int) -> dict[str, int]:
    """Counters and speed of a link, in one call; those that it does not answer are left out."""
    try:
        answers = nvml.nvmlDeviceGetFieldValues(handle, [(field_id, link) for field_id in NVLINK_FIELDS.values()])
    except nvml.NVMLError as error:
        if _is_lost(nvml, error):
            raise
        return {}
    return {name: int(_number(answer)) for name, answer in zip(NVLINK_FIELDS, answers) if answer.nvmlReturn == nvml.NVML_SUCCESS}


def _nvlink_remote(nvml: Any, handle: Any, link: int) -> str:
    """`switch` for an NVSwitch (its address differs inside a virtual machine), the PCI address of a GPU, empty when not known."""
    try:
        if _function(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType")(handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return "switch"
        return _pci_address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    except nvml.NVMLError as error:
        if _is_lost(nvml, error):
            raise
        return ""


# --- the questions ----------------------------------------------------------------------------------------------------

SM, MEMORY = 1, 2
"""nvmlClockType_t."""

CORRECTED, UNCORRECTED = 0, 1
"""nvmlMemoryErrorType_t."""

VOLATILE, AGGREGATE = 0, 1
"""nvmlEccCounterType_t."""

GPU_SENSOR = 0
"""nvmlTemperatureSensors_t."""

MEMORY_TEMPERATURE, RECOVERY_ACTION = 82, 230
"""NVML_FI_DEV_MEMORY_TEMP and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (driver 570 and later)."""

VIRTUALIZATION_MODES = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}

VERSIONS = (
    Reading(system("nvmlSystemGetDriverVersion"), {"driver": _text}),
    Reading(system("nvmlSystemGetNVMLVersion"), {"nvml": _text}),
    Reading(
        first_of(system("nvmlSystemGetCudaDriverVersion_v2"), system("nvmlSystemGetCudaDriverVersion")), {"cuda_driver": _cuda_version}
    ),
)

READINGS = (
    # Identity first, then from cheap to dear as measured on an H200 (0.01 ms to 2 ms each). Left out as too dear for what they tell:
    # nvmlDeviceGetInforomConfigurationChecksum (70 ms), nvmlDeviceGetCurrentClockFreqs and nvmlDeviceGetPerformanceModes (7 ms each).
    Reading(
        first_of(getter("nvmlDeviceGetPciInfo_v3"), getter("nvmlDeviceGetPciInfo")),
        {"pci_address": _pci_address, "pci_device_id": _pci_device_id},
    ),
    Reading(_ask_text("nvmlDeviceGetName"), {"name": _text}),
    Reading(_ask_text("nvmlDeviceGetUUID"), {"uuid": _text}),
    Reading(getter("nvmlDeviceGetMinorNumber"), {"minor_number": _same}),
    Reading(getter("nvmlDeviceGetCudaComputeCapability"), {"compute_capability": lambda version: f"{version[0]}.{version[1]}"}),
    Reading(
        first_of(_ask_memory, getter("nvmlDeviceGetMemoryInfo")),
        {"memory_total_bytes": lambda memory: memory.total, "memory_used_bytes": lambda memory: memory.used},
    ),
    Reading(getter("nvmlDeviceGetComputeMode"), {"compute_mode": _same}),
    Reading(getter("nvmlDeviceGetPersistenceMode"), {"persistence_mode": bool}),
    Reading(getter("nvmlDeviceGetPerformanceState"), {"performance_state": _performance_state}),
    Reading(getter("nvmlDeviceGetUtilizationRates"), {"utilization_percent": lambda rates: rates.gpu}),
    Reading(getter("nvmlDeviceGetPowerUsage"), {"power_w": _watts}),
    Reading(getter("nvmlDeviceGetPowerManagementDefaultLimit"), {"power_default_limit_w": _watts}),
    Reading(
        getter("nvmlDeviceGetVirtualizationMode"), {"virtualization_mode": lambda mode: VIRTUALIZATION_MODES.get(mode, f"mode {mode}")}
    ),
    Reading(_ask_text("nvmlDeviceGetVbiosVersion"), {"vbios_version": _text}),
    Reading(_ask_gsp_firmware, {"gsp_firmware": _text}),
    Reading(_ask_text("nvmlDeviceGetBoardPartNumber"), {"board_part_number": _text}),
    Reading(_ask_text("nvmlDeviceGetInforomImageVersion"), {"inforom_version": _text}),
    Reading(
        first_of(getter("nvmlDeviceGetTemperatureV", GPU_SENSOR), getter("nvmlDeviceGetTemperature", GPU_SENSOR)), {"temperature_c": _same}
    ),
    Reading(getter("nvmlDeviceGetMaxPcieLinkGeneration"), {"pcie.max_generation": _same}),
    Reading(getter("nvmlDeviceGetMaxPcieLinkWidth"), {"pcie.max_width": _same}),
    Reading(getter("nvmlDeviceGetCurrPcieLinkGeneration"), {"pcie.generation": _same}),
    Reading(getter("nvmlDeviceGetCurrPcieLinkWidth"), {"pcie.width": _same}),
    Reading(getter("nvmlDeviceGetPcieReplayCounter"), {"pcie.replay_count": _same}),
    Reading(getter("nvmlDeviceGetClockInfo", SM), {"sm_clock_mhz": _same}),
    Reading(getter("nvmlDeviceGetClockInfo", MEMORY), {"memory_clock_mhz": _same}),
    Reading(getter("nvmlDeviceGetMaxClockInfo", SM), {"sm_clock_max_mhz": _same}),
    Reading(getter("nvmlDeviceGetMaxClockInfo", MEMORY), {"memory_clock_max_mhz": _same}),
    Reading(_ask_clock_event_reasons, {"clock_event_reasons": _same}),
    Reading(getter("nvmlDeviceGetMigMode"), {"mig_enabled": lambda mode: bool(mode[0]), "mig_pending": lambda mode: bool(mode[1])}),
    Reading(getter("nvmlDeviceGetEccMode"), {"ecc_enabled": lambda mode: bool(mode[0]), "ecc_pending": lambda mode: bool(mode[1])}),
    Reading(getter("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE), {"ecc.volatile_uncorrected": _same}),
    Reading(getter("nvmlDeviceGetTotalEccErrors", CORRECTED, VOLATILE), {"ecc.volatile_corrected": _same}),
    Reading(getter("nvmlDeviceGetTotalEccErrors", UNCORRECTED, AGGREGATE), {"ecc.aggregate_uncorrected": _same}),
    Reading(getter("nvmlDeviceGetTotalEccErrors", CORRECTED, AGGREGATE), {"ecc.aggregate_corrected": _same}),
    Reading(
        filled("nvmlDeviceGetSramEccErrorStatus", SramErrorStatus, 1),
        {"ecc.sram_threshold_exceeded": lambda status: bool(status.threshold_exceeded)},
    ),
    Reading(_ask_processes, {"processes": _same}),
    Reading(field_value(RECOVERY_ACTION), {"recovery_action": int}),
    Reading(field_value(MEMORY_TEMPERATURE), {"memory_temperature_c": int}),
    Reading(filled("nvmlDeviceGetMarginTemperature", MarginTemperature, 1), {"temperature_margin_c": lambda margin: margin.margin_c}),
    Reading(first_of(getter("nvmlDeviceGetEnforcedPowerLimit"), getter("nvmlDeviceGetPowerManagementLimit")), {"power_limit_w": _watts}),
    Reading(getter("nvmlDeviceGetRemappedRows"), {"remapped_rows": _remapped_rows}),
    Reading(_ask_retired(SEVERAL_CORRECTED), {"retired_pages.single_bit": _same}),
    Reading(_ask_retired(UNCORRECTABLE), {"retired_pages.double_bit": _same}),
    Reading(getter("nvmlDeviceGetRetiredPagesPendingStatus"), {"retired_pages.pending": bool}),
    Reading(_ask_mig_instances, {"mig_instances": _same}),
    Reading(_ask_fabric, {"fabric": _same}),
    Reading(_ask_nvlinks, {"nvlinks": _same}),
)

MIG_READINGS = (
    Reading(_ask_text("nvmlDeviceGetUUID"), {"uuid": _text}),
    Reading(_ask_text("nvmlDeviceGetName"), {"name": _text}),
    Reading(first_of(_ask_memory, getter("nvmlDeviceGetMemoryInfo")), {"memory_bytes": lambda memory: memory.total}),
)

RECORDS: Mapping[str, Callable[..., Any]] = {"pcie": PcieLink, "ecc": EccCounters, "retired_pages": RetiredPages}
"""Records inside a Gpu that several readings fill."""


# --- the GPUs ---------------------------------------------------------------------------------------------------------


def _gpus(nvml: Any, host: Host, scope: Scope) -> Section[tuple[Gpu, ...]]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return unreadable(f"the number of GPUs cannot be read: {_missing(nvml, error).why}", FOUND_VIA)
    if count == 0:
        return absent("NVML runs and finds no GPU", FOUND_VIA)
    wanted = range(count) if scope.gpu_indices is None else sorted(set(scope.gpu_indices) & set(range(count)))
    gpus = tuple(_gpu(nvml, host, index) for index in wanted)
    if not gpus:
        return absent(f"none of the GPUs asked for is among the {count} that NVML finds (0 to {count - 1})", FOUND_VIA)
    return known(_with_address_of_lost(host, gpus) if len(gpus) == count else gpus, FOUND_VIA)


def _gpu(nvml: Any, host: Host, index: int) -> Gpu:
    """One GPU; a GPU that gives no handle is still one, with the reason at every value."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        answers = Answers(missing=_all_missing(READINGS, _missing(nvml, error)), lost=_is_lost(nvml, error))
    else:
        answers = _read(nvml, handle, READINGS)
    for name, record in RECORDS.items():
        _gather(answers, name, record)
    if answers.found.get("processes"):
        own = own_processes(host)
        answers.found["processes"] = tuple(process for process in answers.found["processes"] if process.pid not in own)
    _add_numa_node(host, answers)
    return Gpu(index=index, **answers.found, lost=answers.lost, missing=answers.missing)


def _gather(answers: Answers, name: str, record: Callable[..., Any]) -> None:
    """Make one record of the dotted values; when none was found, one reason stands for all."""
    prefix = f"{name}."
    parts = {dotted.removeprefix(prefix): answers.found.pop(dotted) for dotted in tuple(answers.found) if dotted.startswith(prefix)}
    if parts:
        answers.found[name] = record(**parts)
        return
    reasons = [answers.missing.pop(dotted) for dotted in tuple(answers.missing) if dotted.startswith(prefix)]
    answers.missing[name] = reasons[0]


def _add_numa_node(host: Host, answers: Answers) -> None:
    """The processor's node the GPU hangs on, from the kernel: NVML's own getter names the node of the GPU's memory instead."""
    address = answers.found.get("pci_address", "")
    text = host.first_line(f"/sys/bus/pci/devices/{address}/numa_node") if address else None
    if text is None:
        answers.missing["numa_node"] = Missing(State.UNREADABLE, "sysfs shows no numa_node of this GPU")
    elif not text.isdecimal():
        answers.missing["numa_node"] = Missing(State.ABSENT, "the kernel knows no NUMA node of this GPU")
    else:
        answers.found["numa_node"] = int(text)


def _with_address_of_lost(host: Host, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Name the one GPU without a handle by the one address in /proc/driver/nvidia/gpus that no other GPU has."""
    nameless = [gpu for gpu in gpus if not gpu.pci_address]
    taken = {gpu.pci_address for gpu in gpus}
    left = [path.rpartition("/")[2].lower() for path in host.glob("/proc/driver/nvidia/gpus/*")]
    left = [address for address in left if address not in taken]
    if len(nameless) != 1 or len(left) != 1:
        return gpus
    missing = {name: why for name, why in nameless[0].missing.items() if name != "pci_address"}
    named = replace(nameless[0], pci_address=left[0], missing=missing)
    return tuple(named if gpu is nameless[0] else gpu for gpu in gpus)
