"""Does a model fit: weights, KV cache and context on a set of GPUs, with every line of the arithmetic. Pure: takes values, touches nothing.

GiB is 2^30 byte, GB 10^9. The formulas are those of the notes plan.formula, v3.kv_formula, kv.v4.formula and kv.v41.formula of
matrices/deepseek-models; the figures stand in its tables. What is not known there stays unknown, and then nothing is said to fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsdoctor.errors import UsageError, unknown_name
from dsdoctor.rows import GpuLimit, GpuLimits
from dsdoctor.rows_stack import DeepseekModels, MemoryBudget, ModelPlan, ModelRelease, ModelShape, WeightSize
from dsdoctor.versions import ComputeCapability

if TYPE_CHECKING:
    from dsdoctor.checkpoint import Checkpoint
    from dsdoctor.facts import Gpu

GIB = 2**30
GB = 10**9
MOST_NODES = 64
GPUS_PER_NODE = 8
GPUS_PER_TRAY = 4
"""A compute tray of an NVL72 rack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of the weights in one format; None: not known."""

    format: str
    gpu_bytes: int
    routed_bytes: int | None = None
    """Routed experts among them: what expert parallelism divides."""
    host_bytes: int = 0
    disk_bytes: int | None = None
    needs_fp8: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """What one token, and one sequence besides, takes in the cache of all layers."""

    name: str
    bytes_per_token: int
    bytes_per_sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as far as memory goes."""

    name: str
    context_limit: int | None = None
    layers: int | None = None
    heads: int | None = None
    weights: tuple[Weights, ...] = ()
    """The first is the published one; empty: not known."""
    layouts: tuple[KvLayout, ...] = ()
    default_layouts: Mapping[str, str]
    """Platform or 'any' to the layout taken when none is named."""
    support: str = ""
    upper_bound: bool = False
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_firm: bool = True
    """Whether its figures are sure enough to call a node unfit by a narrow margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs to place it on; all nodes are alike."""

    product: str
    memory_bytes: int
    memory_from: str
    capability: str = ""
    fp8: bool | None = None
    """Whether it has FP8 units; None: not known."""
    gpus: int = GPUS_PER_NODE
    """Of one node."""
    nodes: int = 1

    @property
    def count(self) -> int:
        """All GPUs together."""
        return self.gpus * self.nodes

    @property
    def told(self) -> str:
        """Such as 16x H100 SXM (2 nodes of 8)."""
        return f"{self.count}x {self.product}{f' ({self.nodes} nodes of {self.gpus})' if self.nodes > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for; 0 and empty: whatever fits the node."""

    context: int = 0
    kv: str = ""
    weights: str = ""
    tp: int = 0
    pp: int = 0
    ep: int = 0
    dp_attention: bool = False
    disk_gb_per_s: float = 0.0
    disk_source: str = ""
    """How the rate is known, where it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the model is cut: `groups` copies of the attention weights, each over `tp` GPUs in `pp` stages; experts over `ep`."""

    tp: int
    pp: int
    ep: int
    groups: int
    spare: int = 0
    """GPUs that no part of the model is put on."""

    @property
    def told(self) -> str:
        """Such as TP 8, EP 8."""
        parts = [f"TP {self.tp}", *([f"PP {self.pp}"] if self.pp > 1 else []), *([f"EP {self.ep}"] if self.ep != self.tp else [])]
        return ", ".join([*parts, *([f"{self.groups} attention groups"] if self.groups > 1 else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The figures of one placement. None: not known."""

    weights_bytes_per_gpu: int | None
    budget_bytes_per_gpu: int | None
    """What is left for the cache; negative: how much the weights exceed it."""
    tokens_per_group: int | None
    tokens: int | None
    """On all groups together."""
    max_context: int | None
    """Of one request, by memory and by the model's limit."""
    context: int | None
    """What was asked for, else the model's limit."""
    requests: int | None
    """Of that context at once, on all groups."""
    verdict: str
    """fits, tight (runs, with a shorter context than the model's limit), no or unknown."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the arithmetic."""

    what: str
    figure: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The fewest nodes of one product on which it fits."""

    product: str
    gpus: int
    nodes: int
    told: str
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    model: str
    hardware: Hardware
    layout: Layout
    weights: str
    kv: str
    placed: Placed
    summary: tuple[str, ...]
    """Three lines at most: what, why, what would."""
    arithmetic: tuple[Line, ...]
    load_s: float | None
    alternatives: tuple[Alternative, ...]
    problems: tuple[str, ...]
    """Of the checkpoint."""
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    knowledge_date: str

    @property
    def fits(self) -> bool:
        """Whether the exit code is 0."""
        return self.placed.verdict == "fits" and not self.problems


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def arranged(count: int, model: Model, wanted: Wanted) -> Layout:
    """How the model is cut over so many GPUs; UsageError for what cannot be."""
    pp = wanted.pp or 1
    if count < pp or (model.layers is not None and pp > model.layers):
        raise UsageError(f"--pp {pp} does not go with {count} GPUs{f' and {model.layers} layers' if model.layers else ''}")
    stage = count // pp
    tp = wanted.tp or (1 if wanted.dp_attention else _widest(stage, model.heads))
    if tp > stage:
        raise UsageError(f"--tp {tp}{f' --pp {pp}' if pp > 1 else ''} needs {tp * pp} GPUs; there are {count}")
    if model.heads is not None and model.heads % tp:
        raise UsageError(f"--tp {tp} does not divide the {model.heads} attention heads of {model.name}")
    groups = stage // tp if wanted.tp or wanted.dp_attention else 1
    ep = wanted.ep or (groups * tp if wanted.dp_attention else tp)
    if ep > groups * tp or (groups * tp) % ep:
        raise UsageError(f"--ep {ep} does not divide the {groups * tp} GPUs of a stage")
    return Layout(tp=tp, pp=pp, ep=ep, groups=groups, spare=count - groups * tp * pp)


def _widest(count: int, heads: int | None) -> int:
    """The widest tensor parallelism that the heads allow; where they are not known, a power of two."""
    if heads is None:
        return 1 << (count.bit_length() - 1)
    return max(width for width in range(1, min(count, heads) + 1) if heads % width == 0)


def weights_per_gpu(weights: Weights, layout: Layout, layers: int | None) -> int | None:
    """Bytes on the fullest GPU; None when experts are cut otherwise than the rest and their share is not known."""
    if layout.ep == layout.tp:
        cut = weights.gpu_bytes / layout.tp
    elif weights.routed_bytes is None:
        return None
    else:
        cut = weights.routed_bytes / layout.ep + (weights.gpu_bytes - weights.routed_bytes) / layout.tp
    return round(cut * _stage_share(layout.pp, layers))


def _stage_share(pp: int, layers: int | None) -> float:
    """The share of the layers that the fullest pipeline stage holds."""
    return 1 / pp if not layers else -(-layers // pp) / layers


def usable_bytes(memory_bytes: int, budget: MemoryBudget) -> int:
    """What of a GPU's memory weights and cache may take."""
    return round(memory_bytes * budget.utilisation - budget.reserve_gib * GIB)


def place(model: Model, weights: Weights | None, kv: KvLayout | None, memory_bytes: int, layout: Layout, budget: MemoryBudget,
          context: int = 0) -> Placed:  # fmt: skip
    """The figures of a model on GPUs of so much memory; `context` 0 asks for the model's limit."""
    usable = usable_bytes(memory_bytes, budget)
    asked = context or model.context_limit
    on_gpu = weights_per_gpu(weights, layout, model.layers) if weights else None
    if weights is None or on_gpu is None:
        least = round(weights.gpu_bytes / (layout.groups * layout.tp * layout.pp)) if weights else None
        if least is not None and least >= usable:
            reason = f"even cut evenly the weights need {gib(least)} per GPU; {gib(usable)} are usable"
            return _nothing(None, None, asked, "no", reason)
        return _nothing(None, None, asked, "unknown", "the bytes of the weights on a GPU are not known" if weights is None else
                        "how much of the weights are routed experts is not known, so neither is their size on a GPU in this layout")  # fmt: skip
    left = usable - on_gpu
    if left <= 0:
        return _nothing(
            on_gpu, left, asked, "no", f"the weights need {gib(on_gpu)} per GPU; of its {gib(memory_bytes)} {gib(usable)} are usable"
        )
    if kv is None or asked is None:
        what = "the bytes of a token in the KV cache are" if kv is None else "the model's longest context is"
        return _nothing(on_gpu, left, asked, "unknown", f"{what} not known")
    share = _stage_share(layout.pp, model.layers)
    per_token, per_sequence = kv.bytes_per_token * share, kv.bytes_per_sequence * share
    tokens = int(max(0.0, left - per_sequence) / per_token)
    requests = int(left / (asked * per_token + per_sequence)) * layout.groups
    longest = min(tokens, model.context_limit or tokens)
    if requests:
        verdict, reason = "fits", f"one request of {asked:,} tokens takes {gib(asked * per_token + per_sequence)} of {gib(left)}"
    else:
        verdict = "no" if context or not tokens else "tight"
        reason = f"{gib(left)} are left for the KV cache; one request of {asked:,} tokens takes {gib(asked * per_token + per_sequence)}"
    return Placed(
        weights_bytes_per_gpu=on_gpu, budget_bytes_per_gpu=left, tokens_per_group=tokens, tokens=tokens * layout.groups,
        max_context=longest, context=asked, requests=requests, verdict=verdict, reason=reason,
    )  # fmt: skip


def _nothing(on_gpu: int | None, left: int | None, context: int | None, verdict: str, reason: str) -> Placed:
    none = 0 if verdict == "no" else None
    return Placed(
        weights_bytes_per_gpu=on_gpu, budget_bytes_per_gpu=left, tokens_per_group=none, tokens=none, max_context=none,
        context=context, requests=none, verdict=verdict, reason=reason,
    )  # fmt: skip


def gib(size: float) -> str:
    """A size in GiB for people."""
    return f"{size / GIB:.3g} GiB" if abs(size) < GIB / 10 else f"{size / GIB:.1f} GiB"


# --- models -----------------------------------------------------------------------------------------------------------


def bare_name(name: str) -> str:
    """A model's name without owner, brand and case: v3.1, v4-flash."""
    return re.sub(r"\s*\(preview\)", "", name.rpartition("/")[2].strip(), flags=re.IGNORECASE).lower().removeprefix("deepseek-")


def names(models: DeepseekModels) -> dict[str, ModelRelease]:
    """Every name that can be planned, with its release."""
    planned = [row for row in models.releases if row.family not in ("side", "quantised")]
    return {f"DeepSeek-{part.strip().removeprefix('DeepSeek-')}": row for row in planned for part in row.name.split(",")}


def named(name: str, models: DeepseekModels) -> Model:
    """The model of a name; UsageError with the nearest names when there is none."""
    known = names(models)
    found = next((full for full in known if bare_name(full) == bare_name(name)), None)
    if found is None:
        quantised = [checkpoint for row in models.releases for checkpoint in row.checkpoints]
        original = next((checkpoint for checkpoint in quantised if bare_name(checkpoint) == bare_name(name)), None)
        if original is None:
            raise unknown_name("model", f"DeepSeek-{bare_name(name).upper()}", known)
        return Model(
            name=original, default_layouts={},
            unknown=("weights and cache of this third-party re-quantisation: give its directory instead of its name",),
        )  # fmt: skip
    release = known[found]
    row = next((row for row in models.plans if release.id in row.releases and bare_name(found).startswith(row.starts)), None)
    shown = re.sub(r"\s*\(preview\)", "", found)
    if row is None:
        return Model(
            name=shown, context_limit=release.context, default_layouts={},
            unknown=tuple(f"{what} of {shown}" for what in ("bytes of the weights", "layout of the KV cache", "number of layers and heads")),
            notes=tuple(text for text in (release.note, "give the checkpoint's directory instead of its name") if text),
        )  # fmt: skip
    return _of_rows(shown, release, row, models)


def _of_rows(name: str, release: ModelRelease, row: ModelPlan, models: DeepseekModels) -> Model:
    shape = _shape(models, row)
    disk = release.gb_on_disk[min(row.size, len(release.gb_on_disk) - 1)] if release.gb_on_disk else None
    disk_bytes = round(disk * GB) if disk else None
    weights = tuple(_weights(size, disk_bytes if number == 0 else None) for number, size in enumerate(row.weights))
    unknown = list(row.unknown)
    if not row.weights and disk_bytes:
        text = f"the checkpoint on disk ({release.weights})"
        weights = (Weights(format="as published", gpu_bytes=disk_bytes, disk_bytes=disk_bytes, text=text),)
    if not weights:
        unknown.append(f"bytes of the weights of {name}")
    if shape is not None and shape.heads is None:
        unknown += [] if any("heads" in item for item in unknown) else ["number of attention heads"]
    return Model(
        name=name, context_limit=release.context, layers=shape.layers if shape else None, heads=shape.heads if shape else None,
        weights=weights, layouts=layouts(models, row), default_layouts=row.kv_default, support=row.support, upper_bound=row.upper_bound,
        unknown=tuple(unknown), notes=tuple(text for text in (*row.notes, release.note) if text), is_firm=row.basis.may_carry_error,
    )  # fmt: skip


def layouts(models: DeepseekModels, row: ModelPlan) -> tuple[KvLayout, ...]:
    """The cache layouts of a model; where the fixed part of a sequence is not given, the largest known one is taken."""
    largest = max(row.window_bytes.values(), default=0)
    return tuple(
        KvLayout(name=kv.format, bytes_per_token=kv.bytes_per_token, bytes_per_sequence=row.window_bytes.get(kv.format, largest))
        for kv in models.kv_bytes
        if kv.model == row.kv
    )


def _shape(models: DeepseekModels, row: ModelPlan) -> ModelShape | None:
    return next((shape for shape in models.shapes if shape.id == row.shape), None)


def _weights(size: WeightSize, disk_bytes: int | None) -> Weights:
    return Weights(
        format=size.format, gpu_bytes=round((size.loaded_gb or size.gb) * GB),
        routed_bytes=round(size.routed_gb * GB) if size.routed_gb is not None else None, host_bytes=round(size.host_gb * GB),
        disk_bytes=disk_bytes, needs_fp8=size.needs_fp8, text=size.text,
    )  # fmt: skip


def of_checkpoint(checkpoint: Checkpoint, models: DeepseekModels) -> Model:
    """The model in a directory: bytes from its headers, the cache from its configuration where a formula is known for it."""
    config, unknown = checkpoint.config, []
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    main = [tensor for tensor in checkpoint.tensors if layers is None or tensor.layer is None or tensor.layer < layers]
    draft_bytes = checkpoint.bytes_on_disk - sum(tensor.bytes for tensor in main)
    dtypes: dict[str, int] = {}
    for tensor in main:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.bytes
    parts = " + ".join(f"{size / GB:.4g} GB {dtype}" for dtype, size in sorted(dtypes.items(), key=lambda item: -item[1]))
    broken = [
        problem for problem in checkpoint.problems if problem.kind in ("missing-shard", "broken-shard", "no-weights", "missing-layer")
    ]
    weights: tuple[Weights, ...] = ()
    if main and not broken:
        weights = (
            Weights(
                format="as stored", gpu_bytes=sum(tensor.bytes for tensor in main),
                routed_bytes=sum(tensor.bytes for tensor in main if tensor.routed), disk_bytes=checkpoint.bytes_on_disk,
                needs_fp8=dtypes.get("F8_E4M3", 0) * 2 > sum(dtypes.values()), text=parts,
            ),
        )  # fmt: skip
    else:
        unknown.append("bytes of the weights: the directory is not complete")
    row = _row_of_config(config, models)
    kind = str(config.get("model_type") or "unknown")
    found: tuple[KvLayout, ...] = ()
    defaults: Mapping[str, str] = {}
    if row is not None:
        found, defaults = layouts(models, row), row.kv_default
    elif kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32"):
        found = _latent(config, layers, models)
        defaults = {"any": found[0].name} if found else {}
    if not found:
        unknown.append(f"layout of the KV cache of a model of type {kind}")
    notes = [f"draft layers take {draft_bytes / GB:.4g} GB more when they are used"] if draft_bytes else []
    if row is not None and any(size.host_gb for size in row.weights):
        notes.append("tables that an engine can keep in main memory are counted on the GPUs here; by the model's name they are not")
    return Model(
        name=str(checkpoint.directory), context_limit=_number(config, "max_position_embeddings"), layers=layers, heads=heads,
        weights=weights, layouts=found, default_layouts=defaults, support=row.support if row else "",
        upper_bound=bool(row and row.upper_bound), unknown=(*unknown, *(row.unknown if row else ())), notes=(*notes, *(row.notes if row else ())),
    )  # fmt: skip


def _row_of_config(config: Mapping[str, Any], models: DeepseekModels) -> ModelPlan | None:
    """The row of the model that a configuration has the shape of."""
    of_type = {"deepseek_v3": ("v3",), "deepseek_v32": ("v32",), "deepseek_v4": ("v4-flash", "v4-pro"), "deepseek_v41": ("v41-flash",)}
    for row in models.plans:
        shape = _shape(models, row)
        if shape is None or row.kv not in of_type.get(str(config.get("model_type")), ()):
            continue
        wanted = {
            "num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size, "kv_lora_rank": shape.kv_lora_rank,
            "qk_rope_head_dim": shape.qk_rope_head_dim,
        }  # fmt: skip
        if all(value is None or config.get(key) == value for key, value in wanted.items()):
            return row
    return None


def _latent(config: Mapping[str, Any], layers: int | None, models: DeepseekModels) -> tuple[KvLayout, ...]:
    """Multi-head latent attention: one latent row a layer, by the note v3.kv_formula; with an indexer one row of that besides."""
    rank, rope = _number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")
    if layers is None or rank is None or rope is None:
        return ()
    indexer = next((row.bytes for row in models.kv_rows if row.format == "indexer_fp8"), 0) if "index_topk" in config else 0
    return (KvLayout(name="bf16_plus_indexer" if indexer else "bf16", bytes_per_token=layers * ((rank + rope) * 2 + indexer)),)


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 0 < value < 2**40 else None


# --- hardware ---------------------------------------------------------------------------------------------------------


def product_of(name: str, limits: GpuLimits) -> GpuLimit:
    """The product that a user names: H200, 'H100 SXM', b200-sxm; UsageError with the nearest names."""
    bare = " ".join(name.split()).removeprefix("NVIDIA ")
    slug = bare.lower().replace(" ", "-")
    found = next((row for row in limits.products if re.fullmatch(row.name_regex, bare, re.IGNORECASE) or row.id == slug), None)
    found = found or next((row for row in limits.products if slug and row.id.startswith(f"{slug}-")), None)
    if found is None:
        raise unknown_name("GPU", name, [row.id for row in limits.products])
    return found


def memory_of(product: GpuLimit, limits: GpuLimits, name: str = "") -> tuple[int, str]:
    """Bytes of memory that NVML shows of a product, and where the figure is from; the smallest that is plausible where it is not known."""
    told = re.search(r"(\d+)\s?GB\b", name)
    if told and int(told[1]) < product.memory_gb * 0.9:
        return int(told[1]) * GB, "from its name"
    if product.nvml_total_mib:
        return product.nvml_total_mib * 2**20, "as NVML reports it"
    alike = [row.nvml_total_mib for row in limits.products if row.nvml_total_mib and row.memory_gb == product.memory_gb]
    if alike:
        return min(alike) * 2**20, f"as NVML reports it of another product of {product.memory_gb:g} GB"
    return round(product.memory_gb * GB), f"{product.memory_gb:g} GB of its data sheet"


def hardware_named(name: str, gpus: int, nodes: int, limits: GpuLimits) -> Hardware:
    """The GPUs that a user names."""
    row = product_of(name, limits)
    size, source = memory_of(row, limits, name)
    return Hardware(
        product=_title(row), memory_bytes=size, memory_from=source, capability=row.compute_capability, fp8=row.fp8_tflops is not None,
        gpus=gpus or GPUS_PER_NODE, nodes=nodes or 1,
    )  # fmt: skip


def hardware_here(cards: Sequence[Gpu], gpus: int, nodes: int, limits: GpuLimits) -> Hardware:
    """The GPUs of this node; of different ones the one with the least memory counts."""
    sizes = [(card.memory_total_bytes, card) for card in cards if card.memory_total_bytes]
    if not sizes:
        raise UsageError("no GPU could be read here: name one, such as --gpu H200 --gpus 8")
    size, card = min(sizes, key=lambda item: item[0])
    row = limits.product(card.name)
    capability = ComputeCapability.parse(card.compute_capability)
    return Hardware(
        product=card.name.removeprefix("NVIDIA ") or "GPU", memory_bytes=size, memory_from="as NVML reports it here",
        capability=str(capability) if capability else "", fp8=row.fp8_tflops is not None if row else None,
        gpus=gpus or len(sizes), nodes=nodes or 1,
    )  # fmt: skip


def _title(row: GpuLimit) -> str:
    return row.id.upper().replace("-3E", "-3e").replace("-SXM", " SXM").replace("-PCIE", " PCIe").replace("-NVL", " NVL")


def platform_of(capability: str) -> str:
    """sm90 of 9.0."""
    return f"sm{capability.replace('.', '')}" if capability else ""


def supported(models: DeepseekModels, family: str, capability: str) -> str:
    """How far a family of models runs on a compute capability; empty: no row says. A capability without a row is read as its family's .0."""
    texts = {row.platform: row.support for row in models.gpu_support if row.family == family}
    return texts.get(platform_of(capability)) or texts.get(platform_of(f"{capability.partition('.')[0]}.0"), "")


# --- the answer -------------------------------------------------------------------------------------------------------


def chosen_layout(model: Model, wanted: str, capability: str) -> KvLayout | None:
    """The cache layout of a name or dtype; of several of one dtype the largest, unless the default is one of them."""
    if not model.layouts:
        return None
    default = model.default_layouts.get(platform_of(capability)) or model.default_layouts.get("any", "")
    if not wanted:
        return next((layout for layout in model.layouts if layout.name == default), model.layouts[0])
    exact = next((layout for layout in model.layouts if layout.name == wanted), None)
    of_dtype = [layout for layout in model.layouts if layout.name.startswith(wanted) or (layout.name == default and wanted in layout.name)]
    if exact is None and not of_dtype:
        raise UsageError(f"unknown KV layout '{wanted}' of {model.name}: known are {', '.join(layout.name for layout in model.layouts)}")
    default_first = [layout for layout in of_dtype if layout.name == default]
    return exact or next(iter(default_first), None) or max(of_dtype, key=lambda layout: layout.bytes_per_token)


def chosen_weights(model: Model, wanted: str) -> Weights | None:
    """The weights of a format; the published ones when none is named."""
    if not wanted:
        return next(iter(model.weights), None)
    found = next((weights for weights in model.weights if weights.format == wanted), None)
    if found is None:
        known = ", ".join(weights.format for weights in model.weights)
        raise UsageError(f"the size of {model.name} in '{wanted}' is not known{f'; known are {known}' if known else ''}")
    return found


def plan(model: Model, hardware: Hardware, wanted: Wanted, models: DeepseekModels, limits: GpuLimits, problems: Iterable[str] = ()) -> Plan:
    """Whether and how a model fits GPUs, with the arithmetic; UsageError for a context above the model's limit."""
    _refuse_context(model, wanted.context, models)
    budget = models.budgets[0]
    weights, kv = chosen_weights(model, wanted.weights), chosen_layout(model, wanted.kv, hardware.capability)
    layout = arranged(hardware.count, model, wanted)
    placed = place(model, weights, kv, hardware.memory_bytes, layout, budget, wanted.context)
    notes = list(model.notes)
    support = supported(models, model.support, hardware.capability) if model.support else ""
    if support:
        notes.insert(0, f"{model.support.replace('_', '/').upper()} on compute capability {hardware.capability}: {support}")
    if hardware.fp8 is False and weights and (weights.needs_fp8 or (kv and "fp8" in kv.name)):
        what = "the weights are FP8" if weights.needs_fp8 else f"the cache layout {kv.name if kv else ''} is FP8"
        placed = replace(
            placed, verdict="no", reason=f"{hardware.product} has no FP8 units, and {what}: convert it, or take another format"
        )
    tight = placed.verdict == "fits" and placed.budget_bytes_per_gpu is not None and placed.budget_bytes_per_gpu < budget.tight_gib * GIB
    if tight:
        notes.insert(0, f"less than {budget.tight_gib:g} GiB are left for the cache: tight")
    if layout.spare:
        notes.append(f"{layout.spare} of {hardware.count} GPUs stay unused: tensor parallelism has to divide the attention heads")
    notes.append(budget.text)
    others = alternatives(model, weights, wanted, models, limits, hardware.gpus)
    load_s = weights.disk_bytes / (wanted.disk_gb_per_s * GB) if weights and weights.disk_bytes and wanted.disk_gb_per_s else None
    found = tuple(problems)
    return Plan(
        model=model.name, hardware=hardware, layout=layout, weights=weights.format if weights else "", kv=kv.name if kv else "",
        placed=placed, summary=_summary(model, hardware, placed, found, others), load_s=load_s, alternatives=others, problems=found,
        arithmetic=_arithmetic(model, hardware, weights, kv, layout, placed, budget, load_s, wanted), unknown=model.unknown,
        notes=tuple(notes), knowledge_date=models.seen,
    )  # fmt: skip


def _refuse_context(model: Model, context: int, models: DeepseekModels) -> None:
    if model.context_limit is None or context <= model.context_limit:
        return
    note = models.note(f"{model.support.partition('_')[0]}.context")
    raise UsageError(
        f"{model.name} takes {model.context_limit:,} tokens at most; --context {context} is {context - model.context_limit:,} more. "
        f"{note.text if note and str(model.context_limit) in note.text else ''}".strip()
    )


def alternatives(
    model: Model, weights: Weights | None, wanted: Wanted, models: DeepseekModels, limits: GpuLimits, gpus: int = GPUS_PER_NODE
) -> tuple[Alternative, ...]:
    """The fewest nodes of each product that is known to serve the model and on which it fits with tensor parallelism; fewest GPUs first."""
    if weights is None:
        return ()
    found: list[tuple[int, int, Alternative]] = []
    for row in limits.products:
        if not supported(models, model.support, row.compute_capability).startswith("supported"):
            continue
        if row.fp8_tflops is None and weights.needs_fp8:
            continue
        size, source = memory_of(row, limits)
        kv = chosen_layout(model, wanted.kv, row.compute_capability)
        node = GPUS_PER_TRAY if row.host_link else max(gpus, GPUS_PER_NODE)
        for nodes in (1, 2, 4, 8, 16, 32, MOST_NODES):
            layout = arranged(node * nodes, model, Wanted())
            placed = place(model, weights, kv, size, layout, models.budgets[0], wanted.context)
            if placed.verdict == "fits":
                hardware = Hardware(product=_title(row), memory_bytes=size, memory_from=source, gpus=node, nodes=nodes)
                told = Alternative(product=row.id, gpus=hardware.count, nodes=nodes, told=hardware.told, tokens=placed.tokens)
                found.append((hardware.count, -size, told))
                break
    return tuple(item for _, _, item in sorted(found, key=lambda entry: entry[:2]))


def _summary(model: Model, hardware: Hardware, placed: Placed, problems: tuple[str, ...], others: Sequence[Alternative]) -> tuple[str, ...]:
    word = {"fits": "fits", "tight": "fits only with a short context on", "no": "does not fit", "unknown": "cannot be judged on"}
    first = f"{model.name} {word[placed.verdict]} {hardware.told}"
    lines: tuple[str, ...]
    if placed.verdict == "fits":
        bound = "at most " if model.upper_bound else ""
        lines = (f"{first}, with a KV cache for {bound}{placed.tokens:,} tokens", placed.reason)
    elif placed.verdict == "tight":
        lines = (f"{first}: {placed.max_context:,} tokens at most", placed.reason, _what_would(hardware, others))
    elif placed.verdict == "no":
        lines = (first, f"why: {placed.reason}", _what_would(hardware, others))
    else:
        lines = (
            first,
            f"why: {placed.reason}",
            "what would settle it: the checkpoint's directory in place of the name, and a plain TP layout",
        )
    return (f"{lines[0]}; but the checkpoint has {len(problems)} problem(s)", *lines[1:]) if problems else lines


def _what_would(hardware: Hardware, others: Sequence[Alternative]) -> str:
    """The smallest sets that would do, those of the product at hand first."""
    if not others:
        return "what would: no product of this knowledge is known to"
    own_first = sorted(others, key=lambda item: item.told.split()[1] != hardware.product.split()[0])
    return f"what would: {', or '.join(item.told for item in own_first[:3])}"


def _arithmetic(
    model: Model, hardware: Hardware, weights: Weights | None, kv: KvLayout | None, layout: Layout, placed: Placed, budget: MemoryBudget,
    load_s: float | None, wanted: Wanted,
) -> tuple[Line, ...]:  # fmt: skip
    lines: list[Line] = []
    if weights:
        lines.append(Line(what="weights on the GPUs", figure=f"{weights.gpu_bytes / GB:,.4g} GB",
                          how=f"{gib(weights.gpu_bytes)}, {weights.format}{f': {weights.text}' if weights.text else ''}"))  # fmt: skip
        if weights.host_bytes:
            lines.append(Line(what="tables in main memory", figure=gib(weights.host_bytes), how="per replica, beside the weights"))
    else:
        lines.append(Line(what="weights on the GPUs", figure="unknown"))
    on_gpu = placed.weights_bytes_per_gpu
    lines.append(Line(what="weights per GPU", figure=gib(on_gpu) if on_gpu is not None else "unknown", how=_cut(weights, layout, model)))
    lines.append(Line(what="memory per GPU", figure=gib(hardware.memory_bytes), how=f"{hardware.product}, {hardware.memory_from}"))
    lines.append(
        Line(what="usable", figure=gib(usable_bytes(hardware.memory_bytes, budget)),
             how=f"{budget.utilisation:g} x {gib(hardware.memory_bytes)} - {budget.reserve_gib:g} GiB reserve"))  # fmt: skip
    left = placed.budget_bytes_per_gpu
    lines.append(Line(what="left for the KV cache", figure=gib(left) if left is not None else "unknown", how="usable - weights per GPU"))
    if kv is None:
        lines.append(Line(what="KV cache per token", figure="unknown"))
    else:
        split = f"; the fullest of {layout.pp} stages holds {_stage_share(layout.pp, model.layers):.3f} of it" if layout.pp > 1 else ""
        how = f"{kv.name}, all layers; the same on every GPU of a TP group{split}"
        lines.append(Line(what="KV cache per token", figure=f"{kv.bytes_per_token:,} byte", how=how))
        if kv.bytes_per_sequence:
            lines.append(Line(what="fixed per sequence", figure=f"{kv.bytes_per_sequence / 2**20:.2f} MiB", how="window of the attention"))
    if placed.tokens is not None and placed.tokens_per_group is not None:
        bound = "at most: engines pool further pages, read the engine's own 'GPU KV cache size' line" if model.upper_bound else ""
        lines.append(Line(what="tokens per TP group", figure=f"{placed.tokens_per_group:,}", how=bound))
        lines.append(Line(what="tokens in all", figure=f"{placed.tokens:,}", how=f"{layout.groups} group(s)"))
        lines.append(Line(what="longest request", figure=f"{placed.max_context or 0:,} tokens",
                          how=f"the model allows {model.context_limit:,}" if model.context_limit else "the model's limit is not known"))  # fmt: skip
        if placed.context:
            lines.append(Line(what="requests at once", figure=f"{placed.requests or 0:,}", how=f"of {placed.context:,} tokens each"))
    if wanted.disk_gb_per_s:
        source = f" ({wanted.disk_source})" if wanted.disk_source else ""
        how = (
            f"{weights.disk_bytes / GB:,.4g} GB at {wanted.disk_gb_per_s:.3g} GB/s{source}, at least"
            if weights and weights.disk_bytes
            else ""
        )
        lines.append(Line(what="load time", figure=f"{load_s / 60:.1f} min" if load_s is not None else "unknown", how=how))
    return tuple(lines)


def _cut(weights: Weights | None, layout: Layout, model: Model) -> str:
    if weights is None:
        return layout.told
    stage = f", fullest of {layout.pp} stages {_stage_share(layout.pp, model.layers):.3f}" if layout.pp > 1 else ""
    if layout.ep == layout.tp:
        return f"{gib(weights.gpu_bytes)} / {layout.tp} ({layout.told}){stage}"
    if weights.routed_bytes is None:
        return f"the share of the routed experts is not known ({layout.told})"
    rest = weights.gpu_bytes - weights.routed_bytes
    return f"experts {gib(weights.routed_bytes)} / {layout.ep} + rest {gib(rest)} / {layout.tp} ({layout.told}){stage}"
