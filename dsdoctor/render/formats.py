"""The forms in which a report leaves the doctor: by name, and by the suffix of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsdoctor.findings import Report, Severity
from dsdoctor.render import github, gitlab, html, json, junit, markdown, nagios, nhc, npd, prometheus, sarif, terminal

SUFFIXES: Mapping[str, str] = {
    ".sarif.json": "sarif",
    ".gitlab.json": "gitlab",
    ".json": "json",
    ".md": "markdown",
    ".xml": "junit",
    ".sarif": "sarif",
    ".prom": "prometheus",
    ".html": "html",
    ".txt": "terminal",
}
"""The longer suffix comes before the one that it ends with."""
FILE_WIDTH = 100

_RENDERERS: Mapping[str, Callable[[Report], str]] = {
    "terminal": lambda report: terminal.render(report, width=FILE_WIDTH, colour=False),
    "json": json.render,
    "markdown": markdown.render,
    "sarif": sarif.render,
    "github": github.render,
    "gitlab": gitlab.render,
    "prometheus": prometheus.render,
    "html": html.render,
}
_FAILURES: Mapping[str, Callable[[str], str]] = {"github": github.failure, "nagios": nagios.failure, "npd": npd.failure}


def of_file(path: str) -> str | None:
    """The format that a file's suffix asks for, or None when no format has that suffix."""
    return next((name for suffix, name in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def render(report: Report, name: str, fail_on: Severity | None, *, strict: bool = False, state: str = "") -> str:
    """The report in the format of that name; `state` is the word of a monitor where the exit code decides it."""
    if name == "nagios":
        return nagios.render(report, state)
    if name == "nhc":
        return nhc.render(report, fail_on, strict)
    if name in ("junit", "npd"):
        return (junit.render if name == "junit" else npd.render)(report, fail_on)
    return _RENDERERS[name](report)


def failure(name: str, message: str, code: int) -> str:
    """What stands in the place of the report when a run ended without one; empty where the format has no words for that."""
    if name == "json":
        return json.error_document(message, code)
    return _FAILURES[name](message) if name in _FAILURES else ""
