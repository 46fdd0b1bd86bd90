#!/usr/bin/env python3
"""Show where the time and the memory of the GPU tests go: what each child says and when, with the GPU memory in use at that moment.

    python benchmarks/smoke_timeline.py [--python PATH] [--gpus 0,1] [--level full] [TEST ...]

One line an event: seconds since the start, memory in use on each GPU above what was in use before (GiB), child, event. Then each GPU's highest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsdoctor.sources.host import Host
from dsdoctor.sources.target import locate, run_script

smoke = importlib.import_module("dsdoctor.probes.smoke")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
meter = importlib.import_module("dsdoctor.probes.smoke_meter")
TAKEN = ("gpu", "test", "name", "path", "outcome", "reason", "import_s", "init_s", "elapsed_s", "kind")


def watch(nvml: Any, devices: Any, samples: list[tuple[float, list[int]]], stop: threading.Event) -> None:
    """Memory in use on each GPU, fifty times a second."""
    while not stop.wait(0.02):
        samples.append((time.monotonic(), [nvml.nvmlDeviceGetMemoryInfo(device.handle).used for device in devices]))


def memory_at(samples: list[tuple[float, list[int]]], at: float) -> list[int]:
    """The sample next to a moment."""
    return min(samples, key=lambda sample: abs(sample[0] - at))[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gpus", default="")
    parser.add_argument("--level", default="default")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    host = Host(environment=dict(os.environ))
    target = locate(host, options.python)
    nvml, devices, why = meter.find_devices(host)
    if nvml is None:
        sys.exit(why)
    wanted = {int(index) for index in options.gpus.split(",") if index}
    devices = tuple(device for device in devices if not wanted or device.index in wanted)
    tests = table.chosen(tuple(options.tests), options.level)
    lacking = {result.test for result in smoke.unmet(host, target, tests, len(devices))}
    children = smoke.plan([test for test in tests if test.name not in lacking], devices, options.level)
    before = [nvml.nvmlDeviceGetMemoryInfo(device.handle).used for device in devices]
    samples: list[tuple[float, list[int]]] = []
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(nvml, devices, samples, stop), daemon=True)
    watcher.start()
    started = time.monotonic()
    events: list[tuple[float, str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="dsdoctor-smoke-") as scratch:

        def run(child: Any) -> None:
            name = f"{child.script.removeprefix('smoke_').removesuffix('.py')}[{','.join(str(gpu.index) for gpu in child.gpus)}]"
            began = time.monotonic()
            ended = run_script(host, target, child.script, timeout_s=250, arguments=smoke.arguments_of(child, child.tests, scratch))
            said = [json.loads(line) for line in ended.result.splitlines()]
            # Results carry no time of their own: they stand behind the event before them.
            at = began
            for event in said:
                at = event.get("at", at)
                events.append((at, name, event))
            events.append((time.monotonic(), name, {"event": f"is gone ({ended.said()})"}))

        with ThreadPoolExecutor(max_workers=max(1, len(children))) as pool:
            list(pool.map(run, children))
    stop.set()
    watcher.join()
    for at, name, event in sorted(events, key=lambda item: item[0]):
        used = " ".join(f"{(now - then) / 2**30:5.2f}" for now, then in zip(memory_at(samples, at), before, strict=True))
        words = " ".join(f"{key}={event[key]}" for key in TAKEN if event.get(key) not in (None, ""))
        print(f"{at - started:7.2f}  {used}  {name:20s} {event['event']} {words}"[:200])
    for number, device in enumerate(devices):
        at, used_bytes = max((sample for sample in samples), key=lambda sample: sample[1][number])
        highest = (used_bytes[number] - before[number]) / 2**30
        print(f"GPU {device.index}: highest {highest:.2f} GiB at {at - started:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
