"""A driver module option switches something off that this node would use.

What it looks at
    The options of the loaded nvidia module (/proc/driver/nvidia/params), against the number of GPUs and their NVLinks.

Why it matters
    NvLinkDisable=1 keeps every NVLink down, without an error anywhere: peer transfers take PCIe and collectives are many times slower. In a virtual machine with
    one GPU it is how a provider keeps tenants apart, and harms nothing.

Sources
    NVIDIA open kernel modules, nv-reg.h.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Gpu, KernelDriver, Section, State, absent, unreadable
from dsdoctor.findings import Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import GpuLimits

NVLINK_OFF = KernelDriver(version="580.159.04", flavour="open", options={"NvLinkDisable": "1"})


def h200s(number: int) -> tuple[Gpu, ...]:
    """That many H200s."""
    return tuple(Gpu(index=index, name="NVIDIA H200") for index in range(number))


CASES = (
    Case(
        title="eight H200s with NVLink switched off",
        sections={"kernel_driver": NVLINK_OFF, "gpus": h200s(8)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="NvLinkDisable",
    ),
    Case(
        title="one H200 of a virtual machine: worth knowing, no fault",
        sections={"kernel_driver": NVLINK_OFF, "gpus": h200s(1)},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="one GPU",
    ),
    Case(
        title="cards without NVLink",
        sections={"kernel_driver": NVLINK_OFF, "gpus": (Gpu(index=0, name="NVIDIA L40S"), Gpu(index=1, name="NVIDIA L40S"))},
        status=Status.PASS,
    ),
    Case(
        title="the option is not set",
        sections={"kernel_driver": KernelDriver(version="580.1", options={"NvLinkDisable": "0"})},
        status=Status.PASS,
    ),
    Case(
        title="whether there are several GPUs is not known",
        sections={"kernel_driver": NVLINK_OFF, "gpus": unreadable("NVML did not start")},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="With several GPUs",
    ),
    Case(title="no GPU", sections={"kernel_driver": NVLINK_OFF, "gpus": absent("NVML finds no GPU")}, status=Status.PASS),
    Case(title="no driver", sections={"kernel_driver": absent("no nvidia module is loaded")}, status=Status.NOT_APPLICABLE),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN),
)


@check("driver.module-options", Severity.WARNING, explains=("gpu.nvlink-down",), settle="cat /proc/driver/nvidia/params", cases=CASES)
def module_options(
    kernel_driver: KernelDriver, gpus: Section[tuple[Gpu, ...]], gpu_limits_matrix: GpuLimits, remedies: Remedies
) -> Iterator[Finding]:
    """NvLinkDisable matters where several GPUs have NVLink."""
    if kernel_driver.options.get("NvLinkDisable", "0") == "0":
        return
    here = gpus.value or ()
    limits = [gpu_limits_matrix.product(gpu.name) for gpu in here]
    without_nvlink = [limit is not None and not limit.nvlink_links for limit in limits]
    if gpus.state is State.ABSENT or (here and all(without_nvlink)):
        return
    alone, several = len(here) == 1, len(here) > 1
    yield Finding(
        subject="nvidia module",
        severity=Severity.WARNING if several else Severity.INFO,
        summary=(
            "The driver runs with NvLinkDisable=1. With one GPU that harms nothing; the GPU will never reach others by NVLink."
            if alone
            else "The driver runs with NvLinkDisable=1: all NVLinks are off, and traffic between GPUs takes PCIe."
            if several
            else "The driver runs with NvLinkDisable=1: NVLink is off. With several GPUs here, traffic between them takes PCIe."
        ),
        cause="The option is set where the module is loaded (modprobe.d, the kernel command line, or by the provider of the virtual machine).",
        evidence=(
            Evidence(where="kernel_driver.options.NvLinkDisable", value=kernel_driver.options["NvLinkDisable"]),
            Evidence(where="gpus", value=f"{len(here)}" if gpus.value is not None else "not known"),
        ),
        expected="NvLinkDisable=0 on a node with several NVLink GPUs",
        remedies=remedies("nvlink-disabled"),
    )
