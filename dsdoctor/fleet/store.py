"""The reports of a fleet in a DuckDB of their own: what does not fit into the memory it may take is spilled to disk, and all is gone at the end."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet import digest
from dsdoctor.fleet.documents import PARQUET, Document, Rejected, is_packed, paths_of, pieces, read, stems_of
from dsdoctor.fleet.loading import Loader

MEMORY_LIMIT = "640MB"
"""What DuckDB may hold before it spills to disk."""
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
            ("enable_external_file_cache", "false"),
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
        values = {"packages": list(self.packages), "of_one_node": self.of_one_node}
        with Loader(self.connection.cursor(), self._folder, values, self.rejected) as loader:
            for document in self._documents(texts):
                loader.put(document)

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

    def _documents(self, paths: Sequence[str]) -> Iterator[Document]:
        for path, stem in stems_of(paths).items():
            for item in read(path, stem):
                for document in pieces(item) if isinstance(item, Document) and is_packed(item.content) else (item,):
                    if isinstance(document, Rejected):
                        self.rejected.append(document)
                    else:
                        yield document

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
