"""The command `matrix`: look knowledge up, check a file of your own, re-derive package rows."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dsdoctor.cli.light import LightCommand, LightGroup
from dsdoctor.cli.options import Format, FormatOption, MatrixOption
from dsdoctor.cli.steps import finish, print_text, screen_width, speaks_unicode, wants_colour

app = typer.Typer(
    cls=LightGroup, help="Look knowledge up, check a file of your own, re-derive package rows.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(cls=LightCommand)
def show(
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
            print_text(page.rows_json(table, found, knowledge.stamp(datetime.date.today()).digest))
        else:
            render = page.rows if key else page.table
            print_text(render(table, found, width=screen_width(), colour=wants_colour(), unicode=speaks_unicode()))
        return 0

    finish(run, format)


@app.command(cls=LightCommand)
def lint(
    path: Annotated[str, typer.Argument(metavar="FILE|DIR", help="A matrix file of your own, or a folder of them.")],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """Check matrix files of your own: every problem with file, line and key. Exit 2 when there is one."""

    def run() -> int:
        from pathlib import Path

        from dsdoctor import lint
        from dsdoctor.render import matrix as page

        problems = lint.lint(Path(path))
        print_text(
            page.problems_json(problems, path)
            if format is Format.JSON
            else page.problems(problems, path, width=screen_width(), unicode=speaks_unicode())
        )
        return 2 if problems else 0

    finish(run, format)


@app.command(cls=LightCommand)
def refresh(
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
        print_text(
            page.refreshed_json(found) if format is Format.JSON else page.refreshed(found, width=screen_width(), unicode=speaks_unicode())
        )
        return 0

    finish(run, format)
