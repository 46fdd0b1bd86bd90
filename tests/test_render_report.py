"""The report on the screen and as JSON: readable at 80 columns, honest about what is unknown, safe to copy from, and to the contract."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsdoctor.checks._check import Check, Judge, check
from dsdoctor.cli import command_line
from dsdoctor.diagnose import Waiver, diagnose
from dsdoctor.facts import (
    EnvironmentVariable,
    FabricState,
    Gpu,
    HostCompiler,
    Interpreter,
    KernelDriver,
    KernelLog,
    Libc,
    Memory,
    NvmlVersions,
    Origin,
    Package,
    PcieLink,
    Platform,
    ProbeRun,
    Sections,
    Service,
    SharedMemory,
    Snapshot,
    TorchBuild,
    TorchRuntime,
    absent,
    known,
    unreadable,
)
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, KnowledgeStamp, Notice, Remedy, Report, Severity, Verify
from dsdoctor.plain import to_plain
from dsdoctor.render import json as json_render
from dsdoctor.render import terminal

TODAY = datetime.date(2026, 11, 29)
INSTALL = "sudo apt-get install -y --allow-change-held-packages nvidia-open-580=580.65.06-0ubuntu1 nvidia-fabricmanager-580=580.65.06-1"


class NoKnowledge:
    def matrix(self, name: str) -> Any:
        return None

    def remedies(self, check_id: str, sections: Sections) -> Any:
        return None

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> None:
        return None

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        return KnowledgeStamp(digest="a1b2c3d4e5f60718", date="2026-11-29")


def judge_of(section: str, said: tuple[Finding | Doubt, ...]) -> Judge:
    def on_platform(platform: Platform) -> Iterator[Finding | Doubt]:
        yield from said

    def on_kernel_log(kernel_log: KernelLog) -> Iterator[Finding | Doubt]:
        yield from said

    def on_torch(torch_runtime: TorchRuntime) -> Iterator[Finding | Doubt]:
        yield from said

    def on_container(container: object) -> Iterator[Finding | Doubt]:
        yield from said

    def crash(platform: Platform) -> Iterator[Finding | Doubt]:
        raise ZeroDivisionError("division by zero")

    judges: dict[str, Judge] = {
        "platform": on_platform, "kernel_log": on_kernel_log, "torch": on_torch, "container": on_container, "crash": crash,
    }  # fmt: skip
    return judges[section]


def sample(
    id: str,
    *said: Finding | Doubt,
    severity: Severity = Severity.ERROR,
    on: str = "platform",
    explains: tuple[str, ...] = (),
    settle: str = "",
) -> Check:
    return check(id, severity, explains=explains, settle=settle)(judge_of(on, said))


def found(subject: str, summary: str, **more: Any) -> Finding:
    return Finding(
        subject=subject, summary=summary, evidence=more.pop("evidence", (Evidence(where="platform.os_id", value="ubuntu"),)), **more
    )


GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    memory_total_bytes=150754820096,
    pcie=PcieLink(max_generation=5, max_width=16),
    fabric=FabricState(state="completed"),
)
NODE = Sections(
    platform=known(Platform(os_id="ubuntu", os_name="Ubuntu 24.04.3 LTS", architecture="x86_64")),
    libc=known(Libc(family="glibc", version="2.39")),
    memory=known(Memory(total_bytes=2164663517184)),
    shared_memory=known(SharedMemory(path="/dev/shm", total_bytes=64 << 30, free_bytes=64 << 30)),
    container=absent("not in a container"),
    kernel_driver=known(KernelDriver(version="580.65.06", flavour="open")),
    nvml_versions=known(NvmlVersions(driver="580.65.06", cuda_driver="13.0")),
    services=known((Service(name="nvidia-fabricmanager", state="active"),)),
    kernel_log=known(KernelLog()),
    gpus=known(tuple(GPU for _ in range(8))),
    interpreter=known(Interpreter(path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3")),
    packages=known((Package(name="vllm", version="0.15.1"), Package(name="triton", version="3.6.0"))),
    torch_build=known(TorchBuild(version="2.11.0+cu130", cuda="13.0")),
    torch_runtime=known(TorchRuntime(imported=True, cudnn_version="9.19.0", nccl_loaded="2.28.9")),
    host_compilers=known((HostCompiler(name="gcc", path="/usr/bin/gcc", version="13.3.0"),)),
    environment=known((EnvironmentVariable(name="CUDA_HOME", value="/usr/local/cuda"),)),
)
IDS = (
    "driver.absent", "driver.too-old-for-cuda", "fabric.manager-not-running", "gpu.lost", "gpu.ecc-uncorrectable", "pcie.link-degraded",
    "cudnn.shadowed", "nccl.duplicate", "torch.cpu-only-build", "package.pin-conflict", "toolchain.no-compiler", "system.shm-too-small",
    "env.invalid-value", "network.wrong-interface", "smoke.fp8-gemm",
)  # fmt: skip


def report_on(sections: Sections, checks: list[Check], **more: Any) -> Report:
    runs = more.pop(
        "probe_runs", (ProbeRun(probe="nvml", outcome="ok", elapsed_s=0.21), ProbeRun(probe="torch", outcome="ok", elapsed_s=6.3))
    )
    origin = more.pop("origin", Origin(kind="live", label="this machine"))
    node = Snapshot(schema="dsdoctor.snapshot/1", taken_at="2026-11-29T03:12:45Z", origin=origin, sections=sections, probe_runs=runs)
    return diagnose(node, NoKnowledge(), checks, today=TODAY, **more)


def healthy() -> Report:
    return report_on(NODE, [*(sample(id) for id in IDS), sample("container.no-gpu-access", on="container")])


def broken() -> Report:
    """Three causes, the first of which explains six further failures."""
    old = Sections(**{name: getattr(NODE, name) for name in ("platform", "libc", "container", "gpus", "interpreter", "torch_build", "packages")},
                   kernel_driver=known(KernelDriver(version="535.129.03", flavour="proprietary")),
                   nvml_versions=known(NvmlVersions(driver="535.129.03", cuda_driver="12.2")),
                   kernel_log=unreadable("no permission to read the kernel log"),
                   torch_runtime=known(TorchRuntime(imported=True)))  # fmt: skip
    driver = found(
        "driver 535.129.03",
        "torch 2.11.0+cu130 needs a driver for CUDA 13.0; this driver stops at CUDA 12.2",
        cause="A wheel built for CUDA 13 calls driver functions that came with branch 580. An older driver refuses to start a context, so that "
        "torch reports no GPU at all and everything above it fails.",
        evidence=(
            Evidence(where="nvml_versions.cuda_driver", value="12.2"),
            Evidence(where="kernel_driver.version", value="535.129.03"),
            Evidence(where="torch_build.cuda", value="13.0 (/opt/venv/lib/python3.12/site-packages/torch/version.py)"),
        ),
        expected="driver 580.65.06 or newer",
        remedies=(
            Remedy(
                summary="Install driver branch 580 from NVIDIA's repository, with the Fabric Manager of the same version",
                when="the driver came from NVIDIA's apt repository",
                commands=("sudo apt-get update", INSTALL),
                steps=("Reboot the node.", "Bring the node back into scheduling once the verification below prints the new version."),
                inspect=("apt-cache policy nvidia-open-580",),
                verify=Verify(command="nvidia-smi --query-gpu=driver_version --format=csv,noheader", prints="580.65.06 for each GPU"),
                disruption=Disruption.REBOOT,
                needs_root=True,
                drain=True,
                not_when="the node is a guest whose driver comes from the provider's image",
                risk="a kernel without matching headers leaves the node without driver after the reboot",
                sources=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html",),
            ),
            Remedy(
                summary="Stay on this driver and install the torch build for CUDA 12.6",
                commands=("pip install torch --index-url https://download.pytorch.org/whl/cu126",),
                verify=Verify(command="python -c 'import torch; print(torch.version.cuda)'", prints="12.6"),
                disruption=Disruption.RESTART_PROCESS,
            ),
        ),
        sources=("https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",),
    )
    shm = found(
        "/dev/shm",
        "/dev/shm has 64 MiB; NCCL between 8 GPUs needs more",
        evidence=(Evidence(where="shared_memory.total_bytes", value="67108864"),),
        remedies=(Remedy(summary="Start the container with more shared memory", commands=("docker run --shm-size=16g …",)),),
    )
    disk = found("/tmp", "the file system of /tmp is 97 % full", remedies=(Remedy(summary="Free space", steps=("Remove old caches.",)),))
    followers = ("smoke.fp8-gemm", "smoke.fp8-block", "smoke.triton", "smoke.attention", "smoke.collectives", "gpu.lost")
    return report_on(
        old,
        [
            sample("driver.absent"),
            sample("driver.too-old-for-cuda", driver, explains=("smoke.*", "gpu.lost")),
            sample("gpu.xid", on="kernel_log", settle="sudo dmesg"),
            sample("gpu.recovery-action", on="kernel_log", settle="sudo dmesg"),
            sample("driver.known-bad", Doubt(subject="driver 640", reason="newer than this release knows", settle="nvidia-smi")),
            *(sample(id, found(f"test {id}", "torch found no GPU: the NVIDIA driver on your system is too old")) for id in followers),
            sample("system.shm-too-small", shm),
            sample("system.disk-full", disk, severity=Severity.WARNING),
            sample("env.disables-fast-path", found("NCCL_DEBUG", "NCCL_DEBUG is INFO"), severity=Severity.INFO),
            sample("pcie.acs-redirect", found("0000:3b:00.0", "ACS redirects"), severity=Severity.WARNING),
            sample("container.no-gpu-access", on="container"),
        ],
        waivers=[Waiver(check="pcie.acs-redirect", reason="the hypervisor needs it", until=None)],
        notices=[Notice(severity=Severity.WARNING, text="plugin site could not be loaded: ImportError: no module named site_checks")],
    )


def unknown() -> Report:
    return report_on(
        Sections(), [*(sample(id, settle="dsdoctor check") for id in IDS), sample("gpu.xid", on="kernel_log", settle="sudo dmesg")]
    )


def crashed() -> Report:
    return report_on(NODE, [sample("driver.absent", on="crash"), sample("driver.too-old-for-cuda"), sample("gpu.lost")])


SAMPLES: dict[str, Callable[[], Report]] = {"healthy": healthy, "broken": broken, "unknown": unknown, "crashed": crashed}
COPIED = (
    INSTALL,
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader",
    "pip install torch --index-url https://download.pytorch.org/whl/cu126",
)


def shown(report: Report, **more: Any) -> str:
    return terminal.render(report, **{"width": 80, "colour": False, **more})


# --- the screen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("verbose", [False, True])
def test_prose_fits_80_columns_and_no_line_ends_in_space(name: str, verbose: bool) -> None:
    for line in shown(SAMPLES[name](), verbose=verbose).splitlines():
        assert line == line.rstrip()
        assert len(line) <= 80 or line.strip() in COPIED or " " not in line.strip()


@pytest.mark.parametrize("name", SAMPLES)
def test_colour_adds_nothing_but_colour(name: str) -> None:
    report = SAMPLES[name]()
    coloured = shown(report, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == shown(report)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_terminal_without_unicode_gets_ascii(name: str) -> None:
    assert shown(SAMPLES[name](), unicode=False, verbose=True).isascii()


def test_every_command_stands_alone_and_whole() -> None:
    lines = [line.strip() for line in shown(broken(), width=40).splitlines()]
    for command in (*COPIED, "sudo apt-get update", "dsdoctor check --only driver.too-old-for-cuda"):
        assert command in lines


def test_a_healthy_node_is_one_line_for_each_area() -> None:
    text = shown(healthy())
    assert "HEALTHY: every check that applies here passed (15 checks)." in text
    assert "[✓] Driver (580.65.06, CUDA 13.0, open kernel module)" in text
    assert "[✓] GPUs (8 × NVIDIA H200 with 140 GiB)" in text
    assert "[-] Container (not in a container)" in text
    assert text.endswith("16 checks: 15 passed, 0 failed, 0 unknown, 1 not applicable.")
    assert len(text.splitlines()) < 24


def test_a_broken_node_says_what_how_why_and_what_to_do() -> None:
    text = shown(broken())
    assert "BROKEN: 2 problems stop this stack (start with 1), 6 more findings follow from" in text
    assert "[✗] Driver (535.129.03, CUDA 12.2, proprietary kernel module)" in text
    assert "✗ follows from 1: smoke.fp8-gemm, smoke.fp8-block, smoke.triton," in text
    order = [
        "1. ERROR driver.too-old-for-cuda: driver 535.129.03", "How we know", "nvml_versions.cuda_driver = 12.2", "expected: driver 580.65.06",
        "Cause", "What to do", "1) Install driver branch 580", "when: the driver came", "cost: needs root, drain the node first, reboots the node",
        "risk: a kernel", "- Reboot the node.", "prints: 580.65.06", "How to see that it is fixed", "This explains 6 more findings",
        "2. ERROR system.shm-too-small", "3. WARNING system.disk-full",
    ]  # fmt: skip
    positions = [text.index(piece) for piece in order]
    assert positions == sorted(positions)


def test_a_note_is_one_line_in_its_area_and_whole_with_verbose() -> None:
    assert "i 4. " in shown(broken())
    assert "4. NOTE env.disables-fast-path" not in shown(broken())
    assert "4. NOTE env.disables-fast-path" in shown(broken(), verbose=True)


def test_unknowns_are_counted_aloud_with_the_command_that_settles_most() -> None:
    tail = shown(broken()).splitlines()[-5:]
    assert tail[0] == "? 3 checks could not tell. This would settle 2 of them:"
    assert tail[1].strip() == "sudo dmesg"
    assert "3 unknown" in tail[-2] + tail[-1]


def test_nothing_judged_is_not_healthy() -> None:
    text = shown(unknown())
    assert "UNKNOWN: nothing could be judged." in text
    assert "[✓]" not in text
    assert "[?] Driver (cannot tell: platform: not asked)" in text
    assert "? 16 checks could not tell. This would settle 15 of them:" in text


def test_a_crash_is_ours_and_says_so() -> None:
    text = shown(crashed())
    assert "[☠] Driver" in text
    assert "☠ driver.absent crashed: ZeroDivisionError: division by zero" in text
    assert "a fault of dsdoctor, not of this" in text
    assert "[#] Driver" in shown(crashed(), unicode=False)
    assert "could not tell" in text.split("\n\n")[1]


def test_waived_and_noticed_things_are_not_hidden() -> None:
    text = shown(broken())
    assert "~ waived: pcie.acs-redirect: 0000:3b:00.0: the hypervisor needs it" in text
    assert text.index("! plugin site could not be loaded") < text.index("BROKEN")


def test_sources_and_single_checks_come_with_verbose_only() -> None:
    plain, verbose = shown(broken()), shown(broken(), verbose=True)
    for piece in (
        "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
        "✓ driver.absent",
        "Knowledge of 2026-11-29",
        "torch 6.30 s",
    ):
        assert piece not in plain
        assert piece in verbose


def test_many_findings_do_not_bury_the_screen() -> None:
    many = [found(f"GPU {index}", f"GPU {index} is lost") for index in range(40)]
    text = shown(report_on(NODE, [sample("gpu.lost", *many)]))
    overview = text.split("\n\n")[2]
    assert len(overview.splitlines()) < 10
    assert "and 36 more (--verbose)" in overview


def test_a_check_of_a_plugin_has_its_own_area() -> None:
    assert "[✓] Site rules" in shown(report_on(NODE, [sample("site-rules.naming")]))


def test_no_checks_at_all() -> None:
    assert "UNKNOWN: no check was run." in shown(report_on(NODE, []))


@pytest.mark.parametrize("evil", ["\x1b[2J\x1b[31mred", "a\x1b]0;title\x07b", "x\rok", "\u202egnp.exe", "\x9b31m", "a\x00b", "\ud800"])
def test_text_from_the_machine_cannot_steer_the_terminal(evil: str) -> None:
    finding = found(
        evil,
        f"it says {evil}",
        cause=evil,
        evidence=(Evidence(where=evil, value=evil),),
        remedies=(Remedy(summary=evil, commands=(evil,)),),
    )
    text = shown(report_on(NODE, [sample("gpu.lost", finding)], origin=Origin(kind="replay", label=evil)))
    assert not [character for character in text if character != "\n" and not character.isprintable()]
    assert "[31m" not in text
    text.encode()


anything = st.text(max_size=120)


@given(anything, anything, st.integers(1, 200), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_renders_at_any_width(subject: str, value: str, width: int, unicode: bool) -> None:
    finding = found(subject, value, cause=value, expected=subject, evidence=(Evidence(where=subject, value=value),))
    text = shown(report_on(NODE, [sample("gpu.lost", finding)]), width=width, unicode=unicode, verbose=True)
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert "gpu.lost" in text


def test_a_command_of_several_lines_keeps_its_lines() -> None:
    finding = found("x", "y", remedies=(Remedy(summary="z", commands=("cat > f <<'END'\n  a: 1\nEND",)),))
    assert "          cat > f <<'END'\n            a: 1\n          END\n" in shown(report_on(NODE, [sample("gpu.lost", finding)]))


# --- JSON -------------------------------------------------------------------------------------------------------------

SCHEMA = json.loads(files("dsdoctor").joinpath("report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CONTRACT_ORDER = [
    "schema", "dsdoctor", "taken_at", "origin", "target", "verdict", "counts", "diagnosis", "outcomes", "notices", "knowledge", "facts",
    "probe_runs", "timings", "fitness",
]  # fmt: skip


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_is_explained_by_the_name_that_reports_carry() -> None:
    done = CliRunner().invoke(command_line(["explain"]), ["explain", SCHEMA["properties"]["schema"]["const"]])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == SCHEMA


@pytest.mark.parametrize("name", SAMPLES)
def test_reports_are_one_document_to_the_contract(name: str) -> None:
    document = json.loads(json_render.render(SAMPLES[name]()))
    assert list(document) == CONTRACT_ORDER
    VALIDATOR.validate(document)


def test_every_field_is_always_there_and_facts_are_as_recorded() -> None:
    report = broken()
    document = json.loads(json_render.render(report))
    first = document["diagnosis"][0]
    assert set(first) == {
        "check",
        "severity",
        "subject",
        "summary",
        "cause",
        "evidence",
        "expected",
        "remedies",
        "explains",
        "sources",
        "owner",
        "fleet",
    }
    assert first["remedies"][1]["commands"] == [COPIED[2]]
    assert first["remedies"][1]["not_when"] == ""
    assert set(document["counts"]) == {"passed", "failed", "unknown", "crashed", "not_applicable", "waived", "errors", "warnings", "infos"}
    assert document["facts"]["kernel_driver"] == to_plain(known(KernelDriver(version="535.129.03", flavour="proprietary")))
    assert document["target"] == "/opt/venv/bin/python"


def test_the_schema_refuses_what_the_contract_does_not_know_and_allows_new_fields() -> None:
    document = json.loads(json_render.render(broken()))
    VALIDATOR.validate({**document, "new_field": 1})
    for key, value in (("verdict", "fine"), ("schema", "dsdoctor.report/2"), ("outcomes", {}), ("taken_at", "yesterday")):
        assert not VALIDATOR.is_valid({**document, key: value}), key
    for key in SCHEMA["required"]:
        assert not VALIDATOR.is_valid({name: item for name, item in document.items() if name != key}), key
    assert set(CONTRACT_ORDER) - set(SCHEMA["required"]) == {"fitness"}, "a field that came later is not in older reports"
    document["outcomes"][0]["status"] = "maybe"
    assert not VALIDATOR.is_valid(document)


def test_errors_are_json_too() -> None:
    assert json.loads(json_render.error_document("no such file: ü", 2)) == {
        "schema": "dsdoctor.error/1",
        "error": "no such file: ü",
        "exit_code": 2,
    }


def test_numbers_and_names_that_json_cannot_hold() -> None:
    report = report_on(
        NODE,
        [sample("gpu.lost", found("\ud800", "half a surrogate"))],
        probe_runs=(ProbeRun(probe="x", outcome="ok", elapsed_s=float("nan")),),
    )
    text = json_render.render(report)
    text.encode()
    assert json.loads(text, parse_constant=pytest.fail)["probe_runs"][0]["elapsed_s"] is None
