"""A GPU cannot repair its memory, or waits for a reset to do so.

What it looks at
    The row remapper of each GPU (Ampere and later): remaps that wait for a reset, the flag that a remap failed, and how many rows have been remapped.

Why it matters
    A row with uncorrectable errors is replaced by a spare one at the next reset. Until then the page is blocked: running work goes on, but start no new job.
    When a remap failed, or the spares are used up, the GPU has to be replaced; a reset changes nothing. Under MIG the remapper cannot be read.

Sources
    NVIDIA GPU Memory Error Management, recovery and response flags; DCGM health rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, is_not_there, named, why_unknown
from dsdoctor.facts import Gpu, Missing, RemappedRows, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

KEEP_AN_EYE = Remedy(
    summary="Nothing to repair now: watch the number",
    steps=("note it with the date; when it grew since last month, run the vendor's diagnostic and ask about a return",),
    verify=Verify(command="nvidia-smi -q -d ROW_REMAPPER", prints="the same number as before, Pending: No"),
)


def a100(correctable: int = 0, uncorrectable: int = 0, pending: bool = False, failure: bool = False) -> tuple[Gpu, ...]:
    """An A100 with this state of its remapper."""
    rows = RemappedRows(correctable=correctable, uncorrectable=uncorrectable, pending=pending, failure=failure)
    return (Gpu(index=2, name="NVIDIA A100 80GB PCIe", pci_address="0000:9c:00.0", remapped_rows=rows),)


CASES = (
    Case(title="a remap failed", sections={"gpus": a100(0, 9, True, True)}, status=Status.FAIL, severity=Severity.ERROR, says="replaced"),
    Case(title="remaps wait", sections={"gpus": a100(0, 12, True)}, status=Status.FAIL, severity=Severity.WARNING, says="reset"),
    Case(title="all spares used", sections={"gpus": a100(0, 512)}, status=Status.FAIL, severity=Severity.WARNING, says="512"),
    Case(title="one short of that", sections={"gpus": a100(0, 511)}, status=Status.FAIL, severity=Severity.INFO, says="511"),
    Case(title="a quarter of the spares", sections={"gpus": a100(0, 128)}, status=Status.FAIL, severity=Severity.INFO, says="128"),
    Case(title="some replaced rows are normal", sections={"gpus": a100(0, 127)}, status=Status.PASS),
    Case(title="a corrected row", sections={"gpus": a100(1, 0)}, status=Status.PASS),
    Case(title="nothing remapped", sections={"gpus": a100()}, status=Status.PASS),
    Case(
        title="a card without a remapper",
        sections={"gpus": (Gpu(index=0, name="Tesla T4", missing={"remapped_rows": Missing(State.ABSENT, "Not Supported")}),)},
        status=Status.NOT_APPLICABLE,
        says="no GPU here remaps rows of its memory",
    ),
    Case(
        title="under MIG it cannot be read",
        sections={"gpus": (Gpu(index=0, mig_enabled=True, missing={"remapped_rows": Missing(State.ABSENT, "Not Supported")}),)},
        status=Status.UNKNOWN,
        says="MIG",
    ),
    Case(title="not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="GPU 0"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.row-remap", Severity.ERROR, explains=("gpu.ecc-uncorrectable",), settle="nvidia-smi -q -d ROW_REMAPPER", cases=CASES)
def row_remap(gpus: tuple[Gpu, ...], health_limits_matrix: HealthLimits, remedies: Remedies) -> Iterator[Finding | Doubt | NotApplicable]:
    """A failed remap outweighs a pending one, and that one the number of rows."""
    limit, some = health_limits_matrix.limit("remapped-rows"), health_limits_matrix.limit("remapped-rows-worth-knowing")
    unknown = []
    for gpu in gpus:
        rows, fill = gpu.remapped_rows, {"gpu": str(gpu.index)}
        if rows is None:
            if not is_not_there(gpu, "remapped_rows"):
                unknown.append((gpu, why_unknown(gpu, "remapped_rows")))
            continue
        evidence = Evidence(
            where=gpu.where or f"gpus[{gpu.index}].remapped_rows",
            value=f"uncorrectable {rows.uncorrectable}, correctable {rows.correctable}, "
            f"pending {'yes' if rows.pending else 'no'}, failure {'yes' if rows.failure else 'no'}",
        )
        if rows.failure:
            severity, case = Severity.ERROR, "failure"
            summary = f"Row remapping failed on {named(gpu)}: the GPU has to be replaced."
            cause = "There was no spare row left where one was needed. The flag is permanent, and resets do not help."
        elif rows.pending:
            severity, case = Severity.WARNING, "pending"
            summary = f"{named(gpu)} waits for a reset to replace bad memory rows."
            cause = (
                "The bad page is blocked, so running work may go on; start no new jobs before the reset. "
                "When new rows turn bad after each reset, have the GPU replaced (RMA)."
            )
        elif rows.uncorrectable >= limit.amount:
            severity, case = capped(limit.severity, limit.basis), "failure"
            summary = f"{named(gpu)} has remapped {rows.uncorrectable} rows: its spare memory rows are used up."
            cause = limit.text
        elif rows.uncorrectable >= some.amount:
            severity, case = Severity.INFO, "pending"
            summary = f"{named(gpu)} has replaced {rows.uncorrectable} memory rows in its life, and none waits."
            cause = f"{some.text} A number that grows is a reason to have the GPU tested."
        else:
            continue
        yield Finding(
            subject=named(gpu),
            severity=severity,
            summary=summary,
            cause=cause,
            evidence=(evidence,),
            expected="no remap pending, none failed",
            remedies=(KEEP_AN_EYE,) if severity is Severity.INFO else remedies(case, **fill),
            sources=limit.basis.sources,
            fleet_case=case,
            explains=("gpu.xid",) if severity is Severity.ERROR else (),
        )
    yield from doubts("row remapping", unknown)
    if all(gpu.remapped_rows is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here remaps rows of its memory")
