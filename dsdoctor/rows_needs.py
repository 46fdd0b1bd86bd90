"""The rows of matrices/stack-needs: what packages need beyond their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackageNeed:
    """What some releases of a package need of GPU, CUDA, torch and NCCL; it holds where a user asks for the package."""

    package: str
    versions: str = ""
    """PEP 440 range of the releases; empty: all."""
    targets: tuple[str, ...] = ()
    """The GPU must run code for one of these; empty: any GPU."""
    cuda_range: str = ""
    """Range of the CUDA version of torch."""
    torch_range: str = ""
    nccl: str = ""
    """Oldest NCCL that torch may carry."""
    instead: tuple[str, ...] = ()
    """Packages that serve other GPUs."""
    text: str
    otherwise: str = ""
    """What also helps, without another torch."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcePackage:
    """Releases that no index carries, and how they are built."""

    package: str
    releases: tuple[str, ...]
    install: tuple[str, ...]
    note: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledPackages:
    """Packages whose wheels contain machine code linked to a CUDA major."""

    packages: tuple[str, ...]
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackNeeds:
    """What kernel packages need beyond their metadata, and words that users say for a package."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    usual_python: str
    """The Python to propose where the user names none and several would do."""
    compiled: CompiledPackages
    needs: tuple[PackageNeed, ...]
    sources_only: tuple[SourcePackage, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def of(self, package: str) -> tuple[PackageNeed, ...]:
        """The needs of a package."""
        return tuple(row for row in self.needs if row.package == package)

    def built_from_source(self, package: str) -> tuple[SourcePackage, ...]:
        """The releases of a package that no index carries."""
        return tuple(row for row in self.sources_only if row.package == package)
