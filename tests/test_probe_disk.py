"""Read rates of a model directory: bounded, read-only, and told with what they went through."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.cli.steps import measured_rate
from dsdoctor.facts import Section, State
from dsdoctor.plain import to_plain
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope

from .test_plan import planned

disk = importlib.import_module("dsdoctor.probes.disk")

SMALL = disk.Limits(sequential_bytes=32 << 20, mapped_bytes=8 << 20, random_reads=50)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for number, blocks in enumerate((3, 2), 1):
        with open(tmp_path / f"model-{number}.safetensors", "wb") as file:
            file.write(os.urandom(1 << 20) * 8 * blocks + b"end")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def collect(directory: str) -> Section[Any]:
    sections = disk.collect(Host(), Scope(target=None, model_directory=directory))
    assert read_sections({name: to_plain(section) for name, section in sections.items()}) == sections
    return sections["disk"]


def test_rates_are_measured_within_the_limits_and_nothing_is_written(model: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    rates = disk.measure(str(model), SMALL)
    assert rates.files == 2
    assert min(rates.sequential_bytes_per_s, rates.mapped_bytes_per_s, rates.random_read_s) > 0
    most = SMALL.sequential_bytes + disk.READERS * disk.BLOCK_BYTES + SMALL.mapped_bytes + SMALL.random_reads * disk.PAGE_BYTES
    assert 0 < rates.read_bytes <= most
    assert rates.cached_share is None or 0 <= rates.cached_share <= 1
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before


def test_a_short_time_ends_every_test(model: Path) -> None:
    rates = disk.measure(str(model), disk.Limits(sequential_s=0, mapped_s=0, random_s=0))
    assert rates.read_bytes <= disk.PAGE_BYTES + disk.BLOCK_BYTES


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_direct_reading_is_refused_it_reads_through_the_page_cache(
    model: Path, refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(refusal, os.strerror(refusal))
        return really(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    rates = disk.measure(str(model), SMALL)
    assert rates.direct is False
    assert rates.sequential_bytes_per_s > 0


def test_weights_are_read_before_other_files(model: Path) -> None:
    (model / "dataset.arrow").write_bytes(b"x" * (64 << 20))
    names = [os.path.basename(path) for path, _ in disk.weight_files(Host(), str(model))]
    assert names == ["model-1.safetensors", "model-2.safetensors"]
    for name in names:
        (model / name).unlink()
    assert [os.path.basename(path) for path, _ in disk.weight_files(Host(), str(model))] == ["dataset.arrow"]


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    (tmp_path / "small.safetensors").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert (collect(str(tmp_path)).state, collect(str(tmp_path)).why) == (State.ABSENT, f"{tmp_path} holds no file of 8 MiB")
    gone = collect(f"{tmp_path}/gone")
    assert (gone.state, gone.why) == (State.UNREADABLE, f"{tmp_path}/gone: No such file or directory")
    assert collect("").state is State.NOT_ASKED


def test_a_plan_uses_the_measured_rate_and_says_so(model: Path) -> None:
    rate, told = measured_rate(str(model))
    assert rate > 0
    assert told.startswith("measured: ")
    plan = planned("V3", "H200", disk_gb_per_s=rate, disk_source=told)
    (line,) = [line for line in plan.arithmetic if line.what == "load time"]
    assert told in line.how
    assert plan.load_s is not None


def test_a_directory_without_weights_leaves_the_load_time_open(tmp_path: Path) -> None:
    assert measured_rate(str(tmp_path)) == (0.0, "")
