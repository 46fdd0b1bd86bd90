"""Another NCCL is loaded, or would be, instead of the one torch brings.

What it looks at
    Which libnccl.so.2 torch loaded or would load, in the order of the loader, torch's own wheel, and an error of the import that names
    an NCCL function.

Why it matters
    NCCL keeps its interface within 2.x, so a newer copy works, and some sites put one first on purpose (with the network plugin of a
    cloud). An older one lacks what torch was compiled with: `import torch` ends in "undefined symbol: nccl…", or collectives behave
    differently from what pip says is installed. All ranks of a job need the same release: a variable that is set on one node only makes
    ranks differ.

Sources
    NCCL release messages and source (version check between ranks); contents of the published wheels; ld.so(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import (
    LD_SO,
    copy_evidence,
    described,
    entry_of,
    is_own,
    own_copies,
    relation,
    used_libraries,
)
from dsdoctor.facts import CudaLibrary, EnvironmentVariable, LoaderHit, MappedLibrary, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Nccl

LACKING = re.compile(r"undefined symbol: p?nccl\w+")

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
OWN = CudaLibrary(
    family="nccl",
    soname="libnccl.so.2",
    path="/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
    origin="wheel",
    package="nvidia-nccl-cu13",
    version="2.28.9",
)


def _system(version: str) -> CudaLibrary:
    return CudaLibrary(
        family="nccl", soname="libnccl.so.2", path=f"/usr/lib/x86_64-linux-gnu/libnccl.so.{version}", version=version, origin="system"
    )


def _hit(copy: CudaLibrary, via: str) -> tuple[LoaderHit, ...]:
    return (LoaderHit(family="nccl", soname="libnccl.so.2", path=copy.path, via=via, version=copy.version, asked_by="libtorch_cuda.so"),)


CASES = (
    Case(
        title="an older NCCL through LD_PRELOAD, and torch misses a function",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (OWN, _system("2.19.3")),
            "loader_hits": _hit(_system("2.19.3"), "LD_PRELOAD"),
            "environment": (EnvironmentVariable(name="LD_PRELOAD", value="/usr/lib/x86_64-linux-gnu/libnccl.so.2"),),
            "torch_runtime": TorchRuntime(
                imported=False, import_error="ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="ncclCommWindowRegister",
    ),
    Case(
        title="an older NCCL of the system is loaded",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (OWN, _system("2.28.3")),
            "mapped_libraries": (
                MappedLibrary(family="nccl", soname="libnccl.so.2", path="/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3", version="2.28.3"),
            ),
            "environment": (EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/lib/x86_64-linux-gnu"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="LD_LIBRARY_PATH",
    ),
    Case(
        title="a newer NCCL, put first on purpose or not",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (OWN, _system("2.30.7")),
            "loader_hits": _hit(_system("2.30.7"), "LD_LIBRARY_PATH"),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="2.30.7",
    ),
    Case(
        title="the wheel is loaded, another copy lies in the system",
        sections={"torch_build": TORCH, "cuda_libraries": (OWN, _system("2.28.3")), "loader_hits": _hit(OWN, "RPATH")},
        status=Status.PASS,
    ),
    Case(
        title="no wheel: NCCL is the system's, or linked in",
        sections={
            "torch_build": TORCH,
            "cuda_libraries": (_system("2.28.3"),),
            "loader_hits": _hit(_system("2.28.3"), "ld.so.cache"),
        },
        status=Status.NOT_APPLICABLE,
        says="torch brings no NCCL itself",
    ),
    Case(title="the copies are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="cuda libraries"),
    Case(title="what would be loaded is not known", sections={"torch_build": TORCH, "cuda_libraries": (OWN,)}, status=Status.UNKNOWN),
    Case(
        title="no torch",
        sections={"torch_build": absent("torch is not installed"), "cuda_libraries": ()},
        status=Status.NOT_APPLICABLE,
    ),
)


@check(
    "nccl.shadowed",
    Severity.WARNING,
    explains=("torch.import-fails", "nccl.duplicate", "nccl.known-bad", "smoke.collectives"),
    settle="python -c \"import torch; print({l.split()[-1] for l in open('/proc/self/maps') if 'libnccl' in l})\"",
    cases=CASES,
)
def shadowed(
    torch_build: TorchBuild,
    cuda_libraries: tuple[CudaLibrary, ...],
    torch_runtime: Section[TorchRuntime],
    loader_hits: Section[tuple[LoaderHit, ...]],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    nccl_matrix: Nccl,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the libnccl that torch takes with its own."""
    copies = [copy for copy in cuda_libraries if copy.family == "nccl"]
    own = own_copies(copies)
    if not own:
        yield NotApplicable(reason="torch brings no NCCL itself") if torch_build.cuda else NO_CUDA_BUILD
        return
    used = used_libraries("nccl", loader_hits, mapped_libraries)
    if not used and loader_hits.value is None and mapped_libraries.value is None:
        yield Doubt(subject="libnccl.so.2", reason="copies were found, but which copy torch loads is not known")
    error = torch_runtime.value.import_error if torch_runtime.value else ""
    lacking = LACKING.search(error)
    for item in used:
        how = relation(own[0].version, item.version)
        if is_own(item, own, copies) or (how == "same" and not lacking):
            continue
        entry = entry_of(item, environment)
        same_on_all = next((fact for fact in nccl_matrix.cross_rank if fact.id == "require-same"), None)
        yield Finding(
            subject=item.soname,
            severity=Severity.ERROR if lacking else Severity.INFO if how == "newer" else Severity.WARNING,
            summary=f"NCCL {item.version or 'of a version that is not known'} in {item.folder} {item.verb} instead of torch's own {described(own[0])}"
            + (f", and torch does not import: {lacking[0]}." if lacking else "."),
            cause=(f"{entry.text} puts it first. " if entry.text else "")
            + (
                "A newer 2.x works. Make sure that each node of a job has it."
                if how == "newer"
                else "What torch was compiled with may be missing in it, and what pip lists is not what runs."
            ),
            evidence=(
                *((Evidence(where="torch_runtime.import_error", value=error),) if lacking else ()),
                item.evidence,
                copy_evidence(own[0]),
            ),
            expected=f"torch's own NCCL: {own[0].path}",
            remedies=remedies.of("cuda.library-shadowed", entry.case)
            if entry.case in ("rpath", "conda")
            else remedies(entry.case or "variable", folder=entry.folder),
            sources=same_on_all.basis.sources if same_on_all else (LD_SO,),
        )
