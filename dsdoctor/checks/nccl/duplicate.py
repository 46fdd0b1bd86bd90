"""NCCL is there more than once.

What it looks at
    The NCCL wheels that are installed (those of two CUDA majors own the same file), the copies of libnccl on the node, and how many of
    them are loaded into one process.

Why it matters
    nvidia-nccl-cu12 and nvidia-nccl-cu13 both install nvidia/nccl/lib/libnccl.so.2: the last one wins, pip shows both, and removing one
    deletes the file for the other. Two different copies in one process keep two states. A copy of the system that nothing loads is no
    fault; it is named, because it differs from what the job uses. torch.cuda.nccl.version() tells what torch was compiled with, never
    what is loaded.

Often said, and not so
    "All nodes need the same NCCL major, else collectives block": too weak. From 2.23.4 on the initialisation fails with
    ncclInvalidUsage ("Mismatched NCCL version detected") unless the full version is the same on all ranks; it is an error, not a block.
    Source: NCCL, src/init.cc and release notes of 2.23.4.

Sources
    Contents of the published wheels; DeepEP README (NCCL of another CUDA major); NCCL User Guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import LD_SO, copy_evidence, described, naming_variable, own_copies, relation
from dsdoctor.facts import CudaLibrary, EnvironmentVariable, FileConflict, MappedLibrary, Package, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Nccl, NvidiaWheels
from dsdoctor.versions import CudaVersion

FILE = "nvidia/nccl/lib/libnccl.so.2"
SITE = "/opt/venv/lib/python3.12/site-packages"
TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
CU12 = Package(name="nvidia-nccl-cu12", version="2.27.5")
CU13 = Package(name="nvidia-nccl-cu13", version="2.28.9")
OWN = CudaLibrary(
    family="nccl", soname="libnccl.so.2", path=f"{SITE}/{FILE}", origin="wheel", package="nvidia-nccl-cu13", version="2.28.9", cuda_major=13
)
OVERWRITTEN = CudaLibrary(
    family="nccl", soname="libnccl.so.2", path=f"{SITE}/{FILE}", origin="wheel", package="nvidia-nccl-cu12", version="2.27.5", cuda_major=12
)
SYSTEM = CudaLibrary(
    family="nccl",
    soname="libnccl.so.2",
    path="/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3",
    version="2.28.3",
    origin="system",
    package="libnccl2",
)


def _mapped(copy: CudaLibrary) -> MappedLibrary:
    return MappedLibrary(family="nccl", soname=copy.soname, path=copy.path, version=copy.version)


CASES = (
    Case(
        title="wheels of two CUDA majors, and the wrong one won",
        sections={
            "torch_build": TORCH,
            "packages": (CU12, CU13),
            "cuda_libraries": (OVERWRITTEN,),
            "file_conflicts": (FileConflict(path=f"{SITE}/{FILE}", packages=("nvidia-nccl-cu12", "nvidia-nccl-cu13")),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="nvidia-nccl-cu12",
    ),
    Case(
        title="wheels of two CUDA majors, and nobody knows which file is there",
        sections={"torch_build": TORCH, "packages": (CU12, CU13)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="the same file",
    ),
    Case(
        title="wheels of two CUDA majors, and the file is that of torch's major",
        sections={"torch_build": TORCH, "packages": (CU12, CU13), "cuda_libraries": (OWN,)},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="two copies of different releases in one process",
        sections={
            "torch_build": TORCH,
            "packages": (CU13,),
            "cuda_libraries": (OWN, SYSTEM),
            "mapped_libraries": (_mapped(OWN), _mapped(SYSTEM)),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="2.28.3",
    ),
    Case(
        title="another NCCL of the system that nothing loads (H200 node, healthy)",
        sections={
            "torch_build": TORCH,
            "packages": (CU13,),
            "cuda_libraries": (OWN, SYSTEM),
            "mapped_libraries": (_mapped(OWN),),
            "environment": (EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/local/nvidia/lib64"),),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2.28.3",
    ),
    Case(
        title="the wheel alone",
        sections={"torch_build": TORCH, "packages": (CU13,), "cuda_libraries": (OWN,), "mapped_libraries": (_mapped(OWN),)},
        status=Status.PASS,
    ),
    Case(
        title="the same release in the system",
        sections={
            "torch_build": TORCH,
            "packages": (CU13,),
            "cuda_libraries": (
                OWN,
                CudaLibrary(family="nccl", soname="libnccl.so.2", path="/usr/lib64/libnccl.so.2.28.9", version="2.28.9", origin="system"),
            ),
        },
        status=Status.PASS,
    ),
    Case(
        title="two wheels beside torch for the CPU, which loads neither",
        sections={"torch_build": TorchBuild(version="2.13.0+cpu"), "packages": (CU12, CU13)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="loads neither",
    ),
    Case(title="the packages are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="packages"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a CPU build",
        sections={"torch_build": TorchBuild(version="2.11.0+cpu"), "packages": ()},
        status=Status.NOT_APPLICABLE,
        says="without CUDA",
    ),
)


@check(
    "nccl.duplicate",
    Severity.WARNING,
    explains=("nccl.shadowed",),
    settle="pip list | grep -i nccl; ldconfig -p | grep libnccl",
    cases=CASES,
)
def duplicate(
    torch_build: TorchBuild,
    packages: tuple[Package, ...],
    torch_runtime: Section[TorchRuntime],
    file_conflicts: Section[tuple[FileConflict, ...]],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    nvidia_wheels_matrix: NvidiaWheels,
    nccl_matrix: Nccl,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look for a second wheel, a second loaded copy and a second copy on disk."""
    copies = [copy for copy in cuda_libraries.value or () if copy.family == "nccl"]
    own = own_copies(copies)
    wheels = [package for package in packages if (row := nvidia_wheels_matrix.package(package.name)) is not None and row.family == "nccl"]
    if not copies and not wheels:
        yield NotApplicable(reason="there is no NCCL") if torch_build.cuda else NO_CUDA_BUILD
    if len(wheels) > 1:
        yield _two_wheels(wheels, torch_build, own, file_conflicts, nvidia_wheels_matrix, remedies)
    loaded = [item for item in mapped_libraries.value or () if item.family == "nccl"]
    if len({item.path for item in loaded}) > 1 and len({item.version for item in loaded}) > 1:
        named = ", ".join(f"{item.version or 'version not known'} ({item.path})" for item in loaded)
        yield Finding(
            subject="libnccl.so.2",
            summary=f"Two different NCCL are loaded into one process: {named}.",
            cause="Each keeps its own communicators and settings. Which one a package calls depends on the order of loading.",
            evidence=tuple(Evidence(where=f"mapped_libraries[{item.soname}]", value=f"{item.path} = {item.version}") for item in loaded),
            expected="one libnccl in a process",
            remedies=remedies.of("nccl.shadowed", "variable"),
            sources=(LD_SO,),
        )
        return
    same_on_all = next((fact for fact in nccl_matrix.cross_rank if fact.id == "require-same"), None)
    others = [copy for copy in copies if own and copy not in own and relation(own[0].version, copy.version) in ("older", "newer")]
    if others and len(wheels) < 2 and not {item.path for item in loaded} & {copy.path for copy in others}:
        yield _beside(own[0], others, torch_runtime, environment, same_on_all.basis.sources if same_on_all else (LD_SO,), remedies)


def _two_wheels(
    wheels: Sequence[Package],
    torch_build: TorchBuild,
    own: Sequence[CudaLibrary],
    file_conflicts: Section[tuple[FileConflict, ...]],
    matrix: NvidiaWheels,
    remedies: Remedies,
) -> Finding:
    cuda = CudaVersion.parse(torch_build.cuda or "")
    rows = {package.name: matrix.package(package.name) for package in wheels}
    right = next((package for package in wheels if cuda and (row := rows[package.name]) and row.cuda_major == cuda.major), None)
    stray = next((package for package in wheels if package is not right), wheels[0])
    row = rows[stray.name]
    winner = next((copy for copy in own if copy.package), None)
    is_right = winner is not None and right is not None and winner.package == right.name
    conflicts = [conflict for conflict in file_conflicts.value or () if conflict.path.endswith(FILE)]
    names = " and ".join(f"{package.name} {package.version}" for package in wheels)
    fill = {"major": str(cuda.major)} if cuda else {}
    if row and row.cuda_major is not None:
        fill["other_major"] = str(row.cuda_major)
    if right is not None:
        fill["version"] = right.version
    return Finding(
        subject=", ".join(package.name for package in wheels),
        severity=Severity.INFO if is_right else Severity.WARNING,
        summary=f"{names} are both installed and own the same file, {FILE}"
        + (f"; the one that is there now is {described(winner)}." if winner else "; the one installed last has won."),
        cause=(
            "This run has the right one; the next update of the other, or removing it, takes the file away."
            if is_right
            else f"torch {torch_build.version} may be running with an NCCL that it was not built with, whatever pip says."
            if cuda
            else f"torch {torch_build.version} is built without CUDA and loads neither. With a build for CUDA, one of them is the wrong one."
        ),
        evidence=(
            *(Evidence(where=f"packages[{package.name}].version", value=package.version) for package in wheels),
            *(Evidence(where="file_conflicts", value=f"{conflict.path}: {', '.join(conflict.packages)}") for conflict in conflicts[:1]),
            *((copy_evidence(winner),) if winner else ()),
        ),
        expected=f"{right.name} {right.version} alone"
        if right
        else f"the NCCL wheel for CUDA {cuda} alone"
        if cuda
        else "at most one NCCL wheel",
        remedies=remedies("general", **fill),
        sources=row.basis.sources if row else (LD_SO,),
    )


def _beside(
    own: CudaLibrary,
    others: Sequence[CudaLibrary],
    torch_runtime: Section[TorchRuntime],
    environment: Section[tuple[EnvironmentVariable, ...]],
    sources: tuple[str, ...],
    remedies: Remedies,
) -> Finding:
    variables = [variable for copy in others if (variable := naming_variable(copy.path, environment))]
    compiled = torch_runtime.value.nccl_compiled if torch_runtime.value else ""
    folder = others[0].path.rpartition("/")[0]
    return Finding(
        subject="libnccl.so.2",
        severity=Severity.INFO,
        summary=f"NCCL is on this node more than once: torch's own {described(own)}; beside it "
        + ", ".join(f"{described(copy)} in {copy.path.rpartition('/')[0]}" for copy in others)
        + ".",
        cause=(
            f"{variables[0]} names the folder of the other one: programs and libraries without an RPATH take it."
            if variables
            else "Nothing has to be done. Another process (nccl-tests, an MPI program) may use another release than torch does."
        ),
        evidence=(
            copy_evidence(own),
            *(copy_evidence(copy) for copy in others),
            *((Evidence(where="torch_runtime.nccl_compiled", value=f"{compiled} (headers torch was built with)"),) if compiled else ()),
        ),
        expected="the same release for all ranks of a job",
        remedies=remedies.of("nccl.shadowed", "variable", folder=folder) if variables else remedies("beside"),
        sources=sources,
    )
