"""Re-derives the rows about packages from the packages' own metadata, as pip shows it: the only part of dsdoctor that may use a network.

pip is asked through its own configuration (index, proxy, certificates, find-links); no address stands here. Nothing is downloaded but
metadata where the index serves it apart, and nothing is installed or run. What was written by hand (notes, audit marks, dates, rows of
versions that the index no longer lists) stays. Files are written only when every answer is in, all of them or none.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsdoctor.errors import DsdoctorError, MatrixError, unknown_name
from dsdoctor.lint import problems_of
from dsdoctor.matrix import INDEX, built_in_directory, kind_of, parse_yaml
from dsdoctor.sources.texts import normalised

TORCH, COMPANIONS, WHEELS, CONTENTS = "torch", "companions", "nvidia-wheels", "kernel-packages"
STEMS = (TORCH, COMPANIONS, WHEELS, CONTENTS)
TOOLKIT = "cuda-toolkit"
ARCHITECTURES = ("x86_64", "aarch64")
PIP_TIMEOUT_S = 300.0
NOT_FOUND = re.compile(r"No matching distribution found|Could not find a version that satisfies")
UNREACHABLE = re.compile(r"Retrying \(|connection broken|HTTP error|Could not fetch URL|SSLError|ProxyError|\b40[137] Client Error")
MANYLINUX = (*(f"manylinux_2_{minor}" for minor in range(40, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1", "linux")


class RefreshError(DsdoctorError):
    """pip could not answer; no file was changed."""


class NotListed(RefreshError):
    """The index has no release of a package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between a row and the metadata."""

    matrix: str
    package: str
    version: str
    """Of the release; * for all of a package that the index does not have."""
    kind: str
    """new, changed, withdrawn (its owner yanked it), gone (no longer listed) or unread (source only: pip would have to run its code)."""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a refresh compared and found."""

    directory: str
    packages: int
    versions: int
    changes: tuple[Change, ...]
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What pip says about one release on one processor architecture."""

    filename: str
    requires_python: str = ""
    requires: tuple[str, ...] = ()
    withdrawn: str | None = None
    """The reason; None when it is not withdrawn."""

    @property
    def tags(self) -> tuple[str, str]:
        """Python tag (cp312, cp38-abi3) and the first platform tag without the processor."""
        python, abi, platform = self.filename.removesuffix(".whl").split("-")[-3:]
        plain = platform.split(".")[0]
        for architecture in ARCHITECTURES:
            plain = plain.removesuffix(f"_{architecture}")
        return (python if abi == python else f"{python}-{abi}"), plain


@dataclass(slots=True)
class Pip:
    """pip of one interpreter, with the configuration that it has there; constraints are left aside, they are about installing."""

    python: str
    answers: dict[tuple[str, str, str], Metadata | None] = field(default_factory=dict)

    def versions(self, name: str, known: Sequence[str], *, prereleases: bool) -> tuple[str, ...]:
        """The versions of a package that the index lists; NotListed when it lists none. An older Python is asked when one of `known` is missing."""
        found: list[str] = []
        failed = ""
        for python_version in ("3.12", "3.10"):
            arguments = ["index", "versions", name, "--ignore-requires-python", "--python-version", python_version]
            code, output, errors = self._run([*arguments, *(["--pre"] if prereleases else [])])
            if code == 0 and (listed := re.search(r"^Available versions: (.*)$", output, re.MULTILINE)):
                found += [version.strip() for version in listed[1].split(",")]
            elif code == 0 or not NOT_FOUND.search(errors) or UNREACHABLE.search(errors):
                raise RefreshError(f"pip could not list the versions of {name}; no file was changed. It says: {_last_line(errors)}")
            else:
                failed = errors
            if set(known) <= set(found):
                break
        if not found:
            raise NotListed(
                f"pip finds no release of {name} (is its index reachable, and complete?); no file was changed. It says: {_last_line(failed)}"
            )
        return tuple(dict.fromkeys(version for version in found if "+" not in version))

    def ask(self, releases: Sequence[tuple[str, str]], architecture: str) -> None:
        """Ask for many releases at once: each round takes one version of each package, so that pip can answer it in one run."""
        rounds: list[dict[str, str]] = []
        for name, version in releases:
            if (name, version, architecture) in self.answers:
                continue
            free = next((asked for asked in rounds if name not in asked), None)
            if free is None:
                rounds.append(free := {})
            free[name] = version
        for asked in rounds:
            self._ask(sorted(asked.items()), architecture)

    def metadata(self, name: str, version: str, architecture: str) -> Metadata | None:
        """The metadata of a release; None when it has no wheel for that processor."""
        self.ask([(name, version)], architecture)
        return self.answers[name, version, architecture]

    def _ask(
        self, releases: Sequence[tuple[str, str]], architecture: str, python_versions: Sequence[str] = ("3.12", "3.10", "3.14")
    ) -> None:
        answered = self._report([f"{name}=={version}" for name, version in releases], architecture, python_versions[0])
        if answered is not None:
            for name, version in releases:
                self.answers[name, version, architecture] = answered.get(name)
        elif len(releases) > 1:
            middle = len(releases) // 2
            self._ask(releases[:middle], architecture)
            self._ask(releases[middle:], architecture)
        elif len(python_versions) > 1:
            self._ask(releases, architecture, python_versions[1:])
        else:
            name, version = releases[0]
            self.answers[name, version, architecture] = None

    def pythons(self, name: str, version: str, architecture: str, python_versions: Sequence[str]) -> tuple[str, ...]:
        """The Python tags of the wheels of a release, one question for each of these Pythons."""
        found = []
        for python_version in python_versions:
            answered = self._report([f"{name}=={version}"], architecture, python_version)
            if answered:
                found.append(answered[name].tags[0])
        return tuple(dict.fromkeys(found))

    def _report(self, requirements: Sequence[str], architecture: str, python_version: str) -> dict[str, Metadata] | None:
        """The metadata of these wheels by normalised name; None when pip does not find one of them."""
        with tempfile.TemporaryDirectory(prefix="dsdoctor-refresh-") as folder:
            report = Path(folder) / "report.json"
            platforms = [part for name in MANYLINUX for part in ("--platform", f"{name}_{architecture}")]
            code, _, errors = self._run(
                ["install", "--dry-run", "--no-deps", "--ignore-installed", "--ignore-requires-python", "--only-binary=:all:", "--quiet", "--report", str(report),
                 "--target", str(Path(folder) / "target"), "--implementation", "cp", "--python-version", python_version, *platforms, *requirements]
            )  # fmt: skip
            if code != 0 or not report.is_file():
                if NOT_FOUND.search(errors) and not UNREACHABLE.search(errors):
                    return None
                raise RefreshError(
                    f"pip could not read the metadata of {', '.join(requirements)}; no file was changed. It says: {_last_line(errors)}"
                )
            items = json.loads(report.read_text(encoding="utf-8"))["install"]
        return {normalised(item["metadata"]["name"]): _metadata(item) for item in items}

    def _run(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        environment = {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        try:
            done = subprocess.run(
                [self.python, "-m", "pip", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PIP_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RefreshError(f"pip of {self.python} did not answer; no file was changed: {error}") from None
        if "No module named pip" in done.stderr:
            raise RefreshError(f"{self.python} has no pip: name another interpreter with --python; no file was changed")
        return done.returncode, done.stdout, done.stderr


def _metadata(item: Mapping[str, Any]) -> Metadata:
    from urllib.parse import unquote, urlsplit

    metadata = item["metadata"]
    return Metadata(
        filename=unquote(urlsplit(item["download_info"]["url"]).path).rpartition("/")[2],
        requires_python=metadata.get("requires_python") or "",
        requires=tuple(metadata.get("requires_dist") or ()),
        withdrawn="yanked" if item.get("is_yanked") else None,
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["nothing"])[-1]


# --- what the metadata says -------------------------------------------------------------------------------------------


def ranges(requires: Sequence[str], architecture: str = "x86_64", python: str = "3.12", extra: str = "") -> dict[str, str]:
    """Package to range of the requirements that hold on Linux with that processor and Python, and with that extra alone."""
    from packaging.requirements import InvalidRequirement, Requirement

    environment = {
        "platform_machine": architecture, "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": python,
        "python_full_version": f"{python}.0", "implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": extra,
    }  # fmt: skip
    found: dict[str, str] = {}
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({**environment, "extra": ""})):
            continue
        if marker is None or marker.evaluate(environment):
            found.setdefault(normalised(requirement.name), str(requirement.specifier))
    return found


def _extras_of(requires: Sequence[str], package: str, architecture: str) -> tuple[str, ...]:
    from packaging.requirements import Requirement

    environment = {
        "platform_machine": architecture,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "python_version": "3.12",
        "extra": "",
    }
    for text in requires:
        requirement = Requirement(text)
        if normalised(requirement.name) == package and (requirement.marker is None or requirement.marker.evaluate(environment)):
            return tuple(sorted(requirement.extras))
    return ()


def same(left: str, right: str) -> bool:
    """Whether two ranges are written differently only."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(left) == SpecifierSet(right)
    except InvalidSpecifier:
        return left == right


def _differences(label: str, row: Mapping[str, str], metadata: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Entries of the row that the metadata gives another range, as (label, old, new). What the row leaves out was left out on purpose."""
    for name, old in row.items():
        new = metadata.get(name)
        if new is None or not same(str(old), new):
            yield f"{label}.{name}", str(old), "not asked for" if new is None else new


def torch_pins(pip: Pip, metadata: Metadata, architecture: str) -> dict[str, str]:
    """Library to requirement of the NVIDIA wheels that a torch wheel asks for, those behind cuda-toolkit's extras included."""
    needs = {name: spec for name, spec in ranges(metadata.requires, architecture).items() if name.startswith(("nvidia-", "cuda-bindings"))}
    toolkit = ranges(metadata.requires, architecture).get(TOOLKIT, "")
    if toolkit.startswith("==") and (release := pip.metadata(TOOLKIT, toolkit[2:], architecture)):
        for extra in _extras_of(metadata.requires, TOOLKIT, architecture):
            needs.update(ranges(release.requires, architecture, extra=extra))
    return {library_of(name): f"{name}{spec}" for name, spec in sorted(needs.items())}


def library_of(package: str) -> str:
    """The library of an NVIDIA wheel: nvidia-cudnn-cu13 is cudnn."""
    return re.sub(r"-cu\d+$", "", package.removeprefix("nvidia-"))


# --- one matrix -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class File:
    """A matrix file that is being compared, and the edits of it so far."""

    path: Path
    stem: str
    text: str
    data: dict[str, Any]
    edits: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """First line, line behind the last, new lines (numbers from 0)."""

    def node(self, *steps: str | int) -> Any:
        """The YAML node that a path leads to, with its lines."""
        import yaml

        node: Any = yaml.compose(self.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for step in steps:
            node = node.value[step] if isinstance(step, int) else next(value for key, value in node.value if key.value == step)
        return node

    def replace(self, row: Mapping[str, Any], *steps: str | int) -> None:
        """Write a row anew where it stands."""
        node = self.node(*steps)
        self.edits.append((node.start_mark.line, _end_line(node), _row_lines(row, node.start_mark.column - 2)))

    def insert(self, row: Mapping[str, Any], before: int, *steps: str | int) -> None:
        """Put a row in front of a row of a list."""
        node = self.node(*steps)
        item = node.value[min(before, len(node.value) - 1)]
        line = item.start_mark.line if before < len(node.value) else _end_line(item)
        self.edits.append((line, line, _row_lines(row, item.start_mark.column - 2)))

    def set_text(self, value: str, *steps: str | int) -> None:
        """Replace a scalar that stands behind its key on one line."""
        node = self.node(*steps)
        lines = self.text.splitlines()
        line = lines[node.start_mark.line]
        end = node.end_mark.column
        self.edits.append((node.start_mark.line, node.start_mark.line + 1, [f"{line[: node.start_mark.column]}'{value}'{line[end:]}"]))

    def edited(self) -> str:
        """The text with all edits."""
        lines = self.text.splitlines()
        for start, end, new in sorted(self.edits, key=lambda edit: (edit[0], edit[1]), reverse=True):
            lines[start:end] = new
        return "\n".join(lines) + "\n"


def _end_line(node: Any) -> int:
    """The line behind a node. A block is said to end at the next token, behind comments that are not its own: its last leaf tells."""
    if isinstance(node.value, list) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end_line(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.line + (1 if node.end_mark.column else 0))


def _row_lines(row: Mapping[str, Any], indent: int) -> list[str]:
    import yaml

    def flow(value: Any) -> str:
        text: str = yaml.dump(value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True).strip()
        return text.removesuffix("\n...").strip()

    lines: list[str] = []

    def add(key: str, value: Any, depth: int) -> None:
        if isinstance(value, dict) and (len(flow(value)) > 110 or any(isinstance(item, dict) for item in value.values())):
            lines.append(f"{'  ' * depth}{flow(key)}:")
            for name, item in value.items():
                add(name, item, depth + 1)
        else:
            lines.append(f"{'  ' * depth}{flow(key)}: {flow(value)}")

    if set(row) <= {"version", "released", "tag"}:
        return [f"{' ' * indent}- {flow(dict(row))}"]
    for key, value in row.items():
        add(key, value, 0)
    return [f"{' ' * indent}{'- ' if number == 0 else '  '}{line}" for number, line in enumerate(lines)]


# --- the work ---------------------------------------------------------------------------------------------------------


def refresh(
    names: Sequence[str] = (), *, directory: str = "", python: str, write: bool = False, today: datetime.date | None = None
) -> Refreshed:
    """Compare the package rows of a directory with the index of that interpreter's pip, and write the differences when asked to."""
    folder = Path(directory) if directory else built_in_directory()
    if not folder.is_dir():
        raise RefreshError(f"{folder} is no directory: name the matrices of a checkout with --directory")
    if write and (folder / INDEX).is_file():
        raise RefreshError(
            f"{folder} is an installed dsdoctor, whose matrices are compiled: name a checkout's with --directory; no file was changed"
        )
    files = {stem: _open(folder, stem) for stem in STEMS if (folder / f"{stem}.yaml").is_file()}
    if not files:
        raise RefreshError(f"{folder} holds none of {', '.join(f'{stem}.yaml' for stem in STEMS)}")
    tables = [table for file in files.values() for table in _tables(file)]
    wanted = {normalised(name) for name in names}
    known = {table.package for table in tables}
    for name in sorted(wanted - known):
        raise unknown_name("package", name, known)
    chosen = [table for table in tables if not wanted or table.package in wanted]
    pip = Pip(python)
    changes: list[Change] = []
    unlisted: list[NotListed] = []
    for table in chosen:
        try:
            changes += _compared(pip, table, _packages(files))
        except NotListed as error:
            unlisted.append(error)
            changes.append(
                Change(
                    matrix=table.file.stem,
                    package=table.package,
                    version="*",
                    kind="gone",
                    details=("the index has no release of it; the rows stay",),
                )
            )
    if unlisted and (wanted or len(unlisted) == len(chosen)):
        raise unlisted[0]
    written = _write(files.values(), (today or datetime.date.today()).isoformat()) if write else ()
    return Refreshed(
        directory=str(folder),
        packages=len(chosen),
        versions=sum(len(table.rows) for table in chosen),
        changes=tuple(changes),
        written=written,
    )


def _open(folder: Path, stem: str) -> File:
    path = folder / f"{stem}.yaml"
    text, data = parse_yaml(path)
    return File(path=path, stem=stem, text=text, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The releases of one package in one file."""

    file: File
    package: str
    steps: tuple[str | int, ...]
    """The way to the list of releases."""
    rows: tuple[Mapping[str, Any], ...]
    build: Callable[[Pip, str, Metadata, File], dict[str, Any]]
    compare: Callable[[Pip, Mapping[str, Any], Metadata], Iterator[tuple[str, str, str]]]


def _tables(file: File) -> Iterator[Table]:
    if file.stem == TORCH:
        yield Table(
            file=file, package=TORCH, steps=("releases",), rows=tuple(file.data["releases"]), build=_new_torch, compare=_compare_torch
        )
        return
    for name, package in (file.data.get("packages") or {}).items():
        if rows := tuple(package.get("releases") or ()):
            build, compare = (_new_wheel, _compare_nothing) if file.stem == WHEELS else (_new_release(name), _compare_release)
            yield Table(file=file, package=name, steps=("packages", name, "releases"), rows=rows, build=build, compare=compare)
    if file.stem == WHEELS and file.data.get("toolkits"):
        yield Table(
            file=file, package=TOOLKIT, steps=("toolkits",), rows=tuple(file.data["toolkits"]), build=_new_toolkit, compare=_compare_toolkit
        )


def _packages(files: Mapping[str, File]) -> frozenset[str]:
    """Every package that a row is about or asks for: the stack, as these matrices draw it."""
    names = {TORCH}
    for file in files.values():
        for name, package in (file.data.get("packages") or {}).items():
            names |= {name, *(need for row in package.get("releases") or () for need in row.get("requires") or ())}
    return frozenset(names)


def _compared(pip: Pip, table: Table, stack: frozenset[str]) -> Iterator[Change]:
    """The differences of one package; the edits go to its file."""
    from packaging.version import Version

    have = {str(row["version"]): number for number, row in enumerate(table.rows)}
    listed = pip.versions(table.package, tuple(have), prereleases=any(Version(version).is_prerelease for version in have))
    newest = max(map(Version, have))
    new = sorted((version for version in listed if version not in have and Version(version) > newest), key=Version)
    still = {str(Version(version)) for version in listed}
    pip.ask([(table.package, version) for version in (*have, *new)], "x86_64")

    def change(version: str, kind: str, *details: str) -> Change:
        return Change(matrix=table.file.stem, package=table.package, version=version, kind=kind, details=details)

    for version, number in have.items():
        row = table.rows[number]
        metadata = pip.metadata(table.package, version, "x86_64") or pip.metadata(table.package, version, "aarch64")
        if metadata is None:
            if str(Version(version)) not in still and not row.get("yanked"):
                yield change(version, "gone", "the index lists it no longer; the row stays")
            continue
        found = list(table.compare(pip, row, metadata))
        after = dict(row)
        for where, _, now in found:
            _set(after, where, now)
        if metadata.withdrawn and not row.get("yanked"):
            if "basis" in row and table.file.stem in (COMPANIONS, CONTENTS):
                after = {**{key: value for key, value in after.items() if key != "basis"}, "yanked": True, "basis": after["basis"]}
            yield change(version, "withdrawn", "its owner withdrew it")
        if found:
            yield change(version, "changed", *(f"{where}: {old or 'nothing'} → {now}" for where, old, now in found))
        if after != row:
            table.file.replace(after, *table.steps, number)
    for version in new:
        metadata = pip.metadata(table.package, version, "x86_64") or pip.metadata(table.package, version, "aarch64")
        if metadata is None:
            yield change(version, "unread", "it has no wheel: pip would have to run its code to know what it needs; add the row by hand")
            continue
        row = _in_stack(table.build(pip, version, metadata, table.file), stack)
        yield change(version, "new", *_told(row))
        table.file.insert(row, 0, *table.steps)
    if new and table.steps[0] == "packages" and "newest" in table.file.data["packages"][table.package]:
        readable = [
            version for version in new if pip.metadata(table.package, version, "x86_64") or pip.metadata(table.package, version, "aarch64")
        ]
        if readable and not metadata_of_newest_is_older(readable[-1], table):
            table.file.set_text(readable[-1], "packages", table.package, "newest")


def metadata_of_newest_is_older(version: str, table: Table) -> bool:
    """Whether a package's `newest` names a release above this one already."""
    from packaging.version import Version

    return Version(str(table.file.data["packages"][table.package]["newest"])) > Version(version)


def _set(row: dict[str, Any], where: str, now: str) -> None:
    """Set (or with `not asked for` remove) the value that a dotted path names."""
    head, _, rest = where.partition(".")
    if not rest:
        row[head] = now
        return
    inner = dict(row.get(head) or {})
    if now == "not asked for":
        inner.pop(rest, None)
    elif "." in rest:
        _set(inner, rest, now)
    else:
        inner[rest] = now
    row[head] = inner


def _in_stack(row: dict[str, Any], stack: frozenset[str]) -> dict[str, Any]:
    if "requires" in row:
        row["requires"] = {name: spec for name, spec in row["requires"].items() if name in stack}
    return {key: value for key, value in row.items() if value not in ("", None, {}, [])}


def _told(row: Mapping[str, Any]) -> tuple[str, ...]:
    told = [f"requires_python {row['requires_python']}"] if row.get("requires_python") else []
    told += [f"{name}{spec}" for name, spec in (row.get("requires") or {}).items() if spec]
    for architecture in ARCHITECTURES:
        if isinstance(row.get(architecture), dict):
            told += [f"{architecture}: CUDA {row[architecture].get('cuda', 'none')}", *(row[architecture].get("pins") or {}).values()]
    return tuple(told)


def _compare_release(pip: Pip, row: Mapping[str, Any], metadata: Metadata) -> Iterator[tuple[str, str, str]]:
    if not same(str(row.get("requires_python", "")), metadata.requires_python):
        yield "requires_python", str(row.get("requires_python", "")), metadata.requires_python
    yield from _differences("requires", row.get("requires") or {}, ranges(metadata.requires))


def _compare_nothing(pip: Pip, row: Mapping[str, Any], metadata: Metadata) -> Iterator[tuple[str, str, str]]:
    """A row that holds a version, a date and a tag has nothing to compare."""
    yield from ()


def _compare_torch(pip: Pip, row: Mapping[str, Any], metadata: Metadata) -> Iterator[tuple[str, str, str]]:
    if not same(str(row.get("requires_python", "")), metadata.requires_python):
        yield "requires_python", str(row.get("requires_python", "")), metadata.requires_python
    yield from _differences("requires", row.get("requires") or {}, ranges(metadata.requires))
    for architecture in ARCHITECTURES:
        wheel = row.get(architecture) or {}
        own = metadata if architecture == "x86_64" else pip.metadata(TORCH, str(row["version"]), architecture)
        if not wheel or own is None:
            continue
        pins = torch_pins(pip, own, architecture)
        for library, old in (wheel.get("pins") or {}).items():
            if not _same_requirement(str(old), pins.get(library, "")):
                yield f"{architecture}.pins.{library}", str(old), pins.get(library, "not asked for")
        for key, python in (("triton", "3.12"), ("triton_until_python_311", "3.11")):
            now = ranges(own.requires, architecture, python).get("triton", "")
            if key in wheel and not same(str(wheel[key]), now):
                yield f"{architecture}.{key}", str(wheel[key]), now or "not asked for"


def _same_requirement(left: str, right: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        one, other = Requirement(left), Requirement(right)
    except InvalidRequirement:
        return left == right
    return normalised(one.name) == normalised(other.name) and one.specifier == other.specifier


def _compare_toolkit(pip: Pip, row: Mapping[str, Any], metadata: Metadata) -> Iterator[tuple[str, str, str]]:
    now = _components(metadata)
    for name, old in (row.get("components") or {}).items():
        if name in now and now[name] != str(old):
            yield f"components.{name}", str(old), now[name]


def _components(metadata: Metadata) -> dict[str, str]:
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    for text in metadata.requires:
        requirement = Requirement(text)
        spec = str(requirement.specifier)
        if spec.startswith("==") and "," not in spec:
            found.setdefault(normalised(requirement.name), spec[2:].removesuffix(".*"))
    return found


def _basis_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The basis of the newest row, without the marks that speak of that row alone."""
    return {key: value for key, value in (rows[0].get("basis") or {}).items() if key in ("source", "confidence")}


def _tags(pip: Pip, name: str, version: str) -> dict[str, str]:
    found = {architecture: pip.metadata(name, version, architecture) for architecture in ARCHITECTURES}
    return {architecture: metadata.tags[1] for architecture, metadata in found.items() if metadata}


def _new_release(name: str) -> Callable[[Pip, str, Metadata, File], dict[str, Any]]:
    def build(pip: Pip, version: str, metadata: Metadata, file: File) -> dict[str, Any]:
        python = metadata.tags[0]
        row: dict[str, Any] = {
            "version": version, "requires_python": metadata.requires_python, "requires": ranges(metadata.requires), "tags": _tags(pip, name, version),
        }  # fmt: skip
        if file.stem == COMPANIONS and not python.startswith("py"):
            row["pythons"] = [python] if "abi3" in python else list(pip.pythons(name, version, "x86_64", _asked_pythons(metadata)))
        if metadata.withdrawn:
            row["yanked"] = True
        return {**row, "basis": _basis_of(file.data["packages"][name]["releases"])}

    return build


def _asked_pythons(metadata: Metadata) -> tuple[str, ...]:
    """The Pythons that `requires_python` allows, from 3.9 to two above the one that this Python is."""
    import sys

    from packaging.specifiers import SpecifierSet

    allowed = SpecifierSet(metadata.requires_python)
    return tuple(f"3.{minor}" for minor in range(9, max(sys.version_info[1] + 2, 15) + 1) if allowed.contains(f"3.{minor}"))


def _new_wheel(pip: Pip, version: str, metadata: Metadata, file: File) -> dict[str, Any]:
    return {"version": version, "tag": metadata.tags[1]}


def _new_toolkit(pip: Pip, version: str, metadata: Metadata, file: File) -> dict[str, Any]:
    return {"version": version, "components": _components(metadata), "basis": _basis_of(file.data["toolkits"])}


def _new_torch(pip: Pip, version: str, metadata: Metadata, file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"version": version, "requires_python": metadata.requires_python}
    for architecture in ARCHITECTURES:
        own = pip.metadata(TORCH, version, architecture)
        if own is None:
            continue
        pins = torch_pins(pip, own, architecture)
        toolkit = ranges(own.requires, architecture).get(TOOLKIT, "")
        cuda_pin = f"{TOOLKIT}{toolkit}" if toolkit else pins.get("cuda-runtime", "")
        cuda = re.search(r"==(\d+\.\d+)", cuda_pin)
        tag = own.tags[1]
        glibc = re.fullmatch(r"manylinux_(\d+)_(\d+)", tag)
        row[architecture] = {
            key: value
            for key, value in {
                "cuda": cuda[1] if cuda else "", "cuda_pin": cuda_pin, "tag": tag,
                "glibc": f"{glibc[1]}.{glibc[2]}" if glibc else {"manylinux2014": "2.17", "manylinux2010": "2.12", "manylinux1": "2.5"}.get(tag, "2.17"),
                "pythons": list(pip.pythons(TORCH, version, architecture, _asked_pythons(own))),
                "triton": ranges(own.requires, architecture).get("triton", ""), "pins": pins,
            }.items()
            if value
        }  # fmt: skip
    return {**row, "requires": ranges(metadata.requires), "basis": _basis_of(file.data["releases"])}


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(files: Sequence[File] | Any, today: str) -> tuple[str, ...]:
    """Write every edited file, all or none; a text that would not pass the lint is never written."""
    texts: dict[Path, str] = {}
    for file in files:
        if not file.edits:
            continue
        if str(file.data["seen"]) < today:
            file.set_text(today, "seen")
        text = file.edited()
        with tempfile.TemporaryDirectory(prefix="dsdoctor-refresh-") as folder:
            copy = Path(folder) / file.path.name
            copy.write_text(text, encoding="utf-8")
            _, data = parse_yaml(copy)
        if fault := next(iter(problems_of(kind_of(file.stem), file.stem, text, data)), None):
            raise MatrixError(f"{file.path}: the refreshed file would not be sound ({fault}); no file was changed")
        texts[file.path] = text
    before = {path: path.read_bytes() for path in texts}
    ready: dict[Path, Path] = {}
    replaced: list[Path] = []
    try:
        for path, text in texts.items():
            ready[path] = path.with_name(f".{path.name}.refreshed")
            ready[path].write_text(text, encoding="utf-8")
        for path, new in ready.items():
            os.replace(new, path)
            replaced.append(path)
    except OSError as error:
        for path in replaced:
            path.write_bytes(before[path])
        raise RefreshError(f"the files could not be written; no file was changed: {error}") from None
    finally:
        for new in ready.values():
            new.unlink(missing_ok=True)
    return tuple(str(path) for path in replaced)
