"""The C++ runtime library that programs load is older than what compiled extensions need.

What it looks at
    The copies of libstdc++.so.6 on this node (of the system, of conda, of wheels), the highest GLIBCXX_ version each provides, and the highest one that
    the compiled extensions ask for. A copy counts as the one in use when the target interpreter belongs to the conda environment that holds it, or
    when its folder stands on LD_LIBRARY_PATH; else the system's copy is used.

Why it matters
    "version `GLIBCXX_3.4.32' not found": the extension was built with a newer GCC than the library comes from. Often the system's copy would do, and
    an older one in a conda environment comes first. GLIBCXX_3.4.30 is GCC 12, 3.4.32 GCC 13, 3.4.33 GCC 14.

Sources
    GNU libstdc++ manual, "ABI Policy and Guidelines"; ELF symbol versions of the installed files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_EXTENSIONS, as_imported
from dsdoctor.facts import EnvironmentVariable, Extension, Interpreter, Libstdcxx, ModuleImport, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import LibraryVersion

SOURCE = "GNU libstdc++ manual: ABI Policy and Guidelines — https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html"
NAMED_BY_LOADER = re.compile(r"version [`'\"]?GLIBCXX_(\d+(?:\.\d+)+)'? not found")

SYSTEM = Libstdcxx(path="/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.33", highest_glibcxx="3.4.33", origin="system")
OLD_SYSTEM = Libstdcxx(path="/usr/lib64/libstdc++.so.6.0.25", highest_glibcxx="3.4.25", origin="system")
OLD_CONDA = Libstdcxx(path="/opt/conda/envs/ds/lib/libstdc++.so.6.0.29", highest_glibcxx="3.4.29", origin="conda")
CONDA_PYTHON = Interpreter(path="/opt/conda/envs/ds/bin/python", chosen_by="CONDA_PREFIX", prefix="/opt/conda/envs/ds", kind="conda")
VENV_PYTHON = Interpreter(path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", prefix="/opt/venv", kind="venv")
NEEDS_32 = (Extension(package="deep-gemm", package_version="2.5.0", path="/site/deep_gemm/_C.so", highest_glibcxx="3.4.32"),)

CASES = (
    Case(
        title="an old conda copy comes before a system copy that would do",
        sections={"libstdcxx": (OLD_CONDA, SYSTEM), "extensions": NEEDS_32, "interpreter": CONDA_PYTHON},
        status=Status.FAIL,
        says="3.4.29",
    ),
    Case(
        title="the system itself is too old",
        sections={"libstdcxx": (OLD_SYSTEM,), "extensions": NEEDS_32, "interpreter": VENV_PYTHON},
        status=Status.FAIL,
        says="3.4.25",
    ),
    Case(
        title="LD_LIBRARY_PATH puts an old copy first",
        sections={
            "libstdcxx": (SYSTEM, Libstdcxx(path="/opt/tool/lib/libstdc++.so.6", highest_glibcxx="3.4.26", origin="system")),
            "extensions": NEEDS_32,
            "interpreter": VENV_PYTHON,
            "environment": (EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/local/cuda/lib64:/opt/tool/lib/"),),
        },
        status=Status.FAIL,
        says="/opt/tool/lib",
    ),
    Case(
        title="an old conda copy that this interpreter does not use",
        sections={"libstdcxx": (OLD_CONDA, SYSTEM), "extensions": NEEDS_32, "interpreter": VENV_PYTHON},
        status=Status.PASS,
    ),
    Case(
        title="new enough",
        sections={"libstdcxx": (SYSTEM,), "extensions": NEEDS_32, "interpreter": VENV_PYTHON},
        status=Status.PASS,
    ),
    Case(
        title="nothing says what is needed",
        sections={"libstdcxx": (SYSTEM,)},
        status=Status.UNKNOWN,
        says="which GLIBCXX",
    ),
    Case(title="no libstdc++ on this node", sections={"libstdcxx": absent("none found")}, status=Status.NOT_APPLICABLE),
)


@check(
    "system.libstdcxx-too-old",
    Severity.ERROR,
    explains=("torch.import-fails", "package.abi-mismatch", *SMOKE_OF_LIBRARIES),
    settle="strings $(python -c 'import sys; print(sys.prefix)')/lib/libstdc++.so.6 | grep GLIBCXX_3 | tail -1",
    cases=CASES,
)
def libstdcxx_too_old(
    libstdcxx: tuple[Libstdcxx, ...],
    extensions: Section[tuple[Extension, ...]],
    module_imports: Section[tuple[ModuleImport, ...]],
    interpreter: Section[Interpreter],
    environment: Section[tuple[EnvironmentVariable, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the libstdc++ in use with what the extensions ask for."""
    if extensions.value is None:
        yield Doubt(subject="libstdc++", reason="which GLIBCXX the installed packages need is not known")
        return
    if not extensions.value:
        yield NO_EXTENSIONS
        return
    used = _in_use(libstdcxx, interpreter.value, environment.value or ())
    provided = LibraryVersion.parse(used.highest_glibcxx) if used else None
    if used is None or provided is None:
        yield Doubt(subject="libstdc++", reason="which copy the target interpreter loads, or what it provides, is not known")
        return
    tried = as_imported(extensions.value, module_imports)
    wanted = [(need, item) for item in tried if (need := _needed(item)) is not None and need > provided]
    if not wanted:
        return
    highest = max(need for need, _ in wanted)
    names = sorted({f"{item.package} {item.package_version}".rstrip() for _, item in wanted})
    better = [
        copy for copy in libstdcxx if copy is not used and (version := LibraryVersion.parse(copy.highest_glibcxx)) and version >= highest
    ]
    folder = used.path.rpartition("/")[0]
    shadowed = "shadowed" if better and used.origin != "conda" else "general"
    yield Finding(
        subject=used.path,
        summary=f"{', '.join(names)} asks for GLIBCXX_{highest}, and the libstdc++ that is loaded, {used.path}, provides {provided} at most.",
        cause="The package was built with a newer GCC than this library comes from."
        + (f" {better[0].path} would do ({better[0].highest_glibcxx}), but the older copy comes first." if better else ""),
        evidence=(
            Evidence(where=f"libstdcxx[{used.path}]", value=f"GLIBCXX_{provided} ({used.origin})"),
            *(Evidence(where=f"extensions[{item.path}]", value=item.import_error or f"GLIBCXX_{need}") for need, item in wanted),
        ),
        expected=f"GLIBCXX_{highest} or newer",
        remedies=remedies(shadowed, folder=folder, glibcxx=str(highest)) or remedies.of("system.glibc-too-old", "general"),
        sources=(SOURCE,),
    )


def _in_use(
    copies: tuple[Libstdcxx, ...], interpreter: Interpreter | None, environment: tuple[EnvironmentVariable, ...]
) -> Libstdcxx | None:
    """The copy that the target interpreter loads: LD_LIBRARY_PATH, then the library folder of its own conda environment, then the system."""
    search = next((item.value for item in environment if item.name == "LD_LIBRARY_PATH"), "")
    folders = [folder.rstrip("/") for folder in search.split(":") if folder]
    for folder in folders:
        for copy in copies:
            if copy.path.rpartition("/")[0] == folder:
                return copy
    if interpreter is not None and interpreter.kind == "conda":
        for prefix in (interpreter.prefix, interpreter.base_prefix):
            for copy in copies:
                if prefix and copy.path.startswith(f"{prefix.rstrip('/')}/lib/"):
                    return copy
    return next((copy for copy in copies if copy.origin == "system"), None)


def _needed(extension: Extension) -> LibraryVersion | None:
    said = NAMED_BY_LOADER.search(extension.import_error)
    return LibraryVersion.parse(said[1]) if said else LibraryVersion.parse(extension.highest_glibcxx)
