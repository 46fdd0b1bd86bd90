"""The files of deploy/: each is validated by its own tool or schema where there is one here, and each script runs with a stand-in doctor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
SLURM = sorted((DEPLOY / "slurm").glob("*.sh"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
FINDING = "gpu.lost: GPU 3: the driver lost it (+2)"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def of_kind(path: Path, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def shell_texts() -> Iterator[tuple[str, str]]:
    """Every script in the manifests."""
    for path in MANIFESTS:
        for document in documents(path):
            for name, text in document.get("data", {}).items():
                if name.endswith(".sh"):
                    yield name, text
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                if container.get("command", [])[-1:] == ["-c"]:
                    yield container["name"], f"#!/bin/sh\n{container['args'][0]}"


# --- their own tools --------------------------------------------------------------------------------------------------


def test_shell_scripts_are_sound(tmp_path: Path) -> None:
    embedded = []
    for name, text in shell_texts():
        path = tmp_path / name
        path.write_text(text)
        embedded.append(str(path))
    assert len(embedded) == 4
    for script in SLURM:
        subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    if shellcheck is None:
        pytest.skip("no shellcheck here")
    done = subprocess.run([shellcheck, "-x", "-P", DEPLOY / "slurm", *SLURM, *embedded], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(path):
        if "generateName" in document["metadata"]:  # the library reports by name
            document["metadata"]["name"] = document["metadata"].pop("generateName") + "x"
        for version in ("1.28", "1.34"):
            validator.validate(document, version, strict=True)


def test_pods_are_modest() -> None:
    """No container may gain rights, is privileged, or can take all the memory of a node."""
    for path in MANIFESTS:
        for document in documents(path):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            volumes = {volume["name"] for volume in pod.get("volumes", ())}
            for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                assert "memory" in container["resources"]["limits"], container["name"]
                assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
                assert not container.get("securityContext", {}).get("privileged")
            if pod and document["kind"] in ("Job", "DaemonSet"):
                assert all(container["securityContext"]["allowPrivilegeEscalation"] is False for container in pod["containers"])


def test_units_are_understood_by_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/dsdoctor/bin/dsdoctor", "/bin/true"))
    done = subprocess.run([analyze, "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True, timeout=60)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stderr == ""
    assert done.returncode == 0


# --- Slurm ------------------------------------------------------------------------------------------------------------


class Node:
    """A node with a stand-in dsdoctor, scontrol and sinfo."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told = directory / "scontrol.log"
        self.program("scontrol", f'echo "$@" >> {self.told}')
        self.sinfo("idle|none")
        (directory / "slurm.env").write_text(f"DSDOCTOR=({directory}/dsdoctor)\n")

    def program(self, name: str, body: str) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def sinfo(self, answer: str) -> None:
        self.program("sinfo", f"echo '{answer}'")

    def run(self, script: str, code: int, line: str, settings: str = "", **environment: str) -> tuple[int, str, str]:
        """Exit code of the script, what scontrol was told, and what was logged."""
        self.told.unlink(missing_ok=True)
        self.program("dsdoctor", f"echo \"$@\" > {self.directory}/asked; [ -z '{line}' ] || echo '{line}'; exit {code}")
        (self.directory / "slurm.env").write_text(f"DSDOCTOR=({self.directory}/dsdoctor)\n{settings}")
        done = subprocess.run(
            [DEPLOY / "slurm" / f"dsdoctor-{script}.sh"],
            capture_output=True,
            text=True,
            timeout=30,
            env={
                "PATH": f"{self.directory}:/usr/bin:/bin",
                "DSDOCTOR_ENV": str(self.directory / "slurm.env"),
                "SLURMD_NODENAME": "gpu7",
                **environment,
            },
        )
        return done.returncode, self.told.read_text() if self.told.exists() else "", done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


DRAINED = f"update NodeName=gpu7 State=DRAIN Reason=dsdoctor: {FINDING}\n"


@pytest.mark.parametrize(
    ("script", "code", "line", "ends", "told"),
    [
        ("healthcheck", 1, FINDING, 0, DRAINED),
        ("prolog", 1, FINDING, 1, DRAINED),
        ("epilog", 1, FINDING, 0, DRAINED),
        *((script, 0, "fit: 60 checks passed", 0, "") for script in ("healthcheck", "prolog", "epilog")),
        *((script, 3, "cannot tell: 1 crashed", 0, "") for script in ("healthcheck", "prolog", "epilog")),
        ("prolog", 2, "cannot tell: no such option", 0, ""),
        ("prolog", 1, "", 0, ""),
        ("healthcheck", 1, "Traceback (most recent call last):", 0, ""),
        ("prolog", 127, "", 0, ""),
        ("prolog", 139, "", 0, ""),
    ],
)
def test_a_node_is_drained_on_findings_only(node: Node, script: str, code: int, line: str, ends: int, told: str) -> None:
    ended, said, logged = node.run(script, code, line)
    assert (ended, said) == (ends, told)
    assert ("could not judge" in logged) == (not told and code != 0)
    asked = (node.directory / "asked").read_text()
    assert asked.startswith("check --quick --only driver,gpu,fabric")
    assert asked.endswith("--exit-style default --format npd\n")


def test_a_doctor_that_hangs_is_left_behind(node: Node) -> None:
    node.program("slow", "exec sleep 60")
    started = time.monotonic()
    ended, told, logged = node.run("prolog", 1, FINDING, settings=f"DSDOCTOR=({node.directory}/slow)\n", DSDOCTOR_PROLOG_LIMIT_S="1")
    assert (ended, told) == (0, "")
    assert "no answer in 1 s" in logged
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("state", "drains"),
    [
        ("drained|broken fan", False),
        ("draining*|Kill task failed", False),
        ("drained|dsdoctor: gpu.xid: old", True),
        ("idle|none", True),
        ("", True),
    ],
)
def test_the_reason_of_a_person_stays(node: Node, state: str, drains: bool) -> None:
    node.sinfo(state)
    assert node.run("healthcheck", 1, FINDING)[1] == (DRAINED if drains else "")


@pytest.mark.parametrize(
    ("state", "settings", "resumes"),
    [
        ("drained|dsdoctor: gpu.lost", "DSDOCTOR_RESUME=yes\n", True),
        ("drained|dsdoctor: gpu.lost", "", False),
        ("drained|broken fan", "DSDOCTOR_RESUME=yes\n", False),
        ("idle|none", "DSDOCTOR_RESUME=yes\n", False),
    ],
)
def test_only_what_was_drained_by_us_is_resumed(node: Node, state: str, settings: str, resumes: bool) -> None:
    node.sinfo(state)
    assert node.run("healthcheck", 0, "fit", settings)[1] == ("update NodeName=gpu7 State=RESUME\n" if resumes else "")


def test_a_script_stays_under_the_minute_that_slurm_gives() -> None:
    text = (DEPLOY / "slurm" / "dsdoctor-healthcheck.sh").read_text()
    assert "examine 40\n" in text
    assert (DEPLOY / "slurm" / "dsdoctor-common.sh").read_text().count("timeout 5 ") == 3, "at most two of them in one run"


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def test_the_configuration_of_node_problem_detector(tmp_path: Path) -> None:
    """What its loader checks: a permanent rule has a default condition, its path is mounted, no rule may take longer than all."""
    config = of_kind(DEPLOY / "kubernetes" / "node-conditions.yaml", "ConfigMap")["data"]
    pod = of_kind(DEPLOY / "kubernetes" / "node-conditions.yaml", "DaemonSet")["spec"]["template"]["spec"]
    monitor = json.loads(config["gpu-stack.json"])
    assert set(monitor) == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert monitor["plugin"] == "custom"
    conditions = {condition["type"] for condition in monitor["conditions"]}
    for rule in monitor["rules"]:
        assert rule["type"] == "permanent"
        assert rule["condition"] in conditions
        assert rule["timeout"] <= monitor["pluginConfig"]["timeout"]
        folder, _, name = rule["path"].rpartition("/")
        assert name in config
        detector = pod["containers"][1]
        assert any(mount["mountPath"] == folder for mount in detector["volumeMounts"])
        assert f"--config.custom-plugin-monitor={folder}/gpu-stack.json" in detector["command"]
    scripts = next(volume for volume in pod["volumes"] if volume["name"] == "scripts")
    assert scripts["configMap"]["defaultMode"] == 0o555, "the plugin is executed"


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (f"NOW 1 {FINDING}", 1, FINDING),
        ("NOW 0 fit: 60 checks passed", 0, "fit: 60 checks passed"),
        ("NOW 2 cannot tell: 1 crashed", 2, "cannot tell: 1 crashed"),
        ("NOW 1 ", 2, "dsdoctor failed without a message (exit 1)"),
        ("NOW 139 ", 2, "dsdoctor failed without a message (exit 139)"),
        (f"1700000000 1 {FINDING}", 2, "the last answer of dsdoctor is"),
        (None, 2, "dsdoctor has not answered yet"),
    ],
)
def test_the_plugin_reads_the_last_answer(tmp_path: Path, answer: str | None, code: int, says: str) -> None:
    script = of_kind(DEPLOY / "kubernetes" / "node-conditions.yaml", "ConfigMap")["data"]["condition.sh"].replace(
        "/answer/", f"{tmp_path}/"
    )
    if answer is not None:
        (tmp_path / "last").write_text(answer.replace("NOW", str(int(time.time()))) + "\n")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=20)
    assert done.returncode == code
    assert done.stdout.startswith(says)


def test_the_examiner_leaves_code_and_line(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.program("dsdoctor", f"echo '{FINDING}'; exit 1")
    node.program("sleep", "kill $PPID")
    script = of_kind(DEPLOY / "kubernetes" / "node-conditions.yaml", "ConfigMap")["data"]["examine.sh"].replace("/answer/", f"{tmp_path}/")
    subprocess.run(["/bin/sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=20, capture_output=True)
    when, code, line = (tmp_path / "last").read_text().strip().split(" ", 2)
    assert (abs(int(when) - time.time()) < 30, code, line) == (True, "1", FINDING)


@pytest.mark.parametrize(("code", "line", "ends"), [(1, FINDING, 1), (0, "fit", 0), (3, "cannot tell", 0), (2, "", 0), (1, "", 0)])
def test_an_engine_waits_for_a_fit_node_and_not_for_a_fit_doctor(tmp_path: Path, code: int, line: str, ends: int) -> None:
    """The doctor is copied out of its image, then started by the engine's Python."""
    fetch, preflight = of_kind(DEPLOY / "kubernetes" / "preflight.yaml", "Deployment")["spec"]["template"]["spec"]["initContainers"]
    package = tmp_path / "opt/dsdoctor/lib/python3.13/site-packages/dsdoctor"
    package.mkdir(parents=True)
    body = f"print({line!r}) if {line!r} else None; open(sys.argv[sys.argv.index('-o') + 1], 'w').write('the report'); sys.exit({code})"
    (package / "cli.py").write_text(f"import sys\n\ndef main():\n    {body}\n")
    (package / "__init__.py").write_text("")
    (tmp_path / "tools").mkdir()

    def run(container: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        text = (
            container["args"][0]
            .replace("/opt/", f"{tmp_path}/opt/")
            .replace("/tools/", f"{tmp_path}/tools/")
            .replace("/tmp/rep", f"{tmp_path}/rep")
        )
        path = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        return subprocess.run([*container["command"], text], capture_output=True, text=True, timeout=30, env={"PATH": path})

    assert run(fetch).returncode == 0
    done = run(preflight)
    assert (done.returncode, done.stdout) == (ends, "the report")
