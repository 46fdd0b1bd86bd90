"""The smoke tests on a real GPU (`pytest -m gpu`): every shared test runs, and provoked faults show in the numbers.

The patient is $DSDOCTOR_TEST_TORCH_PYTHON, else the interpreter that runs these tests; it needs a torch built for CUDA. The limits
asserted here are wide: they tell a test that works from one that does not, the matrix of thresholds judges GPUs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

import pytest

from dsdoctor.facts import SmokeResult, State
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.target import locate

pytestmark = pytest.mark.gpu

smoke = importlib.import_module("dsdoctor.probes.smoke")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
PYTHON = os.environ.get("DSDOCTOR_TEST_TORCH_PYTHON", sys.executable)
SHARED_TESTS = tuple(test.name for test in table.SMOKE_TESTS if test.script == "smoke_shared.py")

Results = Mapping[str, list[SmokeResult]]


def run(*names: str, fault: str = "", without: tuple[str, ...] = (), **variables: str) -> Results:
    """Results by test of the real probe."""
    environment = {**os.environ, "DSDOCTOR_SMOKE_FAULT": fault, **variables}
    for name in without:
        environment.pop(name, None)
    host = Host(environment=environment)
    section = smoke.collect(host, Scope(target=locate(host, PYTHON), smoke_tests=names, gpu_indices=(0,), deadline_s=240))["smoke"]
    assert section.state is State.KNOWN, section.why
    found: dict[str, list[SmokeResult]] = {}
    for result in section.value:
        found.setdefault(result.test, []).append(result)
    return found


def ran(results: list[SmokeResult]) -> list[SmokeResult]:
    return [one for one in results if one.outcome == "ran"]


@pytest.fixture(scope="module")
def shared() -> Results:
    return run(*SHARED_TESTS)


def test_no_shared_test_fails(shared: Results) -> None:
    assert list(shared) == list(SHARED_TESTS)
    bad = [
        (one.test, one.path, one.outcome, one.reason)
        for results in shared.values()
        for one in results
        if one.outcome in ("error", "crash", "hang")
    ]
    assert bad == []
    assert all(one.gpu == 0 for results in shared.values() for one in results)


def test_products(shared: Results) -> None:
    products = ran(shared["fp8-gemm"]) + ran(shared["fp8-block"])
    assert products
    assert all(one.values["rel_error"] < 5e-3 and one.values["rel_error_unquantised"] < 5e-2 for one in products)


def test_hopper_multiplies_the_models_blocks(shared: Results) -> None:
    if "H100" not in shared["silent-corruption"][0].notes["product"] and "H200" not in shared["silent-corruption"][0].notes["product"]:
        pytest.skip("not a Hopper GPU")
    assert len(ran(shared["fp8-gemm"])) == 2
    assert {one.path for one in ran(shared["fp8-block"])} >= {"torch._scaled_mm"}
    rates = {name: ran(shared[name])[0].values["tflops"] for name in ("bf16-rate", "fp8-rate")}
    assert 400 < rates["bf16-rate"] < 989
    assert 700 < rates["fp8-rate"] < 1979


def test_rates_carry_the_clocks_and_links_the_generation_under_load(shared: Results) -> None:
    for name in ("bf16-rate", "fp8-rate", "memory-copy"):
        for one in ran(shared[name]):
            assert one.values["sm_clock_mhz"] > 0, name
            assert one.notes["clock_event_reasons"], name
    for one in ran(shared["pcie"]):
        assert one.values["pcie_generation"] >= 1
        assert one.values["pcie_width"] >= 1
        assert one.values["gb_per_s"] > 0


def test_the_gpu_computes_the_same_again(shared: Results) -> None:
    (same,) = shared["silent-corruption"]
    assert same.values["differing_runs"] == 0.0
    assert same.values["rel_error"] < 5e-3


def test_triton_compiles() -> None:
    _, kernel = run("triton")["triton"]
    if kernel.outcome == "skipped":
        pytest.skip(kernel.reason)
    assert kernel.outcome in ("ran", "refused"), (kernel.reason, kernel.notes)
    if kernel.outcome == "ran":
        assert kernel.values["rel_error"] < 5e-3
        assert kernel.values["second_call_s"] < 0.1


def test_triton_without_a_compiler_and_with_an_unwritable_cache() -> None:
    cache, kernel = run("triton", CC="/nonexistent/gcc", TRITON_CACHE_DIR="/proc/nope")["triton"]
    assert (cache.outcome, "/proc/nope" in cache.reason) == ("error", True)
    assert kernel.outcome == "error"
    assert "compiler" in kernel.notes["missing"]


def test_provoked_faults() -> None:
    # First, since the memory of a process that crashed counts as in use for a moment, and a GPU in use is not measured.
    slow = ran(run("bf16-rate", fault="bf16-rate=slow")["bf16-rate"])[0].values["tflops"]
    found = run("fp8-gemm", "memory-copy", "bf16-rate", fault="fp8-gemm=wrong,memory-copy=segfault")
    assert all(one.values["rel_error"] > 0.1 for one in ran(found["fp8-gemm"]))
    assert found["memory-copy"][0].outcome == "crash"
    honest = ran(found["bf16-rate"])[0].values["tflops"]
    assert slow < honest / 2


def test_no_visible_gpu_is_not_a_failure_of_any_test() -> None:
    host = Host(environment={**os.environ, "CUDA_VISIBLE_DEVICES": "99"})
    section = smoke.collect(host, Scope(target=locate(host, PYTHON), smoke_tests=("fp8-cast",)))["smoke"]
    assert section.state is State.UNREADABLE
    assert "CUDA" in section.why
