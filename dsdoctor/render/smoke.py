"""The table of GPU tests for a person: test, implementation, GPU, what came out, share of the peak."""

from __future__ import annotations

from collections.abc import Sequence

from dsdoctor.render.terminal import Style
from dsdoctor.smoke_table import SmokeRow

COLOURS = {"ran": "green", "refused": "dim", "skipped": "dim", "error": "red", "crash": "red", "hang": "red"}


def render(rows: Sequence[SmokeRow], *, width: int, colour: bool, unicode: bool) -> str:
    """The rows as aligned text; a reason stands under its row. Without rows a sentence."""
    style = Style(width=width, colour=colour, unicode=unicode)
    if not rows:
        return "No GPU test ran."
    test_width = max(len(row.test) for row in rows)
    path_width = min(max(len(row.path) for row in rows), 30)
    several = len({row.gpu for row in rows if row.gpu is not None}) > 1
    lines = []
    for row in rows:
        gpu = f"GPU {row.gpu if row.gpu is not None else '-':<3}" if several else ""
        share = f" = {row.share_of_peak:.0%} of {row.peak}" if row.share_of_peak is not None else ""
        figures = f"{', '.join(row.figures)}{share}" or ("ran" if row.outcome == "ran" else "")
        outcome = "" if row.outcome == "ran" else row.outcome
        head = f"{row.test:<{test_width}}  {style.clean(row.path)[:path_width]:<{path_width}}  {gpu}"
        lines.append(
            f"{head}{style.paint(outcome, COLOURS.get(row.outcome, 'plain'))}{' ' if outcome and figures else ''}{figures}".rstrip()
        )
        if row.reason:
            lines += style.wrap(row.reason, "    ", "    ", "dim")
    return "\n".join(lines)
