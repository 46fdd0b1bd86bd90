"""GPU memory is in use, and no process seems to use it.

What it looks at
    The used memory of each GPU and the processes that NVML lists for it.

Why it matters
    Memory that a dead job left behind is missing in the next one: an out-of-memory error at the start of an engine on a GPU that looks empty. Often a
    process is there after all: in another container (whose processes are invisible from here), as a zombie that waits for its parent, or as an MPS server. So inside
    a container this check can only ask.

Sources
    nvidia-smi manual; node-health rules of gcm (used memory before a job).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped, doubts, named, why_unknown
from dsdoctor.facts import Container, Gpu, GpuProcess, Section, State, Wsl, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

GIB = 1 << 30
HOST = absent("a plain host")
SHARED_MODES = ("vgpu", "host-vgpu", "host-vsga")


def using(used_bytes: int, *processes: GpuProcess) -> tuple[Gpu, ...]:
    """An H200 with that much memory in use, and the processes that NVML lists."""
    return (
        Gpu(
            index=0,
            name="NVIDIA H200",
            memory_total_bytes=141 * GIB,
            memory_used_bytes=used_bytes,
            processes=processes,
            mig_enabled=False,
            virtualization_mode="passthrough",
        ),
    )


ENGINE = GpuProcess(pid=4711, kind="compute", used_memory_bytes=60 * GIB)

CASES = (
    Case(
        title="60 GiB and nobody",
        sections={"gpus": using(60 * GIB), "container": HOST},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="60.0 GiB",
    ),
    Case(title="just at the limit", sections={"gpus": using(2 * GIB), "container": HOST}, status=Status.FAIL, says="2.0 GiB"),
    Case(title="just below", sections={"gpus": using(2 * GIB - 1), "container": HOST}, status=Status.PASS),
    Case(title="an engine runs", sections={"gpus": using(60 * GIB, ENGINE), "container": HOST}, status=Status.PASS),
    Case(title="an idle GPU in a container", sections={"gpus": using(0), "container": Container(runtime="docker")}, status=Status.PASS),
    Case(
        title="the same in a container",
        sections={"gpus": using(60 * GIB), "container": Container(runtime="docker")},
        status=Status.UNKNOWN,
        says="container",
    ),
    Case(title="nothing says whether this is a container", sections={"gpus": using(60 * GIB)}, status=Status.UNKNOWN, says="container"),
    Case(
        title="the processes were not read",
        sections={"gpus": (Gpu(index=0, memory_used_bytes=60 * GIB),), "container": HOST},
        status=Status.UNKNOWN,
        says="processes",
    ),
    Case(
        title="under MIG the instances hold the memory",
        sections={"gpus": (Gpu(index=0, memory_used_bytes=60 * GIB, processes=(), mig_enabled=True),), "container": HOST},
        status=Status.UNKNOWN,
        says="MIG",
    ),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.orphan-memory", Severity.WARNING, settle="sudo fuser -v /dev/nvidia*    # on the host", cases=CASES)
def orphan_memory(
    gpus: tuple[Gpu, ...],
    container: Section[Container],
    wsl: Section[Wsl],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Much memory and no process is a fault only where every process can be seen."""
    limit = health_limits_matrix.limit("orphan-memory-bytes")
    unknown = []
    for gpu in gpus:
        used = gpu.memory_used_bytes
        if used is None:
            unknown.append((gpu, why_unknown(gpu, "memory_used_bytes")))
        if used is None or used < limit.amount or gpu.processes:
            continue
        shown = f"{used / GIB:.1f} GiB are in use"
        if gpu.processes is None:
            unknown.append((gpu, f"{shown}, and the processes are not known ({why_unknown(gpu, 'processes')})"))
        elif gpu.mig_enabled:
            unknown.append((gpu, f"{shown} by MIG instances, whose processes are listed elsewhere"))
        elif container.state is not State.ABSENT or wsl.state is State.KNOWN or gpu.virtualization_mode in SHARED_MODES:
            unknown.append((gpu, f"{shown}, and processes outside this container or virtual machine cannot be seen from here"))
        else:
            yield Finding(
                subject=named(gpu),
                severity=capped(limit.severity, limit.basis),
                summary=f"{shown} on {named(gpu)}, and no process is listed for it.",
                cause="A process that died badly, a zombie, an MPS server, or a container that was removed while its process hung holds it. "
                "The next engine that wants most of the memory fails.",
                evidence=(
                    Evidence(where=gpu.where or f"gpus[{gpu.index}].memory_used_bytes", value=str(used)),
                    Evidence(where=gpu.where or f"gpus[{gpu.index}].processes", value="none"),
                ),
                expected="next to nothing in use on a GPU without processes",
                remedies=remedies("process")[:1] + remedies("no-process", gpu=str(gpu.index))[:1],
                sources=limit.basis.sources,
            )
    yield from doubts("used memory", unknown)
