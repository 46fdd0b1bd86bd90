"""Write the expectations that nodes which are as they should be have in common.

What all of them agree on is expected; what they differ in, or only some of them have, is written as a comment with the values seen.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsdoctor.expect import PSEUDONYM, shown
from dsdoctor.expect.kinds import KINDS, Kind
from dsdoctor.expect.want import ABSENT, PRESENT, UNLIMITED, Form, Value
from dsdoctor.facts import Snapshot, State
from dsdoctor.findings import counted
from dsdoctor.sources.texts import RELEVANT_MODULES

SIZES = frozenset({"gpu-memory-gib", "memory-gib"})
"""Sizes that differ by a few MiB between equal nodes: whole GiB are wanted, from the smallest on."""
NOT_LEARNED = frozenset({"free-gib", "device", "driver-option", "mount-mode"})
"""Kinds that say little about how a node should be: they are for a site to write itself."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "module": tuple(f"{prefix}*" for prefix in RELEVANT_MODULES),
    "environment": (
        "NCCL_*", "NVSHMEM_*", "UCX_*", "FI_*", "GLOO_*", "CUDA_*", "CUBLAS_*", "TORCH_*", "PYTORCH_*", "VLLM_*", "SGLANG_*", "SGL_*",
        "TRITON_*", "DG_*", "DEEPEP_*", "OMP_NUM_THREADS", "LD_PRELOAD",
    ),
    "package": (
        "torch*", "triton", "vllm", "sglang*", "sgl-kernel", "flash*attn*", "flashinfer*", "deep-gemm", "deep-ep", "flash-mla", "transformers",
        "nvidia-nccl-*", "nvidia-cudnn-*", "nvidia-cublas*", "nvidia-cuda-runtime*", "nvidia-nvshmem-*", "xformers", "ray", "nixl", "mooncake-transfer-engine",
    ),
    "limit": ("memlock", "nofile"),
}  # fmt: skip
"""Of the kinds with many things to look at: the ones that make a node what it is."""
OF_ONE_PROCESS = frozenset({"CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "NCCL_COMM_ID", "TORCH_NCCL_RANK"})
PASSING_FILE_SYSTEMS = frozenset({"tmpfs", "overlay", "squashfs", "autofs", "ramfs", "iso9660"})
STATES_OF_SERVICES = frozenset({"active"})


@dataclass(frozen=True, slots=True)
class _Learned:
    """What the nodes show of one thing: the want of each node that knows it, in its written form."""

    kind: Kind
    of: str
    wants: tuple[str, ...]

    @property
    def agreed(self) -> bool:
        return len(set(self.wants)) == 1 and self.wants[0] != ABSENT


def learn(nodes: Sequence[Snapshot], rate_share: float) -> str:
    """The text of a file of expectations that each of the nodes meets; `rate_share` of the lowest rate is wanted of a GPU test."""
    learned = [item for kind in KINDS.values() if kind.name not in NOT_LEARNED for item in _learn(kind, nodes, rate_share)]
    names: Counter[str] = Counter()
    lines = [
        f"# Learned from {counted(len(nodes), 'node')}; what is commented out is where they differ.",
        "# Environment, limits and packages are those of the process that looked: a scheduler's differs from a shell's.",
        "expectations:",
    ]
    for item in learned:
        name = _name(item)
        names[name] += 1
        lines += _entry(item, name if names[name] == 1 else f"{name}-{names[name]}", len(nodes))
    return "\n".join([*lines, ""])


def _learn(kind: Kind, nodes: Sequence[Snapshot], rate_share: float) -> Iterable[_Learned]:
    told = [found for node in nodes if (found := _of_node(kind, node)) is not None]
    for of in sorted({of for found in told for of in found.values}):
        if kind.name == "smoke-rate":
            lowest = min(float(rate) for found in told for rate in found.values.get(of, ()))
            yield _Learned(kind, of, (f">= {_rounded_down(lowest * rate_share)}",))
        else:
            wants = [_want(kind, found.values[of]) if of in found.values else ABSENT for found in told if found.tells(of)]
            yield _Learned(kind, of, tuple(wants))


@dataclass(frozen=True, slots=True)
class _Found:
    """What one node tells of a kind."""

    values: Mapping[str, list[Value]]
    untold: frozenset[str]
    """Things that are there without a known value."""
    unproven: Callable[[str], str]

    def tells(self, of: str) -> bool:
        """Whether the node shows the value of a thing, or that it is not there."""
        return of not in self.untold and (of in self.values or (of != "" and not self.unproven(of)))


def _of_node(kind: Kind, node: Snapshot) -> _Found | None:
    """What a node tells of a kind; None when it tells nothing."""
    main = getattr(node.sections, kind.sections[0])
    if main.state is not State.KNOWN:
        return None
    values: dict[str, list[Value]] = {}
    untold = set()
    for item in kind.see(main.value, {name: getattr(node.sections, name) for name in kind.sections}, kind.default_of):
        of = item.of[-1] if kind.named else ""
        if item.value is None:
            untold.add(of)
        elif _worth_learning(kind, of, item.value):
            values.setdefault(of, []).append(item.value)
    return _Found(values, frozenset(untold), lambda of: kind.unproven(of, main.value, bool(node.probe_runs)))


def _worth_learning(kind: Kind, of: str, value: Value) -> bool:
    if not of.isprintable() or of != " ".join(of.split()):
        return False
    if isinstance(value, str) and (PSEUDONYM.search(value) or not value.strip() or not value.isprintable() or value in (PRESENT, ABSENT)):
        return False
    if kind.name in NAMES and not any(fnmatch.fnmatchcase(of, pattern) for pattern in NAMES[kind.name]):
        return False
    return not (
        of in OF_ONE_PROCESS
        or (kind.name == "mount" and (value in PASSING_FILE_SYSTEMS or of == "/" or PSEUDONYM.search(of)))
        or (kind.name == "service" and value not in STATES_OF_SERVICES)
        or (kind.counts and value == 0)
    )


def _want(kind: Kind, values: Sequence[Value]) -> str:
    """The want that fits exactly these values of one node, in its written form."""
    if kind.name == "module":
        return PRESENT
    if kind.name in SIZES:
        return f">= {math.floor(min(float(value) for value in values))}"
    distinct = sorted({_exact(value) for value in values})
    if kind.name == "limit" and distinct != [UNLIMITED]:
        return f">= {distinct[0]}"
    if kind.form is Form.NUMBER and len(distinct) > 1:
        return f">= {_exact(min(value for value in values if not isinstance(value, str)))}"
    return "\n".join(glob.escape(text) for text in distinct) if kind.form is Form.TEXT else distinct[0]


def _exact(value: Value) -> str:
    """A value as it is, and not rounded for the eye."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) and not math.isinf(value) else shown(value)


def _rounded_down(value: float) -> str:
    """Two significant digits."""
    step = 10 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1
    return f"{math.floor(value / step) * step:.6g}"


def _name(item: _Learned) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", item.of.lower()).strip("-")
    return f"{item.kind.name}-{slug}"[:60].rstrip("-") if slug and item.of != item.kind.default_of else item.kind.name


def _entry(item: _Learned, name: str, nodes: int) -> list[str]:
    """One expectation as lines of YAML; commented out, with the values seen, where the nodes differ."""
    told = len(item.wants)
    head = [f"  {name}:", f"    kind: {item.kind.name}", *([f"    of: {_scalar(glob.escape(item.of))}"] if item.of else [])]
    if item.agreed:
        note = f"  # told by {told} of {nodes} nodes" if told < nodes and item.kind.name != "smoke-rate" else ""
        return [*head, f"    want: {_written(item.wants[0])}{note}"]
    seen = "; ".join(f"{want.replace(chr(10), ', ')} ({count} of {told})" for want, count in Counter(item.wants).most_common())
    return [f"  # {_printable(f'the nodes differ: {seen}')}", *(f"  # {line[2:]}" for line in (*head, "    want:"))]


def _written(want: str) -> str:
    parts = want.split("\n")
    return f"[{', '.join(map(_scalar, parts))}]" if len(parts) > 1 else _scalar(want)


def _scalar(text: str) -> str:
    """A text as a YAML scalar: plain where that is safe, else as a JSON string, which YAML reads too."""
    is_plain = re.fullmatch(r"[A-Za-z0-9/][\w./ +-]*", text, re.ASCII) and not text.endswith(" ") and text.lower() != "null"
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _printable(text: str) -> str:
    """Text that cannot leave its comment."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
