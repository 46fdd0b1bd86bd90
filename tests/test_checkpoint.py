"""A checkpoint directory whose parts contradict one another is caught, each time with where and what; weights are never read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsdoctor import checkpoint, plan
from dsdoctor.cli import command_line
from dsdoctor.errors import InputError
from dsdoctor.matrix import Knowledge

Tensors = dict[str, tuple[str, tuple[int, ...]]]
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 300, "kv_lora_rank": 32,
    "qk_rope_head_dim": 8, "max_position_embeddings": 4096,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


def layer(number: int) -> Tensors:
    stem = f"model.layers.{number}"
    return {
        f"{stem}.self_attn.o_proj.weight": ("F8_E4M3", (300, 200)),
        f"{stem}.self_attn.o_proj.weight_scale_inv": ("F32", (3, 2)),
        f"{stem}.mlp.experts.0.up_proj.weight": ("F8_E4M3", (130, 300)),
        f"{stem}.mlp.experts.0.up_proj.weight_scale_inv": ("F32", (2, 3)),
        f"{stem}.input_layernorm.weight": ("BF16", (300,)),
    }


def shard_bytes(tensors: Tensors) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = checkpoint.BITS[dtype] // 8
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + bytes(at)


def written(folder: Path, shards: Mapping[str, Tensors] | None = None, config: Mapping[str, Any] = CONFIG, index: bool = True) -> Path:
    shards = shards if shards is not None else {name: layer(number) for number, name in enumerate(SHARDS)}
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        (folder / name).write_bytes(shard_bytes(tensors))
    if index:
        held = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (folder / checkpoint.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": held}))
    return folder


def with_change(folder: Path, name: str, dtype: str, shape: tuple[int, ...]) -> Path:
    shards = {shard: layer(number) for number, shard in enumerate(SHARDS)}
    owner = next(shard for shard, tensors in shards.items() if name in tensors)
    shards[owner][name] = (dtype, shape)
    return written(folder, shards)


def kinds(folder: Path) -> dict[str, str]:
    return {problem.kind: problem.told for problem in checkpoint.read(folder).problems}


def test_a_sound_checkpoint_has_no_problems(tmp_path: Path) -> None:
    found = checkpoint.read(written(tmp_path))
    assert found.problems == ()
    assert len(found.tensors) == 15
    assert found.bytes_on_disk == sum(item.bytes for item in found.tensors) == 3 * (60000 + 24 + 39000 + 24 + 600)


def test_a_wrong_scale_shape(tmp_path: Path) -> None:
    found = kinds(with_change(tmp_path, "model.layers.1.self_attn.o_proj.weight_scale_inv", "F32", (2, 2)))
    assert set(found) == {"scale-shape"}
    assert "is 2×2; 300×200 in blocks of 128×128 needs 3×2" in found["scale-shape"]


def test_a_scale_that_floors_where_it_should_round_up(tmp_path: Path) -> None:
    assert (
        "needs 2×3" in kinds(with_change(tmp_path, "model.layers.0.mlp.experts.0.up_proj.weight_scale_inv", "F32", (1, 3)))["scale-shape"]
    )


def test_a_wrong_dtype(tmp_path: Path) -> None:
    found = kinds(with_change(tmp_path, "model.layers.2.self_attn.o_proj.weight", "BF16", (300, 200)))
    assert set(found) == {"wrong-dtype"}
    assert "its scale says F8_E4M3" in found["wrong-dtype"]


def test_a_norm_of_another_dtype_than_all_others(tmp_path: Path) -> None:
    assert (
        "2 others of its role are BF16"
        in kinds(with_change(tmp_path, "model.layers.0.input_layernorm.weight", "F32", (300,)))["wrong-dtype"]
    )


def test_a_scale_of_another_format_than_the_configuration_says(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    assert "scale-dtype" in kinds(with_change(tmp_path, name, "F8_E8M0", (3, 2)))
    shards = {shard: {key: (("F8_E8M0", shape) if key.endswith("_inv") else (dtype, shape)) for key, (dtype, shape) in layer(number).items()} for number, shard in enumerate(SHARDS)}  # fmt: skip
    ue8m0 = {**CONFIG, "quantization_config": {**CONFIG["quantization_config"], "scale_fmt": "ue8m0"}}
    assert kinds(written(tmp_path, shards, ue8m0)) == {}


def test_a_missing_scale_and_one_without_a_weight(tmp_path: Path) -> None:
    shards = {name: layer(number) for number, name in enumerate(SHARDS)}
    del shards[SHARDS[0]]["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    del shards[SHARDS[1]]["model.layers.1.self_attn.o_proj.weight"]
    assert {"scale-missing", "scale-alone"} <= set(kinds(written(tmp_path, shards)))


def test_a_configuration_that_forgot_the_quantisation(tmp_path: Path) -> None:
    assert "no quantization_config" in kinds(written(tmp_path, config={**CONFIG, "quantization_config": None}))["quantisation"]


def test_a_checkpoint_of_modelopt_has_scales_of_its_own_kind(tmp_path: Path) -> None:
    written(tmp_path, {"model.safetensors": {"a.weight": ("U8", (4, 8)), "a.weight_scale": ("F8_E4M3", (4, 1))}}, {"model_type": "x"})
    assert kinds(tmp_path) == {}
    written(tmp_path, {"model.safetensors": {"a.weight": ("F8_E4M3", (4, 8))}}, {"model_type": "x"})
    assert "quantisation" in kinds(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert kinds(tmp_path) == {}


def test_a_configuration_that_invented_the_quantisation(tmp_path: Path) -> None:
    plain: Tensors = {f"model.layers.{number}.mlp.weight": ("BF16", (8, 8)) for number in range(3)}
    assert "no tensor is F8_E4M3" in kinds(written(tmp_path, {"model.safetensors": plain}))["quantisation"]


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard(tmp_path: Path, index: bool) -> None:
    (written(tmp_path, index=index) / SHARDS[1]).unlink()
    found = kinds(tmp_path)
    assert SHARDS[1] in found["missing-shard"]
    assert "layer 1" in found["missing-layer"]


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    shards = {name: layer(number) for number, name in enumerate(SHARDS)}
    shards[SHARDS[2]] |= layer(1)
    assert f"is in {SHARDS[1]} and in {SHARDS[2]}" in kinds(written(tmp_path, shards))["duplicate-tensor"]


def test_shards_of_two_downloads(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(shard_bytes({"other": ("F32", (1,))}))
    assert {"mixed-shards", "stray-shard", "missing-shard"} <= set(kinds(tmp_path))


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors", ".."])
def test_an_index_that_names_a_file_outside_the_directory(tmp_path: Path, name: str) -> None:
    written(tmp_path)
    document = json.loads((tmp_path / checkpoint.INDEX).read_text())
    document["weight_map"]["model.layers.0.input_layernorm.weight"] = name
    (tmp_path / checkpoint.INDEX).write_text(json.dumps(document))
    assert "not in this directory" in kinds(tmp_path)["index-outside"]


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (written(tmp_path) / checkpoint.INDEX).write_text(text)
    assert "broken-index" in kinds(tmp_path)


def test_a_truncated_shard(tmp_path: Path) -> None:
    path = written(tmp_path) / SHARDS[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "is cut off" in kinds(tmp_path)["broken-shard"]
    path.write_bytes(whole[:40])
    assert "its header should have" in kinds(tmp_path)["broken-shard"]
    path.write_bytes(whole[:3])
    assert "has 3 bytes" in kinds(tmp_path)["broken-shard"]


def head(text: str, data: bytes = b"") -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode() + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ((2**63).to_bytes(8, "little") + b"{}", "the format allows"),
        (head("[]"), "no JSON object"),
        (head("{"), "no JSON"),
        (head("[" * 100_000), "nested too deeply"),
        (head('{"a": 1}'), "by no object"),
        (head('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', bytes(4)), "without dtype"),
        (head('{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', bytes(4)), "without dtype"),
        (head('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', bytes(4)), "takes 8"),
        (head('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', bytes(4)), "is cut off"),
        (head('{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 4]}}', bytes(4)), "more than 19 digits"),
        (head('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {}}', bytes(4)), "occurs twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "header",
)
def test_hostile_headers_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (written(tmp_path, {}, index=False) / "model.safetensors").write_bytes(content)
    assert says in kinds(tmp_path)["broken-shard"]


def test_a_pipe_is_no_shard_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(written(tmp_path, {}, index=False) / "model.safetensors")
    assert "no regular file" in kinds(tmp_path)["broken-shard"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_make_it_fall_over(tmp_path: Path, content: bytes) -> None:
    (written(tmp_path, {}, index=False) / "model.safetensors").write_bytes(content)
    checkpoint.read(tmp_path)


def test_a_directory_without_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        checkpoint.read(tmp_path)
    (tmp_path / "config.json").write_text("{]")
    with pytest.raises(InputError, match=r"config\.json"):
        checkpoint.read(tmp_path)


# --- planning what is in a directory ----------------------------------------------------------------------------------


def test_the_bytes_of_a_directory_are_planned(tmp_path: Path) -> None:
    models = Knowledge().matrix("deepseek-models")
    shards = {name: layer(number) for number, name in enumerate(SHARDS)}
    shards[SHARDS[2]] |= layer(3)
    model = plan.of_checkpoint(checkpoint.read(written(tmp_path, shards)), models)
    assert model.weights[0].gpu_bytes == 3 * (60000 + 24 + 39000 + 24 + 600)
    assert model.weights[0].routed_bytes == 3 * (39000 + 24)
    assert any("draft layers" in note for note in model.notes), "the fourth layer is the draft layer"
    assert [(kv.name, kv.bytes_per_token) for kv in model.layouts] == [("bf16", 3 * (32 + 8) * 2)]


def test_a_configuration_of_the_shape_of_v3_takes_its_rows(tmp_path: Path) -> None:
    models = Knowledge().matrix("deepseek-models")
    config = {**CONFIG, "num_hidden_layers": 61, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = plan.of_checkpoint(checkpoint.read(written(tmp_path, {}, config)), models)
    assert {kv.name: kv.bytes_per_token for kv in model.layouts} == {"bf16": 70272, "fp8_plain": 35136, "fp8_ds_mla": 40016}
    assert model.weights == (), "without shards the size is not known"


def test_an_unknown_architecture_has_an_unknown_cache(tmp_path: Path) -> None:
    model = plan.of_checkpoint(
        checkpoint.read(written(tmp_path, config={**CONFIG, "model_type": "llama"})), Knowledge().matrix("deepseek-models")
    )
    assert model.layouts == ()
    assert any("KV cache" in text for text in model.unknown)


def test_the_command_plans_a_directory_and_refuses_a_broken_one(tmp_path: Path) -> None:
    written(tmp_path)
    arguments = ["plan", str(tmp_path), "--gpu", "H200", "--gpus", "1"]
    assert CliRunner().invoke(command_line(), arguments).exit_code == 0
    (tmp_path / SHARDS[2]).unlink()
    broken = CliRunner().invoke(command_line(), arguments)
    assert broken.exit_code == 1
    assert "missing-shard" in broken.stdout
