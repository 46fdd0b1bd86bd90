"""DeepEP does not find what it needs: GPUs, torch, NCCL, NVSHMEM, or the ways of RDMA.

What it looks at
    The release of DeepEP (deep-ep 1.x works through NVSHMEM, 2.x through NCCL), the compute capability of the GPUs, torch, the NCCL that is loaded, the NVSHMEM wheel, and for 1.x across nodes how
    kernels reach the network card: the options of the NVIDIA module for IBGDA, or GDRCopy. In pasted logs: what DeepEP and NVSHMEM say when they stop.

Why it matters
    DeepEP 2 asks for a newer NCCL than most torch wheels pin, and pip puts the older one back with each upgrade of torch; then import deep_ep dies in the loader. DeepEP 1 between nodes needs IBGDA
    (two options of the driver, which a reboot brings) or GDRCopy. The options belong to 1.x and NVSHMEM only: 2.x does not need them, and
    inside one node NVLink carries the normal kernels.

Sources
    DeepEP README, docs/legacy.md and docs/nvshmem.md; GDRCopy README; matrices/kernel-libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._kernel_library import Installed, Reading, Said, below, installed, not_installed, of_an_unknown_line, on_gpus, on_torch
from dsdoctor.checks._loaded_nccl import loaded_nccl
from dsdoctor.checks.network._reading import several_nodes, values
from dsdoctor.checks.pcie._reading import rdma_nics
from dsdoctor.facts import (
    DeviceNode,
    EnvironmentVariable,
    Gpu,
    KernelDriver,
    LoadedModules,
    LogEvent,
    NvmlVersions,
    Package,
    PciDevice,
    Section,
    State,
    TorchBuild,
    TorchRuntime,
    known,
)
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import CudaVersion, LibraryVersion

if TYPE_CHECKING:
    from dsdoctor.rows_stack import KernelLibraries

LIBRARY = "DeepEP"
DISTRIBUTIONS = ("deep-ep", "sgl-deep-ep")
NVSHMEM_WHEEL = "nvidia-nvshmem-cu"
STREAM_OPTION, REGISTRY_OPTION, PEER_MAPPING = "EnableStreamMemOPs", "RegistryDwords", "PeerMappingOverride=1"
GDRCOPY_MODULE, GDRCOPY_DEVICE = "gdrdrv", "/dev/gdrdrv"
GDRCOPY_WITHOUT_MODULE = "gdrcopy.dma-buf"
"""Id of its row."""

V1 = (Package(name="deep-ep", version="1.2.1"), Package(name="nvidia-nvshmem-cu12", version="3.3.20"))
V2 = Package(name="deep-ep", version="2.0.0")
H100 = (Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability="9.0"),)
TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
TWO_NODES = (EnvironmentVariable(name="SLURM_NNODES", value="2"),)
CARD = (PciDevice(address="0000:5a:00.0", kind="nic", vendor_id="15b3", interfaces=("mlx5_0",)),)
WITHOUT_OPTIONS = KernelDriver(version="570.133.20", flavour="open", options={"EnableStreamMemOPs": "0", "RegistryDwords": ""})
WITH_OPTIONS = KernelDriver(version="570.133.20", options={"EnableStreamMemOPs": "1", "RegistryDwords": "PeerMappingOverride=1;"})
BETWEEN_NODES = {"packages": V1, "gpus": H100, "torch_build": TORCH, "environment": TWO_NODES, "pci_devices": CARD}


def _nccl(version: str) -> Package:
    return Package(name="nvidia-nccl-cu13", version=version)


CASES = (
    Case(
        title="DeepEP 2 and the NCCL that torch pins",
        sections={"packages": (V2, _nccl("2.28.9")), "gpus": H100, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="2.30.4",
    ),
    Case(
        title="DeepEP 1 across nodes, neither options nor GDRCopy",
        sections={**BETWEEN_NODES, "kernel_driver": WITHOUT_OPTIONS, "loaded_modules": LoadedModules(names=("nvidia", "nvidia_peermem"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="PeerMappingOverride",
    ),
    Case(
        title="an NVSHMEM wheel that is too old for it",
        sections={"packages": (V1[0], Package(name="nvidia-nvshmem-cu12", version="3.2.5")), "gpus": H100, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="3.3.9",
    ),
    Case(
        title="a log in which IBGDA does not start",
        sections={
            "log_events": (
                LogEvent(
                    signature="ibgda",
                    text="/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar",
                    where="rank8.log:41",
                    captures={"what": "cannot allocate mlx5dv_devx_uar"},
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="cannot allocate mlx5dv_devx_uar",
    ),
    Case(
        title="DeepEP 1 with the options",
        sections={**BETWEEN_NODES, "kernel_driver": WITH_OPTIONS, "loaded_modules": LoadedModules(names=("nvidia",))},
        status=Status.PASS,
    ),
    Case(
        title="DeepEP 1 with GDRCopy",
        sections={**BETWEEN_NODES, "kernel_driver": WITHOUT_OPTIONS, "loaded_modules": LoadedModules(names=("nvidia", "gdrdrv"))},
        status=Status.PASS,
    ),
    Case(
        title="DeepEP 1 inside one node needs no options",
        sections={"packages": V1, "gpus": H100, "torch_build": TORCH, "kernel_driver": WITHOUT_OPTIONS, "pci_devices": CARD},
        status=Status.PASS,
    ),
    Case(
        title="DeepEP 2 needs no options",
        sections={**BETWEEN_NODES, "packages": (V2, _nccl("2.30.7")), "kernel_driver": WITHOUT_OPTIONS},
        status=Status.PASS,
    ),
    Case(
        title="DeepEP 1 across nodes, and the options were not read",
        sections={**BETWEEN_NODES, "kernel_driver": KernelDriver(version="570.133.20"), "loaded_modules": LoadedModules(names=("nvidia",))},
        status=Status.UNKNOWN,
        says="options",
    ),
    Case(
        title="DeepEP 2, and which NCCL is loaded is not known",
        sections={"packages": (V2,), "gpus": H100, "torch_build": TORCH},
        status=Status.UNKNOWN,
        says="NCCL",
    ),
    Case(title="the packages are not known", sections={"gpus": H100}, status=Status.UNKNOWN, says="packages"),
    Case(title="not installed", sections={"packages": (), "gpus": H100}, status=Status.NOT_APPLICABLE, says="not installed"),
)


@check(
    "deepep.requirements",
    Severity.ERROR,
    settle="pip list | grep -i -E 'deep.ep|nccl|nvshmem'; grep -E 'EnableStreamMemOPs|RegistryDwords:' /proc/driver/nvidia/params; lsmod | grep gdrdrv",
    cases=CASES,
)
def requirements(
    packages: tuple[Package, ...],
    gpus: Section[tuple[Gpu, ...]],
    torch_build: Section[TorchBuild],
    torch_runtime: Section[TorchRuntime],
    environment: Section[tuple[EnvironmentVariable, ...]],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    loaded_modules: Section[LoadedModules],
    device_nodes: Section[tuple[DeviceNode, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    kernel_libraries_matrix: KernelLibraries,
    remedies: Remedies,
) -> Iterator[Said]:
    """Compare an installed DeepEP with the GPUs, torch, NCCL and NVSHMEM, and 1.x across nodes with its ways to the network card."""
    found = installed(packages, LIBRARY, kernel_libraries_matrix, DISTRIBUTIONS)
    if not found:
        yield not_installed(packages, LIBRARY)
    variables = values(environment.value)
    for one in found:
        if not one.lines:
            yield of_an_unknown_line(one)
            continue
        yield from on_gpus(one, gpus, remedies, "v2")
        yield from on_torch(one, torch_build, remedies, "v2")
        yield from _on_nccl(one, packages, torch_runtime, remedies)
        yield from _on_nvshmem(one, packages, remedies)
        nodes = several_nodes(variables)
        if nodes is not None and all(row.min_nvshmem for row in one.lines) and rdma_nics(pci_devices.value or ()):
            has_gdrcopy = _gdrcopy(loaded_modules, device_nodes, nvml_versions, kernel_libraries_matrix)
            yield from _on_options(one, nodes, kernel_driver, has_gdrcopy, kernel_libraries_matrix, remedies)


def _on_nccl(found: Installed, packages: tuple[Package, ...], torch_runtime: Section[TorchRuntime], remedies: Remedies) -> Iterator[Said]:
    floors = [LibraryVersion.parse(row.min_nccl) for row in found.lines]
    if not any(floors):
        return
    version = loaded_nccl(known(packages), torch_runtime)
    if version is None:
        yield Doubt(subject=found.name, reason="which NCCL is loaded or installed is not known")
        return
    where = "torch_runtime.nccl_loaded" if torch_runtime.value and torch_runtime.value.nccl_loaded else "packages[nvidia-nccl]"
    reading = Reading("NCCL", version, f"NCCL {version}", Evidence(where=where, value=str(version)))
    yield from below(found, reading, floors, remedies, "v2")


def _on_nvshmem(found: Installed, packages: tuple[Package, ...], remedies: Remedies) -> Iterator[Said]:
    wheel = next((package for package in packages if package.name.startswith(NVSHMEM_WHEEL)), None)
    if wheel is not None:
        evidence = Evidence(where=f"packages[{wheel.name}].version", value=wheel.version)
        reading = Reading("NVSHMEM", LibraryVersion.parse(wheel.version), f"{wheel.name} {wheel.version}", evidence)
        yield from below(found, reading, [LibraryVersion.parse(row.min_nvshmem) for row in found.lines], remedies, "nvshmem-version")


def _on_options(
    found: Installed,
    nodes: Evidence,
    kernel_driver: Section[KernelDriver],
    has_gdrcopy: bool | None,
    matrix: KernelLibraries,
    remedies: Remedies,
) -> Iterator[Said]:
    """Across nodes, kernels reach the network card by IBGDA, which two options of the driver allow, or through GDRCopy."""
    if kernel_driver.state is State.ABSENT or has_gdrcopy:
        return
    options = kernel_driver.value.options if kernel_driver.value else {}
    if options.get(STREAM_OPTION) == "1" and PEER_MAPPING in options.get(REGISTRY_OPTION, ""):
        return
    if not options or has_gdrcopy is None:
        missing = "the options of the NVIDIA module were" if not options else "whether GDRCopy is loaded was"
        yield Doubt(subject=found.name, reason=f"the job runs on several nodes ({nodes.where} = {nodes.value}), and {missing} not read")
        return
    note = matrix.note("deepep.ibgda_driver")
    yield Finding(
        subject=found.name,
        severity=Severity.WARNING,
        summary=f"{found.name} has no way to the network card: neither the two driver options for IBGDA ({STREAM_OPTION}=1 and {PEER_MAPPING}) nor GDRCopy.",
        cause="Its kernels for several nodes and for low latency write to the network card themselves. Inside one node NVLink carries the normal kernels.",
        evidence=(
            found.evidence,
            nodes,
            *(
                Evidence(where=f"kernel_driver.options.{name}", value=options.get(name, "") or "not set")
                for name in (STREAM_OPTION, REGISTRY_OPTION)
            ),
            Evidence(where="loaded_modules", value=f"without {GDRCOPY_MODULE}"),
        ),
        expected=f"{STREAM_OPTION}: 1 and {PEER_MAPPING} in {REGISTRY_OPTION}, or {GDRCOPY_MODULE} loaded",
        remedies=(*remedies("ibgda-options"), *remedies("gdrcopy"))[:3],
        sources=note.basis.sources if note else found.sources,
    )


def _gdrcopy(
    loaded_modules: Section[LoadedModules],
    device_nodes: Section[tuple[DeviceNode, ...]],
    nvml_versions: Section[NvmlVersions],
    matrix: KernelLibraries,
) -> bool | None:
    """Whether GDRCopy works here or may (newer ones need no module on a newer driver); None where nobody looked."""
    modules = loaded_modules.value
    if (modules and GDRCOPY_MODULE in modules.names) or any(node.path == GDRCOPY_DEVICE for node in device_nodes.value or ()):
        return True
    row = matrix.requirement(GDRCOPY_WITHOUT_MODULE)
    from_cuda = CudaVersion.parse(row.min_driver_cuda) if row else None
    driver_cuda = CudaVersion.parse(nvml_versions.value.cuda_driver) if nvml_versions.value else None
    if from_cuda and driver_cuda and driver_cuda >= from_cuda:
        return None
    return None if modules is None or (modules.asked_for and GDRCOPY_MODULE not in modules.asked_for) else False
