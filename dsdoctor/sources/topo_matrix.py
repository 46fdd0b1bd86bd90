"""What `nvidia-smi topo -m` prints, read by a pure function: `dsdoctor topo` draws it, triage takes facts from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CELL = re.compile(r"X|NV\d{1,3}|NVB|PIX|PXB|PHB|NODE|SYS|SOC|PSB|C2C|N/A|\?")
"""SOC is what drivers before 384 wrote for SYS."""
_GLUED_CELLS = re.compile(r"(?:NV\d{1,3}|PIX|PXB|PHB|NODE|SYS)+")
"""A blank that a web page swallowed: NODEPIX."""
_LABEL = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|(?:mlx[45]|bnxt_re|irdma|efa|mana|rdmap|rocep?|ibp|hfi1|erdma)[\w.-]{0,40}")
_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LEGEND = re.compile(r"(NIC\d{1,4}): (\S{1,64})")
_ESCAPE = re.compile(r"\x1b\[[0-?]{0,16}[ -/]{0,4}[@-~]|\x1b|\[(?:\d{1,2})?m")
_LIST = r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*"
_GLUED = re.compile(rf"({_LIST})(N/A)$")
MOST_DEVICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the matrix."""

    name: str
    cells: tuple[str, ...]
    cpu_affinity: str = ""
    """Kernel list format; empty where the text has none or it cannot be told from its neighbour."""
    numa_affinity: str = ""
    gpu_numa_id: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoMatrix:
    """A whole matrix. `cells[i][j]` of two rows says the same in both directions."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    legend: Mapping[str, str] = field(default_factory=dict)
    """NIC0 to mlx5_0."""
    first_line: int = 0

    @property
    def gpu_count(self) -> int:
        """How many of the columns are GPUs."""
        return sum(name.startswith("GPU") for name in self.names)


def parse(lines: Iterable[str]) -> TopoMatrix | None:
    """The first matrix in a text, or None. Rows and headers that a terminal broke into several lines are put together again."""
    numbered = [(number, _ESCAPE.sub("", line).rstrip("\r\n")) for number, line in enumerate(lines, 1)]
    for at, (number, line) in enumerate(numbered):
        if _starts_header(line):
            found = _matrix(numbered[at:], number)
            if found:
                return found
    return None


def _starts_header(line: str) -> bool:
    words = line.split()
    return bool(words) and words[0] == "GPU0" and not (len(words) > 1 and CELL.fullmatch(words[1]))


def _matrix(numbered: Sequence[tuple[int, str]], first_line: int) -> TopoMatrix | None:
    names: list[str] = []
    header = ""
    at = 0
    while at < len(numbered) and not _starts_row(numbered[at][1]):
        text = numbered[at][1]
        words = text.split()
        if (at and not words) or len(names) > MOST_DEVICES:
            return None
        header += f" {text}"
        names += [word for word in words if _LABEL.fullmatch(word)]
        at += 1
    columns = tuple(name for name in _COLUMNS if name in " ".join(header.split()))
    rows: list[Row] = []
    while at < len(numbered) and len(rows) < len(names):
        number, text = numbered[at]
        if not text.strip():
            at += 1
            continue
        if text.split()[0] != names[len(rows)]:
            break
        at += 1
        while _cells_in(text) < len(names) and at < len(numbered) and numbered[at][1].strip() and not _starts_row(numbered[at][1]):
            text = f"{text} {numbered[at][1]}"
            at += 1
        # A terminal may break a row between its last cell and its affinities.
        if columns and at < len(numbered) and re.fullmatch(rf"\s*(?:{_LIST}|N/A)(?:\s+(?:{_LIST}|N/A))*\s*", numbered[at][1]):
            text = f"{text} {numbered[at][1]}"
            at += 1
        row = _row(names[len(rows)], text, len(names), columns, number)
        if row is None:
            return None
        rows.append(row)
    if not rows or len(rows) < sum(name.startswith("GPU") for name in names):
        return None
    legend = {found[1]: found[2] for _, text in numbered[at:] if (found := _LEGEND.fullmatch(text.strip()))}
    return TopoMatrix(names=tuple(names), rows=tuple(rows), legend=legend, first_line=first_line)


def _starts_row(text: str) -> bool:
    words = text.split()
    return len(words) > 1 and bool(_LABEL.fullmatch(words[0])) and bool(CELL.fullmatch(words[1]))


def _cells_in(text: str) -> int:
    return sum(bool(CELL.fullmatch(word)) for word in _words(text)[1:])


def _words(text: str) -> list[str]:
    """The words of a row, cells that stick together taken apart."""
    words = text.split()
    apart = [CELL.findall(word) if not CELL.fullmatch(word) and _GLUED_CELLS.fullmatch(word) else [word] for word in words]
    return [piece for pieces in apart for piece in pieces]


def _row(name: str, text: str, count: int, columns: Sequence[str], line: int) -> Row | None:
    words = _words(text)[1:]
    cells = tuple(words[:count])
    if len(cells) < count or not all(CELL.fullmatch(cell) for cell in cells):
        return None
    cells = tuple("SYS" if cell == "SOC" else cell for cell in cells)
    values = _values(text, words[count:], count, columns)
    return Row(
        name=name, cells=cells, line=line,
        cpu_affinity=values.get("CPU Affinity", ""), numa_affinity=values.get("NUMA Affinity", ""), gpu_numa_id=values.get("GPU NUMA ID", ""),
    )  # fmt: skip


def _values(text: str, words: Sequence[str], count: int, columns: Sequence[str]) -> dict[str, str]:
    """The affinities behind the cells. With tabs each stands in its column; without them only a full set of words is certain."""
    parts = [part.strip() for part in text.split("\t")]
    if len(parts) > count + 1:
        values = parts[count + 1 :]
        if len(columns) == 3 and len(values) > 3:
            values = [*values[:2], *[value for value in values[2:] if value][:1]]  # NUMA Affinity is followed by two tabs
        return {column: value for column, value in zip(columns, values) if value}
    apart = " ".join(_GLUED.sub(r"\1 \2", word) for word in words).split()
    if len(apart) == len(columns):
        return dict(zip(columns, apart))
    return {"GPU NUMA ID": "N/A"} if apart == ["N/A"] and "GPU NUMA ID" in columns else {}
