"""Advice: hand-written questions with known answers, every release of the facts, contradictions, and bad input."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsdoctor.advise import image as images
from dsdoctor.advise.answer import Advice, Stack, advise, best_stack, newest_torch_sentence
from dsdoctor.advise.catalogue import Catalogue, Shelf, glibc_of_tag, python_tag_fits, some_version_in, wanted_package
from dsdoctor.advise.for_checks import NodeAdvice
from dsdoctor.advise.node import Node, driver_of, glibc_of, gpu_of, node_from_facts, node_from_options, python_of
from dsdoctor.advise.search import Failed, search, smallest_clash
from dsdoctor.errors import UsageError
from dsdoctor.facts import Gpu, Interpreter, Libc, NvmlVersions, Platform, Sections, absent, known
from dsdoctor.findings import Disruption
from dsdoctor.matrix import Knowledge
from dsdoctor.render import advice as page
from dsdoctor.versions import ComputeCapability

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DSDOCTOR_SHARED", ROOT.parent / "shared"))
QUESTIONS = sorted((ROOT / "tests" / "advise").glob("*.yaml"))
SHELF = Shelf.of(Knowledge().matrix)


def node_of(gpu: str = "", driver: str = "", python: str = "", glibc: str = "", arch: str = "", wsl: bool = False) -> Node:
    node = node_from_options(gpu, driver, glibc, arch, SHELF.gpus)
    return dataclasses.replace(node, python=python_of(python, SHELF.torch) if python else "", wsl=wsl)


def in_words(stack: Stack | None) -> dict[str, str]:
    return {pin.name: f"{pin.version}{f'+{pin.build}' if pin.build else ''}" for pin in stack.pins} if stack else {}


def everything_said(value: Any) -> str:
    return json.dumps(page.complete(value), ensure_ascii=False)


# --- hand-written questions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda path: path.stem)
def test_a_question_gets_its_known_answer(path: Path) -> None:
    story = yaml.safe_load(path.read_text())
    expect = story["expect"]
    if "error" in expect:
        with pytest.raises(UsageError) as error:
            advise(node_of(**story["node"]), story["want"], SHELF)
        assert expect["error"] in str(error.value)
        return
    node = node_of(**story["node"])
    if "image" in story:
        answer = images.starts(story["image"], node, SHELF)
        assert answer.starts is expect["starts"], answer
        assert all(text in everything_said(answer) for text in expect.get("says", ())), answer
        return
    advice = advise(node, story["want"], SHELF)
    said = everything_said(advice)
    if expect.get("stack"):
        assert expect["stack"].items() <= in_words(advice.stack).items(), advice.clash
    elif "stack" in expect:
        assert advice.stack is None
        assert advice.clash is not None
        assert advice.clash.reasons
    if "newer_build" in expect:
        assert expect["newer_build"].items() <= in_words(advice.newer_build).items()
    for version, reason in expect.get("rejected", {}).items():
        assert [group for group in advice.rejected if version in group.versions and reason in group.reason], advice.rejected
    changes = {change.id: in_words(change.stack) for change in advice.changes}
    for id, versions in expect.get("changes", {}).items():
        assert versions.items() <= changes[id].items()
    assert not set(expect.get("no_changes", ())) & set(changes)
    assert set(expect.get("grounds", ())) <= {ground.kind for ground in (advice.stack.rests_on if advice.stack else ())}
    commands = [command for tool in (advice.stack.commands if advice.stack else ()) for command in tool.commands]
    assert set(expect.get("commands", ())) <= set(commands), commands
    if "clash" in expect:
        assert advice.clash is not None
        assert set(advice.clash.wants) == set(expect["clash"])
    for text in (*expect.get("says", ()), *expect.get("instead", ())):
        assert text in said
    for text in expect.get("reasons", ()):
        assert advice.clash is not None
        assert any(text in reason for reason in advice.clash.reasons), advice.clash
    if "sentence" in expect:
        assert newest_torch_sentence(node, SHELF) == expect["sentence"]


def test_there_are_at_least_twenty_questions() -> None:
    assert len(QUESTIONS) >= 20


# --- every release of the facts ---------------------------------------------------------------------------------------


def facts(name: str) -> list[dict[str, Any]]:
    path = SHARED / "facts" / f"{name}_releases.yaml"
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["releases"] if path.is_file() else []


def releases(name: str) -> Iterator[Any]:
    for row in facts(name):
        yield pytest.param(name, row, id=f"{name}-{row['version']}")


MODERN = {"gpu": "H100", "driver": "595.71.05", "glibc": "2.39", "arch": "x86_64"}


@pytest.mark.parametrize(("package", "row"), [*releases("torch"), *releases("vllm"), *releases("sglang")])
def test_every_release_is_answered_with_the_pins_of_its_metadata(package: str, row: dict[str, Any]) -> None:
    node = node_of(**{**MODERN, "gpu": "A100"} if package == "torch" else MODERN)  # torch 2.0 is older than Hopper's first wheels
    stack = best_stack(node, SHELF, [f"{package}=={row['version']}"])
    assert stack is not None
    chosen = in_words(stack)
    assert chosen[package].partition("+")[0] == str(row["version"])
    assert SpecifierSet(row.get("requires_python") or "").contains(stack.python)
    if package == "torch":
        wheel = row["x86_64"]
        assert stack.cuda == wheel["cuda"]
        assert wheel["pins"]["cudnn"].endswith(f"=={stack.cudnn}")
        assert wheel["pins"]["nccl"].endswith(f"=={stack.nccl}")
        if wheel.get("triton"):
            assert SpecifierSet(wheel["triton"]).contains(chosen["triton"])
        return
    for name, wanted in row["stack"].items():
        version = chosen.get(name, "").partition("+")[0]
        plain = "" if wanted == "any" else wanted.partition("]")[2] or wanted
        if version and not plain.startswith("["):
            assert SpecifierSet(plain).contains(version, prereleases=True), (name, plain, version)
    assert SpecifierSet(row["stack"]["torch"]).contains(chosen["torch"].partition("+")[0])


@pytest.mark.parametrize(("package", "row"), [*releases("vllm"), *releases("sglang")])
def test_an_engine_with_a_torch_that_it_does_not_pin_says_why_not(package: str, row: dict[str, Any]) -> None:
    pinned = row["stack"]["torch"].removeprefix("==")
    other = next(item["version"] for item in facts("torch") if str(item["version"]) != pinned)
    advice = advise(node_of(**MODERN, python="3.12"), [f"{package}=={row['version']}", f"torch=={other}"], SHELF)
    assert advice.stack is None
    assert advice.clash is not None
    assert len(advice.clash.wants) == 2
    assert f"{package} {row['version']} asks for torch=={pinned}" in " ".join(advice.clash.reasons)


def test_the_companions_hold_every_release_and_python_tag_of_the_facts() -> None:
    path = SHARED / "facts" / "kernel_packages.yaml"
    if not path.is_file():
        pytest.skip("the facts are not here")
    rows = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["packages"]
    for name, package in SHELF.companions.packages.items():
        if name not in rows:
            continue
        listed = {str(item["version"]): item for item in rows[name]["releases"]}
        for release in package.releases:
            tags = {tag for wheel in (listed[release.version].get("wheels") or {}).values() for tag in wheel["pythons"]}
            assert set(release.pythons) == tags or (not release.pythons and tags <= {"py3-none"}), (name, release.version)


# --- the search -------------------------------------------------------------------------------------------------------


def test_a_clash_is_minimal() -> None:
    catalogue = Catalogue(SHELF, node_of(**MODERN, python="3.12"), frozenset())
    wants = [wanted_package(name, wanted, f"{name}{wanted}") for name, wanted in
             (("triton", ""), ("torch", "==2.15.0"), ("transformers", ""), ("vllm", "==0.33.0"))]  # fmt: skip
    smallest = smallest_clash(catalogue, wants)
    assert {want.name for want in smallest} == {"torch", "vllm"}
    for left_out in smallest:
        assert not isinstance(search(catalogue, [want for want in smallest if want is not left_out]), Failed)


def test_changes_come_in_order_of_disruption_and_each_brings_something_newer() -> None:
    advice = advise(node_of("A100", "535.129.03", "3.10", "2.28", "x86_64"), ["vllm"], SHELF)
    order = [list(Disruption).index(change.disruption) for change in advice.changes]
    assert order == sorted(order)
    assert len(advice.changes) >= 2
    have = Version(in_words(advice.stack)["vllm"]) if advice.stack else Version("0")
    assert all(Version(in_words(change.stack)["vllm"]) > have for change in advice.changes)


def test_forward_compatibility_and_a_newer_image_come_together_where_both_are_needed() -> None:
    advice = advise(node_of("H100", "550.54.15", "3.12", "2.28", "x86_64"), ["sglang"], SHELF)
    change = next(change for change in advice.changes if change.id == "forward-compat")
    assert "glibc 2.34" in change.summary
    assert in_words(change.stack)["sglang"] == "0.5.23"
    assert change.disruption is Disruption.RESTART_PROCESS


def test_a_node_of_which_nothing_is_known_gets_the_newest_and_what_it_needs() -> None:
    advice = advise(Node(), ["sglang"], SHELF)
    assert advice.stack is not None
    assert in_words(advice.stack)["sglang"] == SHELF.companions.packages["sglang"].newest
    assert advice.stack.needs == ("driver 580.65.06 or newer", "glibc 2.34 or newer")
    assert not advice.rejected


def test_a_driver_newer_than_the_knowledge_is_said_to_be_so() -> None:
    advice = advise(node_of("H100", "999.10.01", "3.12", "2.39", "x86_64"), ["torch"], SHELF)
    assert advice.stack is not None
    assert any("newer than this knowledge" in note for note in advice.notes)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["A100", "H100", "B200", "V100", "P100", "RTX 4090", "GB10", "T4", "B300", ""]),
    st.sampled_from(["", "450.80.02", "470.82.01", "525", "535.129.03", "570.86.15", "580.65.06", "595", "620.70.06", "700.1"]),
    st.sampled_from(["", "3.8", "3.9", "3.11", "3.13t", "3.15"]),
    st.sampled_from(["", "2.17", "2.28", "2.35"]),
    st.sampled_from(["", "x86_64", "aarch64"]),
    st.lists(
        st.sampled_from(["torch", "vllm", "sglang", "fa3", "fa2", "fa4", "deepep", "xformers", "torch<2.9", "torchvision"]),
        max_size=3,
        unique=True,
    ),
)
def test_any_node_and_any_wants_get_a_stack_or_a_reason(
    gpu: str, driver: str, python: str, glibc: str, arch: str, wants: list[str]
) -> None:
    advice = advise(node_of(gpu, driver, python, glibc, arch), wants, SHELF)
    assert (advice.stack is None) == (advice.clash is not None)
    if advice.clash is not None:
        assert advice.clash.wants
        assert advice.clash.reasons
    text = page.advice(advice, width=80, colour=False)
    assert all(len(line) <= 80 for line in text.splitlines() if "install" not in line and "git" not in line), text


# --- small pieces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "tags", "fits"),
    [
        ("3.12", ("cp311", "cp312"), True),
        ("3.13", ("cp311", "cp312"), False),
        ("3.12", ("cp38-abi3",), True),
        ("3.13t", ("cp38-abi3",), False),
        ("3.13t", ("cp313", "cp313t"), True),
        ("3.8", ("cp310-abi3", "py3-none"), True),
    ],
)
def test_python_tags(python: str, tags: tuple[str, ...], fits: bool) -> None:
    assert python_tag_fits(python, tags) is fits


def test_wheel_tags_promise_a_glibc() -> None:
    assert [glibc_of_tag(tag) for tag in ("manylinux1", "manylinux2014", "manylinux_2_28", "any", "")] == ["2.5", "2.17", "2.28", "", ""]


@pytest.mark.parametrize(
    ("wanted", "older"), [("<5.21,>=5.16", True), (">=5.22", False), ("==5.16.0", True), ("", True), ("!=5.16.*", True)]
)
def test_whether_a_range_reaches_below_what_is_listed(wanted: str, older: bool) -> None:
    assert some_version_in(frozenset({wanted}), "5.22.0") is older


@pytest.mark.parametrize(
    ("ranges", "possible"),
    [
        ((">=1.3.0,<1.4.0", "<0.8.0,>=0.7.11"), False),
        (("<1.0.0,>=0.2.0", "==0.1.32"), False),
        ((">1.0", "<1.1", "!=1.0.1"), True),
        (("!=5.0.*,>=4.56.0", "<5"), True),
        ((">=2", "==2.*"), True),
        ((), True),
    ],
)
def test_whether_any_version_meets_all_ranges(ranges: tuple[str, ...], possible: bool) -> None:
    assert some_version_in(frozenset(ranges)) is possible


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("H100 SXM", "9.0"),
        ("NVIDIA H200", "9.0"),
        ("rtx 4090", "8.9"),
        ("A800", "8.0"),
        ("sm_100", "10.0"),
        ("12.1", "12.1"),
        ("DGX Spark", "12.1"),
    ],
)
def test_gpus_are_known_by_what_people_call_them(name: str, capability: str) -> None:
    assert str(gpu_of(name, SHELF.gpus)[1]) == capability


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gpu_of("H101", SHELF.gpus), "did you mean"),
        (lambda: gpu_of("14.0", SHELF.gpus), "newer than this knowledge"),
        (lambda: driver_of("new"), "--driver takes"),
        (lambda: glibc_of("musl"), "--glibc takes"),
        (lambda: python_of("3.20", SHELF.torch), "newer than this knowledge"),
        (lambda: python_of("snake", SHELF.torch), "--python takes"),
        (lambda: advise(Node(), ["vlm"], SHELF), "did you mean vllm"),
        (lambda: advise(Node(), ["torch==2.9.7"], SHELF), "did you mean"),
        (lambda: advise(Node(), ["torch==1.13"], SHELF), "older than this knowledge"),
        (lambda: advise(Node(), ["a b c"], SHELF), "not understood"),
        (lambda: images.starts("ubuntu", node_of(driver="580.65.06"), SHELF), "no CUDA version"),
    ],
)
def test_bad_input_gets_the_nearest_names(call: Any, says: str) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert says in str(error.value)


def test_a_node_from_facts() -> None:
    sections = Sections(
        platform=known(Platform(architecture="x86_64")),
        libc=known(Libc(family="glibc", version="2.35")),
        nvml_versions=known(NvmlVersions(driver="580.159.04")),
        gpus=known((Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)),
        interpreter=known(Interpreter(path="/usr/bin/python3", chosen_by="own", version="3.12.3", abi_tag="cp312")),
    )
    node = node_from_facts(sections, SHELF.gpus)
    assert (node.gpu, str(node.capability), str(node.driver), str(node.glibc), node.python) == ("H200", "9.0", "580.159.04", "2.35", "3.12")
    assert not node.notes


def test_a_node_without_gpu_and_driver_says_what_was_not_found() -> None:
    node = node_from_facts(Sections(gpus=absent("no GPU"), libc=known(Libc(family="musl", version="1.2"))), SHELF.gpus)
    assert node.driver is None
    assert node.glibc is None
    assert len(node.notes) == 3


@pytest.mark.parametrize(
    ("condition", "gpu", "driver", "starts"),
    [
        ("cuda>=12.4", "A100", "550.54.15", True),
        ("cuda>=12.4", "A100", "535.129.03", False),
        ("cuda>=13.2 brand=tesla,driver>=535,driver<536", "H100", "535.129.03", True),
        ("cuda>=13.2 brand=tesla,driver>=535,driver<536", "RTX 4090", "535.129.03", False),
        ("cuda>=13.2 brand=tesla,driver>=535,driver<536", "", "535.129.03", None),
        ("cuda>=13.2", "H100", "999.1", None),
    ],
)
def test_conditions_of_images(condition: str, gpu: str, driver: str, starts: bool | None) -> None:
    assert images.starts(condition, node_of(gpu, driver), SHELF).starts is starts


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dsdoctor", "advise", *arguments], capture_output=True, text=True, cwd=ROOT)


def test_the_command_answers_in_json_and_by_its_exit_code() -> None:
    done = run(
        "--gpu",
        "H200",
        "--driver",
        "580.159.04",
        "--python",
        "3.12",
        "--glibc",
        "2.35",
        "--arch",
        "x86_64",
        "--want",
        "vllm",
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "dsdoctor.advice/1"
    assert {pin["name"]: pin["version"] for pin in document["stack"]["pins"]}["vllm"] == "0.33.0"
    assert set(document) == {field.name for field in dataclasses.fields(Advice)}


def test_no_stack_is_exit_1_and_nonsense_exit_2() -> None:
    assert run("--gpu", "L40S", "--want", "fa3").returncode == 1
    done = run("--gpu", "H900")
    assert done.returncode == 2
    assert "unknown GPU 'H900'" in done.stderr


def test_without_options_the_command_looks_at_this_node() -> None:
    done = run()
    assert done.returncode in (0, 1), done.stderr
    assert "Python" in done.stdout


# --- advice for checks ------------------------------------------------------------------------------------------------


def _old_driver(name: str, capability: str, driver: str) -> Sections:
    return Sections(
        gpus=known((Gpu(index=0, name=f"NVIDIA {name}", compute_capability=capability),)), nvml_versions=known(NvmlVersions(driver=driver))
    )


def test_advice_loads_nothing_before_it_is_asked() -> None:
    asked: list[str] = []

    def matrix(name: str) -> Any:
        asked.append(name)
        return Knowledge().matrix(name)

    advice = NodeAdvice(_old_driver("H200", "9.0", "535.129.03"), matrix)
    assert asked == []
    pin = advice.newest_torch()
    assert pin is not None
    assert (pin.version, pin.build) == ("2.10.0", "cu128")
    assert "torch" in asked


def test_the_build_of_a_release_is_the_one_that_this_driver_runs() -> None:
    advice = Knowledge().advice(_old_driver("H200", "9.0", "535.129.03"))
    pin = advice.torch_build("2.11.0")
    assert pin is not None
    assert pin.build == "cu128"
    assert advice.torch_build("2.14.0") is None, "CUDA 13 only"
    assert advice.torch_build("0.0.1") is None, "a release that is not known"


def test_of_several_gpus_the_one_that_is_asked_for_counts() -> None:
    cards = (
        Gpu(index=0, name="Tesla V100-SXM2-32GB", compute_capability="7.0"),
        Gpu(index=1, name="NVIDIA B200", compute_capability="10.0"),
    )
    advice = Knowledge().advice(Sections(gpus=known(cards), nvml_versions=known(NvmlVersions(driver="580.95.05"))))
    pins = [advice.newest_torch(), advice.for_gpu("NVIDIA B200", ComputeCapability(10, 0)).newest_torch()]
    assert [pin.build for pin in pins if pin] == ["cu128", "cu132"]


def test_no_driver_no_sentence() -> None:
    assert Knowledge().advice(Sections()).newest_torch_sentence() == ""
