"""Pasted text becomes clean numbered lines, whatever was put around it, in memory that does not grow with the text."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.errors import InputError
from dsdoctor.sources.triage.lines import PIECE_CHARACTERS, Document, Line, clean, document, open_document, pages, read_lines

PREFIXED = {
    "(EngineCore_DP0 pid=123) RuntimeError: boom": "RuntimeError: boom",
    "(RayWorkerWrapper pid=8776, ip=10.0.0.7) ERROR worker_base.py:581] boom": "boom",
    "(raylet) file_system_monitor.cc:111: /tmp is over 95% full": "file_system_monitor.cc:111: /tmp is over 95% full",
    "[rank0]: ValueError: boom": "ValueError: boom",
    "[rank5]:W0215 12:25:06.525000 14707 site-packages/torch/x.py:504] [12/0_1] boom": "boom",
    "[rank8]:[W1228 10:00:00.123456789 socket.cpp:752] [c10d] boom": "[c10d] boom",
    "node-1:2228637:2230195 [3] NCCL INFO NET/IB : boom": "NCCL INFO NET/IB : boom",
    "[2025-11-11 05:00:00] node-1:1:2 [0] graph/xml.cc:332 NCCL WARN boom": "graph/xml.cc:332 NCCL WARN boom",
    "[2025-02-15 12:25:06 DP6 TP6] Load weight end.": "Load weight end.",
    "INFO 12-30 17:06:52 [core.py:58] boom": "boom",
    "WARNING 12-30 17:06:52 _custom_ops.py:19] boom": "boom",
    "2025-01-21T04:41:44,285060+00:00 boom": "boom",
    "2025-01-21 04:41:44,285 - vllm.engine - ERROR - boom": "boom",
    "2025-01-21 04:41:44.285 | ERROR    | app.main:run:12 - boom": "boom",
    "Jan 21 04:41:44 gpu-07 kernel: [  201.910514] NVRM: boom": "NVRM: boom",
    "[  201.910514] NVRM: boom": "NVRM: boom",
    "6,3964,206764307,-;NVRM: boom": "NVRM: boom",
    "[Tue Jan 21 04:41:44 2025] NVRM: boom": "NVRM: boom",
    "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 NVRM: boom": "NVRM: boom",
    "[1,0]<stderr>:boom": "boom",
    "vllm-server-1  | boom": "boom",
}
KEPT = (
    "PyTorch version: 2.4.0+cu121",
    "[pip3] torch==2.4.0",
    "[conda] torch 2.4.0 pypi_0 pypi",
    "| NVIDIA-SMI 580.105.08   Driver Version: 580.105.08   CUDA Version: 13.0 |",
    "    Fabric",
    "GPU0\t X \tNV18",
    ">>> import torch",
    "kernel: 5.14.0-284.el9",
    "4: enp90s0np0: <BROADCAST,MULTICAST,UP> mtu 9000",
    "-> Kernel module load error: No such device",
    "torch    | 2.4.0",
    "41:00.0 3D controller: NVIDIA Corporation GH100",
)


def text_of(raw: str) -> list[str]:
    return [line.text for line in read_lines(document("a.txt", raw))]


@pytest.mark.parametrize("raw", PREFIXED)
def test_what_loggers_put_in_front_is_taken_off_and_kept_apart(raw: str) -> None:
    line = clean(raw, "a.txt", 7)
    assert line.text == PREFIXED[raw]
    assert line.prefix + line.text == raw
    assert line.where == "a.txt:7"


@pytest.mark.parametrize("raw", KEPT)
def test_what_belongs_to_the_output_stays(raw: str) -> None:
    assert clean(raw).text == raw


@pytest.mark.parametrize("raw", [*KEPT[:6], *PREFIXED])
@pytest.mark.parametrize("around", ["> {}", "> > {}", "{}\r", "\x1b[31m{}\x1b[0m", "{}   ", "\x1b]0;title\x07{}", "[31m{}[0m", "\x00{}"])
def test_quotes_colours_and_line_ends_make_no_difference(raw: str, around: str) -> None:
    assert text_of(around.format(raw)) == [clean(raw).text]


def test_markdown_fences_and_html_are_boundaries_not_text() -> None:
    raw = "<details><summary>The output</summary>\n\n```text\nNVIDIA-SMI 580\n```\n</details>\n~~~\n`uname -r`"
    assert text_of(raw) == ["The output", "", "", "NVIDIA-SMI 580", "", "", "", "uname -r"]


def test_numbers_are_those_of_an_editor_and_survive_progress_bars() -> None:
    lines = list(read_lines(document("a", "one\n 10%\r 50%\r100%\r\n\nfour")))
    assert [(line.number, line.text) for line in lines] == [(1, "one"), (2, " 10%"), (2, " 50%"), (2, "100%"), (3, ""), (4, "four")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_of_windows_are_read(encoding: str) -> None:
    source = Document("a", ("驱动版本\r\nDriver Version: 535.54.03\r\n".encode(encoding),))
    assert [line.text for line in read_lines(source)] == ["驱动版本", "Driver Version: 535.54.03"]


def test_a_line_without_an_end_is_read_in_pieces_and_in_little_memory() -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(64):
            yield b"(" * (1 << 18)

    tracemalloc.start()
    longest = count = 0
    for page in pages(Document("a", chunks())):
        count += sum(len(line.text) for line in page.lines)
        longest = max(longest, max(len(line.text) for line in page.lines))
        assert {line.number for line in page.lines} == {1}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 64 << 18
    assert longest <= PIECE_CHARACTERS
    assert peak < 8 << 20


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(InputError, match="no such file"):
        open_document("/nowhere/at all.txt")
    with pytest.raises(InputError, match="directory"):
        list(read_lines(open_document("/")))


def test_a_page_finds_its_lines_by_position() -> None:
    page = next(pages(document("a", "zero\none\n\nthree")))
    assert [page.line_at(page.text.index(word)).number for word in ("zero", "one", "three")] == [1, 2, 4]
    assert {"zero", "one", "three"} == page.words


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 7))
def test_any_bytes_give_harmless_lines_however_they_arrive(content: bytes, size: int) -> None:
    whole = [line.text for line in read_lines(Document("a", (content,)))]
    cut = [line.text for line in read_lines(Document("a", tuple(content[at : at + size] for at in range(0, len(content), size))))]
    if not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert cut == whole
    assert all(letter == "\t" or letter >= " " for text in whole + cut for letter in text)
    assert not any("\x7f" <= letter <= "\x9f" or "\u202a" <= letter <= "\u202e" for text in whole + cut for letter in text)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400))
def test_cleaning_never_adds_and_keeps_the_end(raw: str) -> None:
    line = clean(raw)
    assert len(line.text) + len(line.prefix) <= len(raw)
    assert isinstance(line, Line)
