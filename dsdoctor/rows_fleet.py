"""The rows of matrices/fleet: from when on nodes of one fleet count as different, and what of them is compared."""

from __future__ import annotations

from collections.abc import Mapping

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetLimit:
    """A bound of the comparison; the unit is in the text."""

    id: str
    amount: float
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedPackages:
    """Packages of the patient's environment whose versions should be the same on every node."""

    names: tuple[str, ...]
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfOneNode:
    """Environment variables that differ between nodes by their meaning, so that they are not compared."""

    regex: str
    """Whole name."""
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """How the nodes of a fleet are compared."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    limits: tuple[FleetLimit, ...]
    packages: tuple[ComparedPackages, ...]
    of_one_node: tuple[OfOneNode, ...]

    def limit(self, id: str) -> float:
        """The amount of a limit; KeyError when there is none of that id."""
        for row in self.limits:
            if row.id == id:
                return row.amount
        raise KeyError(id)
