"""The limit on locked memory is too low for RDMA.

What it looks at
    The soft limit on locked memory (ulimit -l), whether the node has RDMA devices (/dev/infiniband/uverbs*), and whether this process
    has the capability IPC_LOCK, which lifts the limit.

Why it matters
    RDMA registers buffers, and registered memory is locked. Above the limit ibv_reg_mr, ibv_create_cq or ibv_create_qp say "Cannot allocate memory",
    and NCCL, NVSHMEM or UCX stop or fall back to TCP. CUDA itself does not count pinned memory against this limit, so without RDMA devices
    a low limit is no fault. Entries in limits.conf reach new logins only: not services, not batch jobs, not containers. In Kubernetes IPC_LOCK helps
    root only; a process of another user does not get it.

Sources
    NVIDIA NCCL User Guide, troubleshooting; nccl-tests issue 206; the research notes on IPC_LOCK for non-root pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Container, DeviceNode, Identity, Limit, Section, State, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds

CAP_IPC_LOCK = 1 << 14
"""Bit of CapEff, capability(7)."""

UVERBS = (DeviceNode(path="/dev/infiniband/uverbs0", openable=True), DeviceNode(path="/dev/infiniband/rdma_cm", openable=True))
EIGHT_MIB = {"memlock": Limit(soft=8 << 20, hard=8 << 20)}
USER = Identity(uid=1000, effective_capabilities=0)
ROOT_IN_DOCKER = Identity(uid=0, effective_capabilities=0xA80425FB)
ROOT = Identity(uid=0, effective_capabilities=0x1FFFFFFFFFF)

CASES = (
    Case(
        title="8192 KiB under mpirun on a node with InfiniBand",
        sections={"limits": EIGHT_MIB, "identity": USER, "device_nodes": UVERBS},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="8192",
    ),
    Case(
        title="root in a container without IPC_LOCK",
        sections={
            "limits": {"memlock": Limit(soft=64 << 20, hard=64 << 20)},
            "identity": ROOT_IN_DOCKER,
            "device_nodes": UVERBS,
            "container": Container(runtime="docker"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="IPC_LOCK",
    ),
    Case(
        title="the capabilities of the process are not known",
        sections={"limits": EIGHT_MIB, "device_nodes": UVERBS},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="unless",
    ),
    Case(
        title="root with all capabilities: the limit does not hold for it",
        sections={"limits": EIGHT_MIB, "identity": ROOT, "device_nodes": UVERBS},
        status=Status.PASS,
    ),
    Case(
        title="no RDMA device: a low limit harms nobody",
        sections={
            "limits": EIGHT_MIB,
            "identity": USER,
            "device_nodes": (DeviceNode(path="/dev/nvidia0", openable=True), DeviceNode(path="/dev/infiniband/rdma_cm", openable=True)),
        },
        status=Status.NOT_APPLICABLE,
        says="there is no RDMA device",
    ),
    Case(
        title="unlimited",
        sections={"limits": {"memlock": Limit(soft=None, hard=None)}, "identity": USER, "device_nodes": UVERBS},
        status=Status.PASS,
    ),
    Case(
        title="8192 KiB, and nobody looked for RDMA devices",
        sections={"limits": EIGHT_MIB, "identity": USER},
        status=Status.UNKNOWN,
        says="RDMA",
    ),
    Case(
        title="the limit on locked memory is not among those read",
        sections={"limits": {"nofile": Limit(soft=1024, hard=4096)}, "device_nodes": UVERBS},
        status=Status.UNKNOWN,
        says="locked memory",
    ),
    Case(title="no limits at all", sections={"limits": absent("not Linux")}, status=Status.NOT_APPLICABLE),
)


@check(
    "system.memlock-limited",
    Severity.ERROR,
    explains=("rdma.*", "deepep.requirements"),
    settle="ulimit -l; ls /dev/infiniband",
    cases=CASES,
)
def memlock_limited(
    limits: Mapping[str, Limit],
    identity: Section[Identity],
    device_nodes: Section[tuple[DeviceNode, ...]],
    container: Section[Container],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the memlock limit with what RDMA registers."""
    limit = limits.get("memlock")
    if limit is None:
        yield Doubt(subject="memlock", reason="the limit on locked memory is not known")
        return
    need = next(iter(system_needs_matrix.of("locked-memory", 1)))
    if limit.soft is None or limit.soft >= need.amount:
        return
    shown = f"{limit.soft // 1024} KiB"
    if device_nodes.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(
            subject="memlock",
            reason=f"the limit is {shown}, which is too low where RDMA is used; whether this node has RDMA devices is not known",
            settle="ls /dev/infiniband",
        )
        return
    devices = [node.path for node in device_nodes.value or () if node.path.startswith("/dev/infiniband/uverbs")]
    capabilities = identity.value.effective_capabilities if identity.value else None
    if not devices:
        yield NotApplicable(reason="there is no RDMA device")
        return
    if capabilities is not None and capabilities & CAP_IPC_LOCK:
        return
    evidence = [
        Evidence(where="limits.memlock.soft", value=f"{limit.soft} bytes ({shown})"),
        Evidence(where="limits.memlock.hard", value="unlimited" if limit.hard is None else f"{limit.hard} bytes"),
        Evidence(where="device_nodes", value=", ".join(devices[:4])),
    ]
    if capabilities is not None and identity.value is not None:
        evidence.append(Evidence(where="identity", value=f"uid {identity.value.uid}, CapEff {capabilities:#x} (no IPC_LOCK)"))
    raisable = limit.hard is None or limit.hard >= need.amount
    yield Finding(
        subject="memlock",
        summary=f"The limit on locked memory (memlock, ulimit -l) is {shown}, and this node uses RDMA.",
        cause=(
            f"{need.text} {_why_not_lifted(capabilities, identity, container)}"
            + (" The hard limit is higher: the job's own shell may raise it." if raisable else "")
        ),
        evidence=tuple(evidence),
        expected="unlimited",
        remedies=remedies("general"),
        sources=need.basis.sources,
        severity=Severity(need.severity) if capabilities is not None else Severity.WARNING,
    )


def _why_not_lifted(capabilities: int | None, identity: Section[Identity], container: Section[Container]) -> str:
    if capabilities is None:
        return "It holds unless the process has the capability IPC_LOCK, which is not known."
    root = identity.value is not None and identity.value.uid == 0
    if root:
        return "The process runs as root, but without the capability IPC_LOCK, so the limit holds for it."
    if container.value is not None and container.value.kubernetes:
        return "The process is not root: adding IPC_LOCK to the pod would have no effect for it, the runtime's own limit has to be raised."
    return "The process does not have the capability IPC_LOCK, so the limit holds for it; limits.conf only reaches new logins."
