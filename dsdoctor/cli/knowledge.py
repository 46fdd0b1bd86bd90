"""The commands `explain` and `list`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from dsdoctor.cli.options import Format, FormatOption, MatrixOption
from dsdoctor.cli.steps import finish, print_text, screen_width, speaks_unicode, wants_colour, with_matrices


def explain_command(
    check_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A check id such as driver.too-old-for-cuda; dsdoctor.report/1 prints the JSON Schema of reports."
        ),
    ],
    format: FormatOption = Format.TERMINAL,
) -> None:
    """What a check looks at, why it matters, the remedies, the sources, and printed examples."""

    def run() -> int:
        from dsdoctor import plugins
        from dsdoctor.errors import unknown_name
        from dsdoctor.findings import SCHEMA
        from dsdoctor.render import explain as page

        if check_id == SCHEMA:
            from importlib.resources import files

            print_text(files("dsdoctor").joinpath("report.schema.json").read_text(encoding="utf-8"))
            return 0
        if check_id.partition(".")[0] == "expect":
            import dsdoctor.expect

            print_text(dsdoctor.expect.__doc__ or "")
            return 0
        checks = {item.id: item for item in plugins.load().checks}
        if check_id not in checks:
            raise unknown_name("check", check_id, checks)
        chosen = checks[check_id]
        print_text(
            page.explain_json(chosen)
            if format is Format.JSON
            else page.explain(chosen, width=screen_width(), colour=wants_colour(), unicode=speaks_unicode())
        )
        return 0

    finish(run, format)


class Listing(str, enum.Enum):
    """What can be listed."""

    CHECKS = "checks"
    PROBES = "probes"
    PROFILES = "profiles"
    MATRICES = "matrices"
    EXAMPLES = "examples"


def list_command(
    what: Annotated[Listing, typer.Argument(metavar="checks|probes|profiles|matrices|examples")],
    format: FormatOption = Format.TERMINAL,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """List checks, probes, profiles, matrices or recorded examples."""

    def run() -> int:
        from dsdoctor import plugins
        from dsdoctor.render import explain as page

        parts = with_matrices(plugins.load(), matrix)
        print_text(page.listing(what.value, parts, as_json=format is Format.JSON, width=screen_width()))
        return 0

    finish(run, format)
