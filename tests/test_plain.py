"""Plain data goes both ways and is refused, with its path, when it is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import Gpu, Limit, Missing, Origin, PcieLink, Sections, Snapshot, State, absent, known
from dsdoctor.plain import PlainError, from_plain, to_plain


def snapshot(sections: Sections) -> Snapshot:
    return Snapshot(schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="live", label="x"), sections=sections)


gpus = st.builds(
    Gpu,
    index=st.integers(0, 15),
    name=st.text(max_size=20),
    memory_total_bytes=st.none() | st.integers(0, 1 << 40),
    mig_enabled=st.none() | st.booleans(),
    power_w=st.none() | st.floats(0, 2000),
    pcie=st.none() | st.builds(PcieLink, generation=st.none() | st.integers(1, 6)),
    clock_event_reasons=st.none() | st.lists(st.sampled_from(["gpu_idle", "hw_slowdown"])).map(tuple),
    missing=st.dictionaries(st.text(max_size=5), st.builds(Missing, st.sampled_from(State), st.text(max_size=5)), max_size=2),
)


@given(st.lists(gpus, max_size=3).map(tuple))
def test_a_snapshot_survives_json(items: tuple[Gpu, ...]) -> None:
    before = snapshot(Sections(gpus=known(items, "nvml"), wsl=absent("not WSL"), limits=known({"memlock": Limit(soft=None, hard=1)})))
    assert from_plain(Snapshot, json.loads(json.dumps(to_plain(before)))) == before


def test_defaults_are_left_out() -> None:
    assert to_plain(Gpu(index=1)) == {"index": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nonsense": 1}, "nonsense: unknown key"),
        ({"sections": {"gpus": {"state": "known", "value": [{"index": "0"}]}}}, "sections.gpus.value[0].index: expected a whole number"),
        ({"sections": {"gpus": {"state": "known", "value": [{"index": True}]}}}, "expected a whole number"),
        ({"sections": {"gpus": {"state": "great"}}}, "sections.gpus.state: expected one of known"),
        ({"sections": {"gpus": {"state": "known", "value": {}}}}, "expected a list"),
        ({"sections": {"gpus": {"state": "known", "value": [{}]}}}, "sections.gpus.value[0].index: missing"),
        ({"sections": []}, "expected a mapping (Sections)"),
    ],
)
def test_wrong_data_is_refused_with_its_path(change: dict[str, object], says: str) -> None:
    with pytest.raises(PlainError, match=r"^") as caught:
        from_plain(Snapshot, {**to_plain(snapshot(Sections())), **change})
    assert says in str(caught.value)
