"""Results and GPUs for the cases of the smoke checks; numbers are those of an H200 unless a case says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from dsdoctor.facts import Gpu, NvLink, SmokeResult

ADDRESSES = ("0000:00:06.0", "0000:00:07.0", "0000:00:08.0", "0000:00:09.0")
H200 = tuple(
    Gpu(
        index=index,
        name="NVIDIA H200",
        compute_capability="9.0",
        pci_address=address,
        nvlinks=tuple(NvLink(index=link, active=True, remote="switch") for link in range(18)),
    )
    for index, address in enumerate(ADDRESSES)
)
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
UNHEARD_OF = (Gpu(index=0, name="NVIDIA X900", compute_capability="9.0"),)

BUSY = "in use by process 4711"
ILLEGAL = "CUDA error: an illegal memory access was encountered"


def ran(
    test: str,
    path: str,
    gpu: int | None = 0,
    notes: Mapping[str, str] | None = None,
    more: Mapping[str, float] | None = None,
    **values: float,
) -> SmokeResult:
    """A result with numbers: `more`, and the keywords over them."""
    return SmokeResult(test=test, path=path, gpu=gpu, outcome="ran", values={**(more or {}), **values}, notes=notes or {})


def said(outcome: str, test: str, path: str, reason: str, gpu: int | None = 0, stderr: str = "", **notes: str) -> SmokeResult:
    """A result without numbers: error, crash, hang, refused or skipped, with its text."""
    return SmokeResult(test=test, path=path, gpu=gpu, outcome=outcome, reason=reason, notes=notes, stderr_tail=stderr)
