"""Python.h of the target interpreter is missing for what is compiled when the stack runs.

What it looks at
    Whether Python.h is in the include directory of the interpreter that runs the stack, and which installed packages compile against it at
    run time. A virtual environment uses the headers of the interpreter it was made from.

Why it matters
    Triton's launcher includes Python.h; without it the first kernel, often the capture of CUDA graphs, stops with "fatal error: Python.h: No such file
    or directory". The package to install is that of the interpreter's own minor version (python3.12-dev for 3.12), not the system's default;
    reinstalling Triton or torch changes nothing, and some programs misreport it as an unsupported platform. Pythons of conda and uv bring their
    headers along.

Sources
    Triton, runtime/build.py and backends/nvidia/driver.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.toolchain._reading import NOTHING_COMPILES, severity_of
from dsdoctor.facts import Gpu, Interpreter, Package, PythonHeaders, Section, SmokeResult, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds

SGLANG = (Package(name="sglang", version="0.5.23"), Package(name="triton", version="3.6.0"))
MISSING = PythonHeaders(include_directory="/usr/include/python3.12", present=False)
PYTHON = Interpreter(path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3", kind="venv")

LACKED = SmokeResult(test="triton", path="triton", gpu=0, outcome="error", notes={"missing": "python_headers"})

CASES = (
    Case(
        title="a virtual environment of the system's Python without its -dev package",
        sections={"python_headers": MISSING, "packages": SGLANG, "interpreter": PYTHON, "gpus": (Gpu(index=0),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="python3.12-dev",
    ),
    Case(
        title="Triton without an engine",
        sections={"python_headers": MISSING, "packages": SGLANG[1:]},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Python.h",
    ),
    Case(
        title="the compile error was pasted, the packages were not",
        sections={"python_headers": MISSING},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Python.h",
    ),
    Case(
        title="Triton without an engine, and a kernel did not compile for want of them",
        sections={"python_headers": MISSING, "packages": SGLANG[1:], "smoke": (LACKED,)},
        status=Status.FAIL,
        severity=Severity.ERROR,
    ),
    Case(
        title="the headers are there",
        sections={"python_headers": PythonHeaders(include_directory="/usr/include/python3.12", present=True), "packages": SGLANG},
        status=Status.PASS,
    ),
    Case(
        title="nothing here compiles at run time",
        sections={"python_headers": MISSING, "packages": (Package(name="numpy", version="2.3.1"),)},
        status=Status.NOT_APPLICABLE,
        says="nothing that is installed compiles when it runs",
    ),
    Case(
        title="no GPU: no kernel is compiled",
        sections={"python_headers": MISSING, "packages": SGLANG, "gpus": absent("no GPU")},
        status=Status.NOT_APPLICABLE,
        says="no GPU",
    ),
    Case(title="nobody looked for headers", sections={"packages": SGLANG}, status=Status.UNKNOWN, says="python headers"),
)


@check(
    "toolchain.no-python-headers",
    Severity.ERROR,
    explains=("smoke.triton",),
    settle="""python -c "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))\"""",
    cases=CASES,
)
def no_python_headers(
    python_headers: PythonHeaders,
    packages: Section[tuple[Package, ...]],
    interpreter: Section[Interpreter],
    gpus: Section[tuple[Gpu, ...]],
    smoke: Section[tuple[SmokeResult, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find packages that compile against a Python.h that is not there."""
    installed = ["triton"] if packages.value is None else [package.name for package in packages.value]
    users = system_needs_matrix.compile_here(installed, "python-headers")
    if not users or gpus.state is State.ABSENT:
        yield no_gpu(gpus) if users else NOTHING_COMPILES
        return
    if python_headers.present:
        return
    names = ", ".join(row.package for row in users) if packages.value is not None else "Triton"
    python = ".".join(interpreter.value.version.split(".")[:2]) if interpreter.value else ""
    package = f"python{python or '3'}-dev (Debian, Ubuntu) or python{python or '3'}-devel (RHEL, SLES)"
    yield Finding(
        subject="Python.h",
        summary=f"Python.h is not in {python_headers.include_directory or 'the include directory'}, and {names} {'needs' if len(users) == 1 else 'need'} it at run time.",
        cause=f"{users[0].text} The headers come with {package}, which is not installed.",
        evidence=(
            Evidence(where="python_headers.include_directory", value=f"{python_headers.include_directory}: no Python.h"),
            *((Evidence(where="packages", value=names),) if packages.value is not None else ()),
            *((Evidence(where="interpreter.version", value=interpreter.value.version),) if interpreter.value else ()),
        ),
        expected="Python.h of the interpreter that runs the stack",
        remedies=remedies("general") or remedies("no-root"),
        sources=users[0].basis.sources,
        severity=severity_of("python_headers", users[0].severity, smoke),
    )
