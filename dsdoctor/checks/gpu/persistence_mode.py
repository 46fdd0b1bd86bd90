"""The driver forgets a GPU whenever nobody uses it (persistence mode is off).

What it looks at
    Persistence mode of the data-centre GPUs, where this process could have it switched on.

Why it matters
    Without it the driver takes the GPU down when its last user ends and starts it again for the next one: each start of CUDA takes seconds longer, limits that
    somebody set are lost, error counters since the last reset start anew, and on NVSwitch boards the GPU has to join the fabric again. A process that keeps the GPU open has the same effect as the mode.

Sources
    NVIDIA driver persistence; DCGM diagnostic (persistence mode).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import doubts, is_not_there, numbered, why_unknown
from dsdoctor.facts import Gpu, Missing, Section, Service, State, Wsl, absent, known
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Gpus

DATACENTER = "datacenter"
PERSISTENCED = "nvidia-persistenced"
SOURCE = "NVIDIA driver persistence — https://docs.nvidia.com/deploy/driver-persistence/index.html"


def h100s(*modes: bool | None) -> tuple[Gpu, ...]:
    """H100s in these modes."""
    return tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3", persistence_mode=mode) for index, mode in enumerate(modes))


CASES = (
    Case(title="off on one of two", sections={"gpus": h100s(True, False)}, status=Status.FAIL, severity=Severity.INFO, says="GPU 1"),
    Case(
        title="off, and the daemon that would switch it on does not run",
        sections={"gpus": h100s(False), "services": (Service(name=PERSISTENCED, state="inactive"),)},
        status=Status.FAIL,
        says="inactive",
    ),
    Case(title="on", sections={"gpus": h100s(True, True)}, status=Status.PASS),
    Case(
        title="a desktop card",
        sections={"gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 4090", persistence_mode=False),)},
        status=Status.NOT_APPLICABLE,
        says="data-centre",
    ),
    Case(
        title="under WSL it is the matter of Windows",
        sections={"gpus": h100s(False), "wsl": known(Wsl(version=2))},
        status=Status.NOT_APPLICABLE,
        says="WSL",
    ),
    Case(
        title="it cannot be read",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200", missing={"persistence_mode": Missing(State.UNREADABLE, "No Permission")}),)},
        status=Status.UNKNOWN,
        says="No Permission",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.persistence-mode", Severity.INFO, settle="nvidia-smi --query-gpu=index,persistence_mode --format=csv", cases=CASES)
def persistence_mode(
    gpus: tuple[Gpu, ...],
    services: Section[tuple[Service, ...]],
    wsl: Section[Wsl],
    gpus_matrix: Gpus,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """One note for all GPUs that are without it."""
    if wsl.state is State.KNOWN:
        yield NotApplicable(reason="WSL: Windows owns the GPU")
        return
    servers = [gpu for gpu in gpus if (product := gpus_matrix.product(gpu.name)) is not None and product.product_class == DATACENTER]
    if not servers:
        yield NotApplicable(reason="no data-centre GPU")
        return
    off = [gpu for gpu in servers if gpu.persistence_mode is False]
    if off:
        daemon = next((item for item in services.value or () if item.name == PERSISTENCED), None)
        yield Finding(
            subject=numbered(off),
            summary=f"Persistence mode is off on {numbered(off)}.",
            cause="Each first start of CUDA takes seconds longer, and what was set on the GPU is lost when its last user ends."
            + (f" The daemon that keeps it, {PERSISTENCED}, is {daemon.state.replace('-', ' ')}." if daemon else ""),
            evidence=(
                *(Evidence(where=gpu.where or f"gpus[{gpu.index}].persistence_mode", value="off") for gpu in off[:8]),
                *((Evidence(where=f"services: {PERSISTENCED}", value=daemon.state),) if daemon else ()),
            ),
            expected="persistence mode on for every GPU of a server",
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
    unread = [gpu for gpu in servers if gpu.persistence_mode is None and not is_not_there(gpu, "persistence_mode")]
    yield from doubts("persistence mode", [(gpu, why_unknown(gpu, "persistence_mode")) for gpu in unread])
