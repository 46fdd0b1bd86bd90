"""FlashInfer and the packages with its ready-made kernels are of different releases, or the kernels are not there at all.

What it looks at
    The versions of flashinfer-python, flashinfer-cubin and flashinfer-jit-cache (without the +cuXXX of the last), the CUDA major of the
    jit-cache against torch's, and on Blackwell whether the ready-made kernels are installed.

Why it matters
    FlashInfer compares the versions. Older releases (0.6.13) refuse to be imported: "flashinfer-cubin version … does not match flashinfer
    version …". Newer ones (0.7.4) warn in one line, leave the other package aside, and compile or fetch each kernel when it is first
    called. pip does not know of this: neither package requires the other. Without flashinfer-cubin, machine code for Blackwell comes over
    the network at the first call, which an air-gapped node or a read-only cache refuses.

Sources
    flashinfer/jit/env.py of the wheels of 0.6.13 and 0.7.4, imported with a flashinfer-cubin of another release; FlashInfer issues 2941
    and 4337.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import EnvironmentVariable, Gpu, ModuleImport, Package, Section, TorchBuild
from dsdoctor.findings import Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import ComputeCapability, CudaVersion

MAIN, CUBIN, JIT_CACHE = "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"
UNCHECKED = "FLASHINFER_DISABLE_VERSION_CHECK"
REFUSED = re.compile(r"flashinfer\S* version \(.*\) does not match")
"""What FlashInfer says when it refuses."""
BLACKWELL = 10
"""Compute capability, major, whose kernels come as machine code made by NVIDIA."""

VERSION_CHECK = "FlashInfer: flashinfer/jit/env.py (comparison of versions at import) — https://github.com/flashinfer-ai/flashinfer"
OFFLINE = "FlashInfer issue 2941: kernels that are fetched at first use — https://github.com/flashinfer-ai/flashinfer/issues/2941"

PYTHON = Package(name=MAIN, version="0.7.2.post1")
B200 = (Gpu(index=0, name="NVIDIA B200", compute_capability="10.0"),)
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)

CASES = (
    Case(
        title="the kernels are of an older release, and it refuses to be imported",
        sections={
            "packages": (Package(name=MAIN, version="0.6.13"), Package(name=CUBIN, version="0.6.12")),
            "module_imports": (
                ModuleImport(
                    package=MAIN,
                    module="flashinfer",
                    outcome="failed",
                    error="RuntimeError: flashinfer-cubin version (0.6.12) does not match flashinfer version (0.6.13).",
                ),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="does not match",
    ),
    Case(
        title="the kernels are of an older release, and it leaves them aside",
        sections={"packages": (PYTHON, Package(name=CUBIN, version="0.6.13"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0.6.13",
    ),
    Case(
        title="they differ, and the comparison is switched off",
        sections={
            "packages": (PYTHON, Package(name=JIT_CACHE, version="0.6.13+cu130")),
            "environment": (EnvironmentVariable(name=UNCHECKED, value="1"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0.6.13+cu130",
    ),
    Case(
        title="the ready-made kernels are for another CUDA",
        sections={
            "packages": (PYTHON, Package(name=JIT_CACHE, version="0.7.2.post1+cu129")),
            "torch_build": TorchBuild(version="2.14.0+cu130", cuda="13.0"),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="CUDA 12.9",
    ),
    Case(
        title="Blackwell without the machine code",
        sections={"packages": (PYTHON,), "gpus": B200},
        status=Status.FAIL,
        severity=Severity.INFO,
        says=CUBIN,
    ),
    Case(
        title="one release, for torch's CUDA",
        sections={
            "packages": (PYTHON, Package(name=CUBIN, version="0.7.2.post1"), Package(name=JIT_CACHE, version="0.7.2.post1+cu130")),
            "torch_build": TorchBuild(version="2.14.0+cu130", cuda="13.0"),
            "gpus": B200,
        },
        status=Status.PASS,
    ),
    Case(title="Hopper compiles what it needs", sections={"packages": (PYTHON,), "gpus": H200}, status=Status.PASS),
    Case(title="the packages are not known", sections={"gpus": H200}, status=Status.UNKNOWN, says="packages"),
    Case(title="not installed", sections={"packages": ()}, status=Status.NOT_APPLICABLE, says="not installed"),
)


@check(
    "flashinfer.requirements",
    Severity.WARNING,
    explains=("package.import-fails",),
    settle="pip list | grep -i flashinfer",
    cases=CASES,
)
def requirements(
    packages: tuple[Package, ...],
    gpus: Section[tuple[Gpu, ...]],
    torch_build: Section[TorchBuild],
    environment: Section[tuple[EnvironmentVariable, ...]],
    module_imports: Section[tuple[ModuleImport, ...]],
    remedies: Remedies,
) -> Iterator[Finding | NotApplicable]:
    """Compare FlashInfer with the packages that carry its kernels."""
    installed = {package.name: package for package in packages if package.name in (MAIN, CUBIN, JIT_CACHE)}
    main = installed.get(MAIN)
    if main is None:
        yield NotApplicable(reason="FlashInfer is not installed")
        return
    kernels = [installed[name] for name in (CUBIN, JIT_CACHE) if name in installed]
    other = [package for package in kernels if _public(package) != _public(main)]
    if other:
        yield _differ(main, other, environment, _refusal(module_imports), remedies)
    cuda = CudaVersion.parse(torch_build.value.cuda or "") if torch_build.value else None
    cache = installed.get(JIT_CACHE)
    built = CudaVersion.parse(cache.version.partition("+")[2]) if cache else None
    if cache and cuda and built and built.major != cuda.major:
        yield Finding(
            subject=f"{JIT_CACHE} {cache.version}",
            severity=Severity.WARNING,
            summary=f"{JIT_CACHE} {cache.version} is built for CUDA {built}, and torch for CUDA {cuda}.",
            cause="Its kernels link the CUDA runtime of that major: those that do not load are compiled again, or the call fails.",
            evidence=(_evidence(cache), Evidence(where="torch_build.cuda", value=str(cuda))),
            expected=f"{JIT_CACHE} {_public(main)}+{cuda.tag}",
            remedies=remedies("same-release", version=_public(main), cu=cuda.tag),
            sources=(VERSION_CHECK,),
        )
    if CUBIN not in installed and any(
        (found := ComputeCapability.parse(gpu.compute_capability)) and found.major == BLACKWELL for gpu in gpus.value or ()
    ):
        yield Finding(
            subject=f"{MAIN} {main.version}",
            severity=Severity.INFO,
            summary=f"{CUBIN} is not installed: on Blackwell FlashInfer fetches machine code over the network when a kernel is first called.",
            cause="Without network, or with a cache that cannot be written, that call fails; an engine may then show a call on None.",
            evidence=(_evidence(main),),
            expected=f"{CUBIN} {_public(main)}",
            remedies=remedies("same-release", version=_public(main)),
            sources=(OFFLINE,),
        )


def _differ(
    main: Package,
    other: Sequence[Package],
    environment: Section[tuple[EnvironmentVariable, ...]],
    refusal: Evidence | None,
    remedies: Remedies,
) -> Finding:
    unchecked = next((item for item in environment.value or () if item.name == UNCHECKED and item.value not in ("", "0")), None)
    names = " and ".join(f"{package.name} {package.version}" for package in other)
    return Finding(
        subject=f"{main.name} {main.version}",
        severity=Severity.ERROR if refusal else Severity.WARNING,
        summary=f"{main.name} is {main.version}, and {names} {'are' if len(other) > 1 else 'is'} installed beside it"
        + ("; import flashinfer refuses." if refusal else "."),
        cause=f"{UNCHECKED} makes it use them all the same: kernels of another release may be called with other arguments."
        if unchecked
        else "It compares the versions: older releases refuse to be imported, newer ones leave the package aside and compile or fetch "
        "each kernel when it is first called.",
        evidence=(
            *((refusal,) if refusal else ()),
            _evidence(main),
            *map(_evidence, other),
            *((Evidence(where=f"environment[{UNCHECKED}]", value=unchecked.value),) if unchecked else ()),
        ),
        expected=f"{_public(main)} of each",
        explains_only=(MAIN,),
        remedies=remedies("same-release", version=_public(main)),
        sources=(VERSION_CHECK,),
    )


def _refusal(module_imports: Section[tuple[ModuleImport, ...]]) -> Evidence | None:
    said = next((item for item in module_imports.value or () if item.package == MAIN and REFUSED.search(item.error)), None)
    return Evidence(where=f"module_imports[{said.module}].error", value=said.error) if said else None


def _public(package: Package) -> str:
    return package.version.partition("+")[0]


def _evidence(package: Package) -> Evidence:
    return Evidence(where=f"packages[{package.name}].version", value=package.version)
