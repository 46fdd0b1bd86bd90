"""What the user wants a node for: profiles, and models that have to fit. Without either, what is installed says what it could be judged for.

Names are resolved, and checkpoint directories read, before a node is examined (`ask`); the rest is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsdoctor.errors import UsageError, unknown_name
from dsdoctor.facts import CheckpointFolder, Sections, known
from dsdoctor.findings import Fitness
from dsdoctor.record import dataclass

if TYPE_CHECKING:
    from dsdoctor.matrix import Knowledge
    from dsdoctor.plan import Model, Plan
    from dsdoctor.rows_profile import Profile

ANY = "any"
"""The profile that asks for nothing: what is installed decides."""
SMOKE_THRESHOLDS = "smoke_thresholds_matrix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A profile and the name by which it was asked for."""

    asked: str
    profile: Profile

    def holds(self, only_as: Sequence[str]) -> bool:
        """Whether a row that may be for some names only is meant."""
        return not only_as or self.asked in only_as


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that has to fit."""

    model: Model
    asked_by: str
    """--model, or the profile that needs it."""
    folder: CheckpointFolder | None = None
    """Its checkpoint, where a directory was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Whether a model fits the GPUs that were found."""

    candidate: Candidate
    plan: Plan | None = None
    why: str = ""
    """Why there is no plan."""
    disk_gb_per_s: float = 0.0
    """Read rate of the disk that the weights lie on; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a node is judged for."""

    profiles: tuple[Chosen, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    nodes: int = 1
    """How many nodes like this one serve a model together."""
    disk_gb_per_s: float = 0.0
    """As the user measured it; 0: not known."""
    recognised_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Profile to the distributions by which it is recognised."""
    matrix: Callable[[str], Any] | None = field(default=None, repr=False)

    def fitness(self, sections: Sections) -> Fitness:
        """What the report says the node was judged for."""
        models = tuple(candidate.model.name for candidate in self.candidates)
        plans = tuple(planned.plan.summary[0] for planned in self.plans(sections) if planned.plan is not None)
        if self.profiles:
            return Fitness(profiles=tuple(chosen.asked for chosen in self.profiles), models=models, plans=plans)
        installed = {package.name for package in sections.packages.value or ()}
        recognised = tuple(name for name, marks in self.recognised_by.items() if installed & set(marks))
        return Fitness(profiles=recognised, inferred=True, models=models, plans=plans)

    def beside(self, sections: Sections) -> Sections:
        """The facts of a node together with those of the checkpoints that the user named."""
        folders = tuple(candidate.folder for candidate in self.candidates if candidate.folder is not None)
        return replace(sections, checkpoints=known(folders, "config.json and safetensors headers")) if folders else sections

    def sharpened(self, name: str, matrix: Any) -> Any:
        """A matrix with the limits that the chosen profiles add to it."""
        if name != SMOKE_THRESHOLDS or not any(chosen.profile.thresholds for chosen in self.profiles):
            return matrix
        return replace(matrix, limits=(*(row for chosen in self.profiles for row in chosen.profile.thresholds), *matrix.limits))

    def plans(self, sections: Sections) -> tuple[Planned, ...]:
        """For each model that has to fit, whether it does on the GPUs that were found."""
        if not self.candidates or self.matrix is None:
            return ()
        from dsdoctor import plan as planner

        models, limits = self.matrix("deepseek-models"), self.matrix("gpu-limits")
        found = []
        for one in self.candidates:
            plan, why = None, f"gpus: {sections.gpus.why or 'not known'}"
            if sections.gpus.value is not None:
                try:
                    hardware = planner.hardware_here(sections.gpus.value, 0, self.nodes, limits)
                    plan, why = planner.plan(one.model, hardware, planner.Wanted(), models, limits), ""
                except UsageError as error:
                    why = str(error)
            found.append(Planned(candidate=one, plan=plan, why=why, disk_gb_per_s=self.disk_gb_per_s))
        return tuple(found)


NOTHING = Purpose()
"""Nobody said what the node is for."""


def ask(
    knowledge: Knowledge, profiles: Sequence[str] = (), models: Sequence[str] = (), *, nodes: int = 0, disk_gb_per_s: float = 0.0
) -> Purpose:
    """The purpose in the words of a user. UsageError for an unknown name, InputError for a directory that holds no checkpoint."""
    chosen = tuple(named(name, knowledge) for name in dict.fromkeys(name.lower() for name in profiles) if name != ANY)
    candidates = tuple(_candidate(name, "--model", knowledge) for name in models) or tuple(
        _candidate(model, f"profile {one.asked}", knowledge) for one in chosen if (model := model_of(one))
    )
    return Purpose(
        profiles=chosen, candidates=candidates, nodes=nodes or 1, disk_gb_per_s=disk_gb_per_s,
        recognised_by={name: marks for name, marks in knowledge.profile_marks().items() if marks}, matrix=knowledge.matrix,
    )  # fmt: skip


def named(name: str, knowledge: Knowledge) -> Chosen:
    """The profile of a name or alias; UsageError with the nearest names when there is none."""
    names = knowledge.profile_names()
    if name in names:
        return Chosen(asked=name, profile=knowledge.profile(name))
    profiles = [knowledge.profile(known) for known in names]
    found = next((profile for profile in profiles if name in profile.aliases), None)
    if found is None:
        raise unknown_name("profile", name, [*names, *(alias for profile in profiles for alias in profile.aliases)])
    return Chosen(asked=name, profile=found)


def model_of(chosen: Chosen) -> str:
    """The model that has to fit for a profile, by the name it was asked for."""
    return chosen.profile.aliases.get(chosen.asked, chosen.profile.model)


def _candidate(name: str, asked_by: str, knowledge: Knowledge) -> Candidate:
    from dsdoctor import checkpoint
    from dsdoctor import plan as planner

    models = knowledge.matrix("deepseek-models")
    if not Path(name).is_dir():
        return Candidate(model=planner.named(name, models), asked_by=asked_by)
    held = checkpoint.read(Path(name))
    shown = Path(name).resolve().name  # the rest of the path may name somebody
    folder = CheckpointFolder(
        name=shown, shards=len(held.shards), bytes_on_disk=held.bytes_on_disk,
        problems=tuple(problem.told.replace(held.directory, shown) for problem in held.problems),
    )  # fmt: skip
    return Candidate(model=replace(planner.of_checkpoint(held, models), name=shown), asked_by=asked_by, folder=folder)
