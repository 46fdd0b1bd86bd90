"""The services probe: what systemd says, what runs without it, and what a container must not claim."""

from __future__ import annotations

import importlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import State
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

services = importlib.import_module("dsdoctor.probes.services")

SYSTEMCTL = " ".join(services.SYSTEMCTL)
BLOCK = "Id={name}.service\nLoadState={load}\nActiveState={active}\nSubState={sub}\n"


def said(text: str) -> Ended:
    return Ended(outcome="exited", code=0, stdout=text)


def units(**states: tuple[str, str, str]) -> Ended:
    blocks = []
    for name in ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm"):
        load, active, sub = states.get(name.removeprefix("nvidia-"), ("not-found", "inactive", "dead"))
        blocks.append(BLOCK.format(name=name, load=load, active=active, sub=sub))
    return said("\n".join(blocks))


def machine(root: Path, *, systemd: bool = True, programs: tuple[str, ...] = (), processes: tuple[str, ...] = ("systemd", "bash")) -> None:
    if systemd:
        (root / "run/systemd/system").mkdir(parents=True)
    for program in programs:
        path = root / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
    for pid, name in enumerate(processes, 1):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(name + "\n")


def examine(root: Path, commands: dict[str, Ended] | None = None, environment: dict[str, str] | None = None):
    section = services.collect(Host(root=str(root), environment=environment or {}, commands=commands or {}), Scope(target=None))["services"]
    return section, {service.name: (service.state, service.version) for service in section.value or ()}


def test_fabric_manager_failed_next_to_a_healthy_persistenced(tmp_path):
    machine(tmp_path, programs=("/usr/bin/nv-fabricmanager", "/usr/bin/nvidia-persistenced"), processes=("systemd", "nvidia-persiste"))
    section, found = examine(
        tmp_path,
        {
            SYSTEMCTL: units(fabricmanager=("loaded", "failed", "failed"), persistenced=("loaded", "active", "running")),
            "/usr/bin/nv-fabricmanager --version": said("Fabric Manager version is : 570.133.20\n"),
        },
    )
    assert found["nvidia-fabricmanager"] == ("failed", "570.133.20")
    assert found["nvidia-persistenced"] == ("active", "")
    assert found["nvidia-imex"] == ("not-installed", "")
    assert found["nvlsm"] == ("not-installed", "")
    assert section.found_via == "systemctl, /proc"


def test_activating_and_stopped(tmp_path):
    machine(tmp_path)
    states = units(
        fabricmanager=("loaded", "activating", "start"), imex=("loaded", "inactive", "dead"), dcgm=("masked", "inactive", "dead")
    )
    _, found = examine(tmp_path, {SYSTEMCTL: states})
    assert [found[name][0] for name in ("nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm")] == ["activating", "inactive", "inactive"]


def test_a_process_started_by_hand_counts(tmp_path):
    machine(tmp_path, processes=("systemd", "nv-fabricmanage", "nvlsm", "nv-hostengine"))
    _, found = examine(tmp_path, {SYSTEMCTL: units()})
    assert found["nvidia-fabricmanager"][0] == "active"
    assert found["nvlsm"][0] == "active"
    assert found["nvidia-dcgm"][0] == "active"


def test_without_systemd_the_program_on_disk_decides(tmp_path):
    machine(tmp_path, systemd=False, programs=("/usr/bin/nv-fabricmanager",), processes=("init",))
    _, found = examine(tmp_path, {"/usr/bin/nv-fabricmanager --version": Ended(outcome="timed_out", elapsed_s=2.0)})
    assert found["nvidia-fabricmanager"] == ("inactive", "")
    assert found["nvidia-imex"] == ("not-installed", "")


def test_systemd_that_does_not_answer_falls_back(tmp_path):
    machine(tmp_path, processes=("systemd", "nvidia-imex"))
    _, found = examine(tmp_path, {SYSTEMCTL: Ended(outcome="exited", code=1, stderr="Failed to connect to bus")})
    assert found["nvidia-imex"][0] == "active"


def test_a_container_claims_nothing_about_the_host(tmp_path):
    machine(tmp_path, systemd=False, processes=("python3",))
    (tmp_path / ".dockerenv").write_text("")
    section, _ = examine(tmp_path)
    assert section.state is State.NOT_ASKED
    assert "container (/.dockerenv)" in section.why


def test_a_pod_with_the_programs_in_its_image_claims_nothing_either(tmp_path):
    machine(tmp_path, systemd=False, programs=("/usr/bin/nv-fabricmanager",), processes=("python3",))
    section, _ = examine(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert section.state is State.NOT_ASKED


def test_a_container_that_shares_the_process_table_says_what_it_sees(tmp_path):
    machine(tmp_path, systemd=False, processes=("python3", "nv-fabricmanage"))
    (tmp_path / ".dockerenv").write_text("")
    _, found = examine(tmp_path)
    assert found["nvidia-fabricmanager"][0] == "active"
    assert found["nvidia-imex"][0] == "unknown"


def test_nothing_readable(tmp_path):
    section, _ = examine(tmp_path)
    assert section.state is State.UNREADABLE


def test_unknown_words_of_systemd_stay_unknown():
    assert services.parse_units("Id=a.service\nLoadState=loaded\nActiveState=maintenance\n") == {"a.service": "unknown"}
    assert services.parse_units("") == {}
    assert services.parse_units("no equals sign\n\n=\n") == {}


@given(st.text(max_size=200))
def test_unit_parser_never_raises(text):
    for state in services.parse_units(text).values():
        assert state in {"active", "activating", "inactive", "failed", "not-installed", "unknown"}
