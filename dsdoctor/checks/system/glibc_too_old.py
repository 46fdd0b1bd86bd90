"""The C library is older than what installed wheels were built for.

What it looks at
    The version of glibc, the highest GLIBC_ version that compiled extensions ask for (or that the loader names in an import error), and, where no
    extension was read, the glibc that the torch wheel's platform tag promises to need.

Why it matters
    A library that asks for a newer glibc cannot be loaded: "version `GLIBC_2.32' not found". pip refuses a wheel whose tag is too new, but wheels with a
    wrong or bare tag (linux_x86_64) get through. glibc cannot be upgraded on its own: copying a newer libc.so.6 into place breaks every
    program of the system.

Sources
    PEP 600 (manylinux tags); ELF symbol versions of the installed files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_EXTENSIONS, as_imported
from dsdoctor.facts import Extension, Libc, ModuleImport, Platform, Section, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Torch
from dsdoctor.versions import LibraryVersion

PEP_600 = "PEP 600 — https://peps.python.org/pep-0600/"
NAMED_BY_LOADER = re.compile(r"version [`'\"]?GLIBC_(\d+(?:\.\d+)+)'? not found")

CASES = (
    Case(
        title="flash-attn was built on a newer system",
        sections={
            "libc": Libc(family="glibc", version="2.28"),
            "extensions": (
                Extension(package="flash-attn", package_version="2.7.4.post1", path="/venv/flash_attn_2_cuda.so", highest_glibc="2.32"),
                Extension(package="torch", path="/venv/torch/_C.so", highest_glibc="2.14"),
            ),
        },
        status=Status.FAIL,
        says="GLIBC_2.32",
    ),
    Case(
        title="only the loader's words are known",
        sections={
            "libc": Libc(family="glibc", version="2.31"),
            "extensions": (
                Extension(
                    package="deep-ep",
                    path="/venv/deep_ep_cpp.so",
                    import_error="ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by deep_ep_cpp.so)",
                ),
            ),
        },
        status=Status.FAIL,
        says="GLIBC_2.34",
    ),
    Case(
        title="musl instead of glibc",
        sections={"libc": Libc(family="musl", version="1.2.5"), "extensions": ()},
        status=Status.FAIL,
        says="musl",
    ),
    Case(
        title="exactly as new as asked for",
        sections={
            "libc": Libc(family="glibc", version="2.28"),
            "extensions": (Extension(package="tilelang", path="/venv/libtilelang.so", highest_glibc="2.28"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="2.9 is older than 2.28, also as text it is not",
        sections={
            "libc": Libc(family="glibc", version="2.39"),
            "extensions": (Extension(package="torch", path="/venv/torch/_C.so", highest_glibc="2.9"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="nothing says what is needed",
        sections={"libc": Libc(family="glibc", version="2.35")},
        status=Status.UNKNOWN,
        says="which glibc",
    ),
    Case(
        title="the version cannot be read",
        sections={"libc": Libc(family="glibc", version="stable"), "extensions": ()},
        status=Status.UNKNOWN,
        says="stable",
    ),
    Case(title="no C library was found", sections={"libc": absent("no C library")}, status=Status.NOT_APPLICABLE),
)


@check(
    "system.glibc-too-old",
    Severity.ERROR,
    explains=("torch.import-fails", "package.abi-mismatch", *SMOKE_OF_LIBRARIES),
    settle="ldd --version | head -1",
    cases=CASES,
)
def glibc_too_old(
    libc: Libc,
    extensions: Section[tuple[Extension, ...]],
    module_imports: Section[tuple[ModuleImport, ...]],
    torch_build: Section[TorchBuild],
    platform: Section[Platform],
    torch_matrix: Torch,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare glibc with what the installed binaries ask for."""
    if libc.family == "musl":
        yield Finding(
            subject=f"musl {libc.version}",
            summary=f"The C library here is musl {libc.version}, not glibc: neither the CUDA libraries nor the wheels of this stack run on it.",
            cause="NVIDIA's libraries and all manylinux wheels are linked against glibc.",
            evidence=(Evidence(where="libc.family", value=libc.family),),
            expected="a distribution or image with glibc (Debian, Ubuntu, RHEL, SLES …)",
            remedies=remedies("general"),
            sources=(PEP_600,),
        )
        return
    here = LibraryVersion.parse(libc.version)
    if here is None:
        yield Doubt(subject="glibc", reason=f"its version {libc.version!r} is not understood")
        return
    if extensions.value is None:
        yield from _judge_torch_tag(here, torch_build, platform, torch_matrix, remedies)
        return
    if not extensions.value:
        yield NO_EXTENSIONS
    tried = as_imported(extensions.value, module_imports)
    wanted = [(need, extension) for extension in tried if (need := _needed(extension)) is not None and need > here]
    if wanted:
        highest = max(need for need, _ in wanted)
        names = sorted({_name(extension) for _, extension in wanted})
        yield Finding(
            subject=", ".join(names),
            summary=f"{', '.join(names)} asks for GLIBC_{highest}, and glibc here is {here}.",
            cause="It was built on a system with a newer glibc, so the loader refuses it when it is imported.",
            evidence=(
                Evidence(where="libc.version", value=str(here)),
                *(
                    Evidence(where=f"extensions[{extension.path}]", value=extension.import_error or f"GLIBC_{need}")
                    for need, extension in wanted
                ),
            ),
            expected=f"a build for glibc {here} or older, or a system with glibc {highest} or newer",
            remedies=remedies("general"),
            sources=(PEP_600,),
        )


def _judge_torch_tag(
    here: LibraryVersion, torch_build: Section[TorchBuild], platform: Section[Platform], torch_matrix: Torch, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    torch = torch_build.value
    architecture = platform.value.architecture if platform.value and platform.value.architecture else "x86_64"
    wheel = torch_matrix.default_wheel(torch.version, architecture) if torch else None
    need = LibraryVersion.parse(wheel.glibc) if wheel else None
    if torch is None or wheel is None or need is None:
        yield Doubt(subject="glibc", reason=f"it is {here}; which glibc the installed packages need is not known")
    elif need > here:
        yield Finding(
            subject=f"torch {torch.version}",
            summary=f"The wheel of torch {torch.version} is made for glibc {need} or newer ({wheel.tag}), and glibc here is {here}.",
            cause="The tag of a wheel promises what it needs at most; the loader may refuse parts of it here.",
            evidence=(
                Evidence(where="libc.version", value=str(here)),
                Evidence(where="torch_build.version", value=torch.version),
            ),
            expected=f"glibc {need} or newer",
            remedies=remedies("general"),
            sources=(PEP_600,),
            severity=Severity.WARNING,
        )


def _needed(extension: Extension) -> LibraryVersion | None:
    said = NAMED_BY_LOADER.search(extension.import_error)
    return LibraryVersion.parse(said[1]) if said else LibraryVersion.parse(extension.highest_glibc)


def _name(extension: Extension) -> str:
    return f"{extension.package} {extension.package_version}".rstrip() or extension.path
