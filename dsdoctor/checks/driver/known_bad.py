"""This driver release has a reported fault that matters here.

What it looks at
    The version of the driver against reported faults of single releases.

Why it matters
    Some releases hang or corrupt peer-to-peer transfers, or fail on single platforms. Each row is one report with its address; read the symptom and act only
    when it is yours. Rows that rest on one report are information.

Sources
    The issue threads named in the finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version, no_driver_version
from dsdoctor.facts import KernelDriver, NvmlVersions, Section, absent
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import DriverBranches

CASES = (
    Case(
        title="a release with a report",
        sections={"kernel_driver": KernelDriver(version="570.172.08")},
        status=Status.FAIL,
        says="570.172.08",
    ),
    Case(title="a release without", sections={"kernel_driver": KernelDriver(version="570.133.20")}, status=Status.PASS),
    Case(title="the driver is not known", sections={}, status=Status.UNKNOWN, says="driver"),
    Case(
        title="no driver",
        sections={"kernel_driver": absent("no nvidia kernel module is loaded")},
        status=Status.NOT_APPLICABLE,
        says="no nvidia kernel module",
    ),
)


@check("driver.known-bad", Severity.INFO, settle="nvidia-smi --query-gpu=driver_version --format=csv", cases=CASES)
def known_bad(
    kernel_driver: Section[KernelDriver], nvml_versions: Section[NvmlVersions], driver_branches_matrix: DriverBranches, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """List the reports about this very release."""
    reading = driver_version(kernel_driver, nvml_versions)
    if reading is None:
        yield no_driver_version(kernel_driver)
        return
    driver, evidence = reading
    for issue in driver_branches_matrix.issues_of(driver):
        yield Finding(
            subject=f"driver {evidence.value}",
            severity=Severity.WARNING if issue.basis.may_carry_error else Severity.INFO,
            summary=f"About driver {evidence.value}: {issue.text}",
            cause="It matters only if the symptom is yours.",
            evidence=(evidence,),
            expected=f"{issue.fixed_in} or newer" if issue.fixed_in else "a release without the report",
            remedies=remedies(branch=issue.fixed_in.partition(".")[0]),
            sources=issue.basis.sources,
        )
