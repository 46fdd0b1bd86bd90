"""A directory that the stack must write to refuses writes, or code that was compiled there may not run.

What it looks at
    The caches of Triton, torch, DeepGEMM, DeepEP, FlashInfer, the engines and the driver, and the temporary directory: whether this user may write
    (owner, mode, read-only mount), and whether the mount forbids running code (noexec). A cache whose package is not installed does
    not matter; a model store that is only read does not either.

Why it matters
    Kernels are compiled at first use. When /tmp/triton or a cache in a shared home belongs to another user, the first kernel stops with "Permission
    denied"; in a container with a read-only root or a user without home, every JIT compiler does. On a mount with noexec the compiler works and
    loading its result fails ("failed to map segment from shared object"). Opening the directory for everybody (chmod 777) would let
    other users plant code that runs as you: give each user a directory of their own.

Sources
    Triton runtime/cache.py; DeepGEMM, DeepEP and FlashInfer documentation; rows of matrices/system-needs.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Directory, Package, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import CacheUse, SystemNeeds

TRITON = (Package(name="triton", version="3.6.0"), Package(name="torch", version="2.11.0"))


def _directory(purpose: str, path: str, *options: str, writable: bool | None, why: str = "") -> Directory:
    return Directory(purpose=purpose, path=path, exists=True, writable=writable, mount_options=options, file_system="ext4", why=why)


CASES = (
    Case(
        title="/tmp/triton belongs to another user",
        sections={"directories": (_directory("triton-cache", "/tmp/triton", "rw", writable=False),), "packages": TRITON},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="TRITON_CACHE_DIR",
    ),
    Case(
        title="a container with a read-only root",
        sections={
            "directories": (
                _directory("triton-cache", "/home/app/.triton/cache", "ro", writable=False),
                _directory("torchinductor", "/tmp/torchinductor_app", "ro", writable=False),
                _directory("deepgemm-cache", "/home/app/.deep_gemm", "ro", writable=False),
            ),
            "packages": TRITON,
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="read-only",
    ),
    Case(
        title="a cache on a mount with noexec",
        sections={
            "directories": (_directory("triton-cache", "/scratch/triton", "rw", "nosuid", "noexec", writable=True),),
            "packages": TRITON,
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="noexec",
    ),
    Case(
        title="a read-only model store is a choice",
        sections={
            "directories": (
                _directory("huggingface-cache", "/models", "ro", writable=False),
                _directory("triton-cache", "/root/.triton/cache", "rw", writable=True),
            ),
            "packages": TRITON,
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="only read",
    ),
    Case(
        title="/tmp with noexec alone: compiled code is not loaded from there",
        sections={"directories": (_directory("tmp", "/tmp", "rw", "noexec", writable=True),), "packages": TRITON},
        status=Status.PASS,
    ),
    Case(
        title="the cache of a package that is not installed",
        sections={"directories": (_directory("deepgemm-cache", "/root/.deep_gemm", "ro", writable=False),), "packages": TRITON},
        status=Status.NOT_APPLICABLE,
        says="nothing that is installed writes to a cache",
    ),
    Case(
        title="the file system did not answer",
        sections={
            "directories": (_directory("triton-cache", "/nfs/u/.triton", writable=None, why="the file system gave no answer within 4 s"),),
            "packages": TRITON,
        },
        status=Status.UNKNOWN,
        says="no answer",
    ),
    Case(title="no directories", sections={"directories": absent("none are configured")}, status=Status.NOT_APPLICABLE),
)


@check(
    "system.cache-not-writable",
    Severity.ERROR,
    explains=("smoke.triton", "smoke.fp8-block"),
    settle='touch "${TRITON_CACHE_DIR:-$HOME/.triton/cache}/dsdoctor" && echo writable',
    cases=CASES,
)
def cache_not_writable(
    directories: tuple[Directory, ...], packages: Section[tuple[Package, ...]], system_needs_matrix: SystemNeeds, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find caches that refuse writes or running code, those with one reason named together."""
    installed = None if packages.value is None else {package.name for package in packages.value}
    by_reason: dict[str, list[tuple[Directory, CacheUse]]] = {}
    used = [
        (directory, use)
        for directory in directories
        if (use := system_needs_matrix.cache(directory.purpose)) is not None
        and (installed is None or not use.packages or installed.intersection(use.packages))
    ]
    if not used:
        yield NotApplicable(reason="nothing that is installed writes to a cache")
    for directory, use in used:
        if directory.writable is None:
            yield Doubt(subject=directory.path, reason=f"whether it can be written is not known ({directory.why or 'not read'})")
        elif reason := _reason(directory, use):
            by_reason.setdefault(reason, []).append((directory, use))
    for reason, affected in by_reason.items():
        yield _finding(reason, affected, packages_known=installed is not None, remedies=remedies)


def _reason(directory: Directory, use: CacheUse) -> str:
    """read-only, permission or noexec; empty when nothing is wrong."""
    if not directory.writable:
        return "read-only" if "ro" in directory.mount_options else "permission"
    return "noexec" if use.loads_code and "noexec" in directory.mount_options else ""


def _finding(reason: str, affected: list[tuple[Directory, CacheUse]], *, packages_known: bool, remedies: Remedies) -> Finding:
    affected = sorted(affected, key=lambda pair: Severity(pair[1].severity).rank)
    directory, use = affected[0]
    paths = ", ".join(dict.fromkeys(item.path for item, _ in affected))
    severity = Severity(use.severity)
    if not packages_known and use.packages and severity is Severity.ERROR:
        severity = Severity.WARNING
    said = {
        "read-only": "is on a read-only mount, so nothing can be written to it",
        "permission": "may not be written by this user (owner or permission)",
        "noexec": "is on a mount with noexec: code compiled there cannot be loaded",
    }[reason]
    variables = " ".join(dict.fromkeys(item.configured_by or row.variable for item, row in affected))
    return Finding(
        subject=paths,
        summary=f"{paths} {said}.",
        cause=f"{use.text} The place is set by {variables}.",
        evidence=tuple(
            Evidence(
                where=f"directories[{item.purpose}]",
                value=f"{item.path}: writable {item.writable}, mount options {','.join(item.mount_options) or 'unknown'}"
                + (f", {item.why}" if item.why else ""),
            )
            for item, _ in affected
        ),
        expected=f"a local directory that this user alone may write to ({directory.purpose}: {use.variable})",
        remedies=remedies("general"),
        sources=use.basis.sources,
        severity=severity,
    )
