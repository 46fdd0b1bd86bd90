"""The PCI tree around the GPUs, and the IOMMU: read from sysfs, no driver needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsdoctor.facts import AerCounters, Iommu, PciDevice, PcieLink, Section, known, unreadable
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import generation_of, kind_of, width_of

DEVICES = "/sys/bus/pci/devices"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"

# PCI Express Base Specification, 7.9.1 (extended capabilities) and 7.7.11 (Access Control Services).
EXTENDED_CAPABILITIES_AT = 0x100
CONFIG_SPACE_BYTES = 4096
ACS_CAPABILITY = 0x000D
ACS_CONTROL_OFFSET = 6
ACS_REDIRECT_BITS = 0x04 | 0x08
"""P2P Request Redirect and P2P Completion Redirect."""

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Record GPUs, NVSwitches, NICs, NVMe disks and the bridges above them, and how the IOMMU is set."""
    try:
        names = host.list_directory(DEVICES)
    except OSError as error:
        devices: Section[tuple[PciDevice, ...]] = unreadable(f"{DEVICES}: {error.strerror}")
    else:
        devices = known(pci_devices(host, [name for name in names if _ADDRESS.fullmatch(name)]), DEVICES)
    return {"pci_devices": devices, "iommu": iommu(host, devices.value or ())}


# --- devices ----------------------------------------------------------------------------------------------------------


def pci_devices(host: Host, addresses: Sequence[str]) -> tuple[PciDevice, ...]:
    """The devices that matter, in the order of their addresses."""
    found = [device for address in addresses if (device := _endpoint(host, address))]
    bridges = {parent for device in found for parent in device.parents} - {device.address for device in found}
    found += [_device(host, address, "bridge", host.real_path(f"{DEVICES}/{address}")) for address in bridges]
    return tuple(sorted(found, key=lambda device: (len(device.address), device.address)))


def _endpoint(host: Host, address: str) -> PciDevice | None:
    """The record of one device, or None for a kind that does not matter."""
    folder = f"{DEVICES}/{address}"
    kind = kind_of(host.first_line(f"{folder}/class") or "", _id(host, folder, "vendor"))
    if not kind:
        return None
    device = _device(host, address, kind, host.real_path(folder))
    # A virtual function that is not in use here (there may be hundreds) is not a device of this node.
    is_idle_virtual_function = not device.interfaces and host.read_link(f"{folder}/physfn") is not None
    return None if is_idle_virtual_function else device


def _device(host: Host, address: str, kind: str, real_path: str) -> PciDevice:
    folder = f"{DEVICES}/{address}"
    above = real_path.split("/")[:-1]
    numa_node = _number(host.first_line(f"{folder}/numa_node"))
    group = (host.read_link(f"{folder}/iommu_group") or "").rpartition("/")[2]
    return PciDevice(
        address=address,
        kind=kind,
        vendor_id=_id(host, folder, "vendor"),
        device_id=_id(host, folder, "device"),
        driver=(host.read_link(f"{folder}/driver") or "").rpartition("/")[2],
        parents=tuple(part for part in reversed(above) if _ADDRESS.fullmatch(part)),
        root=next((part for part in above if _ROOT.fullmatch(part)), ""),
        numa_node=None if numa_node is None or numa_node < 0 else numa_node,
        link=_link(host, folder),
        iommu_group=_number(group),
        acs_redirect=_acs_redirect(host, folder) if kind == "bridge" else None,
        interfaces=_interfaces(host, folder) if kind == "nic" else (),
        aer=_aer(host, folder) if kind != "nvme" else None,
    )


def _id(host: Host, folder: str, name: str) -> str:
    text = (host.first_line(f"{folder}/{name}") or "").lower().removeprefix("0x")
    return text if re.fullmatch(r"[0-9a-f]{4}", text) else ""


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,9}", text) else None


def _interfaces(host: Host, folder: str) -> tuple[str, ...]:
    patterns = (f"{folder}/infiniband/*", f"{folder}/net/*", f"{folder}/virtio*/net/*")
    return tuple(path.rpartition("/")[2] for pattern in patterns for path in host.glob(pattern))


def _link(host: Host, folder: str) -> PcieLink | None:
    link = PcieLink(
        generation=generation_of(host.first_line(f"{folder}/current_link_speed") or ""),
        width=width_of(host.first_line(f"{folder}/current_link_width") or ""),
        max_generation=generation_of(host.first_line(f"{folder}/max_link_speed") or ""),
        max_width=width_of(host.first_line(f"{folder}/max_link_width") or ""),
    )
    return None if link == PcieLink() else link


def _aer(host: Host, folder: str) -> AerCounters | None:
    """Totals of the kernel's counters of Advanced Error Reporting (since Linux 4.19; none where the port does not report)."""
    found = AerCounters(
        correctable=_total(host, f"{folder}/aer_dev_correctable"),
        nonfatal=_total(host, f"{folder}/aer_dev_nonfatal"),
        fatal=_total(host, f"{folder}/aer_dev_fatal"),
    )
    return None if found == AerCounters() else found


def _total(host: Host, path: str) -> int | None:
    try:
        match = re.search(r"^TOTAL_ERR_\w+ ([0-9]{1,18})$", host.read_text(path, 4096), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


# --- access control services ------------------------------------------------------------------------------------------


def _acs_redirect(host: Host, folder: str) -> bool | None:
    try:
        return acs_redirect(host.read_bytes(f"{folder}/config", CONFIG_SPACE_BYTES))
    except OSError:
        return None


def acs_redirect(config: bytes) -> bool | None:
    """Whether a bridge sends peer-to-peer traffic up to the root; None when configuration space was cut short (not root) or is damaged."""
    offset = EXTENDED_CAPABILITIES_AT
    seen: set[int] = set()
    if len(config) < EXTENDED_CAPABILITIES_AT + 4:
        return None
    while offset:
        if offset in seen or offset < EXTENDED_CAPABILITIES_AT or offset + 8 > len(config):
            return None
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header == 0xFFFFFFFF:
            return None
        if header & 0xFFFF == ACS_CAPABILITY:
            control = int.from_bytes(config[offset + ACS_CONTROL_OFFSET : offset + ACS_CONTROL_OFFSET + 2], "little")
            return bool(control & ACS_REDIRECT_BITS)
        offset = (header >> 20) & 0xFFC
    return False


# --- the IOMMU --------------------------------------------------------------------------------------------------------


def iommu(host: Host, devices: Iterable[PciDevice]) -> Section[Iommu]:
    """Whether an IOMMU is in use, and whether it translates what the GPUs send."""
    command_line = iommu_options(host.first_line("/proc/cmdline") or "")
    units = host.glob("/sys/class/iommu/*")
    groups = host.glob(f"{IOMMU_GROUPS}/*")
    options = [f"kernel command line: {command_line}"] if command_line else []
    if not units and not groups:
        if not host.is_directory("/sys/class/iommu") and not host.is_directory(IOMMU_GROUPS):
            return unreadable(f"neither /sys/class/iommu nor {IOMMU_GROUPS} is there")
        return known(Iommu(enabled=False, evidence="; ".join(["no IOMMU unit and no group in /sys", *options])), IOMMU_GROUPS)
    gpu_groups = {device.iommu_group for device in devices if device.kind in ("gpu", "nvswitch") and device.iommu_group is not None}
    asked = [f"{IOMMU_GROUPS}/{group}" for group in sorted(gpu_groups)] or list(groups)
    types = sorted({kind for group in asked if (kind := host.first_line(f"{group}/type"))})
    seen = f"{len(units)} units in /sys/class/iommu" if units else f"{len(groups)} groups in {IOMMU_GROUPS}"
    of_type = [f"{'GPU groups' if gpu_groups else 'groups'} of type {', '.join(types)}"] if types else []
    return known(Iommu(enabled=True, mode=mode_of(types, command_line), evidence="; ".join([seen, *of_type, *options])), IOMMU_GROUPS)


def iommu_options(command_line: str) -> str:
    """The words of the kernel command line that set the IOMMU."""
    return " ".join(word for word in command_line.split() if re.match(r"(intel_|amd_)?iommu(\.\w+)?=", word))


def mode_of(types: Sequence[str], command_line: str) -> str:
    """translated or passthrough, by the type of the groups, else by the kernel command line; empty when neither tells."""
    if any(kind.startswith("DMA") for kind in types):
        return "translated"
    if "identity" in types:
        return "passthrough"
    words = command_line.split()
    if "iommu=pt" in words or "iommu.passthrough=1" in words:
        return "passthrough"
    return "translated" if "iommu.passthrough=0" in words or "iommu=nopt" in words else ""
