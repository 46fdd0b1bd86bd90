"""Answers that the checks of containers share."""

from __future__ import annotations

from dsdoctor.findings import NotApplicable

NO_DEVICE_FILES = NotApplicable(reason="the container has no GPU device file")
