"""Our record decorator makes what the standard one makes."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from dsdoctor.record import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point."""

    x: int
    tags: tuple[str, ...] = ()
    more: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 2


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    name: str


def test_a_record_is_frozen_after_it_is_made() -> None:
    point = Point(x=1)
    for name in ("x", "tags", "more"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises((AttributeError, TypeError)):
        point.other = 1  # type: ignore[attr-defined]


def test_records_compare_hash_and_show_by_value() -> None:
    assert Point(x=1, tags=("a",)) == Point(x=1, tags=("a",)) != Point(x=2)
    assert Pair(1) != Point(x=1)
    assert len({Pair(1), Pair(1), Pair(2)}) == 2
    assert repr(Pair(1)) == "Pair(left=1, right=2)"
    assert Row("a") != Row("a")


def test_the_standard_functions_know_a_record() -> None:
    assert dataclasses.replace(Point(x=1), x=3) == Point(x=3)
    assert [field.name for field in dataclasses.fields(Point)] == ["x", "tags", "more"]
    assert dataclasses.asdict(Pair(1)) == {"left": 1, "right": 2}
    assert copy.deepcopy(Point(x=1)) == Point(x=1)
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]
