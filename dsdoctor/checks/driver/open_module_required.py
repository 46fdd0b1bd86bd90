"""This GPU works only with the open NVIDIA kernel modules.

What it looks at
    The flavour of the loaded kernel module (open or proprietary) and the product of each GPU.

Why it matters
    Blackwell and Grace Hopper are driven by the open modules alone. With the proprietary flavour the GPU does not come up
    ("requires use of the NVIDIA open kernel modules", RmInitAdapter failed), although the driver version is right.

Sources
    NVIDIA Driver Installation Guide: kernel modules.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.facts import Gpu, KernelDriver, KernelLog, KernelLogLine, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches, Gpus

REQUIRED = "open kernel modules"
"""Part of the line that the proprietary module logs: 'requires use of the NVIDIA open kernel modules'."""

PROPRIETARY = KernelDriver(version="570.86.15", flavour="proprietary")
OPEN = KernelDriver(version="570.86.15", flavour="open")
B200 = (Gpu(index=0, name="NVIDIA B200"),)

CASES = (
    Case(
        title="a B200 with the proprietary module", sections={"kernel_driver": PROPRIETARY, "gpus": B200}, status=Status.FAIL, says="B200"
    ),
    Case(
        title="the kernel log says so, NVML sees nothing",
        sections={
            "kernel_driver": PROPRIETARY,
            "gpus": absent("NVML sees no GPU"),
            "kernel_log": KernelLog(
                lines=(KernelLogLine(text="NVRM: installed in this system requires use of the NVIDIA open kernel modules."),)
            ),
        },
        status=Status.FAIL,
        says="open kernel modules",
    ),
    Case(title="a B200 with the open module", sections={"kernel_driver": OPEN, "gpus": B200}, status=Status.PASS),
    Case(
        title="an H100 may have either",
        sections={"kernel_driver": PROPRIETARY, "gpus": (Gpu(index=0, name="NVIDIA H100 PCIe"),)},
        status=Status.PASS,
    ),
    Case(title="no driver", sections={"kernel_driver": absent("no nvidia module is loaded")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a B200, and nobody said which kind of module is loaded",
        sections={"kernel_driver": KernelDriver(version="570.86.15"), "gpus": B200},
        status=Status.UNKNOWN,
        says="which kind",
    ),
    Case(title="the GPUs are not known", sections={"kernel_driver": PROPRIETARY}, status=Status.UNKNOWN, says="which GPUs"),
    Case(title="nobody looked at the module", sections={"gpus": B200}, status=Status.UNKNOWN),
)


@check(
    "driver.open-module-required",
    Severity.ERROR,
    explains=("gpu.lost", "torch.cuda-unavailable", "smoke.*"),
    settle="cat /proc/driver/nvidia/version",
    cases=CASES,
)
def open_module_required(
    kernel_driver: KernelDriver,
    gpus: Section[tuple[Gpu, ...]],
    kernel_log: Section[KernelLog],
    gpus_matrix: Gpus,
    driver_branches_matrix: DriverBranches,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """The proprietary module and a GPU that needs the open one do not go together."""
    if kernel_driver.flavour == "open":
        return
    logged = next((line for line in (kernel_log.value.lines if kernel_log.value else ()) if REQUIRED in line.text.lower()), None)
    products = sorted({gpu.name for gpu in gpus.value or () if (row := gpus_matrix.product(gpu.name)) and row.requires_open_module})
    if not products and logged is None:
        if gpus.state is State.ABSENT:
            yield no_gpu(gpus)
        elif gpus.value is None:
            yield Doubt(subject="GPU", reason=f"which GPUs these are is not known ({gpus.why or 'not asked'})", settle="nvidia-smi -L")
        return
    if not kernel_driver.flavour and logged is None:
        yield Doubt(subject=products[0], reason="it needs the open kernel modules, and which kind is loaded is not known")
        return
    evidence = [Evidence(where="kernel_driver.flavour", value=kernel_driver.flavour or "not known")]
    if products:
        evidence.append(Evidence(where="gpus.name", value=", ".join(products)))
    if logged is not None:
        evidence.append(Evidence(where=logged.where or "kernel_log.lines", value=logged.text))
    rule = driver_branches_matrix.rule("open-required")
    yield Finding(
        subject=products[0] if products else "GPU",
        summary=f"{products[0] if products else 'A GPU here'} needs the open kernel modules; the proprietary one is loaded.",
        cause="The version of the driver is not the problem: the same release with the open modules drives the GPU.",
        evidence=tuple(evidence),
        expected="the open NVIDIA kernel modules",
        remedies=remedies(branch=kernel_driver.version.partition(".")[0]),
        sources=rule.basis.sources if rule else (),
    )
