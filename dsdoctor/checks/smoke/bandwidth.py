"""Memory or a link of a GPU is slow, or changes what it carries.

What it looks at
    The smoke tests memory-copy, pcie (pinned copies with the link's generation and width read meanwhile), p2p (every pair of GPUs, values compared)
    and, with --full, pcie-together (all GPUs copy at the same time).

Why it matters
    A PCIe link that came up with fewer lanes or at a lower generation halves loading and offloading; at idle a low generation is normal, so it is read under load.
    Between GPUs a copy without peer access goes through the host and says nothing. Words that arrive changed are the mark of an IOMMU or of access
    control (ACS) in the PCIe switches. GPUs behind one uplink share it: that is how many boards are built, and no fault, but loading a model or
    offloading from all of them is then as slow as this figure, not as the one of a GPU alone.

Often said, and not so
    "12.8 GB/s inside a socket, 4.2 GB/s across sockets over CXL": no source. About 12.8 GB/s is a Gen3 x16 link; Gen4 gives about 25,
    Gen5 about 55. Sockets are joined by UPI or xGMI, not by CXL. Source: PCIe base specification; NVIDIA bandwidth tests.

Sources
    Measured on nodes with one, two and four H200; NCCL user guide, GPU troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.smoke._judging import Ground, gpus_of, judged, of_tests, where, written
from dsdoctor.checks.smoke._samples import BUSY, H200, ran, said
from dsdoctor.facts import Gpu, Section, SmokeResult, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits, SmokeThresholds

GEN5 = {"pcie_generation": 5, "pcie_width": 16, "pcie_max_generation": 5, "pcie_max_width": 16}
GEN3 = {**GEN5, "pcie_generation": 3}
COPY = ran("memory-copy", "copy_", gb_per_s=4290, wrong_bytes=0)
DOWN = ran("pcie", "pinned d2h", gb_per_s=55.3, more=GEN5)
UP = ran("pcie", "pinned h2d", gb_per_s=54.5, wrong_bytes=0, more=GEN5)
PAIR = ran("p2p", "0>1", gpu=None, gb_per_s=387, wrong_words=0, peer_access=1)


def _all_at_once(slowest: float) -> SmokeResult:
    by_gpu = {"gb_per_s_by_gpu": f"GPU 0: {slowest}, GPU 1: {slowest}"}
    return ran("pcie-together", "pinned d2h", gpu=None, notes=by_gpu, gb_per_s_total=2 * slowest, gb_per_s_slowest=slowest)


CASES = (
    Case(
        title="words arrive changed between two GPUs",
        sections={"smoke": (COPY, DOWN, UP, ran("p2p", "0>1", gpu=None, wrong_words=4096, peer_access=1)), "gpus": H200[:2]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="0>1",
    ),
    Case(
        title="a link of generation 3 under load",
        sections={"smoke": (COPY, ran("pcie", "pinned d2h", gb_per_s=13.1, more=GEN3)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="generation 3",
    ),
    Case(
        title="slow on a link that is as it should be",
        sections={"smoke": (COPY, DOWN, ran("pcie", "pinned h2d", gb_per_s=21, wrong_bytes=0, more=GEN5)), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="33 % of the link",
    ),
    Case(
        title="memory at half its rate",
        sections={"smoke": (ran("memory-copy", "copy_", gb_per_s=2400, wrong_bytes=0), DOWN, UP), "gpus": H200[:1]},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="50 %",
    ),
    Case(
        title="a slow pair",
        sections={
            "smoke": (COPY, DOWN, UP, PAIR, ran("p2p", "1>0", gpu=None, gb_per_s=90, wrong_words=0, peer_access=1)),
            "gpus": H200[:2],
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="1>0",
    ),
    Case(
        title="two GPUs behind one uplink",
        sections={"smoke": (COPY, DOWN, UP, _all_at_once(27.4)), "gpus": H200[:2]},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="27.4 GB/s instead of 55.3",
    ),
    Case(title="links of their own", sections={"smoke": (COPY, DOWN, UP, _all_at_once(48.1)), "gpus": H200[:2]}, status=Status.PASS),
    Case(title="as it should be", sections={"smoke": (COPY, DOWN, UP, PAIR), "gpus": H200[:2]}, status=Status.PASS),
    Case(
        title="one GPU has no peer",
        sections={"smoke": (COPY, DOWN, UP, said("skipped", "p2p", "", "needs 2 GPUs, 1 chosen", gpu=None)), "gpus": H200[:1]},
        status=Status.PASS,
    ),
    Case(
        title="no peer access: the host's rate is no fault of the pair",
        sections={"smoke": (COPY, DOWN, UP, ran("p2p", "0>1", gpu=None, gb_per_s=22, wrong_words=0, peer_access=0)), "gpus": H200[:2]},
        status=Status.PASS,
    ),
    Case(
        title="in use",
        sections={"smoke": (said("skipped", "memory-copy", "copy_", BUSY),), "gpus": H200[:1]},
        status=Status.UNKNOWN,
        says="4711",
    ),
    Case(title="not run", sections={"smoke": ()}, status=Status.NOT_APPLICABLE, says="not run"),
    Case(title="no GPU", sections={"smoke": absent("no NVIDIA GPU")}, status=Status.NOT_APPLICABLE),
)


@check("smoke.bandwidth", Severity.ERROR, settle="dsdoctor smoke memory-copy pcie p2p", cases=CASES)
def bandwidth(
    smoke: tuple[SmokeResult, ...],
    gpus: Section[tuple[Gpu, ...]],
    smoke_thresholds_matrix: SmokeThresholds,
    gpu_limits_matrix: GpuLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge copies inside, to and between GPUs, and the PCIe link as it was under load."""
    ground = Ground(gpus, smoke_thresholds_matrix, gpu_limits_matrix, remedies)
    results = of_tests(smoke, "memory-copy", "pcie", "p2p", "pcie-together")
    yield from lowered_links(of_tests(results, "pcie"), ground)
    yield from shared_uplinks(results, ground)
    yield from judged(results, ground, "memory-copy", "pcie")


def lowered_links(results: Sequence[SmokeResult], ground: Ground) -> Iterator[Finding]:
    """GPUs whose link was below what both ends can do while copies ran; judged by the best reading of all copies."""
    for index in dict.fromkeys(result.gpu for result in results):
        readings = [result for result in results if result.gpu == index]
        now, most = ({name: _best(readings, f"{prefix}{name}") for name in ("generation", "width")} for prefix in ("pcie_", "pcie_max_"))
        lower = [name for name, value in now.items() if value and most[name] and value < most[name]]
        if not lower:
            continue
        place = gpus_of(readings[:1], ground)
        rates = ", ".join(f"{result.path} {written(result.values['gb_per_s'])} GB/s" for result in readings if "gb_per_s" in result.values)
        ends = f"generation {written(most['generation'])} x{written(most['width'])}" if all(most.values()) else "more"
        yield Finding(
            subject=place,
            severity=Severity.WARNING,
            summary=f"The PCIe link of {place} ran at generation {written(now['generation'])} x{written(now['width'])} under load; "
            f"both ends can do {ends}.",
            cause="It was read while copies ran, so that saving power at idle is not the reason: the card sits badly, the slot or riser is at fault, "
            "or the firmware limits the slot.",
            evidence=(
                Evidence(
                    where=f"{where(readings[0])}.pcie_{lower[0]}", value=f"{written(now[lower[0]])} of {written(most[lower[0]])}; {rates}"
                ),
            ),
            expected=ends,
            remedies=ground.help("pcie.link-degraded"),
            sources=tuple(fact.basis.sources[0] for fact in ground.limits.facts if fact.id == "pcie-compare"),
        )


def shared_uplinks(results: Sequence[SmokeResult], ground: Ground) -> Iterator[Finding]:
    """Copies of all GPUs at once of which the slowest gets much less than the slowest GPU alone; the worse direction."""
    together = [result for result in of_tests(results, "pcie-together") if "gb_per_s_slowest" in result.values]
    pairs = [(result.values["gb_per_s_slowest"], _slowest_alone(results, result.path), result) for result in together]
    expected = ground.thresholds.together
    shared = [(slowest / alone, slowest, alone, result) for slowest, alone, result in pairs if alone and slowest < expected.share * alone]
    for _, slowest, alone, result in sorted(shared, key=lambda item: item[0])[:1]:
        yield Finding(
            subject="PCIe uplinks",
            severity=Severity.INFO,
            summary=f"When all GPUs copy at once ({result.path}), the slowest gets {written(slowest)} GB/s instead of {written(alone)}.",
            cause="They share an uplink to the host: two or more behind one PCIe switch, or the memory of one socket serves them all. "
            "Loading and offloading on all GPUs runs at this rate.",
            evidence=(Evidence(where=f"{where(result)}.gb_per_s_slowest", value=result.notes.get("gb_per_s_by_gpu", written(slowest))),),
            expected=f"at least {expected.share:.0%} of the rate of one GPU alone. {expected.text}",
            remedies=ground.remedies("shared-uplink"),
            sources=expected.basis.sources,
        )


def _slowest_alone(results: Sequence[SmokeResult], path: str) -> float:
    alone = [result.values["gb_per_s"] for result in of_tests(results, "pcie") if result.path == path and "gb_per_s" in result.values]
    return min(alone, default=0.0)


def _best(readings: Sequence[SmokeResult], name: str) -> float:
    return max((result.values[name] for result in readings if name in result.values), default=0.0)
