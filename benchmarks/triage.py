#!/usr/bin/env python3
"""Measure `dsdoctor triage` on logs of 5, 50 and 200 MB: time, peak memory, and how both grow.

    python benchmarks/triage.py [--sizes 5 50 200] [--runs N] [--dsdoctor DIR]

The logs are made up as an engine with eight workers writes them, with a few known errors at their ends. Each run is a whole process; the median of the runs counts. `--dsdoctor` is
a folder with an installed wheel (`pip install --no-deps --target DIR`); a checkout reads its matrices as YAML, which is slower by about a second. Nothing here is a test: it prints.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEGABYTE = 10**6
BUDGETS = {5: (1.0, 200)}
"""Seconds and megabytes."""
GROWTH_BUDGET = 1.2
"""How much more time per byte a large log may take than a small one."""
LINES = (
    "(Worker_TP{rank} pid={pid}) INFO 11-29 13:{minute:02}:{second:02} [gpu_model_runner.py:{number}] Loading model weights took {number}.{second} GiB",
    "node-1:{pid}:{pid} [{rank}] NCCL INFO Channel {rank:02}/0 : {rank}[{rank}] -> 1[1] via P2P/CUMEM/read",
    "node-1:{pid}:{pid} [{rank}] NCCL INFO Connected all trees",
    "(APIServer pid={pid}) INFO:     10.0.0.{second}:{pid} - \"POST /v1/chat/completions HTTP/1.1\" 200 OK",
    "(EngineCore_DP{rank} pid={pid}) INFO 11-29 13:{minute:02}:{second:02} [loggers.py:{number}] Engine 000: Avg prompt throughput: {number}.0 tokens/s, Running: {second} reqs, GPU KV cache usage: {second}.1%",
    "[rank{rank}]:   File \"/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py\", line {number}, in execute_model",
    "[2026-11-29 13:{minute:02}:{second:02} TP{rank}] Decode batch. #running-req: {second}, #token: {pid}, token usage: 0.{second}, gen throughput (token/s): {number}.1",
    "[  {number}.{pid}] systemd[1]: Started Session {pid} of user root.",
    "plain words of a program that says what it does, at step {number} of {pid}",
)  # fmt: skip
END = (
    "(Worker_TP3 pid=77) RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    "node-1:77:77 [3] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
    "RuntimeError: Engine core initialization failed. See root cause above.\n"
)


def write_log(path: Path, size: int) -> None:
    """A log of that many bytes."""
    chance = random.Random(7)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            block = "".join(
                chance.choice(LINES).format(
                    rank=chance.randrange(8),
                    pid=chance.randrange(100_000, 999_999),
                    number=chance.randrange(999),
                    minute=chance.randrange(60),
                    second=chance.randrange(60),
                )
                + "\n"
                for _ in range(500)
            )
            written += file.write(block)
        file.write(END)


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds and peak megabytes of one run. Raises SystemExit when it did not end with a report."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return elapsed, usage.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 50, 200], help="in MB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dsdoctor", default="", help="folder with an installed wheel")
    options = parser.parse_args()
    environment = {**os.environ, **({"PYTHONPATH": options.dsdoctor} if options.dsdoctor else {})}
    taken: dict[int, tuple[float, float]] = {}
    print(f"{'log':>8s} {'median s':>9s} {'min':>7s} {'peak MB':>8s} {'ms per MB':>10s}  budget")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "empty.log"
        write_log(small, 0)
        base, _ = measure([sys.executable, "-m", "dsdoctor", "triage", str(small)], environment)
        for size in options.sizes:
            log = Path(folder) / f"{size}.log"
            write_log(log, size * MEGABYTE)
            runs = [measure([sys.executable, "-m", "dsdoctor", "triage", str(log)], environment) for _ in range(options.runs)]
            seconds, peak = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
            taken[size] = seconds, peak
            budget = BUDGETS.get(size)
            told = f"{budget[0]:g} s, {budget[1]} MB" if budget else ""
            print(f"{size:>5d} MB {seconds:9.2f} {min(run[0] for run in runs):7.2f} {peak:8.0f} {seconds * 1000 / size:10.0f}  {told}")
            log.unlink()
    print(f"\nan empty log takes {base:.2f} s")
    first = min(taken)
    for size, (seconds, peak) in taken.items():
        if size != first:
            per_byte = (seconds - base) / size / max((taken[first][0] - base) / first, 1e-9)
            print(f"{size} MB / {first} MB: time per byte {per_byte:.2f} (budget {GROWTH_BUDGET}), memory {peak / taken[first][1]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
