"""Broken machines: one story each, on a recording or on one with a named edit. The first finding is the cause, and it says what to do."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose, exit_code
from dsdoctor.facts import (
    Extension,
    Gpu,
    KernelDriver,
    MissingSymbol,
    NvmlVersions,
    Origin,
    Package,
    Section,
    Sections,
    Snapshot,
    State,
    TorchBuild,
    TorchRuntime,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.findings import Diagnosis, Report, Severity, Status, Verdict
from dsdoctor.matrix import Knowledge
from dsdoctor.render import terminal

from . import make_examples

TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()
WIDTH = 80


def judge(sections: Sections) -> Report:
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label="a story"), sections=sections
    )
    return diagnose(snapshot, KNOWLEDGE, CHECKS, today=TODAY)


def example(name: str) -> Sections:
    """The facts of a shipped example."""
    sections: Sections = make_examples.read(name).sections
    return sections


def screen(report: Report) -> str:
    """What the terminal shows, on one line, so that words that were wrapped can be looked for."""
    text = terminal.render(report, width=WIDTH, colour=False)
    return " ".join(text.split())


def check_of_the_story(report: Report, check: str, *, severity: Severity = Severity.ERROR) -> Diagnosis:
    """The first finding: of this check, complete, and the only one of its severity that is a cause."""
    assert report.diagnosis, "nothing was found"
    first = report.diagnosis[0]
    assert (first.check, first.severity) == (check, severity), first.summary
    causes = [item.check for item in report.diagnosis if item.severity is Severity.ERROR]
    assert causes == ([check] if severity is Severity.ERROR else [])
    assert first.cause
    assert first.evidence
    assert first.expected
    assert first.remedies
    for remedy in first.remedies:
        assert remedy.commands or remedy.steps, f"a remedy without anything to do: {remedy.summary}"
        assert remedy.verify is not None, f"nothing shows that it is mended: {remedy.summary}"
    assert report.counts.crashed == 0
    return first


def folded(found: Diagnosis) -> set[str]:
    """The checks whose findings follow from this one."""
    return {item.check for item in found.explains}


# --- the driver -------------------------------------------------------------------------------------------------------


def test_no_driver() -> None:
    report = judge(example("no-driver"))
    first = check_of_the_story(report, "driver.absent")
    assert "torch.cuda-unavailable" in folded(first)
    text = screen(report)
    assert "1 NVIDIA GPU waits on the PCI bus" in text
    assert "0000:00:06.0" in text
    assert "apt-get install" in text


def _without_gpus(sections: Sections) -> Sections:
    """The driver is loaded and NVML runs; no GPU is on the bus (a virtual machine that lost its pass-through)."""
    devices = tuple(device for device in sections.pci_devices.value or () if device.kind != "gpu")
    nodes = tuple(node for node in sections.device_nodes.value or () if node.path != "/dev/nvidia0")
    sections = make_examples.without_cuda(sections, "No CUDA GPUs are available", device_count=0)
    return replace(
        sections,
        gpus=absent("NVML runs and finds no GPU", "NVML"),
        pci_devices=make_examples.with_value(sections.pci_devices, devices),
        device_nodes=make_examples.with_value(sections.device_nodes, nodes),
        smoke=absent("this node has no NVIDIA GPU that NVML shows"),
    )


@pytest.mark.parametrize("place", ["host", "container"])
def test_a_driver_without_gpus(place: str) -> None:
    sections = example("h200-healthy")
    report = judge(_without_gpus(make_examples.on_bare_metal(sections) if place == "host" else sections))
    check_of_the_story(report, "gpu.lost")
    text = screen(report)
    assert "the PCI bus" in text
    assert "580.159.04" in text
    assert report.verdict is Verdict.BROKEN


def test_driver_535_under_torch_for_cuda_13() -> None:
    report = judge(example("driver-too-old"))
    first = check_of_the_story(report, "driver.too-old-for-cuda")
    assert "torch.cuda-unavailable" in folded(first)
    text = screen(report)
    for figure in ("535.129.03", "580.65.06", "2.11.0+cu130", "CUDA 13"):
        assert figure in text
    assert "cuda-compat-13-0" in text, "the third way, on a data-centre GPU"
    assert first.expected == "on this driver the newest torch is 2.10.0+cu128; or install driver >= 580.65.06, then 2.15.0"
    assert any("torch==2.10.0" in command and "cu128" in command for remedy in first.remedies for command in remedy.commands)


def _with_driver(sections: Sections, version: str, cuda: str) -> Sections:
    """The same node with another driver in every place."""
    names = ("kernel_driver", "driver_libraries", "nvml_start", "nvml_versions", "gpus", "mapped_libraries")
    sections = make_examples.reworded(sections, {make_examples.BRANCH_DRIVER: version}, names)
    versions: NvmlVersions = make_examples.value_of(sections.nvml_versions)
    runtime: TorchRuntime = make_examples.value_of(sections.torch_runtime)
    return replace(
        sections,
        nvml_versions=make_examples.with_value(sections.nvml_versions, replace(versions, cuda_driver=cuda)),
        torch_runtime=make_examples.with_value(sections.torch_runtime, replace(runtime, driver_cuda=cuda)),
    )


@pytest.mark.parametrize(("version", "cuda"), [("999.10.01", "19.2"), ("9999.10.01", "40.0")])
def test_a_driver_newer_than_every_table_is_a_doubt_and_no_fault(version: str, cuda: str) -> None:
    report = judge(_with_driver(example("h200-healthy"), version, cuda))
    assert [item.summary for item in report.diagnosis if item.severity is not Severity.INFO] == []
    assert report.verdict is Verdict.HEALTHY
    doubts = [doubt for outcome in report.outcomes for doubt in outcome.doubts if version in doubt.subject]
    assert any("newer than" in doubt.reason for doubt in doubts)
    assert f"driver {version}" in screen(report)
    assert exit_code(report) == 0
    assert exit_code(report, strict=True) == 1


def test_the_driver_was_upgraded_and_the_node_not_rebooted() -> None:
    report = judge(example("driver-upgraded-not-rebooted"))
    first = check_of_the_story(report, "driver.library-mismatch")
    assert "torch.cuda-unavailable" in folded(first)
    text = screen(report)
    for figure in ("570.133.20", "580.159.04", "reboot"):
        assert figure in text


def test_a_stub_libcuda_comes_first() -> None:
    report = judge(example("stub-libcuda"))
    first = check_of_the_story(report, "driver.stub-library")
    assert "torch.cuda-unavailable" in folded(first)
    text = screen(report)
    assert "Error 34" in text
    assert "LD_LIBRARY_PATH" in text
    assert "/stubs/libcuda.so" in text
    assert "/tmp/stub:/usr/local/nvidia/lib64" in text, "the folder that leads there has another name"
    assert 'grep -v "/stubs"' not in text, "which would leave it where it is"


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        ("7", "there is no GPU '7' here (only GPU 0)"),
        ("", "CUDA_VISIBLE_DEVICES is empty: every GPU is hidden"),
        ("-1", "a negative index ends the list, and it stands first"),
        ("GPU-deadbeef", "'GPU-deadbeef' is the UUID of no GPU here"),
    ],
)
def test_cuda_visible_devices_is_wrong_and_the_summary_says_how(value: str, mistake: str) -> None:
    """torch says 'No CUDA GPUs are available' each time."""
    recorded = example("cuda-visible-devices-out-of-range")
    said: TorchRuntime = make_examples.value_of(recorded.torch_runtime)
    assert said.cuda_error == "No CUDA GPUs are available"
    report = judge(make_examples.with_variable(recorded, "CUDA_VISIBLE_DEVICES", value))
    first = check_of_the_story(report, "env.cuda-visible-devices")
    assert mistake in first.summary
    assert "torch.cuda-unavailable" in folded(first)
    assert "unset CUDA_VISIBLE_DEVICES" in screen(report)


def test_the_systems_cudnn_comes_first_in_ld_library_path() -> None:
    report = judge(example("cudnn-shadowed-by-ld-library-path"))
    first = check_of_the_story(report, "cudnn.shadowed")
    assert folded(first) == {"cudnn.mixed-sublibraries"}
    text = screen(report)
    for figure in ("9.14.0", "9.19.0", "LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu"):
        assert figure in text


# --- packages ---------------------------------------------------------------------------------------------------------


def test_a_cpu_build_of_torch_on_a_gpu_node() -> None:
    report = judge(example("torch-cpu-build"))
    first = check_of_the_story(report, "torch.cpu-only-build")
    text = screen(report)
    assert "2.11.0+cpu" in text
    assert "1 × NVIDIA H200" in text
    assert "such as torch 2.11.0+cu130" in first.expected
    assert any("--torch-backend" in command for remedy in first.remedies for command in remedy.commands)


def test_two_nccl_wheels_in_one_directory() -> None:
    report = judge(example("two-nccl-wheels"))
    first = check_of_the_story(report, "nccl.duplicate", severity=Severity.WARNING)
    assert "nvidia-nccl-cu12 2.28.7" in first.summary
    assert "nvidia-nccl-cu13 2.28.9" in first.summary
    text = screen(report)
    assert "nvidia/nccl/lib/libnccl.so.2" in text
    assert "uninstall" in text
    assert report.verdict is Verdict.DEGRADED


CU124_TARGETS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"


def _blackwell_under_cu124(sections: Sections) -> Sections:
    """A GeForce RTX 5090 under torch 2.6.0+cu124 with its companions: CUDA starts, and the first kernel fails."""
    versions = {"torch": "2.6.0+cu124", "torchvision": "0.21.0+cu124", "torchaudio": "2.6.0+cu124", "triton": "3.2.0"}

    def other(package: Package) -> Package | None:
        if package.name in versions:
            return replace(package, version=versions[package.name], requires=())
        return None if package.name.startswith(("nvidia-", "cuda-")) and package.name != "nvidia-ml-py" else package

    gpu: Gpu = make_examples.value_of(sections.gpus)[0]
    runtime: TorchRuntime = make_examples.value_of(sections.torch_runtime)
    build: TorchBuild = make_examples.value_of(sections.torch_build)
    card = replace(gpu, name="NVIDIA GeForce RTX 5090", compute_capability="12.0", pci_device_id="10de:2b85", memory_total_bytes=32 << 30)
    sections = make_examples.replaced_packages(make_examples.on_bare_metal(sections), other)
    nothing = not_asked("not part of this story")
    return replace(
        sections,
        gpus=make_examples.with_value(sections.gpus, (card,)),
        torch_build=make_examples.with_value(sections.torch_build, replace(build, version="2.6.0+cu124", cuda="12.4")),
        torch_runtime=make_examples.with_value(
            sections.torch_runtime,
            replace(
                runtime,
                arch_list=CU124_TARGETS,
                device_capabilities=("12.0",),
                operation_error=NO_IMAGE,
                runtime_cuda="12.4",
                cudnn_version="9.1.0",
            ),
        ),
        **dict.fromkeys(("cuda_libraries", "loader_hits", "mapped_libraries", "extensions", "smoke"), nothing),
    )


def test_an_sm_120_gpu_under_torch_for_cuda_12_4() -> None:
    report = judge(_blackwell_under_cu124(example("h200-healthy")))
    first = check_of_the_story(report, "torch.lacks-gpu-arch")
    assert "torch.cuda-unavailable" in folded(first)
    text = screen(report)
    for figure in ("sm_120", "RTX 5090", "2.6.0+cu124", "no kernel image"):
        assert figure in text
    assert any("cu13" in command or "cu128" in command for remedy in first.remedies for command in remedy.commands)


def _with_extension(sections: Sections, *symbols: MissingSymbol) -> Sections:
    """flash-attn 2.8.3 is installed, and its extension asks for these symbols in vain."""
    wheel: Package = make_examples.value_of(sections.packages)[0]
    extension = Extension(
        package="flash-attn",
        package_version="2.8.3",
        path=f"{wheel.location}/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so",
        needed=(
            "libc10.so",
            "libtorch.so",
            "libtorch_cpu.so",
            "libtorch_python.so",
            "libcudart.so.13",
            "libc10_cuda.so",
            "libtorch_cuda.so",
        ),
        missing_symbols=symbols,
        cuda_major=13,
    )
    sections = make_examples.replaced_packages(
        sections, lambda package: package, Package(name="flash-attn", version="2.8.3", location=wheel.location, installer="pip")
    )
    return replace(sections, extensions=make_examples.with_value(sections.extensions, (*(sections.extensions.value or ()), extension)))


def test_an_extension_with_undefined_symbols() -> None:
    symbols = (
        MissingSymbol(symbol="_ZN3c104cuda9SetDeviceEi", provider="libc10_cuda", readable="c10::cuda::SetDevice"),
        MissingSymbol(symbol="_ZN3c105ErrorC2ENS_14SourceLocationESs", provider="libc10", readable="c10::Error::Error"),
    )
    report = judge(_with_extension(example("h200-healthy"), *symbols))
    check_of_the_story(report, "package.abi-mismatch")
    text = screen(report)
    for figure in ("flash-attn 2.8.3", "torch 2.11.0+cu130", "c10::cuda::SetDevice", "_ZN3c104cuda9SetDeviceEi"):
        assert figure in text
    assert "pip install" in text


# --- several GPUs -----------------------------------------------------------------------------------------------------


def test_fabric_manager_is_of_another_version_than_the_driver() -> None:
    report = judge(example("fabric-manager-version"))
    first = check_of_the_story(report, "fabric.manager-version-mismatch")
    assert {"fabric.manager-not-running", "fabric.not-initialized", "torch.cuda-unavailable"} <= folded(first)
    text = screen(report)
    for figure in ("580.126.20", "580.159.04", "802"):
        assert figure in text


def test_a_gpu_fell_off_the_bus() -> None:
    report = judge(example("gpu-fell-off-the-bus"))
    first = check_of_the_story(report, "gpu.lost")
    assert "gpu.xid" in folded(first)
    text = screen(report)
    assert "0000:9b:00.0" in text
    assert "79" in text


def test_the_board_of_the_last_two_is_healthy_without_the_fault() -> None:
    """The edits that make an eight-GPU board are no fault themselves."""
    sections = make_examples.on_an_hgx_board(make_examples.on_bare_metal(example("h200x4-healthy")))
    report = judge(sections)
    assert [item.summary for item in report.diagnosis if item.severity is not Severity.INFO] == []
    assert report.verdict is Verdict.HEALTHY


def test_a_plain_host_is_healthy_without_the_fault() -> None:
    report = judge(make_examples.on_bare_metal(example("h200-healthy")))
    assert [item.summary for item in report.diagnosis if item.severity is not Severity.INFO] == []


# --- nothing can be told ----------------------------------------------------------------------------------------------


def everything(section: Section[Any]) -> Sections:
    """A snapshot in which no section is known."""
    return Sections(**{field.name: section for field in dataclasses.fields(Sections)})


JUDGE_WHAT_WAS_PASTED = {"nccl.version-differs", "capacity.does-not-fit"}
"""Checks of command lines and logs alone, which no machine has: without any the question does not arise."""
JUDGE_WHAT_WAS_WANTED = {"capacity.load-time", "profile.component-missing", "profile.smoke-not-run", "profile.node-needs"}
"""Checks of a profile or model that the user chose: here nobody chose any."""
JUDGE_WHAT_WAS_NAMED = {"capacity.checkpoint-damaged", "service.unhealthy"}
"""Checks of a directory or service that the user named: it was read, or nobody named one."""


@pytest.mark.parametrize(
    "section", [unreadable("/sys and /proc are not there"), not_asked("nobody looked")], ids=["unreadable", "not asked"]
)
def test_nothing_is_known_so_nothing_is_healthy(section: Section[Any]) -> None:
    """No /sys, no /proc, no NVML, no interpreter: every section is missing."""
    report = judge(everything(section))
    assert report.verdict is Verdict.UNKNOWN
    assert report.diagnosis == ()
    idle = JUDGE_WHAT_WAS_PASTED | JUDGE_WHAT_WAS_WANTED | (JUDGE_WHAT_WAS_NAMED if section.state is State.NOT_ASKED else set())
    assert {outcome.check for outcome in report.outcomes if outcome.status is not Status.UNKNOWN} == idle
    assert all(outcome.reason for outcome in report.outcomes)
    text = screen(report)
    assert "HEALTHY" not in text
    assert f"{len(CHECKS) - len(idle)} unknown" in text
    assert exit_code(report) == 0
    assert exit_code(report, strict=True) == 1


def test_nothing_may_be_read_and_that_is_all_that_is_said() -> None:
    """A user who may read nothing, not even the interpreter: that is the one thing that is known to be wrong."""
    report = judge(everything(unreadable("Permission denied")))
    assert [item.check for item in report.diagnosis] == ["system.python-unreadable"]
    assert "HEALTHY" not in screen(report)
    others = {outcome.check for outcome in report.outcomes if outcome.status is not Status.UNKNOWN}
    assert others == {"system.python-unreadable", *JUDGE_WHAT_WAS_PASTED, *JUDGE_WHAT_WAS_WANTED}


# --- a check that fails -----------------------------------------------------------------------------------------------


def _raises(**arguments: Any) -> Iterator[Any]:
    raise RuntimeError("a check of ours is broken")


def _raises_at_once(**arguments: Any) -> Any:
    raise KeyError("gpus")


@pytest.mark.parametrize("judge_of_all", [_raises, _raises_at_once])
def test_every_check_raises_and_the_report_is_complete(judge_of_all: Callable[..., Any]) -> None:
    # Without needs, so that each of them is really called.
    checks = [replace(check, judge=judge_of_all, sections=()) for check in CHECKS]
    snapshot = make_examples.read("h200-healthy")
    report = diagnose(snapshot, KNOWLEDGE, checks, today=TODAY)
    assert [outcome.check for outcome in report.outcomes] == [check.id for check in CHECKS]
    assert {outcome.status for outcome in report.outcomes} == {Status.CRASHED}
    assert report.verdict is Verdict.UNKNOWN
    assert exit_code(report) == 3
    assert exit_code(report, fail_on=None) == 3
    assert f"{len(CHECKS)} crashed" in screen(report)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_one_check_raises_and_the_others_judge_as_before(check: Any) -> None:
    sections = Sections(kernel_driver=known(KernelDriver(version="580.159.04")))
    others = [other for other in CHECKS if other is not check][:5]
    broken = replace(check, judge=_raises, sections=())
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label=""), sections=sections
    )
    alone = diagnose(snapshot, KNOWLEDGE, others, today=TODAY)
    report = diagnose(snapshot, KNOWLEDGE, [broken, *others], today=TODAY)
    assert report.outcomes[0].status is Status.CRASHED
    assert "RuntimeError: a check of ours is broken" in report.outcomes[0].reason
    assert [outcome.status for outcome in report.outcomes[1:]] == [outcome.status for outcome in alone.outcomes]
    assert report.diagnosis == alone.diagnosis
