"""Profiles: what a node is to be fit for. Named, checked on load, extended by a site, and judged on recordings."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsdoctor import plan as planner
from dsdoctor import purpose
from dsdoctor.checks import CHECKS
from dsdoctor.cli import command_line
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import MatrixError, UsageError
from dsdoctor.facts import Package, Sections, SharedMemory, SmokeResult, known, not_asked
from dsdoctor.lint import lint
from dsdoctor.matrix import Knowledge
from dsdoctor.matrix_commands import overlays
from dsdoctor.plugins import smoke_test_names
from dsdoctor.render.json import complete
from dsdoctor.sources import replay

from .test_checkpoint import SHARDS, written

KNOWLEDGE = Knowledge()
NAMES = KNOWLEDGE.profile_names()
TODAY = datetime.date(2026, 11, 29)
WANTED = {"vllm", "sglang", "deepseek-v3", "deepseek-v4", "deepseek-v4.1", "training", "fa3", "deepep", "any"}
OWN = """
matrix: fa3
schema: 1
seen: '2026-11-29'
title: FlashAttention-3, and our tracer
sources: {us: {title: our runbook}}
components:
- name: our tracer
  provided_by: [{package: our-tracer, specifiers: '>=2'}]
  want: our-tracer
  text: We want it on every node.
  basis: {source: us, confidence: community, certainty: high}
thresholds:
- id: our-fa3-rate
  test: fa3-rate
  value: tflops
  good: 900
  bad: 800
  text: Our acceptance test.
  basis: {source: us, confidence: measured, certainty: high}
"""


def dsdoctor(*arguments: str) -> Any:
    return CliRunner().invoke(command_line(), list(arguments), env={"COLUMNS": "80"})


def judged(source: str, *arguments: str) -> dict[str, Any]:
    """The report on a recording, as `dsdoctor replay --format json` has it; options in pairs."""
    options = [*zip(arguments[::2], arguments[1::2])]
    folders = tuple(Path(value) for name, value in options if name == "--matrix")
    knowledge = Knowledge(folders) if folders else KNOWLEDGE
    given = dict(options)
    asked = purpose.ask(
        knowledge, [name for option, value in options if option == "--profile" for name in value.split(",")],
        [value for option, value in options if option == "--model"], nodes=int(given.get("--nodes", 1)),
        disk_gb_per_s=float(given.get("--disk-gb-s", 0)),
    )  # fmt: skip
    node = replay.load(source)
    node = replace(node, sections=asked.beside(node.sections))
    document: dict[str, Any] = complete(diagnose(node, knowledge, CHECKS, today=TODAY, purpose=asked))
    return document


def findings(report: Mapping[str, Any], check: str) -> list[dict[str, Any]]:
    return [item for item in report["diagnosis"] if item["check"] == check]


def outcome(report: Mapping[str, Any], check: str) -> dict[str, Any]:
    return next(item for item in report["outcomes"] if item["check"] == check)


def recorded(tmp_path: Path, example: str = "h200-healthy", **sections: Any) -> str:
    """A recording made of an example, with some sections changed."""
    node = replay.load(f"example:{example}")
    path = tmp_path / "node.json"
    replay.save(replace(node, sections=replace(node.sections, **sections)), str(path))
    return str(path)


def of_example(example: str = "h200-healthy") -> Sections:
    return replay.load(f"example:{example}").sections


# --- what is built in -------------------------------------------------------------------------------------------------


def test_the_profiles_that_were_promised_are_there() -> None:
    assert set(NAMES) >= WANTED
    aliases = {alias for name in NAMES for alias in KNOWLEDGE.profile(name).aliases}
    assert {"deepseek-v3.1", "deepseek-v3.2", "deepseek-r1", "deepseek-v4-pro", "deepseek-v4.1-flash"} <= aliases
    assert not aliases & set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_profile_can_be_used(name: str) -> None:
    from dsdoctor.advise.answer import read_want
    from dsdoctor.advise.catalogue import Shelf

    profile, models = KNOWLEDGE.profile(name), KNOWLEDGE.matrix("deepseek-models")
    asked = {name, *profile.aliases}
    for model in (profile.model, *profile.aliases.values()):
        assert not model or planner.named(model, models).name == model
    for component in profile.components:
        read_want(component.want, Shelf.of(KNOWLEDGE.matrix))
    for row in (*profile.components, *profile.gpus, *profile.needs):
        assert set(row.only_as) <= asked
    for alias in asked:
        assert name == "any" or any(set(row.only_as or asked) & {alias} for row in profile.components), alias
    assert {row.smoke_test for row in profile.smoke} <= set(smoke_test_names())


def test_an_unknown_profile_names_the_nearest() -> None:
    answer = dsdoctor("replay", "example:h200-healthy", "--profile", "deepseek-v5")
    assert answer.exit_code == 2
    assert "unknown profile 'deepseek-v5': did you mean deepseek-v" in answer.stderr
    assert dsdoctor("check", "--profile", "fa").exit_code == 2
    assert dsdoctor("replay", "example:h200-healthy", "--model", "DeepSeek-V9").exit_code == 2


def test_profiles_are_listed_and_shown() -> None:
    listed = json.loads(dsdoctor("list", "profiles", "--format", "json").stdout)["items"]
    assert {item["profile"] for item in listed} == set(NAMES)
    assert "deepseek-r1" in dsdoctor("list", "profiles").stdout
    assert "FlashAttention-3 on Hopper" in dsdoctor("matrix", "show", "profiles").stdout
    assert "fa3-rate" in dsdoctor("matrix", "show", "profiles/fa3").stdout
    assert dsdoctor("matrix", "show", "profiles/fa2").exit_code == 2


# --- a site's own -----------------------------------------------------------------------------------------------------


def own_folder(tmp_path: Path, text: str = OWN, name: str = "fa3") -> Path:
    folder = tmp_path / "ours"
    (folder / "profiles").mkdir(parents=True)
    (folder / "profiles" / f"{name}.yaml").write_text(text)
    return folder


def test_a_site_adds_rows_to_a_profile_and_limits_to_its_tests(tmp_path: Path) -> None:
    fast = (
        SmokeResult(test="fa3", path="fa3-fwd", gpu=0, outcome="ran", values={"rel_error": 2e-3, "error_share": 0.2, "nonfinite": 0}),
        SmokeResult(test="fa3-rate", path="fa3-fwd", gpu=0, outcome="ran", values={"tflops": 755}, notes={"generation": "FA3"}),
    )
    packages = (*(of_example().packages.value or ()), Package(name="fa3-fwd", version="0.0.3"))
    node = recorded(tmp_path, packages=known(packages), smoke=known(fast))
    folder = own_folder(tmp_path)
    report = judged(node, "--profile", "fa3", "--matrix", str(folder))
    assert [item["subject"] for item in findings(report, "profile.component-missing")] == ["our tracer"]
    assert "755" in findings(report, "smoke.fa3")[0]["summary"]
    assert not findings(judged(node, "--profile", "fa3"), "smoke.fa3")
    assert "our tracer" in dsdoctor("matrix", "show", "profiles/fa3", "--matrix", str(folder)).stdout


def test_a_site_has_a_profile_of_its_own(tmp_path: Path) -> None:
    folder = own_folder(tmp_path, OWN.replace("matrix: fa3", "matrix: acceptance"), "acceptance")
    assert "acceptance" in dsdoctor("list", "profiles", "--matrix", str(folder)).stdout
    report = judged("example:h200-healthy", "--profile", "acceptance", "--matrix", str(folder))
    assert report["fitness"]["profiles"] == ["acceptance"]
    assert "advise --want our-tracer" in str(findings(report, "profile.component-missing")[0]["remedies"])


@pytest.mark.parametrize(
    ("old", "new", "line", "key"),
    [
        ("specifiers: '>=2'", "specifiers: 'two'", 9, "components[0].provided_by[0].specifiers"),
        ("  want: our-tracer", "  wanted: our-tracer", 10, "components[0].wanted"),
        ("source: us, confidence: community", "source: nobody, confidence: community", 12, "components[0].basis.source"),
        ("matrix: fa3", "matrix: fa4", 2, "matrix"),
        ("components:", "smoke:\n- {smoke_test: fa9, text: t, basis: {source: us, confidence: measured}}\ncomponents:", 8, "smoke[0].smoke_test"),
        ("components:", "needs:\n- {need: money, amount: 1, severity: error, text: t, basis: {source: us, confidence: measured}}\ncomponents:", 8, "needs[0].need"),
    ],
)  # fmt: skip
def test_a_faulty_profile_is_refused_with_its_line_and_key(tmp_path: Path, old: str, new: str, line: int, key: str) -> None:
    folder = own_folder(tmp_path, OWN.replace(old, new))
    problems = [(problem.line, problem.key) for problem in lint(folder)]
    assert (line, key) in problems, problems
    with pytest.raises(MatrixError, match=rf"fa3\.yaml:{line}: "):
        overlays([str(folder)])


def test_a_profile_without_a_title_is_refused_on_load(tmp_path: Path) -> None:
    folder = own_folder(tmp_path, OWN.replace("matrix: fa3", "matrix: x").replace("title: FlashAttention-3, and our tracer\n", ""), "x")
    with pytest.raises(MatrixError, match=r"x\.yaml.*title"):
        purpose.named("x", Knowledge((folder,)))


# --- judged on recordings ---------------------------------------------------------------------------------------------


def test_fa3_without_a_provider_names_the_remedy() -> None:
    report = judged("example:h200-healthy", "--profile", "fa3")
    assert (report["verdict"], report["fitness"]) == ("broken", {"profiles": ["fa3"], "inferred": False, "models": [], "plans": []})
    (missing,) = findings(report, "profile.component-missing")
    assert missing["severity"] == "error"
    assert missing["remedies"][0]["commands"] == ["uv pip install fa3-fwd==0.0.3 torch==2.11.0"], "the torch that is there stays"
    assert [item["check"] for item in missing["explains"]] == ["profile.smoke-not-run"]
    assert dsdoctor("replay", "example:h200-healthy", "--profile", "fa3").exit_code == 1


def test_fa3_with_its_wheel_passes(tmp_path: Path) -> None:
    """As measured on that H200: rel_error 1.97e-3, 755 TFLOP/s."""
    ran = (
        SmokeResult(test="fa3", path="fa3-fwd", gpu=0, outcome="ran", values={"rel_error": 1.97e-3, "error_share": 0.21, "nonfinite": 0}),
        SmokeResult(test="fa3-rate", path="fa3-fwd", gpu=0, outcome="ran", values={"tflops": 755.1}, notes={"generation": "FA3"}),
    )
    sections = of_example()
    others = tuple(result for result in sections.smoke.value or () if not result.test.startswith("fa3"))
    packages = (*(sections.packages.value or ()), Package(name="fa3-fwd", version="0.0.3"))
    node = recorded(tmp_path, packages=known(packages), smoke=known((*others, *ran)))
    report = judged(node, "--profile", "fa3")
    assert report["verdict"] == "healthy"
    for check in ("profile.component-missing", "profile.smoke-not-run", "profile.node-needs", "smoke.fa3", "attention.fa3-unusable"):
        assert outcome(report, check)["status"] == "pass", check
    assert dsdoctor("replay", node, "--profile", "fa3").exit_code == 0


def test_one_h200_cannot_serve_v3_in_three_lines() -> None:
    report = judged("example:h200-healthy", "--profile", "deepseek-v3")
    (found,) = findings(report, "capacity.does-not-fit")
    assert found["summary"] == "DeepSeek-V3 does not fit 1x H200."
    assert found["cause"] == "the weights need 626.9 GiB per GPU; of its 140.4 GiB 123.2 GiB are usable."
    assert found["expected"].startswith("8x H200 SXM, or ")
    assert found["remedies"][0]["commands"] == ["dsdoctor plan DeepSeek-V3 --gpu h200-sxm --gpus 8 --nodes 1"]
    page = dsdoctor("replay", "example:h200-healthy", "--profile", "deepseek-v3").stdout
    assert "For: deepseek-v3; DeepSeek-V3 does not fit 1x H200" in page
    assert "dsdoctor check --profile deepseek-v3 --only capacity.does-not-fit" in page
    assert max(map(len, page.splitlines())) <= 80


def test_eight_such_nodes_serve_v3() -> None:
    report = judged("example:h200-healthy", "--profile", "deepseek-v3", "--nodes", "8", "--disk-gb-s", "6")
    assert not findings(report, "capacity.does-not-fit")
    assert report["fitness"]["plans"] == ["DeepSeek-V3 fits 8x H200 (8 nodes of 1), with a KV cache for 684,600 tokens"]
    assert outcome(report, "capacity.load-time")["status"] == "pass"
    assert [item["subject"] for item in findings(report, "profile.node-needs") if item["severity"] == "error"] == ["rdma devices"]


def test_the_directory_of_a_model_is_read_from_and_that_is_its_load_time(tmp_path: Path) -> None:
    (written(tmp_path) / "padding.bin").write_bytes(bytes(16 << 20))
    arguments = ("check", "--full", "--model", str(tmp_path), "--only", "capacity", "--format", "json", "--fail-on", "never")
    report = json.loads(dsdoctor(*arguments).stdout)
    assert report["facts"]["disk"]["value"]["sequential_bytes_per_s"] > 0
    assert outcome(report, "capacity.load-time")["status"] == "pass"
    assert "none of the chosen checks needs it" not in json.dumps(report["outcomes"])
    not_read = json.loads(dsdoctor(*(item for item in arguments if item != "--full")).stdout)
    assert outcome(not_read, "capacity.load-time")["status"] == "unknown"


def test_an_alias_is_a_model_of_its_own(tmp_path: Path) -> None:
    packages = known((Package(name="torch", version="2.9.0"), Package(name="vllm", version="0.12.0")))
    node = recorded(tmp_path, packages=packages)
    assert not findings(judged(node, "--profile", "deepseek-v3"), "profile.component-missing")
    report = judged(node, "--profile", "deepseek-v3.2")
    assert report["fitness"]["models"] == ["DeepSeek-V3.2"]
    engine, gemm = findings(report, "profile.component-missing")
    assert "needs vllm >=0.18.0 or sglang" in engine["summary"]
    assert "DeepGEMM" in gemm["summary"] + gemm["cause"]
    assert gemm["severity"] == "warning"


@pytest.mark.parametrize(("version", "status"), [("0.30.0", "pass"), ("0.33.0", "pass"), ("0.20.0", "fail")])
def test_what_vllm_bundles_is_not_missed(tmp_path: Path, version: str, status: str) -> None:
    node = recorded(tmp_path, packages=known((Package(name="torch", version="2.14.0"), Package(name="vllm", version=version))))
    assert outcome(judged(node, "--profile", "deepseek-v3.2"), "profile.component-missing")["status"] == status


def test_without_a_profile_nothing_is_missed_and_the_report_says_what_it_recognised(tmp_path: Path) -> None:
    packages = (*(of_example().packages.value or ()), Package(name="vllm", version="0.26.0"))
    node = recorded(tmp_path, packages=known(packages))
    for arguments in ((), ("--profile", "any")):
        report = judged(node, *arguments)
        assert report["fitness"] == {"profiles": ["vllm"], "inferred": True, "models": [], "plans": []}
        for check in ("profile.component-missing", "profile.smoke-not-run", "profile.node-needs"):
            assert outcome(report, check)["status"] == "not_applicable"
        assert "--profile vllm" in outcome(report, "profile.component-missing")["reason"]
    assert "For: vllm (by what is installed" in dsdoctor("replay", node).stdout
    assert "For: " not in dsdoctor("replay", "example:h200-healthy").stdout


def test_several_profiles_and_a_comma_list() -> None:
    first = judged("example:h200-healthy", "--profile", "fa3,vllm")
    second = judged("example:h200-healthy", "--profile", "fa3", "--profile", "vllm")
    assert first["fitness"]["profiles"] == second["fitness"]["profiles"] == ["fa3", "vllm"]
    assert {item["subject"] for item in findings(first, "profile.component-missing")} == {"FlashAttention-3", "vLLM"}


def test_what_is_installed_is_kept_only_where_it_can_stay() -> None:
    """V4.1 wants vLLM 0.30 or newer, which wants another torch than the 2.11 that is there."""
    report = judged("example:h200-healthy", "--profile", "DeepSeek-V4.1")
    (missing,) = findings(report, "profile.component-missing")
    (command,) = missing["remedies"][0]["commands"]
    version = command.partition("vllm==")[2].split()[0]
    assert tuple(map(int, version.split(".")[:2])) >= (0, 30)
    assert "torch==2.11.0" not in command


def test_a_test_that_was_not_run_is_told(tmp_path: Path) -> None:
    node = recorded(tmp_path, smoke=not_asked("not looked at with --quick"))
    answer = outcome(judged(node, "--profile", "deepseek-v3"), "profile.smoke-not-run")
    assert (answer["status"], answer["settle"]) == ("unknown", "dsdoctor smoke fp8-block attention triton")
    assert "--quick" in answer["reason"]


def test_the_need_of_a_profile_folds_the_check_of_any_stack(tmp_path: Path) -> None:
    small = SharedMemory(path="/dev/shm", total_bytes=64 << 20, free_bytes=64 << 20)
    report = judged(recorded(tmp_path, "h200x4-healthy", shared_memory=known(small)), "--profile", "vllm")
    (need,) = [item for item in findings(report, "profile.node-needs") if item["severity"] == "error"]
    assert [item["check"] for item in need["explains"]] == ["system.shm-too-small"]
    assert need["remedies"][0]["commands"] or need["remedies"][0]["steps"]


def test_v3_on_a_gpu_without_fp8_is_told_by_the_profile(tmp_path: Path) -> None:
    (gpu,) = of_example().gpus.value or ()
    node = recorded(tmp_path, gpus=known((replace(gpu, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)))
    (found,) = [item for item in findings(judged(node, "--profile", "deepseek-v3"), "profile.node-needs") if "A100" in item["subject"]]
    assert "8.9 or 9.0 or 10.x or 12.x" in found["summary"]


def test_pasted_text_is_judged_by_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("Package Version\n------- -------\ntorch 2.11.0\nvllm 0.27.0\ntilelang 0.1.12\n")
    report = json.loads(dsdoctor("triage", str(path), "--profile", "deepseek-v4", "--format", "json").stdout)
    (found,) = findings(report, "profile.component-missing")
    assert found["subject"] == "vllm 0.27.0"
    assert any("vllm==" in command for command in found["remedies"][0]["commands"])
    assert outcome(report, "capacity.does-not-fit")["status"] == "unknown", "no GPU was pasted"
    other = json.loads(dsdoctor("triage", str(path), "--profile", "sglang", "--format", "json").stdout)
    assert outcome(other, "profile.component-missing")["status"] == "unknown", "what is not pasted may be there all the same"


# --- a checkpoint directory -------------------------------------------------------------------------------------------


def test_a_checkpoint_directory_is_checked_as_plan_does(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-v3"
    folder.mkdir()
    written(folder)
    sound = judged("example:h200-healthy", "--model", str(folder))
    assert outcome(sound, "capacity.checkpoint-damaged")["status"] == "pass"
    assert sound["fitness"]["models"] == ["tiny-v3"]
    (folder / SHARDS[1]).unlink()
    damaged = judged("example:h200-healthy", "--model", str(folder))
    (found,) = findings(damaged, "capacity.checkpoint-damaged")
    assert any(SHARDS[1] in item["value"] for item in found["evidence"])
    assert str(tmp_path) not in json.dumps(damaged), "the path may name somebody"
    assert outcome(damaged, "capacity.does-not-fit")["status"] == "unknown"
    assert dsdoctor("replay", "example:h200-healthy", "--model", str(tmp_path)).exit_code == 2


def test_a_purpose_without_facts_says_so() -> None:
    asked = purpose.ask(KNOWLEDGE, ["deepseek-v3"])
    (planned,) = asked.plans(Sections())
    assert planned.plan is None
    assert "gpus" in planned.why
    assert asked.fitness(Sections()).plans == ()
    with pytest.raises(UsageError):
        purpose.ask(KNOWLEDGE, ["nothing-like-it"])
