"""Loads and checks the matrices: one file at a time, on first use, refused with file and line when a row is malformed.

The YAML under matrices/ is the source. A built package carries the same tables as JSON beside it, because reading YAML is slow;
an editable checkout reads the YAML. A site's overlay directory holds files of the same names, whose rows come before the built-in ones.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from dsdoctor.errors import MatrixError
from dsdoctor.facts import Sections
from dsdoctor.findings import FleetWords, KnowledgeStamp, Severity
from dsdoctor.plain import PlainError, from_plain

SCHEMA = 1
STALE_AFTER_DAYS = 120
INDEX = "index.json"
SEEN_LINE = re.compile(rb"^seen:\s*[\"']?(\d{4}-\d{2}-\d{2})", re.MULTILINE)

KINDS: Mapping[str, str] = {
    "companions": "dsdoctor.rows:Companions",
    "cuda-toolkits": "dsdoctor.rows:CudaToolkits",
    "cudnn": "dsdoctor.rows:Cudnn",
    "deepseek-models": "dsdoctor.rows_stack:DeepseekModels",
    "driver-branches": "dsdoctor.rows:DriverBranches",
    "engine-pitfalls": "dsdoctor.rows_stack:EnginePitfalls",
    "env-vars": "dsdoctor.rows:EnvVars",
    "error-codes": "dsdoctor.rows:ErrorCodes",
    "fleet": "dsdoctor.rows_fleet:Fleet",
    "fleet-words": "dsdoctor.rows_health:FleetWords",
    "forward-compat": "dsdoctor.rows:ForwardCompat",
    "gpu-limits": "dsdoctor.rows:GpuLimits",
    "gpus": "dsdoctor.rows:Gpus",
    "health-limits": "dsdoctor.rows:HealthLimits",
    "host-compilers": "dsdoctor.rows:HostCompilers",
    "log-signatures": "dsdoctor.rows:LogSignatures",
    "kernel-libraries": "dsdoctor.rows_stack:KernelLibraries",
    "kernel-packages": "dsdoctor.rows_stack:KernelPackages",
    "links": "dsdoctor.rows_stack:Links",
    "nccl": "dsdoctor.rows:Nccl",
    "nvlink-xids": "dsdoctor.rows_health:NvlinkXids",
    "nvidia-wheels": "dsdoctor.rows:NvidiaWheels",
    "smoke-thresholds": "dsdoctor.rows:SmokeThresholds",
    "stack-needs": "dsdoctor.rows_needs:StackNeeds",
    "system-needs": "dsdoctor.rows:SystemNeeds",
    "topologies": "dsdoctor.rows_topology:Topologies",
    "torch": "dsdoctor.rows:Torch",
}
"""Stem of each matrix and the class that holds it, imported when the matrix is asked for."""


PROFILES = "profiles"
"""Folder of the profiles: one file each, which a site's own directory may add to."""


def matrix_names() -> tuple[str, ...]:
    """The stems of all matrices that a check may ask for, in alphabetical order."""
    return tuple(sorted(KINDS))


def kind_of(stem: str) -> Any:
    """The class that holds a matrix."""
    module, _, kind = KINDS[stem].partition(":")
    return getattr(importlib.import_module(module), kind)


def kind_of_stem(stem: str) -> Any:
    """The class that holds the file of a stem, be it a matrix or a profile; None for any other file."""
    if stem.startswith(f"{PROFILES}/"):
        from dsdoctor.rows_profile import Profile

        return Profile
    return kind_of(stem) if stem in KINDS else None


def stem_of(name: str) -> str:
    """The file stem of a parameter name: `cuda_toolkits_matrix` is cuda-toolkits."""
    return name.removesuffix("_matrix").replace("_", "-")


@dataclass(slots=True)
class Knowledge:
    """The knowledge in force: the built-in matrices, and before them those of the overlay directories."""

    overlays: tuple[Path, ...] = ()
    """Directories, the strongest first."""
    _tables: dict[tuple[str, Any], Any] = field(default_factory=dict, repr=False)

    def matrix(self, name: str) -> Any:
        """The matrix of a parameter name or stem, loaded on first use."""
        stem = stem_of(name)
        if stem not in KINDS:
            raise MatrixError(f"no matrix is called '{stem}': known are {', '.join(matrix_names())}")
        return self.load_table(stem, kind_of(stem))

    def load(self, names: Iterable[str]) -> None:
        """Load matrices ahead of their use."""
        for name in names:
            self.matrix(name)

    def load_table(self, stem: str, kind: Any) -> Any:
        """The file of a stem ('gpus', 'remedies/driver') read as `kind`, overlays included; kept after the first time."""
        if (stem, kind) not in self._tables:
            self._tables[stem, kind] = load_table(stem, kind, self.overlays)
        return self._tables[stem, kind]

    def profile(self, name: str) -> Any:
        """The profile of a name, as its file is called."""
        stem = f"{PROFILES}/{name}"
        return self.load_table(stem, kind_of_stem(stem))

    def profile_names(self) -> tuple[str, ...]:
        """The names of all profiles, a site's own included, in alphabetical order."""
        own = {path.name.removesuffix(".yaml") for directory in self.overlays for path in (directory / PROFILES).glob("*.yaml")}
        return tuple(sorted(own | _built_in_profiles()))

    def profile_marks(self) -> dict[str, tuple[str, ...]]:
        """Each profile with the distributions by which it is recognised. The rest is not checked here: this is asked in every run."""
        key = (PROFILES, "seen_as")
        if key not in self._tables:
            pieces = {name: _merged(_pieces(f"{PROFILES}/{name}", self.overlays)) for name in self.profile_names()}
            found = {name: data.get("seen_as") for name, data in pieces.items()}
            self._tables[key] = {name: tuple(map(str, marks)) if isinstance(marks, list) else () for name, marks in found.items()}
        known: dict[str, tuple[str, ...]] = self._tables[key]
        return known

    def remedies(self, check_id: str, sections: Sections) -> Any:
        """The remedies of a check for the platform that the sections describe."""
        from dsdoctor.remedies import remedies_for

        return remedies_for(check_id, sections, self.load_table)

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> FleetWords | None:
        """What fleet tools call a finding of a check."""
        row = self.matrix("fleet-words").of(check_id, case, severity.value)
        return FleetWords(dcgm_severity=row.dcgm, recommended_action=row.action) if row else None

    def advice(self, sections: Sections) -> Any:
        """What can run on the node that the sections describe; nothing is loaded before it is asked."""
        from dsdoctor.advise.for_checks import NodeAdvice

        return NodeAdvice(sections, self.matrix)

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        """Digest over all files, the newest date on which one was checked, and whether that is too long ago."""
        digest, newest = _built_in_stamp()
        if self.overlays:
            parts = [digest.encode()]
            for directory in self.overlays:
                for stem in stems_under(directory):
                    content = (directory / f"{stem}.yaml").read_bytes()
                    parts += [stem.encode(), content]
                    newest = max(newest, _seen_in(content))
            digest = _digest(parts)
        age_days = (today - datetime.date.fromisoformat(newest)).days
        return KnowledgeStamp(
            digest=digest, date=newest, stale=age_days > STALE_AFTER_DAYS, overlays=tuple(str(directory) for directory in self.overlays)
        )


def load_table(stem: str, kind: Any, overlays: Sequence[Path] = ()) -> Any:
    """The matrix file of a stem read as the dataclass `kind`, with the rows of overlay files first; MatrixError when malformed."""
    pieces = _pieces(stem, overlays)
    data = _merged(pieces)
    try:
        return from_plain(kind, data)
    except PlainError as error:
        raise _located(error, pieces) from None


def lint_overlay(directory: Path) -> tuple[str, ...]:
    """What is wrong with each file of an overlay directory, one text per file that cannot be used."""
    problems = []
    for stem in stems_under(directory):
        try:
            if kind := kind_of_stem(stem):
                load_table(stem, kind, (directory,))
            elif _built_in(f"{stem}.yaml") is not None:
                _read_yaml(directory / f"{stem}.yaml", stem)
            else:
                raise MatrixError(f"{directory / stem}.yaml: no matrix has that name; known are {', '.join(matrix_names())}")
        except MatrixError as error:
            problems.append(str(error))
    return tuple(problems)


def stems_under(directory: Path) -> tuple[str, ...]:
    """The stems of all YAML files below a directory, in order of name."""
    return tuple(sorted(path.relative_to(directory).with_suffix("").as_posix() for path in directory.rglob("*.yaml")))


def compile_directory(source: Path, target: Path) -> None:
    """Write each YAML file below `source` as JSON below `target`, with an index of digest and date; refuse malformed matrices."""
    contents = {stem: (source / f"{stem}.yaml").read_bytes() for stem in stems_under(source)}
    for stem in contents:
        piece = _read_yaml(source / f"{stem}.yaml", stem)
        if kind := kind_of_stem(stem):
            try:
                from_plain(kind, piece.data)
            except PlainError as error:
                raise _located(error, [piece]) from None
        path = target / f"{stem}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(piece.data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    (target / INDEX).write_text(json.dumps(dict(zip(("digest", "date"), _stamp_of(contents)))), encoding="utf-8")


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """The data of one file, and the YAML it can be traced to."""

    path: Path
    data: Mapping[str, Any]


def built_in_directory() -> Path:
    """Where the matrices of this dsdoctor are; inside the archive when it is run as a single file."""
    return Path(importlib.import_module("dsdoctor.matrices").__path__[0])


def _built_in(name: str) -> bytes | None:
    """The content of a file beside the built-in matrices, or None; its loader reads it also out of an archive."""
    package: Any = importlib.import_module("dsdoctor.matrices")
    try:
        content: bytes = package.__loader__.get_data(str(built_in_directory() / name))
    except OSError:
        return None
    return content


@lru_cache(maxsize=1)
def _built_in_profiles() -> frozenset[str]:
    """The names of the built-in profiles, also out of an archive."""
    from importlib.resources import files

    folder = files("dsdoctor.matrices") / PROFILES
    return frozenset(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def _pieces(stem: str, overlays: Sequence[Path]) -> list[_Piece]:
    """The files of a stem, the strongest first. A profile may be a site's own alone; every other file is built in."""
    own = _overlay_pieces(stem, overlays)
    is_own_alone = own and stem.startswith(f"{PROFILES}/") and stem.rpartition("/")[2] not in _built_in_profiles()
    return own if is_own_alone else [*own, _built_in_piece(stem)]


@cache
def _built_in_piece(stem: str) -> _Piece:
    source = built_in_directory() / f"{stem}.yaml"
    compiled = _built_in(f"{stem}.json")
    if compiled is not None:
        return _Piece(source, json.loads(compiled))
    if not source.is_file():
        raise MatrixError(f"no matrix file is called '{stem}.yaml'")
    return _read_yaml(source, stem)


def _overlay_pieces(stem: str, overlays: Sequence[Path]) -> list[_Piece]:
    return [_read_yaml(path, stem) for directory in overlays if (path := directory / f"{stem}.yaml").is_file()]


def _read_yaml(path: Path, stem: str) -> _Piece:
    text, data = parse_yaml(path)
    for error in head_problems(data, stem):
        raise MatrixError(f"{path}:{line_of(text, error.path)}: {error}")
    try:
        return _Piece(path, {key: _cited(value, data.get("sources") or {}, data["seen"], key) for key, value in data.items()})
    except PlainError as error:
        raise MatrixError(f"{path}:{line_of(text, error.path)}: {error}") from None


def parse_yaml(path: Path) -> tuple[str, dict[str, Any]]:
    """Text and data of a matrix file; MatrixError when it is not a mapping in YAML."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=_yaml_loader())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise MatrixError(f"{path}:{line}: {error.problem or 'not YAML'}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MatrixError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise MatrixError(f"{path}:1: expected a mapping with matrix, schema, seen and tables")
    return text, data


def head_problems(data: Mapping[str, Any], stem: str) -> Iterator[PlainError]:
    """What is wrong with the head of a file: its name, schema, date, and table of sources."""
    for key, expected in (("matrix", stem.rpartition("/")[2]), ("schema", SCHEMA)):
        if data.get(key) != expected:
            yield PlainError(key, f"expected {expected}, found {data.get(key)!r}")
    if not isinstance(data.get("seen"), str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", data["seen"]):
        yield PlainError("seen", f"expected a date such as 2026-01-31, found {data.get('seen')!r}")
    sources = data.get("sources") or {}
    if not isinstance(sources, dict) or not all(isinstance(source, dict) for source in sources.values()):
        yield PlainError("sources", "expected a mapping of ids to title and address")


def _cited(value: Any, sources: Mapping[str, Any], seen: str, path: str) -> Any:
    """The data with every `basis` filled: the texts of its sources, and the date of the head where it has none."""
    if isinstance(value, list):
        return [_cited(item, sources, seen, f"{path}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    filled = {}
    for key, item in value.items():
        where = f"{path}.{key}"
        is_basis = isinstance(key, str) and (key == "basis" or key.endswith("_basis")) and isinstance(item, dict)
        filled[key] = cited_basis(item, sources, seen, where) if is_basis else _cited(item, sources, seen, where)
    return filled


def cited_basis(basis: Mapping[str, Any], sources: Mapping[str, Any], seen: str, path: str) -> dict[str, Any]:
    """A basis with the texts of its sources and a date; PlainError when a source is not in the table."""
    if "source" not in basis:
        raise PlainError(f"{path}.source", "missing: the id of a source in the head of the file, or a list of them")
    ids = basis["source"] if isinstance(basis["source"], list) else [basis["source"]]
    texts = []
    for id in ids:
        if id not in sources:
            raise PlainError(f"{path}.source", f"no source has the id {id!r}")
        texts.append(" — ".join(str(part) for part in (sources[id].get("title", id), sources[id].get("address")) if part))
    return {"sources": texts, "seen": seen, **{key: item for key, item in basis.items() if key != "source"}}


@lru_cache(maxsize=1)
def _yaml_loader() -> Any:
    """A safe YAML loader that keeps dates as text and refuses a key that stands twice."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]  # the C loader exists only where libyaml does
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }

    def construct(loader: Any, node: Any) -> dict[Any, Any]:
        values = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)) or key in values:
                problem = f"the key '{key}' stands twice" if isinstance(key, (str, int)) else "a key must be a scalar"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            values[key] = loader.construct_object(value_node, deep=True)
        return values

    Loader.add_constructor("tag:yaml.org,2002:map", construct)
    return Loader


# --- several files, one matrix ----------------------------------------------------------------------------------------


def _merged(pieces: Sequence[_Piece]) -> dict[str, Any]:
    """The tables of all pieces: lists one after the other, mappings united with the first piece winning, scalars of the first."""
    merged: dict[str, Any] = {}
    for piece in pieces:
        for key, value in piece.data.items():
            present = merged.get(key)
            if isinstance(present, list) and isinstance(value, list):
                merged[key] = [*present, *value]
            elif isinstance(present, dict) and isinstance(value, dict):
                merged[key] = {**value, **present}
            else:
                merged.setdefault(key, value)
    return merged


def _located(error: PlainError, pieces: Sequence[_Piece]) -> MatrixError:
    """The error with the file and line that it comes from."""
    piece, path = _origin(error.path, pieces)
    shown = path.replace(".sources", ".source") if ".basis" in path or "_basis" in path else path
    try:
        line = f":{line_of(piece.path.read_text(encoding='utf-8'), path)}"
    except OSError:
        line = ""
    return MatrixError(f"{piece.path}{line}: {shown or 'file'}: {error.problem}")


def _origin(path: str, pieces: Sequence[_Piece]) -> tuple[_Piece, str]:
    """The piece that holds a path of the merged data, and the path inside it."""
    found = re.match(r"([^.\[]+)(?:\[(\d+)\]|\.([^.\[]+))?", path)
    if not found:
        return pieces[-1], path
    table, index, key = found[1], found[2], found[3]
    number = int(index) if index else 0
    for piece in pieces:
        value = piece.data.get(table)
        if index is not None and isinstance(value, list):
            if number < len(value):
                return piece, f"{table}[{number}]{path[found.end(2) + 1 :]}"
            number -= len(value)
        elif value is not None and (key is None or (isinstance(value, dict) and any(str(k) == key for k in value))):
            return piece, path
    return next((piece for piece in pieces if table in piece.data), pieces[-1]), path


def line_of(text: str, path: str) -> int:
    """The line of the deepest node on a path such as releases[3].basis.source."""
    import yaml

    node: Any = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    line = 1
    rest = path
    while rest and node is not None:
        step = next(_steps(node, rest), None)
        if step is None:
            break
        line, node, rest = step
    return line


def _steps(node: Any, path: str) -> Iterator[tuple[int, Any, str]]:
    """Each child of a node that the path leads into: its line, the child, and the rest of the path."""
    index = re.match(r"\[(\d+)\]\.?", path)
    children = node.value if isinstance(node.value, list) else []
    if index and children and not isinstance(children[0], tuple):
        if int(index[1]) < len(children):
            child = children[int(index[1])]
            yield child.start_mark.line + 1, child, path[index.end() :]
        return
    pairs = [pair for pair in children if isinstance(pair, tuple)]
    for key, value in sorted(pairs, key=lambda pair: -len(str(pair[0].value))):
        if path == key.value or path.startswith((f"{key.value}.", f"{key.value}[")):
            yield key.start_mark.line + 1, value, path[len(key.value) :].removeprefix(".")


# --- the stamp --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _built_in_stamp() -> tuple[str, str]:
    index = _built_in(INDEX)
    if index is not None:
        stamp = json.loads(index)
        return stamp["digest"], stamp["date"]
    directory = built_in_directory()
    return _stamp_of({stem: (directory / f"{stem}.yaml").read_bytes() for stem in stems_under(directory)})


def _stamp_of(contents: Mapping[str, bytes]) -> tuple[str, str]:
    """Digest over names and contents in order of name, and the newest date in a head."""
    parts = [part for stem in sorted(contents) for part in (stem.encode(), contents[stem])]
    return _digest(parts), max(map(_seen_in, contents.values()), default="1970-01-01")


def _digest(parts: Sequence[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return f"sha256:{total.hexdigest()}"


def _seen_in(content: bytes) -> str:
    found = SEEN_LINE.search(content)
    return found[1].decode() if found else "1970-01-01"
