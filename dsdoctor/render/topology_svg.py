"""A topology as a picture (SVG, our own lines and boxes) and as one HTML page around it. Light and dark follow the reader's system."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dsdoctor.render.account import line
from dsdoctor.render.terminal import Style
from dsdoctor.render.topology import render
from dsdoctor.topology.graph import Device, Switch
from dsdoctor.topology.picture import Fault, Picture

BOX_WIDTH, BOX_HEIGHT, GAP, FRAME, MARGIN = 132, 60, 10, 14, 20
RAIL, INDENT = 6, 14
"""Where the bus of a column of devices runs, and how far its boxes stand in."""
SWITCH_HEIGHT, LEVEL, HEADER = 34, 58, 34
NVLINK_DROP, NVLINK_HEIGHT = 46, 40
TEXT_LINE = 20
SMALLEST_WIDTH = 700.0

CSS = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328; }
  .title { font-size: 19px; font-weight: 600; } .sub, .small { fill: #59636e; } .small { font-size: 11px; } .name { font-weight: 600; }
  .ground { fill: #ffffff; } .numa { fill: #f6f8fa; stroke: #afb8c1; } .gpu { fill: #dafbe1; stroke: #1a7f37; }
  .nic { fill: #ddf4ff; stroke: #0969da; } .ethernet { fill: #eaeef2; stroke: #6e7781; } .nvswitch { fill: #eaeef2; stroke: #6e7781; }
  .switch { fill: #fff8c5; stroke: #9a6700; } .bar { fill: #dafbe1; stroke: #1a7f37; }
  .bus { stroke: #6e7781; fill: none; } .nvlink { stroke: #1a7f37; fill: none; stroke-width: 2.5; } .between { stroke: #6e7781; stroke-dasharray: 5 4; fill: none; }
  .degraded { stroke: #bc4c00; stroke-width: 3; } .faulty { stroke: #cf222e; stroke-width: 3; } .differs { stroke: #cf222e; stroke-width: 3; stroke-dasharray: 6 3; }
  text.warn { fill: #bc4c00; font-weight: 600; } text.bad { fill: #cf222e; font-weight: 600; } .mid { text-anchor: middle; }
"""
DARK = """
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .sub, .small { fill: #9198a1; } .ground { fill: #0d1117; } .numa { fill: #151b23; stroke: #3d444d; }
    .gpu, .bar { fill: #12261e; stroke: #3fb950; } .nic { fill: #121d2f; stroke: #4493f8; } .ethernet, .nvswitch { fill: #212830; stroke: #9198a1; }
    .switch { fill: #272115; stroke: #d29922; } .bus, .between { stroke: #9198a1; } .nvlink { stroke: #3fb950; }
    .degraded { stroke: #f0883e; } .faulty, .differs { stroke: #f85149; } text.warn { fill: #f0883e; } text.bad { fill: #f85149; }
  }
"""


def svg(picture: Picture) -> str:
    """The picture as an SVG document."""
    drawing = _draw(picture)
    label = _clean(f"Topology: {picture.title}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" width="{drawing.width:.0f}" '
        f'height="{drawing.height:.0f}" role="img" aria-label="{label}">\n<title>{label}</title>\n<style>{CSS}{DARK}</style>\n'
        f'<rect class="ground" width="100%" height="100%"/>\n' + "\n".join(drawing.parts) + "\n</svg>\n"
    )


def html(picture: Picture) -> str:
    """One page that needs nothing else: the picture, and the text below it."""
    text = escape(render(picture, width=110, colour=False, unicode=True))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{_clean(f'Topology: {picture.title}')}</title>\n<style>\n:root {{ color-scheme: light dark; }}\n"
        "body { margin: 1.5rem; background: Canvas; color: CanvasText; font-family: system-ui, sans-serif; }\n"
        "svg { max-width: 100%; height: auto; }\npre { overflow-x: auto; line-height: 1.35; }\n</style>\n</head>\n<body>\n"
        f"{svg(picture)}<pre>{text}</pre>\n</body>\n</html>\n"
    )


# --- what goes where --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Drawing:
    """Lines of SVG and the size of the whole."""

    width: float
    height: float
    parts: list[str]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A switch (or the processor itself, without one) with what hangs below it."""

    switch: Switch | None
    branches: tuple[_Branch, ...]
    columns: tuple[tuple[Device, ...], ...]
    """Devices right below, those of a column above each other, the GPU undermost."""

    @property
    def width(self) -> float:
        """Pixels that it takes."""
        own = len(self.columns) * (BOX_WIDTH + GAP)
        return max(own + sum(branch.width for branch in self.branches), BOX_WIDTH + GAP)

    @property
    def depth(self) -> int:
        """Levels of switches in it."""
        return bool(self.switch) + max((branch.depth for branch in self.branches), default=0)

    @property
    def rows(self) -> int:
        """Boxes above each other in its highest column."""
        return max([len(column) for column in self.columns] + [branch.rows for branch in self.branches], default=0)


def _branch(picture: Picture, switch: Switch | None, devices: Sequence[Device]) -> _Branch:
    address = switch.address if switch else ""
    below = []
    for item in picture.topology.switches:
        inside = [device for device in devices if item.address in device.switches]
        if item.above == address and inside:
            below.append(_branch(picture, item, inside))
    own = [device for device in devices if (device.switches[0] if device.switches else "") == address]
    return _Branch(switch, tuple(below), tuple(_columns(own)))


def _columns(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Adapters above GPUs; NVSwitches and network ports beside them, two in a column."""
    gpus = [device for device in devices if device.kind == "gpu"]
    nics = [device for device in devices if device.kind == "nic"]
    rest = [device for device in devices if device.kind not in ("gpu", "nic")]
    per_column = max(1, -(-len(nics) // max(len(gpus), 1))) if gpus else 2
    stacks = [nics[start : start + per_column] for start in range(0, len(nics), per_column)]
    for stack, gpu in itertools.zip_longest(stacks, gpus):
        yield (*(stack or ()), *([gpu] if gpu else ()))
    if rest:
        high = -(-len(rest) // -(-len(rest) // 3))
        yield from (tuple(rest[start : start + high]) for start in range(0, len(rest), high))


# --- drawing ----------------------------------------------------------------------------------------------------------


def _draw(picture: Picture) -> _Drawing:
    numbers = sorted({device.numa_node for device in picture.topology.devices}, key=lambda number: (number is None, number or 0))
    homes = [
        (number, _branch(picture, None, [device for device in picture.topology.devices if device.numa_node == number]))
        for number in numbers
    ]
    depth, rows = max((branch.depth for _, branch in homes), default=0), max((branch.rows for _, branch in homes), default=1)
    parts: list[str] = []
    top: float = MARGIN + 66
    height = HEADER + depth * LEVEL + rows * (BOX_HEIGHT + GAP) + FRAME + 6
    bottoms: dict[str, tuple[float, float]] = {}
    left: float = MARGIN
    frames: list[tuple[float, float]] = []
    for number, branch in homes:
        width = branch.width + 2 * FRAME
        node = picture.topology.numa(number)
        title = "NUMA node not told" if number is None else f"NUMA node {number}" + (f" · CPUs {node.cpus}" if node and node.cpus else "")
        parts.append(f'<rect class="numa" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="10"/>')
        parts.append(_text(left + FRAME, top + 22, _cut(title, width - 2 * FRAME), "name"))
        parts += _draw_branch(picture, branch, left + FRAME + GAP / 2, top + HEADER, None, top + HEADER + depth * LEVEL, rows, bottoms)
        frames.append((left, width))
        left += width + 2 * GAP
    for (one, width), (other, _) in itertools.pairwise(frames):
        parts.append(f'<line class="between" x1="{one + width:.0f}" y1="{top + 18:.0f}" x2="{other:.0f}" y2="{top + 18:.0f}"/>')
    right = max(left - 2 * GAP, MARGIN + SMALLEST_WIDTH)
    parts.append(_text(MARGIN, MARGIN + 22, _cut(picture.title, right - MARGIN, 10.5), "title"))
    parts.append(_text(MARGIN, MARGIN + 44, _cut(_subtitle(picture), right - MARGIN, 6.9), "sub"))
    bottom: float = top + height
    nvlinks, bottom = _nvlinks(picture, bottoms, bottom, frames)
    parts += nvlinks
    footer, bottom = _footer(picture, bottom + 14, right)
    return _Drawing(width=right + MARGIN, height=bottom + MARGIN, parts=[*parts, *footer])


def _subtitle(picture: Picture) -> str:
    topology = picture.topology
    return f"{'virtual machine · ' if topology.hypervisor else ''}{topology.label}"


def _draw_branch(
    picture: Picture,
    branch: _Branch,
    left: float,
    top: float,
    above: float | None,
    floor: float,
    rows: int,
    bottoms: dict[str, tuple[float, float]],
) -> list[str]:
    """A branch from `left`; `above` is the lower edge of the switch above it, `floor` where the boxes of devices begin."""
    parts: list[str] = []
    if branch.switch:
        width = branch.width - GAP
        if above is not None:
            parts.append(_line(left + width / 2, above, top))
        parts += _switch_box(picture, branch.switch, left, top, width)
        above = top + SWITCH_HEIGHT
        top += LEVEL
    for child in branch.branches:
        parts += _draw_branch(picture, child, left, top, above, floor, rows, bottoms)
        left += child.width
    for column in branch.columns:
        first = floor + (rows - len(column)) * (BOX_HEIGHT + GAP)
        indent = INDENT if above is not None else 0
        for number, device in enumerate(column):
            y = first + number * (BOX_HEIGHT + GAP)
            parts += _device_box(picture, device, left + indent, y, BOX_WIDTH - indent)
            bottoms[device.name] = (left + (BOX_WIDTH + indent) / 2, y + BOX_HEIGHT)
            if above is not None:
                middle = y + BOX_HEIGHT / 2
                parts.append(f'<path class="bus" d="M{left + RAIL} {above:.0f}V{middle:.0f}H{left + indent:.0f}"/>')
        left += BOX_WIDTH + GAP
    return parts


def _line(x: float, top: float, bottom: float) -> str:
    return f'<path class="bus" d="M{x:.0f} {top:.0f}V{bottom:.0f}"/>'


def _switch_box(picture: Picture, switch: Switch, left: float, top: float, width: float) -> list[str]:
    degraded, fault = picture.degraded.get(switch.address, ""), picture.faults.get(switch.address)
    name = "PCIe switch" if switch.is_inferred or width > 160 else ""
    link = picture.link_words[switch.address].text if width > 240 else ""
    words = [name, "" if switch.is_inferred else switch.address, link, degraded, fault.text if fault else ""]
    box = (
        f'<rect class="switch{_marks(degraded, fault)}" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{SWITCH_HEIGHT}" rx="6"/>'
    )
    return [box, _text(left + width / 2, top + 21, _cut(" · ".join(word for word in words if word), width - 6, 6.4), "small mid")]


def _device_box(picture: Picture, device: Device, left: float, top: float, width: float) -> list[str]:
    degraded, fault = picture.degraded.get(device.name, ""), picture.faults.get(device.name)
    marks = " differs" if device.name in picture.differing else _marks(degraded, fault)
    title = device.name if device.kind == "gpu" or not device.model or device.model == device.name else f"{device.name} {device.model}"
    title = "GPU ?" if device.index < 0 else title  # NVML does not number it; its address stands below
    link = picture.link_words[device.name]
    lines = [(_cut(title, width - 10, 7.6), "name mid"), (device.address, "small mid")]
    trouble = fault.text if fault else degraded.removesuffix(" active")
    kind = " bad" if fault and fault.is_error else " warn" if trouble else ""
    lines.append((_cut(trouble or link.text, width - 6, 6.6 if trouble else 5.8), f"small mid{kind}"))
    box = f'<rect class="{device.kind}{marks}" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
    return [box, *(_text(left + width / 2, top + 19 + 17 * number, text, kind) for number, (text, kind) in enumerate(lines) if text)]


def _marks(degraded: str, fault: Fault | None) -> str:
    return " faulty" if fault and fault.is_error else " degraded" if degraded or fault else ""


def _nvlinks(
    picture: Picture, bottoms: dict[str, tuple[float, float]], bottom: float, frames: Sequence[tuple[float, float]]
) -> tuple[list[str], float]:
    """A bar for NVSwitches when all GPUs reach all others, else a curve for each pair; and where the drawing ends."""
    gpus = [gpu for gpu in picture.topology.gpus if gpu.name in bottoms]
    pairs = {(one.name, other.name): picture.topology.path(one, other) for one, other in itertools.combinations(gpus, 2)}
    joined = {pair: path for pair, path in pairs.items() if path.startswith("NV")}
    if not joined:
        return [], bottom
    if len(joined) == len(pairs) and not any(links.target != "switch" for gpu in gpus for links in gpu.nvlinks):
        return _nvlink_bar(picture, gpus, sorted(set(joined.values())), bottoms, bottom, frames)
    return _nvlink_curves(picture, joined, bottoms, bottom)


def _nvlink_bar(
    picture: Picture,
    gpus: Sequence[Device],
    paths: Sequence[str],
    bottoms: dict[str, tuple[float, float]],
    bottom: float,
    frames: Sequence[tuple[float, float]],
) -> tuple[list[str], float]:
    top = bottom + NVLINK_DROP
    parts = []
    for gpu in gpus:
        x, y = bottoms[gpu.name]
        told = picture.nvlink_words[gpu.name]
        count = gpu.nvlink_count or max((int(path[2:]) for path in paths if path[2:].isdecimal()), default=0)
        parts.append(f'<path class="nvlink{" degraded" if told.degraded else ""}" d="M{x:.0f} {y:.0f}V{top:.0f}"/>')
        parts.append(
            _text(x + 6, top - 12, told.degraded.removesuffix(" active") or f"{count} NVLinks", "small warn" if told.degraded else "small")
        )
    left, right = frames[0][0], frames[-1][0] + frames[-1][1]
    rates = {group.gb_per_s for grouping in picture.advice.groupings for group in grouping.groups}
    rate = rates.pop() if len(rates) == 1 else None
    switched = any(gpu.nvlinks for gpu in gpus)
    words = f"{'NVSwitch' if switched else 'NVLink'}: {' to '.join(dict.fromkeys([paths[0], paths[-1]]))} between any two GPUs" + (
        f", {rate:.0f} GB/s in each direction" if rate else ""
    )
    parts.append(f'<rect class="bar" x="{left:.0f}" y="{top:.0f}" width="{right - left:.0f}" height="{NVLINK_HEIGHT}" rx="8"/>')
    parts.append(_text((left + right) / 2, top + 25, _cut(words, right - left - 10), "name mid"))
    return parts, top + NVLINK_HEIGHT


def _nvlink_curves(
    picture: Picture, joined: dict[tuple[str, str], str], bottoms: dict[str, tuple[float, float]], bottom: float
) -> tuple[list[str], float]:
    parts, lowest = [], bottom
    for (one, other), path in joined.items():
        (x1, y1), (x2, y2) = bottoms[one], bottoms[other]
        depth = bottom + 18 + abs(x2 - x1) * 0.16
        mark = " degraded" if (one, other) in picture.differing_pairs else ""
        parts.append(f'<path class="nvlink{mark}" d="M{x1:.0f} {y1:.0f}C{x1:.0f} {depth:.0f} {x2:.0f} {depth:.0f} {x2:.0f} {y2:.0f}"/>')
        parts.append(_text((x1 + x2) / 2, y1 + (depth - y1) * 0.75 + 13, path, "small mid"))
        lowest = max(lowest, depth)
    return parts, lowest


def _footer(picture: Picture, top: float, right: float) -> tuple[list[str], float]:
    """What is degraded, what differs, what to know, and the legend of colours."""
    room = right - MARGIN
    by_fault: dict[Fault, list[str]] = {}
    for name, fault in picture.faults.items():
        by_fault.setdefault(fault, []).append(name)
    lines = [(f"! {', '.join(names)}: {fault.text}", "bad" if fault.is_error else "warn") for fault, names in by_fault.items()]
    lines += [(f"! {name}: {text}", "warn") for name, text in picture.degraded.items()]
    comparison = picture.comparison
    if comparison:
        for item in comparison.differences:
            lines.append((f"≠ {comparison.reference.title}: {item.what}: expected {item.expected}, found {item.found}", "bad"))
        if not comparison.differences:
            lines.append((f"No difference from {comparison.reference.title}.", "sub"))
    lines += [(f"Note: {note}", "sub") for note in picture.topology.notes]
    parts: list[str] = []
    y = top
    for text, kind in lines:
        letter = 7.7 if kind == "sub" else 9.0  # the others are bold
        for row in Style(width=max(int(room / letter), 40)).wrap(text, rest="   "):
            y += TEXT_LINE
            parts.append(_text(MARGIN + (12 if row.startswith("   ") else 0), y, row.strip(), kind))
    y += TEXT_LINE + 8
    x: float = MARGIN
    for kind, name in (("gpu", "GPU"), ("nic", "RDMA adapter"), ("switch", "PCIe switch"), ("nvswitch", "NVSwitch, network")):
        parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y - 12:.0f}" width="16" height="14" rx="3"/>')
        parts.append(_text(x + 22, y, name, "small"))
        x += 46 + 7 * len(name)
    parts.append(f'<path class="nvlink" d="M{x:.0f} {y - 5:.0f}h22"/>')
    parts.append(_text(x + 28, y, "NVLink", "small"))
    parts.append(f'<path class="bus" d="M{x + 84:.0f} {y - 5:.0f}h22"/>')
    parts.append(_text(x + 112, y, "PCI Express", "small"))
    return parts, y


def _cut(text: str, width: float, letter: float = 7.2) -> str:
    """The text as far as it fits into so many pixels."""
    room = max(int(width / letter), 4)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{_clean(text)}</text>'


def _clean(text: str) -> str:
    return escape(line(text))
