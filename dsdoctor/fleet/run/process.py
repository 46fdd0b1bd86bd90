"""A local program that carries the command to one node: run it, bounded in time and output, and take it away whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from dsdoctor.errors import UsageError
from dsdoctor.fleet.run.engine import Ask, CommandOf, Hear, NoAnswer, Node, one_line
from dsdoctor.sources.child import TAIL_BYTES, Ended

OUTPUT_LIMIT_BYTES = 16 << 20
"""A report takes a few hundred KiB."""
CLOSE_S = 0.5
"""For pipes that somebody outside the group still holds."""
GRACE_S = 3.0
"""For srun and the like to end what they started elsewhere, before they are killed."""


class Processes:
    """An engine that starts one program a node. `argv_of` is the program with its arguments for a node and a command."""

    spawns = True
    meeting_host = ""

    def __init__(self, nodes: Callable[[], Sequence[Node]], argv_of: Callable[[Node, Sequence[str]], Sequence[str]], program: str) -> None:
        if shutil.which(program) is None:
            raise UsageError(f"{program}: no such command on this machine; install it, or choose another engine")
        self.nodes = nodes
        self._argv_of = argv_of

    @asynccontextmanager
    async def session(self, nodes: Sequence[Node], command_of: CommandOf, timeout_s: float) -> AsyncIterator[Ask]:
        """Nothing to make ready."""

        async def ask(node: Node, hear: Hear) -> Ended:
            return await run(self._argv_of(node, bounded(command_of(str(node.number)), timeout_s)), hear=hear)

        yield ask


def bounded(command: Sequence[str], timeout_s: float) -> list[str]:
    """The command under timeout(1): what hangs on a node ends there too, when nobody waits for it any more."""
    return ["timeout", "-k", f"{GRACE_S:g}", f"{timeout_s + GRACE_S:g}", *command]


async def run(argv: Sequence[str], stdin: bytes = b"", hear: Hear | None = None) -> Ended:
    """Run a program to its end. When the waiting is cancelled its whole group is ended, gently at first. Raises NoAnswer when it floods."""
    started = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=1 << 20,
        )
    except (OSError, ValueError) as error:
        return Ended(outcome="not_found", detail=f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    assert process.stdout is not None
    assert process.stderr is not None
    work = [asyncio.ensure_future(one) for one in (_all_of(process.stdout), _end_of(process.stderr, hear))]
    try:
        await _write(process.stdin, stdin)
        out, err = await asyncio.gather(*work)
        code = await process.wait()
    finally:
        await asyncio.shield(_end(process, work))
    return Ended(
        outcome="exited" if code >= 0 else "signal",
        code=abs(code),
        stdout=out,
        stderr=err,
        elapsed_s=round(time.monotonic() - started, 3),
    )


async def _write(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(OSError):
        stream.write(data)
        await stream.drain()
        stream.close()


async def _all_of(stream: asyncio.StreamReader) -> str:
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk
        if len(kept) > OUTPUT_LIMIT_BYTES:
            raise NoAnswer(f"its command printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB")
    return kept.decode("utf-8", "replace")


async def _end_of(stream: asyncio.StreamReader, hear: Hear | None) -> str:
    """The last 8 KiB of a stream; its last line is heard as it comes."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept = (kept + chunk)[-TAIL_BYTES:]
        if hear is not None and kept.strip():
            hear(one_line(kept.strip().rpartition(b"\n")[2].decode("utf-8", "replace")))
    return kept.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process, work: Sequence[asyncio.Future[str]]) -> None:
    """End a program and those who read from it; afterwards its pipes are closed."""
    for one in work:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
    # What the program left in its group would hold its pipes open.
    _signal(process, signal.SIGKILL)
    await process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stream.read(), CLOSE_S)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
