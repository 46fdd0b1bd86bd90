"""The reports of a fleet in a DuckDB of their own: what does not fit into the memory it may take is spilled to disk, and all is gone at the end."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import importlib.util
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet import digest
from dsdoctor.fleet.documents import PARQUET, Document, Rejected, is_packed, paths_of, pieces, read, stems_of

MEMORY_LIMIT = "384MB"
"""What DuckDB may hold; the texts that are being read come on top."""
BATCH_BYTES = 12 << 20
"""Text that one thread hands to DuckDB at once."""
KEPT_AT_ONCE = 1000
"""Parsed reports from which a thread takes what matters; each time costs a tenth of a second."""
MOST_THREADS = 8
INSTALL = "this needs DuckDB: pip install 'dsdoctor[fleet]'"


@dataclass(slots=True)
class Store:
    """A database with one table, `digest`, of a row for each report; use it as a context."""

    packages: Sequence[str]
    """Names of the packages whose versions are compared."""
    of_one_node: str
    """Regular expression of variables that are not compared."""
    rejected: list[Rejected] = field(default_factory=list)
    connection: Any = None
    _folder: str = ""

    def __enter__(self) -> Store:
        duckdb = _duckdb()
        self._folder = tempfile.mkdtemp(prefix="dsdoctor-fleet-")
        self.connection = duckdb.connect()
        for setting, value in (
            ("memory_limit", MEMORY_LIMIT),
            ("temp_directory", self._folder),
            ("autoinstall_known_extensions", "false"),
            ("preserve_insertion_order", "false"),
            ("threads", str(_threads())),
            ("TimeZone", "UTC"),
            ("enable_progress_bar", "false"),
        ):
            self.connection.execute(f"SET {setting} = '{value}'")
        self.connection.execute(f"CREATE TABLE digest ({digest.TABLE})")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """The answer to a query, all of it."""
        return list(self.connection.execute(sql, values or None).fetchall())

    def run(self, sql: str, **values: Any) -> None:
        """A statement without an answer."""
        self.connection.execute(sql, values or None)

    def add(self, names: Sequence[str]) -> None:
        """Read these files and folders; what is no report goes to `rejected`. Raises UsageError for a name that does not exist."""
        texts = []
        for path in paths_of(names):
            if path.lower().endswith(PARQUET):
                self._add_parquet(path)
            else:
                texts.append(path)
        waiting: queue.Queue[list[Document] | None] = queue.Queue(maxsize=_threads())
        workers = [_Worker(self, waiting) for _ in range(_threads())]
        for worker in workers:
            worker.start()
        try:
            for batch in self._batches(texts):
                if any(worker.error for worker in workers):
                    break
                waiting.put(batch)
        finally:
            for _ in workers:
                waiting.put(None)
            for worker in workers:
                worker.join()
        for worker in workers:
            if worker.error:
                raise worker.error

    def save(self, path: str) -> None:
        """Write what is kept of the newest report of each node as Parquet, whole or not at all. Raises UsageError with the reason."""
        duckdb = _duckdb()
        temporary = os.path.join(os.path.dirname(os.path.abspath(path)), f".{os.path.basename(path)[:40]}.{os.getpid()}")
        try:
            self.connection.execute(
                f"COPY (SELECT d.* FROM node n JOIN digest d ON d.rowid = n.seq ORDER BY n.id) TO {_quoted(temporary)} (FORMAT parquet, COMPRESSION zstd)"
            )
            os.replace(temporary, path)
        except (duckdb.Error, OSError) as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise UsageError(f"cannot write {path}: {reason}") from None

    def _batches(self, paths: Sequence[str]) -> Iterator[list[Document]]:
        batch: list[Document] = []
        size = 0
        for path, stem in stems_of(paths).items():
            for item in read(path, stem):
                if isinstance(item, Rejected):
                    self.rejected.append(item)
                    continue
                batch.append(item)
                size += len(item.content)
                if size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    def _add_parquet(self, path: str) -> None:
        duckdb = _duckdb()
        source = f"read_parquet({_quoted(path)})"
        try:
            found = {row[0]: row[1] for row in self.rows(f"DESCRIBE SELECT * FROM {source}")}
            missing = [name for name in ("source", "kind", "name", "families", "findings") if name not in found]
            if missing:
                raise InputError(
                    f"a Parquet file of another kind: it has no column {missing[0]}; fleet merge -o NAME.parquet writes what can be read"
                )
            columns = [name for name in digest.COLUMNS if name in found]
            values = ", ".join(f'CAST("{name}" AS {digest.COLUMNS[name][0]})' for name in columns)
            names = ", ".join(f'"{name}"' for name in columns)
            self.run(
                f"INSERT INTO digest ({names}) SELECT {values} FROM {source} WHERE kind IN ('report', 'no-report') AND name IS NOT NULL"
            )
        except InputError as error:
            self.rejected.append(Rejected(path, str(error)))
        except duckdb.Error as error:
            self.rejected.append(Rejected(path, f"not readable as Parquet: {str(error).splitlines()[0][:200]}"))


class _Worker(threading.Thread):
    """Takes batches of documents from a queue until None comes, and puts what matters of each into the store."""

    def __init__(self, store: Store, waiting: queue.Queue[list[Document] | None]) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._waiting = waiting
        self._connection = store.connection.cursor()
        self._is_ready = False
        self._held = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while (batch := self._waiting.get()) is not None:
                if self.error is None:
                    self._guarded(batch)
            if self.error is None:
                self._keep()
        except Exception as error:
            self.error = self.error or error
        finally:
            self._connection.close()

    def _guarded(self, batch: list[Document]) -> None:
        try:
            self._add(batch)
        except Exception as error:  # the queue has to be emptied all the same, or the reader would wait for ever
            self.error = error

    def _add(self, batch: list[Document]) -> None:
        documents: list[Document] = []
        size = 0
        while batch:
            document = batch.pop()
            for item in pieces(document) if is_packed(document.content) else (document,):
                if isinstance(item, Rejected):
                    self._store.rejected.append(item)
                    continue
                documents.append(item)
                size += len(item.content)
                if size >= BATCH_BYTES:
                    self._parse(documents)
                    documents, size = [], 0
        self._parse(documents)

    def _parse(self, documents: Sequence[Document]) -> None:
        """Most files are one report, so a file is taken apart only when as a whole it is none: looking for a second one costs as much as parsing."""
        texts = {item.source: text for item in documents if (text := _text_of(item)) is not None}
        readable = [item for item in documents if item.source in texts]
        failed = [item for item in documents if item.source not in texts]
        if readable:
            if not self._is_ready:
                self._connection.execute(f"CREATE TEMP TABLE parsed AS {digest.PARSED}; BEGIN")
                self._is_ready = True
            answer = self._connection.execute(
                f"{digest.PARSE} RETURNING source, r.schema",
                {"sources": list(texts), "stems": [item.stem for item in readable], "texts": list(texts.values())},
            ).fetchall()
            foreign = {source for source, schema in answer if schema not in (digest.REPORT, digest.NO_REPORT)}
            failed += [item for item in readable if item.source in foreign]
            self._held += len(readable)
        for item in failed:
            parts = list(pieces(item)) if b"\n" in item.content else []
            if len(parts) > 1:
                self._store.rejected += [part for part in parts if isinstance(part, Rejected)]
                self._parse([part for part in parts if isinstance(part, Document)])
            else:
                self._store.rejected.append(_why(item))
        if self._held >= KEPT_AT_ONCE:
            self._keep()

    def _keep(self) -> None:
        if self._held:
            self._connection.execute(digest.KEEP, {"packages": list(self._store.packages), "of_one_node": self._store.of_one_node})
            # One transaction from one time to the next: a commit of a table with so many columns costs as much as parsing twenty reports.
            self._connection.execute("TRUNCATE parsed; COMMIT; BEGIN")
            self._held = 0


def _text_of(document: Document) -> str | None:
    try:
        text = document.content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        return None
    return text if text and not text.isspace() else None


def _why(document: Document) -> Rejected:
    """Why a document is no report, in the words that `replay` has for it."""
    from dsdoctor.sources import replay

    try:
        replay.parse(document.content, document.source)
    except InputError as error:
        return Rejected(document.source, str(error).removeprefix(f"{document.source}: "))
    return Rejected(document.source, "a recording, which no check has judged; dsdoctor replay FILE --format json makes a report of it")


def _threads() -> int:
    return min(os.cpu_count() or 1, MOST_THREADS)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def require() -> None:
    """Say that DuckDB is lacking before work is done that would need it. Raises UsageError."""
    if importlib.util.find_spec("duckdb") is None:
        _duckdb()


def _duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise UsageError(INSTALL) from None
