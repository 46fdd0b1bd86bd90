"""The group of commands `fleet`: many nodes, one answer."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsdoctor.cli.options import FailOn, FailOnOption, MatrixOption, VerboseOption
from dsdoctor.cli.steps import (
    finish,
    knowledge_of,
    print_text,
    screen_width,
    speaks_unicode,
    threshold_of,
    wants_colour,
    with_newline,
    write_file,
)

if TYPE_CHECKING:
    from dsdoctor.fleet.answer import Fleet
    from dsdoctor.fleet.run.collective import Collective
    from dsdoctor.fleet.run.engine import Engine, Node
    from dsdoctor.fleet.store import Store

app = typer.Typer(help="Many nodes, one answer: what they have in common, and which are odd.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


class FleetFormat(str, enum.Enum):
    """How the answer on a fleet is written."""

    TERMINAL = "terminal"
    JSON = "json"
    HTML = "html"
    CSV = "csv"
    FINDINGS_CSV = "findings-csv"


GroupByOption = Annotated[
    str,
    typer.Option(
        "--group-by",
        metavar="KEY,…",
        help="Compare nodes with their like: product, image, label-prefix, or any fact (kernel, package.vllm, env.NAME).",
    ),
]
FleetFormatOption = Annotated[
    FleetFormat, typer.Option("--format", "-f", help="What to print: terminal, json, html, csv (nodes) or findings-csv.")
]
FleetOutputOption = Annotated[
    list[str],
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Also write it there; by suffix .json .html .txt .csv (a row a node), findings.csv, .parquet. Repeatable.",
    ),
]
SUFFIXES = {
    "findings.csv": FleetFormat.FINDINGS_CSV,
    ".csv": FleetFormat.CSV,
    ".json": FleetFormat.JSON,
    ".html": FleetFormat.HTML,
    ".txt": FleetFormat.TERMINAL,
}
"""The longer suffix comes before the one that it ends with."""
FILE_WIDTH = 100


@app.command()
def merge(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Reports (check --format json), one or many a file, also .gz, .zst, .parquet; folders; - is standard input.",
        ),
    ],
    group_by: GroupByOption = "product",
    format: FleetFormatOption = FleetFormat.TERMINAL,
    output: FleetOutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Input that is no report ends in exit code 2.")] = False,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Many reports, one answer: consensus, odd nodes, faults between nodes, slow GPUs, what to do where."""

    finish(lambda: _merged(source, group_by, format, output, fail_on, strict, verbose, matrix), format)


def _merged(
    source: Sequence[str],
    group_by: str,
    format: FleetFormat,
    output: Sequence[str],
    fail_on: FailOn,
    strict: bool,
    verbose: bool,
    matrix: Sequence[str],
    across: Collective | None = None,
) -> int:
    """Compare the reports, print and write the answer; the exit code. `across` is what came of collectives across the nodes."""
    import dataclasses
    import datetime

    from dsdoctor.cli.steps import names_in
    from dsdoctor.fleet import compare

    _refuse_unknown_suffix(output)
    knowledge = knowledge_of(matrix)
    with compare.store(knowledge.matrix("fleet")) as reports:
        reports.add(source)
        seen = across.seen() if across is not None else ()
        fleet = compare.compare(reports, knowledge, names_in([group_by]), datetime.date.today(), seen)
        if across is not None and across.ok:
            fleet = dataclasses.replace(fleet, notices=(*fleet.notices, across.summary))
        for path in output:
            kind = _format_of(path)
            if kind is None:
                reports.save(path)
            else:
                write_file(path, with_newline(_text(kind, fleet, reports, FILE_WIDTH, False, True, verbose)))
        print_text(_text(format, fleet, reports, screen_width(), wants_colour(), speaks_unicode(), verbose))
    return exit_code(fleet, fail_on, strict)


def _refuse_unknown_suffix(output: Sequence[str]) -> None:
    from dsdoctor.errors import UsageError
    from dsdoctor.fleet.documents import PARQUET

    for path in output:
        if _format_of(path) is None and not path.lower().endswith(PARQUET):
            raise UsageError(
                f"--output {path}: the format follows from the suffix, which is one of {' '.join(sorted((*SUFFIXES, PARQUET)))}"
            )


def _format_of(path: str) -> FleetFormat | None:
    return next((kind for suffix, kind in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def _text(kind: FleetFormat, fleet: Fleet, reports: Store, width: int, colour: bool, unicode: bool, verbose: bool) -> str:
    from dsdoctor.fleet import compare
    from dsdoctor.render import fleet as page

    if kind is FleetFormat.JSON:
        return page.render_json(fleet)
    if kind is FleetFormat.HTML:
        from dsdoctor.render import fleet_html

        return fleet_html.render(fleet)
    if kind is FleetFormat.CSV:
        return page.nodes_csv(fleet)
    if kind is FleetFormat.FINDINGS_CSV:
        return page.table(compare.FINDING_COLUMNS, compare.findings(reports))
    return page.render(fleet, width=width, colour=colour, unicode=unicode, verbose=verbose)


def exit_code(fleet: Fleet, fail_on: FailOn, strict: bool) -> int:
    """2 before 1: who is strict about the input cannot trust an answer that lacks some of it."""
    if fleet.counts.rejected:
        print(f"dsdoctor: {fleet.counts.rejected} of the inputs could not be read as reports", file=sys.stderr)
        if strict:
            return 2
    threshold, worst = threshold_of(fail_on), fleet.worst()
    return 1 if threshold is not None and worst is not None and worst.rank <= threshold.rank else 0


INTERRUPTED = 130
DEFAULT_COMMAND = "dsdoctor check --format json --fail-on never"
"""Findings are in the report; an exit status other than 0 would make MPI and Kubernetes end the others."""


@app.command()
def run(
    options: Annotated[
        list[str], typer.Argument(metavar="[-- OPTION…]", help="After --: options for srun, ssh, clush, mpirun or kubectl.")
    ] = [],  # noqa: B006
    ray: Annotated[str, typer.Option("--ray", metavar="ADDRESS", help="The nodes of this Ray cluster: auto, HOST:PORT or ray://….")] = "",
    slurm: Annotated[bool, typer.Option("--slurm", help="Slurm's nodes: those of this job, of -w or -p after --, or all.")] = False,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="The nodes of a Kubernetes cluster, by an indexed Job.")] = False,
    hosts: Annotated[
        str,
        typer.Option("--hosts", metavar="LIST", help="A file of host names, or node[01-16]; alone by ssh, else the nodes of the engine."),
    ] = "",
    clush: Annotated[bool, typer.Option("--clush", help="Reach --hosts through ClusterShell.")] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="Reach --hosts through mpirun.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", metavar="NAME", help="Kubernetes: where the Job is made.")] = "",
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="Kubernetes: an image with dsdoctor in it.")] = "",
    pod_spec: Annotated[
        str, typer.Option("--pod-spec", metavar="FILE", help="Kubernetes: YAML with fields of the pod's spec (resources, volumes …).")
    ] = "",
    command: Annotated[str, typer.Option("--command", metavar="WORDS", help="What runs on each node and prints a JSON report.")] = "",
    collective: Annotated[bool, typer.Option("--collective", help="Afterwards collectives across all nodes.")] = False,
    master: Annotated[str, typer.Option("--master", metavar="HOST:PORT", help="Where nodes meet for --collective.")] = "",
    output_dir: Annotated[
        str,
        typer.Option("--output-dir", metavar="DIR", help="Keep the reports there; a new or empty directory. Default: dsdoctor-fleet-DATE."),
    ] = "",
    node_timeout: Annotated[float, typer.Option("--node-timeout", min=0.1, metavar="S", help="Give up on a node after that long.")] = 420.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Give up on all nodes after that long.")] = 3600.0,
    at_once: Annotated[int, typer.Option("--at-once", min=1, metavar="N", help="How many nodes are asked at the same time.")] = 64,
    group_by: GroupByOption = "product",
    format: FleetFormatOption = FleetFormat.TERMINAL,
    output: FleetOutputOption = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Run the check on every node through an engine that is there (Ray, Slurm, Kubernetes, ssh, ClusterShell, MPI) and merge the reports.

    A node that does not answer is a row with its reason. Reports are kept as they arrive, also when the run is interrupted.
    """

    def answer() -> int:
        import shlex
        import threading

        from dsdoctor.errors import UsageError
        from dsdoctor.fleet import store
        from dsdoctor.fleet.run import collect, directory, progress
        from dsdoctor.fleet.run import collective as across
        from dsdoctor.fleet.run import hosts as host_lists

        _refuse_unknown_suffix(output)
        store.require()
        try:
            words = shlex.split(command or DEFAULT_COMMAND)
        except ValueError as error:
            raise UsageError(f"--command {command}: {error}") from None
        if not words:
            raise UsageError("--command: no word in it")
        named = host_lists.read(hosts) if hosts else ()
        chosen = {"--ray": bool(ray), "--slurm": slurm, "--kubernetes": kubernetes, "--clush": clush, "--mpi": mpi}
        engine = _engine([name for name, wanted in chosen.items() if wanted], named, options, ray, namespace, image, pod_spec)
        nodes = engine.nodes()
        meeting = across.arranged(words, nodes, master, engine.meeting_host) if collective else None
        folder = directory.prepare(output_dir)
        limits = collect.Limits(node_s=node_timeout, total_s=timeout, at_once=at_once)
        show = progress.shown_on(sys.stderr)
        # Loaded while the nodes work; daemon, so that it keeps no interrupted run alive.
        threading.Thread(target=_load_what_merges, args=(matrix,), daemon=True).start()
        collected = collect.collect(engine, nodes, lambda number: words, limits, folder.keep, show)
        found, asked = None, [collected]
        if meeting is not None and not collected.stopped_by:
            found, together = across.run(engine, meeting, limits, show)
            asked.append(together)
        if found is not None:
            folder.keep_collective(found.plain())
        print(f"dsdoctor: the reports are kept in {folder.path}", file=sys.stderr)
        code = _merged([folder.reports], group_by, format, output, fail_on, False, verbose, matrix, found)
        return INTERRUPTED if any(one.stopped_by for one in asked) else 3 if any(one.faults for one in asked) else code

    finish(answer, format)


def _load_what_merges(matrix: Sequence[str]) -> None:
    """Import what compares reports; what fails here is told by whoever needs it."""
    import contextlib
    import importlib

    with contextlib.suppress(Exception):
        for name in ("duckdb", "dsdoctor.fleet.compare", "dsdoctor.render.fleet"):
            importlib.import_module(name)
        knowledge_of(matrix).matrix("fleet")


def _engine(
    asked: Sequence[str], named: Sequence[Node], options: Sequence[str], ray: str, namespace: str, image: str, pod_spec: str
) -> Engine:
    import importlib

    from dsdoctor.errors import UsageError

    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)}: one engine at a time")
    engine = asked[0] if asked else "--ssh"
    if engine in ("--ssh", "--clush", "--mpi") and not named:
        raise UsageError("which nodes? --hosts FILE or node[01-16], or an engine that knows them: --slurm, --ray ADDRESS, --kubernetes")
    if engine == "--ray" and options:
        raise UsageError(f"--ray takes no options after --: {' '.join(options)}")
    module = importlib.import_module(f"dsdoctor.fleet.run.{engine.removeprefix('--')}")
    arguments = {"--ray": (ray, named), "--kubernetes": (named, namespace, image, pod_spec, options)}.get(engine, (named, options))
    made: Engine = module.engine(*arguments)
    return made
