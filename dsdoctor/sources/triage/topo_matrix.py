"""`nvidia-smi topo -m`, through the parser that `dsdoctor topo` uses: here it tells each GPU's NUMA node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsdoctor.sources.topo_matrix import parse
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said
from dsdoctor.sources.triage.lines import Line

FORMAT = "nvidia-smi topo -m"
MATRIX_LINES = 600
TRIED = 4


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    starts = [index for index, line in enumerate(lines) if line.text.split(maxsplit=1)[:1] == ["GPU0"]]
    tried = 0
    after = 0
    for start in starts:
        if tried >= TRIED or start < after:
            continue
        tried += 1
        window = lines[start : start + MATRIX_LINES]
        matrix = parse([line.text for line in window])
        if matrix is None:
            continue
        yield Said(window[matrix.first_line - 1], FORMAT)
        for row in matrix.rows:
            line = window[row.line - 1]
            after = max(after, start + row.line)
            yield Said(line, FORMAT)
            if row.name.startswith("GPU") and row.numa_affinity.isdecimal() and len(row.numa_affinity) < 5:
                yield Fact("gpus", "numa_node", int(row.numa_affinity), line, row.name.removeprefix("GPU"), FORMAT)


PARSERS = (Parser(FORMAT, ("GPU0",), _parse),)
