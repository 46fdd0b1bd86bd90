"""A CUDA library of another place is loaded, or would be, instead of the one torch brings.

What it looks at
    Which libcudart, libcublas, libcublasLt, libnvrtc, libcusparse, libcusparseLt, libnvJitLink and libnvshmem_host torch loaded or
    would load, against the copies of its own wheels; an error of the import that names such a library; and library files that two
    wheels own.

Why it matters
    torch's wheels bring their own CUDA libraries. A toolkit's folder in LD_LIBRARY_PATH, or an LD_PRELOAD, can put others first. An
    older one lacks functions: "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4". A newer one of the same major works as a
    rule, but is not what was tested. A toolkit that lies on the node for building, and that torch does not load, is no fault and is not
    reported.

Often said, and not so
    "ldd piped to grep shows which cuDNN and NCCL are loaded": it shows what the file was linked against, as the loader would find it
    now. torch and cuDNN open most libraries while they run; those do not appear. The map of the process does (/proc/PID/maps). Source:
    ld.so and dlopen manual pages.

Sources
    ld.so(8); ELF headers of the published torch wheels; contents of NVIDIA's wheels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import (
    LD_SO,
    Entry,
    Used,
    copy_evidence,
    described,
    entry_of,
    is_own,
    own_copies,
    relation,
    used_libraries,
)
from dsdoctor.facts import (
    CudaLibrary,
    EnvironmentVariable,
    FileConflict,
    LoaderHit,
    MappedLibrary,
    Section,
    TorchBuild,
    TorchRuntime,
    absent,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import CudaVersion

FAMILIES = ("cudart", "cublas", "cublaslt", "nvrtc", "cusparse", "cusparselt", "nvjitlink", "nvshmem")
ELSEWHERE = ("cudnn", "nccl")
"""Families that have checks of their own."""
NVIDIA_WHEELS = "Contents of the wheels published by NVIDIA"
LACKING = re.compile(r"undefined symbol: (?:__nvJitLink|nvJitLink|cublas|cusparse|cuda[A-Z]|nvrtc|nvshmem)\w*(?:, version lib\S+)?")

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
SITE = "/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib"
TOOLKIT = "/usr/local/cuda-13.0/targets/x86_64-linux/lib"


def _own(name: str, family: str, version: str) -> CudaLibrary:
    return CudaLibrary(family=family, soname=name, path=f"{SITE}/{name}", origin="wheel", package=f"nvidia-{family}", version=version)


def _toolkit(name: str, family: str, version: str) -> CudaLibrary:
    return CudaLibrary(family=family, soname=name, path=f"{TOOLKIT}/{name}.{version}", origin="toolkit", version=version)


def _hit(copy: CudaLibrary, via: str) -> LoaderHit:
    return LoaderHit(family=copy.family, soname=copy.soname, path=copy.path, via=via, version=copy.version, asked_by="libtorch_cuda.so")


CUBLAS = _own("libcublas.so.13", "cublas", "13.1.0.3")
LINK = _own("libnvJitLink.so.13", "nvjitlink", "13.0.88")

CASES = (
    Case(
        title="an older libnvJitLink of a toolkit, and torch does not import",
        sections={
            "torch_build": TorchBuild(version="2.5.1+cu124", cuda="12.4"),
            "cuda_libraries": (
                _own("libnvJitLink.so.12", "nvjitlink", "12.4.127"),
                CudaLibrary(
                    family="nvjitlink",
                    soname="libnvJitLink.so.12",
                    path="/usr/local/cuda-12.1/lib64/libnvJitLink.so.12.1.105",
                    version="12.1.105",
                    origin="toolkit",
                ),
            ),
            "loader_hits": (
                LoaderHit(
                    family="nvjitlink",
                    soname="libnvJitLink.so.12",
                    path="/usr/local/cuda-12.1/lib64/libnvJitLink.so.12.1.105",
                    via="LD_LIBRARY_PATH",
                    version="12.1.105",
                    asked_by="libcusparse.so.12",
                ),
            ),
            "environment": (EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/local/cuda-12.1/lib64"),),
            "torch_runtime": TorchRuntime(
                imported=False,
                import_error="ImportError: /site/nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, "
                "version libnvJitLink.so.12",
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="/usr/local/cuda-12.1/lib64 in LD_LIBRARY_PATH",
    ),
    Case(
        title="an older cuBLAS is loaded",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (CUBLAS, _toolkit("libcublas.so.13", "cublas", "13.0.2.14")),
            "mapped_libraries": (
                MappedLibrary(family="cublas", soname="libcublas.so.13", path=f"{TOOLKIT}/libcublas.so.13.0.2.14", version="13.0.2.14"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="13.0.2.14",
    ),
    Case(
        title="a newer cuBLAS of a toolkit",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (CUBLAS, _toolkit("libcublas.so.13", "cublas", "13.4.1.3")),
            "loader_hits": (_hit(_toolkit("libcublas.so.13", "cublas", "13.4.1.3"), "LD_LIBRARY_PATH"),),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="two wheels own one library",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (CUBLAS,),
            "loader_hits": (_hit(CUBLAS, "RPATH"),),
            "file_conflicts": (
                FileConflict(path="/s/nvidia/nvshmem/lib/libnvshmem_host.so.3", packages=("nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13")),
            ),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="nvidia-nvshmem-cu12",
    ),
    Case(
        title="a toolkit lies beside the wheels, torch takes its own (H200 node, healthy)",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (CUBLAS, LINK, _toolkit("libcublas.so.13", "cublas", "13.1.0.3")),
            "loader_hits": (_hit(CUBLAS, "RPATH"), _hit(LINK, "RPATH")),
        },
        status=Status.PASS,
    ),
    Case(
        title="the same build from the toolkit",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (CUBLAS, _toolkit("libcublas.so.13", "cublas", "13.1.0.3")),
            "loader_hits": (_hit(_toolkit("libcublas.so.13", "cublas", "13.1.0.3"), "LD_LIBRARY_PATH"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="torch built against the system's toolkit, without wheels",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (_toolkit("libcublas.so.13", "cublas", "13.1.0.3"),),
            "loader_hits": (_hit(_toolkit("libcublas.so.13", "cublas", "13.1.0.3"), "ld.so.cache"),),
        },
        status=Status.NOT_APPLICABLE,
        says="torch brings none of these libraries itself",
    ),
    Case(title="what torch would load is not known", sections={"torch_build": TORCH, "cuda_libraries": (CUBLAS,)}, status=Status.UNKNOWN),
    Case(title="the copies are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="cuda libraries"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
)


@check(
    "cuda.library-shadowed",
    Severity.WARNING,
    explains=("torch.import-fails", "torch.cuda-unavailable", "package.abi-mismatch", *SMOKE_OF_LIBRARIES),
    settle="python -c \"import torch; torch.ones(8,8,device='cuda') @ torch.ones(8,8,device='cuda'); "
    "print({l.split()[-1] for l in open('/proc/self/maps') if 'libcu' in l or 'libnv' in l})\"",
    cases=CASES,
)
def library_shadowed(
    torch_build: TorchBuild,
    cuda_libraries: tuple[CudaLibrary, ...],
    torch_runtime: Section[TorchRuntime],
    loader_hits: Section[tuple[LoaderHit, ...]],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    file_conflicts: Section[tuple[FileConflict, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the CUDA libraries that torch takes with its own, folder by folder."""
    yield from _overwritten(file_conflicts, torch_build, remedies)
    if not any(own_copies(copy for copy in cuda_libraries if copy.family == family) for family in FAMILIES):
        yield NotApplicable(reason="torch brings none of these libraries itself") if torch_build.cuda else NO_CUDA_BUILD
        return
    if loader_hits.value is None and mapped_libraries.value is None:
        yield Doubt(subject="CUDA libraries", reason="copies were found, but which ones torch loads is not known")
        return
    foreign: dict[str, list[tuple[Used, CudaLibrary]]] = {}
    for family in FAMILIES:
        copies = [copy for copy in cuda_libraries if copy.family == family]
        own = own_copies(copies)
        for item in used_libraries(family, loader_hits, mapped_libraries):
            mine = next((copy for copy in own if copy.soname == item.soname), None)
            if mine is not None and not is_own(item, own, copies) and relation(mine.version, item.version) != "same":
                foreign.setdefault(item.folder, []).append((item, mine))
    for folder, pairs in foreign.items():
        yield _replaced(folder, pairs, entry_of(pairs[0][0], environment), torch_runtime.value, remedies)


def _replaced(
    folder: str, pairs: Sequence[tuple[Used, CudaLibrary]], entry: Entry, runtime: TorchRuntime | None, remedies: Remedies
) -> Finding:
    error = runtime.import_error if runtime else ""
    lacking = LACKING.search(error)
    newer = all(relation(own.version, item.version) == "newer" for item, own in pairs)
    names = ", ".join(item.soname for item, _ in pairs)
    verb = "are" if len(pairs) > 1 else "is"
    loaded = f"{verb} loaded" if pairs[0][0].is_mapped else "would be loaded"
    fill: Mapping[str, str] = {"library": pairs[0][0].asked_by} if entry.case == "rpath" else {"folder": entry.folder}
    return Finding(
        subject=names,
        severity=Severity.ERROR if lacking else Severity.INFO if newer else Severity.WARNING,
        summary=f"{names} {loaded} from {folder} instead of torch's own wheel{'s' if len(pairs) > 1 else ''}"
        + (f", and torch does not import: {lacking[0]}." if lacking else "."),
        cause=(f"{entry.text} puts it first. " if entry.text else "")
        + (
            "A newer library of the same CUDA major works as a rule, but it is not the one that torch was tested with."
            if newer
            else "An older library may lack functions that torch and its other libraries call."
        ),
        evidence=(
            *((Evidence(where="torch_runtime.import_error", value=error),) if lacking else ()),
            *(
                Evidence(where=item.evidence.where, value=f"{item.evidence.value}; torch's own is {described(own)}")
                for item, own in pairs[:6]
            ),
            copy_evidence(pairs[0][1]),
        ),
        expected=f"the copies of torch's own wheels, in {pairs[0][1].path.rpartition('/')[0]}",
        remedies=remedies(entry.case or "variable", **fill),
        sources=(LD_SO,),
    )


def _overwritten(file_conflicts: Section[tuple[FileConflict, ...]], torch_build: TorchBuild, remedies: Remedies) -> Iterator[Finding]:
    """Library files that two NVIDIA wheels own, without those that other checks look at."""
    by_pair: dict[tuple[str, ...], list[FileConflict]] = {}
    for conflict in file_conflicts.value or ():
        is_nvidia = all(name.startswith("nvidia-") for name in conflict.packages)
        if is_nvidia and ".so" in conflict.path and not any(f"/{family}/" in conflict.path for family in ELSEWHERE):
            by_pair.setdefault(conflict.packages, []).append(conflict)
    cuda = CudaVersion.parse(torch_build.cuda or "")
    fill = {"cu": cuda.tag, "cuda": str(cuda), "torch_version": torch_build.version.partition("+")[0]} if cuda else {}
    for names, conflicts in by_pair.items():
        yield Finding(
            subject=", ".join(names),
            severity=Severity.WARNING,
            summary=f"{' and '.join(names)} own the same library file, {conflicts[0].path}; the one installed last has won.",
            cause="pip lists both, and one of them is not there. Removing or updating either takes the file from the other.",
            evidence=tuple(Evidence(where="file_conflicts", value=conflict.path) for conflict in conflicts[:5]),
            expected="one wheel for each library, that of torch's CUDA major",
            remedies=remedies("overwritten", **fill),
            sources=(NVIDIA_WHEELS,),
        )
