"""What to do about a finding: the remedy rows of a check, chosen for the reader's platform and filled with what is known.

The rows stand in matrices/remedies/<area>.yaml, procedures that several of them share in procedures.yaml, and what a row can be for in
platforms.yaml. Nothing is loaded until a check has found something and asks; then only the files of that check's area and these two.

A row fits *surely* (the facts say that the reader is on its platform), *perhaps* (the facts do not say, or cannot tell two variants apart)
or not at all. Rows that fit surely come first, in the order of the file; what only the administrator of the host can do follows, as prose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dsdoctor.facts import Gpu, Section, Sections, State
from dsdoctor.findings import Disruption, Remedy, Verify
from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, Source

Load = Callable[[str, Any], Any]
"""Reads the matrix of a stem as a class: `Knowledge.load_table`."""

MOST_REMEDIES = 3
ANY = "any"
EVERY_CASE = "every"
"""Case of a row that belongs to each case of its check."""
HOST = "host"


# --- the rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemedyRow:
    """One way to mend a problem on one platform; the fields that `Remedy` has too mean the same."""

    case: str = ""
    """Which case of the check it is for; `every` for each of them. Empty in procedures."""
    platform: str
    where: str = "here"
    """`here`: where the stack runs. `host`: on the host under a container, by its administrator."""
    when: str = ""
    summary: str
    uses: tuple[str, ...] = ()
    """Procedures, or other remedies as `check-id/case`, whose commands and steps stand in front."""
    fill: Mapping[str, str] = field(default_factory=dict)
    """Values that this row gives to placeholders of what it uses."""
    inspect: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    """Procedures whose commands and steps follow."""
    verify: Verify | None = None
    disruption: Disruption = Disruption.NONE
    needs_root: bool = False
    drain: bool = False
    risk: str = ""
    not_when: str = ""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemedyTable:
    """The remedies of the checks of one area, or the shared procedures: rows by check id or procedure, preferred ones first."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    rows: Mapping[str, tuple[RemedyRow, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlatformRow:
    """Something a remedy can be for, and which facts show that the reader is on it."""

    axis: str = ""
    """Platforms of one axis exclude or refine each other."""
    text: str
    variant_of: str = ""
    """The platform whose readers may be on this one too: the facts do not tell."""
    os: tuple[str, ...] = ()
    """`ID` or `ID_LIKE` of os-release."""
    os_major: tuple[str, ...] = ()
    compute_capability: tuple[str, ...] = ()
    product: tuple[str, ...] = ()
    """Words in the product name of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlatformTable:
    """All platforms that remedy rows may name."""

    matrix: str
    schema: int
    seen: str
    platforms: Mapping[str, PlatformRow]


# --- what a check is handed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies of one check for one reader; call it with a case and with values for placeholders."""

    check_id: str
    sections: Sections
    load: Load = field(repr=False)

    def __call__(self, case: str = "", /, **fill: str) -> tuple[Remedy, ...]:
        """At most three remedies of this check, the best first; KeyError when the check has no such case.

        `fill` gives values to placeholders: `driver_version="580.95.05"` for `<driver-version>`, `cu="cu130"` for `<cuXXX>`.
        A placeholder without a value stays as it is.
        """
        return self.of(self.check_id, case, **fill)

    def of(self, check_id: str, case: str = "", /, **fill: str) -> tuple[Remedy, ...]:
        """The same for another check, where that one's remedy is the answer."""
        rows = _rows_of_case(check_id, rows_of(check_id, self.load), case)
        platforms = self.load("remedies/platforms", PlatformTable).platforms
        reader = reader_of(self.sections, platforms)
        values = {**_known_values(self.sections), **fill}
        if "package" in values:
            values.setdefault("module", values["package"].replace("-", "_"))
        chosen: list[Remedy] = []
        for row, sure in _chosen(rows, reader, self.load):
            remedy = _remedy(_Request(check_id, reader, platforms, values, self.load), row, sure)
            if not any((remedy.commands, remedy.steps) == (other.commands, other.steps) for other in chosen):
                chosen.append(remedy)
        return tuple(chosen[:MOST_REMEDIES])


def remedies_for(check_id: str, sections: Sections, load: Load) -> Remedies:
    """The remedies of a check for the reader whom the sections describe; reads nothing yet."""
    return Remedies(check_id, sections, load)


def rows_of(check_id: str, load: Load) -> tuple[RemedyRow, ...]:
    """All rows of a check, whatever the platform; KeyError when there are none."""
    table: RemedyTable = load(f"remedies/{check_id.partition('.')[0]}", RemedyTable)
    if check_id not in table.rows:
        raise KeyError(f"no remedies for the check '{check_id}'")
    return table.rows[check_id]


def _rows_of_case(check_id: str, rows: Sequence[RemedyRow], case: str) -> list[RemedyRow]:
    cases = {row.case for row in rows} - {EVERY_CASE}
    if case and case not in cases:
        raise KeyError(f"the remedies of '{check_id}' have no case '{case}': there are {', '.join(sorted(cases))}")
    return [row for row in rows if not case or row.case in (case, EVERY_CASE)]


# --- who reads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ground:
    """The platforms that describe a place surely, and those that perhaps do; all others do not."""

    surely: frozenset[str]
    perhaps: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reader:
    """Where the reader can act: here, and on the host below."""

    here: Ground
    host: Ground
    in_container: bool = False
    is_root: bool = False

    def ground(self, row: RemedyRow) -> Ground:
        """The place where a row is to be followed."""
        return self.host if row.where == HOST else self.here

    def hands_over(self, row: RemedyRow) -> bool:
        """Whether following the row is up to somebody else: root's work on the host, seen from inside a container."""
        return self.in_container and row.where == HOST and row.needs_root


def reader_of(sections: Sections, platforms: Mapping[str, PlatformRow]) -> Reader:
    """The reader whom the facts describe."""
    axes = {row.axis: frozenset(name for name, other in platforms.items() if other.axis == row.axis) for row in platforms.values()}
    answers = {
        "os": _operating_system(sections, platforms),
        "container": _container(sections),
        "machine": _machine(sections),
        "installer": _installer(sections),
        "place": _place(sections),
        "engine": _engine(sections),
        "fabric": _fabric(sections, platforms),
    }
    surely: set[str] = {ANY}
    perhaps: set[str] = set()
    for axis, answer in answers.items():
        if answer is None:
            perhaps |= axes.get(axis, frozenset())
        else:
            surely |= answer.surely
            perhaps |= answer.perhaps
    perhaps |= {name for name, row in platforms.items() if row.variant_of in surely}
    here = Ground(frozenset(surely), frozenset(perhaps - surely))
    in_container = sections.container.state is State.KNOWN
    host = here
    if sections.wsl.state is State.KNOWN:  # the driver of WSL is the one of Windows; there is no Linux host to work on
        host = Ground(frozenset({"wsl2"}), frozenset())
    elif in_container:  # the distribution in the image says nothing about the host
        systems = axes.get("os", frozenset())
        host = Ground(here.surely - systems, here.perhaps | systems)
    identity = sections.identity.value
    return Reader(here, host, in_container, identity is not None and identity.uid == 0)


def _answer(surely: Iterable[str] = (), perhaps: Iterable[str] = ()) -> Ground:
    return Ground(frozenset(surely), frozenset(perhaps))


def _operating_system(sections: Sections, platforms: Mapping[str, PlatformRow]) -> Ground | None:
    platform = sections.platform.value
    if platform is None or not platform.os_id:
        return None
    listed = {name for row in platforms.values() for name in row.os}
    family = next((name for name in (platform.os_id, *platform.os_id_like) if name in listed), "")
    major = platform.os_version.partition(".")[0]
    surely = {
        name for name, row in platforms.items() if family in row.os and not row.variant_of and (not row.os_major or major in row.os_major)
    }
    module = sections.driver_module_file.value
    if "ubuntu-nvidia-repo" in surely and module is not None and "canonical" in module.signer.lower():
        surely = surely - {"ubuntu-nvidia-repo"} | {"ubuntu-archive"}
    return _answer(surely, {"runfile"})


def _container(sections: Sections) -> Ground | None:
    if sections.container.state is State.ABSENT:
        return _answer()
    container = sections.container.value
    if container is None or (container.runtime == "unknown" and not container.kubernetes):
        return None
    if container.kubernetes:
        return _answer({"kubernetes"})
    by_runtime = {"docker": "docker", "containerd": "docker", "podman": "podman", "enroot": "pyxis", "apptainer": "apptainer"}
    return _answer({by_runtime[container.runtime]} if container.runtime in by_runtime else ())


def _machine(sections: Sections) -> Ground | None:
    if sections.wsl.state is State.KNOWN:
        return _answer({"wsl2"})
    if sections.virtualization.state is State.KNOWN:
        return _answer({"vm"})
    if sections.virtualization.state is State.ABSENT:
        return _answer({"bare-metal"})
    return _answer(perhaps={"bare-metal", "vm"}) if sections.wsl.state is State.ABSENT else None


def _installer(sections: Sections) -> Ground | None:
    """Who installed torch decides; without torch, what kind of environment it is."""
    packages = sections.packages.value or ()
    installer = next((package.installer for package in packages if package.name == "torch"), "").lower()
    interpreter = sections.interpreter.value
    kind = interpreter.kind if interpreter is not None else ""
    if installer in ("pip", "uv"):
        return _answer({installer}, {"conda"} if kind == "conda" else ())
    if installer == "conda" or kind == "conda":
        return _answer({"conda"}, () if installer else {"pip"})
    if kind == "uv":
        return _answer({"uv"})
    return _answer({"pip"}) if kind else None


def _place(sections: Sections) -> Ground:
    variables = {variable.name for variable in sections.environment.value or ()}
    surely: set[str] = {"login"}
    perhaps: set[str] = set()
    (surely if "SLURM_JOB_ID" in variables else perhaps).add("slurm")
    if any(name.startswith("RAY_") for name in variables):
        surely.add("ray")
    elif sections.environment.state is not State.KNOWN or "ray" in _package_names(sections):
        perhaps.add("ray")
    container = sections.container.value
    if sections.container.state is State.ABSENT:
        surely.add("host-login")
        perhaps.add("systemd")
    elif container is None:
        perhaps |= {"host-login", "systemd"}
    elif container.kubernetes:
        perhaps.discard("slurm")
    return _answer(surely, perhaps)


def _engine(sections: Sections) -> Ground | None:
    if sections.packages.state is not State.KNOWN:
        return None
    return _answer({"vllm", "sglang"} & _package_names(sections))


def _package_names(sections: Sections) -> set[str]:
    return {package.name for package in sections.packages.value or ()}


def _fabric(sections: Sections, platforms: Mapping[str, PlatformRow]) -> Ground | None:
    gpus = [gpu for gpu in sections.gpus.value or () if gpu.compute_capability]
    if not gpus:
        return None
    racks = {name for name, row in platforms.items() if any(word in gpu.name for word in row.product for gpu in gpus)}
    if racks:
        return _answer(racks)
    boards = {name for name, row in platforms.items() if any(gpu.compute_capability in row.compute_capability for gpu in gpus)}
    return _answer(boards) if _shows_nvswitch(sections, gpus) else _answer(perhaps=boards)


def _shows_nvswitch(sections: Sections, gpus: Sequence[Gpu]) -> bool:
    registered = any(gpu.fabric is not None and gpu.fabric.state not in ("", "not-supported") for gpu in gpus)
    linked = any("switch" in link.remote.lower() for gpu in gpus for link in gpu.nvlinks or ())
    return registered or linked or any(device.kind == "nvswitch" for device in _value(sections.pci_devices))


def _value(section: Section[tuple[Any, ...]]) -> tuple[Any, ...]:
    return section.value or ()


def _known_values(sections: Sections) -> dict[str, str]:
    """Placeholders that the facts themselves fill."""
    driver, platform, interpreter = sections.kernel_driver.value, sections.platform.value, sections.interpreter.value
    capabilities = {gpu.compute_capability for gpu in sections.gpus.value or ()}
    python = re.match(r"\d+\.\d+", interpreter.version) if interpreter is not None else None
    values = {
        "driver_version": driver.version if driver is not None else "",
        "driver_branch": driver.version.partition(".")[0] if driver is not None else "",
        "arch": platform.architecture if platform is not None else "",
        "python": python[0] if python else "",
        "python_short": python[0].replace(".", "") if python else "",
        "cc": capabilities.pop() if len(capabilities) == 1 else "",
    }
    return {name: value for name, value in values.items() if value}


# --- which rows -------------------------------------------------------------------------------------------------------


def _chosen(rows: Sequence[RemedyRow], reader: Reader, load: Load) -> list[tuple[RemedyRow, bool]]:
    """The rows for the reader, best first, each with whether it fits surely; all of them when none fits."""
    surely = [row for row in rows if _fits_surely(row, reader, load)]
    perhaps = [row for row in rows if row not in surely and row.platform in reader.ground(row).perhaps]
    if not surely and not perhaps:
        perhaps = list(rows)
    return [*((row, True) for row in sorted(surely, key=reader.hands_over)), *((row, False) for row in perhaps)]


def _fits_surely(row: RemedyRow, reader: Reader, load: Load) -> bool:
    ground = reader.ground(row)
    if row.platform in ground.surely:
        return True
    if row.platform != ANY or row.commands:
        return False
    return any(used.platform in ground.surely for name in row.uses for used in _rows_used(name, load))


def _rows_used(name: str, load: Load) -> Sequence[RemedyRow]:
    if "." not in name:
        table: RemedyTable = load("remedies/procedures", RemedyTable)
        return table.rows[name]
    check_id, _, case = name.partition("/")
    return _rows_of_case(check_id, rows_of(check_id, load), case)


# --- one remedy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    """What is the same for each row of one answer."""

    check_id: str
    reader: Reader
    platforms: Mapping[str, PlatformRow]
    values: Mapping[str, str]
    load: Load

    def label(self, row: RemedyRow) -> str:
        """The platform of a row in words."""
        return self.platforms[row.platform].text.partition(" (")[0]


def _remedy(request: _Request, row: RemedyRow, sure: bool) -> Remedy:
    request = replace(request, values={**row.fill, **request.values})
    own = _filled(request, row)
    parts = [*(part for name in row.uses for part in _borrowed(request, name)), own]
    parts += [part for name in row.then for part in _borrowed(request, name)]
    weighed = [own, *(part for part in parts if part is not own)]
    notes = (
        _fill(row.when, request.values),
        "" if sure or row.platform == ANY else f"for {request.label(row)}",
        "for the administrator of the host" if request.reader.hands_over(row) else "",
    )
    return replace(
        own,
        when="; ".join(note for note in notes if note),
        commands=tuple(command for part in parts for command in part.commands),
        steps=tuple(step for part in parts for step in part.steps),
        inspect=tuple(dict.fromkeys(command for part in parts for command in part.inspect)),
        verify=own.verify or Verify(command=f"dsdoctor check --only {request.check_id}", prints="no finding"),
        disruption=max((part.disruption for part in parts), key=list(Disruption).index),
        needs_root=any(part.needs_root for part in parts),
        drain=any(part.drain for part in parts),
        risk="; ".join(dict.fromkeys(part.risk for part in weighed if part.risk)),
        not_when="; ".join(dict.fromkeys(part.not_when for part in weighed if part.not_when)),
        sources=tuple(dict.fromkeys(source for part in weighed for source in part.sources)),
    )


def _borrowed(request: _Request, name: str) -> list[Remedy]:
    """What `uses` or `then` names, for the reader's platform: one remedy for each fitting row of a procedure, the best one of a check.

    Where the platform is not known, one remedy whose steps say in a line for each platform what to do there.
    """
    rows = _rows_used(name, request.load)
    fitting = [row for row in rows if row.platform in request.reader.ground(row).surely]
    possible = [row for row in rows if row.platform in request.reader.ground(row).perhaps]
    if fitting or len(possible) == 1:
        return [_filled(request, row) for row in (fitting[:1] if "." in name else fitting) or possible]
    if not possible:
        return []
    as_written = replace(request, reader=_AT_THE_PLACE)
    each = [(request.label(row), _filled(as_written, row)) for row in possible[:MOST_REMEDIES]]
    return [Remedy(summary="", steps=tuple(f"{label}: {'; '.join(part.commands or part.steps)}" for label, part in each))]


_AT_THE_PLACE = Reader(Ground(frozenset(), frozenset()), Ground(frozenset(), frozenset()))


def _filled(request: _Request, row: RemedyRow) -> Remedy:
    """One row as a remedy of its own: placeholders filled, and put so that this reader can follow it."""
    commands = tuple(_fill_command(command, request.values) for command in row.commands)
    inspect = tuple(_fill_command(command, request.values) for command in row.inspect)
    steps = tuple(_fill(step, request.values) for step in row.steps)
    if request.reader.hands_over(row):
        steps = (*(f"on the host: {line}" for line in commands), *steps)
        commands = ()
    elif request.reader.is_root:
        commands = tuple(_without_sudo(command) for command in commands)
        inspect = tuple(_without_sudo(command) for command in inspect)
    return Remedy(
        summary=_fill(row.summary, request.values),
        commands=commands,
        steps=steps,
        inspect=inspect,
        verify=row.verify
        and Verify(command=_fill_command(row.verify.command, request.values), prints=_fill(row.verify.prints, request.values)),
        disruption=row.disruption,
        needs_root=row.needs_root,
        drain=row.drain,
        risk=_fill(row.risk, request.values),
        not_when=_fill(row.not_when, request.values),
        sources=row.basis.sources,
    )


def _without_sudo(command: str) -> str:
    return re.sub(r"(^|[|&;] *)sudo ", r"\1", command)


# --- placeholders -----------------------------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9-]*)(?:: [^<>]*)?>")
"""`<name>` or `<name: hint>`."""
HARMLESS = re.compile(r"[\w@%+=:,./~][\w@%+=:,./~-]*", re.ASCII)
"""A value that the shell takes as one plain word. Others never enter a command: they may come from pasted text."""


def identifier_of(placeholder: str) -> str:
    """The keyword that fills a placeholder: `driver-version` is driver_version, `cuXXX` is cu."""
    return "cu" if placeholder == "cuXXX" else placeholder.replace("-", "_")


def _fill(text: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: " ".join(values.get(identifier_of(found[1]), found[0]).split()), text)


def _fill_command(command: str, values: Mapping[str, str]) -> str:
    return _fill(command, {name: value for name, value in values.items() if HARMLESS.fullmatch(value)})
