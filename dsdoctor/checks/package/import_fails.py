"""An installed kernel package cannot be imported.

What it looks at
    What importing each kernel package of the stack said, in a child of the target interpreter, after torch: FlashAttention, fa3-fwd,
    SGLang's kernels, FlashMLA, FlashInfer, DeepGEMM, DeepEP, Transformer Engine, TileLang, torchvision, torchaudio and torchao.

Why it matters
    Engines often catch the error and go on with a slower path, or die minutes later where they first need the package. What is about
    libraries or symbols is explained by package.abi-mismatch; what remains is a missing dependency, a missing toolkit, versions of
    packages that refuse one another, or a crash.

Sources
    The message of the import itself; matrices/engine-pitfalls.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import ModuleImport, Package, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

IMPORTED = ModuleImport(package="flash-mla", module="flash_mla", outcome="imported")
GEMM = ModuleImport(package="deep-gemm", module="deep_gemm", outcome="failed", error="AssertionError")

CASES = (
    Case(
        title="DeepGEMM finds no toolkit",
        sections={"module_imports": (IMPORTED, GEMM), "packages": (Package(name="deep-gemm", version="2.1.0"),)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="AssertionError",
    ),
    Case(
        title="FlashInfer and its kernels are of two releases",
        sections={
            "module_imports": (
                ModuleImport(
                    package="flashinfer-python",
                    module="flashinfer",
                    outcome="failed",
                    error="RuntimeError: flashinfer-cubin version (0.6.12) does not match flashinfer version (0.6.13).",
                ),
            )
        },
        status=Status.FAIL,
        says="does not match",
    ),
    Case(
        title="the import kills the process",
        sections={"module_imports": (ModuleImport(package="tilelang", module="tilelang", outcome="crashed", error="killed by signal 11"),)},
        status=Status.FAIL,
        says="killed by signal 11",
    ),
    Case(
        title="an import that does not end is no proof",
        sections={"module_imports": (ModuleImport(package="tilelang", module="tilelang", outcome="hung", error="no end within 20 s"),)},
        status=Status.UNKNOWN,
        says="no end within 20 s",
    ),
    Case(
        title="its extension does not open either: package.abi-mismatch tells why",
        sections={
            "module_imports": (
                ModuleImport(
                    package="torchvision", module="torchvision", outcome="failed", error="operator torchvision::nms does not exist"
                ),
                ModuleImport(package="torchvision", module="/s/torchvision/_C.so", outcome="failed", error="OSError: x"),
            )
        },
        status=Status.PASS,
    ),
    Case(title="all are imported", sections={"module_imports": (IMPORTED,)}, status=Status.PASS),
    Case(title="nobody tried", sections={}, status=Status.UNKNOWN, says="module imports"),
    Case(title="no kernel package is installed", sections={"module_imports": ()}, status=Status.NOT_APPLICABLE, says="no kernel package"),
    Case(title="no torch", sections={"module_imports": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
)


@check(
    "package.import-fails", Severity.WARNING, settle='python -c "import torch, flash_attn_2_cuda"  # the module in question', cases=CASES
)
def import_fails(
    module_imports: tuple[ModuleImport, ...], packages: Section[tuple[Package, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Each module that was imported, with what it said."""
    if not module_imports:
        yield NotApplicable(reason="no kernel package is installed")
    explained = {item.package for item in module_imports if "/" in item.module and item.outcome != "imported"}
    versions = {package.name: package.version for package in packages.value or ()}
    for item in module_imports:
        if "/" in item.module or item.outcome == "imported" or item.package in explained:
            continue
        name = f"{item.package} {versions.get(item.package, '')}".rstrip()
        if item.outcome == "hung":
            yield Doubt(subject=name, reason=f"importing {item.module} had {item.error}", settle=f'python -c "import torch, {item.module}"')
            continue
        yield Finding(
            subject=name,
            summary=f"import {item.module} {'kills the process' if item.outcome == 'crashed' else 'fails'}: {item.error.rstrip('.')}.",
            cause="An engine that wants it dies there, or quietly takes a slower path.",
            evidence=(Evidence(where=f"module_imports[{item.module}].error", value=item.error),),
            expected=f"import {item.module} works",
            remedies=remedies("general", package=item.package, module=item.module, **_version(versions.get(item.package, ""))),
        )


def _version(version: str) -> dict[str, str]:
    return {"version": version.partition("+")[0]} if version else {}
