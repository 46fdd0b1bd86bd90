"""The answer on a fleet as one HTML page that needs nothing else: no script, no address, light or dark with the reader's system."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dsdoctor.findings import Severity, counted
from dsdoctor.fleet.answer import Consensus, Fleet, Group, Problem, Work
from dsdoctor.render.account import block, line
from dsdoctor.render.fleet import amounts, gathered, problem_amounts, shortened
from dsdoctor.render.html import CSS, POLICY, escaped
from dsdoctor.render.terminal import cost_words

SHOWN_NODES = 500
"""Rows of the table of nodes; the CSV has all."""
PICTURED_NODES = 12_000
"""A page with more squares opens slowly."""
_CSS = """
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--edge); border-radius: 8px; padding: .4rem .9rem; background: var(--panel); }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.2; }
.map { display: flex; flex-wrap: wrap; gap: 2px; margin: .5rem 0; } .map i { width: 11px; height: 11px; border-radius: 2px; background: var(--fine); opacity: .55; }
.map.small { gap: 1px; } .map.small i { width: 6px; height: 6px; border-radius: 1px; }
.map .e { background: var(--error); opacity: 1; outline: 1px solid var(--error); } .map .w { background: var(--warning); opacity: 1; }
.map .n { background: transparent; opacity: 1; outline: 1px solid var(--error); outline-offset: -1px; } .map .u { background: var(--edge); opacity: 1; }
.key { display: inline-flex; align-items: center; gap: .3rem; margin-right: 1rem; } .key .map { margin: 0; }
.hosts { background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; padding: .3rem .6rem; display: block; margin: .3rem 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 15px; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--edge); overflow-wrap: anywhere; min-width: 5rem; }
.bar { display: inline-block; width: 5rem; height: .5rem; border-radius: 4px; background: var(--warning); margin-right: .5rem; vertical-align: middle; overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--fine); }
small { font-weight: normal; font-size: 1rem; } .number { white-space: nowrap; }
"""


def render(fleet: Fleet) -> str:
    """The page."""
    title = line(f"dsdoctor: fleet of {counted(fleet.counts.nodes, 'node')}, {fleet.verdict}")
    serious = gathered([problem for problem in fleet.problems if problem.severity is not Severity.INFO])
    notes = [problem for problem in fleet.problems if problem.severity is Severity.INFO]
    parts = [
        f'<h1>dsdoctor: <span class="{fleet.verdict}">{fleet.verdict}</span></h1>',
        f'<p class="dim">{escaped(amounts(fleet))}; dsdoctor {escaped(fleet.dsdoctor)}, knowledge of {escaped(fleet.knowledge.date)}</p>',
        _tiles(fleet),
        *(f'<p class="warning">{escaped(notice)}</p>' for notice in fleet.notices),
        _map(fleet),
        f'<h2>Problems <small class="dim">{escaped(problem_amounts(fleet))}</small></h2>'
        if fleet.problems
        else "<p>No problem was found in what was read.</p>",
        *(_problem(group) for group in serious),
        _folded(f"{counted(len(notes), 'note')}: worth knowing, nothing is wrong", (_note(problem) for problem in notes)),
        '<h2>What to do <small class="dim">from what disturbs least</small></h2>' if fleet.work else "",
        *(_work(number, item) for number, item in enumerate(fleet.work, 1)),
        "<h2>What nodes have in common</h2>" if fleet.groups else "",
        *(_group(group) for group in fleet.groups),
        _nodes(fleet),
        _rejected(fleet),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>{escape(title)}</title>\n<style>{CSS}{_CSS}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _tiles(fleet: Fleet) -> str:
    counts = fleet.counts
    tiles = (
        (counts.nodes, "nodes", ""), (counts.healthy, "healthy", "healthy"), (counts.degraded, "degraded", "degraded"),
        (counts.broken, "broken", "broken"), (counts.unknown, "not known", "unknown"), (counts.no_report, "without a report", "error"),
    )  # fmt: skip
    rows = "".join(f'<li><b class="{style}">{number:,}</b>{word}</li>' for number, word, style in tiles if number or word == "nodes")
    return f'<ul class="tiles">{rows}</ul>'


def _map(fleet: Fleet) -> str:
    """A square for each node, in order of name; a node that only the comparison finds odd is marked too."""
    if not 1 < len(fleet.nodes) <= PICTURED_NODES:
        return ""
    severity = {problem.number: problem.severity for problem in fleet.problems}
    squares = []
    for node in fleet.nodes:
        found = {severity[number] for number in node.problems}
        style = (
            "n" if node.verdict == "no-report" else "e" if Severity.ERROR in found or node.verdict == "broken"
            else "w" if Severity.WARNING in found or node.verdict == "degraded" else "u" if node.verdict == "unknown" else ""
        )  # fmt: skip
        squares.append(f'<i class="{style}" title="{escaped(node.name)}"></i>' if style else "<i></i>")
    small = " small" if len(fleet.nodes) > 2000 else ""
    keys = (("", "nothing odd"), ("w", "warning"), ("e", "error"), ("n", "no report"), ("u", "not known"))
    used = {square.partition('class="')[2][:1] for square in squares}
    legend = "".join(
        f'<span class="key"><span class="map"><i class="{style}"></i></span>{word}</span>' for style, word in keys if style in used
    )
    return f'<h2>Nodes <small class="dim">in order of name</small></h2>\n<p class="dim">{legend}</p>\n<div class="map{small}" aria-hidden="true">{"".join(squares)}</div>'


def _problem(group: tuple[Problem, ...]) -> str:
    first = group[0]
    severity = first.severity.value
    place = f", {escaped(first.group)}" if first.group and first.origin == "fleet" else ""
    head = first.summary if len(group) == 1 else f"{counted(len(group), 'fact')} differ on the same {counted(first.nodes, 'node')}"
    details = first.details if len({detail.text for detail in first.details}) > 1 else ()
    more = f'<li class="dim">and on {first.nodes - len(details)} more</li>' if details and first.nodes > len(details) else ""
    parts = [
        f'<h3>{first.number}. <span class="{severity}">{severity}</span>: {escaped(head)}</h3>',
        f'<p class="dim"><code>{escaped(first.check)}</code>, {counted(first.nodes, "node")}{place}</p>',
        f'<code class="hosts">{_hosts(first.hosts)}</code>',
        f"<ul>{''.join(f'<li>{escaped(problem.summary)}</li>' for problem in group)}</ul>" if len(group) > 1 else "",
        f"<p>{escaped(first.cause)}</p>" if first.cause else "",
        f"<p>Expected: {escaped(first.expected)}</p>" if first.expected and first.origin == "node" else "",
        f"<ul>{''.join(f'<li><code>{escaped(detail.node)}</code>: {escaped(detail.text)}</li>' for detail in details)}{more}</ul>"
        if details
        else "",
    ]
    return "\n".join(["<article>", *(part for part in parts if part), "</article>"])


def _note(problem: Problem) -> str:
    subject = f" {escaped(problem.subject)}" if problem.subject else ""
    return f"<code>{escaped(problem.check)}</code>{subject}, {counted(problem.nodes, 'node')}: {escaped(problem.summary)}"


def _work(number: int, item: Work) -> str:
    remedy = item.remedy
    commands = "\n".join(
        part.rstrip() for command in (*remedy.inspect, *remedy.commands) for part in block(command).splitlines() if part.strip()
    )
    parts = [
        f"<h3>{number}. {escaped(remedy.summary)}</h3>",
        f'<p class="dim">for {", ".join(f"<code>{escaped(check)}</code>" for check in item.checks)}, {counted(item.nodes, "node")}; {escaped(cost_words(remedy))}</p>',
        f'<code class="hosts">{_hosts(item.hosts)}</code>',
        *(
            f"<p>{head}: {escaped(text)}</p>"
            for head, text in (("When", remedy.when), ("Not when", remedy.not_when), ("Risk", remedy.risk))
            if text
        ),
        f"<pre>{escape(commands)}</pre>" if commands else "",
        f"<ul>{''.join(f'<li>{escaped(step)}</li>' for step in remedy.steps if step != remedy.summary)}</ul>" if remedy.steps else "",
    ]
    if remedy.verify:
        prints = f", which then prints <code>{escaped(remedy.verify.prints)}</code>" if remedy.verify.prints else ""
        parts.append(f"<p>To see that it is mended{prints}:</p>\n<pre>{escape(block(remedy.verify.command))}</pre>")
    return "\n".join(["<article>", *(part for part in parts if part), "</article>"])


def _group(group: Group) -> str:
    differing = [fact for fact in group.facts if fact.others]
    same = [fact for fact in group.facts if not fact.others]
    rows = "".join(_row(fact) for fact in differing)
    table = (
        f'<div class="scroll"><table><tr><th>Fact</th><th>Most nodes</th><th>Agree</th><th>Others</th></tr>{rows}</table></div>'
        if rows
        else "<p>They are the same in all that was compared.</p>"
    )
    parts = [
        f'<h3>{escaped(group.name)} <small class="dim">{counted(group.nodes, "node")}</small></h3>',
        f'<code class="hosts">{_hosts(group.hosts)}</code>',
        table if group.nodes > 1 else "<p>Alone of its kind, so compared with nothing.</p>",
        _folded(
            f"{counted(len(same), 'fact')} with one value",
            (f"{escaped(fact.title)}: <code>{escaped(fact.value or '')}</code>" for fact in same),
        ),
        f'<p class="dim">Not compared, since they differ by their nature: {escaped(", ".join(group.varying))}</p>' if group.varying else "",
    ]
    return "\n".join(["<article>", *(part for part in parts if part), "</article>"])


def _row(fact: Consensus) -> str:
    share = round(100 * fact.agree / fact.known) if fact.known else 0
    others = "<br>".join(f"<code>{escaped(item.value)}</code> on {_hosts(item.hosts)}" for item in fact.others)
    value = f"<code>{escaped(fact.value)}</code>" if fact.value is not None else '<span class="warning">none is that of most</span>'
    agree = f'<span class="bar"><span style="width:{share}%"></span></span>{fact.agree:,} of {fact.known:,}'
    return f'<tr><td>{escaped(fact.title)}</td><td>{value}</td><td class="number">{agree}</td><td>{others}</td></tr>'


def _nodes(fleet: Fleet) -> str:
    by_number = {problem.number: problem for problem in fleet.problems}
    serious = {number for number, problem in by_number.items() if problem.severity is not Severity.INFO}
    odd = [node for node in fleet.nodes if node.verdict not in ("healthy", "degraded") or serious & set(node.problems)]
    if not odd:
        return ""
    rows = []
    for node in odd[:SHOWN_NODES]:
        texts = [f"{number}. {escaped(line(_of_node(by_number[number], node.name), 120))}" for number in node.problems if number in serious]
        style = "error" if node.verdict == "no-report" else node.verdict
        rows.append(
            f'<tr><td><code>{escaped(node.name)}</code></td><td class="{style}">{escaped(node.verdict.replace("-", " "))}</td>'
            f"<td>{'<br>'.join(texts) or escaped(node.reason)}</td></tr>"
        )
    left = f'<p class="dim">and {len(odd) - len(rows)} more, in nodes.csv</p>' if len(odd) > len(rows) else ""
    table = f'<div class="scroll"><table><tr><th>Node</th><th>Own verdict</th><th>Problems</th></tr>{"".join(rows)}</table></div>'
    return f'<h2>Nodes to look at <small class="dim">{len(odd):,}</small></h2>\n{table}\n{left}'


def _of_node(problem: Problem, name: str) -> str:
    """The problem as this node has it, where that is more than all of them have."""
    own = next((detail.text for detail in problem.details if detail.node == name), "")
    return f"{problem.subject}: {own}" if own and problem.check in ("fleet.slow-gpu", "fleet.clock-skew") else problem.summary


def _rejected(fleet: Fleet) -> str:
    rows = []
    for item in fleet.rejected:
        more = f" and {item.count - len(item.sources)} more" if item.count > len(item.sources) else ""
        rows.append(f"<code>{escaped(', '.join(item.sources))}</code>{more}: {escaped(item.reason)}")
    return f"<h2>Left out</h2>\n<ul>{''.join(f'<li>{row}</li>' for row in rows)}</ul>" if rows else ""


def _hosts(hosts: str) -> str:
    """A list of nodes that may break after its commas, and is copied without a break."""
    return escaped(shortened(hosts)).replace(",", ",<wbr>")


def _folded(head: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f"<details><summary>{head}</summary><ul>{rows}</ul></details>" if rows else ""
