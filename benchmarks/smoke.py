#!/usr/bin/env python3
"""Measure what the GPU tests cost, against the floor that any such test pays, and print the ratios.

    python benchmarks/smoke.py [--runs N] [--python PATH]

The floor is one process that imports torch, starts CUDA, runs its first FP8 product and, where fa3-fwd is installed, its first FlashAttention-3
call. Commands take turns; figures are medians after one warm-up. The highest GPU memory in use is read through NVML meanwhile.
With several GPUs, one GPU and all of them are compared too. Needs a GPU with FP8.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time

FLOOR = """
import torch
a = torch.randn(256, 1024, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(512, 1024, device="cuda").to(torch.float8_e4m3fn).t()
one = torch.ones((), device="cuda")
torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
try:
    from fa3_fwd_interface import flash_attn_func
except ImportError:
    pass
else:
    q = torch.randn(1, 512, 8, 128, device="cuda", dtype=torch.bfloat16)
    flash_attn_func(q, q, q, causal=True)
torch.cuda.synchronize()
"""
BUDGETS = (("dsdoctor smoke", "floor", 1.5), ("dsdoctor check", "floor", 1.5), ("dsdoctor smoke", "dsdoctor smoke --gpu 0", 1.15))


class MemoryWatch(threading.Thread):
    """Highest memory in use on any GPU above what was in use before, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import pynvml

        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._read = pynvml.nvmlDeviceGetMemoryInfo
        self._before = self._used()
        self.highest = 0
        self.gpus = len(self._handles)
        self._stop_asked = threading.Event()

    def _used(self) -> list[int]:
        return [self._read(handle).used for handle in self._handles]

    def forget(self) -> None:
        """Begin anew, once what the last command's processes held is free again: a process that was killed gives its memory back a moment later."""
        deadline = time.monotonic() + 10.0
        while max(now - then for now, then in zip(self._used(), self._before, strict=True)) > 64 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.highest = 0

    def run(self) -> None:
        while not self._stop_asked.wait(0.02):
            self.highest = max(self.highest, *(used - before for used, before in zip(self._used(), self._before, strict=True)))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def seconds(argv: list[str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    elapsed = time.perf_counter() - started
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    doctor = [sys.executable, "-m", "dsdoctor"]
    table = {
        "floor": [options.python, "-c", FLOOR],
        "dsdoctor smoke": [*doctor, "smoke", "--python", options.python],
        "dsdoctor check": [*doctor, "check", "--python", options.python],
    }
    watch = MemoryWatch()
    if watch.gpus > 1:
        table["dsdoctor smoke --gpu 0"] = [*doctor, "smoke", "--gpu", "0", "--python", options.python]
        table["dsdoctor check --gpu 0"] = [*doctor, "check", "--gpu", "0", "--python", options.python]
    for argv in table.values():
        seconds(argv)
    watch.start()
    runs: dict[str, list[float]] = {name: [] for name in table}
    memory = dict.fromkeys(table, 0)
    for _ in range(options.runs):
        for name, argv in table.items():
            watch.forget()
            runs[name].append(seconds(argv))
            memory[name] = max(memory[name], watch.highest)
    watch.stop()
    print(f"{'command':28s} {'median s':>9s} {'min':>7s} {'max':>7s} {'GiB on one GPU':>15s}")
    for name, values in runs.items():
        print(f"{name:28s} {statistics.median(values):9.2f} {min(values):7.2f} {max(values):7.2f} {memory[name] / 2**30:15.2f}")
    print(f"\n{'ratio':50s} {'median':>7s} {'budget':>7s}")
    for above, below, budget in BUDGETS:
        if above in runs and below in runs:
            ratio = statistics.median(a / b for a, b in zip(runs[above], runs[below], strict=True))
            print(f"{above + ' / ' + below:50s} {ratio:7.2f} {budget:7.2f}")
    print("\nThe budget of memory is 2.00 GiB for the tests of one GPU; between several, NCCL alone takes more.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
