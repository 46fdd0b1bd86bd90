"""A file system that the stack writes to is full.

What it looks at
    Free space and free inodes of the temporary directory, the home directory and the caches; where Ray is installed, also the share that is
    in use under its temporary directory. Directories on one file system are named together, as one problem.

Why it matters
    Downloads, compiler caches and Ray sessions stop with "No space left on device", or the start hangs while Ray places no more objects.
    A file system without free inodes says the same although df shows space. With room on the disk and free inodes, look at /dev/shm
    (system.shm-too-small) and at quotas.

Sources
    Ray, "Object Spilling" (95 %); thresholds in matrices/system-needs.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.system._amounts import in_words
from dsdoctor.facts import Directory, Package, Section, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeed, SystemNeeds

MIB, GIB = 1 << 20, 1 << 30


def _directory(purpose: str, free_bytes: int | None, total_bytes: int | None, free_inodes: int | None = 10_000_000) -> Directory:
    return Directory(
        purpose=purpose,
        path=f"/data/{purpose}",
        exists=True,
        writable=True,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        free_inodes=free_inodes,
        file_system="ext4",
    )


CASES = (
    Case(
        title="the image and the weights filled the root disk",
        sections={"directories": (_directory("tmp", 0, 100 * GIB), _directory("huggingface-cache", 0, 100 * GIB))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="/data/tmp, /data/huggingface-cache",
    ),
    Case(
        title="less than 2 GiB left",
        sections={"directories": (_directory("triton-cache", 900 * MIB, 50 * GIB),)},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="900 MiB",
    ),
    Case(
        title="space, but no inode",
        sections={"directories": (_directory("tmp", 80 * GIB, 100 * GIB, free_inodes=3),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="inodes",
    ),
    Case(
        title="96 % used: Ray places no more objects",
        sections={
            "directories": (_directory("tmp", 40 * GIB, 1000 * GIB),),
            "packages": (Package(name="ray", version="2.54.0"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="96 %",
    ),
    Case(
        title="96 % used without Ray harms nobody",
        sections={"directories": (_directory("tmp", 40 * GIB, 1000 * GIB),), "packages": ()},
        status=Status.PASS,
    ),
    Case(
        title="plenty of room; this file system does not count inodes",
        sections={"directories": (_directory("home", 500 * GIB, 900 * GIB, free_inodes=None),)},
        status=Status.PASS,
    ),
    Case(
        title="the file system did not answer",
        sections={
            "directories": (Directory(purpose="home", path="/home/u", exists=False, why="the file system gave no answer within 4 s"),)
        },
        status=Status.UNKNOWN,
        says="no answer",
    ),
    Case(title="no directories", sections={"directories": absent("none are configured")}, status=Status.NOT_APPLICABLE),
)


@check("system.disk-full", Severity.ERROR, settle="df -h; df -i", cases=CASES)
def disk_full(
    directories: tuple[Directory, ...], packages: Section[tuple[Package, ...]], system_needs_matrix: SystemNeeds, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    """Find file systems without room, each named once."""
    installed = {package.name for package in packages.value or ()}
    reported: set[tuple[str, int | None, int | None]] = set()
    for directory in directories:
        if directory.total_bytes == 0:
            continue  # /proc and its like hold no files
        if directory.free_bytes is None:
            yield Doubt(
                subject=directory.path,
                reason=f"its free space is not known ({directory.why or 'not read'})",
                settle=f"df -h {directory.path}",
            )
            continue
        disk = (directory.file_system, directory.total_bytes, directory.free_bytes)
        need = _unmet(directory, installed, system_needs_matrix)
        if need is None or disk in reported:
            continue
        reported.add(disk)
        together = [item for item in directories if (item.file_system, item.total_bytes, item.free_bytes) == disk]
        yield _finding(directory, together, need, remedies)


def _unmet(directory: Directory, installed: set[str], system_needs: SystemNeeds) -> SystemNeed | None:
    """The worst need that the directory does not meet."""
    unmet = [
        need
        for resource in ("free-space", "free-inodes", "used-percent")
        for need in system_needs.of(resource, 1)
        if need.directory in ("", directory.purpose) and (not need.package or need.package in installed) and _short_of(directory, need)
    ]
    return min(unmet, key=lambda need: Severity(need.severity).rank, default=None)


def _short_of(directory: Directory, need: SystemNeed) -> bool:
    if need.resource == "free-space":
        return directory.free_bytes is not None and directory.free_bytes < need.amount
    if need.resource == "free-inodes":
        return directory.free_inodes is not None and directory.free_inodes < need.amount
    return _used_percent(directory) > need.amount


def _used_percent(directory: Directory) -> float:
    if not directory.total_bytes or directory.free_bytes is None:
        return 0.0
    return 100 * (1 - directory.free_bytes / directory.total_bytes)


def _finding(directory: Directory, together: list[Directory], need: SystemNeed, remedies: Remedies) -> Finding:
    paths = ", ".join(dict.fromkeys(item.path for item in together))
    free, total = in_words(directory.free_bytes or 0), in_words(directory.total_bytes or 0)
    space = f"{free} of {total} are free" if directory.total_bytes else f"{free} are free"
    said, expected = {
        "free-space": (
            f"the disk is {'full' if need.severity == 'error' else 'nearly full'}: {space}",
            f"at least {in_words(need.amount)} free",
        ),
        "free-inodes": (f"only {directory.free_inodes} inodes are free, while {space}", f"at least {need.amount} free inodes"),
        "used-percent": (f"the disk is {_used_percent(directory):.0f} % full, {space}", f"at most {need.amount} % in use"),
    }[need.resource]
    evidence = [Evidence(where=f"directories[{directory.purpose}].free_bytes", value=f"{directory.free_bytes} of {directory.total_bytes}")]
    if directory.free_inodes is not None:
        evidence.append(Evidence(where=f"directories[{directory.purpose}].free_inodes", value=str(directory.free_inodes)))
    return Finding(
        subject=paths,
        summary=f"{paths}: {said}.",
        cause=f"{need.text} ({', '.join(item.purpose for item in together)} on one file system)" if len(together) > 1 else need.text,
        evidence=tuple(evidence),
        expected=expected,
        remedies=remedies("free-space" if need.resource == "free-inodes" else "", folder=directory.path),
        sources=need.basis.sources,
        severity=Severity(need.severity),
    )
