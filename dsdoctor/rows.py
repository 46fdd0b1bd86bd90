"""What the matrices hold: one class per matrix with its lookups, one class per kind of row.

Every row says where it comes from (`basis`). Versions stand as text, as their sources write them; lookups compare them through
`dsdoctor.versions`. A lookup answers None when no row says anything: callers turn that into a doubt, never into a judgement.
Rows are compared by identity (`eq=False` keeps the import of this file cheap).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Protocol, TypeVar

from dsdoctor.record import dataclass
from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion, GpuTarget, LibraryVersion


class Confidence(enum.Enum):
    """How the knowledge was gained."""

    DOCUMENTED = "documented"
    DERIVED = "derived"
    MEASURED = "measured"
    COMMUNITY = "community"


class Certainty(enum.Enum):
    """How sure its collector was."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A document that rows cite."""

    title: str
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """Where a row comes from and how far it can be trusted."""

    sources: tuple[str, ...]
    """Title and address of each source (in YAML: `source`, the id or ids of the file's `sources`)."""
    confidence: Confidence
    seen: str = ""
    """Date on which the source was read."""
    audited: str = ""
    """Date on which a different source agreed."""
    reread: str = ""
    """Date on which the same source was read or measured again and agreed."""
    certainty: Certainty | None = None
    weak: bool = False
    """Known to be shaky: never a ground for an error."""
    at_most: str = ""
    """The highest severity that a check may use: info or warning; empty: see `may_carry_error`."""
    read: str = ""
    """What exactly was opened."""

    @property
    def may_carry_error(self) -> bool:
        """Whether a check may raise an error on this row; otherwise a warning is the most."""
        return not (self.weak or self.at_most) and bool(self.audited or self.reread or self.certainty is Certainty.HIGH)

    @property
    def may_carry_warning(self) -> bool:
        """Whether a check may raise a warning on this row; otherwise it is only worth mentioning (info)."""
        return self.at_most != "info"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fact:
    """A statement that a check or an explanation quotes."""

    id: str
    text: str
    since: str = ""
    until: str = ""
    basis: Basis


# --- cuda-toolkits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudaMajor:
    """The oldest driver that runs programs of a CUDA major (minor-version compatibility), or before CUDA 11 of one minor."""

    major: int
    minor: int | None = None
    """Set where the minor has a floor of its own: minor-version compatibility began with CUDA 11."""
    min_driver: str
    min_driver_branch: int
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudaRelease:
    """One CUDA toolkit release."""

    version: str
    kind: str
    """ga, update 1 …, rc, developer preview."""
    toolkit_driver: str = ""
    """Driver with the full feature set: version, or bare branch where the sources name no more. Not the floor to run."""
    runfile_driver: str = ""
    companion_driver: str = ""
    ptx_isa_max: str = ""
    released: str = ""
    note: str = ""
    driver_basis: Basis | None = None
    """Of `toolkit_driver`, where it differs from the row's."""
    basis: Basis

    @property
    def cuda(self) -> CudaVersion | None:
        """Major and minor."""
        return CudaVersion.parse(self.version)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudaIssue:
    """A fault of some toolkit releases."""

    id: str
    text: str
    affects: tuple[str, ...] = ()
    fixed_in: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudaToolkits:
    """CUDA releases and the drivers they need."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    majors: tuple[CudaMajor, ...]
    releases: tuple[CudaRelease, ...]
    never_released: tuple[str, ...] = ()
    limits: tuple[Fact, ...] = ()
    issues: tuple[CudaIssue, ...] = ()

    def release(self, version: str) -> CudaRelease | None:
        """The row of exactly this version: '13.0.2'."""
        return next((row for row in self.releases if row.version == version), None)

    def first_of(self, cuda: CudaVersion) -> CudaRelease | None:
        """The first general release of a major.minor."""
        rows = [row for row in self.releases if row.cuda == cuda]
        return next((row for row in rows if row.kind == "ga"), rows[0] if rows else None)

    def floor(self, cuda: CudaVersion) -> CudaMajor | None:
        """The minimum of its major, before CUDA 11 of its minor: what runs at all, with the limits of `limits`."""
        return next((row for row in self.majors if row.major == cuda.major and row.minor in (None, cuda.minor)), None)

    def knows(self, cuda: CudaVersion) -> bool:
        """Whether any release of this major.minor is listed."""
        return any(row.cuda == cuda for row in self.releases)

    @property
    def newest(self) -> CudaVersion | None:
        """The newest listed major.minor."""
        return max((row.cuda for row in self.releases if row.cuda), default=None)


# --- driver-branches --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriverBranch:
    """One driver branch."""

    branch: int
    kind: str
    """LTSB, production, new feature, developer or unknown."""
    status: str
    """supported, end-of-life, superseded or not-listed; at the `seen` date."""
    native_cuda: str
    """CUDA version its drivers report."""
    native_basis: Basis
    end_of_life: str = ""
    """Month (2026-06); empty where none is listed."""
    end_basis: Basis | None = None
    first_version: str = ""
    first_seen: str = ""
    first_general: str = ""
    newest_versions: tuple[str, ...] = ()
    """Newest releases seen."""
    published_versions: tuple[str, ...] = ()
    """Every published release, where all are known."""
    note: str = ""
    basis: Basis

    @property
    def cuda(self) -> CudaVersion | None:
        """The native CUDA version."""
        return CudaVersion.parse(self.native_cuda)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArchitectureSupport:
    """First and last CUDA and driver of a GPU architecture; empty or None: still supported."""

    architecture: str
    compute_capabilities: tuple[str, ...]
    first_cuda: str
    last_cuda: str = ""
    """12.x: any minor of that major."""
    last_driver_branch: int | None = None
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriverRule:
    """A rule about kernel modules, the fabric or RDMA."""

    id: str
    text: str
    branch: int | None = None
    min_kernel: str = ""
    min_cuda: str = ""
    min_compute_capability: str = ""
    architectures: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    caveat: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriverIssue:
    """A reported fault of some driver releases."""

    id: str
    text: str
    first: str
    """First affected release or branch."""
    last: str
    """Last affected release or branch (a branch: all of it)."""
    fixed_in: str = ""
    basis: Basis

    def affects(self, driver: DriverVersion) -> bool:
        """Whether this driver lies in the range."""
        first, last = DriverVersion.parse(self.first), DriverVersion.parse(self.last)
        fixed = DriverVersion.parse(self.fixed_in)
        if first is None or last is None or driver < first or (fixed is not None and driver >= fixed):
            return False
        return driver.branch <= last.branch if last.is_branch else driver <= last


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BetaSeries:
    """Developer betas whose numbers sort below older production drivers: minimum-version comparisons misjudge them."""

    series: str
    """Branch and second number: 550.40."""
    first: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriverBranches:
    """Driver branches, what they support, and rules about kernel modules and the fabric."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    branches: tuple[DriverBranch, ...]
    architectures: tuple[ArchitectureSupport, ...]
    rules: tuple[DriverRule, ...] = ()
    issues: tuple[DriverIssue, ...] = ()
    developer_betas: tuple[BetaSeries, ...] = ()
    lifecycle: tuple[Fact, ...] = ()
    not_published: tuple[Fact, ...] = ()

    def branch(self, number: int) -> DriverBranch | None:
        """The row of a branch."""
        return next((row for row in self.branches if row.branch == number), None)

    @property
    def newest(self) -> int:
        """The newest branch known here; drivers above it are newer than this release knows."""
        return max(row.branch for row in self.branches)

    def native_cuda(self, driver: DriverVersion) -> CudaVersion | None:
        """The CUDA version that a driver provides by itself, or None for a branch that is not listed."""
        row = self.branch(driver.branch)
        return row.cuda if row else None

    def branches_for(self, cuda: CudaVersion) -> tuple[DriverBranch, ...]:
        """Branches whose native CUDA is at least this one, oldest first."""
        return tuple(sorted((row for row in self.branches if row.cuda and row.cuda >= cuda), key=lambda row: row.branch))

    def supported(self) -> tuple[DriverBranch, ...]:
        """Branches with support at the date of the matrix, oldest first."""
        return tuple(sorted((row for row in self.branches if row.status == "supported"), key=lambda row: row.branch))

    def architecture_of(self, capability: ComputeCapability) -> ArchitectureSupport | None:
        """The architecture row that lists this capability."""
        return next((row for row in self.architectures if str(capability) in row.compute_capabilities), None)

    def issues_of(self, driver: DriverVersion) -> tuple[DriverIssue, ...]:
        """Reported faults of this driver."""
        return tuple(row for row in self.issues if row.affects(driver))

    def is_developer_beta(self, driver: DriverVersion) -> bool:
        """Whether its number belongs to a developer beta, which no minimum can judge."""
        for row in self.developer_betas:
            first, series = DriverVersion.parse(row.first), DriverVersion.parse(row.series)
            if first and series and driver.numbers[:2] == series.numbers and driver >= first:
                return True
        return False

    def rule(self, id: str) -> DriverRule | None:
        """The rule of that id."""
        return next((row for row in self.rules if row.id == id), None)


# --- forward-compat ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompatPackage:
    """The driver builds inside one cuda-compat package."""

    cuda: str
    driver_versions: tuple[str, ...]
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompatRule:
    """Older driver branches that an official CUDA image accepts with its compat package."""

    cuda: str
    branches: tuple[int, ...] = ()
    container: str = ""
    """Framework container, where the rule comes from one."""
    not_supported_branches: tuple[int, ...] = ()
    native_or_newer: int | None = None
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardCompat:
    """Forward compatibility: newer CUDA on an older data-centre driver. NVIDIA's full table was never reached."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    eligible_classes: tuple[str, ...]
    """Product classes of the gpus matrix for which it works."""
    partly_eligible_classes: tuple[str, ...]
    """Classes of which only some products are eligible."""
    eligibility: tuple[Fact, ...]
    packages: tuple[CompatPackage, ...]
    image_rules: tuple[CompatRule, ...]
    container_rules: tuple[CompatRule, ...] = ()

    def eligible(self, product_class: str) -> bool | None:
        """Whether GPUs of that class may use it; None where it depends on the product."""
        if product_class in self.eligible_classes:
            return True
        return None if product_class in self.partly_eligible_classes or not product_class else False

    def package(self, cuda: CudaVersion) -> CompatPackage | None:
        """The compat package of a CUDA version."""
        return next((row for row in self.packages if CudaVersion.parse(row.cuda) == cuda), None)

    def rule(self, cuda: CudaVersion) -> CompatRule | None:
        """The image rule of a CUDA version, the newest release of it."""
        rows = [row for row in self.image_rules if CudaVersion.parse(row.cuda) == cuda]
        return rows[-1] if rows else None

    def allows(self, cuda: CudaVersion, branch: int) -> bool | None:
        """True when an official image of that CUDA accepts the branch. None otherwise: not listed is no proof of failure."""
        row = self.rule(cuda)
        return True if row is not None and branch in row.branches else None


# --- gpus -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuProduct:
    """One GPU product."""

    product: str
    name_regex: str
    """Matches the whole name that NVML and nvidia-smi print, with or without the leading 'NVIDIA '."""
    compute_capability: str
    architecture: str
    product_class: str
    """datacenter, geforce, rtx-pro, workstation or jetson."""
    min_driver: str = ""
    """First driver whose list of products names it: a lower bound that may lag the product (warn at most)."""
    first_listed: Mapping[str, str] = field(default_factory=dict)
    """Branch to the first release of it that lists the product."""
    requires_open_module: bool = False
    last_driver_branch: int | None = None
    board_min_driver: str = ""
    """Of the 8-GPU board."""
    board_basis: Basis | None = None
    note: str = ""
    capability_basis: Basis
    basis: Basis

    @property
    def capability(self) -> ComputeCapability | None:
        """The compute capability."""
        return ComputeCapability.parse(self.compute_capability)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmTarget:
    """A compiler target and the toolkits that accept it."""

    target: str
    first_cuda: str
    last_cuda: str = ""
    """Empty: still accepted."""
    renamed_to: str = ""
    note: str = ""
    basis: Basis

    def accepted_by(self, cuda: CudaVersion) -> bool:
        """Whether the compiler of that toolkit knows the target."""
        first, last = CudaVersion.parse(self.first_cuda), CudaVersion.parse(self.last_cuda)
        return first is not None and cuda >= first and (last is None or cuda <= last)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuFeature:
    """A hardware feature and the targets that have it."""

    id: str
    feature: str
    from_capability: str = ""
    """Every capability from this one on, or empty."""
    targets: tuple[str, ...] = ()
    first_cuda: Mapping[str, str] = field(default_factory=dict)
    """Target (or 'any') to the first toolkit that compiles it."""
    note: str = ""
    basis: Basis

    def on(self, capability: ComputeCapability) -> bool:
        """Whether a GPU of that capability has it."""
        first = ComputeCapability.parse(self.from_capability)
        if first is not None:
            return capability >= first
        return any(target.runs_on(capability) for target in map(GpuTarget.parse, self.targets) if target)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LibraryNeed:
    """What a kernel library asks of the GPU and the toolkit."""

    library: str
    min_cuda: str = ""
    recommended_cuda: str = ""
    architectures: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpus:
    """GPU products, compiler targets and features."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    products: tuple[GpuProduct, ...]
    targets: tuple[SmTarget, ...]
    features: tuple[GpuFeature, ...]
    libraries: tuple[LibraryNeed, ...] = ()
    target_suffixes: tuple[Fact, ...] = ()

    def product(self, name: str) -> GpuProduct | None:
        """The product with this NVML name ('NVIDIA H200')."""
        return _by_name(self.products, name)

    def of_capability(self, capability: ComputeCapability) -> tuple[GpuProduct, ...]:
        """All products of a capability."""
        return tuple(row for row in self.products if row.capability == capability)

    def architecture(self, capability: ComputeCapability) -> str:
        """The architecture name of a capability, empty when no product has it."""
        return next((row.architecture for row in self.of_capability(capability)), "")

    def target(self, name: str) -> SmTarget | None:
        """The row of 'sm_90a'."""
        return next((row for row in self.targets if row.target == name), None)

    def feature(self, id: str) -> GpuFeature | None:
        """The row of a feature id."""
        return next((row for row in self.features if row.id == id), None)

    def has(self, id: str, capability: ComputeCapability) -> bool | None:
        """Whether GPUs of that capability have a feature; None when the feature is not listed."""
        row = self.feature(id)
        return row.on(capability) if row else None


# --- gpu-limits -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuLimit:
    """Peak figures of one product. Rates are dense, per direction, and in units of 10^9."""

    id: str
    name_regex: str
    compute_capability: str
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    """None: the GPU has no FP8 units."""
    int8_tops: float | None = None
    fp4_tflops: float | None = None
    memory_gb: float
    memory_gb_per_s: float
    nvml_total_mib: int | None = None
    power_w: float
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink_generation: int | None = None
    nvlink_links: int = 0
    nvlink_gb_per_s_per_link: float | None = None
    nvlink_gb_per_s: float | None = None
    """All links together, one direction."""
    nvlink_only_with: str = ""
    host_link: str = ""
    sm_count: int | None = None
    notes: tuple[str, ...] = ()
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Achieved:
    """A rate that others measured, as share of the dense peak."""

    product: str
    precision: str
    tflops: float
    share: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PcieRate:
    """One PCIe generation; x16, one direction, after line coding. Linear in lanes."""

    generation: int
    gt_per_s: float
    x16_gb_per_s: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvlinkRate:
    """One NVLink generation; one link, one direction."""

    generation: int
    gb_per_s: float
    smi_gb_per_s: float | None = None
    """What nvidia-smi prints: the raw rate."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Threshold:
    """Shares of a peak: at or above `good` passes, below `bad` is bad, between them is doubtful."""

    id: str
    good: float
    bad: float
    of: str
    """What the share is taken of."""
    caveat: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuLimits:
    """Peak rates, links, memory and power of GPUs, and thresholds for measured rates."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    products: tuple[GpuLimit, ...]
    achieved: tuple[Achieved, ...]
    pcie: tuple[PcieRate, ...]
    nvlink: tuple[NvlinkRate, ...]
    thresholds: tuple[Threshold, ...]
    facts: tuple[Fact, ...] = ()

    def product(self, name: str) -> GpuLimit | None:
        """The figures of the product with this NVML name."""
        return _by_name(self.products, name)

    def threshold(self, id: str) -> Threshold | None:
        """The row of gemm-bf16, gemm-fp8, hbm, pcie or nvlink."""
        return next((row for row in self.thresholds if row.id == id), None)

    def pcie_gb_per_s(self, generation: int, width: int) -> float | None:
        """What such a link carries in one direction."""
        row = next((row for row in self.pcie if row.generation == generation), None)
        return row.x16_gb_per_s * width / 16 if row else None


# --- cudnn ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudnnSupport:
    """One line of a cuDNN support matrix."""

    first_cuda: str
    last_cuda: str
    min_driver: str
    min_compute_capability: str
    max_compute_capability: str
    static_only: str = ""
    """Static linking works with this CUDA version only."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudnnRelease:
    """One cuDNN release."""

    version: str
    released: str = ""
    kind: str = ""
    support: tuple[CudnnSupport, ...] = ()
    """Empty: its support matrix was not reached."""
    built_for_cuda: tuple[str, ...] = ()
    min_compute_capability: str = ""
    device_code: tuple[str, ...] = ()
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CudnnPackages:
    """First and last release of the packages for one CUDA major."""

    cuda_major: int
    first: str
    last: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cudnn:
    """cuDNN releases and compatibility rules."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    releases: tuple[CudnnRelease, ...]
    rules: tuple[Fact, ...]
    packages: tuple[CudnnPackages, ...] = ()

    def release(self, version: LibraryVersion) -> CudnnRelease | None:
        """The row of a release; the fourth number does not matter."""
        wanted = LibraryVersion(version.numbers[:3])
        return next((row for row in self.releases if LibraryVersion.parse(row.version) == wanted), None)

    @staticmethod
    def runs_with(built: LibraryVersion, loaded: LibraryVersion) -> bool:
        """Whether a program built with one release may load another: same major, and a minor that is not older (rules major, minor, patch)."""
        return loaded.major == built.major and loaded.minor >= built.minor


# --- nccl -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclRelease:
    """One NCCL release."""

    version: str
    code: int
    released: str = ""
    built_with_cuda: tuple[str, ...] = ()
    """CUDA versions that binaries were built with; no statement about support."""
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclIssue:
    """A known fault of some NCCL releases."""

    id: str
    affected: str
    """The range in words."""
    specifiers: tuple[str, ...] = ()
    """PEP 440 ranges, any of them; empty: no range known."""
    symptom: str
    fixed_in: tuple[str, ...] = ()
    """Releases (or, in words, the driver) that mend it; empty: no fix known."""
    workaround: str = ""
    condition: str = ""
    """What must hold beside the version."""
    cpu_architectures: tuple[str, ...] = ()
    gpu_architectures: tuple[str, ...] = ()
    note: str = ""
    basis: Basis

    @property
    def is_bounded(self) -> bool:
        """Whether every range has both ends; an open range ('before 2.21.5') is a hint, at most info."""
        return bool(self.specifiers) and all("==" in item or (">" in item and "<" in item) for item in self.specifiers)

    def affects(self, version: LibraryVersion) -> bool:
        """Whether the release lies in one of the ranges."""
        from packaging.specifiers import SpecifierSet

        return any(SpecifierSet(item).contains(str(version)) for item in self.specifiers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclCuda:
    """CUDA majors that a range of NCCL releases is built for; empty last: no end."""

    first: str
    last: str = ""
    cuda_majors: tuple[int, ...]
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContainerPair:
    """What a published container pairs."""

    cuda: str
    container: str = ""
    nccl: str = ""
    cudnn: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nccl:
    """NCCL releases, known faults and rules."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    releases: tuple[NcclRelease, ...]
    issues: tuple[NcclIssue, ...]
    cross_rank: tuple[Fact, ...]
    cuda: tuple[NcclCuda, ...] = ()
    containers: tuple[ContainerPair, ...] = ()
    needs: tuple[Fact, ...] = ()
    nvshmem: tuple[Fact, ...] = ()

    def release(self, version: LibraryVersion) -> NcclRelease | None:
        """The row of a release."""
        return next((row for row in self.releases if LibraryVersion.parse(row.version) == version), None)

    def issues_of(self, version: LibraryVersion) -> tuple[NcclIssue, ...]:
        """Known faults whose range holds this release."""
        return tuple(row for row in self.issues if row.affects(version))

    @property
    def newest(self) -> LibraryVersion | None:
        """The newest release known here."""
        return max((version for row in self.releases if (version := LibraryVersion.parse(row.version))), default=None)


# --- torch ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchWheel:
    """The default wheel of a torch release (the one on the public index) for one processor architecture."""

    cuda: str = ""
    """Empty: a CPU build."""
    cuda_pin: str = ""
    tag: str
    glibc: str
    """Lowest glibc that the wheel's tag promises."""
    pythons: tuple[str, ...]
    triton: str = ""
    """PEP 440 range, or empty when none is required."""
    triton_until_python_311: str = ""
    """The pin that holds for Python 3.11 and older only."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Library to requirement: cudnn: nvidia-cudnn-cu13==9.19.0.56."""
    wheel_mb: float | None = None

    def pinned(self, library: str) -> str:
        """The pinned version of a library, without a trailing '.*'; empty when it is not pinned exactly."""
        return self.pins.get(library, "").partition("==")[2].removesuffix(".*")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchRelease:
    """One torch release."""

    version: str
    released: str
    requires_python: str
    x86_64: TorchWheel | None = None
    aarch64: TorchWheel | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    basis: Basis

    def wheel(self, architecture: str) -> TorchWheel | None:
        """The default wheel for x86_64 or aarch64."""
        return {"x86_64": self.x86_64, "aarch64": self.aarch64}.get(architecture)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchArches:
    """GPU capabilities that the official binaries of a torch minor and CUDA version carry code for."""

    torch: str
    """major.minor."""
    cuda: str
    capabilities: tuple[str, ...]
    ptx: tuple[str, ...] = ()
    """Capabilities for which PTX is carried as well."""
    basis: Basis

    def targets(self) -> tuple[str, ...]:
        """As torch.cuda.get_arch_list() prints them: sm_90, compute_120."""
        numbers = [f"sm_{item.replace('.', '')}" for item in self.capabilities]
        return (*numbers, *(f"compute_{item.replace('.', '')}" for item in self.ptx))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Torch:
    """torch releases, what their wheels pin, and which GPUs the binaries serve."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    releases: tuple[TorchRelease, ...]
    binary_arches: tuple[TorchArches, ...]
    index_url: str = ""
    """Address of the wheel indexes, to be filled with the tag cu130."""

    def release(self, version: str) -> TorchRelease | None:
        """The row of a version; a local part ('+cu130') does not matter."""
        public = version.partition("+")[0]
        return next((row for row in self.releases if row.version == public), None)

    def default_wheel(self, version: str, architecture: str) -> TorchWheel | None:
        """The default wheel of a release."""
        row = self.release(version)
        return row.wheel(architecture) if row else None

    def arches(self, version: str, cuda: CudaVersion) -> TorchArches | None:
        """The capabilities of the official binaries of that torch and CUDA."""
        minor = ".".join(version.partition("+")[0].split(".")[:2])
        return next((row for row in self.binary_arches if row.torch == minor and CudaVersion.parse(row.cuda) == cuda), None)


# --- host-compilers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompilerLimit:
    """Host compilers that nvcc of a range of CUDA versions accepts; empty: not stated."""

    first_cuda: str
    """major.minor, or with the third number where the limit changed inside a minor; empty: from the beginning."""
    last_cuda: str
    gcc_min: str = ""
    gcc_max: str = ""
    clang_min: str = ""
    clang_max: str = ""
    cpu_architecture: str = ""
    """Empty: any."""
    note: str = ""
    basis: Basis

    def covers(self, cuda: LibraryVersion) -> bool:
        """Whether the range holds this CUDA version, compared as far as its ends are written."""
        first, last = LibraryVersion.parse(self.first_cuda), LibraryVersion.parse(self.last_cuda)
        if first is not None and cuda.numbers[: len(first.numbers)] < first.numbers:
            return False
        return last is None or cuda.numbers[: len(last.numbers)] <= last.numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WheelTag:
    """A wheel platform tag and the glibc it promises to need."""

    tag: str
    glibc: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCompilers:
    """Host compilers of nvcc and the glibc of wheels."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    limits: tuple[CompilerLimit, ...]
    minimums: tuple[CompilerLimit, ...]
    wheel_tags: tuple[WheelTag, ...]
    facts: tuple[Fact, ...] = ()

    def limit(self, cuda: str, cpu_architecture: str = "") -> CompilerLimit | None:
        """The limits of a CUDA version ('12.8' or '12.8.1'); for aarch64 clang has its own rows, named by the second argument."""
        version = LibraryVersion.parse(cuda)
        rows = [row for row in self.limits if version is not None and row.covers(version)]
        return next((row for row in rows if row.cpu_architecture == cpu_architecture), None)

    def minimum(self, cuda: str) -> CompilerLimit | None:
        """The lowest supported compilers of a CUDA version."""
        version = LibraryVersion.parse(cuda)
        return next((row for row in self.minimums if version is not None and row.covers(version)), None)

    def glibc(self, tag: str) -> LibraryVersion | None:
        """The glibc that a tag asks for; manylinux_2_28 says it itself."""
        row = next((row for row in self.wheel_tags if row.tag == tag), None)
        found = re.fullmatch(r"manylinux_(\d+)_(\d+)(?:_\w+)?", tag)
        return LibraryVersion.parse(row.glibc if row else f"{found[1]}.{found[2]}" if found else "")


# --- error-codes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorCode:
    """One error code of the CUDA runtime, NVML or NCCL."""

    code: int
    name: str
    meaning: str
    environment_related: bool | None = None
    """Whether the environment rather than the program is at fault."""
    likely_causes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    """Hints in a few words (derived)."""
    since: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorText:
    """An error known by its text."""

    text: str
    meaning: str
    remedies: tuple[str, ...] = ()
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class XidCode:
    """One Xid and what NVIDIA's catalogue says to do."""

    code: int
    bucket: str
    """Immediate action: RESET_GPU, RESTART_APP, CONTACT_SUPPORT …"""
    meaning: str = ""
    next_step: str = ""
    """Investigatory action, where the catalogue names one."""
    nvml_code: int | None = None
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class XidBucket:
    """What a bucket of the Xid catalogue asks for."""

    bucket: str
    action: str
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorCodes:
    """Error codes and what they mean on a node."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    cuda: tuple[ErrorCode, ...]
    nvml: tuple[ErrorCode, ...]
    nccl: tuple[ErrorCode, ...]
    container: tuple[ErrorText, ...]
    xids: tuple[XidCode, ...]
    xid_buckets: tuple[XidBucket, ...]
    recovery_actions: tuple[ErrorCode, ...] = ()

    def cuda_error(self, code: int) -> ErrorCode | None:
        """The CUDA runtime error of that number."""
        return _by_code(self.cuda, code)

    def xid(self, code: int) -> XidCode | None:
        """The Xid of that number."""
        return next((row for row in self.xids if row.code == code), None)

    def xid_bucket(self, name: str) -> XidBucket | None:
        """The bucket of that name."""
        return next((row for row in self.xid_buckets if row.bucket == name), None)

    def recovery_action(self, code: int) -> ErrorCode | None:
        """The NVML recovery action of that number."""
        return _by_code(self.recovery_actions, code)


# --- env-vars ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variable:
    """An environment variable that matters, and how it breaks things."""

    name: str
    group: str
    """cuda, build, loader, container, framework or nccl."""
    effect: str
    breaks_when: tuple[str, ...] = ()
    default: str = ""
    since: str = ""
    renamed_to: str = ""
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueRule:
    """What is allowed or harmful as the value of a variable."""

    name: str
    problem: str
    """disables-fast-path, slows, invalid-value, risky, deprecated or hides."""
    values: tuple[str, ...] = ()
    """The rule holds for exactly these values, compared in lower case."""
    unless: str = ""
    """The rule holds for every value that this pattern (whole value) does not match."""
    pattern: str = ""
    """The rule holds for every value that this pattern (whole value) matches."""
    loses: str = ""
    """What is lost: p2p, nvlink-sharp, rdma, gpudirect-rdma, shared-memory, pxn, lazy-loading …"""
    since_nccl: str = ""
    until_nccl: str = ""
    """First NCCL release for which the rule no longer holds."""
    text: str
    basis: Basis

    def holds_for(self, value: str) -> bool:
        """Whether this value is what the rule speaks of."""
        if self.values:
            return value.strip().lower() in self.values
        if self.unless:
            return re.fullmatch(self.unless, value) is None
        return bool(self.pattern) and re.fullmatch(self.pattern, value) is not None

    def holds_with(self, nccl: LibraryVersion | None) -> bool | None:
        """Whether the rule speaks of this NCCL release; None when it depends on the release and that is not known."""
        since, until = LibraryVersion.parse(self.since_nccl), LibraryVersion.parse(self.until_nccl)
        if since is None and until is None:
            return True
        if nccl is None:
            return None
        return (since is None or nccl >= since) and (until is None or nccl < until)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclVariable:
    """A variable of the NCCL user guide."""

    name: str
    guide_class: str
    """system, or debugging: should not stay set in production."""
    since: str = ""
    deprecated_in: str = ""
    former_name: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnvVars:
    """Environment variables of the stack."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    variables: tuple[Variable, ...]
    rules: tuple[ValueRule, ...]
    nccl: tuple[NcclVariable, ...]

    def variable(self, name: str) -> Variable | None:
        """The row of a name."""
        return next((row for row in self.variables if row.name == name), None)

    def rules_for(self, name: str, value: str) -> tuple[ValueRule, ...]:
        """The rules that speak of this variable with this value (look at `holds_with` as well)."""
        return tuple(row for row in self.rules if row.name == name and row.holds_for(value))


# --- companions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompanionRelease:
    """A release of a package that depends on torch or on a kernel library, and what its metadata asks for."""

    version: str
    released: str = ""
    requires_python: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Package (normalised name) to PEP 440 range; empty: any version."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Processor architecture to wheel tag; none: source only."""
    pythons: tuple[str, ...] = ()
    """Python tags of its wheels (cp312, cp38-abi3); empty: any Python that `requires_python` allows."""
    yanked: bool = False
    basis: Basis

    def accepts(self, package: str, version: str) -> bool | None:
        """Whether its metadata accepts that version of a package (local part ignored); None when it says nothing."""
        wanted = self.requires.get(package)
        if wanted is None:
            return None
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
        from packaging.version import InvalidVersion, Version

        try:
            return SpecifierSet(wanted).contains(Version(version.partition("+")[0]), prereleases=True)
        except (InvalidSpecifier, InvalidVersion):
            return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Companion:
    """A package of the stack with its releases, newest first."""

    newest: str
    note: str = ""
    imports: str = ""
    """Import names, and other packages that share the directory."""
    releases: tuple[CompanionRelease, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchPair:
    """Which torchvision and torchaudio belong to a torch release."""

    torch: str
    torchvision: str = ""
    torchaudio: str = ""
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Companions:
    """Engines, kernel packages and torch's companions: who asks for which version of whom."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    packages: Mapping[str, Companion]
    torch_pairs: tuple[TorchPair, ...]

    def package(self, name: str) -> Companion | None:
        """The package of a normalised name."""
        return self.packages.get(name)

    def release(self, name: str, version: str) -> CompanionRelease | None:
        """The release of a package; a local part does not matter."""
        package, public = self.packages.get(name), version.partition("+")[0]
        return next((row for row in package.releases if row.version == public), None) if package else None

    def pair(self, torch: str) -> TorchPair | None:
        """torchvision and torchaudio of a torch release."""
        public = torch.partition("+")[0]
        return next((row for row in self.torch_pairs if row.torch == public), None)


# --- nvidia-wheels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WheelRelease:
    version: str
    released: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvidiaWheel:
    """A wheel that carries a CUDA library."""

    family: str
    cuda_major: int | None = None
    newest: str
    libraries: tuple[str, ...] = ()
    """Paths below site-packages."""
    wheel_mb: float | None = None
    releases: tuple[WheelRelease, ...] = ()
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolkitWheels:
    """The component versions that one release of the cuda-toolkit meta-package pins."""

    version: str
    components: Mapping[str, str]
    """Package to version."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvidiaWheels:
    """NVIDIA's wheels: which package carries which library, and the versions published."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    packages: Mapping[str, NvidiaWheel]
    toolkits: tuple[ToolkitWheels, ...]

    def package(self, name: str) -> NvidiaWheel | None:
        """The wheel of a normalised name."""
        return self.packages.get(name)

    def siblings(self, name: str) -> tuple[str, ...]:
        """Other wheels that carry the same library files (another CUDA major)."""
        mine = self.packages.get(name)
        if mine is None:
            return ()
        return tuple(other for other, row in self.packages.items() if other != name and row.family == mine.family)

    def toolkit(self, version: str) -> ToolkitWheels | None:
        """The component versions of a toolkit release."""
        return next((row for row in self.toolkits if row.version == version), None)


# --- shared lookups ---------------------------------------------------------------------------------------------------


def _by_code(rows: Iterable[ErrorCode], code: int) -> ErrorCode | None:
    return next((row for row in rows if row.code == code), None)


class _HasName(Protocol):
    @property
    def name_regex(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def _by_name(rows: Iterable[_Named], name: str) -> _Named | None:
    bare = " ".join(name.split()).removeprefix("NVIDIA ").partition(" MIG ")[0]
    return next((row for row in rows if re.fullmatch(row.name_regex, bare)), None)


# --- system-needs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SystemNeed:
    """How much of a resource the stack needs, and what happens below it."""

    resource: str
    """shared-memory, free-shared-memory, locked-memory, free-space (bytes), open-files, free-inodes (counts), used-percent."""
    amount: int
    directory: str = ""
    """Purpose of the directory that it speaks of; empty: every directory."""
    gpus_from: int = 1
    """The need holds from that many GPUs on."""
    package: str = ""
    """The need holds where this package is installed; empty: always."""
    severity: str
    """What a check makes of it: error, warning or info."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VersionNeed:
    """A release from which on something holds."""

    id: str
    version: str
    driver_cuda: str = ""
    """CUDA version of the driver that is needed as well."""
    variable: str = ""
    """The environment variable that switches it off when it is 0."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CacheUse:
    """A directory that packages write to, and what happens when they cannot."""

    directory: str
    """Its purpose, as in the section directories."""
    packages: tuple[str, ...] = ()
    """It matters where one of these is installed; empty: always."""
    loads_code: bool = False
    """Compiled code is loaded from it, so that a mount with noexec breaks it."""
    variable: str
    """The environment variable that moves it."""
    severity: str
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuntimeCompiler:
    """A package that compiles on the node where it runs, and what it needs for that."""

    package: str
    needs: tuple[str, ...]
    """c-compiler, python-headers, nvcc."""
    least_nvcc: str = ""
    """CUDA release below which its compiler check fails."""
    spared_by_variable: str = ""
    """NAME=value in the environment that makes nvcc unnecessary."""
    spared_by_package: str = ""
    """Package whose ready-made kernels make nvcc mostly unnecessary."""
    severity: str
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SystemNeeds:
    """What the stack needs of the operating system and of the toolchain."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    needs: tuple[SystemNeed, ...]
    versions: tuple[VersionNeed, ...]
    caches: tuple[CacheUse, ...]
    runtime_compilers: tuple[RuntimeCompiler, ...]

    def of(self, resource: str, gpus: int) -> tuple[SystemNeed, ...]:
        """The needs for a resource on a node with that many GPUs."""
        return tuple(row for row in self.needs if row.resource == resource and gpus >= row.gpus_from)

    def version(self, id: str) -> VersionNeed:
        """The row of an id; KeyError when there is none."""
        for row in self.versions:
            if row.id == id:
                return row
        raise KeyError(id)

    def cache(self, directory: str) -> CacheUse | None:
        """The row of a directory's purpose."""
        return next((row for row in self.caches if row.directory == directory), None)

    def compile_here(self, packages: Iterable[str], tool: str) -> tuple[RuntimeCompiler, ...]:
        """Those of the installed packages that need this tool when they run, the worst first."""
        installed = set(packages)
        order = ("error", "warning", "info")
        rows = [row for row in self.runtime_compilers if row.package in installed and tool in row.needs]
        return tuple(sorted(rows, key=lambda row: order.index(row.severity)))


# --- health-limits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HealthLimit:
    """From which value on (for shares: below which) a reading counts, and how grave it is."""

    id: str
    amount: float
    severity: str
    """What a check makes of it: error, warning or info."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClockReason:
    """A reason that holds the clocks of a GPU down, as facts name it."""

    reason: str
    severity: str = ""
    """Empty: no fault."""
    thermal: bool = False
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecoverySeverity:
    """How grave a recovery action of NVML is; error-codes says what it means."""

    code: int
    severity: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class XidSeverity:
    """How grave the Xids of a bucket are, and the case of their remedies; error-codes says which code is in which bucket."""

    bucket: str
    severity: str = ""
    """Empty: no fault; info: the program's, not the node's."""
    remedy: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayRate:
    """How many replays a link of a PCIe generation may count."""

    generation: int
    per_lane_per_minute: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipsetBridge:
    """How a PCI bridge that belongs to a chipset, not to the processor, is recognised."""

    text: str
    vendor_id: str
    device_regex: str = ""
    """Whole device id; empty: any."""
    address_regex: str = ""
    """Whole PCI address; empty: any."""
    basis: Basis

    def describes(self, vendor_id: str, device_id: str, address: str) -> bool:
        """Whether a bridge is one of these."""
        fits_device = not self.device_regex or re.fullmatch(self.device_regex, device_id) is not None
        fits_address = not self.address_regex or re.fullmatch(self.address_regex, address) is not None
        return vendor_id == self.vendor_id and fits_device and fits_address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HealthLimits:
    """From which value on readings of GPUs, links and fabric count, and how grave they are."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    limits: tuple[HealthLimit, ...]
    clock_reasons: tuple[ClockReason, ...]
    recovery_actions: tuple[RecoverySeverity, ...]
    xid_buckets: tuple[XidSeverity, ...]
    pcie_replays: tuple[ReplayRate, ...]
    chipset_bridges: tuple[ChipsetBridge, ...]

    def limit(self, id: str) -> HealthLimit:
        """The row of an id; KeyError when there is none."""
        for row in self.limits:
            if row.id == id:
                return row
        raise KeyError(id)

    def clock_reason(self, reason: str) -> ClockReason | None:
        """The row of a reason."""
        return next((row for row in self.clock_reasons if row.reason == reason), None)

    def recovery_action(self, code: int) -> RecoverySeverity | None:
        """The row of an action's number."""
        return next((row for row in self.recovery_actions if row.code == code), None)

    def xid_bucket(self, bucket: str) -> XidSeverity | None:
        """The row of a bucket."""
        return next((row for row in self.xid_buckets if row.bucket == bucket), None)

    def replay_rate(self, generation: int) -> ReplayRate | None:
        """The row of a PCIe generation; one newer than all rows is judged by the newest row."""
        rows = sorted((row for row in self.pcie_replays if row.generation <= generation), key=lambda row: row.generation)
        return rows[-1] if rows else None

    def chipset_bridge(self, vendor_id: str, device_id: str, address: str) -> ChipsetBridge | None:
        """The row that describes a bridge."""
        return next((row for row in self.chipset_bridges if row.describes(vendor_id, device_id, address)), None)


# --- smoke-thresholds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmokeLimit:
    """When one number of a smoke test is right or fast enough."""

    id: str
    test: str
    path: str = ""
    """The implementation it is about; empty: any."""
    note: Mapping[str, str] = field(default_factory=dict)
    """Notes that the result must carry: {generation: FA3}."""
    value: str
    """Name of the number."""
    good: float
    """Up to here (or from here on, where large values are wanted) all is well."""
    bad: float
    """Beyond this it fails; between the two is a warning."""
    unit: str = ""
    of: str = ""
    """A peak of matrices/gpu-limits, `pcie` or `nvlink` (of the pair): then good and bad are shares of it."""
    measured_on: tuple[str, ...] = ()
    """Products on which such a share was measured: only there is it an error."""
    see: str = ""
    """The check whose remedy is the answer."""
    text: str
    basis: Basis

    @property
    def wants_small(self) -> bool:
        """Whether small values are good."""
        return self.good <= self.bad

    def is_good(self, amount: float) -> bool:
        """Whether all is well."""
        return amount <= self.good if self.wants_small else amount >= self.good

    def is_bad(self, amount: float) -> bool:
        """Whether it fails."""
        return amount > self.bad if self.wants_small else amount < self.bad


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmokeCause:
    """What a text means that a failed smoke test said."""

    id: str
    pattern: str
    check: str = ""
    """The check that knows more about it."""
    refusal: bool = False
    """Whether it is a failure also where an implementation merely refused."""
    text: str
    example: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareOfRate:
    """How much of another rate is expected: of that of good nodes, or of the same GPU alone."""

    share: float
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmokeThresholds:
    """Limits for the numbers of smoke tests, and the causes that their texts name."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    slowing_clock_reasons: tuple[str, ...]
    """Clock event reasons under which a low rate says nothing about the GPU itself."""
    learned: ShareOfRate
    """Of what good nodes reached."""
    together: ShareOfRate
    """Of what a GPU copies alone, when all copy at once."""
    limits: tuple[SmokeLimit, ...]
    causes: tuple[SmokeCause, ...]

    def limits_for(self, test: str, path: str, notes: Mapping[str, str]) -> tuple[SmokeLimit, ...]:
        """The limits of a result."""
        return tuple(
            row
            for row in self.limits
            if row.test == test and row.path in ("", path) and all(notes.get(name) == text for name, text in row.note.items())
        )

    def cause_of(self, text: str) -> SmokeCause | None:
        """The first known cause in a text."""
        return next((row for row in self.causes if re.search(row.pattern, text)), None)


# --- log-signatures ---------------------------------------------------------------------------------------------------


class LogRole(enum.Enum):
    """What a line is in the story that a log tells."""

    ERROR = "error"
    """It says what went wrong: its readings are findings."""
    SYMPTOM = "symptom"
    """Something went wrong, but the line alone does not say why: several causes fit."""
    CONSEQUENCE = "consequence"
    """It follows from an error that stands elsewhere; never a finding."""
    CLUE = "clue"
    """A fact that other lines are read by; no fault by itself, so each of its readings needs other lines."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogReading:
    """What a line proves: a finding of a check.

    Texts are templates: `{name}` is a capture of the line or of the lines beside it, or a known fact; a part in square brackets is left out
    when a name in it is not known.
    """

    check: str
    beside: tuple[str, ...] = ()
    """Only when lines of these signatures are there too, or these names are known (`=name`)."""
    unless: tuple[str, ...] = ()
    """Not when one of these is there."""
    cases: tuple[str, ...] = ()
    """Of the check's remedies; of several cases the first remedy each."""
    fill: Mapping[str, str] = field(default_factory=dict)
    """Templates for the placeholders of the remedies."""
    severity: str = "error"
    subject: str
    summary: str
    cause: str = ""
    expected: str = ""
    advice: str = ""
    """A remedy in prose that belongs in front of the rows of the check."""
    disruption: str = "restart_process"
    """The worst that following the advice brings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogHypothesis:
    """A cause that fits a line, and what would tell it from the others."""

    check: str
    text: str
    settle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogSignature:
    """A kind of line that software prints."""

    id: str
    role: LogRole
    literals: tuple[str, ...]
    """Whole words, one of which stands in every such line: lines are looked at only when they hold one."""
    pattern: str
    readings: tuple[LogReading, ...] = ()
    """The first whose conditions hold is taken."""
    suggests: tuple[LogHypothesis, ...] = ()
    """Causes that fit, the likeliest first."""
    yields: Mapping[str, str] = field(default_factory=dict)
    """Facts that the line states: dotted path in the snapshot and template of the value."""
    example: str
    also: tuple[str, ...] = ()
    """Other signatures that the example matches too."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogSignatures:
    """What lines of logs mean."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    signatures: tuple[LogSignature, ...]

    def signature(self, id: str) -> LogSignature | None:
        """The row of an id."""
        return next((row for row in self.signatures if row.id == id), None)


_OPTIONAL_PART = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template of log-signatures with its names filled; a part in square brackets goes when a name in it has no value."""

    def part(found: re.Match[str]) -> str:
        return found[1] if all(values.get(name) for name in _NAME.findall(found[1])) else ""

    return _NAME.sub(lambda found: values.get(found[1], ""), _OPTIONAL_PART.sub(part, template))


def names_in(template: str, *, required: bool) -> frozenset[str]:
    """The names of a template: those that must be known, or all."""
    return frozenset(_NAME.findall(_OPTIONAL_PART.sub("", template) if required else template))
