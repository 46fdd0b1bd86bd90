"""A GPU test that the chosen profile requires did not run, so that what it would prove is not known.

What it looks at
    The GPU tests that the profiles chosen with `--profile` require (matrices/profiles), and the results that are there. A test that ran, or
    failed, is judged by the checks of the area smoke; this one tells which could not run (skipped, or refused everywhere), and which nobody tried.

Why it matters
    "Nothing failed" is no proof where nothing was run: with --quick, without torch, with a GPU that others use. A node is fit for a profile when
    its tests ran and were right.

Sources
    matrices/profiles, each row with its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.profile._reading import nobody_asked
from dsdoctor.facts import Gpu, Package, Section, Sections, SmokeResult, absent, not_asked
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.purpose import Chosen, Purpose
    from dsdoctor.rows_profile import RequiredTest

TRIED = ("ran", "error", "crash", "hang")
"""Outcomes that the checks of the area smoke judge."""
FIRST_WORDS = 160

ONE_GPU = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)
RIGHT = SmokeResult(test="fa3", path="fa3-fwd", gpu=0, outcome="ran", values={"rel_error": 2e-3})
RATE = SmokeResult(test="fa3-rate", path="fa3-fwd", gpu=0, outcome="ran", values={"tflops": 755})

CASES = (
    Case(
        title="FlashAttention-3 with --quick",
        sections={"gpus": ONE_GPU, "smoke": not_asked("not looked at with --quick")},
        profiles=("fa3",),
        status=Status.UNKNOWN,
        says="not looked at with --quick",
    ),
    Case(
        title="no provider: the test was skipped",
        sections={"gpus": ONE_GPU, "smoke": (SmokeResult(test="fa3", outcome="skipped", reason="no FlashAttention-3 is installed"), RATE)},
        profiles=("fa3",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="no FlashAttention-3 is installed",
    ),
    Case(
        title="there is no GPU to run it on",
        sections={"gpus": absent("no NVIDIA GPU"), "smoke": absent("no NVIDIA GPU")},
        profiles=("fa3",),
        status=Status.UNKNOWN,
        says="no NVIDIA GPU",
    ),
    Case(
        title="it failed, which smoke.fa3 tells",
        sections={"gpus": ONE_GPU, "smoke": (SmokeResult(test="fa3", gpu=0, outcome="error", reason="ImportError"), RATE)},
        profiles=("fa3",),
        status=Status.PASS,
    ),
    Case(title="both ran", sections={"gpus": ONE_GPU, "smoke": (RIGHT, RATE)}, profiles=("fa3",), status=Status.PASS),
    Case(
        title="collectives need a second GPU, so one does without",
        sections={"gpus": ONE_GPU, "smoke": (SmokeResult(test="attention", outcome="ran"), SmokeResult(test="triton", outcome="ran"))},
        profiles=("vllm",),
        status=Status.PASS,
    ),
    Case(
        title="no profile was chosen",
        sections={"smoke": (), "packages": (Package(name="vllm", version="0.33.0"),)},
        status=Status.NOT_APPLICABLE,
        says="--profile vllm",
    ),
)


@check("profile.smoke-not-run", Severity.WARNING, settle="dsdoctor smoke", cases=CASES)
def smoke_not_run(
    smoke: Section[tuple[SmokeResult, ...]],
    gpus: Section[tuple[Gpu, ...]],
    packages: Section[tuple[Package, ...]],
    purpose: Purpose,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look for a result of each required test."""
    if not purpose.profiles:
        yield nobody_asked(purpose, Sections(packages=packages))
        return
    count = len(gpus.value) if gpus.value is not None else 1
    for chosen in purpose.profiles:
        untried: list[RequiredTest] = []
        for row in chosen.profile.smoke:
            results = [result for result in smoke.value or () if result.test == row.smoke_test]
            if count < row.gpus_from or any(result.outcome in TRIED for result in results):
                continue
            if results:
                yield _could_not(chosen, row, results, remedies)
            else:
                untried.append(row)
        if untried:
            names = [row.smoke_test for row in untried]
            why = smoke.why or "no result of it is there"
            yield Doubt(
                subject=", ".join(names),
                reason=f"the profile {chosen.asked} requires it: {why}",
                settle=f"dsdoctor smoke {' '.join(names)}",
            )


def _could_not(chosen: Chosen, row: RequiredTest, results: Sequence[SmokeResult], remedies: Remedies) -> Finding:
    said = next((result.reason for result in results if result.reason), "") or "no reason was given"
    return Finding(
        subject=f"GPU test {row.smoke_test}",
        summary=f"The profile {chosen.asked} requires the GPU test {row.smoke_test}, and it could not run: {said.strip()[:FIRST_WORDS].rstrip('.')}.",
        cause=row.text,
        evidence=tuple(
            Evidence(where=f"smoke[{result.test}{f' {result.path}' if result.path else ''}]", value=f"{result.outcome}: {result.reason}")
            for result in results[:4]
        ),
        expected="a result of the test",
        remedies=remedies(),
        sources=row.basis.sources,
    )
