"""A host list through ClusterShell, with the site's own groups, gateways and ssh settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dsdoctor.fleet.run.engine import Engine, Node
from dsdoctor.fleet.run.process import Processes


def engine(nodes: Sequence[Node], options: Sequence[str]) -> Engine:
    """One clush a node: its output without labels, and the node's own exit status."""

    def argv_of(node: Node, command: Sequence[str]) -> list[str]:
        return ["clush", "-N", "-S", "-n", "-o", "-oBatchMode=yes", *options, "-w", node.name, shlex.join(command)]

    return Processes(lambda: nodes, argv_of, "clush")
