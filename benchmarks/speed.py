#!/usr/bin/env python3
"""Measure the budgets of the command line side by side and print them as ratios.

    python benchmarks/speed.py [--runs N] [--python PATH]

Every command is a whole process; the commands take turns (A B C A B C …), so that a machine that changes its speed changes it for all.
Figures are the median of the runs after one warm-up. `--python` is the interpreter that holds torch (default: this one). Rows that need torch
or a GPU are left out where there is none. Nothing here is a test: it prints, and a person judges.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

FIRST_TENSOR = "import torch; torch.zeros(1).cuda()"


def commands(python: str) -> dict[str, list[str]]:
    doctor = [sys.executable, "-m", "dsdoctor"]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dsdoctor --help": [*doctor, "--help"],
        "dsdoctor check --quick": [*doctor, "check", "--quick", "--python", python],
        "dsdoctor check --ignore smoke": [*doctor, "check", "--ignore", "smoke", "--python", python],
        "dsdoctor check": [*doctor, "check", "--python", python],
        "torch import + first CUDA tensor": [python, "-c", FIRST_TENSOR],
        "torch.utils.collect_env": [python, "-m", "torch.utils.collect_env"],
    }


BUDGETS = (
    ("dsdoctor --help", "python -c pass", 10.0),
    ("dsdoctor check --quick", "torch.utils.collect_env", 0.2),
    ("dsdoctor check --ignore smoke", "torch import + first CUDA tensor", 1.3),
)


def seconds(argv: list[str]) -> float | None:
    """Wall time of one run, or None when the program cannot do its work here."""
    started = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elapsed = time.perf_counter() - started
    usable = (0, 1) if "dsdoctor" in argv else (0,)
    return elapsed if done.returncode in usable else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    table = commands(options.python)
    table = {name: argv for name, argv in table.items() if seconds(argv) is not None}
    runs: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(options.runs):
        for name, argv in table.items():
            runs[name].append(seconds(argv) or 0.0)
    print(f"{'command':36s} {'median s':>9s} {'min':>7s} {'max':>7s}")
    for name, values in runs.items():
        print(f"{name:36s} {statistics.median(values):9.3f} {min(values):7.3f} {max(values):7.3f}")
    print(f"\n{'ratio':74s} {'median':>7s} {'budget':>7s}")
    for above, below, budget in BUDGETS:
        if above in runs and below in runs:
            ratio = statistics.median(a / b for a, b in zip(runs[above], runs[below], strict=True))
            print(f"{above + ' / ' + below:74s} {ratio:7.2f} {budget:7.2f}")
        else:
            print(f"{above + ' / ' + below:74s} not measured here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
