"""Whatever a probe does, the snapshot is complete and the run ends in time."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dsdoctor.facts import Section, State
from dsdoctor.sources import live
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Probe, Scope

GOOD = """
    from dsdoctor.facts import Libc, known
    def collect(host, scope):
        return {"libc": known(Libc(family="glibc", version="2.39"), "test")}
"""

MISBEHAVIOURS = {
    "raises": ("raise RuntimeError('no luck')", "crashed", "RuntimeError: no luck"),
    "leaves": ("raise SystemExit(0)", "crashed", "SystemExit"),
    "hangs": ("import time; time.sleep(600)", "timed_out", "no answer"),
    "ignores_signals": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        "timed_out",
        "no answer",
    ),
    "segfaults": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed_by_signal", "SIGSEGV"),
    "exits": ("import os; os._exit(7)", "garbage", "nonsense"),
    "answers_text": ("return 'hello'", "crashed", "AttributeError"),
    "answers_wrong_type": ("from dsdoctor.facts import known; return {'libc': known('2.39')}", "garbage", "sections.libc.value"),
    "answers_for_others": ("from dsdoctor.facts import absent; return {'gpus': absent('none')}", "garbage", "not its own"),
    "answers_unknown_section": ("from dsdoctor.facts import absent; return {'nonsense': absent('none')}", "garbage", "unknown section"),
    "prints": ("import os; print('garbage'); os.write(1, b'x' * 100000); return {}", "ok", ""),
}


def probe_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str, timeout_s: float = 5.0) -> Probe:
    source = textwrap.dedent(GOOD) if body == "good" else f"def collect(host, scope):\n    {body}\n"
    (folder / f"probe_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return Probe(name=name, provides=("libc",), module=f"probe_{name}", cost="instant", timeout_s=timeout_s)


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_a_probe_that_misbehaves_is_a_fact_with_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, outcome, says = MISBEHAVIOURS[name]
    bad = probe_of(tmp_path, monkeypatch, name, body, timeout_s=0.6)
    good = Probe(name="good", provides=("os",), module="probe_good", cost="instant")
    (tmp_path / "probe_good.py").write_text(
        "from dsdoctor.facts import Platform, known\ndef collect(host, scope):\n    return {'platform': known(Platform(os_id='ubuntu'))}\n"
    )
    good = Probe(name="good", provides=("platform",), module="probe_good", cost="instant")
    snapshot = live.examine(Host(), Scope(target=None), (bad, good))
    run = snapshot.probe_runs[0]
    assert (run.probe, run.outcome) == (name, outcome)
    assert says in run.detail
    assert snapshot.sections.platform.value is not None
    assert snapshot.sections.libc.state is (State.NOT_ASKED if outcome == "ok" else State.UNREADABLE)
    if outcome != "ok":
        assert name in snapshot.sections.libc.why


def test_a_good_probe_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = live.examine(Host(), Scope(target=None), (probe_of(tmp_path, monkeypatch, "fine", "good"),))
    section: Section[object] = snapshot.sections.libc
    assert section.state is State.KNOWN
    assert section.found_via == "test"
    assert snapshot.sections.gpus.state is State.NOT_ASKED


def test_probes_of_a_gpu_share_a_directory_that_goes_with_the_examination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        f"import os, time; open({str(tmp_path / 'name')!r}, 'w').write(scope.scratch); open(scope.scratch + '/left', 'w'); time.sleep(600)"
    )
    probe = dataclasses.replace(probe_of(tmp_path, monkeypatch, "gpu", body, timeout_s=0.6), cost="gpu")
    live.examine(Host(), Scope(target=None), (probe,))
    folder = Path((tmp_path / "name").read_text())
    assert folder.is_absolute()
    assert not folder.exists()


def test_nothing_is_left_running_after_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "pid"
    body = f"import subprocess, time; p = subprocess.Popen(['sleep', '600']); open({str(marker)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    live.examine(Host(), Scope(target=None), (probe_of(tmp_path, monkeypatch, "spawner", body, timeout_s=0.8),))
    pid = int(marker.read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
            return
        time.sleep(0.01)
    pytest.fail("the probe's own child survived the deadline")


def heeding_interrupts() -> None:
    """In a new process: Ctrl-C counts, also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_ends_all_that_it_started(number: signal.Signals, code: int, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nprintf "%s " $$ >> {tmp_path}/pids\nexec sleep 600\n')
    python.chmod(0o755)
    command = [sys.executable, "-m", "dsdoctor", "check", "--python", str(python), "--format", "json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding_interrupts
    ) as process:
        pids: list[str] = []
        for _ in range(500):
            pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
            if len(pids) > 1:
                break
            time.sleep(0.02)
        process.send_signal(number)
        try:
            out, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, json.loads(out)["exit_code"]) == (code, code)
    assert errors.endswith("interrupted\n" if number is signal.SIGINT else f"dsdoctor: ended by {number.name}\n")
    assert pids
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            break
        time.sleep(0.02)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("dsdoctor-")] == []


def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "probe_sleeper.py").write_text(
        f"import os, time\ndef collect(host, scope):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    code = (
        "from dsdoctor.sources import live\nfrom dsdoctor.sources.host import Host\nfrom dsdoctor.sources.probe import Probe, Scope\n"
        "p = Probe(name='s', provides=('libc',), module='probe_sleeper', cost='instant', timeout_s=60)\n"
        "live.examine(Host(), Scope(target=None), (p,))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        preexec_fn=heeding_interrupts,
    )
    for _ in range(300):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(2)
    process.wait(5)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.02)
    pytest.fail("the probe survived Ctrl-C")
