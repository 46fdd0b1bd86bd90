"""The kernel log of this boot: Xid events and what else it says about GPUs and the bus."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any

from dsdoctor.facts import Section, known, unreadable
from dsdoctor.sources import kernel_text
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

RING_LIMIT_BYTES = 64 << 20
"""Larger than any ring buffer: a read that is cut short would be refused by the kernel, and would miss the newest records."""
COMMAND_TIMEOUT_S = 3.0
JOURNAL = ("journalctl", "-k", "-b", "-o", "short-monotonic", "-n", "5000", "--no-pager")


class _CannotReadError(Exception):
    """This source does not give the log; the text says why."""


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Read the kernel log from the first source that gives it."""
    sources: tuple[tuple[str, Callable[[Host], str]], ...] = (
        ("/dev/kmsg", _ring_buffer),
        ("dmesg", _dmesg),
        (" ".join(JOURNAL), _journal),
    )
    refusals = []
    for name, read in sources:
        try:
            text = _of_the_kernel(read(host))
        except _CannotReadError as refusal:
            refusals.append(f"{name}: {refusal}")
        else:
            return {"kernel_log": known(kernel_text.read(text), name)}
    return {"kernel_log": unreadable("; ".join(refusals))}


def _of_the_kernel(text: str) -> str:
    """The text, when it can be the log of a kernel: an empty log proves nothing."""
    if not text.strip():
        raise _CannotReadError("empty")
    if "Starting gVisor" in text:
        raise _CannotReadError("gVisor shows a log of its own, not that of the kernel under it")
    return text


def _ring_buffer(host: Host) -> str:
    try:
        return host.read_text("/dev/kmsg", RING_LIMIT_BYTES)
    except OSError as error:
        # EPIPE: records were overwritten while we read; dmesg copes with that.
        raise _CannotReadError("overwritten while read" if error.errno == errno.EPIPE else error.strerror or str(error)) from None


def _dmesg(host: Host) -> str:
    ended = host.run(("dmesg",), COMMAND_TIMEOUT_S)
    if not ended.ok:
        raise _CannotReadError(ended.said())
    return ended.stdout


def _journal(host: Host) -> str:
    ended = host.run(JOURNAL, COMMAND_TIMEOUT_S)
    if not ended.ok:
        raise _CannotReadError(ended.said())
    # Without the right to read it, journalctl prints no entries and exits with 0.
    if not any(line.strip() and not line.startswith("--") for line in ended.stdout.splitlines()):
        raise _CannotReadError("no entries (no journal of this boot, or no right to read it)")
    return ended.stdout
