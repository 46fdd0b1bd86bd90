"""Site expectations: a learned file suits its own node, an edited node shows exactly the edit, a missing fact is never sickness."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsdoctor import expect
from dsdoctor.cli import command_line
from dsdoctor.diagnose import Waiver, diagnose
from dsdoctor.errors import InputError
from dsdoctor.expect.kinds import KINDS
from dsdoctor.expect.learn import learn
from dsdoctor.expect.read import load, parse_text, remarks
from dsdoctor.expect.want import Form, WantError, parse
from dsdoctor.facts import (
    EnvironmentVariable,
    Limit,
    LoadedModules,
    MountPoint,
    NetworkInterface,
    Sections,
    Service,
    Snapshot,
    absent,
    known,
    unreadable,
)
from dsdoctor.findings import Report, Status
from dsdoctor.matrix import Knowledge
from dsdoctor.sources import replay

TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()
SHARE = KNOWLEDGE.matrix("smoke-thresholds").learned.share
RECORDINGS = [f"example:{name}" for name in replay.example_names()] + sorted(
    str(path) for path in (Path(__file__).parent / "recordings").glob("*.json")
)


HEALTHY = replay.load("example:h200x2-healthy")


def node(**sections: Any) -> Snapshot:
    """The two-GPU example with some sections exchanged."""
    return dataclasses.replace(HEALTHY, sections=dataclasses.replace(HEALTHY.sections, **sections))


def full_node() -> Snapshot:
    """The same with the sections that its recording lacks."""
    return node(
        mounts=known((MountPoint(path="/scratch", file_system="lustre", options=("rw", "flock")),)),
        services=known((Service(name="nvidia-fabricmanager", state="active"),)),
        network_interfaces=known(
            tuple(NetworkInterface(name=f"mlx5_{number}", kind="rdma", up=True, speed_mbit_per_s=400_000) for number in range(8))
        ),
        loaded_modules=known(LoadedModules(names=("nvidia", "nvidia_uvm", "nvidia_peermem", "lustre"), complete=True)),
    )


def judged(text: str, snapshot: Snapshot, **options: Any) -> Report:
    expectations, problems = parse_text(text, "site.yaml")
    assert problems == ()
    return diagnose(snapshot, KNOWLEDGE, expect.checks(expectations), today=TODAY, **options)


def statuses(report: Report) -> Mapping[str, Status]:
    return {outcome.check.removeprefix("expect."): outcome.status for outcome in report.outcomes}


def failing(report: Report) -> list[str]:
    return [item.check for item in report.diagnosis]


# --- learned ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS, ids=lambda name: Path(name).stem)
def test_a_learned_file_suits_its_own_node(name: str) -> None:
    snapshot = replay.load(name)
    report = judged(learn([snapshot], SHARE), snapshot)
    assert {outcome.status for outcome in report.outcomes} <= {Status.PASS}
    assert report.outcomes or name.endswith(".json")


def first_gpu(snapshot: Snapshot, **fields: Any) -> Any:
    first, *others = snapshot.sections.gpus.value or ()
    return {"gpus": dataclasses.replace(snapshot.sections.gpus, value=(dataclasses.replace(first, **fields), *others))}


def of(section: str, **fields: Any) -> Any:
    def edit(snapshot: Snapshot) -> Any:
        found = getattr(snapshot.sections, section)
        return {section: dataclasses.replace(found, value=dataclasses.replace(found.value, **fields))}

    return edit


def without(section: str, position: int) -> Any:
    def edit(snapshot: Snapshot) -> Any:
        found = getattr(snapshot.sections, section)
        return {section: dataclasses.replace(found, value=tuple(item for at, item in enumerate(found.value) if at != position))}

    return edit


def with_first(section: str, **fields: Any) -> Any:
    def edit(snapshot: Snapshot) -> Any:
        found = getattr(snapshot.sections, section)
        return {section: dataclasses.replace(found, value=(dataclasses.replace(found.value[0], **fields), *found.value[1:]))}

    return edit


def torch_at(version: str) -> Any:
    def edit(snapshot: Snapshot) -> Any:
        found = snapshot.sections.packages
        changed = tuple(dataclasses.replace(item, version=version) if item.name == "torch" else item for item in found.value or ())
        return {"packages": dataclasses.replace(found, value=changed)}

    return edit


def slow_copy(snapshot: Snapshot) -> Any:
    found = snapshot.sections.smoke
    changed = tuple(
        dataclasses.replace(item, values={**item.values, "gb_per_s": 2000.0}) if (item.test, item.gpu) == ("memory-copy", 1) else item
        for item in found.value or ()
    )
    return {"smoke": dataclasses.replace(found, value=changed)}


def variable(name: str, value: str) -> Any:
    def edit(snapshot: Snapshot) -> Any:
        found = snapshot.sections.environment
        kept = tuple(item for item in found.value or () if item.name != name)
        return {"environment": dataclasses.replace(found, value=(*kept, EnvironmentVariable(name=name, value=value)))}

    return edit


@pytest.mark.parametrize(
    ("edit", "ids"),
    [
        (of("nvml_versions", gpu_count=1), ["gpu-count"]),
        (lambda snapshot: first_gpu(snapshot, vbios_version="96.00.74.00.01"), ["gpu-vbios"]),
        (lambda snapshot: first_gpu(snapshot, name="NVIDIA H100 80GB HBM3"), ["gpu-product"]),
        (lambda snapshot: first_gpu(snapshot, ecc_enabled=False), ["gpu-ecc"]),
        (lambda snapshot: first_gpu(snapshot, power_limit_w=450.0), ["gpu-power-limit-w"]),
        (of("kernel_driver", version="580.105.08"), ["driver"]),
        (of("platform", kernel_release="6.8.0-45-generic"), ["kernel"]),
        (of("platform", os_version="22.04"), ["os"]),
        (of("memory", total_bytes=128 << 30), ["memory-gib"]),
        (of("loaded_modules", names=("nvidia", "nvidia_uvm", "lustre")), ["module-nvidia-peermem"]),
        (without("network_interfaces", 3), ["nic-count"]),
        (with_first("network_interfaces", speed_mbit_per_s=200_000), ["nic-rate-gbit"]),
        (with_first("network_interfaces", up=False), ["nic-count"]),
        (without("mounts", 0), ["mount-scratch"]),
        (with_first("mounts", file_system="nfs4"), ["mount-scratch"]),
        (with_first("services", state="failed"), ["service-nvidia-fabricmanager"]),
        (torch_at("2.9.1"), ["package-torch"]),
        (variable("NCCL_NVLS_ENABLE", "1"), ["environment-nccl-nvls-enable"]),
        (slow_copy, ["smoke-rate-memory-copy-copy"]),
    ],
)
def test_an_edited_node_shows_exactly_the_edit(edit: Any, ids: list[str]) -> None:
    good = full_node()
    text = learn([good], SHARE)
    assert failing(judged(text, good)) == []
    edited = dataclasses.replace(good, sections=dataclasses.replace(good.sections, **edit(good)))
    report = judged(text, edited)
    assert failing(report) == [f"expect.{name}" for name in ids]
    assert [outcome for outcome in report.outcomes if outcome.status is Status.UNKNOWN] == []


def test_what_nodes_differ_in_is_commented_out_with_the_values() -> None:
    names = ("example:h200-healthy", "example:h200x2-healthy", "example:h200x4-healthy")
    text = learn([replay.load(name) for name in names], SHARE)
    expectations, _ = parse_text(text, "site.yaml")
    learned = {item.name for item in expectations}
    assert {"driver", "gpu-product", "gpu-vbios"} <= learned
    assert not {"gpu-count", "cpu-count", "environment-nccl-nvls-enable"} & learned
    assert "# the nodes differ: 1 (1 of 3); 2 (1 of 3); 4 (1 of 3)\n  # gpu-count:\n" in text
    for name in names:
        assert failing(judged(text, replay.load(name))) == []


@pytest.mark.parametrize("memlock", [None, 0, 64 << 10, 128 << 30, 2**64 - 4096])
@pytest.mark.parametrize("power_w", [699.95, 700.0, 0.25])
def test_numbers_are_learned_as_they_are(memlock: int | None, power_w: float) -> None:
    odd = node(limits=known({"memlock": Limit(soft=memlock, hard=None)}), **first_gpu(HEALTHY, power_limit_w=power_w))
    assert failing(judged(learn([odd], SHARE), odd)) == []


@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_whatever_a_node_holds_a_learned_file_can_be_read(value: str, path: str) -> None:
    found = Sections(
        environment=known((EnvironmentVariable(name="NCCL_DEBUG", value=value),)),
        mounts=known((MountPoint(path=f"/{path}", file_system="x"),)),
    )
    odd = dataclasses.replace(HEALTHY, sections=found)
    assert failing(judged(learn([odd], SHARE), odd)) == []


# --- judged -----------------------------------------------------------------------------------------------------------

ALL_KINDS = """
owner: platform team
expectations:
  count: {kind: gpu-count, want: ">= 1, <= 8"}
  product: {kind: gpu-product, want: [nvidia h100*, nvidia h200*]}
  ecc: {kind: gpu-ecc, want: on}
  driver: {kind: driver, want: "580"}
  range: {kind: driver, want: ">= 570, <= 580"}
  option: {kind: driver-option, of: NvLinkDisable, want: 0}
  lustre: {kind: module, of: lustre, want: present}
  nouveau: {kind: module, of: nouveau, want: absent}
  scratch: {kind: mount, of: /scratch, want: "lustre"}
  writable: {kind: mount-mode, of: /scratch, want: rw}
  room: {kind: free-gib, of: tmp, want: ">= 10"}
  lock: {kind: limit, of: memlock, want: unlimited}
  nvls: {kind: environment, of: NCCL_P2P_DISABLE, want: absent}
  torch: {kind: package, of: Torch, want: ">= 2.8, != 2.9.1"}
  copy: {kind: smoke-rate, of: memory-copy, want: ">= 4000"}
  fabric: {kind: service, of: nvidia-fabricmanager, want: active}
  device: {kind: device, of: /dev/nvidiactl, want: true}
  nics: {kind: nic-count, of: mlx5_*, want: 8}
  rate: {kind: nic-rate-gbit, want: 400}
"""


def test_a_node_that_is_as_wanted() -> None:
    found = statuses(judged(ALL_KINDS, full_node()))
    assert {name for name, status in found.items() if status is not Status.PASS} == set()


def test_a_finding_says_what_is_wanted_by_whom_and_what_to_do() -> None:
    text = "owner: ops\nexpectations:\n  drv:\n    kind: driver\n    want: '>= 590'\n    severity: warning\n    remedy: run the playbook\n"
    text += (
        "    commands: [ansible-playbook driver.yml]\n    disruption: reboot\n    owner: driver team\n    why: needed by the new engine\n"
    )
    (item,) = judged(text, full_node()).diagnosis
    assert (item.check, item.severity.value, item.owner, item.expected) == ("expect.drv", "warning", "driver team", ">= 590")
    assert item.summary == "driver is 580.159.04; this site expects >= 590"
    assert item.cause == "needed by the new engine"
    assert item.sources == ("site.yaml:4",)
    assert item.evidence[0].where == "kernel_driver.version"
    (remedy,) = item.remedies
    assert (remedy.summary, remedy.commands, remedy.disruption.value) == ("run the playbook", ("ansible-playbook driver.yml",), "reboot")
    assert remedy.verify is not None
    assert remedy.verify.command == "dsdoctor check --expect site.yaml --only expect.drv"


def test_equal_deviations_are_one_finding() -> None:
    (item,) = judged("expectations:\n  p: {kind: gpu-product, want: NVIDIA B200}\n", full_node()).diagnosis
    assert item.subject == "GPUs 0, 1"
    assert len(item.evidence) == 2


def test_a_fact_that_is_not_known_is_never_a_finding() -> None:
    """No section: cannot tell. A paste: what it does not list may be there all the same."""
    blank = dataclasses.replace(full_node(), sections=type(full_node().sections)())
    assert set(statuses(judged(ALL_KINDS, blank)).values()) == {Status.UNKNOWN}
    pasted = dataclasses.replace(
        node(loaded_modules=known(LoadedModules(names=("nvidia",))), environment=known(()), packages=known(()), mounts=known(())),
        probe_runs=(),
    )
    found = statuses(judged(ALL_KINDS, pasted))
    assert {found[name] for name in ("lustre", "nouveau", "scratch", "writable", "nvls", "torch")} == {Status.UNKNOWN}
    grep = dataclasses.replace(
        pasted, sections=dataclasses.replace(pasted.sections, loaded_modules=known(LoadedModules(names=(), asked_for=("lustre",))))
    )
    assert statuses(judged(ALL_KINDS, grep))["lustre"] is Status.FAIL, "lsmod | grep lustre printed nothing"


def test_what_a_node_does_not_have_is_a_fact() -> None:
    bare = node(
        gpus=absent("NVML runs and finds no GPU"), nvml_versions=absent("no GPU"), kernel_driver=absent("no nvidia module is loaded")
    )
    found = statuses(judged(ALL_KINDS, bare))
    assert found["count"] is Status.FAIL
    assert found["driver"] is Status.FAIL
    assert found["product"] is Status.NOT_APPLICABLE
    hidden = node(gpus=unreadable("NVML did not start"), nvml_versions=unreadable("NVML did not start"))
    assert statuses(judged(ALL_KINDS, hidden))["count"] is Status.UNKNOWN


def test_a_variable_that_is_never_collected_cannot_be_told() -> None:
    text = "expectations:\n  site: {kind: environment, of: SITE_NAME, want: north}\n"
    assert statuses(judged(text, full_node())) == {"site": Status.UNKNOWN}
    assert "dsdoctor collects no variable called SITE_NAME" in remarks(parse_text(text, "site.yaml")[0])[0]


def test_a_redacted_value_is_no_deviation() -> None:
    text = "expectations:\n  hub: {kind: environment, of: HF_HOME, want: /home/alice/hub}\n"
    assert statuses(judged(text, node(environment=known((EnvironmentVariable(name="HF_HOME", value="/home/user/hub"),))))) == {
        "hub": Status.UNKNOWN
    }
    assert statuses(judged(text, node(environment=known((EnvironmentVariable(name="HF_HOME", value="/home/alice/hub"),))))) == {
        "hub": Status.PASS
    }
    assert statuses(judged(text, node(environment=known((EnvironmentVariable(name="HF_HOME", value="/tmp"),))))) == {"hub": Status.FAIL}


def test_waivers_reach_expectations() -> None:
    text = "expectations:\n  drv: {kind: driver, want: '590'}\n"
    report = judged(text, full_node(), waivers=[Waiver(check="expect.*", reason="next month")])
    assert (failing(report), statuses(report)) == ([], {"drv": Status.WAIVED})


@pytest.mark.parametrize(
    ("form", "text", "value", "fits"),
    [
        (Form.NUMBER, "8", 8, True),
        (Form.NUMBER, ">= 7, <= 9", 10.0, False),
        (Form.NUMBER, "unlimited", float("inf"), True),
        (Form.NUMBER, ">= 65536", float("inf"), True),
        (Form.NUMBER, "!= 3", 3, False),
        (Form.VERSION, "580", "580.159.04", True),
        (Form.VERSION, "580.159.04", "580.159.03", False),
        (Form.VERSION, "580.10", "580.10.02", True),
        (Form.VERSION, "<= 580", "580.159.04", True),
        (Form.VERSION, "> 580", "580.159.04", False),
        (Form.VERSION, ">= 570, < 580", "580.159.04", False),
        (Form.VERSION, "580.159.04", "580", None),
        (Form.VERSION, "580", "garbage", None),
        (Form.TEXT, "NVIDIA h200*", "nvidia H200", True),
        (Form.TEXT, "a[[]1]", "a[1]", True),
        (Form.TRUTH, "off", False, True),
        (Form.TRUTH, "true", "yes", None),
        (Form.PACKAGE, "2.11.0", "2.11.0+cu130", True),
        (Form.PACKAGE, "~= 2.8", "3.0", False),
        (Form.PACKAGE, ">= 2.8", "2.9.0rc1", True),
        (Form.PACKAGE, "1.0", "not a version", None),
    ],
)
def test_wants(form: Form, text: str, value: Any, fits: bool | None) -> None:
    assert parse(form, [text], named=False).fits(value) is fits


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Form.NUMBER, "eight"),
        (Form.NUMBER, "7, 8"),
        (Form.NUMBER, "~ 8"),
        (Form.NUMBER, ">="),
        (Form.VERSION, "abc"),
        (Form.TRUTH, "perhaps"),
        (Form.PACKAGE, ">> 1"),
    ],
)
def test_wants_that_are_none(form: Form, text: str) -> None:
    with pytest.raises(WantError):
        parse(form, [text], named=True)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "site.yaml:1: empty; expected 'expectations:'"),
        ("- a\n", "site.yaml:1: expected 'expectations:' with names under it"),
        ("owner: x\n", "site.yaml:1: there is no 'expectations:'"),
        ("expectation: {}\n", "site.yaml:1: unknown key 'expectation': did you mean expectations?"),
        ("expectations: [a]\n", "site.yaml:1: expectations: expected names, each with kind and want"),
        ("expectations:\n  d: {kind: driver, want: 1}\n  d: {kind: driver, want: 2}\n", "site.yaml:3: expectations: the key 'd' stands twice"),
        ("expectations:\n  D!: {kind: driver, want: 1}\n", "site.yaml:2: expectations: a name has small letters"),
        ("expectations:\n  d: driver\n", "site.yaml:2: expectations.d: expected kind and want under it"),
        ("expectations:\n  d: {kind: driver}\n", "site.yaml:2: expectations.d: it has no want"),
        ("expectations:\n  d:\n    kind: drivr\n    want: 1\n", "site.yaml:3: expectations.d.kind: no kind is called 'drivr': did you mean driver"),
        ("expectations:\n  d:\n    kind: driver\n    wants: 1\n", "site.yaml:4: expectations.d: unknown key 'wants': did you mean want?"),
        ("expectations:\n  d:\n    kind: driver\n    want: new\n", "site.yaml:4: expectations.d.want: 'new' is not a version; expected a version such as"),
        ("expectations:\n  d:\n    kind: driver\n    want: {a: b}\n", "site.yaml:4: expectations.d.want: expected text"),
        ("expectations:\n  d:\n    kind: gpu-count\n    want: [1, 2]\n", "site.yaml:4: expectations.d.want: a list is for texts"),
        ("expectations:\n  d:\n    kind: driver\n    want: 580\n    severity: eror\n", "site.yaml:5: expectations.d.severity: expected error, warning, info, found 'eror': did you mean error"),
        ("expectations:\n  d:\n    kind: driver\n    of: x\n    want: 580\n", "site.yaml:4: expectations.d.of: the kind driver looks at one thing only"),
        ("expectations:\n  m: {kind: module, want: present}\n", "site.yaml:2: expectations.m: it has no of: which kernel module is meant"),
        ("expectations:\n  m: {kind: driver, want: 580, disruption: boot}\n", "site.yaml:2: expectations.m.disruption: expected none,"),
        ("expectations: {a: [\n", "site.yaml:2: not YAML"),
    ],
)  # fmt: skip
def test_slips_are_named_with_line_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load("site.yaml")
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="expctaions:-{}[]# \n\t'\"kindwt.*&!%|>@driver580<=", max_size=80))
@settings(max_examples=100, deadline=None)
def test_no_text_is_more_than_an_error(text: str) -> None:
    try:
        expectations, problems = parse_text(f"expectations:\n{text}", "site.yaml")
    except InputError:
        return
    assert all(item.kind.name in KINDS for item in expectations)
    assert all("site.yaml:" in str(problem) for problem in problems)


# --- on the command line ----------------------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command_line([arguments[0]]), list(arguments))


def test_learn_lint_and_replay(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    assert run("expect", "learn", "example:h200x2-healthy", "-o", str(path)).exit_code == 0
    assert "no problem" in run("expect", "lint", str(path)).stdout
    good = run("replay", "example:h200x2-healthy", "--expect", str(path), "--only", "expect", "--format", "json")
    assert good.exit_code == 0
    assert json.loads(good.stdout)["counts"]["passed"] > 30
    odd = run("replay", "example:driver-too-old", "--expect", str(path), "--only", "expect.driver", "--format", "json")
    assert odd.exit_code == 1
    assert [item["check"] for item in json.loads(odd.stdout)["diagnosis"]] == ["expect.driver"]
    assert run("replay", "example:driver-too-old", "--expect", str(path), "--only", "expect", "--ignore", "expect.*").exit_code == 0
    triaged = run("triage", "-", "--expect", str(path), "--only", "expect")
    assert triaged.exit_code in (0, 2)


@pytest.mark.parametrize(
    "name", ["terminal", "json", "markdown", "junit", "sarif", "github", "gitlab", "prometheus", "nagios", "npd", "nhc", "html"]
)
def test_every_format_tells_of_an_expectation(tmp_path: Path, name: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("owner: driver team\nexpectations:\n  drv: {kind: driver, want: '590'}\n")
    done = run("replay", "example:h200-healthy", "--expect", str(path), "--only", "expect", "--format", name)
    assert done.exit_code == 1
    assert "expect.drv" in done.stdout
    if name in ("terminal", "json", "markdown", "junit", "html"):
        assert "driver team" in done.stdout


def test_lint_tells_every_slip_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("expectations:\n  a: {kind: nope, want: 1}\n  b: {kind: driver, want: x}\n  c: {kind: driver, want: '580'}\n")
    done = run("expect", "lint", str(path), "--format", "json")
    told = json.loads(done.stdout)
    assert done.exit_code == 2
    assert [problem.split(": ")[1] for problem in told["problems"]] == ["expectations.a.kind", "expectations.b.want"]
    assert [item["name"] for item in told["expectations"]] == ["c"]
    broken = run("replay", "example:h200-healthy", "--expect", str(path))
    assert broken.exit_code == 2


def test_the_kinds_are_listed() -> None:
    assert [item["kind"] for item in json.loads(run("expect", "kinds", "--format", "json").stdout)] == list(KINDS)
