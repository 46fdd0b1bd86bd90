"""The command `topo`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from dsdoctor.cli.options import Format, MatrixOption
from dsdoctor.cli.steps import finish, knowledge_of, screen_width, speaks_unicode, this_topology, wants_colour, write_file


class TopoFormat(str, enum.Enum):
    """How a topology is written."""

    TERMINAL = "terminal"
    JSON = "json"
    SVG = "svg"
    HTML = "html"
    NCCL_XML = "nccl-xml"


def topo_command(
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

        knowledge = knowledge_of(matrix)
        topology = read.load(source) if source else this_topology()
        shown = picture.of(topology, knowledge.matrix("gpu-limits"), knowledge.matrix("topologies"), reference)
        if format is TopoFormat.NCCL_XML:
            from dsdoctor.topology import nccl

            text = nccl.write(topology)
        elif format in (TopoFormat.SVG, TopoFormat.HTML):
            from dsdoctor.render import topology_svg

            text = topology_svg.svg(shown) if format is TopoFormat.SVG else topology_svg.html(shown)
        else:
            from dsdoctor.render import topology as page

            colour = wants_colour() and output == "-"
            text = (
                page.document(shown)
                if format is TopoFormat.JSON
                else page.render(shown, width=screen_width(), colour=colour, unicode=speaks_unicode())
            )
        write_file(output, text if text.endswith("\n") else f"{text}\n")
        return 0

    finish(run, Format.JSON if format is TopoFormat.JSON else Format.TERMINAL)
