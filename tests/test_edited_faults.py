"""Faults edited into healthy nodes: every rule once just above its limit and once just below, found where it is and nowhere else.

The nodes are the shipped recordings, and a bare-metal server and a rack's compute tray made of them. An edit is a small function from sections to
sections, named for its fault. What a fault explains is found under it; `also` names what else it rightly brings.
"""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.checks import CHECKS
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import (
    NOT_ASKED,
    AerCounters,
    CounterGrowth,
    DeviceNode,
    EnvironmentVariable,
    FabricState,
    GpuProcess,
    Growth,
    Identity,
    Iommu,
    KernelLog,
    KernelLogLine,
    Limit,
    LoadedModules,
    Missing,
    NetworkInterface,
    NvLink,
    Origin,
    Package,
    PciDevice,
    PcieLink,
    RdmaPort,
    RemappedRows,
    RetiredPages,
    Sections,
    Service,
    Settling,
    Snapshot,
    State,
    Virtualization,
    Xid,
    absent,
    known,
)
from dsdoctor.findings import Severity
from dsdoctor.matrix import Knowledge
from dsdoctor.sources import replay
from dsdoctor.sources.triage import document, read
from dsdoctor.sources.triage.events import load_matcher

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
AREAS = ("fabric", "gpu", "pcie", "rdma", "network")
BESIDE_THEM = ("driver.module-options", "env.disables-fast-path", "system.memlock-limited", "deepep.requirements", "nccl.crashed")
JUDGES = tuple(check for check in CHECKS if check.area in AREAS or check.id in BESIDE_THEM)
KNOWLEDGE = Knowledge()
TODAY = datetime.date(2026, 11, 29)
GIB = 1 << 30
VICTIM = 1
"""The GPU that gets the fault."""
UPTIME_S = 20_000.0

Edit = Callable[[Sections], Sections]


# --- the nodes --------------------------------------------------------------------------------------------------------


SOFTWARE = (
    "extensions",
    "cuda_libraries",
    "loader_hits",
    "mapped_libraries",
    "libstdcxx",
    "directories",
    "driver_libraries",
    "torch_runtime",
    "smoke",
)
"""Sections that no rule about hardware reads; left out, because every judgement carries its facts along."""


@cache
def recorded(name: str) -> Sections:
    node = replay.load(f"example:{name}").sections
    return dataclasses.replace(node, **dict.fromkeys(SOFTWARE, NOT_ASKED))


def guest() -> Sections:
    """A virtual machine with four H200s, as it was recorded, up for some hours, with a quiet log."""
    node = recorded("h200x4-healthy")
    platform = dataclasses.replace(node.platform.value, uptime_s=UPTIME_S)
    return dataclasses.replace(node, platform=known(platform), kernel_log=known(KernelLog()))


def server() -> Sections:
    """The same GPUs on bare metal: NVSwitches, a bridge above each GPU and each of four ConnectX cards, services, RDMA ports."""
    node = guest()
    gpus = tuple(
        dataclasses.replace(gpu, pci_address=f"0000:{index + 1}1:00.0", pcie=dataclasses.replace(gpu.pcie, replay_count=0))
        for index, gpu in enumerate(node.gpus.value)
    )
    devices: list[PciDevice] = []
    for index, gpu in enumerate(gpus):
        bridge, root, numa = f"0000:{index + 1}0:01.0", f"pci0000:{index + 1}0", index // 2
        common: dict[str, Any] = {
            "parents": (bridge,),
            "root": root,
            "numa_node": numa,
            "aer": AerCounters(correctable=0, nonfatal=0, fatal=0),
        }
        link = PcieLink(generation=5, width=16, max_generation=5, max_width=16)
        devices += [
            PciDevice(address=gpu.pci_address, kind="gpu", vendor_id="10de", device_id="2335", driver="nvidia", link=link, **common),
            PciDevice(
                address=f"0000:{index + 1}5:00.0", kind="nic", vendor_id="15b3", driver="mlx5_core", link=link, interfaces=(f"mlx5_{index}",),
                **common,
            ),
            PciDevice(address=bridge, kind="bridge", vendor_id="1000", link=link, root=root, numa_node=numa, acs_redirect=False),
        ]  # fmt: skip
    switches = [
        PciDevice(address=f"0000:0{number}:00.0", kind="nvswitch", vendor_id="10de", device_id="22a3", driver="nvidia-nvswitch")
        for number in (7, 8)
    ]
    driver = node.kernel_driver.value.version
    return dataclasses.replace(
        node,
        gpus=known(gpus),
        pci_devices=known((*devices, *switches)),
        virtualization=absent("bare metal"),
        container=absent("a plain host"),
        iommu=known(Iommu(enabled=True, mode="passthrough")),
        services=known(
            tuple(
                Service(name=name, state=state, version=version)
                for name, state, version in (
                    ("nvidia-fabricmanager", "active", driver),
                    ("nvidia-persistenced", "active", ""),
                    ("nvidia-imex", "not-installed", ""),
                    ("nvlsm", "not-installed", ""),
                )
            )
        ),
        loaded_modules=known(LoadedModules(names=("nvidia", "nvidia_uvm", "nvidia_peermem", "mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad"))),
        rdma_ports=known(
            tuple(
                RdmaPort(
                    adapter=f"mlx5_{number}", link_layer="InfiniBand", state="active", physical_state="linkup", rate_gbit_per_s=400.0, link_downed=0,
                    firmware="28.41.1000", board_id="MT_0000000838",
                )
                for number in range(4)
            )
        ),
        network_interfaces=known(
            (
                NetworkInterface(name="eth0", kind="ethernet", up=True),
                *(NetworkInterface(name=f"mlx5_{number}", kind="rdma", up=True) for number in range(4)),
            )
        ),
        device_nodes=known(
            (
                *(node.device_nodes.value or ()),
                *(DeviceNode(path=f"/dev/infiniband/uverbs{number}", openable=True, mode="crw-rw-rw-") for number in range(4)),
            )
        ),
        limits=known({**(node.limits.value or {}), "memlock": Limit(soft=None, hard=None)}),
        environment=known((EnvironmentVariable(name="SLURM_NNODES", value="2"),)),
    )  # fmt: skip


def board_of_b200() -> Sections:
    """The server with B200s, whose switches the subnet manager looks after."""
    return in_all_gpus(name="NVIDIA B200", compute_capability="10.0", nvlinks=None)(with_service("nvlsm", "active")(server()))


def tray() -> Sections:
    """A compute tray of a GB200 rack: a fabric of several nodes, run elsewhere."""
    fabric = FabricState(
        state="completed", status="Success", status_code=0, cluster_uuid="6a1f2c9e-0000-4000-8000-000000000001", clique_id=7
    )
    node = in_all_gpus(name="NVIDIA GB200", compute_capability="10.0", nvlinks=None, fabric=fabric)(server())
    return without_devices("nvswitch")(with_service("nvidia-imex", "active", node.kernel_driver.value.version)(node))


def alone() -> Sections:
    """A virtual machine with one H200: no NVLink, no fabric."""
    node = recorded("h200-healthy")
    return dataclasses.replace(node, platform=known(dataclasses.replace(node.platform.value, uptime_s=UPTIME_S)))


# --- edits ------------------------------------------------------------------------------------------------------------


def section(**values: Any) -> Edit:
    return lambda node: dataclasses.replace(node, **{name: known(value) for name, value in values.items()})


def both(*edits: Edit) -> Edit:
    def edit(node: Sections) -> Sections:
        for each in edits:
            node = each(node)
        return node

    return edit


def nothing(node: Sections) -> Sections:
    return node


def gpus_where(chosen: Callable[[int], bool], **fields: Any) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(
            dataclasses.replace(gpu, **{name: value(gpu) if callable(value) else value for name, value in fields.items()})
            if chosen(gpu.index)
            else gpu
            for gpu in node.gpus.value
        )
        return dataclasses.replace(node, gpus=known(changed))

    return edit


def in_gpu(**fields: Any) -> Edit:
    """Change the victim; a function takes the GPU as it was."""
    return gpus_where(lambda index: index == VICTIM, **fields)


def in_first_gpu(**fields: Any) -> Edit:
    return gpus_where(lambda index: index == 0, **fields)


def in_all_gpus(**fields: Any) -> Edit:
    return gpus_where(lambda index: True, **fields)


def ecc(**fields: Any) -> Edit:
    return in_gpu(ecc=lambda gpu: dataclasses.replace(gpu.ecc, **fields))


def rows(uncorrectable: int = 0, pending: bool = False, failure: bool = False) -> Edit:
    return in_gpu(remapped_rows=RemappedRows(correctable=0, uncorrectable=uncorrectable, pending=pending, failure=failure))


def pages(single: int, double: int, pending: bool = False) -> Edit:
    return in_gpu(retired_pages=RetiredPages(single_bit=single, double_bit=double, pending=pending))


def pcie(**fields: Any) -> Edit:
    return in_gpu(pcie=lambda gpu: dataclasses.replace(gpu.pcie, **fields))


def links(change: Callable[[NvLink], NvLink | None]) -> Edit:
    return in_gpu(nvlinks=lambda gpu: tuple(made for link in gpu.nvlinks if (made := change(link)) is not None))


def last_link(**fields: Any) -> Edit:
    return links(lambda link: dataclasses.replace(link, **fields) if link.index == 17 else link)


def fabric(**fields: Any) -> Edit:
    return in_all_gpus(fabric=lambda gpu: dataclasses.replace(gpu.fabric, **fields))


def address(node: Sections) -> str:
    return str(node.gpus.value[VICTIM].pci_address)


def logged(code: int, details: str = "", ago_s: float = 600.0) -> Edit:
    def edit(node: Sections) -> Sections:
        text = f"NVRM: Xid (PCI:{address(node)[:-2]}): {code}, {details}"
        xid = Xid(code=code, pci_address=address(node), text=text, seconds_since_boot=UPTIME_S - ago_s)
        log = node.kernel_log.value or KernelLog()
        return dataclasses.replace(node, kernel_log=known(dataclasses.replace(log, xids=(*log.xids, xid))))

    return edit


def log_line(text: str, ago_s: float = 600.0) -> Edit:
    line = KernelLogLine(text=text, seconds_since_boot=UPTIME_S - ago_s)
    return section(kernel_log=KernelLog(lines=(line,)))


def driver_does_not_say() -> Edit:
    """A driver before 570: no recovery action. That is a doubt, not a finding."""
    return in_all_gpus(recovery_action=None)


def grew(counter: str, by: int, seconds: float = 60.0, gpu: int | None = VICTIM, device: str = "", before: int = 0) -> Edit:
    item = CounterGrowth(gpu=gpu, device=device, counter=counter, before=before, after=before + by)
    links_of = CounterGrowth(gpu=gpu, counter=f"nvlinks.{counter.rpartition('.')[2]}", before=before, after=before + by)
    counters = (item, links_of) if counter.startswith("nvlinks[") else (item,)
    return section(growth=Growth(seconds=seconds, under_load=True, counters=counters))


def with_service(name: str, state: str, version: str | None = None) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(
            dataclasses.replace(item, state=state, version=item.version if version is None else version) if item.name == name else item
            for item in node.services.value
        )
        return dataclasses.replace(node, services=known(changed))

    return edit


def devices(chosen: Callable[[PciDevice], bool], **fields: Any) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(dataclasses.replace(item, **fields) if chosen(item) else item for item in node.pci_devices.value)
        return dataclasses.replace(node, pci_devices=known(changed))

    return edit


def without_devices(kind: str) -> Edit:
    return lambda node: dataclasses.replace(node, pci_devices=known(tuple(item for item in node.pci_devices.value if item.kind != kind)))


def first(kind: str) -> Callable[[PciDevice], bool]:
    return lambda item: item.kind == kind and item.address.startswith("0000:1")


def port(**fields: Any) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(dataclasses.replace(item, **fields) if item.adapter == "mlx5_2" else item for item in node.rdma_ports.value)
        return dataclasses.replace(node, rdma_ports=known(changed))

    return edit


def adapter_up(up: bool) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(dataclasses.replace(item, up=up) if item.name == "mlx5_2" else item for item in node.network_interfaces.value)
        return dataclasses.replace(node, network_interfaces=known(changed))

    return edit


def variable(name: str, value: str) -> Edit:
    def edit(node: Sections) -> Sections:
        return dataclasses.replace(node, environment=known((*node.environment.value, EnvironmentVariable(name=name, value=value))))

    return edit


def up_for(seconds: float) -> Edit:
    return lambda node: dataclasses.replace(node, platform=known(dataclasses.replace(node.platform.value, uptime_s=seconds)))


def driver(**fields: Any) -> Edit:
    return lambda node: dataclasses.replace(node, kernel_driver=known(dataclasses.replace(node.kernel_driver.value, **fields)))


def kernel(release: str) -> Edit:
    return lambda node: dataclasses.replace(node, platform=known(dataclasses.replace(node.platform.value, kernel_release=release)))


def without_module(name: str) -> Edit:
    def edit(node: Sections) -> Sections:
        names = tuple(item for item in node.loaded_modules.value.names if item != name)
        return dataclasses.replace(node, loaded_modules=known(LoadedModules(names=names)))

    return edit


def uverbs(openable: bool) -> Edit:
    def edit(node: Sections) -> Sections:
        changed = tuple(
            dataclasses.replace(item, openable=openable, why="" if openable else "Permission denied")
            if item.path.endswith("uverbs2")
            else item
            for item in node.device_nodes.value
        )
        return dataclasses.replace(node, device_nodes=known(changed))

    return edit


def uncapped(soft: int | None) -> Edit:
    return both(section(limits={"memlock": Limit(soft=soft, hard=soft)}), section(identity=Identity(uid=1000, effective_capabilities=0)))


def deepep(options: dict[str, str]) -> Edit:
    def edit(node: Sections) -> Sections:
        more = (Package(name="deep-ep", version="1.2.1"), Package(name="nvidia-nvshmem-cu12", version="3.3.20"))
        packages = tuple(item for item in node.packages.value if not item.name.startswith("nvidia-nvshmem"))
        return driver(options=options)(dataclasses.replace(node, packages=known((*packages, *more))))

    return edit


def listed_by_nvml(count: int) -> Edit:
    def edit(node: Sections) -> Sections:
        versions = dataclasses.replace(node.nvml_versions.value, gpu_count=count)
        return dataclasses.replace(node, gpus=known(node.gpus.value[:count]), nvml_versions=known(versions))

    return edit


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault, the edit just above its limit, the one just below, and what is found."""

    name: str
    check: str
    above: Edit
    below: Edit
    node: Callable[[], Sections] = server
    severity: Severity = Severity.WARNING
    below_severity: Severity | None = None
    """Where the edit below the limit is still found, milder."""
    also: tuple[str, ...] = ()


ERROR, WARNING, INFO = Severity
NETIR = "NETIR_{} XC0 i0 Link 08 ({} 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
OFF = {"EnableStreamMemOPs": "0", "RegistryDwords": ""}
ON = {"EnableStreamMemOPs": "1", "RegistryDwords": "PeerMappingOverride=1;"}
STREAM_ONLY = {"EnableStreamMemOPs": "1", "RegistryDwords": ""}
HALF_MASK, CLEAN_MASK = 0b10_10_10_01 | 1 << 8, 0b10_10_10_10 | 1 << 8

FAULTS = (
    # recovery action, Xid
    Fault("the driver asks for a reset", "gpu.recovery-action", in_gpu(recovery_action=1), in_gpu(recovery_action=0), severity=ERROR),
    Fault("the driver asks for a reset after the work", "gpu.recovery-action", in_gpu(recovery_action=4), in_gpu(recovery_action=0)),
    Fault(
        "a GSP timeout, and after the reset",
        "gpu.xid",
        both(driver_does_not_say(), logged(119)),
        logged(119),
        severity=ERROR,
        below_severity=INFO,
    ),
    Fault(
        "a GSP timeout within two hours, and before them",
        "gpu.xid",
        both(driver_does_not_say(), logged(119, ago_s=7200)),
        both(driver_does_not_say(), logged(119, ago_s=7201)),
        severity=ERROR,
        below_severity=WARNING,
    ),
    Fault("a page fault of a program", "gpu.xid", logged(31, ago_s=7200), logged(31, ago_s=7201), severity=INFO),
    Fault(
        "a double-bit error, and a note of the catalogue", "gpu.xid", both(driver_does_not_say(), logged(48)), logged(63), severity=ERROR
    ),
    Fault(
        "an NVLink 5 link that went down",
        "gpu.xid",
        both(driver_does_not_say(), logged(149, NETIR.format("LINK_EVT Fatal", "0x00400011"))),
        both(driver_does_not_say(), logged(149, NETIR.format("BER_EVENT Nonfatal", "0x00000013"))),
        severity=ERROR,
    ),
    Fault(
        "an unused code, and a code of an application",
        "gpu.xid",
        both(driver_does_not_say(), logged(1)),
        both(driver_does_not_say(), logged(45)),
        below_severity=INFO,
    ),
    # memory
    Fault("an uncorrected error", "gpu.ecc-uncorrectable", ecc(volatile_uncorrected=1), ecc(volatile_uncorrected=0), severity=ERROR),
    Fault("five in its life", "gpu.ecc-uncorrectable", ecc(aggregate_uncorrected=5), ecc(aggregate_uncorrected=4), severity=INFO),
    Fault(
        "the SRAM is worn", "gpu.ecc-uncorrectable", ecc(sram_threshold_exceeded=True), ecc(sram_threshold_exceeded=False), severity=ERROR
    ),
    Fault("ECC is off", "gpu.ecc-uncorrectable", in_gpu(ecc_enabled=False), in_gpu(ecc_enabled=True)),
    Fault(
        "corrected errors every second",
        "gpu.ecc-uncorrectable",
        grew("ecc.volatile_corrected", 60),
        grew("ecc.volatile_corrected", 59),
        severity=INFO,
    ),
    Fault("a remap failed", "gpu.row-remap", rows(3, failure=True), rows(3), severity=ERROR),
    Fault("a remap waits", "gpu.row-remap", rows(3, pending=True), rows(3)),
    Fault("no spare rows left", "gpu.row-remap", rows(512), rows(511), below_severity=INFO),
    Fault("a quarter of the spare rows", "gpu.row-remap", rows(128), rows(127), severity=INFO),
    Fault("a full list of retired pages", "gpu.retired-pages", pages(48, 15), pages(47, 15), severity=ERROR),
    Fault("many pages for uncorrectable errors", "gpu.retired-pages", pages(0, 16), pages(0, 15)),
    Fault("a page waits to be retired", "gpu.retired-pages", pages(1, 0, pending=True), pages(1, 0)),
    # there at all
    Fault("a GPU is lost", "gpu.lost", in_gpu(lost=True, recovery_action=None), nothing, severity=ERROR),
    Fault("three of four answer", "gpu.lost", listed_by_nvml(3), listed_by_nvml(4), severity=ERROR),
    Fault(
        "a GPU fell off the bus",
        "gpu.lost",
        both(listed_by_nvml(3), log_line("NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.")),
        nothing,
        severity=ERROR,
    ),
    # clocks, heat, power
    Fault("too hot", "gpu.throttled", in_gpu(clock_event_reasons=("hw_thermal_slowdown",)), in_gpu(clock_event_reasons=("sw_power_cap",))),
    Fault("a power brake", "gpu.throttled", in_gpu(clock_event_reasons=("hw_power_brake_slowdown",)), in_gpu(clock_event_reasons=())),
    Fault(
        "no degree left",
        "gpu.throttled",
        in_gpu(temperature_margin_c=0, clock_event_reasons=("sw_power_cap",)),
        in_gpu(temperature_margin_c=1, clock_event_reasons=("sw_power_cap",)),
    ),
    Fault("a lowered power limit", "gpu.throttled", in_gpu(power_limit_w=629.0), in_gpu(power_limit_w=630.0)),
    # NVLink
    Fault("one NVLink down", "gpu.nvlink-down", last_link(active=False), last_link(active=True), severity=ERROR),
    Fault("all NVLinks down", "gpu.nvlink-down", links(lambda link: dataclasses.replace(link, active=False)), nothing, severity=ERROR),
    Fault("an NVLink that is not listed", "gpu.nvlink-down", links(lambda link: link if link.index < 17 else None), nothing),
    Fault("a slow NVLink", "gpu.nvlink-down", last_link(speed_mb_per_s=22_499), last_link(speed_mb_per_s=22_500)),
    Fault("a replay", "gpu.nvlink-errors", last_link(replay_errors=1), last_link(replay_errors=0)),
    Fault("a recovery", "gpu.nvlink-errors", last_link(recovery_errors=1), last_link(recovery_errors=0)),
    Fault(
        "CRC errors a hundred a second",
        "gpu.nvlink-errors",
        grew("nvlinks[17].crc_errors", 1000, 10.0),
        grew("nvlinks[17].crc_errors", 999, 10.0),
    ),
    Fault(
        "a fatal error of a switch",
        "gpu.nvlink-errors",
        log_line("nvidia-nvswitch1: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        log_line("nvidia-nvswitch1: SXid (PCI:0000:07:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore"),
    ),
    # fabric
    Fault(
        "the fabric does not come up",
        "fabric.not-initialized",
        both(fabric(state="in-progress"), up_for(120)),
        both(fabric(state="in-progress"), up_for(119)),
        severity=ERROR,
        below_severity=WARNING,
    ),
    Fault(
        "the fabric does not come up although somebody waits",
        "fabric.not-initialized",
        both(fabric(state="in-progress"), up_for(100), section(settling=Settling(waited_s=120.0))),
        both(fabric(state="in-progress"), up_for(100), section(settling=Settling(waited_s=119.0))),
        severity=ERROR,
        below_severity=WARNING,
    ),
    Fault(
        "the registration failed",
        "fabric.not-initialized",
        fabric(status="Unknown Error", status_code=999),
        fabric(status_code=0),
        severity=ERROR,
    ),
    Fault("degraded bandwidth in the fabric", "fabric.not-initialized", fabric(health_mask=HALF_MASK), fabric(health_mask=CLEAN_MASK)),
    Fault("a wrong configuration of the fabric", "fabric.not-initialized", fabric(health_mask=5 << 8), fabric(health_mask=1 << 8)),
    Fault("Fabric Manager stopped", "fabric.manager-not-running", with_service("nvidia-fabricmanager", "inactive"), nothing),
    Fault(
        "Fabric Manager never comes to an end",
        "fabric.manager-not-running",
        both(with_service("nvidia-fabricmanager", "activating"), section(settling=Settling(waited_s=60.0))),
        with_service("nvidia-fabricmanager", "activating"),
    ),
    Fault(
        "Fabric Manager one patch number off",
        "fabric.manager-version-mismatch",
        with_service("nvidia-fabricmanager", "active", "580.159.03"),
        with_service("nvidia-fabricmanager", "active", "580.159.04"),
    ),
    Fault(
        "no subnet manager on a B200 board",
        "fabric.not-initialized",
        both(with_service("nvlsm", "failed"), fabric(state="in-progress")),
        with_service("nvlsm", "failed"),
        node=board_of_b200,
        severity=ERROR,
    ),
    Fault("a rack without IMEX", "fabric.imex", with_service("nvidia-imex", "failed"), with_service("nvidia-imex", "active"), node=tray),
    Fault(
        "IMEX of another version",
        "fabric.imex",
        with_service("nvidia-imex", "active", "580.126.20"),
        with_service("nvidia-imex", "active", "580.159.04"),
        node=tray,
    ),
    Fault(
        "a partition that cuts a tray",
        "fabric.imex",
        in_gpu(fabric=lambda gpu: dataclasses.replace(gpu.fabric, clique_id=8)),
        nothing,
        node=tray,
    ),
    # PCI Express
    Fault("half the lanes", "pcie.link-degraded", pcie(width=8), pcie(width=16)),
    Fault(
        "a low generation under load",
        "pcie.link-degraded",
        both(pcie(generation=4), in_gpu(utilization_percent=50, clock_event_reasons=())),
        both(pcie(generation=4), in_gpu(utilization_percent=49, clock_event_reasons=())),
    ),
    Fault("packets repeated", "pcie.replay-rate", grew("pcie.replay_count", 32), grew("pcie.replay_count", 31)),
    Fault(
        "packets repeated ever since boot",
        "pcie.replay-rate",
        both(pcie(replay_count=1844), up_for(3600)),
        both(pcie(replay_count=1843), up_for(3600)),
    ),
    Fault(
        "corrected PCIe errors",
        "pcie.aer-errors",
        grew("aer.correctable", 33, gpu=None, device="0000:11:00.0"),
        grew("aer.correctable", 32, gpu=None, device="0000:11:00.0"),
    ),
    Fault(
        "an uncorrectable PCIe error",
        "pcie.aer-errors",
        devices(first("gpu"), aer=AerCounters(correctable=0, nonfatal=1, fatal=0)),
        devices(first("gpu"), aer=AerCounters(correctable=479, nonfatal=0, fatal=0)),
    ),
    Fault(
        "ACS redirection", "pcie.acs-redirect", devices(first("bridge"), acs_redirect=True), devices(first("bridge"), acs_redirect=False)
    ),
    Fault(
        "an IOMMU that translates",
        "pcie.iommu-translation",
        section(iommu=Iommu(enabled=True, mode="translated")),
        section(iommu=Iommu(enabled=True, mode="passthrough")),
    ),
    Fault(
        "a GPU on the chipset",
        "pcie.chipset-attached",
        both(
            devices(first("bridge"), vendor_id="1022", device_id="43f5"),
            in_first_gpu(pcie=PcieLink(generation=5, width=4, max_generation=5, max_width=4, replay_count=0)),
        ),
        both(
            devices(first("bridge"), vendor_id="1022", device_id="43f5"),
            in_first_gpu(pcie=PcieLink(generation=5, width=8, max_generation=5, max_width=8, replay_count=0)),
        ),
    ),
    Fault(
        "a damaged InfoROM",
        "gpu.inforom-corrupted",
        in_gpu(inforom_version="", missing={"inforom_version": Missing(State.UNREADABLE, "infoROM is corrupted (NVML code 14)")}),
        in_gpu(inforom_version="", missing={"inforom_version": Missing(State.ABSENT, "Not Supported (NVML code 3)")}),
    ),
    Fault(
        "a GPU that requires a reset",
        "gpu.recovery-action",
        in_gpu(recovery_action=None, missing={"recovery_action": Missing(State.UNREADABLE, "GPU requires reset (NVML code 16)")}),
        in_gpu(recovery_action=None, missing={"recovery_action": Missing(State.ABSENT, "Not Supported (NVML code 3)")}),
        severity=ERROR,
    ),
    # what somebody set
    Fault("persistence mode off", "gpu.persistence-mode", in_gpu(persistence_mode=False), in_gpu(persistence_mode=True), severity=INFO),
    Fault("MIG without an instance", "gpu.mig-limits", in_gpu(mig_enabled=True, nvlinks=None), in_gpu(mig_enabled=False), severity=ERROR),
    Fault("two kinds of GPU", "gpu.mixed-products", in_gpu(name="NVIDIA H100 80GB HBM3"), in_gpu(name="NVIDIA H200")),
    Fault(
        "two VBIOS versions",
        "gpu.mixed-firmware",
        in_gpu(vbios_version="96.00.89.00.01"),
        in_gpu(vbios_version="96.00.89.00.01", board_part_number="692-2G520-0280-000"),
    ),
    Fault("two InfoROM versions", "gpu.mixed-firmware", in_gpu(inforom_version="G520.0280.00.01"), nothing, severity=INFO),
    Fault("memory of nobody", "gpu.orphan-memory", in_gpu(memory_used_bytes=2 * GIB), in_gpu(memory_used_bytes=2 * GIB - 1)),
    Fault(
        "somebody else's process",
        "gpu.in-use",
        in_gpu(processes=(GpuProcess(pid=4711, kind="compute", used_memory_bytes=GIB),)),
        in_gpu(processes=(GpuProcess(pid=900, kind="graphics", used_memory_bytes=GIB),)),
        severity=INFO,
    ),
    Fault("compute mode prohibited", "gpu.in-use", in_gpu(compute_mode=2), in_gpu(compute_mode=3), severity=ERROR),
    Fault(
        "NVLink switched off in the driver",
        "driver.module-options",
        driver(options={"NvLinkDisable": "1"}),
        driver(options={"NvLinkDisable": "0"}),
    ),
    Fault("a variable that disables P2P", "env.disables-fast-path", variable("NCCL_P2P_DISABLE", "1"), variable("NCCL_P2P_DISABLE", "0")),
    Fault(
        "an interface that is not there",
        "network.wrong-interface",
        variable("NCCL_SOCKET_IFNAME", "eth7"),
        variable("NCCL_SOCKET_IFNAME", "eth0"),
        severity=ERROR,
    ),
    # RDMA
    Fault(
        "no way to the memory of GPUs",
        "rdma.peermem-missing",
        both(without_module("nvidia_peermem"), kernel("5.11.0-46-generic")),
        both(without_module("nvidia_peermem"), kernel("5.12.0-1-generic")),
    ),
    Fault("an adapter without a link", "rdma.link-down", adapter_up(False), adapter_up(True)),
    Fault("a rail at half its rate", "rdma.link-degraded", port(rate_gbit_per_s=200.0), port(rate_gbit_per_s=400.0)),
    Fault("no subnet manager", "rdma.link-degraded", port(state="init"), port(state="active")),
    Fault("a link that was lost", "rdma.link-flapping", port(link_downed=3), port(link_downed=2), severity=INFO),
    Fault(
        "an adapter with old firmware",
        "rdma.mixed-firmware",
        port(firmware="28.39.2048"),
        port(firmware="28.39.2048", board_id="MT_0000000900"),
    ),
    Fault("verbs that may not be opened", "rdma.device-rights", uverbs(False), uverbs(True)),
    Fault(
        "a network card on the far side",
        "rdma.nic-far-from-gpu",
        devices(lambda item: item.kind == "nic", numa_node=1, root="pci0000:f0", parents=()),
        devices(lambda item: item.kind == "nic" and item.numa_node == 1, root="pci0000:f0", parents=()),
    ),
    Fault(
        "a complaint of peermem",
        "rdma.peermem-errors",
        log_line("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context"),
        log_line("nvidia-peermem: module loaded"),
        severity=INFO,
    ),
    Fault(
        "a crash inside NCCL",
        "nccl.crashed",
        log_line("rank0[77]: segfault at 7f ip 7f sp 7f error 4 in libnccl.so.2[7f+d3]", ago_s=7200),
        log_line("rank0[77]: segfault at 7f ip 7f sp 7f error 4 in libnccl.so.2[7f+d3]", ago_s=7201),
    ),
    Fault("DeepEP without IBGDA options", "deepep.requirements", deepep(STREAM_ONLY), deepep(ON)),
    Fault("little locked memory", "system.memlock-limited", uncapped(8 << 20), uncapped(None), severity=ERROR, also=("rdma",)),
)


# --- the tests --------------------------------------------------------------------------------------------------------


def found(node: Sections) -> set[tuple[str, Severity, str]]:
    """Every finding, causes and consequences alike: check, severity, subject."""
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T00:00:00Z", origin=Origin(kind="replay", label="an edit"), sections=node
    )
    report = diagnose(snapshot, KNOWLEDGE, JUDGES, today=TODAY)
    assert not report.counts.crashed, [item.reason for item in report.outcomes if item.status.value == "crashed"]
    return {(item.check, item.severity, item.subject) for item in report.diagnosis} | {
        (item.check, item.severity, item.subject) for cause in report.diagnosis for item in cause.explains
    }


@cache
def healthy(node: Callable[[], Sections]) -> frozenset[tuple[str, Severity, str]]:
    return frozenset(found(node()))


def test_there_are_enough_faults_and_each_has_its_own_name() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("node", [guest, server, board_of_b200, tray, alone], ids=lambda node: node.__name__)
def test_the_nodes_are_healthy_before_the_edit(node: Callable[[], Sections]) -> None:
    assert {entry for entry in healthy(node) if entry[1] is not INFO} == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_above_its_limit_and_nothing_else(fault: Fault) -> None:
    node = fault.node()
    new = found(fault.above(node)) - healthy(fault.node)
    assert {(check, severity) for check, severity, _ in new} == {(fault.check, fault.severity)}, new
    below = found(fault.below(node)) - healthy(fault.node)
    expected = {(fault.check, fault.below_severity)} if fault.below_severity else set()
    assert {(check, severity) for check, severity, _ in below} == expected, below


@pytest.mark.parametrize(
    "edit",
    [
        devices(first("bridge"), acs_redirect=True),
        section(iommu=Iommu(enabled=True, mode="translated")),
        devices(lambda item: item.kind == "nic", numa_node=1, root="pci0000:f0", parents=()),
    ],
    ids=["acs", "iommu", "distance"],
)
def test_what_a_guest_cannot_know_is_no_fault_of_it(edit: Edit) -> None:
    """The same edits in a virtual machine: bridges, IOMMU and distances are those of a tree that nobody wired."""
    node = dataclasses.replace(server(), virtualization=known(Virtualization(hypervisor="kvm")))
    assert not {check for check, _, _ in found(edit(node)) - found(node)}


def test_one_gpu_of_a_guest_has_no_links_and_no_fabric_and_no_fault() -> None:
    node = gpus_where(lambda index: True, nvlinks=tuple(NvLink(index=number, active=False) for number in range(18)))(alone())
    assert found(node) - healthy(alone) == set()


@pytest.fixture(scope="module")
def public_lspci() -> str:
    file = SHARED / "fixtures" / "gpud" / "lspci-vvv-8xh100.txt.gz"
    if not file.exists():
        pytest.skip("the public recordings are not here")
    blocks = gzip.decompress(file.read_bytes()).decode().split("\n\n")
    kinds = ("PCI bridge", "3D controller", "Bridge: NVIDIA")
    return "\n" + "\n\n".join(block for block in blocks if any(kind in block.split("\n", 1)[0] for kind in kinds))


def in_block(text: str, start: str, old: str, new: str) -> str:
    """The text with a replacement in the block of one device."""
    at = text.index(f"\n{start} ")
    place = text.index(old, at)
    return text[:place] + new + text[place + len(old) :]


@pytest.mark.parametrize(
    ("bridge", "expected"),
    [("17:01.0", {"pcie.acs-redirect"}), ("", set())],
    ids=["above a GPU", "only above NVSwitches, as recorded"],
)
def test_access_control_in_a_public_recording_of_a_server(public_lspci: str, bridge: str, expected: set[str]) -> None:
    """lspci of a server with eight H100s: four of its bridges redirect, and there are only NVSwitches below them."""
    text = in_block(public_lspci, bridge, "ReqRedir- CmpltRedir-", "ReqRedir+ CmpltRedir+") if bridge else public_lspci
    node = read([document("lspci.txt", text)], load_matcher(KNOWLEDGE)).snapshot.sections
    assert {check for check, _, _ in found(node)} == expected
