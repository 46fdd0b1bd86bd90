"""The services that GPUs need beside the driver: are they there, do they run, and which version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsdoctor.facts import Section, Service, known, not_asked, unreadable
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

SYSTEMCTL_TIMEOUT_S = 3.0
VERSION_TIMEOUT_S = 2.0
PROCESS_NAME_LENGTH = 15
"""The kernel cuts process names to this length (TASK_COMM_LEN - 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """How one service is recognised."""

    name: str
    unit: str = ""
    """Name of its systemd unit; empty when another service starts it."""
    program: str
    directories: tuple[str, ...] = ("/usr/bin", "/usr/sbin", "/usr/local/bin")
    tells_version: bool = False
    """Whether `program --version` answers at once and says the version of the driver it belongs to."""


SERVICES = (
    Known(name="nvidia-fabricmanager", unit="nvidia-fabricmanager.service", program="nv-fabricmanager", tells_version=True),
    Known(name="nvidia-persistenced", unit="nvidia-persistenced.service", program="nvidia-persistenced"),
    Known(name="nvidia-imex", unit="nvidia-imex.service", program="nvidia-imex", tells_version=True),
    Known(name="nvidia-dcgm", unit="nvidia-dcgm.service", program="nv-hostengine"),
    Known(name="nvlsm", program="nvlsm", directories=("/opt/nvidia/nvlsm/sbin", "/usr/bin", "/usr/sbin")),
)

SYSTEMCTL = ("systemctl", "show", "-p", "Id,LoadState,ActiveState,SubState", *(service.unit for service in SERVICES if service.unit))

ACTIVE_STATES = {
    "active": "active",
    "reloading": "active",
    "activating": "activating",
    "deactivating": "inactive",
    "inactive": "inactive",
    "failed": "failed",
}


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Ask systemd once, look at the running processes, and at last at the programs on disk."""
    units = systemd_states(host)
    processes = process_names(host)
    container = container_evidence(host)
    services = tuple(_examine(host, service, units, processes, container) for service in SERVICES)
    if all(service.state == "unknown" for service in services):
        if container:
            return {"services": not_asked(f"in a container ({container}): the services of the host cannot be seen from here")}
        return {"services": unreadable("systemd does not run or does not answer, and the processes in /proc cannot be read")}
    sources = (["systemctl"] if units else []) + (["/proc"] if processes else [])
    return {"services": known(services, ", ".join(sources) or "programs on disk")}


def container_evidence(host: Host) -> str:
    """What shows that this is a container, or an empty text."""
    for path in ("/.dockerenv", "/run/.containerenv"):
        if host.exists(path):
            return path
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        if host.environment.get(name):
            return f"{name} is set"
    return ""


def systemd_states(host: Host) -> Mapping[str, str]:
    """State of each unit by unit name; empty when systemd does not run or does not answer."""
    if not host.exists("/run/systemd/system"):
        return {}
    ended = host.run(SYSTEMCTL, SYSTEMCTL_TIMEOUT_S)
    return parse_units(ended.stdout) if ended.ok else {}


def parse_units(text: str) -> dict[str, str]:
    """Parse the blocks that `systemctl show` prints, one for each unit, with a blank line between them."""
    states = {}
    for block in re.split(r"\n\s*\n", text):
        fields = dict(line.strip().split("=", 1) for line in block.splitlines() if "=" in line)
        name = fields.get("Id", "")
        if not name:
            continue
        active = ACTIVE_STATES.get(fields.get("ActiveState", ""), "unknown")
        if fields.get("LoadState") == "not-found" and active in ("inactive", "unknown"):
            active = "not-installed"
        states[name] = active
    return states


def process_names(host: Host) -> frozenset[str]:
    """Names of the processes that can be seen from here, as the kernel cuts them."""
    return frozenset(name for path in host.glob("/proc/[0-9]*/comm") if (name := host.first_line(path)))


def _examine(host: Host, service: Known, units: Mapping[str, str], processes: frozenset[str], container: str) -> Service:
    program = next((path for directory in service.directories if host.is_executable(path := f"{directory}/{service.program}")), "")
    state, found_via = _state(service, units, processes, program, container)
    version = program_version(host, program) if program and service.tells_version else ""
    return Service(name=service.name, state=state, version=version, found_via=found_via)


def _state(service: Known, units: Mapping[str, str], processes: frozenset[str], program: str, container: str) -> tuple[str, str]:
    unit_state = units.get(service.unit, "not-installed")
    if unit_state not in ("not-installed", "inactive", "unknown"):
        return unit_state, "systemctl"
    if service.program[:PROCESS_NAME_LENGTH] in processes:
        return "active", "process"
    if service.unit in units and unit_state != "not-installed":
        return unit_state, "systemctl"
    if container or not processes:
        return "unknown", program
    if program:
        return "inactive", program
    return "not-installed", "systemctl" if service.unit in units else "no such program or process"


def program_version(host: Host, program: str) -> str:
    """The version a service's program says of itself, or an empty text."""
    ended = host.run((program, "--version"), VERSION_TIMEOUT_S)
    match = re.search(r"\b\d+\.\d+(?:\.\d+)*\b", ended.stdout + ended.stderr) if ended.ok else None
    return match[0] if match else ""
