"""What torch itself said, put so that it can stand inside a sentence, or why it said nothing."""

from __future__ import annotations

from dsdoctor.facts import Section, State, TorchBuild, TorchRuntime
from dsdoctor.findings import Doubt, NotApplicable


def quoted(text: str) -> str:
    """A message in one line, without the full stop at its end."""
    return " ".join(text.split()).rstrip(".")


def says_nothing(torch_build: Section[TorchBuild], torch_runtime: Section[TorchRuntime]) -> Doubt | NotApplicable:
    """Why torch itself said nothing: it is not installed, or nobody started it."""
    for section in (torch_build, torch_runtime):
        if section.state is State.ABSENT:
            return NotApplicable(reason=section.why or "torch is not installed")
    return Doubt(subject="torch runtime", reason=torch_runtime.why or torch_runtime.state.value.replace("_", " "))
