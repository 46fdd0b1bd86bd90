"""The results of the GPU tests as rows for a person: figures with their units, and the share of the hardware's peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsdoctor.facts import Gpu, Sections, SmokeResult
from dsdoctor.rows import GpuLimit, GpuLimits

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeRow:
    """One line of the table."""

    test: str
    path: str = ""
    gpu: int | None = None
    outcome: str
    figures: tuple[str, ...] = ()
    share_of_peak: float | None = None
    peak: str = ""
    reason: str = ""
    elapsed_s: float = 0.0


def table(sections: Sections, limits: GpuLimits) -> tuple[SmokeRow, ...]:
    """One row a result, in the order the tests ran."""
    gpus = {gpu.index: gpu for gpu in sections.gpus.value or ()}
    return tuple(_row(result, _limit(result, gpus, limits), limits) for result in sections.smoke.value or ())


def _limit(result: SmokeResult, gpus: Mapping[int, Gpu], limits: GpuLimits) -> GpuLimit | None:
    gpu = gpus.get(result.gpu) if result.gpu is not None else next(iter(gpus.values()), None)
    return limits.product(gpu.name) if gpu else None


def _row(result: SmokeResult, limit: GpuLimit | None, limits: GpuLimits) -> SmokeRow:
    peak, unit = _peak(result, limit, limits)
    achieved = result.values.get("tflops", result.values.get("gb_per_s"))
    return SmokeRow(
        test=result.test,
        path=result.path or "",
        gpu=result.gpu,
        outcome=result.outcome,
        figures=tuple(_figures(result.values)),
        share_of_peak=achieved / peak if peak and achieved is not None else None,
        peak=f"{peak:.0f} {unit}" if peak else "",
        reason=result.reason,
        elapsed_s=result.elapsed_s or 0.0,
    )


def _peak(result: SmokeResult, limit: GpuLimit | None, limits: GpuLimits) -> tuple[float | None, str]:
    """The dense peak of the product that the achieved rate is measured against."""
    if limit is None:
        return None, ""
    if result.test == "pcie":
        generation, width = (int(result.values.get(f"pcie_max_{name}", 0)) for name in ("generation", "width"))
        return (limits.pcie_gb_per_s(generation, width) if generation and width else None), "GB/s"
    return {
        "bf16-rate": (limit.bf16_tflops, "TFLOP/s"),
        "fp8-rate": (limit.fp8_tflops, "TFLOP/s"),
        "fa3-rate": (limit.bf16_tflops, "TFLOP/s"),
        "memory-copy": (limit.memory_gb_per_s, "GB/s"),
        "p2p": (limit.nvlink_gb_per_s, "GB/s"),
    }.get(result.test, (None, ""))


SHOWN: tuple[tuple[str, str], ...] = (
    ("tflops", "{:.0f} TFLOP/s"),
    ("gb_per_s", "{:.1f} GB/s"),
    ("bus_gb_per_s", "{:.1f} GB/s bus"),
    ("gb_per_s_total", "{:.1f} GB/s together"),
    ("gb_per_s_slowest", "{:.1f} GB/s the slowest"),
    ("rel_error", "rel {:.1e}"),
    ("fp8_rel_error", "rel {:.1e}"),
    ("merge_rel_error", "rel {:.1e}"),
    ("calc_diff_unquantised", "recipe diff {:.1e}"),
    ("differing_runs", "{:.0f} runs differ"),
    ("encode_mismatches", "{:.0f} wrong casts"),
    ("wrong_bytes", "{:.0f} wrong bytes"),
    ("nonfinite", "{:.0f} not finite"),
    ("wrong", "{:.0f} wrong results"),
    ("wrong_words", "{:.0f} wrong words"),
    ("faster_by", "{:.1f} x faster without the switch"),
    ("first_call_s", "first call {:.2f} s"),
)
"""Values worth a place on the screen; zeros of faults are left out."""

FAULT_COUNTS = frozenset({"wrong_bytes", "nonfinite", "wrong", "wrong_words"})
COMPARED = ("wrong", "wrong_words")
"""Counts of tests that compare every value: where there is no rate beside them, that none was wrong is the result."""
RATES = frozenset({"tflops", "gb_per_s", "bus_gb_per_s"})


def _figures(values: Mapping[str, float]) -> Iterable[str]:
    if not RATES & values.keys() and any(values.get(name) == 0 for name in COMPARED):
        yield "values right"
    for name, form in SHOWN:
        if name in values and not (name in FAULT_COUNTS and values[name] == 0) and not (name == "first_call_s" and values[name] < 1):
            yield form.format(values[name])
