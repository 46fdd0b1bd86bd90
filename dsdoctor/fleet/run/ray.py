"""Ray: one task a node, pinned to it, that takes no CPU and no GPU from whoever works there (vLLM, SGLang). Ray is imported only here."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dsdoctor.errors import UsageError
from dsdoctor.fleet.run.engine import Ask, CommandOf, Engine, Hear, NoAnswer, Node, one_line
from dsdoctor.sources.child import TAIL_BYTES, Ended

CONNECT_S = 10.0
UNEXPECTED = 2
"""Ray's reason of death for a node that nobody took away."""
PROGRAM = "dsdoctor"


def engine(address: str, named: Sequence[Node]) -> Engine:
    """The nodes of the Ray cluster at this address (HOST:PORT, auto, ray://HOST:PORT); those named, else all."""
    return _Ray(address, named)


class _Ray:
    spawns = False
    meeting_host = ""

    def __init__(self, address: str, named: Sequence[Node]) -> None:
        self._ray = connected(address)
        self._named = named
        self._ids: dict[str, str] = {}
        self._task = self._ray.remote(num_cpus=0, max_retries=0)(task())

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the cluster, or those named."""
        found = []
        for node, identity in members(self._ray.nodes()):
            self._ids[node.name] = identity
            found.append(node)
        if self._named:
            by_name = {key: node for node in found for key in (node.address, node.name)}
            found = [
                by_name.get(wanted.name, Node(name=wanted.name, unreachable="Ray has no node of that name or address"))
                for wanted in self._named
            ]
        return tuple(
            Node(name=node.name, address=node.address, number=number, unreachable=node.unreachable) for number, node in enumerate(found)
        )

    @asynccontextmanager
    async def session(self, nodes: Sequence[Node], command_of: CommandOf, timeout_s: float) -> AsyncIterator[Ask]:
        """Nothing to make ready: what a node lacks is sent when it says so."""
        package: list[tuple[str, Any]] = []

        async def ask(node: Node, hear: Hear) -> Ended:
            command = list(command_of(str(node.number)))
            said = await self._on(node, command, timeout_s, ("", None))
            if said is None:
                if not package:
                    from dsdoctor.fleet.run import ship

                    package.append((ship.platform_tag(), self._ray.put(ship.package())))
                said = await self._on(node, command, timeout_s, package[0])
            if said is None:
                raise NoAnswer("dsdoctor is not installed there and could not be sent")
            return Ended(**said)

        yield ask

    async def _on(self, node: Node, command: Sequence[str], timeout_s: float, package: tuple[str, Any]) -> Mapping[str, Any] | None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        pinned = strategies.NodeAffinitySchedulingStrategy(node_id=self._ids[node.name], soft=False)
        pinned_task = self._task.options(scheduling_strategy=pinned, name=PROGRAM)
        reference = pinned_task.remote(list(command), PROGRAM, timeout_s, TAIL_BYTES, *package)
        try:
            answer: Mapping[str, Any] | None = await asyncio.wrap_future(reference.future())
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                # Not by force: the task ends what it started there.
                self._ray.cancel(reference)
            raise
        except Exception as error:
            raise NoAnswer(one_line(f"Ray: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")) from None
        return answer


def connected(address: str) -> Any:
    """The module `ray`, connected to the cluster. Raises UsageError with the remedy."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"--ray: this Python has no Ray ({error}); run dsdoctor with the Python of the cluster, or install dsdoctor[ray] in the cluster's version"
        ) from None
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in address:
        # ray.init would try for a minute.
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            raise UsageError(
                f"--ray {address}: nothing answers there ({error.strerror or error}); is that the address of the head's GCS (port 6379)?"
            ) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False, namespace=PROGRAM)
    except Exception as error:
        raise UsageError(f"--ray {address}: {one_line(str(error)) or type(error).__name__}") from None
    # Before Ray's own farewell, which waits half a second for the words of workers; they were not asked for.
    atexit.register(ray.shutdown)
    return ray


def members(all_nodes: Sequence[Mapping[str, Any]]) -> list[tuple[Node, str]]:
    """Nodes with their ids in Ray: the living, and those that died without being taken away and did not come back."""
    alive = [node for node in all_nodes if node["Alive"]]
    there = {node["NodeManagerAddress"] for node in alive}
    lost = {
        node["NodeManagerAddress"]: node
        for node in all_nodes
        if not node["Alive"] and node.get("DeathReason") == UNEXPECTED and node["NodeManagerAddress"] not in there
    }
    found = []
    for name, node in named_apart([*alive, *lost.values()]).items():
        why = "" if node["Alive"] else one_line(f"Ray lost it: {node.get('DeathReasonMessage') or 'it stopped answering'}")
        found.append((Node(name=name, address=node["NodeManagerAddress"], unreachable=why), node["NodeID"]))
    return found


def named_apart(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Ray's nodes by host name; where several share one, the address or the beginning of the id tells them apart."""
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    pairs = Counter((node["NodeManagerHostname"], node["NodeManagerAddress"]) for node in nodes)
    named = {}
    for node in nodes:
        host, address = node["NodeManagerHostname"] or node["NodeManagerAddress"], node["NodeManagerAddress"]
        apart = (
            ""
            if hosts[node["NodeManagerHostname"]] == 1
            else address
            if pairs[node["NodeManagerHostname"], address] == 1
            else node["NodeID"][:8]
        )
        named[f"{host}-{apart}" if apart else host] = node
    return named


def task() -> Callable[..., dict[str, Any] | None]:
    """What runs on a node. A function in a function, so that it travels by value: a node may know nothing of dsdoctor."""

    def answer(
        command: list[str], program: str, timeout_s: float, tail_bytes: int, tag: str, package: bytes | None
    ) -> dict[str, Any] | None:
        import io
        import os
        import platform
        import shutil
        import signal
        import subprocess
        import sys
        import tempfile
        import time
        import zipfile

        # Ray hides all GPUs from a task that asks for none; its parent on the node, the raylet, has the environment as it is there.
        environment = dict(os.environ)
        preloaded = environment.get("LD_PRELOAD")
        try:
            with open(f"/proc/{os.getppid()}/environ", "rb") as file:
                pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
            environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
            # What the raylet preloads is its own.
            environment.pop("LD_PRELOAD", None)
            environment.update({"LD_PRELOAD": preloaded} if preloaded else {})
        except OSError:
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        beside = os.path.join(os.path.dirname(sys.executable), command[0])
        path = environment.get("PATH", os.defpath)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dsdoctor-", ignore_cleanup_errors=True) as folder:
            here = f"{sys.implementation.cache_tag} {platform.machine()}"
            if package is not None and tag != here:
                return {"outcome": "not_found", "detail": f"dsdoctor is not installed there, and what is sent is for {tag}, not for {here}"}
            if package is not None:
                zipfile.ZipFile(io.BytesIO(package)).extractall(folder)
                argv = [sys.executable, "-I", folder, *command[1:]]
            elif shutil.which(command[0], path=path):
                argv = command
            elif os.access(beside, os.X_OK):
                argv = [beside, *command[1:]]
            elif command[0] == program:
                return None
            else:
                return {"outcome": "not_found", "detail": f"{command[0]}: no such command on this node"}
            if command[0] == program and command[1:2] and "--python" not in command:
                # The interpreter of Ray's workers is the one that serves.
                argv = [*argv, "--python", sys.executable]
            if shutil.which("timeout", path=path):
                # A worker that is killed with its job ends nothing any more.
                argv = ["timeout", "-k", "3", f"{timeout_s + 3:g}", *argv]
            process = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            try:
                out, err = process.communicate(timeout=timeout_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return {"outcome": "timed_out", "elapsed_s": round(time.monotonic() - started, 3)}
        return {
            "outcome": "exited" if process.returncode >= 0 else "signal",
            "code": abs(process.returncode),
            "stdout": out.decode("utf-8", "replace"),
            "stderr": err[-tail_bytes:].decode("utf-8", "replace"),
            "elapsed_s": round(time.monotonic() - started, 3),
        }

    return answer
