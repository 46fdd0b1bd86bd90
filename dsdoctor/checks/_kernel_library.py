"""A kernel library (DeepGEMM, DeepEP, FlashMLA) against the node: GPUs, torch and toolkit, by the rows of matrices/kernel-libraries.

The version of a release does not always tell which line of releases it belongs to. Then what every line refuses is a finding, what only some
of them refuse is a doubt, and what the rows do not name is a doubt too: never unsupported from the GPU alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from dsdoctor.checks.gpu._reading import named
from dsdoctor.checks.torch._gpus import serves
from dsdoctor.facts import CudaToolkit, Extension, Gpu, Package, Section, SmokeResult, State, TorchBuild
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.versions import ComputeCapability, CudaVersion, LibraryVersion

if TYPE_CHECKING:
    from dsdoctor.rows_stack import KernelLibraries, LibraryRequirement

Said = Finding | Doubt | NotApplicable
ENGINES = ("vllm", "sglang")
"""They bring copies of these libraries under names of their own."""
BELOW = "Below it, the import or the first call fails."
RAN_ALL_THE_SAME = "Its own GPU test ran on this node all the same; a function that the test does not call may still want it."

V = TypeVar("V", CudaVersion, LibraryVersion)


@dataclass(frozen=True, slots=True)
class Reading(Generic[V]):
    """A version that is here."""

    what: str
    """Of what, in front of a version."""
    version: V | None
    here: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution of a kernel library, and the lines of releases that it may belong to, the newest first."""

    library: str
    package: Package
    lines: tuple[LibraryRequirement, ...]
    targets: tuple[str, ...] = ()
    """GPU targets in the fat binaries of its extensions, where they were read."""
    has_run: bool = False
    """Whether its own GPU test gave numbers on this node."""

    @property
    def name(self) -> str:
        """'DeepGEMM (deep-gemm 2.1.0)'."""
        return f"{self.library} ({self.package.name} {self.package.version})"

    @property
    def evidence(self) -> Evidence:
        """That it is installed."""
        return Evidence(where=f"packages[{self.package.name}].version", value=self.package.version)

    @property
    def sources(self) -> tuple[str, ...]:
        """What the rows rest on."""
        return tuple(dict.fromkeys(source for row in self.lines for source in row.basis.sources))

    @property
    def severity(self) -> Severity:
        """The gravest severity that all rows may carry."""
        return Severity.ERROR if all(row.basis.may_carry_error for row in self.lines) else Severity.WARNING


def installed(
    packages: Sequence[Package],
    library: str,
    matrix: KernelLibraries,
    distributions: Sequence[str],
    extensions: Sequence[Extension] = (),
    smoke: Sequence[SmokeResult] = (),
) -> tuple[Installed, ...]:
    """The distributions of a library that are there."""
    has_run = any(result.test == library.lower() and result.outcome == "ran" for result in smoke)
    return tuple(
        Installed(
            library,
            package,
            tuple(row for row in matrix.requirements if row.may_be(package.name, package.version)),
            tuple(dict.fromkeys(target for part in extensions if part.package == package.name for target in part.gpu_targets)),
            has_run,
        )
        for package in packages
        if package.name in distributions
    )


def not_installed(packages: Sequence[Package], library: str) -> NotApplicable:
    """What to say where the library is not there by itself."""
    engine = next((package.name for package in packages if package.name in ENGINES), "")
    return NotApplicable(reason=f"{library} is not installed" + (f" by itself; {engine} judges the copy that it brings" if engine else ""))


def of_an_unknown_line(found: Installed) -> Doubt:
    """What to say about a release that no row describes."""
    return Doubt(subject=found.name, reason="what this release needs is not known to this version of dsdoctor")


def on_gpus(found: Installed, gpus: Section[tuple[Gpu, ...]], remedies: Remedies, case: str) -> Iterator[Finding | Doubt]:
    """GPUs on which every line of releases refuses to run; what no row names is a doubt."""
    if gpus.state is State.ABSENT:
        return
    kinds = _alike(gpus.value or ())
    if not kinds or not all(ComputeCapability.parse(gpu.compute_capability) for gpu in kinds):
        yield Doubt(
            subject=found.name,
            reason="the compute capability of the GPUs is not known",
            settle="nvidia-smi --query-gpu=name,compute_cap --format=csv",
        )
        return
    if found.targets:
        yield from _by_targets(found, kinds, remedies, case)
        return
    answers = [
        (gpu, [row.serves(capability) for row in found.lines])
        for gpu in kinds
        if (capability := ComputeCapability.parse(gpu.compute_capability))
    ]
    refused = [gpu for gpu, told in answers if all(serves is False for serves in told)]
    unnamed = [gpu for gpu, told in answers if gpu not in refused and not any(told)]
    dropped = [row for _, told in answers if any(told) for row, serves in zip(found.lines, told) if serves is False]
    served = ", ".join(dict.fromkeys(capability for row in found.lines for capability in row.capabilities))
    if unnamed and not refused:
        yield Doubt(
            subject=found.name,
            reason=f"whether it serves {', '.join(_with_capability(gpu) for gpu in unnamed)} is not known; its documents name {served}",
        )
    if dropped:
        yield Doubt(
            subject=found.name,
            reason=f"some of its releases ({dropped[0].line}) do not serve these GPUs, and its version does not tell whether it is one of them",
        )
    if refused:
        yield Finding(
            subject=found.name,
            severity=Severity.INFO,
            summary=f"{found.name} has no kernels for {', '.join(_with_capability(gpu) for gpu in refused)}; they are for compute capability {served}.",
            cause="It does no harm as long as nothing is set to use it. Where it is used, it stops at the first call.",
            evidence=(
                found.evidence,
                *(Evidence(where=f"gpus[{gpu.index}].compute_capability", value=gpu.compute_capability) for gpu in refused),
            ),
            expected=f"compute capability {served}, or another back end of the engine",
            remedies=remedies(case),
            sources=found.sources,
        )


def _by_targets(found: Installed, kinds: Sequence[Gpu], remedies: Remedies, case: str) -> Iterator[Finding]:
    """The installed build says itself which GPUs it has code for, whatever line of releases it belongs to."""
    lacking = [
        gpu for gpu in kinds if (capability := ComputeCapability.parse(gpu.compute_capability)) and not serves(found.targets, capability)
    ]
    if lacking:
        yield Finding(
            subject=found.name,
            severity=Severity.WARNING,
            summary=f"{found.name} has no code for {', '.join(_with_capability(gpu) for gpu in lacking)}; this build is for {' '.join(found.targets)}.",
            cause="It does no harm as long as nothing is set to use it. Where it is used, it stops at the first call."
            + "".join(f" {row.text}" for row in found.lines[:1] if len(found.lines) > 1),
            evidence=(
                found.evidence,
                Evidence(where=f"extensions[{found.package.name}].gpu_targets", value=" ".join(found.targets)),
                *(Evidence(where=f"gpus[{gpu.index}].compute_capability", value=gpu.compute_capability) for gpu in lacking),
            ),
            expected="a build with code for these GPUs, or another back end of the engine",
            remedies=remedies(case),
            sources=found.sources,
            explains=("torch.lacks-gpu-arch",),
            explains_only=(found.package.name,),
        )


def on_torch(found: Installed, torch_build: Section[TorchBuild], remedies: Remedies, case: str) -> Iterator[Finding | Doubt]:
    """A torch that is older than every line of releases wants."""
    if torch_build.value is not None:
        text = torch_build.value.version
        reading = Reading("torch", LibraryVersion.parse(text), f"torch {text}", Evidence(where="torch_build.version", value=text))
        yield from below(found, reading, [LibraryVersion.parse(row.min_torch) for row in found.lines], remedies, case)


def on_toolkit(
    found: Installed, gpus: Section[tuple[Gpu, ...]], cuda_toolkits: Section[tuple[CudaToolkit, ...]], remedies: Remedies, case: str
) -> Iterator[Finding | Doubt]:
    """A toolkit that is older than every line of releases wants for these GPUs."""
    taken = taken_toolkit(cuda_toolkits.value or ())
    capability = next((known for gpu in gpus.value or () if (known := ComputeCapability.parse(gpu.compute_capability))), None)
    if taken is not None and capability is not None:
        text = taken.cuda_version
        evidence = Evidence(where=f"cuda_toolkits[{taken.path}].cuda_version", value=text)
        reading = Reading("a CUDA toolkit of", CudaVersion.parse(text), f"CUDA {text} ({taken.nvcc or taken.path})", evidence)
        yield from below(found, reading, [CudaVersion.parse(row.cuda_for(capability)) for row in found.lines], remedies, case)


def taken_toolkit(toolkits: Sequence[CudaToolkit]) -> CudaToolkit | None:
    """The toolkit that a compilation takes: CUDA_HOME, the nvcc on PATH, /usr/local/cuda."""
    by_home = next((item for item in toolkits if item.is_cuda_home), None)
    by_path = next((item for item in toolkits if item.is_first_on_path), None)
    return by_home or by_path or next((item for item in toolkits if item.path == "/usr/local/cuda"), None)


def below(found: Installed, reading: Reading[V], floors: Sequence[V | None], remedies: Remedies, case: str) -> Iterator[Finding | Doubt]:
    """A finding where a version is below the floor of every line, a doubt where it is below that of some."""
    if reading.version is None:
        return
    version = reading.version
    wanting = [row for row, floor in zip(found.lines, floors) if floor is not None and version < floor]
    if wanting and len(wanting) == len(found.lines):
        least = min(floor for floor in floors if floor is not None)
        yield Finding(
            subject=found.name,
            severity=Severity.INFO if found.has_run else found.severity,
            summary=f"{found.name} {'asks for' if found.has_run else 'needs'} {reading.what} {least} or newer; here is {reading.here}.",
            cause=f"{wanting[-1].text} {RAN_ALL_THE_SAME if found.has_run else BELOW}".strip(),
            evidence=(found.evidence, reading.evidence),
            expected=f"{reading.what} {least} or newer",
            remedies=remedies(case),
            sources=found.sources,
        )
    elif wanting:
        yield Doubt(
            subject=found.name,
            reason=f"{reading.here} is too old for some of its releases ({wanting[0].line}), and its version does not tell whether it is one of them",
        )


def _alike(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """One GPU of each product."""
    return tuple({(gpu.name, gpu.compute_capability): gpu for gpu in reversed(gpus)}.values())


def _with_capability(gpu: Gpu) -> str:
    return f"{gpu.name or named(gpu)} ({gpu.compute_capability})"
