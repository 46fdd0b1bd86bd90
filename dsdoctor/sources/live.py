"""Examine this machine: run the probes at once, each in a forked child with a deadline, and gather what they found.

A probe that raises, hangs, dies by a signal or answers nonsense leaves its sections `unreadable` with the reason; the others go on.
Forking, not threads: a driver call that never returns cannot be cancelled in a thread, and a crash in a C library would take the doctor along.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dsdoctor import __version__
from dsdoctor.facts import SCHEMA, Origin, ProbeRun, Section, Sections, Snapshot, not_asked, unreadable
from dsdoctor.plain import PlainError, from_plain, to_plain
from dsdoctor.sources.child import kill_session, read_json, signal_name
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Probe, Scope
from dsdoctor.sources.target import script_folder

ANSWER_LIMIT_BYTES = 64 << 20

Listener = Callable[[str, str, float], None]
"""Called with probe name, what happened (started, or an outcome of ProbeRun) and seconds."""


@dataclass(slots=True)
class _Running:
    probe: Probe
    pid: int
    answer: int
    deadline: float
    buffer: bytearray


def examine(
    host: Host, scope: Scope, probes: Sequence[Probe], *, label: str = "this machine", listener: Listener | None = None
) -> Snapshot:
    """Run the probes and return the snapshot; complete whatever the probes do."""
    with started(host, scope, probes) as examination:
        return examination.snapshot(label, listener or _silent)


@contextlib.contextmanager
def started(host: Host, scope: Scope, probes: Sequence[Probe], *, node: Host | None = None) -> Iterator[Examination]:
    """Start the probes; the block may do other work before it asks for the snapshot. On any exit nothing is left running.

    `node` is what probes of the whole machine look at, where `host` is the view of one process.
    """
    examination = Examination(probes)
    with _scratch(probes) as scratch:
        try:
            examination.start(host, replace(scope, scratch=scratch), node or host)
            yield examination
        finally:
            examination.stop()


@contextlib.contextmanager
def _scratch(probes: Sequence[Probe]) -> Iterator[str]:
    """A directory for probes that use a GPU; removed here, since a probe that is killed removes nothing."""
    folder = ""
    if any(probe.cost == "gpu" for probe in probes):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="dsdoctor-")
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


class Examination:
    """Probes that run, each in its own child."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._running: dict[int, _Running] = {}
        self._began = time.monotonic()

    def start(self, host: Host, scope: Scope, node: Host) -> None:
        """Fork one child a probe."""
        if any(probe.where == "target" for probe in self._probes):
            with contextlib.suppress(OSError):  # a probe that needs them says what is wrong
                script_folder()  # here, where a copy is removed at the end whatever happens to the children
        sys.stdout.flush()
        sys.stderr.flush()
        for probe in self._probes:
            entry = _start(probe, node if probe.whole_node else host, scope, self._began)
            self._running[entry.answer] = entry

    def stop(self) -> None:
        """Kill whatever still runs."""
        for entry in self._running.values():
            kill_session(entry.pid)
            os.close(entry.answer)
        self._running.clear()

    def snapshot(self, label: str, listener: Listener) -> Snapshot:
        """Wait for every probe, at most until its deadline, and gather what they found."""
        runs: dict[str, ProbeRun] = {}
        found: dict[str, Section[Any]] = {}
        for probe in self._probes:
            listener(probe.name, "started", 0.0)
        for run, sections in self._ended(listener):
            runs[run.probe] = run
            found |= sections
        return Snapshot(
            schema=SCHEMA,
            dsdoctor=__version__,
            taken_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
            origin=Origin(kind="live", label=label),
            sections=Sections(**found),
            probe_runs=tuple(runs[probe.name] for probe in self._probes),
        )

    def _ended(self, listener: Listener) -> Iterator[tuple[ProbeRun, dict[str, Section[Any]]]]:
        with selectors.DefaultSelector() as selector:
            for answer in self._running:
                selector.register(answer, selectors.EVENT_READ)
            while self._running:
                wait_s = max(0.0, min(entry.deadline for entry in self._running.values()) - time.monotonic())
                for key, _ in selector.select(wait_s):
                    entry = self._running[key.fd]
                    chunk = os.read(key.fd, 1 << 16)
                    entry.buffer += chunk
                    if not chunk:
                        selector.unregister(key.fd)
                        yield _finish(self._running.pop(key.fd), self._began, listener, timed_out=False)
                    elif len(entry.buffer) > ANSWER_LIMIT_BYTES:
                        entry.deadline = 0.0
                now = time.monotonic()
                for entry in [entry for entry in self._running.values() if entry.deadline <= now]:
                    selector.unregister(entry.answer)
                    yield _finish(self._running.pop(entry.answer), self._began, listener, timed_out=True)


def _start(probe: Probe, host: Host, scope: Scope, started: float) -> _Running:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_probe(probe, host, scope, write_end)
    os.close(write_end)
    return _Running(probe, pid, read_end, started + min(probe.timeout_s, scope.deadline_s), bytearray())


def _be_probe(probe: Probe, host: Host, scope: Scope, answer: int) -> typing.NoReturn:
    """In the child: collect, write the answer, leave without running anything of the parent's."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _silence_standard_streams()
        payload = _collect(probe, host, scope)
        with os.fdopen(answer, "wb") as pipe:
            pipe.write(json.dumps(payload).encode())
    finally:
        os._exit(0)


def _collect(probe: Probe, host: Host, scope: Scope) -> dict[str, Any]:
    started = time.monotonic()
    try:
        collect = importlib.import_module(probe.module).collect
        sections = collect(host, scope)
        plain = {name: to_plain(section) for name, section in sections.items()}
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"crashed": f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"}
    return {"sections": plain, "elapsed_s": round(time.monotonic() - started, 4)}


def _silence_standard_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _finish(entry: _Running, started: float, listener: Listener, *, timed_out: bool) -> tuple[ProbeRun, dict[str, Section[Any]]]:
    os.close(entry.answer)
    if timed_out:
        kill_session(entry.pid)
    status = _reap(entry.pid)
    if status != 0:
        kill_session(entry.pid)
    elapsed_s = round(time.monotonic() - started, 4)
    outcome, detail, sections = _read_answer(entry, status, timed_out=timed_out, elapsed_s=elapsed_s)
    listener(entry.probe.name, outcome, elapsed_s)
    return ProbeRun(probe=entry.probe.name, outcome=outcome, detail=detail, elapsed_s=elapsed_s), sections


def _read_answer(entry: _Running, status: int | None, *, timed_out: bool, elapsed_s: float) -> tuple[str, str, dict[str, Section[Any]]]:
    probe = entry.probe

    def nothing(outcome: str, detail: str) -> tuple[str, str, dict[str, Section[Any]]]:
        return outcome, detail, {name: unreadable(f"probe {probe.name} {detail}") for name in probe.provides}

    if timed_out:
        return nothing("timed_out", f"gave no answer within {elapsed_s:.0f} s")
    if status is not None and os.WIFSIGNALED(status):
        return nothing("killed_by_signal", f"was killed by {signal_name(os.WTERMSIG(status))}")
    try:
        payload = read_json(bytes(entry.buffer).decode())
        if "crashed" in payload:
            return nothing("crashed", f"crashed: {payload['crashed']}")
        sections = read_sections(payload["sections"])
    except (ValueError, KeyError, TypeError) as error:
        problem = str(error) if isinstance(error, PlainError) else "not the JSON of a probe"
        return nothing("garbage", f"answered nonsense ({problem})")
    stray = [name for name in sections if name not in probe.provides]
    if stray:
        return nothing("garbage", f"answered for sections that are not its own ({', '.join(stray)})")
    rest = {name: not_asked(f"probe {probe.name} did not say") for name in probe.provides if name not in sections}
    return "ok", "", {**sections, **rest}


def read_sections(plain: Mapping[str, Any]) -> dict[str, Section[Any]]:
    """Sections from their JSON form, each by its own type. Raises PlainError."""
    hints = _section_types()
    unknown = [name for name in plain if name not in hints]
    if unknown:
        raise PlainError(f"sections.{unknown[0]}", "unknown section")
    return {name: from_plain(hints[name], data, f"sections.{name}") for name, data in plain.items()}


_HINTS: dict[str, Any] = {}


def _section_types() -> dict[str, Any]:
    if not _HINTS:
        hints = typing.get_type_hints(Sections)
        _HINTS.update({field.name: hints[field.name] for field in fields(Sections)})
    return _HINTS


def _reap(pid: int) -> int | None:
    """The wait status of an ended child, or None when it cannot be reaped within a second (stuck in the kernel)."""
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
        time.sleep(0.01)
    return None


def _silent(probe: str, event: str, seconds: float) -> None:
    return None
