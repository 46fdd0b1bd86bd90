"""Link speeds in words, and which of them are below what they should be."""

from __future__ import annotations

from dataclasses import dataclass

from dsdoctor.facts import PcieLink
from dsdoctor.rows import GpuLimits
from dsdoctor.topology.advice import nvlink_gb_per_s
from dsdoctor.topology.graph import Device, Switch, Topology


@dataclass(frozen=True, slots=True)
class Told:
    """Words about a link; `degraded` says what is wrong, and is empty when nothing is."""

    text: str
    degraded: str = ""


def pcie(item: Device | Switch) -> Told:
    """The PCIe link of a device. Lanes missing at any time are a fault; a low generation is not, links at rest slow down."""
    link = item.link or PcieLink()
    if item.link_gb_per_s is not None:
        return Told(f"{item.link_gb_per_s:.1f} GB/s")
    generation = link.generation or link.max_generation
    words = " ".join(([f"Gen{generation}"] if generation else []) + ([f"x{link.width}"] if link.width else []))
    if link.width and link.max_width and link.width < link.max_width:
        return Told(words, f"x{link.width} of x{link.max_width} lanes")
    if link.generation and link.max_generation and link.generation < link.max_generation:
        return Told(f"{words} now, Gen{link.max_generation} possible")
    return Told(words)


def nvlinks(gpu: Device, limits: GpuLimits | None) -> Told:
    """The NVLinks of a GPU, with the number its product has where that is known."""
    count, product = gpu.nvlink_count, limits.product(gpu.model) if limits and gpu.model else None
    rate = nvlink_gb_per_s(gpu, limits)
    expected = product.nvlink_links if product and not product.nvlink_only_with else 0
    total = max(expected, count + gpu.nvlinks_inactive)
    if not count and not gpu.nvlinks_inactive:
        return Told("")
    words = f"{count} NVLinks" + (f" {count * rate:.0f} GB/s" if rate and count else "")
    return Told(words, f"{count} of {total} NVLinks active" if count < total else "")


def all_degraded(topology: Topology, limits: GpuLimits | None) -> dict[str, str]:
    """What is degraded, by the name of the device or the address of the switch."""
    found: dict[str, list[str]] = {}
    for device in topology.devices:
        told = [pcie(device), *([nvlinks(device, limits)] if device.kind == "gpu" else [])]
        found[device.name] = [part.degraded for part in told if part.degraded]
    for switch in topology.switches:
        found[switch.address] = [text for text in (pcie(switch).degraded,) if text]
    return {name: ", ".join(parts) for name, parts in found.items() if parts}
