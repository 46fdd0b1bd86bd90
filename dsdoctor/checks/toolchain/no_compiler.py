"""There is no C compiler for what is compiled when the stack runs.

What it looks at
    Which installed packages compile C code at run time (Triton and everything that runs Triton kernels), and whether the compiler they would take is
    there: $CC when it is set, else gcc, else clang on PATH.

Why it matters
    Triton builds a small launcher in C for its kernels: without a compiler the first kernel stops with "Failed to find C compiler". Serving engines run
    Triton kernels from their start on. Runtime and base images of CUDA carry no compiler, devel images do. Where nothing of the kind is
    installed, or there is no GPU, a missing compiler is no fault.

Sources
    Triton, runtime/build.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.toolchain._reading import NOTHING_COMPILES, severity_of
from dsdoctor.facts import EnvironmentVariable, Gpu, HostCompiler, Package, Section, SmokeResult, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds

TAKEN_FROM_PATH = ("gcc", "clang")

VLLM = (Package(name="vllm", version="0.33.0"), Package(name="triton", version="3.6.0"))
TRITON = (Package(name="torch", version="2.11.0+cu130"), Package(name="triton", version="3.6.0"))
GCC = HostCompiler(name="gcc", path="/usr/bin/gcc", version="13.3.0", chosen_by="PATH")

LACKED = SmokeResult(test="triton", path="triton", gpu=0, outcome="error", notes={"missing": "compiler"})

CASES = (
    Case(
        title="an engine in a runtime image",
        sections={"packages": VLLM, "host_compilers": absent("no compiler on PATH"), "gpus": (Gpu(index=0),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="vllm",
    ),
    Case(
        title="torch and Triton alone: torch.compile would fail",
        sections={"packages": TRITON, "host_compilers": ()},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="triton",
    ),
    Case(
        title="CC names a compiler that is not there",
        sections={
            "packages": VLLM,
            "host_compilers": (GCC,),
            "environment": (EnvironmentVariable(name="CC", value="/opt/gcc-12/bin/gcc"),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="/opt/gcc-12/bin/gcc",
    ),
    Case(
        title="torch and Triton alone, and a kernel did not compile for want of it",
        sections={"packages": TRITON, "host_compilers": (), "smoke": (LACKED,)},
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(title="gcc on PATH", sections={"packages": VLLM, "host_compilers": (GCC,)}, status=Status.PASS),
    Case(
        title="clang will do",
        sections={"packages": VLLM, "host_compilers": (HostCompiler(name="clang", path="/usr/bin/clang", chosen_by="PATH"),)},
        status=Status.PASS,
    ),
    Case(
        title="nothing here compiles at run time",
        sections={"packages": (Package(name="numpy", version="2.3.1"),), "host_compilers": ()},
        status=Status.NOT_APPLICABLE,
        says="nothing that is installed compiles when it runs",
    ),
    Case(
        title="no GPU: no kernel is compiled",
        sections={"packages": VLLM, "host_compilers": (), "gpus": absent("no GPU")},
        status=Status.NOT_APPLICABLE,
        says="no GPU",
    ),
    Case(title="nobody looked for compilers", sections={"packages": VLLM}, status=Status.UNKNOWN, says="compiler"),
    Case(title="the packages are not known", sections={"host_compilers": ()}, status=Status.UNKNOWN, says="packages"),
)


@check("toolchain.no-compiler", Severity.ERROR, explains=("smoke.triton",), settle='"${CC:-gcc}" --version || clang --version', cases=CASES)
def no_compiler(
    packages: tuple[Package, ...],
    host_compilers: Section[tuple[HostCompiler, ...]],
    gpus: Section[tuple[Gpu, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    smoke: Section[tuple[SmokeResult, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find packages that compile C at run time without a compiler."""
    users = system_needs_matrix.compile_here([package.name for package in packages], "c-compiler")
    if not users or gpus.state is State.ABSENT:
        yield no_gpu(gpus) if users else NOTHING_COMPILES
        return
    if host_compilers.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject="C compiler", reason=f"whether there is a C compiler is not known ({host_compilers.why or 'nobody looked'})")
        return
    compilers = host_compilers.value or ()
    named = next((item.value.strip() for item in environment.value or () if item.name == "CC"), "")
    by_name = any(compiler.chosen_by == "CC" for compiler in compilers)
    from_path = any(compiler.name in TAKEN_FROM_PATH for compiler in compilers)
    if by_name or (from_path and not named):
        return
    names = ", ".join(row.package for row in users)
    missing = f"CC names {named!r}, which is not there" if named else "There is no C compiler (gcc or clang) on PATH"
    yield Finding(
        subject="C compiler",
        summary=f"{missing}, and {names} {'needs' if len(users) == 1 else 'need'} one at run time.",
        cause=f"{users[0].text} Without one it stops with 'Failed to find C compiler'.",
        evidence=(
            Evidence(where="packages", value=names),
            Evidence(where="host_compilers", value=", ".join(f"{item.name} {item.path}" for item in compilers) or "none"),
            *((Evidence(where="environment[CC]", value=named),) if named else ()),
        ),
        expected="gcc or clang on PATH, or CC naming a compiler that runs",
        remedies=remedies("general"),
        sources=users[0].basis.sources,
        severity=severity_of("compiler", users[0].severity, smoke),
    )
