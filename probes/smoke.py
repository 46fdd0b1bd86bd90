"""Smoke tests: small kernels on the GPUs, run by the patient's interpreter in children that may crash or hang.

The tests are the table in `smoke_tests`; their scripts stand in `in_target`. Every child starts at once; locks among them keep rates
apart. What a child said before it died counts, and the test that was running then is named.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from dsdoctor.facts import Section, SmokeResult, absent, known, not_asked, unreadable
from dsdoctor.plain import PlainError, from_plain
from dsdoctor.sources.child import Ended, signal_name
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Meeting, Scope, Target
from dsdoctor.sources.target import run_script

from .smoke_meter import Device, Reading, find_devices, measuring, values_at
from .smoke_tests import NAMES, ONE_PER_GPU, SCRIPTS, SmokeTest, chosen
from .torch import may_have_torch

OWN_LIMIT_S = 300.0
"""As the timeout of this probe."""
SHARE_OF_DEADLINE = 0.92
"""The rest is left for the answer: what the children said must arrive."""
TELLING_S = 1.5
"""For a child to end its ranks and tell, before it is ended itself."""
START_S = 110.0
"""For an interpreter, an import of torch and the start of CUDA from cold disks."""
RESTARTS = 2
"""New children after a crash, for the tests behind it."""
STDERR_CHARACTERS = 4000
FOUND_VIA = "children of the target interpreter"
LINK_TESTS = ("pcie",)
ABSENT_KINDS = ("no_torch", "no_cuda_build", "no_gpu")
WORDS = {
    "import_error": "torch does not import",
    "cuda_error": "CUDA does not start",
    "no_gpu": "CUDA shows torch none of this node's GPUs",
}
GPU_SIGNS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process: a script, its tests and its GPUs (none named: all that CUDA shows)."""

    script: str
    tests: tuple[SmokeTest, ...]
    gpus: tuple[Device, ...] = ()
    device: str = "cuda"
    level: str = "default"
    meeting: Meeting | None = None
    until: float = 0.0
    """With a meeting: when the test must be over, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A result with the span of the monotonic clock in which its numbers were measured, where it has one."""

    result: SmokeResult
    began: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Heard:
    """What a child said, read in order."""

    results: list[Timed] = field(default_factory=list)
    ended: set[tuple[str, int | None]] = field(default_factory=set)
    running: tuple[str, int | None] | None = None
    stage: str = ""
    done: bool = False
    unavailable: tuple[str, str] | None = None
    poisoned: str = ""
    times: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Told:
    """What one child (and those started after its crash) has to tell."""

    results: list[Timed] = field(default_factory=list)
    unavailable: tuple[str, str] | None = None
    times: dict[str, float] = field(default_factory=dict)


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """The section smoke."""
    return {"smoke": smoke(host, scope)}


def smoke(host: Host, scope: Scope) -> Section[Any]:
    """All chosen tests on all chosen GPUs."""
    started = time.monotonic()
    if scope.target is None:
        return not_asked("no target interpreter")
    if host.root != "/":
        return not_asked("a recorded tree has no GPU to test")
    if not may_have_torch(host, scope.target):
        return absent("torch is not installed for this interpreter")
    nvml, devices, why = find_devices(host)
    no_gpu = not devices and (nvml is not None or not any(host.exists(path) for path in GPU_SIGNS))
    if scope.meeting is not None:
        return across_nodes(host, scope.target, scope, devices, "cpu" if no_gpu else "cuda", started)
    if no_gpu:
        return absent("this node has no NVIDIA GPU that NVML shows" if nvml is not None else f"no NVIDIA GPU ({why})")
    tests = chosen(scope.smoke_tests, scope.smoke_level)
    selected = tuple(device for device in devices if scope.gpu_indices is None or device.index in scope.gpu_indices)
    left_out = [*unknown_gpus(devices, scope.gpu_indices, tests), *unmet(host, scope.target, tests, len(selected) or None)]
    runnable = tuple(test for test in tests if test.name not in {result.test for result in left_out if result.gpu is None})
    if devices and not selected:
        return known(tuple(left_out), FOUND_VIA)
    children = plan(runnable, selected, scope.smoke_level)
    deadline = started + SHARE_OF_DEADLINE * min(OWN_LIMIT_S, scope.deadline_s)
    with measuring(nvml, selected) as readings:
        told = run_children(host, scope.target, children, deadline, scope.scratch)
    section = section_of(told, left_out, readings, selected)
    return replace(section, elapsed_s=round(time.monotonic() - started, 3))


def across_nodes(
    host: Host, target: Target, scope: Scope, devices: Sequence[Device], device: str, started: float
) -> Section[tuple[SmokeResult, ...]]:
    """The collectives of this node's GPUs with those of other nodes, within the doctor's time; over the CPU where there is no GPU."""
    limit_s = SHARE_OF_DEADLINE * min(OWN_LIMIT_S, scope.deadline_s)
    deadline = started + limit_s
    selected = tuple(one for one in devices if scope.gpu_indices is None or one.index in scope.gpu_indices)
    tests = tuple(replace(test, deadline_s=limit_s) for test in chosen(("collectives",), "default"))
    until = deadline - TELLING_S
    children = [replace(child, device=device, meeting=scope.meeting, until=until) for child in plan(tests, selected, "default")]
    section = section_of(run_children(host, target, children, deadline, scope.scratch), [], [], selected)
    return replace(section, elapsed_s=round(time.monotonic() - started, 3))


# --- what to run ------------------------------------------------------------------------------------------------------


def unknown_gpus(devices: Sequence[Device], wanted: Sequence[int] | None, tests: Iterable[SmokeTest]) -> list[SmokeResult]:
    """Results for GPU indices that this node does not have."""
    there = [device.index for device in devices]
    missing = [index for index in wanted or () if devices and index not in there]
    why = f"this node has the GPUs {', '.join(map(str, there))}"
    return [SmokeResult(test=test.name, gpu=index, outcome="skipped", reason=why) for index in missing for test in tests]


def unmet(host: Host, target: Target, tests: Iterable[SmokeTest], gpus: int | None) -> list[SmokeResult]:
    """Results for tests that need a package or more GPUs than there are; unknown numbers hinder nothing."""
    results = []
    for test in tests:
        why = ""
        if gpus is not None and gpus < test.minimum_gpus:
            why = f"needs {test.minimum_gpus} GPUs, {gpus} chosen"
        elif test.modules and target.site_packages and not has_module(host, target, test.modules):
            why = f"{' or '.join(test.modules)} is not installed"
        if why:
            results.append(SmokeResult(test=test.name, outcome="skipped", reason=why))
    return results


def has_module(host: Host, target: Target, modules: Iterable[str]) -> bool:
    """Whether site-packages has one of these top-level modules, or an editable install of anything by that name."""
    patterns = [pattern for name in modules for pattern in (name, f"{name}.*", f"__editable__*{name}*")]
    return any(host.glob(f"{site}/{pattern}") for site in target.site_packages for pattern in patterns)


def plan(tests: Sequence[SmokeTest], gpus: tuple[Device, ...], level: str) -> list[Child]:
    """The children: the tests of one script share one, or one for each GPU."""
    children = []
    for script in SCRIPTS:
        mine = tuple(test for test in tests if test.script == script.name)
        shares = [(gpu,) for gpu in gpus] if script.children == ONE_PER_GPU and gpus else [gpus]
        if mine:
            children += [Child(script=script.name, tests=mine, gpus=share, level=level) for share in shares]
    return children


def arguments_of(child: Child, tests: Sequence[SmokeTest], scratch: str) -> tuple[str, ...]:
    """The command line of a child."""
    gpus = ",".join(f"{gpu.index}@{gpu.address}" for gpu in child.gpus)
    no_rates = {str(gpu.index): gpu.no_rates for gpu in child.gpus if gpu.no_rates}
    return (
        *("--tests", ",".join(test.name for test in tests)),
        *("--level", child.level),
        *("--device", child.device),
        *("--gpus", gpus),
        *("--no-rates", json.dumps(no_rates)),
        *("--deadlines", json.dumps({test.name: test.deadline_s for test in tests})),
        *("--scratch", scratch),
        *(("--places", "1") if any(gpu.exclusive for gpu in child.gpus) else ()),
        *meeting_arguments(child),
    )


def meeting_arguments(child: Child) -> tuple[str, ...]:
    """Where a child meets those of other nodes."""
    meeting = child.meeting
    if meeting is None:
        return ()
    return "--meet", meeting.address, "--node", f"{meeting.node}/{meeting.nodes}", "--until", str(child.until)


# --- running ----------------------------------------------------------------------------------------------------------

Run = Callable[[Child, Sequence[SmokeTest], float], Ended]
"""Runs some tests of a child within seconds."""


def run_children(host: Host, target: Target, children: Sequence[Child], deadline: float, folder: str = "") -> list[Told]:
    """All children at once, each until its own deadline or the doctor's; without a folder they get one that goes when they are gone."""
    if not children:
        return []
    with (
        contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="dsdoctor-", ignore_cleanup_errors=True) as scratch
    ):

        def run(child: Child, tests: Sequence[SmokeTest], timeout_s: float) -> Ended:
            return run_script(host, target, child.script, timeout_s=timeout_s, arguments=arguments_of(child, tests, scratch))

        # In exclusive compute mode a GPU takes one process at a time.
        exclusive = any(gpu.exclusive for child in children for gpu in child.gpus)
        with ThreadPoolExecutor(max_workers=1 if exclusive else len(children)) as pool:
            return list(pool.map(lambda child: run_child(child, run, deadline), children))


def run_child(child: Child, run: Run, deadline: float) -> Told:
    """One child; after a crash new ones go on with the tests behind it, after a hang nothing does."""
    told = Told()
    pending = list(child.tests)
    why_not = ""
    for _ in range(1 + RESTARTS):
        left_s = deadline - time.monotonic()
        own_s = START_S + sum(test.deadline_s * max(1, len(child.gpus)) for test in pending)
        if left_s <= 0:
            why_not = "the doctor's time was up"
            break
        ended = run(child, pending, min(own_s, left_s))
        heard = hear(ended.result)
        told.results += heard.results
        told.times = told.times or heard.times
        if heard.unavailable is not None:
            told.unavailable = told.unavailable or heard.unavailable
            kind, why_not = heard.unavailable
            if kind not in ABSENT_KINDS:
                failed = SmokeResult(
                    test=pending.pop(0).name, gpu=only(child), outcome="error", reason=f"{WORDS.get(kind, kind)}: {why_not}"
                )
                told.results.append(Timed(result=failed))
            break
        if heard.done:
            return told
        last = end_of(heard, ended, (pending[0].name, only(child)), time_was_up=ended.outcome == "timed_out" and left_s <= own_s)
        told.results += [Timed(result=last)] if last is not None else []
        tried = heard.ended | ({(last.test, last.gpu)} if last is not None else set())
        begun = {name for name, _ in tried}
        why_not = f"not tried: {last.test if last is not None else 'a test before it'} {_ending(last, heard)}"
        told.results += unfinished(child, tried, why_not)
        pending = [test for test in pending if test.name not in begun]
        if not pending:
            return told
        if last is not None and last.outcome != "crash":
            break
    told.results += [Timed(result=SmokeResult(test=test.name, gpu=only(child), outcome="skipped", reason=why_not)) for test in pending]
    return told


def _ending(last: SmokeResult | None, heard: Heard) -> str:
    if last is None:
        return f"left the GPU unusable ({heard.poisoned})"
    return {"crash": "crashed", "hang": "hung"}.get(last.outcome, "did not finish")


def only(child: Child) -> int | None:
    """The GPU of a child that has one."""
    return child.gpus[0].index if len(child.gpus) == 1 else None


def unfinished(child: Child, tried: Iterable[tuple[str, int | None]], why: str) -> list[Timed]:
    """Skips for the GPUs that a begun test had not come to yet."""
    gpus_of: dict[str, set[int | None]] = {}
    for name, gpu in tried:
        gpus_of.setdefault(name, set()).add(gpu)
    return [
        Timed(result=SmokeResult(test=name, gpu=gpu.index, outcome="skipped", reason=why))
        for name, done_on in sorted(gpus_of.items())
        for gpu in child.gpus
        if None not in done_on and gpu.index not in done_on
    ]


def end_of(heard: Heard, ended: Ended, first: tuple[str, int | None], *, time_was_up: bool) -> SmokeResult | None:
    """The result for the test that was running when the child ended; None when it ended between tests on its own account."""
    if heard.poisoned and heard.running is None:
        return None
    test, gpu = heard.running or first
    where = "" if heard.running else f" while {heard.stage or 'starting the interpreter'}"
    if time_was_up:
        outcome, reason = "skipped", f"not finished when the doctor's time was up{where}"
    elif ended.outcome == "timed_out" or (ended.outcome == "exited" and "Timeout (" in ended.stderr):
        outcome, reason = "hang", f"no answer within its deadline{where}"
    elif ended.outcome == "signal":
        outcome, reason = "crash", f"{signal_name(ended.code)}{where}"
    elif ended.outcome == "not_found":
        outcome, reason = "error", ended.said()
    else:
        outcome, reason = "crash", f"{ended.said()}{where}"
    return SmokeResult(
        test=test, gpu=gpu, outcome=outcome, reason=reason, stderr_tail=ended.stderr[-STDERR_CHARACTERS:], elapsed_s=ended.elapsed_s
    )


# --- what the children said -------------------------------------------------------------------------------------------


def hear(text: str) -> Heard:
    """Read the events of a child; lines that are not of the protocol are passed over."""
    heard = Heard()
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            _take(heard, event)
    return heard


def _take(heard: Heard, event: Mapping[str, Any]) -> None:
    kind = event.get("event")
    if kind == "stage":
        heard.stage = str(event.get("name", ""))
    elif kind == "ready":
        heard.stage = "between tests"
        heard.times = {name: float(event[name]) for name in ("import_s", "init_s") if _is_number(event.get(name))}
    elif kind == "unavailable":
        heard.unavailable = str(event.get("kind", "")), str(event.get("reason", ""))
    elif kind == "done":
        heard.done = True
    elif kind == "poisoned":
        heard.poisoned = str(event.get("reason", "")) or "unknown"
    elif kind in ("start", "end") and isinstance(event.get("test"), str):
        gpu = event.get("gpu")
        who = event["test"], gpu if isinstance(gpu, int) else None
        heard.running = who if kind == "start" else None
        heard.ended |= set() if kind == "start" else {who}
    elif kind == "result":
        timed = _timed(event)
        heard.results += [timed] if timed is not None else []


def _timed(event: Mapping[str, Any]) -> Timed | None:
    fields = {name: item for name, item in event.items() if name not in ("event", "at", "began", "ended")}
    try:
        result: SmokeResult = from_plain(SmokeResult, fields)
    except PlainError:
        return None
    if result.test not in NAMES:
        return None
    began, ended = event.get("began"), event.get("ended")
    if _is_number(began) and _is_number(ended):
        return Timed(result=result, began=began, ended=ended)
    return Timed(result=result)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def section_of(
    told: Sequence[Told], left_out: Sequence[SmokeResult], readings: Sequence[Reading], devices: Sequence[Device]
) -> Section[tuple[SmokeResult, ...]]:
    """The section: absent or unreadable when no child could start a test, else every result in the order of the table."""
    reasons = [one.unavailable for one in told if one.unavailable is not None]
    if told and len(reasons) == len(told):
        kind, why = reasons[0]
        if kind in ABSENT_KINDS and not (kind == "no_gpu" and devices):
            return absent(why, FOUND_VIA)
        return unreadable(f"{WORDS.get(kind, kind)}: {why}", FOUND_VIA)
    by_index = {device.index: device for device in devices}
    results = [*left_out, *(measured(timed, readings, by_index) for one in told for timed in one.results)]
    order = {name: number for number, name in enumerate(NAMES)}
    results.sort(key=lambda result: (order[result.test], -1 if result.gpu is None else result.gpu))
    times = next((one.times for one in told if one.times), {})
    spoken = "".join(f", {name.removesuffix('_s')} {seconds:.1f} s" for name, seconds in times.items())
    return known(tuple(results), f"{FOUND_VIA}{spoken}")


def measured(timed: Timed, readings: Sequence[Reading], devices: Mapping[int, Device]) -> SmokeResult:
    """The result with the clocks, power and reasons of its moment; link tests keep the link, the others do not have it in their numbers."""
    result = timed.result
    if result.gpu is None or timed.began is None or timed.ended is None:
        return result
    values, notes = values_at(readings, result.gpu, timed.began, timed.ended)
    device = devices.get(result.gpu)
    if result.test in LINK_TESTS:
        values |= dict(device.link_limits or {}) if device is not None else {}
    else:
        values = {name: value for name, value in values.items() if not name.startswith("pcie_")}
    return replace(result, values={**result.values, **values}, notes={**result.notes, **notes})
