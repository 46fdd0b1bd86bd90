"""GPUs before and during the smoke tests, as NVML sees them from outside: who uses them, and their clocks, power and PCIe link under load."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsdoctor.sources.host import Host

from .nvml import CLOCK_EVENT_MASK, CLOCK_EVENT_REASONS, getter
from .own_processes import own_processes

ROUND_PAUSE_S = 0.01
EDGE_S = 0.02
"""A reading this close to a timed span still belongs to it."""
BUSY_PERCENT = 10
"""Utilisation above what the doctor's own other probes cause for a moment."""
QUIET_WITHIN_S = 1.5
"""Utilisation is an average of up to the last second: so long a GPU looks busy whose work has just ended."""
QUIET_PAUSE_S = 0.1
EXCLUSIVE_PROCESS = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU that smoke tests may use."""

    index: int
    address: str
    """Lower case domain:bus:device.function."""
    handle: Any = None
    no_rates: str = ""
    """Why a rate measured on it would say nothing about it: in use, or cut into MIG slices."""
    exclusive: bool = False
    """Compute mode exclusive process: one process at a time."""
    link_limits: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What NVML said of one GPU at one moment of the monotonic clock; None where it did not say."""

    at: float
    gpu: int
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    pcie_generation: float | None = None
    pcie_width: float | None = None


def find_devices(host: Host) -> tuple[Any, tuple[Device, ...], str]:
    """(NVML bindings or None, the GPUs, why there is no answer). Without an answer the tests still run, on what CUDA shows."""
    try:
        import pynvml as nvml

        nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:
        return None, (), f"NVML: {error}"
    own = own_processes(host)
    patience = time.monotonic() + QUIET_WITHIN_S
    return nvml, tuple(device for index in range(count) if (device := _device(nvml, index, own, patience)) is not None), ""


def _device(nvml: Any, index: int, own: frozenset[int], patience: float) -> Device | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
    except Exception:
        return None
    limits = {
        "pcie_gpu_max_generation": _ask(nvml, handle, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "pcie_max_generation": _ask(nvml, handle, "nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_max_width": _ask(nvml, handle, "nvmlDeviceGetMaxPcieLinkWidth"),
    }
    return Device(
        index=index,
        address=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        handle=handle,
        no_rates=_why_no_rates(nvml, handle, own, patience),
        exclusive=_ask(nvml, handle, "nvmlDeviceGetComputeMode") == EXCLUSIVE_PROCESS,
        link_limits={name: float(value) for name, value in limits.items() if value is not None},
    )


def _why_no_rates(nvml: Any, handle: Any, own: frozenset[int], patience: float) -> str:
    """Why rates would say nothing, or empty. A busy GPU is looked at again until `patience`, on the monotonic clock."""
    mig = _ask(nvml, handle, "nvmlDeviceGetMigMode")
    if mig and mig[0]:
        return "the GPU is cut into MIG slices: peaks of the whole do not apply"
    processes = _ask(nvml, handle, "nvmlDeviceGetComputeRunningProcesses") or ()
    strangers = sorted(process.pid for process in processes if process.pid not in own)
    if strangers:
        return f"in use by process {', '.join(str(pid) for pid in strangers[:4])}"
    while (busy := _ask(nvml, handle, "nvmlDeviceGetUtilizationRates")) is not None and busy.gpu > BUSY_PERCENT:
        if time.monotonic() > patience:
            return f"in use ({busy.gpu} % busy before the tests)"
        time.sleep(QUIET_PAUSE_S)
    return ""


def _ask(nvml: Any, handle: Any, name: str, *arguments: Any) -> Any:
    try:
        return getter(name, *arguments)(nvml, handle)
    except Exception:
        return None


@contextlib.contextmanager
def measuring(nvml: Any, devices: Sequence[Device]) -> Iterator[list[Reading]]:
    """Read the devices again and again while the body runs; yields the growing list of readings."""
    readings: list[Reading] = []
    if nvml is None or not devices:
        yield readings
        return
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(ROUND_PAUSE_S):
            readings.extend(_read(nvml, device) for device in devices)

    # A daemon: a driver call that never returns must not keep the probe from answering.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield readings
    finally:
        stop.set()
        reader.join(1.0)


def _read(nvml: Any, device: Device) -> Reading:
    handle = device.handle
    power_mw = _ask(nvml, handle, "nvmlDeviceGetPowerUsage")
    return Reading(
        at=time.monotonic(),
        gpu=device.index,
        sm_clock_mhz=_ask(nvml, handle, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_ask(nvml, handle, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        reasons=_reasons(nvml, handle),
        pcie_generation=_ask(nvml, handle, "nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width=_ask(nvml, handle, "nvmlDeviceGetCurrPcieLinkWidth"),
    )


def _reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        mask = CLOCK_EVENT_MASK(nvml, handle)
    except Exception:
        return ()
    names = {
        name: getattr(nvml, f"nvmlClocksEventReason{theirs}", getattr(nvml, f"nvmlClocksThrottleReason{theirs}", 0))
        for theirs, name in CLOCK_EVENT_REASONS.items()
    }
    return tuple(name for name, bit in names.items() if mask & bit)


def values_at(readings: Sequence[Reading], gpu: int, began: float, ended: float) -> tuple[dict[str, float], dict[str, str]]:
    """Values and notes of one GPU during a timed span: clocks (median and lowest), power, temperature, link, reasons for low clocks."""
    there = [reading for reading in readings if reading.gpu == gpu and began - EDGE_S <= reading.at <= ended + EDGE_S]
    if not there:
        return {}, {}
    clocks = [reading.sm_clock_mhz for reading in there if reading.sm_clock_mhz is not None]
    values: dict[str, float] = {}
    if clocks:
        values |= {"sm_clock_mhz": float(statistics.median(clocks)), "sm_clock_min_mhz": float(min(clocks))}
    for name in ("power_w", "temperature_c", "pcie_generation", "pcie_width"):
        # An idle link or GPU may only just have woken up: what it reached under load is what counts.
        found = [value for reading in there if (value := getattr(reading, name)) is not None]
        values |= {name: float(max(found))} if found else {}
    reasons = sorted({reason for reading in there for reason in reading.reasons if reason != "gpu_idle"})
    return values, {"clock_event_reasons": ", ".join(reasons) or "none"}
