"""The recordings that ship: each is what its maker builds, says what it is, names nobody, and replays to the fault that it shows."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import SCHEMA, Snapshot
from dsdoctor.findings import Diagnosis, Outcome, Report, Severity, Verdict
from dsdoctor.matrix import Knowledge
from dsdoctor.plain import from_plain, to_plain
from dsdoctor.plugins import load as load_plugins
from dsdoctor.redact import redact
from dsdoctor.render import explain as page
from dsdoctor.render import json as json_render
from dsdoctor.sources import replay

from . import make_examples

TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()
LARGEST_BYTES = 40_000

HEALTHY = ("h200-healthy", "h200x2-healthy", "h200x4-healthy")
BROKEN = {
    "cuda-visible-devices-out-of-range": ("env.cuda-visible-devices", Verdict.BROKEN),
    "cudnn-shadowed-by-ld-library-path": ("cudnn.shadowed", Verdict.BROKEN),
    "stub-libcuda": ("driver.stub-library", Verdict.BROKEN),
    "driver-too-old": ("driver.too-old-for-cuda", Verdict.BROKEN),
    "driver-upgraded-not-rebooted": ("driver.library-mismatch", Verdict.BROKEN),
    "no-driver": ("driver.absent", Verdict.BROKEN),
    "torch-cpu-build": ("torch.cpu-only-build", Verdict.BROKEN),
    "fabric-manager-version": ("fabric.manager-version-mismatch", Verdict.BROKEN),
    "gpu-fell-off-the-bus": ("gpu.lost", Verdict.BROKEN),
    "two-nccl-wheels": ("nccl.duplicate", Verdict.DEGRADED),
}
ALL = (*HEALTHY, *BROKEN)


def judge(snapshot: Snapshot) -> Report:
    return diagnose(snapshot, KNOWLEDGE, CHECKS, today=TODAY)


def replayed(name: str) -> Report:
    return judge(replay.load(f"{replay.EXAMPLE_PREFIX}{name}"))


def judgement(report: Report) -> tuple[Verdict, tuple[Diagnosis, ...], tuple[Outcome, ...]]:
    """What a report says, without the time it took and where it was read."""
    return report.verdict, report.diagnosis, tuple(dataclasses.replace(outcome, elapsed_s=0.0) for outcome in report.outcomes)


# --- what each of them shows ------------------------------------------------------------------------------------------


def test_every_shipped_example_is_in_this_table() -> None:
    assert set(replay.example_names()) == set(ALL)
    assert set(ALL) == {*make_examples.RECORDED, *make_examples.BUILT, *make_examples.EDITED}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_node_gives_no_error_and_no_warning(name: str) -> None:
    report = replayed(name)
    assert [item.summary for item in report.diagnosis if item.severity is not Severity.INFO] == []
    assert report.verdict is Verdict.HEALTHY
    assert report.counts.crashed == 0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_node_replays_to_its_root_cause(name: str) -> None:
    check, verdict = BROKEN[name]
    report = replayed(name)
    assert report.diagnosis[0].check == check
    assert report.verdict is verdict
    assert report.counts.crashed == 0
    others = [item.check for item in report.diagnosis[1:] if item.severity is Severity.ERROR]
    assert others == [], "a second root cause of the same fault"


# --- how they were made -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*make_examples.BUILT, *make_examples.EDITED])
def test_an_example_is_what_its_maker_builds_of_its_base(name: str) -> None:
    if name in make_examples.BUILT and not make_examples.FOUR_GPUS.is_dir():
        pytest.skip(f"{make_examples.FOUR_GPUS} is not there")
    assert to_plain(make_examples.build(name)) == to_plain(make_examples.read(name)), "stale: run python tests/make_examples.py"


@pytest.mark.parametrize("name", make_examples.RECORDED)
def test_a_real_recording_says_so(name: str) -> None:
    origin = make_examples.read(name).origin
    assert (origin.label, origin.made_by) == (make_examples.RECORDED[name].label, make_examples.RECORDED[name].made_by)
    assert "nothing edited" in origin.made_by


@pytest.mark.parametrize("name", make_examples.EDITED)
def test_an_edited_example_names_its_base_and_its_edits(name: str) -> None:
    about, origin = make_examples.EDITED[name], make_examples.read(name).origin
    assert origin.label == about.label
    assert f"example:{about.base}" in origin.made_by
    for edit in about.edits:
        assert edit.__name__ in origin.made_by
        assert make_examples.first_sentence(edit).endswith(".")


@pytest.mark.parametrize("name", ALL)
def test_an_example_is_small_and_always_the_same_bytes(name: str) -> None:
    content = make_examples.path_of(name).read_bytes()
    assert len(content) < LARGEST_BYTES
    assert content[4:8] == bytes(4), "the time in the gzip header"
    assert make_examples.read(name).schema == SCHEMA


def test_the_list_of_examples_says_what_each_shows() -> None:
    listed = json.loads(page.listing("examples", load_plugins(), as_json=True, width=80))["items"]
    told = {item["example"]: item["description"] for item in listed}
    assert set(told) == {f"example:{name}" for name in ALL}
    assert all(told.values())
    assert len(set(told.values())) == len(told)


# --- what they do not say ---------------------------------------------------------------------------------------------

PSEUDONYM = re.compile(r"\d{8}-0000-0000-0000-0{12}")
PRIVATE = {
    "UUID": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
    "MAC address": re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE),
    "home directory": re.compile(r"/(?:home|Users)/(?!user\b)[^/\"]+"),
    "e-mail": re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"),
    "address": re.compile(r"(?<![\d.\"-])(?:10|172|192|169)\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])"),
    "checkout": re.compile(r"/(?:work|workspace|repos?|src)/\w+"),
    "host": re.compile(r"\bip-\d+-\d+-\d+-\d+|\.(?:internal|local|lan|corp)\b"),
}


@pytest.mark.parametrize(
    "name", [*ALL, *sorted(str(path) for path in make_examples.STORIES.glob("*.json"))], ids=lambda name: Path(name).stem
)
def test_an_example_names_nobody(name: str) -> None:
    is_story = name.endswith(".json")
    snapshot = from_plain(Snapshot, json.loads(Path(name).read_text())) if is_story else make_examples.read(name)
    assert snapshot.redacted
    assert to_plain(redact(snapshot)) == to_plain(snapshot)
    text = json.dumps(to_plain(snapshot))
    found = {kind: [one for one in pattern.findall(text) if not PSEUDONYM.fullmatch(one)] for kind, pattern in PRIVATE.items()}
    assert {kind: ones for kind, ones in found.items() if ones} == {}


# --- a recording is judged as the machine was ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_saved_loaded_and_redacted_again_it_is_judged_the_same(name: str, tmp_path: Path) -> None:
    snapshot = make_examples.read(name)
    expected = judgement(judge(snapshot))
    path = tmp_path / "node.json.gz"
    replay.save(snapshot, str(path))
    loaded = replay.load(str(path))
    assert loaded.sections == snapshot.sections
    assert judgement(judge(loaded)) == expected
    assert judgement(judge(redact(loaded))) == expected


@pytest.mark.parametrize("name", ALL)
def test_its_report_can_be_judged_again(name: str) -> None:
    report = replayed(name)
    again = replay.parse(json_render.render(report).encode(), "report.json")
    assert judgement(judge(again)) == judgement(report)
