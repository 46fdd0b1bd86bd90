"""Messages that something wrapped are seen as one, at the places where they stand; lists, tables and ordinary logs are left alone."""

from __future__ import annotations

import itertools
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.sources.triage.lines import Page, document, pages
from dsdoctor.sources.triage.wrapped import flowed

MESSAGE = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have "
    "already set an error? Error 803: system has unsupported display driver / cuda driver combination"
)


def page_of(text: str) -> Page:
    return next(pages(document("a.txt", text)))


def messages_of(text: str) -> list[str]:
    page = page_of(text)
    starts = tuple(itertools.accumulate((len(line.text) + 1 for line in page.lines[:-1]), initial=0))
    whole, messages = flowed(page, starts)
    assert len(whole) == len(page.text)
    assert whole.replace("\n", " ") == page.text.replace("\n", " ")
    return [whole[message.start : message.end] for message in messages]


@pytest.mark.parametrize("columns", range(60, 133, 8))
def test_a_wrapped_message_is_one(columns: int) -> None:
    wrapped = textwrap.fill(MESSAGE, columns, break_on_hyphens=False)
    assert messages_of(f"INFO 11-29 13:00:00 loading\n{wrapped}\n\nINFO 11-29 13:00:01 the end") == [MESSAGE]


def test_a_prefix_in_front_of_the_first_line_counts_as_width() -> None:
    wrapped = textwrap.fill(f"(EngineCore_DP0 pid=123) {MESSAGE}", 80)
    assert messages_of(wrapped) == [MESSAGE]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(
            f"/usr/lib/x86_64-linux-gnu/a-rather-long-name-of-a-library-file/libcudnn_{name}.so.9.14.0" for name in ("adv", "cnn", "ops")
        ),
        "| NVIDIA-SMI 580.105.08             Driver Version: 580.105.08     CUDA Version: 13.0     |\n"
        "|-----------------------------------------+------------------------+----------------------+",
        "torch                     2.11.0+cu130\ntriton                    3.6.0\nnvidia-cudnn-cu13         9.19.0.56",
        'Traceback (most recent call last):\n  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 800, in run_engine_core\n'
        "    raise RuntimeError(message)\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "node-1:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM and so on to the end\nnode-1:12:34 [0] NCCL INFO done with it",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib64:/opt/amazon/efa/lib\nNCCL_DEBUG=INFO",
        "short\nlines\nfollow",
        f"{MESSAGE}\nand a line that stands behind a message that nobody wrapped",
    ],
    ids=["paths", "table", "packages", "traceback", "log", "variables", "short lines", "a long line"],
)
def test_lines_that_only_follow_one_another_are_not_joined(text: str) -> None:
    assert messages_of(text) == []


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",)), max_size=140), max_size=30).map("\n".join))
@settings(max_examples=150, deadline=None)
def test_every_position_stays_as_it_is(text: str) -> None:
    for page in pages(document("a.txt", text)):
        starts = tuple(itertools.accumulate((len(line.text) + 1 for line in page.lines[:-1]), initial=0))
        whole, messages = flowed(page, starts)
        assert [letter for letter in whole if letter not in " \n"] == [letter for letter in page.text if letter not in " \n"]
        assert len(whole) == len(page.text)
        assert all(one.last < other.first for one, other in itertools.pairwise(messages))
