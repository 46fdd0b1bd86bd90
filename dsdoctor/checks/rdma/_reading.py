"""The ports of RDMA adapters, or why there is nothing to say about them."""

from __future__ import annotations

from dsdoctor.checks.pcie._reading import rdma_nics
from dsdoctor.facts import PciDevice, RdmaPort, Section, State
from dsdoctor.findings import Doubt, NotApplicable

NO_ADAPTER = NotApplicable(reason="there is no RDMA adapter")


def no_ports(rdma_ports: Section[tuple[RdmaPort, ...]], pci_devices: Section[tuple[PciDevice, ...]]) -> Doubt | NotApplicable:
    """What to say where no port is known."""
    no_card = pci_devices.value is not None and not rdma_nics(pci_devices.value)
    if rdma_ports.state in (State.KNOWN, State.ABSENT) or no_card:
        return NO_ADAPTER
    return Doubt(subject="RDMA ports", reason=f"the ports are not known ({rdma_ports.why or 'nobody looked'})")
