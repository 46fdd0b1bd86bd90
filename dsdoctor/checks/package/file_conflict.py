"""Two installed packages own the same files with different content, and the one installed last has overwritten the other.

What it looks at
    The RECORD files of the packages of this stack: which files two of them claim with different content, and whose the file on disk is now,
    by its size (and its hash where that does not tell).

Why it matters
    sgl-kernel was renamed sglang-kernel, and both fill the folder sgl_kernel; flash-attn and flash-attn-4 share flash_attn; triton and
    pytorch-triton share triton. pip lists both and checks neither: what runs is a mixture of two releases, that fails in the import or,
    worse, in one call of many. Removing either one takes the files away from the other. The libraries of NVIDIA's wheels (NCCL, cuDNN and
    others) have checks of their own.

Sources
    The recording-installed-projects specification (RECORD); contents of the published wheels.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import FileConflict, Package, Section, absent
from dsdoctor.findings import Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies

RECORDED = "Recording installed projects — https://packaging.python.org/en/latest/specifications/recording-installed-packages/"
SITE = "/opt/venv/lib/python3.12/site-packages"
SHOWN = 4


def _conflict(file: str, holder: str = "") -> FileConflict:
    return FileConflict(path=f"{SITE}/{file}", packages=("sgl-kernel", "sglang-kernel"), holder=holder)


SGL = (Package(name="sgl-kernel", version="0.3.21"), Package(name="sglang-kernel", version="0.4.10"))

CASES = (
    Case(
        title="sgl-kernel was installed over sglang-kernel",
        sections={
            "packages": SGL,
            "file_conflicts": (
                _conflict("sgl_kernel/sm90/common_ops.abi3.so", "sgl-kernel"),
                _conflict("sgl_kernel/__init__.py", "sgl-kernel"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="sgl-kernel 0.3.21",
    ),
    Case(
        title="some files are of one and some of the other",
        sections={
            "packages": SGL,
            "file_conflicts": (
                _conflict("sgl_kernel/sm90/common_ops.abi3.so", "sgl-kernel"),
                _conflict("sgl_kernel/__init__.py", "sglang-kernel"),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="a mixture",
    ),
    Case(
        title="only Python files differ",
        sections={"file_conflicts": (FileConflict(path=f"{SITE}/flash_attn/__init__.py", packages=("flash-attn", "flash-attn-4")),)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="the one installed last",
    ),
    Case(
        title="NVIDIA's libraries are judged elsewhere",
        sections={
            "file_conflicts": (
                FileConflict(path=f"{SITE}/nvidia/nccl/lib/libnccl.so.2", packages=("nvidia-nccl-cu12", "nvidia-nccl-cu13")),
            )
        },
        status=Status.PASS,
    ),
    Case(title="no file is claimed twice", sections={"file_conflicts": ()}, status=Status.PASS),
    Case(title="nobody compared the packages", sections={}, status=Status.UNKNOWN, says="file conflicts"),
    Case(title="no Python", sections={"file_conflicts": absent("no site-packages")}, status=Status.NOT_APPLICABLE),
)


@check(
    "package.file-conflict",
    Severity.ERROR,
    explains=("package.abi-mismatch", "package.import-fails", "package.pin-conflict"),
    settle="pip list | grep -i -E 'sgl|flash|triton|deep'",
    cases=CASES,
)
def file_conflict(
    file_conflicts: tuple[FileConflict, ...], packages: Section[tuple[Package, ...]], remedies: Remedies
) -> Iterator[Finding]:
    """Each pair of packages that claim one file, without NVIDIA's."""
    versions = {package.name: package.version for package in packages.value or ()}
    by_pair: dict[tuple[str, ...], list[FileConflict]] = {}
    for conflict in file_conflicts:
        if not all(name.startswith("nvidia-") for name in conflict.packages):
            by_pair.setdefault(conflict.packages, []).append(conflict)
    for names, conflicts in by_pair.items():
        named = [f"{name} {versions.get(name, '')}".rstrip() for name in names]
        holders = sorted({conflict.holder for conflict in conflicts if conflict.holder})
        compiled = any(".so" in conflict.path for conflict in conflicts)
        yield Finding(
            subject=", ".join(names),
            severity=Severity.ERROR if compiled else Severity.WARNING,
            summary=f"{' and '.join(named)} own the same files with different content, {_short(conflicts[0].path)} among them; {_now(holders, versions)}.",
            cause="pip installs the second over the first without a word, and lists both. What runs is not what the other one's version says.",
            evidence=tuple(
                Evidence(where="file_conflicts", value=f"{conflict.path}{f': now that of {conflict.holder}' if conflict.holder else ''}")
                for conflict in conflicts[:SHOWN]
            ),
            expected="one of the two packages",
            explains_only=names,
            remedies=remedies("general", package=names[0], other_package=names[1]),
            sources=(RECORDED,),
        )


def _now(holders: list[str], versions: dict[str, str]) -> str:
    if len(holders) == 1:
        return f"those on disk now are of {holders[0]} {versions.get(holders[0], '')}".rstrip()
    return "what is on disk now is a mixture of both" if holders else "the one installed last has won"


def _short(path: str) -> str:
    return path.rpartition("-packages/")[2]
