"""The search: resolvelib over a catalogue, and why a search fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, Resolver

from dsdoctor.advise.catalogue import FACTS_OF_NODE, Candidate, Catalogue, Requirement

ROUNDS = 4000


@dataclass(frozen=True, slots=True)
class Found:
    """A stack: the candidate chosen for each name, and who asked for each first."""

    chosen: Mapping[str, Candidate]
    asked_by: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """No stack: the requirements that met no candidate, those on the node first."""

    causes: tuple[Requirement, ...]

    @property
    def decisive(self) -> Requirement:
        """The one requirement to name: on the node before on a package."""
        return self.causes[0]


class _Provider(AbstractProvider):  # type: ignore[type-arg]  # the types of resolvelib differ between its releases
    def __init__(self, catalogue: Catalogue, order: Sequence[str], hopeless: frozenset[int]) -> None:
        self._catalogue = catalogue
        self._hopeless = hopeless
        self._order = {name: position for position, name in enumerate((*FACTS_OF_NODE, *order, "torch", "cuda"))}

    def identify(self, requirement_or_candidate: Requirement | Candidate) -> str:
        return requirement_or_candidate.name

    def get_preference(self, identifier: str, *_: Any, **__: Any) -> Any:
        return self._order.get(identifier, len(self._order)), identifier

    def find_matches(
        self, identifier: str, requirements: Mapping[str, Iterator[Requirement]], incompatibilities: Mapping[str, Iterator[Candidate]]
    ) -> list[Candidate]:
        refused = self._hopeless | {id(item) for item in incompatibilities[identifier]}
        return [item for item in self._catalogue.matching(identifier, list(requirements[identifier])) if id(item) not in refused]

    def is_satisfied_by(self, requirement: Requirement, candidate: Candidate) -> bool:
        return requirement.accepts(candidate)

    def get_dependencies(self, candidate: Candidate) -> Iterable[Requirement]:
        return candidate.requires


def search(catalogue: Catalogue, wants: Sequence[Requirement]) -> Found | Failed:
    """The newest stack that meets the wants on the node of the catalogue, earlier wants before later ones."""
    releases = _releases(catalogue, wants)
    possible = {name: [item for item in items if catalogue.refusal(item) is None] for name, items in releases.items()}
    for name, items in releases.items():
        if items and not possible[name] and (refused := catalogue.refusal(items[0])):
            return Failed((refused,))
    refused_by_node = frozenset(id(item) for items in releases.values() for item in items if catalogue.refusal(item) is not None)
    provider = _Provider(catalogue, list(releases), refused_by_node | _hopeless(catalogue, list(possible.values())))
    try:
        result = Resolver(provider, BaseReporter()).resolve(list(wants), max_rounds=ROUNDS)
    except ResolutionImpossible as error:
        return Failed(_in_order(catalogue, [item.requirement for item in error.causes]))
    asked_by: dict[str, str] = {}
    for name, criterion in result.criteria.items():
        parents = [item.parent for item in criterion.information]
        if any(parent is None for parent in parents):
            asked_by[name] = ""
        else:
            first = next((parent for parent in parents if parent is not None), None)
            asked_by[name] = first.name if first is not None else ""
    return Found(dict(result.mapping), asked_by)


def _releases(catalogue: Catalogue, wants: Sequence[Requirement]) -> dict[str, list[Candidate]]:
    """What is listed for each name that is wanted."""
    return {
        name: [item for item in catalogue.listed(name) if all(want.accepts(item) for want in wants if want.name == name)]
        for name in dict.fromkeys(want.name for want in wants)
    }


def _hopeless(catalogue: Catalogue, wanted: Sequence[Sequence[Candidate]]) -> frozenset[int]:
    """Releases of wanted packages whose own pins clash with those of every release of another: two engines would take long otherwise."""
    several = [items for items in wanted if len(items) > 1]
    return frozenset(
        id(mine)
        for items in several
        for others in several
        if others is not items
        for mine in items
        if all(next(direct_clashes(catalogue, mine, other), None) for other in others)
    )


def direct_clashes(catalogue: Catalogue, one: Candidate, other: Candidate) -> Iterator[tuple[Requirement, Requirement]]:
    """Pairs of requirements of two candidates that nothing meets together, those on torch first."""
    mine = {item.name: item for item in one.requires if item.range}
    pairs = [(mine[item.name], item) for item in other.requires if item.range and item.name in mine]
    for left, right in sorted(pairs, key=lambda pair: pair[0].name != "torch"):
        if left.range != right.range and not catalogue.any_meets(left, right):
            yield left, right


def _in_order(catalogue: Catalogue, causes: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Each requirement once: those that the node refuses, then those on packages."""
    seen: dict[str, Requirement] = {}
    for item in causes:
        met_by_node = item.name in FACTS_OF_NODE and any(item.accepts(fact) for fact in catalogue.listed(item.name))
        if item.text and not met_by_node:
            seen.setdefault(item.text, item)
    position = {name: number for number, name in enumerate(FACTS_OF_NODE)}
    return tuple(sorted(seen.values(), key=lambda item: position.get(item.name, len(position))))


def smallest_clash(catalogue: Catalogue, wants: Sequence[Requirement]) -> tuple[Requirement, ...]:
    """Wants that clash and of which none can be left out: each is dropped once, and stays away where the rest still clashes."""
    kept = list(wants)
    for want in wants:
        rest = [item for item in kept if item is not want]
        if rest and isinstance(search(catalogue, rest), Failed):
            kept = rest
    return tuple(kept)
