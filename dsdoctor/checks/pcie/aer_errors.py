"""A device on the PCI bus reports errors (Advanced Error Reporting).

What it looks at
    The kernel's error counters of GPUs, NVSwitches, network cards and the bridges above them since boot, and how they grow between two readings (`--watch`, or the GPU tests).

Why it matters
    Correctable errors are damaged packets that were sent again: they cost bandwidth, and many of them announce a link that will fail. An uncorrectable one means lost data: the
    driver resets the device, or the GPU falls off the bus. A few correctable errors since boot are normal; their present rate only shows in two readings.

Sources
    Linux kernel, PCI Express Advanced Error Reporting; NVIDIA DCGM (480 correctable errors in 15 minutes).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.gpu._reading import capped
from dsdoctor.checks.pcie._reading import WATCH
from dsdoctor.facts import AerCounters, CounterGrowth, Growth, PciDevice, Platform, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HealthLimit, HealthLimits

ADDRESS = "0000:19:00.0"
UP_A_DAY = Platform(uptime_s=86_400.0)


def counting(correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> tuple[PciDevice, ...]:
    """A GPU with these counts."""
    return (PciDevice(address=ADDRESS, kind="gpu", aer=AerCounters(correctable=correctable, nonfatal=nonfatal, fatal=fatal)),)


def grew(before: int, after: int, kind: str = "correctable", seconds: float = 60.0) -> Growth:
    """Two readings of a counter of that GPU."""
    return Growth(seconds=seconds, counters=(CounterGrowth(device=ADDRESS, counter=f"aer.{kind}", before=before, after=after),))


CASES = (
    Case(
        title="33 in a minute",
        sections={"pci_devices": counting(933), "growth": grew(900, 933)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="33 in 60 s",
    ),
    Case(title="32 in a minute", sections={"pci_devices": counting(932), "growth": grew(900, 932)}, status=Status.PASS),
    Case(
        title="an uncorrectable one since boot",
        sections={"pci_devices": counting(nonfatal=1)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="uncorrectable",
    ),
    Case(
        title="hundreds a minute since boot",
        sections={"pci_devices": counting(100_000), "platform": Platform(uptime_s=6_000.0)},
        status=Status.FAIL,
        says="since boot",
    ),
    Case(
        title="many since boot, and no second reading",
        sections={"pci_devices": counting(480), "platform": UP_A_DAY},
        status=Status.UNKNOWN,
        says="two readings",
    ),
    Case(title="a few since boot", sections={"pci_devices": counting(479), "platform": UP_A_DAY}, status=Status.PASS),
    Case(title="none", sections={"pci_devices": counting()}, status=Status.PASS),
    Case(
        title="nothing reports (a virtual machine, an old kernel)",
        sections={"pci_devices": (PciDevice(address=ADDRESS, kind="gpu"),)},
        status=Status.NOT_APPLICABLE,
        says="no device here",
    ),
    Case(title="no PCI bus", sections={"pci_devices": absent("no PCI bus")}, status=Status.NOT_APPLICABLE),
)


@check("pcie.aer-errors", Severity.WARNING, explains=("smoke.bandwidth",), settle=f"{WATCH} --only pcie.aer-errors", cases=CASES)
def aer_errors(
    pci_devices: tuple[PciDevice, ...],
    growth: Section[Growth],
    platform: Section[Platform],
    health_limits_matrix: HealthLimits,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Uncorrectable errors count since boot; correctable ones by their growth, or by their mean since boot where even that is too high."""
    per_minute, many = (
        health_limits_matrix.limit("aer-correctable-per-minute"),
        health_limits_matrix.limit("aer-correctable-worth-watching"),
    )
    grown = {item.device: item for item in growth.value.counters if item.counter == "aer.correctable"} if growth.value else {}
    uptime_s = platform.value.uptime_s if platform.value else None
    for device in pci_devices:
        if device.aer is None:
            continue
        lost = (device.aer.nonfatal or 0) + (device.aer.fatal or 0)
        count = device.aer.correctable or 0
        if lost:
            row = health_limits_matrix.limit("aer-uncorrectable")
            yield _finding(
                device, row, f"{lost} uncorrectable PCIe error{'s' if lost > 1 else ''} since boot", "0 uncorrectable errors", remedies
            )
        elif growth.value is not None:
            minutes = max(1.0, growth.value.seconds / 60)
            rise = grown[device.address].grown if device.address in grown else 0
            if rise > per_minute.amount * minutes:
                text = f"corrected PCIe errors: {rise} in {growth.value.seconds:.0f} s"
                yield _finding(device, per_minute, text, f"at most {per_minute.amount:.0f} a minute", remedies)
        elif uptime_s and count * 60 / uptime_s > per_minute.amount and count >= many.amount:
            text = f"{count} corrected PCIe errors ({count * 60 / uptime_s:.0f} a minute since boot)"
            yield _finding(device, per_minute, text, f"at most {per_minute.amount:.0f} a minute", remedies)
        elif count >= many.amount:
            yield Doubt(
                subject=f"{device.kind} at {device.address}",
                reason=f"{count} corrected errors since boot; whether they still come, only two readings show",
                settle=f"{WATCH} --only pcie.aer-errors",
            )
    if all(device.aer is None for device in pci_devices):
        yield NotApplicable(reason="no device here reports PCIe errors to the kernel")


def _finding(device: PciDevice, row: HealthLimit, problem: str, expected: str, remedies: Remedies) -> Finding:
    subject = f"{device.kind} at {device.address}"
    counts = device.aer or AerCounters()
    return Finding(
        subject=subject,
        severity=capped(row.severity, row.basis),
        summary=f"The {subject} reports {problem}.",
        cause=f"{row.text} Card, riser, cable, slot or retimer damage what they carry.",
        evidence=(
            Evidence(
                where=f"pci_devices[{device.address}].aer",
                value=f"correctable {counts.correctable}, non-fatal {counts.nonfatal}, fatal {counts.fatal}",
            ),
        ),
        expected=expected,
        remedies=remedies("general", bdf=device.address),
        sources=row.basis.sources,
    )
