"""An installed package asks for a version of another one that is not the installed one.

What it looks at
    The requirements of the installed packages of this stack (their dist-info), with the markers evaluated for the target's Python and
    processor, against what is installed; for packages whose requirements were not read, the requirements known for their release.

Why it matters
    pip installs the last wish and only prints a line about the rest. vLLM and SGLang pin torch, FlashInfer, Triton kernels and others
    exactly, because their compiled parts fit nothing else. A conflict is no proof of a fault: whether the compiled parts load is judged
    by package.abi-mismatch. Triton, torchvision, torchaudio and cuDNN under torch have checks of their own.

Sources
    Metadata of the installed packages (the same question as `pip check`); metadata of the published packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks.package._requirements import METADATA, Need, accepts, exact, needs_of, target_environment
from dsdoctor.facts import Interpreter, Package, Platform, Section, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Basis, Companions
from dsdoctor.versions import CudaVersion

if TYPE_CHECKING:
    from dsdoctor.advise.for_checks import NodeAdvice

ENGINES = ("vllm", "sglang")
TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
JUDGED_ELSEWHERE = {
    "torch": ("triton", "pytorch-triton", "nvidia-cudnn"),
    "torchvision": ("torch",),
    "torchaudio": ("torch",),
}
"""Requirements (by the beginning of their name) that other checks judge, by the package that asks."""

PYTHON = Interpreter(path="/v/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3", prefix="/v", kind="venv")
X86 = Platform(architecture="x86_64")
VLLM = Package(
    name="vllm",
    version="0.33.0",
    requires=(
        "torch==2.14.0",
        "flashinfer-python==0.7.2.post1",
        "numpy",
        'xformers==0.0.40; platform_system == "Darwin"',
        'ray>=2.48.0; extra == "ray"',
    ),
)


def _here(*packages: Package) -> dict[str, object]:
    return {"packages": packages, "interpreter": PYTHON, "platform": X86}


CASES = (
    Case(
        title="vLLM pins another torch",
        sections=_here(
            VLLM,
            Package(name="torch", version="2.11.0+cu130"),
            Package(name="flashinfer-python", version="0.7.2.post1"),
            Package(name="numpy", version="2.5.2"),
        ),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="torch==2.14.0",
    ),
    Case(
        title="a requirement is not installed at all (pip install --no-deps)",
        sections=_here(VLLM, Package(name="torch", version="2.14.0+cu130"), Package(name="numpy", version="2.5.2")),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="without its requirements",
    ),
    Case(
        title="requirements were not read: those of the release are known",
        sections=_here(Package(name="vllm", version="0.33.0"), Package(name="torch", version="2.11.0+cu130")),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="torch==2.14.0",
    ),
    Case(
        title="a newer NCCL than torch pins",
        sections=_here(
            Package(name="torch", version="2.11.0+cu130", requires=('nvidia-nccl-cu13==2.28.9; platform_system == "Linux"',)),
            Package(name="nvidia-nccl-cu13", version="2.30.7"),
        ),
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2.30.7",
    ),
    Case(
        title="a library beside the kernels",
        sections=_here(
            Package(name="transformers", version="5.19.0", requires=("safetensors>=0.8",)), Package(name="safetensors", version="0.7.0")
        ),
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="all as asked; markers of other systems and extras do not count",
        sections=_here(
            VLLM,
            Package(name="torch", version="2.14.0+cu130"),
            Package(name="flashinfer-python", version="0.7.2.post1"),
            Package(name="numpy", version="2.5.2"),
        ),
        status=Status.PASS,
    ),
    Case(
        title="a marker for Python 3.11 and older on Python 3.12",
        sections=_here(
            Package(name="torch", version="2.11.0", requires=('numpy<2; python_version < "3.12"',)), Package(name="numpy", version="2.5.2")
        ),
        status=Status.PASS,
    ),
    Case(
        title="torchvision under another torch: another check says so",
        sections=_here(Package(name="torchvision", version="0.25.0", requires=("torch==2.10.0",)), Package(name="torch", version="2.11.0")),
        status=Status.PASS,
    ),
    Case(
        title="an engine that nothing is known about",
        sections=_here(Package(name="vllm", version="9.9.0"), Package(name="torch", version="2.11.0")),
        status=Status.UNKNOWN,
        says="vllm 9.9.0",
    ),
    Case(title="the packages are not known", sections={}, status=Status.UNKNOWN, says="packages"),
    Case(
        title="none of the packages that ask for others",
        sections=_here(Package(name="numpy", version="2.5.2")),
        status=Status.NOT_APPLICABLE,
        says="no package of this stack",
    ),
    Case(title="no Python at all", sections={"packages": absent("no site-packages")}, status=Status.NOT_APPLICABLE),
)


@dataclass(frozen=True, slots=True)
class _Conflict:
    need: Need
    installed: Package | None
    severity: Severity
    where: str

    def __str__(self) -> str:
        have = f"installed is {self.installed.version}" if self.installed else "it is not installed"
        return f"{self.need.name}{self.need.specifier} ({have})"


@check("package.pin-conflict", Severity.WARNING, explains=SMOKE_OF_LIBRARIES, settle="pip check", cases=CASES)
def pin_conflict(
    packages: tuple[Package, ...],
    interpreter: Section[Interpreter],
    platform: Section[Platform],
    torch_build: Section[TorchBuild],
    companions_matrix: Companions,
    remedies: Remedies,
    advice: NodeAdvice,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare each package's requirements with what is installed."""
    if not any(package.requires or companions_matrix.release(package.name, package.version) for package in packages):
        yield NotApplicable(reason="no package of this stack is installed that asks for others")
    installed = {package.name: package for package in packages}
    environment = target_environment(interpreter.value, platform.value)
    for package in packages:
        if package.requires:
            needs, where, basis = tuple(needs_of(package, environment)), f"packages[{package.name}].requires", None
        else:
            needs, where, basis = _known_needs(package, companions_matrix)
            if not needs and package.name in ENGINES and basis is None:
                yield Doubt(subject=f"{package.name} {package.version}", reason="what it asks for is neither recorded nor known")
        conflicts = [
            conflict
            for need in needs
            if not need.name.startswith(JUDGED_ELSEWHERE.get(package.name, ()))
            and (conflict := _conflict(need, installed, companions_matrix, where, basis)) is not None
        ]
        if conflicts:
            yield _finding(package, conflicts, basis, interpreter.value, torch_build.value, remedies, advice)


def _known_needs(package: Package, matrix: Companions) -> tuple[tuple[Need, ...], str, Basis | None]:
    """The requirements of a release that the knowledge lists."""
    row = matrix.release(package.name, package.version)
    if row is None:
        return (), "", None
    needs = tuple(Need(name=name, specifier=wanted, text=f"{name}{wanted}") for name, wanted in row.requires.items() if wanted)
    return needs, f"matrices/companions: {package.name} {row.version}", row.basis


def _conflict(need: Need, installed: Mapping[str, Package], matrix: Companions, where: str, basis: Basis | None) -> _Conflict | None:
    have = installed.get(need.name)
    weighs = need.name in TORCH_FAMILY or matrix.package(need.name) is not None or need.name.startswith("nvidia-")
    if have is None:
        # Names of a table may be split or renamed by the time; only what the package itself says is missed.
        return _Conflict(need, None, Severity.WARNING if weighs else Severity.INFO, where) if basis is None else None
    if accepts(need.specifier, have.version) is not False:
        return None
    newer = bool(exact(need.specifier)) and accepts(f">{exact(need.specifier)}", have.version) is True
    mild = not weighs or (need.name.startswith("nvidia-") and newer) or (basis is not None and not basis.may_carry_warning)
    return _Conflict(need, have, Severity.INFO if mild else Severity.WARNING, where)


def _finding(
    package: Package,
    conflicts: Sequence[_Conflict],
    basis: Basis | None,
    interpreter: Interpreter | None,
    build: TorchBuild | None,
    remedies: Remedies,
    advice: NodeAdvice,
) -> Finding:
    ordered = sorted(conflicts, key=lambda conflict: conflict.severity.rank)
    worst = ordered[0].severity
    stray = next((item.installed for item in ordered if item.installed and _is_outside(item.installed, interpreter)), None)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return Finding(
        subject=f"{package.name} {package.version}",
        severity=worst,
        summary=f"{package.name} {package.version} asks for {', '.join(map(str, ordered[:3]))}{more}.",
        cause=_cause(ordered, stray, worst),
        evidence=tuple(Evidence(where=item.where, value=f"{item.need.text}: {item}") for item in ordered[:8]),
        expected="what it asks for: " + ", ".join(f"{item.need.name}{item.need.specifier}" for item in ordered[:3]),
        remedies=_remedies(package, ordered, stray, build, remedies, advice),
        sources=basis.sources if basis else (METADATA,),
    )


def _cause(conflicts: Sequence[_Conflict], stray: Package | None, worst: Severity) -> str:
    if stray:
        return f"{stray.name} comes from {stray.location}, outside the environment."
    if all(item.installed is None for item in conflicts):
        return "It was installed without its requirements (--no-deps), or one of them was removed later."
    if worst is Severity.INFO and any(item.need.name.startswith("nvidia-") for item in conflicts):
        return "It may still run; NVIDIA's libraries keep their interface within a major."
    return "Another package was installed later and changed the version. What is compiled into this one may not fit."


def _is_outside(package: Package, interpreter: Interpreter | None) -> bool:
    """Whether a package comes from a user's folder or PYTHONPATH instead of the environment."""
    if interpreter is None or not interpreter.prefix or not package.location:
        return False
    return (
        not package.location.startswith((interpreter.prefix, interpreter.base_prefix or interpreter.prefix))
        and "/.local/" in package.location
    )


def _remedies(
    package: Package,
    conflicts: Sequence[_Conflict],
    stray: Package | None,
    build: TorchBuild | None,
    remedies: Remedies,
    advice: NodeAdvice,
) -> tuple[Remedy, ...]:
    torch = next((exact(item.need.specifier) for item in conflicts if item.need.name == "torch"), "")
    pinned = advice.torch_build(torch) if torch else None
    installed = CudaVersion.parse(build.cuda or "") if build else None
    tag = pinned.build if pinned else installed.tag if installed else ""
    fill = {"engine": package.name, "version": package.version.partition("+")[0]}
    if build and not torch and all(item.installed is None for item in conflicts):
        keep = build.version.partition("+")[0]
        return (*remedies("missing", **fill, torch_version=keep), *remedies("general", **fill))[:3]
    if torch:
        fill["torch_version"] = torch
    if tag:
        fill["cu"] = tag
    return (*(remedies("user-site")[:1] if stray else ()), *remedies("general", **fill))[:3]
