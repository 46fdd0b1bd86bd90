"""What `dsdoctor fleet run` adds to the slowest node: a local Ray cluster of eight nodes against eight checks at once without an engine.

    python benchmarks/fleet_run.py [--nodes 8] [--rounds 3]

Needs dsdoctor[ray,fleet]. Both sides run on the same cores, in turn. The budget is 3 s over the slowest node. On one machine the nodes share its
cores, also for the start of a Ray worker each; the processor time tells what the machine that asks would spend alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ray.cluster_utils import Cluster

BUDGET_S = 3.0
DSDOCTOR = str(Path(sys.executable).with_name("dsdoctor"))


def checks(nodes: int) -> float:
    """Seconds of the slowest of several checks at once, as many as nodes."""
    argv = [DSDOCTOR, "check", "--format", "json", "--fail-on", "never", "--python", sys.executable]
    started = time.monotonic()
    running = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(nodes)]
    for process in running:
        process.wait()
    return time.monotonic() - started


def fleet(address: str, nodes: int) -> float:
    """Seconds of the whole command, from its start to the merged answer."""
    folder = tempfile.mkdtemp(prefix="dsdoctor-benchmark-")
    try:
        argv = [DSDOCTOR, "fleet", "run", "--ray", address, "--output-dir", folder, "--format", "json", "--fail-on", "never"]
        started = time.monotonic()
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
        elapsed_s = time.monotonic() - started
        kept = [path for path in Path(folder, "reports").glob("*.json") if "no-report" not in path.read_text()[:60]]
        if len(kept) != nodes:
            raise SystemExit(f"{len(kept)} of {nodes} nodes have a report\n{done.stdout[-2000:]}")
        return elapsed_s
    finally:
        shutil.rmtree(folder)


def measured(work: Callable[[], float]) -> tuple[float, float]:
    """Wall seconds, and the processor seconds of what this process started (not of Ray's workers)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print both medians, their ratio, and what is added."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(asked.nodes - 1):
            cluster.add_node(num_cpus=1)
        alone, through = [], []
        for _ in range(asked.rounds):
            alone.append(measured(lambda: checks(asked.nodes)))
            through.append(measured(lambda: fleet(cluster.address, asked.nodes)))
        slowest, check_cpu = (statistics.median(column) for column in zip(*alone))
        whole, own_cpu = (statistics.median(column) for column in zip(*through))
        print(f"{asked.nodes} nodes on {os.cpu_count()} cores, median of {asked.rounds}")
        print(f"slowest node   {slowest:6.2f} s   ({', '.join(f'{one[0]:.2f}' for one in alone)})")
        print(f"fleet run      {whole:6.2f} s   ({', '.join(f'{one[0]:.2f}' for one in through)})")
        print(f"ratio          {whole / slowest:6.2f}     added {whole - slowest:.2f} s, budget {BUDGET_S:g} s")
        print(f"processor time of one check {check_cpu / asked.nodes:.2f} s, of the machine that asks {own_cpu:.2f} s")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
