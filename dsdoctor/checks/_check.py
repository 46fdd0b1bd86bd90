"""What a check is: an id, a severity, a judging function whose parameters are its dependencies, and its cases.

A parameter is a section of the snapshot (`gpus`), a matrix (`cudnn_matrix` is matrices/cudnn.yaml), or one of `remedies` (the remedies of this check, bound to
the reader's platform), `advice` (which stack runs on this node, sought when it is asked), `purpose` (what the user wants the node for), `plans` (whether the
models that have to fit do), `today` and `probed` (whether probes found these facts: then what they do not list is not there, which pasted text never
shows). The engine calls `judge` only when every needed section is known; a parameter annotated
`Section[...]` is handed over in whatever state it is, for checks that can judge without it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from typing import Any

from dsdoctor.facts import Sections
from dsdoctor.findings import Doubt, Finding, NotApplicable, Severity, Status
from dsdoctor.record import dataclass

Judge = Callable[..., Iterable[Finding | Doubt | NotApplicable]]

SECTION_NAMES = frozenset(item.name for item in fields(Sections))
EXTRA_NAMES = frozenset({"remedies", "advice", "purpose", "plans", "today", "probed"})
MATRIX_SUFFIX = "_matrix"

SMOKE_OF_LIBRARIES = ("smoke.attention", "smoke.fa3", "smoke.fp8-block", "smoke.fp8-gemm", "smoke.numerics", "smoke.triton")
"""What packages and libraries that do not fit can make fail. A slow link, a low clock or bits that flip are never theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One worked example of a check: the sections that matter, and what it must answer. Test, and example in `explain`."""

    title: str
    sections: Mapping[str, Any]
    """Section name to value (known), or to a `Section` for the other states. All else is not asked."""
    status: Status
    says: str = ""
    """Text that must occur in a summary, cause, evidence, doubt or reason."""
    severity: Severity | None = None
    profiles: tuple[str, ...] = ()
    """Chosen by the user (`--profile`)."""
    models: tuple[str, ...] = ()
    """That have to fit (`--model`)."""
    disk_gb_per_s: float = 0.0

    @property
    def options(self) -> str:
        """What the user asked, as options of `dsdoctor check`."""
        parts = [*(f"--profile {name}" for name in self.profiles), *(f"--model {name}" for name in self.models)]
        return " ".join([*parts, *([f"--disk-gb-s {self.disk_gb_per_s:g}"] if self.disk_gb_per_s else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One problem that a node can have."""

    id: str
    severity: Severity
    judge: Judge
    explains: tuple[str, ...] = ()
    """Ids or globs of checks whose findings follow from this problem."""
    settle: str = ""
    """The one command whose output would settle an unknown."""
    cases: tuple[Case, ...] = ()
    sections: tuple[str, ...] = field(default=())
    """Sections that must be known."""
    optional_sections: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    text: str = ""
    """The documentation of a check that is not a file, such as an expectation of a site."""

    @property
    def area(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]

    @property
    def documentation(self) -> str:
        """The docstring of the check's file: a plain sentence, then what it looks at and why it matters."""
        return inspect.cleandoc(self.text or sys.modules[self.judge.__module__].__doc__ or "")

    @property
    def title(self) -> str:
        """The first sentence of the documentation."""
        return self.documentation.partition("\n")[0].rstrip(".")


def check(
    id: str, severity: Severity, *, explains: tuple[str, ...] = (), settle: str = "", cases: tuple[Case, ...] = ()
) -> Callable[[Judge], Check]:
    """Make a Check of a judging function; its parameter names say what it needs."""

    def decorate(judge: Judge) -> Check:
        sections, optional, matrices, extras = [], [], [], []
        for name in judge.__code__.co_varnames[: judge.__code__.co_argcount]:
            if name in EXTRA_NAMES:
                extras.append(name)
            elif name.endswith(MATRIX_SUFFIX):
                matrices.append(name)
            elif name not in SECTION_NAMES:
                raise TypeError(f"check {id}: no section, matrix or extra is called '{name}'")
            elif str(judge.__annotations__.get(name)).startswith("Section"):
                optional.append(name)
            else:
                sections.append(name)
        return Check(
            id=id,
            severity=severity,
            judge=judge,
            explains=explains,
            settle=settle,
            cases=cases,
            sections=tuple(sections),
            optional_sections=tuple(optional),
            matrices=tuple(matrices),
            extras=tuple(extras),
        )

    return decorate
