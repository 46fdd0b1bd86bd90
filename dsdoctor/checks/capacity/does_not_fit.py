"""A model does not fit the memory of the GPUs, or the work that of the host.

What it looks at
    With `--model NAME|DIR`, or a profile that has a model: weights and KV cache on the GPUs that are here, by the arithmetic of dsdoctor plan; `--nodes N` where several such nodes serve it together.
    In pasted text: messages of GPU memory that ran out, of a KV cache for which nothing is left, and of the kernel that killed a process for want of main memory; and the engine's own line on the KV cache
    that it could make.

Why it matters
    Weights are the part that no option makes smaller: 671 billion parameters are about 689 GB in FP8. What remains of the GPUs holds the KV cache, activations and what the engine makes of the weights.
    Raising gpu-memory-utilization makes no room, it only moves the failure. A process that the kernel killed is another shortage with another remedy.
    A figure that was read once, as those of V4, makes a warning of a narrow miss; where half of it would not fit either, it is an error.

Often said, and not so
    "expandable_segments cures out of memory": it helps against fragmentation, when much memory is reserved and not allocated; it does not make a model smaller.

Sources
    vLLM: troubleshooting; recipes of vLLM; matrices/deepseek-models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Gpu, LogEvent, Section
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.plan import Plan
    from dsdoctor.purpose import Planned

CACHE_MADE = "kv-cache-made"
"""Signature of the line in which an engine says how many tokens its cache holds."""

NO_MORE_THAN = "what would: "
"""In front of the sets of GPUs that would do, in the third line of a plan."""


def _gpus(number: int, name: str, mib: int, capability: str = "9.0") -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=index, name=f"NVIDIA {name}", memory_total_bytes=mib << 20, compute_capability=capability) for index in range(number)
    )


CASES = (
    Case(
        title="DeepSeek-V3 on one H200",
        sections={"gpus": _gpus(1, "H200", 143771)},
        profiles=("deepseek-v3",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="8x H200",
    ),
    Case(
        title="DeepSeek-V4-Pro on one H100: the figure is not firm, but the miss is wide",
        sections={"gpus": _gpus(1, "H100 80GB HBM3", 81559)},
        models=("DeepSeek-V4-Pro",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="does not fit",
    ),
    Case(
        title="DeepSeek-V4-Flash on one H200: it misses by little, with a figure that was read once",
        sections={"gpus": _gpus(1, "H200", 143771)},
        models=("DeepSeek-V4-Flash",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="does not fit",
    ),
    Case(
        title="DeepSeek-V3 on eight H20: a short context only",
        sections={"gpus": _gpus(8, "H20", 97871)},
        models=("DeepSeek-V3",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="short context",
    ),
    Case(
        title="DeepSeek-V3 on eight H200",
        sections={"gpus": _gpus(8, "H200", 143771)},
        profiles=("deepseek-v3",),
        status=Status.PASS,
    ),
    Case(
        title="a model whose size nobody knows",
        sections={"gpus": _gpus(8, "H200", 143771)},
        models=("DeepSeek-V4.1-Flash-1017",),
        status=Status.UNKNOWN,
        says="not known",
    ),
    Case(title="the GPUs are not known", sections={}, models=("DeepSeek-V3",), status=Status.UNKNOWN, says="gpus"),
    Case(
        title="a log without room for the KV cache",
        sections={
            "log_events": (
                LogEvent(
                    signature="kv-cache-too-small",
                    text="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
                    where="serve.log:301",
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="No available memory for the cache blocks",
    ),
    Case(
        title="the kernel killed a worker: main memory, not that of the GPU",
        sections={
            "log_events": (
                LogEvent(
                    signature="host-oom",
                    text="Memory cgroup out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:600000000kB",
                    where="dmesg.txt:9",
                    captures={"what": "Memory cgroup out of memory", "killed": "VLLM::Worker_TP"},
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="main memory",
    ),
    Case(
        title="the engine tells how large a KV cache it made",
        sections={
            "log_events": (LogEvent(signature=CACHE_MADE, text="GPU KV cache size: 1,204,224 tokens", captures={"tokens": "1,204,224"}),)
        },
        status=Status.PASS,
    ),
    Case(title="a log that does not tell", sections={"log_events": ()}, status=Status.UNKNOWN, says="dsdoctor plan"),
    Case(title="no log and no model", sections={}, status=Status.NOT_APPLICABLE, says="--model"),
)


@check("capacity.does-not-fit", Severity.ERROR, settle="dsdoctor plan <model>", cases=CASES)
def does_not_fit(
    log_events: Section[tuple[LogEvent, ...]], plans: tuple[Planned, ...], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Reckon each model that has to fit; see whether an engine found room. Messages that say it did not are read by matrices/log-signatures."""
    for planned in plans:
        yield from _reckoned(planned, remedies)
    if plans:
        return
    if log_events.value is None:
        yield NotApplicable(reason="no model was named (--model, or a profile with one) and no log was given")
    elif not any(event.signature == CACHE_MADE for event in log_events.value):
        yield Doubt(subject="memory", reason="the text does not say whether a model found room; dsdoctor plan tells it by its size")


def _reckoned(planned: Planned, remedies: Remedies) -> Iterator[Finding | Doubt]:
    model, plan = planned.candidate.model, planned.plan
    if plan is None or plan.placed.verdict == "unknown":
        why = planned.why if plan is None else "; ".join(dict.fromkeys((plan.placed.reason, *plan.unknown)))
        yield Doubt(subject=model.name, reason=why, settle=f"dsdoctor plan {model.name} --gpu NAME --gpus N")
        return
    if plan.placed.verdict == "fits":
        return
    placed, hardware = plan.placed, plan.hardware
    would = next((line.removeprefix(NO_MORE_THAN) for line in plan.summary if line.startswith(NO_MORE_THAN)), "")
    alike = [other for other in plan.alternatives if other.told.split()[1] == hardware.product.split()[0]]
    best = next(iter((*alike, *plan.alternatives)), None)
    others = {"product": best.product, "gpus": str(best.gpus // best.nodes), "nodes": str(best.nodes)} if best else {}
    here = {"gpus": str(hardware.gpus), "nodes": str(hardware.nodes), "context": str(placed.max_context or "")}
    tight = placed.verdict == "tight"
    yield Finding(
        subject=model.name,
        summary=f"{plan.summary[0]}.",
        cause=f"{placed.reason}.",
        evidence=tuple(
            Evidence(where=line.what, value=f"{line.figure}{f' ({line.how})' if line.how else ''}")
            for line in plan.arithmetic
            if line.figure != "unknown" and line.what in SHOWN
        ),
        expected=would,
        remedies=remedies("general", model=model.name, **here) if tight else remedies("weights", model=model.name, **others),
        sources=(f"matrices/deepseek-models of {plan.knowledge_date}, asked for by {planned.candidate.asked_by}",),
        severity=Severity.ERROR if not tight and (model.is_firm or _by_far(plan)) else Severity.WARNING,
    )


SHOWN = ("weights per GPU", "memory per GPU", "usable", "left for the KV cache", "KV cache per token", "longest request")


def _by_far(plan: Plan) -> bool:
    """Whether half of the weights would not fit either."""
    weights, left = plan.placed.weights_bytes_per_gpu, plan.placed.budget_bytes_per_gpu
    return weights is not None and left is not None and weights / 2 > weights + left
