"""Stories of the smoke runner: what it plans, what it makes of what children said, and of children that crash, hang or talk nonsense. No torch."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import Section, SmokeResult, State
from dsdoctor.plain import to_plain
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope, Target
from dsdoctor.sources.target import locate, run_script

from .nvml_stand_in import build, environment, node

smoke = importlib.import_module("dsdoctor.probes.smoke")
meter = importlib.import_module("dsdoctor.probes.smoke_meter")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
PROBES = importlib.import_module("dsdoctor.probes").PROBES
IN_TARGET = Path(smoke.__file__).parent / "in_target"

GPU0 = meter.Device(index=0, address="0000:00:06.0")
GPU1 = meter.Device(index=1, address="0000:00:07.0", no_rates="in use by process 4711")


def lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def start(test: str, gpu: int | None = 0) -> dict[str, Any]:
    return {"event": "start", "test": test, "gpu": gpu, "at": 1.0}


def end(test: str, gpu: int | None = 0) -> dict[str, Any]:
    return {"event": "end", "test": test, "gpu": gpu, "at": 2.0}


def result(test: str, gpu: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"event": "result", "test": test, "gpu": gpu, "outcome": "ran", **more}


READY = {"event": "ready", "torch": "2.11.0+cu130", "import_s": 2.4, "init_s": 0.2}
DONE = {"event": "done"}


def named(*names: str) -> tuple[Any, ...]:
    return table.chosen(names, "default")


def load(name: str) -> ModuleType:
    """A script of in_target as a module, without running it."""
    spec = importlib.util.spec_from_file_location(f"_test_{name}", IN_TARGET / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_names_each_test_once_and_only_scripts_that_exist() -> None:
    assert len(set(table.NAMES)) == len(table.NAMES)
    assert {test.script for test in table.SMOKE_TESTS} <= {script.name for script in table.SCRIPTS}
    assert all((IN_TARGET / script.name).is_file() for script in table.SCRIPTS)
    assert all(0 < test.deadline_s <= 120 and test.level in ("default", "full") for test in table.SMOKE_TESTS)


@pytest.mark.parametrize("script", table.SCRIPTS, ids=lambda script: script.name)
def test_every_script_knows_the_tests_that_the_table_gives_it(script: Any) -> None:
    text = (IN_TARGET / script.name).read_text()
    assert [test.name for test in table.SMOKE_TESTS if test.script == script.name and f'"{test.name}"' not in text] == []


def test_names_choose_and_levels_choose() -> None:
    assert [test.name for test in table.chosen(("numerics", "fp8-gemm"), "default")] == ["fp8-gemm", "numerics"]
    default = {test.name for test in table.chosen((), "default")}
    assert "fp8-gemm" in default
    assert "numerics" not in default
    assert default < {test.name for test in table.chosen((), "full")}


def test_the_probe_is_listed_last_and_costs_gpu_time() -> None:
    probe = PROBES[-1]
    assert (probe.name, probe.cost, probe.quick, probe.provides) == ("smoke", "gpu", False, ("smoke",))
    assert probe.timeout_s == smoke.OWN_LIMIT_S


# --- planning ---------------------------------------------------------------------------------------------------------


def test_tests_of_one_script_share_a_child_and_each_gpu_has_its_own() -> None:
    children = smoke.plan(named("fp8-cast", "fp8-gemm", "triton"), (GPU0, GPU1), "default")
    assert [(child.script, [test.name for test in child.tests], [gpu.index for gpu in child.gpus]) for child in children] == [
        ("smoke_shared.py", ["fp8-cast", "fp8-gemm"], [0]),
        ("smoke_shared.py", ["fp8-cast", "fp8-gemm"], [1]),
        ("smoke_triton.py", ["triton"], [0, 1]),
    ]


def test_a_node_whose_nvml_is_silent_gets_one_child_for_whatever_cuda_shows() -> None:
    (child,) = smoke.plan(named("fp8-cast"), (), "default")
    arguments = smoke.arguments_of(child, child.tests, "/tmp/x")
    assert arguments[arguments.index("--gpus") + 1] == ""


def test_arguments_carry_addresses_reasons_and_deadlines() -> None:
    child = smoke.Child(script="smoke_shared.py", tests=named("pcie"), gpus=(GPU0, GPU1), level="full")
    arguments = dict(zip(*[iter(smoke.arguments_of(child, child.tests, "/s"))] * 2))
    assert arguments["--gpus"] == "0@0000:00:06.0,1@0000:00:07.0"
    assert json.loads(arguments["--no-rates"]) == {"1": "in use by process 4711"}
    assert json.loads(arguments["--deadlines"]) == {"pcie": 60}
    assert arguments["--level"] == "full"


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    (found,) = smoke.unknown_gpus((GPU0, GPU1), (1, 9), named("fp8-cast"))
    assert (found.test, found.gpu, found.outcome) == ("fp8-cast", 9, "skipped")
    assert found.reason == "this node has the GPUs 0, 1"


def test_packages_and_numbers_of_gpus_that_are_missing_are_skips(tmp_path: Path) -> None:
    (tmp_path / "site/triton").mkdir(parents=True)
    target = Target(path="/x/python", chosen_by="--python", prefix="/x", site_packages=("/site",))
    found = smoke.unmet(Host(root=str(tmp_path)), target, named("triton", "deepgemm", "collectives", "fp8-gemm"), 1)
    assert {one.test: one.reason for one in found} == {
        "deepgemm": found[0].reason,
        "collectives": "needs 2 GPUs, 1 chosen",
    }
    assert "deep_gemm" in found[0].reason
    unknown_number = smoke.unmet(Host(root=str(tmp_path)), target, named("collectives"), None)
    assert unknown_number == []


# --- hearing ----------------------------------------------------------------------------------------------------------


def test_a_good_child_is_heard() -> None:
    text = lines(
        {"event": "stage", "name": "importing torch"},
        READY,
        start("fp8-gemm"),
        result("fp8-gemm", path="torch._scaled_mm", values={"rel_error": 0.00166}, notes={"scaling": "per row"}, elapsed_s=0.5),
        result("fp8-gemm", outcome="refused", reason="no"),
        end("fp8-gemm"),
        DONE,
    )
    heard = smoke.hear("warning: not an event\n" + text + '{"event": "result"}\n[1]\n"x"\n')
    assert [timed.result.outcome for timed in heard.results] == ["ran", "refused"]
    assert heard.results[0].result.values == {"rel_error": 0.00166}
    assert (heard.done, heard.running, heard.ended) == (True, None, {("fp8-gemm", 0)})
    assert heard.times == {"import_s": 2.4, "init_s": 0.2}


def test_results_of_tests_nobody_knows_and_of_wrong_types_are_passed_over() -> None:
    text = lines(result("format-disk"), result("fp8-gemm", values="many"), result("fp8-gemm", gpu="zero"), result("fp8-gemm", extra=1))
    assert smoke.hear(text).results == []


@given(st.text(), st.lists(st.dictionaries(st.sampled_from(["event", "test", "gpu", "at", "name"]), st.none() | st.integers() | st.text())))
def test_nonsense_never_raises(noise: str, events: list[dict[str, Any]]) -> None:
    for event in events:
        event.setdefault("event", "start")
    heard = smoke.hear(noise + "\n" + lines(*events))
    assert heard.results == []


# --- children that do not end well --------------------------------------------------------------------------------------


def scripted(*answers: Ended) -> tuple[Callable[..., Ended], list[list[str]]]:
    """A runner that gives these answers in turn, and the tests that it was asked for each time."""
    asked: list[list[str]] = []

    def run(child: Any, tests: Sequence[Any], timeout_s: float) -> Ended:
        assert timeout_s > 0
        asked.append([test.name for test in tests])
        return answers[len(asked) - 1]

    return run, asked


def child_of(*names: str, gpus: tuple[Any, ...] = (GPU0,)) -> Any:
    return smoke.Child(script="smoke_shared.py", tests=named(*names), gpus=gpus)


def told(child: Any, *answers: Ended, deadline_in_s: float = 1e4) -> tuple[list[tuple[str, int | None, str, str]], list[list[str]], Any]:
    run, asked = scripted(*answers)
    found = smoke.run_child(child, run, time.monotonic() + deadline_in_s)
    return [(one.result.test, one.result.gpu, one.result.outcome, one.result.reason) for one in found.results], asked, found


def test_after_a_crash_the_tests_behind_it_run_in_a_new_child() -> None:
    results, asked, found = told(
        child_of("fp8-cast", "fp8-gemm", "memory-copy"),
        Ended(
            outcome="signal",
            code=11,
            result=lines(READY, start("fp8-cast"), result("fp8-cast"), end("fp8-cast"), start("fp8-gemm")),
            stderr="Fatal Python error: Segmentation fault\n",
        ),
        Ended(outcome="exited", code=0, result=lines(READY, start("memory-copy"), result("memory-copy"), end("memory-copy"), DONE)),
    )
    assert results == [("fp8-cast", 0, "ran", ""), ("fp8-gemm", 0, "crash", "SIGSEGV"), ("memory-copy", 0, "ran", "")]
    assert asked == [["fp8-cast", "fp8-gemm", "memory-copy"], ["memory-copy"]]
    assert "Segmentation fault" in found.results[1].result.stderr_tail


def test_after_a_hang_nothing_more_is_tried_on_that_gpu() -> None:
    stack = 'Timeout (0:00:20)!\nThread 0x00007f (most recent call first):\n  File "x.py", line 3 in wait\n'
    results, asked, found = told(
        child_of("fp8-cast", "memory-copy"), Ended(outcome="exited", code=1, result=lines(READY, start("fp8-cast")), stderr=stack)
    )
    assert results == [
        ("fp8-cast", 0, "hang", "no answer within its deadline"),
        ("memory-copy", 0, "skipped", "not tried: fp8-cast hung"),
    ]
    assert len(asked) == 1
    assert "line 3 in wait" in found.results[0].result.stderr_tail


def test_a_child_that_its_parent_had_to_kill_hung() -> None:
    results, _, _ = told(child_of("fp8-cast"), Ended(outcome="timed_out", result=lines(READY, start("fp8-cast")), elapsed_s=130))
    assert results == [("fp8-cast", 0, "hang", "no answer within its deadline")]


def test_the_users_deadline_is_no_fault_of_a_test() -> None:
    results, _, _ = told(
        child_of("fp8-cast", "fp8-gemm"), Ended(outcome="timed_out", result=lines(READY, start("fp8-cast")), elapsed_s=5), deadline_in_s=5
    )
    assert [outcome for _, _, outcome, _ in results] == ["skipped", "skipped"]
    assert "the doctor's time was up" in results[0][3]
    nothing_left, asked, _ = told(child_of("fp8-cast"), deadline_in_s=-1)
    assert (nothing_left, asked) == ([("fp8-cast", 0, "skipped", "the doctor's time was up")], [])


def test_a_crash_before_the_first_test_says_where() -> None:
    results, _, _ = told(
        child_of("fp8-cast"), Ended(outcome="signal", code=6, result=lines({"event": "stage", "name": "initialising CUDA"}))
    )
    assert results == [("fp8-cast", 0, "crash", "SIGABRT while initialising CUDA")]


def test_a_child_that_ends_mutely_is_a_crash_with_its_status() -> None:
    results, _, _ = told(child_of("fp8-cast"), Ended(outcome="exited", code=134, result=lines(READY, start("fp8-cast")), stderr="glibc\n"))
    assert results == [("fp8-cast", 0, "crash", "exit status 134: glibc")]


def test_a_gpu_left_unusable_by_one_test_gets_a_new_child_for_the_next() -> None:
    poisoned = {"event": "poisoned", "reason": "CUDA error: an illegal memory access was encountered"}
    results, asked, _ = told(
        child_of("fp8-cast", "fp8-gemm"),
        Ended(
            outcome="exited",
            code=3,
            result=lines(READY, start("fp8-cast"), result("fp8-cast", outcome="error", reason="x"), end("fp8-cast"), poisoned),
        ),
        Ended(outcome="exited", code=0, result=lines(READY, start("fp8-gemm"), result("fp8-gemm"), end("fp8-gemm"), DONE)),
    )
    assert results == [("fp8-cast", 0, "error", "x"), ("fp8-gemm", 0, "ran", "")]
    assert asked[1] == ["fp8-gemm"]


def test_it_stops_restarting() -> None:
    names = ("fp8-cast", "fp8-gemm", "fp8-block", "memory-copy")
    crashes = [Ended(outcome="signal", code=11, result=lines(READY, start(name))) for name in names]
    results, asked, _ = told(child_of(*names), *crashes)
    assert len(asked) == 1 + smoke.RESTARTS
    assert [outcome for _, _, outcome, _ in results] == ["crash", "crash", "crash", "skipped"]


def test_gpus_that_a_broken_test_had_not_come_to_are_skips() -> None:
    results, _, _ = told(
        child_of("triton", gpus=(GPU0, GPU1)),
        Ended(outcome="signal", code=11, result=lines(READY, start("triton", 0))),
    )
    assert results == [("triton", 0, "crash", "SIGSEGV"), ("triton", 1, "skipped", "not tried: triton crashed")]


@pytest.mark.parametrize(
    ("kind", "devices", "state"),
    [
        ("no_torch", (GPU0,), State.ABSENT),
        ("no_cuda_build", (GPU0,), State.ABSENT),
        ("no_gpu", (), State.ABSENT),
        ("no_gpu", (GPU0,), State.UNREADABLE),
        ("import_error", (GPU0,), State.UNREADABLE),
        ("cuda_error", (GPU0,), State.UNREADABLE),
    ],
)
def test_where_nothing_could_start_the_section_says_why(kind: str, devices: tuple[Any, ...], state: State) -> None:
    unavailable = {"event": "unavailable", "kind": kind, "reason": "its own words"}
    _, _, found = told(child_of("fp8-cast"), Ended(outcome="exited", code=0, result=lines(unavailable)))
    section = smoke.section_of([found], [], [], devices)
    assert section.state is state
    assert "its own words" in section.why


def test_one_gpu_on_which_cuda_does_not_start_beside_one_that_works() -> None:
    unavailable = {"event": "unavailable", "kind": "cuda_error", "reason": "uncorrectable ECC error encountered"}
    _, _, broken = told(child_of("fp8-cast", "fp8-gemm"), Ended(outcome="exited", code=0, result=lines(unavailable)))
    good = smoke.Told(results=[smoke.Timed(result=SmokeResult(test="fp8-cast", gpu=1, outcome="ran"))])
    section = smoke.section_of([broken, good], [], [], (GPU0, GPU1))
    assert [(item.test, item.gpu, item.outcome) for item in section.value] == [
        ("fp8-cast", 0, "error"),
        ("fp8-cast", 1, "ran"),
        ("fp8-gemm", 0, "skipped"),
    ]
    assert section.value[0].reason == "CUDA does not start: uncorrectable ECC error encountered"


def test_results_come_in_the_order_of_the_table_and_survive_json() -> None:
    one = smoke.Told(results=[smoke.Timed(result=SmokeResult(test=name, gpu=0, outcome="ran")) for name in ("pcie", "fp8-cast")])
    two = smoke.Told(results=[smoke.Timed(result=SmokeResult(test="fp8-cast", gpu=1, outcome="ran"))])
    section = smoke.section_of([one, two], [SmokeResult(test="triton", outcome="skipped", reason="not installed")], [], ())
    assert [(item.test, item.gpu) for item in section.value] == [("fp8-cast", 0), ("fp8-cast", 1), ("pcie", 0), ("triton", None)]
    assert read_sections({"smoke": json.loads(json.dumps(to_plain(section)))})["smoke"] == section


# --- clocks and links of the moment -------------------------------------------------------------------------------------


def reading(at: float, gpu: int = 0, **values: Any) -> Any:
    return meter.Reading(at=at, gpu=gpu, **values)


READINGS = (
    reading(1.0, sm_clock_mhz=345, pcie_generation=1, pcie_width=16, power_w=80.0, reasons=("gpu_idle",)),
    reading(2.0, sm_clock_mhz=1980, pcie_generation=5, pcie_width=16, power_w=600.0, reasons=("sw_power_cap",)),
    reading(2.1, sm_clock_mhz=1500, pcie_generation=5, pcie_width=16, power_w=650.0, reasons=()),
    reading(2.1, gpu=1, sm_clock_mhz=9),
    reading(9.0, sm_clock_mhz=1, reasons=("hw_slowdown",)),
)


def measured(test: str, began: float, ended: float) -> SmokeResult:
    timed = smoke.Timed(result=SmokeResult(test=test, gpu=0, outcome="ran", values={"tflops": 700.0}), began=began, ended=ended)
    device = meter.Device(index=0, address="x", link_limits={"pcie_max_generation": 5.0, "pcie_max_width": 16.0})
    found: SmokeResult = smoke.measured(timed, READINGS, {0: device})
    return found


def test_a_rate_gets_the_clocks_of_its_own_span() -> None:
    found = measured("bf16-rate", 1.99, 2.11)
    assert found.values == {"tflops": 700.0, "sm_clock_mhz": 1740.0, "sm_clock_min_mhz": 1500.0, "power_w": 650.0}
    assert found.notes == {"clock_event_reasons": "sw_power_cap"}


def test_a_link_test_gets_the_link_under_load_and_its_limits() -> None:
    values = measured("pcie", 0.99, 2.11).values
    assert (values["pcie_generation"], values["pcie_width"], values["pcie_max_generation"]) == (5.0, 16.0, 5.0)


def test_without_a_reading_nothing_is_invented() -> None:
    found = measured("bf16-rate", 5.0, 5.1)
    assert (found.values, found.notes) == ({"tflops": 700.0}, {})


def test_own_processes_are_the_tree_below_and_nobody_else(tmp_path: Path) -> None:
    me = os.getpid()
    for pid, parent in ((me, 1), (901, me), (902, 901), (903, 1)):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (a ) b) S {parent} 1 1 0 -1\n")
    (tmp_path / "proc/904").mkdir()
    (tmp_path / "proc/904/stat").write_text("garbage")
    if os.getsid(0) == me:
        pytest.skip("this process leads a session, as a probe does: its parent counts as the doctor")
    assert meter.own_processes(Host(root=str(tmp_path))) == {me, 901, 902}


DEVICES_PROGRAM = """
import importlib, json, time
from dsdoctor.sources.host import Host
meter = importlib.import_module("dsdoctor.probes.smoke_meter")
nvml, devices, why = meter.find_devices(Host())
with meter.measuring(nvml, devices) as readings:
    began = time.monotonic()
    while len(readings) < 4 * len(devices) and time.monotonic() < began + 5:
        time.sleep(0.01)
answers = [[d.index, d.address, d.no_rates, meter.values_at(readings, d.index, began, time.monotonic())] for d in devices]
print(json.dumps([why, answers]))
"""


def devices_of(library: Path, profile: dict[str, dict[str, Any]]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", DEVICES_PROGRAM], env=environment(library, profile), capture_output=True, text=True, check=True, timeout=30
    )
    answer = json.loads(done.stdout)
    assert answer[0] == ""
    devices: list[Any] = answer[1]
    return devices


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory)


def test_devices_of_a_healthy_node(library: Path) -> None:
    first, second = devices_of(library, node("h200", gpus=2))
    assert first[:3] == [0, "0000:00:06.0", ""]
    assert second[:2] == [1, "0000:00:07.0"]
    values, notes = first[3]
    assert values["pcie_generation"] == 5.0
    assert values["power_w"] > 0
    assert "clock_event_reasons" in notes


@pytest.mark.parametrize(
    ("utilisation", "why"),
    [([0], ""), ([60, 60, 4], ""), ([60], "in use (60 % busy before the tests)")],
    ids=["quiet", "its work has just ended", "busy"],
)
def test_a_gpu_whose_work_has_just_ended_is_not_in_use(utilisation: list[int], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [argparse.Namespace(gpu=percent) for percent in utilisation]

    def ask(nvml: object, handle: object, name: str) -> object:
        if name != "nvmlDeviceGetUtilizationRates":
            return None
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(meter, "_ask", ask)
    monkeypatch.setattr(meter, "QUIET_PAUSE_S", 0.001)
    assert meter._why_no_rates(None, None, frozenset(), time.monotonic() + 0.05) == why


def test_a_gpu_in_mig_slices_has_no_rates(library: Path) -> None:
    (device,) = devices_of(library, node("h200", "mig"))
    assert "MIG" in device[2]


def test_a_gpu_that_takes_one_process_at_a_time_gets_one(library: Path, tmp_path: Path) -> None:
    running = tmp_path / "running"
    target = shell(tmp_path / "python", f"mkdir {running} || exit 9; sleep 0.05; rmdir {running}; exit 0")
    children = smoke.plan(named("fp8-cast", "triton"), (meter.Device(index=0, address="x", exclusive=True),), "default")
    found = smoke.run_children(Host(), target, children, time.monotonic() + 20)
    assert {one.result.reason.partition(" while")[0] for told in found for one in told.results} == {"exit status 0"}


def test_a_lost_gpu_is_not_tested(library: Path) -> None:
    profile = node("h200", gpus=2)
    profile["1"]["nvmlDeviceGetHandleByIndex_v2"] = "error 15"
    assert [device[0] for device in devices_of(library, profile)] == [0]


# --- real children -----------------------------------------------------------------------------------------------------


def shell(path: Path, body: str) -> Target:
    """An 'interpreter' that does what a broken one does."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return Target(path=str(path), chosen_by="--python", prefix=str(path.parent))


def run_one(target: Target, *names: str) -> Section[Any]:
    children = smoke.plan(named(*names), (GPU0,), "default")
    found: Section[Any] = smoke.section_of(smoke.run_children(Host(), target, children, time.monotonic() + 20), [], [], (GPU0,))
    return found


def test_an_interpreter_that_dies_by_a_signal(tmp_path: Path) -> None:
    section = run_one(shell(tmp_path / "python", "kill -SEGV $$"), "fp8-cast", "fp8-gemm")
    assert [(item.test, item.outcome) for item in section.value] == [("fp8-cast", "crash"), ("fp8-gemm", "crash")]
    assert section.value[0].reason == "SIGSEGV while starting the interpreter"


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    target = Target(path=str(tmp_path / "missing"), chosen_by="--python", prefix=str(tmp_path))
    (item,) = run_one(target, "fp8-cast").value
    assert item.outcome == "error"
    assert "No such file" in item.reason


def test_an_interpreter_without_torch_is_no_failure() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("this interpreter has torch")
    section = run_one(locate(Host(), sys.executable), "fp8-cast")
    assert section.state is State.ABSENT
    assert "torch" in section.why


def test_no_target_and_recorded_trees_are_not_asked(tmp_path: Path) -> None:
    target = Target(path="/usr/bin/python3", chosen_by="own", prefix="/usr")
    assert smoke.collect(Host(), Scope(target=None))["smoke"].state is State.NOT_ASKED
    assert smoke.collect(Host(root=str(tmp_path)), Scope(target=target))["smoke"].state is State.NOT_ASKED


def test_a_target_without_torch_costs_no_process(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    target = Target(path="/nonexistent", chosen_by="--python", prefix="/x", site_packages=(str(tmp_path / "site"),))
    section = smoke.collect(Host(), Scope(target=target))["smoke"]
    assert (section.state, section.why) == (State.ABSENT, "torch is not installed for this interpreter")


# --- the scripts' own helpers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def common() -> ModuleType:
    return load("smoke_common")


def test_e4m3_by_its_definition(common: ModuleType) -> None:
    value = load("smoke_shared").e4m3_value
    assert (value(0x7E), value(0x01), value(0x08), value(0xB8)) == (448.0, 2.0**-9, 2.0**-6, -1.0)
    assert value(0x7F) != value(0x7F)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotImplementedError("only supported in CUDA for SM90"), "refused"),
        (RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9"), "refused"),
        (ValueError("Invalid scaling configuration."), "refused"),
        (AttributeError("module 'torch' has no attribute '_scaled_mm'"), "refused"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "error"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasLtMatmul"), "error"),
        (KeyError("x"), "error"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), "skipped"),
    ],
)
def test_refusals_failures_and_lack_of_memory_are_told_apart(common: ModuleType, error: Exception, outcome: str) -> None:
    assert common.outcome_of(error) == outcome


def test_a_compiler_that_fails_is_a_failure(common: ModuleType) -> None:
    assert common.compiled_outcome(RuntimeError("Failed to find C compiler.")) == "error"
    assert common.compiled_outcome(common.Refused("fp8e4nv not supported")) == "refused"


def test_faults_are_read(common: ModuleType) -> None:
    assert common.read_faults("") == {}
    assert common.read_faults("fp8-gemm=wrong,nonsense,pcie=hang") == {"fp8-gemm": "wrong", "pcie": "hang"}


def test_numbers_that_json_lacks_become_texts(common: ModuleType) -> None:
    assert common.numbers({"a": 1, "b": float("nan"), "c": float("inf"), "d": True}) == ({"a": 1.0, "d": 1.0}, {"b": "nan", "c": "inf"})


def test_directories_for_compiled_code(common: ModuleType, tmp_path: Path) -> None:
    assert common.unusable_directory(str(tmp_path / "not" / "yet" / "there")) == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "not a directory" in common.unusable_directory(str(tmp_path / "file" / "cache"))
    assert "/proc/nope" in common.unusable_directory("/proc/nope")


@contextlib.contextmanager
def another_child(common: ModuleType, scratch: Path, how: str) -> Iterator[None]:
    """Another process that holds gpu-0, alone or beside others, or places on GPUs 0 and 1."""
    hold = {
        "alone": "common.lock(scratch, 'gpu-0')",
        "beside others": "common.beside_others(scratch, ['gpu-0'])",
        "in its places": "contextlib.nullcontext(common.take_turns(types.SimpleNamespace(scratch=scratch, places=2), [0, 1]))",
    }[how]
    code = (
        f"import contextlib, importlib.util, os, sys, types\nos.environ.pop('DSDOCTOR_RESULT_FD', None)\nspec = importlib.util.spec_from_file_location('common', {common.__file__!r})\n"
        "common = importlib.util.module_from_spec(spec); sys.modules['common'] = common; spec.loader.exec_module(common)\n"
        f"scratch = {str(scratch)!r}\nwith {hold}:\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "held\n" in iter(process.stdout.readline, "")
        yield
        process.communicate("")


def test_a_rate_is_measured_while_no_other_child_uses_the_gpu(common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "LOCK_WAIT_S", 0.05)
    scratch = str(tmp_path)
    with common.beside_others(scratch, ["gpu-0"]), common.lock(scratch, "gpu-0"), common.lock(scratch, "host-links"):
        pass
    with another_child(common, tmp_path, "beside others"):
        with common.beside_others(scratch, ["gpu-0"]):
            pass
        with pytest.raises(common.Skip, match="another test held gpu-0"), common.lock(scratch, "gpu-0"):
            pass
    with another_child(common, tmp_path, "alone"), pytest.raises(common.Skip), common.beside_others(scratch, ["gpu-0"]):
        pass
    with common.lock(scratch, "gpu-0"):
        pass


def free(common: ModuleType, path: Path) -> bool:
    """Whether nobody holds a place."""
    with path.open("w") as file:
        return bool(common.taken(file))


def test_two_children_use_a_gpu_and_one_of_them_several(common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(common, "_PLACES", {})
    monkeypatch.setattr(common, "say", lambda event, **fields: None)
    first, second = (tmp_path / f"gpu-1-place-{number}.lock" for number in range(2))
    with another_child(common, tmp_path, "in its places"):
        assert (free(common, first), free(common, second)) == (False, True)
        assert not free(common, tmp_path / "several-gpus-place-0.lock")
        common.take_turns(argparse.Namespace(scratch=str(tmp_path), places=2), [1])
        assert not free(common, second)
        # A place is taken once, and one that nobody frees is not waited for for ever.
        common.take_turns(argparse.Namespace(scratch=str(tmp_path), places=2), [1, 0])
    assert free(common, first)
    assert sorted(common._PLACES) == ["GPU 0", "GPU 1", "several GPUs"]


@pytest.mark.parametrize(("mode", "places"), [(0, 2), (3, 1)], ids=["shared", "one process at a time"])
def test_what_torch_tries_on_the_gpu_takes_a_place_there_and_gives_it_back(
    common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, places: int
) -> None:
    class Cuda:
        """What is asked of libcuda: a compute mode, a device, its reset."""

        reset: ClassVar[list[int]] = []

        def cuDeviceGetAttribute(self, answer: Any, attribute: int, device: int) -> int:
            answer._obj.value = mode
            return int((attribute, device) != (20, 0))

        def cuDeviceGet(self, answer: Any, ordinal: int) -> int:
            return 0

        def cuDevicePrimaryCtxReset_v2(self, device: Any) -> None:
            self.reset.append(device.value)

    monkeypatch.setenv("DSDOCTOR_RESULT_FD", "1")
    spec = importlib.util.spec_from_file_location("torch_facts", IN_TARGET / "torch_facts.py")
    assert spec is not None
    assert spec.loader is not None
    facts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(facts)
    monkeypatch.setattr(facts.ctypes, "CDLL", lambda name: Cuda())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    facts.take_place(str(tmp_path))
    taken = [not free(common, path) for path in sorted(tmp_path.glob("gpu-1-place-*.lock"))]
    assert taken == [True, False][:places]
    facts.give_back(argparse.Namespace(cuda=argparse.Namespace(current_device=lambda: 0)))
    assert free(common, tmp_path / "gpu-1-place-0.lock")
    assert Cuda.reset == [0]


COMPILER_NEEDS = """
import sys, json
text = open(sys.argv[1]).read().split('if __name__ ==')[0]
space = {'__name__': 'x'}
exec(compile(text, sys.argv[1], 'exec'), space)
print(json.dumps([space['compiler'](), space['python_headers'](), space['configured_cache'](), space['libcuda']()]))
"""


def compiler_needs(**variables: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", COMPILER_NEEDS, str(IN_TARGET / "smoke_triton.py")],
        env={"HOME": "/home/x", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    needs: list[Any] = json.loads(done.stdout)
    return needs


def test_what_triton_needs_is_named(tmp_path: Path) -> None:
    compiler, headers, cache, _ = compiler_needs(PATH=str(tmp_path))
    assert compiler == [False, "no C compiler: CC is not set, neither gcc nor clang is on PATH"]
    assert isinstance(headers[0], bool)
    assert cache == "/home/x/.triton/cache"
    (tmp_path / "gcc").write_text("")
    (tmp_path / "gcc").chmod(0o755)
    assert compiler_needs(PATH=str(tmp_path))[0] == [True, str(tmp_path / "gcc")]
    assert compiler_needs(PATH=str(tmp_path), CC="")[0] == [False, "CC='' names no program that runs"]
    assert compiler_needs(PATH=str(tmp_path), TRITON_CACHE_DIR="/c", TRITON_HOME="/h")[2] == "/c"
    assert compiler_needs(PATH=str(tmp_path), TRITON_HOME="/h")[2] == "/h/.triton/cache"
    assert compiler_needs(PATH=str(tmp_path), TRITON_LIBCUDA_PATH=str(tmp_path))[3][0] is False


def test_the_scripts_do_not_put_their_folder_on_the_path() -> None:
    for script in table.SCRIPTS:
        text = (IN_TARGET / script.name).read_text()
        assert "sys.path.insert" not in text
    ended = run_script(Host(), locate(Host(), sys.executable), "smoke_shared.py", timeout_s=20, arguments=("--device", "quantum"))
    assert (ended.outcome, ended.code) == ("exited", 2)
    assert "quantum" in ended.stderr
