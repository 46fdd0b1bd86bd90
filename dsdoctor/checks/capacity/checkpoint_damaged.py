"""The checkpoint of a model contradicts itself: missing or cut shards, wrong types, block scales of another shape.

What it looks at
    With `--model DIR`: config.json, the index, and the headers of the safetensors files, never the weights themselves. Shards by their
    numbers and the index, types against the quantisation that the configuration names, the shapes of block scales (ceil(n/128) x ceil(k/128)),
    layers that are missing.

Why it matters
    An engine reads a damaged checkpoint for an hour before it stops, or loads it and answers nonsense: a scale of another shape multiplies
    the wrong blocks.

Sources
    Description of the safetensors format; DeepSeek-V3 README_WEIGHTS.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import CheckpointFolder, Section, State, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status, counted
from dsdoctor.remedies import Remedies

SHOWN = 12
SOURCES = ("Description of the safetensors format", "DeepSeek-V3 README_WEIGHTS.md")

SOUND = CheckpointFolder(name="DeepSeek-V3", shards=163, bytes_on_disk=688_600_000_000)
CUT = CheckpointFolder(
    name="DeepSeek-V3",
    shards=162,
    bytes_on_disk=684_000_000_000,
    problems=("missing-shard: model-00163-of-000163.safetensors is not in the directory",),
)

CASES = (
    Case(
        title="a shard is missing",
        sections={"checkpoints": (CUT,)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="model-00163",
    ),
    Case(title="nothing contradicts anything", sections={"checkpoints": (SOUND,)}, status=Status.PASS),
    Case(
        title="the directory could not be read",
        sections={"checkpoints": unreadable("permission denied")},
        status=Status.UNKNOWN,
        says="permission denied",
    ),
    Case(title="no directory was named", sections={}, status=Status.NOT_APPLICABLE, says="--model DIR"),
)


@check("capacity.checkpoint-damaged", Severity.ERROR, settle="dsdoctor plan <directory>", cases=CASES)
def checkpoint_damaged(checkpoints: Section[tuple[CheckpointFolder, ...]], remedies: Remedies) -> Iterator[Finding | Doubt | NotApplicable]:
    """Tell the contradictions in each checkpoint that was named."""
    if checkpoints.state in (State.NOT_ASKED, State.ABSENT):
        yield NotApplicable(reason="no checkpoint directory was named (--model DIR)")
    elif checkpoints.value is None:
        yield Doubt(subject="checkpoint", reason=f"it could not be read: {checkpoints.why}")
    for folder in checkpoints.value or ():
        if folder.problems:
            yield Finding(
                subject=f"checkpoint {folder.name}",
                summary=f"The checkpoint {folder.name} contradicts itself: {counted(len(folder.problems), 'problem')} in {counted(folder.shards, 'shard')}.",
                cause="An engine stops while it loads, or loads it and answers nonsense.",
                evidence=tuple(Evidence(where=f"checkpoints[{folder.name}]", value=text) for text in folder.problems[:SHOWN]),
                expected="headers that agree with config.json and the index",
                remedies=remedies(),
                sources=SOURCES,
            )
