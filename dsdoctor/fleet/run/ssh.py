"""A host list over ssh, which never asks for a password: one connection a node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dsdoctor.fleet.run.engine import Engine, Node
from dsdoctor.fleet.run.process import Processes

CONNECT_S = 15


def engine(nodes: Sequence[Node], options: Sequence[str]) -> Engine:
    """ssh with the user's own options first, since of two settings ssh takes the first."""
    own = ["-n", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=15"]

    def argv_of(node: Node, command: Sequence[str]) -> list[str]:
        # sshd hands the words to the user's shell there, so they are quoted for it.
        return ["ssh", *options, *own, "--", node.name, shlex.join(command)]

    return Processes(lambda: nodes, argv_of, "ssh")
