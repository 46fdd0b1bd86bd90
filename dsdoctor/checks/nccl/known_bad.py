"""The NCCL release in use has known faults.

What it looks at
    The release of the NCCL that is loaded (else of the wheel that is installed, else the one that a log names) against faults with a range of releases, kept only
    where processor and GPU architecture fit. Ranges without an end are limits of NCCL and not faults of a release; they are left out.

Why it matters
    Some releases hang or compute wrong results, and a hang in a collective looks like a network fault for hours. A fault that needs a
    condition which the doctor cannot see (a feature in use, many ranks) is information: compare it with your symptom. So is one of a release that only a
    pasted log names.

Sources
    NVIDIA NCCL release messages; the issue threads named in the finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import own_copies
from dsdoctor.checks.torch._said import says_nothing
from dsdoctor.facts import CudaLibrary, Gpu, LogEvent, MappedLibrary, Package, Platform, Section, State, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Gpus, Nccl, NcclIssue, NvidiaWheel, NvidiaWheels
from dsdoctor.versions import ComputeCapability, CudaVersion, LibraryVersion

TORCH = TorchBuild(version="2.2.0+cu121", cuda="12.1")
H100 = tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3", compute_capability="9.0") for index in range(2))
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
X86 = Platform(architecture="x86_64")


def _loaded(version: str) -> TorchRuntime:
    return TorchRuntime(imported=True, cuda_available=True, nccl_loaded=version, nccl_compiled="2.99.1")


CASES = (
    Case(
        title="data corruption in 2.18.1",
        sections={"torch_build": TORCH, "torch_runtime": _loaded("2.18.1"), "platform": X86},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="corruption",
    ),
    Case(
        title="only the wheel is known",
        sections={"torch_build": TORCH, "packages": (Package(name="nvidia-nccl-cu12", version="2.19.3"),), "gpus": H100},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="2.19.4",
    ),
    Case(
        title="2.28.9: only a fault under a condition",
        sections={"torch_build": TORCH, "torch_runtime": _loaded("2.28.9"), "platform": X86, "gpus": H100},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="NVLink SHARP in use",
    ),
    Case(
        title="a fault on Hopper that this Ampere node cannot have",
        sections={"torch_build": TORCH, "torch_runtime": _loaded("2.15.1"), "platform": X86, "gpus": A100},
        status=Status.PASS,
    ),
    Case(
        title="a fault under a condition, and one GPU alone",
        sections={"torch_build": TORCH, "torch_runtime": _loaded("2.28.9"), "platform": X86, "gpus": H100[:1]},
        status=Status.PASS,
    ),
    Case(
        title="a newer release without a report",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (MappedLibrary(family="nccl", soname="libnccl.so.2", path="/s/libnccl.so.2", version="2.30.7"),),
            "platform": X86,
            "gpus": H100,
        },
        status=Status.PASS,
    ),
    Case(
        title="the headers torch was compiled with are not the loaded release",
        sections={"torch_build": TORCH, "torch_runtime": TorchRuntime(imported=True, nccl_compiled="2.18.1")},
        status=Status.UNKNOWN,
        says="not known",
    ),
    Case(
        title="a log names the release",
        sections={
            "log_events": (LogEvent(signature="nccl-version", text="NCCL version 2.18.1+cuda12.1", captures={"nccl_said": "2.18.1"}),)
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2.18.5",
    ),
    Case(
        title="a log names two releases",
        sections={
            "log_events": tuple(
                LogEvent(signature="nccl-version", text=f"NCCL version {version}", captures={"nccl_said": version})
                for version in ("2.18.1", "2.18.3")
            )
        },
        status=Status.UNKNOWN,
    ),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a CPU build",
        sections={"torch_build": TorchBuild(version="2.11.0+cpu"), "packages": ()},
        status=Status.NOT_APPLICABLE,
        says="without CUDA",
    ),
)


@check(
    "nccl.known-bad",
    Severity.WARNING,
    explains=("smoke.collectives",),
    settle="python -c \"import torch, ctypes; v=ctypes.c_int(); ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(v)); print(v.value)\"",
    cases=CASES,
)
def known_bad(
    torch_build: Section[TorchBuild],
    torch_runtime: Section[TorchRuntime],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    packages: Section[tuple[Package, ...]],
    log_events: Section[tuple[LogEvent, ...]],
    platform: Section[Platform],
    gpus: Section[tuple[Gpu, ...]],
    nccl_matrix: Nccl,
    gpus_matrix: Gpus,
    nvidia_wheels_matrix: NvidiaWheels,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """List the faults of the NCCL release that this node can have."""
    build = torch_build.value
    said = _said(log_events)
    reading = (_release(torch_runtime, mapped_libraries, cuda_libraries, packages) if build else None) or said
    cuda = CudaVersion.parse(build.cuda or "") if build else None
    if torch_build.state is State.ABSENT or (reading is None and build is None):
        yield says_nothing(torch_build, torch_runtime)
        return
    if reading is None:
        yield NO_CUDA_BUILD if cuda is None else Doubt(subject="NCCL", reason="the release that is loaded or installed is not known")
        return
    version, evidence = reading
    architecture = platform.value.architecture if platform.value else ""
    families = {
        gpus_matrix.architecture(capability)
        for gpu in gpus.value or ()
        if (capability := ComputeCapability.parse(gpu.compute_capability)) is not None
    } - {""}
    wheel = nvidia_wheels_matrix.package(f"nvidia-nccl-cu{cuda.major}") if cuda else None
    issues = [issue for issue in nccl_matrix.issues_of(version) if _has_end(issue, version) and _fits(issue, architecture, families)]
    certain = [issue for issue in issues if _is_certain(issue)]
    for issue in certain:
        severity = Severity.INFO if reading is said else Severity.WARNING
        yield _finding(version, (issue,), evidence, cuda, severity, nccl_matrix, wheel, remedies)
    conditional = [issue for issue in issues if issue not in certain]
    if conditional and reading is not said and len(gpus.value or ()) != 1:  # one GPU alone has nobody to hang with
        yield _finding(version, conditional, evidence, cuda, Severity.INFO, nccl_matrix, wheel, remedies)


def _release(
    torch_runtime: Section[TorchRuntime],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    packages: Section[tuple[Package, ...]],
) -> tuple[LibraryVersion, Evidence] | None:
    """The loaded release, else the one on disk, else the installed one."""
    mapped = [item.version for item in mapped_libraries.value or () if item.family == "nccl"]
    own = own_copies(copy for copy in cuda_libraries.value or () if copy.family == "nccl")
    wheels = [package for package in packages.value or () if package.name.startswith("nvidia-nccl")]
    readings = [
        ("torch_runtime.nccl_loaded", torch_runtime.value.nccl_loaded if torch_runtime.value else ""),
        *(("mapped_libraries[libnccl.so.2]", version) for version in mapped),
        *((f"cuda_libraries[{copy.path}]", copy.version) for copy in own),
        *((f"packages[{package.name}]", package.version) for package in wheels),
    ]
    for where, text in readings:
        version = LibraryVersion.parse(text)
        if version is not None:
            return version, Evidence(where=where, value=text)
    return None


def _said(log_events: Section[tuple[LogEvent, ...]]) -> tuple[LibraryVersion, Evidence] | None:
    """The one release that a log names."""
    events = [event for event in log_events.value or () if "nccl_said" in event.captures]
    versions = {version for event in events if (version := LibraryVersion.parse(event.captures["nccl_said"])) is not None}
    return (versions.pop(), Evidence(where=events[0].where or "log", value=events[0].text)) if len(versions) == 1 else None


def _has_end(issue: NcclIssue, version: LibraryVersion) -> bool:
    """Whether the range that holds the release ends somewhere; a range without an end describes every NCCL to come."""
    from packaging.specifiers import SpecifierSet

    return any(("<" in item or "==" in item) and SpecifierSet(item).contains(str(version)) for item in issue.specifiers)


def _fits(issue: NcclIssue, architecture: str, families: set[str]) -> bool:
    """Whether processor and GPU architecture allow the fault; what is not known allows it."""
    processor = not issue.cpu_architectures or not architecture or architecture in issue.cpu_architectures
    gpu = (
        not issue.gpu_architectures
        or not families
        or any(family.startswith(name) for family in families for name in issue.gpu_architectures)
    )
    return processor and gpu


def _finding(
    version: LibraryVersion,
    issues: Sequence[NcclIssue],
    evidence: Evidence,
    cuda: CudaVersion | None,
    severity: Severity,
    matrix: Nccl,
    wheel: NvidiaWheel | None,
    remedies: Remedies,
) -> Finding:
    mended = sorted({fixed for issue in issues for text in issue.fixed_in if (fixed := _version(text)) is not None and fixed > version})
    target = _first_good(mended[-1], matrix, wheel) if mended else None
    workarounds = "; ".join(dict.fromkeys(issue.workaround for issue in issues if issue.workaround))
    symptoms = "; ".join(f"{issue.symptom}{f' (when: {issue.condition})' if issue.condition else ''}" for issue in issues)
    fill = {"major": str(cuda.major)} if cuda else {}
    if target:
        fill["version"] = str(target)
    return Finding(
        subject=f"NCCL {version}",
        severity=severity,
        summary=f"NCCL {version} has {'a known fault' if len(issues) == 1 else f'{len(issues)} known faults'}: {symptoms}.",
        cause=(
            "It matters only if the symptom is yours."
            if severity is Severity.INFO
            else "A job that meets it hangs, fails or computes wrong results."
        )
        + (f" Until then: {workarounds}." if workarounds else ""),
        evidence=(evidence, *(Evidence(where=f"matrices/nccl[{issue.id}]", value=f"affected: {issue.affected}") for issue in issues)),
        expected=f"NCCL {target} or newer" if target else "a release without the fault",
        remedies=remedies("general", **fill),
        sources=tuple(dict.fromkeys(source for issue in issues for source in issue.basis.sources)),
    )


def _is_certain(issue: NcclIssue) -> bool:
    """Whether each job on that release can meet the fault, and where it begins and ends is known."""
    return issue.is_bounded and not issue.condition and issue.basis.may_carry_warning


def _first_good(mended: LibraryVersion, matrix: Nccl, wheel: NvidiaWheel | None) -> LibraryVersion:
    """The first published release from there on that has no certain fault: 'fixed in 2.29' is 2.29.2."""
    published = [row.version for row in (wheel.releases if wheel else matrix.releases)]
    newer = sorted(version for text in published if (version := LibraryVersion.parse(text)) and version >= mended)
    return next((version for version in newer if not any(map(_is_certain, matrix.issues_of(version)))), mended)


def _version(text: str) -> LibraryVersion | None:
    return LibraryVersion.parse(text) if re.fullmatch(r"[\d.]+", text) else None
