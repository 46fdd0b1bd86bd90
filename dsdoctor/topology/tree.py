"""From chains of bridges to switches: what sysfs and hwloc tell alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsdoctor.topology.graph import Device, Switch


def switches_above(parents: Sequence[str]) -> tuple[str, ...]:
    """The PCIe switches in a chain of bridges (nearest first), each by its upstream port.

    A switch is two bridges, its downstream and its upstream port; the bridge that is left over at the end is the port of the processor.
    """
    return tuple(parents[1::2])


_RDMA_NAME = re.compile(r"(?:mlx[45]_|bnxt_re|irdma|efa_|mana_|erdma_|hfi1_|qedr|usnic_)\d[\w.-]{0,32}|(?:rdmap|rocep|roceo)\w{1,32}")


def is_rdma_name(name: str) -> bool:
    """Whether the kernel or rdma-core gives such names to RDMA devices (mlx5_0, rocep1s0), not to network interfaces."""
    return bool(_RDMA_NAME.fullmatch(name))


def port_above(parents: Sequence[str]) -> str:
    """The port right above a device, empty on a root bus."""
    return parents[0] if parents else ""


def switches_of(devices: Sequence[Device], records: Mapping[str, Switch]) -> tuple[Switch, ...]:
    """The switches that have one of these devices below them, with what `records` knows of each, uppermost first."""
    found: dict[str, Switch] = {}
    for device in devices:
        for level, address in enumerate(device.switches):
            above = device.switches[level + 1] if level + 1 < len(device.switches) else ""
            known = records.get(address, Switch(address=address))
            found[address] = Switch(
                address=address, above=above, root=device.root, link=known.link, link_gb_per_s=known.link_gb_per_s, vendor_id=known.vendor_id, device_id=known.device_id,
                numa_node=known.numa_node if known.numa_node is not None else device.numa_node,
            )  # fmt: skip
    return tuple(found[address] for address in sorted(found, key=lambda address: (len(address), address)))
