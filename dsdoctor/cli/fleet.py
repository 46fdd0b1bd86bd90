"""The group of commands `fleet`: many nodes, one answer."""

from __future__ import annotations

import enum
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
    group_by: Annotated[
        str,
        typer.Option(
            "--group-by",
            metavar="KEY,…",
            help="Compare nodes with their like: product, image, label-prefix, or any fact (kernel, package.vllm, env.NAME).",
        ),
    ] = "product",
    format: Annotated[
        FleetFormat, typer.Option("--format", "-f", help="What to print: terminal, json, html, csv (nodes) or findings-csv.")
    ] = FleetFormat.TERMINAL,
    output: Annotated[
        list[str],
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write it there; by suffix .json .html .txt .csv (a row a node), findings.csv, .parquet. Repeatable.",
        ),
    ] = [],  # noqa: B006
    fail_on: FailOnOption = FailOn.ERROR,
    strict: Annotated[bool, typer.Option("--strict", help="Input that is no report ends in exit code 2.")] = False,
    verbose: VerboseOption = False,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Many reports, one answer: consensus, odd nodes, faults between nodes, slow GPUs, what to do where."""

    def run() -> int:
        import datetime

        from dsdoctor.cli.steps import names_in
        from dsdoctor.errors import UsageError
        from dsdoctor.fleet import compare
        from dsdoctor.fleet.documents import PARQUET

        for path in output:
            if _format_of(path) is None and not path.lower().endswith(PARQUET):
                raise UsageError(
                    f"--output {path}: the format follows from the suffix, which is one of {' '.join(sorted((*SUFFIXES, PARQUET)))}"
                )
        knowledge = knowledge_of(matrix)
        with compare.store(knowledge.matrix("fleet")) as reports:
            reports.add(source)
            fleet = compare.compare(reports, knowledge, names_in([group_by]), datetime.date.today())
            for path in output:
                kind = _format_of(path)
                if kind is None:
                    reports.save(path)
                else:
                    write_file(path, with_newline(_text(kind, fleet, reports, FILE_WIDTH, False, True, verbose)))
            print_text(_text(format, fleet, reports, screen_width(), wants_colour(), speaks_unicode(), verbose))
        return exit_code(fleet, fail_on, strict)

    finish(run, format)


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
    import sys

    if fleet.counts.rejected:
        print(f"dsdoctor: {fleet.counts.rejected} of the inputs could not be read as reports", file=sys.stderr)
        if strict:
            return 2
    threshold, worst = threshold_of(fail_on), fleet.worst()
    return 1 if threshold is not None and worst is not None and worst.rank <= threshold.rank else 0
