"""The command `expect`: files that say what a site wants of its nodes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dsdoctor.cli.light import LightCommand, LightGroup
from dsdoctor.cli.options import Format, FormatOption, MatrixOption
from dsdoctor.cli.steps import finish, knowledge_of, print_text, screen_width, write_file

app = typer.Typer(cls=LightGroup, help="Files that say what a site wants of its nodes.", no_args_is_help=True, rich_markup_mode=None)


@app.command(cls=LightCommand)
def learn(
    source: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Recordings or reports of nodes that are as they should be, or example:NAME.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of to standard output.")] = "-",
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Write what these nodes have in common as a file of expectations; where they differ, it is commented out."""

    def run() -> int:
        from dsdoctor.expect.learn import learn as learn_from
        from dsdoctor.sources import replay

        share = knowledge_of(matrix).matrix("smoke-thresholds").learned.share
        write_file(output, learn_from([replay.load(name) for name in source], share))
        if output != "-":
            print(f"wrote {output}; read it over, then: dsdoctor check --expect {output}", file=sys.stderr)
        return 0

    finish(run, Format.TERMINAL)


@app.command(cls=LightCommand)
def lint(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A file of expectations.")],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """Every slip in a file of expectations, with line and key. Exit 2 when there is one."""

    def run() -> int:
        from dsdoctor.expect.read import read, remarks
        from dsdoctor.findings import counted

        expectations, problems = read(path)
        noted = remarks(expectations)
        if format is Format.JSON:
            from dsdoctor.render.json import to_text

            print_text(
                to_text(
                    {
                        "schema": "dsdoctor.expect-lint/1",
                        "file": path,
                        "expectations": [{"name": item.name, "kind": item.kind.name, "of": item.of, "want": item.want.text} for item in expectations],
                        "problems": [str(problem) for problem in problems],
                        "remarks": list(noted),
                    }
                )
            )  # fmt: skip
        else:
            lines = [*map(str, problems), *(f"{remark} (a remark)" for remark in noted)]
            amount = counted(len(problems), "problem") if problems else "no problem"
            print_text("\n".join([*lines, f"{path}: {counted(len(expectations), 'expectation')}, {amount}"]))
        return 2 if problems else 0

    finish(run, format)


@app.command(cls=LightCommand)
def kinds(format: FormatOption = Format.TERMINAL) -> None:
    """The kinds of expectation: what each looks at, and how its want is written."""

    def run() -> int:
        from dsdoctor.expect.kinds import KINDS

        if format is Format.JSON:
            from dsdoctor.render.json import to_text

            print_text(
                to_text([{"kind": kind.name, "text": kind.text, "of": kind.named, "want": kind.form.value} for kind in KINDS.values()])
            )
        else:
            import textwrap

            for kind in KINDS.values():
                of = f" of: the {kind.named}{f' (without it: {kind.default_of})' if kind.default_of else ''}." if kind.named else ""
                also = ", present or absent" if kind.named else ""
                text = f"{kind.text}.{of} want: {kind.form.value}{also}."
                print_text("\n".join([kind.name, *textwrap.wrap(text, screen_width(), initial_indent="  ", subsequent_indent="  ")]))
        return 0

    finish(run, format)
