"""What can be chosen on a node: every release as a candidate, and what each asks for as requirements on others and on the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from dsdoctor.advise.node import Node
from dsdoctor.rows import (
    Companion,
    CompanionRelease,
    Companions,
    CudaToolkits,
    DriverBranches,
    ForwardCompat,
    Gpus,
    Torch,
    TorchArches,
    TorchRelease,
    TorchWheel,
)
from dsdoctor.rows_needs import PackageNeed, StackNeeds
from dsdoctor.versions import CudaVersion, DriverVersion, GpuTarget, LibraryVersion

FACTS_OF_NODE = ("gpu", "driver", "architecture", "glibc", "python")
PAIRED = ("torchvision", "torchaudio")
ENGINES = ("vllm", "sglang")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The matrices that a search reads."""

    torch: Torch
    companions: Companions
    cuda_toolkits: CudaToolkits
    driver_branches: DriverBranches
    forward_compat: ForwardCompat
    gpus: Gpus
    needs: StackNeeds

    @staticmethod
    def of(matrix: Callable[[str], Any]) -> Shelf:
        """The shelf from `Knowledge.matrix` or anything like it."""
        return Shelf(
            torch=matrix("torch"), companions=matrix("companions"), cuda_toolkits=matrix("cuda-toolkits"),
            driver_branches=matrix("driver-branches"), forward_compat=matrix("forward-compat"), gpus=matrix("gpus"),
            needs=matrix("stack-needs"),
        )  # fmt: skip

    @property
    def seen(self) -> str:
        """The date of the package knowledge."""
        return max(self.torch.seen, self.companions.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Something that a choice rests on, and who says so."""

    text: str
    kind: str
    """native, newer-driver, minor-version, forward-compat, unknown-driver, gpu-code, ptx, wheel, pins, need."""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Requirement:
    """A requirement on a package or on a fact of the node."""

    name: str
    text: str
    """What it asks, as a sentence without a full stop."""
    accepts: Callable[[Candidate], bool]
    range: str = ""
    by_user: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate:
    """One thing that can be chosen: a release of a package, or a fact of the node."""

    name: str
    version: str
    """Public version; empty: one that this knowledge does not list."""
    unlisted: str = ""
    """'older' or 'any': not in this knowledge, so that its own requirements are not known."""
    cuda: CudaVersion | None = None
    """Of a torch build."""
    index: str = ""
    """Wheel index tag of a torch build that is not the default wheel: cu126."""
    requires: tuple[Requirement, ...] = ()
    grounds: tuple[Ground, ...] = ()
    nccl: str = ""
    cudnn: str = ""
    source_only: bool = False

    def __repr__(self) -> str:
        return f"{self.name} {self.version or self.unlisted}{f'+{self.cuda.tag}' if self.cuda else ''}"


@lru_cache(maxsize=4096)
def version_of(text: str) -> Version | None:
    """A PEP 440 version, or None."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@lru_cache(maxsize=2048)
def range_of(text: str) -> SpecifierSet:
    """A PEP 440 range; what is none accepts everything."""
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return SpecifierSet()


@lru_cache(maxsize=32768)
def within(version: str, wanted: str) -> bool:
    """Whether a version lies in a range."""
    parsed = version_of(version)
    return parsed is None or range_of(wanted).contains(parsed, prereleases=True)


@lru_cache(maxsize=8192)
def some_version_in(ranges: frozenset[str], below: str = "") -> bool:
    """Whether any version at all lies in all ranges (and below another), listed or not: tried at and just above every bound."""
    bounds = {part.version.removesuffix(".*") for text in ranges for part in range_of(text)}
    limit = version_of(below) if below else None
    for text in ("0", *bounds, *(f"{bound}.0.1" for bound in bounds if version_of(f"{bound}.0.1"))):
        point = version_of(text)
        if (
            point is not None
            and (limit is None or point < limit)
            and all(range_of(wanted).contains(point, prereleases=True) for wanted in ranges)
        ):
            return True
    return False


def python_tag_fits(python: str, tags: Iterable[str]) -> bool:
    """Whether a wheel with one of these Python tags can be installed: cp312, cp38-abi3, py3-none."""
    threaded, minor = python.endswith("t"), int(python.rstrip("t").partition(".")[2])
    for tag in tags:
        if tag.startswith("py3"):
            return True
        stable = tag.endswith("-abi3")
        digits = tag.removesuffix("-abi3").removeprefix("cp3")
        if stable and not threaded and minor >= int(digits):
            return True
        if not stable and digits == f"{minor}{'t' if threaded else ''}":
            return True
    return False


@dataclass(slots=True)
class Catalogue:
    """Everything that can be chosen on one node."""

    shelf: Shelf
    node: Node
    wanted: frozenset[str] = frozenset()
    """Packages that the user asks for: only their needs of GPU and CUDA count."""
    _listed: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    _unlisted: dict[tuple[str, str], Candidate] = field(default_factory=dict)
    _together: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    _refusals: dict[int, Requirement | None] = field(default_factory=dict)
    _spoken_of: Counter[str] = field(default_factory=Counter)
    """How many packages name a range of a package; an engine that is not wanted does not count."""

    @property
    def architecture(self) -> str:
        """The processor architecture, assumed where none is known."""
        return self.node.architecture or "x86_64"

    def any_meets(self, one: Requirement, other: Requirement) -> bool:
        """Whether any candidate meets two requirements of one name; remembered by their ranges."""
        key = (one.name, one.range, other.range)
        if key not in self._together:
            self._together[key] = bool(self.matching(one.name, [one, other]))
        return self._together[key]

    def refusal(self, candidate: Candidate) -> Requirement | None:
        """What the node refuses of a candidate, or of every torch that it allows; None where only a search can tell."""
        key = id(candidate)
        if key not in self._refusals:
            self._refusals[key] = self._refusal(candidate)
        return self._refusals[key]

    def _refusal(self, candidate: Candidate) -> Requirement | None:
        for part in candidate.requires:
            if part.name in FACTS_OF_NODE and not any(part.accepts(fact) for fact in self.listed(part.name)):
                return part
        on_torch = [part for part in candidate.requires if part.name == "torch"]
        builds = [build for build in self.listed("torch") if all(part.accepts(build) for part in on_torch)] if on_torch else []
        refusals = [self.refusal(build) for build in builds]
        return refusals[0] if refusals and None not in refusals else None

    def matching(self, name: str, requirements: Sequence[Requirement]) -> list[Candidate]:
        """The candidates of a name that meet all requirements, the best first."""
        listed = self.listed(name)
        found = [item for item in listed if all(part.accepts(item) for part in requirements)]
        if name in FACTS_OF_NODE or name in ("torch", "cuda") or self.shelf.needs.built_from_source(name):
            return found
        return [*found, *self._not_listed(name, listed, requirements)]

    def _not_listed(self, name: str, listed: Sequence[Candidate], requirements: Sequence[Requirement]) -> list[Candidate]:
        """Releases that requirements allow but that this knowledge does not list: pins name them, ranges leave them open."""
        ranges = [part.range for part in requirements]
        pinned = {part.version for text in ranges for part in range_of(text) if part.operator == "==" and not part.version.endswith(".*")}
        known = {item.version for item in listed}
        if pinned:
            newest = listed[0].version if listed else ""
            return [
                self._remembered(name, version, "")
                for version in sorted(pinned - known)
                if all(within(version, text) for text in ranges) and not (newest and within(version, f">{newest}"))
            ]
        if all(part.by_user for part in requirements) or not some_version_in(frozenset(ranges), listed[-1].version if listed else ""):
            return []
        return [self._remembered(name, "", "older" if listed else "any")]

    def _remembered(self, name: str, version: str, unlisted: str) -> Candidate:
        key = (name, version or unlisted)
        if key not in self._unlisted:
            self._unlisted[key] = Candidate(name=name, version=version, unlisted=unlisted or "pinned")
        return self._unlisted[key]

    def listed(self, name: str) -> tuple[Candidate, ...]:
        """The candidates that this knowledge lists for a name, the best first."""
        if name not in self._listed:
            self._listed[name] = tuple(self._made(name))
        return self._listed[name]

    def _made(self, name: str) -> Iterable[Candidate]:
        if name == "python":
            return self._pythons()
        if name in FACTS_OF_NODE:
            return [Candidate(name=name, version="")]
        if name == "torch":
            return self._torch_builds()
        if name == "cuda":
            found = sorted({build.cuda for build in self.listed("torch") if build.cuda}, reverse=True)
            return [Candidate(name="cuda", version=str(cuda)) for cuda in found]
        if name in PAIRED:
            return self._paired(name)
        if self.shelf.needs.built_from_source(name):
            return self._from_source(name)
        package = self.shelf.companions.package(name)
        return [self._release(name, package, row) for row in package.releases if not row.yanked] if package else []

    # --- facts of the node

    def _pythons(self) -> list[Candidate]:
        if self.node.python:
            return [Candidate(name="python", version=self.node.python)]
        usual = self.shelf.needs.usual_python
        tags = {tag for row in self.shelf.torch.releases for wheel in (row.x86_64, row.aarch64) if wheel for tag in wheel.pythons}
        minors = sorted((int(tag[3:]) for tag in tags if not tag.endswith("t")), reverse=True)
        return [Candidate(name="python", version=text) for text in dict.fromkeys([usual, *(f"3.{minor}" for minor in minors)])]

    def _python(self, owner: str, wanted: str, tags: Sequence[str]) -> list[Requirement]:
        if not wanted and not tags:
            return []
        text = f"{owner} needs Python {wanted}" if wanted else f"{owner} has wheels for Python {readable_tags(tags)}"
        here = f"; here is {self.node.python}" if self.node.python else ""
        if self.node.python and wanted and within(self.node.python.rstrip("t"), wanted):
            text = f"{owner} has no wheel for Python {self.node.python}, only for {readable_tags(tags)}"
            here = ""

        def accepts(candidate: Candidate) -> bool:
            return within(candidate.version.rstrip("t"), wanted) and (not tags or python_tag_fits(candidate.version, tags))

        if self.node.python and accepts(self.listed("python")[0]):
            return []
        return [Requirement("python", f"{text}{here}", accepts)]

    def _glibc(self, owner: str, label: str) -> list[Requirement]:
        needed = LibraryVersion.parse(glibc_of_tag(label))
        if needed is None:
            return []
        here = self.node.glibc
        return _refused("glibc", here is None or here >= needed, f"{owner} needs glibc {needed} or newer; here is {here}")

    # --- torch

    def _torch_builds(self) -> list[Candidate]:
        default, others = [], []
        for release in self.shelf.torch.releases:
            wheel = release.wheel(self.architecture)
            if wheel is None:
                continue
            cuda = CudaVersion.parse(wheel.cuda)
            default.append(self._torch_build(release, wheel, cuda, ""))
            minor = ".".join(release.version.split(".")[:2])
            tags = [found for row in self.shelf.torch.binary_arches if row.torch == minor and (found := CudaVersion.parse(row.cuda))]
            others += [self._torch_build(release, wheel, other, other.tag) for other in sorted(tags, reverse=True) if other != cuda]
        return [*default, *others]

    def _torch_build(self, release: TorchRelease, wheel: TorchWheel, cuda: CudaVersion | None, index: str) -> Candidate:
        owner = f"torch {release.version}"
        if cuda is None:
            text = f"the default wheel of {owner} for {self.architecture} is a CPU build"
            return Candidate(name="torch", version=release.version, requires=tuple(_refused("architecture", False, text)))
        runs, driver_ground = self.driver_runs(cuda)
        has_code, code_ground = self.code_for_gpu(release.version, cuda)
        supported, gpu_text = self.gpu_and_driver()
        triton = wheel.triton
        if not triton and wheel.triton_until_python_311 and self.node.python and within(self.node.python.rstrip("t"), "<3.12"):
            triton = wheel.triton_until_python_311
        requires = [
            *_refused("gpu", supported, gpu_text),
            *_refused("gpu", has_code, code_ground.text),
            *_refused("driver", runs, driver_ground.text),
            *self._glibc(owner, f"manylinux_{wheel.glibc.replace('.', '_')}"),
            *self._python(owner, release.requires_python, wheel.pythons),
            _package("cuda", f"=={cuda}", f"{owner} is built for CUDA {cuda}"),
            *([_package("triton", triton, f"{owner} asks for triton{triton}")] if triton else []),
        ]
        return Candidate(
            name="torch", version=release.version, cuda=cuda, index=index, requires=tuple(requires),
            grounds=(driver_ground, code_ground, _wheel_ground(release, cuda, index, self.shelf)),
            nccl="" if index else wheel.pinned("nccl"), cudnn="" if index else wheel.pinned("cudnn"),
        )  # fmt: skip

    def driver_runs(self, cuda: CudaVersion) -> tuple[bool, Ground]:
        """Whether programs of a CUDA version start on the driver of the node, and by what rule."""
        driver, shelf = self.node.driver, self.shelf
        floor = shelf.cuda_toolkits.floor(cuda)
        minimum = DriverVersion.parse(floor.min_driver) if floor else None
        if floor is None or minimum is None:
            return False, Ground(text=f"no minimum driver is known for CUDA {cuda}", kind="unknown-driver")
        if driver is None:
            return True, Ground(text=f"CUDA {cuda} needs driver {minimum} or newer", kind="minor-version", sources=floor.basis.sources)
        if shelf.driver_branches.is_developer_beta(driver):
            text = f"driver {driver} is a developer beta: its number does not compare with production drivers, so only a trial tells"
            return True, Ground(text=text, kind="unknown-driver")
        if driver.branch > shelf.driver_branches.newest:
            text = (
                f"driver {driver} is newer than this knowledge (R{shelf.driver_branches.newest}, {shelf.driver_branches.seen}): "
                "newer drivers run what older ones run, unless they drop the GPU"
            )
            return True, Ground(text=text, kind="unknown-driver")
        row = shelf.driver_branches.branch(driver.branch)
        native = row.cuda if row else None
        if native is not None and native >= cuda:
            text = f"driver {driver} provides CUDA {native} itself, and runs CUDA {cuda}"
            return True, Ground(text=text, kind="native", sources=row.native_basis.sources if row else ())
        if driver >= minimum or (driver.is_branch and driver.branch >= floor.min_driver_branch):
            text = (
                f"driver {driver} runs CUDA {cuda} by minor-version compatibility (CUDA {cuda.major} needs {minimum} or newer"
                f"{f'; this driver provides {native}' if native else ''}). Machine code runs; PTX that CUDA {cuda} makes on the node "
                "does not load (error 222)"
            )
            return True, Ground(text=text, kind="minor-version", sources=floor.basis.sources)
        if self.node.forward_compat and (found := self.compat_rule(cuda)):
            return True, found
        return False, Ground(
            text=f"CUDA {cuda.major} needs driver {minimum} or newer; here is {driver}", kind="minor-version", sources=floor.basis.sources
        )

    def compat_rule(self, cuda: CudaVersion) -> Ground | None:
        """That cuda-compat of this CUDA serves the driver and the GPU of the node, where a row says so."""
        shelf, driver = self.shelf, self.node.driver
        rule = shelf.forward_compat.rule(cuda)
        if driver is None or rule is None or self.node.wsl or not shelf.forward_compat.eligible(self.node.product_class):
            return None
        if not shelf.forward_compat.allows(cuda, driver.branch):
            return None
        text = (
            f"forward compatibility: NVIDIA's CUDA {rule.cuda} images accept driver branch R{driver.branch} on data-centre GPUs "
            f"with the package cuda-compat-{cuda.major}-{cuda.minor}"
        )
        return Ground(text=text, kind="forward-compat", sources=rule.basis.sources)

    def gpu_and_driver(self) -> tuple[bool, str]:
        """Whether the driver knows the GPU at all."""
        capability, driver, branches = self.node.capability, self.node.driver, self.shelf.driver_branches
        if capability is None or driver is None:
            return True, ""
        architecture = branches.architecture_of(capability)
        name = self.node.gpu
        last = architecture.last_driver_branch if architecture else None
        if last is not None and driver.branch > last:
            return (
                False,
                f"R{last} is the last driver branch for {architecture.architecture if architecture else ''} ({name}); here is {driver}",
            )
        target = self.shelf.gpus.target(capability.sm)
        first = CudaVersion.parse(architecture.first_cuda if architecture else target.first_cuda if target else "")
        native = branches.native_cuda(driver)
        if first is not None and native is not None and native < first:
            since = next((row.branch for row in branches.branches_for(first)), None)
            return False, f"{name} needs driver branch R{since} or newer (CUDA {first}); {driver} does not know it"
        return True, ""

    def code_for_gpu(self, torch: str, cuda: CudaVersion) -> tuple[bool, Ground]:
        """Whether the official binaries of a torch build carry code for the GPU; a derived answer says so."""
        capability = self.node.capability
        if capability is None:
            return True, Ground(text=f"no GPU is named: torch {torch}+{cuda.tag} may lack code for yours", kind="gpu-code")
        name, row = self.node.gpu, self.shelf.torch.arches(torch, cuda)
        target = self.shelf.gpus.target(capability.sm)
        build = f"torch {torch}+{cuda.tag}"
        if row is None and target is not None and not target.accepted_by(cuda):
            dropped = CudaVersion.parse(target.last_cuda)
            why = (
                f"CUDA {dropped.major} was the last for it"
                if dropped and cuda > dropped
                else f"CUDA {target.first_cuda} is the first for it"
            )
            return False, Ground(
                text=f"CUDA {cuda} cannot compile for {capability.sm} ({name}): {why}", kind="gpu-code", sources=target.basis.sources
            )
        shown = row or self._nearest_list(torch, cuda)
        if shown is None:
            if capability.minor and target is None:
                return True, Ground(text=f"the GPU list of {build} was not read", kind="gpu-code")
            text = f"CUDA {cuda} compiles for {capability.sm}; the GPU list of {build} itself was not read (derived)"
            return True, Ground(text=text, kind="gpu-code", sources=target.basis.sources if target else ())
        by_list = (
            f"the binaries of {build}"
            if row
            else f"the binaries of torch {shown.torch} for CUDA {shown.cuda} (those of {build} were not read: derived)"
        )
        codes = [found for text in shown.targets() if (found := GpuTarget.parse(text))]
        machine = [code for code in codes if not code.is_ptx and code.runs_on(capability)]
        if machine:
            best = max(machine, key=lambda code: code.capability)
            return True, Ground(
                text=f"{by_list} carry {best}, which runs on {name} ({capability})", kind="gpu-code", sources=shown.basis.sources
            )
        ptx = [code for code in codes if code.is_ptx and code.runs_on(capability)]
        native = self.shelf.driver_branches.native_cuda(self.node.driver) if self.node.driver else None
        if ptx and (native is None or native >= cuda):
            text = f"{by_list} carry only PTX ({ptx[0]}) that runs on {name}: it is compiled at the first start and needs a driver of CUDA {cuda} or newer"
            return True, Ground(text=text, kind="ptx", sources=shown.basis.sources)
        if ptx:
            text = f"{by_list} carry only PTX for {name}, which this driver (CUDA {native}) cannot compile: it needs CUDA {cuda}"
            return False, Ground(text=text, kind="ptx", sources=shown.basis.sources)
        return False, Ground(
            text=f"{by_list} carry no code for {capability.sm} ({name})", kind="gpu-code", sources=shown.basis.sources
        )  # fmt: skip

    def _nearest_list(self, torch: str, cuda: CudaVersion) -> TorchArches | None:
        """The list of another torch for the same CUDA, or for the same major when that is newer than all lists."""
        rows = [
            (found, row) for row in self.shelf.torch.binary_arches if (found := CudaVersion.parse(row.cuda)) and found.major == cuda.major
        ]
        same = [row for found, row in rows if found == cuda]
        if same:
            mine = version_of(torch)
            newer = [row for row in same if mine and (other := version_of(row.torch)) and other >= mine]
            return newer[0] if newer else same[-1]
        newest = max(rows, key=lambda pair: pair[0], default=None)
        return newest[1] if newest and cuda > newest[0] else None

    # --- other packages

    def _release(self, name: str, package: Companion, row: CompanionRelease) -> Candidate:
        owner = f"{name} {row.version}"
        requires: list[Requirement] = []
        label = row.tags.get(self.architecture, "")
        if row.tags and not label:
            text = f"{owner} has no wheel for {self.architecture}, only for {' and '.join(row.tags)}"
            requires += _refused("architecture", False, text)
        requires += self._glibc(owner, label)
        requires += self._python(owner, row.requires_python, row.pythons)
        compiled = name in self.shelf.needs.compiled.packages
        for other, wanted in row.requires.items():
            if self._matters(other, wanted):
                requires.append(_package(other, wanted, f"{owner} asks for {other}{wanted}"))
        if compiled:
            requires.append(
                Requirement("torch", f"{owner}: {self.shelf.needs.compiled.text}", lambda candidate: not candidate.index)
            )  # fmt: skip
        requires += self._needs(name, row.version)
        return Candidate(name=name, version=row.version, requires=tuple(requires), source_only=not row.tags)

    def _matters(self, name: str, wanted: str) -> bool:
        """Leave out what can never clash: packages that are not listed, where only one package speaks of them, or in any version."""
        if name == "torch" or name in PAIRED or self.shelf.companions.package(name) is not None:
            return True
        if not self._spoken_of:
            engines = set(ENGINES) - self.wanted
            for package, row in self.shelf.companions.packages.items():
                if package not in engines:
                    self._spoken_of.update({other for release in row.releases for other, range in release.requires.items() if range})
        return bool(wanted) and self._spoken_of[name] > 1

    def _needs(self, name: str, version: str) -> list[Requirement]:
        """What rows of stack-needs ask, where the user wants the package."""
        if name not in self.wanted:
            return []
        return [part for row in self.shelf.needs.of(name) if within(version, row.versions) for part in self._need(name, version, row)]

    def _need(self, name: str, version: str, row: PackageNeed) -> list[Requirement]:
        owner, found = f"{name} {version}", []
        capability = self.node.capability
        if row.targets and capability is not None:
            fits = any(target.runs_on(capability) for target in map(GpuTarget.parse, row.targets) if target)
            found += _refused("gpu", fits, f"{row.text}; here is {self.node.gpu} ({capability})")
        if row.cuda_range:
            found.append(_package("cuda", row.cuda_range, f"{owner} needs CUDA {row.cuda_range}: {row.text}"))
        if row.torch_range:
            found.append(_package("torch", row.torch_range, f"{owner} needs torch {row.torch_range}: {row.text}"))
        if row.nccl:
            needed = LibraryVersion.parse(row.nccl)

            def carries(candidate: Candidate) -> bool:
                carried = LibraryVersion.parse(candidate.nccl)
                return carried is not None and needed is not None and carried >= needed

            found.append(Requirement("torch", f"{row.text}, which torch carries from {self._first_with_nccl(row.nccl)} on", carries))
        return found

    def _first_with_nccl(self, version: str) -> str:
        needed = LibraryVersion.parse(version)
        rows = [row.version for row in self.shelf.torch.releases if row.x86_64 and needed and (
            (carried := LibraryVersion.parse(row.x86_64.pinned("nccl"))) and carried >= needed)]  # fmt: skip
        return rows[-1] if rows else "no release"

    def _from_source(self, name: str) -> list[Candidate]:
        versions = [version for row in self.shelf.needs.built_from_source(name) for version in row.releases]
        return [Candidate(name=name, version=version, requires=tuple(self._needs(name, version)), source_only=True) for version in versions]

    def _paired(self, name: str) -> list[Candidate]:
        """torchvision or torchaudio: the versions that the table of pairs names, each with the torch releases it belongs to."""
        pairs = [(row.torch, getattr(row, name)) for row in self.shelf.companions.torch_pairs if getattr(row, name)]
        versions = dict.fromkeys(part.version for _, wanted in pairs for part in range_of(wanted))
        found = []
        for version in sorted(versions, key=lambda text: version_of(text) or Version("0"), reverse=True):
            torches = [torch for torch, wanted in pairs if within(version, wanted)]
            needed = Requirement(
                "torch", f"{name} {version} belongs to torch {listed_in_words(torches)}",
                lambda candidate, torches=tuple(torches): candidate.version in torches,  # type: ignore[misc]
            )  # fmt: skip
            found.append(Candidate(name=name, version=version, requires=(needed,)))
        return found

    def changed(self, **changes: Any) -> Catalogue:
        """The catalogue of the same wants on a changed node; what does not depend on the change is shared."""
        other = Catalogue(self.shelf, replace(self.node, **changes), self.wanted, _spoken_of=self._spoken_of)
        if not set(changes) - {"driver", "forward_compat"}:
            other._listed = {name: items for name, items in self._listed.items() if name not in ("torch", "cuda", *FACTS_OF_NODE)}
            other._unlisted = self._unlisted
        return other


def _refused(fact: str, holds: bool, text: str) -> list[Requirement]:
    """A requirement that this node does not meet; one that it meets needs no search and is left out."""
    return [] if holds else [Requirement(fact, text, lambda _: False)]


def _package(name: str, wanted: str, text: str) -> Requirement:
    def accepts(candidate: Candidate) -> bool:
        if candidate.unlisted in ("older", "any"):
            return True
        return within(candidate.version, wanted)

    return Requirement(name, text, accepts, wanted)


def wanted_package(name: str, wanted: str, said: str) -> Requirement:
    """The requirement of a user."""
    return replace(_package(name, wanted, f"you ask for {said}"), by_user=True)


def _wheel_ground(release: TorchRelease, cuda: CudaVersion, index: str, shelf: Shelf) -> Ground:
    if not index:
        text = f"torch {release.version} from the public index is built for CUDA {cuda} (read from the wheel)"
        return Ground(text=text, kind="wheel", sources=release.basis.sources)
    row = shelf.torch.arches(release.version, cuda)
    text = (
        f"torch {release.version} for CUDA {cuda} is in PyTorch's release matrix; that it lies in the index {index}, for this processor, "
        "Python and glibc, is derived: that index was not read"
    )
    return Ground(text=text, kind="wheel", sources=row.basis.sources if row else ())


def glibc_of_tag(label: str) -> str:
    """The glibc that a wheel tag promises: manylinux_2_28 is 2.28; a pure wheel needs none."""
    if label == "manylinux1":
        return "2.5"
    if label == "manylinux2010":
        return "2.12"
    if label == "manylinux2014":
        return "2.17"
    return label.removeprefix("manylinux_").replace("_", ".") if label.startswith("manylinux_") else ""


def readable_tags(tags: Sequence[str]) -> str:
    """cp311, cp312, cp313t as 3.11, 3.12, 3.13t; a stable-ABI tag as '3.8 and newer'."""
    words = []
    for tag in tags:
        minor = tag.removesuffix("-abi3").removeprefix("cp3")
        words.append(f"3.{minor}{' and newer' if tag.endswith('-abi3') else ''}" if tag.startswith("cp") else "3")
    return ", ".join(words)


def listed_in_words(items: Sequence[str]) -> str:
    """2.14.0, 2.14.1 or 2.15.0."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
