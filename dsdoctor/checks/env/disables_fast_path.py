"""A variable that was left behind switches a fast path off, or makes everything slower.

What it looks at
    Variables of NCCL, CUDA and torch whose value turns off GPU peer-to-peer, shared memory, InfiniBand, GPUDirect RDMA or NVLink SHARP, or that are meant
    for debugging; and whether this node has what they turn off: more than one GPU, RDMA devices.

Why it matters
    Nothing fails and nothing is logged: it is only slow. Measured on two H200 with NVLink, an all-reduce of 512 MiB ran at 289 GiB/s, with
    NCCL_P2P_DISABLE=1 at 25.8, with NCCL_SHM_DISABLE=1 as well at 2.8. Such switches come from answers to other people's problems, stay in profiles,
    Dockerfiles and job templates for years, and outlive the fault they worked around. NCCL reads /etc/nccl.conf and ~/.nccl.conf too. With one GPU
    there is no peer to reach, and without RDMA devices nothing to disable.

Sources
    NVIDIA NCCL User Guide, "Environment Variables" (debugging variables should not stay set in production); CUDA Programming Guide; own measurement.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._loaded_nccl import loaded_nccl
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks._samples import environment_of
from dsdoctor.facts import DeviceNode, EnvironmentVariable, Gpu, Package, Section, State, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import EnvVars, ValueRule

PROBLEMS = frozenset({"disables-fast-path", "slows", "debugging"})
NEEDS_SEVERAL_GPUS = frozenset({"p2p", "shared-memory", "nvlink-sharp"})
NEEDS_RDMA = frozenset({"rdma", "gpudirect-rdma", "pxn"})
ONLY_WORTH_KNOWING = frozenset({"nvlink-sharp", "multi-node-nvlink", "pxn", "lazy-loading"})

LOST = {
    "p2p": "direct traffic between GPUs",
    "shared-memory": "traffic through shared memory",
    "nvlink-sharp": "reductions inside the NVLink switch",
    "rdma": "InfiniBand and RoCE",
    "gpudirect-rdma": "GPUDirect RDMA",
    "pxn": "PXN",
    "multi-node-nvlink": "NVLink between nodes",
    "lazy-loading": "lazy loading of kernels",
}


ONE = (Gpu(index=0),)
EIGHT = tuple(Gpu(index=index) for index in range(8))
UVERBS = (DeviceNode(path="/dev/infiniband/uverbs0", openable=True),)
NCCL = (Package(name="nvidia-nccl-cu13", version="2.28.9"),)

CASES = (
    Case(
        title="NCCL_P2P_DISABLE=1 on eight GPUs",
        sections={"environment": environment_of(NCCL_P2P_DISABLE="1"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="NCCL_P2P_DISABLE",
    ),
    Case(
        title="the level LOC does the same",
        sections={"environment": environment_of(NCCL_P2P_LEVEL="LOC"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="direct traffic between GPUs",
    ),
    Case(
        title="InfiniBand is off although there is some",
        sections={"environment": environment_of(NCCL_IB_DISABLE="1"), "gpus": EIGHT, "device_nodes": UVERBS},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="TCP",
    ),
    Case(
        title="NVLink SHARP off: worth knowing",
        sections={"environment": environment_of(NCCL_NVLS_ENABLE="0"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="every launch waits for the GPU",
        sections={"environment": environment_of(CUDA_LAUNCH_BLOCKING="1"), "gpus": ONE},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="waits",
    ),
    Case(
        title="with one GPU there is no peer",
        sections={"environment": environment_of(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1"), "gpus": ONE},
        status=Status.PASS,
    ),
    Case(
        title="no RDMA device: nothing to disable",
        sections={"environment": environment_of(NCCL_IB_DISABLE="1"), "gpus": EIGHT, "device_nodes": absent("no /dev/infiniband")},
        status=Status.PASS,
    ),
    Case(
        title="set to 0: switched on",
        sections={"environment": environment_of(NCCL_P2P_DISABLE="0", NCCL_IB_DISABLE="0", NCCL_NVLS_ENABLE="2"), "gpus": EIGHT},
        status=Status.PASS,
    ),
    Case(
        title="a matter of the NCCL release, which is not known",
        sections={"environment": environment_of(NCCL_MNNVL_ENABLE="0"), "gpus": EIGHT},
        status=Status.UNKNOWN,
        says="NCCL",
    ),
    Case(
        title="the same with a release that reads it",
        sections={"environment": environment_of(NCCL_MNNVL_ENABLE="0"), "gpus": EIGHT, "packages": NCCL},
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(title="the environment is not known", sections={"gpus": EIGHT}, status=Status.UNKNOWN, says="environment"),
    Case(
        title="no GPU: there is no fast path",
        sections={"environment": (EnvironmentVariable(name="NCCL_P2P_DISABLE", value="1"),), "gpus": absent("there is no NVIDIA GPU")},
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU",
    ),
)


@check(
    "env.disables-fast-path",
    Severity.WARNING,
    explains=("smoke.collectives",),
    settle="env | grep -E '^(NCCL|CUDA|TORCH|PYTORCH)_'; cat /etc/nccl.conf ~/.nccl.conf",
    cases=CASES,
)
def disables_fast_path(
    environment: tuple[EnvironmentVariable, ...],
    gpus: Section[tuple[Gpu, ...]],
    device_nodes: Section[tuple[DeviceNode, ...]],
    packages: Section[tuple[Package, ...]],
    torch_runtime: Section[TorchRuntime],
    env_vars_matrix: EnvVars,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find switches that turn off something this node has."""
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
        return
    nccl = loaded_nccl(packages, torch_runtime)
    for variable in environment:
        for rule in env_vars_matrix.rules_for(variable.name, variable.value):
            if rule.problem not in PROBLEMS or not _matters(rule, gpus, device_nodes):
                continue
            holds = rule.holds_with(nccl)
            if holds is None:
                since = f" (it is read from NCCL {rule.since_nccl} on)" if rule.since_nccl else ""
                yield Doubt(
                    subject=variable.name,
                    reason=f"whether {variable.value!r} has an effect depends on the NCCL release{since}, which is not known",
                    settle="pip list | grep -i nccl",
                )
            elif holds:
                yield _finding(variable, rule, gpus, device_nodes, remedies)


def _matters(rule: ValueRule, gpus: Section[tuple[Gpu, ...]], device_nodes: Section[tuple[DeviceNode, ...]]) -> bool:
    """Whether this node may have what the rule says is lost; what is not known may be there."""
    single = gpus.value is not None and len(gpus.value) < 2
    no_rdma = device_nodes.state is State.ABSENT or (device_nodes.state is State.KNOWN and not _rdma_devices(device_nodes))
    if rule.loses in NEEDS_RDMA:
        return not no_rdma
    nccl_alone = rule.name.startswith("NCCL_") and rule.loses != "multi-node-nvlink"
    return not (single and (rule.loses in NEEDS_SEVERAL_GPUS or nccl_alone))


def _finding(
    variable: EnvironmentVariable,
    rule: ValueRule,
    gpus: Section[tuple[Gpu, ...]],
    device_nodes: Section[tuple[DeviceNode, ...]],
    remedies: Remedies,
) -> Finding:
    lost = LOST.get(rule.loses, "")
    unproven = (rule.loses in NEEDS_RDMA and device_nodes.value is None) or (rule.loses in NEEDS_SEVERAL_GPUS and gpus.value is None)
    condition = " Whether this node has it to lose is not known." if unproven else ""
    evidence = [Evidence(where=f"environment[{variable.name}]", value=repr(variable.value))]
    if rule.loses in NEEDS_SEVERAL_GPUS and gpus.value is not None:
        evidence.append(Evidence(where="gpus", value=f"{len(gpus.value)} GPUs"))
    if rule.loses in NEEDS_RDMA and device_nodes.value is not None:
        evidence.append(Evidence(where="device_nodes", value=", ".join(_rdma_devices(device_nodes)[:4])))
    mild = rule.loses in ONLY_WORTH_KNOWING or (unproven and rule.loses in NEEDS_RDMA)
    return Finding(
        subject=variable.name,
        summary=f"{variable.name}={variable.value.strip()} is set: {rule.text}",
        cause=(f"It switches off {lost}. " if lost else "")
        + f"It is a switch for debugging, or a workaround that stayed; nothing logs what it costs.{condition}",
        evidence=tuple(evidence),
        expected=f"{variable.name} not set, unless a fault that is still there calls for it",
        remedies=remedies("general", variable=variable.name),
        sources=rule.basis.sources,
        severity=Severity.INFO if mild else Severity.WARNING,
        explains=() if variable.name.startswith("NCCL_") else ("smoke.bandwidth", "smoke.rate"),
    )


def _rdma_devices(device_nodes: Section[tuple[DeviceNode, ...]]) -> list[str]:
    return [node.path for node in device_nodes.value or () if node.path.startswith("/dev/infiniband/uverbs")]
