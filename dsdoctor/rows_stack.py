"""Rows about the software above CUDA and torch: kernel libraries, what their wheels contain, engine pitfalls, DeepSeek models, links.

Kept apart from `dsdoctor.rows`, which every check imports. A lookup answers None or an empty tuple when no row says anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, CompanionRelease, Source
from dsdoctor.versions import ComputeCapability


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Note:
    """A statement about a topic, with its particulars."""

    id: str
    topic: str
    text: str = ""
    points: tuple[str, ...] = ()
    basis: Basis


# --- kernel-libraries -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LibraryRequirement:
    """What one line of releases of a kernel library needs. Empty or None: its sources say nothing."""

    id: str
    library: str
    line: str = ""
    """Which releases: a version, or since and until when."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution to the PEP 440 range of its releases that belong to this line; an empty range: its versions do not tell."""
    capabilities: tuple[str, ...] = ()
    """Compute capabilities that it serves: 9.0, or 10.x for a family."""
    refused: tuple[str, ...] = ()
    """Capabilities on which it fails."""
    min_cuda: Mapping[str, str] = field(default_factory=dict)
    """Capability (or 'any') to the oldest toolkit that builds it."""
    recommended_cuda: str = ""
    min_torch: str = ""
    min_nccl: str = ""
    min_nvshmem: str = ""
    min_python: str = ""
    min_glibc: str = ""
    min_driver_cuda: str = ""
    """The CUDA of the driver from which on it works as the text says."""
    compiler: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Package to PEP 440 range."""
    text: str = ""
    points: tuple[str, ...] = ()
    basis: Basis

    def serves(self, capability: ComputeCapability) -> bool | None:
        """Whether it runs on that capability; None when neither list names it."""
        if _names(self.refused, capability):
            return False
        return True if _names(self.capabilities, capability) else None

    def cuda_for(self, capability: ComputeCapability) -> str:
        """The oldest toolkit for that capability; empty when the row says nothing."""
        names = (str(capability), f"{capability.major}.x", "any")
        return next((self.min_cuda[name] for name in names if name in self.min_cuda), "")

    def may_be(self, package: str, version: str) -> bool:
        """Whether that release of a distribution may belong to this line."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
        from packaging.version import InvalidVersion

        try:
            return package in self.packages and SpecifierSet(self.packages[package]).contains(version, prereleases=True)
        except (InvalidSpecifier, InvalidVersion):
            return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportFailure:
    """What a text means that an import or a first call of a kernel library printed."""

    id: str
    library: str
    regex: str
    example: str
    meaning: str
    remedy: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchApi:
    """What the default wheel of one torch release offers for FP8 and attention."""

    torch: str
    cuda: str
    scaled_mm: tuple[str, ...]
    block_scaled_fp8: str = ""
    """What becomes of DeepSeek's 1x128 and 128x128 scales."""
    attention_registry: tuple[str, ...] = ()
    """Implementations that torch can register; no sign that they are installed."""
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelLibraries:
    """Kernel libraries: GPUs, toolkits and packages they need, their limits, and how their failures read."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    requirements: tuple[LibraryRequirement, ...]
    import_failures: tuple[ImportFailure, ...]
    torch_apis: tuple[TorchApi, ...]
    notes: tuple[Note, ...]

    def requirements_of(self, library: str) -> tuple[LibraryRequirement, ...]:
        """The lines of a library, the newest first."""
        return tuple(row for row in self.requirements if row.library == library)

    def requirement(self, id: str) -> LibraryRequirement | None:
        """The row of an id."""
        return next((row for row in self.requirements if row.id == id), None)

    def note(self, id: str) -> Note | None:
        """The note of an id."""
        return next((row for row in self.notes if row.id == id), None)

    def failure_in(self, text: str) -> ImportFailure | None:
        """The first known failure in a text."""
        return next((row for row in self.import_failures if re.search(row.regex, text)), None)

    def torch_api(self, version: str) -> TorchApi | None:
        """The row of a torch release; a local part does not matter."""
        return next((row for row in self.torch_apis if row.torch == version.partition("+")[0]), None)


# --- kernel-packages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WheelBuild:
    """What was read out of the binaries of one wheel."""

    version: str
    cuda_library: str
    """The CUDA runtime that it asks the loader for."""
    toolkit: str = ""
    gpu_code: tuple[str, ...] = ()
    min_torch: str = ""
    """By the symbols it needs."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelPackage:
    """What a package of the stack contains, and where it traps; `companions` says which versions go together."""

    what: str = ""
    imports: str = ""
    """Import names."""
    top_level: tuple[str, ...] = ()
    """Names that its newest wheel puts into site-packages."""
    wheel: str = ""
    """The wheel that was opened."""
    shared_objects_mb: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Extra of the newest release to what it asks for."""
    traps: tuple[str, ...] = ()
    builds: tuple[WheelBuild, ...] = ()
    releases: tuple[CompanionRelease, ...] = ()
    """Only of packages that `companions` does not hold; newest first."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelPackages:
    """Contents and traps of the packages that carry or drive GPU kernels."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    shared_names: tuple[str, ...]
    """Top-level names that many packages bring and that mean nothing: include, lib."""
    packages: Mapping[str, KernelPackage]

    def package(self, name: str) -> KernelPackage | None:
        """The package of a normalised name."""
        return self.packages.get(name)

    def sharing(self, name: str) -> tuple[str, ...]:
        """Other packages that own one of the same directories: never install them together."""
        mine = self.packages.get(name)
        names = set(mine.top_level if mine else ()) - set(self.shared_names)
        return tuple(other for other, row in self.packages.items() if other != name and names & set(row.top_level))


# --- engine-pitfalls --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pitfall:
    """A known trap when serving DeepSeek V3.2, V4 or V4.1."""

    id: str
    rank: int | None = None
    """1 to 15: the most useful ones."""
    affects: Mapping[str, str]
    """engines, libraries, gpus, models, hosts, builds, images, setups … to which of them, in words."""
    symptom: str
    log_regex: str = ""
    example: str = ""
    """A line that the pattern is made for."""
    cause: str
    fix: str
    check: str
    """What can be tested before a start."""
    status: str
    """Of the thread, when it was read."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnginePitfalls:
    """Traps when serving DeepSeek models with vLLM or SGLang, the most useful first. Workarounds age: look at `affects` before use."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    pitfalls: tuple[Pitfall, ...]

    def pitfall(self, id: str) -> Pitfall | None:
        """The row of an id."""
        return next((row for row in self.pitfalls if row.id == id), None)

    def in_log(self, line: str) -> tuple[Pitfall, ...]:
        """The traps whose pattern stands in a line of an engine's log."""
        return tuple(row for row in self.pitfalls if row.log_regex and re.search(row.log_regex, line))


# --- deepseek-models --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelRelease:
    """One open-weight release."""

    id: str
    name: str
    released: str = ""
    """Date, or words where no day is known."""
    total: str = ""
    active: str = ""
    weights: str = ""
    gb_on_disk: tuple[float, ...] = ()
    """10^9 byte; two where the row names two sizes of the model."""
    shards: int | None = None
    context: int | None = None
    attention: str = ""
    family: str
    """v3, v32, v4, v41, side (outside the planner) or quantised."""
    architecture: str = ""
    speculative: str = ""
    checkpoints: tuple[str, ...] = ()
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelShape:
    """The numbers of a configuration. None: not published where it was looked for."""

    id: str
    models: tuple[str, ...]
    layers: int
    hidden_size: int
    heads: int | None = None
    head_dim: int | None = None
    kv_heads: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    routed_experts: int
    shared_experts: int | None = None
    experts_per_token: int
    moe_intermediate: int
    points: tuple[str, ...] = ()
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvBytes:
    """Bytes of KV cache that one token adds, over all layers."""

    model: str
    format: str
    bytes_per_token: int
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvRow:
    """Bytes of one row of a cache layout: one token in one layer that stores it."""

    format: str
    bytes: int
    parts: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MinimumMemory:
    """GPU memory (10^9 byte, all GPUs together) that the recipes of vLLM ask for."""

    model: str
    gb: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Whether weights and cache fit a set of GPUs, by the formula of the note plan.formula."""

    node: str
    weights: str
    weights_gib_per_gpu: float
    kv_gib_per_gpu: float
    tokens_bf16: int | None = None
    """Per tensor-parallel group."""
    tokens_fp8: int | None = None
    verdict: str
    """fits, tight or no."""
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineMinimum:
    """The first release of an engine that serves a family of models."""

    engine: str
    models: str
    version: str
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuSupport:
    """How far a family of models runs on a kind of GPU."""

    family: str
    platform: str
    """sm90, sm100, sm103, sm120, sm121, sm89, sm80, amd or ascend."""
    support: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightSize:
    """How large the weights of a model are in one format (10^9 byte). None: not known."""

    format: str
    """fp8, bf16, int8, nvfp4, or mixed as published."""
    gb: float
    """On the GPUs, all of them together, without draft layers."""
    routed_gb: float | None = None
    """The routed experts among them: the part that expert parallelism divides."""
    host_gb: float = 0.0
    """Tables that stay in main memory."""
    loaded_gb: float | None = None
    """What engines were seen to load, where that is more."""
    needs_fp8: bool = False
    """Whether a GPU without FP8 units cannot serve it as it is."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelPlan:
    """What `dsdoctor plan` reckons with for the releases of one size of a family."""

    id: str
    releases: tuple[str, ...]
    starts: str = ""
    """Only names that begin so, where a release has several sizes."""
    size: int = 0
    """Which of the sizes on disk of a release with several."""
    shape: str
    kv: str
    """The model of the rows of kv_bytes."""
    kv_default: Mapping[str, str]
    """Platform (sm90 …) or 'any' to the layout that is taken when none is named."""
    support: str
    """The family of the rows of gpu_support."""
    weights: tuple[WeightSize, ...] = ()
    """Empty: what the release takes on disk."""
    window_bytes: Mapping[str, int] = field(default_factory=dict)
    """Layout to the fixed bytes of one sequence."""
    upper_bound: bool = False
    """Whether engines pool further pages, so that the tokens are at most what is reckoned."""
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryBudget:
    """What of a GPU's memory weights and cache may take."""

    id: str
    utilisation: float
    """Share of the memory that an engine takes."""
    reserve_gib: float
    """CUDA context, communication buffers, graphs, activations."""
    tight_gib: float
    """Less than this for the cache is tight."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeepseekModels:
    """DeepSeek's open-weight models: sizes, KV bytes, engines and GPUs that serve them, recipes."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    not_found: tuple[str, ...]
    """Releases that were looked for in vain."""
    releases: tuple[ModelRelease, ...]
    shapes: tuple[ModelShape, ...]
    kv_bytes: tuple[KvBytes, ...]
    kv_rows: tuple[KvRow, ...]
    minimum_memory: tuple[MinimumMemory, ...]
    placements: tuple[Placement, ...]
    engine_minimums: tuple[EngineMinimum, ...]
    gpu_support: tuple[GpuSupport, ...]
    plans: tuple[ModelPlan, ...] = ()
    budgets: tuple[MemoryBudget, ...] = ()
    notes: tuple[Note, ...]

    def family(self, name: str) -> tuple[ModelRelease, ...]:
        """The releases of a family, oldest first."""
        return tuple(row for row in self.releases if row.family == name)

    def bytes_per_token(self, model: str, format: str) -> int | None:
        """KV bytes of one token."""
        return next((row.bytes_per_token for row in self.kv_bytes if (row.model, row.format) == (model, format)), None)

    def note(self, id: str) -> Note | None:
        """The note of an id."""
        return next((row for row in self.notes if row.id == id), None)


# --- links ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathClass:
    """A class of `nvidia-smi topo -m`, best first."""

    name: str
    """NV# stands for NV1 to NV18."""
    meaning: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclPathLevel:
    """A path level of NCCL; lower is closer. NCCL has no NODE."""

    name: str
    level: int
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SysfsFile:
    """A file of a PCI device, relative to its directory."""

    name: str
    meaning: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NicRate:
    """What an adapter port carries in one direction at most."""

    name: str
    gbit_per_s: float
    gb_per_s: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """How GPUs, adapters and processors are wired: names of paths, what sysfs tells, line rates."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    paths: tuple[PathClass, ...]
    nccl_levels: tuple[NcclPathLevel, ...]
    sysfs: tuple[SysfsFile, ...]
    nic_rates: tuple[NicRate, ...]
    notes: tuple[Note, ...]

    def path(self, name: str) -> PathClass | None:
        """The class of a name; NV4 and NV18 are NV#."""
        plain = re.sub(r"^NV\d+$", "NV#", name)
        return next((row for row in self.paths if row.name == plain), None)

    def note(self, id: str) -> Note | None:
        """The note of an id."""
        return next((row for row in self.notes if row.id == id), None)


def _names(listed: tuple[str, ...], capability: ComputeCapability) -> bool:
    return str(capability) in listed or f"{capability.major}.x" in listed
