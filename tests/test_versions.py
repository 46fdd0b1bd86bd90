"""Versions as users, logs and libraries write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion, GpuTarget, LibraryVersion, runs_on

NONSENSE = [
    "",
    " ",
    "N/A",
    "[N/A]",
    "unknown",
    "580.",
    "v",
    "sm_",
    "cu",
    "12",
    "٥٨٠",
    "5" * 400,
    "580.1.2.3.4",
    None,
    3.5,
    True,
    [],
    b"580",
    object(),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_none_everywhere(text: object) -> None:
    assert DriverVersion.parse(text) is None
    assert CudaVersion.parse(text) is None
    assert ComputeCapability.parse(text) is None
    assert GpuTarget.parse(text) is None
    if text not in ("12", "580.1.2.3.4"):
        assert LibraryVersion.parse(text) is None


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.binary(max_size=8), st.lists(st.integers(), max_size=3)))
def test_parse_never_raises(value: object) -> None:
    for kind in (DriverVersion, CudaVersion, LibraryVersion, ComputeCapability, GpuTarget):
        assert kind.parse(value) is None or isinstance(kind.parse(value), kind)


@pytest.mark.parametrize("text", ["580.159.04", "525.53", "450.36.06", "418.211", "580", "616.00"])
def test_driver_text_survives(text: str) -> None:
    assert str(DriverVersion.parse(text)) == text


def test_drivers_are_ordered_by_number_not_by_text() -> None:
    texts = ["470", "470.57.02", "470.256.02", "525.53", "525.60.13", "525.105.17", "580", "580.65.06", "580.142", "580.159.04"]
    assert [str(driver) for driver in sorted(map(DriverVersion.parse, reversed(texts)))] == texts  # type: ignore[type-var]


def test_branch_of_a_driver() -> None:
    driver, branch = DriverVersion.parse("580.159.04"), DriverVersion.parse("R580")
    assert driver is not None
    assert branch is not None
    assert (driver.branch, driver.is_branch, branch.branch, branch.is_branch) == (580, False, 580, True)
    assert branch < driver


@given(st.lists(st.tuples(st.integers(300, 999), st.integers(0, 300), st.integers(0, 99)), min_size=2, max_size=6))
def test_driver_order_is_the_order_of_the_numbers(numbers: list[tuple[int, int, int]]) -> None:
    parsed = [DriverVersion.parse(f"{a}.{b:02d}.{c:02d}") for a, b, c in numbers]
    assert [driver.numbers for driver in sorted(parsed)] == sorted(numbers)  # type: ignore[type-var, union-attr]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("13.0", "13.0"),
        ("13.0.88", "13.0"),
        ("V12.4.131", "12.4"),
        ("CUDA 12.8", "12.8"),
        ("cuda12.9", "12.9"),
        ("12040", "12.4"),
        (13000, "13.0"),
        ("cu130", "13.0"),
        ("cu118", "11.8"),
        ("2.11.0+cu130", "13.0"),
        ("2.4.1+cu121.post1", "12.1"),
        ("nvidia-cudnn-cu12", None),
        ("2.11.0+cpu", None),
    ],
)
def test_cuda_as_it_is_written(written: object, expected: str | None) -> None:
    found = CudaVersion.parse(written)
    assert (str(found) if found else None) == expected


@given(st.integers(1, 99), st.integers(0, 9))
def test_cuda_code_and_tag_are_read_back(major: int, minor: int) -> None:
    version = CudaVersion(major, minor)
    assert CudaVersion.from_code(major * 1000 + minor * 10) == version
    if major >= 10:
        assert CudaVersion.parse(version.tag) == version
    assert CudaVersion.parse(str(version)) == version


@pytest.mark.parametrize(
    ("code", "version"), [(8907, "8.9.7"), (90101, "9.1.1"), (91002, "9.10.2"), (92700, "9.27.0"), (0, None), (42, None)]
)
def test_cudnn_codes(code: int, version: str | None) -> None:
    found = LibraryVersion.from_cudnn_code(code)
    assert (str(found) if found else None) == version


@pytest.mark.parametrize(("code", "version"), [(2804, "2.8.4"), (20906, "2.9.6"), (22005, "2.20.5"), (23203, "2.32.3"), (-1, None)])
def test_nccl_codes(code: int, version: str | None) -> None:
    found = LibraryVersion.from_nccl_code(code)
    assert (str(found) if found else None) == version


def test_library_versions() -> None:
    short, long, other = (LibraryVersion.parse(text) for text in ("9.10.2", "9.10.2.21", "9.9.0"))
    assert short is not None
    assert long is not None
    assert other is not None
    assert other < short < long
    assert short.same_as(long)
    assert not short.same_as(other)
    assert (long.major, long.minor) == (9, 10)
    assert str(LibraryVersion.parse("2.27.5+cuda12.9")) == "2.27.5"


@pytest.mark.parametrize("value", ["9.0", "sm_90", "sm_90a", "compute_90", (9, 0), [9, 0]])
def test_one_capability_many_spellings(value: object) -> None:
    assert ComputeCapability.parse(value) == ComputeCapability(9, 0)


@pytest.mark.parametrize(
    ("target", "capability", "expected"),
    [
        ("sm_80", "8.0", True),
        ("sm_80", "8.9", True),
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("sm_90", "9.0", True),
        ("sm_90a", "9.0", True),
        ("sm_90a", "10.0", False),
        ("sm_100a", "10.3", False),
        ("sm_100f", "10.3", True),
        ("sm_103f", "10.0", False),
        ("sm_120", "12.1", True),
        ("sm_100", "12.0", False),
        ("compute_80", "9.0", True),
        ("compute_90", "8.9", False),
        ("compute_90a", "10.0", False),
        ("compute_90a", "9.0", True),
        ("compute_100f", "12.0", False),
        ("gfx942", "9.0", None),
    ],
)
def test_what_runs_where(target: str, capability: str, expected: bool | None) -> None:
    parsed = ComputeCapability.parse(capability)
    assert parsed is not None
    assert runs_on(target, parsed) is expected


capabilities = st.builds(ComputeCapability, st.integers(3, 15), st.integers(0, 9))


@given(capabilities, capabilities, st.sampled_from(["", "a", "f"]), st.booleans())
def test_targets_are_read_back_and_run_on_their_own_gpu(
    own: ComputeCapability, other: ComputeCapability, suffix: str, is_ptx: bool
) -> None:
    target = GpuTarget(own, is_ptx, suffix)
    assert GpuTarget.parse(str(target)) == target
    assert target.runs_on(own)
    if other < own:
        assert not target.runs_on(other)
    if suffix == "a":
        assert target.runs_on(other) == (other == own)
    if target.runs_on(other) and not (is_ptx and not suffix):
        assert other.major == own.major
