"""Files, folders and standard input as single JSON documents, packed or not, one a file or many.

Nothing is parsed here: a document ends where the next one begins in the first column. Whatever cannot be read is a `Rejected` with its
reason and never stops the rest.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from dsdoctor.errors import UsageError

DOCUMENT_LIMIT_BYTES = 8 << 20
WHOLE_LIMIT_BYTES, PACKED_WHOLE_LIMIT_BYTES = 1 << 20, 1 << 18
"""Larger files are read as a stream."""
SUFFIXES = (".json", ".ndjson", ".jsonl")
PACKED = (".gz", ".zst")
PARQUET = ".parquet"
STANDARD_INPUT = "standard input"
GZIP_MAGIC, ZSTANDARD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Document:
    """The bytes of one JSON document, or of one small file that holds some."""

    source: str
    """File, with the line where it is one of several."""
    stem: str
    """What the node is called when its report does not say."""
    content: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something that is no report, and why."""

    source: str
    reason: str


def paths_of(names: Sequence[str]) -> Iterator[str]:
    """The files that these names stand for: folders are searched, `-` is standard input. Raises UsageError for a name that does not exist."""
    for name in names:
        if name == "-":
            yield name
        elif os.path.isdir(name):
            for folder, folders, files in os.walk(name):
                folders.sort()
                yield from (os.path.join(folder, file) for file in sorted(files) if _looks_like_a_report(file))
        elif os.path.lexists(name):
            yield name
        else:
            raise UsageError(f"{name}: there is no such file or folder; fleet merge takes reports of dsdoctor check --format json")


def stems_of(paths: Iterable[str]) -> dict[str, str]:
    """What the node of each file is called when its report does not say: the file's name, with the folder where several have the same."""
    stems = {path: stem_of(path) for path in paths}
    shared = {stem for stem, times in Counter(stems.values()).items() if times > 1}
    return {
        path: f"{os.path.basename(os.path.dirname(os.path.abspath(path)))}/{stem}" if stem in shared else stem
        for path, stem in stems.items()
    }


def read(path: str, stem: str) -> Iterator[Document | Rejected]:
    """A small file as one piece, which `pieces` takes apart; a large one document by document."""
    if path == "-":
        yield from split(io.BufferedReader(sys.stdin.buffer), STANDARD_INPUT, stem)  # type: ignore[type-var]
        return
    limit = PACKED_WHOLE_LIMIT_BYTES if path.endswith(PACKED) else WHOLE_LIMIT_BYTES
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
                yield Document(path, stem, file.read())
            else:
                yield from split(file, path, stem)
    except OSError as error:
        yield Rejected(path, (error.strerror or str(error)).lower())


def pieces(document: Document) -> Iterator[Document | Rejected]:
    """The single documents in the bytes of a small file, unpacked."""
    yield from split(io.BufferedReader(io.BytesIO(document.content)), document.source, document.stem)


def is_packed(content: bytes) -> bool:
    """Whether the bytes have to be unpacked."""
    return content.startswith((GZIP_MAGIC, ZSTANDARD_MAGIC))


def split(stream: IO[bytes], source: str, stem: str) -> Iterator[Document | Rejected]:
    """The documents of a stream, unpacked: one a line, or printed over many lines; each begins with a brace in the first column."""
    held: tuple[int, bytes] | None = None
    several = False
    problem = "empty"
    try:
        for found in _documents(_unpacked(stream)):
            if held is not None:
                several = True
                yield _numbered(held, source, stem)
            held = found
    except (EOFError, zlib.error, OSError, _Damaged) as error:
        problem = f"the packed data is {'cut short' if isinstance(error, EOFError) else 'damaged'}; copy it again"
        several = several or held is not None
    if held is not None:
        yield _numbered(held, source, stem) if several or not held[1] else Document(source, stem, held[1])
    if held is None or problem != "empty":
        yield Rejected(source, problem)


class _Damaged(Exception):
    """Packed data that cannot be unpacked."""


def _numbered(found: tuple[int, bytes], source: str, stem: str) -> Document | Rejected:
    line, content = found
    if not content:
        return Rejected(f"{source}:{line}", f"larger than {DOCUMENT_LIMIT_BYTES >> 20} MiB; a report is a few hundred KiB")
    return Document(f"{source}:{line}", f"{stem}:{line}", content)


def _documents(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Line number and bytes of each document; no bytes for one that is too large."""
    parts: list[bytes] = []
    number, start, size = 0, 0, 0
    line_begins, complete = True, False
    while chunk := stream.readline(DOCUMENT_LIMIT_BYTES):
        number += line_begins
        if parts and line_begins and (complete or chunk.startswith(b"{")):
            yield start, b"".join(parts) if size <= DOCUMENT_LIMIT_BYTES else b""
            parts, size = [], 0
        if parts or not chunk.isspace():
            start = start if parts else number
            size += len(chunk)
            if size <= DOCUMENT_LIMIT_BYTES or not parts:
                parts.append(chunk)
            complete = line_begins and chunk.startswith((b"{", b"}")) and chunk.rstrip().endswith(b"}")
        line_begins = chunk.endswith(b"\n")
    if parts:
        yield start, b"".join(parts) if size <= DOCUMENT_LIMIT_BYTES else b""


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    magic = stream.peek(4)[:4]  # type: ignore[attr-defined]
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if magic == ZSTANDARD_MAGIC:
        return _unpacked_zstandard(stream)
    return stream


def _unpacked_zstandard(stream: IO[bytes]) -> IO[bytes]:
    import zstandard

    class Reader(io.RawIOBase):
        """Unpacks as it is read; the library's own reader raises an error that names no kind."""

        inner = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            try:
                return int(self.inner.readinto(buffer))
            except zstandard.ZstdError as error:
                raise _Damaged(str(error)) from None

    return io.BufferedReader(Reader(), 1 << 18)


def stem_of(path: str) -> str:
    """The file's name without folders and the suffixes of reports."""
    name = "stdin" if path == "-" else os.path.basename(path)
    for suffix in (*PACKED, *SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            name = name[: -len(suffix)]
    return name


def _looks_like_a_report(name: str) -> bool:
    name = name.lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name.endswith((*SUFFIXES, PARQUET)) and not name.startswith(".")
