"""What a check can say: findings with their remedies, doubts, outcomes, and the report they make.

Plain frozen data with a JSON form (`dsdoctor.plain`). The report's JSON is the contract `dsdoctor.report/1`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from dsdoctor.facts import Origin, ProbeRun
from dsdoctor.record import dataclass

SCHEMA = "dsdoctor.report/1"


class Severity(enum.Enum):
    """How bad a problem is, worst first."""

    ERROR = "error"
    """The stack does not run, or computes wrong results."""
    WARNING = "warning"
    """It runs, but slower, or a hazard is near."""
    INFO = "info"
    """Worth knowing; nothing is wrong now."""

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Status(enum.Enum):
    """What a check learnt; apart from how bad it is."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    CRASHED = "crashed"
    NOT_APPLICABLE = "not_applicable"
    WAIVED = "waived"


class Disruption(enum.Enum):
    """The worst that following a remedy brings, mildest first."""

    NONE = "none"
    RESTART_PROCESS = "restart_process"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE_HARDWARE = "replace_hardware"


class Verdict(enum.Enum):
    """The answer to: can this node run this stack?"""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """The command that shows that the fault is gone, and what it prints then."""

    command: str
    prints: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way to mend a problem. Commands are data; the doctor runs none of them.

    Steps are prose: also everything destructive (removals, resets, firmware), where a copy-paste would be dangerous.
    """

    summary: str
    when: str = ""
    """Which case or reader this remedy is for."""
    commands: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    inspect: tuple[str, ...] = ()
    """Read-only commands that show more."""
    verify: Verify | None = None
    disruption: Disruption = Disruption.NONE
    needs_root: bool = False
    drain: bool = False
    risk: str = ""
    not_when: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact that shows the problem: where it stands (path in the snapshot, file and line) and its value."""

    where: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWords:
    """What fleet tools call a finding."""

    dcgm_severity: str
    """RESET, ISOLATE, TRIAGE, CONFIG or MONITOR (NVIDIA DCGM)."""
    recommended_action: str
    """NONE, COMPONENT_RESET, CONTACT_SUPPORT, RESTART_VM, RESTART_BM or UNKNOWN (NVIDIA NVSentinel)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that is there: what is wrong, how we know, what was expected, what to do."""

    subject: str
    """What has the problem: 'GPU 3', 'libcudnn.so.9', 'torch 2.11.0+cu130'."""
    summary: str
    """One sentence: what is wrong."""
    cause: str = ""
    """Why it is so and what it leads to."""
    evidence: tuple[Evidence, ...]
    expected: str = ""
    remedies: tuple[Remedy, ...] = ()
    sources: tuple[str, ...] = ()
    """Of the rule that judged; the report takes those of the remedies where none are given."""
    severity: Severity | None = None
    """Only where it differs from the check's own."""
    explains: tuple[str, ...] = ()
    """Ids (or globs) of further checks whose findings follow from this one, beside those the check names."""
    explains_only: tuple[str, ...] = ()
    """Where it concerns single packages: their names, and the paths of their files. Only findings whose subject or evidence names one of them follow from it."""
    owner: str = ""
    """Who mends it, where the site says so."""
    fleet_case: str = ""
    """Which of the check's findings this is to fleet tools (`case` of matrices/fleet-words); empty where they make no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Facts are known, but nothing known to us judges them: 'driver 640 is newer than this release knows'."""

    subject: str
    reason: str
    settle: str = ""
    """The one command whose output would settle it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """The question does not arise here, which only the facts together show: 'no driver is loaded', 'a virtual machine'."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """A finding that follows from another one and is shown under it."""

    check: str
    severity: Severity
    subject: str
    summary: str
    fleet: FleetWords | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One finding in the report, with the consequences folded under it."""

    check: str
    severity: Severity
    subject: str
    summary: str
    cause: str = ""
    evidence: tuple[Evidence, ...] = ()
    expected: str = ""
    remedies: tuple[Remedy, ...] = ()
    explains: tuple[Consequence, ...] = ()
    sources: tuple[str, ...] = ()
    owner: str = ""
    """Who mends it, where the site says so."""
    fleet: FleetWords | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one check learnt."""

    check: str
    status: Status
    severity: Severity
    """The worst severity found, or the check's own when nothing was found."""
    reason: str = ""
    """Why it is unknown, not applicable, waived or crashed."""
    settle: str = ""
    elapsed_s: float = 0.0
    title: str = ""
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many checks ended how, and how many findings there are of each severity."""

    passed: int = 0
    failed: int = 0
    unknown: int = 0
    crashed: int = 0
    not_applicable: int = 0
    waived: int = 0
    errors: int = 0
    warnings: int = 0
    infos: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeStamp:
    """Which knowledge judged: digest over all matrices, date of the newest row, and whether that is too old."""

    digest: str
    date: str
    stale: bool = False
    overlays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A remark about the run itself: stale knowledge, an expired waiver, a plugin or probe that failed."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What the node was judged for."""

    profiles: tuple[str, ...] = ()
    inferred: bool = False
    """Nobody chose a profile: these are what is installed, and nothing that is missing for them counts."""
    models: tuple[str, ...] = ()
    """Models that have to fit."""
    plans: tuple[str, ...] = ()
    """Whether they do, a line each; none where the GPUs are not known."""

    @property
    def told(self) -> str:
        """In a line; empty where nothing was chosen and nothing was recognised."""
        how = " (by what is installed; --profile NAME also says what is missing)" if self.inferred else ""
        profiles = [f"{', '.join(self.profiles)}{how}"] if self.profiles else []
        return "; ".join([*profiles, *self.plans])


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The judgement of one snapshot (`dsdoctor.report/1`)."""

    schema: str
    dsdoctor: str
    taken_at: str
    origin: Origin
    target: str = ""
    """Path of the interpreter that was examined, redacted."""
    verdict: Verdict
    counts: Counts
    diagnosis: tuple[Diagnosis, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    notices: tuple[Notice, ...] = ()
    knowledge: KnowledgeStamp
    facts: Mapping[str, Any] = field(default_factory=dict)
    probe_runs: tuple[ProbeRun, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    fitness: Fitness = Fitness()

    def worst(self) -> Severity | None:
        """The worst severity among the findings, or None when there are none."""
        return min((item.severity for item in self.diagnosis), key=lambda severity: severity.rank, default=None)


def counted(number: int, noun: str) -> str:
    """'1 GPU', '8 GPUs': as findings and every screen say it."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
