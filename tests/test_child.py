"""A child that crashes, hangs or floods its output is a fact."""

from __future__ import annotations

import sys

from dsdoctor.sources.child import run


def python(code: str, timeout_s: float = 10.0, **more: object):
    return run([sys.executable, "-S", "-c", code], timeout_s=timeout_s, **more)


def test_what_a_child_says_is_kept() -> None:
    ended = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.outcome, ended.code, ended.stdout, ended.stderr) == ("exited", 3, "out\n", "err\n")
    assert ended.said() == "exit status 3: err"
    assert not ended.ok


def test_a_signal_has_its_name() -> None:
    ended = python("import os; os.kill(os.getpid(), 11)")
    assert (ended.outcome, ended.code) == ("signal", 11)
    assert "SIGSEGV" in ended.said()


def test_a_hang_ends_at_the_deadline_and_keeps_what_was_said() -> None:
    ended = python("import os, time; os.write(int(os.environ['DSDOCTOR_RESULT_FD']), b'stage 1\\n'); time.sleep(600)", timeout_s=0.5)
    assert ended.outcome == "timed_out"
    assert ended.result == "stage 1\n"
    assert "no answer" in ended.said()


def test_a_program_that_is_not_there() -> None:
    ended = run(["/nowhere/program"], timeout_s=1)
    assert ended.outcome == "not_found"
    assert "/nowhere/program" in ended.said()


def test_a_flood_is_bounded() -> None:
    ended = python("import os\nfor _ in range(200): os.write(1, b'x' * 100_000)")
    assert ended.ok
    assert len(ended.stdout) <= 5 << 20


def test_a_grandchild_that_keeps_the_pipes_does_not_hold_us() -> None:
    ended = python("import subprocess; subprocess.Popen(['sleep', '3']); print('done', flush=True)")
    assert ended.ok
    assert ended.stdout == "done\n"
    assert ended.elapsed_s < 2.5


def test_lines_of_the_result_are_seen_as_they_come() -> None:
    seen: list[str] = []
    python("import os\nfor n in range(3): os.write(int(os.environ['DSDOCTOR_RESULT_FD']), b'%d\\n' % n)", on_line=seen.append)
    assert seen == ["0", "1", "2"]


def test_binary_output_is_replaced_not_raised() -> None:
    assert python("import os; os.write(1, bytes(range(256)))").ok
