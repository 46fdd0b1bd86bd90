"""Commands about what could run: advise and plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsdoctor.cli.options import Format, FormatOption, MatrixOption, VerboseOption
from dsdoctor.cli.steps import (
    finish,
    knowledge_of,
    measured_rate,
    print_text,
    python_version_of,
    screen_width,
    speaks_unicode,
    these_gpus,
    this_node,
    wants_colour,
)


def advise_command(
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

        shelf = Shelf.of(knowledge_of(matrix).matrix)
        described = bool(gpu or driver or glibc or arch)
        node = nodes.node_from_options(gpu, driver, glibc, arch, shelf.gpus) if described else this_node(shelf.gpus)
        if nodes.is_python_version(python):
            node = nodes.with_python(node, nodes.python_of(python, shelf.torch))
        elif python or not described:
            node = nodes.with_python(node, python_version_of(python))
        style: dict[str, Any] = {"width": screen_width(), "colour": wants_colour(), "unicode": speaks_unicode()}
        if image:
            answer, told = images.starts(image, node, shelf), nodes.described(node, shelf.driver_branches)
            print_text(
                page.image_json(answer, told, shelf.seen) if format is Format.JSON else page.image(answer, told, shelf.seen, **style)
            )
            return 0 if answer.starts else 1
        advice = adviser.advise(node, want, shelf)
        print_text(page.advice_json(advice) if format is Format.JSON else page.advice(advice, verbose=verbose, **style))
        return 0 if advice.stack else 1

    finish(run, format)


def plan_command(
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
        float,
        typer.Option(
            "--disk-gb-s", min=0.0, metavar="GB/S", help="Read rate of the disk, for the load time. Default: of a directory, measured."
        ),
    ] = 0.0,
    format: FormatOption = Format.TERMINAL,
    matrix: MatrixOption = [],  # noqa: B006
) -> None:
    """Does a model fit: weights, KV cache, context, nodes and load time, with the arithmetic. Exit 1 when it does not."""

    def run() -> int:
        from pathlib import Path

        from dsdoctor import checkpoint, plan
        from dsdoctor.render import plan as page

        knowledge = knowledge_of(matrix)
        models, limits = knowledge.matrix("deepseek-models"), knowledge.matrix("gpu-limits")
        held = checkpoint.read(Path(model)) if Path(model).is_dir() else None
        planned = plan.of_checkpoint(held, models) if held else plan.named(model, models)
        hardware = plan.hardware_named(gpu, gpus, nodes, limits) if gpu else plan.hardware_here(these_gpus(), gpus, nodes, limits)
        rate, source = (disk_gb_s, "") if disk_gb_s or not held else measured_rate(model)
        wanted = plan.Wanted(
            context=context, kv=kv_dtype, weights=weights, tp=tp, pp=pp, ep=ep, dp_attention=dp_attention,
            disk_gb_per_s=rate, disk_source=source,
        )  # fmt: skip
        answer = plan.plan(planned, hardware, wanted, models, limits, [problem.told for problem in held.problems] if held else ())
        print_text(
            page.document(answer)
            if format is Format.JSON
            else page.render(answer, width=screen_width(), colour=wants_colour(), unicode=speaks_unicode())
        )
        return 0 if answer.fits else 1

    finish(run, format)
