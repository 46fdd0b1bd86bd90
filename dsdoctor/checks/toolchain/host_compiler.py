"""The host compiler is newer or older than nvcc accepts.

What it looks at
    The CUDA toolkit in use and the C++ compiler that nvcc would call: what nvcc's own variables name, else
    CUDAHOSTCXX, CXX or CC, else what is on PATH.

Why it matters
    nvcc checks the version of the host compiler in its own header and stops with "unsupported GNU version! gcc versions later than … are not supported".
    The switch -allow-unsupported-compiler silences the check, and builds may then be wrong without a word. It matters where something is compiled
    on the node.

Sources
    crt/host_config.h of each toolkit; CUDA Installation Guide for Linux.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import CudaToolkit, HostCompiler, Package, Platform, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import HostCompilers, SystemNeeds
from dsdoctor.versions import LibraryVersion

ORDER = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CUDAHOSTCXX", "CXX", "CC", "PATH")
ON_PATH = ("g++", "gcc", "c++", "cc", "clang++", "clang")

CUDA_12_4 = (CudaToolkit(path="/usr/local/cuda", cuda_version="12.4", nvcc="/usr/local/cuda/bin/nvcc", is_cuda_home=True),)
DEEP_GEMM = (Package(name="deep-gemm", version="2.1.0"),)
GCC_14 = HostCompiler(name="g++", path="/usr/bin/g++", version="14.2.0", chosen_by="PATH")
GCC_13 = HostCompiler(name="g++", path="/usr/bin/g++-13", version="13.3.0", chosen_by="CUDAHOSTCXX")

CASES = (
    Case(
        title="GCC 14 with CUDA 12.4",
        sections={"cuda_toolkits": CUDA_12_4, "host_compilers": (GCC_14,), "packages": DEEP_GEMM},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="13",
    ),
    Case(
        title="the same where nothing is compiled at run time: worth knowing",
        sections={"cuda_toolkits": CUDA_12_4, "host_compilers": (GCC_14,), "packages": ()},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="14.2.0",
    ),
    Case(
        title="a named compiler that fits beats a newer one on PATH",
        sections={"cuda_toolkits": CUDA_12_4, "host_compilers": (GCC_14, GCC_13), "packages": DEEP_GEMM},
        status=Status.PASS,
    ),
    Case(
        title="GCC 13.3 is within 13",
        sections={"cuda_toolkits": CUDA_12_4, "host_compilers": (GCC_13,), "packages": DEEP_GEMM},
        status=Status.PASS,
    ),
    Case(
        title="a toolkit newer than this release knows",
        sections={
            "cuda_toolkits": (
                CudaToolkit(path="/usr/local/cuda", cuda_version="19.0", nvcc="/usr/local/cuda/bin/nvcc", is_cuda_home=True),
            ),
            "host_compilers": (GCC_14,),
        },
        status=Status.UNKNOWN,
        says="19.0",
    ),
    Case(
        title="no toolkit, nothing to compile with",
        sections={"cuda_toolkits": absent("no toolkit"), "host_compilers": (GCC_14,)},
        status=Status.NOT_APPLICABLE,
    ),
    Case(title="nobody looked for compilers", sections={"cuda_toolkits": CUDA_12_4}, status=Status.UNKNOWN, says="host compilers"),
)


@check("toolchain.host-compiler", Severity.WARNING, settle="nvcc --version; g++ --version", cases=CASES)
def host_compiler(
    cuda_toolkits: tuple[CudaToolkit, ...],
    host_compilers: tuple[HostCompiler, ...],
    packages: Section[tuple[Package, ...]],
    platform: Section[Platform],
    host_compilers_matrix: HostCompilers,
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the compiler that nvcc would call with what it accepts."""
    toolkits = sorted((item for item in cuda_toolkits if item.nvcc), key=lambda item: (not item.is_cuda_home, not item.is_first_on_path))
    compiler = _called(host_compilers)
    if not toolkits or compiler is None:
        yield NotApplicable(reason="there is no C++ compiler" if toolkits else "there is no nvcc")
        return
    toolkit = toolkits[0]
    version = LibraryVersion.parse(compiler.version)
    if version is None or not toolkit.cuda_version:
        unknown = f"{compiler.path}: its version" if version is None else f"{toolkit.path}: its version"
        yield Doubt(
            subject="host compiler", reason=f"{unknown} is not known", settle=f"{compiler.path} --version; {toolkit.nvcc} --version"
        )
        return
    family = "clang" if "clang" in compiler.name else "gcc"
    architecture = platform.value.architecture if platform.value and family == "clang" else ""
    row = host_compilers_matrix.limit(toolkit.cuda_version, architecture) or host_compilers_matrix.limit(toolkit.cuda_version)
    if row is None:
        yield Doubt(
            subject="host compiler", reason=f"which compilers nvcc of CUDA {toolkit.cuda_version} accepts is not known to this release"
        )
        return
    least, most = (row.clang_min, row.clang_max) if family == "clang" else (row.gcc_min, row.gcc_max)
    lowest, highest = LibraryVersion.parse(least), LibraryVersion.parse(most)
    too_new = highest is not None and version.numbers[: len(highest.numbers)] > highest.numbers
    too_old = lowest is not None and version.numbers[: len(lowest.numbers)] < lowest.numbers
    if not too_new and not too_old:
        return
    users = system_needs_matrix.compile_here([package.name for package in packages.value or ()], "nvcc")
    names = ", ".join(dict.fromkeys(item.package for item in users))
    bound = f"{most} at most" if too_new else f"{least} or newer"
    yield Finding(
        subject=compiler.path,
        summary=f"nvcc of CUDA {toolkit.cuda_version} accepts {family} {bound}, and it would call {compiler.path} {compiler.version}.",
        cause="nvcc stops with 'unsupported GNU version' or the like, "
        + (f"when {names} compiles its kernels." if names else "when an extension is built here. Nothing installed compiles at run time."),
        evidence=(
            Evidence(
                where="host_compilers", value=f"{compiler.name} {compiler.version} {compiler.path} (by {compiler.chosen_by or 'PATH'})"
            ),
            Evidence(where="cuda_toolkits", value=f"{toolkit.nvcc}: CUDA {toolkit.cuda_version}"),
        ),
        expected=f"{family} {bound}",
        remedies=remedies("general", n=(most or least).partition(".")[0]),
        sources=row.basis.sources,
        severity=Severity.WARNING if users else Severity.INFO,
    )


def _called(compilers: tuple[HostCompiler, ...]) -> HostCompiler | None:
    """The compiler that nvcc calls: one that a variable names, else the first usual name on PATH."""

    def rank(compiler: HostCompiler) -> tuple[int, int]:
        by = ORDER.index(compiler.chosen_by) if compiler.chosen_by in ORDER else len(ORDER)
        return by, ON_PATH.index(compiler.name) if compiler.name in ON_PATH else len(ON_PATH)

    return min(compilers, key=rank, default=None)
