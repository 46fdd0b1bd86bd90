"""An environment variable has a value that its reader does not accept, names something that is not there, or is misspelt.

What it looks at
    Variables of NCCL, CUDA, torch and their build tools against the values that their documentation allows; names that differ from a documented one by a
    single letter; CUDA_HOME against the toolkits found; TORCH_CUDA_ARCH_LIST against the GPUs. Whether the interfaces and adapters that NCCL and
    Gloo are told to use are there is judged by network.wrong-interface.

Why it matters
    A wrong value ends initialisation with a message about something else ("no socket interface found", "invalid usage"), or is ignored without a word,
    as a misspelt name is. A value that was right once gets wrong: from NCCL 2.21 on the GID index is found automatically, and a
    fixed NCCL_IB_GID_INDEX breaks when the table of the adapter changes.

Sources
    NVIDIA NCCL User Guide, "Environment Variables" and networking troubleshooting; CUDA Programming Guide; PyTorch documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._loaded_nccl import loaded_nccl
from dsdoctor.checks._samples import environment_of
from dsdoctor.facts import CudaToolkit, DeviceNode, EnvironmentVariable, Gpu, Package, Section, State, TorchRuntime, absent
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Confidence, EnvVars, ValueRule
from dsdoctor.versions import ComputeCapability, LibraryVersion

PROBLEMS = frozenset({"invalid-value", "risky", "deprecated"})
NCCL_GUIDE = "NVIDIA NCCL User Guide: Environment Variables — https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
TORCH_GUIDE = "PyTorch: torch.utils.cpp_extension — https://docs.pytorch.org/docs/stable/cpp_extension.html"
ARCH_LIST = "TORCH_CUDA_ARCH_LIST"
WITHOUT_A_PATH = "nvcc"
"""The path of a toolkit of which a text tells only what nvcc --version said: it may well be that of CUDA_HOME."""
INTERFACE_LISTS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")


EIGHT = tuple(Gpu(index=index, compute_capability="9.0") for index in range(8))
NEW_NCCL = (Package(name="nvidia-nccl-cu13", version="2.28.9"),)
OLD_NCCL = (Package(name="nvidia-nccl-cu12", version="2.20.5"),)
UVERBS = (DeviceNode(path="/dev/infiniband/uverbs0", openable=True),)

CASES = (
    Case(
        title="a fixed GID index with a current NCCL",
        sections={"environment": environment_of(NCCL_IB_GID_INDEX="3"), "packages": NEW_NCCL, "device_nodes": UVERBS},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="GID index",
    ),
    Case(
        title="an equals sign too many became part of the value",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="=enp90s0np0")},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="plain name",
    ),
    Case(
        title="a level that does not exist",
        sections={"environment": environment_of(NCCL_P2P_LEVEL="NVLINK"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="Not a level",
    ),
    Case(
        title="the image's check of the driver is switched off",
        sections={"environment": environment_of(NVIDIA_DISABLE_REQUIRE="true"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="driver",
    ),
    Case(
        title="a misspelt name is ignored",
        sections={"environment": environment_of(CUDA_VISIBLE_DEVICE="0,1"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="CUDA_VISIBLE_DEVICES",
    ),
    Case(
        title="CUDA_HOME points nowhere",
        sections={
            "environment": environment_of(CUDA_HOME="/usr/local/cuda-12.4"),
            "cuda_toolkits": (CudaToolkit(path="/usr/local/cuda-13.0", cuda_version="13.0", nvcc="/usr/local/cuda-13.0/bin/nvcc"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="/usr/local/cuda-12.4",
    ),
    Case(
        title="a list of architectures without this GPU",
        sections={"environment": environment_of(TORCH_CUDA_ARCH_LIST="7.5;8.0"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="9.0",
    ),
    Case(
        title="the same list with PTX will do, and so does 9.0a",
        sections={"environment": environment_of(TORCH_CUDA_ARCH_LIST="8.0+PTX 9.0a"), "gpus": EIGHT},
        status=Status.PASS,
    ),
    Case(
        title="the two names of torch's allocator settings disagree",
        sections={
            "environment": environment_of(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", PYTORCH_ALLOC_CONF="max_split_size_mb:512")
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="PYTORCH_ALLOC_CONF",
    ),
    Case(
        title="names of interfaces: whether they are there is judged by network.wrong-interface",
        sections={"environment": environment_of(NCCL_SOCKET_IFNAME="enp90", GLOO_SOCKET_IFNAME="bond0"), "gpus": EIGHT},
        status=Status.PASS,
    ),
    Case(
        title="an old NCCL needs its GID index",
        sections={"environment": environment_of(NCCL_IB_GID_INDEX="3"), "packages": OLD_NCCL, "device_nodes": UVERBS},
        status=Status.PASS,
    ),
    Case(
        title="a GID index on a node without RDMA harms nobody",
        sections={"environment": environment_of(NCCL_IB_GID_INDEX="3"), "packages": NEW_NCCL, "device_nodes": absent("no /dev/infiniband")},
        status=Status.PASS,
    ),
    Case(
        title="what NVIDIA's images set is not misspelt",
        sections={"environment": environment_of(NCCL_VERSION="2.28.3-1", CUDA_VERSION="13.0.2", NCCL_DEBUG="INFO"), "gpus": EIGHT},
        status=Status.PASS,
    ),
    Case(
        title="a GID index, and the NCCL is not known",
        sections={"environment": environment_of(NCCL_IB_GID_INDEX="3"), "device_nodes": UVERBS},
        status=Status.UNKNOWN,
        says="NCCL",
    ),
    Case(title="the environment is not known", sections={"gpus": EIGHT}, status=Status.UNKNOWN, says="environment"),
)


@check("env.invalid-value", Severity.WARNING, explains=("network.wrong-interface", "smoke.collectives"), settle="env | sort", cases=CASES)
def invalid_value(
    environment: tuple[EnvironmentVariable, ...],
    gpus: Section[tuple[Gpu, ...]],
    device_nodes: Section[tuple[DeviceNode, ...]],
    cuda_toolkits: Section[tuple[CudaToolkit, ...]],
    packages: Section[tuple[Package, ...]],
    torch_runtime: Section[TorchRuntime],
    env_vars_matrix: EnvVars,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Find values and names that their readers do not accept."""
    settings = {item.name: item.value for item in environment}
    nccl = loaded_nccl(packages, torch_runtime)
    no_rdma = device_nodes.state is State.ABSENT or (
        device_nodes.state is State.KNOWN and not any("uverbs" in node.path for node in device_nodes.value or ())
    )
    known_names = {row.name for row in env_vars_matrix.variables} | {row.name for row in env_vars_matrix.nccl}
    known_names |= {row.name for row in env_vars_matrix.rules}
    for name, value in settings.items():
        for rule in env_vars_matrix.rules_for(name, value):
            speaks = rule.problem in PROBLEMS or rule.loses == "driver-check"
            if speaks and not (no_rdma and name.startswith("NCCL_IB_")):
                yield from _by_rule(name, value, rule, nccl, gpus, remedies)
        if name not in known_names and (meant := _one_letter_away(name, known_names)):
            yield _misspelt(name, value, meant, settings, remedies)
    yield from _cuda_home(settings, cuda_toolkits, remedies)
    yield from _arch_list(settings.get(ARCH_LIST, ""), gpus, remedies)
    yield from _two_names(settings, env_vars_matrix, remedies)


def _by_rule(
    name: str, value: str, rule: ValueRule, nccl: LibraryVersion | None, gpus: Section[tuple[Gpu, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt]:
    holds = rule.holds_with(nccl)
    if holds is None:
        yield Doubt(
            subject=name,
            reason=f"whether {value!r} is right depends on the NCCL release, which is not known",
            settle="pip list | grep -i nccl",
        )
        return
    single = gpus.value is not None and len(gpus.value) < 2
    if not holds or (rule.problem == "risky" and single and name.startswith("NCCL_") and rule.since_nccl == ""):
        return
    says = {
        "invalid-value": "has a value that is not accepted",
        "risky": "has a value that may do harm",
        "deprecated": "is out of date",
        "hides": "hides a fault",
    }
    evidence = [Evidence(where=f"environment[{name}]", value=repr(value))]
    if nccl is not None and name.startswith("NCCL_"):
        evidence.append(Evidence(where="packages", value=f"NCCL {nccl}"))
    yield Finding(
        subject=name,
        summary=f"{name}={value!r} {says[rule.problem]}: {rule.text}",
        cause=_effect(rule.problem, name),
        evidence=tuple(evidence),
        expected=f"{name} not set, or a value that its documentation lists",
        remedies=_rule_remedies(name, value, remedies),
        sources=rule.basis.sources,
        severity=_severity(rule),
    )


def _effect(problem: str, name: str) -> str:
    if problem == "invalid-value":
        return f"The reader of {name} refuses it at start, often with a message about something else, or takes its default without a word."
    if problem == "hides":
        return "The container then starts and fails later, with error 35 or 804, instead of saying at its start that the driver is too old."
    if problem == "deprecated":
        return f"Newer releases ignore {name} or have replaced it."
    return f"{name} was set for one machine or one fault, and is followed without a question on every other."


def _severity(rule: ValueRule) -> Severity:
    """A warning; worth knowing where only the presence of the variable is doubtful, or the source is a single report."""
    depends_on_value = rule.pattern not in (".+", ".*")
    mild = rule.problem in ("deprecated", "hides") or rule.basis.confidence is Confidence.COMMUNITY or rule.loses == "other-nodes"
    return Severity.INFO if mild or not depends_on_value else Severity.WARNING


def _rule_remedies(name: str, value: str, remedies: Remedies) -> tuple[Remedy, ...]:
    if name == "NCCL_IB_GID_INDEX":
        return remedies("gid-index")
    plain = value.strip().lstrip("^=").strip()
    if name in INTERFACE_LISTS and value.strip().startswith("=") and re.fullmatch(r"[\w.@:,-]+", plain):
        return (
            Remedy(
                summary="Use the plain interface name, without the equals sign",
                commands=(f"export {name}={plain}",),
                steps=("take it out of job templates, Dockerfiles and NCCL configuration files in the same form",),
                verify=Verify(
                    command="NCCL_DEBUG=INFO <job> 2>&1 | grep -m1 'Bootstrap'", prints=f"Bootstrap: Using {plain.split(',')[0]}"
                ),
                disruption=Disruption.RESTART_PROCESS,
                not_when="the plain name is also the beginning of another interface's name: then all of those are taken",
                sources=(NCCL_GUIDE,),
            ),
            *remedies("general", variable=name),
        )[:3]
    return remedies("general", variable=name)


def _misspelt(name: str, value: str, meant: str, settings: Mapping[str, str], remedies: Remedies) -> Finding:
    also = f" {meant} is set as well ({settings[meant]!r})." if meant in settings else ""
    return Finding(
        subject=name,
        summary=f"{name}={value!r} is set, but nothing reads a variable of that name: {meant} was probably meant.",
        cause=f"A name that is not known is ignored without a word.{also}",
        evidence=(Evidence(where=f"environment[{name}]", value=repr(value)),),
        expected=f"{meant}, or neither",
        remedies=remedies("general", variable=name),
        sources=(NCCL_GUIDE,) if meant.startswith("NCCL_") else (f"the documentation of {meant}",),
        severity=Severity.WARNING,
    )


def _one_letter_away(name: str, known: Iterable[str]) -> str:
    """The documented name that differs by one letter left out, added or replaced; empty when there is none."""
    return next((other for other in sorted(known) if abs(len(other) - len(name)) <= 1 and _differ_by_one(name, other)), "")


def _differ_by_one(left: str, right: str) -> bool:
    start = next((number for number, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
    shorter = len(left) - len(right)
    return left[start + (shorter >= 0) :] == right[start + (shorter <= 0) :] and left != right


def _cuda_home(settings: Mapping[str, str], cuda_toolkits: Section[tuple[CudaToolkit, ...]], remedies: Remedies) -> Iterator[Finding]:
    """CUDA_HOME (or CUDA_PATH, which is read where CUDA_HOME is not set) naming no toolkit."""
    variable = next((name for name in ("CUDA_HOME", "CUDA_PATH") if settings.get(name, "").strip()), "")
    looked = cuda_toolkits.state in (State.KNOWN, State.ABSENT)
    named = settings.get(variable, "").rstrip("/")
    if (
        not variable
        or not looked
        or any(toolkit.is_cuda_home or toolkit.path in (named, WITHOUT_A_PATH) for toolkit in cuda_toolkits.value or ())
    ):
        return
    found = ", ".join(toolkit.path for toolkit in cuda_toolkits.value or () if toolkit.nvcc) or "none with nvcc"
    yield Finding(
        subject=variable,
        summary=f"{variable}={settings[variable]!r}, but there is no CUDA toolkit there.",
        cause="What is compiled on this node looks for nvcc and headers there and stops, also when PATH has an nvcc.",
        evidence=(
            Evidence(where=f"environment[{variable}]", value=repr(settings[variable])),
            Evidence(where="cuda_toolkits", value=found),
        ),
        expected=f"the root of a toolkit ({found}), or not set",
        remedies=remedies("general", variable=variable),
        sources=(TORCH_GUIDE,),
        severity=Severity.WARNING,
    )


def _arch_list(value: str, gpus: Section[tuple[Gpu, ...]], remedies: Remedies) -> Iterator[Finding]:
    """A list of architectures that covers some GPU of this node neither with machine code nor with PTX."""
    entries = [entry for entry in re.split(r"[;,\s]+", value.strip()) if entry]
    parsed = [(re.fullmatch(r"(\d+\.\d)([af]?)(\+PTX)?", entry)) for entry in entries]
    if not entries or not all(parsed):
        return
    compiled = [(capability, bool(found[3])) for found in parsed if found and (capability := ComputeCapability.parse(found[1]))]
    for gpu in gpus.value or ():
        here = ComputeCapability.parse(gpu.compute_capability)
        if here is None or any((item.major == here.major and item.minor <= here.minor) or (ptx and item <= here) for item, ptx in compiled):
            continue
        yield Finding(
            subject=ARCH_LIST,
            summary=f"{ARCH_LIST}={value!r} leaves out compute capability {here} of GPU {gpu.index} ({gpu.name or 'unnamed'}).",
            cause="Extensions built under it run into 'no kernel image is available for execution on the device' here. What is installed already is not touched.",
            evidence=(
                Evidence(where=f"environment[{ARCH_LIST}]", value=repr(value)),
                Evidence(where=f"gpus[{gpu.index}].compute_capability", value=str(here)),
            ),
            expected=f"a list with {here}, or not set: torch then builds for the GPUs it sees",
            remedies=remedies("general", variable=ARCH_LIST),
            sources=(TORCH_GUIDE,),
            severity=Severity.INFO,
        )
        return


def _two_names(settings: Mapping[str, str], env_vars: EnvVars, remedies: Remedies) -> Iterator[Finding]:
    """An old and a new name of one variable with different values."""
    for row in env_vars.variables:
        old, new = settings.get(row.name), settings.get(row.renamed_to) if row.renamed_to else None
        if old is not None and new is not None and old.strip() != new.strip():
            yield Finding(
                subject=row.name,
                summary=f"{row.name} and {row.renamed_to} are both set, to different values: one of them is ignored.",
                cause=f"{row.renamed_to} is the newer name of {row.name}; which one counts depends on the release.",
                evidence=(
                    Evidence(where=f"environment[{row.name}]", value=repr(old)),
                    Evidence(where=f"environment[{row.renamed_to}]", value=repr(new)),
                ),
                expected="one of the two",
                remedies=remedies("general", variable=row.name),
                sources=row.basis.sources,
                severity=Severity.WARNING,
            )
