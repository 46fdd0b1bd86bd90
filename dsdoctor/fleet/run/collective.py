"""Collectives across the nodes of a fleet: one command a node, all at once, and one answer: right, or which node the others wait for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsdoctor.errors import UsageError
from dsdoctor.findings import Severity, counted
from dsdoctor.fleet.answer import Seen
from dsdoctor.fleet.run.collect import Answer, Collected, Limits, Show, collect
from dsdoctor.fleet.run.engine import CommandOf, Engine, Node, one_line
from dsdoctor.fleet.run.hosts import numbered

PORT = 29517
SCHEMA = "dsdoctor.collective/1"
TEST = "collectives"
CHECK = "fleet.collective"
CAUSE = "A collective holds all ranks until the last one comes: a job over these nodes would hang or fail the same way."
LEAST_NODES = 2
IN_TIME = 0.9
"""Of the time that a node has for its answer, what its test may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the test was on one node."""

    node: str
    state: str
    """right, wrong (values changed), failed (it said why), behind (it hangs at a stage) or absent (it never took part)."""
    stage: str = ""
    reason: str = ""
    place: int = -1
    """Of the stage in the order of the test's stages."""
    number: int | None = None
    """Its number among the nodes, where it said so."""
    missing: tuple[int, ...] = ()
    """Numbers of the nodes that it waited for in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The answer for all nodes."""

    ok: bool
    summary: str
    blamed: tuple[str, ...] = ()
    """Names of the nodes that the others wait for, or that failed."""
    ranks: int = 0
    backend: str = ""
    rates: Mapping[str, float] | None = None
    """GB/s of the bus by collective, of the slowest node."""
    parts: tuple[Part, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        nodes = [
            {"label": part.node, "state": part.state, "stage": part.stage, "reason": part.reason, "number": part.number}
            for part in self.parts
        ]
        return {
            "schema": SCHEMA, "ok": self.ok, "summary": self.summary, "blamed": list(self.blamed), "ranks": self.ranks, "backend": self.backend,
            "bus_gb_per_s": dict(self.rates or {}), "nodes": nodes,
        }  # fmt: skip

    def seen(self) -> tuple[Seen, ...]:
        """A problem of the fleet, on the nodes that are at fault."""
        return tuple(
            Seen(check=CHECK, severity=Severity.ERROR, node=name, subject=TEST, detail=self.summary, cause=CAUSE) for name in self.blamed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Who takes part, and how each is told."""

    nodes: tuple[Node, ...]
    left_out: int
    check: tuple[str, ...]
    place: str


def arranged(check: Sequence[str], nodes: Sequence[Node], master: str, here: str) -> Meeting:
    """The meeting of all nodes that can be asked. Raises UsageError when there can be none."""
    there = numbered([node for node in nodes if not node.unreachable])
    place = meeting_place(master, there, here)
    command_of(check, place, len(there), 1.0)
    return Meeting(nodes=there, left_out=len(nodes) - len(there), check=tuple(check), place=place)


def run(engine: Engine, meeting: Meeting, limits: Limits, show: Show) -> tuple[Collective | None, Collected]:
    """Start the test on all nodes at the same time, or they would wait for each other, and judge what they say; nothing when it was stopped."""
    count = len(meeting.nodes)
    command = command_of(meeting.check, meeting.place, count, limits.node_s)
    collected = collect(engine, meeting.nodes, command, replace(limits, at_once=count), lambda answer: None, show)
    if collected.stopped_by:
        return None, collected
    found = judged(collected.answers)
    if meeting.left_out:
        without = f"{counted(meeting.left_out, 'node')} that could not be asked took no part"
        found = replace(found, summary=f"{found.summary.removesuffix('.')}; {without}.")
    return found, collected


def meeting_place(master: str, nodes: Sequence[Node], here: str) -> str:
    """HOST:PORT where the nodes meet: as asked, else on the first node; `here` is what an engine replaces. Raises UsageError."""
    if len(nodes) < LEAST_NODES:
        raise UsageError("--collective needs two nodes that can be asked")
    if master:
        host, _, port = master.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"--master takes HOST:PORT on the first node; '{master}' is none")
        return master
    address = here or nodes[0].address or nodes[0].name
    try:
        if isinstance(ipaddress.ip_address(address), ipaddress.IPv6Address):
            address = f"[{address}]"
    except ValueError:
        pass  # a name
    return f"{address}:{PORT}"


def command_of(check: Sequence[str], place: str, nodes: int, timeout_s: float) -> CommandOf:
    """The test on one node, started as the check is: the same program, for the same interpreter. Raises UsageError."""
    if "check" not in check:
        raise UsageError("--collective: --command must be some `… check …` of dsdoctor, so that the test can be started the same way")
    program, options = check[: check.index("check")], check[check.index("check") + 1 :]
    python = [word for place, word in enumerate(options) if "--python" in (word.partition("=")[0], *options[max(0, place - 1) : place])]

    def command(number: str) -> list[str]:
        return [
            *program, "smoke", TEST, "--meet", place, "--node", f"{number}/{nodes}", *python,
            "--timeout", f"{timeout_s * IN_TIME:g}", "--format", "json", "--fail-on", "never",
        ]  # fmt: skip

    return command


def judged(answers: Sequence[Answer]) -> Collective:
    """One answer from those of all nodes. The node that is furthest behind is named first: the others only wait for it."""
    parts = tuple(_part(answer) for answer in answers)
    results = [result for answer in answers for result in _results(answer.report)]
    ranks = max((_number(_notes(result).get("ranks")) or 0 for result in results), default=0)
    backend = next((str(_notes(result)["backend"]) for result in results if "backend" in _notes(result)), "")
    if all(part.state == "right" for part in parts):
        rates = _rates(results)
        said = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
        summary = (
            f"Collectives across {len(parts)} nodes are right ({ranks} ranks, {backend}{f'; GB/s of the bus: {said}' if said else ''})."
        )
        return Collective(ok=True, summary=summary, ranks=ranks, backend=backend, rates=rates, parts=parts)
    blamed, summary = _blamed(parts)
    return Collective(ok=False, summary=summary, blamed=tuple(part.node for part in blamed), ranks=ranks, backend=backend, parts=parts)


def _blamed(parts: Sequence[Part]) -> tuple[Sequence[Part], str]:
    """Those at fault, and the sentence that says so."""
    absent = [part for part in parts if part.state == "absent"]
    failed = [part for part in parts if part.state in ("failed", "wrong")]
    behind = [part for part in parts if part.state == "behind"]
    awaited = {number for part in behind for number in part.missing}
    late = [part for part in behind if part.number in awaited]
    if absent:
        return absent, f"{_named(absent)} never joined: {absent[0].reason}{'; the others waited in vain' if behind else ''}."
    if failed:
        return failed, f"Collectives across {len(parts)} nodes fail on {_named(failed)}: {min(failed, key=_place).reason}."
    if late:
        others = next((part.reason for part in behind if part.missing and part not in late), late[0].reason)
        return late, f"{_named(late)} never joined: {others}."
    first = min(behind, key=_place)
    last = [part for part in behind if part.place == first.place]
    if len(last) < len(parts):
        return last, f"{_named(last)}: at '{first.stage}' while the others wait ({first.reason})."
    return parts, f"Collectives across {len(parts)} nodes hang, all nodes are at '{first.stage}': {first.reason}."


def _place(part: Part) -> int:
    return part.place


def _named(parts: Sequence[Part]) -> str:
    names = ", ".join(part.node for part in parts[:4])
    return f"{names} and {len(parts) - 4} more" if len(parts) > 4 else names


def _part(answer: Answer) -> Part:
    name = answer.node.name
    if answer.report is None:
        return Part(node=name, state="absent", reason=answer.reason)
    results = _results(answer.report)
    number = next((_number(_notes(result).get("node")) for result in results), None)
    trouble = next((result for result in results if result.get("outcome") not in ("ran", "refused")), None)
    if not results:
        section = _section(answer.report)
        return Part(node=name, state="absent", reason=one_line(str(section.get("why") or "there is no result of the test in the report")))
    if trouble is not None:
        stage = str(_notes(trouble).get("stage", ""))
        reason = one_line(str(trouble.get("reason") or trouble.get("outcome")))
        warning = _notes(trouble).get("first_warning")
        state = "behind" if trouble.get("outcome") == "hang" else "failed"
        return Part(
            node=name, state=state, stage=stage, place=_number(_notes(trouble).get("place")) or -1, number=number,
            reason=f"{reason}; NCCL: {one_line(str(warning))}" if warning else reason, missing=_numbers(_notes(trouble).get("missing")),
        )  # fmt: skip
    wrong = [str(result.get("path")) for result in results if (result.get("values") or {}).get("wrong")]
    if wrong:
        return Part(node=name, state="wrong", reason=f"words arrive changed in {', '.join(wrong)}", number=number)
    return Part(node=name, state="right", number=number)


def _section(report: Mapping[str, Any] | None) -> Mapping[str, Any]:
    facts = (report or {}).get("facts")
    section = facts.get("smoke") if isinstance(facts, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _results(report: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    value = _section(report).get("value")
    return [one for one in value if isinstance(one, Mapping) and one.get("test") == TEST] if isinstance(value, list) else []


def _notes(result: Mapping[str, Any]) -> Mapping[str, Any]:
    notes = result.get("notes")
    return notes if isinstance(notes, Mapping) else {}


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdecimal() else None


def _numbers(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text or "").split(",") if part.isdecimal())


def _rates(results: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for result in results:
        rate = (result.get("values") or {}).get("bus_gb_per_s")
        if isinstance(rate, (int, float)):
            name = str(result.get("path")).partition(" across ")[0]
            found[name] = min(rate, found.get(name, rate))
    return found
