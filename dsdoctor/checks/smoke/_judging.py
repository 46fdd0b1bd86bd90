"""How the smoke checks judge results: failures with their causes, numbers against limits, refusals, and what was not tried."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from dsdoctor.checks.gpu._reading import named
from dsdoctor.facts import Gpu, Section, SmokeResult
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimit, GpuLimits, Gpus, SmokeCause, SmokeLimit, SmokeThresholds
from dsdoctor.versions import ComputeCapability

FAILURES = {"error": "failed", "crash": "crashed", "hang": "did not end"}
"""Outcomes that are failures, as verbs."""
TEXT_SHOWN = 400
NOTHING_TO_TRY = re.compile(
    r"needs \d+ GPUs|has no peer|with none|is not installed|no FlashAttention-3 is installed|needs compute capability|is for Hopper|without torch\.distributed"
)
"""Reasons of results that were skipped because there is nothing to try on this node, however often one asks."""
Said = Finding | Doubt | NotApplicable
STRUCTURAL = "rates"
"""Path of a result that says why rates were not measured."""
OWN_PEAKS = ("bf16_tflops", "fp8_tflops", "memory_gb_per_s", "pcie")
"""Peaks that each product has."""
RATES = {"tflops": "TFLOP/s", "gb_per_s": "GB/s", "bus_gb_per_s": "GB/s"}
PEAK_TEXTS = {
    "bf16_tflops": "the dense BF16 peak",
    "fp8_tflops": "the dense FP8 peak",
    "memory_gb_per_s": "the memory's rate",
    "nvlink_gb_per_s": "NVLink in one direction",
    "nvlink": "the pair's NVLinks",
    "pcie": "the link",
}


@dataclass(frozen=True, slots=True)
class Ground:
    """What results are judged against."""

    gpus: Section[tuple[Gpu, ...]]
    thresholds: SmokeThresholds
    limits: GpuLimits
    remedies: Remedies

    def gpu(self, index: int | None) -> Gpu | None:
        """The GPU of a result."""
        return next((gpu for gpu in self.gpus.value or () if gpu.index == index), None)

    def product(self, index: int | None) -> GpuLimit | None:
        """The figures of the GPU's product; for a result of all GPUs those of their common product."""
        named_ones = [self.limits.product(gpu.name) for gpu in self.gpus.value or () if index is None or gpu.index == index]
        return named_ones[0] if named_ones and all(row is named_ones[0] for row in named_ones) else None

    def help(self, check_id: str = "") -> tuple[Remedy, ...]:
        """The remedies of the check that knows more, then this one's own."""
        return (*(self.remedies.of(check_id) if check_id else ()), *self.remedies())[:3]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One number of one result with its limit, and the peak that it is a share of."""

    result: SmokeResult
    limit: SmokeLimit
    amount: float
    peak: float | None = None
    slowed_by: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """What the limit is about: the number, or its share of the peak."""
        return self.amount if self.peak is None else self.amount / self.peak

    @property
    def excess(self) -> float:
        """How far beyond the limit it is, so that numbers of different kinds compare."""
        small, large = (self.limit.bad, self.share) if self.limit.wants_small else (self.share, self.limit.bad)
        return large / small if small > 0 else math.inf


def of_tests(smoke: Iterable[SmokeResult], *tests: str) -> tuple[SmokeResult, ...]:
    """The results of some tests."""
    return tuple(result for result in smoke if result.test in tests)


def judged(results: Sequence[SmokeResult], ground: Ground, *needed: str) -> Iterator[Said]:
    """Failures, numbers beyond their limits, and doubts where a needed test has no numbers."""
    yield from failures(results, ground)
    yield from beyond_limits(results, ground)
    yield from without_peak(results, ground)
    yield from untried(results, needed)


# --- failures ---------------------------------------------------------------------------------------------------------


def failures(results: Iterable[SmokeResult], ground: Ground) -> Iterator[Finding]:
    """What failed, crashed or hung, once for all GPUs on which it went the same way."""
    alike: dict[tuple[str, str, str, str], list[SmokeResult]] = {}
    for result in results:
        cause = ground.thresholds.cause_of(said_by(result))
        if result.outcome in FAILURES or (result.outcome == "refused" and cause is not None and cause.refusal):
            alike.setdefault((result.test, result.path, result.outcome, cause.id if cause else result.reason), []).append(result)
    for same in alike.values():
        yield failure(same, ground.thresholds.cause_of(said_by(same[0])), ground)


def failure(same: Sequence[SmokeResult], cause: SmokeCause | None, ground: Ground) -> Finding:
    """The finding for one failure on one or several GPUs."""
    first = same[0]
    verb = FAILURES.get(first.outcome, "is refused")
    known = "" if cause is None else cause.text + (f" The check {cause.check} tells more." if cause.check else "")
    evidence = [Evidence(where=f"{where(result)}.reason", value=shortened(result.reason) or result.outcome) for result in same[:4]]
    for name in ("missing", "compiler_said", "first_warning", "rank"):
        if first.notes.get(name):
            evidence.append(Evidence(where=f"{where(first)}.notes[{name}]", value=shortened(first.notes[name])))
    if first.stderr_tail.strip() and first.outcome in ("crash", "hang"):
        evidence.append(Evidence(where=f"{where(first)}.stderr_tail", value=shortened(last_lines(first.stderr_tail))))
    unknown = {
        "crash": "The process was ended by a signal or left without an answer; the text is the last thing it said.",
        "hang": "It was ended at its deadline. What it was doing then stands in the text.",
    }.get(first.outcome, "The text is the library's own, and no cause is known for it here.")
    return Finding(
        subject=subject_of(same, ground),
        severity=severity_of_failure(first),
        summary=f"{title(first)} {verb}{place_of(same, ground)}: {ended(shortened(first.reason, 160) or 'no reason was given')}",
        cause=known or unknown,
        evidence=tuple(evidence),
        expected="the test runs to its end and gives numbers",
        remedies=ground.help(cause.check if cause else ""),
        sources=cause.basis.sources if cause else sources_of(first.test, ground),
    )


def severity_of_failure(result: SmokeResult) -> Severity | None:
    """A warning for what this stack does not need, and for a path that merely refuses; else the check's own severity."""
    beside = result.notes.get("generation", "FA3") != "FA3"
    return Severity.WARNING if beside or result.outcome == "refused" else None


def said_by(result: SmokeResult) -> str:
    """All texts in which a cause may be named."""
    notes = [
        text
        for name, text in result.notes.items()
        if name in ("compiler_said", "first_warning", "configured_cache") or text.startswith("missing")
    ]
    return "\n".join([result.reason, *notes, result.stderr_tail])


# --- numbers ----------------------------------------------------------------------------------------------------------


def beyond_limits(results: Iterable[SmokeResult], ground: Ground) -> Iterator[Finding]:
    """Numbers beyond their limits, once for all GPUs and limits of one implementation."""
    alike: dict[tuple[str, str, str, Severity], list[Measured]] = {}
    for result in results:
        for kind, found in by_kind(numbers(result, ground)).items():
            severities = {number: severity_of(number, ground) for number in found}
            beyond = [number for number in found if severities[number] is not None]
            if beyond:
                worst = min((severity for severity in severities.values() if severity is not None), key=lambda severity: severity.rank)
                alike.setdefault((result.test, family(result.path), kind, worst), []).extend(beyond)
    for (_, _, _, severity), found in alike.items():
        yield beyond_limit(found, severity, ground)


def by_kind(found: Iterable[Measured]) -> dict[str, list[Measured]]:
    """Errors and counts apart from each kind of rate."""
    kinds: dict[str, list[Measured]] = {}
    for number in found:
        kinds.setdefault(number.limit.of, []).append(number)
    return kinds


def numbers(result: SmokeResult, ground: Ground) -> Iterator[Measured]:
    """The numbers of a result that have a limit, and the peak where that is known; a rate without a known peak is not judged."""
    if result.outcome != "ran":
        return
    reasons = tuple(part.strip() for part in result.notes.get("clock_event_reasons", "").split(","))
    slowed_by = tuple(reason for reason in reasons if reason in ground.thresholds.slowing_clock_reasons)
    for limit in ground.thresholds.limits_for(result.test, result.path, result.notes):
        amount = result.values.get(limit.value)
        if amount is None and limit.value in result.notes:
            # A number that is none arrives as a text under its name.
            amount = float("inf") if limit.wants_small else 0.0
        if amount is None:
            continue
        peak = peak_of(limit, result, ground) if limit.of else None
        if limit.of and not peak:
            continue
        yield Measured(result, limit, amount, peak, slowed_by if limit.of else ())


def without_peak(results: Iterable[SmokeResult], ground: Ground) -> Iterator[Doubt]:
    """Doubts for rates whose peak is not known; links between GPUs are judged only where they are known to be there."""
    unknown: dict[str, list[SmokeResult]] = {}
    for result in results:
        rows = ground.thresholds.limits_for(result.test, result.path, result.notes) if result.outcome == "ran" else ()
        if any(row.of in OWN_PEAKS and row.value in result.values and not peak_of(row, result, ground) for row in rows):
            gpu = ground.gpu(result.gpu)
            unknown.setdefault(gpu.name if gpu is not None else "", []).append(result)
    for name, same in unknown.items():
        reason = (
            f"the peak rates of {name} are not known to this release" if name else "which GPU this is, and so its peak rates, is not known"
        )
        rates = ", ".join(dict.fromkeys(f"{result.test} {measured_rate(result)}" for result in same[:4]))
        yield Doubt(subject=gpus_of(same, ground), reason=f"{reason} (measured: {rates})", settle="nvidia-smi -L")


def measured_rate(result: SmokeResult) -> str:
    """The rate of a result in its own unit."""
    return next((f"{written(result.values[name])} {unit}" for name, unit in RATES.items() if name in result.values), "no rate")


def peak_of(limit: SmokeLimit, result: SmokeResult, ground: Ground) -> float | None:
    """The peak in the unit of the number; None when it is not known or does not apply."""
    if limit.of == "pcie":
        return link_peak(result, ground)
    if limit.of == "nvlink":
        return pair_peak(result, ground)
    product = ground.product(result.gpu)
    if product is None:
        return None
    if limit.of == "nvlink_gb_per_s" and not joined_by_nvlink(product, ground):
        return None
    peak = getattr(product, limit.of)
    return float(peak) if peak else None


def link_peak(result: SmokeResult, ground: Ground) -> float | None:
    """What the PCIe link carried by its generation and width under load; else what NVML or the product says it can do."""
    product = ground.product(result.gpu)
    generation = result.values.get("pcie_generation") or result.values.get("pcie_max_generation") or (product and product.pcie_generation)
    width = result.values.get("pcie_width") or result.values.get("pcie_max_width") or (product and product.pcie_width)
    return ground.limits.pcie_gb_per_s(int(generation), int(width)) if generation and width else None


def pair_peak(result: SmokeResult, ground: Ground) -> float | None:
    """The NVLinks between the two GPUs of a pair, one direction; None where there are none or nobody knows."""
    one, _, other = result.path.partition(">")
    if not (one.isdecimal() and other.isdecimal()) or result.values.get("peer_access") == 0:
        return None
    source, target = ground.gpu(int(one)), ground.gpu(int(other))
    product = ground.product(int(one))
    if source is None or target is None or product is None or not product.nvlink_gb_per_s:
        return None
    if source.nvlinks is None:
        # Under some hypervisors nobody tells the links; boards whose GPUs are always joined still count.
        return None if product.nvlink_only_with else product.nvlink_gb_per_s
    joining = [link for link in source.nvlinks if link.active and (link.remote in ("", "switch") or link.remote == target.pci_address)]
    return product.nvlink_gb_per_s_per_link * len(joining) if joining and product.nvlink_gb_per_s_per_link else None


def joined_by_nvlink(product: GpuLimit, ground: Ground) -> bool:
    """Whether the GPUs of this node are joined by NVLink: what they say, else what the product always has."""
    links = [gpu.nvlinks for gpu in ground.gpus.value or () if gpu.nvlinks is not None]
    if links:
        return all(any(link.active for link in of_one) for of_one in links)
    return bool(product.nvlink_gb_per_s) and not product.nvlink_only_with


def severity_of(number: Measured, ground: Ground) -> Severity | None:
    """None when all is well. Errors only on firm rows, and for rates only on products that were measured and at free clocks."""
    limit = number.limit
    if limit.is_good(number.share):
        return None
    if not limit.is_bad(number.share):
        product = ground.product(number.result.gpu)
        elsewhere = bool(limit.of) and (product is None or product.id not in limit.measured_on)
        return None if elsewhere else Severity.WARNING
    may = limit.basis.may_carry_error and not number.slowed_by
    if limit.of:
        product = ground.product(number.result.gpu)
        may = may and product is not None and product.id in limit.measured_on
    return Severity.ERROR if may else Severity.WARNING


def beyond_limit(found: Sequence[Measured], severity: Severity, ground: Ground) -> Finding:
    """The finding for one kind of number on one or several GPUs; the worst one speaks."""
    worst = max(found, key=lambda number: number.excess)
    limit, result = worst.limit, worst.result
    slow = f" The clocks were held down meanwhile: {', '.join(worst.slowed_by)}." if worst.slowed_by else ""
    elsewhere = limit.of and not _measured_here(worst, ground) and limit.measured_on
    proposed = (
        " This limit is not measured on this product."
        if elsewhere
        else " This limit is a proposal that is not calibrated yet."
        if limit.basis.at_most == "warning" and limit.basis.confidence.value == "derived"
        else ""
    )
    what = "is slow" if limit.of else "is off" if severity is Severity.WARNING else "is wrong"
    return Finding(
        subject=subject_of([number.result for number in found], ground),
        severity=severity,
        summary=f"{title(result)} {what}{place_of([number.result for number in found], ground)}: {told(worst)}.",
        cause=f"{limit.text}{slow}{proposed}",
        evidence=tuple(
            Evidence(where=f"{where(number.result)}.{number.limit.value}", value=f"{told(number)}{surroundings(number.result)}")
            for number in found[:8]
        ),
        expected=expected(limit, worst.peak),
        remedies=ground.help(limit.see),
        sources=limit.basis.sources,
    )


def _measured_here(number: Measured, ground: Ground) -> bool:
    product = ground.product(number.result.gpu)
    return product is not None and product.id in number.limit.measured_on


def told(number: Measured) -> str:
    """'412 TFLOP/s, 42 % of the dense BF16 peak (989)', 'rel_error 0.12'."""
    limit = number.limit
    if number.peak is None:
        return f"{limit.value} {written(number.amount)}" + (f" {limit.unit}" if limit.unit not in ("relative", "absolute", "") else "")
    return f"{written(number.amount)} {limit.unit}, {number.share:.0%} of {PEAK_TEXTS[limit.of]} ({written(number.peak)})".replace(
        "%", " %"
    )


def expected(limit: SmokeLimit, peak: float | None) -> str:
    """The limit in words."""
    bound = "at most" if limit.wants_small else "at least"
    if peak is None:
        return f"{limit.value} {bound} {written(limit.good)}"
    return f"{bound} {limit.good:.0%} of {PEAK_TEXTS[limit.of]}, {written(limit.good * peak)} {limit.unit}".replace("%", " %")


def surroundings(result: SmokeResult) -> str:
    """Clock, power and reasons of the moment, where they were read."""
    parts = [
        f"{text} {result.values[name]:.0f} {unit}"
        for name, text, unit in (("sm_clock_mhz", "SM clock", "MHz"), ("power_w", "power", "W"))
        if name in result.values
    ]
    reasons = result.notes.get("clock_event_reasons", "")
    if reasons and reasons != "none":
        parts.append(f"clock event reasons {reasons}")
    return f" ({', '.join(parts)})" if parts else ""


# --- what was not tried -----------------------------------------------------------------------------------------------


def untried(results: Sequence[SmokeResult], needed: Sequence[str]) -> Iterator[Doubt | NotApplicable]:
    """Doubts where a needed test gave neither numbers nor a failure; where there is nothing to try, the question does not arise."""
    if not any(result.test in needed for result in results):
        yield NotApplicable(reason=f"not run: {', '.join(needed)} (dsdoctor smoke {' '.join(needed)})")
        return
    skipped: dict[tuple[str, str], list[SmokeResult]] = {}
    for result in results:
        settled = any(
            other.test == result.test and other.gpu == result.gpu and (other.outcome == "ran" or other.outcome in FAILURES)
            for other in results
        )
        if result.outcome == "skipped" and (result.path == STRUCTURAL or (result.test in needed and not settled)):
            skipped.setdefault((result.test, result.reason), []).append(result)
    for (test, reason), same in skipped.items():
        if NOTHING_TO_TRY.search(reason):
            yield NotApplicable(reason=f"{test}: {reason}")
            continue
        numbers_of = [str(result.gpu) for result in same if result.gpu is not None]
        place = f" on GPU{'s' if len(numbers_of) > 1 else ''} {', '.join(dict.fromkeys(numbers_of))}" if numbers_of else ""
        rates = " (rates)" if same[0].path == STRUCTURAL else ""
        yield Doubt(subject=f"{test}{rates}{place}", reason=reason or "not tried", settle=f"dsdoctor smoke {test}")


def refused_everywhere(
    results: Sequence[SmokeResult],
    main: Sequence[str],
    ground: Ground,
    supported: Callable[[Gpu], bool | None],
    *,
    what: str,
    severity: Severity,
) -> Iterator[Said]:
    """Where every implementation refused on a GPU that could do it; on a node whose GPUs cannot, the question does not arise.

    `main` are the tests by whose refusal it is asked; any of the results that ran settles it.
    """
    by_gpu: dict[int | None, list[SmokeResult]] = {}
    for result in results:
        if result.gpu is not None or result.outcome == "refused":
            by_gpu.setdefault(result.gpu, []).append(result)
    cannot: list[str] = []
    could: list[SmokeResult] = []
    for index, here in by_gpu.items():
        refusals = [result for result in here if result.test in main and result.outcome == "refused"]
        if not refusals or any(result.outcome == "ran" or result.outcome in FAILURES for result in here):
            continue
        gpu = ground.gpu(index)
        able = supported(gpu) if gpu is not None else None
        if able is None:
            yield Doubt(
                subject=f"GPU {index}", reason=f"{what} was refused, and whether this GPU can do it is not known: {refusals[0].reason}"
            )
        elif able:
            could += refusals
        else:
            cannot.append(named(gpu) if gpu is not None else f"GPU {index}")
    if cannot and len(cannot) == len(by_gpu):
        yield NotApplicable(reason=f"{', '.join(cannot)}: {what} is not for this GPU")
    if could:
        yield Finding(
            subject=subject_of(could, ground),
            severity=severity,
            summary=f"No implementation here does {what}, though {gpus_of(could, ground)} can: {ended(shortened(could[0].reason, 160))}",
            cause="Each implementation refused in its own words: a release that is too old, or one built for another CUDA.",
            evidence=tuple(
                Evidence(where=f"{where(result)}.reason", value=shortened(result.reason) or result.outcome) for result in could[:6]
            ),
            expected=f"at least one implementation of {what}",
            remedies=ground.help(),
            sources=sources_of(could[0].test, ground),
        )


# --- words ------------------------------------------------------------------------------------------------------------


def title(result: SmokeResult) -> str:
    """'fp8-gemm through torch._scaled_mm', 'p2p from GPU 0 to GPU 1'."""
    one, arrow, other = result.path.partition(">")
    if arrow:
        return f"{result.test} from GPU {one} to GPU {other}"
    return f"{result.test} through {result.path}" if result.path else result.test


def place_of(results: Sequence[SmokeResult], ground: Ground) -> str:
    """' on GPU 0 (NVIDIA H200, 0000:9c:00.0)'; nothing for a pair, whose title says it."""
    return "" if ">" in results[0].path else f" on {gpus_of(results, ground)}"


def family(path: str) -> str:
    """One name for all pairs of GPUs, so that they make one finding."""
    return "pair" if ">" in path else path


def where(result: SmokeResult) -> str:
    """Where a result stands in the snapshot."""
    parts = [result.test, *([result.path] if result.path else []), *([f"GPU {result.gpu}"] if result.gpu is not None else [])]
    return f"smoke[{', '.join(parts)}]"


def gpus_of(results: Iterable[SmokeResult], ground: Ground) -> str:
    """'GPU 0 (NVIDIA H200, 0000:9c:00.0)', 'GPUs 0, 1', 'this node'."""
    indices = list(dict.fromkeys(result.gpu for result in results if result.gpu is not None))
    if not indices:
        return "this node"
    gpu = ground.gpu(indices[0])
    if len(indices) == 1:
        return named(gpu) if gpu is not None else f"GPU {indices[0]}"
    return f"GPUs {', '.join(str(index) for index in indices)}"


def subject_of(results: Sequence[SmokeResult], ground: Ground) -> str:
    """The GPUs, or the pair, or the test where it is about the whole node."""
    pairs = list(dict.fromkeys(result.path for result in results if ">" in result.path))
    if pairs:
        return f"GPU pair{'s' if len(pairs) > 1 else ''} {', '.join(pairs[:4])}{' …' if len(pairs) > 4 else ''}"
    place = gpus_of(results, ground)
    return title(results[0]) if place == "this node" else place


def written(amount: float) -> str:
    """A number as a person writes it."""
    if not math.isfinite(amount):
        return "not a number"
    if amount == int(amount) and abs(amount) < 1e6:
        return str(int(amount))
    return f"{amount:.0f}" if abs(amount) >= 100 else f"{amount:.4g}"


def shortened(text: str, most: int = TEXT_SHOWN) -> str:
    """One line of a text, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def ended(text: str) -> str:
    """A text that ends as a sentence does."""
    return text if text.endswith((".", "…", ")", "!")) else f"{text}."


def last_lines(text: str, count: int = 12) -> str:
    """The end of what a process wrote."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:] if line.strip())


def sources_of(test: str, ground: Ground) -> tuple[str, ...]:
    """What the limits of a test rest on."""
    return next((row.basis.sources for row in ground.thresholds.limits if row.test == test), ("this project's own measurements",))


def fp8_able(gpu: Gpu, gpus_matrix: Gpus) -> bool | None:
    """Whether a GPU computes in FP8; None when it is not known which GPU it is."""
    product = gpus_matrix.product(gpu.name)
    capability = ComputeCapability.parse(gpu.compute_capability) or (product.capability if product else None)
    return gpus_matrix.has("fp8-mma", capability) if capability else None
