"""Facts that the cases of several checks are made of."""

from __future__ import annotations

from dsdoctor.facts import EnvironmentVariable


def environment_of(**variables: str) -> tuple[EnvironmentVariable, ...]:
    """An environment with these variables."""
    return tuple(EnvironmentVariable(name=name, value=value) for name, value in variables.items())
