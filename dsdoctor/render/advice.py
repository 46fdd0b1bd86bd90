"""Advice for a person: what works as the node stands, what after each change, and why nothing newer."""

from __future__ import annotations

from typing import Any

from dsdoctor.advise.answer import Advice, Change, Pin, Stack
from dsdoctor.advise.image import ImageAnswer
from dsdoctor.findings import Disruption
from dsdoctor.render.json import complete, to_text
from dsdoctor.render.terminal import ERROR, FINE, UNKNOWN, Style

SHOWN_PINS = 8
_COSTS = {
    Disruption.NONE: "interrupts nothing",
    Disruption.RESTART_PROCESS: "restarts the process or service",
    Disruption.RESET_GPU: "resets the GPU",
    Disruption.REBOOT: "reboots the node",
    Disruption.REPLACE_HARDWARE: "replaces hardware",
}


def advice_json(advice: Advice) -> str:
    """The advice as one JSON document."""
    return to_text(complete(advice))


def image_json(answer: ImageAnswer, node: str, knowledge_date: str) -> str:
    """The answer about an image as one JSON document."""
    document: dict[str, Any] = {"schema": "dsdoctor.image/1", "node": node, **complete(answer), "knowledge_date": knowledge_date}
    return to_text(document)


def advice(advice: Advice, *, width: int, colour: bool, unicode: bool = True, verbose: bool = False) -> str:
    """The advice as text."""
    style = Style(width=width, colour=colour, unicode=unicode)
    lines = _head(advice.node, advice.knowledge_date, style)
    lines += style.wrap(f"want: {', '.join(advice.wants)}", "", "      ")
    if advice.stack is not None:
        lines += ["", style.paint(f"{FINE.bare(style)} Works as the node stands", "bold"), *_stack(advice.stack, style, verbose)]
    else:
        lines += ["", style.paint(f"{ERROR.bare(style)} Nothing works as the node stands", "bold"), *_clash(advice, style)]
    if advice.newer_build is not None:
        lines += ["", style.paint("Newer, from PyTorch's own index", "bold"), *_short(advice.newer_build, style)]
        grounds = [ground for ground in advice.newer_build.rests_on if ground.kind == "wheel"]
        lines += [line for ground in grounds for line in style.wrap(f"- {ground.text}", "  ", "    ")]
    lines += _why_not(advice, style)
    if advice.changes:
        lines += ["", style.paint("After a change of the node, the least disruptive first", "bold")]
        for number, change in enumerate(advice.changes, 1):
            lines += _change(number, change, style, verbose)
    if advice.notes:
        lines += ["", *(line for note in advice.notes for line in style.wrap(f"note: {note}", "", "      "))]
    return "\n".join(lines)


def image(answer: ImageAnswer, node: str, knowledge_date: str, *, width: int, colour: bool, unicode: bool = True) -> str:
    """The answer about a container image as text."""
    style = Style(width=width, colour=colour, unicode=unicode)
    mark, word = {True: (FINE, "starts on this node"), False: (ERROR, "does not start on this node"), None: (UNKNOWN, "cannot be told")}[
        answer.starts
    ]
    lines = _head(node, knowledge_date, style)
    lines += style.wrap(f"image: {answer.image}", "", "       ")
    lines += ["", style.paint(f"{mark.bare(style)} {word[0].upper()}{word[1:]}", "bold"), *style.wrap(answer.reason, "  ", "  ")]
    lines += [line for ground in answer.grounds if ground.text != answer.reason for line in style.wrap(f"- {ground.text}", "  ", "    ")]
    lines += [line for step in answer.steps for line in style.wrap(f"- {step}", "  ", "    ")]
    return "\n".join(lines)


def _head(node: str, knowledge_date: str, style: Style) -> list[str]:
    return [*style.wrap(f"dsdoctor advise · knowledge of {knowledge_date}"), *style.wrap(f"node: {node}", "", "      ")]


def _title(stack: Stack) -> str:
    """vllm 0.19.1 with torch 2.10.0+cu128 on Python 3.12."""
    own = [pin for pin in stack.pins if (not pin.asked_by and pin.version) or pin.name == "torch"]
    names = [f"{pin.name} {pin.version}{f'+{pin.build}' if pin.build else ''}" for pin in own]
    return f"{' with '.join(names[:2]) if len(names) == 2 else ', '.join(names)} on Python {stack.python}"


def _stack(stack: Stack, style: Style, verbose: bool) -> list[str]:
    lines = style.wrap(_title(stack), "  ", "  ", colour="green")
    brought = [f"{pin.name} {pin.version or pin.note}" for pin in _most_telling_first(stack) if pin.version or pin.note]
    libraries = [
        f"CUDA {stack.cuda}" if stack.cuda else "",
        f"cuDNN {stack.cudnn}" if stack.cudnn else "",
        f"NCCL {stack.nccl}" if stack.nccl else "",
    ]
    shown = brought if verbose else brought[:SHOWN_PINS]
    rest = [f"and {len(brought) - len(shown)} more (--verbose)"] if len(brought) > len(shown) else []
    lines += style.wrap(f"brings: {'; '.join([*filter(None, libraries), *shown, *rest])}", "  ", "    ")
    if stack.needs:
        lines += style.wrap(f"needs: {', '.join(stack.needs)}", "  ", "    ")
    lines += ["  install with pip, or with uv:", *_commands(stack, style, "    ")]
    if stack.rests_on:
        lines += ["  rests on:"]
        for ground in stack.rests_on:
            lines += style.wrap(f"- {ground.text}", "    ", "      ")
            if verbose:
                lines += [line for source in ground.sources for line in style.wrap(f"source: {source}", "      ", "        ", "dim")]
    return lines


def _most_telling_first(stack: Stack) -> list[Pin]:
    """What the stack brings, the kernels and the companions of torch before the small parts."""
    telling = (
        "triton",
        "torchvision",
        "torchaudio",
        "flashinfer-python",
        "sglang-kernel",
        "sgl-kernel",
        "flash-attn-4",
        "xformers",
        "transformers",
    )
    brought = [pin for pin in stack.pins if pin.name != "torch" and pin.asked_by]
    return sorted(brought, key=lambda pin: telling.index(pin.name) if pin.name in telling else len(telling))


def _short(stack: Stack, style: Style, indent: str = "  ") -> list[str]:
    return [*style.wrap(_title(stack), indent, indent, colour="green"), *_commands(stack, style, f"{indent}  ")]


def _commands(stack: Stack, style: Style, indent: str) -> list[str]:
    return [line for tool in stack.commands for command in tool.commands for line in style.command(command, indent)]


def _clash(advice: Advice, style: Style) -> list[str]:
    clash = advice.clash
    if clash is None:
        return []
    lines = []
    if len(clash.wants) > 1:
        lines += style.wrap(
            f"these wants clash, and leaving out any one of them lets the rest be met: {' and '.join(clash.wants)}", "  ", "  "
        )
    lines += [line for reason in clash.reasons for line in style.wrap(f"- {reason}", "  ", "    ")]
    lines += [line for text in advice.instead for line in style.wrap(f"instead: {text}", "  ", "    ")]
    return lines


def _why_not(advice: Advice, style: Style) -> list[str]:
    said = advice.clash.reasons if advice.clash else ()
    rejected = [group for group in advice.rejected if len(advice.rejected) > 1 or group.reason not in said]
    if not rejected:
        return []
    lines = ["", style.paint(f"Why no {'newer ' if advice.stack else ''}{rejected[0].package}", "bold")]
    for group in rejected:
        span = group.versions[0] if len(group.versions) == 1 else f"{group.versions[0]} to {group.versions[-1]}"
        lines += style.wrap(f"{span}: {group.reason}", "  ", "    ")
    return lines


def _change(number: int, change: Change, style: Style, verbose: bool) -> list[str]:
    lines = style.wrap(f"{number}) {change.summary}", "  ", "     ", colour="bold")
    lines += style.wrap(f"cost: {_COSTS[change.disruption]}", "     ", "       ")
    lines += _short(change.stack, style, "     ")
    lines += [line for step in change.steps for line in style.wrap(f"- {step}", "     ", "       ")]
    if verbose:
        grounds = [
            ground.text for ground in change.stack.rests_on if ground.kind in ("native", "minor-version", "forward-compat", "gpu-code")
        ]
        lines += [line for text in grounds for line in style.wrap(f"- {text}", "     ", "       ")]
        lines += [line for source in change.sources for line in style.wrap(f"source: {source}", "     ", "       ", "dim")]
    return lines
