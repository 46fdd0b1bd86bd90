"""What the thresholds say about each other and about the tests, and how the smoke checks judge whole nodes."""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import EnvironmentVariable, Gpu, HostCompiler, Origin, Package, Sections, SmokeResult, Snapshot, absent, known
from dsdoctor.findings import Report, Severity, Status
from dsdoctor.matrix import Knowledge
from dsdoctor.remedies import rows_of

KNOWLEDGE = Knowledge()
THRESHOLDS = KNOWLEDGE.matrix("smoke_thresholds_matrix")
LIMITS = KNOWLEDGE.matrix("gpu_limits_matrix")
TABLE = importlib.import_module("dsdoctor.probes.smoke_tests")
SMOKE_CHECKS = tuple(check for check in CHECKS if check.area == "smoke")


def report_on(sections: Sections, checks: Sequence[object] = SMOKE_CHECKS) -> Report:
    node = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label="a test"), sections=sections
    )
    return diagnose(node, KNOWLEDGE, checks, today=datetime.date(2026, 11, 29))  # type: ignore[arg-type]


def smoke(*results: SmokeResult, gpus: Sequence[Gpu] = H200[:1]) -> Sections:
    return Sections(smoke=known(results), gpus=known(tuple(gpus)))


# --- the thresholds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", THRESHOLDS.limits, ids=lambda row: row.id)
def test_a_limit_is_about_a_test_that_there_is_and_a_peak_that_products_have(row: object) -> None:
    assert row.test in TABLE.NAMES  # type: ignore[attr-defined]
    assert row.text.endswith((".", ")"))  # type: ignore[attr-defined]
    of, products = row.of, {product.id for product in LIMITS.products}  # type: ignore[attr-defined]
    assert of in ("", "pcie", "nvlink") or hasattr(LIMITS.products[0], of)
    assert set(row.measured_on) <= products  # type: ignore[attr-defined]
    if of:
        assert 0 < row.bad < row.good <= 1  # type: ignore[attr-defined]
    if row.see:  # type: ignore[attr-defined]
        rows_of(row.see, KNOWLEDGE.load_table)  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", THRESHOLDS.causes, ids=lambda row: row.id)
def test_the_example_of_a_cause_is_found_by_its_own_row_first(row: object) -> None:
    assert THRESHOLDS.cause_of(row.example) is row  # type: ignore[attr-defined]
    rows_of(row.check, KNOWLEDGE.load_table)  # type: ignore[attr-defined]


def test_every_clock_reason_is_one_that_facts_use() -> None:
    health = KNOWLEDGE.matrix("health_limits_matrix")
    assert {reason for reason in THRESHOLDS.slowing_clock_reasons if health.clock_reason(reason) is None} == set()
    assert "gpu_idle" not in THRESHOLDS.slowing_clock_reasons


@given(text=st.text(max_size=200))
def test_no_text_breaks_the_search_for_causes(text: str) -> None:
    assert THRESHOLDS.cause_of(text) is None or re.search(THRESHOLDS.cause_of(text).pattern, text)


# --- whole nodes ------------------------------------------------------------------------------------------------------

FREE = {"clock_event_reasons": "sw_power_cap"}
MEASURED = (
    ran("fp8-cast", "torch cast", decode_mismatches=0, encode_mismatches=0),
    ran("fp8-gemm", "torch._scaled_mm", rel_error=1.66e-3, calc_diff=1.4e-6, rel_error_unquantised=3.74e-2, nonfinite=0),
    ran("fp8-block", "torch._scaled_mm", rel_error=1.67e-3, calc_diff_unquantised=6.8e-4, nonfinite=0),
    ran("silent-corruption", "torch.matmul", notes={"checksum": "a", "input_checksum": "b", "product": "NVIDIA H200"}, differing_runs=0),
    ran("bf16-rate", "torch.mm", notes=FREE, tflops=757),
    ran("fp8-rate", "torch._scaled_mm", notes=FREE, tflops=1438),
    ran("memory-copy", "copy_", gb_per_s=4291, wrong_bytes=0),
    ran("pcie", "pinned d2h", gb_per_s=55.3, pcie_generation=5, pcie_width=16, pcie_max_generation=5, pcie_max_width=16),
    ran("pcie", "pinned h2d", gb_per_s=54.5, wrong_bytes=0, pcie_generation=5, pcie_width=16, pcie_max_generation=5, pcie_max_width=16),
    ran("attention", "sdpa-cudnn", rel_error=1.97e-3, error_share=0.2, nonfinite=0),
    ran("fa3", "fa3-fwd", notes={"generation": "FA3"}, rel_error=1.99e-3, error_share=0.2, nonfinite=0),
    ran("fa3", "fa3-fwd fp8", notes={"generation": "FA3"}, fp8_rel_error=4.5e-2, nonfinite=0),
    ran("fa3-rate", "fa3-fwd", notes={"generation": "FA3"}, tflops=755.1),
    ran("fa3-rate", "sdpa-flash", notes={"generation": "FA2"}, tflops=332.1),
    ran("triton", "triton", rel_error=7.07e-5, nonfinite=0),
    ran("p2p", "0>1", gpu=None, gb_per_s=383.4, wrong_words=0, peer_access=1),
    ran("p2p", "1>0", gpu=None, gb_per_s=391.1, wrong_words=0, peer_access=1),
    ran("collectives", "all-reduce", gpu=None, wrong=0, bus_gb_per_s=261.4 * 1.0737),
    ran("collectives", "all-to-all", gpu=None, wrong=0, bus_gb_per_s=255.5 * 1.0737),
)


def test_what_was_measured_on_the_h200_passes() -> None:
    report = report_on(smoke(*MEASURED, gpus=H200[:2]))
    assert [(found.check, found.summary) for found in report.diagnosis] == []
    assert {outcome.check for outcome in report.outcomes if outcome.status is not Status.PASS} == {"smoke.numerics"}


def test_the_same_numbers_say_nothing_where_the_gpu_is_not_known() -> None:
    report = report_on(Sections(smoke=known(MEASURED)))
    assert report.diagnosis == ()
    assert {outcome.check for outcome in report.outcomes if outcome.status is Status.UNKNOWN} >= {
        "smoke.rate",
        "smoke.bandwidth",
        "smoke.fa3",
    }


def test_one_finding_for_all_gpus_that_fail_alike() -> None:
    results = [ran("bf16-rate", "torch.mm", gpu=index, notes={"clock_event_reasons": "none"}, tflops=300 + index) for index in range(4)]
    (found,) = report_on(smoke(*results, gpus=H200)).diagnosis
    assert found.subject == "GPUs 0, 1, 2, 3"
    assert "300 TFLOP/s" in found.summary
    assert len(found.evidence) == 4


def test_a_missing_compiler_is_told_once_with_the_kernel_under_it() -> None:
    failed = said("error", "triton", "triton", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.")
    sections = Sections(
        smoke=known((failed,)),
        gpus=known(H200[:1]),
        packages=known((Package(name="vllm", version="0.33.0"), Package(name="triton", version="3.6.0"))),
        host_compilers=known(()),
        environment=known(()),
    )
    report = report_on(sections, CHECKS)
    compiler = next(found for found in report.diagnosis if found.check == "toolchain.no-compiler")
    assert [item.check for item in compiler.explains] == ["smoke.triton"]


def test_with_a_compiler_the_kernel_stands_alone_with_the_others_remedy() -> None:
    failed = said("error", "triton", "triton", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.")
    sections = Sections(
        smoke=known((failed,)),
        gpus=known(H200[:1]),
        packages=known((Package(name="triton", version="3.6.0"),)),
        host_compilers=known((HostCompiler(name="gcc", path="/usr/bin/gcc", chosen_by="PATH"),)),
        environment=known((EnvironmentVariable(name="HOME", value="/root"),)),
    )
    found = next(found for found in report_on(sections, CHECKS).diagnosis if found.check == "smoke.triton")
    assert "compiler" in found.remedies[0].summary.lower()


def test_a_node_whose_one_gpu_cannot_do_fp8_is_not_asked_about_it() -> None:
    refused = said("refused", "fp8-gemm", "torch._scaled_mm", "only supported on compute capability >= 8.9")
    a100 = Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    outcomes = {outcome.check: outcome for outcome in report_on(smoke(refused, gpus=[a100])).outcomes}
    assert outcomes["smoke.fp8-gemm"].status is Status.NOT_APPLICABLE
    # Beside a GPU that can, it is that one's result that counts.
    right = ran("fp8-gemm", "torch._scaled_mm", gpu=1, rel_error=1.7e-3, nonfinite=0)
    outcomes = {outcome.check: outcome for outcome in report_on(smoke(refused, right, gpus=[a100, H200[1]])).outcomes}
    assert outcomes["smoke.fp8-gemm"].status is Status.PASS


def test_no_gpu_is_no_failure() -> None:
    report = report_on(Sections(smoke=absent("no NVIDIA GPU")))
    assert {outcome.status for outcome in report.outcomes} == {Status.NOT_APPLICABLE}


OUTCOMES = st.sampled_from(["ran", "refused", "error", "crash", "hang", "skipped", "something new"])
NUMBERS = st.dictionaries(
    st.sampled_from(sorted({row.value for row in THRESHOLDS.limits} | {"pcie_generation", "pcie_width", "pcie_max_generation"})),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9),
    max_size=6,
)
RESULTS = st.builds(
    SmokeResult,
    test=st.sampled_from(TABLE.NAMES),
    path=st.sampled_from(["", "torch", "0>1", "9>x", "all-reduce", "all-reduce without NCCL_P2P_DISABLE", "rates", "configured cache"]),
    gpu=st.sampled_from([None, 0, 1, 7]),
    outcome=OUTCOMES,
    reason=st.sampled_from(["", "SIGSEGV", "in use by process 1", "undefined symbol: x", "a\nb"]),
    values=NUMBERS,
    notes=st.dictionaries(
        st.sampled_from(["generation", "clock_event_reasons", "checksum", "rel_error", "missing"]), st.sampled_from(["", "FA3", "nan"])
    ),
    stderr_tail=st.sampled_from(["", "Python.h: No such file"]),
)


@given(results=st.lists(RESULTS, max_size=8), count=st.integers(0, 2), known_gpus=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_result_crashes_a_check(results: list[SmokeResult], count: int, known_gpus: bool) -> None:
    sections = Sections(smoke=known(tuple(results)), **({"gpus": known(H200[:count])} if known_gpus else {}))
    report = report_on(sections)
    assert [outcome.reason for outcome in report.outcomes if outcome.status is Status.CRASHED] == []
    for found in report.diagnosis:
        assert found.summary
        assert found.evidence
        assert found.remedies
        assert all(item.value for item in found.evidence)


@given(tflops=st.floats(1, 980))
@settings(max_examples=50, deadline=None)
def test_a_rate_is_never_an_error_while_the_clocks_are_held_down(tflops: float) -> None:
    result = ran("bf16-rate", "torch.mm", notes={"clock_event_reasons": "sw_power_cap, hw_slowdown"}, tflops=tflops)
    assert all(found.severity is not Severity.ERROR for found in report_on(smoke(result)).diagnosis)
