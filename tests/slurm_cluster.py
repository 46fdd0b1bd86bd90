"""A Slurm cluster on loopback: one controller and some node daemons of this machine, with ports, state and logs of their own.

Needs `slurmctld`, `slurmd` and the client commands (Debian: `apt-get install slurmctld slurmd slurm-client`), no configuration and no service.
No munge either: the daemons trust each other (`auth/none`), so that this is for tests only. Several node daemons on one host need Slurm built
with `--enable-multiple-slurmd`, as Debian's is. `unavailable()` says why a cluster cannot be started here.

    with SlurmCluster(tmp_path, nodes=2, HealthCheckProgram="/path/check.sh", HealthCheckInterval=5) as cluster:
        cluster.run("srun", "-N2", "hostname")
        cluster.node("node1").state
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

COMMANDS = ("slurmctld", "slurmd", "scontrol", "sinfo", "srun")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
T = TypeVar("T")


def unavailable() -> str:
    """Why no cluster can be started here; empty when one can."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    missing = [name for name in COMMANDS if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "Slurm's node daemon wants to be root"


@dataclass(frozen=True)
class Node:
    """What the controller says about a node."""

    name: str
    state: frozenset[str]
    """`{"IDLE"}`, `{"IDLE", "DRAIN"}` …"""
    reason: str

    @property
    def drained(self) -> bool:
        """Whether no new job goes there."""
        return bool(self.state & {"DRAIN", "DRAINED", "DRAINING"})


class SlurmCluster:
    """The daemons of one cluster, started by `with` and ended with it.

    `options` are lines of slurm.conf; `environment` is that of the daemons, and so of the programs that they start.
    """

    def __init__(
        self, directory: Path, nodes: int = 2, cpus: int = 2, environment: Mapping[str, str] | None = None, **options: object
    ) -> None:
        self.directory, self.nodes, self.cpus = Path(directory), nodes, cpus
        self.environment, self.options = environment or {}, options
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """node1, node2 …"""
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    @property
    def configuration(self) -> Path:
        """The file slurm.conf; clients find it through `SLURM_CONF`."""
        return self.directory / "slurm.conf"

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment in which `srun` and the others talk to this cluster."""
        path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
        return {**os.environ, "PATH": path, **self.environment, "SLURM_CONF": str(self.configuration)}

    def __enter__(self) -> SlurmCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "state").mkdir(exist_ok=True)
        self.configuration.write_text(self._configuration_text())
        try:
            self._start("slurmctld", "-D", "-c")
            for name in self.names:
                self._start("slurmd", "-D", "-N", name)
            self.wait("nodes that have registered", lambda: all(self.node(name).state & {"IDLE", "DRAIN"} for name in self.names))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def run(self, *command: str, timeout_s: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a client command against this cluster."""
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=check, env=self.client_environment, cwd=self.directory
        )

    def node(self, name: str) -> Node:
        """What the controller says about a node now; no state at all while it does not answer."""
        said = self.run("scontrol", "--oneliner", "show", "node", name, check=False).stdout
        state = re.search(r"\bState=(\S+)", said)
        reason = re.search(r"\bReason=(.*?)(?: \[[^\]]*\])?\s*$", said)
        parts = re.split(r"[+*]", state[1]) if state else ()
        return Node(name, frozenset(filter(None, parts)), reason[1] if reason else "")

    def wait(self, what: str, met: Callable[[], T], timeout_s: float = 60) -> T:
        """Ask until the answer is true, and give it back; an error with the daemons' logs when that takes too long."""
        end = time.monotonic() + timeout_s
        while not (answer := met()):
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"{f'{dead} ended' if dead else f'no {what} in {timeout_s:.0f} s'}\n{self.logs()}")
            time.sleep(0.25)
        return answer

    def logs(self, lines: int = 30) -> str:
        """The last lines of every daemon's log."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted(self.directory.glob("*.log"))
        )

    def stop(self) -> None:
        """End the daemons that this cluster started, the node daemons first."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def _start(self, *command: str) -> None:
        with open(self.directory / f"{'-'.join((command[0], *command[3:]))}.out.log", "wb") as log:
            self._daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.client_environment, cwd=self.directory))

    def _configuration_text(self) -> str:
        host = platform.node().partition(".")[0]
        here = self.directory
        ports = _free_ports(self.nodes + 1)
        settings: dict[str, object] = {
            "ClusterName": "loopback",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/none",
            "CredType": "cred/none",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SlurmdParameters": "config_overrides",
            "ReturnToService": 2,
            "StateSaveLocation": here / "state",
            "SlurmdSpoolDir": here / "spool.%n",
            "SlurmctldPidFile": here / "slurmctld.pid",
            "SlurmdPidFile": here / "slurmd.%n.pid",
            "SlurmctldLogFile": here / "slurmctld.log",
            "SlurmdLogFile": here / "slurmd.%n.log",
            **self.options,
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines += [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus}"
            for name, port in zip(self.names, ports[1:])
        ]
        return "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES State=UP", ""])


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on."""
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]
