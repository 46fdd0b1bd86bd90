"""What this site wants of a node, beside what the stack needs: judged like every other check, with ids such as `expect.driver`.

A file of expectations is YAML. Each expectation has a name, a kind and what is wanted; where a kind looks at one thing of many (a module, a
mount, a variable, a package), `of` says which one:

```yaml
owner: platform team            # whoever mends it, unless an expectation names somebody else
expectations:
  driver:
    kind: driver
    want: ">= 580, < 590"
    remedy: run the driver role of the site's playbook
    commands: [ansible-playbook driver.yml --limit "$(hostname)"]
  scratch:
    kind: mount
    of: /scratch
    want: lustre
    severity: warning           # error without it
    owner: storage team
```

A fact that is not known makes the answer *cannot tell*, never a finding. `dsdoctor expect kinds` lists the kinds, `dsdoctor expect learn`
writes a file from nodes that are as they should be, `dsdoctor expect lint` reads one and says what is wrong with it.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.checks._check import Check
from dsdoctor.expect.kinds import Kind, Seen
from dsdoctor.expect.want import Value, Want
from dsdoctor.facts import Section, State
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Verify
from dsdoctor.record import dataclass

AREA = "expect"
PSEUDONYM = re.compile(
    r"<redacted>|\b(?:host|name|serial)-\d+\b|\b(?:192\.0\.2|198\.51\.100|203\.0\.113)\.\d|/(?:home|homes|Users)/user\d*\b"
)
"""What redaction leaves in the place of a name, an address or a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One thing that the site wants of a node."""

    name: str
    kind: Kind
    of: str = ""
    want: Want
    severity: Severity = Severity.ERROR
    remedy: str = ""
    commands: tuple[str, ...] = ()
    disruption: Disruption | None = None
    owner: str = ""
    why: str = ""
    where: str = ""
    """File and line."""
    file: str = ""
    """The file as it stands in a command."""

    @property
    def id(self) -> str:
        """The id of the check: expect.driver."""
        return f"{AREA}.{self.name}"

    @property
    def subject(self) -> str:
        """What it is about: 'kernel module nvidia_peermem', 'driver'."""
        return f"{self.kind.named} {self.of}" if self.kind.named else self.kind.name.replace("-", " ")

    @property
    def wanted(self) -> str:
        """What is wanted, as a sentence ends: 'this site expects >= 580'."""
        return {True: "none"}.get(self.want.absent, "it" if self.want.present else self.want.text)


def checks(expectations: Iterable[Expectation]) -> tuple[Check, ...]:
    """A check for each expectation."""
    return tuple(_check(item) for item in expectations)


def _check(expectation: Expectation) -> Check:
    def judge(probed: bool, **sections: Section[Any]) -> Iterator[Finding | Doubt | NotApplicable]:
        return _judge(expectation, sections, probed)

    return Check(
        id=expectation.id,
        severity=expectation.severity,
        judge=judge,
        optional_sections=expectation.kind.sections,
        extras=("probed",),
        text=f"{_sentence(expectation)}.",
    )


def _sentence(expectation: Expectation) -> str:
    subject = expectation.subject if expectation.kind.named else expectation.kind.text
    return f"{subject[0].upper()}{subject[1:]}: this site expects {expectation.wanted}"


def _judge(expectation: Expectation, sections: Mapping[str, Section[Any]], probed: bool) -> Iterator[Finding | Doubt | NotApplicable]:
    kind, of, want = expectation.kind, expectation.of, expectation.want
    name = kind.sections[0]
    section = sections[name]
    if section.state is State.ABSENT and kind.of_gpus:
        yield NotApplicable(reason=section.why)
    elif section.state is State.ABSENT and kind.counts:
        yield from _compared(expectation, [Seen(subject="this node", value=0, where=name)])
    elif section.state is State.ABSENT:
        if not want.absent:
            yield _finding(expectation, expectation.subject, f"is not there: {section.why}", [Evidence(where=name, value=section.why)])
    elif section.state is not State.KNOWN:
        why = section.why or section.state.value.replace("_", " ")
        yield Doubt(subject=expectation.subject, reason=f"{name.replace('_', ' ')}: {why}")
    else:
        seen = [
            item for item in kind.see(section.value, sections, of) if not kind.named or any(fnmatch.fnmatchcase(one, of) for one in item.of)
        ]
        unproven = "" if seen else kind.unproven(of, section.value, probed)
        if seen:
            yield from _compared(expectation, seen)
        elif unproven:
            yield Doubt(subject=expectation.subject, reason=unproven)
        elif not want.absent:
            yield _finding(
                expectation, expectation.subject, "is not there", [Evidence(where=name, value=f"without {of}" if of else "none")]
            )


def _compared(expectation: Expectation, seen: Sequence[Seen]) -> Iterator[Finding | Doubt]:
    """A finding for each value that is not as wanted, a doubt for what is not known."""
    want = expectation.want
    if want.absent:
        listed = [Evidence(where=item.where, value=shown(item.value)) for item in seen]
        yield _finding(expectation, expectation.subject, "is there", listed)
        return
    if want.present:
        return
    odd: dict[str, list[Seen]] = {}
    for item in seen:
        fits = None if item.value is None else want.fits(item.value)
        if fits is False and isinstance(item.value, str) and PSEUDONYM.search(item.value):
            yield Doubt(subject=item.subject, reason="its value was redacted when the facts were written")
        elif fits is None:
            why = item.why if item.value is None else f"'{shown(item.value)[:60]}' is not understood"
            yield Doubt(subject=item.subject, reason=why or "not told")
        elif not fits:
            odd.setdefault(shown(item.value), []).append(item)
    for value, items in odd.items():
        evidence = [Evidence(where=item.where, value=value) for item in items]
        yield _finding(expectation, _subjects([item.subject for item in items]), f"is {value}", evidence)


def _finding(expectation: Expectation, subject: str, how_it_is: str, evidence: Sequence[Evidence]) -> Finding:
    kind = expectation.kind
    return Finding(
        subject=subject,
        summary=f"{expectation.subject} {how_it_is}; this site expects {expectation.wanted}",
        cause=expectation.why,
        evidence=tuple(evidence),
        expected=expectation.want.text,
        remedies=(
            Remedy(
                summary=expectation.remedy or kind.remedy,
                commands=expectation.commands,
                disruption=expectation.disruption or kind.disruption,
                needs_root=kind.needs_root,
                verify=Verify(command=f"dsdoctor check --expect {expectation.file or 'FILE'} --only {expectation.id}"),
            ),
        ),
        sources=(expectation.where,) if expectation.where else (),
        owner=expectation.owner,
    )


def shown(value: Value | None) -> str:
    """A value as findings and learned files write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "unlimited" if math.isinf(value) else f"{value:.10g}" if abs(value) < 1 else f"{value:.1f}".removesuffix(".0")
    return str(value)


def _subjects(names: Sequence[str]) -> str:
    """'GPU 3', 'GPUs 0, 3', or the names."""
    if len(names) > 1 and all(name.startswith("GPU ") for name in names):
        return f"GPUs {', '.join(name.removeprefix('GPU ') for name in names)}"
    return ", ".join(names)
