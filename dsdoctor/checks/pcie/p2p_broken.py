"""Copies between GPUs arrive wrong.

What it looks at
    The smoke tests p2p (every pair of GPUs, each word compared) and collectives (each rank sends words that tell where they come from). In pasted logs: simpleP2P's complaint, and a job that works only with
    NCCL_P2P_DISABLE=1.

Why it matters
    A GPU that reads another one's memory through bridges with access control (ACS), or through a translating IOMMU, can get other data than was sent, without an error anywhere: losses become NaN, or text
    becomes nonsense. No peer access at all is another thing: then copies go through the host, slower and right. GPUs under different processors, and consumer cards, often have none.

Sources
    NVIDIA NCCL user guide, GPU troubleshooting; simpleP2P of the CUDA samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, beyond_limit, numbers, untried
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.facts import Gpu, LogEvent, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

ID = "pcie.p2p-broken"

CASES = (
    Case(
        title="words of a pair arrive changed",
        sections={"smoke": (ran("p2p", "0>1", gpu=None, wrong_words=4096, peer_access=1, gb_per_s=20),), "gpus": H200[:2]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="0>1",
    ),
    Case(
        title="simpleP2P in a log",
        sections={
            "log_events": (
                LogEvent(
                    signature="p2p-verification", text="Verification error @ element 1: val = 0.000000, ref = 4.000000", where="p2p.txt:9"
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="deliver wrong data",
    ),
    Case(
        title="all words as they were sent",
        sections={"smoke": (ran("p2p", "0>1", gpu=None, wrong_words=0, peer_access=1, gb_per_s=387),), "gpus": H200[:2]},
        status=Status.PASS,
    ),
    Case(
        title="the test was skipped",
        sections={"smoke": (said("skipped", "p2p", "", "in use by process 4711", gpu=None),), "gpus": H200[:2]},
        status=Status.UNKNOWN,
        says="4711",
    ),
    Case(title="nobody tried", sections={"gpus": H200[:2]}, status=Status.UNKNOWN),
    Case(title="one GPU", sections={"smoke": (), "gpus": H200[:1]}, status=Status.NOT_APPLICABLE, says="one GPU"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check(ID, Severity.ERROR, explains=("smoke.bandwidth", "smoke.collectives"), settle="dsdoctor smoke p2p", cases=CASES)
def p2p_broken(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the numbers whose limit names this check."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    if gpus.value is not None and len(gpus.value) == 1:
        yield NotApplicable(reason="there is one GPU")
        return
    counts = [number for result in smoke for number in numbers(result, ground) if number.limit.see == ID]
    wrong = [number for number in counts if not number.limit.is_good(number.share)]
    if wrong:
        yield beyond_limit(wrong, Severity.ERROR, ground)
    elif not counts:
        yield from untried(smoke, ("p2p",))
