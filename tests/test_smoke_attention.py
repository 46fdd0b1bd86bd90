"""Attention on the CPU through the real scripts, with stand-ins of third-party packages that are right, broken, wrong or hide their cause.

The interpreter is $DSDOCTOR_TEST_TORCH_PYTHON; without torch in it, everything here is skipped.
"""

from __future__ import annotations

import datetime
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.checks.smoke._samples import H200
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import Origin, Sections, SmokeResult, Snapshot, State, known
from dsdoctor.findings import Report, Severity, Status
from dsdoctor.matrix import Knowledge
from dsdoctor.sources.host import Host
from dsdoctor.sources.target import locate

smoke = importlib.import_module("dsdoctor.probes.smoke")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
PYTHON = os.environ.get("DSDOCTOR_TEST_TORCH_PYTHON", sys.executable)
HAS_TORCH = (
    subprocess.run([PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]).returncode == 0
)
pytestmark = pytest.mark.skipif(not HAS_TORCH, reason=f"{PYTHON} has no torch (set DSDOCTOR_TEST_TORCH_PYTHON)")

RIGHT = """
import torch

def flash_attn_func(q, k, v, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None):
    if q.shape[-1] == 192:
        raise RuntimeError("This flash attention build does not support hdim 192.")
    restored = [t.float() * (1 if d is None else d[:, None, :, None]) for t, d in ((q, q_descale), (k, k_descale), (v, v_descale))]
    q, k, v = (t.transpose(1, 2) for t in restored)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).to(torch.bfloat16)
"""
WRITES_NOTHING = "def flash_attn_func(q, k, v, causal=False, **more):\n    return q.new_zeros(*q.shape[:3], v.shape[-1]).bfloat16(), None\n"
NO_SYMBOL = "raise ImportError('/v/flash_attn_3/_C.abi3.so: undefined symbol: aoti_torch_abi_version')\n"
VLLM = "FA3_UNAVAILABLE_REASON = 'libcudart.so.12: cannot open shared object file: No such file or directory'\n"
HIDES = "try:\n    raise OSError('libnuma.so.1: cannot open')\nexcept:\n    raise ImportError('Can not import sgl_kernel.')\n"

Results = Mapping[str, list[SmokeResult]]


def run(*names: str, level: str = "default", fault: str = "", modules: Path | None = None) -> Results:
    """Results by test, from real children on the CPU; `modules` is a folder of stand-ins."""
    children = [replace(child, device="cpu") for child in smoke.plan(table.chosen(names, "full"), (), level)]
    host = Host(environment={**os.environ, "DSDOCTOR_SMOKE_FAULT": fault, "PYTHONPATH": str(modules or "")})
    told = smoke.run_children(host, locate(host, PYTHON), children, time.monotonic() + 100)
    section = smoke.section_of(told, [], [], ())
    assert section.state is State.KNOWN, section.why
    found: dict[str, list[SmokeResult]] = {}
    for result in section.value:
        found.setdefault(result.test, []).append(result)
    return found


def judged(check_id: str, results: Results) -> Report:
    """The report of one check on these results, as if an H200 had said them."""
    said = tuple(replace(result, gpu=0) for same in results.values() for result in same)
    check = next(check for check in CHECKS if check.id == check_id)
    node = Snapshot(
        schema="dsdoctor.snapshot/1",
        taken_at="2026-11-29T00:00:00Z",
        origin=Origin(kind="replay", label="a test"),
        sections=Sections(smoke=known(said), gpus=known(H200[:1])),
    )
    return diagnose(node, Knowledge(), [check], today=datetime.date(2026, 11, 29))


def by_path(results: list[SmokeResult]) -> dict[str, SmokeResult]:
    return {result.path: result for result in results}


def write(folder: Path, modules: Mapping[str, str]) -> Path:
    """A folder with these files."""
    for name, text in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# --- torch's own ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attention() -> Results:
    return run("attention", "flashmla")


def test_back_ends_are_near_fp64_or_refuse_in_their_own_words(attention: Results) -> None:
    found = by_path(attention["attention"])
    assert set(found) >= {"sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn"}
    for path in ("sdpa-math", "sdpa-flash"):
        values = found[path].values
        assert found[path].outcome == "ran", found[path].reason
        assert 1e-3 < values["rel_error"] < 3e-3
        assert values["error_share"] < 1
        assert values["nonfinite"] == 0
    assert found["sdpa-cudnn"].outcome == "refused"
    assert found["sdpa-cudnn"].reason


def test_the_merge_of_split_keys_changes_nothing(attention: Results) -> None:
    found = by_path(attention["attention"])
    assert found["split-kv float32"].values["merge_rel_error"] < 5e-6
    assert found["split-kv flash"].values["merge_rel_error"] < 5e-3


def test_a_sound_attention_passes_and_flashmla_is_not_missed(attention: Results) -> None:
    assert [result.outcome for result in attention["flashmla"]] == ["skipped"]
    assert judged("smoke.attention", attention).outcomes[0].status is Status.PASS


def test_wrong_numbers_are_an_error() -> None:
    report = judged("smoke.attention", run("attention", fault="attention=wrong"))
    assert report.outcomes[0].severity is Severity.ERROR
    assert any("sdpa-flash" in found.summary and "rel_error" in found.summary for found in report.diagnosis)


# --- FlashAttention-3 -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One provider that is right, and three that do not import, each for another reason."""
    files = {
        "fa3_fwd_interface.py": RIGHT,
        "flash_attn_interface.py": NO_SYMBOL,
        "vllm/__init__.py": "raise RuntimeError('vLLM itself must not be imported: it takes seconds')\n",
        "vllm/vllm_flash_attn/__init__.py": "from vllm import nothing\n",
        "vllm/vllm_flash_attn/flash_attn_interface.py": VLLM,
        "sgl_kernel/__init__.py": "",
        "sgl_kernel/flash_attn.py": HIDES,
        "sgl_kernel/flash_ops.abi3.so": "",
    }
    folder = write(tmp_path_factory.mktemp("several"), files)
    return run("fa3", "fa3-rate", modules=folder)


def test_a_right_provider_is_judged_on_odd_shapes_and_in_fp8(several: Results) -> None:
    found = by_path(several["fa3"])
    right = found["fa3-fwd"]
    assert right.outcome == "ran", right.reason
    assert right.values["rel_error"] < 3e-3
    assert right.values["error_share"] < 1
    assert (right.values["shapes"], right.values["refused_shapes"]) == (6, 1)
    assert all(text in right.notes["shape"] for text in ("113x203", "dim 80", "dim 96", "8/2", "head-major"))
    assert "192" in right.notes["refused"]
    assert found["fa3-fwd fp8"].values["fp8_rel_error"] < 8e-2


def test_failed_imports_keep_their_last_line(several: Results) -> None:
    found = by_path(several["fa3"])
    assert found["flash-attn-3"].outcome == "error"
    assert found["flash-attn-3"].reason.endswith("undefined symbol: aoti_torch_abi_version")
    assert found["vllm"].outcome == "error"
    assert found["vllm"].reason.startswith("vLLM falls back to FlashAttention-2: libcudart.so.12")
    assert "libnuma.so.1" in found["sgl-kernel"].reason


def test_each_failed_import_has_its_known_cause(several: Results) -> None:
    causes = {found.summary.partition(" failed")[0]: found.cause for found in judged("smoke.fa3", several).diagnosis}
    assert "a newer torch has it" in causes["fa3 through flash-attn-3"]
    assert "another CUDA major" in causes["fa3 through vllm"]


def test_the_rate_of_what_opens_stands_beside_that_of_torch(several: Results) -> None:
    found = by_path(several["fa3-rate"])
    assert set(found) == {"fa3-fwd", "sdpa-flash"}
    assert found["fa3-fwd"].notes["generation"] == "FA3"
    assert all(result.values["tflops"] > 0 for result in found.values())


def test_a_kernel_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    results = run("fa3", modules=write(tmp_path, {"fa3_fwd_interface.py": WRITES_NOTHING}))
    assert by_path(results["fa3"])["fa3-fwd"].values["rel_error"] == pytest.approx(1.0)
    report = judged("smoke.fa3", results)
    assert report.outcomes[0].severity is Severity.ERROR
    assert any("rel_error 1" in found.summary for found in report.diagnosis)


def test_nothing_installed_is_no_failure() -> None:
    results = run("fa3")
    assert [result.outcome for result in results["fa3"]] == ["skipped"]
    report = judged("smoke.fa3", results)
    assert report.outcomes[0].status is Status.NOT_APPLICABLE
    assert "no FlashAttention-3 is installed" in report.outcomes[0].reason
    assert "To have it: " in report.outcomes[0].reason


def test_results_go_through_a_recording(several: Results) -> None:
    from dsdoctor.plain import from_plain, to_plain

    for same in several.values():
        for result in same:
            again: Any = from_plain(SmokeResult, to_plain(result))
            assert again == result
