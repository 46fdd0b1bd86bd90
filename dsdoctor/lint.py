"""Checks matrix files, the built-in ones as well as a site's own: every problem with its file, line and key, and what was expected.

Three layers: the shape (head, sources, known keys, types), the meaning of one row (versions parse, dates are dates, patterns compile and
stay fast, weak rows name no severity), and of one table (no two rows describe the same thing). `agreement` adds what holds between tables.
"""

from __future__ import annotations

import dataclasses
import re
import time
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsdoctor.errors import MatrixError
from dsdoctor.matrix import (
    KINDS,
    PROFILES,
    Knowledge,
    cited_basis,
    head_problems,
    kind_of_stem,
    line_of,
    matrix_names,
    parse_yaml,
    stems_under,
)
from dsdoctor.plain import PlainError, from_plain
from dsdoctor.rows import Basis
from dsdoctor.rows_profile import NEEDS
from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion, GpuTarget, LibraryVersion

REMEDIES = "remedies"
HEAD_KEYS = ("matrix", "schema", "seen", "sources")
SEVERITIES = ("", "error", "warning", "info")
CAPS = ("", "warning", "info")
ARCHITECTURES = ("Fermi", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell Ultra")
LINEAR = 2.0
"""How much worse than linear a pattern may be between the last two lengths."""
MEASURABLE_S = 0.02
FAR_TOO_LONG_S = 1.0
LENGTHS = (250, 500, 1000, 2000, 4000, 8000, 16000, 64000)
CONFIRMATIONS = 3

DATE = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?")
DAY = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
FORBIDDEN = re.compile(r"https?://[^\s'\")]*/simple\b|file://|(?<![\w/.~>-])/(?:home|root|users|work|workspace)/\w", re.IGNORECASE)
"""Addresses of a package index or of local files, and paths in somebody's own folders."""

_Parses = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something in a matrix file that cannot stay so."""

    file: str
    line: int | None
    key: str
    text: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


def lint(path: Path) -> tuple[Problem, ...]:
    """Every problem of a file, or of all YAML files below a directory; empty when all is well. A directory without any is a problem."""
    if not path.is_dir():
        return _in_order(_lint_file(path, _stem_of_file(path)))
    stems = stems_under(path)
    if not stems:
        return (Problem(file=str(path), line=None, key="", text="no matrix file (*.yaml) is below this directory"),)
    inside = f"{path.resolve().name}/" if path.resolve().name in (REMEDIES, PROFILES) else ""
    return tuple(problem for stem in stems for problem in _in_order(_lint_file(path / f"{stem}.yaml", f"{inside}{stem}")))


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _stem_of_file(path: Path) -> str:
    """The stem of a file that is given by itself; remedies and profiles are known by the name of their directory."""
    return f"{path.parent.name}/{path.stem}" if path.parent.name in (REMEDIES, PROFILES) else path.stem


def _lint_file(path: Path, stem: str) -> Iterator[Problem]:
    kind = _kind(stem)
    if kind is None:
        known = ", ".join((*matrix_names(), f"{REMEDIES}/AREA", f"{PROFILES}/NAME"))
        yield Problem(file=str(path), line=None, key="", text=f"no matrix is called '{stem}'; known are {known}")
        return
    try:
        text, data = parse_yaml(path)
    except MatrixError as error:
        yield _of_error(path, str(error))
        return
    told = set()
    for fault in problems_of(kind, stem, text, data):
        key = fault.path.replace(".sources", ".source") if "basis" in fault.path else fault.path
        if (key, fault.problem) not in told:
            told.add((key, fault.problem))
            yield Problem(file=str(path), line=_line(text, fault.path), key=key, text=fault.problem)


def _kind(stem: str) -> Any:
    if stem.startswith(f"{REMEDIES}/"):
        from dsdoctor.remedies import PlatformTable, RemedyTable

        return PlatformTable if stem == f"{REMEDIES}/platforms" else RemedyTable
    return kind_of_stem(stem)


def _of_error(path: Path, message: str) -> Problem:
    found = re.match(r":(\d+): (.*)|: (.*)", message.removeprefix(str(path)), re.DOTALL)
    line, text = (found[1], found[2] or found[3]) if found else (None, message)
    return Problem(file=str(path), line=int(line) if line else None, key="", text=text)


def _line(text: str, path: str) -> int:
    number = re.fullmatch(r"line (\d+)", path)
    return int(number[1]) if number else line_of(text, path)


def problems_of(kind: Any, stem: str, text: str, data: Mapping[str, Any]) -> Iterator[PlainError]:
    """Every problem of one parsed file; the path of each leads to the key."""
    yield from _of_text(text)
    yield from head_problems(data, stem)
    sources = data.get("sources") if isinstance(data.get("sources"), dict) else {}
    seen = data["seen"] if isinstance(data.get("seen"), str) and DAY.fullmatch(data["seen"]) else "9999-12-31"
    hints = typing.get_type_hints(kind)
    for table, value in data.items():
        if table in HEAD_KEYS:
            continue
        if table not in hints:
            yield PlainError(table, f"unknown key; {kind.__name__} has {', '.join(sorted(hints))}")
            continue
        faults: list[PlainError] = []
        cited = _cited(value, sources or {}, seen, table, faults)
        shape = [*faults, *_shape(hints[table], cited, table)]
        yield from shape
        for path, row in _readable(hints[table], cited, table, [fault.path for fault in shape]):
            yield from of_row(path, row, seen)
        if isinstance(value, list):
            yield from _twins(hints[table], value, table)


# --- shape ------------------------------------------------------------------------------------------------------------


def _of_text(text: str) -> Iterator[PlainError]:
    for number, line in enumerate(text.splitlines(), 1):
        if "\t" in line:
            yield PlainError(f"line {number}", "a tab character; YAML wants spaces")
        if found := FORBIDDEN.search(line):
            yield PlainError(f"line {number}", f"a path of one machine or the address of a package index does not belong here: {found[0]}")


def _cited(value: Any, sources: Mapping[str, Any], seen: str, path: str, faults: list[PlainError]) -> Any:
    """The data with its bases filled; one that cannot be filled goes to `faults`."""
    if isinstance(value, list):
        return [_cited(item, sources, seen, f"{path}[{number}]", faults) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    filled = {}
    for key, item in value.items():
        where = f"{path}.{key}"
        if isinstance(key, str) and (key == "basis" or key.endswith("_basis")) and isinstance(item, dict):
            try:
                filled[key] = cited_basis(item, sources, seen, where)
            except PlainError as error:
                faults.append(error)
                filled[key] = {"sources": ["?"], "seen": seen, **{name: part for name, part in item.items() if name != "source"}}
        else:
            filled[key] = _cited(item, sources, seen, where, faults)
    return filled


def _shape(kind: Any, data: Any, path: str) -> Iterator[PlainError]:
    """Every place where plain data is not what `kind` holds."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        if data is not None and len(inner) == 1:
            yield from _shape(inner[0], data, path)
    elif origin is tuple and isinstance(data, list) and len(arguments) == 2:
        for number, item in enumerate(data):
            yield from _shape(arguments[0], item, f"{path}[{number}]")
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        for key, item in data.items():
            yield from _shape(arguments[1], item, f"{path}.{key}")
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(data, dict):
        hints = typing.get_type_hints(kind)
        for key, item in data.items():
            if key in hints:
                yield from _shape(hints[key], item, f"{path}.{key}")
            else:
                yield PlainError(f"{path}.{key}", f"unknown key; {kind.__name__} has {', '.join(sorted(hints))}")
        for field in dataclasses.fields(kind):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if required and field.name not in data:
                yield PlainError(f"{path}.{field.name}", "missing")
            if not required and isinstance(text := data.get(field.name), str) and not text.strip():
                yield PlainError(f"{path}.{field.name}", "empty: leave the key out when nothing is known")
    else:
        try:
            from_plain(kind, data, path)
        except PlainError as error:
            yield error


def _readable(kind: Any, data: Any, path: str, faulty: list[str]) -> Iterator[tuple[str, Any]]:
    """Every dataclass in the rows of a table that have the right shape, with its path."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(data, list):
        for number, item in enumerate(data):
            yield from _readable(arguments[0], item, f"{path}[{number}]", faulty)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        for key, item in data.items():
            yield from _readable(arguments[1], item, f"{path}.{key}", faulty)
    elif not any(fault == path or fault.startswith((f"{path}.", f"{path}[")) for fault in faulty):
        yield from dataclasses_in(from_plain(kind, data, path), path)


def dataclasses_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every dataclass at or below a value, with its path."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield path, value
        for item in dataclasses.fields(value):
            yield from dataclasses_in(getattr(value, item.name), f"{path}.{item.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from dataclasses_in(item, f"{path}.{key}")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from dataclasses_in(item, f"{path}[{number}]")


# --- one row ----------------------------------------------------------------------------------------------------------


def _capability(text: str) -> object:
    return re.fullmatch(r"\d{1,2}\.x", text) or ComputeCapability.parse(text)


def _cuda(text: str) -> object:
    return re.fullmatch(r"\d+\.x|.* image", text) or (_specifiers(text) if text[:1] in "<>=!~" else CudaVersion.parse(text))


def _target(text: str) -> object:
    return text.startswith(("PYTORCH", "NCCL")) or GpuTarget.parse(text)


def _day(text: str) -> object:
    return DAY.fullmatch(text)


def _specifiers(text: str) -> object:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(text) is not None
    except InvalidSpecifier:
        return None


def _smoke_test(text: str) -> object:
    from dsdoctor.plugins import smoke_test_names

    return text in smoke_test_names()


FIELDS: tuple[tuple[tuple[str, ...], _Parses, str], ...] = (
    (
        ("min_driver", "toolkit_driver", "runfile_driver", "companion_driver", "driver_versions", "first_version", "first_general", "newest_versions",
         "published_versions", "board_min_driver", "series"),
        DriverVersion.parse,
        "a driver version such as 580.65.06, or a branch such as 580",
    ),
    (
        ("native_cuda", "cuda", "min_cuda", "recommended_cuda", "first_cuda", "last_cuda", "static_only", "built_for_cuda"),
        _cuda,
        "a CUDA version such as '12.8'",
    ),
    (
        ("compute_capability", "compute_capabilities", "capabilities", "refused", "ptx", "from_capability", "min_compute_capability",
         "max_compute_capability"),
        _capability,
        "a compute capability such as '9.0', or 9.x for a family",
    ),
    (("target", "targets", "renamed_to", "device_code", "gpu_code"), _target, "a compiler target such as sm_90a"),
    (
        ("gcc_max", "gcc_min", "clang_max", "clang_min", "glibc", "min_kernel", "since_nccl", "until_nccl", "min_torch", "min_nccl", "min_nvshmem",
         "min_python", "min_glibc", "toolkit"),
        LibraryVersion.parse,
        "a version such as '2.28'",
    ),
    (("specifiers", "requires"), _specifiers, "a PEP 440 range such as '>=2.10,<3'"),
    (("released", "end_of_life", "first_seen"), DATE.fullmatch, "a date (2026-01-31) or a month (2026-01)"),
    (("audited", "reread"), _day, "a date such as 2026-01-31"),
    (("severity",), SEVERITIES.__contains__, "error, warning or info"),
    (("need",), NEEDS.__contains__, f"one of {', '.join(NEEDS)}"),
    (("smoke_test",), _smoke_test, "a GPU test, such as fp8-block or fa3"),
    (("at_most",), CAPS.__contains__, "warning or info"),
    (("architecture",), ("", *ARCHITECTURES).__contains__, f"one of {', '.join(ARCHITECTURES)}"),
)  # fmt: skip
"""Names of fields, how their texts are read, and what is expected where they cannot be."""

ANY_ARCHITECTURE = ("ModelRelease",)
"""Rows whose `architecture` is that of a model."""
BLATANT = re.compile(r"\((?:\?:)?(?:\[[^\]]*\]|\\?[^()\\])[+*]\)[+*]")
"""A repeated group that is nothing but a repeat; more is not asked of `unless`, which sees one short value."""
PATTERNS = ("regex", "log_regex", "name_regex", "device_regex", "address_regex", "pattern", "unless")


def of_row(path: str, row: Any, seen: str) -> Iterator[PlainError]:
    """What is wrong with the values of one row. `seen`: the date of the file, which no date in it may pass."""
    for names, parses, expected in FIELDS:
        for name in names:
            if name == "architecture" and type(row).__name__ in ANY_ARCHITECTURE:
                continue
            for where, text in _texts(getattr(row, name, ""), f"{path}.{name}"):
                if text and not parses(text):
                    yield PlainError(where, f"expected {expected}, found {text!r}")
    if isinstance(row, Basis):
        yield from _of_basis(path, row, seen)
    for name in PATTERNS:
        text = getattr(row, name, "")
        if isinstance(text, str) and text:
            yield from _of_pattern(f"{path}.{name}", text, getattr(row, "example", "") if name in ("regex", "log_regex", "pattern") else "")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The texts of a field: itself, the items of a list, the values of a mapping."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            if isinstance(item, str):
                yield f"{path}[{number}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str):
                yield f"{path}.{key}", item


def _of_basis(path: str, basis: Basis, seen: str) -> Iterator[PlainError]:
    if not basis.sources or not all(basis.sources):
        yield PlainError(f"{path}.sources", "a row needs at least one source")
    if basis.seen and not DAY.fullmatch(basis.seen):
        yield PlainError(f"{path}.seen", f"expected a date such as 2026-01-31, found {basis.seen!r}")
    for name in ("seen", "audited", "reread"):
        if getattr(basis, name) > seen:
            yield PlainError(f"{path}.{name}", f"{getattr(basis, name)} is later than the date of the file ({seen})")


def _of_pattern(path: str, text: str, example: str) -> Iterator[PlainError]:
    try:
        compiled = re.compile(text)
    except re.error as error:
        yield PlainError(path, f"not a pattern: {error}")
        return
    if BLATANT.search(text) if path.endswith(".unless") else _nested(_parsed(text)):
        yield PlainError(path, f"a repeat inside a repeat can take exponential time: {text}")
    elif example and not compiled.search(example):
        yield PlainError(path, "does not match its own example")
    elif example and _is_slow(compiled, example):
        yield PlainError(path, "slower than linear on a long line")


def _parsed(text: str) -> Any:
    try:
        from re import _parser as regex_parser  # type: ignore[attr-defined]  # its place since Python 3.11
    except ImportError:
        import sre_parse as regex_parser
    return regex_parser.parse(text)


def _nested(pattern: Any, inside: bool = False) -> bool:
    """Whether an unbounded repeat contains another one."""
    for operation, argument in pattern:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            unbounded = str(argument[1]) == "MAXREPEAT"
            if (unbounded and inside) or _nested(argument[2], inside or unbounded):
                return True
        elif (
            (name == "SUBPATTERN" and _nested(argument[-1], inside))
            or (name == "BRANCH" and any(_nested(branch, inside) for branch in argument[1]))
            or (name in ("ASSERT", "ASSERT_NOT") and _nested(argument[1], inside))
            or (name == "ATOMIC_GROUP" and _nested(argument, inside))
        ):
            return True
    return False


def _is_slow(compiled: re.Pattern[str], example: str) -> bool:
    """Whether time grows clearly faster than a long text, or is far too long. A near miss of the example is the worst case.

    Bounded repeats look quadratic on short texts, so only the longest two are compared; a suspicion must be confirmed.
    It is time of the processor: on a busy machine the longer text would wait more often.
    """
    seed = example[: max(1, len(example) - 3)] + " "

    def cost_s(length: int) -> float:
        text = seed * (length // len(seed) + 1)
        start = time.process_time()
        for _ in compiled.finditer(text):
            pass
        return time.process_time() - start

    if any(cost_s(length) > FAR_TOO_LONG_S for length in LENGTHS):
        return True
    *_, half, whole = LENGTHS
    return all(
        (long_s := min(cost_s(whole) for _ in range(3))) > MEASURABLE_S
        and long_s > LINEAR * whole / half * min(cost_s(half) for _ in range(3))
        for _ in range(CONFIRMATIONS)
    )


# --- one table --------------------------------------------------------------------------------------------------------

IDENTITY: Mapping[str, tuple[str, ...]] = {
    "CudaMajor": ("major", "minor"),
    "ArchitectureSupport": ("architecture", "compute_capabilities"),
    "Achieved": ("product", "precision", "tflops"),
    "ChipsetBridge": ("vendor_id", "device_regex", "address_regex"),
    "CompatRule": ("cuda", "container", "branches"),
    "CompilerLimit": ("first_cuda", "last_cuda", "cpu_architecture"),
    "ContainerPair": ("cuda", "container"),
    "EngineMinimum": ("engine", "models"),
    "FleetVocabularyWord": ("word",),
    "FleetWord": ("check", "case", "severity"),
    "GpuSupport": ("family", "platform"),
    "KvBytes": ("model", "format"),
    "NcclCuda": ("first",),
    "NvlinkXidRule": ("code", "units", "bits_new", "bucket"),
    "Component": ("name", "only_as"),
    "GpuNeed": ("capabilities", "only_as"),
    "NodeNeed": ("need", "directory", "gpus_from", "nodes_from", "only_as", "amount"),
    "RequiredTest": ("smoke_test", "gpus_from"),
    "PackageNeed": ("package", "versions", "text"),
    "Placement": ("node", "weights"),
    "RuntimeCompiler": ("package", "needs"),
    "SystemNeed": ("resource", "directory", "gpus_from", "package", "amount"),
    "TorchArches": ("torch", "cuda"),
    "ValueRule": ("name", "problem", "values", "unless", "pattern", "since_nccl"),
    "XidSeverity": ("bucket",),
}
"""The fields that tell rows apart, where the first of `ID_KEYS` does not."""
ID_KEYS = ("id", "version", "product", "branch", "target", "code", "bucket", "torch", "name", "format", "model", "directory", "generation", "reason",
           "tag", "text", "cuda", "major", "cuda_major", "library", "series")  # fmt: skip


def identity_keys(row_kind: type) -> tuple[str, ...]:
    """The fields that tell rows of this class apart; none when nothing does."""
    names = {field.name for field in dataclasses.fields(row_kind)}
    return IDENTITY.get(row_kind.__name__) or next(((key,) for key in ID_KEYS if key in names), ())


def _twins(kind: Any, rows: list[Any], table: str) -> Iterator[PlainError]:
    """Rows of a table that describe the same thing as an earlier one."""
    row_kind = next(iter(typing.get_args(kind)), None)
    if not isinstance(row_kind, type) or not dataclasses.is_dataclass(row_kind):
        return
    keys = identity_keys(row_kind)
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows):
        if isinstance(row, dict) and keys:
            name = " ".join(str(row.get(key, "")) for key in keys).strip()
            counts[name] += 1
            if counts[name] > 1:
                yield PlainError(f"{table}[{number}].{keys[0]}", f"an earlier row describes the same thing: {name}")


# --- between tables ---------------------------------------------------------------------------------------------------


def agreement(knowledge: Knowledge) -> tuple[str, ...]:
    """Places where one matrix says something else than another, or names a row that does not exist."""
    return (
        *_mentioned_matrices(knowledge),
        *_torch_agrees(knowledge),
        *_packages_agree(knowledge),
    )


def _mentioned_matrices(knowledge: Knowledge) -> Iterator[str]:
    for stem in matrix_names():
        for path, row in dataclasses_in(knowledge.matrix(stem), stem):
            for field in dataclasses.fields(row):
                for where, text in _texts(getattr(row, field.name), f"{path}.{field.name}"):
                    for name in re.findall(r"\bmatrices/([a-z][a-z-]*)", text):
                        if name not in KINDS and name != REMEDIES:
                            yield f"{where}: names matrices/{name}, which does not exist"


def _torch_agrees(knowledge: Knowledge) -> Iterator[str]:
    torch, libraries = knowledge.matrix("torch"), knowledge.matrix("kernel-libraries")
    for row in libraries.torch_apis:
        wheel = torch.default_wheel(row.torch, "x86_64")
        if wheel is None or wheel.cuda != row.cuda:
            yield f"kernel-libraries.torch_apis: torch {row.torch} with CUDA {row.cuda}, but torch says {wheel.cuda if wheel else 'nothing'}"


def _packages_agree(knowledge: Knowledge) -> Iterator[str]:
    companions, packages = knowledge.matrix("companions"), knowledge.matrix("kernel-packages")
    for name, row in packages.packages.items():
        if companions.package(name) is None and not row.releases:
            yield f"kernel-packages.packages.{name}: neither companions nor this matrix has its releases"
        if companions.package(name) is not None and row.releases:
            yield f"kernel-packages.packages.{name}: its releases stand in companions already"
    for minimum in knowledge.matrix("deepseek-models").engine_minimums:
        package = companions.package(minimum.engine)
        if package is None:
            yield f"deepseek-models.engine_minimums: no engine is called {minimum.engine}"
