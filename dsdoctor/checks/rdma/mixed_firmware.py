"""Network adapters of one board carry different firmware.

What it looks at
    The firmware of the RDMA adapters that have the same board id.

Why it matters
    Rails that should be alike then differ in their faults and their settings (adaptive routing, PCIe relaxed ordering, congestion control): the odd one is slow, or hangs under load, and every comparison between nodes stumbles
    over it. Usually an update stopped half-way, or waits for the reset of the adapter.

Sources
    Linux kernel, InfiniBand sysfs interface (fw_ver, board_id); NVIDIA firmware update practice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.rdma._reading import no_ports
from dsdoctor.facts import PciDevice, RdmaPort, Section, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = "Linux kernel: InfiniBand sysfs interface — https://docs.kernel.org/infiniband/sysfs.html"


def cards(*firmware: str, board: str = "MT_0000000838") -> tuple[RdmaPort, ...]:
    """Adapters of one board with these firmwares."""
    return tuple(RdmaPort(adapter=f"mlx5_{number}", firmware=version, board_id=board) for number, version in enumerate(firmware))


CASES = (
    Case(
        title="one of four was not updated",
        sections={"rdma_ports": cards("28.41.1000", "28.41.1000", "28.39.2048", "28.41.1000")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="mlx5_2",
    ),
    Case(title="the same on all", sections={"rdma_ports": cards("28.41.1000", "28.41.1000")}, status=Status.PASS),
    Case(
        title="another board has a firmware of its own",
        sections={"rdma_ports": (*cards("28.41.1000", "28.41.1000"), *cards("32.38.3056", board="MT_0000000884"))},
        status=Status.PASS,
    ),
    Case(title="it was not read", sections={"rdma_ports": cards("", "")}, status=Status.UNKNOWN, says="firmware"),
    Case(title="one adapter", sections={"rdma_ports": cards("28.41.1000")}, status=Status.NOT_APPLICABLE, says="one adapter"),
    Case(title="no adapter", sections={"rdma_ports": absent("no RDMA adapter")}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
    Case(title="nobody looked, and there is no card", sections={"pci_devices": ()}, status=Status.NOT_APPLICABLE, says="no RDMA adapter"),
    Case(title="/sys is not there", sections={"rdma_ports": unreadable("no /sys")}, status=Status.UNKNOWN, says="/sys"),
)


@check("rdma.mixed-firmware", Severity.WARNING, settle="ibv_devinfo | grep -E 'hca_id|fw_ver|board_id'", cases=CASES)
def mixed_firmware(
    rdma_ports: Section[tuple[RdmaPort, ...]], pci_devices: Section[tuple[PciDevice, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare adapters of one board with one another."""
    ports = rdma_ports.value or ()
    if not ports:
        yield no_ports(rdma_ports, pci_devices)
        return
    adapters = {port.adapter: port for port in ports}
    if len(adapters) < 2:
        yield NotApplicable(reason="there is one adapter only")
        return
    if not any(port.firmware for port in adapters.values()):
        yield Doubt(subject="RDMA adapters", reason="the firmware of no adapter was read")
    for board in dict.fromkeys(port.board_id for port in adapters.values() if port.board_id):
        alike = [port for port in adapters.values() if port.board_id == board and port.firmware]
        versions = Counter(port.firmware for port in alike)
        if len(versions) < 2:
            continue
        usual = versions.most_common(1)[0][0]
        odd = [port.adapter for port in alike if port.firmware != usual]
        yield Finding(
            subject=", ".join(odd),
            summary=f"{', '.join(odd)} {'carries' if len(odd) == 1 else 'carry'} another firmware than the other adapters of board {board}.",
            cause="An update stopped half-way, or waits for the reset of the adapter.",
            evidence=tuple(Evidence(where=f"rdma_ports[{port.adapter}].firmware", value=port.firmware) for port in alike[:10]),
            expected=f"one firmware on all adapters of a board, such as {usual}",
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
