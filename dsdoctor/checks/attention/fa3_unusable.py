"""FlashAttention-3 is installed and cannot be used on this node.

What it looks at
    Whether FlashAttention-3 is installed (flash-attn-3 built from source, or fa3-fwd), the compute capability of the GPUs, and what its
    compiled extension needs and does not get.

Why it matters
    Its kernels use instructions that only Hopper (9.0) has; Ampere, Ada and Blackwell need FlashAttention 2 or 4. An engine that is
    told to use it anyway ends in "no kernel image" or refuses. The package flash-attn is FlashAttention 2 and does not contain it, and
    flash-attn-3 on the public index is an empty placeholder.

Often said, and not so
    "FlashAttention-3 needs CUDA 12.2": the build refuses anything below 12.3, and 12.8 is recommended. (That it needs Hopper is right.)
    "Tuned for, and measured on, A100": it does not serve the A100, whose attention is FlashAttention-2; the A100 is Ampere (8.0),
    Hopper is 9.0.

    "It wants head_dim a multiple of 64, sequence lengths a multiple of 128, and strict contiguity": head_dim is a multiple of 8 (16 for
    FP8) up to 256, sequence lengths are free, and only the last dimension must be contiguous. Sources: flash-attention README,
    hopper/setup.py and flash_api.cpp; run on an H200.

Sources
    FlashAttention README; metadata of the published packages; fa3-fwd measured on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import as_imported
from dsdoctor.facts import Extension, Gpu, ModuleImport, Package, Section, State, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Companions, Gpus
from dsdoctor.versions import ComputeCapability, CudaVersion

PACKAGES = ("fa3-fwd", "flash-attn-3")
LIBRARY = "FlashAttention-3"
"""Its row among the libraries of matrices/gpus."""
DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")

FA3 = (Package(name="fa3-fwd", version="0.0.3"),)
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)
B200 = (Gpu(index=0, name="NVIDIA B200", compute_capability="10.0"),)
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
CU130 = TorchBuild(version="2.11.0+cu130", cuda="13.0")


def _built(**found: object) -> tuple[Extension, ...]:
    from dataclasses import replace

    return (replace(Extension(package="fa3-fwd", package_version="0.0.3", path="/v/fa3_fwd/_C.abi3.so"), **found),)  # type: ignore[arg-type]


CASES = (
    Case(
        title="its extension is built for CUDA 12, torch for CUDA 13",
        sections={
            "packages": FA3,
            "gpus": H200,
            "torch_build": CU130,
            "extensions": _built(missing_libraries=("libcudart.so.12",), cuda_major=12),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="libcudart.so.12",
    ),
    Case(
        title="installed on Blackwell",
        sections={"packages": FA3, "gpus": B200, "extensions": _built()},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="Blackwell",
    ),
    Case(
        title="installed on Ampere",
        sections={"packages": FA3, "gpus": A100},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="Ampere",
    ),
    Case(
        title="the placeholder of the public index",
        sections={"packages": (Package(name="flash-attn-3", version="0.0.0"),), "gpus": H200},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="placeholder",
    ),
    Case(title="on Hopper, as it should be", sections={"packages": FA3, "gpus": H200, "extensions": _built()}, status=Status.PASS),
    Case(
        title="FlashAttention 2 on Ampere: another package",
        sections={"packages": (Package(name="flash-attn", version="2.8.3"),), "gpus": A100},
        status=Status.NOT_APPLICABLE,
        says="FlashAttention-3 is not installed",
    ),
    Case(
        title="libcuda is missing, which is no fault of the build",
        sections={"packages": FA3, "gpus": H200, "extensions": _built(missing_libraries=("libcuda.so.1",))},
        status=Status.PASS,
    ),
    Case(title="no GPU was found: nothing to judge", sections={"packages": FA3, "gpus": absent("no GPU")}, status=Status.PASS),
    Case(title="the GPU is not known", sections={"packages": FA3}, status=Status.UNKNOWN, says="GPU"),
    Case(title="the packages are not known", sections={"gpus": H200}, status=Status.UNKNOWN, says="packages"),
    Case(title="no Python", sections={"packages": absent("no site-packages"), "gpus": H200}, status=Status.NOT_APPLICABLE),
)


@check(
    "attention.fa3-unusable",
    Severity.ERROR,
    explains=("torch.lacks-gpu-arch", "smoke.fa3"),
    settle="python -c 'import torch; print(torch.cuda.get_device_capability())'; pip list | grep -i -E 'fa3|flash'",
    cases=CASES,
)
def fa3_unusable(
    packages: tuple[Package, ...],
    gpus: Section[tuple[Gpu, ...]],
    extensions: Section[tuple[Extension, ...]],
    module_imports: Section[tuple[ModuleImport, ...]],
    torch_build: Section[TorchBuild],
    gpus_matrix: Gpus,
    companions_matrix: Companions,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """An installed FlashAttention-3 needs Hopper and a build that loads."""
    if not any(package.name in PACKAGES for package in packages):
        yield NotApplicable(reason="FlashAttention-3 is not installed")
    for package in packages:
        if package.name not in PACKAGES:
            continue
        row = companions_matrix.release(package.name, package.version)
        if row is not None and row.yanked:
            yield Finding(
                subject=f"{package.name} {package.version}",
                severity=Severity.WARNING,
                summary=f"{package.name} {package.version} is an empty placeholder: FlashAttention-3 is not installed.",
                cause="No FlashAttention-3 is published under this name; it is built from the folder hopper of the FlashAttention sources.",
                evidence=(Evidence(where=f"packages[{package.name}].version", value=package.version),),
                expected="a build from source, or the copy inside an engine",
                remedies=remedies("build"),
                sources=row.basis.sources,
            )
            continue
        yield from _build(package, as_imported(extensions.value or (), module_imports), torch_build.value, gpus_matrix, remedies)
        yield from _gpu(package, gpus, gpus_matrix, remedies)


def _build(
    package: Package, extensions: Sequence[Extension], torch_build: TorchBuild | None, gpus_matrix: Gpus, remedies: Remedies
) -> Iterator[Finding]:
    """What its extension needs and does not get."""
    cuda = CudaVersion.parse(torch_build.cuda or "") if torch_build else None
    for part in extensions:
        if part.package != package.name:
            continue
        missing = [library for library in part.missing_libraries if not library.startswith(DRIVER_LIBRARIES)]
        symbols = [symbol for symbol in part.missing_symbols if symbol.provider != "libcuda"]
        other = part.cuda_major if part.cuda_major is not None and cuda is not None and part.cuda_major != cuda.major else None
        if not (missing or symbols or part.import_error):
            continue
        what = ", ".join(missing[:2]) or (symbols[0].readable or symbols[0].symbol if symbols else part.import_error)
        yield Finding(
            subject=f"{package.name} {package.version}",
            summary=f"The extension of {package.name} {package.version} does not load: {what}{' is missing' if missing or symbols else ''}.",
            cause=(
                f"It was built for CUDA {other}, and torch {torch_build.version} brings CUDA {cuda.major}."
                if other is not None and torch_build is not None and cuda is not None
                else "It was built against other libraries than those installed."
            ),
            evidence=_evidence(part, missing, [symbol.symbol for symbol in symbols]),
            expected=f"a build for torch {torch_build.version}" if torch_build else "a build for the installed torch",
            remedies=remedies("build", **({"cu": cuda.tag} if cuda else {})),
            sources=tuple(source for row in gpus_matrix.libraries if row.library == LIBRARY for source in row.basis.sources),
        )


def _evidence(part: Extension, missing: Sequence[str], symbols: Sequence[str]) -> tuple[Evidence, ...]:
    where = f"extensions[{part.path}]"
    return (
        *(Evidence(where=f"{where}.missing_libraries", value=library) for library in missing[:3]),
        *(Evidence(where=f"{where}.missing_symbols", value=symbol) for symbol in symbols[:3]),
        *((Evidence(where=f"{where}.import_error", value=part.import_error),) if part.import_error else ()),
    )


def _gpu(package: Package, gpus: Section[tuple[Gpu, ...]], gpus_matrix: Gpus, remedies: Remedies) -> Iterator[Finding | Doubt]:
    """Whether any GPU is of an architecture it is made for."""
    row = next((row for row in gpus_matrix.libraries if row.library == LIBRARY), None)
    if gpus.state is State.ABSENT or row is None:
        return
    found = {gpu.name or f"GPU {gpu.index}": ComputeCapability.parse(gpu.compute_capability) for gpu in gpus.value or ()}
    families = {name: gpus_matrix.architecture(capability) for name, capability in found.items() if capability}
    if not families or not all(families.values()):
        yield Doubt(subject=f"{package.name} {package.version}", reason="the architecture of the GPU is not known")
        return
    others = {name: family for name, family in families.items() if family not in row.architectures}
    if not others:
        return
    named = ", ".join(f"{name} ({family})" for name, family in others.items())
    yield Finding(
        subject=f"{package.name} {package.version}",
        severity=Severity.INFO,
        summary=f"{package.name} {package.version} is FlashAttention-3, which is made for {', '.join(row.architectures)}; here is {named}.",
        cause="It does no harm as long as nothing is set to use it. Forced, it refuses, or ends in an error of the kernel.",
        evidence=(
            Evidence(where=f"packages[{package.name}].version", value=package.version),
            *(Evidence(where=f"compute capability of {name}", value=str(found[name])) for name in others),
        ),
        expected="FlashAttention 2 on Ampere and Ada, FlashAttention 4 or the engine's own back end on Blackwell",
        remedies=remedies("not-hopper"),
        sources=row.basis.sources,
    )
