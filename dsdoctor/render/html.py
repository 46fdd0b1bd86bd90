"""The report as one HTML page that needs nothing else: no script, no address, light or dark with the reader's system, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dsdoctor.findings import Diagnosis, Outcome, Remedy, Report, Status
from dsdoctor.render.account import amounts, block, line, open_questions
from dsdoctor.render.terminal import cost_words

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORDS = {Status.NOT_APPLICABLE: "does not apply", Status.UNKNOWN: "could not tell"}
CSS = """
:root { color-scheme: light dark; --ground: #fff; --panel: #f6f8fa; --edge: #d1d9e0; --text: #1f2328; --dim: #59636e;
  --error: #cf222e; --warning: #9a6700; --info: #0969da; --fine: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --panel: #151b23; --edge: #3d444d; --text: #e6edf3; --dim: #9198a1;
  --error: #f85149; --warning: #d29922; --info: #4493f8; --fine: #3fb950; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { margin: 0; } h2, h3, h4 { line-height: 1.25; margin: 1rem 0 .5rem; } h2 { font-size: 1.25rem; } h3 { font-size: 1.05rem; }
a { color: inherit; text-underline-offset: .2em; text-decoration-color: var(--edge); } ol { padding-left: 1.5rem; }
.dim { color: var(--dim); } .error, .broken, .fail, .crashed { color: var(--error); } .info { color: var(--info); }
.warning, .degraded, .unknown { color: var(--warning); } .healthy, .pass { color: var(--fine); }
article { border: 1px solid var(--edge); border-radius: 8px; padding: 0 1rem 1rem; margin: 1rem 0; }
pre { background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; padding: .6rem; overflow-x: auto; overflow-wrap: normal; }
figure { position: relative; left: 50%; width: max-content; min-width: 100%; max-width: min(100vw - 2rem, 90rem); margin: 1rem 0;
  transform: translateX(-50%); overflow-x: auto; }
figure svg { display: block; height: auto; border: 1px solid var(--edge); border-radius: 8px; }
@media (min-width: 60rem) { figure svg { max-width: 100%; } }
figcaption { color: var(--dim); padding-top: .3rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; } ul { padding-left: 1.2rem; } summary { cursor: pointer; padding: .3rem 0; }
"""


def render(report: Report) -> str:
    """The page."""
    title = escaped(f"dsdoctor: {report.verdict.value}, {report.origin.label}")
    parts = [
        f'<h1>dsdoctor: <span class="{report.verdict.value}">{report.verdict.value}</span></h1>',
        _head(report),
        *(f'<p class="{notice.severity.value}">{escaped(notice.text)}</p>' for notice in report.notices),
        _overview(report),
        _wiring(report),
        *(_diagnosis(number, item) for number, item in enumerate(report.diagnosis, 1)),
        _nothing(report),
        _paragraph("", open_questions(report)),
        "<h2>All checks</h2>",
        *(_outcomes(status, report.outcomes) for status in Status),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>{title}</title>\n<style>{CSS}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    words = f"{report.origin.label}, {report.taken_at}, dsdoctor {report.dsdoctor}, knowledge of {report.knowledge.date}"
    python = f"<br>Python: {escaped(report.target)}" if report.target else ""
    fitness = f"<br>For: {escaped(report.fitness.told)}" if report.fitness.told else ""
    return f'<p class="dim">{escaped(words)}{python}{fitness}</p>\n<p><strong>{escaped(amounts(report.counts))}</strong></p>'


def _overview(report: Report) -> str:
    """Every finding in a line, as the way to it."""
    rows = "".join(
        f'<li><span class="{item.severity.value}">{item.severity.value}</span>: <a href="#finding-{number}">{escaped(item.summary)}</a></li>'
        for number, item in enumerate(report.diagnosis, 1)
    )
    return f"<ol>{rows}</ol>" if len(report.diagnosis) > 1 else ""


def _wiring(report: Report) -> str:
    """The picture keeps a size at which its words can be read: on a phone it is moved sideways."""
    from dsdoctor.render import topology_svg, wiring

    shown = wiring.of(report)
    if shown is None:
        return ""
    unseen = wiring.unseen(report, shown)
    words = ["Devices that a finding names carry its number."] if shown.faults else []
    words += [f"Not in the picture: {', '.join(unseen)}."] if unseen else []
    caption = f"<figcaption>{escaped(' '.join(words))}</figcaption>" if words else ""
    return f'<h2>Wiring</h2>\n<figure tabindex="0">{topology_svg.svg(shown)}{caption}</figure>'


def _nothing(report: Report) -> str:
    return "" if report.diagnosis else "<p>No problem was found in what was read; that is not the same as a healthy machine.</p>"


def _diagnosis(number: int, item: Diagnosis) -> str:
    severity = item.severity.value
    evidence = [f"{_code(entry.where)}: {_code(entry.value)}" if entry.where else _code(entry.value) for entry in item.evidence]
    follows = [f"{_code(entry.check)} ({escaped(entry.subject)}): {escaped(entry.summary)}" for entry in item.explains]
    parts = [
        f'<h2>{number}. <span class="{severity}">{severity}</span>: {escaped(item.summary)}</h2>',
        f'<p class="dim">{_code(item.check)}, {escaped(item.subject)}</p>',
        _paragraph("", item.cause),
        _list("How we know", evidence),
        _paragraph("Expected: ", item.expected),
        *(_remedy(place, remedy) for place, remedy in enumerate(item.remedies, 1)),
        _paragraph("Owner: ", item.owner),
        _list("This explains", follows),
        _folded("Sources", [escaped(source) for source in item.sources]),
    ]
    return "\n".join([f'<article id="finding-{number}">', *(part for part in parts if part), "</article>"])


def _remedy(number: int, remedy: Remedy) -> str:
    commands = "\n".join(part.rstrip() for command in remedy.commands for part in block(command).splitlines() if part.strip())
    parts = [
        f"<h3>What to do, {number}: {escaped(remedy.summary)}</h3>",
        _paragraph("", "; ".join([*([f"when {remedy.when}"] if remedy.when else []), cost_words(remedy)])),
        _paragraph("Not when: ", remedy.not_when),
        _paragraph("Risk: ", remedy.risk),
        f"<pre>{escape(commands)}</pre>" if commands else "",
        _list("", [escaped(step) for step in remedy.steps if step != remedy.summary]),
    ]
    if remedy.verify:
        shows = f", which then prints {_code(remedy.verify.prints)}" if remedy.verify.prints else ""
        parts.append(f"<p>To see that it is mended{shows}:</p>\n<pre>{escape(block(remedy.verify.command))}</pre>")
    return "\n".join(part for part in parts if part)


def _outcomes(status: Status, outcomes: Iterable[Outcome]) -> str:
    rows = [
        f"{_code(outcome.check)}" + (f": {escaped(outcome.reason)}" if outcome.reason else "")
        + (f"; this would settle it: {_code(outcome.settle)}" if outcome.settle else "")
        for outcome in outcomes
        if outcome.status is status
    ]  # fmt: skip
    return _folded(f'<span class="{status.value}">{_WORDS.get(status, status.value)}</span>: {len(rows)}', rows) if rows else ""


def _paragraph(head: str, text: str) -> str:
    return f"<p>{head}{escaped(text)}</p>" if text else ""


def _list(head: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f"{f'<h4>{head}</h4>' if head else ''}<ul>{rows}</ul>" if rows else ""


def _folded(head: str, items: Iterable[str]) -> str:
    rows = _list("", items)
    return f"<details><summary>{head}</summary>{rows}</details>" if rows else ""


def _code(text: str) -> str:
    return f"<code>{escaped(text)}</code>"


def escaped(text: str) -> str:
    """A text of the report as the page may hold it."""
    return escape(line(text, 2000))
