"""CUDA_VISIBLE_DEVICES hides GPUs that the job should use.

What it looks at
    The value of CUDA_VISIBLE_DEVICES, read as CUDA reads it, against the GPUs and MIG instances that NVML sees; and beside it CUDA_DEVICE_ORDER,
    NVIDIA_VISIBLE_DEVICES and the traces of schedulers (Slurm, Ray); in pasted text also what the command that starts a container gives it.

Why it matters
    Whatever is wrong with the value, every mistake ends in the same words: "No CUDA GPUs are available" (or "invalid device ordinal" when some are left).
    CUDA reads the list from left to right and stops at the first entry it cannot use: that entry and all after it are hidden. An empty value or -1
    hides everything; an entry that stands twice does too. UUIDs may be shortened as long as they stay unique. With MIG on, a process can
    use one instance only, named by its MIG UUID. Engines read the list themselves and are stricter: some accept whole numbers only.
    The variable is read when CUDA starts; workers that Ray started earlier do not see a later change.
    A container that is given GPUs 2 and 3 of the node counts them 0 and 1: the same list in CUDA_VISIBLE_DEVICES selects twice, and finds nothing.

Often said, and not so
    "Driver 535 and newer ignore CUDA_VISIBLE_DEVICES on an A800": no issue, release note or forum thread supports it. The usual reasons
    are a value set after CUDA started, or one that names a GPU which is not there. Source: none found; a negative finding.

Sources
    CUDA Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide; PyTorch torch/cuda (how it reads the list); vLLM issues 1016 and 41848.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks._samples import environment_of
from dsdoctor.checks.env._given import Given, given
from dsdoctor.facts import (
    Command,
    Container,
    DeviceNode,
    EnvironmentVariable,
    Gpu,
    LogEvent,
    MigInstance,
    Package,
    Section,
    State,
    absent,
)
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies

NAME = "CUDA_VISIBLE_DEVICES"
CUDA_GUIDE = (
    "CUDA Programming Guide: CUDA Environment Variables — "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
)
MIG_GUIDE = "NVIDIA MIG User Guide — https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
ENGINE_ISSUE = "vLLM issue 41848 — https://github.com/vllm-project/vllm/issues/41848"
RAY_ISSUE = "vLLM issue 1016 — https://github.com/vllm-project/vllm/issues/1016"

GPU_FILE = re.compile(r"/dev/nvidia\d+")
QUOTES = "\"'`“”‘’"
WORDS_OF_THE_CONTAINER_TOOLKIT = frozenset({"all", "void", "none"})
LEADING_NUMBER = re.compile(r"[+-]?\d+")
"""CUDA reads an index as strtol does: what follows the digits does not count (torch/cuda/__init__.py notes the same)."""


def _environment(value: str, **more: str) -> tuple[EnvironmentVariable, ...]:
    return environment_of(**{NAME: value, **more})


UUID_A, UUID_B = "GPU-8f3a1c52-0d4e-4b7a-9c11-5e2d7f60a001", "GPU-8f3a9b77-6a10-4c2d-8e55-0c9b4d21f002"
EIGHT = tuple(Gpu(index=index, name="NVIDIA H100 80GB HBM3", mig_enabled=False) for index in range(8))
TWO = (Gpu(index=0, uuid=UUID_A, mig_enabled=False), Gpu(index=1, uuid=UUID_B, mig_enabled=False))
SLICES = (
    MigInstance(index=0, uuid="MIG-2c1b6f3e-91a7-5d10-b1a4-7b6a3c9d0001", name="1g.10gb"),
    MigInstance(index=1, uuid="MIG-77e0a4d9-3c5b-5f42-8f0e-2d8c5b1a0002", name="1g.10gb"),
)
SLICED = (Gpu(index=0, uuid=UUID_A, name="NVIDIA H100 80GB HBM3", mig_enabled=True, mig_instances=SLICES),)
MIXED = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB"), Gpu(index=1, name="NVIDIA H100 PCIe"))

CASES = (
    Case(title="empty", sections={"environment": _environment(""), "gpus": EIGHT}, status=Status.FAIL, says="is empty"),
    Case(
        title="empty inside a Ray worker that asked for no GPU",
        sections={"environment": _environment("", RAY_JOB_ID="01000000"), "gpus": EIGHT},
        status=Status.FAIL,
        says="Ray",
    ),
    Case(title="-1, also where the GPUs are not known", sections={"environment": _environment("-1")}, status=Status.FAIL, says="-1"),
    Case(
        title="Slurm's word for a job without GPUs",
        sections={"environment": _environment("NoDevFiles", SLURM_JOB_ID="4711"), "gpus": EIGHT},
        status=Status.FAIL,
        says="Slurm",
    ),
    Case(
        title="'all' is a word of the container toolkit, not of CUDA",
        sections={"environment": _environment("all"), "gpus": EIGHT},
        status=Status.FAIL,
        says="NVIDIA_VISIBLE_DEVICES",
    ),
    Case(
        title="an index that does not exist hides what comes after it as well",
        sections={"environment": _environment("0,9,1"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="'9'",
    ),
    Case(
        title="a scheduler gave two GPUs, the script counts as if it had all",
        sections={"environment": _environment("4,5", SLURM_JOB_ID="4711"), "gpus": TWO},
        status=Status.FAIL,
        says="from 0",
    ),
    Case(
        title="an index twice",
        sections={"environment": _environment("0,1,1"), "gpus": EIGHT},
        status=Status.FAIL,
        says="twice",
    ),
    Case(
        title="quotes became part of the value",
        sections={"environment": _environment('"0,1"'), "gpus": EIGHT},
        status=Status.FAIL,
        says="quotation mark",
    ),
    Case(
        title="a space behind a comma: CUDA takes it, programs that split the list may not",
        sections={"environment": _environment("0,1 ,2"), "gpus": EIGHT},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="space",
    ),
    Case(
        title="the UUID of a GPU that was replaced",
        sections={"environment": _environment("GPU-dead0000-0000-0000-0000-000000000000"), "gpus": TWO},
        status=Status.FAIL,
        says="no GPU here",
    ),
    Case(
        title="a shortened UUID that fits two GPUs",
        sections={"environment": _environment("GPU-8f3a"), "gpus": TWO},
        status=Status.FAIL,
        says="2 GPUs",
    ),
    Case(
        title="a MIG UUID although MIG is off",
        sections={"environment": _environment(SLICES[0].uuid), "gpus": TWO},
        status=Status.FAIL,
        says="MIG",
    ),
    Case(
        title="two MIG instances for one process",
        sections={"environment": _environment(f"{SLICES[0].uuid},{SLICES[1].uuid}"), "gpus": SLICED},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="one MIG instance",
    ),
    Case(
        title="an index while MIG is on",
        sections={"environment": _environment("0"), "gpus": SLICED},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="MIG mode",
    ),
    Case(
        title="a MIG UUID and an engine that reads whole numbers",
        sections={
            "environment": _environment(SLICES[0].uuid),
            "gpus": SLICED,
            "packages": (Package(name="vllm", version="0.20.1"),),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="UUID",
    ),
    Case(
        title="indices on mixed GPUs, in CUDA's own order",
        sections={"environment": _environment("0"), "gpus": MIXED},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="CUDA_DEVICE_ORDER",
    ),
    Case(
        title="NVIDIA_VISIBLE_DEVICES on a plain host selects nothing",
        sections={
            "environment": (EnvironmentVariable(name="NVIDIA_VISIBLE_DEVICES", value="2"),),
            "gpus": EIGHT,
            "container": absent("a plain host"),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="no effect",
    ),
    Case(
        title="the doctor was asked to look at GPU 0 only",
        sections={
            "environment": _environment("4,5"),
            "gpus": EIGHT[:1],
            "device_nodes": tuple(DeviceNode(path=f"/dev/nvidia{number}", openable=True) for number in range(8)),
        },
        status=Status.PASS,
    ),
    Case(title="a choice of four GPUs", sections={"environment": _environment("4,5,6,7"), "gpus": EIGHT}, status=Status.PASS),
    Case(
        title="mixed GPUs in the order of nvidia-smi",
        sections={"environment": _environment("1,0", CUDA_DEVICE_ORDER="PCI_BUS_ID"), "gpus": MIXED},
        status=Status.PASS,
    ),
    Case(title="a shortened UUID that fits one GPU", sections={"environment": _environment("GPU-8f3a1"), "gpus": TWO}, status=Status.PASS),
    Case(title="one MIG instance", sections={"environment": _environment(SLICES[1].uuid), "gpus": SLICED}, status=Status.PASS),
    Case(title="not set", sections={"environment": (), "gpus": EIGHT}, status=Status.PASS),
    Case(
        title="no GPU: nothing to hide",
        sections={"environment": _environment(""), "gpus": absent("no GPU")},
        status=Status.NOT_APPLICABLE,
        says="no GPU",
    ),
    Case(
        title="a plausible list, and nobody said which GPUs there are",
        sections={"environment": _environment("0,1")},
        status=Status.UNKNOWN,
        says="which GPUs",
    ),
    Case(
        title="a container is given two GPUs, and counts them anew",
        sections={
            "environment": _environment("2,3", NVIDIA_VISIBLE_DEVICES="2,3"),
            "commands": (
                Command(
                    program="docker run",
                    text="docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=2,3 --env CUDA_VISIBLE_DEVICES=2,3 example/image",
                    where="x:1",
                ),
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="counts them from 0",
    ),
    Case(
        title="a container is given one GPU and selects its first",
        sections={
            "environment": _environment("0"),
            "gpus": EIGHT,
            "commands": (Command(program="docker run", text="docker run --gpus '\"device=2\"' -e CUDA_VISIBLE_DEVICES=0 example/image"),),
        },
        status=Status.PASS,
    ),
    Case(title="the environment is not known", sections={"gpus": EIGHT}, status=Status.UNKNOWN, says="environment"),
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with the value, and how many of its entries CUDA still uses."""

    summary: str
    cause: str
    expected: str
    usable: int
    severity: Severity = Severity.ERROR
    sources: tuple[str, ...] = (CUDA_GUIDE,)


@check(
    "env.cuda-visible-devices",
    Severity.ERROR,
    explains=("smoke.*", "torch.cuda-unavailable"),
    settle=f'echo "[${NAME}]"; nvidia-smi -L',
    cases=CASES,
)
def cuda_visible_devices(
    environment: tuple[EnvironmentVariable, ...],
    gpus: Section[tuple[Gpu, ...]],
    device_nodes: Section[tuple[DeviceNode, ...]],
    packages: Section[tuple[Package, ...]],
    container: Section[Container],
    commands: Section[tuple[Command, ...]],
    log_events: Section[tuple[LogEvent, ...]],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Read CUDA_VISIBLE_DEVICES as CUDA does and say which mistake it holds."""
    settings = {item.name: item.value for item in environment}
    if gpus.state is State.ABSENT:
        yield no_gpu(gpus)
        return
    value = settings.get(NAME)
    inside = container.value is not None and gpus.value is None
    there = given(value or "", settings, commands.value or (), log_events.value or (), inside)
    twice = _selected_twice(there) if there else None
    if there is not None and twice is not None:
        yield _in_container(there, twice, remedies)
        return
    if value is None:
        yield from _wrong_variable(settings, gpus, container, remedies)
        return
    mistake = _garbage(value, settings) or (_entries(value, gpus.value, _usable(device_nodes)) if gpus.value is not None else None)
    if mistake is not None:
        yield _finding(value, mistake, gpus, settings, remedies)
        return
    if gpus.value is None:
        yield Doubt(
            subject=NAME,
            reason=f"it is {value!r}; which GPUs there are is not known ({gpus.why or 'nobody looked'})",
            settle="nvidia-smi -L",
        )
        return
    for hint in _hints(value, gpus.value, settings, {package.name for package in packages.value or ()}):
        yield _finding(value, hint, gpus, settings, remedies)


def _garbage(value: str, settings: Mapping[str, str]) -> Mistake | None:
    """Mistakes that show without knowing any GPU."""
    text = value.strip()
    by = _who_sets(settings)
    if not text:
        cause = "An empty value hides every GPU; a variable that is not set hides none."
        return Mistake(f"{NAME} is empty: every GPU is hidden.", f"{cause}{by}", "not set, or the GPUs of the job", 0)
    if text[0] in QUOTES:
        return Mistake(
            f"{NAME} begins with a quotation mark ({value!r}): CUDA cannot read it and hides every GPU.",
            "The quotation marks became part of the value (env files of Docker and systemd units keep them).",
            "the list without quotation marks: 0,1",
            0,
        )
    first = text.split(",")[0].strip()
    number = LEADING_NUMBER.match(first)
    if number is not None and int(number[0]) < 0:
        return Mistake(
            f"{NAME} is {value!r}: a negative index ends the list, and it stands first, so every GPU is hidden.",
            f"-1 is the usual way to run on the CPU on purpose.{by}",
            "not set, or the GPUs of the job",
            0,
        )
    if first.lower() in WORDS_OF_THE_CONTAINER_TOOLKIT:
        return Mistake(
            f"{NAME} is {value!r}, a word that CUDA does not know: every GPU is hidden.",
            "'all', 'none' and 'void' are values of NVIDIA_VISIBLE_DEVICES, which the container toolkit reads. CUDA_VISIBLE_DEVICES takes indices "
            "and UUIDs.",
            "not set (all GPUs), or indices or UUIDs",
            0,
        )
    if number is None and not first.startswith(("GPU-", "MIG-")):
        scheduler = " Slurm writes NoDevFiles into jobs that have no GPU." if first.lower() == "nodevfiles" else by
        return Mistake(
            f"{NAME} is {value!r}: its first entry is neither an index nor a UUID, so every GPU is hidden.",
            f"CUDA stops reading at the first entry it cannot use.{scheduler}",
            "not set, or indices or UUIDs of the GPUs of the job",
            0,
        )
    return None


def _selected_twice(there: Given) -> int | None:
    """The position of the first index that the GPUs of a container do not have, counted from 0."""
    entries = [entry.strip() for entry in there.selected.strip(",").split(",")]
    return next((place for place, entry in enumerate(entries) if entry.isdecimal() and int(entry) >= there.count), None)


def _in_container(there: Given, place: int, remedies: Remedies) -> Finding:
    entry = there.selected.strip(",").split(",")[place].strip()
    inside = ",".join(str(index) for index in range(there.count))
    return Finding(
        subject=NAME,
        summary=(
            f"{NAME} is {there.selected!r} in a container that is given {there.count} GPU{'s' if there.count > 1 else ''} ({there.how}): "
            f"it counts them from 0, so there is no GPU {entry!r} in it."
        ),
        cause=(
            "GPUs are selected twice: the container runtime hands over some of the node's, and CUDA then counts these anew. "
            f"{'No GPU is left' if place == 0 else 'Only what stands before it is left'}; engines say 'Invalid Argument', 'invalid device ordinal' or "
            "'No CUDA GPUs are available'."
        ),
        evidence=(Evidence(where=there.where or f"environment[{NAME}]", value=f"{there.how}; {NAME}={there.selected}"),),
        expected=f"{NAME} not set in the container, or {inside}",
        remedies=(
            Remedy(
                summary=f"Select the GPUs once: remove {NAME} from the container, or set it to {inside}",
                steps=(
                    f"{there.how} already selects the GPUs; in the container they are {inside}",
                    f"start it again without {NAME}, or give all GPUs (--gpus all) and select with {NAME} alone",
                ),
                disruption=Disruption.RESTART_PROCESS,
                sources=(CUDA_GUIDE,),
            ),
            *remedies("general")[:1],
        ),
        sources=(CUDA_GUIDE,),
        severity=Severity.ERROR if there.sure else Severity.WARNING,
    )


def _usable(device_nodes: Section[tuple[DeviceNode, ...]]) -> int:
    """How many GPUs this process may open; more than are described when the doctor was asked to look at some of them."""
    return sum(1 for node in device_nodes.value or () if GPU_FILE.fullmatch(node.path) and node.openable is not False)


def _entries(value: str, gpus: Sequence[Gpu], usable: int) -> Mistake | None:
    """The first entry that CUDA cannot use, on a node with these GPUs."""
    entries = [entry.strip() for entry in value.strip().rstrip(",").split(",")]
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        named = _named(entry, gpus, usable)
        if isinstance(named, Mistake):
            rest = entries[position + 1 :]
            hidden = f" CUDA stops reading there, so what stands behind it ({','.join(rest)}) is hidden as well." if rest else ""
            left = "no GPU is left" if position == 0 else f"{position} of {len(entries)} entries are left"
            return Mistake(
                f"{NAME} is {value!r}: {named.summary}; {left}.", f"{named.cause}{hidden}", named.expected, position, sources=named.sources
            )
        if named in seen:
            return Mistake(
                f"{NAME} is {value!r}: {entry!r} stands twice, and CUDA then shows no GPU at all.",
                "An entry that is repeated makes the whole list void.",
                "each GPU once",
                0,
            )
        seen.add(named)
    return None


def _named(entry: str, gpus: Sequence[Gpu], usable: int) -> str | Mistake:
    """A name for the device that an entry stands for, or why it stands for none; GPUs that are not described get the doubt's benefit."""
    others = usable > len(gpus)
    by_index = {gpu.index: gpu for gpu in gpus}
    instances = [instance for gpu in gpus for instance in gpu.mig_instances]
    there = f"GPUs {min(by_index)} to {max(by_index)}" if len(by_index) > 1 else "".join(f"only GPU {index}" for index in by_index)
    if entry.startswith(("GPU-", "MIG-")):
        kind, uuids = (
            ("GPU", [gpu.uuid for gpu in gpus]) if entry.startswith("GPU-") else ("MIG instance", [item.uuid for item in instances])
        )
        if not all(uuids) and (uuids or entry.startswith("MIG-")):
            return entry
        fitting = [uuid for uuid in uuids if uuid.startswith(entry)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and others:
            return entry
        if fitting:
            return Mistake(
                f"{entry!r} is the beginning of {len(fitting)} {kind}s' UUIDs",
                "A shortened UUID must be unique.",
                "more characters of the UUID",
                0,
            )
        if kind == "MIG instance" and not instances:
            if any(gpu.mig_enabled for gpu in gpus):
                return Mistake(
                    f"{entry!r} names a MIG instance, and there is none",
                    "MIG mode is on, but no instance has been made (they do not survive a reboot).",
                    "an existing instance",
                    0,
                    sources=(CUDA_GUIDE, MIG_GUIDE),
                )
            return Mistake(
                f"{entry!r} names a MIG instance, and MIG is off here",
                "It is left over from a time when this GPU was split, or comes from another node.",
                "an index or GPU UUID",
                0,
                sources=(CUDA_GUIDE, MIG_GUIDE),
            )
        return Mistake(
            f"{entry!r} is the UUID of no {kind} here" if kind != "GPU" else f"{entry!r} is the UUID of no GPU here",
            "It is stale: the GPU was replaced, the instance was made anew, or the value comes from another node or from outside this container.",
            "UUIDs that nvidia-smi -L prints here",
            0,
        )
    number = LEADING_NUMBER.match(entry)
    if number is None:
        return Mistake(f"{entry!r} is neither an index nor a UUID", "CUDA stops reading there.", "indices or UUIDs", 0)
    index = int(number[0])
    if index not in by_index and others and 0 <= index < usable:
        return f"index {index}"
    if index not in by_index:
        return Mistake(
            f"there is no GPU {entry!r} here ({there or 'no GPU at all'})",
            "Inside a container or an allocation of a scheduler the GPUs are counted from 0 anew, whatever their number on the node.",
            there or "no value",
            0,
        )
    return by_index[index].uuid or f"index {index}"


def _hints(value: str, gpus: Sequence[Gpu], settings: Mapping[str, str], installed: set[str]) -> Iterator[Mistake]:
    """Lists that CUDA accepts and that still surprise."""
    entries = value.strip().rstrip(",").split(",")
    stripped = [entry.strip() for entry in entries]
    slices = [entry for entry in stripped if entry.startswith("MIG-")]
    numbered = [int(found[0]) for entry in stripped if (found := LEADING_NUMBER.match(entry))]
    if len(slices) > 1:
        yield Mistake(
            f"{NAME} names {len(slices)} MIG instances, and a process can use one MIG instance only: the first.",
            "Further ranks say 'invalid device ordinal'. Each process needs its own instance, seen there as device 0.",
            "one MIG UUID for each process",
            1,
            Severity.WARNING,
            (MIG_GUIDE,),
        )
    split = {gpu.index: gpu for gpu in gpus if gpu.mig_enabled}
    in_mig_mode = [index for index in numbered if index in split]
    if in_mig_mode:
        without = [index for index in in_mig_mode if not split[index].mig_instances]
        yield Mistake(
            f"{NAME} is {value!r}, and GPU {in_mig_mode[0]} is in MIG mode: a process gets at most one of its instances, not the whole GPU.",
            "It has no instance, so nothing is visible." if without else "An index picks no particular instance; the MIG UUID does.",
            "the UUID of one MIG instance (nvidia-smi -L), or MIG off",
            0 if without else 1,
            Severity.ERROR if without else Severity.WARNING,
            (MIG_GUIDE,),
        )
    odd = [
        entry
        for entry, clean in zip(entries, stripped)
        if entry != clean or (not clean.startswith(("GPU-", "MIG-")) and not clean.isdecimal())
    ]
    if odd:
        yield Mistake(
            f"{NAME} is {value!r}: {odd[0]!r} holds a space or other characters beside the index.",
            "CUDA reads the digits and ignores the rest; engines and launchers that split the list themselves stop with 'invalid literal for int()'.",
            "indices and commas only: " + ",".join(str(number) for number in numbered),
            len(entries),
            Severity.WARNING,
        )
    if "vllm" in installed and any(entry.startswith(("GPU-", "MIG-")) for entry in stripped):
        yield Mistake(
            f"{NAME} holds a UUID, and vLLM is installed: releases of vLLM that read the entries as whole numbers stop with 'invalid literal for "
            "int()'.",
            "UUIDs are right for CUDA. MIG itself is not at fault.",
            "an index: expose only that device to the container and use 0, or a vLLM that accepts UUIDs",
            len(entries),
            Severity.WARNING if slices else Severity.INFO,
            (ENGINE_ISSUE,),
        )
    names = {gpu.name for gpu in gpus if gpu.name}
    if numbered and len(names) > 1 and settings.get("CUDA_DEVICE_ORDER", "").strip().upper() != "PCI_BUS_ID":
        yield Mistake(
            f"{NAME} is {value!r} on a node of mixed GPUs, and CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA's indices differ from those of nvidia-smi.",
            f"CUDA counts the fastest GPU first by default. Here are {', '.join(sorted(names))}.",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs",
            len(entries),
            Severity.WARNING,
        )


def _wrong_variable(
    settings: Mapping[str, str], gpus: Section[tuple[Gpu, ...]], container: Section[Container], remedies: Remedies
) -> Iterator[Finding]:
    """A selection in NVIDIA_VISIBLE_DEVICES on a plain host, where nothing reads it."""
    value = settings.get("NVIDIA_VISIBLE_DEVICES", "")
    if container.state is not State.ABSENT or not value or value == "all" or gpus.value is None or len(gpus.value) < 2:
        return
    yield Finding(
        subject="NVIDIA_VISIBLE_DEVICES",
        summary=f"NVIDIA_VISIBLE_DEVICES is {value!r}, which has no effect outside a container: all {len(gpus.value)} GPUs are visible.",
        cause="The container toolkit reads it when it starts a container. CUDA reads CUDA_VISIBLE_DEVICES, which is not set.",
        evidence=(Evidence(where="environment[NVIDIA_VISIBLE_DEVICES]", value=repr(value)),),
        expected="CUDA_VISIBLE_DEVICES, when a choice is meant",
        remedies=remedies("general"),
        sources=(CUDA_GUIDE,),
        severity=Severity.INFO,
    )


def _who_sets(settings: Mapping[str, str]) -> str:
    if any(name.startswith("RAY_") for name in settings):
        return " Ray sets it: tasks and actors that ask for no GPU (num_gpus) get an empty list, and a value exported after 'ray start' is not seen."
    if "SLURM_JOB_ID" in settings:
        return " Slurm sets it: this job or step was given no GPU (--gpus, --gres)."
    return ""


def _finding(value: str, mistake: Mistake, gpus: Section[tuple[Gpu, ...]], settings: Mapping[str, str], remedies: Remedies) -> Finding:
    evidence = [Evidence(where=f"environment[{NAME}]", value=repr(value))]
    if gpus.value is not None:
        evidence.append(Evidence(where="gpus", value="; ".join(_shown(gpu) for gpu in gpus.value[:8]) or "none"))
    evidence += [
        Evidence(where=f"environment[{name}]", value=settings[name])
        for name in ("CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_ID", "RAY_JOB_ID")
        if name in settings
    ]
    return Finding(
        subject=NAME,
        summary=mistake.summary,
        cause=mistake.cause,
        evidence=tuple(evidence),
        expected=mistake.expected,
        remedies=_remedies(mistake, gpus, remedies),
        sources=(*mistake.sources, RAY_ISSUE) if "Ray" in mistake.cause else mistake.sources,
        severity=mistake.severity,
    )


def _remedies(mistake: Mistake, gpus: Section[tuple[Gpu, ...]], remedies: Remedies) -> tuple[Remedy, ...]:
    found = remedies("general", n=str(len(gpus.value))) if gpus.value else remedies("general")
    if MIG_GUIDE in mistake.sources or ENGINE_ISSUE in mistake.sources:
        return (remedies.of("gpu.mig-limits", "one-instance") + found)[:3]
    return found


def _shown(gpu: Gpu) -> str:
    uuid = f" {gpu.uuid[:12]}…" if gpu.uuid else ""
    mig = f", MIG on with {len(gpu.mig_instances)} instance(s)" if gpu.mig_enabled else ""
    return f"{gpu.index}: {gpu.name or 'GPU'}{uuid}{mig}"
