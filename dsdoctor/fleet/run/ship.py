"""The doctor as one archive for a node that has none: its packages and what they need, as they are here. `python DIRECTORY` runs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import platform
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from dsdoctor.errors import UsageError
from dsdoctor.sources.texts import normalised

START = "from dsdoctor.cli import main\n\nmain()\n"
LEFT_OUT = ("__pycache__", ".pyc")
OWN = ("dsdoctor", "dsdoctor.probes", "dsdoctor.matrices")
"""In a checkout these lie in three places."""


def package() -> bytes:
    """A ZIP archive with `__main__.py`, for a node with the same `platform_tag`: some of what dsdoctor needs is compiled."""
    archive = getattr(getattr(importlib.util.find_spec("dsdoctor"), "loader", None), "archive", None)
    if archive is not None:
        return Path(archive).read_bytes()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("__main__.py", START)
        written = {"__main__.py"}
        for name, path in _files():
            if name not in written:
                written.add(name)
                archive.write(path, name)
    return content.getvalue()


def platform_tag() -> str:
    """Python and processor, such as `cpython-312 x86_64`."""
    return f"{sys.implementation.cache_tag} {platform.machine()}"


def _files() -> Iterator[tuple[str, Path]]:
    for name in OWN:
        for folder in _folders(name):
            yield from _tree(folder, name.replace(".", "/"))
    for needed in _needed("dsdoctor"):
        for file in needed.files or ():
            parts = file.parts
            if ".." not in parts and not any(part.endswith(LEFT_OUT) for part in parts):
                path = Path(str(file.locate()))
                if path.is_file():
                    yield file.as_posix(), path


def _folders(name: str) -> list[str]:
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not any(os.path.isdir(folder) for folder in folders):
        raise UsageError(f"this dsdoctor cannot be sent to other nodes ({name} is not in a folder); install it there, or here with pip")
    return folders


def _tree(folder: str, prefix: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not any(part.endswith(LEFT_OUT) for part in path.parts):
            yield f"{prefix}/{path.relative_to(folder).as_posix()}", path


def _needed(name: str) -> list[importlib.metadata.Distribution]:
    """What a distribution needs without extras, and what that needs."""
    from packaging.requirements import Requirement

    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(importlib.metadata.distribution(name).requires or ())
    while waiting:
        requirement = Requirement(waiting.pop())
        key = normalised(requirement.name)
        if key in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[key] = importlib.metadata.distribution(requirement.name)
        waiting += found[key].requires or ()
    return list(found.values())
