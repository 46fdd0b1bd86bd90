"""The weights take so long to read that an engine or a probe gives up before they are loaded.

What it looks at
    For a model that has to fit (`--model`, or a profile with one): the bytes of its checkpoint, by the rate at which the disk is read: `--disk-gb-s`, or as `--full --model DIRECTORY`
    measures it. That is a lower bound of a cold
    start: with tensor parallelism a naive loader reads every shard once for each rank.

Why it matters
    DeepSeek-V3 is 689 GB: 11.5 minutes at 1 GB/s, 1.9 at 6. vLLM waits 600 seconds for its engine by default, and a start-up probe of Kubernetes
    often less; then a start that was merely slow looks like one that hangs, and is killed and begun again.

Sources
    Recipes of vLLM and NVIDIA Dynamo (time-outs); matrices/deepseek-models (sizes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import DiskRates, Gpu, Section
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

if TYPE_CHECKING:
    from dsdoctor.purpose import Planned

GB = 10**9
H200 = tuple(Gpu(index=index, name="NVIDIA H200", memory_total_bytes=143771 << 20, compute_capability="9.0") for index in range(8))

CASES = (
    Case(
        title="DeepSeek-V3 from a share that gives 1 GB/s",
        sections={"gpus": H200},
        models=("DeepSeek-V3",),
        disk_gb_per_s=1.0,
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="11.5 minutes",
    ),
    Case(title="from NVMe", sections={"gpus": H200}, models=("DeepSeek-V3",), disk_gb_per_s=6.0, status=Status.PASS),
    Case(
        title="measured: a share that gives 0.8 GB/s",
        sections={
            "gpus": H200,
            "disk": DiskRates(
                path="/models/DeepSeek-V3",
                files=163,
                direct=True,
                sequential_bytes_per_s=0.8e9,
                mapped_bytes_per_s=0.5e9,
                random_read_s=0.0009,
                read_bytes=2 << 30,
                elapsed_s=3.4,
            ),
        },
        models=("DeepSeek-V3",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="14.3 minutes",
    ),
    Case(title="nobody measured the disk", sections={"gpus": H200}, models=("DeepSeek-V3",), status=Status.UNKNOWN, says="--disk-gb-s"),
    Case(
        title="a model whose size on disk nobody knows",
        sections={"gpus": H200},
        models=("DeepSeek-V4.1-Flash-1017",),
        disk_gb_per_s=6.0,
        status=Status.UNKNOWN,
        says="not known",
    ),
    Case(title="no model was named", sections={"gpus": H200}, status=Status.NOT_APPLICABLE, says="--model"),
)


@check(
    "capacity.load-time",
    Severity.WARNING,
    settle="dsdoctor check --full --model DIRECTORY",
    cases=CASES,
)
def load_time(
    plans: tuple[Planned, ...], disk: Section[DiskRates], health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare bytes by rate with how long engines wait."""
    if not plans:
        yield NotApplicable(reason="no model was named (--model, or a profile with one)")
    longest = health_limits_matrix.limit("load-time-s")
    for planned in plans:
        model, weights = planned.candidate.model, next(iter(planned.candidate.model.weights), None)
        if weights is None or weights.disk_bytes is None:
            yield Doubt(subject=model.name, reason="how many bytes its checkpoint takes on disk is not known")
        elif not (gb_per_s := planned.disk_gb_per_s or _measured(planned, plans, disk)):
            yield Doubt(
                subject=model.name,
                reason=f"how fast the disk gives its {weights.disk_bytes / GB:,.4g} GB is not known: name it with --disk-gb-s, or have it measured",
                settle="dsdoctor check --full --model DIRECTORY",
            )
        elif (took_s := weights.disk_bytes / (gb_per_s * GB)) > longest.amount:
            yield Finding(
                subject=model.name,
                summary=f"Reading the weights of {model.name} takes {took_s / 60:.1f} minutes at least; an engine waits {longest.amount / 60:.0f}.",
                cause=longest.text,
                evidence=(
                    Evidence(where="bytes on disk", value=f"{weights.disk_bytes / GB:,.4g} GB"),
                    Evidence(where="read rate of the disk", value=f"{gb_per_s:.3g} GB/s{'' if planned.disk_gb_per_s else ', measured'}"),
                ),
                expected=f"less than {longest.amount:g} s, or time-outs that are longer",
                remedies=remedies(),
                sources=longest.basis.sources,
                severity=Severity(longest.severity),
            )


def _measured(planned: Planned, plans: tuple[Planned, ...], disk: Section[DiskRates]) -> float:
    """The measured rate in GB/s, for the model whose directory was read; 0 where there is none."""
    is_its_own = planned.candidate.folder is not None or len(plans) == 1
    return disk.value.sequential_bytes_per_s / GB if disk.value is not None and is_its_own else 0.0
