"""What the table of GPU tests shows of a result."""

from __future__ import annotations

import pytest

from dsdoctor.facts import Sections, SmokeResult, known
from dsdoctor.matrix import Knowledge
from dsdoctor.smoke_table import table


def figures(test: str, **values: float) -> tuple[str, ...]:
    sections = Sections(smoke=known((SmokeResult(test=test, outcome="ran", values=values),)))
    (row,) = table(sections, Knowledge().matrix("gpu-limits"))
    return row.figures


@pytest.mark.parametrize(
    ("test", "values", "shown"),
    [
        ("pcie-together", {"gb_per_s_total": 221.3, "gb_per_s_slowest": 55.2}, ("221.3 GB/s together", "55.2 GB/s the slowest")),
        ("collectives", {"wrong": 0, "first_call_s": 0.2}, ("values right",)),
        ("collectives", {"wrong": 0, "first_call_s": 1.25}, ("values right", "first call 1.25 s")),
        ("collectives", {"wrong": 3}, ("3 wrong results",)),
        ("collectives", {"wrong": 0, "bus_gb_per_s": 339.04}, ("339.0 GB/s bus",)),
        ("p2p", {"wrong_words": 0, "peer_access": 1}, ("values right",)),
        ("p2p", {"wrong_words": 7, "gb_per_s": 380}, ("380.0 GB/s", "7 wrong words")),
    ],
)
def test_figures(test: str, values: dict[str, float], shown: tuple[str, ...]) -> None:
    assert figures(test, **values) == shown
