"""What an engine is: it knows its nodes, and carries a command to one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from dsdoctor.sources.child import Ended

CONTROL = dict.fromkeys((*range(32), 127, *range(128, 160)), " ")
REASON_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the fleet."""

    name: str
    """As the engine calls it; names the node in reports."""
    address: str = ""
    """Where the other nodes reach it; its name when the engine knows nothing better."""
    number: int = 0
    """Its place in the fleet, from 0."""
    unreachable: str = ""
    """Why the engine cannot even ask it, or empty."""


CommandOf = Callable[[str], Sequence[str]]
"""The command for one node as an argument list; called with the node's number in words, which an engine may know only on the node itself."""
HERE = "\x00here\x00"
"""Stands in a command for the name that an engine gives its session."""
Hear = Callable[[str], None]
"""Called with the last words of whoever is being waited for."""
Ask = Callable[[Node, Hear], Awaitable[Ended]]
"""Run the command on one node and wait for its end."""


class Engine(Protocol):
    """A way to reach nodes. Its methods raise UsageError with the remedy when the engine itself does not work."""

    spawns: bool
    """Whether each question costs a process on this machine, so that not all should be asked at once."""
    meeting_host: str
    """Where the first node is reached by the others, when its address does not tell; may have HERE in it."""

    def nodes(self) -> Sequence[Node]:
        """All nodes, also those that cannot be asked."""

    def session(self, nodes: Sequence[Node], command_of: CommandOf, timeout_s: float) -> AbstractAsyncContextManager[Ask]:
        """Make ready to ask these nodes; leaving it takes away whatever the engine made for that. `timeout_s` is that of one node."""


class NoAnswer(Exception):
    """A node that did not answer; the message is the reason."""


def one_line(text: str) -> str:
    """Words from elsewhere as one printable line of bounded length."""
    line = " ".join(text.translate(CONTROL).split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"
