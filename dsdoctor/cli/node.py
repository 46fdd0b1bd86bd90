"""Commands that examine a node, live, recorded or pasted, and judge it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dsdoctor.cli.options import (
    DiskOption,
    ExitStyle,
    ExitStyleOption,
    ExpectOption,
    FailOn,
    FailOnOption,
    Format,
    FormatOption,
    FullOption,
    GpuOption,
    IgnoreOption,
    LabelOption,
    MatrixOption,
    ModelOption,
    NodesOption,
    OnlyOption,
    OutputOption,
    PidOption,
    ProfileOption,
    PythonOption,
    QuickOption,
    ReportFormat,
    ReportFormatOption,
    ServiceOption,
    SettleOption,
    StrictOption,
    StyledFormatOption,
    TimeoutOption,
    VerboseOption,
    WaiversOption,
    WatchOption,
)
from dsdoctor.cli.steps import (
    THIS_MACHINE,
    Wishes,
    examining,
    finish,
    format_of,
    in_force,
    judge,
    load_what_judges,
    meeting_in,
    names_in,
    not_needed,
    not_quick,
    prepare,
    print_text,
    redacted_copy,
    refuse_unknown_suffix,
    report_on,
    screen_width,
    speaks_unicode,
    wants_colour,
    with_matrices,
)

if TYPE_CHECKING:
    from dsdoctor.findings import Report
    from dsdoctor.sources.probe import Probe


def check_command(
    profile: ProfileOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    nodes: NodesOption = 1,
    disk_gb_s: DiskOption = 0.0,
    pid: PidOption = 0,
    service: ServiceOption = "",
    python: PythonOption = "",
    gpu: GpuOption = "",
    quick: QuickOption = False,
    full: FullOption = False,
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
    expect: ExpectOption = "",
    format: StyledFormatOption = None,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    exit_style: ExitStyleOption = ExitStyle.DEFAULT,
    strict: StrictOption = False,
    timeout: TimeoutOption = 300.0,
    settle: SettleOption = 0.0,
    watch: WatchOption = 0.0,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
    label: LabelOption = "",
) -> None:
    """Is this node fit for this stack? Probe it, judge it, say what to do."""

    form = format_of(format, exit_style)

    def run() -> int:
        from dsdoctor.errors import UsageError

        refuse_unknown_suffix(output)
        if pid and python:
            raise UsageError("--pid and --python name two interpreters; take one of them")
        wishes = Wishes(profile, model, nodes, disk_gb_s)
        asked = only or ignore or matrix or expect or wishes.any
        prepared = prepare(only, ignore, waivers, matrix, expect, wishes) if asked else None
        not_asked_for = not_needed(prepared[1]) if prepared else lambda probe: ""
        level = "full" if full else "default"

        def leave_out(probe: Probe) -> str:
            if probe.name == "smoke" and "smoke" in names_in(ignore):
                return "left out with --ignore smoke"
            return (not_quick(probe) if quick else "") or not_asked_for(probe)

        read_from = next((os.path.abspath(name) for name in model if full and os.path.isdir(name)), "")
        with examining(
            python, gpu, timeout, leave_out, smoke_level=level, pid=pid, service=service, settle_s=settle, watch_s=watch,
            model_directory=read_from,
        ) as take_snapshot:  # fmt: skip
            parts, checks, accepted = prepared or prepare(only, ignore, waivers)
            if quick or pid:
                checks = tuple(item for item in checks if item.area != "smoke")
            load_what_judges(parts, checks)
            snapshot = take_snapshot(label or (f"process {pid} on this machine" if pid else THIS_MACHINE))
        return report_on(snapshot, parts, checks, accepted, form, output, fail_on, strict, verbose, style=exit_style)

    finish(run, form, exit_style)


def record_command(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the recording (.json or .json.gz, - = stdout).")
    ],
    python: PythonOption = "",
    quick: QuickOption = False,
    full: FullOption = False,
    timeout: TimeoutOption = 300.0,
    settle: SettleOption = 0.0,
    watch: WatchOption = 0.0,
    label: LabelOption = "",
) -> None:
    """Save the facts of this node, redacted. Judges nothing."""

    def run() -> int:
        from dsdoctor.sources import replay

        level, leave_out = "full" if full else "default", not_quick if quick else lambda probe: ""
        with examining(python, "", timeout, leave_out, smoke_level=level, settle_s=settle, watch_s=watch) as take_snapshot:
            snapshot = take_snapshot(label or THIS_MACHINE)
        replay.save(redacted_copy(snapshot), output)
        if output != "-":
            print(f"recorded {output}; look at it anywhere with: dsdoctor replay {output}", file=sys.stderr)
        return 0

    finish(run, Format.TERMINAL)


def replay_command(
    source: Annotated[list[str], typer.Argument(metavar="FILE…", help="Recordings, reports, or example:NAME.")],
    profile: ProfileOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    nodes: NodesOption = 1,
    disk_gb_s: DiskOption = 0.0,
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
    expect: ExpectOption = "",
    format: StyledFormatOption = None,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    exit_style: ExitStyleOption = ExitStyle.DEFAULT,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """The same judgement on recorded facts, on any machine, with no GPU."""

    form = format_of(format, exit_style)

    def run() -> int:
        refuse_unknown_suffix(output)
        from dsdoctor.errors import UsageError
        from dsdoctor.sources import replay as replay_source

        if len(source) > 1 and (form not in (ReportFormat.TERMINAL, ReportFormat.MARKDOWN) or output):
            raise UsageError(
                "--output, and --format other than terminal and markdown, take one recording at a time: run once for each FILE"
            )
        parts, checks, accepted = prepare(only, ignore, waivers, matrix, expect, Wishes(profile, model, nodes, disk_gb_s))
        snapshots = [replay_source.load(name) for name in source]
        return max(
            report_on(snapshot, parts, checks, accepted, form, output, fail_on, strict, verbose, style=exit_style) for snapshot in snapshots
        )

    finish(run, form, exit_style)


def triage_command(
    source: Annotated[list[str], typer.Argument(metavar="FILE…", help="Whatever can be pasted: dumps, logs, tables; - is standard input.")],
    profile: ProfileOption = [],  # noqa: B006
    model: ModelOption = [],  # noqa: B006
    nodes: NodesOption = 1,
    disk_gb_s: DiskOption = 0.0,
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
    expect: ExpectOption = "",
    format: ReportFormatOption = ReportFormat.TERMINAL,
    output: OutputOption = [],  # noqa: B006
    explain_parse: Annotated[bool, typer.Option("--explain-parse", help="Show which lines were understood as what.")] = False,
    fail_on: FailOnOption = FailOn.ERROR,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Diagnose pasted evidence: collect_env, nvidia-smi, pip, logs, dmesg, lspci … in any mixture. Formats are recognised."""

    def run() -> int:
        refuse_unknown_suffix(output)
        import dataclasses

        from dsdoctor.render import json as json_render
        from dsdoctor.render import understood as page
        from dsdoctor.sources import triage as evidence
        from dsdoctor.sources.triage.capability import with_capabilities
        from dsdoctor.sources.triage.events import load_matcher

        parts, checks, accepted = prepare(only, ignore, waivers, matrix, expect, Wishes(profile, model, nodes, disk_gb_s))
        knowledge = in_force(parts.matrices)
        parsed = evidence.read([evidence.open_document(name) for name in source], load_matcher(knowledge))
        snapshot = with_capabilities(parsed.snapshot, knowledge.matrix("gpus"))
        events = snapshot.sections.log_events.value or ()
        remarks = page.notices(parsed.understood, events, parsed.conflicts, parsed.failures, parsed.lines)
        parts = dataclasses.replace(parts, notices=(*parts.notices, *remarks))
        if explain_parse:
            if format is ReportFormat.JSON:
                print_text(json_render.to_text(page.document(parsed.understood, events, parsed.conflicts, parsed.lines)))
                return 0
            print_text(
                page.render(parsed.understood, events, parsed.conflicts, parsed.lines, width=screen_width(), unicode=speaks_unicode())
            )
            return 0
        return report_on(snapshot, parts, checks, accepted, format, output, fail_on, strict, verbose)

    finish(run, format)


def diff_command(
    left: Annotated[str, typer.Argument(metavar="A", help="A recording, a report, example:NAME, or 'live' for this node.")],
    right: Annotated[str, typer.Argument(metavar="B", help="The same.")] = "live",
    format: FormatOption = Format.TERMINAL,
    python: PythonOption = "",
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """What differs between two recordings, reports or this node: facts and findings. Exit 1 when findings differ."""

    def run() -> int:
        from dsdoctor import diff as difference
        from dsdoctor import plugins
        from dsdoctor.sources import replay as replay_source

        parts = with_matrices(plugins.load(), matrix)

        def load(name: str) -> Report:
            if name != "live":
                return judge(replay_source.load(name), parts, parts.checks, ())
            with examining(python, leave_out=not_quick) as take_snapshot:
                return judge(redacted_copy(take_snapshot(THIS_MACHINE)), parts, parts.checks, ())

        found = difference.diff(load(left), load(right))
        print_text(
            difference.render_json(found)
            if format is Format.JSON
            else difference.render_diff(found, width=screen_width(), colour=wants_colour(), unicode=speaks_unicode())
        )
        return 1 if found.findings_differ else 0

    finish(run, format)


def smoke_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Which tests; none: the default set. See: dsdoctor list smoke")] = [],  # noqa: B006
    python: PythonOption = "",
    gpu: GpuOption = "",
    full: FullOption = False,
    meet: Annotated[
        str, typer.Option("--meet", metavar="HOST:PORT", help="Collectives across nodes: all of them meet there, on the first one.")
    ] = "",
    node: Annotated[str, typer.Option("--node", metavar="K/N", help="With --meet: this is node K of N, from 0.")] = "",
    format: ReportFormatOption = ReportFormat.TERMINAL,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: StrictOption = False,
    timeout: TimeoutOption = 300.0,
    verbose: VerboseOption = False,
    label: LabelOption = "",
) -> None:
    """Only the GPU tests, with numbers and the share of the hardware's peak, and what explains a test that fails."""

    def run() -> int:
        refuse_unknown_suffix(output)
        from dsdoctor import plugins
        from dsdoctor.checks import select, with_causes
        from dsdoctor.errors import UsageError

        known = plugins.smoke_test_names()
        for name in names:
            if name not in known:
                raise UsageError(f"there is no GPU test '{name}'; the tests are {', '.join(known)}")
        meeting = meeting_in(meet, node)
        if meeting is not None and tuple(names) != ("collectives",):
            raise UsageError("--meet is for one test: dsdoctor smoke collectives --meet HOST:PORT --node K/N")
        parts = plugins.load()
        chosen = select(parts.checks, only=("smoke", "attention", "gpu.no-fp8"))
        checks = with_causes(chosen, parts.checks)
        level = "full" if full else "default"
        with examining(python, gpu, timeout, not_needed(checks), tuple(names), level, meeting=meeting) as take_snapshot:
            snapshot = take_snapshot(label or THIS_MACHINE)
        return report_on(snapshot, parts, checks, (), format, output, fail_on, strict, verbose, with_table=True)

    finish(run, format)
