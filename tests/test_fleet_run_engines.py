"""`fleet run` through real engines: Slurm with node daemons on loopback, Ray with several nodes, also in network namespaces of their own.

Opt-in, since they take a minute: `pytest -m slurm`, `pytest -m ray`. Collectives need $DSDOCTOR_TEST_TORCH_PYTHON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TORCH_PYTHON = os.environ.get("DSDOCTOR_TEST_TORCH_PYTHON", "")
DSDOCTOR = [sys.executable, "-m", "dsdoctor"]
CHECK = [*DSDOCTOR, "check", "--quick", "--format", "json", "--fail-on", "never"]


def fleet_run(folder: Path, *arguments: str, environment: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """The command's end, and what is kept by node."""
    argv = [*before, *DSDOCTOR, "fleet", "run", "--output-dir", str(folder), "--format", "json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, env=environment, cwd=folder.parent)
    kept = {path.stem: json.loads(path.read_text()) for path in (folder / "reports").glob("*.json")} if folder.exists() else {}
    return done, kept


def reasons(kept: dict[str, Any]) -> dict[str, str]:
    return {name: document.get("reason", "") for name, document in kept.items()}


# --- Slurm --------------------------------------------------------------------------------------------------------------


def slurm_cluster() -> Any:
    """The module beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location("slurm_cluster", Path(__file__).with_name("slurm_cluster.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_slurm_runs_it_on_every_node_and_tells_of_those_that_it_cannot_use(tmp_path: Path) -> None:
    slurm = slurm_cluster()
    if why := slurm.unavailable():
        pytest.skip(why)
    command = shlex.join(CHECK)
    with slurm.SlurmCluster(tmp_path / "slurm", nodes=3) as cluster:
        environment = cluster.client_environment
        done, kept = fleet_run(tmp_path / "all", "--slurm", "--command", command, environment=environment)
        assert reasons(kept) == {"node1": "", "node2": "", "node3": ""}
        assert json.loads(done.stdout)["counts"]["nodes"] == 3
        assert {document["origin"]["label"] for document in kept.values()} == {"node1", "node2", "node3"}

        cluster.run("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=GPU 3 fell off")
        busy = subprocess.Popen(["srun", "-w", "node3", "--exclusive", "-n1", "sleep", "100"], env=environment)
        try:
            cluster.wait("a busy node", lambda: "ALLOCATED" in cluster.node("node3").state)
            done, kept = fleet_run(
                tmp_path / "some", "--slurm", "--hosts", "node[1-4]", "--node-timeout", "15", "--command", command, environment=environment
            )
        finally:
            busy.terminate()
            busy.wait()
        found = reasons(kept)
        assert done.returncode == 1
        assert (found["node1"], found["node4"]) == ("", "Slurm has no node of that name")
        assert found["node2"] == "Slurm starts nothing on it, its state is drain: GPU 3 fell off"
        assert "queued and waiting for resources" in found["node3"]
        assert not cluster.run("squeue", "-h", "-n", "dsdoctor").stdout

        cluster.wait("an idle node", lambda: "IDLE" in cluster.node("node3").state)
        _, kept = fleet_run(
            tmp_path / "job", "--slurm", "--command", command, environment=environment, before=("salloc", "-Q", "-w", "node[1,3]")
        )
        assert reasons(kept) == {"node1": "", "node3": ""}


# --- Ray ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Network namespaces on one bridge, 10.77.0.1 and on; gone at the end with all that runs in them."""
    names = [f"dsd{os.getpid() % 10000}n{number}" for number in range(1, count + 1)]
    bridge = f"dsd{os.getpid() % 10000}b"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        try:
            ip("link", "add", bridge, "type", "bridge")
            stack.callback(subprocess.run, ["ip", "link", "del", bridge], capture_output=True)
            ip("link", "set", bridge, "up")
            for number, name in enumerate(names, 1):
                ip("netns", "add", name)
                stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
                stack.callback(end_all_in, name)
                ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", f"{name}h", "master", bridge, "up")
                ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names


def end_all_in(namespace: str) -> None:
    for pid in subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split():
        with contextlib.suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)


def inside(namespace: str, host: str, *argv: str) -> list[str]:
    """The command in a namespace, on a machine of that name."""
    return ["ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *argv]


def interpreter_without_dsdoctor(folder: Path) -> str:
    """A Python that has what this one has, but not the command dsdoctor beside it."""
    venv.create(folder)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "all.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    return str(folder / "bin" / "python")


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_ray_nodes_that_share_nothing_but_a_network(tmp_path: Path) -> None:
    """Three machines by network and name. The workers have Ray and not dsdoctor, which is sent to them; one machine is lost."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (dsdoctor[ray])")
    workers_python = interpreter_without_dsdoctor(tmp_path / "venv")
    ray = [workers_python, "-m", "ray.scripts.scripts"]
    environment = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GLOO_SOCKET_IFNAME": "eth0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    temporary = f"/tmp/dsd{os.getpid()}"
    try:
        with namespaces(3) as names:
            for number, name in enumerate(names, 1):
                head = ("--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={temporary}")
                start = head if number == 1 else ("--address=10.77.0.1:6379",)
                argv = [*ray, "start", *start, f"--node-ip-address=10.77.0.{number}", "--num-cpus=1", "--object-store-memory=100000000"]
                subprocess.run(inside(name, f"gpu{number}", *argv), check=True, capture_output=True, env=environment, timeout=60)
            driver = tuple(inside(names[0], "gpu1"))
            across = ("--collective", "--command", f"dsdoctor check --quick --format json --python {TORCH_PYTHON}") if TORCH_PYTHON else ()
            done, kept = fleet_run(
                tmp_path / "all", "--ray", "10.77.0.1:6379", "--node-timeout", "90", *across, environment=environment, before=driver
            )
            assert reasons(kept) == {"gpu1": "", "gpu2": "", "gpu3": ""}, done.stderr
            if across:
                collective = json.loads((tmp_path / "all" / "collective.json").read_text())
                assert (collective["ok"], collective["ranks"], collective["backend"]) == (True, 3, "gloo")

            end_all_in(names[2])
            end = time.monotonic() + 60
            while True:
                shutil.rmtree(tmp_path / "less", ignore_errors=True)
                done, kept = fleet_run(
                    tmp_path / "less", "--ray", "10.77.0.1:6379", "--node-timeout", "90", environment=environment, before=driver
                )
                if "lost" in reasons(kept).get("gpu3", "") or time.monotonic() > end:
                    break
            assert reasons(kept)["gpu1"] == reasons(kept)["gpu2"] == ""
            assert kept["gpu2"]["target"] == workers_python
            assert reasons(kept)["gpu3"].startswith("Ray lost it: ")
            assert done.returncode == 1
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
