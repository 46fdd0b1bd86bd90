"""Attaching to a running process: what it sees, by its files in /proc alone; and what cannot be attached to."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsdoctor.probes.process import command_of, parse_maps
from typer.testing import CliRunner

from dsdoctor.checks.cudnn.shadowed import shadowed
from dsdoctor.cli import command_line
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import UsageError
from dsdoctor.facts import Limit, Snapshot, State
from dsdoctor.findings import Status
from dsdoctor.matrix import Knowledge
from dsdoctor.plugins import load_probes, process_probes
from dsdoctor.sources import live
from dsdoctor.sources.attached import Attached, attach
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

READ = ("host", "filesystems", "interpreter", "libraries", "process")
WAIT = "import sys, time; sys.stdout.write('up\\n'); sys.stdout.flush(); time.sleep(60)"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            4096                 8192                 files
Max locked memory         65536                65536                bytes
"""


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[int]:
    """A process that says 'up' and then waits."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], **environment}) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def examined(process: Attached) -> Snapshot:
    probes = [probe for probe in process_probes(load_probes()) if probe.name in READ]
    return live.examine(process.host, Scope(target=process.target, deadline_s=20), probes)


def refusal(host: Host, pid: int, folder: str = "") -> str:
    with pytest.raises(UsageError) as caught:
        attach(host, pid, folder)
    return str(caught.value)


# --- a real child -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment made of links: /proc/PID/exe follows them and so does not know it."""
    folder = tmp_path_factory.mktemp("patient") / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "vllm-0.33.0.dist-info").mkdir(parents=True)
    (site / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
    return folder


def test_a_running_python_is_examined_as_it_sees_the_node(venv: Path) -> None:
    secret = "swordfish"
    command = (str(venv / "bin" / "python"), "-c", WAIT, "vllm", "serve", "deepseek-ai/DeepSeek-V3", "--api-key", secret, "--tp", "8")
    with running(*command, CUDA_VISIBLE_DEVICES="2,3", NCCL_DEBUG="WARN", HF_TOKEN=secret, VLLM_API_KEY=secret) as pid:
        process = attach(Host(), pid)
        facts = examined(process).sections
    assert (process.target.path, process.target.chosen_by) == (str(venv / "bin" / "python"), f"--pid {pid}")
    variables = {item.name: item.value for item in facts.environment.value or ()}
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["NCCL_DEBUG"]) == ("2,3", "WARN")
    assert "VIRTUAL_ENV" not in variables, "its environment, not that of the doctor"
    assert [(package.name, package.version) for package in facts.packages.value or ()] == [("vllm", "0.33.0")]
    assert facts.interpreter.value is not None
    assert (facts.interpreter.value.kind, facts.interpreter.value.start_error) == ("venv", "")
    (started,) = facts.commands.value or ()
    assert (started.program, started.options) == ("vllm serve", {"model": "deepseek-ai/DeepSeek-V3", "api-key": "<redacted>", "tp": "8"})
    assert (facts.mapped_libraries.state, facts.torch_runtime.state) == (State.KNOWN, State.ABSENT)
    assert secret not in str(facts)


def test_limits_and_tree_of_a_real_process_beside_a_recorded_machine(venv: Path, tmp_path: Path) -> None:
    """The process is real; the machine around it is a tree of files."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text('ID=rocky\nVERSION_ID="9.4"\n')
    (tmp_path / "proc").mkdir()
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (321, 654)); {WAIT}"
    with running(str(venv / "bin" / "python"), "-c", code) as pid:
        process = attach(Host(root=str(tmp_path)), pid, f"/proc/{pid}")
        facts = examined(process).sections
    assert (facts.limits.value or {})["nofile"] == Limit(soft=321, hard=654)
    assert facts.platform.value is not None
    assert facts.platform.value.os_id == "rocky"


def test_what_ends_while_it_is_examined_is_told(venv: Path) -> None:
    with running(str(venv / "bin" / "python"), "-c", WAIT) as pid:
        process = attach(Host(), pid)
    time.sleep(0.05)
    facts = examined(process).sections
    assert facts.mapped_libraries.state is State.UNREADABLE
    assert facts.limits.state is State.UNREADABLE
    assert "there is no such process" in refusal(Host(), pid)


def test_the_command_line_attaches(venv: Path) -> None:
    def check(*arguments: str) -> Any:
        return CliRunner().invoke(command_line(), ["check", *arguments])

    with running(str(venv / "bin" / "python"), "-c", WAIT, CUDA_VISIBLE_DEVICES="0") as pid:
        answer = check("--pid", str(pid), "--only", "env,system.memlock-limited", "--format", "json")
        both = check("--pid", str(pid), "--python", "python3")
    report = json.loads(answer.stdout)
    assert report["origin"]["label"] == f"process {pid} on this machine"
    assert {item["name"] for item in report["facts"]["environment"]["value"]} >= {"CUDA_VISIBLE_DEVICES"}
    assert both.exit_code == 2
    assert "name two interpreters" in both.stderr
    assert check("--pid", "4194305").exit_code == 2


def test_what_is_not_python_and_what_is_not_there() -> None:
    with running("sh", "-c", "echo up; exec sleep 60") as pid:
        time.sleep(0.1)
        assert "which is not Python" in refusal(Host(), pid)
    assert "there is no such process" in refusal(Host(), 4194305)


# --- recorded processes -----------------------------------------------------------------------------------------------


def recorded(root: Path, maps: str = "", cmdline: str = "VLLM::Worker_TP0", environ: str = "", exe: str = "/usr/bin/python3.12") -> str:
    """A process 4711 and its machine in a tree: a vLLM worker that gave itself a title."""
    site = root / "opt/venv/lib/python3.12/site-packages"
    for folder in (root / "proc/4711", root / "usr/bin", root / "opt/venv/bin", root / "lib64", site / "torch/lib"):
        folder.mkdir(parents=True)
    (root / "lib64/ld-linux-x86-64.so.2").write_text("")
    (root / "usr/bin/python3.12").write_text("")
    (root / "usr/bin/python3.12").chmod(0o755)
    (root / "opt/venv/bin/python").symlink_to("/usr/bin/python3.12")
    (root / "opt/venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    process = root / "proc/4711"
    (process / "exe").symlink_to(exe)
    (process / "maps").write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 {number} {path}\n" for number, path in enumerate(maps.split())))
    (process / "cmdline").write_text(cmdline.replace(" ", "\0"))
    (process / "environ").write_text(environ.replace(" ", "\0"))
    (process / "limits").write_text(LIMITS)
    (process / "status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n")
    (process / "cgroup").write_text("0::/kubepods/pod1\n")
    return str(process)


SITE = "/opt/venv/lib/python3.12/site-packages"


def test_a_worker_with_a_title_is_known_by_what_it_has_mapped(tmp_path: Path) -> None:
    """The title took the command line and the environment; the files it has mapped remember the environment it runs from."""
    recorded(tmp_path, maps=f"/usr/bin/python3.12 {SITE}/numpy/core/x.so")
    process = attach(Host(root=str(tmp_path)), 4711)
    assert process.target.path == "/opt/venv/bin/python"
    assert process.target.site_packages == (SITE,)
    assert process.host.rights_differ


@pytest.mark.parametrize(
    ("cmdline", "environ", "path"),
    [
        ("/opt/venv/bin/python -m vllm.entrypoints.api_server", "", "/opt/venv/bin/python"),
        ("python serve.py", "PATH=/opt/venv/bin:/usr/bin", "/opt/venv/bin/python"),
        ("VLLM::EngineCore", "VIRTUAL_ENV=/opt/venv", "/opt/venv/bin/python"),
        ("/opt/other/bin/python", "", "/usr/bin/python3.12"),
        ("", "", "/usr/bin/python3.12"),
    ],
)
def test_the_interpreter_is_found_the_surest_way_first(tmp_path: Path, cmdline: str, environ: str, path: str) -> None:
    recorded(tmp_path, cmdline=cmdline, environ=environ)
    assert attach(Host(root=str(tmp_path)), 4711).target.path == path


def test_what_the_process_mapped_is_judged_by_the_same_checks(tmp_path: Path) -> None:
    """cuDNN of the system, mapped by a process whose torch brings another: cudnn.shadowed from /proc/PID/maps alone."""
    system = "/usr/lib/x86_64-linux-gnu"
    recorded(
        tmp_path,
        maps=f"{SITE}/torch/lib/libtorch_cpu.so {system}/libcudnn.so.9.14.0 {SITE}/nvidia/nccl/lib/libnccl.so.2 /usr/lib/libcuda.so.580.95.05",
        environ=f"LD_LIBRARY_PATH={system} HF_TOKEN=swordfish",
    )
    for path in (f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9", f"{system}/libcudnn.so.9.14.0", f"{SITE}/nvidia/nccl/lib/libnccl.so.2"):
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_bytes(b"\x7fELF")
    for name, version, library in (
        ("nvidia-cudnn-cu13", "9.19.0.56", "cudnn/lib/libcudnn.so.9"),
        ("nvidia-nccl-cu13", "2.28.9", "nccl/lib/libnccl.so.2"),
    ):
        info = tmp_path / f"{SITE.lstrip('/')}/{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"nvidia/{library},,4\n")
    (tmp_path / f"{SITE.lstrip('/')}/torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: str = '13.0'\n")
    snapshot = examined(attach(Host(root=str(tmp_path)), 4711))
    facts = snapshot.sections
    mapped = {item.family: (item.version, item.origin, item.package) for item in facts.mapped_libraries.value or ()}
    assert mapped["cudnn"][:2] == ("9.14.0", "system")
    assert mapped["nccl"] == ("2.28.9", "wheel", "nvidia-nccl-cu13")
    assert mapped["cuda"][1] == "driver"
    assert facts.torch_runtime.value is not None
    assert (facts.torch_runtime.value.imported, facts.torch_runtime.value.nccl_loaded) == (True, "2.28.9")
    assert (facts.limits.value or {})["memlock"] == Limit(soft=65536, hard=65536)
    assert facts.identity.value is not None
    assert facts.identity.value.uid == 1000
    assert facts.container.value is not None
    assert facts.container.value.kubernetes
    assert "swordfish" not in str(facts)
    report = diagnose(snapshot, Knowledge(), [shadowed], today=datetime.date(2026, 11, 29))
    assert report.outcomes[0].status is Status.FAIL
    assert "9.14.0" in report.diagnosis[0].summary


def test_a_thread_of_the_kernel_runs_nothing(tmp_path: Path) -> None:
    (Path(recorded(tmp_path)) / "exe").unlink()
    assert "thread of the kernel" in refusal(Host(root=str(tmp_path)), 4711)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every link")
def test_another_users_process_is_refused_with_the_way_to_do_it(tmp_path: Path) -> None:
    folder = Path(recorded(tmp_path))
    folder.chmod(0o600)
    try:
        assert "run dsdoctor as that user, or as root" in refusal(Host(root=str(tmp_path)), 4711)
    finally:
        folder.chmod(0o700)


def test_an_interpreter_that_was_replaced_under_the_process(tmp_path: Path) -> None:
    recorded(tmp_path, exe="/usr/bin/python3.12 (deleted)")
    assert attach(Host(root=str(tmp_path)), 4711).target.path == "/usr/bin/python3.12"


def test_embedded_python_counts_and_rubbish_does_no_harm(tmp_path: Path) -> None:
    folder = Path(recorded(tmp_path, maps="/usr/lib/libpython3.12.so.1.0", exe="/usr/sbin/uwsgi"))
    (folder / "environ").write_bytes(b"\xff\xfe=\0=x\0A=b\0\0" * 50)
    assert dict(attach(Host(root=str(tmp_path)), 4711).host.environment) == {"A": "b"}


def test_a_host_of_a_process_starts_nothing(tmp_path: Path) -> None:
    recorded(tmp_path)
    host = dataclasses.replace(attach(Host(root=str(tmp_path)), 4711).host, root="/")
    assert host.run(["true"]).outcome == "not_found"


def test_maps_hold_what_is_gone_from_the_disk_too() -> None:
    text = (
        "7f1-7f2 r-xp 0 08:01 1 /usr/lib/libnccl.so.2.28.9 (deleted)\n7f1-7f2 r--p 0 08:01 1 /usr/lib/libnccl.so.2.28.9 (deleted)\n"
        "7f3-7f4 rw-p 0 00:00 0 [heap]\n7f5-7f6 r--p 0 08:01 2 /usr/lib/locale/C.utf8/LC_CTYPE\nnonsense\n"
    )
    assert parse_maps(text) == ("/usr/lib/libnccl.so.2.28.9",)


@pytest.mark.parametrize(
    ("line", "program", "options"),
    [
        ("/v/bin/python /v/bin/vllm serve m --tp=8 --hf-token abc", "vllm serve", {"model": "m", "tp": "8", "hf-token": "<redacted>"}),
        ("python3 -m sglang.launch_server --model-path /m --admin-api-key k", "sglang.launch_server", {"model-path": "/m", "admin-api-key": "<redacted>"}),
        ("torchrun --nproc-per-node 8 train.py", "torchrun", {"nproc-per-node": "8"}),
    ],
)  # fmt: skip
def test_command_lines_without_their_secrets(line: str, program: str, options: dict[str, str]) -> None:
    command = command_of(line.split())
    assert command is not None
    assert (command.program, dict(command.options)) == (program, options)
    assert "abc" not in command.text
    assert command_of(["python3", "train.py"]) is None
