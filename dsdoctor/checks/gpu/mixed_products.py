"""The GPUs of this node are not of one kind.

What it looks at
    Name, compute capability and memory of all GPUs.

Why it matters
    Engines that split a model over GPUs take equal parts: the smallest memory and the slowest GPU set the pace, kernels are chosen for the first GPU and may not
    exist for another, and CUDA numbers the fastest first while nvidia-smi numbers by PCI address, so that "GPU 0" means two different cards. A small display
    card beside compute GPUs is the harmless form.

Sources
    CUDA Programming Guide, environment variables (CUDA_DEVICE_ORDER).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import numbered
from dsdoctor.facts import EnvironmentVariable, Gpu, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = "CUDA Programming Guide: environment variables — https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"

A100 = Gpu(index=0, name="NVIDIA A100-SXM4-80GB", uuid="GPU-a", compute_capability="8.0", memory_total_bytes=81920 << 20)
L40S = Gpu(index=1, name="NVIDIA L40S", uuid="GPU-b", compute_capability="8.9", memory_total_bytes=46068 << 20)

CASES = (
    Case(title="an A100 and an L40S", sections={"gpus": (A100, L40S)}, status=Status.FAIL, severity=Severity.WARNING, says="NVIDIA L40S"),
    Case(
        title="the job was given one kind only",
        sections={"gpus": (A100, L40S), "environment": (EnvironmentVariable(name="CUDA_VISIBLE_DEVICES", value="GPU-a"),)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="CUDA_VISIBLE_DEVICES",
    ),
    Case(
        title="eight of one kind", sections={"gpus": tuple(Gpu(index=index, name="NVIDIA H200") for index in range(8))}, status=Status.PASS
    ),
    Case(title="one GPU", sections={"gpus": (A100,)}, status=Status.NOT_APPLICABLE, says="there is one GPU only"),
    Case(
        title="one of two has no name",
        sections={"gpus": (A100, Gpu(index=1))},
        status=Status.UNKNOWN,
        says="name",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.mixed-products", Severity.WARNING, settle="nvidia-smi -L", cases=CASES)
def mixed_products(
    gpus: tuple[Gpu, ...], environment: Section[tuple[EnvironmentVariable, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """More than one product name on a node is worth a warning, unless the job sees one kind only."""
    if len(gpus) < 2:
        yield NotApplicable(reason="there is one GPU only")
        return
    kinds: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault(gpu.name, []).append(gpu)
    nameless = kinds.pop("", [])
    if nameless:
        yield Doubt(subject=numbered(nameless), reason="the name of the product is not known")
    if len(kinds) < 2:
        return
    given = next((variable.value for variable in environment.value or () if variable.name == "CUDA_VISIBLE_DEVICES"), None)
    # By UUID only: what a number means depends on the order that CUDA chooses.
    chosen = {gpu.name for gpu in gpus for item in (given or "").split(",") if item and gpu.uuid.lower().startswith(item.strip().lower())}
    most = max(kinds.values(), key=len)
    yield Finding(
        subject="GPUs",
        severity=Severity.INFO if len(chosen) == 1 else Severity.WARNING,
        summary=f"This node has {len(kinds)} kinds of GPU: {', '.join(f'{name} ({numbered(same)})' for name, same in kinds.items())}.",
        cause=(
            f"CUDA_VISIBLE_DEVICES leaves {next(iter(chosen))} only, so this job sees one kind."
            if len(chosen) == 1
            else "A model split over all of them takes the smallest memory and the slowest pace, and kernels may not exist for one of them."
        ),
        evidence=(
            *(Evidence(where=f"gpus: {name}", value=_figures(same[0])) for name, same in kinds.items()),
            *((Evidence(where="environment.CUDA_VISIBLE_DEVICES", value=given),) if given is not None else ()),
        ),
        expected="one kind of GPU for one job",
        remedies=remedies("general", devices=",".join(gpu.uuid or str(gpu.index) for gpu in most), n=str(len(most))),
        sources=(SOURCE,),
    )


def _figures(gpu: Gpu) -> str:
    memory = f"{gpu.memory_total_bytes / (1 << 30):.0f} GiB" if gpu.memory_total_bytes else "memory not known"
    return f"compute capability {gpu.compute_capability or 'not known'}, {memory}"
