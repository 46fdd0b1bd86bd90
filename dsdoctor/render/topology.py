"""A topology as text: a tree, the matrix that `nvidia-smi topo -m` prints, suggestions and differences; and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from dsdoctor.facts import PcieLink
from dsdoctor.render.json import complete, to_text
from dsdoctor.render.terminal import Style
from dsdoctor.topology.graph import Device, Switch, list_of
from dsdoctor.topology.picture import Picture

SCHEMA = "dsdoctor.topology/1"
AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_FORKS = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
LEGEND = (
    ("NV#", "through # NVLinks"),
    ("PIX", "at most one PCIe bridge or switch"),
    ("PXB", "several PCIe switches, not the processor"),
    ("PHB", "a host bridge of the processor"),
    ("NODE", "several host bridges of one NUMA node"),
    ("SYS", "between NUMA nodes"),
    ("?", "not told by this source"),
)


def render(picture: Picture, *, width: int, colour: bool, unicode: bool) -> str:
    """The whole text, without a newline at its end."""
    style = Style(width=width, colour=colour, unicode=unicode)
    blocks = [
        _head(picture, style),
        tree(picture, style),
        matrix(picture, style),
        _legend(picture, style),
        _degraded(picture, style),
        _suggestions(picture, style),
        _comparison(picture, style),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(picture: Picture, style: Style) -> list[str]:
    topology = picture.topology
    source = {"facts": "", "topo-m": "nvidia-smi topo -m in ", "nccl-xml": "NCCL topology ", "hwloc": "hwloc topology "}[topology.source]
    lines = [style.paint(line, "bold") for line in style.wrap(picture.title)]
    lines += style.wrap(f"{source}{topology.label}", rest="  ")
    return [*lines, *(line for note in topology.notes for line in style.wrap(f"Note: {note}", rest="  "))]


# --- the tree ---------------------------------------------------------------------------------------------------------


def tree(picture: Picture, style: Style) -> list[str]:
    """NUMA nodes, host bridges, switches and devices, one a line."""
    topology = picture.topology
    numbers = sorted({device.numa_node for device in topology.devices}, key=lambda number: (number is None, number or 0))
    empty = [node.index for node in topology.numa_nodes if node.index not in numbers]
    lines: list[str] = []
    for number in numbers:
        node = topology.numa(number)
        cpus = f"  CPUs {node.cpus}" if node and node.cpus else ""
        lines.append(style.paint("NUMA node not told" if number is None else f"NUMA node {number}", "bold") + cpus)
        here = [device for device in topology.devices if device.numa_node == number]
        lines += _roots(picture, here, style)
    return lines + (style.wrap(f"NUMA node {', '.join(map(str, empty))}: no devices") if empty else [])


def _roots(picture: Picture, here: Sequence[Device], style: Style) -> list[str]:
    """One level for the host bridges where the source names them and there are several; none otherwise."""
    named = picture.topology.source in ("facts", "hwloc")
    roots = list(dict.fromkeys(device.root for device in here)) if named else [""]
    items: list[tuple[str, list[str]]] = []
    for root in sorted(roots):
        inside = [device for device in here if not named or device.root == root]
        below = _below(picture, "", inside, style)
        if root and (len(roots) > 1 or len(below) > 1):
            items.append((f"host bridge {root.removeprefix('pci')}", _branches(below, style)))
        else:
            items += below
    return _branches(items, style)


def _below(picture: Picture, address: str, devices: Sequence[Device], style: Style) -> list[tuple[str, list[str]]]:
    """What hangs right below a switch (or below the processor): a line for each, and the lines below it."""
    items: list[tuple[str, list[str]]] = []
    for switch in picture.topology.switches:
        inside = [device for device in devices if switch.address in device.switches]
        if switch.above == address and inside:
            items.append((_switch_line(picture, switch, style), _branches(_below(picture, switch.address, inside, style), style)))
    own = [device for device in devices if (device.switches[0] if device.switches else "") == address]
    return items + [(_device_line(picture, device, style), []) for device in own]


def _branches(items: Sequence[tuple[str, list[str]]], style: Style) -> list[str]:
    tee, end, bar, blank = _FORKS[style.unicode]
    lines = []
    for number, (line, below) in enumerate(items):
        is_last = number == len(items) - 1
        lines.append(f"{end if is_last else tee}{line}")
        lines += [f"{blank if is_last else bar}{text}" for text in below]
    return lines


def _switch_line(picture: Picture, switch: Switch, style: Style) -> str:
    name = "PCIe switch (implied by the matrix)" if switch.is_inferred else f"PCIe switch {switch.address}"
    return _marked(name, [picture.link_words[switch.address].text], picture.degraded.get(switch.address, ""), style)


def _device_line(picture: Picture, device: Device, style: Style) -> str:
    names = {"gpu": "" if picture.topology.gpu_model else device.model, "nic": device.model, "ethernet": "network", "nvswitch": ""}
    title = " ".join(part for part in (device.name, names.get(device.kind, "")) if part)
    told = [picture.link_words[device.name], *([picture.nvlink_words[device.name]] if device.name in picture.nvlink_words else [])]
    words = [device.address, *(part.text for part in told if not part.degraded)]
    line = _marked(style.clean(title), words, picture.degraded.get(device.name, ""), style)
    return f"{line}{style.paint('  differs', 'yellow')}" if device.name in picture.differing else line


def _marked(name: str, words: Iterable[str], degraded: str, style: Style) -> str:
    line = "  ".join([name, *(word for word in words if word)])
    return f"{line}  {style.paint(f'! {degraded}', 'yellow')}" if degraded else line


# --- the matrix -------------------------------------------------------------------------------------------------------


def matrix(picture: Picture, style: Style) -> list[str]:
    """The matrix; in several parts where the width does not hold it in one."""
    devices = picture.columns
    if not devices:
        return []
    gpus, nics = picture.topology.gpus, picture.topology.nics
    whole = _table(picture, devices, devices, AFFINITY, style)
    if max(map(_shown_width, whole)) <= style.width:
        return whole
    label, size = _sizes(picture, devices)
    room = max(1, (style.width - label) // size)
    parts = _chunks(gpus, room)
    blocks = [_table(picture, gpus, columns, (), style) for columns in parts[:-1]]
    if gpus:
        last = _table(picture, gpus, parts[-1], AFFINITY, style)
        fits = max(map(_shown_width, last)) <= style.width
        blocks += [last] if fits else [_table(picture, gpus, parts[-1], (), style), _table(picture, gpus, (), AFFINITY, style)]
    blocks += [_table(picture, devices, columns, (), style) for columns in _chunks(nics, room)]
    return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]


def _chunks(devices: Sequence[Device], size: int) -> list[Sequence[Device]]:
    return [devices[start : start + size] for start in range(0, len(devices), size)]


def _sizes(picture: Picture, devices: Sequence[Device]) -> tuple[int, int]:
    cells = [cell for row in picture.topology.matrix(devices) for cell in row]
    longest = max((len(device.name) for device in devices), default=4)
    return longest + 1, max(longest, *(len(cell) + 1 for cell in cells), 4) + 1 if cells else longest + 1


def _table(picture: Picture, rows: Sequence[Device], columns: Sequence[Device], affinity: Sequence[str], style: Style) -> list[str]:
    label, size = _sizes(picture, picture.columns)
    extra = {name: [_affinity(device, name) for device in rows] for name in affinity}
    wide = {name: max(len(name), *map(len, values)) + 2 for name, values in extra.items()}
    header = " " * label + "".join(f"{device.name:<{size}}" for device in columns) + "".join(f"{name:<{wide[name]}}" for name in affinity)
    lines = [style.paint(header.rstrip(), "bold")]
    for number, row in enumerate(rows):
        cells = "".join(_cell(picture, row, column, size, style) for column in columns)
        told = "".join(f"{extra[name][number]:<{wide[name]}}" for name in affinity)
        lines.append(f"{row.name:<{label}}{cells}{told}".rstrip())
    return lines


def _cell(picture: Picture, row: Device, column: Device, size: int, style: Style) -> str:
    path = picture.topology.path(row, column)
    if (row.name, column.name) in picture.differing_pairs:
        return style.paint(f"{path}*", "yellow") + " " * (size - len(path) - 1)
    text = f" {path}" if path == "X" else path
    colour = "green" if path.startswith("NV") else "dim" if path in ("SYS", "?") else "plain"
    return style.paint(text, colour) + " " * (size - len(text))


def _affinity(device: Device, name: str) -> str:
    """As nvidia-smi: adapters have none, and N/A stands for what the firmware does not tell."""
    if device.kind != "gpu":
        return ""
    return {"CPU Affinity": device.cpus or "N/A", "NUMA Affinity": device.numa_affinity or "N/A", "GPU NUMA ID": device.gpu_numa_id}[name]


def _shown_width(line: str) -> int:
    return len(re.sub(r"\x1b\[[0-9;]*m", "", line))


def _legend(picture: Picture, style: Style) -> list[str]:
    devices = picture.columns
    cells = {cell for row in picture.topology.matrix(devices) for cell in row}
    shown = [f"{name} {text}" for name, text in LEGEND if name in cells or (name == "NV#" and any(cell.startswith("NV") for cell in cells))]
    lines = style.wrap("; ".join(shown) + "." + (" * differs from the reference." if picture.differing_pairs else "")) if shown else []
    named = [f"{nic.name} {nic.model}" for nic in picture.topology.nics if nic.model and nic.model != nic.name]
    return lines + (style.wrap("NICs: " + ", ".join(named), rest="      ") if named else [])


# --- degraded, suggestions, differences -------------------------------------------------------------------------------


def _degraded(picture: Picture, style: Style) -> list[str]:
    if not picture.degraded:
        return []
    lines = [style.paint("Degraded links", "bold")]
    return lines + [line for name, text in picture.degraded.items() for line in style.wrap(f"{name}: {text}", "  ! ", "    ", "yellow")]


def _suggestions(picture: Picture, style: Style) -> list[str]:
    advice = picture.advice
    lines = [style.paint("Suggestions", "bold")]
    for grouping in advice.groupings:
        groups = " | ".join(" ".join(map(str, group.gpus)) for group in grouping.groups)
        worst = min(grouping.groups, key=lambda group: (group.gb_per_s is not None, group.gb_per_s or 0.0))
        rate = f", {worst.gb_per_s:.0f} GB/s" if worst.gb_per_s else ""
        paths = "/".join(dict.fromkeys(group.path for group in grouping.groups))
        remark = f"; {grouping.remark}" if grouping.remark else ""
        left = f"; alone: {' '.join(map(str, grouping.left_over))}" if grouping.left_over else ""
        lines += style.wrap(f"TP={grouping.size}: GPUs {groups}  ({paths}{rate}{remark}{left})", "  ", "        ")
    near = [binding for binding in advice.bindings if binding.nics and binding.nic_path in ("PIX", "PXB")]
    if near:
        told = [f"GPU{binding.gpu} {'+'.join(binding.nics)} {binding.nic_path}" for binding in near]
        lines += style.wrap(f"Nearest adapters: {', '.join(told)}", "  ", "    ")
    if advice.nccl_ib_hca:
        lines += style.command(f'export NCCL_IB_HCA="{advice.nccl_ib_hca}"', "    ")
    lines += _binding_lines(picture, style)
    lines += [line for remark in advice.remarks for line in style.wrap(remark, "  ", "    ")]
    return lines if len(lines) > 1 else []


def _binding_lines(picture: Picture, style: Style) -> list[str]:
    """One command for each NUMA node: the GPUs of a node share it."""
    bound = [binding for binding in picture.advice.bindings if binding.commands]
    lines = []
    for number in dict.fromkeys(binding.numa_node for binding in bound):
        here = [binding for binding in bound if binding.numa_node == number]
        gpus = ",".join(str(binding.gpu) for binding in here)
        told = list_of(binding.gpu for binding in here)
        first = f"CUDA_VISIBLE_DEVICES={here[0].gpu} "
        lines += style.wrap(f"GPU {told}: NUMA node {number}, CPUs {here[0].cpus or 'not told'}", "  ", "    ")
        lines += [
            line for command in here[0].commands for line in style.command(command.replace(first, f"CUDA_VISIBLE_DEVICES={gpus} "), "    ")
        ]
    return lines


def _comparison(picture: Picture, style: Style) -> list[str]:
    comparison = picture.comparison
    if comparison is None:
        return style.wrap("Not compared with a reference: the product is not told here. Name it with --reference ID.", rest="  ")
    row = comparison.reference
    verdict = (
        "no difference"
        if not comparison.differences
        else f"{len(comparison.differences)} difference{'s' * (len(comparison.differences) > 1)}"
    )
    lines = style.wrap(f"Compared with {row.title} ({row.id}; {comparison.chosen_by}): {verdict}", rest="  ")
    for item in comparison.differences:
        lines += style.wrap(f"{item.what}: expected {item.expected}, found {item.found}", "  ! ", "    ", "yellow")
    if comparison.not_compared:
        lines += style.wrap(f"Not compared: {'; '.join(comparison.not_compared)}", "  ", "    ")
    return [*lines, *style.wrap(f"Source: {'; '.join(row.basis.sources)}", "  ", "    ", "dim")]


# --- JSON -------------------------------------------------------------------------------------------------------------


def document(picture: Picture) -> str:
    """The topology as one JSON document."""
    topology, comparison = picture.topology, picture.comparison
    devices = picture.columns
    return to_text(
        {
            "schema": SCHEMA,
            "label": topology.label,
            "source": topology.source,
            "title": picture.title,
            "hypervisor": topology.hypervisor or None,
            "notes": list(topology.notes),
            "nvlinks_known": topology.nvlinks_known,
            "numa_nodes": complete(topology.numa_nodes),
            "switches": [complete(switch) for switch in topology.switches],
            "devices": [_device_json(picture, device) for device in topology.devices],
            "matrix": {"names": [device.name for device in devices], "paths": [list(row) for row in topology.matrix(devices)]},
            "degraded": dict(picture.degraded),
            "suggestions": complete(picture.advice),
            "reference": _comparison_json(comparison) if comparison else None,
        }
    )


def _device_json(picture: Picture, device: Device) -> dict[str, Any]:
    plain: dict[str, Any] = complete(device)
    plain["link"] = complete(device.link) if device.link not in (None, PcieLink()) else None
    return {**plain, "nvlink_count": device.nvlink_count if picture.topology.nvlinks_known else None}


def _comparison_json(comparison: Any) -> dict[str, Any]:
    return {
        "id": comparison.reference.id,
        "title": comparison.reference.title,
        "chosen_by": comparison.chosen_by,
        "differences": complete(comparison.differences),
        "not_compared": list(comparison.not_compared),
        "sources": list(comparison.reference.basis.sources),
    }
