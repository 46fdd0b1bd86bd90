"""torchvision or torchaudio does not belong to the installed torch.

What it looks at
    The installed torchvision and torchaudio against torch: by their own requirements, else by the pairs that PyTorch published, and by
    the CUDA builds that their versions name (+cu128, +cpu).

Why it matters
    They are compiled against one torch. With another one `import torchvision` ends in "operator torchvision::nms does not exist",
    "undefined symbol", or "Detected that PyTorch and torchvision were compiled with different CUDA major versions", and engines import
    torchvision at start. A torchaudio from 2.11 on uses the stable ABI of torch and fits later ones too.

Sources
    PyTorch: previous versions; requirements of the published packages; torchvision/extension.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import as_imported
from dsdoctor.checks.package._requirements import METADATA, accepts, exact, needs_of, target_environment
from dsdoctor.facts import Extension, Interpreter, ModuleImport, Package, Platform, Section, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Companions, TorchPair
from dsdoctor.versions import CudaVersion

EXTENSION = (
    "torchvision: extension.py, comparison of the CUDA versions — https://github.com/pytorch/vision/blob/main/torchvision/extension.py"
)
NAMES = ("torchvision", "torchaudio")
TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")


def _vision(version: str, *requires: str) -> Package:
    return Package(name="torchvision", version=version, requires=requires)


CASES = (
    Case(
        title="torchvision of the torch before",
        sections={"torch_build": TORCH, "packages": (_vision("0.25.0", "torch==2.10.0"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="2.10.0",
    ),
    Case(
        title="requirements were not read: the published pair is known",
        sections={"torch_build": TORCH, "packages": (_vision("0.25.0"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="0.26.0",
    ),
    Case(
        title="another patch of the same torch minor",
        sections={
            "torch_build": TorchBuild(version="2.9.0+cu128", cuda="12.8"),
            "packages": (_vision("0.24.1", "torch==2.9.1"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
    ),
    Case(
        title="its extension loads all the same",
        sections={
            "torch_build": TORCH,
            "packages": (_vision("0.25.0", "torch==2.10.0"),),
            "extensions": (Extension(package="torchvision", path="/v/torchvision/_C.so"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
    ),
    Case(
        title="builds for two CUDA majors",
        sections={"torch_build": TORCH, "packages": (_vision("0.26.0+cu128", "torch==2.11.0"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="CUDA 12",
    ),
    Case(
        title="torchvision for the CPU beside torch with CUDA",
        sections={"torch_build": TORCH, "packages": (_vision("0.26.0+cpu", "torch==2.11.0"),)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="+cpu",
    ),
    Case(
        title="the published pair",
        sections={"torch_build": TORCH, "packages": (_vision("0.26.0"), Package(name="torchaudio", version="2.11.0"))},
        status=Status.PASS,
    ),
    Case(
        title="torchaudio 2.11 with a later torch: stable ABI",
        sections={
            "torch_build": TorchBuild(version="2.13.0+cu130", cuda="13.0"),
            "packages": (Package(name="torchaudio", version="2.11.0"), _vision("0.28.0")),
        },
        status=Status.PASS,
    ),
    Case(
        title="neither is installed",
        sections={"torch_build": TORCH, "packages": (Package(name="numpy", version="2.5.2"),)},
        status=Status.NOT_APPLICABLE,
        says="neither torchvision nor torchaudio is installed",
    ),
    Case(
        title="a torch that no pair is known for",
        sections={"torch_build": TorchBuild(version="2.99.0+cu130", cuda="13.0"), "packages": (_vision("0.99.0"),)},
        status=Status.UNKNOWN,
        says="2.99.0",
    ),
    Case(title="the packages are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="packages"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed"), "packages": ()}, status=Status.NOT_APPLICABLE),
)


@check(
    "package.torch-companion-mismatch",
    Severity.ERROR,
    explains=("package.abi-mismatch", "package.import-fails", "package.pin-conflict"),
    settle='python -c "import torch, torchvision; print(torch.__version__, torchvision.__version__)"',
    cases=CASES,
)
def torch_companion_mismatch(
    torch_build: TorchBuild,
    packages: tuple[Package, ...],
    extensions: Section[tuple[Extension, ...]],
    module_imports: Section[tuple[ModuleImport, ...]],
    interpreter: Section[Interpreter],
    platform: Section[Platform],
    companions_matrix: Companions,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare torchvision and torchaudio with torch."""
    if not any(package.name in NAMES for package in packages):
        yield NotApplicable(reason="neither torchvision nor torchaudio is installed")
    environment = target_environment(interpreter.value, platform.value)
    pair = companions_matrix.pair(torch_build.version)
    for package in packages:
        if package.name not in NAMES:
            continue
        wanted = {"torchvision": pair.torchvision, "torchaudio": pair.torchaudio}[package.name] if pair else ""
        need = next((need for need in needs_of(package, environment) if need.name == "torch" and need.specifier), None)
        parts = [part for part in as_imported(extensions.value or (), module_imports) if part.package == package.name]
        belongs = f"torch {torch_build.version} belongs with {package.name} {exact(wanted) or wanted}" if wanted else "the published pair"
        remedy = _remedies(torch_build, pair, remedies)
        if need is not None and accepts(need.specifier, torch_build.version) is False:
            evidence = Evidence(where=f"packages[{package.name}].requires", value=need.text)
            yield _wrong_torch(
                package,
                torch_build,
                evidence,
                f"it asks for torch{need.specifier}",
                belongs,
                parts,
                exact(need.specifier),
                True,
                remedy,
                pair,
            )
        elif need is None and pair is not None and wanted and accepts(wanted, package.version) is False:
            evidence = Evidence(where=f"matrices/companions: torch {pair.torch}", value=f"{package.name}{wanted}")
            sure = pair.basis.may_carry_error
            yield _wrong_torch(
                package,
                torch_build,
                evidence,
                f"that torch goes with {package.name} {exact(wanted) or wanted}",
                belongs,
                parts,
                "",
                sure,
                remedy,
                pair,
            )
        elif need is None and not wanted:
            yield Doubt(subject=f"{package.name} {package.version}", reason=f"what belongs to torch {torch_build.version} is not known")
        else:
            yield from _wrong_cuda(package, torch_build, remedy)


def _wrong_torch(
    package: Package,
    build: TorchBuild,
    evidence: Evidence,
    why: str,
    belongs: str,
    parts: Sequence[Extension],
    asked: str,
    sure: bool,
    remedies: tuple[Remedy, ...],
    pair: TorchPair | None,
) -> Finding:
    loads = bool(parts) and not any(part.missing_symbols or part.missing_libraries or part.import_error for part in parts)
    same_minor = bool(asked) and asked.split(".")[:2] == build.version.split(".")[:2]
    return Finding(
        subject=f"{package.name} {package.version}",
        severity=Severity.ERROR if sure and not loads and not same_minor else Severity.WARNING,
        summary=f"{package.name} {package.version} does not belong to torch {build.version}: {why}.",
        cause=(
            "Another patch of the same minor usually works."
            if same_minor
            else "Its extension finds all its symbols, so it may load; it was not made for this torch."
            if loads
            else "It is compiled against another torch: importing it, or its first operator, fails."
        ),
        evidence=(
            Evidence(where=f"packages[{package.name}].version", value=package.version),
            evidence,
            Evidence(where="torch_build.version", value=build.version),
        ),
        expected=belongs,
        explains_only=(package.name,),
        remedies=remedies,
        sources=pair.basis.sources if pair else (METADATA,),
    )


def _wrong_cuda(package: Package, build: TorchBuild, remedies: tuple[Remedy, ...]) -> Iterator[Finding]:
    """The CUDA build that the local part of the version names, against torch's."""
    local = package.version.partition("+")[2]
    theirs, ours = CudaVersion.parse(local) if local.startswith("cu") else None, CudaVersion.parse(build.cuda or "")
    is_cpu = local == "cpu" and ours is not None
    if not is_cpu and (theirs is None or ours is None or theirs.major == ours.major):
        return
    yield Finding(
        subject=f"{package.name} {package.version}",
        severity=Severity.WARNING if is_cpu else Severity.ERROR,
        summary=f"{package.name} {package.version} is built for {'the CPU (+cpu)' if is_cpu else f'CUDA {theirs}'}, torch {build.version} for CUDA {ours}.",
        cause=(
            "Its own operators exist for the CPU only."
            if is_cpu
            else "At import it compares the CUDA majors and refuses: compiled with different CUDA major versions."
        ),
        evidence=(
            Evidence(where=f"packages[{package.name}].version", value=package.version),
            Evidence(where="torch_build.cuda", value=build.cuda or "none"),
        ),
        expected=f"{package.name} from the index of torch ({ours.tag if ours else 'cpu'})",
        remedies=remedies,
        sources=(EXTENSION,),
    )


def _remedies(build: TorchBuild, pair: TorchPair | None, remedies: Remedies) -> tuple[Remedy, ...]:
    cuda = CudaVersion.parse(build.cuda or "")
    fill = {"torch_version": build.version.partition("+")[0]}
    if cuda is not None:
        fill["cu"] = cuda.tag
    for name, wanted in (("torchvision_version", pair.torchvision), ("torchaudio_version", pair.torchaudio)) if pair else ():
        version = exact(wanted) or wanted.removeprefix(">=")
        if version:
            fill[name] = version
    return remedies("general", **fill)
