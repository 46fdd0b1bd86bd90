"""Copies between GPUs arrive wrong, or slower with peer access than without.

What it looks at
    The smoke tests p2p (every pair of GPUs, each word compared) and collectives (each rank sends words that tell where they come from). In pasted logs: simpleP2P's complaint, a job that works only with
    NCCL_P2P_DISABLE=1, and the matrices of p2pBandwidthLatencyTest, which measures each pair with peer access and through host memory.

Why it matters
    A GPU that reads another one's memory through bridges with access control (ACS), or through a translating IOMMU, can get other data than was sent, without an error anywhere: losses become NaN, or text
    becomes nonsense. Or the data takes the long way: a copy with peer access that reaches a fraction of what the way through host memory does, and collectives that crawl or hang. No peer access at all is another thing: then copies go through the host, slower and right. GPUs under different processors, and consumer cards, often have none.

Sources
    NVIDIA NCCL user guide, GPU troubleshooting; simpleP2P of the CUDA samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, beyond_limit, numbers, untried, where
from dsdoctor.checks.smoke._samples import H200, ran, said
from dsdoctor.facts import Gpu, LogEvent, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, HealthLimits, SmokeThresholds

ID = "pcie.p2p-broken"


def _copied(pair: str, with_access: float, through_host: float) -> SmokeResult:
    return ran("peer-copies", "p2pBandwidthLatencyTest", gpu=None, notes={"pair": pair}, gb_per_s=with_access, host_gb_per_s=through_host)


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
        title="a tenth of the way through host memory (p2pBandwidthLatencyTest)",
        sections={"smoke": (_copied("0>1", 1.4, 14.2), _copied("1>0", 1.5, 14.1))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="1.4 to 1.5 GB/s",
    ),
    Case(
        title="faster than through host memory (p2pBandwidthLatencyTest)",
        sections={"smoke": (_copied("0>1", 26.1, 14.2), _copied("1>0", 9.8, 14.1))},
        status=Status.PASS,
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
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge the numbers whose limit names this check, and copies with peer access against those through host memory."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    if gpus.value is not None and len(gpus.value) == 1:
        yield NotApplicable(reason="there is one GPU")
        return
    compared = [result for result in smoke if "host_gb_per_s" in result.values]
    yield from _slower_than_the_host(compared, health_limits_matrix, remedies)
    counts = [number for result in smoke for number in numbers(result, ground) if number.limit.see == ID]
    wrong = [number for number in counts if not number.limit.is_good(number.share)]
    if wrong:
        yield beyond_limit(wrong, Severity.ERROR, ground)
    elif not counts and not compared:
        yield from untried(smoke, ("p2p",))


def _slower_than_the_host(results: Sequence[SmokeResult], limits: HealthLimits, remedies: Remedies) -> Iterator[Finding]:
    limit = limits.limit("peer-share-of-host")
    slow = [result for result in results if result.values["gb_per_s"] < limit.amount * result.values["host_gb_per_s"]]
    if not slow:
        return
    yield Finding(
        subject="GPU peer-to-peer",
        severity=Severity.WARNING,
        summary=f"With peer access (P2P) {'all' if len(slow) == len(results) else f'{len(slow)} of'} {len(results)} copies between GPUs are much slower than "
        f"through host memory: {_between(slow, 'gb_per_s')} against {_between(slow, 'host_gb_per_s')}.",
        cause="The IOMMU translates peer traffic, or bridges redirect it (ACS): writes between GPUs then crawl, hang or fault. Between GPUs under different "
        "processors the link between these can be the reason.",
        evidence=tuple(
            Evidence(
                where=where(result),
                value=f"{result.notes.get('pair', '')}: {result.values['gb_per_s']:g} GB/s with peer access, {result.values['host_gb_per_s']:g} without",
            )
            for result in slow[:6]
        ),
        expected="copies with peer access at least as fast as through host memory (IOMMU off or in passthrough mode, no ACS redirection)",
        remedies=(
            *remedies.of("pcie.iommu-translation", "passthrough"),
            *remedies.of("pcie.acs-redirect", "general")[:1],
            *remedies("general"),
        )[:3],
        sources=limit.basis.sources,
    )


def _between(results: Sequence[SmokeResult], name: str) -> str:
    amounts = [result.values[name] for result in results]
    return f"{min(amounts):g} to {max(amounts):g} GB/s" if len(amounts) > 1 else f"{amounts[0]:g} GB/s"
