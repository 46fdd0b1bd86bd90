"""Documents on their way into the store: some are written to a file, a line each, while DuckDB takes what matters from those of another file.

DuckDB parses many reports of one file several times as fast as texts that it is handed, and holds little of them in memory. What it could
not take as a report is looked at again here: it may be several documents, or there is a reason to be told.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import queue
import threading
from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Any

from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet import digest
from dsdoctor.fleet.documents import DOCUMENT_LIMIT_BYTES, Document, Rejected, pieces

ROUND_BYTES = 192 << 20
"""Text that DuckDB reads at once: each time costs a tenth of a second, and so much lies on the disk for each of `ROUNDS`."""
ROUNDS = 2
LONGEST_BYTES = DOCUMENT_LIMIT_BYTES + (1 << 20)
"""A line, with the names in it."""


class Round:
    """Documents in a file, a line each."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._file = open(path, "w+b", buffering=1 << 20)  # noqa: SIM115
        self._places: list[tuple[Document, int, int]] = []

    def put(self, document: Document) -> None:
        """Its own ends of lines become carriage returns, which are white space to JSON as well."""
        text = document.content.removeprefix(codecs.BOM_UTF8).replace(b"\n", b"\r")
        before = b'{"source":%b,"stem":%b,"r":' % (_json(document.source), _json(document.stem))
        self._places.append((Document(document.source, document.stem, b""), self.size + len(before), len(text)))
        for part in (before, text, b"}\n"):
            self.size += self._file.write(part)

    def end(self) -> None:
        """All is in the file, and nothing else: it is written over in its place, so that the pages of the last round serve again."""
        self._file.flush()
        self._file.truncate(self.size)

    def without(self, sources: Collection[str]) -> Iterator[Document]:
        """The documents of other sources, as they were put, but for empty lines."""
        for document, begin, length in self._places:
            if _known_as(document.source) not in sources:
                self._file.seek(begin)
                content = self._file.read(length).replace(b"\r\r", b"\n").replace(b"\r", b"\n")
                yield Document(document.source, document.stem, content)

    def clear(self) -> None:
        """The next document is the first."""
        self._file.seek(0)
        self._places = []
        self.size = 0

    def __enter__(self) -> Round:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # the end of a file that did not fit on the disk
            self._file.close()
        os.unlink(self.path)


class Loader(threading.Thread):
    """A context: what is put into it is in the store at its end, or among the rejected."""

    def __init__(self, connection: Any, folder: str, values: Mapping[str, Any], rejected: list[Rejected]) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._values = values
        self._rejected = rejected
        self._current: Round | None = None
        self._empty: queue.Queue[Round] = queue.Queue()
        self._full: queue.Queue[Round | None] = queue.Queue()
        self._error: Exception | None = None
        self._rounds = contextlib.ExitStack()
        for number in range(ROUNDS):
            self._empty.put(self._rounds.enter_context(Round(os.path.join(folder, f"{number}.ndjson"))))

    def __enter__(self) -> Loader:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._current is not None and kind is None:
            self._full.put(self._current)
        self._full.put(None)
        self.join()
        self._rounds.close()
        if kind is None:
            self._raise()

    def put(self, document: Document) -> None:
        """Raises what went wrong with those before, UsageError when the disk is full."""
        current = self._current = self._current or self._empty.get()
        try:
            current.put(document)
        except OSError as error:
            room = ROUNDS * ROUND_BYTES >> 20
            raise UsageError(f"{current.path}: {error.strerror}; set TMPDIR to a folder with room for {room} MiB") from None
        if current.size >= ROUND_BYTES:
            self._full.put(current)
            self._current = None
            self._raise()

    def run(self) -> None:
        while (full := self._full.get()) is not None:
            try:
                if self._error is None:
                    self._load(full)
                full.clear()
            except Exception as error:  # who fills the rounds waits for an empty one, whatever happens
                self._error = self._error or error
            self._empty.put(full)

    def _load(self, full: Round) -> None:
        full.end()
        [[before]] = self._connection.execute("SELECT count(*) FROM digest").fetchall()
        self._connection.execute(digest.ADD, {"path": full.path, "longest": LONGEST_BYTES, **self._values})
        added = self._connection.execute("SELECT source FROM digest WHERE rowid >= $before", {"before": before}).fetchall()
        with Round(f"{full.path}.parts") as parts:
            for document in full.without({source for (source,) in added}):
                several = list(pieces(document)) if b"\n" in document.content else []
                if len(several) > 1:
                    for part in several:
                        if isinstance(part, Rejected):
                            self._rejected.append(part)
                        else:
                            parts.put(part)
                else:
                    self._rejected.append(_why(document))
            if parts.size:
                self._load(parts)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _why(document: Document) -> Rejected:
    """Why a document is no report, in the words that `replay` has for it."""
    from dsdoctor.sources import replay

    try:
        replay.parse(document.content, document.source)
    except InputError as error:
        return Rejected(document.source, str(error).removeprefix(f"{document.source}: "))
    return Rejected(document.source, "a recording, which no check has judged; dsdoctor replay FILE --format json makes a report of it")


def _known_as(name: str) -> str:
    """A file's name as text: bytes that are none become question marks."""
    return name.encode("utf-8", "replace").decode()


def _json(name: str) -> bytes:
    return json.dumps(_known_as(name)).encode()
