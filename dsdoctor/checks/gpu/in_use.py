"""A GPU is held by other processes, or takes no new ones.

What it looks at
    The processes that NVML lists for each GPU (without those of this doctor), and the compute mode.

Why it matters
    A job that wants whole GPUs finds less memory than it counts on, measures wrong rates, or does not start: in compute mode "exclusive process" the second process gets error 46
    (devices unavailable), in mode "prohibited" every process does. On a node that serves, processes are what it is for: this is a note then.

Sources
    nvidia-smi manual (compute mode, processes); CUDA runtime error 46.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import doubts, named, why_unknown
from dsdoctor.facts import Container, Gpu, GpuProcess, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimits

GIB = 1 << 30
PROHIBITED, EXCLUSIVE = 2, 3
SOURCE = "nvidia-smi manual (compute mode, processes) — https://docs.nvidia.com/deploy/nvidia-smi/index.html"
ENGINE = GpuProcess(pid=4711, kind="compute", used_memory_bytes=60 * GIB)
DISPLAY = GpuProcess(pid=900, kind="graphics", used_memory_bytes=40 << 20)


def used_by(*processes: GpuProcess, mode: int = 0, memory: int = 0) -> tuple[Gpu, ...]:
    """An H200 with these processes."""
    return (Gpu(index=0, name="NVIDIA H200", processes=processes, compute_mode=mode, memory_used_bytes=memory, mig_enabled=False),)


CASES = (
    Case(title="an engine runs", sections={"gpus": used_by(ENGINE)}, status=Status.FAIL, severity=Severity.INFO, says="4711"),
    Case(
        title="an engine runs, and the GPU takes one process only",
        sections={"gpus": used_by(ENGINE, mode=EXCLUSIVE)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="exclusive",
    ),
    Case(
        title="nobody may use it",
        sections={"gpus": used_by(mode=PROHIBITED)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="prohibited",
    ),
    Case(title="free", sections={"gpus": used_by()}, status=Status.PASS),
    Case(title="free, for one process", sections={"gpus": used_by(mode=EXCLUSIVE)}, status=Status.PASS),
    Case(title="only a display", sections={"gpus": used_by(DISPLAY)}, status=Status.PASS),
    Case(
        title="in a container, memory is in use and nobody shows",
        sections={"gpus": used_by(memory=60 * GIB), "container": Container(runtime="docker")},
        status=Status.UNKNOWN,
        says="cannot be seen",
    ),
    Case(
        title="in a container, and nothing is in use",
        sections={"gpus": used_by(), "container": Container(runtime="docker")},
        status=Status.PASS,
    ),
    Case(title="the processes were not read", sections={"gpus": (Gpu(index=0),)}, status=Status.UNKNOWN, says="processes"),
    Case(title="no GPU", sections={"gpus": absent("NVML runs and finds no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("gpu.in-use", Severity.INFO, explains=("smoke.rate", "smoke.bandwidth"), settle="nvidia-smi -q -d PIDS,COMPUTE", cases=CASES)
def in_use(
    gpus: tuple[Gpu, ...], container: Section[Container], health_limits_matrix: HealthLimits, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    """Name who computes on a GPU, and what its compute mode makes of that."""
    much = health_limits_matrix.limit("orphan-memory-bytes")
    unknown = []
    for gpu in gpus:
        if gpu.compute_mode == PROHIBITED:
            yield _finding(
                gpu, (), Severity.ERROR, "takes no process: its compute mode is prohibited.", remedies("compute-mode", gpu=str(gpu.index))
            )
        elif gpu.processes is None:
            unknown.append((gpu, why_unknown(gpu, "processes")))
        elif busy := tuple(process for process in gpu.processes if process.kind == "compute"):
            only_one = gpu.compute_mode == EXCLUSIVE
            yield _finding(
                gpu,
                busy,
                Severity.WARNING if only_one else Severity.INFO,
                f"is in use by {len(busy)} process{'es' if len(busy) > 1 else ''}"
                + (", and its compute mode (exclusive process) lets nobody else in." if only_one else "."),
                remedies("process", gpu=str(gpu.index), pid=str(busy[0].pid)),
            )
        elif container.state is State.KNOWN and (gpu.memory_used_bytes or 0) >= much.amount:
            unknown.append((gpu, f"{(gpu.memory_used_bytes or 0) / GIB:.1f} GiB are in use by whom cannot be seen from inside a container"))
    yield from doubts("processes", unknown)


def _finding(gpu: Gpu, processes: tuple[GpuProcess, ...], severity: Severity, problem: str, remedies: tuple[Remedy, ...]) -> Finding:
    shown = ", ".join(
        f"process {process.pid}" + (f" ({process.used_memory_bytes / GIB:.1f} GiB)" if process.used_memory_bytes else "")
        for process in processes[:6]
    )
    return Finding(
        subject=named(gpu),
        severity=severity,
        summary=f"{named(gpu)} {problem}",
        cause="A job that wants the whole GPU has less memory and less speed than it counts on, or does not start.",
        evidence=(
            *((Evidence(where=gpu.where or f"gpus[{gpu.index}].processes", value=shown),) if shown else ()),
            Evidence(
                where=gpu.where or f"gpus[{gpu.index}].compute_mode",
                value="not known" if gpu.compute_mode is None else str(gpu.compute_mode),
            ),
        ),
        expected="nobody else on a GPU that a job wants whole",
        remedies=remedies,
        sources=(SOURCE,),
    )
