"""What shows that a job uses several nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsdoctor.facts import EnvironmentVariable
from dsdoctor.findings import Evidence

HERE = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0")


def values(environment: Iterable[EnvironmentVariable] | None) -> Mapping[str, str]:
    """The variables as a mapping."""
    return {variable.name: variable.value for variable in environment or ()}


def several_nodes(variables: Mapping[str, str]) -> Evidence | None:
    """The variable that shows that the job runs on more than one node; None where nothing shows it."""
    nodes = _number(variables.get("SLURM_NNODES", ""))
    if nodes is not None and nodes > 1:
        return Evidence(where="environment.SLURM_NNODES", value=str(nodes))
    rank = _number(variables.get("NODE_RANK", ""))
    if rank:
        return Evidence(where="environment.NODE_RANK", value=str(rank))
    everywhere, here = _number(variables.get("WORLD_SIZE", "")), _number(variables.get("LOCAL_WORLD_SIZE", ""))
    if everywhere is not None and here is not None and everywhere > here > 0:
        return Evidence(where="environment.WORLD_SIZE", value=f"{everywhere}, of which {here} on this node")
    return None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
