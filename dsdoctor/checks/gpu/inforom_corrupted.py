"""The InfoROM of a GPU is damaged.

What it looks at
    What NVML answered to questions about each GPU: return code 14, and in pasted text the warning of nvidia-smi.

Why it matters
    The InfoROM holds the settings and the error history of the board: ECC mode, retired pages or remapped rows, power limits. Damaged, the driver falls back to what it can and
    forgets what it learnt about bad memory. The GPU computes on, and a later start may fail; the vendor has a tool that restores it, else the board goes back.

Sources
    NVML return code 14 (NVML_ERROR_CORRUPTED_INFOROM); nvidia-smi manual, return code 14; DCGM diagnostic (corrupt InfoROM).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import doubts, named, why_unknown
from dsdoctor.facts import Gpu, Missing, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies

CORRUPTED = re.compile(r"\(NVML code 14\)")
SOURCE = "nvidia-smi manual (return code 14) — https://docs.nvidia.com/deploy/nvidia-smi/index.html"


def h100(inforom: str = "G500.0200.00.05", **missing: Missing) -> tuple[Gpu, ...]:
    """An H100 with this InfoROM."""
    return (Gpu(index=3, name="NVIDIA H100 80GB HBM3", inforom_version=inforom, missing=missing),)


CASES = (
    Case(
        title="NVML says that it is corrupted",
        sections={"gpus": h100("", inforom_version=Missing(State.UNREADABLE, "infoROM is corrupted (NVML code 14)"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="infoROM is corrupted",
    ),
    Case(
        title="another question met it",
        sections={"gpus": h100(ecc_enabled=Missing(State.UNREADABLE, "infoROM is corrupted (NVML code 14)"))},
        status=Status.FAIL,
        says="damaged",
    ),
    Case(title="it has a version", sections={"gpus": h100()}, status=Status.PASS),
    Case(
        title="a card that tells none",
        sections={"gpus": h100("", inforom_version=Missing(State.ABSENT, "Not Supported (NVML code 3)"))},
        status=Status.PASS,
    ),
    Case(title="it was not read", sections={"gpus": h100("")}, status=Status.UNKNOWN, says="InfoROM"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.inforom-corrupted", Severity.WARNING, settle="nvidia-smi --query-gpu=index,inforom.img --format=csv", cases=CASES)
def inforom_corrupted(gpus: tuple[Gpu, ...], remedies: Remedies) -> Iterator[Finding | Doubt]:
    """Any question that NVML answered with code 14 tells of it."""
    unknown = []
    for gpu in gpus:
        told = {field: missing.why for field, missing in gpu.missing.items() if CORRUPTED.search(missing.why)}
        if told:
            yield Finding(
                subject=named(gpu),
                summary=f"The InfoROM of {named(gpu)} is damaged.",
                cause="The driver cannot read what the board keeps of its settings and of bad memory.",
                evidence=tuple(Evidence(where=f"gpus[{gpu.index}].missing[{field}]", value=why) for field, why in list(told.items())[:4]),
                expected="an InfoROM version from nvidia-smi, without a warning",
                remedies=remedies("general", gpu=str(gpu.index)),
                sources=(SOURCE,),
            )
        elif not gpu.inforom_version and not ("inforom_version" in gpu.missing and gpu.missing["inforom_version"].state is State.ABSENT):
            unknown.append((gpu, why_unknown(gpu, "inforom_version")))
    yield from doubts("InfoROM", unknown)
