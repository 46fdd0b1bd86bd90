"""Which GPUs a container is given, as the command, file or variable that starts it says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsdoctor.facts import Command, LogEvent
from dsdoctor.record import dataclass

COMPOSE = "compose-device-ids"
"""Signature of `device_ids: ["2", "3"]`."""
RUN = ("docker run", "podman run", "nerdctl run")
IMAGE = "image"
"""Program of a manifest's `image:` line."""
NO_LIST = frozenset({"all", "none", "void", ""})
_SELECTED = re.compile(r"(?:-e|--env)[= ][\"']?CUDA_VISIBLE_DEVICES=[\"']?([\w,.:-]{1,200})")
_BY_DEVICE = re.compile(r"--gpus[= ][\"'\\]{0,4}device=([\w,.:-]{1,400})")
_BY_COUNT = re.compile(r"--gpus[= ][\"']?(\d{1,2})(?![\w,:.-])")
_BY_CDI = re.compile(r"--device[= ][\"']?nvidia\.com/gpu=([\w.:-]{1,80})")
_BY_VARIABLE = re.compile(r"(?:-e|--env)[= ][\"']?NVIDIA_VISIBLE_DEVICES=[\"']?([\w,.:-]{1,400})")


@dataclass(frozen=True, slots=True)
class Given:
    """The GPUs of one container, which are counted from 0 inside it."""

    how: str
    """As it is written: `--gpus device=2,3`."""
    count: int
    selected: str
    """CUDA_VISIBLE_DEVICES inside the container."""
    where: str
    sure: bool
    """Whether both values stand in one command."""


def given(value: str, settings: Mapping[str, str], commands: Sequence[Command], events: Sequence[LogEvent], inside: bool) -> Given | None:
    """The first container that is given a list of GPUs.

    `value` is the CUDA_VISIBLE_DEVICES that is known, `inside` whether it is that of a container whose GPUs are not known.
    """
    started = [command for command in commands if command.program in RUN]
    for command in started:
        selected = _SELECTED.search(command.text)
        found = _of_command(command.text) if selected else None
        if selected and found:
            return Given(found[0], found[1], selected[1], command.where, True)
    if started:
        return None
    composed = next((event for event in events if event.signature == COMPOSE), None)
    if composed is not None and value:
        ids = re.findall(r"[\w.:-]+", composed.captures.get("device_ids", ""))
        return Given(f"device_ids: {', '.join(ids)}", len(ids), value, composed.where, False)
    listed = settings.get("NVIDIA_VISIBLE_DEVICES", "")
    if (inside or any(command.program == IMAGE for command in commands)) and value and listed.lower() not in NO_LIST:
        return Given(f"NVIDIA_VISIBLE_DEVICES={listed}", len(listed.strip(",").split(",")), value, "", False)
    return None


def _of_command(text: str) -> tuple[str, int] | None:
    if found := _BY_DEVICE.search(text):
        return f"--gpus device={found[1]}", len(found[1].strip(",").split(","))
    if found := _BY_COUNT.search(text):
        return f"--gpus {found[1]}", int(found[1])
    if devices := _BY_CDI.findall(text):
        return None if "all" in devices else (" ".join(f"--device nvidia.com/gpu={one}" for one in devices), len(devices))
    found = None if "--gpus" in text else _BY_VARIABLE.search(text)
    if found is None or found[1].lower() in NO_LIST:
        return None
    return f"NVIDIA_VISIBLE_DEVICES={found[1]}", len(found[1].strip(",").split(","))
