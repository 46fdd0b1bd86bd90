"""A GPU has memory errors that it could not correct.

What it looks at
    The uncorrected ECC errors of each GPU since its last reset (volatile) and since it was made (aggregate), the flag that its SRAM has had too many of them,
    whether ECC is on, and with two readings how fast corrected errors come.

Why it matters
    An uncorrectable error kills the program that meets it ("uncorrectable ECC error encountered") and often the whole job. It is no lack of memory: smaller
    batches do not help. Old errors that a reset has dealt with stay in the aggregate count and are no fault by themselves. With ECC off,
    errors are not even noticed: results are silently wrong.

Sources
    NVIDIA GPU Memory Error Management; DCGM health rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.facts import CounterGrowth, EccCounters, Gpu, Growth, Missing, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Gpus, HealthLimits

DATACENTER = "datacenter"
NOT_SUPPORTED = Missing(State.ABSENT, "Not Supported (NVML code 3)")


def h200(ecc: EccCounters | None, **fields: object) -> tuple[Gpu, ...]:
    """One H200 with these counters and ECC on."""
    return (Gpu(index=0, name="NVIDIA H200", ecc=ecc, **{"ecc_enabled": True, "ecc_pending": True, **fields}),)  # type: ignore[arg-type]


CLEAN = EccCounters(
    volatile_uncorrected=0, volatile_corrected=0, aggregate_uncorrected=0, aggregate_corrected=0, sram_threshold_exceeded=False
)

CASES = (
    Case(
        title="one uncorrected error since the last reset",
        sections={"gpus": h200(EccCounters(volatile_uncorrected=1, aggregate_uncorrected=1))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="since its last reset",
    ),
    Case(
        title="the SRAM has had too many",
        sections={"gpus": h200(EccCounters(volatile_uncorrected=0, aggregate_uncorrected=7, sram_threshold_exceeded=True))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="SRAM",
    ),
    Case(
        title="old errors only",
        sections={"gpus": h200(EccCounters(volatile_uncorrected=0, aggregate_uncorrected=5, sram_threshold_exceeded=False))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="in its life",
    ),
    Case(
        title="ECC is off on a data-centre GPU",
        sections={"gpus": h200(None, ecc_enabled=False, ecc_pending=False)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="ECC is off",
    ),
    Case(
        title="four in its life, all dealt with",
        sections={"gpus": h200(EccCounters(volatile_uncorrected=0, aggregate_uncorrected=4))},
        status=Status.PASS,
    ),
    Case(
        title="it corrects sixty a minute",
        sections={
            "gpus": h200(CLEAN),
            "growth": Growth(seconds=60.0, counters=(CounterGrowth(gpu=0, counter="ecc.volatile_corrected", before=0, after=60),)),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="60 memory errors a minute",
    ),
    Case(
        title="one fewer",
        sections={
            "gpus": h200(CLEAN),
            "growth": Growth(seconds=60.0, counters=(CounterGrowth(gpu=0, counter="ecc.volatile_corrected", before=0, after=59),)),
        },
        status=Status.PASS,
    ),
    Case(title="no error", sections={"gpus": h200(CLEAN)}, status=Status.PASS),
    Case(
        title="corrected errors are what ECC is for",
        sections={"gpus": h200(EccCounters(volatile_uncorrected=0, volatile_corrected=900, aggregate_uncorrected=0))},
        status=Status.PASS,
    ),
    Case(
        title="a card without ECC",
        sections={"gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 4090", missing={"ecc": NOT_SUPPORTED, "ecc_enabled": NOT_SUPPORTED}),)},
        status=Status.NOT_APPLICABLE,
        says="no GPU here counts memory errors (ECC is not there, or is off)",
    ),
    Case(title="under MIG it is not checkable", sections={"gpus": h200(None, mig_enabled=True)}, status=Status.UNKNOWN, says="MIG"),
    Case(title="the counters were not read", sections={"gpus": h200(None)}, status=Status.UNKNOWN, says="uncorrected"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.ecc-uncorrectable",
    Severity.ERROR,
    explains=("smoke.*",),
    settle="nvidia-smi -q -d ECC",
    cases=CASES,
)
def ecc_uncorrectable(
    gpus: tuple[Gpu, ...], growth: Section[Growth], gpus_matrix: Gpus, health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look at the counters since the last reset first: the aggregate ones never go down."""
    limit, old = health_limits_matrix.limit("volatile-uncorrected-errors"), health_limits_matrix.limit("aggregate-uncorrected-errors")
    many = health_limits_matrix.limit("corrected-memory-errors-per-minute")
    unknown = []
    for gpu in gpus:
        counters, fill = gpu.ecc or EccCounters(), {"gpu": str(gpu.index)}
        where = gpu.where or f"gpus[{gpu.index}].ecc"
        evidence = (
            Evidence(
                where=where,
                value=f"uncorrected: {_number(counters.volatile_uncorrected)} volatile, {_number(counters.aggregate_uncorrected)} aggregate",
            ),
            Evidence(where=where, value=f"SRAM threshold exceeded: {_answer(counters.sram_threshold_exceeded)}"),
            *_growth_of(gpu, "ecc.volatile_uncorrected", growth),
        )
        if counters.sram_threshold_exceeded:
            yield Finding(
                subject=named(gpu),
                summary=f"{named(gpu)} has had so many uncorrectable errors in its SRAM that it has to be replaced.",
                cause="The driver sets this flag for good; resets do not clear it, and jobs on this GPU keep dying.",
                evidence=evidence,
                expected="SRAM threshold exceeded: no",
                remedies=remedies("errors", **fill),
                sources=limit.basis.sources,
                fleet_case="sram",
            )
        elif counters.volatile_uncorrected is not None and counters.volatile_uncorrected >= limit.amount:
            yield Finding(
                subject=named(gpu),
                severity=capped(limit.severity, limit.basis),
                summary=f"{named(gpu)} counts {counters.volatile_uncorrected} uncorrectable memory errors since its last reset.",
                cause=limit.text,
                evidence=evidence,
                expected="0 volatile uncorrected errors",
                remedies=remedies("errors", **fill),
                sources=limit.basis.sources,
            )
        elif counters.aggregate_uncorrected is not None and counters.aggregate_uncorrected >= old.amount:
            yield Finding(
                subject=named(gpu),
                severity=Severity.INFO,
                summary=f"{named(gpu)} has had {counters.aggregate_uncorrected} uncorrectable memory errors in its life.",
                cause=f"{old.text} Resets have dealt with these; a number that grows from month to month belongs into a report to the vendor.",
                evidence=evidence,
                expected="a number that does not grow",
                remedies=remedies("errors", **fill),
                sources=limit.basis.sources,
            )
        elif gpu.ecc_enabled is False:
            yield from _switched_off(gpu, gpus_matrix, remedies)
        elif corrected := _corrected_rate(gpu, growth, many.amount):
            yield Finding(
                subject=named(gpu),
                severity=Severity.INFO,
                summary=f"{named(gpu)} corrects {corrected:.0f} memory errors a minute.",
                cause=f"{many.text} Rows that collect them are replaced; look at the row remapper.",
                evidence=(*evidence, *_growth_of(gpu, "ecc.volatile_corrected", growth)),
                expected=f"fewer than {many.amount:.0f} a minute",
                remedies=remedies("errors", **fill),
                sources=many.basis.sources,
            )
        elif counters.volatile_uncorrected is None and not is_not_there(gpu, "ecc"):
            unknown.append((gpu, why_unknown(gpu, "ecc", "ecc.volatile_uncorrected")))
    yield from doubts("uncorrected memory errors", unknown)
    if all(gpu.ecc is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here counts memory errors (ECC is not there, or is off)")


def _growth_of(gpu: Gpu, counter: str, growth: Section[Growth]) -> Iterator[Evidence]:
    found = growth.value.of_gpu(gpu.index, counter) if growth.value else None
    if found is not None and growth.value is not None and found.grown:
        yield Evidence(where="growth", value=f"{counter}: {found.before} to {found.after} in {growth.value.seconds:.0f} s")


def _corrected_rate(gpu: Gpu, growth: Section[Growth], limit: float) -> float | None:
    """Corrected errors a minute between two readings, where they are at or above the limit."""
    found = growth.value.of_gpu(gpu.index, "ecc.volatile_corrected") if growth.value else None
    if found is None or growth.value is None:
        return None
    rate = found.grown / max(1.0, growth.value.seconds / 60)
    return rate if rate >= limit else None


def _switched_off(gpu: Gpu, gpus_matrix: Gpus, remedies: Remedies) -> Iterator[Finding]:
    product = gpus_matrix.product(gpu.name)
    if product is None or product.product_class != DATACENTER:
        return
    yield Finding(
        subject=named(gpu),
        severity=Severity.WARNING,
        summary=f"ECC is off on {named(gpu)}"
        + (" and will be on after the next reset." if gpu.ecc_pending else ": memory errors are neither corrected nor noticed."),
        cause="Somebody switched it off; data-centre GPUs come with ECC on.",
        evidence=(Evidence(where=gpu.where or f"gpus[{gpu.index}].ecc_enabled", value=f"current no, pending {_answer(gpu.ecc_pending)}"),),
        expected="ECC on",
        remedies=remedies("ecc-off", gpu=str(gpu.index)),
        sources=product.capability_basis.sources,
        fleet_case="ecc-off",
    )


def _number(value: int | None) -> str:
    return "not known" if value is None else str(value)


def _answer(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"
