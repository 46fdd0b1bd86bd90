"""Ask every node at once, within deadlines, and keep each answer the moment it is there: what has arrived survives whatever comes next."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from dsdoctor.fleet.run.answer import report_of
from dsdoctor.fleet.run.engine import Ask, CommandOf, Engine, NoAnswer, Node, one_line

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how many at once."""

    node_s: float
    """For one node, from the moment it is asked."""
    total_s: float
    """For all."""
    at_once: int
    """How many programs of this machine may wait for nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of asking one node: a report, or the reason why there is none."""

    node: Node
    report: Mapping[str, Any] | None = None
    reason: str = ""
    elapsed_s: float = 0.0


@dataclass(slots=True)
class Progress:
    """How far the fleet is."""

    total: int
    asked: dict[str, float] = field(default_factory=dict)
    """Nodes that are being asked, with the monotonic time since when."""
    reports: int = 0
    without: int = 0


Keep = Callable[[Answer], None]
Show = Callable[[Progress, Answer | None], None]
"""Called with each answer, and without one from time to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All answers in the order of the nodes, the signal that ended the asking early (0: none), and what went wrong in dsdoctor itself."""

    answers: tuple[Answer, ...]
    stopped_by: int = 0
    faults: tuple[str, ...] = ()
    """Of dsdoctor itself."""


def collect(engine: Engine, nodes: Sequence[Node], command_of: CommandOf, limits: Limits, keep: Keep, show: Show) -> Collected:
    """The answer of every node. Each goes to `keep` as it comes; after a signal or past a deadline the others get their reason."""
    return asyncio.run(_Asking(engine, nodes, command_of, limits, keep, show).all())


class _Asking:
    def __init__(self, engine: Engine, nodes: Sequence[Node], command_of: CommandOf, limits: Limits, keep: Keep, show: Show) -> None:
        self._engine, self._nodes, self._command_of, self._limits, self._keep, self._show = engine, nodes, command_of, limits, keep, show
        self._places: AbstractAsyncContextManager[Any] = asyncio.Semaphore(limits.at_once) if engine.spawns else contextlib.nullcontext()
        self._progress = Progress(total=len(nodes))
        self._answers: dict[str, Answer] = {}
        self._heard: dict[str, str] = {}
        self._faults: list[str] = []
        self._stopped_by = 0

    async def all(self) -> Collected:
        for node in self._nodes:
            if node.unreachable:
                self._take(Answer(node=node, reason=node.unreachable))
        to_ask = [node for node in self._nodes if not node.unreachable]
        if to_ask:
            stop = asyncio.Event()
            with self._heeding_signals(stop):
                async with self._engine.session(to_ask, self._command_of, self._limits.node_s) as ask:
                    await self._ask_all(to_ask, ask, stop)
        return Collected(
            answers=tuple(self._answers[node.name] for node in self._nodes), stopped_by=self._stopped_by, faults=tuple(self._faults)
        )

    async def _ask_all(self, nodes: Sequence[Node], ask: Ask, stop: asyncio.Event) -> None:
        tasks = {asyncio.create_task(self._one(node, ask)): node for node in nodes}
        ticking, stopped = asyncio.create_task(self._tick()), asyncio.create_task(stop.wait())
        try:
            deadline = time.monotonic() + self._limits.total_s
            waiting = set(tasks)
            while waiting and not stop.is_set() and (left_s := deadline - time.monotonic()) > 0:
                done, _ = await asyncio.wait({*waiting, stopped}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
                for task in done & set(tasks):
                    task.result()
            for node in (tasks[task] for task in tasks if task in waiting):
                self._take(Answer(node=node, reason=self._why_stopped(node), elapsed_s=self._since(node)))
        finally:
            for task in (*tasks, ticking, stopped):
                task.cancel()
            await asyncio.gather(*tasks, ticking, stopped, return_exceptions=True)

    async def _one(self, node: Node, ask: Ask) -> None:
        async with self._places:
            self._progress.asked[node.name] = time.monotonic()
            try:
                ended = await asyncio.wait_for(ask(node, lambda words: self._hear(node, words)), self._limits.node_s)
                answer = Answer(node=node, report=report_of(ended), elapsed_s=self._since(node))
            except NoAnswer as error:
                answer = Answer(node=node, reason=str(error), elapsed_s=self._since(node))
            except asyncio.TimeoutError:
                answer = Answer(
                    node=node, reason=f"no answer within {self._limits.node_s:g} s{self._last_words(node)}", elapsed_s=self._since(node)
                )
            except Exception as error:
                fault = f"{node.name}: {type(error).__name__}: {error}"
                self._faults.append(fault)
                answer = Answer(node=node, reason=one_line(f"a fault of dsdoctor itself: {fault}"), elapsed_s=self._since(node))
            self._take(answer)

    def _why_stopped(self, node: Node) -> str:
        asked = node.name in self._progress.asked
        if self._stopped_by:
            why = f"the run was ended ({signal.Signals(self._stopped_by).name}) {'before it answered' if asked else 'before it was asked'}"
        else:
            why = f"{'no answer' if asked else 'not asked yet'} when the {self._limits.total_s:g} s for all nodes were up"
        return f"{why}{self._last_words(node)}"

    def _hear(self, node: Node, words: str) -> None:
        self._heard[node.name] = words

    def _last_words(self, node: Node) -> str:
        words = self._heard.get(node.name, "")
        return f"; last heard: {words}" if words else ""

    def _since(self, node: Node) -> float:
        return round(time.monotonic() - self._progress.asked[node.name], 3) if node.name in self._progress.asked else 0.0

    def _take(self, answer: Answer) -> None:
        if answer.node.name in self._answers:
            return
        self._keep(answer)
        self._answers[answer.node.name] = answer
        self._progress.asked.pop(answer.node.name, None)
        if answer.report is None:
            self._progress.without += 1
        else:
            self._progress.reports += 1
        self._show(self._progress, answer)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._show(self._progress, None)

    @contextlib.contextmanager
    def _heeding_signals(self, stop: asyncio.Event) -> Iterator[None]:
        """The first signal ends the asking in order; a second one is what it always is. What nohup ignores stays ignored."""
        loop = asyncio.get_running_loop()
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]

        def heed(number: int) -> None:
            self._stopped_by = number
            stop.set()
            for each in heeded:
                loop.remove_signal_handler(each)

        for number in heeded:
            loop.add_signal_handler(number, heed, number)
        try:
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)
