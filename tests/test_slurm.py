"""The Slurm scripts on a real controller and real node daemons (opt-in: pytest -m slurm, as root, with Debian's slurmctld and slurmd)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from slurm_cluster import SlurmCluster, unavailable

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "deploy" / "slurm"
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(unavailable() != "", reason=unavailable())]

DOCTOR = f"""#!/bin/bash
# The real dsdoctor on a recorded node: which one, a file for each node says. "fault" is a doctor that fails, "hang" one that gives no answer.
shift
echo "$SLURMD_NODENAME $*" >> "$STAGE/calls"
what="$(cat "$STAGE/${{SLURMD_NODENAME:-none}}")"
case "$what" in
    fault) echo "Traceback" >&2; exit 3 ;;
    hang) exec sleep 100 ;;
esac
options=()
for option in "$@"; do [ "$option" = --quick ] || options+=("$option"); done
exec {sys.executable} -m dsdoctor replay "$what" "${{options[@]}}"
"""


class Stage:
    """What dsdoctor sees on each node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        doctor = directory / "dsdoctor"
        doctor.write_text(DOCTOR)
        doctor.chmod(0o755)
        self.settings = directory / "slurm.env"
        self.settings.write_text(
            f"DSDOCTOR=({doctor})\nDSDOCTOR_RESUME=yes\nexport STAGE={directory}\nexport SLURM_CONF={directory}/cluster/slurm.conf\n"
        )

    def set(self, **nodes: str) -> None:
        for node, what in nodes.items():
            (self.directory / node).write_text(what)

    def calls(self) -> str:
        path = self.directory / "calls"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def environment(stage: Stage) -> dict[str, str]:
    return {"DSDOCTOR_ENV": str(stage.settings), "DSDOCTOR_PROLOG_LIMIT_S": "20", "PYTHONPATH": str(ROOT)}


def script(stage: Stage, name: str) -> Path:
    """A program that slurmd starts: Slurm hands over no environment, so that the settings are named in it."""
    path = stage.directory / name
    exports = " ".join(f"{key}={value}" for key, value in environment(stage).items())
    path.write_text(f"#!/bin/bash\nexport {exports} PATH=$PATH:{os.environ['PATH']}\nexec {SCRIPTS / name}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def checked(stage: Stage, tmp_path: Path) -> Iterator[SlurmCluster]:
    stage.set(node1="example:h200-healthy", node2="example:driver-too-old", node3="fault")
    health = script(stage, "dsdoctor-healthcheck.sh")
    with SlurmCluster(tmp_path / "cluster", nodes=3, HealthCheckProgram=health, HealthCheckInterval=5) as cluster:
        yield cluster


def test_the_health_check_drains_what_is_unfit_and_nothing_else(checked: SlurmCluster, stage: Stage) -> None:
    reason = checked.wait("drained node2", lambda: checked.node("node2").drained and checked.node("node2").reason)
    assert re.match(r"dsdoctor: driver\.too-old-for-cuda: torch 2\.11\.0\+cu130 is built for CUDA 13\.0", reason)
    checked.wait("checks of every node", lambda: all(f"{name} " in stage.calls() for name in checked.names))
    assert checked.node("node1").state == {"IDLE"}
    assert checked.node("node3").state == {"IDLE"}, "a doctor that fails is no unfit node"
    assert checked.run("srun", "-w", "node1,node3", "-n2", "-N2", "true").returncode == 0

    checked.run("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=broken fan")
    stage.set(node1="example:gpu-fell-off-the-bus", node2="example:h200-healthy")
    checked.wait("resumed node2", lambda: not checked.node("node2").drained)
    assert checked.node("node1").reason == "broken fan", "a person's reason stays"


def test_a_job_does_not_start_on_an_unfit_node_and_starts_when_the_doctor_fails(stage: Stage, tmp_path: Path) -> None:
    stage.set(node1="example:gpu-fell-off-the-bus", node2="fault")
    options = {"Prolog": script(stage, "dsdoctor-prolog.sh"), "PrologFlags": "Alloc", "Epilog": script(stage, "dsdoctor-epilog.sh")}
    with SlurmCluster(tmp_path / "cluster", **options, MessageTimeout=40) as cluster:
        assert cluster.run("srun", "-w", "node2", "echo", "ran").stdout == "ran\n"
        assert not cluster.node("node2").drained
        batch = cluster.run("sbatch", "--parsable", "-w", "node1", "--wrap", "echo ran", "-o", str(tmp_path / "job.out")).stdout.strip()
        node = cluster.wait("drained node1", lambda: (found := cluster.node("node1")).drained and found)
        assert node.reason.startswith("dsdoctor: gpu.lost: ")
        cluster.wait("job that waits", lambda: "PENDING" in cluster.run("squeue", "-h", "-j", batch, "-o", "%T").stdout)
        assert not (tmp_path / "job.out").exists()

        job = cluster.run(
            "sbatch", "--parsable", "-w", "node2", "--wrap", f"sleep 1; echo example:gpu-fell-off-the-bus > {stage.directory}/node2"
        )
        assert job.returncode == 0
        ended = cluster.wait("node2 drained by its epilog", lambda: (found := cluster.node("node2")).drained and found)
        assert ended.reason.startswith("dsdoctor: gpu.lost: ")


def test_a_doctor_that_hangs_is_left_and_the_job_starts(stage: Stage, tmp_path: Path) -> None:
    stage.set(node1="hang")
    prolog = script(stage, "dsdoctor-prolog.sh")
    prolog.write_text(prolog.read_text().replace("DSDOCTOR_PROLOG_LIMIT_S=20", "DSDOCTOR_PROLOG_LIMIT_S=2"))
    with SlurmCluster(tmp_path / "cluster", nodes=1, Prolog=prolog, MessageTimeout=40) as cluster:
        assert cluster.run("srun", "echo", "ran").stdout == "ran\n"
        assert not cluster.node("node1").drained
