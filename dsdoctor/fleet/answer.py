"""What a merge of many reports says (`dsdoctor.fleet/1`). Plain frozen data; names and texts in it come from reports and are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsdoctor.findings import KnowledgeStamp, Remedy, Severity

SCHEMA = "dsdoctor.fleet/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many nodes there are, of each verdict, and what else was in the input."""

    nodes: int
    healthy: int
    degraded: int
    broken: int
    unknown: int
    no_report: int
    duplicates: int
    """Older reports of nodes that have a newer one; those are left out."""
    rejected: int
    """Files or lines that are no report."""
    errors: int
    """Problems below of this severity; each may be on many nodes."""
    warnings: int
    infos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a fact, and who has it."""

    value: str
    nodes: int
    hosts: str
    """Folded: node[001-256]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """One fact within a group: the value that most nodes have, and the others."""

    fact: str
    title: str
    value: str | None
    """None: no value is that of most nodes."""
    agree: int
    known: int
    """Nodes of the group that say."""
    others: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that are compared with each other."""

    name: str
    nodes: int
    hosts: str
    facts: tuple[Consensus, ...]
    varying: tuple[str, ...] = ()
    """Facts that differ by their nature, so that nothing is made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What one node says of a problem."""

    node: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem and all nodes that have it."""

    number: int
    check: str
    severity: Severity
    origin: str
    """fleet: only the comparison shows it; node: the reports of the nodes say it."""
    group: str
    subject: str
    """The fact, the test, or empty for a finding of nodes."""
    summary: str
    cause: str = ""
    expected: str = ""
    nodes: int
    hosts: str
    details: tuple[Detail, ...] = ()
    """Of some of the nodes; `findings.csv` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One remedy, the problems that it mends, and the nodes where."""

    remedy: Remedy
    checks: tuple[str, ...]
    nodes: int
    hosts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Input that is no report, by reason."""

    reason: str
    count: int
    sources: tuple[str, ...]
    """Some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the fleet."""

    name: str
    group: str
    verdict: str
    """healthy, degraded, broken, unknown, or no-report."""
    reason: str
    """Why there is no report."""
    taken_at: str
    dsdoctor: str
    source: str
    problems: tuple[int, ...]
    """Numbers of the problems that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found out about a node beside its report."""

    check: str
    severity: Severity
    node: str
    subject: str
    detail: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The answer."""

    schema: str = SCHEMA
    dsdoctor: str
    verdict: str
    """The worst of its nodes and of what the comparison shows: broken, degraded, unknown or healthy."""
    group_by: tuple[str, ...]
    counts: Counts
    versions: Mapping[str, int]
    """Version of dsdoctor → nodes."""
    notices: tuple[str, ...]
    groups: tuple[Group, ...]
    problems: tuple[Problem, ...]
    """Worst first."""
    work: tuple[Work, ...]
    """Mildest disruption first."""
    rejected: tuple[Rejection, ...]
    knowledge: KnowledgeStamp
    nodes: tuple[Node, ...]

    def worst(self) -> Severity | None:
        """The worst severity among the problems, or None when there are none."""
        return min((item.severity for item in self.problems), key=lambda severity: severity.rank, default=None)
