"""What pasted log lines prove: findings of checks, ordered by time, beside those that the checks drew from facts.

A row of matrices/log-signatures says which check a line is evidence for. A check that found the same from facts keeps its finding and gets
the line as evidence. Lines that only follow from an error are never findings; lines that fit several causes become doubts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.checks.package._requirements import exact
from dsdoctor.checks.torch._gpus import fitting_builds
from dsdoctor.facts import NOT_ASKED, CudaLibrary, LoaderHit, LogEvent, Section, Sections
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, Remedy, Severity
from dsdoctor.record import dataclass
from dsdoctor.remedies import MOST_REMEDIES, Remedies
from dsdoctor.rows import (
    Companions,
    CudaToolkits,
    DriverBranches,
    Gpus,
    HealthLimits,
    LogReading,
    LogRole,
    LogSignature,
    LogSignatures,
    Torch,
    filled,
    names_in,
)
from dsdoctor.versions import CudaVersion, DriverVersion, GpuTarget

RemediesOf = Callable[[str], Remedies]
GPU_IN_PROSE = "gpu_prose"
TOGETHER = ("nccl_each", "nccl_good", "cudnn_each", "cvd_each", GPU_IN_PROSE)
"""Captures of clues that are told all together, not only the first."""
NCCL_SAID = "nccl_said"
"""The NCCL release that a rank names; several of them are told together as `nccl_versions`."""
MOST_LINES = 6
"""Lines shown as evidence of one finding."""
TOLD_BY: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch_build",),
    "torch_cuda": ("torch_build",),
    "driver": ("kernel_driver", "nvml_versions"),
    "driver_cuda": ("nvml_versions", "torch_runtime"),
    "gpu": ("gpus",),
    "cc": ("gpus",),
    "gpu_count": ("gpus",),
    "gpu_memory": ("gpus",),
    "glibc": ("libc",),
    "python": ("interpreter",),
    "architecture": ("platform",),
    "kernel": ("platform",),
    "shm": ("shared_memory",),
    "memlock": ("limits",),
    "nvcc": ("cuda_toolkits",),
}
"""Names of facts that a summary may use, and the sections that tell them."""
FLOAT16_BYTES, FLOAT32_BYTES = 2, 4
KNOWN_NAME = "="
"""In front of a name in the conditions of a reading: the name has a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A finding that lines prove, and where the first of them stands."""

    check: str
    finding: Finding
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The matrices that derived names are read from."""

    signatures: LogSignatures
    companions: Companions
    cuda_toolkits: CudaToolkits
    driver_branches: DriverBranches
    gpus: Gpus
    health_limits: HealthLimits
    torch: Torch


@dataclass(frozen=True, slots=True)
class _Read:
    event: LogEvent
    row: LogSignature
    reading: LogReading
    subject: str
    values: Mapping[str, str]
    """What its sentences may be filled with."""

    @property
    def told(self) -> int:
        """How much of what its own line says stands in its summary: of two lines of one fault the one that names the GPU is shown."""
        summary = filled(self.reading.summary, self.values)
        return sum(bool(value) and value in summary for value in self.event.captures.values())


def proofs(sections: Sections, world: World, remedies_of: RemediesOf) -> tuple[Proof, ...]:
    """One finding for each check and subject that lines prove, in the order of their first lines."""
    events = sections.log_events.value or ()
    names = _names(sections, events, world)
    seen = frozenset(event.signature for event in events)
    groups: dict[tuple[str, str], list[_Read]] = {}
    for event in events:
        row = world.signatures.signature(event.signature)
        if row is None or not row.readings:
            continue
        values = _derived({**names, **event.captures, "line": event.text}, world)
        reading = _reading(row, seen, values)
        if reading:
            subject = _one_line(filled(reading.subject, values)) or reading.check
            groups.setdefault((reading.check, subject), []).append(_Read(event, row, reading, subject, values))
    found = [_proof(reads, names, sections, world, remedies_of(check)) for (check, _), reads in groups.items()]
    return tuple(sorted(found, key=lambda proof: proof.order))


def doubts(sections: Sections, world: World, judged: Iterable[str]) -> Iterator[tuple[str, Doubt]]:
    """Causes that lines only suggest, by check; those whose check has judged already are left out."""
    events = sections.log_events.value or ()
    decided = frozenset(judged)
    said: set[str] = set()
    for event in events:
        row = world.signatures.signature(event.signature)
        causes = row.suggests if row else ()
        if event.signature in said or decided & {cause.check for cause in causes}:
            continue
        said.add(event.signature)
        for number, cause in enumerate(causes, 1):
            rank = f"{number} of {len(causes)} causes that fit" if len(causes) > 1 else "it would fit"
            yield (
                cause.check,
                Doubt(subject=event.where or "log", reason=f"'{_short(event.text)}': {rank}: {cause.text}", settle=cause.settle),
            )


def tells_of_trouble(sections: Sections, world: World) -> bool:
    """Whether any line tells of a failure, be it proved, suggested or a mere consequence."""
    rows = (world.signatures.signature(event.signature) for event in sections.log_events.value or ())
    return any(row is not None and row.role is not LogRole.CLUE for row in rows)


def joined(finding: Finding, own: Severity, proof: Finding) -> Finding:
    """A finding that a check drew from facts together with what lines prove of it; the graver one leads."""
    graver = (proof.severity or own).rank < (finding.severity or own).rank
    first, second = (proof, finding) if graver else (finding, proof)
    cause = first.cause if second.summary in first.cause else f"{first.cause} {second.summary}".strip()
    remedies = [*first.remedies, *(remedy for remedy in second.remedies if _is_new(remedy, first.remedies))]
    return Finding(
        subject=first.subject,
        summary=first.summary,
        cause=cause,
        evidence=(*first.evidence, *(item for item in second.evidence if item not in first.evidence)),
        expected=first.expected or second.expected,
        remedies=tuple(remedies[: MOST_REMEDIES + 1]),
        sources=tuple(dict.fromkeys((*first.sources, *second.sources))),
        severity=first.severity,
        explains=tuple(dict.fromkeys((*first.explains, *second.explains))),
    )


def _is_new(remedy: Remedy, others: Sequence[Remedy]) -> bool:
    return not any((remedy.commands, remedy.steps) == (other.commands, other.steps) for other in others)


def _reading(row: LogSignature, seen: frozenset[str], names: Mapping[str, str]) -> LogReading | None:
    def holds(condition: str) -> bool:
        if condition.startswith(KNOWN_NAME):
            name, _, value = condition[1:].partition(":")
            return value in names.get(name, "") if value else bool(names.get(name))
        return condition in seen

    if row.role is LogRole.CONSEQUENCE:
        return None
    fitting = (one for one in row.readings if all(map(holds, one.beside)) and not any(map(holds, one.unless)))
    return next(fitting, None)


def _proof(reads: Sequence[_Read], names: Mapping[str, str], sections: Sections, world: World, remedies: Remedies) -> Proof:
    first = min(reads, key=lambda read: (Severity(read.reading.severity).rank, -read.told))
    values = first.values
    fill = {name: text for name, template in first.reading.fill.items() if (text := filled(template, values))}
    cases = first.reading.cases
    chosen = tuple(one for case in cases for one in remedies(case, **fill)[:1]) if len(cases) > 1 else remedies(*cases, **fill)
    own = filled(first.reading.advice, values)
    if own:
        advice = Remedy(summary=own, steps=(own,), disruption=Disruption(first.reading.disruption), sources=first.row.basis.sources)
        chosen = (advice, *chosen[: MOST_REMEDIES - 1])
    shown = (first, *(read for read in reads if read is not first))[:MOST_LINES]
    lines = [Evidence(where=read.event.where or "log", value=read.event.text) for read in shown]
    severity = Severity(first.reading.severity)
    if severity is Severity.ERROR and first.row.basis.weak:
        severity = Severity.WARNING
    return Proof(
        check=first.reading.check,
        order=reads[0].event.order,
        finding=Finding(
            subject=first.subject,
            summary=_one_line(filled(first.reading.summary, values)),
            cause=_one_line(filled(first.reading.cause, values)),
            expected=_one_line(filled(first.reading.expected, values)),
            evidence=tuple(dict.fromkeys((*lines, *_beside(first.reading, names), *_facts_used(first, values, sections)))),
            remedies=chosen,
            sources=first.row.basis.sources,
            severity=severity,
        ),
    )


def _facts_used(first: _Read, values: Mapping[str, str], sections: Sections) -> Iterator[Evidence]:
    """The facts from elsewhere in the text that the summary names, with their places."""
    texts = filled(first.reading.summary, values)
    for name in sorted(names_in(first.reading.summary, required=False) - first.event.captures.keys()):
        told: Section[Any] = next(
            (found for one in TOLD_BY.get(name, ()) if (found := getattr(sections, one)).value is not None), NOT_ASKED
        )
        if told.value is not None and values.get(name) and values[name] in texts:
            yield Evidence(where=told.found_via or TOLD_BY[name][0], value=f"{name.replace('_', ' ')} {values[name]}")


def _beside(reading: LogReading, names: Mapping[str, str]) -> Iterator[Evidence]:
    for condition in reading.beside:
        line = names.get(f"line_of_{condition.replace('-', '_')}", "")
        if line:
            yield Evidence(where=names.get(f"where_of_{condition.replace('-', '_')}", "") or "log", value=line)


def _package_of(library: str, line: str, names: Mapping[str, str]) -> str:
    """The distribution that a compiled library belongs to, as its path or its name says."""
    installed = [name for name in names if f"/{name}/" in line or f"/{name}." in line or library.startswith(name)]
    folder = re.search(r"(?:site|dist)-packages/(\w+)/", line)
    if installed:
        return max(installed, key=len).replace("_", "-")
    stem = library.partition(".")[0].removeprefix("lib")
    shortened = re.sub(r"(_2_cuda|_cuda|_cpp|_C|_ext|_ops|_extension)+$", "", stem)
    return (folder[1] if folder else shortened or stem).replace("_", "-")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace(" ,", ",").replace(" .", ".").replace(" ;", ";")


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}…"


# --- names that templates may use -------------------------------------------------------------------------------------


def _names(sections: Sections, events: Sequence[LogEvent], world: World) -> dict[str, str]:
    """What is known: facts, packages by name, and captures of clue lines; the first line wins."""
    names: dict[str, str] = {}
    together: dict[str, dict[str, None]] = {}
    for event in events:
        row = world.signatures.signature(event.signature)
        key = event.signature.replace("-", "_")
        names.setdefault(f"line_of_{key}", event.text)
        names.setdefault(f"where_of_{key}", event.where)
        if row and row.role is LogRole.CLUE:
            for name, value in event.captures.items():
                names.setdefault(name, value)
                names.setdefault(f"line_of_{KNOWN_NAME}{name}", event.text)
                names.setdefault(f"where_of_{KNOWN_NAME}{name}", event.where)
                if name in TOGETHER:
                    together.setdefault(name, {})[value] = None
    releases = dict.fromkeys(event.captures[NCCL_SAID] for event in events if NCCL_SAID in event.captures)
    if len(releases) > 1:
        names["nccl_versions"] = " and ".join(releases)
    names |= {name: " and ".join(values) for name, values in together.items()}
    if len(together.get(GPU_IN_PROSE, ())) > 1:
        del names[GPU_IN_PROSE]  # which of them is the GPU of this node is not told
    computed = {**_fact_names(sections), **_slow_gpu(events, world.health_limits), **_built_module(sections, events)}
    names |= {name: value for name, value in computed.items() if value}
    return _derived(names, world)


def _fact_names(sections: Sections) -> dict[str, str]:
    build, runtime, driver = sections.torch_build.value, sections.torch_runtime.value, sections.kernel_driver.value
    nvml, shared, platform = sections.nvml_versions.value, sections.shared_memory.value, sections.platform.value
    gpus = sections.gpus.value or ()
    products = list(dict.fromkeys(gpu.name for gpu in gpus if gpu.name))
    memories = {gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes}
    memlock = (sections.limits.value or {}).get("memlock")
    toolkits = sections.cuda_toolkits.value or ()
    used = next((toolkit for toolkit in toolkits if toolkit.is_first_on_path or toolkit.is_cuda_home), next(iter(toolkits), None))
    names = {package.name.replace("-", "_"): package.version for package in sections.packages.value or ()}
    names |= {f"env_{variable.name}": variable.value for variable in sections.environment.value or ()}
    names |= _cudnn_names(sections)
    nccl_wheels = [package for package in sections.packages.value or () if package.name.startswith("nvidia-nccl-cu")]
    names |= {
        "nccl_wheels": " and ".join(f"{wheel.name} {wheel.version}" for wheel in nccl_wheels) if len(nccl_wheels) > 1 else "",
        "torch_cuda": (build.cuda or "") if build else "",
        "torch_hip": (build.hip or "") if build else "",
        "driver": driver.version if driver else nvml.driver if nvml else "",
        "driver_cuda": (nvml.cuda_driver if nvml else "") or (runtime.driver_cuda if runtime else ""),
        "gpu": ", ".join(products),
        "gpu_count": str(len(gpus)) if gpus else "",
        "mig": "yes" if any(gpu.mig_enabled or gpu.mig_instances for gpu in gpus) else "",
        "gpu_memory": f"{max(memories) / 2**30:.0f}" if memories else "",
        "cc": ", ".join(dict.fromkeys(gpu.compute_capability for gpu in gpus if gpu.compute_capability)),
        "glibc": sections.libc.value.version if sections.libc.value else "",
        "python": ".".join(sections.interpreter.value.version.split(".")[:2]) if sections.interpreter.value else "",
        "architecture": platform.architecture if platform else "",
        "kernel": platform.kernel_release if platform else "",
        "shm": f"{shared.total_bytes // 2**20} MiB" if shared else "",
        "shm_short": f"{shared.total_bytes // 2**20}M" if shared else "",
        "memlock": ("unlimited" if memlock.soft is None else f"{memlock.soft // 1024}") if memlock else "",
        "nvcc": (used.cuda_version or used.version) if used else "",
        "nvcc_path": used.nvcc if used else "",
        "wsl": sections.wsl.value.kernel_release or "WSL" if sections.wsl.value else "",
        "container": sections.container.value.runtime if sections.container.value else "",
    }
    if build:
        names["torch"] = build.version
    return names


def _cudnn_names(sections: Sections) -> dict[str, str]:
    """Every cuDNN that the text shows, and their majors: wheels, and files that the loader finds."""
    wheels = [package for package in sections.packages.value or () if package.name.startswith("nvidia-cudnn-cu")]
    found = {package.version.partition(".")[0]: f"{package.version} ({package.name})" for package in wheels}
    copies: list[LoaderHit | CudaLibrary] = [*(sections.loader_hits.value or ()), *(sections.cuda_libraries.value or ())]
    for copy in copies:
        major = copy.soname.rpartition(".so.")[2].partition(".")[0]
        if copy.family == "cudnn" and major.isdecimal():
            found.setdefault(major, f"{copy.version or major} ({copy.path.rpartition('/')[0]})")
    versions = dict.fromkeys([*(wheel.version for wheel in wheels), *(copy.version for copy in copies if copy.family == "cudnn")])
    several = [version for version in versions if version.count(".") > 1]
    return {
        "cudnn_there": ", ".join(found.values()),
        "cudnn_majors": " ".join(found),
        "cudnn_versions": " and ".join(several) if len(several) > 1 else "",
    }


def _built_module(sections: Sections, events: Sequence[LogEvent]) -> dict[str, str]:
    """The version of the NVIDIA module that DKMS has built for the running kernel."""
    running = sections.platform.value.kernel_release if sections.platform.value else ""
    built = (event.captures for event in events if "dkms_kernel" in event.captures)
    return {"dkms_here": next((one["dkms_version"] for one in built if running and one["dkms_kernel"] == running), "")}


def _slow_gpu(events: Sequence[LogEvent], limits: HealthLimits) -> dict[str, str]:
    """The one GPU that all slow pairs of a bandwidth table have in common, while each pair without it is fast."""
    rates: dict[tuple[str, str], float] = {}
    for event in events:
        if "pair_rate" in event.captures:
            rates.setdefault((event.captures["pair_a"], event.captures["pair_b"]), float(event.captures["pair_rate"]))
    if len(rates) < limits.limit("pairs-to-compare").amount:
        return {}
    best = max(rates.values())
    slow = [pair for pair, rate in rates.items() if rate < best * limits.limit("slow-pair-share").amount]
    common = set.intersection(*(set(pair) for pair in slow)) if slow else set()
    culprits = [gpu for gpu in common if all(pair in slow for pair in rates if gpu in pair)]
    if len(culprits) != 1:
        return {}
    return {"slow_gpu": culprits[0], "slow_rate": f"{min(rates[pair] for pair in slow):g}", "fast_rate": f"{best:g}"}


def _product_name(said: str) -> str:
    """The name that NVML would give to a GPU named in prose: `RTX 5090` is NVIDIA GeForce RTX 5090."""
    model = re.search(r"(?:[RG]TX ?(\d{4})( ?Ti| ?SUPER)?( Laptop GPU)?)|([A-Z]\d{1,3}S?)$", said)
    if not model:
        return ""
    if model[4]:
        return f"NVIDIA {model[4]}"
    kind = "GTX" if model[1].startswith("1") else "RTX"
    return " ".join(part.strip() for part in ("NVIDIA GeForce", kind, model[1], model[2], model[3]) if part)


def _give_size_of_model(values: dict[str, str]) -> None:
    """How much the weights of a model take whose name tells its size, and whether it is more than the GPU of the message or the vGPU profile holds."""
    try:
        billions = float(values.get("model_billions", ""))
    except ValueError:
        return
    weights = billions * (FLOAT32_BYTES if values.get("line_of_float32_said") else FLOAT16_BYTES)
    values.setdefault("model_gb", f"{weights:.0f}")
    total = re.fullmatch(r"(\d{1,4}(?:\.\d{1,3})?) ?GiB", values.get("oom_total", ""))
    sharers = int(values.get("parallel_said", "1"))
    if total and weights * 1e9 / sharers > float(total[1]) * 2**30:
        values.setdefault("weights_too_large", "yes")
    profile = re.search(r"-(\d{1,3})[QCAB]$", values.get("gpu", ""))
    if profile and weights > int(profile[1]):
        values.setdefault("vgpu_too_small", profile[1])


def _give_visible_devices(values: dict[str, str]) -> None:
    """How many devices CUDA_VISIBLE_DEVICES leaves, and what the device that a line asks for is among them; nothing where the text tells two lists."""
    entries = values.get("cvd_each", "").split(",")
    if not all(re.fullmatch(r"\d{1,3}|(?:GPU|MIG)-[\w/-]+", entry) for entry in entries):
        return
    values |= {"cvd_count": str(len(entries)), "cvd_last": str(len(entries) - 1)}
    asked = values.get("device_asked", "")
    if asked.isdecimal() and int(asked) >= len(entries):
        values["device_beyond"] = asked
        if asked in entries:
            values["device_logical"] = str(entries.index(asked))


def _derived(names: Mapping[str, str], world: World) -> dict[str, str]:
    """The names, and what the matrices make of them."""
    values = dict(names)

    def give(name: str, value: object) -> None:
        if value:
            values.setdefault(name, str(value))

    for name, source in (
        ("nvcc", "nvcc_short"),
        ("cc", "cc_said"),
        ("torch_cuda", "torch_cuda_said"),
        ("driver", "driver_found"),
        ("torch", "torch_cpu"),
        ("torch", "torch_said"),
    ):
        give(name, values.get(source, ""))
    give("cudnn_versions", values.get("cudnn_each", ""))
    if values.get("nccl_bad") and values["nccl_bad"] not in values.get("nccl_good", "").split(" and "):
        give("nccl_instead", values.get("nccl_good", ""))
    give("gpu", _product_name(values.get(GPU_IN_PROSE, "")))
    _give_size_of_model(values)
    _give_visible_devices(values)
    if values.get("memlock_bytes", "").isdecimal():
        give("memlock_said", int(values["memlock_bytes"]) // 1024)
    torch_cuda = CudaVersion.parse(values.get("torch_cuda", "") or values.get("torch", "").partition("+")[2])
    give("torch_cuda", torch_cuda)
    give("torch_tag", torch_cuda.tag if torch_cuda else "")
    give("torch_major", torch_cuda.major if torch_cuda else "")
    give("torch_minor", str(torch_cuda.minor) if torch_cuda else "")
    built = CudaVersion.parse(values.get("built_for", "").partition("+")[2])
    give("built_tag", built.tag if built else "")
    give("built_public", values.get("built_for", "").partition("+")[0])
    if values.get("companion"):
        give("companion_version", values.get(f"torch{values['companion']}", ""))
    if values.get("count_said", "").isdecimal() and values.get("mib_said", "").isdecimal():
        give("gib_said", f"{int(values['mib_said']) / 1024:.0f}")
        give("total_said", f"{int(values['count_said']) * int(values['mib_said']) / 1024:.0f}")
    give("torch_public", values.get("torch", "").partition("+")[0])
    floor = world.cuda_toolkits.floor(torch_cuda) if torch_cuda else None
    give("needed_driver", floor.min_driver if floor else "")
    give("needed_branch", floor.min_driver_branch if floor else "")
    driver = DriverVersion.parse(values.get("driver", ""))
    give("driver_branch", driver.branch if driver else "")
    driver_cuda = CudaVersion.parse(values.get("driver_cuda", "")) or (world.driver_branches.native_cuda(driver) if driver else None)
    give("driver_cuda", driver_cuda)
    if driver_cuda:
        give("driver_cuda_tag", driver_cuda.tag)
        newer = sorted({cuda for row in world.cuda_toolkits.releases if (cuda := row.cuda) and cuda > driver_cuda})
        give("newer_cudas", ", ".join(str(cuda) for cuda in newer[:4]))
        enough = world.driver_branches.branches_for(newer[0]) if newer else ()
        give("newer_branch", enough[0].branch if enough else "")
        give("older_major", driver_cuda.major - 1)
    product = world.gpus.product(values.get("gpu", "").split(", ")[0])
    if product:
        give("cc", product.compute_capability)
    if values.get("capability_said"):
        give("sm", f"sm_{values['capability_said']}")
    capability_text = values.get("sm", "") or (f"sm_{values['cc'].split(',')[0].replace('.', '')}" if values.get("cc") else "")
    give("sm", capability_text)
    target = GpuTarget.parse(capability_text)
    row = world.gpus.target(capability_text) if target else None
    if target:
        give("cc", f"{target.capability.major}.{target.capability.minor}")
        give("architecture_name", world.gpus.architecture(target.capability))
    first = CudaVersion.parse(row.first_cuda) if row else None
    if first:
        give("first_cuda", first)
        give("first_cu", first.tag)
    if target:
        builds = fitting_builds(
            values.get("torch_public", ""),
            values.get("architecture", "") or "x86_64",
            target.capability,
            driver,
            world.torch,
            world.cuda_toolkits,
        )
        best = next((build for build in builds if build[1] != torch_cuda or build[0] != values.get("torch_public")), None)
        give("wanted_torch", best[0] if best else "")
        give("wanted_cu", best[1].tag if best else "")
    if values.get("library") and not values.get("package"):
        give("package", _package_of(values["library"], values.get("line", ""), values))
    give("package_version", values.get(values.get("package", "").replace("-", "_"), ""))
    cudnn = re.match(r"(?:lib)?cudnn\w*?(?:\.so\.|64_)(\d{1,2})\b", values.get("library", ""))
    if cudnn:
        give("cudnn_asked", cudnn[1])
        give("other_cudnn", values.get("cudnn_there", "") if cudnn[1] not in values.get("cudnn_majors", "").split() else "")
    release = world.torch.release(values.get("torch_public", ""))
    wheel = release.x86_64 if release else None
    if wheel:
        give("triton_wanted", wheel.triton.removeprefix("=="))
        give("triton_wanted_version", wheel.triton.removeprefix("==") if wheel.triton.startswith("==") else "")
        give("nccl_wanted", wheel.pinned("nccl"))
        give("cudnn_wanted", wheel.pinned("cudnn"))
    pair = world.companions.pair(values.get("torch", ""))
    for name in ("torchvision", "torchaudio"):
        give(f"{name}_wanted", exact(getattr(pair, name)) if pair else "")
        has = values.get(name, "").partition("+")[0]
        of = next((row.torch for row in world.companions.torch_pairs if has and exact(getattr(row, name)) == has), "")
        give(f"torch_of_{name}", "" if of == values.get("torch_public") else of)
    return values
