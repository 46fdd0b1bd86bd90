#!/usr/bin/env python3
"""Measure `dsdoctor fleet merge` on fleets of 1,000 to 100,000 generated reports: time, memory, growth, and whether all planted oddities are found.

    python benchmarks/fleet.py [--nodes 1000 10000 30000] [--runs N] [--bad 1000] [--folder DIR]

Each run is a whole process. As a measure of the machine, the same files are read by one `json.loads` each; `ratio` is processor time to processor time. The last line of each fleet says how
many of the planted oddities were found and how many others were reported; the last table merges the first fleet again with corrupt reports in it. A
fleet of 10,000 takes 1.5 GB of disk, one of 100,000 in single files 15 GB: `--folder` says where. Nothing here is a test: it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fleet_generator

BUDGETS = {10_000: (10.0, 1000)}
"""Seconds and megabytes."""
GROWTH_BUDGET = 1.2
"""How much more time per report a large fleet may take than one of 10,000."""
OTHERS_BUDGET = 2
CHECK_OF = {
    "driver": ("fleet.node-differs", "driver"), "vbios": ("fleet.node-differs", "vbios"), "kernel": ("fleet.node-differs", "kernel"),
    "nccl": ("nccl.version-differs", "nccl"), "torch": ("fleet.node-differs", "torch"), "variable": ("fleet.node-differs", "env.NCCL_P2P_DISABLE"),
    "gpu-gone": ("fleet.node-differs", "topology"), "fabric-manager": ("fleet.node-differs", "service.nvidia-fabricmanager"),
    "finding": ("gpu.ecc-uncorrectable", ""), "slow-gpu": ("fleet.slow-gpu", "fp8-rate torch._scaled_mm"), "clock": ("fleet.clock-skew", "clock"),
    "no-report": ("fleet.no-report", "no answer within 300 s"),
}  # fmt: skip
"""How an oddity of each kind has to be told: check and subject."""


def measure(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak megabytes of one run. Raises SystemExit when it did not end with an answer."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def loads(folder: Path) -> float:
    """Processor seconds of one json.loads a file."""
    started = time.process_time()
    for path in folder.iterdir():
        json.loads(path.read_bytes())
    return time.process_time() - started


def reported(answer: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Node, check and subject of everything that is told of single nodes; what most nodes have is no oddity."""
    problems = {problem["number"]: problem for problem in answer["problems"]}
    half = answer["counts"]["nodes"] / 2
    return {
        (node["name"], problems[number]["check"], problems[number]["subject"])
        for node in answer["nodes"]
        for number in node["problems"]
        if problems[number]["nodes"] < half
    }


def judged(answer: dict[str, Any], planted: list[dict[str, str]]) -> tuple[int, int]:
    """How many planted oddities were found, and how many others were reported."""
    wanted = {(item["node"], *CHECK_OF[item["kind"]]) for item in planted}
    found = reported(answer)
    return len(wanted & found), len(found - wanted)


def corrupt(folder: Path, bad: int) -> None:
    """Beside the good reports: half-written ones, foreign ones, no JSON at all."""
    good = next(folder.glob("node*.json")).read_text(encoding="utf-8")
    texts = (
        good[: len(good) // 2],
        '{"schema": "other/1"}',
        "no JSON at all",
        good.replace("dsdoctor.report/1", "dsdoctor.report/9", 1),
        "",
    )
    for number in range(bad):
        (folder / f"bad{number:05d}.json").write_text(texts[number % len(texts)], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000, 30_000])
    parser.add_argument("--oddities", type=int, default=37)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bad", type=int, default=1000, help="corrupt reports in the last table")
    parser.add_argument("--folder", help="where the fleets are written and removed again")
    options = parser.parse_args()
    base = fleet_generator.base_report()
    merge = [sys.executable, "-m", "dsdoctor", "fleet", "merge"]
    each: dict[int, float] = {}
    print(
        f"{'reports':>8s} {'MB':>6s} {'merge s':>8s} {'min':>6s} {'cpu s':>6s} {'peak MB':>8s} {'loads cpu s':>12s} {'ratio':>6s} {'found':>7s} {'others':>7s}  budget"
    )
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            planted = fleet_generator.write(folder, base, nodes, options.oddities)
            reports, answer = folder / "reports", folder / "fleet.json"
            size = sum(entry.stat().st_size for entry in os.scandir(reports)) / 1e6
            command = [*merge, str(reports), "-o", str(answer)]
            runs, readings = [], []
            for _ in range(options.runs):
                runs.append(measure(command))
                readings.append(loads(reports))
            wall, least, cpu, peak = (
                statistics.median(run[0] for run in runs),
                min(run[0] for run in runs),
                statistics.median(run[1] for run in runs),
                max(run[2] for run in runs),
            )
            reading = statistics.median(readings)
            found, others = judged(json.loads(answer.read_bytes()), planted)
            each[nodes] = cpu / nodes
            seconds, megabytes = BUDGETS.get(nodes, (0.0, 0))
            budget = f"{seconds:g} s, {megabytes} MB" if seconds else ""
            print(
                f"{nodes:8d} {size:6.0f} {wall:8.2f} {least:6.2f} {cpu:6.1f} {peak:8.0f} {reading:12.1f} {cpu / reading:6.2f} {found:3d}/{len(planted):<3d} {others:7d}  {budget}"
            )
            if nodes == min(options.nodes) and options.bad:
                corrupt(reports, options.bad)
                with_bad = [measure(command) for _ in range(options.runs)]
                bad_cpu, bad_wall = statistics.median(run[1] for run in with_bad), statistics.median(run[0] for run in with_bad)
                print(
                    f"{'':8s} with {options.bad} corrupt reports beside them: {bad_wall:.2f} s, {bad_cpu:.1f} cpu s; {1000 * (bad_cpu - cpu) / options.bad:.2f} ms for each, a good one takes {1000 * cpu / nodes:.2f} ms"
                )
            shutil.rmtree(reports)
    reference = 10_000 if 10_000 in each else min(each)
    for nodes, seconds in each.items():
        if nodes != reference:
            print(
                f"{nodes} / {reference}: processor time of a report {seconds / each[reference]:.2f}"
                + (f" (budget {GROWTH_BUDGET})" if nodes > reference else "")
            )
    print(f"budget: all planted oddities found, at most {OTHERS_BUDGET} others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
