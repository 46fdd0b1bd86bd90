"""Arguments are read without pydantic, and mean what they mean to typer."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dsdoctor.cli import command_line


@pytest.mark.parametrize("arguments", [
    ["explain", "driver.absent"],
    ["list", "examples", "--format", "json"],
    ["advise", "--gpu", "H100 SXM", "--driver", "580", "--want", "torch", "--want", "vllm"],
])  # fmt: skip
def test_a_run_does_not_import_pydantic(arguments: list[str]) -> None:
    code = "from dsdoctor.cli import main; import atexit, sys; atexit.register(lambda: sys.stderr.write(str('pydantic' in sys.modules))); main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "False"


@pytest.mark.parametrize(("arguments", "words"), [
    (["check", "--format", "pdf"], "pdf"),
    (["check", "--timeout", "soon"], "--timeout"),
    (["check", "--timeout", "0"], "--timeout"),
    (["plan", "DeepSeek-V3", "--gpus", "-1"], "--gpus"),
    (["list", "nonsense"], "nonsense"),
    (["replay"], "FILE"),
    (["check", "--full=maybe"], "full"),
])  # fmt: skip
def test_wrong_arguments_are_typers_to_refuse(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command_line(arguments[:1]), arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_numbers_are_numbers() -> None:
    result = CliRunner().invoke(command_line(["plan"]), ["plan", "DeepSeek-V3", "--gpu", "H200", "--gpus", "8", "--disk-gb-s", "2"])
    assert result.exit_code == 0
    assert "fits 8x H200" in result.output
