"""A GPU is split into MIG instances, which bars what large models need.

What it looks at
    Whether MIG is on (now, and after the next reset), which instances there are, and how many of them CUDA_VISIBLE_DEVICES names.

Why it matters
    A CUDA process sees one MIG instance, whatever it asks for, and only the memory of that instance; instances reach neither each other nor other GPUs by
    NVLink. One process that is given several instances uses the first, and a second rank says "invalid device ordinal". With MIG on and no instance created,
    CUDA finds no device on that GPU at all. Some engines read CUDA_VISIBLE_DEVICES as numbers and fail on a MIG UUID.

Sources
    NVIDIA Multi-Instance GPU user guide; vLLM issue 41848.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import doubts, is_not_there, named, why_unknown
from dsdoctor.facts import EnvironmentVariable, Gpu, MigInstance, Missing, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, counted
from dsdoctor.remedies import Remedies

VARIABLE = "CUDA_VISIBLE_DEVICES"

SOURCE = "NVIDIA MIG user guide — https://docs.nvidia.com/datacenter/tesla/mig-user-guide/getting-started-with-mig.html"

TWO = (
    MigInstance(index=0, uuid="MIG-1", name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", memory_bytes=40 << 30),
    MigInstance(index=1, uuid="MIG-2", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_bytes=10 << 30),
)


def h100(on: bool, *instances: MigInstance, pending: bool | None = None) -> tuple[Gpu, ...]:
    """An H100 with MIG on or off."""
    return (
        Gpu(index=0, name="NVIDIA H100 80GB HBM3", mig_enabled=on, mig_pending=on if pending is None else pending, mig_instances=instances),
    )


def visible(value: str) -> tuple[EnvironmentVariable, ...]:
    """An environment with this CUDA_VISIBLE_DEVICES."""
    return (EnvironmentVariable(name=VARIABLE, value=value),)


CASES = (
    Case(
        title="MIG is on, and no instance was made",
        sections={"gpus": h100(True)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="no instance",
    ),
    Case(
        title="two instances for one process",
        sections={"gpus": h100(True, *TWO), "environment": visible("MIG-1,MIG-2")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="one MIG instance",
    ),
    Case(title="two instances", sections={"gpus": h100(True, *TWO)}, status=Status.FAIL, severity=Severity.INFO, says="40 GiB"),
    Case(
        title="one instance for this process",
        sections={"gpus": h100(True, *TWO), "environment": visible("MIG-1")},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2 MIG instances",
    ),
    Case(
        title="a change waits for the next reset",
        sections={"gpus": h100(False, pending=True)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="next reset",
    ),
    Case(title="MIG is off", sections={"gpus": h100(False)}, status=Status.PASS),
    Case(
        title="a card that has no MIG",
        sections={"gpus": (Gpu(index=0, missing={"mig_enabled": Missing(State.ABSENT, "Not Supported")}),)},
        status=Status.NOT_APPLICABLE,
        says="no GPU here can be split by MIG",
    ),
    Case(title="not read", sections={"gpus": (Gpu(index=0, name="NVIDIA H100 80GB HBM3"),)}, status=Status.UNKNOWN, says="MIG"),
    Case(
        title="the instances cannot be read",
        sections={
            "gpus": (
                Gpu(index=0, mig_enabled=True, mig_pending=True, missing={"mig_instances": Missing(State.UNREADABLE, "no permission")}),
            )
        },
        status=Status.UNKNOWN,
        says="no permission",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.mig-limits", Severity.WARNING, explains=("smoke.collectives", "smoke.bandwidth"), settle="nvidia-smi -L", cases=CASES)
def mig_limits(
    gpus: tuple[Gpu, ...], environment: Section[tuple[EnvironmentVariable, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Say what MIG bars, GPU by GPU, and look at what this process was given."""
    unknown = []
    for gpu in gpus:
        if gpu.mig_enabled is None:
            if not is_not_there(gpu, "mig_enabled"):
                unknown.append((gpu, why_unknown(gpu, "mig_enabled")))
        elif gpu.mig_enabled and not gpu.mig_instances and (gpu.where or "mig_instances" in gpu.missing):
            reason = gpu.missing["mig_instances"].why if "mig_instances" in gpu.missing else "the text lists none"
            unknown.append((gpu, f"it is on, and its instances are not known ({reason})"))
        elif gpu.mig_enabled:
            yield _split(gpu, remedies)
        elif gpu.mig_pending:
            yield _finding(
                gpu,
                f"MIG is off on {named(gpu)} and will be on after the next reset.",
                Severity.INFO,
                "Somebody asked for MIG mode; the switch waits until nothing holds the GPU.",
                remedies("whole-gpu"),
            )
    yield from doubts("MIG", unknown)
    if all(is_not_there(gpu, "mig_enabled") for gpu in gpus):
        yield NotApplicable(reason="no GPU here can be split by MIG")
    given = next((variable.value for variable in environment.value or () if variable.name == VARIABLE), "")
    named_instances = [item for item in given.split(",") if item.strip().startswith("MIG-")]
    if len(named_instances) > 1:
        yield Finding(
            subject=VARIABLE,
            summary=f"{VARIABLE} names {len(named_instances)} MIG instances, and a CUDA process sees one MIG instance only.",
            cause="CUDA takes the first and ignores the others; ranks that ask for cuda:1 fail with an invalid device ordinal.",
            evidence=(Evidence(where=f"environment.{VARIABLE}", value=given),),
            expected="one MIG UUID for each process, which then uses cuda:0",
            remedies=remedies("one-instance"),
            sources=(SOURCE,),
        )


def _split(gpu: Gpu, remedies: Remedies) -> Finding:
    instances = gpu.mig_instances
    if not instances:
        return _finding(
            gpu,
            f"MIG is on on {named(gpu)}, and there is no instance: CUDA finds no device on it.",
            Severity.ERROR,
            "MIG mode was switched on, and nobody created instances (they do not survive a reboot).",
            remedies("make-instances")[:2] + remedies("whole-gpu")[:1],
        )
    largest = max((instance.memory_bytes or 0 for instance in instances), default=0)
    return _finding(
        gpu,
        f"{named(gpu)} is split into {counted(len(instances), 'MIG instance')}; a process sees one of them"
        + (f", at most {largest / (1 << 30):.0f} GiB." if largest else "."),
        Severity.INFO,
        "Instances have no NVLink and no peer access, and health counters of the GPU cannot be read. Models that need several GPUs do not run on them.",
        remedies("whole-gpu")[:2] + remedies("one-instance")[:1],
    )


def _finding(gpu: Gpu, summary: str, severity: Severity, cause: str, remedies: tuple[Remedy, ...]) -> Finding:
    shown = ", ".join(f"{instance.name or 'instance'} ({instance.uuid})" for instance in gpu.mig_instances[:7]) or "none"
    return Finding(
        subject=named(gpu),
        severity=severity,
        summary=summary,
        cause=cause,
        evidence=(
            Evidence(
                where=gpu.where or f"gpus[{gpu.index}].mig_enabled",
                value=f"{'on' if gpu.mig_enabled else 'off'}, after the next reset {'on' if gpu.mig_pending else 'off'}",
            ),
            Evidence(where=gpu.where or f"gpus[{gpu.index}].mig_instances", value=shown),
        ),
        expected="MIG off where a model needs the whole GPU",
        remedies=remedies,
        sources=(SOURCE,),
    )
