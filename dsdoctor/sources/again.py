"""Look again: wait for states that settle by themselves, and read counters twice so that their growth shows.

Both run the probes concerned anew, through a function that they are given, and nothing where nothing is in motion and nobody asked.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from dsdoctor.facts import (
    CounterGrowth,
    Gpu,
    Growth,
    NvLink,
    PciDevice,
    Section,
    Sections,
    Settling,
    Snapshot,
    State,
    known,
    not_asked,
    unreadable,
)

PAUSE_S = 1.0
IN_MOTION = "activating"
IN_PROGRESS = "in-progress"
WAITED_FOR = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced")
"""Services whose start is waited for."""
AFTER_THEM = ("torch_runtime", "smoke")
"""Sections that fail while the fabric is not up; they are asked again once it is."""

Ask = Callable[[Sequence[str], Snapshot], Snapshot]
"""Runs the probes that fill these sections anew, and returns the snapshot with what they found."""


def in_motion(sections: Sections) -> Mapping[str, str]:
    """What will settle by itself ('fabric of GPU 0', 'nvidia-imex'), and the section that shows it."""
    fabrics = {
        f"fabric of GPU {gpu.index}": "gpus"
        for gpu in sections.gpus.value or ()
        if gpu.fabric is not None and gpu.fabric.state == IN_PROGRESS
    }
    services = {item.name: "services" for item in sections.services.value or () if item.name in WAITED_FOR and item.state == IN_MOTION}
    return {**fabrics, **services}


def settled(
    snapshot: Snapshot,
    ask: Ask,
    limit_s: float,
    *,
    tell: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """The snapshot once nothing is in motion any more, at the latest after `limit_s` seconds; the section `settling` says how it went."""
    started = clock()
    first = motion = in_motion(snapshot.sections)
    if motion:
        tell(f"waiting up to {limit_s:.0f} s for {', '.join(motion)}")
    while motion and clock() - started < limit_s:
        sleep(max(0.0, min(PAUSE_S, limit_s - (clock() - started))))
        snapshot = ask(tuple(dict.fromkeys(motion.values())), snapshot)
        motion = in_motion(snapshot.sections)
    if first and not motion:
        snapshot = ask([name for name in AFTER_THEM if getattr(snapshot.sections, name).state is not State.NOT_ASKED], snapshot)
    outcome = Settling(
        waited_s=round(clock() - started, 1) if first else 0.0,
        settled=tuple(name for name in first if name not in motion),
        unsettled=tuple(motion),
    )
    return _with(snapshot, settling=known(outcome))


def watched(
    snapshot: Snapshot,
    ask: Ask,
    first_read_at: float,
    seconds: float,
    *,
    under_load: bool,
    tell: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """The snapshot with the GPUs and PCI devices read again, at least `seconds` after the first reading, and the growth of their counters."""
    before = snapshot.sections
    if before.gpus.value is None and before.pci_devices.value is None:
        return _with(snapshot, growth=not_asked("there are no counters to read twice"))
    left_s = max(0.0, seconds - (clock() - first_read_at))
    if left_s >= PAUSE_S:
        tell(f"reading the error counters again in {left_s:.0f} s")
    sleep(left_s)
    again = ask(("gpus", "pci_devices"), snapshot)
    elapsed_s = clock() - first_read_at
    after = again.sections
    if before.gpus.value is not None and after.gpus.value is None:
        return _with(snapshot, growth=unreadable(f"the second reading failed: {after.gpus.why}"))
    counters = tuple(growing(before, after))
    return _with(again, growth=known(Growth(seconds=round(elapsed_s, 2), under_load=under_load, counters=counters)))


def growing(before: Sections, after: Sections) -> Iterator[CounterGrowth]:
    """Every counter that both readings have. Of NVLinks the sum over all links, and each link that grew."""
    later = {gpu.index: gpu for gpu in after.gpus.value or ()}
    for gpu in before.gpus.value or ():
        if gpu.index in later:
            yield from _of_gpu(gpu, later[gpu.index])
    devices = {device.address: device for device in after.pci_devices.value or ()}
    for device in before.pci_devices.value or ():
        if device.address in devices:
            yield from _of_device(device, devices[device.address])


def _of_gpu(before: Gpu, after: Gpu) -> Iterator[CounterGrowth]:
    pairs: dict[str, tuple[int | None, int | None]] = {}
    if before.pcie and after.pcie:
        pairs["pcie.replay_count"] = before.pcie.replay_count, after.pcie.replay_count
    if before.ecc and after.ecc:
        pairs["ecc.volatile_uncorrected"] = before.ecc.volatile_uncorrected, after.ecc.volatile_uncorrected
        pairs["ecc.volatile_corrected"] = before.ecc.volatile_corrected, after.ecc.volatile_corrected
    for counter, (first, second) in pairs.items():
        if first is not None and second is not None:
            yield CounterGrowth(gpu=before.index, counter=counter, before=first, after=second)
    links = {link.index: link for link in after.nvlinks or ()}
    for kind in ("replay_errors", "recovery_errors", "crc_errors"):
        yield from _of_links(before.index, kind, [(link, links[link.index]) for link in before.nvlinks or () if link.index in links])


def _of_links(gpu: int, kind: str, links: Sequence[tuple[NvLink, NvLink]]) -> Iterator[CounterGrowth]:
    counts = [(first.index, getattr(first, kind), getattr(second, kind)) for first, second in links]
    counts = [(index, one, other) for index, one, other in counts if one is not None and other is not None]
    if counts:
        before, after = sum(one for _, one, _ in counts), sum(other for _, _, other in counts)
        yield CounterGrowth(gpu=gpu, counter=f"nvlinks.{kind}", before=before, after=after)
    for index, one, other in counts:
        if other > one:
            yield CounterGrowth(gpu=gpu, counter=f"nvlinks[{index}].{kind}", before=one, after=other)


def _of_device(before: PciDevice, after: PciDevice) -> Iterator[CounterGrowth]:
    if before.aer is None or after.aer is None:
        return
    for kind in ("correctable", "nonfatal", "fatal"):
        first, second = getattr(before.aer, kind), getattr(after.aer, kind)
        if first is not None and second is not None and (first or second):
            yield CounterGrowth(device=before.address, counter=f"aer.{kind}", before=first, after=second)


def _with(snapshot: Snapshot, **sections: Section[Settling] | Section[Growth]) -> Snapshot:
    return dataclasses.replace(snapshot, sections=dataclasses.replace(snapshot.sections, **sections))  # type: ignore[arg-type]
