"""Another cuDNN is loaded, or would be, instead of the one torch brings.

What it looks at
    Which libcudnn torch loaded (/proc/self/maps) or would load (RPATH and RUNPATH, LD_PRELOAD, LD_LIBRARY_PATH, ld.so.cache, in the
    loader's order), the cuDNN of torch's own wheel, other copies on the node, and what torch said when it started cuDNN.

Why it matters
    A program may run with the cuDNN minor it was built with, or a newer one of the same major; on an older one nothing is guaranteed,
    and torch refuses: "cuDNN version incompatibility: PyTorch was compiled against (9, 19, 0) but found runtime version (9, 14, 0)". A
    cuDNN of the system that nothing loads is no fault: it is only named here, so that you know of it before somebody puts its folder
    into LD_LIBRARY_PATH.

Sources
    NVIDIA cuDNN: forward compatibility; the error text of torch.backends.cudnn, recorded on an H200.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import (
    Used,
    copy_evidence,
    described,
    entry_of,
    is_own,
    naming_variable,
    own_copies,
    relation,
    used_libraries,
)
from dsdoctor.facts import CudaLibrary, EnvironmentVariable, LoaderHit, MappedLibrary, Section, State, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Cudnn
from dsdoctor.versions import LibraryVersion

REFUSED = re.compile(r"compiled\s+against \((\d+), (\d+), (\d+)\) but found runtime version \((\d+), (\d+), (\d+)\)")
"""Error text of torch/backends/cudnn/__init__.py."""

REFUSAL = (
    "cuDNN version incompatibility: PyTorch was compiled  against (9, 19, 0) but found runtime version (9, 14, 0). PyTorch already comes bundled "
    "with cuDNN. One option to resolving this error is to ensure PyTorch can find the bundled cuDNN."
)
WHEEL = CudaLibrary(
    family="cudnn",
    soname="libcudnn.so.9",
    path="/opt/venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
    version="9.19.0.56",
    origin="wheel",
    package="nvidia-cudnn-cu13",
)
SYSTEM = CudaLibrary(
    family="cudnn",
    soname="libcudnn.so.9",
    path="/usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0",
    version="9.14.0",
    origin="system",
    package="libcudnn9-cuda-13",
)
NEWER = CudaLibrary(family="cudnn", soname="libcudnn.so.9", path="/opt/cudnn/lib/libcudnn.so.9.24.0", version="9.24.0", origin="system")
OWN_LOADED = MappedLibrary(family="cudnn", soname="libcudnn.so.9", path=WHEEL.path, version="9.19.0.56")

GRAPH = MappedLibrary(
    family="cudnn", soname="libcudnn_graph.so.9", path="/usr/lib/x86_64-linux-gnu/libcudnn_graph.so.9.14.0", version="9.14.0"
)


def _mapped(copy: CudaLibrary) -> MappedLibrary:
    return MappedLibrary(family="cudnn", soname="libcudnn.so.9", path=copy.path, version=copy.version)


def _library_path(value: str) -> tuple[EnvironmentVariable, ...]:
    return (EnvironmentVariable(name="LD_LIBRARY_PATH", value=value),)


CASES = (
    Case(
        title="torch refuses the system's older cuDNN, that LD_LIBRARY_PATH put first",
        sections={
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_error=REFUSAL),
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (_mapped(SYSTEM),),
            "environment": _library_path("/lib/x86_64-linux-gnu"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="/lib/x86_64-linux-gnu in LD_LIBRARY_PATH",
    ),
    Case(
        title="the front is torch's own, what it opens comes through LD_LIBRARY_PATH (made on an H200)",
        sections={
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_version="9.14.0", cudnn_error=REFUSAL),
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (OWN_LOADED, GRAPH),
            "loader_hits": (
                LoaderHit(family="cudnn", soname="libcudnn_graph.so.9", path=GRAPH.path, via="LD_LIBRARY_PATH", version="9.14.0"),
            ),
            "environment": _library_path("/usr/lib/x86_64-linux-gnu:/usr/local/nvidia/lib64"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="/usr/lib/x86_64-linux-gnu in LD_LIBRARY_PATH",
    ),
    Case(
        title="one older release through LD_PRELOAD: torch refuses it by name, and its convolutions run (H200 node)",
        sections={
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_error=REFUSAL, device_capabilities=("9.0",)),
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (_mapped(SYSTEM), GRAPH),
            "environment": (EnvironmentVariable(name="LD_PRELOAD", value="/usr/lib/x86_64-linux-gnu/libcudnn.so.9"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="ran all the same",
    ),
    Case(
        title="parts of two releases: an error, whatever ran so far",
        sections={
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_error=REFUSAL, device_capabilities=("9.0",)),
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (OWN_LOADED, GRAPH),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="only the traceback is known",
        sections={"torch_runtime": TorchRuntime(imported=True, cudnn_error=REFUSAL)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="9.14.0",
    ),
    Case(
        title="the loader would take an older cuDNN through LD_PRELOAD",
        sections={
            "cuda_libraries": (WHEEL, SYSTEM),
            "loader_hits": (LoaderHit(family="cudnn", soname="libcudnn.so.9", path=SYSTEM.path, via="LD_PRELOAD", version="9.14.0"),),
            "environment": (EnvironmentVariable(name="LD_PRELOAD", value="/usr/lib/x86_64-linux-gnu/libcudnn.so.9"),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="LD_PRELOAD",
    ),
    Case(
        title="a newer minor is loaded: allowed, but not what torch was tested with",
        sections={"cuda_libraries": (WHEEL, NEWER), "mapped_libraries": (_mapped(NEWER),), "environment": _library_path("/opt/cudnn/lib")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="9.24.0",
    ),
    Case(
        title="an older cuDNN of the system that nothing loads (H200 node, healthy)",
        sections={
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_version="9.19.0"),
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (OWN_LOADED,),
            "environment": _library_path("/usr/local/nvidia/lib64:/usr/local/nvidia/lib"),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="nothing loads it",
    ),
    Case(
        title="LD_LIBRARY_PATH names the system's copy, but torch's RPATH comes first",
        sections={
            "cuda_libraries": (WHEEL, SYSTEM),
            "mapped_libraries": (OWN_LOADED,),
            "environment": _library_path("/usr/lib/x86_64-linux-gnu"),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="LD_LIBRARY_PATH",
    ),
    Case(
        title="one cuDNN, that of the wheel",
        sections={"cuda_libraries": (WHEEL,), "mapped_libraries": (OWN_LOADED,)},
        status=Status.PASS,
    ),
    Case(
        title="the folder of the environment is a link, so that the maps name it differently",
        sections={
            "cuda_libraries": (WHEEL,),
            "mapped_libraries": (
                MappedLibrary(
                    family="cudnn",
                    soname="libcudnn.so.9",
                    path="/data/envs/ds/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
                    version="9.19.0",
                ),
            ),
        },
        status=Status.PASS,
    ),
    Case(
        title="torch of the system, without wheels: the system's cuDNN is its own",
        sections={"cuda_libraries": (SYSTEM,), "mapped_libraries": (_mapped(SYSTEM),)},
        status=Status.NOT_APPLICABLE,
        says="torch brings no cuDNN itself",
    ),
    Case(
        title="the same release from another folder",
        sections={
            "cuda_libraries": (
                WHEEL,
                CudaLibrary(
                    family="cudnn", soname="libcudnn.so.9", path="/usr/lib64/libcudnn.so.9.19.0", version="9.19.0", origin="system"
                ),
            ),
            "mapped_libraries": (
                MappedLibrary(family="cudnn", soname="libcudnn.so.9", path="/usr/lib64/libcudnn.so.9.19.0", version="9.19.0"),
            ),
        },
        status=Status.PASS,
    ),
    Case(
        title="copies are known, what would be loaded is not",
        sections={"cuda_libraries": (WHEEL, SYSTEM)},
        status=Status.UNKNOWN,
        says="which copy",
    ),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN, says="not known"),
    Case(
        title="no torch",
        sections={"torch_build": absent("torch is not installed"), "cuda_libraries": (SYSTEM,)},
        status=Status.NOT_APPLICABLE,
        says="torch is not installed",
    ),
)


@check(
    "cudnn.shadowed",
    Severity.ERROR,
    explains=("cudnn.mixed-sublibraries", "cudnn.version-mismatch", "torch.cuda-unavailable", *SMOKE_OF_LIBRARIES),
    settle="python -c \"import torch; print(torch.backends.cudnn.version()); print({l.split()[-1] for l in open('/proc/self/maps') if 'libcudnn' in l})\"",
    cases=CASES,
)
def shadowed(
    torch_build: Section[TorchBuild],
    torch_runtime: Section[TorchRuntime],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    loader_hits: Section[tuple[LoaderHit, ...]],
    mapped_libraries: Section[tuple[MappedLibrary, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    cudnn_matrix: Cudnn,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the libcudnn that torch takes with its own."""
    everything = [copy for copy in cuda_libraries.value or () if copy.family == "cudnn"]
    all_own = own_copies(everything)
    copies = [copy for copy in everything if _is_front(copy.soname)]
    own = [copy for copy in copies if copy in all_own]
    parts = used_libraries("cudnn", loader_hits, mapped_libraries)
    foreign_parts = [item for item in parts if all_own and not is_own(item, all_own, everything)]
    used = [item for item in parts if _is_front(item.soname)]
    foreign = [item for item in foreign_parts if _is_front(item.soname)]
    said = REFUSED.search(torch_runtime.value.cudnn_error) if torch_runtime.value else None
    if said and torch_runtime.value:
        found = ".".join(said.groups()[3:])
        if not foreign_parts and any(relation(copy.version, found) == "same" for copy in own):
            return  # the wheel itself is too old: cudnn.version-mismatch
        yield _refused(
            ".".join(said.groups()[:3]),
            found,
            torch_runtime.value,
            own,
            foreign or foreign_parts,
            _ran(torch_runtime.value) and _are_of_one_release(parts),
            copies,
            environment,
            cudnn_matrix,
            remedies,
        )
        return
    if torch_build.state is State.ABSENT:
        yield NotApplicable(reason=torch_build.why or "torch is not installed")
        return
    if cuda_libraries.value is None:
        yield Doubt(subject="libcudnn", reason="the copies on this node and the one that torch loads are not known")
        return
    if not own:
        yield NO_CUDA_BUILD if torch_build.value and not torch_build.value.cuda else NotApplicable(reason="torch brings no cuDNN itself")
        return
    if not used:
        yield Doubt(subject="libcudnn", reason="copies were found, but which copy torch loads is not known")
        return
    for item in foreign:
        yield from _replaced(item, own[0], torch_runtime.value, environment, cudnn_matrix, remedies)
    if not foreign_parts:  # parts behind torch's own front: cudnn.mixed-sublibraries
        yield from _beside(own[0], copies, environment, cudnn_matrix, remedies)


def _is_front(soname: str) -> bool:
    """Whether it is libcudnn itself and not one of the sub-libraries it opens."""
    return soname.startswith("libcudnn.so")


def _ran(runtime: TorchRuntime) -> bool:
    """Whether the first operations on the GPU, a convolution among them, were tried and worked."""
    return bool(runtime.device_capabilities) and not runtime.operation_error


def _are_of_one_release(parts: Sequence[Used]) -> bool:
    """Whether all parts that were mapped have one version; parts of two releases may meet in any operation."""
    loaded = [item for item in parts if item.is_mapped]
    return bool(loaded) and all(relation(loaded[0].version, item.version) == "same" for item in loaded)


def _refused(
    built: str,
    found: str,
    runtime: TorchRuntime,
    own: Sequence[CudaLibrary],
    foreign: Sequence[Used],
    works: bool,
    copies: Sequence[CudaLibrary],
    environment: Section[tuple[EnvironmentVariable, ...]],
    matrix: Cudnn,
    remedies: Remedies,
) -> Finding:
    evidence = [Evidence(where="torch_runtime.cudnn_error", value=runtime.cudnn_error)]
    evidence += [item.evidence for item in foreign[:3]]
    suspects = [copy for copy in copies if copy not in own and relation(copy.version, found) == "same"]
    evidence += [copy_evidence(copy) for copy in (*own, *suspects)]
    entry = entry_of(foreign[0], environment) if foreign else None
    folder = foreign[0].folder if foreign else suspects[0].path.rpartition("/")[0] if suspects else ""
    where = f" from {folder}" if folder else ""
    loaded = (
        f"cuDNN {found}{where} is loaded in its place"
        if not foreign or _is_front(foreign[0].soname)
        else f"parts of cuDNN {found}{where} ({', '.join(item.soname for item in foreign[:2])} …) are loaded behind its own front"
    )
    led = f" {entry.text} led to it." if entry and entry.text else ""
    return Finding(
        subject="libcudnn.so.9" if found.startswith("9.") else "libcudnn",
        summary=f"torch was compiled with cuDNN {built}, and {loaded}; torch refuses it.",
        severity=Severity.WARNING if works else Severity.ERROR,
        cause=f"A program may run on the cuDNN minor it was built with or a newer one, not on an older one.{led}"
        + (
            " The first convolution ran all the same, since kernels call cuDNN directly: what fails is whatever asks torch.backends.cudnn first "
            "(recurrent layers, version checks), and what the older release lacks."
            if works
            else ""
        ),
        evidence=tuple(evidence),
        expected=f"the cuDNN that torch brings: {described(own[0])}" if own else f"cuDNN {built} or a newer minor of that major",
        remedies=_remedies(remedies, entry.case if entry else "", entry.folder if entry else folder),
        sources=_sources(matrix),
    )


def _replaced(
    item: Used,
    own: CudaLibrary,
    runtime: TorchRuntime | None,
    environment: Section[tuple[EnvironmentVariable, ...]],
    matrix: Cudnn,
    remedies: Remedies,
) -> Iterator[Finding]:
    if relation(own.version, item.version) == "same":
        return
    built, loaded = LibraryVersion.parse(own.version), LibraryVersion.parse(item.version)
    entry = entry_of(item, environment)
    is_refused = built is not None and loaded is not None and not matrix.runs_with(built, loaded)
    works = runtime is not None and bool(runtime.cudnn_version) and not runtime.cudnn_error
    rule = next((rule for rule in matrix.rules if rule.id == "minor"), None)
    grave = is_refused and not works and rule is not None and rule.basis.may_carry_error
    version = item.version or "of a version that is not known"
    yield Finding(
        subject=item.soname,
        severity=Severity.ERROR if grave else Severity.WARNING,
        summary=f"cuDNN {version} in {item.folder} {item.verb} instead of torch's own {described(own)}.",
        cause=(f"{entry.text} puts it first. " if entry.text else "")
        + (
            "It is older than the one torch was built with: torch refuses it, or fails in single operations."
            if is_refused
            else "A newer minor is allowed, but it is not the one that torch was tested with, and the next change of that folder changes it again."
            if loaded is not None
            else "Whether torch accepts it depends on its version."
        ),
        evidence=(item.evidence, copy_evidence(own)),
        expected=f"torch's own cuDNN: {own.path}",
        remedies=_remedies(remedies, entry.case, entry.folder),
        sources=_sources(matrix),
    )


def _beside(
    own: CudaLibrary,
    copies: Sequence[CudaLibrary],
    environment: Section[tuple[EnvironmentVariable, ...]],
    matrix: Cudnn,
    remedies: Remedies,
) -> Iterator[Finding]:
    """Copies that nothing loads, where their version differs from torch's."""
    for copy in copies:
        if copy.origin in ("wheel", "bundled") or copy.soname != own.soname or relation(own.version, copy.version) in ("same", "unknown"):
            continue
        variable = naming_variable(copy.path, environment)
        folder = copy.path.rpartition("/")[0]
        yield Finding(
            subject=copy.path,
            severity=Severity.INFO,
            summary=f"There are two cuDNN: torch takes its own {described(own)}; {described(copy)} in {folder} lies beside it, and nothing loads it in torch.",
            cause=(
                f"{variable} names its folder: other libraries and programs take that copy, and torch too where its own has no RPATH."
                if variable
                else "Nothing has to be done. It comes into play when its folder gets into LD_LIBRARY_PATH or LD_PRELOAD."
            ),
            evidence=(copy_evidence(own), copy_evidence(copy)),
            expected="torch's own copy first",
            remedies=remedies("variable", folder=folder) if variable else remedies("beside"),
            sources=_sources(matrix),
        )


def _remedies(remedies: Remedies, case: str, folder: str) -> tuple[Remedy, ...]:
    if case in ("rpath", "conda"):
        return remedies.of("cuda.library-shadowed", case)
    fill = {"folder": folder} if folder else {}
    return remedies(case or "variable", **fill)


def _sources(matrix: Cudnn) -> tuple[str, ...]:
    return next((rule.basis.sources for rule in matrix.rules if rule.id == "minor"), ())
