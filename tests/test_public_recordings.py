"""Public recordings of machines, well and sick: a healthy one has no error, a bad one its fault. They are used from where they lie, and not shipped."""

from __future__ import annotations

import datetime
import importlib
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import Origin, Sections, Snapshot
from dsdoctor.findings import Report, Severity
from dsdoctor.matrix import Knowledge
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.triage import open_document, read
from dsdoctor.sources.triage.events import load_matcher
from dsdoctor.topology import read as topology_of

FIXTURES = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared")) / "fixtures"
TODAY = datetime.date(2026, 11, 29)
KNOWLEDGE = Knowledge()

pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the public recordings are not here")

ERROR, WARNING, INFO = Severity

HEALTHY: Mapping[str, tuple[str, set[str]]] = {
    "nvidia_gpu_exporter/nvidia-h100-80gb-hbm3__590.48.01.txt": ("NVIDIA H100 80GB HBM3", set()),
    "nvidia_gpu_exporter/nvidia-h200-mig__590.48.01.txt": ("NVIDIA H200", set()),
    "nvidia_gpu_exporter/nvidia-l40s__595.80.txt": ("NVIDIA L40S", set()),
    "telegraf/a100-sxm4-v12.xml": ("NVIDIA A100-SXM4-80GB", {"driver.branch-eol"}),
    "telegraf/tesla-t4.xml": ("Tesla T4", {"pcie.link-degraded"}),
    "telegraf/rtx-3080-v13.xml": ("NVIDIA GeForce RTX 3080", set()),
    "telegraf/rtx-4000-sff-ada-v13.xml": ("NVIDIA RTX 4000 SFF Ada Generation", set()),
    "azurehpc-health-checks/orig_nvsmi8_output.txt": ("", {"driver.branch-eol"}),
    "azurehpc-health-checks/good_nvlink_status.txt": ("NVIDIA A100-SXM4-80GB", set()),
    "gpud/fabric-manager_nvidia-smi.nvlink.status.a100": ("NVIDIA A100-SXM4-80GB", set()),
    "gpud/fabric-manager_lspci.nn.a100": ("", set()),
    "gpud/fabric-manager_fabricmanager.log": ("", set()),
    "gpud/pkg_kmsg_kmsg.1.log": ("", set()),
    "superbenchmark/nccl_allreduce.log": ("", set()),
    "superbenchmark/nccl_alltoall.log": ("", set()),
    "superbenchmark/nvbandwidth_results.log": ("", set()),
    "superbenchmark/ib_traffic_topo_aware_ibstat.txt": ("", set()),
}
"""Recording to the product that is read out of it, and the warnings that are true: an old driver branch, a slot with eight lanes."""

SICK = {
    "azurehpc-health-checks/bad_nvsmi8_output.txt": ("gpu.retired-pages", ERROR, "63"),
    "azurehpc-health-checks/bad_nvlink_status.txt": ("gpu.nvlink-down", ERROR, "GPU 6"),
    "azurehpc-health-checks/1dev_6flap_syslog": ("rdma.link-flapping", WARNING, "ib6 lost its link 6 times"),
    "gpud/xid_dmesg-with-xid-119.log": ("gpu.xid", ERROR, "Xid 119"),
    "gpud/nccl_dmesg.decode.iso.log": ("nccl.crashed", WARNING, "2 times"),
    "gpud/pkg_kmsg_kmsg.2.peermem.log": ("rdma.peermem-errors", INFO, "7 times"),
}
"""Recording to the check that finds its fault, how grave it is, and what is said."""

SAID_OF_ANY_PRODUCT = {"gpu.no-fp8", "driver.known-bad", "driver.branch-eol", "gpu.mig-limits", "gpu.in-use", "gpu.persistence-mode"}
"""Notes that are true of a healthy machine too."""


def judged(sections: Sections) -> Report:
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="triage", label="a recording"), sections=sections
    )
    report = diagnose(snapshot, KNOWLEDGE, CHECKS, today=TODAY)
    assert not report.counts.crashed
    return report


def recorded(name: str) -> Sections:
    return read([open_document(str(FIXTURES / name))], load_matcher(KNOWLEDGE)).snapshot.sections


def findings(report: Report) -> list[tuple[str, Severity, str]]:
    return [(item.check, item.severity, item.summary) for item in report.diagnosis]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_recording_has_no_error(name: str) -> None:
    product, warnings = HEALTHY[name]
    sections = recorded(name)
    assert not product or {gpu.name for gpu in sections.gpus.value} == {product}
    found = findings(judged(sections))
    assert [entry for entry in found if entry[1] is ERROR] == []
    assert {check for check, severity, _ in found if severity is WARNING} == warnings
    assert {check for check, severity, _ in found if severity is INFO} <= SAID_OF_ANY_PRODUCT


@pytest.mark.parametrize("name", SICK)
def test_a_sick_recording_has_its_fault_and_no_other(name: str) -> None:
    check, severity, words = SICK[name]
    found = findings(judged(recorded(name)))
    assert {entry[0] for entry in found if entry[1] is not INFO} - {"driver.branch-eol"} == ({check} if severity is not INFO else set())
    assert any(entry[0] == check and entry[1] is severity and words in entry[2] for entry in found), found


# --- trees of files ---------------------------------------------------------------------------------------------------


def examined(root: Path, *probes: str) -> Sections:
    sections: dict[str, Any] = {}
    for name in probes:
        sections |= importlib.import_module(f"dsdoctor.probes.{name}").collect(
            Host(root=str(root), environment={}, commands={}), Scope(target=None)
        )
    return Sections(**sections)


@pytest.fixture(scope="module")
def h100_adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/sys/class/infiniband of a node with eight 400 Gbit/s rails and one bond."""
    root = tmp_path_factory.mktemp("h100")
    target = root / "sys/class/infiniband"
    target.mkdir(parents=True)
    (root / "sys/class/net").mkdir()
    with tarfile.open(FIXTURES / "gpud/sys-class-infiniband-h100.tar.gz") as archive:
        for member in archive.getmembers():
            _, _, below = member.name.partition("sys-class-infiniband-h100.0/")
            if member.isfile() and below:
                (target / below).parent.mkdir(parents=True, exist_ok=True)
                (target / below).write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    return root


def test_the_adapters_of_an_h100_node_are_well(h100_adapters: Path) -> None:
    sections = examined(h100_adapters, "host")
    ports = sections.rdma_ports.value
    assert len(ports) == 9
    assert {(port.rate_gbit_per_s, port.link_layer, port.state) for port in ports} == {
        (400.0, "InfiniBand", "active"),
        (200.0, "Ethernet", "active"),
    }
    assert {port.firmware for port in ports if port.link_layer == "InfiniBand"} == {"28.41.1000"}
    found = [entry for entry in findings(judged(sections)) if entry[0].startswith("rdma.")]
    assert [(check, severity) for check, severity, _ in found] == [("rdma.link-flapping", INFO)]
    assert "255 times or more" in found[0][2], "one port's counter stands at its end"


def test_a_rail_that_trains_lower_is_found_in_the_same_tree(h100_adapters: Path) -> None:
    rate = h100_adapters / "sys/class/infiniband/mlx5_5/ports/1/rate"
    as_it_was = rate.read_text()
    rate.write_text("200 Gb/sec (2X NDR)\n")
    try:
        found = findings(judged(examined(h100_adapters, "host")))
    finally:
        rate.write_text(as_it_was)
    assert [entry[0] for entry in found if entry[1] is WARNING and entry[0].startswith("rdma.")] == ["rdma.link-degraded"]


def test_a_dgx_spark_has_no_error(tmp_path: Path) -> None:
    """Its tree holds processor and memory only; what is not there is not known, and no fault."""
    with tarfile.open(FIXTURES / "hwloc/nvidia-dgx-gb10.tar.bz2") as archive:
        wanted = [member for member in archive.getmembers() if "/sys/class/" in member.name or "/proc/" in member.name]
        archive.extractall(tmp_path, members=wanted, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(
            tmp_path, members=wanted
        )
    sections = examined(tmp_path / "nvidia-dgx-gb10", "host", "pcie", "kernel_log", "services")
    assert "DGX_Spark" in sections.virtualization.why
    assert [entry for entry in findings(judged(sections)) if entry[1] is not INFO] == []


@pytest.mark.parametrize(
    ("name", "gpus", "nics"),
    [
        ("azhpc-images/ndv5-topo.xml", 8, 8),
        ("azhpc-images/ndv4-topo.xml", 8, 8),
        ("azhpc-images/ncv4-topo.xml", 4, 0),
        ("aws-ofi-nccl/p4d-24xl-topo.xml", 8, 4),
        ("hwloc/nvidiaDGX2.xml", 16, 0),
    ],
)
def test_a_topology_file_is_read_whole(name: str, gpus: int, nics: int) -> None:
    topology = topology_of.load(str(FIXTURES / name))
    assert (len(topology.gpus), len(topology.nics)) == (gpus, nics)
