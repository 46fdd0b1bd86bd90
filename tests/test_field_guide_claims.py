"""What field guides say and what is not so: each such claim is answered where a user who believes it will look."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dsdoctor.matrix import Knowledge
from dsdoctor.matrix_commands import look_up, open_matrix
from dsdoctor.plugins import load
from dsdoctor.render.explain import explain
from dsdoctor.render.matrix import rows

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
CLAIMS = SHARED / "research" / "field-guide-claims.md"
HEADING = "Often said, and not so"

ANSWERS: tuple[tuple[tuple[int, ...], str, tuple[str, ...]], ...] = (
    ((1,), "cudnn.version-mismatch", ("12.4 goes with cuDNN 8.9.7", "9.1.0.70", "2.21.5")),
    ((2,), "cudnn.version-mismatch", ("8.9.2", "torch 2.1.2", "12.1")),
    ((3,), "cudnn.version-mismatch", ("8.6.0.163", "2.15.5")),
    ((4,), "cudnn.version-mismatch", ("one strict matrix", "whole CUDA major")),
    ((6,), "cudnn.version-mismatch", ("header at build time", "within one major")),
    ((5,), "driver.too-old-for-cuda", ("only across majors", "450.80.02", "525.60.13", "580.65.06")),
    ((7,), "nccl.duplicate", ("too weak", "2.23.4", "ncclInvalidUsage")),
    ((9,), "cuda.library-shadowed", ("ldd", "/proc/PID/maps")),
    ((10, 13, 16), "driver.too-old-for-gpu", ("535.129.03", "525.85.12", "no highest driver")),
    ((11, 18), "driver.too-old-for-gpu", ("470.182.03", "450.51.05", "515.86.01")),
    ((12,), "fabric.manager-version-mismatch", ("NVSwitch disabled", "450.51.05", "equals the driver's")),
    ((14,), "driver.too-old-for-gpu", ("525.66.12", "520.56.06", "525.85.05", "535.104.05")),
    ((15,), "pcie.link-degraded", ("Gen5 link of an H100", "11.8", "R520")),
    ((17,), "env.cuda-visible-devices", ("A800", "535", "no issue")),
    ((20, 21), "pcie.link-degraded", ("32x", "x16 is the widest")),
    ((22,), "driver.library-mismatch", ("rm -rf /usr/lib/nvidia*", "never", "package manager")),
    ((23,), "attention.fa3-unusable", ("CUDA 12.2", "12.3", "12.8")),
    ((29, 30), "attention.fa3-unusable", ("measured on, A100", "8.0", "9.0")),
    ((25,), "package.triton-torch-mismatch", ("get_float32", "Triton 2.0")),
    ((26,), "smoke.bandwidth", ("12.8 GB/s", "Gen5 about 55", "UPI or xGMI")),
    ((27,), "smoke.collectives", ("5 ms", "10 minutes", "2.20.3")),
    ((28, 35), "gpu.no-fp8", ("A100 and A800", "8.9 and 9.0")),
    ((32,), "smoke.numerics", ("65504", "3.39e38")),
)
"""Numbers of claims, the check that answers them, and what the answer says."""

RIGHT = (8, 19, 24, 31, 33, 34)
NOT_A_RULE = (36,)
"""Unverified, about an article's own tuning; no check and no row rests on it."""

MATRIX_ANSWERS = (
    ("deepseek-models", "v3.field_guide_claims", ("MLA", "top-8 of 256", "sliding window")),
    ("deepseek-models", "v3.context", ("163840", "256K")),
    ("kernel-libraries", "fa3.field_guide_claim_alignment", ("head_dim", "None of these")),
    ("kernel-libraries", "stack.field_guide_matrix", ("9.1.0", "2.21.5", "full version")),
    ("kernel-libraries", "driver.field_guide_claims", ("False", "package manager")),
)
PARTS = load()


def page(check_id: str) -> str:
    check = next(check for check in PARTS.checks if check.id == check_id)
    return " ".join(explain(check, width=100).split())


@pytest.mark.parametrize(("numbers", "check_id", "says"), ANSWERS, ids=lambda value: str(value) if isinstance(value, str) else "")
def test_explain_answers_the_claim_with_the_right_figure_and_a_source(
    numbers: tuple[int, ...], check_id: str, says: tuple[str, ...]
) -> None:
    answer = re.split(r" Sources (?=[A-Z])", page(check_id).partition(HEADING)[2])[0]
    assert answer, f"{check_id} has no paragraph '{HEADING}'"
    for text in says:
        assert text in answer, (numbers, text)
    assert re.search(r"Sources?: ", answer), f"{check_id}: the answer names no source"


@pytest.mark.parametrize(("matrix", "key", "says"), MATRIX_ANSWERS)
def test_the_matrices_answer_claims_about_models_and_kernels(matrix: str, key: str, says: tuple[str, ...]) -> None:
    table = open_matrix(matrix, Knowledge())
    text = " ".join(rows(table, look_up(table, key), width=100, colour=False, unicode=True).split())
    for word in (*says, "source: "):
        assert word in text, word


@pytest.mark.skipif(not CLAIMS.is_file(), reason="the judged claims are not here")
def test_every_judged_claim_is_answered_or_right() -> None:
    judged = {int(number) for number in re.findall(r"^\| (\d+) \|", CLAIMS.read_text(encoding="utf-8"), re.MULTILINE)}
    answered = {number for numbers, _, _ in ANSWERS for number in numbers}
    assert judged == answered | set(RIGHT) | set(NOT_A_RULE)
    false = {int(number) for number in re.findall(r"^\| (\d+) \|.*\| \*\*false\*\*", CLAIMS.read_text(encoding="utf-8"), re.MULTILINE)}
    assert false
    assert false <= answered


def test_what_is_false_is_no_row() -> None:
    """The figures of the false claims stand in no row as a fact."""
    knowledge = Knowledge()
    assert all("525.66.12" not in (product.min_driver, *product.first_listed.values()) for product in knowledge.matrix("gpus").products)
    assert all(
        product.last_driver_branch is None for product in knowledge.matrix("gpus").products if product.architecture in ("Ampere", "Hopper")
    )
    assert all((limit.pcie_width or 16) <= 16 for limit in knowledge.matrix("gpu-limits").products)
    assert knowledge.matrix("kernel-libraries").requirement("fa3").min_cuda == {"any": "12.3"}
