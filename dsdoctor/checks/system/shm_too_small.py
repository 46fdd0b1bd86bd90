"""Shared memory (/dev/shm) is too small for the processes of this node.

What it looks at
    The size and the free space of /dev/shm, how many GPUs there are, and which NCCL would run.

Why it matters
    Worker processes of serving engines, torch data loaders and older NCCL releases exchange data through files in /dev/shm; a container gets
    64 MiB unless it is started with more. NCCL then stops with "Error while creating shared memory segment /dev/shm/nccl-…", a data
    loader dies with a bus error. Who uses it decides how bad it is: NCCL 2.24 and later take their host buffers from the CUDA driver where
    they can (driver of CUDA 12.6 or later), and were measured to work with 8 MiB; so the same size is an error with an older NCCL and a warning with a
    newer one. With one GPU nobody exchanges anything between GPUs: worth knowing only. NCCL_SHM_DISABLE=1 makes the message go away and the
    job several times slower; it is not a remedy.

Sources
    NVIDIA NCCL User Guide, troubleshooting ("Shared memory") and NCCL_CUMEM_HOST_ENABLE; own measurement on H200 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._loaded_nccl import loaded_nccl
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.system._amounts import in_words
from dsdoctor.facts import (
    Container,
    EnvironmentVariable,
    Gpu,
    NvmlVersions,
    Package,
    Section,
    SharedMemory,
    State,
    TorchRuntime,
    absent,
    unreadable,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds
from dsdoctor.versions import CudaVersion, LibraryVersion

MIB, GIB = 1 << 20, 1 << 30
MILDER = {Severity.ERROR: Severity.WARNING, Severity.WARNING: Severity.INFO, Severity.INFO: Severity.INFO}

CONTAINER_DEFAULT = SharedMemory(path="/dev/shm", total_bytes=64 * MIB, free_bytes=64 * MIB)
TWO_GPUS = (Gpu(index=0), Gpu(index=1))
EIGHT_GPUS = tuple(Gpu(index=index) for index in range(8))
OLD_NCCL = (Package(name="nvidia-nccl-cu12", version="2.21.5"),)
NEW_NCCL = (Package(name="nvidia-nccl-cu13", version="2.28.9"),)

CASES = (
    Case(
        title="a pod with the default 64 MiB, two GPUs, NCCL 2.21.5",
        sections={"shared_memory": CONTAINER_DEFAULT, "gpus": TWO_GPUS, "packages": OLD_NCCL},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="64 MiB",
    ),
    Case(
        title="the same with an NCCL that does without /dev/shm",
        sections={
            "shared_memory": CONTAINER_DEFAULT,
            "gpus": TWO_GPUS,
            "packages": NEW_NCCL,
            "nvml_versions": NvmlVersions(driver="580.159.04", cuda_driver="13.0"),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="NCCL 2.28.9 does without",
    ),
    Case(
        title="the driver is too old for NCCL to do without it",
        sections={
            "shared_memory": CONTAINER_DEFAULT,
            "gpus": TWO_GPUS,
            "packages": NEW_NCCL,
            "nvml_versions": NvmlVersions(driver="535.129.03", cuda_driver="12.2"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="one GPU: worth knowing",
        sections={"shared_memory": CONTAINER_DEFAULT, "gpus": TWO_GPUS[:1], "packages": OLD_NCCL},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="64 MiB, and nobody said how many GPUs there are",
        sections={"shared_memory": CONTAINER_DEFAULT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="more than one GPU",
    ),
    Case(
        title="large enough, but full of what dead jobs left",
        sections={
            "shared_memory": SharedMemory(path="/dev/shm", total_bytes=128 * GIB, free_bytes=20 * MIB),
            "gpus": EIGHT_GPUS,
            "packages": NEW_NCCL,
        },
        status=Status.FAIL,
        says="free",
    ),
    Case(
        title="half of the node's memory, as Linux gives it",
        sections={"shared_memory": SharedMemory(path="/dev/shm", total_bytes=1007 * GIB, free_bytes=1006 * GIB), "gpus": EIGHT_GPUS},
        status=Status.PASS,
    ),
    Case(
        title="16 GiB for two GPUs",
        sections={"shared_memory": SharedMemory(path="/dev/shm", total_bytes=16 * GIB, free_bytes=16 * GIB), "gpus": TWO_GPUS},
        status=Status.PASS,
    ),
    Case(
        title="no GPU, no fault",
        sections={"shared_memory": CONTAINER_DEFAULT, "gpus": absent("no GPU")},
        status=Status.NOT_APPLICABLE,
        says="no GPU",
    ),
    Case(
        title="/dev/shm could not be read",
        sections={"shared_memory": unreadable("statvfs: permission denied"), "gpus": TWO_GPUS},
        status=Status.UNKNOWN,
        says="permission denied",
    ),
)


@check("system.shm-too-small", Severity.ERROR, explains=("smoke.collectives",), settle="df -h /dev/shm", cases=CASES)
def shm_too_small(
    shared_memory: SharedMemory,
    gpus: Section[tuple[Gpu, ...]],
    packages: Section[tuple[Package, ...]],
    torch_runtime: Section[TorchRuntime],
    nvml_versions: Section[NvmlVersions],
    environment: Section[tuple[EnvironmentVariable, ...]],
    container: Section[Container],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare /dev/shm with what that many GPUs need."""
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
        return
    count = len(gpus.value) if gpus.value is not None else None
    if count == 0:
        yield no_gpu(gpus)
        return
    nccl = loaded_nccl(packages, torch_runtime)
    without = _nccl_does_without(nccl, nvml_versions, environment, system_needs_matrix)
    too_small = [need for need in system_needs_matrix.of("shared-memory", count or 2) if shared_memory.total_bytes < need.amount]
    evidence = [Evidence(where="shared_memory.total_bytes", value=in_words(shared_memory.total_bytes))]
    evidence.append(Evidence(where="shared_memory.free_bytes", value=in_words(shared_memory.free_bytes)))
    if count is not None:
        evidence.append(Evidence(where="gpus", value=f"{count}"))
    if nccl is not None:
        evidence.append(Evidence(where="packages", value=f"NCCL {nccl}"))
    if too_small:
        need = min(too_small, key=lambda row: Severity(row.severity).rank)
        severity = Severity(need.severity)
        if without or nccl is None or count is None:
            severity = MILDER[severity]
        if count == 1:
            severity = Severity.INFO
        whom = f"for {count} GPUs" if count and count > 1 else "as soon as more than one GPU works together"
        nccl_says = (
            f"NCCL {nccl} does without it where the driver can; engines' own segments and data loaders do not."
            if without
            else "Without it NCCL fails with 'Error while creating shared memory segment', data loaders with a bus error."
        )
        yield Finding(
            subject=shared_memory.path,
            summary=f"{shared_memory.path} is {in_words(shared_memory.total_bytes)} in size: too small {whom}.",
            cause=f"{need.text} {nccl_says}",
            evidence=tuple(evidence),
            expected=f"at least {in_words(need.amount)}",
            remedies=remedies("host-full" if container.state is State.ABSENT else "general") or remedies(),
            sources=need.basis.sources,
            severity=severity,
        )
        return
    for need in system_needs_matrix.of("free-shared-memory", count or 1):
        if shared_memory.free_bytes < need.amount:
            yield Finding(
                subject=shared_memory.path,
                summary=f"{shared_memory.path} is full: {in_words(shared_memory.free_bytes)} of {in_words(shared_memory.total_bytes)} are free.",
                cause=need.text,
                evidence=tuple(evidence),
                expected=f"at least {in_words(need.amount)} free before a job starts",
                remedies=remedies("host-full"),
                sources=need.basis.sources,
                severity=Severity(need.severity),
            )
            return


def _nccl_does_without(
    nccl: LibraryVersion | None,
    nvml_versions: Section[NvmlVersions],
    environment: Section[tuple[EnvironmentVariable, ...]],
    system_needs: SystemNeeds,
) -> bool:
    """Whether NCCL takes host buffers from the driver (cuMem): a matter of its release, the driver, and a switch."""
    row = system_needs.version("nccl-host-buffers-in-driver")
    since, driver_since = LibraryVersion.parse(row.version), CudaVersion.parse(row.driver_cuda)
    driver = CudaVersion.parse(nvml_versions.value.cuda_driver) if nvml_versions.value else None
    off = any(item.name == row.variable and item.value.strip() == "0" for item in environment.value or ())
    return (
        nccl is not None
        and since is not None
        and nccl >= since
        and not off
        and not (driver is not None and driver_since is not None and driver < driver_since)
    )
