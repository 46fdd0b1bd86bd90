"""The node has not what the chosen profile needs: GPUs that serve, memory, /dev/shm, room on the disk, limits, RDMA.

What it looks at
    The needs of the profiles chosen with `--profile` (matrices/profiles): compute capability, main memory with the limit of the container, the
    size of /dev/shm, free space, open files, locked memory and RDMA devices. Needs of several nodes count with `--nodes`.

Why it matters
    The checks of the area system judge what any stack needs; a profile needs more, and knows for what: V4.1 keeps 189 GiB of tables in main
    memory, expert parallelism between nodes wants RDMA and memory that may be locked. Such a start fails late, after the weights were loaded.

Sources
    matrices/profiles, each row with its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.profile._reading import nobody_asked
from dsdoctor.checks.system._amounts import in_words
from dsdoctor.checks.system.memlock_limited import CAP_IPC_LOCK
from dsdoctor.facts import (
    Container,
    DeviceNode,
    Directory,
    Gpu,
    Identity,
    Limit,
    Memory,
    Package,
    Section,
    Sections,
    SharedMemory,
    State,
    absent,
)
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Basis
from dsdoctor.versions import ComputeCapability

if TYPE_CHECKING:
    from dsdoctor.purpose import Chosen, Purpose
    from dsdoctor.rows_profile import GpuNeed, NodeNeed

GIB = 1 << 30
VERBS = "/dev/infiniband/uverbs"

H200 = tuple(Gpu(index=index, name="NVIDIA H200", compute_capability="9.0") for index in range(8))
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
LARGE = SharedMemory(path="/dev/shm", total_bytes=500 * GIB, free_bytes=500 * GIB)
SMALL = SharedMemory(path="/dev/shm", total_bytes=64 << 20, free_bytes=64 << 20)
ROOMY = Memory(total_bytes=2000 * GIB)

CASES = (
    Case(
        title="FlashAttention-3 on an A100",
        sections={"gpus": A100},
        profiles=("fa3",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="compute capability 9.0",
    ),
    Case(
        title="V3 in a container with the default /dev/shm",
        sections={"gpus": H200, "shared_memory": SMALL, "directories": ()},
        profiles=("deepseek-v3",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="64 MiB",
    ),
    Case(
        title="V4.1 in a container with 200 GiB of memory",
        sections={"gpus": H200, "shared_memory": LARGE, "memory": Memory(total_bytes=2000 * GIB, cgroup_limit_bytes=200 * GIB)},
        profiles=("deepseek-v4.1",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="200 GiB",
    ),
    Case(
        title="no room for the checkpoint",
        sections={
            "gpus": H200,
            "shared_memory": LARGE,
            "directories": (Directory(purpose="huggingface-cache", path="/data/hf", exists=True, free_bytes=100 * GIB),),
        },
        profiles=("deepseek-v3",),
        status=Status.FAIL,
        severity=Severity.INFO,
        says="/data/hf",
    ),
    Case(
        title="a node that has it all",
        sections={"gpus": H200, "shared_memory": LARGE, "memory": ROOMY},
        profiles=("deepseek-v4.1",),
        status=Status.PASS,
    ),
    Case(title="the GPUs are not known", sections={}, profiles=("fa3",), status=Status.UNKNOWN, says="GPU"),
    Case(
        title="/dev/shm was not read",
        sections={"gpus": H200},
        profiles=("vllm",),
        status=Status.UNKNOWN,
        says="shared memory",
    ),
    Case(title="there is no GPU", sections={"gpus": absent("no NVIDIA GPU")}, profiles=("fa3",), status=Status.FAIL, says="no NVIDIA GPU"),
    Case(title="no profile was chosen", sections={"gpus": H200, "shared_memory": SMALL}, status=Status.NOT_APPLICABLE),
)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What there is of something: an amount, in words, and where it was read. None: not known."""

    amount: int | None
    words: str
    where: str
    unknown: str = ""
    settle: str = ""


@check("profile.node-needs", Severity.ERROR, settle="nvidia-smi; df -h; free -g; ulimit -a; ls /dev/infiniband", cases=CASES)
def node_needs(
    gpus: Section[tuple[Gpu, ...]],
    shared_memory: Section[SharedMemory],
    memory: Section[Memory],
    directories: Section[tuple[Directory, ...]],
    limits: Section[Mapping[str, Limit]],
    identity: Section[Identity],
    device_nodes: Section[tuple[DeviceNode, ...]],
    container: Section[Container],
    packages: Section[tuple[Package, ...]],
    purpose: Purpose,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare each need of the chosen profiles with what there is."""
    if not purpose.profiles:
        yield nobody_asked(purpose, Sections(packages=packages))
        return
    sections = Sections(
        gpus=gpus, shared_memory=shared_memory, memory=memory, directories=directories, limits=limits, identity=identity,
        device_nodes=device_nodes, container=container,
    )  # fmt: skip
    count = len(gpus.value) if gpus.value is not None else 1
    told: set[str] = set()
    for chosen in purpose.profiles:
        for wanted in chosen.profile.gpus:
            if chosen.holds(wanted.only_as):
                yield from _gpus(chosen, wanted, gpus, remedies)
        rows = [
            row for row in chosen.profile.needs if chosen.holds(row.only_as) and count >= row.gpus_from and purpose.nodes >= row.nodes_from
        ]
        for row in sorted(rows, key=lambda row: Severity(row.severity).rank):
            for said in _need(chosen, row, sections, remedies):
                if said.subject not in told:  # the gravest row of a need, of the first profile that has it
                    told.add(said.subject)
                    yield said


def _gpus(chosen: Chosen, wanted: GpuNeed, gpus: Section[tuple[Gpu, ...]], remedies: Remedies) -> Iterator[Finding | Doubt]:
    served = " or ".join(wanted.capabilities)
    if gpus.state is State.ABSENT:
        yield Finding(
            subject="GPUs",
            summary=f"There is no GPU, and the profile {chosen.asked} needs one of compute capability {served}.",
            cause=wanted.text,
            evidence=(Evidence(where="gpus", value=gpus.why or "absent"),),
            expected=f"GPUs of compute capability {served}",
            remedies=remedies("gpus", profile=chosen.asked),
            sources=wanted.basis.sources,
            severity=_severity(wanted.severity, wanted.basis),
        )
        return
    known = [(gpu, ComputeCapability.parse(gpu.compute_capability)) for gpu in gpus.value or ()]
    if not known or not all(capability for _, capability in known):
        yield Doubt(
            subject="GPUs",
            reason=f"the compute capability of the GPUs is not known; the profile {chosen.asked} needs {served}",
            settle="nvidia-smi --query-gpu=name,compute_cap --format=csv",
        )
        return
    unfit = [(gpu, capability) for gpu, capability in known if capability and not _serves(wanted, capability)]
    if not unfit:
        return
    names = ", ".join(dict.fromkeys(f"{gpu.name or 'GPU'} ({capability})" for gpu, capability in unfit))
    yield Finding(
        subject=names,
        summary=f"{names} cannot serve the profile {chosen.asked}, which needs compute capability {served}.",
        cause=wanted.text,
        evidence=tuple(Evidence(where=f"gpus[{gpu.index}].compute_capability", value=str(capability)) for gpu, capability in unfit[:4]),
        expected=f"GPUs of compute capability {served}",
        remedies=remedies("gpus", profile=chosen.asked),
        sources=wanted.basis.sources,
        severity=_severity(wanted.severity, wanted.basis),
    )


def _serves(wanted: GpuNeed, capability: ComputeCapability) -> bool:
    return str(capability) in wanted.capabilities or f"{capability.major}.x" in wanted.capabilities


def _severity(named: str, basis: Basis) -> Severity:
    severity = Severity(named)
    return Severity.WARNING if severity is Severity.ERROR and not basis.may_carry_error else severity


def _need(chosen: Chosen, row: NodeNeed, sections: Sections, remedies: Remedies) -> Iterator[Finding | Doubt]:
    what, needed = row.need.replace("-", " "), str(row.amount) if row.need in COUNTS else in_words(row.amount)
    reading = READERS[row.need](row, sections)
    if reading is None:
        return
    if reading.amount is None:
        yield Doubt(subject=what, reason=f"{reading.unknown}; the profile {chosen.asked} needs {needed}", settle=reading.settle)
    elif reading.amount < row.amount:
        yield Finding(
            subject=what,
            summary=f"The profile {chosen.asked} needs {needed} of {what}; here is {reading.words}.",
            cause=row.text,
            evidence=(Evidence(where=reading.where, value=reading.words),),
            expected=f"at least {needed}",
            remedies=_remedies(chosen, row, sections, remedies),
            sources=row.basis.sources,
            severity=_severity(row.severity, row.basis),
            explains=SAME[row.need],
        )


def _remedies(chosen: Chosen, row: NodeNeed, sections: Sections, remedies: Remedies) -> tuple[Remedy, ...]:
    if row.need == "shared-memory":
        return remedies.of("system.shm-too-small", "host-full" if sections.container.state is State.ABSENT else "general")
    if row.need in ("locked-memory", "open-files"):
        return remedies.of(SAME[row.need][0], "general")
    return remedies(row.need, profile=chosen.asked)


# --- what there is ----------------------------------------------------------------------------------------------------

COUNTS = ("open-files", "rdma-devices")
SAME: Mapping[str, tuple[str, ...]] = {
    "shared-memory": ("system.shm-too-small",),
    "locked-memory": ("system.memlock-limited",),
    "open-files": ("system.open-files-limited",),
    "main-memory": (),
    "free-space": (),
    "rdma-devices": (),
}
"""The check that says the same of any stack; it is shown under the need of the profile."""


def _shared_memory(row: NodeNeed, sections: Sections) -> _Reading:
    found = sections.shared_memory.value
    unknown = f"the size of the shared memory is not known ({sections.shared_memory.why or 'not asked'})"
    if found is None:
        return _Reading(None, "", "", unknown, "df -h /dev/shm")
    return _Reading(found.total_bytes, f"{in_words(found.total_bytes)} ({found.path})", "shared_memory.total_bytes")


def _main_memory(row: NodeNeed, sections: Sections) -> _Reading:
    found = sections.memory.value
    if found is None:
        return _Reading(None, "", "", f"the main memory is not known ({sections.memory.why or 'not asked'})", "free -g")
    if found.cgroup_limit_bytes is not None and found.cgroup_limit_bytes < found.total_bytes:
        words = f"{in_words(found.cgroup_limit_bytes)}, the limit of its cgroup"
        return _Reading(found.cgroup_limit_bytes, words, "memory.cgroup_limit_bytes")
    return _Reading(found.total_bytes, in_words(found.total_bytes), "memory.total_bytes")


def _free_space(row: NodeNeed, sections: Sections) -> _Reading | None:
    purpose = row.directory or "huggingface-cache"
    found = next((item for item in sections.directories.value or () if item.purpose == purpose), None)
    if sections.directories.value is not None and found is None:
        return None
    if found is None or found.free_bytes is None:
        why = (found.why if found else sections.directories.why) or "not asked"
        return _Reading(None, "", "", f"the free space of the {purpose} is not known ({why})", "df -h")
    return _Reading(found.free_bytes, f"{in_words(found.free_bytes)} free in {found.path}", f"directories[{purpose}].free_bytes")


def _limit(name: str, sections: Sections, words: str) -> _Reading | None:
    limit = (sections.limits.value or {}).get(name)
    if limit is None:
        return _Reading(None, "", "", f"the limit on {words} is not known ({sections.limits.why or 'not read'})", "ulimit -a")
    if limit.soft is None:
        return None
    shown = in_words(limit.soft) if name == "memlock" else str(limit.soft)
    return _Reading(limit.soft, f"a limit of {shown}", f"limits.{name}.soft")


def _locked_memory(row: NodeNeed, sections: Sections) -> _Reading | None:
    identity = sections.identity.value
    if identity is not None and identity.effective_capabilities is not None and identity.effective_capabilities & CAP_IPC_LOCK:
        return None
    return _limit("memlock", sections, "locked memory")


def _open_files(row: NodeNeed, sections: Sections) -> _Reading | None:
    limit = (sections.limits.value or {}).get("nofile")
    if limit is not None and limit.soft is not None and (limit.hard is None or limit.hard >= row.amount):
        return None  # engines raise their own limit up to the hard one
    return _limit("nofile", sections, "open files")


def _rdma_devices(row: NodeNeed, sections: Sections) -> _Reading:
    if sections.device_nodes.state is State.ABSENT:
        return _Reading(0, "none", "device_nodes")
    if sections.device_nodes.value is None:
        unknown = f"whether there are RDMA devices is not known ({sections.device_nodes.why or 'not asked'})"
        return _Reading(None, "", "", unknown, "ls /dev/infiniband")
    found = [node.path for node in sections.device_nodes.value if node.path.startswith(VERBS)]
    return _Reading(len(found), ", ".join(found[:4]) or "none", "device_nodes")


READERS = {
    "shared-memory": _shared_memory,
    "locked-memory": _locked_memory,
    "open-files": _open_files,
    "main-memory": _main_memory,
    "free-space": _free_space,
    "rdma-devices": _rdma_devices,
}
