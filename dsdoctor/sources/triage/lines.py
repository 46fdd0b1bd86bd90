"""Pasted text as clean numbered lines: streamed, in time linear in its size, and with memory that does not grow with it.

What terminals, browsers, mail programs and loggers put around a line is taken off: colours, Windows line ends, `> ` quoting, Markdown
fences, HTML tags, and in front of it ranks, process names, times and levels. What a logger put in front stays in `Line.prefix`.
"""

from __future__ import annotations

import codecs
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsdoctor.errors import InputError

WORD = re.compile(r"[A-Za-z0-9_]+")
_WORDS_ONLY = bytes(byte if byte < 128 and WORD.match(chr(byte)) else 32 for byte in range(256))
"""Everything that is no letter, digit or underscore becomes a space: twice as fast as finding the words by a pattern."""
CHUNK_BYTES = 1 << 18
PAGE_CHARACTERS = 1 << 16
PIECE_CHARACTERS = 4096
"""A longer line is read as several of the same number, so that one line of 100 MB costs no more than many short ones."""
NAME_LIMIT = 200
PREFIXES_PER_LINE = 6

_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\x07\x1b")) + b"\x7f"
_ESCAPE = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b[\]PX^_][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|\x1b[ -/]{0,8}[0-~]?")
_BARE_COLOUR = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,5})?m")
"""What is left of a colour where a browser dropped the escape character."""
_CONTROL = re.compile("[\x00-\x06\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_QUOTE = re.compile(r"(?: ?>(?!>> ))+ ?")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})[\w .+:-]{0,40}$")
_TAG = re.compile(r"\s*</?(?:details|summary|pre|code|br|p|b|strong)\b[^<>]{0,80}>")

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_DAY = r"(?:\d{4}|\d\d)[-/]\d\d[-/]\d\d"
_LEVEL = r"(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_PREFIX = re.compile(
    "(?:"
    + "|".join(
        (
            rf"\[{_DAY}[T ]{_TIME}[^\]\n]{{0,60}}\]:?\s?",  # SGLang, DeepSpeed, nvidia-installer
            rf"{_DAY}[T ]{_TIME}(?:Z|\s?[+-]\d\d:?\d\d)?(?: (?:UTC|GMT|CES?T|[PECJKI]S?[DS]?T))?(?:\s*\|\s*|\s+-\s+|:\s+|\s+|$)",  # ISO 8601, loguru, logging
            rf"\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}}\s{{1,3}}\d{{1,2}} {_TIME} \d{{4}}\]\s?",  # dmesg -T
            rf"[A-Z][a-z]{{2}}\s{{1,3}}\d{{1,2}} {_TIME} (?:[\w.-]{{1,64}} )?(?=[\w./@-]{{1,64}}(?:\[\d{{1,10}}\])?: )",  # syslog
            r"kernel:\s(?=\[|[A-Za-z][\w.-]{0,30}[: ])",
            r"\[\s{0,8}\d{1,9}\.\d{3,9}\]\s?",  # kernel
            r"\[\s{0,8}[TC]\d{1,9}\]\s",
            r"\d{1,5},\d{1,20},\d{1,20},[^;\s]{0,60};",  # /dev/kmsg
            r"<\d{1,3}>(?=\S|\s)",
            r"[a-z]{2,8}\s{0,4}:[a-z]{2,7}\s{0,4}:\s{1,4}",  # dmesg -x
            r"\([\w.:<>/ -]{1,80} pid=[^)\n]{1,120}\)\s?",  # vLLM and Ray workers
            r"\((?:raylet|autoscaler|gcs_server|dashboard)[^)\n]{0,80}\)\s",
            r"\[(?:rank|Rank|RANK)[ :]?\d{1,6}\]:?\s?",
            r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>:\s?",  # mpirun
            r"\[[WEIFVD]\d{3,8} \d\d:\d\d:\d\d[^\]\n]{0,200}\]\s?",  # c10
            r"[WEIFVD]\d{4,8} \d\d:\d\d:\d\d(?:\.\d{1,9})?\s{1,8}\d{1,10} [^\s\]]{1,200}:\d{1,7}\]\s?",  # glog, torch.distributed
            r"\[\d{1,6}/\d{1,6}(?:_\d{1,6})?\]\s",  # TorchDynamo
            r"[\w.<>-]{1,64}:\d{1,10}:\d{1,10} \[[\d?-]{1,5}\] ",  # NCCL
            rf"{_LEVEL}:?\s{{1,8}}(?:\d\d-\d\d {_TIME} )?(?:\[[^\]\n]{{1,120}}:\d{{1,6}}\]|[\w./-]{{1,120}}:\d{{1,6}}\])\s?",  # vLLM
            rf"{_LEVEL}\s{{1,8}}\|\s[^|\n]{{1,120}}? - ",  # loguru
            rf"{_LEVEL}\s{{1,8}}\d\d-\d\d {_TIME}\s",
            rf"[\w.]{{1,80}} - {_LEVEL} - ",  # logging
            r"[\w.-]{1,60}[_-]\d{1,3}\s{1,30}\|\s",  # docker compose
        )
    )
    + f"){{1,{PREFIXES_PER_LINE}}}"
)


class Line(NamedTuple):
    """One line of evidence, and where it stands."""

    text: str
    """Clean; indentation is kept."""
    file: str = ""
    number: int = 0
    prefix: str = ""
    """What a logger put in front: time, process, rank, level."""

    @property
    def where(self) -> str:
        """File and line, as evidence names them."""
        return f"{self.file}:{self.number}" if self.file else ""


class Page(NamedTuple):
    """Consecutive lines of one document."""

    lines: tuple[Line, ...]
    text: str
    """The lines' texts, joined by newlines."""
    words: frozenset[str] = frozenset()
    """The words of the text: a literal whose word is not among them need not be searched for."""

    def line_at(self, offset: int) -> Line:
        """The line that holds a position of the text."""
        starts, position = [], 0
        for line in self.lines:
            starts.append(position)
            position += len(line.text) + 1
        return self.lines[max(0, bisect_right(starts, offset) - 1)]


class Document(NamedTuple):
    """One thing that was pasted, as it arrives."""

    name: str
    chunks: Iterable[bytes]


def document(name: str, text: str) -> Document:
    """A document that is already in memory."""
    return Document(name, (text.encode("utf-8", "surrogatepass"),))


def open_document(path: str) -> Document:
    """A file, or standard input for `-`, read as it is used. Raises InputError for what cannot be opened."""
    if path == "-":
        return Document("standard input", _chunks_of(sys.stdin.buffer, "standard input"))
    try:
        file = open(path, "rb")  # noqa: SIM115  closed where its chunks end
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    return Document(safe_name(path), _chunks_of(file, path))


def safe_name(path: str) -> str:
    """The path as evidence shows it: on one line and without control characters."""
    text = path.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text)[-NAME_LIMIT:]


def _chunks_of(file: object, name: str) -> Iterator[bytes]:
    with file as opened:  # type: ignore[attr-defined]
        while True:
            try:
                chunk: bytes = opened.read(CHUNK_BYTES)
            except OSError as error:
                raise InputError(f"{name}: {(error.strerror or str(error)).lower()}") from None
            if not chunk:
                return
            yield chunk


# --- lines ------------------------------------------------------------------------------------------------------------


def pages(source: Document) -> Iterator[Page]:
    """The document as pages of clean lines."""
    held: list[Line] = []
    size = 0
    for line in read_lines(source):
        held.append(line)
        size += len(line.text) + 1
        if size >= PAGE_CHARACTERS:
            yield _page(held)
            held, size = [], 0
    if held:
        yield _page(held)


def _page(lines: list[Line]) -> Page:
    text = "\n".join([line.text for line in lines])
    return Page(tuple(lines), text, frozenset(text.encode("utf-8", "replace").translate(_WORDS_ONLY).decode("ascii").split()))


def read_lines(source: Document) -> Iterator[Line]:
    """Every line of the document, clean."""
    name = source.name
    for number, raw in _numbered(_decoded(source.chunks)):
        yield clean(raw, name, number)


def clean(raw: str, file: str = "", number: int = 0) -> Line:
    """One line without what programs put around it; `raw` has no escape sequences any more."""
    text = raw.rstrip()
    if not text:
        return Line("", file, number)
    first = text[0]
    if first in "> " and ">" in text[:3]:
        quote = _QUOTE.match(text)
        if quote and not text.startswith(">>> "):
            text = text[quote.end() :]
            first = text[:1]
    if ("```" in text or "~~~" in text) and _FENCE.match(text):
        return Line("", file, number)
    if "<" in text[:12]:
        while (tag := _TAG.match(text)) and tag.end():
            text = text[tag.end() :]
        for end in ("</summary>", "</details>", "</pre>", "</code>", "<br>"):
            text = text.removesuffix(end)
    elif first == "`" and len(text) > 2 and text[-1] == "`" and text.count("`") == 2:
        text = text[1:-1]
    prefixes = _PREFIX.match(text)
    if prefixes:
        return Line(text[prefixes.end() :], file, number, prefixes[0])
    return Line(text, file, number)


def _decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Text without control characters, cut anywhere; escape sequences are still in it, since a cut may lie inside one."""
    decoder: codecs.IncrementalDecoder | None = None
    for chunk in chunks:
        if decoder is None:
            wide = chunk.startswith((b"\xff\xfe", b"\xfe\xff"))  # PowerShell's > writes UTF-16
            decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8")("replace")
        text = decoder.decode(chunk if wide else chunk.translate(None, _CONTROL_BYTES))
        yield text if text.isascii() and not wide else _CONTROL.sub("", text)
    if decoder is not None:
        yield decoder.decode(b"", final=True)


def _numbered(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Raw lines with their numbers; several have the same number where a line holds carriage returns or is very long."""
    number = 1
    rest = ""
    for text in texts:
        rest += text
        end = rest.rfind("\n") + 1
        if end:
            for line in without_escapes(rest[:end]).split("\n")[:-1]:
                for piece in _pieces(line):
                    yield number, piece
                number += 1
            rest = rest[end:]
        if len(rest) >= 2 * PIECE_CHARACTERS:
            end = len(rest) - len(rest) % PIECE_CHARACTERS - PIECE_CHARACTERS
            for piece in _pieces(without_escapes(rest[:end])):
                yield number, piece
            rest = rest[end:]
    if rest:
        for piece in _pieces(without_escapes(rest)):
            yield number, piece


def _pieces(line: str) -> Iterable[str]:
    parts = [part for part in line.split("\r") if part] or [""] if "\r" in line else [line]
    if len(line) <= PIECE_CHARACTERS:
        return parts
    return [part[start : start + PIECE_CHARACTERS] for part in parts for start in range(0, len(part), PIECE_CHARACTERS)]


def without_escapes(text: str) -> str:
    """The text without terminal sequences, also where a browser dropped the escape character of a colour."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\x07" in text:
        text = text.replace("\x07", "")
    return _BARE_COLOUR.sub("", text) if "[0m" in text or "[m" in text else text
