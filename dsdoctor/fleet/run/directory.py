"""Where a run keeps what arrives: `reports/NODE.json` for each node, and `collective.json`."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from dsdoctor.errors import UsageError
from dsdoctor.fleet.run.collect import Answer
from dsdoctor.fleet.run.engine import Node
from dsdoctor.sources.replay import write_atomically

NO_REPORT = "dsdoctor.no-report/1"


class Directory:
    """A directory of one run. Every file in it is whole the moment it has its name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reports = os.path.join(path, "reports")

    def keep(self, answer: Answer) -> None:
        """Write a node's report under the node's name, or why it has none."""
        node, report = answer.node, answer.report
        if report is None:
            self._write(self.file_of(node), {"schema": NO_REPORT, "label": node.name, "reason": answer.reason})
            return
        origin = report.get("origin")
        self._write(self.file_of(node), {**report, "origin": {**(origin if isinstance(origin, Mapping) else {}), "label": node.name}})

    def keep_collective(self, found: Mapping[str, Any]) -> None:
        """Write what came of the collectives across nodes."""
        self._write(os.path.join(self.path, "collective.json"), found)

    def file_of(self, node: Node) -> str:
        """The file for a node's answer; two nodes never share one."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", node.name).lstrip(".")
        return os.path.join(self.reports, f"{safe}.json" if safe == node.name else f"{safe}-{node.number}.json")

    def _write(self, path: str, document: Mapping[str, Any]) -> None:
        write_atomically(path, json.dumps(document, ensure_ascii=True) + "\n")


def prepare(path: str) -> Directory:
    """The directory of this run, made now; a new one of this second without a path. Raises UsageError when there is something in it."""
    directory = Directory(path or time.strftime("dsdoctor-fleet-%Y%m%d-%H%M%S"))
    try:
        os.makedirs(directory.path, exist_ok=bool(path))
        if os.listdir(directory.path):
            raise UsageError(
                f"--output-dir {directory.path}: there is something in it; old reports would be taken for answers, name a new one"
            )
        os.mkdir(directory.reports)
    except OSError as error:
        raise UsageError(f"--output-dir {directory.path}: {(error.strerror or str(error)).lower()}") from None
    return directory
