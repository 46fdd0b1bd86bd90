"""What was provoked on two H200 of one board: each story is a real recording, and yields its cause, its figures and its remedy."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from dsdoctor.checks import CHECKS, select, with_causes
from dsdoctor.checks._check import Check
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import NetworkInterface, Sections, known
from dsdoctor.findings import Diagnosis, Report, Severity, Verdict
from dsdoctor.matrix import Knowledge
from dsdoctor.render import terminal
from dsdoctor.sources import replay, triage
from dsdoctor.sources.triage.events import load_matcher

RECORDINGS = Path(__file__).with_name("recordings")
KNOWLEDGE = Knowledge()
SMOKE = select(CHECKS, only=("smoke", "attention", "gpu.no-fp8"))
OF_SMOKE = with_causes(SMOKE, CHECKS)
"""What `dsdoctor smoke` judges."""


def judged(name: str, checks: tuple[Check, ...] = CHECKS, **known_as_well: object) -> Report:
    snapshot = replay.load(str(RECORDINGS / f"h200x2-{name}.json"))
    sections: Sections = replace(snapshot.sections, **known_as_well)  # type: ignore[arg-type]
    return diagnose(replace(snapshot, sections=sections), KNOWLEDGE, checks, today=datetime.date(2026, 11, 29))


def cause_of(report: Report, check: str, severity: Severity) -> Diagnosis:
    """The first finding: of this check, and it says what to do and how to see that it helped."""
    assert report.counts.crashed == 0
    first = report.diagnosis[0]
    assert (first.check, first.severity) == (check, severity), first.summary
    assert first.evidence
    assert first.expected
    assert first.remedies
    assert all(remedy.verify for remedy in first.remedies)
    return first


def commands(found: Diagnosis) -> list[str]:
    return [command for remedy in found.remedies for command in remedy.commands]


def screen(report: Report) -> str:
    return " ".join(terminal.render(report, width=80, colour=False).split())


@pytest.mark.parametrize("checks", [CHECKS, OF_SMOKE], ids=["check", "smoke"])
def test_a_left_over_switch_costs_a_factor_of_ten(checks: tuple[Check, ...]) -> None:
    report = judged("p2p-disabled", checks)
    first = cause_of(report, "env.disables-fast-path", Severity.WARNING)
    assert first.subject == "NCCL_P2P_DISABLE"
    assert [item.check for item in first.explains] == ["smoke.collectives"]
    assert "11.39 times as slow: 23.92 GB/s of the bus instead of 273" in first.explains[0].summary
    assert any("unset NCCL_P2P_DISABLE" in command for command in commands(first))
    assert report.verdict is Verdict.DEGRADED


def test_with_shared_memory_off_as_well_it_is_two_switches_and_a_factor_of_a_hundred() -> None:
    report = judged("p2p-and-shm-disabled")
    first = cause_of(report, "env.disables-fast-path", Severity.WARNING)
    assert {item.subject for item in report.diagnosis if item.severity is Severity.WARNING} == {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}
    assert "136 times as slow" in first.explains[0].summary
    assert all(
        any(f"unset {name}" in text for item in report.diagnosis for text in commands(item))
        for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    )


# --- as it should be ------------------------------------------------------------------------------------------------------


def test_the_full_set_on_two_gpus_finds_nothing_wrong() -> None:
    """Peer copies, all GPUs to the host at once, collectives and numerics ran; the notes are true and nothing else is said."""
    report = judged("full")
    assert report.verdict is Verdict.HEALTHY
    assert {item.check for item in report.diagnosis} <= {
        "driver.known-bad",
        "cudnn.shadowed",
        "nccl.duplicate",
        "nccl.known-bad",
        "env.disables-fast-path",
    }
    assert {item.severity for item in report.diagnosis} == {Severity.INFO}
    ran = {item["test"] for item in report.facts["smoke"]["value"] if item["outcome"] == "ran"}
    assert {"p2p", "pcie-together", "collectives", "numerics", "silent-corruption", "fa3"} <= ran


def test_two_gpus_that_get_half_their_rate_together_share_an_uplink() -> None:
    snapshot = replay.load(str(RECORDINGS / "h200x2-full.json"))
    halved = tuple(
        replace(item, values={name: value / 2 for name, value in item.values.items()}) if item.test == "pcie-together" else item
        for item in snapshot.sections.smoke.value or ()
    )
    report = judged("full", smoke=known(halved))
    found = next(item for item in report.diagnosis if item.check == "smoke.bandwidth")
    assert found.severity is Severity.INFO
    assert "26.4 GB/s instead of 54.97" in found.summary
    assert report.verdict is Verdict.HEALTHY


# --- the interface ----------------------------------------------------------------------------------------------------

SEEN_BY_NCCL = known(
    (
        NetworkInterface(name="eth0", kind="ethernet", up=True),
        NetworkInterface(name="lo", kind="virtual", up=True, loopback=True),
    ),
    "what NCCL logged on that node",
)
"""These recordings are older than the section; NCCL named eth0 there (recordings/h200x2/nccl-info.txt)."""


@pytest.mark.parametrize("checks", [CHECKS, OF_SMOKE], ids=["check", "smoke"])
def test_an_interface_that_is_not_there_is_the_cause_and_not_the_failing_collective(checks: tuple[Check, ...]) -> None:
    report = judged("wrong-interface", checks, network_interfaces=SEEN_BY_NCCL)
    first = cause_of(report, "network.wrong-interface", Severity.ERROR)
    assert "eth77" in first.summary
    assert "eth0 and lo" in first.summary
    assert [item.check for item in first.explains] == ["smoke.collectives"]
    assert "rank 0 while joining the group: DistBackendError: NCCL error in" in first.explains[0].summary
    assert "export NCCL_SOCKET_IFNAME=eth0" in commands(first)
    assert [item.check for item in report.diagnosis if item.severity is Severity.ERROR] == ["network.wrong-interface"]


def test_where_the_interfaces_are_not_known_the_failing_collective_names_the_suspect() -> None:
    report = judged("wrong-interface")
    first = cause_of(report, "smoke.collectives", Severity.ERROR)
    assert "no socket interface found" in screen(report)
    assert any("NCCL_SOCKET_IFNAME" in text for text in commands(first))


def test_the_loopback_interface_works_on_one_node_and_is_worth_a_note() -> None:
    report = judged("loopback-interface", network_interfaces=SEEN_BY_NCCL)
    assert [item.summary for item in report.diagnosis if item.severity is not Severity.INFO] == []
    assert "loopback interface reaches this node only" in screen(report)


# --- shared memory ----------------------------------------------------------------------------------------------------


def test_shared_memory_that_is_too_small_is_the_cause_and_not_the_failing_collective() -> None:
    """Mounted with 16 MiB there; NCCL fell back on it because its direct ways were switched off."""
    report = judged("small-shm")
    first = cause_of(report, "system.shm-too-small", Severity.ERROR)
    assert "16 MiB" in first.summary
    assert [item.check for item in first.explains] == ["smoke.collectives"]
    assert "Error while creating shared memory segment" in screen(report)
    assert any("--shm-size" in command for command in commands(first))
    assert [item.check for item in report.diagnosis if item.severity is Severity.ERROR] == ["system.shm-too-small"]


# --- a rank, a GPU ----------------------------------------------------------------------------------------------------


def test_the_rank_that_never_comes_is_named() -> None:
    report = judged("absent-rank")
    first = cause_of(report, "smoke.collectives", Severity.ERROR)
    assert "rank 1 is at 'ready to join' while the others wait at 'joining the group'" in first.summary
    assert report.verdict is Verdict.BROKEN


def test_a_rank_with_another_nccl_is_named_from_the_log_of_the_job() -> None:
    """Rank 1 had the NCCL of the system by LD_PRELOAD; both said so with NCCL_DEBUG=INFO."""
    log = triage.open_document(str(RECORDINGS / "h200x2-mixed-nccl.log"))
    snapshot = triage.read([log], load_matcher(KNOWLEDGE)).snapshot
    report = diagnose(snapshot, KNOWLEDGE, CHECKS, today=datetime.date(2026, 11, 29))
    first = cause_of(report, "nccl.version-differs", Severity.ERROR)
    assert "rank 0 has 2.28.9, rank 1 has 2.28.3" in first.summary
    assert [item.check for item in report.diagnosis if item.severity is Severity.ERROR] == ["nccl.version-differs"]


@pytest.mark.parametrize("checks", [CHECKS, OF_SMOKE], ids=["check", "smoke"])
def test_one_gpu_named_twice_is_a_finding_also_of_the_smoke_command(checks: tuple[Check, ...]) -> None:
    first = cause_of(judged("same-gpu-twice", checks), "env.cuda-visible-devices", Severity.ERROR)
    assert "'0' stands twice" in first.summary
    assert "unset CUDA_VISIBLE_DEVICES" in commands(first)


def test_the_smoke_command_judges_what_could_be_the_cause_of_a_failure_and_nothing_else() -> None:
    ids = {item.id for item in OF_SMOKE}
    assert {item.id for item in SMOKE} < ids
    assert {"env.cuda-visible-devices", "toolchain.no-compiler", "driver.too-old-for-cuda", "network.wrong-interface"} <= ids
    assert not {"driver.branch-eol", "system.disk-full", "package.torch-companion-mismatch"} & ids
    assert [item.id for item in OF_SMOKE] == [item.id for item in CHECKS if item.id in ids], "in the order of a report"
