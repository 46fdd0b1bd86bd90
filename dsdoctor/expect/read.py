"""Read a file of expectations; a slip is named with file, line, key, what was expected there and the nearest names that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsdoctor.errors import InputError
from dsdoctor.expect import Expectation
from dsdoctor.expect.kinds import KINDS, Kind
from dsdoctor.expect.want import Form, WantError, parse
from dsdoctor.findings import Disruption, Severity
from dsdoctor.site_file import compose, entries, is_null, nearest, read_text, text_of, wrong

if TYPE_CHECKING:
    import yaml

KEYS = ("kind", "of", "want", "severity", "owner", "remedy", "commands", "disruption", "why")
HEAD_KEYS = ("owner", "severity", "expectations")
IN_A_HOME = re.compile(r"/(?:home|homes|Users|root)/")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")


def load(path: str) -> tuple[Expectation, ...]:
    """The expectations in a file. Raises InputError about the first slip."""
    expectations, problems = read(path)
    if problems:
        raise problems[0]
    return expectations


def read(path: str) -> tuple[tuple[Expectation, ...], tuple[InputError, ...]]:
    """The expectations in a file, and every slip in it; a file that is no YAML is one slip."""
    try:
        return parse_text(read_text(path, "expectations"), path)
    except InputError as error:
        return (), (error,)


def parse_text(text: str, name: str) -> tuple[tuple[Expectation, ...], tuple[InputError, ...]]:
    """The expectations in a YAML text, and the slips in it; `name` is what errors call it. Raises InputError when nothing can be read."""
    import yaml

    root = compose(text, name)
    if root is None:
        raise InputError(f"{name}:1: empty; expected 'expectations:' with names under it (dsdoctor expect learn writes a file)")
    if not isinstance(root, yaml.MappingNode):
        raise wrong(name, root, "expected 'expectations:' with names under it")
    head = entries(name, root, HEAD_KEYS)
    listed = head.get("expectations")
    if listed is None:
        raise wrong(name, root, "there is no 'expectations:'")
    if is_null(listed):
        return (), ()
    if not isinstance(listed, yaml.MappingNode):
        raise wrong(name, listed, "expectations: expected names, each with kind and want under it")
    owner = text_of(name, head["owner"], "owner") if "owner" in head else ""
    severity = _severity(name, head["severity"], "severity") if "severity" in head else Severity.ERROR
    found, problems = [], []
    for key, node in entries(name, listed, None, "expectations").items():
        try:
            found.append(_expectation(name, key, node, owner, severity))
        except InputError as error:
            problems.append(error)
    return tuple(found), tuple(problems)


def _expectation(file: str, name: str, node: yaml.Node, owner: str, severity: Severity) -> Expectation:
    import yaml

    path = f"expectations.{name}"
    if not NAME.fullmatch(name):
        raise wrong(file, node, f"a name has small letters, digits, '-', '_' and '.'; '{name[:40]}' has others", "expectations")
    if not isinstance(node, yaml.MappingNode):
        raise wrong(file, node, "expected kind and want under it", path)
    given = entries(file, node, KEYS, path)
    for key in ("kind", "want"):
        if key not in given:
            raise wrong(file, node, f"it has no {key}", path)
    kind = _kind(file, given["kind"], path)
    of = _of(file, node, given.get("of"), kind, path)
    try:
        want = parse(kind.form, _texts(file, given["want"], f"{path}.want"), named=bool(kind.named))
    except WantError as error:
        also = ", present or absent" if kind.named else ""
        raise wrong(file, given["want"], f"{error}; expected {kind.form.value}{also}", f"{path}.want") from None
    return Expectation(
        name=name,
        kind=kind,
        of=of,
        want=want,
        severity=_severity(file, given["severity"], f"{path}.severity") if "severity" in given else severity,
        remedy=text_of(file, given["remedy"], f"{path}.remedy") if "remedy" in given else "",
        commands=tuple(_texts(file, given["commands"], f"{path}.commands")) if "commands" in given else (),
        disruption=_disruption(file, given["disruption"], f"{path}.disruption") if "disruption" in given else None,
        owner=text_of(file, given["owner"], f"{path}.owner") if "owner" in given else owner,
        why=text_of(file, given["why"], f"{path}.why") if "why" in given else "",
        where=f"{_told(file)}:{node.start_mark.line + 1}",
        file=shlex.quote(_told(file)),
    )


def _told(file: str) -> str:
    """The path as reports name it: without a home directory, which names a person."""
    return file.rpartition("/")[2] if IN_A_HOME.match(file) else file


def _kind(file: str, node: yaml.Node, path: str) -> Kind:
    word = text_of(file, node, f"{path}.kind")
    if word not in KINDS:
        raise wrong(file, node, f"no kind is called '{word[:40]}'{nearest(word, KINDS) or ' (see dsdoctor expect kinds)'}", f"{path}.kind")
    return KINDS[word]


def _of(file: str, entry: yaml.Node, node: yaml.Node | None, kind: Kind, path: str) -> str:
    if not kind.named and node is not None:
        raise wrong(file, node, f"the kind {kind.name} looks at one thing only: leave 'of' out", f"{path}.of")
    if node is None:
        if kind.named and not kind.default_of:
            raise wrong(file, entry, f"it has no of: which {kind.named} is meant", path)
        return kind.default_of
    of = text_of(file, node, f"{path}.of")
    return re.sub(r"[-_.]+", "-", of).lower() if kind.form is Form.PACKAGE else of


def _texts(file: str, node: yaml.Node, path: str) -> Sequence[str]:
    """The words of a scalar or of a list of scalars, as written: 580.10 stays 580.10."""
    import yaml

    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not items:
        raise wrong(file, node, "the list is empty", path)
    return [text_of(file, item, path) for item in items]


def _severity(file: str, node: yaml.Node, path: str) -> Severity:
    word = text_of(file, node, path)
    values = [item.value for item in Severity]
    if word not in values:
        raise wrong(file, node, f"expected {', '.join(values)}, found '{word[:40]}'{nearest(word, values)}", path)
    return Severity(word)


def _disruption(file: str, node: yaml.Node, path: str) -> Disruption:
    word = text_of(file, node, path)
    values = [item.value for item in Disruption]
    if word not in values:
        raise wrong(file, node, f"expected {', '.join(values)}, found '{word[:40]}'{nearest(word, values)}", path)
    return Disruption(word)


def remarks(expectations: Sequence[Expectation]) -> tuple[str, ...]:
    """What is no slip, and yet can never be answered or is said twice."""
    from dsdoctor.sources.texts import matters

    noted: list[str] = []
    before: dict[tuple[str, str], Expectation] = {}
    for item in expectations:
        if item.kind.name == "environment" and not matters(item.of):
            noted.append(
                f"{item.where}: expectations.{item.name}: dsdoctor collects no variable called {item.of}; the answer is always 'cannot tell'"
            )
        twin = before.setdefault((item.kind.name, item.of), item)
        if twin is not item:
            noted.append(f"{item.where}: expectations.{item.name}: asks about the same as {twin.name} ({twin.where})")
    return tuple(noted)
