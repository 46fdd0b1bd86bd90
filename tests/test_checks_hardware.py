"""The checks of GPUs, fabric and buses on recorded nodes: healthy ones stay without a finding, and one fault gives one diagnosis."""

from __future__ import annotations

import dataclasses
import datetime
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import (
    Container,
    EccCounters,
    FabricState,
    Gpu,
    Iommu,
    KernelDriver,
    KernelLog,
    Missing,
    NvLink,
    NvmlStart,
    NvmlVersions,
    Origin,
    PciDevice,
    PcieLink,
    Platform,
    RemappedRows,
    Section,
    Sections,
    Snapshot,
    State,
    Virtualization,
    Xid,
    known,
    not_asked,
)
from dsdoctor.findings import Report, Severity, Status
from dsdoctor.matrix import Knowledge

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
RECORDINGS = SHARED / "recordings"
AREAS = ("gpu", "fabric", "pcie", "rdma", "network")
HARDWARE = tuple(check for check in CHECKS if check.area in AREAS)
KNOWLEDGE = Knowledge()
NOT_SUPPORTED = Missing(State.ABSENT, "Not Supported (NVML code 3)")

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not here")


# --- facts from recorded nvidia-smi -q -x -----------------------------------------------------------------------------


def recorded_gpus(folder: str, links: int) -> tuple[Gpu, ...]:
    """The GPUs of a recorded node as NVML would give them; NVLink is not in this output."""
    name = "nvidia-smi-q.xml" if folder == "h200" else "q.xml"
    root = ElementTree.parse(RECORDINGS / folder / name).getroot()
    return tuple(_gpu(index, node, links) for index, node in enumerate(root.iter("gpu")))


def _gpu(index: int, node: ElementTree.Element, links: int) -> Gpu:
    def text(path: str) -> str:
        return (node.findtext(path) or "N/A").strip()

    def number(path: str) -> int:
        return int(float(text(path).split()[0].rstrip("x")))

    fabric = {"Completed": "completed", "N/A": "not-supported"}[text("fabric/state")]
    return Gpu(
        index=index,
        name=text("product_name"),
        uuid=f"GPU-{index}",
        pci_address=text("pci/pci_bus_id").lower()[-12:],
        compute_capability="9.0",
        memory_total_bytes=number("fb_memory_usage/total") << 20,
        memory_used_bytes=number("fb_memory_usage/used") << 20,
        mig_enabled=text("mig_mode/current_mig") == "Enabled",
        mig_pending=text("mig_mode/pending_mig") == "Enabled",
        ecc_enabled=text("ecc_mode/current_ecc") == "Enabled",
        ecc_pending=text("ecc_mode/pending_ecc") == "Enabled",
        ecc=EccCounters(
            volatile_uncorrected=number("ecc_errors/volatile/dram_uncorrectable"),
            aggregate_uncorrected=number("ecc_errors/aggregate/dram_uncorrectable"),
            sram_threshold_exceeded=text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes",
        ),
        remapped_rows=RemappedRows(
            correctable=number("remapped_rows/remapped_row_corr"),
            uncorrectable=number("remapped_rows/remapped_row_unc"),
            pending=text("remapped_rows/remapped_row_pending") == "Yes",
            failure=text("remapped_rows/remapped_row_failure") == "Yes",
        ),
        recovery_action={"None": 0}[text("gpu_recovery_action")],
        clock_event_reasons=("gpu_idle",) if text("clocks_event_reasons/clocks_event_reason_gpu_idle") == "Active" else (),
        power_limit_w=float(text("gpu_power_readings/current_power_limit").split()[0]),
        power_default_limit_w=float(text("gpu_power_readings/default_power_limit").split()[0]),
        performance_state=int(text("performance_state").lstrip("P")),
        utilization_percent=number("utilization/gpu_util"),
        pcie=PcieLink(
            generation=number("pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
            width=number("pci/pci_gpu_link_info/link_widths/current_link_width"),
            max_generation=number("pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
            max_width=number("pci/pci_gpu_link_info/link_widths/max_link_width"),
            replay_count=number("pci/replay_counter"),
        ),
        fabric=FabricState(state=fabric, status_code=0 if fabric == "completed" else None, health_mask=0, cluster_uuid="0" * 8),
        nvlinks=tuple(
            NvLink(index=link, active=True, remote="switch", replay_errors=0, recovery_errors=0, crc_errors=0) for link in range(links)
        )
        or None,
        missing={} if links else {"nvlinks": NOT_SUPPORTED},
        processes=(),
        virtualization_mode="passthrough",
        persistence_mode=text("persistence_mode") == "Enabled",
        compute_mode={"Default": 0}[text("compute_mode")],
        vbios_version=text("vbios_version"),
        inforom_version=text("inforom_version/img_version"),
    )


def recorded_node(folder: str, links: int, **more: Any) -> dict[str, Any]:
    """The sections of a recorded node, a virtual machine whose job runs in a container."""
    gpus = recorded_gpus(folder, links)
    bus = tuple(
        PciDevice(
            address=gpu.pci_address, kind="gpu", vendor_id="10de", device_id="2335", driver="nvidia", root="pci0000:00", link=gpu.pcie
        )
        for gpu in gpus
    )
    return {
        "platform": Platform(os_id="ubuntu", os_version="24.04", architecture="x86_64", uptime_s=5000.0),
        "container": Container(runtime="docker"),
        "virtualization": Virtualization(hypervisor="kvm"),
        "environment": (),
        "kernel_driver": KernelDriver(version="580.159.04", flavour="open", options={"NvLinkDisable": "0" if links else "1"}),
        "services": not_asked("in a container"),
        "kernel_log": KernelLog(),
        "nvml_start": NvmlStart(library="libnvidia-ml.so.1"),
        "nvml_versions": NvmlVersions(driver="580.159.04"),
        "gpus": gpus,
        "pci_devices": (*bus, PciDevice(address="0000:00:03.0", kind="nic", vendor_id="1af4", interfaces=("eth0",))),
        "iommu": Iommu(enabled=False),
        **more,
    }


def judge(sections: Mapping[str, Any]) -> Report:
    facts = Sections(**{name: value if isinstance(value, Section) else known(value) for name, value in sections.items()})
    node = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label="a recording"), sections=facts
    )
    return diagnose(node, KNOWLEDGE, HARDWARE, today=datetime.date(2026, 11, 29))


def with_first_gpu(sections: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    first, *others = sections["gpus"]
    return {**sections, "gpus": (dataclasses.replace(first, **fields), *others)}


# --- stories ----------------------------------------------------------------------------------------------------------


NOTHING_TO_JUDGE_IN_A_GUEST = {
    "rdma.link-down",
    "fabric.manager-version-mismatch",
    "fabric.manager-not-running",
    "fabric.imex",
    "pcie.acs-redirect",
    "pcie.iommu-translation",
    "pcie.chipset-attached",
    "pcie.aer-errors",
    "rdma.peermem-missing",
    "rdma.device-rights",
    "rdma.link-degraded",
    "rdma.link-flapping",
    "rdma.mixed-firmware",
    "rdma.nic-far-from-gpu",
    "gpu.retired-pages",
}
JUDGED_BY_GPU_TESTS = {"pcie.p2p-broken"}
"""No GPU test ran on these recordings."""
NOTHING_TO_JUDGE_ALONE = {"fabric.not-initialized", "gpu.nvlink-down", "gpu.nvlink-errors", "gpu.mixed-products", "gpu.mixed-firmware"}


@pytest.mark.parametrize(
    ("folder", "links", "aside"),
    [("h200", 0, NOTHING_TO_JUDGE_IN_A_GUEST | NOTHING_TO_JUDGE_ALONE), ("h200x4", 18, NOTHING_TO_JUDGE_IN_A_GUEST)],
)
def test_a_healthy_recorded_node_has_no_finding_and_no_doubt(folder: str, links: int, aside: set[str]) -> None:
    """What cannot arise in a virtual machine, or with one GPU, is no pass; all else passes."""
    report = judge(recorded_node(folder, links))
    assert [(item.check, item.summary) for item in report.diagnosis] == []
    assert {item.check for item in report.outcomes if item.status is Status.NOT_APPLICABLE} == aside
    assert all(item.status is Status.PASS for item in report.outcomes if item.check not in aside | JUDGED_BY_GPU_TESTS)


def test_a_gpu_that_falls_off_the_bus_is_one_diagnosis() -> None:
    healthy = recorded_node("h200x4", 18)
    address = healthy["gpus"][0].pci_address
    fallen = Xid(code=79, pci_address=address, text=f"NVRM: Xid (PCI:{address[:-2]}): 79, GPU has fallen off the bus.")
    report = judge({**with_first_gpu(healthy, lost=True, recovery_action=None), "kernel_log": KernelLog(xids=(fallen,))})
    assert [(item.check, item.severity) for item in report.diagnosis] == [("gpu.lost", Severity.ERROR)]
    assert {item.check for item in report.diagnosis[0].explains} == {"gpu.xid"}


def test_failing_memory_is_explained_by_what_the_driver_asks_for() -> None:
    healthy = recorded_node("h200x4", 18)
    address = healthy["gpus"][0].pci_address
    events = tuple(Xid(code=code, pci_address=address, text=f"NVRM: Xid (PCI:{address[:-2]}): {code}, …") for code in (48, 63, 94, 154))
    sick = with_first_gpu(
        healthy,
        recovery_action=1,
        ecc=EccCounters(volatile_uncorrected=2, aggregate_uncorrected=2, sram_threshold_exceeded=False),
        remapped_rows=RemappedRows(correctable=0, uncorrectable=2, pending=True, failure=False),
    )
    report = judge({**sick, "kernel_log": KernelLog(xids=events)})
    errors = [item for item in report.diagnosis if item.severity is Severity.ERROR]
    assert [item.check for item in errors] == ["gpu.recovery-action"]
    assert {"gpu.xid", "gpu.ecc-uncorrectable", "gpu.row-remap"} <= {item.check for item in errors[0].explains}


def test_a_node_read_while_it_works_has_no_finding() -> None:
    healthy = recorded_node("h200x4", 18)
    busy = tuple(
        dataclasses.replace(gpu, utilization_percent=100, clock_event_reasons=("sw_power_cap",), memory_used_bytes=120 << 30)
        for gpu in healthy["gpus"]
    )
    report = judge({**healthy, "gpus": busy})
    assert not report.diagnosis
    unknown = {item.check for item in report.outcomes if item.status is Status.UNKNOWN}
    assert unknown - JUDGED_BY_GPU_TESTS == {"gpu.orphan-memory", "gpu.in-use"}


# --- anything may be missing ------------------------------------------------------------------------------------------

OPTIONAL = sorted(
    field.name
    for field in dataclasses.fields(Gpu)
    if field.default is None or (field.default == "" and field.name not in ("where", "virtualization_mode"))
)


@given(
    gone=st.sets(st.sampled_from(OPTIONAL)),
    why=st.sampled_from([Missing(State.UNREADABLE, "No Permission (NVML code 4)"), NOT_SUPPORTED]),
)
@settings(max_examples=150, deadline=None)
def test_a_value_that_is_missing_is_never_a_fault(gone: set[str], why: Missing) -> None:
    healthy = recorded_node("h200x4", 18)
    fields = {name: ("" if getattr(Gpu(index=0), name) == "" else None) for name in gone}
    missing = dict.fromkeys(gone, why)
    report = judge({**healthy, "gpus": tuple(dataclasses.replace(gpu, missing=missing, **fields) for gpu in healthy["gpus"])})
    assert not [item.summary for item in report.diagnosis]
    assert not [item.reason for item in report.outcomes if item.status is Status.CRASHED]


@given(
    number=st.integers(0, 2**64),
    share=st.floats(0, 2),
    text=st.text(max_size=20),
    reasons=st.lists(st.sampled_from(["gpu_idle", "hw_slowdown", "bit_40", ""]), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_no_reading_makes_a_check_crash(number: int, share: float, text: str, reasons: list[str]) -> None:
    strange = Gpu(
        index=0,
        name=text,
        pci_address=text,
        compute_capability=text,
        memory_used_bytes=number,
        processes=(),
        ecc=EccCounters(volatile_uncorrected=number),
        remapped_rows=RemappedRows(correctable=number, uncorrectable=number, pending=False, failure=False),
        recovery_action=number,
        clock_event_reasons=tuple(reasons),
        power_limit_w=share * 700,
        power_default_limit_w=700.0,
        performance_state=number,
        utilization_percent=number,
        pcie=PcieLink(generation=number, width=number, max_generation=number + 1, max_width=number, replay_count=number),
        fabric=FabricState(state=text, status=text, status_code=number, cluster_uuid=text, clique_id=number, health_mask=number),
        nvlinks=(NvLink(index=0, active=bool(number % 2), crc_errors=number),),
        mig_enabled=bool(number % 3),
    )
    log = KernelLog(xids=(Xid(code=number, pci_address=text, text=text),))
    report = judge(
        {"gpus": (strange, Gpu(index=1)), "kernel_log": log, "pci_devices": (PciDevice(address=text, kind="gpu", parents=(text, text)),)}
    )
    assert not [(item.check, item.reason) for item in report.outcomes if item.status is Status.CRASHED]
    assert all(item.remedies and item.evidence for item in report.diagnosis)
