"""The driver's branch no longer gets fixes.

What it looks at
    The branch of the driver against the published life cycle.

Why it matters
    An ended branch gets neither security nor bug fixes, and new CUDA majors will not run on it. It is no reason to touch a node that works tonight: plan it
    with the next maintenance. A branch newer than this knowledge is no fault; it only means that nothing here can judge it.

Sources
    NVIDIA Data Center Drivers: supported drivers; endoflife tables where NVIDIA publishes none (these stay information).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version, no_driver_version
from dsdoctor.facts import KernelDriver, NvmlVersions, Section, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches

CASES = (
    Case(title="a 470 driver", sections={"kernel_driver": KernelDriver(version="470.256.02")}, status=Status.FAIL, says="470"),
    Case(title="a 580 driver", sections={"kernel_driver": KernelDriver(version="580.159.04")}, status=Status.PASS),
    Case(
        title="a branch newer than this release knows",
        sections={"nvml_versions": NvmlVersions(driver="999.10.01")},
        status=Status.UNKNOWN,
        says="newer than this release knows",
    ),
    Case(title="the driver is not known", sections={}, status=Status.UNKNOWN, says="driver"),
    Case(
        title="no driver",
        sections={"kernel_driver": absent("no nvidia kernel module is loaded")},
        status=Status.NOT_APPLICABLE,
        says="no nvidia kernel module",
    ),
)


@check("driver.branch-eol", Severity.WARNING, settle="nvidia-smi --query-gpu=driver_version --format=csv", cases=CASES)
def branch_eol(
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    driver_branches_matrix: DriverBranches,
    today: datetime.date,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look the branch up; its end may be a month in the past."""
    reading = driver_version(kernel_driver, nvml_versions)
    if reading is None:
        yield no_driver_version(kernel_driver)
        return
    driver, evidence = reading
    row = driver_branches_matrix.branch(driver.branch)
    if row is None:
        relation = (
            "newer than this release knows" if driver.branch > driver_branches_matrix.newest else "not a branch that this release knows"
        )
        yield Doubt(subject=f"driver {evidence.value}", reason=relation)
        return
    ended = bool(row.end_of_life) and row.end_of_life < today.isoformat()[: len(row.end_of_life)]
    if not ended and row.status != "end-of-life":
        return
    basis = row.end_basis or row.basis
    supported = [branch.branch for branch in driver_branches_matrix.supported() if branch.branch > row.branch]
    yield Finding(
        subject=f"driver {evidence.value}",
        severity=Severity.WARNING if basis.may_carry_error else Severity.INFO,
        summary=f"Driver branch {row.branch} no longer gets fixes{f' (its end was {row.end_of_life})' if row.end_of_life else ''}.",
        cause="It gets neither security nor bug fixes. GPUs of Maxwell, Pascal and Volta have no newer branch than 580 to go to.",
        evidence=(evidence,),
        expected=f"a supported branch: {', '.join(str(branch) for branch in supported)}" if supported else "a supported branch",
        remedies=remedies(branch=str(supported[0]) if supported else ""),
        sources=basis.sources,
    )
