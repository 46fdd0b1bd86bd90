"""Every check answers its own cases, and every finding tells what is wrong, how we know, and what to do."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS
from dsdoctor.checks._check import Case, Check
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import Container, Identity, Origin, Package, Platform, Section, Sections, Snapshot, Virtualization, absent, known
from dsdoctor.findings import Report, Severity, Status
from dsdoctor.matrix import Knowledge
from dsdoctor.plain import from_plain, to_plain
from dsdoctor.purpose import ask

TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()
EVERY_CASE = [pytest.param(check, case, id=f"{check.id}: {case.title}") for check in CHECKS for case in check.cases]
EVERY_FAILURE = [parameter for parameter in EVERY_CASE if parameter.values[1].status is Status.FAIL]

READERS: Mapping[str, Mapping[str, Any]] = {
    "ubuntu": {"platform": Platform(os_id="ubuntu", os_id_like=("debian",), os_version="24.04"), "container": absent("a plain host")},
    "rocky": {"platform": Platform(os_id="rocky", os_id_like=("rhel",), os_version="9.4"), "container": absent("a plain host")},
    "sles vm": {
        "platform": Platform(os_id="sles", os_version="15.6"),
        "container": absent("a plain host"),
        "virtualization": Virtualization(hypervisor="kvm"),
    },
    "unknown system": {"platform": Platform(os_id="void"), "container": absent("a plain host")},
    "docker": {
        "platform": Platform(os_id="ubuntu", os_version="22.04"),
        "container": Container(runtime="docker"),
        "identity": Identity(uid=0),
    },
    "kubernetes": {"platform": Platform(os_id="debian", os_version="12"), "container": Container(runtime="containerd", kubernetes=True)},
    "podman": {"platform": Platform(os_id="fedora", os_version="41"), "container": Container(runtime="podman")},
    "pyxis": {"platform": Platform(os_id="ubuntu", os_version="24.04"), "container": Container(runtime="enroot")},
    "apptainer": {"platform": Platform(os_id="rocky", os_version="8.10"), "container": Container(runtime="apptainer")},
    "lxc": {"platform": Platform(os_id="ubuntu", os_version="24.04"), "container": Container(runtime="lxc")},
    "unknown container": {"container": Container(runtime="unknown")},
}


def section(value: Any) -> Section[Any]:
    return value if isinstance(value, Section) else known(value)


def judge(check: Check, sections: Mapping[str, Any], case: Case | None = None) -> Report:
    facts = Sections(**{name: section(value) for name, value in sections.items()})
    node = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label="a case"), sections=facts
    )
    purpose = ask(KNOWLEDGE, case.profiles, case.models, disk_gb_per_s=case.disk_gb_per_s) if case else ask(KNOWLEDGE)
    return diagnose(node, KNOWLEDGE, [check], today=TODAY, purpose=purpose)


def everything_said(report: Report) -> str:
    outcome = report.outcomes[0]
    texts = [outcome.reason, outcome.settle, *(f"{doubt.subject} {doubt.reason} {doubt.settle}" for doubt in outcome.doubts)]
    for found in report.diagnosis:
        texts += [found.subject, found.summary, found.cause, found.expected, *(item.value for item in found.evidence)]
    return "\n".join(texts)


@pytest.mark.parametrize(("check", "case"), EVERY_CASE)
def test_a_check_answers_its_case(check: Check, case: Case) -> None:
    report = judge(check, case.sections, case)
    outcome = report.outcomes[0]
    assert outcome.status is case.status, (outcome.reason, [item.summary for item in report.diagnosis])
    assert case.says in everything_said(report)
    if case.severity is not None:
        assert outcome.severity is case.severity
    if case.status is Status.UNKNOWN:
        assert outcome.settle


@pytest.mark.parametrize(("check", "case"), EVERY_FAILURE)
def test_a_finding_says_what_is_wrong_how_we_know_and_what_to_do(check: Check, case: Case) -> None:
    for found in judge(check, case.sections, case).diagnosis:
        assert found.subject
        assert found.summary.endswith((".", "…", ")", "!"))
        assert "\n" not in found.summary
        assert found.cause
        assert found.evidence
        assert all(item.where and item.value for item in found.evidence), found.evidence
        assert found.expected
        assert found.sources
        assert found.remedies
        assert all(remedy.summary and (remedy.commands or remedy.steps) for remedy in found.remedies)
        assert ".." not in found.summary.replace("...", "").replace("../", "")


@pytest.mark.parametrize(("check", "case"), EVERY_FAILURE)
def test_every_reader_gets_a_remedy(check: Check, case: Case) -> None:
    """A finding without a remedy is not yet a check, wherever the reader sits; facts of the case itself stay as they are."""
    for reader, facts in READERS.items():
        for found in judge(check, {**facts, **case.sections}, case).diagnosis:
            assert found.remedies, f"{reader}: {found.summary}"


@pytest.mark.parametrize(("check", "case"), EVERY_CASE)
def test_a_case_answers_the_same_after_a_recording(check: Check, case: Case) -> None:
    facts = Sections(**{name: section(value) for name, value in case.sections.items()})
    again = from_plain(Sections, to_plain(facts))
    assert judge(check, {name: getattr(again, name) for name in case.sections}, case).outcomes[0].status is case.status


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_check_shows_every_answer(check: Check) -> None:
    shown = {case.status for case in check.cases}
    assert {Status.FAIL, Status.PASS, Status.UNKNOWN} <= shown
    assert len({case.title for case in check.cases}) == len(check.cases)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_check_is_documented_where_it_stands(check: Check) -> None:
    area, problem = check.id.split(".")
    assert check.judge.__module__ == f"dsdoctor.checks.{area}.{problem.replace('-', '_')}"
    title, _, rest = check.documentation.partition("\n")
    assert title.endswith(".")
    assert len(title) <= 140
    for heading in ("What it looks at", "Why it matters", "Sources"):
        assert f"\n{heading}" in rest, heading
    assert (check.judge.__doc__ or "").strip()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_nothing_known_is_never_a_fault(check: Check) -> None:
    """A missing fact is never turned into health or into sickness."""
    assert judge(check, {}).outcomes[0].status in (Status.UNKNOWN, Status.NOT_APPLICABLE)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_unreadable_optional_facts_crash_no_check(check: Check) -> None:
    for case in check.cases:
        only_needed = {name: value for name, value in case.sections.items() if name in check.sections}
        assert judge(check, only_needed, case).outcomes[0].status is not Status.CRASHED


def test_ids_are_unique_and_errors_fold_only_known_ids() -> None:
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    assert all(check.id not in check.explains for check in CHECKS)
    assert {check.severity for check in CHECKS} <= set(Severity)


def test_a_healthy_inference_node_has_no_finding_in_these_areas() -> None:
    """The single-GPU H200 recording: 20000 open files, unlimited memlock, /dev/infiniband without uverbs, CUDA 13.0 and GCC 13.3."""
    from dsdoctor.facts import (
        Cpu,
        CudaToolkit,
        DeviceNode,
        Directory,
        EnvironmentVariable,
        Gpu,
        HostCompiler,
        Interpreter,
        KernelDriver,
        Libc,
        Limit,
        PythonHeaders,
        SharedMemory,
        TorchBuild,
    )

    environment = {
        "CUDA_HOME": "/usr/local/cuda",
        "CUDAHOSTCXX": "/opt/gcc/bin/g++",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib",
        "NCCL_VERSION": "2.28.3-1",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,graphics,utility",
        "NVIDIA_VISIBLE_DEVICES": "0",
        "TORCH_CUDA_ARCH_LIST": "9.0a",
    }
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/infiniband/rdma_cm")
    facts = {
        "platform": Platform(os_id="ubuntu", os_version="24.04", architecture="x86_64"),
        "libc": Libc(family="glibc", version="2.39"),
        "cpu": Cpu(logical_cpus=16),
        "limits": {"memlock": Limit(soft=None, hard=None), "nofile": Limit(soft=20000, hard=20000)},
        "identity": Identity(uid=0, effective_capabilities=0xA80425FB),
        "shared_memory": SharedMemory(path="/dev/shm", total_bytes=128 << 30, free_bytes=128 << 30),
        "directories": (Directory(purpose="tmp", path="/tmp", exists=True, writable=True, free_bytes=64 << 30, total_bytes=252 << 30),),
        "container": Container(runtime="docker"),
        "wsl": absent("not WSL"),
        "device_nodes": tuple(DeviceNode(path=path, openable=True, mode="crw-rw-rw-") for path in nodes),
        "environment": tuple(EnvironmentVariable(name=name, value=value) for name, value in environment.items()),
        "kernel_driver": KernelDriver(version="580.159.04"),
        "gpus": (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0", mig_enabled=False),),
        "cuda_toolkits": (
            CudaToolkit(
                path="/usr/local/cuda", cuda_version="13.0", nvcc="/usr/local/cuda/bin/nvcc", is_cuda_home=True, is_first_on_path=True
            ),
        ),
        "host_compilers": (
            HostCompiler(name="gcc", path="/usr/bin/gcc", version="13.3.0", chosen_by="PATH"),
            HostCompiler(name="g++", path="/usr/bin/g++", version="13.3.0", chosen_by="PATH"),
        ),
        "python_headers": PythonHeaders(include_directory="/usr/include/python3.12", present=True),
        "interpreter": Interpreter(path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3", kind="venv"),
        "packages": (Package(name="torch", version="2.11.0+cu130"), Package(name="triton", version="3.6.0")),
        "torch_build": TorchBuild(version="2.11.0+cu130", cuda="13.0"),
        "extensions": (),
    }
    areas = ("system", "container", "wsl", "env", "toolchain")
    for check in CHECKS:
        if check.area in areas:
            assert not judge(check, facts).diagnosis, check.id


@given(value=st.text(alphabet="0123456789,-+ \"'GPUMIGabcdef\t", max_size=24), count=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_no_value_of_cuda_visible_devices_crashes_its_check(value: str, count: int) -> None:
    from dsdoctor.facts import EnvironmentVariable, Gpu

    check = next(check for check in CHECKS if check.id == "env.cuda-visible-devices")
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}a", mig_enabled=index % 3 == 2) for index in range(count))
    report = judge(check, {"environment": (EnvironmentVariable(name="CUDA_VISIBLE_DEVICES", value=value),), "gpus": gpus})
    assert report.outcomes[0].status in (Status.PASS, Status.FAIL)
    assert all(found.remedies and found.cause for found in report.diagnosis)


@given(chosen=st.lists(st.integers(0, 7), unique=True, min_size=1))
@settings(max_examples=50, deadline=None)
def test_every_choice_of_existing_gpus_is_accepted(chosen: list[int]) -> None:
    from dsdoctor.facts import EnvironmentVariable, Gpu

    check = next(check for check in CHECKS if check.id == "env.cuda-visible-devices")
    value = ",".join(map(str, chosen))
    gpus = tuple(Gpu(index=index, mig_enabled=False) for index in range(8))
    report = judge(check, {"environment": (EnvironmentVariable(name="CUDA_VISIBLE_DEVICES", value=value),), "gpus": gpus})
    assert report.outcomes[0].status is Status.PASS
