"""How the node of a report is wired, as a picture with the report's findings on the devices that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.errors import DsdoctorError
from dsdoctor.facts import Sections
from dsdoctor.findings import Diagnosis, Report, Severity
from dsdoctor.plain import PlainError, from_plain
from dsdoctor.topology import from_facts, picture
from dsdoctor.topology.graph import Device, Topology
from dsdoctor.topology.picture import Fault, Picture

SECTIONS = ("platform", "cpu", "virtualization", "pci_devices", "gpus")
ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
MOST_BOXES = 128
"""Devices, and switches: with hundreds of virtual functions a picture shows nothing any more."""
GPU_NUMBERS = re.compile(r"\bGPU(?: pair)?s? (\d+(?:(?:, |>)\d+)*)")


def of(report: Report) -> Picture | None:
    """The picture; None when the facts name no GPU, or nothing that it could be wired to, or far too much."""
    try:
        sections: Sections = from_plain(Sections, {name: report.facts[name] for name in SECTIONS if name in report.facts})
        topology = from_facts.topology(sections, report.origin.label)
    except (PlainError, DsdoctorError):
        return None
    if not topology.gpus or len(topology.of_kind("gpu", "nic", "nvswitch")) < 2:
        return None
    if max(len(topology.devices), len(topology.switches)) > MOST_BOXES:
        return None
    return picture.of_facts(topology, _faults(report, topology))


def unseen(report: Report, shown: Picture) -> tuple[str, ...]:
    """Addresses that findings name and that the picture does not have, as of a GPU that fell off the bus."""
    there = {device.address for device in shown.topology.devices} | {switch.address for switch in shown.topology.switches}
    named = (address for _, item in _grave(report) for address in ADDRESS.findall(item.subject))
    return tuple(dict.fromkeys(address for address in named if address not in there))


def _grave(report: Report) -> Iterator[tuple[int, Diagnosis]]:
    """Errors and warnings with the numbers that the report gives them."""
    return ((number, item) for number, item in enumerate(report.diagnosis, 1) if item.severity is not Severity.INFO)


def _faults(report: Report, topology: Topology) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for number, item in _grave(report):
        text = f"{number}. {item.check.partition('.')[2]}"
        for name in _named_in(item.subject, topology):
            before = found.get(name)
            found[name] = (
                Fault(f"{before.text}, {text}", before.is_error or item.severity is Severity.ERROR)
                if before
                else Fault(text, item.severity is Severity.ERROR)
            )
    return found


def _named_in(subject: str, topology: Topology) -> list[str]:
    """The devices and switches that a subject names: 'GPUs 0, 3', 'GPU pair 0>1', 'GPU at 0000:9b:00.0', 'mlx5_3', 'Fabric Manager'."""
    indices = {int(number) for numbers in GPU_NUMBERS.findall(subject) for number in re.findall(r"\d+", numbers)}
    addresses, words = set(ADDRESS.findall(subject)), set(re.findall(r"[\w.-]+", subject))
    is_fabric = re.search("Fabric Manager|NVSwitch", subject) is not None

    def is_named(device: Device) -> bool:
        if device.address in addresses:
            return True
        if device.kind == "gpu":
            return device.index in indices
        return (device.kind == "nvswitch" and is_fabric) or not words.isdisjoint((device.model, *device.interfaces))

    return [
        *(device.name for device in topology.devices if is_named(device)),
        *(switch.address for switch in topology.switches if switch.address in addresses),
    ]
