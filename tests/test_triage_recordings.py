"""The text outputs of a recorded node and the live probes of its like give the same facts, in every field that both have.

The shipped examples were recorded by the probes on nodes of the same machine, image and driver as those whose text outputs are shared; what differs
from one moment, one card or one start to the next stands in DIFFERS, each with its reason.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.facts import Sections
from dsdoctor.matrix import Knowledge
from dsdoctor.sources import replay
from dsdoctor.sources.triage import open_document, read
from dsdoctor.sources.triage.events import load_matcher
from dsdoctor.sources.triage.merge import CHANGING

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
PAIRS = {"h200-healthy": ("h200", 250), "h200x4-healthy": ("h200x4", 600)}
"""Example, folder of its like, and how many fields both must have at least."""

DIFFERS: Mapping[str, str] = {
    "gpus[[]*].uuid": "redacted by counting in one, by zeros in the other",
    "gpus[[]*].board_part_number": "another card of the product",
    "platform.kernel_release": "the name of the host's kernel build is cut off in the text",
    "virtualization.hypervisor": "lscpu knows KVM only; the firmware tables name what runs on it",
    "environment[[]PATH].value": "the virtual environment stands in another folder",
    "loaded_modules.complete": "pasted modules may be some of them",
    "host_compilers[[]*].path": "gcc --version does not say where gcc is",
}
KEYS = ("index", "name", "address", "purpose", "path")


def facts_of_text(folder: Path) -> Sections:
    files = sorted(path for path in folder.glob("*.txt") if not path.name.startswith("fault"))
    return read([open_document(str(path)) for path in files], load_matcher(Knowledge())).snapshot.sections


def both(text: Any, live: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Each value that both know, with its path; records of a tuple are the same when their key is."""
    if dataclasses.is_dataclass(text):
        for item in dataclasses.fields(text):
            yield from both(getattr(text, item.name), getattr(live, item.name), f"{path}.{item.name}")
    elif isinstance(text, tuple) and text and dataclasses.is_dataclass(text[0]):
        key = next(name for name in KEYS if hasattr(text[0], name))
        others = {getattr(item, key): item for item in live or ()}
        for item in text:
            if getattr(item, key) in others:
                yield from both(item, others[getattr(item, key)], f"{path}[{getattr(item, key)}]")
    elif isinstance(text, Mapping):
        for name in text.keys() & (live or {}).keys():
            yield from both(text[name], live[name], f"{path}[{name}]")
    elif text not in (None, "", ()) and live not in (None, "", ()):
        yield path, text, live


def changes(path: str) -> bool:
    return any(path.endswith(f".{name}") for name in CHANGING) or any(fnmatch.fnmatchcase(path, pattern) for pattern in DIFFERS)


@pytest.mark.parametrize("example", PAIRS)
def test_text_outputs_give_the_facts_of_the_live_probes(example: str) -> None:
    folder, least = PAIRS[example]
    if not (SHARED / "recordings" / folder).is_dir():
        pytest.skip("the shared recordings are not here")
    text, live = facts_of_text(SHARED / "recordings" / folder), replay.load(f"example:{example}").sections
    compared = [
        found
        for item in dataclasses.fields(Sections)
        if getattr(text, item.name).value is not None and getattr(live, item.name).value is not None
        for found in both(getattr(text, item.name).value, getattr(live, item.name).value, item.name)
    ]
    assert {path: (one, other) for path, one, other in compared if one != other and not changes(path)} == {}
    assert len(compared) >= least
    assert {path.partition(".")[0].partition("[")[0] for path, _, _ in compared} >= {"gpus", "nvml_versions"}
