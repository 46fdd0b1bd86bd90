"""The bandwidth matrices of p2pBandwidthLatencyTest (CUDA samples): each pair of GPUs with peer access and through host memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.facts import SmokeResult
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said
from dsdoctor.sources.triage.lines import Line

FORMAT = "p2pBandwidthLatencyTest"
TEST = "peer-copies"
GPUS_LIMIT = 64

_TITLE = re.compile(
    r"\s{0,8}Unidirectional P2P=(?P<access>Enabled|Disabled) Bandwidth (?P<reads>\(P2P (?:Writes|Reads)\) )?Matrix \(GB/s\)"
)
_OTHER_TITLE = re.compile(r"\s{0,8}(?:Bidirectional P2P=|P2P=(?:Enabled|Disabled) (?:Latency|\())|\s{0,8}P2P Connectivity")
_ROW = re.compile(r"\s{0,12}(\d{1,2})((?:\s{1,8}\d{1,5}\.\d{1,3}){2,64})\s*$")


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    rates: dict[str, dict[tuple[int, int], tuple[float, Line]]] = {"Enabled": {}, "Disabled": {}}
    access = ""
    for line in lines:
        if (title := _TITLE.match(line.text)) is not None:
            access = "" if title["reads"] and "Reads" in title["reads"] else title["access"]
            yield Said(line, FORMAT)
        elif _OTHER_TITLE.match(line.text):
            access = ""
        elif access and (row := _ROW.match(line.text)) is not None:
            source = int(row[1])
            yield Said(line, FORMAT)
            for target, rate in enumerate(row[2].split()[:GPUS_LIMIT]):
                if source != target:
                    rates[access].setdefault((source, target), (float(rate), line))
    for (source, target), (rate, line) in rates["Enabled"].items():
        if (source, target) in rates["Disabled"]:
            values = {"gb_per_s": rate, "host_gb_per_s": rates["Disabled"][source, target][0]}
            pair = f"{source}>{target}"
            result = SmokeResult(test=TEST, path=FORMAT, outcome="ran", values=values, notes={"pair": pair})
            yield Fact("smoke", "", result, line, pair, FORMAT)


PARSERS = (Parser(FORMAT, ("Unidirectional P2P",), _parse),)
