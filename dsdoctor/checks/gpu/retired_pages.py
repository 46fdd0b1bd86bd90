"""A GPU without row remapping has retired many memory pages, or waits for a reset to retire some.

What it looks at
    The pages that GPUs before Ampere have taken out of use, for several corrected errors or for an uncorrectable one, and whether some wait for the next reset.

Why it matters
    A page that waits is still handed out, and the next program on it meets the same error. A GPU has room for 64 retired pages; shortly before that, or when
    uncorrectable errors add pages week after week, it is replaced. Newer GPUs remap rows instead (gpu.row-remap) and do not have this list.

Sources
    NVIDIA dynamic page retirement; DCGM health rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, named, why_unknown
from dsdoctor.facts import Gpu, Missing, RetiredPages, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits


def v100(single: int | None = 0, double: int | None = 0, pending: bool | None = False) -> tuple[Gpu, ...]:
    """A V100 with this list."""
    return (Gpu(index=1, name="Tesla V100-SXM2-32GB", retired_pages=RetiredPages(single_bit=single, double_bit=double, pending=pending)),)


CASES = (
    Case(title="pages wait for a reset", sections={"gpus": v100(2, 0, True)}, status=Status.FAIL, severity=Severity.WARNING, says="reset"),
    Case(title="the list is nearly full", sections={"gpus": v100(2, 61)}, status=Status.FAIL, severity=Severity.ERROR, says="63"),
    Case(title="one short of that", sections={"gpus": v100(60, 2)}, status=Status.PASS),
    Case(title="many for uncorrectable errors", sections={"gpus": v100(0, 16)}, status=Status.FAIL, severity=Severity.WARNING, says="16"),
    Case(title="one fewer", sections={"gpus": v100(0, 15)}, status=Status.PASS),
    Case(title="none", sections={"gpus": v100()}, status=Status.PASS),
    Case(
        title="a GPU that remaps rows",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200", missing={"retired_pages": Missing(State.ABSENT, "Not Supported")}),)},
        status=Status.NOT_APPLICABLE,
        says="no GPU here retires pages",
    ),
    Case(
        title="they cannot be read",
        sections={"gpus": (Gpu(index=0, name="Tesla T4", missing={"retired_pages": Missing(State.UNREADABLE, "No Permission")}),)},
        status=Status.UNKNOWN,
        says="No Permission",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.retired-pages", Severity.ERROR, explains=("gpu.ecc-uncorrectable",), settle="nvidia-smi -q -d PAGE_RETIREMENT", cases=CASES)
def retired_pages(
    gpus: tuple[Gpu, ...], health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A full list outweighs pages that wait, and those a long list."""
    full, long = health_limits_matrix.limit("retired-pages"), health_limits_matrix.limit("retired-pages-uncorrectable")
    unknown = []
    for gpu in gpus:
        pages = gpu.retired_pages
        if pages is None:
            if "retired_pages" in gpu.missing and gpu.missing["retired_pages"].state is not State.ABSENT:
                unknown.append((gpu, why_unknown(gpu, "retired_pages")))
            continue
        single, double = pages.single_bit or 0, pages.double_bit or 0
        if single + double >= full.amount:
            row, case = full, "limit"
            summary = f"{named(gpu)} has retired {single + double} memory pages: the list is full, and the GPU has to be replaced."
        elif pages.pending:
            row, case = long, "pending"
            summary = f"Memory pages of {named(gpu)} wait for a reset to be retired."
        elif double >= long.amount:
            row, case = long, "limit"
            summary = f"{named(gpu)} has retired {double} memory pages for uncorrectable errors."
        else:
            continue
        yield Finding(
            subject=named(gpu),
            severity=capped(row.severity, row.basis),
            summary=summary,
            cause="A page with an error is still handed out until the next reset." if case == "pending" else row.text,
            evidence=(
                Evidence(
                    where=gpu.where or f"gpus[{gpu.index}].retired_pages",
                    value=f"for corrected errors {single}, for uncorrectable {double}, pending {'yes' if pages.pending else 'no'}",
                ),
            ),
            expected="no page pending, and a list that does not grow",
            remedies=remedies(case, gpu=str(gpu.index)),
            sources=row.basis.sources,
            fleet_case=case,
        )
    yield from doubts("retired pages", unknown)
    if all(gpu.retired_pages is None for gpu in gpus):
        yield NotApplicable(reason="no GPU here retires pages of its memory (since Ampere they remap rows)")
