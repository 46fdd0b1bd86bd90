"""Services, as systemctl tells of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.sources.triage.fact import Fact, Found, Parser
from dsdoctor.sources.triage.lines import Line

FORMAT = "systemctl"
_NAMES = r"nvidia-(?:fabricmanager|persistenced|imex|dcgm)"
_UNIT = re.compile(rf"[●○×*x] ({_NAMES})\.service\b")
_ASKED = re.compile(rf"systemctl (?:status|is-active|show) (?:--no-pager )?({_NAMES})(?:\.service)?\s*$")
_MISSING = re.compile(
    rf"(?:Unit ({_NAMES})\.service could not be found|Failed to \w{{1,12}} ({_NAMES})\.service: Unit .{{0,80}}(?:not found|not loaded))"
)
_ACTIVE = re.compile(r"\s{1,12}Active: (active|activating|inactive|failed|deactivating)\b")
_STATES = ("active", "activating", "inactive", "failed")
_LISTED = re.compile(rf"\s{{0,4}}(?:[●*×] )?({_NAMES})\.service\s{{1,40}}(\S{{1,20}})\s{{1,40}}(\S{{1,20}})")


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    unit = ""
    answered = True
    for line in lines:
        text = line.text
        if asked := _ASKED.search(text):
            unit, answered = asked[1], "is-active" not in text
        elif named := _UNIT.match(text):
            unit, answered = named[1], True
        elif missing := _MISSING.search(text):
            yield from _service(missing[1] or missing[2], "not-installed", line)
            unit = ""
        elif listed := _LISTED.match(text):
            states = {
                "not-found": "not-installed",
                "active": "active",
                "inactive": "inactive",
                "failed": "failed",
                "activating": "activating",
            }
            state = states.get(listed[2]) or states.get(listed[3])
            if state:
                yield from _service(listed[1], state, line)
        elif unit and (active := _ACTIVE.match(text)):
            yield from _service(unit, "inactive" if active[1] == "deactivating" else active[1], line)
        elif unit and not answered and text.strip():
            answered = True
            if text.strip() in _STATES:
                yield from _service(unit, text.strip(), line)


def _service(name: str, state: str, line: Line) -> Iterator[Found]:
    yield Fact("services", "state", state, line, name, FORMAT)
    yield Fact("services", "found_via", FORMAT, line, name, FORMAT)


PARSERS = (Parser(FORMAT, ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm"), _parse),)
