"""The report for a person: one line for each area, details only where something is not fine, then each problem with what to do.

80 columns are enough. Colour never carries meaning alone: every mark is also a character and a word. Commands stand on lines of their
own, unbroken, so that they can be copied. Text that came from the machine cannot steer the terminal: control characters are taken out.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsdoctor.findings import Diagnosis, Disruption, Outcome, Remedy, Report, Severity, Status, Verdict, Verify, counted
from dsdoctor.record import dataclass
from dsdoctor.render import evidence

SMALLEST_WIDTH = 40
SHOWN_EVIDENCE = 6
SHOWN_REMEDIES = 3
SHOWN_CONSEQUENCES = 8
SHOWN_LINES_OF_AREA = 5
SHOWN_CHECKS_OF_REASON = 3
SHORT_REASON = 32
LONG_REASON = 240

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b.?", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_ASCII = str.maketrans(
    {
        "·": "-",
        "…": "...",
        "×": "x",
        "→": "->",
        "–": "-",
        "—": "-",
        "’": "'",
        "“": '"',
        "”": '"',
        "≥": ">=",
        "≤": "<=",
        "µ": "u",
        "°": " deg",
    }
)
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "bold": "1", "dim": "2", "plain": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How text is put on this terminal."""

    width: int
    colour: bool = False
    unicode: bool = True

    def clean(self, text: str) -> str:
        """The text on one line, harmless to a terminal, in characters that it can show."""
        return " ".join(self.harmless(text).split())

    def harmless(self, text: str) -> str:
        """The text without control characters; line breaks and tabs are kept."""
        text = _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text))
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode()

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour of `_COLOURS`, where colour is wanted."""
        code = _COLOURS[colour]
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def wrap(self, text: str, first: str = "", rest: str | None = None, colour: str = "plain") -> list[str]:
        """Prose broken at the width, with an indent for the first line and one for the others. Words are never broken."""
        indent = " " * len(first) if rest is None else rest
        lines = textwrap.wrap(
            self.clean(text), max(self.width, SMALLEST_WIDTH), initial_indent=first, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        return [self._painted(line, colour) for line in lines]

    def command(self, text: str, indent: str) -> list[str]:
        """A command as it is to be copied: never wrapped, each of its lines on a line of its own."""
        return [f"{indent}{self.paint(line.rstrip(), 'cyan')}" for line in self.harmless(text).splitlines() if line.strip()]

    def _painted(self, line: str, colour: str) -> str:
        text = line.lstrip()
        return f"{line[: len(line) - len(text)]}{self.paint(text, colour)}"


@dataclass(frozen=True, slots=True)
class _Mark:
    symbol: str
    ascii: str
    colour: str

    def boxed(self, style: Style) -> str:
        return style.paint(f"[{self.bare(style)}]", self.colour)

    def bare(self, style: Style) -> str:
        return self.symbol if style.unicode else self.ascii


FINE = _Mark("✓", "+", "green")
ERROR = _Mark("✗", "x", "red")
WARNING = _Mark("!", "!", "yellow")
NOTE = _Mark("i", "i", "blue")
UNKNOWN = _Mark("?", "?", "yellow")
NOT_HERE = _Mark("-", "-", "dim")
CRASH = _Mark("☠", "#", "red")
WAIVED = _Mark("~", "~", "dim")

_OF_SEVERITY = {Severity.ERROR: ERROR, Severity.WARNING: WARNING, Severity.INFO: NOTE}
_OF_STATUS = {
    Status.PASS: FINE, Status.UNKNOWN: UNKNOWN, Status.CRASHED: CRASH, Status.NOT_APPLICABLE: NOT_HERE, Status.WAIVED: WAIVED,
}  # fmt: skip


def render(report: Report, *, width: int, colour: bool, verbose: bool = False, unicode: bool = True) -> str:
    """The report as text, without a newline at its end."""
    style = Style(width=width, colour=colour, unicode=unicode)
    blocks = [
        _head(report, style),
        _notices(report, style),
        _verdict(report, style),
        _areas(report, style, verbose),
        *(
            _diagnosis(number, item, style, verbose, _asked(item, report))
            for number, item in enumerate(report.diagnosis, 1)
            if verbose or item.severity is not Severity.INFO  # a note is told in the line of its area
        ),
        _suspicions(report, style),
        _verbose_tail(report, style) if verbose else [],
        _tail(report, style, verbose),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


# --- head and tail ----------------------------------------------------------------------------------------------------


def _head(report: Report, style: Style) -> list[str]:
    kinds = {"live": "examined {when}", "replay": "recorded {when}", "triage": "pasted evidence, read {when}"}
    when = report.taken_at.replace("T", " ").replace("Z", " UTC")
    how = kinds.get(report.origin.kind, "{when}").format(when=when)
    title = f"dsdoctor {report.dsdoctor}"
    lines = style.wrap(f"{title}: {report.origin.label}, {how}", rest="  ")
    lines[0] = lines[0].replace(title, style.paint(title, "bold"), 1)
    if report.target:
        lines += style.wrap(f"Python: {report.target}{_interpreter_words(report.facts)}", rest="  ")
    if report.fitness.told:
        lines += style.wrap(f"For: {report.fitness.told}", rest="  ")
    return lines


def _interpreter_words(facts: Mapping[str, Any]) -> str:
    found = _value(facts, "interpreter") or {}
    words = [f"version {found['version']}"] if found.get("version") else []
    chosen = {"": "", "own": "the one that runs dsdoctor"}.get(found.get("chosen_by", ""), f"chosen by {found.get('chosen_by')}")
    return f" ({', '.join([*words, *([chosen] if chosen else [])])})" if words or chosen else ""


def _notices(report: Report, style: Style) -> list[str]:
    lines: list[str] = []
    for notice in report.notices:
        mark = _OF_SEVERITY[notice.severity]
        lines += style.wrap(f"{mark.bare(style)} {notice.text}", rest="  ", colour=mark.colour)
    return lines


def _verdict(report: Report, style: Style) -> list[str]:
    colours = {Verdict.HEALTHY: "green", Verdict.DEGRADED: "yellow", Verdict.BROKEN: "red", Verdict.UNKNOWN: "yellow"}
    word = report.verdict.name
    unsettled = report.counts.unknown + report.counts.crashed
    untold = not unsettled or report.verdict is Verdict.UNKNOWN or evidence.is_pasted(report)
    doubt = "" if untold else f", {counted(unsettled, 'check')} could not tell"
    lines = style.wrap(f"{word}{_verdict_words(report)}{doubt}.", rest="  ")
    lines[0] = lines[0].replace(word, style.paint(style.paint(word, colours[report.verdict]), "bold"), 1)
    return lines


def _verdict_words(report: Report) -> str:
    """What follows the word of the verdict."""
    roots = Counter(item.severity for item in report.diagnosis)
    errors, warnings = roots[Severity.ERROR], roots[Severity.WARNING]
    following = sum(len(item.explains) for item in report.diagnosis)
    if report.verdict is Verdict.BROKEN:
        words = ["1 problem stops this stack" if errors == 1 else f"{errors} problems stop this stack (start with 1)"]
        words += [f"{counted(following, 'more finding')} {'follows' if following == 1 else 'follow'} from that"] if following else []
        words += [counted(warnings, "warning")] if warnings else []
        return f": {', '.join(words)}"
    if report.verdict is Verdict.DEGRADED:
        return f": nothing found that stops this stack, but {counted(warnings, 'warning')}"
    if report.verdict is Verdict.HEALTHY:
        passed = counted(report.counts.passed, "check")
        limited = report.counts.unknown + report.counts.crashed > 0
        return f" as far as could be told: {passed} passed" if limited else f": every check that applies here passed ({passed})"
    if evidence.is_pasted(report):
        return f": {'nothing that was recognised proves a problem' if evidence.anything_recognised(report) else 'nothing in the text was recognised'}"
    return ": nothing could be judged" if report.outcomes else ": no check was run"


def _tail(report: Report, style: Style, verbose: bool) -> list[str]:
    counts = report.counts
    lines: list[str] = []
    if counts.crashed:
        lines += style.wrap(
            f"{CRASH.bare(style)} {counted(counts.crashed, 'check')} crashed: that is a fault of dsdoctor, not of this node. Please report it "
            "with the file that this writes (names and secrets are taken out):",
            rest="  ",
        )
        lines += style.command("dsdoctor record -o node.json", "    ")
    unsettled, command = settle(report.outcomes)
    if counts.unknown and evidence.is_pasted(report):
        lines += _paste_next(report, style)
    elif counts.unknown:
        text = f"{UNKNOWN.bare(style)} {counted(counts.unknown, 'check')} could not tell"
        if command:
            which = "it" if counts.unknown == 1 else "all of them" if unsettled == counts.unknown else f"{unsettled} of them"
            lines += style.wrap(f"{text}. This would settle {which}:", rest="  ")
            lines += style.command(command, "    ")
        else:
            lines += style.wrap(f"{text}.", rest="  ")
    if report.diagnosis and not verbose:
        lines += style.wrap(f"More: --verbose, or dsdoctor explain {report.diagnosis[0].check}")
    parts = [
        f"{number} {word}"
        for number, word in (
            (counts.passed, "passed"), (counts.failed, "failed"), (counts.unknown, "unknown"), (counts.crashed, "crashed"),
            (counts.waived, "waived"), (counts.not_applicable, "not applicable"),
        )
        if number or word in ("passed", "failed", "unknown")
    ]  # fmt: skip
    found = [
        counted(number, word) for number, word in ((counts.errors, "error"), (counts.warnings, "warning"), (counts.infos, "note")) if number
    ]
    ending = f"; found {', '.join(found)}" if found else ""
    lines += style.wrap(f"{counted(len(report.outcomes), 'check')}: {', '.join(parts)}{ending}.", rest="  ", colour="bold")
    return lines


def _paste_next(report: Report, style: Style) -> list[str]:
    """What else of the node would help, where only a text is there."""
    waiting, command = evidence.paste_next(report)
    text = f"{UNKNOWN.bare(style)} The text does not answer {counted(report.counts.unknown, 'check')}"
    if not command:
        return style.wrap(f"{text}.", rest="  ")
    return [
        *style.wrap(f"{text}. Paste also the output of this, for which {waiting} of them wait:", rest="  "),
        *style.command(command, "    "),
    ]


def _suspicions(report: Report, style: Style) -> list[str]:
    """Lines that fit several causes, and what tells these apart."""
    lines: list[str] = []
    for found in evidence.suspicions(report):
        lines += style.wrap(f"{UNKNOWN.bare(style)} {found.where}: {found.line}", rest="  ", colour=UNKNOWN.colour)
        alone = len(found.causes) == 1
        lines += style.wrap("would fit, but does not prove:" if alone else "fits several causes, the likeliest first:", "  ")
        for number, cause in enumerate(found.causes, 1):
            lines += style.wrap(f"{number}) {cause.text} ({cause.check})", "     ", "        ")
            lines += ["        tell it apart by:", *style.command(cause.settle, "          ")] if cause.settle else []
    return lines


def settle(outcomes: Iterable[Outcome]) -> tuple[int, str]:
    """The command that would settle most of the unknown outcomes, and how many it would."""
    commands = Counter(outcome.settle for outcome in outcomes if outcome.status is Status.UNKNOWN and outcome.settle)
    return (commands.most_common(1)[0][1], commands.most_common(1)[0][0]) if commands else (0, "")


def _verbose_tail(report: Report, style: Style) -> list[str]:
    stamp = report.knowledge
    lines = style.wrap(
        f"Knowledge of {stamp.date}, digest {stamp.digest[:16]}{''.join(f', overlay {item}' for item in stamp.overlays)}", rest="  "
    )
    slowest = sorted(report.timings.items(), key=lambda item: -item[1])[:8]
    if slowest:
        lines += style.wrap(f"Time: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in slowest)}", rest="  ")
    return lines


# --- one line for each area -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Area:
    title: str
    prefixes: tuple[str, ...]
    facts: Callable[[Mapping[str, Any]], Iterable[str]]


def _areas(report: Report, style: Style, verbose: bool) -> list[str]:
    by_prefix: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        by_prefix.setdefault(outcome.check.partition(".")[0], []).append(outcome)
    listed = {prefix for area in AREAS for prefix in area.prefixes}
    strangers = [_Area(prefix.replace("-", " ").capitalize(), (prefix,), _no_facts) for prefix in by_prefix if prefix not in listed]
    lines: list[str] = []
    told: set[str] = set()
    brief = evidence.is_pasted(report) and not verbose
    silent: list[str] = []
    for area in (*AREAS, *strangers):
        outcomes = [outcome for prefix in area.prefixes for outcome in by_prefix.get(prefix, ())]
        if brief and outcomes and _is_silent(area, outcomes, report):
            silent.append(area.title)
        elif outcomes:
            lines += _area(area, outcomes, report, style, verbose, told)
    return lines + (style.wrap(f"{UNKNOWN.boxed(style)} Not judged from this text: {', '.join(silent)}", rest="    ") if silent else [])


def _is_silent(area: _Area, outcomes: Sequence[Outcome], report: Report) -> bool:
    """Whether a text says nothing that would be worth a line of an area."""
    nothing = {outcome.status for outcome in outcomes} <= {Status.UNKNOWN, Status.NOT_APPLICABLE}
    return nothing and not any(area.facts(report.facts))


def _area(area: _Area, outcomes: Sequence[Outcome], report: Report, style: Style, verbose: bool, told_before: set[str]) -> list[str]:
    mark = _mark_of(outcomes)
    words, told = _words_of(area, outcomes, report)
    lines = style.wrap(f"[{mark.bare(style)}] {area.title}{f' ({words})' if words else ''}", rest="    ")
    boxed = f"[{mark.bare(style)}]"
    lines[0] = lines[0].replace(boxed, mark.boxed(style), 1)
    details = (
        _problem_lines(outcomes, report, style)
        + ([] if told or (evidence.is_pasted(report) and not verbose) else _unknown_lines(outcomes, style, told_before))
        + _waived_lines(outcomes, style)
    )
    if len(details) > SHOWN_LINES_OF_AREA and not verbose:
        hidden = len(details) - SHOWN_LINES_OF_AREA + 1
        details = [*details[: SHOWN_LINES_OF_AREA - 1], style.wrap(f"and {hidden} more (--verbose)", "      ")]
    for detail in details:
        lines += detail
    if verbose:
        lines += [line for outcome in outcomes for line in _outcome_lines(outcome, style)]
    return lines


def _mark_of(outcomes: Sequence[Outcome]) -> _Mark:
    statuses = {outcome.status for outcome in outcomes}
    failed = {outcome.severity for outcome in outcomes if outcome.status is Status.FAIL}
    if Severity.ERROR in failed:
        return ERROR
    if Status.CRASHED in statuses:
        return CRASH
    if Severity.WARNING in failed:
        return WARNING
    if Status.UNKNOWN in statuses:
        return UNKNOWN
    if statuses <= {Status.WAIVED, Status.NOT_APPLICABLE}:
        return WAIVED if Status.WAIVED in statuses else NOT_HERE
    return FINE


def _words_of(area: _Area, outcomes: Sequence[Outcome], report: Report) -> tuple[str, bool]:
    """What stands behind the title, and whether that already says why the area is unknown."""
    reasons = {outcome.reason for outcome in outcomes}
    statuses = {outcome.status for outcome in outcomes}
    if statuses == {Status.NOT_APPLICABLE}:
        return outcomes[0].reason if len(reasons) == 1 else "does not apply here", False
    facts = [word for word in area.facts(report.facts) if word]
    if statuses <= {Status.UNKNOWN, Status.NOT_APPLICABLE} and not facts:
        unknown = {outcome.reason for outcome in outcomes if outcome.status is Status.UNKNOWN}
        return (f"cannot tell: {unknown.pop()}", True) if len(unknown) == 1 else ("cannot tell", False)
    if facts:
        return ", ".join(facts), False
    passed = sum(outcome.status is Status.PASS for outcome in outcomes)
    return f"{counted(passed, 'check')} passed" if passed else "", False


def _problem_lines(outcomes: Sequence[Outcome], report: Report, style: Style) -> list[list[str]]:
    checks = {outcome.check for outcome in outcomes}
    lines = []
    for number, item in enumerate(report.diagnosis, 1):
        if item.check in checks:
            mark = _OF_SEVERITY[item.severity]
            lines.append(style.wrap(f"{mark.bare(style)} {number}. {item.summary}", "    ", "         ", mark.colour))
    for number, item in enumerate(report.diagnosis, 1):
        following = Counter(entry.check for entry in item.explains if entry.check in checks)
        if following:
            mark = _OF_SEVERITY[
                min((entry.severity for entry in item.explains if entry.check in checks), key=lambda severity: severity.rank)
            ]
            names = ", ".join(f"{check} ({times} times)" if times > 1 else check for check, times in following.items())
            lines.append(style.wrap(f"{mark.bare(style)} follows from {number}: {names}", "    ", "      ", mark.colour))
    for outcome in outcomes:
        if outcome.status is Status.CRASHED:
            lines.append(style.wrap(f"{CRASH.bare(style)} {outcome.check} crashed: {outcome.reason}", "    ", "      ", CRASH.colour))
    return lines


def _unknown_lines(outcomes: Sequence[Outcome], style: Style, told_before: set[str]) -> list[list[str]]:
    """Why checks cannot tell, each reason in full the first time and shortly in later areas."""
    by_reason: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status is Status.UNKNOWN:
            by_reason.setdefault(outcome.reason, []).append(outcome.check)
    lines = []
    for reason, checks in by_reason.items():
        names = ", ".join(checks[:SHOWN_CHECKS_OF_REASON])
        more = f" and {len(checks) - SHOWN_CHECKS_OF_REASON} more" if len(checks) > SHOWN_CHECKS_OF_REASON else ""
        short = f"{reason[:SHORT_REASON]}… (as above)" if reason in told_before and len(reason) > SHORT_REASON else reason
        why = short if len(short) <= LONG_REASON else f"{short[:LONG_REASON]}…"
        told_before.add(reason)
        lines.append(style.wrap(f"{UNKNOWN.bare(style)} cannot tell: {why} ({names}{more})", "    ", "      ", UNKNOWN.colour))
    return lines


def _waived_lines(outcomes: Sequence[Outcome], style: Style) -> list[list[str]]:
    return [
        style.wrap(
            f"{WAIVED.bare(style)} {'waived: ' if outcome.status is Status.WAIVED else ''}{outcome.check}: {outcome.reason}",
            "    ",
            "      ",
        )
        for outcome in outcomes
        if outcome.status is Status.WAIVED or (outcome.status is Status.FAIL and outcome.reason)
    ]


def _outcome_lines(outcome: Outcome, style: Style) -> list[str]:
    mark = _OF_STATUS.get(outcome.status) or _OF_SEVERITY[outcome.severity]
    reason = f" ({outcome.reason})" if outcome.reason and outcome.status is Status.NOT_APPLICABLE else ""
    title = f": {outcome.title}" if outcome.title else ""
    colour = "dim" if mark is NOT_HERE else "plain"
    lines = style.wrap(f"{mark.bare(style)} {outcome.check}{title}{reason}", "      ", "        ", colour)
    return [*lines, "        settle it:", *style.command(outcome.settle, "          ")] if outcome.settle else lines


# --- one problem ------------------------------------------------------------------------------------------------------


def _asked(item: Diagnosis, report: Report) -> str:
    """The options without which a check of the user's purpose, or of a service, would find nothing."""
    area, fitness = item.check.partition(".")[0], report.fitness
    if area == "service":
        return f"--service {(_value(report.facts, 'service') or {}).get('url', 'URL')} "
    if area not in ("profile", "capacity"):
        return ""
    options = [f"--profile {name}" for name in fitness.profiles if not fitness.inferred] or [f"--model {name}" for name in fitness.models]
    return "".join(f"{option} " for option in options)


def _diagnosis(number: int, item: Diagnosis, style: Style, verbose: bool, asked: str) -> list[str]:
    mark = _OF_SEVERITY[item.severity]
    word = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.INFO: "NOTE"}[item.severity]
    lead = f"{number}. {word}"
    lines = style.wrap(f"{lead} {item.check}: {item.subject}", rest="   ")
    lines[0] = lines[0].replace(lead, style.paint(style.paint(lead, mark.colour), "bold"), 1)
    lines += style.wrap(item.summary, "   ", colour="bold")
    lines += _evidence(item, style, verbose)
    if item.cause:
        lines += [_title("Cause", style), *style.wrap(item.cause, "     ")]
    lines += _what_to_do(item, style, verbose, asked)
    lines += style.wrap(f"Owner: {item.owner}", "   ", "     ") if item.owner else []
    lines += _explained(item, style, verbose)
    if verbose and item.fleet:
        words = f"DCGM severity {item.fleet.dcgm_severity}, NVSentinel recommendedAction {item.fleet.recommended_action}"
        lines += [_title("For fleet tools", style), *style.wrap(words, "     ", "       ")]
    if verbose and item.sources:
        lines += [_title("Sources", style), *(line for source in item.sources for line in style.wrap(source, "     ", "       "))]
    return lines


def _title(text: str, style: Style) -> str:
    return f"   {style.paint(text, 'bold')}"


def _evidence(item: Diagnosis, style: Style, verbose: bool) -> list[str]:
    if not item.evidence and not item.expected:
        return []
    lines = [_title("How we know", style)]
    shown = item.evidence if verbose else item.evidence[:SHOWN_EVIDENCE]
    for entry in shown:
        lines += style.wrap(f"{entry.where} = {entry.value}" if entry.where else entry.value, "     ", "       ")
    if len(shown) < len(item.evidence):
        lines += style.wrap(f"and {len(item.evidence) - len(shown)} more (--verbose)", "     ")
    if item.expected:
        lines += style.wrap(f"expected: {item.expected}", "     ", "       ")
    return lines


def _what_to_do(item: Diagnosis, style: Style, verbose: bool, asked: str) -> list[str]:
    remedies = item.remedies if verbose else item.remedies[:SHOWN_REMEDIES]
    lines = [_title("What to do" if len(remedies) < 2 else "What to do (the first that fits)", style)] if remedies else []
    common = _common_verify(remedies)
    for number, remedy in enumerate(remedies, 1):
        lines += [""] if number > 1 else []
        lines += remedy_lines(number, remedy, style, verbose)
        if remedy.verify and not common:
            lines += ["        verify:", *verify_lines(remedy.verify, style, "          ")]
    if len(remedies) < len(item.remedies):
        lines += style.wrap(f"and {counted(len(item.remedies) - len(remedies), 'more way')} (--verbose)", "     ")
    if not remedies and item.severity is Severity.INFO:
        return lines
    lines.append(_title("How to see that it is fixed", style))
    if common:
        lines += verify_lines(common, style, "     ")
    if common is None or not (f"--only {item.check}" in common.command or common.command.startswith("dsdoctor check --profile")):
        lines += style.command(f"dsdoctor check {asked}--only {item.check}", "     ")
    return lines


def _common_verify(remedies: Sequence[Remedy]) -> Verify | None:
    """The verification that all remedies share, so that it is shown once."""
    found = {(remedy.verify.command, remedy.verify.prints) if remedy.verify else None for remedy in remedies}
    return remedies[0].verify if len(found) == 1 else None


def remedy_lines(number: int, remedy: Remedy, style: Style, verbose: bool) -> list[str]:
    """One way to mend a problem, without its verification."""
    lines = style.wrap(f"{number}) {remedy.summary}", "     ", "        ")
    indent = "        "
    if remedy.when:
        lines += style.wrap(f"when: {remedy.when}", indent, indent + "  ")
    if remedy.not_when:
        lines += style.wrap(f"not when: {remedy.not_when}", indent, indent + "  ")
    lines += style.wrap(f"cost: {cost_words(remedy)}", indent, indent + "  ")
    if remedy.risk:
        lines += style.wrap(f"risk: {remedy.risk}", indent, indent + "  ", "yellow")
    if remedy.inspect:
        lines += style.wrap("look first:", indent)
        lines += [line for command in remedy.inspect for line in style.command(command, indent + "  ")]
        lines += [f"{indent}then:"] if remedy.commands else []
    lines += [line for command in remedy.commands for line in style.command(command, indent + "  ")]
    lines += [line for step in remedy.steps if step != remedy.summary for line in style.wrap(f"- {step}", indent, indent + "  ")]
    if verbose and remedy.sources:
        lines += [line for source in remedy.sources for line in style.wrap(f"source: {source}", indent, indent + "  ", "dim")]
    return lines


def cost_words(remedy: Remedy) -> str:
    """What following a remedy takes, in words: root, a drained node, and what is interrupted."""
    interrupts = {
        Disruption.NONE: "interrupts nothing",
        Disruption.RESTART_PROCESS: "restarts the process or service",
        Disruption.RESET_GPU: "resets the GPU, which ends all work on it",
        Disruption.REBOOT: "reboots the node",
        Disruption.REPLACE_HARDWARE: "replaces hardware",
    }[remedy.disruption]
    return ", ".join([*(["needs root"] if remedy.needs_root else []), *(["drain the node first"] if remedy.drain else []), interrupts])


def verify_lines(verify: Verify, style: Style, indent: str) -> list[str]:
    """The command that shows that it is mended, and what it prints then."""
    return style.command(verify.command, indent) + (style.wrap(f"prints: {verify.prints}", indent, f"{indent}  ") if verify.prints else [])


def _explained(item: Diagnosis, style: Style, verbose: bool) -> list[str]:
    """The consequences, those that say the same on one line."""
    if not item.explains:
        return []
    groups: dict[tuple[Severity, str], list[str]] = {}
    for entry in item.explains:
        groups.setdefault((entry.severity, entry.summary), []).append(f"{entry.check} ({entry.subject})")
    shown = list(groups.items()) if verbose else list(groups.items())[:SHOWN_CONSEQUENCES]
    lines = [_title(f"This explains {counted(len(item.explains), 'more finding')}", style)]
    for (severity, summary), names in shown:
        lines += style.wrap(f"{_OF_SEVERITY[severity].bare(style)} {', '.join(names)}: {summary}", "     ", "       ")
    hidden = len(item.explains) - sum(len(names) for _, names in shown)
    return lines + (style.wrap(f"and {hidden} more (--verbose)", "     ") if hidden else [])


# --- short facts behind the title of an area --------------------------------------------------------------------------


def _value(facts: Mapping[str, Any], section: str) -> Any:
    """The plain value of a section when it is known, else None."""
    found = facts.get(section) or {}
    return found.get("value") if found.get("state") == "known" else None


def _no_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    return ()


def _driver_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    module = _value(facts, "kernel_driver") or {}
    versions = _value(facts, "nvml_versions") or {}
    yield module.get("version") or versions.get("driver", "")
    yield f"CUDA {versions['cuda_driver']}" if versions.get("cuda_driver") else ""
    yield f"{module['flavour']} kernel module" if module.get("flavour") else ""


def _fabric_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    for service in _value(facts, "services") or ():
        if service["name"] == "nvidia-fabricmanager" and service["state"] not in ("not-installed", "unknown"):
            yield f"fabric manager {service['state']}"
    states = Counter(gpu["fabric"]["state"] for gpu in _value(facts, "gpus") or () if gpu.get("fabric"))
    if set(states) == {"not-supported"}:
        yield "no NVSwitch fabric"
    else:
        words = {"completed": "registered", "in-progress": "registering", "not-started": "not registered"}
        for state, number in states.items():
            yield f"{counted(number, 'GPU')} {words[state]}" if state in words else ""


def _gpu_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    gpus = _value(facts, "gpus") or ()
    for (name, memory), number in Counter((gpu.get("name") or "GPU", gpu.get("memory_total_bytes")) for gpu in gpus).items():
        yield f"{number} × {name}{f' with {_size(memory)}' if memory else ''}"
    if isinstance(gpus, list) and not gpus:
        yield "none found"


def _pcie_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    links = [gpu["pcie"] for gpu in _value(facts, "gpus") or () if gpu.get("pcie")]
    for (generation, width), number in Counter((link.get("max_generation"), link.get("max_width")) for link in links).items():
        if generation and width:
            yield f"{number} × Gen{generation} x{width}"
    iommu = _value(facts, "iommu") or {}
    yield f"IOMMU {iommu['mode']}" if iommu.get("mode") else ""


def _cuda_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    runtime = _value(facts, "torch_runtime") or {}
    mapped = {item["family"]: item.get("version", "") for item in _value(facts, "mapped_libraries") or ()}
    for family, title, loaded in (("cudnn", "cuDNN", "cudnn_version"), ("nccl", "NCCL", "nccl_loaded")):
        version = runtime.get(loaded) or mapped.get(family)
        copies = sorted(
            {item["version"] for item in _value(facts, "cuda_libraries") or () if item["family"] == family and item.get("version")}
        )
        yield f"{title} {version}" if version else f"{title} {' and '.join(copies)} on disk" if copies else ""


def _package_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    packages = {item["name"]: item["version"] for item in _value(facts, "packages") or ()}
    build = _value(facts, "torch_build") or {}
    if build.get("version"):
        packages["torch"] = build["version"]
    for name in ("torch", "triton", "vllm", "sglang", "flash-attn", "transformers"):
        yield f"{name} {packages[name]}" if name in packages else ""


def _kernel_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    packages = {item["name"]: item["version"] for item in _value(facts, "packages") or ()}
    for name in ("flashinfer-python", "fa3-fwd", "flash-attn-3", "flash-attn-4", "deep-gemm", "flash-mla", "deep-ep"):
        yield f"{name} {packages[name]}" if name in packages else ""


def _smoke_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    shown = {"bf16-rate": "BF16", "fp8-rate": "FP8", "fa3-rate": "attention", "memory-copy": "memory", "pcie": "PCIe"}
    best: dict[str, tuple[float, str]] = {}
    for result in _value(facts, "smoke") or ():
        values = result.get("values") or {}
        for value, unit in (("tflops", "TFLOP/s"), ("gb_per_s", "GB/s")):
            if result["test"] in shown and value in values and values[value] > best.get(result["test"], (0.0, ""))[0]:
                best[result["test"]] = (values[value], unit)
    for test, title in shown.items():
        if test in best:
            yield f"{title} {best[test][0]:.0f} {best[test][1]}"


def _toolchain_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    toolkits = _value(facts, "cuda_toolkits") or ()
    chosen = next((item for item in toolkits if item.get("is_cuda_home")), None) or next(iter(toolkits), None)
    yield (
        f"CUDA {chosen.get('cuda_version') or chosen.get('version')}"
        if chosen and (chosen.get("cuda_version") or chosen.get("version"))
        else ""
    )
    for compiler in (_value(facts, "host_compilers") or ())[:2]:
        yield f"{compiler['name']} {compiler['version']}" if compiler.get("version") else ""


def _system_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    platform, libc = _value(facts, "platform") or {}, _value(facts, "libc") or {}
    yield platform.get("os_name") or " ".join(part for part in (platform.get("os_id", ""), platform.get("os_version", "")) if part)
    yield platform.get("architecture", "")
    yield f"{libc['family']} {libc['version']}" if libc else ""
    memory, shared = _value(facts, "memory") or {}, _value(facts, "shared_memory") or {}
    yield f"{_size(memory['total_bytes'])} memory" if memory.get("total_bytes") else ""
    yield f"/dev/shm {_size(shared['total_bytes'])}" if shared.get("total_bytes") else ""


def _container_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    container = _value(facts, "container") or {}
    yield container.get("runtime", "")
    yield "Kubernetes" if container.get("kubernetes") else ""
    yield f"WSL {_value(facts, 'wsl')['version']}" if _value(facts, "wsl") else ""


def _environment_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    variables = _value(facts, "environment")
    yield f"{counted(len(variables), 'variable')} read" if variables is not None else ""


def _network_facts(facts: Mapping[str, Any]) -> Iterable[str]:
    cards = [item for item in _value(facts, "pci_devices") or () if item["kind"] == "nic"]
    yield ", ".join(
        f"{number} × {driver}" for driver, number in Counter(item.get("driver") or "card without driver" for item in cards).items()
    )


AREAS = (
    _Area("Driver", ("driver",), _driver_facts),
    _Area("Fabric", ("fabric",), _fabric_facts),
    _Area("GPUs", ("gpu",), _gpu_facts),
    _Area("PCI Express", ("pcie",), _pcie_facts),
    _Area("CUDA libraries", ("cuda", "cudnn", "nccl"), _cuda_facts),
    _Area("PyTorch and packages", ("torch", "package"), _package_facts),
    _Area("Kernel libraries", ("attention", "flashinfer", "deepgemm", "flashmla", "deepep"), _kernel_facts),
    _Area("Toolchain", ("toolchain",), _toolchain_facts),
    _Area("System", ("system",), _system_facts),
    _Area("Container", ("container", "wsl"), _container_facts),
    _Area("Environment", ("env",), _environment_facts),
    _Area("Network", ("network", "rdma"), _network_facts),
    _Area("Smoke tests", ("smoke",), _smoke_facts),
    _Area("Profile", ("profile",), _no_facts),
    _Area("Capacity", ("capacity",), _no_facts),
    _Area("Service", ("service",), _no_facts),
    _Area("What this site expects", ("expect",), _no_facts),
)


def _size(size_bytes: int) -> str:
    """64 MiB, 140 GiB."""
    return f"{size_bytes / 2**30:.0f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
