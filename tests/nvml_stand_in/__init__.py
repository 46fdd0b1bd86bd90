"""A stand-in for libnvidia-ml.so.1: tests run the real nvidia-ml-py against it, in an interpreter of its own.

    library = build(tmp_path_factory)                       # once a session; skips the test where there is no C compiler
    profile = node("h200", "nvswitch", gpus=8)              # what the driver answers: scope -> question -> answer
    profile["3"]["nvmlDeviceGetHandleByIndex_v2"] = "error 15"
    snapshot = examine(environment(library, profile))       # the nvml probe alone; or start any other program with this environment

A scope is `system`, a GPU (`0`) or a MIG device of a GPU (`0.1`). An answer is a text, a number, a list of numbers, or one of `error N`,
`hang` and `crash`; what is not mentioned is not supported. nvml_stand_in.c says which questions it knows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsdoctor.facts import Snapshot
from dsdoctor.plain import from_plain

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"

Profile = dict[str, dict[str, Any]]


def build(tmp_path_factory: pytest.TempPathFactory, without: Sequence[str] = ()) -> Path:
    """Compile the library, less the functions that an old driver lacks, into a directory for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the stand-in for NVML")
    directory = tmp_path_factory.mktemp("nvml")
    left_out = [f"-D{name}=left_out_{name}" for name in without]
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", *left_out]
    subprocess.run([*command, "-o", str(directory / LIBRARY), str(HERE / "nvml_stand_in.c")], check=True)
    return directory


def node(*layers: str, gpus: int = 1) -> Profile:
    """A node with so many equal GPUs from profiles/*.yaml, later layers over earlier ones; each GPU gets its own address and UUID."""
    read = [yaml.safe_load((HERE / "profiles" / f"{layer}.yaml").read_text()) for layer in layers]
    profile: Profile = {"system": {"nvmlDeviceGetCount_v2": gpus}}
    for layer in read:
        profile["system"] |= layer.get("system", {})
    for index in range(gpus):
        gpu: dict[str, Any] = {}
        for layer in read:
            gpu |= layer.get("gpu", {})
            profile.update({f"{index}.{slot}": dict(answers) for slot, answers in enumerate(layer.get("mig", ()))})
        gpu["nvmlDeviceGetMinorNumber"] = index
        gpu["nvmlDeviceGetUUID"] = f"GPU-00000000-0000-0000-0000-{index:012d}"
        gpu["nvmlDeviceGetPciInfo_v3"] = [0, 0, 6 + index, gpu["nvmlDeviceGetPciInfo_v3"][3]]
        profile[str(index)] = gpu
    return profile


def environment(library_dir: Path, profile: Profile) -> dict[str, str]:
    """The environment of a program that shall find this library and be answered from this profile."""
    lines = b"".join(
        b"\t".join((scope.encode(), question.encode(), _answer(answer))) + b"\n"
        for scope, answers in profile.items()
        for key, answer in answers.items()
        for question in _spread(key)
    )
    path = library_dir / f"profile-{hashlib.sha256(lines).hexdigest()[:12]}.tsv"
    path.write_bytes(lines)
    return {**os.environ, "LD_LIBRARY_PATH": str(library_dir), "DSDOCTOR_NVML_PROFILE": str(path)}


def examine(environment: Mapping[str, str], *, timeout_s: float = 20, gpu_indices: tuple[int, ...] | None = None) -> Snapshot:
    """Run the nvml probe, and only it, as the doctor does, in an interpreter that starts with this environment."""
    arguments = json.dumps({"timeout_s": timeout_s, "gpu_indices": gpu_indices})
    done = subprocess.run(
        [sys.executable, str(HERE / "examine.py"), arguments], env=dict(environment), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    snapshot: Snapshot = from_plain(Snapshot, json.loads(done.stdout))
    return snapshot


def _answer(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return " ".join(map(str, answer)).encode() if isinstance(answer, (list, tuple)) else str(answer).encode()


def _spread(question: str) -> list[str]:
    """`nvmlDeviceGetNvLinkState/0-17` stands for eighteen questions."""
    name, _, last = question.rpartition("/")
    first, dash, end = last.partition("-")
    return [f"{name}/{number}" for number in range(int(first), int(end) + 1)] if dash else [question]
