"""The driver is older than the first one that lists this GPU.

What it looks at
    The product name of each GPU and the version of the driver, against the first driver whose list of supported products names it.

Why it matters
    A driver that does not know a GPU leaves it out ("No devices were found", "not supported by the NVIDIA ... driver") or drives it with
    features missing. The published list can lag the product (drivers before the listed one are known to run some products), so a GPU that answers
    is a warning only.

Often said, and not so
    "A100 and H100: at most driver 535.129.03; A800: at most 525.85.12": there is no highest driver for a GPU until its architecture is
    dropped (Maxwell, Pascal and Volta end with R580, Kepler with R470). A100, A800 and H100 stand in the list of every branch read, up
    to R595.

    "A100 needs at least 470.182.03, and NVSwitch off below 470": the release notes of 450.51.05 (July 2020) support HGX A100 with
    Fabric Manager. "A800 needs 470.182.03": nothing supports it; 515.86.01 lists the A800.

    "H100 needs at least 525.66.12": no trace of such a driver was found. H100 PCIe is first listed in 520.56.06, H100 SXM in 525.85.05, H100
    NVL in 535.104.05. Sources: release notes of 450.51.05; lists of supported products of the open kernel modules, by tag.

Sources
    README of each release of NVIDIA's open kernel modules; NVIDIA driver release notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version, no_driver_version
from dsdoctor.facts import Gpu, KernelDriver, NvmlVersions, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches, Gpus
from dsdoctor.versions import DriverVersion

CASES = (
    Case(
        title="an RTX 5090 on a 550 driver",
        sections={"gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 5090"),), "nvml_versions": NvmlVersions(driver="550.54.15")},
        status=Status.FAIL,
        says="RTX 5090",
    ),
    Case(
        title="an H200 on a 580 driver",
        sections={"gpus": (Gpu(index=0, name="NVIDIA H200"),), "kernel_driver": KernelDriver(version="580.159.04")},
        status=Status.PASS,
    ),
    Case(
        title="a product that no row knows",
        sections={"gpus": (Gpu(index=0, name="NVIDIA Z9000"),), "kernel_driver": KernelDriver(version="580.159.04")},
        status=Status.UNKNOWN,
        says="NVIDIA Z9000",
    ),
    Case(title="the driver is not known", sections={"gpus": (Gpu(index=0, name="NVIDIA H200"),)}, status=Status.UNKNOWN, says="driver"),
    Case(title="no GPU", sections={"gpus": absent("NVML sees no GPU")}, status=Status.NOT_APPLICABLE),
)


@check("driver.too-old-for-gpu", Severity.WARNING, settle="nvidia-smi --query-gpu=name,driver_version --format=csv", cases=CASES)
def too_old_for_gpu(
    gpus: tuple[Gpu, ...],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    gpus_matrix: Gpus,
    driver_branches_matrix: DriverBranches,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the driver with the first one that lists each product here."""
    reading = driver_version(kernel_driver, nvml_versions)
    if reading is None:
        yield no_driver_version(kernel_driver)
        return
    driver, evidence = reading
    if driver_branches_matrix.is_developer_beta(driver):
        yield Doubt(subject=f"driver {evidence.value}", reason="a developer beta, whose number does not compare with production drivers")
        return
    if not any(gpu.name for gpu in gpus):
        yield Doubt(subject="GPU", reason="which product it is, is not known")
    for name in sorted({gpu.name for gpu in gpus if gpu.name}):
        product = gpus_matrix.product(name)
        if product is None:
            yield Doubt(subject=name, reason="no row of this knowledge describes this product")
            continue
        minimum = DriverVersion.parse(product.min_driver)
        if minimum is None or driver >= minimum:
            continue
        yield Finding(
            subject=name,
            severity=Severity.INFO if product.basis.weak else Severity.WARNING,
            summary=f"Driver {evidence.value} is older than {minimum}, the first one that lists {name}.",
            cause="The GPU answers, so the driver drives it in some way; the list of products may lag, or features may be missing.",
            evidence=(evidence, Evidence(where="gpus.name", value=name)),
            expected=f"driver {minimum} or newer",
            remedies=remedies(branch=str(minimum.branch)),
            sources=product.basis.sources,
        )
