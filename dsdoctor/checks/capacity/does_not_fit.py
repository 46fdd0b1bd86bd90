"""A model does not fit the memory of the GPUs, or the work that of the host.

What it looks at
    In pasted text: messages of memory that ran out, the engine's own line on the KV cache it could make, and a command line that names a model, against its weights and the memory of the GPUs it asks for. On a node
    that is examined live the question is asked before a start, with dsdoctor plan.

Why it matters
    Weights are the part that cannot be made smaller by an option. 671 billion parameters are about 689 GB in FP8; what remains of the GPUs holds the KV cache, activations and what the engine makes of the weights.
    Raising gpu-memory-utilization or setting the allocator makes no room. The kernel that kills a process for want of main memory is another shortage with another remedy.

Often said, and not so
    "expandable_segments cures out of memory": it helps against fragmentation, when much memory is reserved and not allocated; it does not make a model smaller.

Sources
    vLLM: troubleshooting; recipes of vLLM; matrices/deepseek-models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Command, Gpu, LogEvent, Section
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.rows_stack import DeepseekModels, ModelRelease

CACHE_MADE = "kv-cache-made"
"""Signature of the line in which an engine says how many tokens its cache holds."""
MODEL_OPTIONS = ("model", "model-path")
GPU_FACTORS = (("tensor-parallel-size", "tp-size", "tp"), ("pipeline-parallel-size", "pp-size", "pp"))
"""Options that multiply the number of GPUs over which the weights are spread; others repeat them."""
SMALLER_WEIGHTS = ("quantization", "cpu-offload-gb", "cpu-offload")
GB = 10**9

H100 = tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3", memory_total_bytes=81559 << 20) for index in range(8))
H200 = tuple(Gpu(index=index, name="NVIDIA H200", memory_total_bytes=143771 << 20) for index in range(8))


def serve(model: str, **options: str) -> Command:
    """A command line of vLLM."""
    named = {"model": model, **{name.replace("_", "-"): value for name, value in options.items()}}
    return Command(program="vllm serve", text=f"vllm serve {model}", options=named, where="cmd.txt:1")


CASES = (
    Case(
        title="689 GB of weights on 8 x 80 GB",
        sections={"commands": (serve("deepseek-ai/DeepSeek-V3", tensor_parallel_size="8"),), "gpus": H100, "log_events": ()},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="688.6",
    ),
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
        title="the engine tells how large a KV cache it made",
        sections={
            "log_events": (LogEvent(signature=CACHE_MADE, text="GPU KV cache size: 1,204,224 tokens", captures={"tokens": "1,204,224"}),)
        },
        status=Status.PASS,
    ),
    Case(
        title="weights that leave room, and no word of what the engine made of it",
        sections={"commands": (serve("deepseek-ai/DeepSeek-V3", tensor_parallel_size="8"),), "gpus": H200, "log_events": ()},
        status=Status.UNKNOWN,
        says="dsdoctor plan",
    ),
    Case(
        title="sixteen GPUs asked for, eight seen: the rest is elsewhere",
        sections={
            "commands": (serve("deepseek-ai/DeepSeek-V3", tensor_parallel_size="8", pipeline_parallel_size="2"),),
            "gpus": H100,
            "log_events": (),
        },
        status=Status.UNKNOWN,
    ),
    Case(title="nothing was pasted", sections={"gpus": H100}, status=Status.NOT_APPLICABLE, says="dsdoctor plan"),
)


@check("capacity.does-not-fit", Severity.ERROR, settle="dsdoctor plan <model>", cases=CASES)
def does_not_fit(
    log_events: Section[tuple[LogEvent, ...]],
    commands: Section[tuple[Command, ...]],
    gpus: Section[tuple[Gpu, ...]],
    deepseek_models_matrix: DeepseekModels,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the weights of the model in a command line with the memory of its GPUs; messages are read by matrices/log-signatures."""
    if log_events.value is None and commands.value is None:
        yield NotApplicable(reason="neither a command line nor a log was given; dsdoctor plan answers before a start")
        return
    for command in commands.value or ():
        release = _release(command.options, deepseek_models_matrix)
        number = _gpus_asked_for(command.options)
        memories = [gpu.memory_total_bytes for gpu in gpus.value or () if gpu.memory_total_bytes]
        if release is None or not release.gb_on_disk or number > len(memories) or any(name in command.options for name in SMALLER_WEIGHTS):
            continue
        weights_gb, memory_gb = min(release.gb_on_disk), sum(sorted(memories, reverse=True)[:number]) / GB
        if weights_gb > memory_gb:
            yield Finding(
                subject=release.name.partition(",")[0],
                severity=Severity.ERROR if release.basis.may_carry_error else Severity.WARNING,
                summary=f"The weights of {release.name.partition(',')[0]} are {weights_gb:g} GB; the {number} GPUs asked for have {memory_gb:.0f} GB together.",
                cause="No option makes room for weights that are larger than the memory; KV cache and activations come on top.",
                evidence=(
                    Evidence(where=command.where or "commands", value=command.text),
                    Evidence(where="gpus", value=f"{number} x {max(memories) / GB:.0f} GB"),
                ),
                expected=f"GPUs with clearly more than {weights_gb:g} GB together, or a quantised checkpoint",
                remedies=remedies(gpus=str(number)),
                sources=release.basis.sources,
            )
            return
    if not any(event.signature == CACHE_MADE for event in log_events.value or ()):
        yield Doubt(subject="memory", reason="the text does not say whether a model found room; dsdoctor plan tells it by its size")


def _release(options: Mapping[str, str], matrix: DeepseekModels) -> ModelRelease | None:
    """The release that a command line names, by the last part of its path; re-quantised copies have other names."""
    text = next((options[name] for name in MODEL_OPTIONS if options.get(name)), "").rstrip("/").rpartition("/")[2].lower()
    return next((row for row in matrix.releases if text and text == row.name.partition(",")[0].lower()), None)


def _gpus_asked_for(options: Mapping[str, str]) -> int:
    number = 1
    for names in GPU_FACTORS:
        value = next((options[name] for name in names if options.get(name, "").isdecimal()), "1")
        number *= int(value)
    return number
