"""Collectives with two ranks on the CPU through the real script, and what is read out of NCCL's logs.

The interpreter is $DSDOCTOR_TEST_TORCH_PYTHON; what needs torch is skipped without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import SmokeResult, State
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Meeting, Scope
from dsdoctor.sources.target import locate

smoke = importlib.import_module("dsdoctor.probes.smoke")
table = importlib.import_module("dsdoctor.probes.smoke_tests")
PYTHON = os.environ.get("DSDOCTOR_TEST_TORCH_PYTHON", sys.executable)
HAS_TORCH = (
    subprocess.run([PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]).returncode == 0
)
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason=f"{PYTHON} has no torch (set DSDOCTOR_TEST_TORCH_PYTHON)")
SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
RECORDINGS = SHARED / "recordings"
needs_recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module; it imports no torch by itself."""
    spec = importlib.util.spec_from_file_location("_test_smoke_collectives", Path(smoke.__file__).parent / "in_target/smoke_collectives.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(fault: str = "", deadline_s: float = 60) -> list[SmokeResult]:
    """The results of two ranks on the CPU."""
    tests = tuple(replace(test, deadline_s=deadline_s) for test in table.chosen(("collectives",), "default"))
    children = [replace(child, device="cpu") for child in smoke.plan(tests, (), "default")]
    host = Host(environment={**os.environ, "DSDOCTOR_SMOKE_FAULT": fault})
    told = smoke.run_children(host, locate(host, PYTHON), children, time.monotonic() + 100)
    section = smoke.section_of(told, [], [], ())
    assert section.state is State.KNOWN, section.why
    return list(section.value)


# --- two ranks --------------------------------------------------------------------------------------------------------


@needs_torch
def test_two_ranks_go_through_the_whole_sequence() -> None:
    found = {result.path: result for result in run()}
    assert [path for path, result in found.items() if result.outcome not in ("ran", "refused")] == []
    assert set(found) >= {"all-reduce small", "all-to-all values", "all-gather and reduce-scatter values", "all-reduce", "all-to-all"}
    assert all(result.values["wrong"] == 0 for result in found.values() if result.outcome == "ran")
    rate = found["all-reduce"]
    # The bus rate of an all-reduce of two ranks is bytes by time.
    assert rate.values["bus_gb_per_s"] == pytest.approx(float(rate.notes["bytes"]) / rate.values["call_s"] / 1e9)
    assert found["all-to-all"].notes["ranks"] == "2"


@needs_torch
def test_changed_words_are_counted() -> None:
    found = {result.path: result for result in run("collectives=wrong")}
    assert found["all-reduce small"].values["wrong"] == 2
    assert found["all-to-all values"].values["wrong"] > 1000


@needs_torch
def test_a_rank_that_never_joins_is_named_and_nobody_is_left_behind() -> None:
    (found,) = run("collectives=absent-rank", deadline_s=7)
    assert (found.outcome, found.notes["rank"]) == ("hang", "1")
    assert found.reason == "rank 1 is at 'ready to join' while the others wait at 'joining the group'"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _is_rank_of_ours(path)]
    assert left == []


# --- across nodes -----------------------------------------------------------------------------------------------------


def across(*nodes: int, of: int, deadline_s: float) -> dict[int, list[SmokeResult]]:
    """The results of these nodes of a fleet, each with one rank on the CPU of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def one(node: int) -> list[SmokeResult]:
        meeting = Meeting(address=address, node=node, nodes=of)
        scope = Scope(target=locate(host, PYTHON), deadline_s=deadline_s, meeting=meeting)
        section = smoke.across_nodes(host, scope.target, scope, (), "cpu", time.monotonic())
        assert section.state is State.KNOWN, section.why
        return list(section.value)

    host = Host(environment={**os.environ, "DSDOCTOR_SMOKE_FAULT": ""})
    with ThreadPoolExecutor(of) as pool:
        return dict(zip(nodes, pool.map(one, nodes)))


@needs_torch
def test_nodes_that_meet_are_one_group() -> None:
    found = across(0, 1, of=2, deadline_s=60)
    for node, results in found.items():
        by_path = {result.path: result for result in results}
        assert {result.outcome for result in results} <= {"ran", "refused"}
        assert by_path["all-reduce small across 2 nodes"].values["wrong"] == 0
        assert by_path["all-reduce across 2 nodes"].notes["ranks"] == "2"
        assert {result.notes["node"] for result in results} == {str(node)}


@needs_torch
def test_nodes_agree_on_the_one_that_never_came() -> None:
    found = across(0, 2, of=3, deadline_s=25)
    for (result,) in found.values():
        assert (result.outcome, result.notes["missing"]) == ("hang", "1")
        assert "node 1 of 3 never came to 127.0.0.1:" in result.reason


@needs_torch
def test_without_the_first_node_all_others_name_it() -> None:
    ((result,),) = across(1, of=2, deadline_s=20).values()
    assert (result.outcome, result.notes["missing"]) == ("hang", "0")
    assert "node 0 does not answer" in result.reason


def _is_rank_of_ours(path: Path) -> bool:
    try:
        words = path.read_bytes()
        environment = path.with_name("environ").read_bytes()
    except OSError:
        return False
    # A rank is forked by the script, so that it has its arguments.
    return b"smoke_collectives.py" in words and b"collectives=absent-rank" in environment


# --- what NCCL's logs say ---------------------------------------------------------------------------------------------


@needs_recordings
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200x4/nccl-info.txt", {"transport": "P2P/CUMEM", "nccl": "2.28.9+cuda13.0", "nvls_channels": "0"}),
        ("h200x4/fault-proto-bad.txt", {"first_warning": 'rank 0: Unrecognized element token "Foo" when parsing "Foo"'}),
        ("h200x4/fault-wrong-ifname.txt", {"first_warning": "rank 0: Bootstrap : no socket interface found"}),
    ],
)
def test_logs_of_real_runs_are_read(script: ModuleType, name: str, expected: Mapping[str, str]) -> None:
    notes = script.notes_of({0: (RECORDINGS / name).read_text()})
    assert {key: notes.get(key) for key in expected} == expected


def test_the_first_warning_in_time_counts_not_that_of_the_first_rank(script: ModuleType) -> None:
    early = "[2026-11-29 13:38:11] node-a:1:1 [1] graph/tuning.cc:104 NCCL WARN the cause\n"
    late = "[2026-11-29 13:38:12] node-a:2:2 [0] misc/socket.cc:9 NCCL WARN Connection closed by remote peer\n"
    assert script.notes_of({0: late, 1: early})["first_warning"] == "rank 1: the cause"


@given(text=st.text(alphabet="NCLWARIFOvia \n[]0123456789:/-.>PSHM", max_size=300))
def test_no_log_breaks_the_reader(script: ModuleType, text: str) -> None:
    assert all(isinstance(value, str) for value in script.notes_of({0: text}).values())


# --- left-over switches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "undone"),
    [
        ({}, None),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL"}, None),
        ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0"}),
        ({"NCCL_P2P_LEVEL": "loc"}, {"NCCL_P2P_LEVEL": "SYS"}),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0"}),
    ],
)
def test_left_over_switches_are_run_without(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: Mapping[str, str], undone: Mapping[str, str] | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert script.runs(environment) == ([{}] if undone is None else [{}, undone])


def test_switches_in_nccls_own_file_count_too(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".nccl.conf").write_text("# for the old switch\nNCCL_P2P_DISABLE=1 # ask first\nNCCL_DEBUG=WARN\n")
    assert script.runs({}) == [{}, {"NCCL_P2P_DISABLE": "0"}]
    assert script.runs({"NCCL_P2P_DISABLE": "0"}) == [{}]


# --- who is behind ----------------------------------------------------------------------------------------------------


def ranks(script: ModuleType, *stages: str) -> list[Any]:
    """Ranks at these stages."""
    found = [script.Rank(number, None, -1, "/nonexistent", "/nonexistent") for number in range(len(stages))]
    for rank, stage in zip(found, stages):
        rank.stage = stage
    return found


def test_the_one_that_others_wait_for_is_named(script: ModuleType) -> None:
    trouble = script.hang(ranks(script, "barrier", "barrier", "initialising CUDA", "barrier"))
    assert (trouble.outcome, trouble.notes["rank"]) == ("hang", 2)
    assert trouble.reason == "rank 2 is at 'initialising CUDA' while the others wait at 'barrier'"


def test_nobody_is_blamed_when_all_stand_at_the_same_place(script: ModuleType) -> None:
    assert script.hang(ranks(script, "all-to-all", "all-to-all")).reason == "all ranks are at 'all-to-all' and none goes on"


def test_a_time_out_of_one_that_waits_is_a_hang_of_the_one_that_is_late(script: ModuleType) -> None:
    both = ranks(script, "joining the group", "ready to join")
    both[0].failed = ("error", "DistStoreError: Timed out after 300 seconds waiting for clients. 1/2 clients joined.")
    trouble = script.trouble_of(both, both[0])
    assert (trouble.outcome, trouble.notes["rank"]) == ("hang", 1)


def test_another_failure_stays_what_it_is(script: ModuleType) -> None:
    both = ranks(script, "joining the group", "ready to join")
    both[0].failed = ("error", "DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage")
    trouble = script.trouble_of(both, both[0])
    assert (trouble.outcome, trouble.notes["rank"]) == ("error", 0)
    assert "invalid usage" in trouble.reason


def test_the_slowest_rank_sets_the_rate(script: ModuleType) -> None:
    both = ranks(script, "leaving", "leaving")
    for rank, seconds in zip(both, (0.001, 0.002)):
        rank.results = {
            "all-to-all": {
                "path": "all-to-all",
                "bytes": 1 << 20,
                "wrong": 1,
                "backend": "nccl",
                "world": 2,
                "call_s": seconds,
                "first_call_s": 1,
            }
        }
    context = type("Context", (), {"fault": ""})()
    values, notes = script.combined(context, both)["all-to-all"]
    assert values["wrong"] == 2
    assert values["bus_gb_per_s"] == pytest.approx((1 << 20) / 0.002 / 2 / 1e9)
    assert json.dumps(notes)
