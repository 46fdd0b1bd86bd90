"""A model does not fit the memory of the GPUs, or the work that of the host.

What it looks at
    In pasted text: messages of GPU memory that ran out, of a KV cache for which nothing is left, and of the kernel that killed a process for want of main memory; and the engine's own line on the KV cache
    that it could make. On a node that is examined live the question is asked before a start, with dsdoctor plan.

Why it matters
    Weights are the part that no option makes smaller: 671 billion parameters are about 689 GB in FP8. What remains of the GPUs holds the KV cache, activations and what the engine makes of the weights.
    Raising gpu-memory-utilization makes no room, it only moves the failure. A process that the kernel killed is another shortage with another remedy.

Often said, and not so
    "expandable_segments cures out of memory": it helps against fragmentation, when much memory is reserved and not allocated; it does not make a model smaller.

Sources
    vLLM: troubleshooting; recipes of vLLM; matrices/deepseek-models.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import LogEvent, Section
from dsdoctor.findings import Doubt, NotApplicable, Severity, Status

CACHE_MADE = "kv-cache-made"
"""Signature of the line in which an engine says how many tokens its cache holds."""

CASES = (
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
    Case(title="no log", sections={}, status=Status.NOT_APPLICABLE, says="dsdoctor plan"),
)


@check("capacity.does-not-fit", Severity.ERROR, settle="dsdoctor plan <model>", cases=CASES)
def does_not_fit(log_events: Section[tuple[LogEvent, ...]]) -> Iterator[Doubt | NotApplicable]:
    """See whether an engine found room; messages that say it did not are read by matrices/log-signatures."""
    if log_events.value is None:
        yield NotApplicable(reason="no log was given; dsdoctor plan answers before a start")
    elif not any(event.signature == CACHE_MADE for event in log_events.value):
        yield Doubt(subject="memory", reason="the text does not say whether a model found room; dsdoctor plan tells it by its size")
