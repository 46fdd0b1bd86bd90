"""`fleet run` on stand-ins for ssh, srun and kubectl: real programs that answer, hang, print garbage, fail or die."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.cli import main
from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet.run import answer, clush, collective, directory, hosts, kubernetes, mpi, process, progress, ray, ship, slurm, ssh
from dsdoctor.fleet.run.collect import Answer, Collected, Limits, Progress, collect
from dsdoctor.fleet.run.engine import Engine, NoAnswer, Node
from dsdoctor.sources.child import Ended

STAND_INS = Path(__file__).with_name("fleet_stand_ins")
COMMAND = ["dsdoctor", "check", "--format", "json"]
REPORT = {"schema": "dsdoctor.report/1", "verdict": "healthy", "origin": {"kind": "live", "label": "this machine"}}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins, which are first on PATH, note their arguments."""
    monkeypatch.setenv("PATH", f"{STAND_INS}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def nodes_of(text: str) -> tuple[Node, ...]:
    return hosts.read(text)


def ask(engine: Engine, keep: Any = lambda found: None, command: Sequence[str] = COMMAND, **limits: float) -> Collected:
    allowed = Limits(node_s=limits.get("node_s", 20), total_s=limits.get("total_s", 60), at_once=int(limits.get("at_once", 16)))
    return collect(engine, engine.nodes(), lambda number: command, allowed, keep, lambda state, found: None)


def reasons(collected: Collected) -> dict[str, str]:
    return {one.node.name: one.reason for one in collected.answers}


# --- a fleet with every kind of node ------------------------------------------------------------------------------------


def test_each_node_is_a_report_or_a_reason_and_none_hides_another(log: Path, tmp_path: Path) -> None:
    folder = directory.prepare(str(tmp_path / "kept"))
    engine = ssh.engine(nodes_of("answers[08-10],hangs,garbage,silent,error,three,absent,dies,floods"), [])
    found = reasons(ask(engine, folder.keep, node_s=2))
    assert found == {
        "answers08": "",
        "answers09": "",
        "answers10": "",
        "hangs": "no answer within 2 s; last heard: looking for hangs",
        "garbage": 'what it printed is no JSON report, it begins: {"schema": "elsewhere/1"} %%%',
        "silent": "it printed nothing (exit status 0)",
        "error": "dsdoctor made no report there: --gpu 9: there is no GPU 9",
        "three": "exit status 3: error: cannot open the door",
        "absent": "exit status 127: sh: dsdoctor: command not found (is dsdoctor installed there? --command names another way to start it)",
        "dies": "killed by SIGSEGV",
        "floods": "its command printed more than 16 MiB",
    }
    kept = {path.stem: json.loads(path.read_text()) for path in Path(folder.reports).glob("*.json")}
    assert set(kept) == set(found)
    assert kept["answers09"]["origin"] == {"kind": "live", "label": "answers09"}
    assert kept["three"] == {"schema": "dsdoctor.no-report/1", "label": "three", "reason": found["three"]}


def test_the_deadline_for_all_tells_who_was_not_even_asked(log: Path) -> None:
    found = reasons(ask(ssh.engine(nodes_of("hangs1,answers2"), []), total_s=1, at_once=1))
    assert found["hangs1"].startswith("no answer when the 1 s for all nodes were up")
    assert found["answers2"] == "not asked yet when the 1 s for all nodes were up"


def test_words_of_the_command_arrive_as_they_are_whatever_is_in_them(log: Path) -> None:
    words = ["printf", "%s", json.dumps({**REPORT, "said": "a b'c\"; $(id) `id` * \\"})]
    (found,) = ask(ssh.engine(nodes_of("runs"), []), command=words).answers
    assert found.report is not None
    assert found.report["said"] == "a b'c\"; $(id) `id` * \\"


def test_a_fault_of_ours_on_one_node_hides_no_other() -> None:
    def argv_of(node: Node, command: Sequence[str]) -> list[str]:
        return ["true"] if node.name == "b" else ["true"] * (1 // 0)

    found = ask(process.Processes(lambda: nodes_of("a,b"), argv_of, "true"))
    assert reasons(found) == {
        "a": "a fault of dsdoctor itself: a: ZeroDivisionError: integer division or modulo by zero",
        "b": "it printed nothing (exit status 0)",
    }
    assert len(found.faults) == 1


def test_interrupted_it_keeps_what_arrived_and_leaves_nothing_running(log: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "reports"
    argv = [sys.executable, "-m", "dsdoctor", "fleet", "run", "--hosts", "answers1,hangs2", "--output-dir", str(kept.parent)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        end = time.monotonic() + 30
        while not (kept / "answers1.json").exists() or "hangs2" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < end
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert json.loads((kept / "answers1.json").read_text())["verdict"] == "healthy"
    assert json.loads((kept / "hangs2.json").read_text())["reason"].startswith("the run was ended (SIGINT) before it answered")
    assert "hangs2" in said
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if f"STAND_IN_LOG={log}".encode() in content(path)] == []


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_answer_is_that_of_fleet_merge_with_what_the_nodes_found_together(log: Path, tmp_path: Path) -> None:
    argv = ["fleet", "run", "--hosts", "answers[1-2],three3", "--collective", "--format", "json", "--output-dir", "kept", "-o", "nodes.csv"]
    done = subprocess.run([sys.executable, "-m", "dsdoctor", *argv], capture_output=True, text=True, cwd=tmp_path)
    fleet = json.loads(done.stdout)
    assert done.returncode == 1
    assert fleet["counts"] | {"healthy": 2, "no_report": 1} == fleet["counts"]
    found = {problem["check"]: problem for problem in fleet["problems"]}
    # None of the stand-ins has the test's results, so that none took part.
    assert found["fleet.collective"]["nodes"] == 3
    assert "never joined" in found["fleet.collective"]["summary"]
    assert found["fleet.no-report"]["hosts"] == "three3"
    assert json.loads((tmp_path / "kept" / "collective.json").read_text())["ok"] is False
    assert "three3" in (tmp_path / "nodes.csv").read_text()
    assert "the reports are kept in kept" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which nodes?"),
        (["--slurm", "--kubernetes"], "one engine at a time"),
        (["--hosts", "a", "--command", "'"], "--command"),
        (["--hosts", "a;b"], "no host name"),
        (["--hosts", "a", "--collective"], "two nodes"),
        (["--hosts", "a,b", "--collective", "--master", "nowhere"], "--master"),
        (["--hosts", "a,b", "--collective", "--command", "true"], "some `… check …`"),
        (["--kubernetes"], "--image"),
        (["--ray", "auto", "--", "-x"], "no options"),
        (["--hosts", "a", "-o", "x.docx"], "suffix"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_leaves_no_directory(
    arguments: list[str], says: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "run", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# --- engines ------------------------------------------------------------------------------------------------------------


def test_ssh_never_asks_and_takes_the_users_options_first(log: Path) -> None:
    ask(ssh.engine(nodes_of("admin@answers1"), ["-p", "2222"]))
    words = log.read_text().splitlines()
    assert words[:2] == ["-p", "2222"]
    assert "BatchMode=yes" in words
    assert words[-3:] == ["--", "admin@answers1", f"timeout -k 3 23 {shlex.join(COMMAND)}"]


@pytest.mark.parametrize("module", [clush, mpi])
def test_other_launchers_are_started_once_a_node(module: Any, log: Path) -> None:
    found = reasons(ask(module.engine(nodes_of("answers1,three2"), ["--option", "its value"])))
    assert found == {"answers1": "", "three2": "exit status 3: error: cannot open the door"}
    assert "--option\nits value\n" in log.read_text()


def test_slurm_starts_what_it_can_and_tells_why_not_the_rest(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = reasons(ask(slurm.engine((), ["-p", "gpu", "--exclusive"])))
    assert found == {
        "answers1": "",
        "answers2": "",
        "answers3": "Slurm starts nothing on it, its state is drain: GPU 3 fell off; see ticket",
        "answers4": "Slurm starts nothing on it, its state is idle and it does not answer",
    }
    calls = log.read_text().splitlines()
    assert sorted(word for call in calls for word in call.split() if word.startswith("--nodelist")) == [
        "--nodelist=answers1",
        "--nodelist=answers2",
    ]
    assert all(call.startswith("--partition gpu --exclusive --nodes=1 --ntasks=1") and "--overlap" not in call for call in calls)
    named = slurm.engine(nodes_of("answers2,elsewhere"), []).nodes()
    assert [node.unreachable for node in named] == ["", "Slurm has no node of that name"]


def test_slurm_inside_a_job_runs_beside_its_other_steps(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert reasons(ask(slurm.engine(nodes_of("answers3"), []))) == {"answers3": ""}
    assert "--overlap" in log.read_text()


@pytest.mark.parametrize("option", ["-N4", "--nodes=4", "-n", "--ntasks"])
def test_slurm_takes_names_of_nodes_and_no_number(option: str, log: Path) -> None:
    with pytest.raises(UsageError, match=r"salloc -N 4|expected one argument"):
        slurm.engine((), [option, "4"] if option in ("-n", "--ntasks") else [option])


def test_kubernetes_makes_a_job_reads_its_pods_and_takes_it_away(log: Path) -> None:
    engine = kubernetes.engine((), "gpu", "registry.example/dsdoctor:1", "", [])
    found = reasons(ask(engine))
    assert found == {
        "answers-a": "",
        "three-b": "exit status 3",
        "no-image": "ImagePullBackOff: Back-off pulling image",
        "gone": "Kubernetes: the node is not ready: Kubelet stopped posting node status.",
    }
    job = json.loads(Path(f"{log}.job").read_text())["items"][0]
    assert job["spec"]["completions"] == 3
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == COMMAND
    last = log.read_text().splitlines()[-1]
    assert last == f"--namespace gpu delete job {job['metadata']['name']} --ignore-not-found --wait=false"


@pytest.mark.parametrize("meeting", [False, True])
def test_the_job_is_what_kubernetes_takes(meeting: bool, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    spec = tmp_path / "pod.yaml"
    spec.write_text("runtimeClassName: nvidia\ncontainers:\n- resources: {limits: {nvidia.com/gpu: 8}}\n  env: [{name: A, value: b}]\n")
    command = ["dsdoctor", "--node", f"{kubernetes.ANY_NUMBER}/2", "$(HOME)"]
    made = kubernetes.manifest(
        "dsdoctor-1", (Node(name="a", address="a.local"),), command, "image:1", kubernetes.read_pod_spec(str(spec)), 60, meeting=meeting
    )
    for item in made["items"]:
        validate(item, "1.33", strict=True)
    assert [item["kind"] for item in made["items"]] == (["Job", "Service"] if meeting else ["Job"])
    pod = made["items"][0]["spec"]["template"]["spec"]
    # Kubernetes puts the number in; what the user wrote stays what it is.
    assert pod["containers"][0]["command"] == ["dsdoctor", "--node", "$(DSDOCTOR_NODE)/2", "$$(HOME)"]
    assert [entry["name"] for entry in pod["containers"][0]["env"]] == ["DSDOCTOR_NODE", "A"]
    assert pod["runtimeClassName"] == "nvidia"


def test_a_pod_spec_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match="fields of a pod's spec"):
        kubernetes.read_pod_spec(str(tmp_path / "pod.yaml"))


def ray_node(name: str, address: str, number: int, alive: bool = True, reason: int = 0) -> dict[str, Any]:
    return {
        "NodeManagerHostname": name, "NodeManagerAddress": address, "NodeID": f"{number:056x}", "Alive": alive, "DeathReason": reason,
        "DeathReasonMessage": "health check failed",
    }  # fmt: skip


def test_ray_nodes_have_names_of_their_own_and_lost_ones_are_told() -> None:
    all_nodes = [
        ray_node("a", "10.0.0.1", 1),
        ray_node("b", "10.0.0.2", 2),
        ray_node("b", "10.0.0.3", 3),
        ray_node("c", "10.0.0.4", 4, alive=False, reason=ray.UNEXPECTED),
        ray_node("d", "10.0.0.5", 5, alive=False, reason=1),
        ray_node("a", "10.0.0.1", 6, alive=False, reason=ray.UNEXPECTED),
    ]
    found = ray.members(all_nodes)
    assert {node.name: node.unreachable for node, _ in found} == {
        "a": "",
        "b-10.0.0.2": "",
        "b-10.0.0.3": "",
        "c": "Ray lost it: health check failed",
    }


def test_without_ray_the_sentence_says_whose_python_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Python of the cluster"):
        ray.connected("auto")


def test_what_is_sent_to_a_node_without_dsdoctor_runs_there(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(ship.package())) as archive:
        archive.extractall(tmp_path)
    assert (tmp_path / "dsdoctor" / "probes" / "in_target" / "smoke_collectives.py").is_file()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path), "list", "probes", "--format", "json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


# --- names of hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[08-10]", ["node08", "node09", "node10"]),
        ("r[1-2]-n[1,03-04]", ["r1-n1", "r1-n03", "r1-n04", "r2-n1", "r2-n03", "r2-n04"]),
        ("a,b a", ["a", "b"]),
        ("root@10.0.0.1,fe80::1", ["root@10.0.0.1", "fe80::1"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert [node.name for node in hosts.read(text)] == names


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=id", "a;id", "$(id)", "a b`id`", "node[1-", "node[3-1]", "a|b", "\u202ea", "node[1-99999999]"]
)
def test_what_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        hosts.read(text)


def test_a_file_of_hosts_as_mpi_has_them(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack 1\nnode1 slots=8\nnode[2-3]  # two more\n\n")
    assert [node.name for node in hosts.read(str(file))] == ["node1", "node2", "node3"]
    file.write_text("node1\n--rsh=id\n")
    with pytest.raises(InputError, match=r"hosts, line 2: '--rsh=id' is no host name"):
        hosts.read(str(file))
    with pytest.raises(InputError, match="no such file"):
        hosts.read(str(tmp_path / "none"))


# --- answers ------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(before=st.text(max_size=80), after=st.text(max_size=80))
def test_a_report_is_found_in_whatever_a_login_shell_prints(before: str, after: str) -> None:
    assert answer.document_in(f"{before}\n{json.dumps(REPORT, indent=1)}\n{after}") == REPORT


@settings(max_examples=50, deadline=None)
@given(text=st.text(alphabet='{}[]":,schemadotr/1\n ', max_size=200), code=st.integers(0, 255))
def test_no_output_breaks_the_reader(text: str, code: int) -> None:
    with pytest.raises(NoAnswer):
        answer.report_of(Ended(outcome="exited", code=code, stdout=text, stderr=text))


def test_a_reason_is_one_printable_line() -> None:
    with pytest.raises(NoAnswer) as found:
        answer.report_of(Ended(outcome="exited", code=1, stderr=f"\x1b[31merror\x07\x9b: {'x' * 5000}"))
    assert str(found.value).isprintable()
    assert len(str(found.value)) <= 400


def test_old_reports_are_not_taken_for_answers(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    with pytest.raises(UsageError, match="there is something in it"):
        directory.prepare(str(tmp_path))


def test_two_nodes_never_share_a_file(tmp_path: Path) -> None:
    folder = directory.prepare(str(tmp_path / "kept"))
    names = ["a@b", "a_b", "a:b", "..", "a/b"]
    assert len({folder.file_of(Node(name=name, number=number)) for number, name in enumerate(names)}) == len(names)


def test_progress_names_those_that_are_late() -> None:
    state = Progress(total=8, asked={"b": time.monotonic() - 42, "c": time.monotonic()}, reports=5, without=1)
    assert progress.sentence(state) == "6 of 8 nodes answered, 1 without a report; waiting for b (42 s)"


# --- collectives across nodes -------------------------------------------------------------------------------------------


def part(name: str, *results: dict[str, Any], reason: str = "", why: str = "") -> Answer:
    section = (
        {"state": "known", "value": [{"test": "collectives", **one} for one in results]} if results else {"state": "absent", "why": why}
    )
    return Answer(node=Node(name=name), report=None if reason else {"facts": {"smoke": section}}, reason=reason)


def ran(node: int, rate: float, wrong: int = 0) -> dict[str, Any]:
    return {
        "path": "all-reduce across 2 nodes", "outcome": "ran", "values": {"wrong": wrong, "bus_gb_per_s": rate},
        "notes": {"ranks": "16", "backend": "nccl", "node": str(node)},
    }  # fmt: skip


def hung(node: int, stage: str, place: int, reason: str = "it does not go on", **notes: str) -> dict[str, Any]:
    return {
        "path": "across 2 nodes",
        "outcome": "hang",
        "reason": reason,
        "notes": {"stage": stage, "place": str(place), "node": str(node), **notes},
    }


NEVER = "rank 0 while meeting the other nodes: node 1 of 2 never came to a:29517"


@pytest.mark.parametrize(
    ("answers", "ok", "says"),
    [
        ([part("a", ran(0, 90)), part("b", ran(1, 80))], True, "across 2 nodes are right (16 ranks, nccl; GB/s of the bus: all-reduce 80)"),
        ([part("a", ran(0, 90)), part("b", ran(1, 80, wrong=7))], False, "fail on b: words arrive changed"),
        (
            [part("a", hung(0, "meeting", 3, NEVER, missing="1")), part("b", reason="Host unreachable")],
            False,
            "b never joined: Host unreachable",
        ),
        (
            [part("a", hung(0, "meeting", 3, NEVER, missing="1")), part("b", why="torch is not installed")],
            False,
            "b never joined: torch is not",
        ),
        (
            [part("a", hung(0, "meeting", 3, NEVER, missing="1")), part("b", hung(1, "meeting", 3, "node 0 does not answer", missing="0"))],
            False,
            "never joined",
        ),
        (
            [part("a", hung(0, "barrier", 5)), part("b", hung(1, "joining the group", 4))],
            False,
            "b: at 'joining the group' while the others wait",
        ),
        ([part("a", hung(0, "barrier", 5)), part("b", hung(1, "barrier", 5))], False, "all nodes are at 'barrier'"),
    ],
)
def test_the_node_that_the_others_wait_for_is_named(answers: list[Answer], ok: bool, says: str) -> None:
    found = collective.judged(answers)
    assert found.ok is ok
    assert says in found.summary
    assert json.dumps(found.plain())


def test_the_test_is_started_as_the_check_is() -> None:
    command = collective.command_of(["python3", "dsdoctor.pyz", "check", "--python", "/opt/vllm", "--quick"], "a:29517", 4, 100)("3")
    assert command[:9] == ["python3", "dsdoctor.pyz", "smoke", "collectives", "--meet", "a:29517", "--node", "3/4", "--python"]
    assert command[9:] == ["/opt/vllm", "--timeout", "90", "--format", "json", "--fail-on", "never"]


@pytest.mark.parametrize("address", ["fe80::1", "[fe80::1]:29517"])
def test_nodes_meet_at_an_address_that_is_one(address: str) -> None:
    nodes = (Node(name="a", address="fe80::1"), Node(name="b"))
    assert collective.meeting_place(address if "]" in address else "", nodes, "") == "[fe80::1]:29517"
