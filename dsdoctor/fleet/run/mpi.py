"""A host list through MPI's launcher, where that reaches nodes which ssh does not (PBS, LSF, its own daemons)."""

from __future__ import annotations

from collections.abc import Sequence

from dsdoctor.fleet.run.engine import Engine, Node
from dsdoctor.fleet.run.process import Processes


def engine(nodes: Sequence[Node], options: Sequence[str]) -> Engine:
    """One mpirun a node: in a single job the first rank that fails would end all others."""

    def argv_of(node: Node, command: Sequence[str]) -> list[str]:
        return ["mpirun", *options, "-host", node.name, "-n", "1", *command]

    return Processes(lambda: nodes, argv_of, "mpirun")
