"""What installed packages ask for on the target: requirements with their markers evaluated for its Python and platform, not for ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.facts import Interpreter, Package, Platform, TorchBuild
from dsdoctor.record import dataclass
from dsdoctor.rows import Torch
from dsdoctor.versions import CudaVersion

METADATA = "Core metadata specifications: Requires-Dist — https://packaging.python.org/en/latest/specifications/core-metadata/"
MARKER_VARIABLE = re.compile(
    r"\b(python_version|python_full_version|implementation_version|implementation_name|platform_python_implementation"
    r"|platform_machine|platform_release|platform_version)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One requirement of a package that holds on the target."""

    name: str
    """Normalised name of what is asked for."""
    specifier: str
    """PEP 440 range; empty is any version."""
    text: str
    """The line as it stands in the metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The version of a library's wheel that torch asks for."""

    name: str
    version: str
    text: str
    where: str
    sources: tuple[str, ...] = ()


def target_environment(interpreter: Interpreter | None, platform: Platform | None) -> dict[str, str]:
    """The variables of PEP 508 as the target has them; those that the facts do not tell are left out."""
    values = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "extra": ""}
    if platform is not None and platform.architecture:
        values["platform_machine"] = platform.architecture
    version = re.match(r"(\d+\.\d+)(?:\.\d+)?", interpreter.version) if interpreter is not None else None
    if version is not None:
        values |= {"python_version": version[1], "python_full_version": version[0], "implementation_version": version[0]}
    if interpreter is not None and interpreter.implementation.lower() in ("", "cpython"):
        values |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return values


def needs_of(package: Package, environment: Mapping[str, str]) -> Iterator[Need]:
    """The requirements of a package without its extras; lines whose marker needs a fact that is not known are left out."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for text in package.requires:
        if "extra ==" in text:
            continue  # optional parts; most lines of an engine are such, and parsing them is slow
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is not None and not _holds(wanted.marker, environment):
            continue
        yield Need(name=str(canonicalize_name(wanted.name)), specifier=str(wanted.specifier), text=text)


def _holds(marker: object, environment: Mapping[str, str]) -> bool:
    from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName

    if not isinstance(marker, Marker) or any(name not in environment for name in MARKER_VARIABLE.findall(str(marker))):
        return False
    try:
        return marker.evaluate(dict(environment))
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def accepts(specifier: str, version: str) -> bool | None:
    """Whether a PEP 440 range holds a version; None when one of them is not understood."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


def exact(specifier: str) -> str:
    """The version of a range that pins one, without a trailing '.*'; empty for other ranges."""
    found = re.fullmatch(r"={2,3}\s*([^,\s]+)", specifier)
    return found[1].removesuffix(".*") if found else ""


def architecture_of(platform: Platform | None) -> str:
    """x86_64 or aarch64; the commoner one where the facts do not say."""
    return platform.architecture if platform is not None and platform.architecture else "x86_64"


def torch_pin(library: str, packages: Sequence[Package], build: TorchBuild, environment: Mapping[str, str], matrix: Torch) -> Pin | None:
    """The wheel of a library (cudnn, nccl) that this torch pins: from its own requirements, else from the row of its release."""
    torch = next((package for package in packages if package.name == "torch"), None)
    for need in needs_of(torch, environment) if torch else ():
        version = exact(need.specifier)
        if need.name.startswith(f"nvidia-{library}") and version:
            return Pin(name=need.name, version=version, text=need.text, where="packages[torch].requires", sources=(METADATA,))
    row = matrix.release(build.version)
    wheel = row.wheel(environment.get("platform_machine", "x86_64")) if row else None
    if row is None or wheel is None or not wheel.pinned(library):
        return None
    if CudaVersion.parse(wheel.cuda) != CudaVersion.parse(build.cuda or ""):
        return None  # the pins are those of the default wheel
    text = wheel.pins[library]
    return Pin(name=text.partition("==")[0], version=wheel.pinned(library), text=text, where="matrices/torch", sources=row.basis.sources)
