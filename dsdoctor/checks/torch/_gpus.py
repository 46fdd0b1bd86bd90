"""Whether this node has NVIDIA GPUs, and which build of torch would serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsdoctor.facts import Gpu, PciDevice, Section, State
from dsdoctor.findings import Evidence
from dsdoctor.record import dataclass
from dsdoctor.rows import CudaToolkits, Torch
from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion, GpuTarget, LibraryVersion

NVIDIA = "10de"
"""PCI vendor id."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """GPUs that are there: seen through the driver, or only on the PCI bus."""

    evidence: Evidence
    through_driver: bool


def gpus_here(gpus: Section[tuple[Gpu, ...]], pci_devices: Section[tuple[PciDevice, ...]]) -> Sighting | None:
    """The NVIDIA GPUs of this node; None when none were seen."""
    if gpus.value:
        names = ", ".join(dict.fromkeys(gpu.name or "GPU" for gpu in gpus.value))
        return Sighting(Evidence(where="gpus", value=f"{len(gpus.value)} × {names}"), True)
    on_bus = [device for device in pci_devices.value or () if device.kind == "gpu" and device.vendor_id in ("", NVIDIA, f"0x{NVIDIA}")]
    if on_bus:
        return Sighting(Evidence(where="pci_devices", value=", ".join(device.address for device in on_bus)), False)
    return None


def surely_none(gpus: Section[tuple[Gpu, ...]], pci_devices: Section[tuple[PciDevice, ...]]) -> bool:
    """Whether somebody looked and there is no NVIDIA GPU."""
    looked = gpus.state in (State.ABSENT, State.KNOWN) or pci_devices.state in (State.ABSENT, State.KNOWN)
    return looked and gpus_here(gpus, pci_devices) is None


def serves(targets: Iterable[str], capability: ComputeCapability) -> bool:
    """Whether any target (sm_90, compute_120) runs on a GPU of that capability."""
    return any(target.runs_on(capability) for text in targets if (target := GpuTarget.parse(text)))


def fitting_builds(
    version: str,
    architecture: str,
    capability: ComputeCapability | None,
    driver: DriverVersion | None,
    torch_matrix: Torch,
    toolkits: CudaToolkits,
) -> Iterator[tuple[str, CudaVersion]]:
    """Releases and CUDA versions of torch whose official binaries serve the GPU and start on the driver, the installed release first.

    Which GPUs a build serves is known for recent releases only, so older ones do not appear when a capability is asked for.
    """
    public = version.partition("+")[0]
    releases = sorted(torch_matrix.releases, key=lambda row: (row.version != public, _descending(row.version)))
    for release in releases:
        minor = ".".join(release.version.split(".")[:2])
        wheel = release.wheel(architecture)
        default = CudaVersion.parse(wheel.cuda) if wheel else None
        builds = [row for row in torch_matrix.binary_arches if row.torch == minor]
        known = {cuda: row for row in builds if (cuda := CudaVersion.parse(row.cuda))}
        for cuda in sorted({*known, *([default] if default else [])}, key=lambda item: (item != default, (-item.major, -item.minor))):
            row = known.get(cuda)
            if capability is not None and (row is None or not serves(row.targets(), capability)):
                continue
            floor = toolkits.floor(cuda)
            minimum = DriverVersion.parse(floor.min_driver) if floor else None
            if driver is None or (minimum is not None and driver >= minimum):
                yield release.version, cuda


def _descending(version: str) -> tuple[int, ...]:
    parsed = LibraryVersion.parse(version)
    return tuple(-number for number in parsed.numbers) if parsed else ()
