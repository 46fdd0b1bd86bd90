"""Read a topology from whatever file is given: a recording, `topo -m` text, NCCL topology XML or hwloc XML. The format is recognised."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from xml.etree import ElementTree

from dsdoctor.errors import InputError
from dsdoctor.facts import Snapshot
from dsdoctor.sources import replay
from dsdoctor.topology.graph import Topology

READ_LIMIT_BYTES = 32 << 20
WHAT_IT_TAKES = "a recording, the text of nvidia-smi topo -m, a NCCL topology XML or a hwloc XML"
LINE_LIMIT = 200_000


def load(path: str) -> Topology:
    """The graph in a file, in `example:NAME`, or on standard input (`-`). Raises InputError or UsageError."""
    if path.startswith(replay.EXAMPLE_PREFIX):
        return _of_snapshot(replay.load(path))
    name = "standard input" if path == "-" else path
    return parse(_read(path), name)


def parse(content: bytes, name: str) -> Topology:
    """The graph in these bytes; `name` is what errors and pictures call it."""
    text = _text(content)
    start = text.lstrip()[:1]
    if start == "{":
        return _of_snapshot(replay.parse(content, name))
    if start == "<" and re.search(r"<(?:system|topology)[\s>/]", text):
        return _of_xml(text, name)
    from dsdoctor.sources import topo_matrix
    from dsdoctor.topology import from_topo_matrix

    matrix = topo_matrix.parse(text.splitlines()[:LINE_LIMIT])
    if matrix is None:
        raise InputError(f"{name}: no topology in it; expected {WHAT_IT_TAKES}")
    return from_topo_matrix.topology(matrix, name)


def _of_snapshot(snapshot: Snapshot) -> Topology:
    from dsdoctor.topology import from_facts

    return from_facts.topology(snapshot.sections, snapshot.origin.label)


def _of_xml(text: str, name: str) -> Topology:
    body = re.sub(r"<!DOCTYPE[^>\[]*>", "", text, count=1)
    if "<!DOCTYPE" in body or "<!ENTITY" in body:
        raise InputError(f"{name}: XML with a document type of its own is not read")
    try:
        root = ElementTree.fromstring(re.sub(r"<\?xml[^>]*\?>", "", body, count=1).lstrip())
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"{name}: broken XML: {error}") from None
    if root.tag == "system":
        from dsdoctor.topology import nccl

        return nccl.read(root, name)
    if root.tag == "topology":
        from dsdoctor.topology import from_hwloc

        return from_hwloc.topology(root, name)
    raise InputError(f"{name}: XML of an unknown kind (<{root.tag[:40]}>); expected {WHAT_IT_TAKES}")


def _read(path: str) -> bytes:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(READ_LIMIT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(READ_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; expected {WHAT_IT_TAKES}") from None
    if len(content) > READ_LIMIT_BYTES:
        raise InputError(f"{path}: larger than {READ_LIMIT_BYTES >> 20} MiB; no topology is that large")
    return content


def _text(content: bytes) -> str:
    if content.startswith(replay.GZIP_MAGIC):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(READ_LIMIT_BYTES)
        except (OSError, EOFError, zlib.error):
            return ""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    return content.decode(encoding, "replace")
