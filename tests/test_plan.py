"""`dsdoctor plan`: the tables of the collected facts come out again, what is unknown stays so, and more never fits less."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsdoctor import plan as planner
from dsdoctor.cli import command_line
from dsdoctor.errors import UsageError
from dsdoctor.facts import Gpu
from dsdoctor.matrix import Knowledge
from dsdoctor.plan import GB, GIB, KvLayout, Model, Plan, Wanted, Weights
from dsdoctor.render import plan as page

from .nvml_stand_in import build, environment, node

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
KNOWLEDGE = Knowledge()
MODELS, LIMITS = KNOWLEDGE.matrix("deepseek-models"), KNOWLEDGE.matrix("gpu-limits")
BUDGET = MODELS.budgets[0]
PRODUCTS = {
    "H200": "H200",
    "H20 96G": "H20",
    "H20 141G": "H20-3e",
    "H100/H800 80G": "H800",
    "B200": "B200",
    "A100 80G": "A100-SXM4-80GB",
    "H100 80G": "H100",
}


def planned(model: str, gpu: str, gpus: int = 8, nodes: int = 1, **wanted: Any) -> Plan:
    return planner.plan(planner.named(model, MODELS), planner.hardware_named(gpu, gpus, nodes, LIMITS), Wanted(**wanted), MODELS, LIMITS)


def on_node(node: str, **wanted: Any) -> Plan:
    """A node as the tables write it: 16x H100/H800 80G."""
    count, _, product = node.partition("x ")
    product = PRODUCTS.get(product) or PRODUCTS[product.removesuffix(" 141G")]
    return planned("V3", product, 8, int(count) // 8, **wanted)


def dsdoctor(*arguments: str) -> Any:
    return CliRunner().invoke(command_line(), list(arguments), env={"COLUMNS": "80"})


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", MODELS.placements, ids=lambda row: f"{row.node} {row.weights}")
def test_the_table_of_nodes_comes_out_again(row: Any) -> None:
    found = on_node(row.node, weights=row.weights, kv="bf16").placed
    assert found.weights_bytes_per_gpu is not None
    assert found.budget_bytes_per_gpu is not None
    assert found.weights_bytes_per_gpu / GIB == pytest.approx(row.weights_gib_per_gpu, abs=0.06)
    assert found.budget_bytes_per_gpu / GIB == pytest.approx(row.kv_gib_per_gpu, abs=0.1)
    assert found.verdict == row.verdict
    assert found.tokens == (pytest.approx(row.tokens_bf16, rel=0.005) if row.tokens_bf16 else 0)
    if row.tokens_fp8:
        assert on_node(row.node, weights=row.weights, kv="fp8_ds_mla").placed.tokens == pytest.approx(row.tokens_fp8, rel=0.005)


def test_the_matrix_says_what_the_collected_facts_say() -> None:
    path = SHARED / "facts" / "deepseek_models.yaml"
    if not path.exists():
        pytest.skip("the collected facts are not here")
    import yaml

    table = next(row for row in yaml.safe_load(path.read_text())["planning"] if row["id"] == "plan.table")
    assert len({row["node"] for row in table["rows"]}) >= 8
    for row in table["rows"]:
        found = on_node(row["node"], weights=row["weights"], kv="bf16").placed
        assert found.verdict == {False: "no"}.get(row["verdict"], row["verdict"]), row
        assert round((found.weights_bytes_per_gpu or 0) / GIB, 1) == pytest.approx(row["weights_gib_gpu"], abs=0.11)
    for row in table["dp_attention_examples"]:
        found = on_node(row["node"], dp_attention=True).placed
        assert (found.weights_bytes_per_gpu or 0) / GIB == pytest.approx(row["weights_gib_gpu"], abs=0.2)
        assert found.tokens_per_group == pytest.approx(row["tokens_per_rank_bf16"], rel=0.01)
        assert found.tokens == pytest.approx(row["tokens_all_ranks"], rel=0.01)


@pytest.mark.parametrize(
    ("model", "layout", "gib"),
    [
        ("V4-Flash", "bf16", 6.72), ("V4-Flash", "fp8_ds_mla_fp8_index", 3.76), ("V4-Flash", "fp8_ds_mla_fp4_index", 3.43),
        ("V4-Pro", "bf16", 9.62), ("V4-Pro", "fp8_ds_mla_fp8_index", 5.38), ("V4-Pro", "fp8_ds_mla_fp4_index", 4.91),
        ("V4.1-Flash", "fp4_rows_mxfp4_index", 0.87), ("V4.1-Flash", "fp8_rows_fp8_index", 1.61),
        ("V4.1-Flash", "v4_584_rows_fp8_index", 1.75),
    ],
)  # fmt: skip
def test_the_cache_of_a_million_tokens(model: str, layout: str, gib: float) -> None:
    kv = next(item for item in planner.named(model, MODELS).layouts if item.name == layout)
    assert kv.bytes_per_token * 1_048_576 / GIB == pytest.approx(gib, abs=0.006)


def test_the_fixed_part_of_a_sequence_is_the_window_of_all_layers() -> None:
    flash, pro, v41 = (planner.named(name, MODELS) for name in ("V4-Flash", "V4-Pro", "V4.1-Flash"))
    sizes = {model.name: {kv.name: kv.bytes_per_sequence for kv in model.layouts} for model in (flash, pro, v41)}
    assert sizes[flash.name]["fp8_ds_mla_fp8_index"] == 43 * 128 * 584 == 3214336
    assert sizes[pro.name]["fp8_ds_mla_fp8_index"] == 61 * 128 * 584 == 4559872
    assert sizes[v41.name]["fp8_rows_fp8_index"] == 40 * 128 * 528 == 2703360
    assert sizes[v41.name]["v4_584_rows_fp8_index"] == 40 * 128 * 584 == 2990080


def test_the_facts_of_v4_and_v41_come_out_again() -> None:
    """KV bytes per token in every layout, the fixed part, weights as measured, and tables in main memory; unknown there is unknown here."""
    path = SHARED / "facts" / "deepseek_models_2026.yaml"
    if not path.exists():
        pytest.skip("the collected facts are not here")
    import yaml

    facts = yaml.safe_load(path.read_text())
    caches = {row["id"]: row for row in facts["kv_cache"]}
    expected = {
        "V4-Flash": caches["kv.v4.formula"]["bytes_per_token"]["flash"],
        "V4-Pro": caches["kv.v4.formula"]["bytes_per_token"]["pro"],
        "V4.1-Flash": caches["kv.v41.formula"]["bytes_per_token"],
    }
    for name, layouts in expected.items():
        assert {kv.name: kv.bytes_per_token for kv in planner.named(name, MODELS).layouts} == layouts, name
    windows = caches["kv.v4.formula"]["window_bytes_per_sequence_fp8"]
    fixed = {
        name: {kv.bytes_per_sequence for kv in planner.named(name, MODELS).layouts if "fp8" in kv.name} for name in ("V4-Flash", "V4-Pro")
    }
    assert fixed == {"V4-Flash": {windows["flash"]}, "V4-Pro": {windows["pro"]}}
    assert caches["kv.v4.formula"]["compressor_state_bytes"] == "unknown"
    assert all(any("compressor-state" in text for text in planner.named(name, MODELS).unknown) for name in expected)

    measured = {row["layout"]: row for row in next(row for row in facts["sizes"] if row["id"] == "size.measured_weights_per_gpu")["gib"]}
    for gpus, layout in ((8, "TP8 H200, Engram on host"), (4, "TP4 H200, Engram on host")):
        per_gpu = planned("V4.1-Flash", "H200", gpus=gpus).placed.weights_bytes_per_gpu or 0
        assert per_gpu / GIB == pytest.approx(measured[layout]["per_gpu"], rel=0.01)
    tables = next(row for row in facts["architecture"] if row["id"] == "arch.v41_flash")["engram"]["gib_with_scales"]
    assert planner.named("V4.1-Flash", MODELS).weights[0].host_bytes / GIB == pytest.approx(tables, abs=0.5)
    on_disk = {row["id"]: row.get("bytes_gb") for row in facts["releases"]}
    for name, id in (("V4-Flash", "rel.v4_flash"), ("V4-Pro", "rel.v4_pro"), ("V4.1-Flash", "rel.v41_flash")):
        assert planner.named(name, MODELS).weights[0].disk_bytes == round(on_disk[id] * GB)
    pro = next(row for row in facts["architecture"] if row["id"] == "arch.v4_pro")
    assert pro["heads"] == "unknown"
    assert planner.named("V4-Pro", MODELS).heads is None


@pytest.mark.parametrize(("gb_per_s", "minutes"), [(1, 11.5), (3, 3.8), (6, 1.9)])
def test_the_load_time_is_bytes_by_rate(gb_per_s: float, minutes: float) -> None:
    assert (planned("V3", "H200", disk_gb_per_s=gb_per_s).load_s or 0) / 60 == pytest.approx(minutes, abs=0.05)


def test_v32_on_eight_h200_holds_about_a_million_tokens_in_fp8() -> None:
    assert planned("V3.2", "H200", kv="fp8").placed.tokens == pytest.approx(1.0e6, rel=0.01)


def test_v41_keeps_its_tables_in_main_memory_and_takes_what_was_measured() -> None:
    found = planned("V4.1-Flash", "H200")
    assert (found.placed.weights_bytes_per_gpu or 0) / GIB == pytest.approx(49.6, abs=0.05)
    assert {line.what: line.figure for line in found.arithmetic}["tables in main memory"] == "189.0 GiB"
    assert found.kv == "v4_584_rows_fp8_index"
    assert planned("V4.1-Flash", "B200").kv == "fp8_rows_fp8_index"


# --- unknown stays unknown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["V4.1-Flash-1017", "nvidia/DeepSeek-V3-FP4", "V4-Flash-Base", "V4-Pro-Base"])
def test_a_model_without_known_bytes_is_never_said_to_fit(model: str) -> None:
    found = planned(model, "B300", nodes=8)
    assert (found.placed.verdict, found.placed.tokens, found.fits) == ("unknown", None, False)
    assert found.unknown
    assert "unknown" in page.render(found, width=80, colour=False)


def test_the_share_of_experts_of_v4_is_not_known_so_neither_is_data_parallel_attention() -> None:
    found = planned("V4-Flash", "H200", dp_attention=True)
    assert found.placed.verdict == "unknown"
    assert "routed experts" in found.placed.reason
    assert planned("V4-Pro", "L40S", dp_attention=True).placed.verdict == "no", "not even cut evenly"


def test_what_is_unknown_of_v4_is_named() -> None:
    assert any("compressor-state" in text for text in planned("V4-Flash", "H200").unknown)
    assert any("heads" in text for text in planned("V4-Pro", "H200").unknown)
    assert "at most" in planned("V4-Flash", "H200").summary[0]


def test_a_size_that_no_row_gives_is_refused() -> None:
    with pytest.raises(UsageError, match="known are fp8, bf16, int8"):
        planned("V3", "H200", weights="nvfp4")


# --- answers ----------------------------------------------------------------------------------------------------------


def test_one_h200_for_v3_is_explained_in_three_lines() -> None:
    found = planned("V3", "H200", gpus=1)
    first, why, would = found.summary
    assert first == "DeepSeek-V3 does not fit 1x H200 SXM"
    assert "need 626.9 GiB per GPU; of its 140.4 GiB 123.2 GiB are usable" in why
    assert would.startswith("what would: 8x H200 SXM, or ")
    assert all(line in page.render(found, width=80, colour=False).splitlines()[i + 2] for i, line in enumerate(found.summary))
    assert "16x H100 SXM (2 nodes of 8)" in [item.told for item in found.alternatives]


def test_alternatives_fit_when_they_are_asked_for() -> None:
    for item in planned("V3", "H200", gpus=1).alternatives:
        assert planned("V3", item.product, item.gpus // item.nodes, item.nodes).placed.verdict == "fits", item
        assert item.nodes == 1 or planned("V3", item.product, item.gpus // item.nodes, item.nodes // 2).placed.verdict != "fits", item


def test_a_gpu_without_fp8_units_is_told_so() -> None:
    assert "no FP8 units" in planned("V3", "A100-SXM4-80GB", nodes=4).placed.reason
    assert "no FP8 units" in planned("V3", "A100-SXM4-80GB", nodes=4, weights="bf16", kv="fp8").placed.reason


def test_a_context_above_the_limit_is_refused_with_the_figure() -> None:
    with pytest.raises(UsageError, match=r"163,840 tokens at most.*256K"):
        planned("V3", "H200", context=262144)
    assert planned("V3", "H200", context=163840).fits
    assert planned("V3", "H20", context=50_000).fits
    assert planned("V3", "H20", context=60_000).placed.verdict == "no"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"tp": 16}, "needs 16 GPUs"), ({"tp": 3}, "does not divide the 128"), ({"pp": 9}, "--pp 9"), ({"ep": 5}, "--ep 5"),
        ({"kv": "int3"}, "unknown KV layout"),
    ],
)  # fmt: skip
def test_layouts_that_cannot_be_are_refused(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        planned("V3", "H200", **wanted)


def test_pipeline_stages_hold_whole_layers() -> None:
    model, layout = planner.named("V3", MODELS), planned("V3", "H200", nodes=2, pp=2).layout
    assert (layout.tp, layout.pp) == (8, 2)
    cut = planner.weights_per_gpu(model.weights[0], layout, model.layers)
    assert cut == pytest.approx(673.15 * GB / 8 * 31 / 61, rel=1e-6)


def test_gpus_that_tensor_parallelism_cannot_use_stay_unused() -> None:
    found = planned("V3", "H200", gpus=12)
    assert (found.layout.tp, found.layout.spare) == (8, 4)
    assert any("4 of 12 GPUs stay unused" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "product"), [("h200", "h200-sxm"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("b200-sxm", "b200-sxm"), ("A100", "a100-sxm")]
)
def test_gpus_are_known_by_many_names(name: str, product: str) -> None:
    assert planner.product_of(name, LIMITS).id == product


def test_the_smaller_variant_of_a_product_counts_by_its_name() -> None:
    assert planner.hardware_named("A100-SXM4-40GB", 8, 1, LIMITS).memory_bytes == 40 * GB


def test_this_node_counts_its_smallest_gpu_and_no_gpu_is_a_usage_error() -> None:
    cards = [
        Gpu(index=0, name="NVIDIA H200", memory_total_bytes=150 * GB, compute_capability="9.0"),
        Gpu(index=1, name="NVIDIA H100", memory_total_bytes=85 * GB),
    ]
    found = planner.hardware_here(cards, 0, 0, LIMITS)
    assert (found.product, found.memory_bytes, found.count) == ("H100", 85 * GB, 2)
    with pytest.raises(UsageError, match="--gpu H200"):
        planner.hardware_here([Gpu(index=0, name="NVIDIA H200")], 0, 0, LIMITS)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3.2", "v3.2", "DeepSeek-V3.2"])
def test_models_are_known_with_and_without_their_brand(name: str) -> None:
    assert planner.named(name, MODELS).name == "DeepSeek-V3.2"


def test_every_release_for_serving_can_be_named() -> None:
    for name in planner.names(MODELS):
        model = planner.named(name, MODELS)
        assert model.weights or model.unknown, name


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_answers_by_its_exit_code() -> None:
    assert dsdoctor("plan", "V3", "--gpu", "H200").exit_code == 0
    assert dsdoctor("plan", "V3", "--gpu", "H200", "--gpus", "1").exit_code == 1
    unknown = dsdoctor("plan", "DeepSeek-V3.3", "--gpu", "H200")
    assert unknown.exit_code == 2
    assert "did you mean DeepSeek-V3" in unknown.stderr
    assert dsdoctor("plan", "V3", "--gpu", "H2000").exit_code == 2
    assert dsdoctor("plan", "V3", "--gpu", "H200", "--context", "262144").exit_code == 2


@pytest.mark.parametrize(("gpus", "code", "says"), [(1, 1, "does not fit 1x H200"), (8, 0, "fits 8x H200")])
def test_without_options_it_is_this_node(tmp_path_factory: pytest.TempPathFactory, gpus: int, code: int, says: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "dsdoctor", "plan", "DeepSeek-V3"], env=environment(build(tmp_path_factory), node("h200", gpus=gpus)),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (code, "")
    assert says in found.stdout
    assert "as NVML reports it here" in " ".join(found.stdout.split())


def test_json_holds_the_whole_answer() -> None:
    document = json.loads(dsdoctor("plan", "V4-Pro", "--gpu", "B200", "--format", "json").stdout)
    assert document["schema"] == "dsdoctor.plan/1"
    assert document["fits"] is True
    assert document["placed"]["max_context"] == 1048576
    assert {"arithmetic", "alternatives", "unknown", "layout", "hardware"} <= set(document)


@pytest.mark.parametrize("model", ["V3", "V4-Pro", "V4.1-Flash", "V4.1-Flash-1017"])
def test_the_page_keeps_to_eighty_columns(model: str) -> None:
    text = page.render(planned(model, "H100", nodes=2, disk_gb_per_s=2.0), width=80, colour=False)
    assert max(map(len, text.splitlines())) <= 80
    assert page.render(planned(model, "H100"), width=80, colour=False, unicode=False).isascii()
    assert not re.search(r"\bNone\b", text)


# --- properties -------------------------------------------------------------------------------------------------------

ORDER = {"no": 0, "unknown": 1, "tight": 2, "fits": 3}
NAMES = st.sampled_from(["V3", "V3.2", "V4-Flash", "V4-Pro", "V4.1-Flash", "V4.1-Flash-1017"])
CARDS = st.sampled_from([row.id for row in LIMITS.products])


@settings(max_examples=60, deadline=None)
@given(NAMES, st.integers(1, 300), st.integers(1, 96), st.integers(1, 96))
def test_more_gpus_never_fit_less(name: str, memory_gib: int, some: int, more: int) -> None:
    model = planner.named(name, MODELS)
    weights, kv = next(iter(model.weights), None), next(iter(model.layouts), None)
    small, large = (
        planner.place(model, weights, kv, memory_gib * GIB, planner.arranged(count, model, Wanted()), BUDGET)
        for count in sorted((some, some + more))
    )
    assert ORDER[large.verdict] >= ORDER[small.verdict]
    assert (large.tokens or 0) >= (small.tokens or 0)


@settings(max_examples=60, deadline=None)
@given(NAMES, st.integers(1, 300), st.integers(1, 64), st.integers(1, 1_048_576), st.integers(0, 1_048_576))
def test_a_longer_context_never_fits_more(name: str, memory_gib: int, count: int, context: int, longer: int) -> None:
    model = planner.named(name, MODELS)
    weights, kv = next(iter(model.weights), None), next(iter(model.layouts), None)
    layout = planner.arranged(count, model, Wanted())
    short, long = (planner.place(model, weights, kv, memory_gib * GIB, layout, BUDGET, size) for size in (context, context + longer))
    assert ORDER[long.verdict] <= ORDER[short.verdict]
    assert (long.requests or 0) <= (short.requests or 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 200_000), st.integers(0, 10**8), st.integers(8, 300), st.integers(1, 64))
def test_what_is_said_to_fit_is_within_the_memory(weights_gb: int, per_token: int, fixed: int, memory_gib: int, count: int) -> None:
    model = Model(name="m", context_limit=100_000, layers=61, heads=128, default_layouts={})
    weights, kv = Weights(format="x", gpu_bytes=weights_gb * GB), KvLayout(name="k", bytes_per_token=per_token, bytes_per_sequence=fixed)
    layout = planner.arranged(count, model, Wanted())
    found = planner.place(model, weights, kv, memory_gib * GIB, layout, BUDGET)
    if found.verdict == "fits":
        needed = weights_gb * GB / layout.tp + (found.requests or 0) * (100_000 * per_token + fixed)
        assert needed <= planner.usable_bytes(memory_gib * GIB, BUDGET) + 1
    else:
        assert not found.requests


@settings(max_examples=30, deadline=None)
@given(NAMES, CARDS, st.integers(1, 16), st.integers(1, 4))
def test_every_product_and_model_has_a_page(name: str, card: str, gpus: int, nodes: int) -> None:
    found = planned(name, card, gpus, nodes)
    assert found.summary
    assert found.placed.verdict in ORDER
    assert replace(found, problems=("x",)).fits is False
    json.loads(page.document(found))
    page.render(found, width=80, colour=True)
