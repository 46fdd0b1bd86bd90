"""A GPU that this machine has does not answer.

What it looks at
    The GPUs that NVML lists against the NVIDIA GPUs on the PCI bus, GPUs for which NVML says "GPU is lost", and kernel log lines of this boot
    that say that a GPU has fallen off the bus (also as Xid 79; the line can come without any Xid).

Why it matters
    Whatever uses that GPU hangs or dies, and as long as it is half there nvidia-smi and every start of CUDA may hang as well. A GPU that came back
    after a power cycle may leave again: note the slot. On a machine whose driver runs and that lists no GPU at all nothing starts ("No devices were found").
    In a container and in a job that got some of the GPUs, fewer GPUs than on the bus are no fault.

Sources
    NVIDIA Xid errors, Xid 79; NVML return code 15 (GPU is lost); nvidia-smi manual, return code 15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.facts import (
    Container,
    EnvironmentVariable,
    Gpu,
    KernelDriver,
    KernelLog,
    KernelLogLine,
    NvmlStart,
    NvmlVersions,
    PciDevice,
    Section,
    State,
    Xid,
    absent,
    unreadable,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status, counted
from dsdoctor.remedies import Remedies

FALLEN_OFF_XID = 79
GPU_IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""

SOURCES = (
    "NVIDIA Xid catalogue (Xid 79) — https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
    "nvidia-smi manual (return code 15) — https://docs.nvidia.com/deploy/nvidia-smi/index.html",
)

OTHER_OWNERS = ("vfio-pci", "nouveau", "nova_core")
"""Kernel drivers that keep a GPU from NVML: another problem, or no problem."""

SUBSET_ASKED = "none of the GPUs asked for"
FALLEN_LINE = re.compile(r"GPU(?: at PCI:)? ?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)?.{0,120}fallen off the bus", re.IGNORECASE)


def gpus_of(count: int) -> tuple[Gpu, ...]:
    """That many H200s as NVML lists them."""
    return tuple(Gpu(index=number, name="NVIDIA H200", pci_address=f"0000:{0x19 + number:02x}:00.0") for number in range(count))


def on_bus(count: int, driver: str = "nvidia") -> tuple[PciDevice, ...]:
    """That many GPUs on the PCI bus."""
    return tuple(
        PciDevice(address=f"0000:{0x19 + number:02x}:00.0", kind="gpu", vendor_id="10de", device_id="2335", driver=driver)
        for number in range(count)
    )


HOST = absent("a plain host")
LOADED = KernelDriver(version="580.159.04")

CASES = (
    Case(
        title="eight GPUs on the bus, seven answer",
        sections={"gpus": gpus_of(7), "pci_devices": on_bus(8), "container": HOST},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="0000:20:00.0",
    ),
    Case(
        title="NVML says that a GPU is lost",
        sections={"gpus": (*gpus_of(1), Gpu(index=1, pci_address="0000:1a:00.0", lost=True)), "pci_devices": on_bus(2), "container": HOST},
        status=Status.FAIL,
        says="lost",
    ),
    Case(
        title="Xid 79, and the GPU no longer answers",
        sections={
            "gpus": gpus_of(1),
            "kernel_log": KernelLog(xids=(Xid(code=79, pci_address="0000:1a:00.0", text="Xid: 79, GPU has fallen off the bus."),)),
        },
        status=Status.FAIL,
        says="fallen off the bus (Xid 79)",
    ),
    Case(
        title="a line without an Xid in a pasted log",
        sections={"kernel_log": KernelLog(lines=(KernelLogLine(text="NVRM: GPU 0000:C1:00.0: GPU has fallen off the bus."),))},
        status=Status.FAIL,
        says="0000:c1:00.0",
    ),
    Case(
        title="the driver runs and lists no GPU",
        sections={
            "gpus": absent("NVML runs and finds no GPU"),
            "kernel_driver": LOADED,
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1"),
            "pci_devices": on_bus(1),
        },
        status=Status.FAIL,
        says="no GPU",
    ),
    Case(
        title="a GPU on the bus that the NVIDIA driver did not take (an old display card, perhaps)",
        sections={
            "gpus": gpus_of(1),
            "pci_devices": (*on_bus(1), PciDevice(address="0000:a1:00.0", kind="gpu", vendor_id="10de", device_id="128b")),
            "container": HOST,
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0000:a1:00.0",
    ),
    Case(title="all of them answer", sections={"gpus": gpus_of(8), "pci_devices": on_bus(8), "container": HOST}, status=Status.PASS),
    Case(
        title="a container that got two of eight GPUs",
        sections={"gpus": gpus_of(2), "pci_devices": on_bus(8), "container": Container(runtime="docker")},
        status=Status.PASS,
    ),
    Case(
        title="a user who asked for two of eight GPUs",
        sections={
            "gpus": gpus_of(2),
            "pci_devices": on_bus(8),
            "container": HOST,
            "nvml_versions": NvmlVersions(driver="580.159.04", gpu_count=8),
        },
        status=Status.PASS,
    ),
    Case(
        title="a GPU handed to a virtual machine is not lost",
        sections={"gpus": gpus_of(1), "pci_devices": (*on_bus(1), *on_bus(2, "vfio-pci")[1:]), "container": HOST},
        status=Status.PASS,
    ),
    Case(
        title="Xid 79 of a GPU that answers again is the matter of gpu.xid",
        sections={"gpus": gpus_of(1), "kernel_log": KernelLog(xids=(Xid(code=79, pci_address="0000:19:00.0", text="Xid: 79"),))},
        status=Status.PASS,
    ),
    Case(
        title="a Slurm job sees its own GPUs only",
        sections={
            "gpus": gpus_of(2),
            "pci_devices": on_bus(8),
            "container": HOST,
            "environment": (EnvironmentVariable(name="SLURM_JOB_ID", value="17"),),
        },
        status=Status.UNKNOWN,
        says="Slurm",
    ),
    Case(title="NVML did not start", sections={"gpus": unreadable("NVML did not start")}, status=Status.UNKNOWN, says="NVML did not start"),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="GPUs"),
    Case(
        title="no GPU and no driver",
        sections={"gpus": absent("there is no NVIDIA GPU"), "kernel_driver": absent("no nvidia kernel module is loaded")},
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU",
    ),
)


@check(
    "gpu.lost",
    Severity.ERROR,
    explains=("gpu.xid", "gpu.recovery-action", "torch.cuda-unavailable", "smoke.*", "fabric.*", "gpu.nvlink-down"),
    settle="nvidia-smi -L; lspci -nnk -d 10de:; sudo dmesg | grep -iE 'xid|fallen off'",
    cases=CASES,
)
def lost(
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    kernel_log: Section[KernelLog],
    nvml_start: Section[NvmlStart],
    nvml_versions: Section[NvmlVersions],
    kernel_driver: Section[KernelDriver],
    container: Section[Container],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Hold what NVML lists against the bus and the kernel log."""
    listed = gpus.value or ()
    silent = _silent(listed, kernel_log.value)
    for subject, evidence in silent.items():
        seen = (*evidence, *_counts(listed, pci_devices, container))
        xid = f" (Xid {FALLEN_OFF_XID})" if any("Xid" in item.value for item in evidence) else ""
        yield _finding(subject, f"does not answer: it is lost, or has fallen off the bus{xid}.", seen, Severity.ERROR, remedies)
    if gpus.state is State.ABSENT and not gpus.why.startswith(SUBSET_ASKED):
        started = nvml_start.value is not None and nvml_start.value.error_code is None
        if not silent and (started or kernel_driver.state is State.KNOWN):
            yield _none_at_all(gpus.why, pci_devices, kernel_driver, remedies)
        else:
            yield no_gpu(gpus)
    elif gpus.state is State.KNOWN:
        yield from _missing_of_bus(listed, pci_devices, nvml_versions, container, environment, set(silent), remedies)
    elif nvml_start.value is not None and nvml_start.value.error_code == GPU_IS_LOST:
        start = (Evidence(where="nvml_start", value=f"error {GPU_IS_LOST}: {nvml_start.value.error_text}"),)
        yield _finding("a GPU", "is lost: NVML does not start because of it.", start, Severity.ERROR, remedies)
    elif not silent:
        yield Doubt(subject="GPUs", reason=f"the GPUs are not known ({gpus.why or 'nobody looked'})")


def _silent(listed: tuple[Gpu, ...], log: KernelLog | None) -> dict[str, tuple[Evidence, ...]]:
    """GPUs that are lost or fell off the bus and do not answer now, with what shows it."""
    answering = {gpu.pci_address for gpu in listed if gpu.pci_address and not gpu.lost}
    found: dict[str, list[Evidence]] = {}
    for gpu in listed:
        if gpu.lost:
            subject = gpu.pci_address or f"GPU {gpu.index}"
            found[subject] = [Evidence(where=gpu.where or f"gpus[{gpu.index}].lost", value="NVML: GPU is lost")]
    for address, evidence in _fallen(log):
        if address not in answering and (address or not answering):
            found.setdefault(address or "a GPU", []).append(evidence)
    return {subject: tuple(evidence[:3]) for subject, evidence in found.items()}


def _counts(listed: tuple[Gpu, ...], pci_devices: Section[tuple[PciDevice, ...]], container: Section[Container]) -> Iterator[Evidence]:
    """How many GPUs the bus has and how many of them answer, where the two can be held against each other."""
    on_the_bus = sum(1 for device in pci_devices.value or () if device.kind == "gpu" and device.driver not in OTHER_OWNERS)
    answering = sum(1 for gpu in listed if not gpu.lost)
    if listed and answering < on_the_bus and container.state is State.ABSENT:
        yield Evidence(where="gpus", value=f"{on_the_bus} on the PCI bus, {answering} answer NVML")


def _fallen(log: KernelLog | None) -> Iterator[tuple[str, Evidence]]:
    """Address and evidence of every statement of the kernel log that a GPU fell off the bus."""
    if log is None:
        return
    for xid in log.xids:
        if xid.code == FALLEN_OFF_XID:
            yield xid.pci_address, Evidence(where=xid.where or "kernel_log.xids", value=xid.text)
    for line in log.lines:
        match = FALLEN_LINE.search(line.text)
        if match:
            address = (match[1] or "").lower()
            yield (
                address if not address or "." in address else f"{address}.0",
                Evidence(where=line.where or "kernel_log.lines", value=line.text),
            )


def _missing_of_bus(
    listed: tuple[Gpu, ...],
    pci_devices: Section[tuple[PciDevice, ...]],
    nvml_versions: Section[NvmlVersions],
    container: Section[Container],
    environment: Section[tuple[EnvironmentVariable, ...]],
    already_said: set[str],
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    on_the_bus = [device for device in pci_devices.value or () if device.kind == "gpu" and device.driver not in OTHER_OWNERS]
    known = {gpu.pci_address for gpu in listed}
    missing = [device for device in on_the_bus if device.address not in known | already_said]
    total = nvml_versions.value.gpu_count if nvml_versions.value and nvml_versions.value.gpu_count else len(listed)
    if not missing or total >= len(on_the_bus) or container.state is not State.ABSENT or "" in known:
        return
    if any(variable.name == "SLURM_JOB_ID" for variable in environment.value or ()):
        yield Doubt(
            subject=f"{counted(len(missing), 'GPU')} of {len(on_the_bus)}",
            reason="not listed by NVML, but a Slurm job may be confined to its own GPUs",
            settle="nvidia-smi -L    # outside the job",
        )
        return
    for device in missing:
        taken = device.driver == "nvidia"
        yield _finding(
            device.address,
            "is on the PCI bus, but NVML does not list it."
            if taken
            else "is on the PCI bus, but the NVIDIA driver did not take it: its start failed, or this driver does not support it.",
            (
                Evidence(
                    where=f"pci_devices: {device.address}", value=f"{device.vendor_id}:{device.device_id}, driver {device.driver or 'none'}"
                ),
                Evidence(where="gpus", value=f"{len(on_the_bus)} on the bus, {total} in NVML"),
            ),
            Severity.ERROR if taken else Severity.WARNING,
            remedies,
        )


def _none_at_all(
    why: str, pci_devices: Section[tuple[PciDevice, ...]], kernel_driver: Section[KernelDriver], remedies: Remedies
) -> Finding:
    on_the_bus = [device for device in pci_devices.value or () if device.kind == "gpu"]
    bus = "not known" if pci_devices.value is None else ", ".join(f"{gpu.address} ({gpu.driver or 'no driver'})" for gpu in on_the_bus)
    return Finding(
        subject="GPUs",
        summary="The NVIDIA driver runs, but there is no GPU that it can use"
        + (f"; {counted(len(on_the_bus), 'NVIDIA GPU')} on the PCI bus." if on_the_bus else "."),
        cause=(
            "The driver could not start the GPU (read the NVRM lines of the kernel log), another driver owns it, or this container got none."
            if on_the_bus or pci_devices.value is None
            else "No NVIDIA GPU is on the PCI bus: all of them are gone (power, seating, a virtual machine without pass-through)."
        ),
        evidence=(
            Evidence(where="gpus", value=why),
            Evidence(where="pci_devices", value=bus or "no NVIDIA GPU"),
            Evidence(where="kernel_driver.version", value=kernel_driver.value.version if kernel_driver.value else "not known"),
        ),
        expected="at least one GPU in nvidia-smi -L",
        remedies=remedies("restart"),
        sources=SOURCES,
    )


def _finding(subject: str, problem: str, evidence: tuple[Evidence, ...], severity: Severity, remedies: Remedies) -> Finding:
    name = subject if subject.startswith(("GPU", "a GPU")) else f"GPU at {subject}"
    return Finding(
        subject=name,
        severity=severity,
        summary=f"The {name} {problem}" if name != "a GPU" else f"A GPU {problem}",
        cause="It lost its PCIe link, its power or its firmware. Work on it hangs or dies; a GPU reset does not bring it back.",
        evidence=evidence,
        expected="every GPU on the bus answers NVML",
        remedies=remedies("restart")[:2] + remedies("replace")[:1],
        sources=SOURCES,
    )
