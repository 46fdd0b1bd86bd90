"""Run a program in a child that can be killed, with a deadline and bounded output.

A child that exits by a signal, hangs or floods its output is a fact with a name, never an exception. Every child gets its own process
group; `kill_session` ends whatever a probe left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsdoctor.record import dataclass

OUTPUT_LIMIT_BYTES = 4 << 20
TAIL_BYTES = 8 << 10
REAP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended. `stdout` and `result` keep their last 4 MiB, `stderr` its last 8 KiB."""

    outcome: str
    """exited, signal, timed_out or not_found."""
    code: int | None = None
    """Exit status when it exited, signal number when a signal ended it."""
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    """What the child wrote to its result descriptor."""
    elapsed_s: float = 0.0
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether it exited with status 0."""
        return self.outcome == "exited" and self.code == 0

    def said(self) -> str:
        """One line that tells how it ended, with the last thing it said."""
        last = next((line for line in reversed(self.stderr.splitlines()) if line.strip()), "").strip()
        how = {
            "exited": f"exit status {self.code}",
            "signal": f"killed by {signal_name(self.code)}",
            "timed_out": f"no answer within {self.elapsed_s:.0f} s",
            "not_found": self.detail or "not found",
        }[self.outcome]
        return f"{how}: {last}" if last else how


def signal_name(number: int | None) -> str:
    """SIGSEGV for 11; the number where it has no name."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    on_line: Callable[[str], None] | None = None,
    directory: str | None = None,
) -> Ended:
    """Run `argv` and wait at most `timeout_s` seconds, then kill its group.

    The number of a pipe that takes the child's result is in its environment as DSDOCTOR_RESULT_FD; `on_line` sees each line of it as it comes.
    """
    started = time.monotonic()
    result_read, result_write = os.pipe()
    child_environment = dict(os.environ if environment is None else environment)
    child_environment["DSDOCTOR_RESULT_FD"] = str(result_write)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment,
            pass_fds=(result_write,),
            preexec_fn=_own_group,
            cwd=directory,
        )
    except (OSError, ValueError) as error:
        os.close(result_read)
        os.close(result_write)
        return Ended(outcome="not_found", detail=f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    os.close(result_write)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(OSError):
        process.stdin.write(stdin.encode())
        process.stdin.close()
    streams = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray(), result_read: bytearray()}
    lines = _LineFeed(on_line)
    finished = _drain(process, streams, started + timeout_s, {result_read: lines.feed})
    if not finished:
        _kill_group(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
    out, err, result = (bytes(buffer).decode("utf-8", "replace") for buffer in streams.values())
    process.stdout.close()
    process.stderr.close()
    os.close(result_read)
    lines.close()
    code = process.returncode
    if not finished or code is None:
        outcome, code = "timed_out", None
    elif code < 0:
        outcome, code = "signal", -code
    else:
        outcome = "exited"
    return Ended(
        outcome=outcome, code=code, stdout=out, stderr=err[-TAIL_BYTES:], result=result, elapsed_s=round(time.monotonic() - started, 4)
    )


def kill_session(session: int) -> None:
    """Kill every process of a session: a probe and all that it started, whatever groups they are in."""
    _kill(session)
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 3 and int(fields[3]) == session:
            _kill(int(name))


def read_json(text: str) -> Any:
    """Parse one JSON document, or raise ValueError in one sentence."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _LineFeed:
    """Cuts a stream of bytes into lines for a listener."""

    def __init__(self, listener: Callable[[str], None] | None) -> None:
        self._listener = listener
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        if self._listener is None:
            return
        *complete, self._rest = (self._rest + chunk).split(b"\n")
        for line in complete:
            self._listener(line.decode("utf-8", "replace"))

    def close(self) -> None:
        if self._rest:
            self.feed(b"\n")


def _own_group() -> None:
    os.setpgid(0, 0)


def _drain(
    process: subprocess.Popen[bytes], streams: Mapping[int, bytearray], deadline: float, feeds: Mapping[int, Callable[[bytes], None]]
) -> bool:
    """Read all streams until the child has ended; False when the deadline passed first."""
    with selectors.DefaultSelector() as selector:
        for descriptor in streams:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            ready = selector.select(0 if ended else min(0.05, max(0.0, deadline - time.monotonic())))
            for key, _ in ready:
                chunk = _read_some(key.fd)
                if chunk is None:
                    continue
                if not chunk:
                    selector.unregister(key.fd)
                    continue
                feeds.get(key.fd, _ignore)(chunk)
                buffer = streams[key.fd]
                buffer += chunk
                if len(buffer) > OUTPUT_LIMIT_BYTES:
                    del buffer[: len(buffer) - OUTPUT_LIMIT_BYTES]
            if ended and (not ready or time.monotonic() >= deadline):
                return True
            if not ended and time.monotonic() >= deadline:
                return False
            if not ended and not selector.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def _ignore(chunk: bytes) -> None:
    return None


def _read_some(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    _kill(group)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
