"""The bodies of the smoke tests, run for real by an interpreter that has torch, on the CPU.

The interpreter is $DSDOCTOR_TEST_TORCH_PYTHON, else the one that runs these tests; without torch in it, everything here is skipped.
Any build of torch will do (the GPU is not used); Triton's kernel runs in its interpreter where triton is installed beside it.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dsdoctor.facts import Section, SmokeResult, State
from dsdoctor.sources.host import Host
from dsdoctor.sources.target import locate

smoke = importlib.import_module("dsdoctor.probes.smoke")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
PYTHON = os.environ.get("DSDOCTOR_TEST_TORCH_PYTHON", sys.executable)


def has(module: str) -> bool:
    """Whether the interpreter has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has("torch"), reason=f"{PYTHON} has no torch (set DSDOCTOR_TEST_TORCH_PYTHON)")

Results = Mapping[str, list[SmokeResult]]


def run(*names: str, level: str = "default", fault: str = "", deadline_s: float = 60, within_s: float = 100, **variables: str) -> Results:
    """Results by test, from real children on the CPU."""
    tests = tuple(replace(test, deadline_s=deadline_s) for test in table.chosen(names, "full"))
    children = [replace(child, device="cpu") for child in smoke.plan(tests, (), level)]
    host = Host(environment={**os.environ, "DSDOCTOR_SMOKE_FAULT": fault, **variables})
    told = smoke.run_children(host, locate(host, PYTHON), children, time.monotonic() + within_s)
    section: Section[Any] = smoke.section_of(told, [], [], ())
    assert section.state is State.KNOWN, section.why
    found: dict[str, list[SmokeResult]] = {}
    for result in section.value or ():
        found.setdefault(result.test, []).append(result)
    return found


SHARED_TESTS = [test.name for test in table.SMOKE_TESTS if test.script == "smoke_shared.py"]


@pytest.fixture(scope="module")
def shared() -> Results:
    return run(*SHARED_TESTS)


def test_every_shared_test_says_something_and_none_fails(shared: Results) -> None:
    assert list(shared) == SHARED_TESTS
    said = [(one.test, one.outcome, one.reason) for results in shared.values() for one in results]
    assert [line for line in said if line[1] not in ("ran", "refused")] == []


def test_casts_follow_the_definition(shared: Results) -> None:
    (cast,) = shared["fp8-cast"]
    assert (cast.values["decode_mismatches"], cast.values["encode_mismatches"]) == (0.0, 0.0)
    assert (cast.values["largest"], cast.values["smallest_subnormal"]) == (448.0, 2.0**-9)
    assert "464 ->" in cast.notes["above_448"]


def test_products_have_the_errors_of_rounding_and_no_more(shared: Results) -> None:
    per_tensor, per_row = shared["fp8-gemm"]
    assert (per_tensor.notes["scaling"], per_row.notes["scaling"]) == ("per tensor", "per row")
    for one in (item for item in (per_tensor, per_row) if item.outcome == "ran"):
        assert 1e-3 < one.values["rel_error"] < 2.5e-3
        assert 3e-2 < one.values["rel_error_unquantised"] < 5e-2
        assert one.values["nonfinite"] == 0.0
        assert one.values["first_call_s"] > 0


def test_what_a_processor_cannot_do_is_refused_in_its_own_words(shared: Results) -> None:
    block = shared["fp8-block"]
    assert {(one.path, one.notes["scales"]) for one in block} == {
        (path, scales) for path in ("torch.nn.functional.scaled_mm", "torch._scaled_mm") for scales in ("float", "power of two (UE8M0)")
    }
    assert all(one.outcome == "ran" or (one.outcome == "refused" and len(one.reason) > 10) for one in block)


def test_the_repeated_product_is_the_same(shared: Results) -> None:
    (same,) = shared["silent-corruption"]
    assert same.values["differing_runs"] == 0.0
    assert len(same.notes["checksum"]) == 16


@pytest.mark.parametrize("name", ["bf16-rate", "fp8-rate"])
def test_rates_are_rates(shared: Results, name: str) -> None:
    (rate,) = shared[name]
    if rate.outcome == "ran":
        operations = 2 * math.prod(int(size) for size in rate.notes["shape"].split("x"))
        assert rate.values["tflops"] == pytest.approx(operations / rate.values["call_s"] / 1e12)


def test_copies_arrive_whole(shared: Results) -> None:
    assert shared["memory-copy"][0].values["wrong_bytes"] == 0.0
    down, up = shared["pcie"]
    assert (down.path, up.path) == ("pageable d2h", "pageable h2d")
    assert up.values["wrong_bytes"] == 0.0
    assert up.values["gb_per_s"] > 0


def test_numerics_are_as_good_as_the_formats_allow() -> None:
    (found,) = run("numerics")["numerics"]
    assert found.outcome == "ran", found.reason
    values = found.values
    assert values["softmax_error_fp32"] < 1e-6 < values["softmax_error_bf16"] < 4e-3
    assert values["softmax_nonfinite"] == values["reorder_mismatches"] == values["moe_lost_rows"] == 0.0
    assert max(values[f"logsumexp_error_{part}"] for part in ("chunk_64", "chunk_256", "chunk_1024", "spike")) < 1e-4
    assert values["gate_same_set_fp32"] == 1.0 > values["gate_same_set_bf16"]
    assert values["rope_error_4096"] < 3e-4 < values["rope_error_163840"] < 1.2e-2
    assert max(values[name] for name in ("ring_window_error", "paged_cache_error", "moe_error")) < 5e-6


@pytest.mark.skipif(not has("triton"), reason="no triton beside torch")
def test_the_triton_kernel_is_right_in_the_interpreter() -> None:
    (cache, kernel) = run("triton", TRITON_CACHE_DIR="/proc/nope")["triton"]
    assert (cache.path, cache.outcome) == ("configured cache", "error")
    assert "/proc/nope" in cache.reason
    assert kernel.outcome == "ran", kernel.reason
    assert kernel.values["rel_error"] < 1e-6
    assert 3e-2 < kernel.values["rel_error_unquantised"] < 5e-2
    assert "TRITON_INTERPRET" in kernel.notes["interpreted"]


def test_deepgemm_that_is_not_there_is_a_skip() -> None:
    (found,) = run("deepgemm")["deepgemm"]
    assert found.outcome in ("skipped", "error")
    if found.outcome == "skipped":
        assert found.reason == "deep_gemm is not installed"


# --- provoked faults: the documented switch DSDOCTOR_SMOKE_FAULT -----------------------------------------------------------


def test_wrong_numbers_show_as_wrong() -> None:
    found = run(
        "fp8-cast",
        "fp8-gemm",
        "silent-corruption",
        "memory-copy",
        fault="fp8-cast=wrong,fp8-gemm=wrong,silent-corruption=wrong,memory-copy=wrong",
    )
    assert found["fp8-cast"][0].values["decode_mismatches"] > 0
    assert all(one.values["rel_error"] > 0.1 for one in found["fp8-gemm"] if one.outcome == "ran")
    assert found["silent-corruption"][0].values["differing_runs"] == 1.0
    assert found["memory-copy"][0].values["wrong_bytes"] == 1.0


def test_a_raise_and_a_segfault_leave_the_others() -> None:
    found = run("fp8-cast", "fp8-gemm", "memory-copy", fault="fp8-cast=raise,fp8-gemm=segfault")
    assert [(one.outcome, one.reason) for one in found["fp8-cast"]] == [("error", "provoked by DSDOCTOR_SMOKE_FAULT")]
    assert [(one.outcome, one.reason) for one in found["fp8-gemm"]] == [("crash", "SIGSEGV")]
    assert "misbehave" in found["fp8-gemm"][0].stderr_tail
    assert found["memory-copy"][0].outcome == "ran"


def test_a_hang_ends_on_its_deadline_with_a_stack() -> None:
    found = run("fp8-cast", "memory-copy", fault="fp8-cast=hang", deadline_s=1.0)
    (hang,) = found["fp8-cast"]
    assert hang.outcome == "hang"
    assert "in misbehave" in hang.stderr_tail
    assert [(one.outcome, one.reason) for one in found["memory-copy"]] == [("skipped", "not tried: fp8-cast hung")]


def test_a_script_talks_to_a_person_too() -> None:
    script = os.path.join(os.path.dirname(smoke.__file__), "in_target", "smoke_shared.py")
    done = subprocess.run([PYTHON, script, "--device", "cpu", "--tests", "fp8-cast"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert [timed.result.test for timed in smoke.hear(done.stdout).results] == ["fp8-cast"]
