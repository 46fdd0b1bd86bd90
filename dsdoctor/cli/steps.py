"""The steps of a command: what is in force, examine, judge, print, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from dsdoctor.cli.options import ExitStyle, FailOn, ReportFormat

if TYPE_CHECKING:
    from dsdoctor.advise.node import Node
    from dsdoctor.checks._check import Check
    from dsdoctor.facts import Gpu, Snapshot
    from dsdoctor.findings import Report, Severity
    from dsdoctor.matrix import Knowledge
    from dsdoctor.plugins import Parts
    from dsdoctor.rows import Gpus
    from dsdoctor.sources.probe import Meeting, Probe
    from dsdoctor.topology.graph import Topology

THIS_MACHINE = "this machine"
"""The label of a live node that nobody named."""


def with_matrices(parts: Parts, directories: Sequence[str]) -> Parts:
    """The parts with a user's own matrices before all others; an error when one of them cannot be used."""
    if not directories:
        return parts
    from dsdoctor.matrix_commands import overlays

    return dataclasses.replace(parts, matrices=(*map(str, overlays(directories)), *parts.matrices))


def with_expectations(parts: Parts, path: str) -> Parts:
    """The parts with a check for each expectation in a site's file."""
    if not path:
        return parts
    from dsdoctor.expect import checks
    from dsdoctor.expect.read import load

    return dataclasses.replace(parts, checks=(*parts.checks, *checks(load(path))))


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the user wants the node for, as the options say it."""

    profiles: Sequence[str] = ()
    models: Sequence[str] = ()
    nodes: int = 1
    disk_gb_per_s: float = 0.0

    @property
    def any(self) -> bool:
        """Whether anything was said that could be wrong."""
        return bool(self.profiles or self.models)


def prepare(
    only: list[str], ignore: list[str], waivers: str, matrices: Sequence[str] = (), expect: str = "", wishes: Wishes = Wishes()
) -> tuple[Parts, tuple[Check, ...], tuple[Any, ...]]:
    from dsdoctor import plugins, purpose
    from dsdoctor import waivers as waiver_files
    from dsdoctor.checks import select

    parts = with_expectations(with_matrices(plugins.load(), matrices), expect)
    asked = purpose.ask(
        in_force(parts.matrices), names_in(wishes.profiles), wishes.models, nodes=wishes.nodes, disk_gb_per_s=wishes.disk_gb_per_s
    )
    parts = dataclasses.replace(parts, purpose=asked)
    checks = select(parts.checks, only=names_in(only), ignore=names_in(ignore))
    accepted = waiver_files.load(waivers, known=[item.id for item in parts.checks]) if waivers else ()
    return parts, checks, accepted


@contextlib.contextmanager
def examining(
    python: str = "",
    gpu: str = "",
    timeout_s: float = 60.0,
    leave_out: Callable[[Probe], str] = lambda probe: "",
    smoke_tests: tuple[str, ...] = (),
    smoke_level: str = "default",
    settle_s: float = 0.0,
    watch_s: float = 0.0,
    pid: int = 0,
    service: str = "",
    model_directory: str = "",
    meeting: Meeting | None = None,
) -> Iterator[Callable[[str], Snapshot]]:
    """Start the probes of this machine; the block loads what judges them meanwhile, then calls for the snapshot with a label.

    `leave_out` says why a probe is not to run, or nothing. What settles by itself is waited for up to `settle_s`; counters are read again
    `watch_s` after the first time, or after the GPU tests. With `pid` the node is seen as that process sees it; `service` is an address
    to ask, `model_directory` one to read from for a few seconds.
    """
    import time

    from dsdoctor import plugins
    from dsdoctor.errors import UsageError
    from dsdoctor.facts import not_asked
    from dsdoctor.render import progress
    from dsdoctor.sources import live, target
    from dsdoctor.sources.host import Host
    from dsdoctor.sources.probe import Scope

    node = host = Host()
    all_probes = probes = plugins.load_probes()
    if pid:
        from dsdoctor.sources import attached

        process = attached.attach(node, pid)
        host, patient, probes = process.host, process.target, plugins.process_probes(probes)
    else:
        patient = target.locate(host, python or None)
    if service:
        from dsdoctor.sources.address import service_address

        service, probes = service_address(service), (*probes, plugins.endpoint_probe())
    if model_directory:
        probes = (*probes, plugins.disk_probe())
    scope = Scope(
        target=patient, gpu_indices=gpu_indices_in(gpu), deadline_s=timeout_s,
        smoke_tests=smoke_tests, smoke_level=smoke_level, service=service, model_directory=model_directory, meeting=meeting,
    )  # fmt: skip
    left_out = {name: not_asked(why) for probe in probes if (why := leave_out(probe)) for name in probe.provides}
    if pid:
        provided = {name for probe in probes for name in probe.provides}
        only_looked_at = not_asked("a running process is only looked at: nothing is imported or run in its name")
        left_out |= {name: only_looked_at for probe in all_probes for name in probe.provides if name not in provided}
    began = time.monotonic()

    def ask_again(sections: Sequence[str], snapshot: Snapshot) -> Snapshot:
        wanted = [probe for probe in probes if set(sections) & set(probe.provides) and not leave_out(probe)]
        with live.started(host, scope, wanted, node=node) as asked:
            again = asked.snapshot("asked again", lambda *_: None)
        fresh = {name: getattr(again.sections, name) for probe in wanted for name in probe.provides}
        runs = {run.probe: run for run in again.probe_runs}
        return dataclasses.replace(
            snapshot,
            sections=dataclasses.replace(snapshot.sections, **fresh),
            probe_runs=tuple(runs.get(run.probe, run) for run in snapshot.probe_runs),
        )

    def tell(text: str) -> None:
        print(f"dsdoctor: {text}", file=sys.stderr, flush=True)

    def look_again(snapshot: Snapshot) -> Snapshot:
        from dsdoctor.sources import again

        read_at = began + next((run.elapsed_s for run in snapshot.probe_runs if run.probe == "nvml"), 0.0)
        if settle_s:
            snapshot = again.settled(snapshot, ask_again, settle_s, tell=tell)
            if snapshot.sections.settling.value and snapshot.sections.settling.value.waited_s:
                read_at = time.monotonic()
        under_load = any(result.outcome == "ran" and result.gpu is not None for result in snapshot.sections.smoke.value or ())
        if watch_s or under_load:
            snapshot = again.watched(snapshot, ask_again, read_at, watch_s, under_load=under_load, tell=tell)
        return snapshot

    def take_snapshot(label: str) -> Snapshot:
        with progress.checklist(sys.stderr) as listener:
            snapshot = examination.snapshot(label, listener)
        snapshot = look_again(snapshot)
        versions = snapshot.sections.nvml_versions.value
        count = versions.gpu_count if versions else None
        wrong = [index for index in scope.gpu_indices or () if count is not None and not 0 <= index < count]
        if wrong:
            raise UsageError(f"there is no GPU {wrong[0]} here; the GPUs are {', '.join(map(str, range(count or 0))) or 'none'}")
        return dataclasses.replace(snapshot, sections=dataclasses.replace(snapshot.sections, **left_out))

    with live.started(host, scope, [probe for probe in probes if not leave_out(probe)], node=node) as examination:
        yield take_snapshot


def not_quick(probe: Probe) -> str:
    return "" if probe.quick else "not looked at with --quick"


def not_needed(checks: Sequence[Check]) -> Callable[[Probe], str]:
    """Leave out probes whose facts none of the checks reads; host and interpreter stay, remedies are chosen by them."""
    needed = {name for item in checks for name in (*item.sections, *item.optional_sections)} | {"platform", "interpreter"}
    needed |= {"gpus"} if any("plans" in item.extras for item in checks) else set()
    return lambda probe: "" if needed & set(probe.provides) else "none of the chosen checks needs it"


def knowledge_of(matrices: Sequence[str]) -> Knowledge:
    """The matrices in force, without loading a check: a user's own, those of plugins, the built-in ones."""
    from pathlib import Path

    from dsdoctor import plugins
    from dsdoctor.matrix import Knowledge

    plugged = plugins.load().matrices if plugins.installed(sys.path) else ()
    own: Sequence[Path] = ()
    if matrices:
        from dsdoctor.matrix_commands import overlays

        own = overlays(matrices)
    return Knowledge(overlays=(*own, *(Path(folder) for folder in plugged)))


def this_node(gpus: Gpus) -> Node:
    """This machine as far as it matters for a stack, by the probes that only read files and NVML."""
    from dsdoctor.advise.node import node_from_facts

    needed = ("host", "driver", "nvml")
    with examining(leave_out=lambda probe: "" if probe.name in needed else "not needed for advice") as take_snapshot:
        return node_from_facts(take_snapshot(THIS_MACHINE).sections, gpus)


def this_topology() -> Topology:
    """How this machine is wired, by the probes that only read sysfs and NVML."""
    from dsdoctor.topology import from_facts

    needed = ("host", "pcie", "nvml")
    with examining(leave_out=lambda probe: "" if probe.name in needed else "not needed for the topology") as take_snapshot:
        return from_facts.topology(take_snapshot(THIS_MACHINE).sections, THIS_MACHINE)


def these_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, by NVML alone."""
    with examining(leave_out=lambda probe: "" if probe.name in ("host", "nvml") else "not needed for a plan") as take_snapshot:
        return take_snapshot(THIS_MACHINE).sections.gpus.value or ()


def measured_rate(directory: str) -> tuple[float, str]:
    """The rate in GB/s at which a model directory can be read, and how that is known; 0 where it could not be measured."""
    from dsdoctor import plugins
    from dsdoctor.sources.host import Host
    from dsdoctor.sources.live import examine
    from dsdoctor.sources.probe import Scope

    print(f"reading from {directory} for a few seconds", file=sys.stderr)
    rates = examine(Host(), Scope(target=None, model_directory=os.path.abspath(directory)), (plugins.disk_probe(),)).sections.disk.value
    if rates is None:
        return 0.0, ""
    through_cache = not rates.direct and (rates.cached_share is None or rates.cached_share > 0)
    told = f"measured: {rates.sequential_bytes_per_s / 1e9:.2g} GB/s in large blocks"
    if through_cache:
        told += " through the page cache, which may be faster than the disk"
    told += f", {rates.mapped_bytes_per_s / 1e9:.2g} GB/s mapped, {rates.random_read_s * 1e6:,.0f} µs for 4 KiB"
    if rates.cached_share:
        told += f", {rates.cached_share:.0%} of it in the page cache now"
    return rates.sequential_bytes_per_s / 1e9, told


def python_version_of(path: str) -> str:
    """The version of an interpreter by its files; empty path: the active one."""
    from dsdoctor.sources import target
    from dsdoctor.sources.host import Host

    return target.locate(Host(), path or None).python_version


def redacted_copy(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it may leave this machine; of a live one the names of machine and user are known for certain.

    The label of a live one stays as it is: whoever examines a node and names it wants it to be found by that name.
    """
    from dsdoctor import redact

    if snapshot.origin.kind != "live":
        return redact.redact(snapshot)
    import pwd

    users: list[str] = []
    with contextlib.suppress(KeyError):
        users.append(pwd.getpwuid(os.getuid()).pw_name)
    return dataclasses.replace(redact.redact(snapshot, hosts=(os.uname().nodename,), users=users), origin=snapshot.origin)


def load_what_judges(parts: Parts, checks: Sequence[Check]) -> None:
    """Load what the checks will want while the probes still run."""
    import packaging.requirements  # noqa: F401

    in_force(parts.matrices).load({name for item in checks for name in item.matrices})


@functools.lru_cache(maxsize=1)
def in_force(folders: tuple[str, ...]) -> Knowledge:
    """The built-in matrices under those of these folders; one value a run, so that what was loaded while the probes ran is there later."""
    from pathlib import Path

    from dsdoctor.matrix import Knowledge

    return Knowledge(overlays=tuple(Path(folder) for folder in folders))


def judge(snapshot: Snapshot, parts: Parts, checks: Sequence[Check], accepted: Sequence[Any]) -> Report:
    import datetime

    from dsdoctor import diagnose

    return diagnose.diagnose(
        dataclasses.replace(snapshot, sections=parts.purpose.beside(snapshot.sections)), in_force(parts.matrices), checks,
        today=datetime.date.today(), waivers=accepted, notices=parts.notices, purpose=parts.purpose,
    )  # fmt: skip


def refuse_unknown_suffix(outputs: Sequence[str]) -> None:
    """Refuse a file whose suffix names no format, before minutes go into a report that could not be written."""
    if not outputs:
        return
    from dsdoctor.errors import UsageError
    from dsdoctor.render import formats

    for path in outputs:
        if formats.of_file(path) is None:
            raise UsageError(f"--output {path}: the format follows from the suffix, which is one of {' '.join(sorted(formats.SUFFIXES))}")


def report_on(
    snapshot: Snapshot,
    parts: Parts,
    checks: Sequence[Check],
    accepted: Sequence[Any],
    format: ReportFormat,
    outputs: Sequence[str],
    fail_on: FailOn,
    strict: bool,
    verbose: bool,
    with_table: bool = False,
    style: ExitStyle = ExitStyle.DEFAULT,
) -> int:
    """Print the report and write its other forms. Only the screen shows real names: what machines read, and every file, is redacted."""
    from dsdoctor import exit_styles

    threshold = threshold_of(fail_on)
    if outputs or format is not ReportFormat.TERMINAL:
        from dsdoctor.render import formats

        report = judge(redacted_copy(snapshot), parts, checks, accepted)
        for path in outputs:
            write_file(path, with_newline(formats.render(report, formats.of_file(path) or format.value, threshold)))
        if format is not ReportFormat.TERMINAL:
            code = exit_styles.code(style.value, report, threshold, strict)
            state = exit_styles.NAGIOS_WORDS[code] if style is ExitStyle.NAGIOS else ""
            text = formats.render(report, format.value, threshold, strict=strict, state=state)
            print_text(text) if text else None
    if format is ReportFormat.TERMINAL:
        from dsdoctor.render import terminal

        report = judge(snapshot, parts, checks, accepted)
        if with_table:
            print_text(f"{smoke_table(snapshot, in_force(parts.matrices))}\n")
        print_text(terminal.render(report, width=screen_width(), colour=wants_colour(), verbose=verbose, unicode=speaks_unicode()))
    return exit_styles.code(style.value, report, threshold, strict)


def smoke_table(snapshot: Snapshot, knowledge: Knowledge) -> str:
    from dsdoctor import smoke_table
    from dsdoctor.render import smoke as smoke_render

    rows = smoke_table.table(snapshot.sections, knowledge.matrix("gpu-limits"))
    return smoke_render.render(rows, width=screen_width(), colour=wants_colour(), unicode=speaks_unicode())


def format_of(format: ReportFormat | None, style: ExitStyle) -> ReportFormat:
    """The format that was asked for, else the line of the exit style, else the screen."""
    return format or (ReportFormat.TERMINAL if style is ExitStyle.DEFAULT else ReportFormat(style.value))


def finish(run: Callable[[], int], format: enum.Enum, style: ExitStyle = ExitStyle.DEFAULT) -> NoReturn:
    """Run a command and exit with its code; an error is one sentence, a fault of ours says so, and JSON stays JSON."""
    from dsdoctor.errors import DsdoctorError

    try:
        with _ended_in_order():
            code = run()
            sys.stdout.flush()
    except DsdoctorError as error:
        fail(f"dsdoctor: {error}", 2, format, style)
    except BrokenPipeError:
        leave_broken_pipe(0)
    except _Ended as ended:
        fail(f"dsdoctor: ended by {ended.signal.name}", 128 + ended.signal, format, style)
    except KeyboardInterrupt:
        fail("dsdoctor: interrupted", 130, format, style)
    except Exception as error:
        import traceback

        traceback.print_exc()
        fail(f"dsdoctor: a fault of dsdoctor itself, not of this node: {type(error).__name__}: {error}", 3, format, style)
    raise typer.Exit(code)


class _Ended(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """A scheduler or CI job that ends the doctor ends all that it started: no GPU test goes on alone. What is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> NoReturn:
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


def fail(message: str, code: int, format: enum.Enum, style: ExitStyle = ExitStyle.DEFAULT) -> NoReturn:
    print(message, file=sys.stderr)
    if style is not ExitStyle.DEFAULT:
        from dsdoctor import exit_styles

        code = exit_styles.of_failure(style.value, code)
    if format.value != "terminal":
        from dsdoctor.render import formats

        text = formats.failure(format.value, message.removeprefix("dsdoctor: "), code)
        with contextlib.suppress(OSError):
            if text:
                print_text(text)
            sys.stdout.flush()
    raise typer.Exit(code)


def leave_broken_pipe(code: int) -> NoReturn:
    """The reader went away (`| head`): say nothing more, not even at interpreter exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def write_file(path: str, text: str) -> None:
    from dsdoctor.sources.replay import write_atomically

    write_atomically(path, text)


def print_text(text: str) -> None:
    sys.stdout.write(with_newline(text))


def with_newline(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def names_in(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def gpu_indices_in(text: str) -> tuple[int, ...] | None:
    from dsdoctor.errors import UsageError

    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--gpu takes numbers such as 0,2; '{text}' is none") from None


def meeting_in(meet: str, node: str) -> Meeting | None:
    """Where nodes meet for collectives: HOST:PORT, and K/N for node K of N, from 0."""
    from dsdoctor.errors import UsageError
    from dsdoctor.sources.probe import Meeting

    if not meet and not node:
        return None
    host, _, port = meet.rpartition(":")
    number, _, count = node.partition("/")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--meet takes HOST:PORT of the first node; '{meet}' is none")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--node takes K/N for node K of N, from 0, such as 0/2; '{node}' is none")
    return Meeting(address=meet, node=int(number), nodes=int(count))


def threshold_of(fail_on: FailOn) -> Severity | None:
    from dsdoctor.findings import Severity

    return None if fail_on is FailOn.NEVER else Severity(fail_on.value)


def screen_width() -> int:
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, 110)


def wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
