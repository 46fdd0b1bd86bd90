"""The installed Triton is not the one that torch asks for.

What it looks at
    The Triton that is installed (triton or pytorch-triton), and the range that torch asks for: its own requirements, else those known
    for its release, with their markers evaluated for the target's Python and processor.

Why it matters
    torch.compile calls Triton's inner interfaces, which change with each minor: "cannot import name 'AttrsDescriptor'", wrong
    signatures, or kernels that do not compile. Two packages that both provide the module triton overwrite each other.

Often said, and not so
    "multiple definition of triton::ir::Type::get_float32 is mended by a static local": that class left with Triton 2.0, and a function
    defined in its class is inline anyway, so the patch changes nothing. Two copies of Triton or LLVM in one process are the real thing.
    Source: Triton history; rules of C++.

Sources
    Requirements of the published torch wheels.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.package._requirements import METADATA, accepts, exact, needs_of, target_environment
from dsdoctor.facts import Interpreter, Package, Platform, Section, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Torch

PROVIDERS = ("triton", "pytorch-triton", "triton-nightly")
"""Packages that provide the module triton."""

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
PYTHON = Interpreter(path="/v/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3", kind="venv")
X86 = Platform(architecture="x86_64")
ASKS = Package(name="torch", version="2.11.0+cu130", requires=("triton==3.6.0; platform_system == 'Linux'",))
OLD = Package(
    name="torch",
    version="2.3.1+cu121",
    requires=('triton==2.3.1; platform_system == "Linux" and platform_machine == "x86_64" and python_version < "3.12"',),
)


def _here(*packages: Package) -> dict[str, object]:
    return {"torch_build": TORCH, "packages": packages, "interpreter": PYTHON, "platform": X86}


CASES = (
    Case(
        title="another package brought a newer Triton",
        sections=_here(ASKS, Package(name="triton", version="3.8.0")),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="3.8.0",
    ),
    Case(
        title="requirements were not read: the range of the release is known",
        sections=_here(Package(name="torch", version="2.11.0+cu130"), Package(name="triton", version="3.4.0")),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="3.6.0",
    ),
    Case(
        title="no Triton at all",
        sections=_here(ASKS),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="not installed",
    ),
    Case(
        title="a text that names torch and no other package",
        sections=_here(Package(name="torch", version="2.11.0+cu130")),
        status=Status.UNKNOWN,
        says="not known",
    ),
    Case(
        title="two packages provide the module",
        sections=_here(ASKS, Package(name="triton", version="3.6.0"), Package(name="pytorch-triton", version="3.6.0+git1")),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="pytorch-triton",
    ),
    Case(title="as torch asks", sections=_here(ASKS, Package(name="triton", version="3.6.0")), status=Status.PASS),
    Case(
        title="the requirement is for Python 3.11 and older, and this is 3.12",
        sections={
            "torch_build": TorchBuild(version="2.3.1+cu121", cuda="12.1"),
            "packages": (OLD, Package(name="triton", version="3.0.0")),
            "interpreter": PYTHON,
            "platform": X86,
        },
        status=Status.NOT_APPLICABLE,
        says="this torch asks for no Triton",
    ),
    Case(
        title="a CPU build asks for none",
        sections={
            "torch_build": TorchBuild(version="2.11.0+cpu"),
            "packages": (Package(name="torch", version="2.11.0+cpu"), Package(name="triton", version="3.1.0")),
        },
        status=Status.NOT_APPLICABLE,
        says="torch is built without CUDA",
    ),
    Case(
        title="a torch that nothing is known about",
        sections={
            "torch_build": TorchBuild(version="2.99.0+cu130", cuda="13.0"),
            "packages": (Package(name="torch", version="2.99.0+cu130"), Package(name="triton", version="3.6.0")),
        },
        status=Status.UNKNOWN,
        says="asks for",
    ),
    Case(title="the packages are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="packages"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed"), "packages": ()}, status=Status.NOT_APPLICABLE),
)


@check(
    "package.triton-torch-mismatch",
    Severity.WARNING,
    explains=("package.pin-conflict", "smoke.triton"),
    settle="pip list | grep -i triton; python -c \"import importlib.metadata as m; print([r for r in m.requires('torch') if 'triton' in r])\"",
    cases=CASES,
)
def triton_torch_mismatch(
    torch_build: TorchBuild,
    packages: tuple[Package, ...],
    interpreter: Section[Interpreter],
    platform: Section[Platform],
    torch_matrix: Torch,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the installed Triton with torch's requirement."""
    if not torch_build.cuda:
        yield NO_CUDA_BUILD
        return
    providers = [package for package in packages if package.name in PROVIDERS]
    environment = target_environment(interpreter.value, platform.value)
    wanted = _wanted(torch_build, packages, environment, torch_matrix)
    if len(providers) > 1:
        yield Finding(
            subject=", ".join(package.name for package in providers),
            summary=f"{' and '.join(f'{package.name} {package.version}' for package in providers)} both provide the module triton.",
            cause="The one installed last has written over the other; which files are of which is left to chance.",
            evidence=tuple(Evidence(where=f"packages[{package.name}].version", value=package.version) for package in providers),
            expected="one package that provides triton",
            sources=(METADATA,),
            remedies=remedies("general", **({"version": exact(wanted[1])} if wanted and exact(wanted[1]) else {})),
        )
        return
    if wanted is None:
        yield Doubt(subject=f"torch {torch_build.version}", reason="which Triton it asks for is not known")
        return
    name, specifier, evidence, sources = wanted
    if not name:
        yield NotApplicable(reason="this torch asks for no Triton")
        return
    have = providers[0] if providers else None
    if have is None and not evidence.where.startswith("packages["):
        # Without torch's own metadata these are the packages that a text happens to name, not those that are there.
        yield Doubt(subject=name, reason="no Triton is among the packages that are known; whether others are installed is not known")
        return
    if have is not None and accepts(specifier, have.version) is not False:
        return
    summary = (
        f"{have.name} {have.version} is installed; torch {torch_build.version} asks for {name}{specifier}."
        if have
        else f"torch {torch_build.version} asks for {name}{specifier}, and Triton is not installed."
    )
    yield Finding(
        subject=f"{have.name} {have.version}" if have else name,
        summary=summary,
        cause=(
            "torch.compile uses inner interfaces of Triton that change with each minor release."
            if have
            else "torch.compile, and every engine that writes kernels in Triton, fails without it."
        ),
        evidence=(
            *((Evidence(where=f"packages[{have.name}].version", value=have.version),) if have else ()),
            evidence,
        ),
        expected=f"{name}{specifier}",
        remedies=remedies("general", **({"version": exact(specifier)} if exact(specifier) else {})),
        sources=sources,
    )


def _wanted(
    build: TorchBuild, packages: tuple[Package, ...], environment: dict[str, str], matrix: Torch
) -> tuple[str, str, Evidence, tuple[str, ...]] | None:
    """Name and range of the Triton that torch asks for (an empty name: none); None when nothing tells."""
    torch = next((package for package in packages if package.name == "torch"), None)
    if torch is not None and torch.requires:
        asked = [text for text in torch.requires if any(text.startswith(name) for name in PROVIDERS)]
        needs = [need for need in needs_of(torch, environment) if need.name in PROVIDERS]
        if needs:
            return needs[0].name, needs[0].specifier, Evidence(where="packages[torch].requires", value=needs[0].text), (METADATA,)
        undecided = bool(asked) and "python_version" not in environment
        return None if undecided else ("", "", Evidence(where="packages[torch].requires", value="no triton"), ())
    row = matrix.release(build.version)
    wheel = row.wheel(environment.get("platform_machine", "x86_64")) if row else None
    if row is None or wheel is None:
        return None
    specifier = wheel.triton
    if not specifier and wheel.triton_until_python_311:
        version = environment.get("python_version", "")
        if not version:
            return None
        specifier = wheel.triton_until_python_311 if accepts("<3.12", version) else ""
    where = Evidence(where=f"matrices/torch: release {row.version}", value=f"triton{specifier}" if specifier else "no triton")
    return ("triton" if specifier else "", specifier, where, row.basis.sources)
