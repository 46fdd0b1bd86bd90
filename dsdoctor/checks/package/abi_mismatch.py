"""A compiled extension was built for another torch, another CUDA or another library than those installed.

What it looks at
    The ELF headers of compiled extensions: libraries they need that are nowhere, symbols they ask for that the installed torch or CUDA
    library does not export, the CUDA major they link to; and what importing them said, where that was tried.

Why it matters
    Most extensions fit one torch minor and one CUDA major. After an upgrade of torch they fail at import: "undefined symbol: _ZN3c10…",
    "libcudart.so.12: cannot open shared object file". An extension that asks libcuda for a function that the driver lacks
    (cuTensorMapEncodeTiled, cuMulticastCreate) is no ABI mismatch: the driver is too old for it, which is said here and belongs to
    driver.too-old-for-cuda. glibc and libstdc++ have checks of their own.

Sources
    FlashAttention issues 1644 and 1717; PyTorch C++ ABI; ELF headers of the installed files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_EXTENSIONS, NOT_FOUND, as_imported
from dsdoctor.facts import Extension, MissingSymbol, ModuleImport, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.versions import CudaVersion

SOURCES = (
    "FlashAttention issues 1644 and 1717: undefined symbol after a torch change — https://github.com/Dao-AILab/flash-attention/issues/1644",
)
CUDA_DRIVER_API = "CUDA Driver API — https://docs.nvidia.com/cuda/cuda-driver-api/index.html"
TORCH_PROVIDERS = ("libc10", "libc10_cuda", "libtorch", "libtorch_cpu", "libtorch_cuda", "libtorch_python")
TORCH_CUDA = ("libtorch_cuda.so", "libc10_cuda.so")
"""Libraries that only a torch with CUDA has."""
SYSTEM_PROVIDERS = ("libc", "libstdc++", "libm", "libgcc_s")
DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
OLD_STRING = re.compile(r"^_ZN?[KVRO]*\d.*Ss")
"""std::string of GCC before 5 in a mangled name (Itanium C++ ABI: the abbreviation Ss)."""

UNDEFINED = re.compile(r"undefined symbol: (\w+)")
C_LIBRARY = re.compile(r"version [`'\"]?(?:GLIBC|GLIBCXX|CXXABI)_")
BUILT_FOR = re.compile(r"\+cu(\d+)torch(\d+\.\d+)")
"""Local part of prebuilt wheels: 2.8.3+cu12torch2.8cxx11abiTRUE."""

ENGINES = ("vllm", "sglang", "sgl-kernel", "sglang-kernel")
COMPANIONS = ("torchvision", "torchaudio")
WHEELS_ONLY = ("fa3-fwd", "sgl-flash-mla", "sgl-deep-gemm", "sgl-deep-ep", "torchao", "tilelang")
"""Published as wheels: installing the same release again brings the same file."""
IMPORTED_AS = {
    "fa3-fwd": "fa3_fwd_interface",
    "sgl-flash-mla": "flash_mla",
    "sgl-deep-gemm": "deep_gemm",
    "sgl-deep-ep": "deep_ep",
    "transformer-engine-cu12": "transformer_engine",
    "transformer-engine-cu13": "transformer_engine",
}
"""Modules whose import loads the extension, where the name of the package does not tell."""

CU130 = TorchBuild(version="2.11.0+cu130", cuda="13.0")
C10 = MissingSymbol(symbol="_ZN3c104cuda9SetDeviceEab", provider="libc10_cuda", readable="c10::cuda::SetDevice")
FLASH = Extension(package="flash-attn", package_version="2.8.3", path="/v/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so")


def _flash(**found: object) -> tuple[Extension, ...]:
    from dataclasses import replace

    return (replace(FLASH, **found),)  # type: ignore[arg-type]


CASES = (
    Case(
        title="flash-attn built against another torch",
        sections={"torch_build": CU130, "extensions": _flash(missing_symbols=(C10,))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="c10::cuda::SetDevice",
    ),
    Case(
        title="a kernel library beside torch for the CPU",
        sections={
            "torch_build": TorchBuild(version="2.13.0+cpu"),
            "extensions": _flash(missing_libraries=("libcudart.so.12", "libc10_cuda.so", "libtorch_cuda.so"), cuda_major=12),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="is a build without CUDA",
    ),
    Case(
        title="importing it says what its header said",
        sections={
            "torch_build": CU130,
            "extensions": _flash(missing_libraries=("libcudart.so.12",), cuda_major=12),
            "module_imports": (
                ModuleImport(
                    package="flash-attn",
                    module=FLASH.path,
                    outcome="failed",
                    error="OSError: libcudart.so.12: cannot open shared object file",
                ),
            ),
        },
        status=Status.FAIL,
        says="OSError: libcudart.so.12",
    ),
    Case(
        title="it was loaded, so that it misses nothing: its package opens the library first",
        sections={
            "torch_build": CU130,
            "extensions": _flash(missing_libraries=("libcudart.so.12",), missing_symbols=(C10,)),
            "module_imports": (ModuleImport(package="flash-attn", module="flash_attn_2_cuda", outcome="imported", loaded=(FLASH.path,)),),
        },
        status=Status.PASS,
    ),
    Case(
        title="a wheel for CUDA 12 beside torch for CUDA 13",
        sections={
            "torch_build": CU130,
            "extensions": (
                Extension(
                    package="vllm",
                    package_version="0.11.0",
                    path="/v/vllm/_C.abi3.so",
                    missing_libraries=("libcudart.so.12",),
                    cuda_major=12,
                ),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="libcudart.so.12",
    ),
    Case(
        title="fa3-fwd 0.0.1, a wheel for CUDA 12, beside CUDA 13",
        sections={
            "torch_build": CU130,
            "extensions": (
                Extension(
                    package="fa3-fwd",
                    package_version="0.0.1",
                    path="/v/fa3_fwd/_C.abi3.so",
                    missing_libraries=("libcudart.so.12",),
                    cuda_major=12,
                ),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="It was built for CUDA 12",
    ),
    Case(
        title="both CUDA runtimes are installed: it loads, with two runtimes in a process",
        sections={"torch_build": CU130, "extensions": _flash(cuda_major=12)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="CUDA 12",
    ),
    Case(
        title="only the words of the loader are known",
        sections={"extensions": _flash(import_error="ImportError: x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs")},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="std::string",
    ),
    Case(
        title="the driver lacks a function: no ABI mismatch",
        sections={
            "torch_build": CU130,
            "extensions": _flash(missing_symbols=(MissingSymbol(symbol="cuTensorMapEncodeTiled", provider="libcuda"),)),
        },
        status=Status.FAIL,
        says="no ABI mismatch",
    ),
    Case(
        title="a CUDA wheel of torch itself is missing, and torch was not tried",
        sections={
            "torch_build": CU130,
            "extensions": (
                Extension(package="torch", path="/v/torch/lib/libtorch_cuda.so", missing_libraries=("libcusparseLt.so.0", "libcuda.so.1")),
            ),
        },
        status=Status.FAIL,
        says="libcusparseLt.so.0",
    ),
    Case(
        title="torch imports, whatever its header asks for",
        sections={
            "torch_build": CU130,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True),
            "extensions": (Extension(package="torch", path="/v/torch/lib/libtorch_cuda.so", missing_libraries=("libcufile.so.0",)),),
        },
        status=Status.PASS,
    ),
    Case(
        title="no driver in the container: the extension is fine",
        sections={"torch_build": CU130, "extensions": _flash(missing_libraries=("libcuda.so.1",), cuda_major=13)},
        status=Status.PASS,
    ),
    Case(
        title="glibc is too old: another check says so",
        sections={
            "torch_build": CU130,
            "extensions": _flash(import_error="ImportError: version `GLIBC_2.32' not found (required by x.so)"),
        },
        status=Status.PASS,
    ),
    Case(title="it fits", sections={"torch_build": CU130, "extensions": _flash(cuda_major=13)}, status=Status.PASS),
    Case(
        title="an import error that is not about libraries",
        sections={"torch_build": CU130, "extensions": _flash(import_error="ModuleNotFoundError: No module named 'einops'")},
        status=Status.UNKNOWN,
        says="einops",
    ),
    Case(title="the extensions are not known", sections={"torch_build": CU130}, status=Status.UNKNOWN, says="extensions"),
    Case(title="no target", sections={"extensions": absent("no site-packages")}, status=Status.NOT_APPLICABLE),
    Case(title="nothing compiled is installed", sections={"extensions": ()}, status=Status.NOT_APPLICABLE, says="no compiled extension"),
)


@check(
    "package.abi-mismatch",
    Severity.ERROR,
    explains=(
        "torch.import-fails",
        "package.import-fails",
        "attention.fa3-unusable",
        "deepgemm.requirements",
        "flashmla.requirements",
        "deepep.requirements",
        "package.pin-conflict",
        *SMOKE_OF_LIBRARIES,
    ),
    settle='python -c "import torch, flash_attn"  # the module in question',
    cases=CASES,
)
def abi_mismatch(
    extensions: tuple[Extension, ...],
    torch_build: Section[TorchBuild],
    torch_runtime: Section[TorchRuntime],
    module_imports: Section[tuple[ModuleImport, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Judge each package by what its extensions ask for and do not get, and by what importing them said."""
    if not extensions:
        yield NO_EXTENSIONS
    imports = torch_runtime.value is not None and torch_runtime.value.imported
    by_package: dict[tuple[str, str], list[Extension]] = {}
    for extension in as_imported(extensions, module_imports):
        if not (imports and extension.package == "torch"):
            by_package.setdefault((extension.package, extension.package_version), []).append(extension)
    for (package, version), parts in by_package.items():
        gaps = _Gaps.of(parts)
        if gaps.of_driver:
            yield _driver_too_old(package, version, gaps.of_driver, remedies)
        yield from _judge(package, version, parts, gaps, torch_build.value, remedies)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """What the extensions of one package ask for and do not get, with where that was read."""

    symbols: Mapping[MissingSymbol, str]
    libraries: Mapping[str, str]
    of_driver: Mapping[MissingSymbol, str]
    unclear: Mapping[str, str]

    @staticmethod
    def of(parts: Sequence[Extension]) -> _Gaps:
        """Collect them from headers and import errors, without what belongs to the C and C++ libraries."""
        symbols: dict[MissingSymbol, str] = {}
        libraries: dict[str, str] = {}
        unclear: dict[str, str] = {}
        for part in parts:
            where = f"extensions[{part.path}]"
            symbols |= dict.fromkeys(part.missing_symbols, f"{where}.missing_symbols")
            libraries |= dict.fromkeys(part.missing_libraries, f"{where}.missing_libraries")
            undefined, missing = UNDEFINED.search(part.import_error), NOT_FOUND.search(part.import_error)
            if undefined and not any(symbol.symbol == undefined[1] for symbol in symbols):
                symbols[MissingSymbol(symbol=undefined[1], provider=_provider(undefined[1]))] = f"{where}.import_error"
            elif missing:
                libraries.setdefault(missing[1], f"{where}.import_error")
            elif part.import_error and not undefined and not C_LIBRARY.search(part.import_error):
                unclear[part.import_error] = f"{where}.import_error"
        return _Gaps(
            {symbol: where for symbol, where in symbols.items() if symbol.provider not in (*SYSTEM_PROVIDERS, "libcuda")},
            {library: where for library, where in libraries.items() if not library.startswith(DRIVER_LIBRARIES)},
            {symbol: where for symbol, where in symbols.items() if symbol.provider == "libcuda"},
            unclear,
        )


def _judge(
    package: str, version: str, parts: Sequence[Extension], gaps: _Gaps, build: TorchBuild | None, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    name = f"{package} {version}".rstrip()
    cuda = CudaVersion.parse(build.cuda or "") if build else None
    majors = {part.cuda_major for part in parts if part.cuda_major is not None}
    other_major = next((major for major in sorted(majors) if cuda is not None and major != cuda.major), None)
    against = f"torch {build.version}" if build else "the installed torch"
    evidence = [
        *(
            Evidence(where=where, value=f"{symbol.symbol}{f' ({symbol.provider})' if symbol.provider else ''}")
            for symbol, where in gaps.symbols.items()
        ),
        *(Evidence(where=where, value=f"{library}: found nowhere") for library, where in gaps.libraries.items()),
    ]
    said = next((part for part in parts if part.import_error), None)
    if said is not None and not any(item.where.endswith(".import_error") for item in evidence):
        evidence.insert(0, Evidence(where=f"extensions[{said.path}].import_error", value=said.import_error))
    if build is not None:
        evidence.append(Evidence(where="torch_build", value=build.version))
    if gaps.libraries or gaps.symbols:
        yield Finding(
            subject=name,
            summary=f"{against if package == 'torch' else f'{name} does not fit {against}'}: {_asks_for(gaps)}.",
            cause=_cause(package, version, gaps, other_major, cuda, build),
            evidence=(*evidence[:8], *evidence[-1:]) if len(evidence) > 9 else tuple(evidence),
            expected="a build of torch with CUDA"
            if _lacks_cuda(gaps, build)
            else f"a build for {against}{f' and CUDA {cuda.major}' if cuda else ''}",
            explains_only=() if package == "torch" else (package, *(part.path for part in parts if part.path)),
            remedies=_install_cuda_build(build, remedies)
            if build is not None and _lacks_cuda(gaps, build)
            else _remedies(package, version, build, cuda, remedies),
            sources=SOURCES,
        )
    elif other_major is not None and cuda is not None:
        yield Finding(
            subject=name,
            severity=Severity.WARNING,
            summary=f"{name} is linked to CUDA {other_major}, and {against} to CUDA {cuda.major}; both runtimes are installed.",
            cause="It loads, with two CUDA runtimes in one process: they share the GPU's context, but not what each keeps for itself.",
            evidence=(
                *(
                    Evidence(where=f"extensions[{part.path}].cuda_major", value=str(part.cuda_major))
                    for part in parts
                    if part.cuda_major == other_major
                ),
                *evidence,
            )[:4],
            expected=f"a build for CUDA {cuda.major}",
            sources=SOURCES,
            remedies=_remedies(package, version, build, cuda, remedies),
        )
    for text, where in gaps.unclear.items():
        yield Doubt(subject=name, reason=f"importing it fails with '{text}' ({where}), which is not about libraries or symbols")


def _asks_for(gaps: _Gaps) -> str:
    parts = []
    if gaps.libraries:
        parts.append(f"it needs {', '.join(list(gaps.libraries)[:3])}, which {'is' if len(gaps.libraries) == 1 else 'are'} not there")
    if gaps.symbols:
        first = next(iter(gaps.symbols))
        more = f" and {len(gaps.symbols) - 1} more symbols" if len(gaps.symbols) > 1 else ""
        provider = f" of {first.provider}" if first.provider else ""
        parts.append(f"it asks for {first.readable or first.symbol}{provider}{more}, which {'are' if more else 'is'} not exported")
    return "; ".join(parts)


def _cause(package: str, version: str, gaps: _Gaps, other_major: int | None, cuda: CudaVersion | None, build: TorchBuild | None) -> str:
    said = []
    built = BUILT_FOR.search(version)
    if built:
        said.append(f"Its version says that it was built for CUDA {built[1]} and torch {built[2]}.")
    if other_major is not None and cuda is not None:
        said.append(f"It was built for CUDA {other_major}; torch brings the libraries of CUDA {cuda.major}.")
    of_torch = [symbol for symbol in gaps.symbols if symbol.provider in TORCH_PROVIDERS]
    if build is not None and _lacks_cuda(gaps, build):
        said.append(f"torch {build.version} is a build without CUDA: it has no {' and no '.join(TORCH_CUDA)}.")
    elif any(OLD_STRING.search(symbol.symbol) for symbol in of_torch):
        said.append("It uses std::string of the old C++ ABI, torch that of C++11.")
    elif of_torch:
        said.append("It was compiled against another torch than the one installed.")
    elif gaps.symbols and not said:
        said.append("The CUDA library that is loaded is older than the one it was compiled against, or another copy comes first.")
    if package == "torch":
        said.append("Its own wheel of that library is not installed, or another one is: import torch will fail.")
    return " ".join(said) or "A library that it links to is not installed."


def _lacks_cuda(gaps: _Gaps, build: TorchBuild | None) -> bool:
    """Whether the extension asks for the CUDA half of torch, and the installed torch is built without it."""
    return build is not None and not build.cuda and not build.hip and any(library in TORCH_CUDA for library in gaps.libraries)


def _install_cuda_build(build: TorchBuild, remedies: Remedies) -> tuple[Remedy, ...]:
    return remedies.of("torch.cpu-only-build", "general", torch_version=build.version.partition("+")[0])


def _driver_too_old(package: str, version: str, symbols: Mapping[MissingSymbol, str], remedies: Remedies) -> Finding:
    names = ", ".join(symbol.symbol for symbol in list(symbols)[:3])
    name = f"{package} {version}".rstrip()
    return Finding(
        subject=name,
        summary=f"{name} calls {names} of libcuda, which this driver does not have: no ABI mismatch, the driver is too old for it.",
        cause="libcuda comes with the driver. Rebuilding the package does not help; a newer driver, or a release of it for an older CUDA, does.",
        evidence=tuple(Evidence(where=where, value=f"{symbol.symbol} (libcuda)") for symbol, where in list(symbols.items())[:4]),
        expected="a driver whose libcuda exports it",
        sources=(CUDA_DRIVER_API,),
        remedies=remedies.of("driver.too-old-for-cuda", "administer"),
    )


def _provider(symbol: str) -> str:
    """The library a symbol of an import error belongs to, by its name."""
    if re.match(r"_Z\w*(?:3c10|2at|5torch)", symbol):
        return "libc10" if "3c10" in symbol else "libtorch"
    return "libcuda" if re.match(r"cu[A-Z]", symbol) else ""


def _remedies(package: str, version: str, build: TorchBuild | None, cuda: CudaVersion | None, remedies: Remedies) -> tuple[Remedy, ...]:
    fill = {"package": package}
    if package in IMPORTED_AS:
        fill["module"] = IMPORTED_AS[package]
    public = version.partition("+")[0]
    if public:
        fill |= {"version": public, "vllm_version": public, "sglang_version": public}
    if cuda is not None:
        fill |= {"cu": cuda.tag, "major": str(cuda.major)}
    if build is not None:
        fill["torch"] = ".".join(build.version.split(".")[:2])
    if package == "torch":
        return remedies.of("torch.import-fails", "general", torch_version=build.version.partition("+")[0] if build else public, **fill)
    if package in COMPANIONS:
        torch_version = {"torch_version": build.version.partition("+")[0]} if build else {}
        return remedies.of("package.torch-companion-mismatch", "general", **torch_version, **fill)
    if package in ENGINES:
        fill.pop("sglang_version" if package == "vllm" else "vllm_version", None)
        return remedies("engine", **(fill if package in ("vllm", "sglang") else {"cu": fill["cu"]} if "cu" in fill else {}))
    if package in WHEELS_ONLY:
        return remedies("other-release", **fill)
    if BUILT_FOR.search(version) or package == "flash-attn":
        return (*remedies("rebuild", **fill)[:2], *remedies("prebuilt-wheel", **fill)[:1])
    return remedies("rebuild", **fill)
