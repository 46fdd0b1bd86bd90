"""Answers that the checks of GPUs, fabric and links read out of the same facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsdoctor.facts import Gpu, State
from dsdoctor.findings import Doubt, Severity
from dsdoctor.rows import Basis


def named(gpu: Gpu) -> str:
    """'GPU 3 (NVIDIA H200, 0000:9c:00.0)', as much of it as is known."""
    known = ", ".join(part for part in (gpu.name, gpu.pci_address) if part)
    return f"GPU {gpu.index} ({known})" if known else f"GPU {gpu.index}"


def numbered(gpus: Iterable[Gpu]) -> str:
    """'GPU 3', 'GPUs 0, 1, 4'."""
    numbers = [str(gpu.index) for gpu in gpus]
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def capped(severity: str, basis: Basis) -> Severity:
    """The severity that a row asks for, as far as its basis may carry it."""
    asked = Severity(severity)
    most = Severity.ERROR if basis.may_carry_error else Severity.WARNING if basis.may_carry_warning else Severity.INFO
    return max(asked, most, key=lambda item: item.rank)


def is_not_there(gpu: Gpu, *fields: str) -> bool:
    """Whether the product does not have any of these values (NVML: not supported), which MIG hides as well."""
    return not gpu.mig_enabled and all(field in gpu.missing and gpu.missing[field].state is State.ABSENT for field in fields)


def why_unknown(gpu: Gpu, *fields: str) -> str:
    """Why values of a GPU are not known."""
    if gpu.lost:
        return "the GPU is lost"
    if gpu.mig_enabled:
        return "MIG is on, which hides it: not checkable"
    return next((gpu.missing[field].why for field in fields if field in gpu.missing), "not among the values that were read")


def doubts(what: str, unknown: Iterable[tuple[Gpu, str]], settle: str = "") -> Iterator[Doubt]:
    """One doubt for all GPUs for which a thing is unknown for the same reason."""
    by_reason: dict[str, list[Gpu]] = {}
    for gpu, reason in unknown:
        by_reason.setdefault(reason, []).append(gpu)
    for reason, gpus in by_reason.items():
        yield Doubt(subject=numbered(gpus), reason=f"{what}: {reason}", settle=settle)
