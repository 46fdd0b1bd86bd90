"""Looking twice: what settles is waited for and nothing else, and counters of two readings become their growth."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from dsdoctor.facts import (
    AerCounters,
    EccCounters,
    FabricState,
    Gpu,
    NvLink,
    Origin,
    PciDevice,
    PcieLink,
    Sections,
    Service,
    SmokeResult,
    Snapshot,
    State,
    known,
    unreadable,
)
from dsdoctor.sources import again

from .nvml_stand_in import build, environment
from .nvml_stand_in import node as node_profile


class Machine:
    """Answers questions from a list of moments, one a question, and moves a clock of its own."""

    def __init__(self, *moments: dict[str, Any]) -> None:
        self.moments = list(moments)
        self.asked: list[tuple[str, ...]] = []
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def ask(self, sections: Sequence[str], snapshot: Snapshot) -> Snapshot:
        self.asked.append(tuple(sections))
        self.now += 0.5
        moment = self.moments.pop(0) if self.moments else {}
        return dataclasses.replace(snapshot, sections=dataclasses.replace(snapshot.sections, **moment))


def snapshot(**sections: Any) -> Snapshot:
    return Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="live", label="x"), sections=Sections(**sections)
    )


def in_fabric(state: str) -> Any:
    return known((Gpu(index=0, fabric=FabricState(state=state)),))


def settle(first: Snapshot, machine: Machine, limit_s: float = 60.0) -> Snapshot:
    return again.settled(first, machine.ask, limit_s, sleep=machine.sleep, clock=machine.clock)


def test_a_node_with_nothing_in_motion_is_not_slowed() -> None:
    machine = Machine()
    found = settle(snapshot(gpus=in_fabric("completed"), services=known((Service(name="nvidia-imex", state="failed"),))), machine)
    assert machine.asked == []
    assert machine.now == 100.0
    assert found.sections.settling.value is not None
    assert found.sections.settling.value.waited_s == 0


def test_a_fabric_that_comes_up_is_waited_for_and_what_needs_it_is_asked_again() -> None:
    machine = Machine({"gpus": in_fabric("in-progress")}, {"gpus": in_fabric("completed")})
    first = snapshot(gpus=in_fabric("in-progress"), smoke=known((SmokeResult(test="fp8-gemm", outcome="error"),)))
    found = settle(first, machine).sections
    assert machine.asked == [("gpus",), ("gpus",), ("smoke",)]
    assert found.gpus == in_fabric("completed")
    assert found.settling.value is not None
    assert found.settling.value.settled == ("fabric of GPU 0",)
    assert found.settling.value.waited_s == 3.5


def test_what_never_settles_ends_at_the_limit() -> None:
    starting = known((Service(name="nvidia-fabricmanager", state="activating"), Service(name="nvidia-dcgm", state="activating")))
    machine = Machine()
    found = settle(snapshot(services=starting), machine, 5.0).sections.settling.value
    assert found is not None
    assert found.unsettled == ("nvidia-fabricmanager",), "nobody waits for DCGM"
    assert 5.0 <= machine.now - 100.0 <= 6.5
    assert set(machine.asked) == {("services",)}


def node(replays: int, crc: int, corrected: int, aer: int) -> dict[str, Any]:
    links = tuple(NvLink(index=index, active=True, replay_errors=0, crc_errors=crc if index else 0) for index in range(2))
    gpu = Gpu(index=0, pcie=PcieLink(replay_count=replays), ecc=EccCounters(volatile_corrected=corrected), nvlinks=links)
    device = PciDevice(address="0000:01:00.0", kind="gpu", aer=AerCounters(correctable=aer, fatal=0))
    return {"gpus": known((gpu,)), "pci_devices": known((device,))}


def test_counters_of_two_readings_become_growth_and_the_later_reading_stays() -> None:
    machine = Machine(node(7, 30, 4, 9))
    first = snapshot(**node(2, 10, 4, 5))
    found = again.watched(first, machine.ask, 99.0, 10.0, under_load=False, sleep=machine.sleep, clock=machine.clock).sections
    growth = found.growth.value
    assert growth is not None
    assert growth.seconds == 10.5
    assert {item.counter: (item.before, item.after) for item in growth.counters} == {
        "pcie.replay_count": (2, 7),
        "ecc.volatile_corrected": (4, 4),
        "nvlinks.replay_errors": (0, 0),
        "nvlinks.crc_errors": (10, 30),
        "nvlinks[1].crc_errors": (10, 30),
        "aer.correctable": (5, 9),
    }
    assert growth.of_gpu(0, "pcie.replay_count").grown == 5
    assert found.gpus.value[0].pcie.replay_count == 7


def test_a_reset_between_two_readings_is_no_growth() -> None:
    machine = Machine(node(0, 0, 0, 0))
    found = again.watched(snapshot(**node(9, 9, 9, 9)), machine.ask, 100.0, 1.0, under_load=False, sleep=machine.sleep, clock=machine.clock)
    assert found.sections.growth.value is not None
    assert all(item.grown == 0 for item in found.sections.growth.value.counters)


def test_time_that_has_passed_already_is_not_waited_for_again() -> None:
    machine = Machine(node(0, 0, 0, 0))
    again.watched(snapshot(**node(0, 0, 0, 0)), machine.ask, 40.0, 30.0, under_load=True, sleep=machine.sleep, clock=machine.clock)
    assert machine.now == 100.5


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (node(0, 0, 0, 0), {"gpus": unreadable("NVML gave no answer")}, State.UNREADABLE),
        ({"gpus": unreadable("no NVML"), "pci_devices": unreadable("no /sys")}, {}, State.NOT_ASKED),
    ],
)
def test_a_reading_that_fails_leaves_the_first_one_and_says_so(first: dict[str, Any], second: dict[str, Any], state: State) -> None:
    machine = Machine(second)
    found = again.watched(snapshot(**first), machine.ask, 100.0, 1.0, under_load=False, sleep=machine.sleep, clock=machine.clock).sections
    assert found.growth.state is state
    assert found.growth.why
    assert found.gpus == first["gpus"]


# --- the whole command, on a stand-in for NVML ------------------------------------------------------------------------


def test_a_check_that_settles_and_watches_says_what_it_saw(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A fabric that never comes up is waited for as long as asked, and no longer; then counters are read twice."""
    profile = node_profile("h200", "nvswitch")
    profile["0"]["nvmlDeviceGetGpuFabricInfoV"] = [2, 0, 0, 0]
    command = [
        sys.executable,
        "-m",
        "dsdoctor",
        "check",
        "--quick",
        "--only",
        "pcie.replay-rate",
        "--settle",
        "1",
        "--watch",
        "0.2",
        "-f",
        "json",
    ]
    done = subprocess.run(command, env=environment(build(tmp_path_factory), profile), capture_output=True, text=True, timeout=60)
    facts = json.loads(done.stdout)["facts"]
    assert facts["settling"]["value"]["unsettled"] == ["fabric of GPU 0"]
    assert facts["settling"]["value"]["waited_s"] >= 1
    assert "waiting up to 1 s for fabric of GPU 0" in done.stderr
    growth = facts["growth"]["value"]
    assert growth["seconds"] >= 0.2
    assert any(item["gpu"] == 0 and item["counter"] == "pcie.replay_count" for item in growth["counters"])
