"""The PCIe link of each GPU as hardware reports print it: now and at most, on a line of its own or behind the GPU's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.sources.kernel_text import normal_address
from dsdoctor.sources.texts import DRIVER_VERSION
from dsdoctor.sources.triage.fact import NAMELESS, Fact, Found, Parser, mebibytes
from dsdoctor.sources.triage.lines import Line

FORMAT = "PCIe link"
LINES_TO_ITS_GPU = 12
"""So far below the line that names a GPU its link may stand."""

_GPU = re.compile(r"\s{0,12}\[?(?:GPU|gpu|CUDA|Device) ?#?(\d{1,3})\b")
_NAMED = re.compile(rf"\s{{0,12}}GPU ?(\d{{1,3}}): (NVIDIA [\w -]{{2,50}}?) \| (\d{{3,7}} MiB)(?: \| driver ({DRIVER_VERSION}))?(?=\s|$)")
_NOW_OF_MOST = re.compile(
    r"\bgen ?=? ?(?P<generation>\d) ?/ ?(?P<max_generation>\d),? width ?=? ?x?(?P<width>\d{1,2}) ?/ ?x?(?P<max_width>\d{1,2})\b",
    re.IGNORECASE,
)
_NEGOTIATED = re.compile(r"\bx(?P<width>\d{1,2}) lanes negotiated \(GPU max x(?P<max_width>\d{1,2})\b")
_AND_MOST = re.compile(
    r"\bPCIe?:? {0,4}(?:link:? {0,4})?(?:Gen ?)?(?P<generation>\d)(?:\.\d)?,? ?x(?P<width>\d{1,2}) ?[(\[/,] ?max(?:imum)?[:.]? ?(?:PCIe? ?)?(?:Gen ?)?"
    r"(?P<max_generation>\d)(?:\.\d)?,? ?x(?P<max_width>\d{1,2})\b",
    re.IGNORECASE,
)
_MOST_AT_NOW = re.compile(r"\bPCIe x(?P<max_width>\d{1,2}) (?P<max_generation>\d)\.\d @ x(?P<width>\d{1,2}) (?P<generation>\d)\.\d\b")
"""GPU-Z."""
_FORMS = (_NOW_OF_MOST, _NEGOTIATED, _AND_MOST, _MOST_AT_NOW)
_BUS = re.compile(r"\bbus(?: id)?:? ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b")
WIDTHS = (1, 2, 4, 8, 12, 16, 32)


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    gpu, named_at = NAMELESS, 0
    for position, line in enumerate(lines):
        text = line.text.replace("*", "").lstrip(" \t-+•")
        if (own := _GPU.match(text)) is not None:
            gpu, named_at = str(int(own[1])), position
            if (named := _NAMED.match(text)) is not None:
                yield from _named(named, gpu, line)
        elif position - named_at > LINES_TO_ITS_GPU:
            gpu = NAMELESS
        if "x" not in text and "width" not in text.lower():
            continue
        found = next((match for form in _FORMS if (match := form.search(text))), None)
        values = {name: int(value) for name, value in found.groupdict().items()} if found else {}
        if not values or values["width"] not in WIDTHS or values["max_width"] not in WIDTHS:
            continue
        for name, value in values.items():
            yield Fact("gpus", f"pcie.{name}", value, line, gpu, FORMAT)
        if (bus := _BUS.search(text)) and (address := normal_address(bus[1])):
            yield Fact("gpus", "pci_address", address, line, gpu, FORMAT)


def _named(found: re.Match[str], gpu: str, line: Line) -> Iterator[Found]:
    yield Fact("gpus", "name", found[2].strip(), line, gpu, FORMAT)
    if memory := mebibytes(found[3]):
        yield Fact("gpus", "memory_total_bytes", memory, line, gpu, FORMAT)
    if found[4]:
        yield Fact("nvml_versions", "driver", found[4], line, format=FORMAT)


PARSERS = (Parser(FORMAT, ("PCIe", "PCIE", "width", "lanes negotiated"), _parse),)
