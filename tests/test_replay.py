"""Recordings: what was saved comes back, and whatever else is in the file is refused in one sentence that names the place."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor import __version__
from dsdoctor.checks._check import check
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import DsdoctorError, InputError, UsageError
from dsdoctor.facts import (
    SCHEMA,
    Gpu,
    KernelDriver,
    Limit,
    Missing,
    Origin,
    Package,
    ProbeRun,
    Sections,
    Snapshot,
    State,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.findings import Evidence, Finding, KnowledgeStamp, Severity
from dsdoctor.render import json as json_render
from dsdoctor.sources import replay

NODE = Snapshot(
    schema=SCHEMA,
    dsdoctor=__version__,
    taken_at="2026-11-29T00:00:00Z",
    origin=Origin(kind="live", label="this machine"),
    sections=Sections(
        kernel_driver=known(KernelDriver(version="535.129.03", options={"NvLinkDisable": "0"})),
        gpus=known((Gpu(index=0, name="NVIDIA H200", missing={"ecc": Missing(State.UNREADABLE, "no permission")}),)),
        limits=known({"memlock": Limit(soft=None, hard=None)}),
        packages=known((Package(name="torch", version="2.11.0+cu130"),)),
        container=absent("not in a container"),
        memory=unreadable("no /proc"),
        cpu=not_asked("left out"),
    ),
    probe_runs=(ProbeRun(probe="nvml", outcome="ok", elapsed_s=0.2),),
)


def saved(tmp_path: Path, name: str = "node.json", node: Snapshot = NODE) -> Path:
    path = tmp_path / name
    replay.save(node, str(path))
    return path


def document(**changes: Any) -> dict[str, Any]:
    """The JSON of the recording, with keys changed; None takes a key out."""
    buffer: dict[str, Any] = json.loads(json.dumps(_plain()))
    buffer.update(changes)
    return {key: value for key, value in buffer.items() if value is not None}


def _plain() -> Any:
    from dsdoctor.plain import to_plain

    return to_plain(NODE)


def refusal(content: bytes | str | dict[str, Any]) -> str:
    """What the error says of a file called node.json with this content."""
    data = json.dumps(content) if isinstance(content, dict) else content
    with pytest.raises(InputError) as error:
        replay.parse(data.encode() if isinstance(data, str) else data, "node.json")
    text = str(error.value)
    assert text.startswith("node.json: ")
    assert "\n" not in text
    assert len(text) < 300
    return text


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["node.json", "node.json.gz", "whatever"])
def test_what_was_saved_comes_back(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, name)
    found = replay.load(str(path))
    assert found.sections == NODE.sections
    assert found.probe_runs == NODE.probe_runs
    assert found.origin == Origin(kind="replay", label=str(path))
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_packed_data_is_known_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(gzip.compress(json.dumps(document()).encode()))
    assert replay.load(str(path)).sections == NODE.sections


def test_the_words_of_the_recorder_are_kept() -> None:
    found = replay.parse(json.dumps(document(origin={"kind": "live", "label": "rack 7, node 3"})).encode(), "node.json")
    assert found.origin.label == "node.json (rack 7, node 3)"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_that_went_through_windows(encoding: str) -> None:
    assert replay.parse(json.dumps(document()).encode(encoding), "x").sections == NODE.sections


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(document()).encode())))
    assert replay.load("-").origin.label == "standard input"


class NoKnowledge:
    def matrix(self, name: str) -> Any:
        return None

    def remedies(self, check_id: str, sections: Sections) -> Any:
        return None

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> None:
        return None

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        return KnowledgeStamp(digest="0", date="2026-11-29")


@check("driver.old", Severity.ERROR)
def old_driver(kernel_driver: KernelDriver) -> Iterator[Finding]:
    if kernel_driver.version.startswith("535"):
        yield Finding(subject="the driver", summary="old", evidence=(Evidence(where="kernel_driver.version", value=kernel_driver.version),))


def test_a_report_is_judged_again_from_its_facts() -> None:
    report = diagnose(NODE, NoKnowledge(), [old_driver], today=datetime.date(2026, 11, 29))
    again = replay.parse(json_render.render(report).encode(), "report.json")
    assert again.sections == NODE.sections
    assert again.taken_at == NODE.taken_at
    assert again.origin.kind == "replay"
    assert diagnose(again, NoKnowledge(), [old_driver], today=datetime.date(2026, 11, 29)).diagnosis == report.diagnosis


# --- what is refused --------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "no such file or directory"), (tmp_path, "is a directory")):
        with pytest.raises(InputError) as error:
            replay.load(str(path))
        assert str(error.value).startswith(f"{path}: {reason}; expected a recording")


def test_every_cut_of_a_recording_is_refused() -> None:
    text = json.dumps(document(), indent=1)
    for end in range(1, len(text) - 1, 7):
        refusal(text[:end])
    assert "cut short" in refusal(text[: len(text) // 2])
    assert "the gzip data is cut short" in refusal(gzip.compress(text.encode())[:-20])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty; expected a recording"),
        (b"  \n", "empty; expected a recording"),
        (b"\x7fELF\x02\x01\x01\xff\xfe\xfa", "not text (byte 7 is no UTF-8)"),
        (b"\x1f\x8bnonsense", "the gzip data is damaged"),
        (b"NVIDIA-SMI 580.65.06", "not JSON; expected a recording"),
        (b"[1, 2]", "found a JSON list"),
        (b"3", "found a JSON number"),
        (b"null", "found a JSON null"),
        (b'{"a": 1}', "a JSON document without dsdoctor's schema"),
        (b'{"schema": "cyclonedx"}', "of another kind (schema 'cyclonedx')"),
        (b'{"schema": "dsdoctor.error/1"}', "the error of a run that made no report"),
        (b'{"schema": "dsdoctor.snapshot/2"}', "made by a newer dsdoctor (dsdoctor.snapshot/2); upgrade"),
        (b'{"schema": "dsdoctor.report/7"}', "made by a newer dsdoctor (dsdoctor.report/7); upgrade"),
        (b'{"schema": "dsdoctor.report/1"}', "this report carries no facts"),
        (b'{"schema": "a", "schema": "b"}', "the key 'schema' stands twice"),
        (b'{"schema": NaN}', "NaN is not JSON"),
        (b'{"schema": "x",}', "broken JSON at line 1, column"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
    ],
)
def test_what_is_no_recording(content: bytes, says: str) -> None:
    assert says in refusal(content)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"taken_at": None}, "taken_at: missing"),
        ({"extra": 1}, "extra: unknown key"),
        ({"sections": []}, "sections: expected a mapping"),
        ({"sections": {"gpu": {"state": "absent"}}}, "sections.gpu: unknown key"),
        ({"sections": {"gpus": {"state": "fine"}}}, "sections.gpus.state: expected one of known, absent"),
        ({"sections": {"gpus": {"state": "known", "value": [{"index": "0"}]}}}, "sections.gpus.value[0].index: expected a whole number"),
        ({"sections": {"gpus": {"state": "known"}}}, "sections.gpus: known, but without a value"),
        ({"sections": {"gpus": {"state": "absent", "value": []}}}, "sections.gpus: absent, but with a value"),
        ({"dsdoctor": "99.1.0", "extra": 1}, "it was made by dsdoctor 99.1.0"),
    ],
)
def test_wrong_values_are_named_by_their_path(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(document(**changes))


def test_huge_and_packed_huge_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "READ_LIMIT_BYTES", 1 << 16)
    monkeypatch.setattr(replay, "UNPACKED_LIMIT_BYTES", 1 << 20)
    big, bomb = tmp_path / "big.json", tmp_path / "bomb.json.gz"
    big.write_bytes(b" " * (1 << 17))
    bomb.write_bytes(gzip.compress(b"[" * (4 << 20)))
    for path, says in ((big, "larger than"), (bomb, "unpacks to more than")):
        with pytest.raises(InputError, match=says):
            replay.load(str(path))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_are_more_than_an_error(content: bytes) -> None:
    with pytest.raises(InputError):
        replay.parse(content, "x")


places = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["kernel_driver", "gpus", "limits", "packages", "container"]), places)
@settings(max_examples=150, deadline=None)
def test_any_value_in_a_section_is_read_or_refused(section: str, value: Any) -> None:
    content = document(sections={**document()["sections"], section: {"state": "known", "value": value}})
    try:
        found = replay.parse(json.dumps(content).encode(), "x")
    except InputError:
        return
    assert getattr(found.sections, section).value is not None


# --- examples ---------------------------------------------------------------------------------------------------------


def test_shipped_examples_can_be_replayed() -> None:
    for name in replay.example_names():
        assert replay.load(f"example:{name}").origin.kind == "replay"
        assert replay.example_description(name)


def test_an_example_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="unknown example 'no-such-node'"):
        replay.load("example:no-such-node")


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.chmod(0o600)
    replay.save(NODE, str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["node.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = saved(tmp_path, "real.json")
    link = tmp_path / "link.json"
    link.symlink_to(real)
    replay.write_atomically(str(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="no space left on device"):
        replay.save(NODE, str(path))
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["node.json"]


@pytest.mark.parametrize("name", ["missing/node.json", ".", "node.json/x"])
def test_places_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    with pytest.raises(DsdoctorError, match=r"cannot write .*: (no such file|it is a directory|not a directory)"):
        replay.save(NODE, str(tmp_path / name))


def test_standard_output_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    replay.save(NODE, "-")
    assert json.loads(capsys.readouterr().out)["schema"] == SCHEMA
    replay.save(NODE, os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_names_that_are_no_unicode_survive_the_disk(tmp_path: Path) -> None:
    node = Snapshot(schema=SCHEMA, taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="live", label="a\udc80b"), sections=Sections())
    assert "a\udc80b" in replay.load(str(saved(tmp_path, "x.json", node))).origin.label
