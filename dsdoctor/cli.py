"""The command line: arguments → source → diagnose → render → exit code. No logic of its own; everything is imported where it is used."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from dsdoctor.advise.node import Node
    from dsdoctor.checks._check import Check
    from dsdoctor.facts import Gpu, Snapshot
    from dsdoctor.findings import Report, Severity
    from dsdoctor.matrix import Knowledge
    from dsdoctor.plugins import Parts
    from dsdoctor.rows import Gpus
    from dsdoctor.sources.probe import Probe
    from dsdoctor.topology.graph import Topology

T = TypeVar("T")

app = typer.Typer(
    name="dsdoctor",
    help="Can this node run this stack, and if not, what exactly do I do?",
    epilog="Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 usage error or unreadable input, 3 the doctor itself failed.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(str, enum.Enum):
    """How an answer is written to standard output."""

    TERMINAL = "terminal"
    JSON = "json"


class ReportFormat(str, enum.Enum):
    """How the judgement of a node is written to standard output."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    PROMETHEUS = "prometheus"
    NAGIOS = "nagios"
    HTML = "html"


class FailOn(str, enum.Enum):
    """The mildest severity that makes the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="What to print: terminal or json.")]
ReportFormatOption = Annotated[
    ReportFormat, typer.Option("--format", "-f", metavar="NAME", help=f"What to print: {', '.join(item.value for item in ReportFormat)}.")
]
OutputOption = Annotated[
    list[str],
    typer.Option(
        "--output", "-o", metavar="FILE",
        help="Also write the report there; by suffix .json .md .xml (JUnit) .sarif .gitlab.json .prom .html .txt. Repeatable.",
    ),
]  # fmt: skip
OnlyOption = Annotated[list[str], typer.Option("--only", metavar="ID", help="Run only this check or area. Repeatable, or a comma list.")]
IgnoreOption = Annotated[
    list[str], typer.Option("--ignore", metavar="ID", help="Leave out this check or area. Repeatable, or a comma list.")
]
WaiversOption = Annotated[str, typer.Option("--waivers", metavar="FILE", help="YAML file of accepted findings, with reason and expiry.")]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Exit 1 from this severity on: error, warning, info or never.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Unknown outcomes count as findings.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, sources and timings.")]
PythonOption = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Interpreter or environment to examine. Default: the active one, else this one.")
]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="N,…", help="Look at these GPUs only (NVML indices).")]
FullOption = Annotated[bool, typer.Option("--full", help="Also the slow GPU tests.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="No import of torch, no GPU time.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Give up on any probe after this many seconds.")]
MatrixOption = Annotated[
    list[str], typer.Option("--matrix", metavar="DIR", help="A folder with matrices of your own; their rows come first. Repeatable.")
]
SourceArgument = Annotated[str, typer.Argument(metavar="FILE", help="A recording, a report, or example:NAME.")]


@app.command()
def check(
    python: PythonOption = "",
    gpu: GpuOption = "",
    quick: QuickOption = False,
    full: FullOption = False,
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
    format: ReportFormatOption = ReportFormat.TERMINAL,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: StrictOption = False,
    timeout: TimeoutOption = 300.0,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Is this node fit for this stack? Probe it, judge it, say what to do."""

    def run() -> int:
        _refuse_unknown_suffix(output)
        prepared = _prepare(only, ignore, waivers, matrix) if only or ignore or matrix else None
        not_needed = _not_needed(prepared[1]) if prepared else lambda probe: ""
        level = "full" if full else "default"

        def leave_out(probe: Probe) -> str:
            return (_not_quick(probe) if quick else "") or not_needed(probe)

        with _examining(python, gpu, timeout, leave_out, smoke_level=level) as take_snapshot:
            parts, checks, accepted = prepared or _prepare(only, ignore, waivers)
            if quick:
                checks = tuple(item for item in checks if item.area != "smoke")
            _load_what_judges(parts, checks)
            snapshot = take_snapshot("this machine")
        return _report(snapshot, parts, checks, accepted, format, output, fail_on, strict, verbose)

    _finish(run, format)


@app.command()
def record(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the recording (.json or .json.gz, - = stdout).")
    ],
    python: PythonOption = "",
    quick: QuickOption = False,
    full: FullOption = False,
    timeout: TimeoutOption = 300.0,
    label: Annotated[str, typer.Option("--label", help="What this node is, in your words; kept in the recording.")] = "",
) -> None:
    """Save the facts of this node, redacted. Judges nothing."""

    def run() -> int:
        from dsdoctor.sources import replay

        with _examining(
            python, "", timeout, _not_quick if quick else lambda probe: "", smoke_level="full" if full else "default"
        ) as take_snapshot:
            snapshot = take_snapshot(label or "this machine")
        replay.save(_redacted(snapshot), output)
        if output != "-":
            print(f"recorded {output}; look at it anywhere with: dsdoctor replay {output}", file=sys.stderr)
        return 0

    _finish(run, Format.TERMINAL)


@app.command()
def replay(
    source: Annotated[list[str], typer.Argument(metavar="FILE…", help="Recordings, reports, or example:NAME.")],
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
    format: ReportFormatOption = ReportFormat.TERMINAL,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """The same judgement on recorded facts, on any machine, with no GPU."""

    def run() -> int:
        _refuse_unknown_suffix(output)
        from dsdoctor.errors import UsageError
        from dsdoctor.sources import replay as replay_source

        if len(source) > 1 and (format not in (ReportFormat.TERMINAL, ReportFormat.MARKDOWN) or output):
            raise UsageError(
                "--output, and --format other than terminal and markdown, take one recording at a time: run once for each FILE"
            )
        parts, checks, accepted = _prepare(only, ignore, waivers, matrix)
        snapshots = [replay_source.load(name) for name in source]
        return max(_report(snapshot, parts, checks, accepted, format, output, fail_on, strict, verbose) for snapshot in snapshots)

    _finish(run, format)


@app.command()
def triage(
    source: Annotated[list[str], typer.Argument(metavar="FILE…", help="Whatever can be pasted: dumps, logs, tables; - is standard input.")],
    only: OnlyOption = [],  # noqa: B006
    ignore: IgnoreOption = [],  # noqa: B006
    waivers: WaiversOption = "",
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
        _refuse_unknown_suffix(output)
        import dataclasses

        from dsdoctor.render import json as json_render
        from dsdoctor.render import understood as page
        from dsdoctor.sources import triage as evidence
        from dsdoctor.sources.triage.capability import with_capabilities
        from dsdoctor.sources.triage.events import load_matcher

        parts, checks, accepted = _prepare(only, ignore, waivers, matrix)
        knowledge = _knowledge(matrix)
        parsed = evidence.read([evidence.open_document(name) for name in source], load_matcher(knowledge))
        snapshot = with_capabilities(parsed.snapshot, knowledge.matrix("gpus"))
        events = snapshot.sections.log_events.value or ()
        remarks = page.notices(parsed.understood, events, parsed.conflicts, parsed.failures, parsed.lines)
        parts = dataclasses.replace(parts, notices=(*parts.notices, *remarks))
        if explain_parse:
            if format is ReportFormat.JSON:
                _print(json_render.to_text(page.document(parsed.understood, events, parsed.conflicts, parsed.lines)))
                return 0
            _print(page.render(parsed.understood, events, parsed.conflicts, parsed.lines, width=_width(), unicode=_unicode()))
            return 0
        return _report(snapshot, parts, checks, accepted, format, output, fail_on, strict, verbose)

    _finish(run, format)


@app.command()
def diff(
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

        parts = _with_matrices(plugins.load(), matrix)

        def load(name: str) -> Report:
            if name != "live":
                return _diagnose(replay_source.load(name), parts, parts.checks, ())
            with _examining(python, leave_out=_not_quick) as take_snapshot:
                return _diagnose(_redacted(take_snapshot("this machine")), parts, parts.checks, ())

        found = difference.diff(load(left), load(right))
        _print(
            difference.render_json(found)
            if format is Format.JSON
            else difference.render_diff(found, width=_width(), colour=_colour(), unicode=_unicode())
        )
        return 1 if found.findings_differ else 0

    _finish(run, format)


@app.command()
def explain(
    check_id: Annotated[str, typer.Argument(metavar="ID", help="A check id such as driver.too-old-for-cuda.")],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """What a check looks at, why it matters, the remedies, the sources, and printed examples."""

    def run() -> int:
        from dsdoctor import plugins
        from dsdoctor.errors import unknown_name
        from dsdoctor.render import explain as page

        checks = {item.id: item for item in plugins.load().checks}
        if check_id not in checks:
            raise unknown_name("check", check_id, checks)
        chosen = checks[check_id]
        _print(
            page.explain_json(chosen)
            if format is Format.JSON
            else page.explain(chosen, width=_width(), colour=_colour(), unicode=_unicode())
        )
        return 0

    _finish(run, format)


@app.command()
def smoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Which tests; none: the default set. See: dsdoctor list smoke")] = [],  # noqa: B006
    python: PythonOption = "",
    gpu: GpuOption = "",
    full: FullOption = False,
    format: ReportFormatOption = ReportFormat.TERMINAL,
    output: OutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: StrictOption = False,
    timeout: TimeoutOption = 300.0,
    verbose: VerboseOption = False,
) -> None:
    """Only the GPU tests, with numbers and the share of the hardware's peak, and what explains a test that fails."""

    def run() -> int:
        _refuse_unknown_suffix(output)
        from dsdoctor import plugins
        from dsdoctor.checks import select, with_causes

        known = plugins.smoke_test_names()
        for name in names:
            if name not in known:
                from dsdoctor.errors import UsageError

                raise UsageError(f"there is no GPU test '{name}'; the tests are {', '.join(known)}")
        parts = plugins.load()
        chosen = select(parts.checks, only=("smoke", "attention", "gpu.no-fp8"))
        checks = with_causes(chosen, parts.checks)
        level = "full" if full else "default"
        with _examining(python, gpu, timeout, _not_needed(checks), tuple(names), level) as take_snapshot:
            snapshot = take_snapshot("this machine")
        return _report(snapshot, parts, checks, (), format, output, fail_on, strict, verbose, with_table=True)

    _finish(run, format)


@app.command()
def advise(
    want: Annotated[
        list[str], typer.Option("--want", metavar="PACKAGE", help='What to run: vllm, "sglang>=0.5", fa3 … Default: torch. Repeatable.')
    ] = [],  # noqa: B006
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help='A GPU such as "H100 SXM", or a compute capability such as 9.0.')] = "",
    driver: Annotated[str, typer.Option("--driver", metavar="VERSION", help="A driver such as 535.129.03, or a branch such as 580.")] = "",
    python: Annotated[str, typer.Option("--python", metavar="VERSION|PATH", help="A Python version, or an interpreter.")] = "",
    glibc: Annotated[str, typer.Option("--glibc", metavar="VERSION", help="A glibc version such as 2.31.")] = "",
    arch: Annotated[str, typer.Option("--arch", metavar="NAME", help="x86_64 or aarch64.")] = "",
    image: Annotated[
        str, typer.Option("--image", metavar="TEXT", help="An image name with its CUDA version, or its NVIDIA_REQUIRE_CUDA: does it start?")
    ] = "",
    format: FormatOption = Format.TERMINAL,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """What can this node run, what after which change, and why nothing newer? Without options about a node: this one."""

    def run() -> int:
        from dsdoctor.advise import answer as adviser
        from dsdoctor.advise import image as images
        from dsdoctor.advise import node as nodes
        from dsdoctor.advise.catalogue import Shelf
        from dsdoctor.render import advice as page

        shelf = Shelf.of(_knowledge(matrix).matrix)
        described = bool(gpu or driver or glibc or arch)
        node = nodes.node_from_options(gpu, driver, glibc, arch, shelf.gpus) if described else _this_node(shelf.gpus)
        if nodes.is_python_version(python):
            node = nodes.with_python(node, nodes.python_of(python, shelf.torch))
        elif python or not described:
            node = nodes.with_python(node, _python_version(python))
        style: dict[str, Any] = {"width": _width(), "colour": _colour(), "unicode": _unicode()}
        if image:
            answer, told = images.starts(image, node, shelf), nodes.described(node, shelf.driver_branches)
            _print(page.image_json(answer, told, shelf.seen) if format is Format.JSON else page.image(answer, told, shelf.seen, **style))
            return 0 if answer.starts else 1
        advice = adviser.advise(node, want, shelf)
        _print(page.advice_json(advice) if format is Format.JSON else page.advice(advice, verbose=verbose, **style))
        return 0 if advice.stack else 1

    _finish(run, format)


@app.command(name="plan")
def plan_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model such as DeepSeek-V3.2, or a checkpoint directory.")],
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help='A GPU such as H200 or "H100 SXM". Default: those of this node.')] = "",
    gpus: Annotated[int, typer.Option("--gpus", min=0, max=1024, metavar="N", help="GPUs of one node. Default: 8, or those here.")] = 0,
    nodes: Annotated[int, typer.Option("--nodes", min=0, max=1024, metavar="N", help="How many such nodes. Default: 1.")] = 0,
    context: Annotated[int, typer.Option("--context", min=0, metavar="TOKENS", help="Longest request. Default: the model's limit.")] = 0,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", metavar="NAME", help="bf16, fp8, fp4 or a layout by its name.")] = "",
    weights: Annotated[str, typer.Option("--weights", metavar="FORMAT", help="fp8, bf16, int8 … Default: as published.")] = "",
    tp: Annotated[int, typer.Option("--tp", min=0, metavar="N", help="GPUs that share one copy of the attention weights.")] = 0,
    pp: Annotated[int, typer.Option("--pp", min=0, metavar="N", help="Pipeline stages.")] = 0,
    ep: Annotated[int, typer.Option("--ep", min=0, metavar="N", help="GPUs that the routed experts are spread over.")] = 0,
    dp_attention: Annotated[bool, typer.Option("--dp-attention", help="Each GPU its own requests; experts spread over all.")] = False,
    disk_gb_s: Annotated[
        float, typer.Option("--disk-gb-s", min=0.0, metavar="GB/S", help="Read rate of the disk, for the load time.")
    ] = 0.0,
    format: FormatOption = Format.TERMINAL,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Does a model fit: weights, KV cache, context, nodes and load time, with the arithmetic. Exit 1 when it does not."""

    def run() -> int:
        from pathlib import Path

        from dsdoctor import checkpoint, plan
        from dsdoctor.render import plan as page

        knowledge = _knowledge(matrix)
        models, limits = knowledge.matrix("deepseek-models"), knowledge.matrix("gpu-limits")
        held = checkpoint.read(Path(model)) if Path(model).is_dir() else None
        planned = plan.of_checkpoint(held, models) if held else plan.named(model, models)
        hardware = plan.hardware_named(gpu, gpus, nodes, limits) if gpu else plan.hardware_here(_these_gpus(), gpus, nodes, limits)
        wanted = plan.Wanted(
            context=context, kv=kv_dtype, weights=weights, tp=tp, pp=pp, ep=ep, dp_attention=dp_attention, disk_gb_per_s=disk_gb_s
        )
        answer = plan.plan(planned, hardware, wanted, models, limits, [problem.told for problem in held.problems] if held else ())
        _print(
            page.document(answer) if format is Format.JSON else page.render(answer, width=_width(), colour=_colour(), unicode=_unicode())
        )
        return 0 if answer.fits else 1

    _finish(run, format)


class TopoFormat(str, enum.Enum):
    """How a topology is written."""

    TERMINAL = "terminal"
    JSON = "json"
    SVG = "svg"
    HTML = "html"
    NCCL_XML = "nccl-xml"


@app.command()
def topo(
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="FILE", help="A recording, topo -m text, NCCL topology XML, hwloc XML, example:NAME or -. Default: this node."
        ),
    ] = "",
    format: Annotated[
        TopoFormat, typer.Option("--format", "-f", help="What to print: terminal, json, svg, html or nccl-xml.")
    ] = TopoFormat.TERMINAL,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of to standard output.")] = "-",
    reference: Annotated[
        str, typer.Option("--reference", metavar="ID", help="Compare with this machine. See: dsdoctor matrix show topologies")
    ] = "",
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """How GPUs, NICs, NUMA nodes and switches are wired; suggested groups and bindings; differences from the product's reference."""

    def run() -> int:
        from dsdoctor.topology import picture, read

        knowledge = _knowledge(matrix)
        topology = read.load(source) if source else _this_topology()
        shown = picture.of(topology, knowledge.matrix("gpu-limits"), knowledge.matrix("topologies"), reference)
        if format is TopoFormat.NCCL_XML:
            from dsdoctor.topology import nccl

            text = nccl.write(topology)
        elif format in (TopoFormat.SVG, TopoFormat.HTML):
            from dsdoctor.render import topology_svg

            text = topology_svg.svg(shown) if format is TopoFormat.SVG else topology_svg.html(shown)
        else:
            from dsdoctor.render import topology as page

            colour = _colour() and output == "-"
            text = (
                page.document(shown) if format is TopoFormat.JSON else page.render(shown, width=_width(), colour=colour, unicode=_unicode())
            )
        _write_file(output, text if text.endswith("\n") else f"{text}\n")
        return 0

    _finish(run, Format.JSON if format is TopoFormat.JSON else Format.TERMINAL)


class Listing(str, enum.Enum):
    """What can be listed."""

    CHECKS = "checks"
    PROBES = "probes"
    MATRICES = "matrices"
    EXAMPLES = "examples"


@app.command(name="list")
def list_(
    what: Annotated[Listing, typer.Argument(metavar="checks|probes|matrices|examples")],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """List checks, probes, matrices or recorded examples."""

    def run() -> int:
        from dsdoctor import plugins
        from dsdoctor.render import explain as page

        _print(page.listing(what.value, plugins.load(), as_json=format is Format.JSON, width=_width()))
        return 0

    _finish(run, format)


matrix_app = typer.Typer(
    help="Look knowledge up, check a file of your own, re-derive package rows.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(matrix_app, name="matrix")


@matrix_app.command(name="show")
def matrix_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A matrix: gpus, torch, companions … See: dsdoctor list matrices")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="One row: a version, a GPU's name, vllm==0.33.0 …")] = "",
    format: FormatOption = Format.TERMINAL,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """The rows of a matrix, or one of them with what it rests on."""

    def run() -> int:
        import datetime

        from dsdoctor import matrix_commands
        from dsdoctor.matrix import Knowledge
        from dsdoctor.render import matrix as page

        knowledge = Knowledge(matrix_commands.overlays(matrix))
        table = matrix_commands.open_matrix(name, knowledge)
        found = matrix_commands.look_up(table, key) if key else matrix_commands.rows(table)
        if format is Format.JSON:
            _print(page.rows_json(table, found, knowledge.stamp(datetime.date.today()).digest))
        else:
            render = page.rows if key else page.table
            _print(render(table, found, width=_width(), colour=_colour(), unicode=_unicode()))
        return 0

    _finish(run, format)


@matrix_app.command(name="lint")
def matrix_lint(
    path: Annotated[str, typer.Argument(metavar="FILE|DIR", help="A matrix file of your own, or a folder of them.")],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """Check matrix files of your own: every problem with file, line and key. Exit 2 when there is one."""

    def run() -> int:
        from pathlib import Path

        from dsdoctor import lint
        from dsdoctor.render import matrix as page

        problems = lint.lint(Path(path))
        _print(
            page.problems_json(problems, path)
            if format is Format.JSON
            else page.problems(problems, path, width=_width(), unicode=_unicode())
        )
        return 2 if problems else 0

    _finish(run, format)


@matrix_app.command(name="refresh")
def matrix_refresh(
    names: Annotated[list[str], typer.Argument(metavar="PACKAGE…", help="Only these packages; none: every package with rows.")] = [],  # noqa: B006
    write: Annotated[bool, typer.Option("--write", help="Write the rows; without it nothing is changed.")] = False,
    directory: Annotated[
        str, typer.Option("--directory", metavar="DIR", help="The matrices to refresh. Default: those of this checkout.")
    ] = "",
    python: Annotated[str, typer.Option("--python", metavar="PATH", help="The interpreter whose pip is asked. Default: this one.")] = "",
    format: FormatOption = Format.TERMINAL,
) -> None:
    """Re-derive the package rows from the packages' own metadata, through pip's index. The only command that uses the network."""

    def run() -> int:
        from dsdoctor import refresh
        from dsdoctor.render import matrix as page

        found = refresh.refresh(names, directory=directory, python=python or sys.executable, write=write)
        _print(page.refreshed_json(found) if format is Format.JSON else page.refreshed(found, width=_width(), unicode=_unicode()))
        return 0

    _finish(run, format)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from dsdoctor import __version__

        _print(f"dsdoctor {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command `dsdoctor`; without a command it is `dsdoctor check`."""
    # A run is short and makes many small records that all stay alive: looking for garbage among them is a twentieth of its time.
    gc.set_threshold(200_000, 50, 50)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "check")
    try:
        app(args=arguments, prog_name="dsdoctor")
    except BrokenPipeError:
        _leave_broken_pipe(0)


# --- the steps of a command -------------------------------------------------------------------------------------------


def _with_matrices(parts: Parts, directories: Sequence[str]) -> Parts:
    """The parts with a user's own matrices before all others; an error when one of them cannot be used."""
    if not directories:
        return parts
    import dataclasses

    from dsdoctor.matrix_commands import overlays

    return dataclasses.replace(parts, matrices=(*map(str, overlays(directories)), *parts.matrices))


def _prepare(
    only: list[str], ignore: list[str], waivers: str, matrices: Sequence[str] = ()
) -> tuple[Parts, tuple[Check, ...], tuple[Any, ...]]:
    from dsdoctor import plugins
    from dsdoctor import waivers as waiver_files
    from dsdoctor.checks import select

    parts = _with_matrices(plugins.load(), matrices)
    checks = select(parts.checks, only=_split(only), ignore=_split(ignore))
    accepted = waiver_files.load(waivers, known=[item.id for item in parts.checks]) if waivers else ()
    return parts, checks, accepted


@contextlib.contextmanager
def _examining(
    python: str = "",
    gpu: str = "",
    timeout_s: float = 60.0,
    leave_out: Callable[[Probe], str] = lambda probe: "",
    smoke_tests: tuple[str, ...] = (),
    smoke_level: str = "default",
) -> Iterator[Callable[[str], Snapshot]]:
    """Start the probes of this machine; the block loads what judges them meanwhile, then calls for the snapshot with a label.

    `leave_out` says why a probe is not to run, or nothing.
    """
    import dataclasses

    from dsdoctor import plugins
    from dsdoctor.errors import UsageError
    from dsdoctor.facts import not_asked
    from dsdoctor.render import progress
    from dsdoctor.sources import live, target
    from dsdoctor.sources.host import Host
    from dsdoctor.sources.probe import Scope

    host = Host()
    scope = Scope(
        target=target.locate(host, python or None), gpu_indices=_gpu_indices(gpu), deadline_s=timeout_s,
        smoke_tests=smoke_tests, smoke_level=smoke_level,
    )  # fmt: skip
    probes = plugins.load_probes()
    left_out = {name: not_asked(why) for probe in probes if (why := leave_out(probe)) for name in probe.provides}

    def take_snapshot(label: str) -> Snapshot:
        with progress.checklist(sys.stderr) as listener:
            snapshot = examination.snapshot(label, listener)
        versions = snapshot.sections.nvml_versions.value
        count = versions.gpu_count if versions else None
        wrong = [index for index in scope.gpu_indices or () if count is not None and not 0 <= index < count]
        if wrong:
            raise UsageError(f"there is no GPU {wrong[0]} here; the GPUs are {', '.join(map(str, range(count or 0))) or 'none'}")
        return dataclasses.replace(snapshot, sections=dataclasses.replace(snapshot.sections, **left_out))

    with live.started(host, scope, [probe for probe in probes if not leave_out(probe)]) as examination:
        yield take_snapshot


def _not_quick(probe: Probe) -> str:
    return "" if probe.quick else "not looked at with --quick"


def _not_needed(checks: Sequence[Check]) -> Callable[[Probe], str]:
    """Leave out probes whose facts none of the checks reads; host and interpreter stay, remedies are chosen by them."""
    needed = {name for item in checks for name in (*item.sections, *item.optional_sections)} | {"platform", "interpreter"}
    return lambda probe: "" if needed & set(probe.provides) else "none of the chosen checks needs it"


def _knowledge(matrices: Sequence[str]) -> Knowledge:
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


def _this_node(gpus: Gpus) -> Node:
    """This machine as far as it matters for a stack, by the probes that only read files and NVML."""
    from dsdoctor.advise.node import node_from_facts

    needed = ("host", "driver", "nvml")
    with _examining(leave_out=lambda probe: "" if probe.name in needed else "not needed for advice") as take_snapshot:
        return node_from_facts(take_snapshot("this machine").sections, gpus)


def _this_topology() -> Topology:
    """How this machine is wired, by the probes that only read sysfs and NVML."""
    from dsdoctor.topology import from_facts

    needed = ("host", "pcie", "nvml")
    with _examining(leave_out=lambda probe: "" if probe.name in needed else "not needed for the topology") as take_snapshot:
        return from_facts.topology(take_snapshot("this machine").sections, "this machine")


def _these_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, by NVML alone."""
    with _examining(leave_out=lambda probe: "" if probe.name in ("host", "nvml") else "not needed for a plan") as take_snapshot:
        return take_snapshot("this machine").sections.gpus.value or ()


def _python_version(path: str) -> str:
    """The version of an interpreter by its files; empty path: the active one."""
    from dsdoctor.sources import target
    from dsdoctor.sources.host import Host

    return target.locate(Host(), path or None).python_version


def _redacted(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it may leave this machine; of a live one the names of machine and user are known for certain."""
    from dsdoctor import redact

    if snapshot.origin.kind != "live":
        return redact.redact(snapshot)
    import pwd

    with contextlib.suppress(KeyError):
        return redact.redact(snapshot, hosts=(os.uname().nodename,), users=(pwd.getpwuid(os.getuid()).pw_name,))
    return redact.redact(snapshot, hosts=(os.uname().nodename,))


def _load_what_judges(parts: Parts, checks: Sequence[Check]) -> None:
    """Load what the checks will want while the probes still run."""
    import packaging.requirements  # noqa: F401

    _in_force(parts.matrices).load({name for item in checks for name in item.matrices})


@functools.lru_cache(maxsize=1)
def _in_force(folders: tuple[str, ...]) -> Knowledge:
    """The built-in matrices under those of these folders; one value a run, so that what was loaded while the probes ran is there later."""
    from pathlib import Path

    from dsdoctor.matrix import Knowledge

    return Knowledge(overlays=tuple(Path(folder) for folder in folders))


def _diagnose(snapshot: Snapshot, parts: Parts, checks: Sequence[Check], accepted: Sequence[Any]) -> Report:
    import datetime

    from dsdoctor import diagnose

    return diagnose.diagnose(
        snapshot, _in_force(parts.matrices), checks, today=datetime.date.today(), waivers=accepted, notices=parts.notices
    )


def _refuse_unknown_suffix(outputs: Sequence[str]) -> None:
    """Refuse a file whose suffix names no format, before minutes go into a report that could not be written."""
    if not outputs:
        return
    from dsdoctor.errors import UsageError
    from dsdoctor.render import formats

    for path in outputs:
        if formats.of_file(path) is None:
            raise UsageError(f"--output {path}: the format follows from the suffix, which is one of {' '.join(sorted(formats.SUFFIXES))}")


def _report(
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
) -> int:
    """Print the report and write its other forms. Only the screen shows real names: what machines read, and every file, is redacted."""
    from dsdoctor import diagnose

    threshold = _severity(fail_on)
    if outputs or format is not ReportFormat.TERMINAL:
        from dsdoctor.render import formats

        report = _diagnose(_redacted(snapshot), parts, checks, accepted)
        for path in outputs:
            _write_file(path, _with_newline(formats.render(report, formats.of_file(path) or format.value, threshold)))
        if format is not ReportFormat.TERMINAL:
            _print(formats.render(report, format.value, threshold))
    if format is ReportFormat.TERMINAL:
        from dsdoctor.render import terminal

        report = _diagnose(snapshot, parts, checks, accepted)
        if with_table:
            _print(f"{_smoke_table(snapshot)}\n")
        _print(terminal.render(report, width=_width(), colour=_colour(), verbose=verbose, unicode=_unicode()))
    return diagnose.exit_code(report, fail_on=threshold, strict=strict)


def _smoke_table(snapshot: Snapshot) -> str:
    from dsdoctor import smoke_table
    from dsdoctor.matrix import Knowledge
    from dsdoctor.render import smoke as smoke_render

    rows = smoke_table.table(snapshot.sections, Knowledge().matrix("gpu-limits"))
    return smoke_render.render(rows, width=_width(), colour=_colour(), unicode=_unicode())


def _finish(run: Callable[[], int], format: Format | ReportFormat) -> NoReturn:
    """Run a command and exit with its code; an error is one sentence, a fault of ours says so, and JSON stays JSON."""
    from dsdoctor.errors import DsdoctorError

    try:
        code = run()
        sys.stdout.flush()
    except DsdoctorError as error:
        _fail(f"dsdoctor: {error}", 2, format)
    except BrokenPipeError:
        _leave_broken_pipe(0)
    except KeyboardInterrupt:
        _fail("dsdoctor: interrupted", 130, format)
    except Exception as error:
        import traceback

        traceback.print_exc()
        _fail(f"dsdoctor: a fault of dsdoctor itself, not of this node: {type(error).__name__}: {error}", 3, format)
    raise typer.Exit(code)


def _fail(message: str, code: int, format: Format | ReportFormat) -> NoReturn:
    print(message, file=sys.stderr)
    if format.value != "terminal":
        from dsdoctor.render import formats

        text = formats.failure(format.value, message.removeprefix("dsdoctor: "), code)
        with contextlib.suppress(OSError):
            if text:
                _print(text)
            sys.stdout.flush()
    raise typer.Exit(code)


def _leave_broken_pipe(code: int) -> NoReturn:
    """The reader went away (`| head`): say nothing more, not even at interpreter exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _write_file(path: str, text: str) -> None:
    from dsdoctor.sources.replay import write_atomically

    write_atomically(path, text)


def _print(text: str) -> None:
    sys.stdout.write(_with_newline(text))


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _gpu_indices(text: str) -> tuple[int, ...] | None:
    from dsdoctor.errors import UsageError

    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--gpu takes numbers such as 0,2; '{text}' is none") from None


def _severity(fail_on: FailOn) -> Severity | None:
    from dsdoctor.findings import Severity

    return None if fail_on is FailOn.NEVER else Severity(fail_on.value)


def _width() -> int:
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, 110)


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
