"""GPUs of one kind carry different firmware.

What it looks at
    The VBIOS and the InfoROM image of all GPUs that have the same product name and the same board.

Why it matters
    One GPU of eight with another VBIOS is a board that was swapped or an update that stopped half-way. It may hold other clocks and power limits, lack a repair that the
    others have, and be refused by Fabric Manager; it is the odd one in every comparison. Boards of different part numbers have firmware of their own, which is no fault.

Sources
    NVML nvmlDeviceGetVbiosVersion and nvmlDeviceGetInforomImageVersion; rules of public node-health projects (one VBIOS on all GPUs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import numbered
from dsdoctor.facts import Gpu, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = "NVML API reference: device queries — https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"
KINDS = (("vbios_version", "VBIOS", Severity.WARNING), ("inforom_version", "InfoROM", Severity.INFO))


def boards(*vbios: str, inforom: str = "G520.0282.02.02", parts: tuple[str, ...] = ()) -> tuple[Gpu, ...]:
    """H200s with these VBIOS versions."""
    return tuple(
        Gpu(
            index=index,
            name="NVIDIA H200",
            vbios_version=version,
            inforom_version=inforom,
            board_part_number=parts[index] if parts else "692-2G520-0282-001",
        )
        for index, version in enumerate(vbios)
    )


CASES = (
    Case(
        title="one of four was swapped",
        sections={"gpus": boards("96.00.A5.00.1A", "96.00.A5.00.1A", "96.00.89.00.01", "96.00.A5.00.1A")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="GPU 2",
    ),
    Case(
        title="another InfoROM only",
        sections={"gpus": (*boards("96.00.A5.00.1A"), Gpu(index=1, name="NVIDIA H200", inforom_version="G520.0282.02.01"))},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="InfoROM",
    ),
    Case(title="the same on all", sections={"gpus": boards("96.00.A5.00.1A", "96.00.A5.00.1A")}, status=Status.PASS),
    Case(
        title="two kinds of board",
        sections={"gpus": boards("96.00.A5.00.1A", "96.00.89.00.01", parts=("692-2G520-0282-001", "692-2G520-0280-000"))},
        status=Status.PASS,
    ),
    Case(
        title="they were not read",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200"), Gpu(index=1, name="NVIDIA H200"))},
        status=Status.UNKNOWN,
        says="VBIOS",
    ),
    Case(title="one GPU", sections={"gpus": boards("96.00.A5.00.1A")}, status=Status.NOT_APPLICABLE, says="one GPU"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check(
    "gpu.mixed-firmware", Severity.WARNING, settle="nvidia-smi --query-gpu=index,name,vbios_version,inforom.img --format=csv", cases=CASES
)
def mixed_firmware(gpus: tuple[Gpu, ...], remedies: Remedies) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare GPUs of one product with one another; a board number that is not known sets nobody apart."""
    if len(gpus) < 2:
        yield NotApplicable(reason="there is one GPU only")
        return
    for name in dict.fromkeys(gpu.name for gpu in gpus):
        alike = [gpu for gpu in gpus if gpu.name == name]
        one_board = len({gpu.board_part_number for gpu in alike if gpu.board_part_number}) < 2
        if len(alike) < 2 or not one_board:
            continue
        for field, title, severity in KINDS:
            versions = Counter(version for gpu in alike if (version := getattr(gpu, field)))
            if len(versions) < 2:
                continue
            usual = versions.most_common(1)[0][0]
            odd = [gpu for gpu in alike if getattr(gpu, field) not in ("", usual)]
            yield Finding(
                subject=numbered(odd),
                severity=severity,
                summary=f"{numbered(odd)} {'has' if len(odd) == 1 else 'have'} another {title} than the other {name or 'GPU'}s of this node.",
                cause="A board was swapped, or an update did not reach all of them.",
                evidence=tuple(
                    Evidence(where=gpu.where or f"gpus[{gpu.index}].{field}", value=getattr(gpu, field) or "not known") for gpu in alike[:8]
                ),
                expected=f"one {title} on all GPUs of a kind, such as {usual}",
                remedies=remedies("general"),
                sources=(SOURCE,),
            )
    if not any(gpu.vbios_version or gpu.inforom_version for gpu in gpus):
        yield Doubt(subject=numbered(gpus), reason="VBIOS and InfoROM versions were not read")
