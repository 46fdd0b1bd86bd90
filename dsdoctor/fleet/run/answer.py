"""What a node answered: the report in what its command printed, or why there is none."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from dsdoctor.fleet.run.engine import NoAnswer, one_line
from dsdoctor.sources.child import Ended

REPORT = "dsdoctor.report/"
ERROR = "dsdoctor.error/"
BEGINNINGS = 50
"""How many lines may look like the beginning of a document: banners of a login shell come before it, messages of a container log after it."""
NOT_FOUND = 127
TROUBLE = re.compile(
    r"error|cannot|could not|can't|unable|failed|denied|refused|not found|no such|timed out|invalid|unknown", re.IGNORECASE
)
SUM = re.compile(r"exited with exit code \d+", re.IGNORECASE)
"""How launchers repeat an exit status that is told anyway."""


def report_of(ended: Ended) -> dict[str, Any]:
    """The report that a command printed, whatever stands around it. Raises NoAnswer with the reason when there is none."""
    found = document_in(ended.stdout)
    schema = str((found or {}).get("schema", ""))
    if found is not None and schema.startswith(REPORT):
        return found
    if found is not None and schema.startswith(ERROR):
        raise NoAnswer(one_line(f"dsdoctor made no report there: {found.get('error', 'no reason given')}"))
    raise NoAnswer(why_not(ended))


def document_in(text: str) -> dict[str, Any] | None:
    """The document of dsdoctor in a text: a report before an error, else nothing."""
    decoder = json.JSONDecoder()
    found = None
    for number, start in enumerate(re.finditer(r"^\s*\{", text, re.MULTILINE)):
        if number == BEGINNINGS:
            break
        try:
            document, _ = decoder.raw_decode(text, start.end() - 1)
        except (ValueError, RecursionError):
            continue
        schema = document.get("schema")
        if isinstance(schema, str) and schema.startswith(REPORT):
            return dict(document)
        if isinstance(schema, str) and schema.startswith(ERROR):
            found = dict(document)
    return found


def why_not(ended: Ended) -> str:
    """Why an end without a report is one, in a line."""
    said = one_line(dataclasses.replace(ended, stderr=_telling_line(ended.stderr)).said())
    if ended.outcome == "exited" and ended.code == NOT_FOUND:
        return f"{said} (is dsdoctor installed there? --command names another way to start it)"
    if ended.outcome != "exited" or ended.code:
        return said
    if not ended.stdout.strip():
        return f"it printed nothing ({said})"
    first = one_line(ended.stdout[:200])
    return f"what it printed is no JSON report, it begins: {first[:100]}"


def _telling_line(text: str) -> str:
    """The line that says what went wrong: the first that speaks of an error, since launchers add their own frames and sums below it."""
    lines = [line for line in text.splitlines() if re.search(r"[A-Za-z]", line) and not SUM.search(line)]
    if "Traceback (most recent call last)" in text:
        return lines[-1]
    return next((line for line in lines if TROUBLE.search(line)), lines[-1] if lines else "")
