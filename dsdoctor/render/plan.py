"""A plan for a person: the verdict in three lines, the arithmetic, what would do, what is not known; and as JSON."""

from __future__ import annotations

from dsdoctor.plan import Plan
from dsdoctor.render.json import complete, to_text
from dsdoctor.render.terminal import ERROR, FINE, UNKNOWN, WARNING, Style

SCHEMA = "dsdoctor.plan/1"
SHOWN_ALTERNATIVES = 8
_MARKS = {"fits": FINE, "tight": WARNING, "no": ERROR, "unknown": UNKNOWN}


def document(plan: Plan) -> str:
    """The plan as one JSON document."""
    return to_text({"schema": SCHEMA, "fits": plan.fits, **complete(plan)})


def render(plan: Plan, *, width: int, colour: bool, unicode: bool = True) -> str:
    """The plan as text, without a newline at its end."""
    style = Style(width=width, colour=colour, unicode=unicode)
    mark = ERROR if plan.problems else _MARKS[plan.placed.verdict]
    lines = [*style.wrap(f"dsdoctor plan · knowledge of {plan.knowledge_date}"), ""]
    lines += style.wrap(plan.summary[0], f"{mark.bare(style)} ", "  ", "bold")
    lines += [line for text in plan.summary[1:] for line in style.wrap(text, "  ", "    ")]
    if plan.problems:
        lines += ["", style.paint("The checkpoint contradicts itself", "bold")]
        lines += [line for text in plan.problems for line in style.wrap(f"- {text}", "  ", "    ")]
    lines += ["", style.paint("Arithmetic", "bold"), *_table(plan, style)]
    if plan.alternatives:
        lines += ["", style.paint("The fewest GPUs of each product on which it fits (TP over all)", "bold")]
        for item in plan.alternatives[:SHOWN_ALTERNATIVES]:
            lines += style.wrap(f"{item.told}: {item.tokens:,} tokens" if item.tokens is not None else item.told, "  ", "    ")
        more = len(plan.alternatives) - SHOWN_ALTERNATIVES
        lines += style.wrap(f"and {more} more with --format json", "  ", "    ") if more > 0 else []
    if plan.unknown:
        lines += ["", style.paint("Not known", "bold"), *(line for text in plan.unknown for line in style.wrap(f"- {text}", "  ", "    "))]
    if plan.notes:
        lines += ["", *(line for text in plan.notes for line in style.wrap(f"note: {text}", "", "      "))]
    return "\n".join(lines)


def _table(plan: Plan, style: Style) -> list[str]:
    names = max(len(line.what) for line in plan.arithmetic)
    figures = max(len(line.figure) for line in plan.arithmetic)
    lines: list[str] = []
    for line in plan.arithmetic:
        first = f"  {line.what:<{names}}  {line.figure:>{figures}}  "
        lines += style.wrap(line.how, first, " " * len(first)) if line.how else [first.rstrip()]
    return lines
