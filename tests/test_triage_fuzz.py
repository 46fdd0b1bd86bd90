"""Whatever is pasted, triage ends, does not crash, stays within its bounds, and pasting it another way never says something else."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsdoctor.facts import Snapshot
from dsdoctor.plain import from_plain, to_plain
from dsdoctor.sources import triage
from dsdoctor.sources.triage.lines import Document, document

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
CASES = sorted((SHARED / "cases").glob("*.yaml"))
needs_cases = pytest.mark.skipif(not CASES, reason="the shared cases are not here")

PIECES = (
    "Driver Version: ", "CUDA Version: ", "580.105.08", "12.4", "|", "|   0  NVIDIA H200 ", " On ", "00000000:9C:00.0", "143771MiB", " / ", "GPU 0: ", "GPU0",
    "\t X \t", "NV18", "\n", "\n", "\n    ", "\r\n", ": ", "=", "==", " ", ",", "PyTorch version", "torch", "2.4.0+cu121", "CUDA_HOME", "/usr/local/cuda", "[pip3] ",
    "Name: ", "Version: ", "NVRM: Xid (PCI:0000:9c:00): 79, ", "[  201.910514] ", "> ", "```", "\x1b[31m", "\x00", "(EngineCore pid=1) ", "[rank0]: ", "$ ",
    "ulimit -l", "which nvcc", "lsmod | grep ", "nvidia_peermem 16384 0", "Fabric", "Remapped Rows", "Pending", "Yes", "<gpu id=\"0\">", "</gpu>", "<pci>",
    "name, memory.total [MiB]", "--query-gpu=name,compute_cap", "libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1", "docker run -e NCCL_DEBUG=INFO ",
    "vllm serve ", "\\\n", "--tensor-parallel-size 8", "systemctl status nvidia-fabricmanager", "Active: failed", "LnkSta: Speed 5GT/s, Width x16",
    "e3:00.0 VGA compatible controller: NVIDIA", "ReqRedir+ CmpltRedir+", "99999999999999999999", "Infinity", "nan", "驱动", "\u202e", "(((((((((((", "-" * 70,
    "shm 64M 0 64M 0% /dev/shm", "Mem: 1 2 3", "uid=0(", "16 x NVIDIA L40 46068MiB", "Link 3: Replay Errors: 7", "MIG 1g.5gb Device 0: (UUID: MIG-1)",
)  # fmt: skip


def read(*texts: str) -> triage.Parsed:
    return triage.read([document(f"{number}.txt", text) for number, text in enumerate(texts, 1)])


def check(parsed: triage.Parsed) -> None:
    """A snapshot that survives JSON, and no parser that failed."""
    assert parsed.failures == ()
    plain = to_plain(parsed.snapshot)
    assert from_plain(Snapshot, plain) == parsed.snapshot
    assert not any(letter < " " or "\x7f" <= letter <= "\x9f" for text in texts_in(plain["sections"]) for letter in text if letter != "\t")


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=60).map("".join))
def test_mixtures_of_what_parsers_look_for(text: str) -> None:
    check(read(text))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes(content: bytes) -> None:
    check(triage.read([Document("a", (content,))]))


def evidence(path: Path) -> list[str]:
    return [block["text"] for block in yaml.safe_load(path.read_text(encoding="utf-8"))["evidence"]]


def facts(*texts: str) -> dict[str, object]:
    """The sections, without the places that they were read from."""
    return {
        name: without_places(section["value"])
        for name, section in to_plain(read(*texts).snapshot)["sections"].items()
        if "value" in section
    }


def without_places(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items() if key not in ("where", "found_via")}
    return [without_places(item) for item in value] if isinstance(value, list) else value


@needs_cases
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_pasting_evidence_another_way_says_the_same(path: Path) -> None:
    texts = evidence(path)
    plain = facts(*texts)
    for name, paste in {
        "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
        "windows": lambda text: text.replace("\n", "\r\n"),
        "coloured": lambda text: "\n".join(f"\x1b[1;33m{line}\x1b[0m" for line in text.split("\n")),
        "fenced": lambda text: f"<details>\n\n```\n{text}\n```\n</details>",
        "among Chinese": lambda text: f"## 现象描述：启动失败\n\n```text\n{text}\n```\n\n请帮忙看看，谢谢！",
    }.items():
        assert facts(*(paste(text) for text in texts)) == plain, name


LOGGED = ("(Worker_TP0 pid=1234) ", "[rank3]: ", "2025-11-11 05:00:00,123 ", "node-1:12:34 [0] ")


@needs_cases
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_prefixes_and_cuts_say_the_same_or_less(path: Path) -> None:
    """Where a prefix or a cut changes what is read, values may be missing, but none is another one."""
    texts = evidence(path)
    plain = facts(*texts)
    choose = random.Random(path.stem)
    for prefix in LOGGED:
        agree(facts(*("\n".join(prefix + line for line in text.split("\n")) for text in texts)), plain)
    for text in texts:
        lines = text.split("\n")
        for _ in range(4):
            cut = choose.randrange(len(lines) + 1)
            agree(facts("\n".join(lines[:cut])), facts(text))


def agree(part: dict[str, object], whole: dict[str, object]) -> None:
    for name, value in part.items():
        if name in whole and isinstance(value, dict) and isinstance(whole[name], dict):
            full = whole[name]
            assert isinstance(full, dict)
            differing = {
                key: (item, full[key]) for key, item in value.items() if key in full and full[key] != item and name != "loaded_modules"
            }
            assert not {
                key for key, (less, more) in differing.items() if not isinstance(less, (dict, list)) and not str(more).startswith(str(less))
            }, differing


HOSTILE = {
    "one long line": b"Driver Version: 1 CUDA Version " * 12_500,
    "open brackets": b"((((([[[[[ (pid= [rank " * 15_000 + b"\n",
    "escapes": b"\x1b]0;" * 85_000,
    "spaces": b" " * 350_000 + b"x\n",
    "many headers": b"GPU0\n\tGPU0 GPU1\nGPU 0: x\n Link 1: 1 GB/s\n| 0 NVIDIA A |\nNVIDIA-SMI Driver Version: 1\nname, memory.total\nName: x\n"
    * 1_250,
    "packages": b"".join(b"torch==1.%d\n" % number for number in range(27_500)),
    "gpus": b"".join(b"GPU %d: NVIDIA H200 (UUID: GPU-%d)\n" % (number, number) for number in range(4_500)),
    "tags": b'<gpu id="00000000:01:00.0">\n' + b"<pci>\n" * 25_000,
    "nested": b"".join(b" " * (number % 60) + b"Block\n" for number in range(10_000)) + b"NVSMI LOG\n",
    "kernel": b"NVRM: nvidia: nvidia: nvidia: module\n" * 8_500,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_of_many_lines_stay_within_memory(name: str) -> None:
    content = HOSTILE[name]
    tracemalloc.start()
    parsed = triage.read([Document("a", (content[at : at + 65536] for at in range(0, len(content), 65536)))])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(parsed)
    assert peak < 15 << 20, peak
