"""The graph from the text of `nvidia-smi topo -m`: paths as it states them, NUMA nodes and switches as far as they follow from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dsdoctor.sources.topo_matrix import Row, TopoMatrix
from dsdoctor.topology.graph import NEAR, UNKNOWN, Device, Numa, Switch, Topology, list_of, numbers_in


def topology(matrix: TopoMatrix, label: str) -> Topology:
    """The graph of a matrix. PCI addresses, link speeds and NVSwitches are not in such a text."""
    rows = {row.name: row for row in matrix.rows}
    stated = {
        (row.name, other): cell if cell not in ("N/A",) else UNKNOWN
        for row in matrix.rows
        for other, cell in zip(matrix.names, row.cells)
        if cell != "X"
    }
    stated |= {(other, name): cell for (name, other), cell in stated.items() if (other, name) not in stated}
    devices = [_device(name, rows.get(name), matrix) for name in matrix.names]
    devices = _with_numa(devices, stated)
    devices, switches = _with_switches(devices, stated)
    return Topology(
        label=label, source="topo-m", numa_nodes=_numa_nodes(devices), switches=tuple(switches), devices=tuple(devices), stated=stated,
        notes=(
            "A matrix names no PCI addresses and no link speeds; switches are those that PIX and PXB imply. Where two GPUs have NVLinks, "
            "it does not say what their PCI path is.",
        ),
    )  # fmt: skip


def _device(name: str, row: Row | None, matrix: TopoMatrix) -> Device:
    if name.startswith("GPU"):
        affinity = (row.numa_affinity if row else "").strip()
        numbers = numbers_in(affinity)
        return Device(
            name=name, kind="gpu", index=int(name[3:]), cpus=row.cpu_affinity if row and row.cpu_affinity != "N/A" else "",
            numa_affinity=affinity if affinity != "N/A" else "", numa_node=numbers[0] if numbers else None,
            gpu_numa_id=row.gpu_numa_id or "N/A" if row else "N/A",
        )  # fmt: skip
    return Device(name=name, kind="nic", model=matrix.legend.get(name, "" if name.startswith("NIC") else name))


def _together(devices: Sequence[Device], joined: Callable[[Device, Device], bool]) -> list[list[Device]]:
    """The devices in groups, such that joined ones stand together."""
    groups: list[list[Device]] = []
    for device in devices:
        touching = [group for group in groups if any(joined(device, other) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([*(item for group in touching for item in group), device])
    order = {device.name: number for number, device in enumerate(devices)}
    return sorted((sorted(group, key=lambda item: order[item.name]) for group in groups), key=lambda group: order[group[0].name])


def _with_numa(devices: list[Device], stated: dict[tuple[str, str], str]) -> list[Device]:
    """Adapters have no NUMA column: they belong to the node of the GPUs that they reach without leaving it."""
    near = (*NEAR, "PHB", "NODE")
    node: dict[str, int] = {}
    for group in _together(devices, lambda one, other: stated.get((one.name, other.name)) in near):
        numbers = {device.numa_node for device in group if device.numa_node is not None}
        if len(numbers) == 1:
            node |= dict.fromkeys((device.name for device in group), numbers.pop())
    cpus = {device.numa_node: device.cpus for device in devices if device.cpus and device.numa_node is not None}
    return [
        replace(device, numa_node=node[device.name], cpus=device.cpus or cpus.get(node[device.name], ""))
        if device.kind == "nic" and device.name in node
        else device
        for device in devices
    ]


def _with_switches(devices: list[Device], stated: dict[tuple[str, str], str]) -> tuple[list[Device], list[Switch]]:
    """PIX: one switch above both. PXB: a further one above their switches."""
    upper: dict[str, str] = {}
    lower: dict[str, str] = {}
    switches: list[Switch] = []
    for group in _together(devices, lambda one, other: stated.get((one.name, other.name)) in NEAR):
        if len(group) < 2:
            continue
        below = _together(group, lambda one, other: stated.get((one.name, other.name)) == "PIX")
        top = f"~{len(switches)}"
        switches.append(Switch(address=top, numa_node=group[0].numa_node))
        upper |= dict.fromkeys((device.name for device in group), top)
        for part in below if len(below) > 1 else []:
            if len(part) > 1:
                address = f"~{len(switches)}"
                switches.append(Switch(address=address, above=top, numa_node=part[0].numa_node))
                lower |= dict.fromkeys((device.name for device in part), address)
    placed = [
        replace(device, switches=tuple(address for address in (lower.get(device.name, ""), upper.get(device.name, "")) if address))
        for device in devices
    ]
    return placed, switches


def _numa_nodes(devices: Sequence[Device]) -> tuple[Numa, ...]:
    cpus: dict[int, set[int]] = {}
    for device in devices:
        if device.numa_node is not None:
            cpus.setdefault(device.numa_node, set()).update(numbers_in(device.cpus))
    return tuple(Numa(index=index, cpus=list_of(numbers)) for index, numbers in sorted(cpus.items()))
