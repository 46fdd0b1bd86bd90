#!/usr/bin/env python3
"""Make up the reports of a fleet with planted oddities; knows nothing of what looks for them.

    python benchmarks/fleet_generator.py OUT [--nodes 10000] [--oddities 37] [--seed 7] [--report FILE]

Every report is a whole one: a shipped example, widened to eight GPUs with services, adapters and rates, in which names, clocks, temperatures and
rates differ as they do between healthy nodes. Writes OUT/reports/NODE.json and OUT/planted.json, a list of node and kind.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Report = dict[str, Any]
GPUS = 8
RATES = {
    "bf16-rate": ("torch.mm", "tflops", 800.0),
    "fp8-rate": ("torch._scaled_mm", "tflops", 1500.0),
    "fa3-rate": ("FA3", "tflops", 600.0),
    "memory-copy": ("copy_", "gb_per_s", 4160.0),
    "pcie": ("pinned h2d", "gb_per_s", 55.4),
}
"""Test → way, unit and what a healthy GPU reaches."""
SPREAD = 0.01
"""Standard deviation of a healthy rate, as a share of it."""
SLOW = 0.85
HOLE = re.compile(r'"@(\w+)(?::([\w-]+):(\d+))?@"')
START = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.timezone.utc)


def base_report() -> Report:
    """The report of a shipped example, as the command makes it."""
    command = [sys.executable, "-m", "dsdoctor", "replay", "example:h200x4-healthy", "--format", "json"]
    report: Report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return report


def eight_gpus(report: Report) -> Report:
    """The report of a training node, with holes where healthy nodes differ."""
    report = copy.deepcopy(report)
    report["origin"] = {"kind": "live", "label": "@label@", "made_by": ""}
    report["taken_at"], report["received_at"] = "@taken_at@", "@received_at@"
    facts = report["facts"]
    first = facts["gpus"]["value"][0]
    facts["gpus"]["value"] = [
        {
            **copy.deepcopy(first),
            "index": number,
            "pci_address": f"0000:{number + 16:02x}:00.0",
            "minor_number": number,
            "numa_node": number // 4,
            "temperature_c": "@temperature@",
        }
        for number in range(GPUS)
    ]
    facts["memory"] = known({"total_bytes": 2164 * 10**9, "available_bytes": "@free@"})
    facts["shared_memory"] = known({"path": "/dev/shm", "total_bytes": 1082 * 10**9, "free_bytes": "@free@"})
    driver = facts["nvml_versions"]["value"]["driver"]
    facts["services"] = known(
        [
            {"name": "nvidia-fabricmanager", "state": "active", "version": driver},
            {"name": "nvidia-persistenced", "state": "active", "version": driver},
        ]
    )
    facts["network_interfaces"] = known(
        [
            {"name": "eth0", "kind": "ethernet", "up": True},
            *({"name": f"mlx5_{n}", "kind": "rdma", "up": True, "speed_mbit_per_s": 400000} for n in range(GPUS)),
        ]
    )
    facts["environment"]["value"] += [
        {"name": "SLURM_NODEID", "value": "@number@"},
        {"name": "SLURM_JOB_ID", "value": "4711"},
        {"name": "NCCL_DEBUG", "value": "WARN"},
    ]
    facts["smoke"] = known(
        [
            {
                "test": test,
                "path": path,
                "gpu": gpu,
                "outcome": "ran",
                "values": {unit: f"@rate:{test}:{gpu}@", "call_s": 0.001},
                "notes": {"dtype": "bfloat16"},
            }
            for test, (path, unit, _) in RATES.items()
            for gpu in range(GPUS)
        ]
    )
    return report


def known(value: Any) -> dict[str, Any]:
    return {"state": "known", "value": value, "found_via": "made up"}


# --- what can be odd --------------------------------------------------------------------------------------------------


def _driver(report: Report) -> None:
    facts = report["facts"]
    facts["nvml_versions"]["value"]["driver"] = facts["kernel_driver"]["value"]["version"] = "580.95.05"


def _vbios(report: Report) -> None:
    report["facts"]["gpus"]["value"][5]["vbios_version"] = "96.00.A5.00.03"


def _kernel(report: Report) -> None:
    report["facts"]["platform"]["value"]["kernel_release"] = "6.8.0-45-generic"


def _nccl(report: Report) -> None:
    report["facts"]["torch_runtime"]["value"]["nccl_loaded"] = "2.27.5"


def _torch(report: Report) -> None:
    report["facts"]["torch_build"]["value"]["version"] = "2.10.0+cu130"


def _variable(report: Report) -> None:
    report["facts"]["environment"]["value"].append({"name": "NCCL_P2P_DISABLE", "value": "1"})


def _gpu_is_gone(report: Report) -> None:
    del report["facts"]["gpus"]["value"][3]
    report["facts"]["smoke"]["value"] = [item for item in report["facts"]["smoke"]["value"] if item["gpu"] != 3]


def _fabric_manager(report: Report) -> None:
    report["facts"]["services"]["value"][0]["version"] = "580.82.07"


def _finding(report: Report) -> None:
    text = "GPU 2 counts 3 uncorrectable memory errors since its last reset."
    report["verdict"] = "broken"
    report["counts"]["errors"] += 1
    report["diagnosis"].insert(
        0,
        {
            "check": "gpu.ecc-uncorrectable", "severity": "error", "subject": "GPU 2", "summary": text, "cause": "", "expected": "0", "sources": [], "explains": [],
            "evidence": [{"where": "gpus[2].ecc.volatile_uncorrected", "value": "3"}],
            "remedies": [
                {
                    "summary": "Reset the GPU", "when": "", "commands": [], "steps": ["drain the node, then reset"], "inspect": ["nvidia-smi -q -d ECC"], "verify": None,
                    "disruption": "reset_gpu", "needs_root": True, "drain": True, "risk": "", "not_when": "", "sources": [],
                }
            ],
        },
    )  # fmt: skip


def _nothing(report: Report) -> None:
    """The oddity is in what is written into the holes, or there is no report at all."""


KINDS: dict[str, Callable[[Report], None]] = {
    "driver": _driver,
    "vbios": _vbios,
    "kernel": _kernel,
    "nccl": _nccl,
    "torch": _torch,
    "variable": _variable,
    "gpu-gone": _gpu_is_gone,
    "fabric-manager": _fabric_manager,
    "finding": _finding,
    "slow-gpu": _nothing,
    "clock": _nothing,
    "no-report": _nothing,
}


# --- the fleet --------------------------------------------------------------------------------------------------------


def printed(value: Any, depth: int, margin: str = "") -> str:
    """JSON as the command prints a report: fields and their items on lines of their own."""
    if depth and value and isinstance(value, dict):
        inside = [f"{margin}  {json.dumps(name)}: {printed(item, depth - 1, margin + '  ')}" for name, item in value.items()]
        return "{\n" + ",\n".join(inside) + f"\n{margin}}}"
    if depth and value and isinstance(value, list):
        return "[\n" + ",\n".join(f"{margin}  {printed(item, 0)}" for item in value) + f"\n{margin}]"
    return json.dumps(value, separators=(",", ":"))


class Template:
    """The text of a report with holes, cut up once, so that thousands can be written from it."""

    def __init__(self, report: Report) -> None:
        pieces = HOLE.split(printed(report, depth=2))
        self.texts = pieces[::4]
        self.holes = list(zip(pieces[1::4], pieces[2::4], pieces[3::4]))

    def fill(self, value: Callable[[str, str, int], Any]) -> str:
        parts = [self.texts[0]]
        for (name, test, gpu), text in zip(self.holes, self.texts[1:]):
            parts += [json.dumps(value(name, test, int(gpu or 0))), text]
        return "".join(parts)


def plan(nodes: int, oddities: int, seed: int) -> dict[int, str]:
    """Which node has which oddity: each kind equally often, on nodes of their own."""
    kinds = list(KINDS)
    chosen = random.Random(seed).sample(range(nodes), oddities)
    return {node: kinds[number % len(kinds)] for number, node in enumerate(chosen)}


def fleet(report: Report, nodes: int, oddities: int, seed: int = 7) -> Iterator[tuple[str, str, str]]:
    """Name, kind of oddity (or empty) and text of each report."""
    chance = random.Random(seed)
    healthy = eight_gpus(report)
    templates = {"": Template(healthy)}
    for kind, edit in KINDS.items():
        changed = copy.deepcopy(healthy)
        edit(changed)
        templates[kind] = Template(changed)
    planted = plan(nodes, oddities, seed)
    width = len(str(nodes))
    for number in range(nodes):
        name, kind = f"node{number + 1:0{width}d}", planted.get(number, "")
        if kind == "no-report":
            yield name, kind, json.dumps({"schema": "dsdoctor.no-report/1", "label": name, "reason": "no answer within 300 s"})
            continue
        received = START + datetime.timedelta(seconds=chance.uniform(0, 60))
        taken = received - datetime.timedelta(seconds=chance.uniform(0, 2) + (180 if kind == "clock" else 0))
        slow_gpu = chance.randrange(GPUS) if kind == "slow-gpu" else -1

        def value(hole: str, test: str, gpu: int) -> Any:
            if hole == "rate":
                usual = RATES[test][2]
                return round(chance.gauss(usual, usual * SPREAD) * (SLOW if gpu == slow_gpu and test == "fp8-rate" else 1), 3)  # noqa: B023
            return {
                "label": name,  # noqa: B023
                "taken_at": f"{taken:%Y-%m-%dT%H:%M:%SZ}",  # noqa: B023
                "received_at": f"{received:%Y-%m-%dT%H:%M:%SZ}",  # noqa: B023
                "temperature": chance.randrange(28, 40),
                "free": chance.randrange(10**11, 10**12),
                "number": str(number),  # noqa: B023
            }[hole]

        yield name, kind, templates[kind].fill(value)


def write(folder: Path, report: Report, nodes: int, oddities: int, seed: int = 7) -> list[dict[str, str]]:
    """Write the fleet, and answer with what was planted where."""
    (folder / "reports").mkdir(parents=True)
    planted = []
    for name, kind, text in fleet(report, nodes, oddities, seed):
        (folder / "reports" / f"{name}.json").write_text(text, encoding="utf-8")
        if kind:
            planted.append({"node": name, "kind": kind})
    (folder / "planted.json").write_text(json.dumps(planted, indent=1), encoding="utf-8")
    return planted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--oddities", type=int, default=37)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=Path, help="a JSON report to start from; default: the example of four H200")
    options = parser.parse_args()
    report = json.loads(options.report.read_text()) if options.report else base_report()
    planted = write(options.out, report, options.nodes, options.oddities, options.seed)
    print(f"{options.nodes} reports with {len(planted)} oddities in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
