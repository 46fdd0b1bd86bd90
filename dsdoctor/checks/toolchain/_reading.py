"""Answers that the checks of compilers share."""

from __future__ import annotations

from dsdoctor.findings import NotApplicable

NOTHING_COMPILES = NotApplicable(reason="nothing that is installed compiles when it runs")
