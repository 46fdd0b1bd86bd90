"""The parts of cuDNN that torch loads come from different releases.

What it looks at
    The files libcudnn*.so of one major that torch loaded or would load, their folders and versions; which package each file of the
    wheel's folder comes from; and what torch said when it started cuDNN or ran a first convolution.

Why it matters
    cuDNN 8 and 9 consist of a front (libcudnn.so.9) and sub-libraries that it opens by itself when it needs them. torch finds the front
    through its RPATH, but the front has a RUNPATH, and LD_LIBRARY_PATH comes before a RUNPATH: so the front may come from the wheel and
    the rest from the system. Parts of different releases end in CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH, "undefined symbol", or wrong
    kernels, often only in the first convolution.

Sources
    NVIDIA cuDNN: forward compatibility; ld.so(8): order of RPATH, LD_LIBRARY_PATH and RUNPATH; seen with LD_DEBUG=libs on an H200.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import Used, entry_of, is_own, own_copies, relation, used_libraries
from dsdoctor.facts import CudaLibrary, EnvironmentVariable, LoaderHit, MappedLibrary, Package, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Cudnn, NvidiaWheels
from dsdoctor.versions import CudaVersion, LibraryVersion

BROKEN = re.compile(r"SUBLIBRARY|[Cc]ould not load library libcudnn|libcudnn\w*\.so|undefined symbol: cudnn")
"""How cuDNN and the loader say that the parts do not fit."""

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
SITE = "/opt/venv/lib/python3.12/site-packages/nvidia/cudnn/lib"
SYSTEM = "/usr/lib/x86_64-linux-gnu"


def _part(name: str, folder: str, version: str) -> MappedLibrary:
    return MappedLibrary(family="cudnn", soname=f"{name}.so.9", path=f"{folder}/{name}.so.9", version=version)


def _found(name: str, folder: str, version: str, via: str) -> LoaderHit:
    return LoaderHit(
        family="cudnn", soname=f"{name}.so.9", path=f"{folder}/{name}.so.9", via=via, version=version, asked_by="libcudnn.so.9"
    )


def _file(name: str, package: str, version: str) -> CudaLibrary:
    return CudaLibrary(family="cudnn", soname=f"{name}.so.9", path=f"{SITE}/{name}.so.9", origin="wheel", package=package, version=version)


MIXED = (_found("libcudnn", SITE, "9.19.0.56", "RPATH"), _found("libcudnn_graph", SYSTEM, "9.14.0", "LD_LIBRARY_PATH"))

CASES = (
    Case(
        title="front of the wheel, sub-libraries of the system through LD_LIBRARY_PATH",
        sections={
            "torch_build": TORCH,
            "loader_hits": MIXED,
            "environment": (EnvironmentVariable(name="LD_LIBRARY_PATH", value=SYSTEM),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="LD_LIBRARY_PATH",
    ),
    Case(
        title="they are mapped, and the first convolution failed",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (_part("libcudnn", SITE, "9.19.0.56"), _part("libcudnn_graph", SYSTEM, "9.14.0")),
            "torch_runtime": TorchRuntime(
                imported=True, cuda_available=True, operation_error="cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="9.14.0",
    ),
    Case(
        title="they are mapped, and the first convolution worked",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (_part("libcudnn", SITE, "9.19.0.56"), _part("libcudnn_graph", SYSTEM, "9.20.0")),
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_version="9.19.0"),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
    ),
    Case(
        title="the wheels of two CUDA majors overwrote each other",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (
                _file("libcudnn", "nvidia-cudnn-cu13", "9.19.0.56"),
                _file("libcudnn_cnn", "nvidia-cudnn-cu12", "9.10.2.21"),
            ),
            "loader_hits": (_found("libcudnn", SITE, "9.19.0.56", "RPATH"), _found("libcudnn_cnn", SITE, "9.10.2.21", "RUNPATH")),
            "packages": (
                Package(name="nvidia-cudnn-cu12", version="9.10.2.21"),
                Package(name="nvidia-cudnn-cu13", version="9.19.0.56"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="nvidia-cudnn-cu12",
    ),
    Case(
        title="two wheels are installed, and all files are of one of them",
        sections={
            "torch_build": TORCH,
            "loader_hits": (_found("libcudnn", SITE, "9.19.0.56", "RPATH"),),
            "packages": (
                Package(name="nvidia-cudnn-cu12", version="9.19.0.56"),
                Package(name="nvidia-cudnn-cu13", version="9.19.0.56"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="the same folder",
    ),
    Case(
        title="one folder, one release",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (_part("libcudnn", SITE, "9.19.0.56"), _part("libcudnn_graph", SITE, "9.19.0.56")),
        },
        status=Status.PASS,
    ),
    Case(
        title="two folders, the same release",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (_part("libcudnn", SITE, "9.19.0.56"), _part("libcudnn_graph", SYSTEM, "9.19.0")),
        },
        status=Status.PASS,
    ),
    Case(
        title="cuDNN 8 of another package beside cuDNN 9: majors do not meet",
        sections={
            "torch_build": TORCH,
            "mapped_libraries": (
                _part("libcudnn", SITE, "9.19.0.56"),
                MappedLibrary(family="cudnn", soname="libcudnn.so.8", path="/usr/lib/libcudnn.so.8.9.7", version="8.9.7"),
            ),
        },
        status=Status.PASS,
    ),
    Case(title="what torch loads is not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="not known"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a CPU build loads none",
        sections={"torch_build": TorchBuild(version="2.11.0+cpu"), "loader_hits": ()},
        status=Status.NOT_APPLICABLE,
        says="without CUDA",
    ),
)


@check(
    "cudnn.mixed-sublibraries",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", *SMOKE_OF_LIBRARIES),
    settle="python -c \"import torch; torch.nn.functional.conv2d(torch.ones(1,1,8,8,device='cuda'), torch.ones(1,1,3,3,device='cuda')); "
    "print({l.split()[-1] for l in open('/proc/self/maps') if 'libcudnn' in l})\"",
    cases=CASES,
)
def mixed_sublibraries(
    torch_build: TorchBuild,
    torch_runtime: Section[TorchRuntime],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    loader_hits: Section[tuple[LoaderHit, ...]],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    packages: Section[tuple[Package, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    cudnn_matrix: Cudnn,
    nvidia_wheels_matrix: NvidiaWheels,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """All parts of one cuDNN major must be of one release."""
    parts = used_libraries("cudnn", loader_hits, mapped_libraries)
    wheels = [package for package in packages.value or () if package.name.startswith("nvidia-cudnn-cu")]
    if not parts:
        unread = loader_hits.value is None and mapped_libraries.value is None
        if unread and torch_build.cuda:
            yield Doubt(subject="libcudnn", reason="which files torch loads is not known")
        else:
            yield NotApplicable(reason="torch loads no cuDNN") if torch_build.cuda else NO_CUDA_BUILD
        return
    mixed = False
    for major in sorted({part.soname.rpartition(".")[2] for part in parts}):
        group = [part for part in parts if part.soname.rpartition(".")[2] == major]
        releases = _releases(group)
        if len(releases) > 1:
            mixed = True
            yield _mixed(group, releases, torch_build, torch_runtime.value, cuda_libraries, wheels, environment, cudnn_matrix, remedies)
    if not mixed and len(wheels) > 1:
        row = nvidia_wheels_matrix.package(wheels[0].name)
        yield _overlapping(wheels, torch_build, row.basis.sources if row else (), remedies)


def _releases(parts: Sequence[Used]) -> Mapping[str, list[Used]]:
    """The parts by release; a part without a version belongs to any release."""
    found: dict[str, list[Used]] = {}
    for part in parts:
        if not LibraryVersion.parse(part.version):
            continue
        name = next((name for name in found if relation(name, part.version) == "same"), part.version)
        found.setdefault(name, []).append(part)
    return found


def _mixed(
    parts: Sequence[Used],
    releases: Mapping[str, list[Used]],
    torch_build: TorchBuild,
    runtime: TorchRuntime | None,
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    wheels: Sequence[Package],
    environment: Section[tuple[EnvironmentVariable, ...]],
    matrix: Cudnn,
    remedies: Remedies,
) -> Finding:
    versions = [version for name in releases if (version := LibraryVersion.parse(name))]
    one_minor = len({(version.major, version.minor) for version in versions}) == 1
    errors = [] if runtime is None else [("cudnn_error", runtime.cudnn_error), ("operation_error", runtime.operation_error)]
    said = [Evidence(where=f"torch_runtime.{name}", value=text) for name, text in errors if BROKEN.search(text)]
    works = runtime is not None and bool(runtime.cudnn_version) and not runtime.cudnn_error and not runtime.operation_error
    rule = next((rule for rule in matrix.rules if rule.id == "minor"), None)
    grave = bool(said) or (not works and not one_minor and rule is not None and rule.basis.may_carry_error)
    copies = cuda_libraries.value or ()
    own = own_copies(copy for copy in copies if copy.family == "cudnn")
    foreign = [part for part in parts if not (is_own(part, own, copies) if own else "-packages/" in part.path)]
    entry = entry_of(foreign[0], environment) if foreign else None
    packaged = {copy.path: copy.package for copy in copies}
    lists = "; ".join(f"{name}: {_named(group)}" for name, group in releases.items())
    return Finding(
        subject=f"libcudnn*.so.{parts[0].soname.rpartition('.')[2]}",
        severity=Severity.ERROR if grave else Severity.WARNING,
        summary=f"torch {'loads' if len(_releases([part for part in parts if part.is_mapped])) > 1 else 'would load'} parts of cuDNN from {len(releases)} releases ({lists}).",
        cause=(f"{entry.text} puts {entry.folder} before the wheel. " if entry and entry.text else "")
        + (
            f"{' and '.join(package.name for package in wheels)} are both installed and fill the same folder. "
            if len(wheels) > 1 and not foreign
            else ""
        )
        + (
            "The first convolution worked, but other operations open other parts."
            if works
            else "Parts of different releases refuse one another."
        ),
        evidence=(
            *said,
            *(
                Evidence(where=part.evidence.where, value=f"{part.evidence.value}{_of(packaged.get(part.path, ''))}")
                for group in releases.values()
                for part in group[:3]
            ),
        ),
        expected="all parts from one release and one folder",
        remedies=_remedies(remedies, entry.case if entry else "", entry.folder if entry else "", torch_build),
        sources=rule.basis.sources if rule else (),
    )


def _overlapping(wheels: Sequence[Package], torch_build: TorchBuild, sources: tuple[str, ...], remedies: Remedies) -> Finding:
    names = " and ".join(f"{package.name} {package.version}" for package in wheels)
    return Finding(
        subject=", ".join(package.name for package in wheels),
        severity=Severity.WARNING,
        summary=f"{names} are both installed and fill the same folder, nvidia/cudnn/lib.",
        cause="The one installed last has won. Updating or removing one of them takes files from the other, or mixes the two.",
        evidence=tuple(Evidence(where=f"packages[{package.name}].version", value=package.version) for package in wheels),
        expected="only the wheel for torch's CUDA major",
        remedies=_remedies(remedies, "", "", torch_build),
        sources=sources,
    )


def _remedies(remedies: Remedies, case: str, folder: str, torch_build: TorchBuild) -> tuple[Remedy, ...]:
    if case == "conda":
        return remedies.of("cuda.library-shadowed", case)
    if case in ("variable", "preload", "ldconfig"):
        return remedies.of("cudnn.shadowed", case, folder=folder)
    cuda = CudaVersion.parse(torch_build.cuda or "")
    fill = {"major": str(cuda.major)} if cuda else {}
    return remedies("wheels", **fill)


def _named(parts: Sequence[Used]) -> str:
    more = f" and {len(parts) - 2} more" if len(parts) > 2 else ""
    return ", ".join(part.soname for part in parts[:2]) + more


def _of(package: str) -> str:
    return f" ({package})" if package else ""
