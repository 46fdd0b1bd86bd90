"""Make the recordings that ship in dsdoctor/examples, and those of tests/recordings.

    python tests/make_examples.py                              build the edited ones again from the real ones
    python tests/make_examples.py import NAME FILE [SMOKE]     take in a real recording or report (redacted here), and the section `smoke` of a file beside it

    python tests/make_examples.py story NAME FILE              keep of a real report what the stories of tests/recordings need

`RECORDED` are real nodes, some with a fault made on purpose. `BUILT` is the four-GPU node, put together from what nvidia-smi and sysfs said
there. `EDITED` are those with named edits: each edit is a function below, and its docstring says what it changes and why a real machine
looks so. The name of the edit stands in the example's origin.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dsdoctor import redact
from dsdoctor.facts import (
    Cpu,
    CudaLibrary,
    DriverModuleFile,
    EccCounters,
    EnvironmentVariable,
    FabricState,
    FileConflict,
    Gpu,
    KernelDriver,
    KernelLog,
    KernelLogLine,
    Limit,
    LoadedModules,
    MappedLibrary,
    Memory,
    Missing,
    NumaNode,
    NvLink,
    NvmlStart,
    Origin,
    Package,
    PciDevice,
    PcieLink,
    RemappedRows,
    Section,
    Sections,
    Service,
    SharedMemory,
    Snapshot,
    State,
    TorchBuild,
    TorchRuntime,
    Xid,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.plain import from_plain, to_plain
from dsdoctor.sources import live, replay

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "dsdoctor" / "examples"
SHARED = Path(os.environ.get("DSDOCTOR_SHARED", ROOT.parent / "shared"))
FOUR_GPUS = SHARED / "recordings" / "h200x4"
STORIES = ROOT / "tests" / "recordings"

Edit = Callable[[Sections], Sections]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A real node: what it is, and what was done to it before it was recorded."""

    label: str
    made_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A node that was made of another example by edits, one after the other."""

    label: str
    base: str
    edits: tuple[Edit, ...]

    @property
    def made_by(self) -> str:
        """The base and the edits, by name, and what the last one says of itself."""
        names = ", ".join(edit.__name__ for edit in self.edits)
        return f"made of example:{self.base} by tests/make_examples.py, edits: {names}. {first_sentence(self.edits[-1])}"


def first_sentence(edit: Edit) -> str:
    """What an edit says of itself."""
    return " ".join((edit.__doc__ or "").partition("\n\n")[0].split())


# --- reading and writing ----------------------------------------------------------------------------------------------


def path_of(name: str) -> Path:
    """The file of an example."""
    return EXAMPLES / f"{name}.json.gz"


@functools.cache
def read(name: str) -> Snapshot:
    """A shipped example as it was recorded."""
    snapshot: Snapshot = from_plain(Snapshot, json.loads(gzip.decompress(path_of(name).read_bytes())))
    return snapshot


def packed(snapshot: Snapshot) -> bytes:
    """The bytes of an example: the same for the same content, whenever they are made."""
    text = json.dumps(to_plain(snapshot), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    return gzip.compress(text.encode(), 9, mtime=0)


def write(name: str, snapshot: Snapshot) -> None:
    """Write an example."""
    path_of(name).write_bytes(packed(snapshot))
    read.cache_clear()
    print(f"{name}: {path_of(name).stat().st_size / 1000:.1f} kB")


def import_recording(name: str, file: Path, smoke: Path | None) -> Snapshot:
    """A real recording or report as it may be shipped: redacted, with its label, and with the results of smoke tests that were run beside it."""
    snapshot = replay.load(str(file))
    if smoke is not None:
        section = live.read_sections({"smoke": json.loads(smoke.read_text())})
        snapshot = replace(snapshot, sections=replace(snapshot.sections, **section))
    about = RECORDED[name]
    return redact.redact(replace(snapshot, origin=Origin(kind="live", label=about.label, made_by=about.made_by)))


STORY_SECTIONS = ("platform", "container", "environment", "network_interfaces", "gpus", "smoke")


def write_story(name: str, file: Path) -> None:
    """Keep of a real report the sections that its story needs, redacted."""
    whole = replay.load(str(file))
    left_out = not_asked("not part of this story")
    kept = {section.name: left_out for section in fields(Sections) if section.name not in STORY_SECTIONS}
    snapshot = redact.redact(
        replace(whole, origin=Origin(kind="live", label=name), sections=replace(whole.sections, **kept), probe_runs=())
    )
    plain = to_plain(snapshot)
    plain["sections"] = {name: section for name, section in plain["sections"].items() if name not in kept}
    STORIES.mkdir(exist_ok=True)
    path = STORIES / f"{name}.json"
    path.write_text(json.dumps(plain, indent=1) + "\n")
    print(f"{path.name}: {path.stat().st_size / 1000:.1f} kB")


def build(name: str) -> Snapshot:
    """An edited or built example, made anew of its base."""
    if name in BUILT:
        return four_gpu_node(read("h200-healthy"))
    about = EDITED[name]
    base = read(about.base)
    if value_of(base.sections.kernel_driver).version != BRANCH_DRIVER:
        raise ValueError(f"example:{about.base} was recorded with another driver than BRANCH_DRIVER, which the edits name: {BRANCH_DRIVER}")
    sections = functools.reduce(lambda sections, edit: edit(sections), about.edits, base.sections)
    return redact.redact(replace(base, sections=sections, origin=Origin(kind="live", label=about.label, made_by=about.made_by)))


# --- small steps that several edits share -----------------------------------------------------------------------------


def value_of(section: Section[Any]) -> Any:
    """The facts of a section that the base has."""
    if section.value is None:
        raise ValueError(f"the base recording lacks a section that this edit changes: {section.why}")
    return section.value


def with_value(section: Section[Any], value: Any) -> Section[Any]:
    """The section with other facts, found in the same way."""
    return replace(section, state=State.KNOWN, value=value, why="")


def reworded(sections: Sections, words: Mapping[str, str], names: Iterable[str]) -> Sections:
    """The sections of these names with texts replaced, whatever field they stand in."""
    plain = {}
    for name in names:
        text = json.dumps(to_plain(getattr(sections, name)))
        for old, new in words.items():
            text = text.replace(old, new)
        plain[name] = json.loads(text)
    return replace(sections, **live.read_sections(plain))


def without_variables(sections: Sections, pattern: str) -> Sections:
    """The environment without the variables whose name matches."""
    kept = tuple(item for item in value_of(sections.environment) if not re.fullmatch(pattern, item.name))
    return replace(sections, environment=with_value(sections.environment, kept))


def with_variable(sections: Sections, name: str, value: str) -> Sections:
    """The environment with this variable set, in the order of names."""
    kept = without_variables(sections, re.escape(name))
    variables = sorted((*value_of(kept.environment), EnvironmentVariable(name=name, value=value)), key=lambda item: item.name)
    return replace(kept, environment=with_value(kept.environment, tuple(variables)))


LOADED_BY_THE_FIRST_OPERATION = re.compile(r"libnvidia-ptxjitcompiler\.so.*|libcudnn_(?!graph)\w+\.so.*")
"""Libraries that are mapped only once a kernel has run (seen in the recording with a stub libcuda, where none does)."""


def without_cuda(sections: Sections, error: str, **said: Any) -> Sections:
    """torch imports and finds no GPU: what it says then, and what it has mapped without any kernel run."""
    runtime: TorchRuntime = value_of(sections.torch_runtime)
    failed = replace(runtime, cuda_available=False, cuda_error=error, device_capabilities=(), **said)
    mapped = [item for item in value_of(sections.mapped_libraries) if not LOADED_BY_THE_FIRST_OPERATION.fullmatch(item.soname)]
    return replace(
        sections,
        torch_runtime=with_value(sections.torch_runtime, failed),
        mapped_libraries=with_value(sections.mapped_libraries, tuple(mapped)),
        smoke=unreadable(f"CUDA does not start: {error}", "children of the target interpreter"),
    )


def without_mapped(sections: Sections, *families: str) -> Sections:
    """The libraries that torch has mapped, without those of these families."""
    kept = tuple(item for item in value_of(sections.mapped_libraries) if item.family not in families)
    return replace(sections, mapped_libraries=with_value(sections.mapped_libraries, kept))


def replaced_packages(sections: Sections, change: Callable[[Package], Package | None], *added: Package) -> Sections:
    """The packages, each changed or left out, and others added, in the order of names."""
    packages = [new for package in value_of(sections.packages) if (new := change(package)) is not None]
    ordered = sorted((*packages, *added), key=lambda package: package.name)
    return replace(sections, packages=with_value(sections.packages, tuple(ordered)))


CUDA_GAVE = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already "
    "set an error? Error {}"
)
"""How torch words an error of the CUDA runtime (recorded with error 34)."""


# --- the four-GPU node ------------------------------------------------------------------------------------------------


def four_gpu_node(software: Snapshot) -> Snapshot:
    """The node of recordings/h200x4: its hardware from nvidia-smi and sysfs, the software of the same image."""
    recorded = ElementTree.parse(FOUR_GPUS / "q.xml").getroot()
    links = nvlinks_of((FOUR_GPUS / "nvlink-s.txt").read_text(), (FOUR_GPUS / "nvlink-e.txt").read_text())
    gpus = tuple(gpu_of(index, element, links[index]) for index, element in enumerate(recorded.findall("gpu")))
    sections = software.sections
    runtime: TorchRuntime = value_of(sections.torch_runtime)
    here = "not recorded on the four-GPU node"
    files = ("/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{index}" for index in range(len(gpus))))
    nodes = value_of(sections.device_nodes)
    model = next(node for node in nodes if node.path == "/dev/nvidia0")
    sections = replace(
        without_variables(sections, "NVIDIA_VISIBLE_DEVICES"),
        platform=with_value(sections.platform, replace(value_of(sections.platform), boot_id="", uptime_s=None)),
        cpu=with_value(sections.cpu, cpu_of((FOUR_GPUS / "topo-m.txt").read_text(), value_of(sections.cpu))),
        memory=not_asked(here),
        shared_memory=not_asked(here),
        kernel_log=not_asked(here),
        smoke=not_asked(here),
        device_nodes=with_value(sections.device_nodes, tuple(replace(model, path=path) for path in files)),
        kernel_driver=with_value(
            sections.kernel_driver,
            replace(
                value_of(sections.kernel_driver),
                version=text_of(recorded, "driver_version"),
                options=options_of((FOUR_GPUS / "params.txt").read_text()),
            ),
        ),
        nvml_versions=with_value(
            sections.nvml_versions,
            replace(
                value_of(sections.nvml_versions),
                driver=text_of(recorded, "driver_version"),
                cuda_driver=text_of(recorded, "cuda_version"),
                gpu_count=len(gpus),
            ),
        ),
        gpus=with_value(sections.gpus, gpus),
        pci_devices=with_value(sections.pci_devices, pci_devices_of((FOUR_GPUS / "sys_pci.txt").read_text())),
        torch_runtime=with_value(
            sections.torch_runtime,
            replace(runtime, device_count=len(gpus), device_capabilities=tuple(gpu.compute_capability for gpu in gpus)),
        ),
    )
    about = BUILT["h200x4-healthy"]
    return redact.redact(replace(software, sections=sections, origin=Origin(kind="live", label=about.label, made_by=about.made_by)))


def text_of(element: ElementTree.Element, path: str) -> str:
    """The text below an element of nvidia-smi's XML; a path that is not there is a mistake of the maker."""
    found = element.findtext(path)
    if found is None:
        raise ValueError(f"nvidia-smi's XML has no {path}")
    return found.strip()


def number_of(element: ElementTree.Element, path: str) -> int:
    """The whole number before a unit: `143771 MiB`, `16x`, `36 C`."""
    return int(re.match(r"-?\d+", text_of(element, path))[0])  # type: ignore[index]


def gpu_of(index: int, gpu: ElementTree.Element, links: tuple[NvLink, ...]) -> Gpu:
    """One GPU of nvidia-smi -q -x, as the NVML probe names the same values."""
    reasons = [item.tag for item in gpu.findall("clocks_event_reasons/*") if (item.text or "").strip() == "Active"]
    power = gpu.find("gpu_power_readings")
    assert power is not None
    return Gpu(
        index=index,
        name=text_of(gpu, "product_name"),
        uuid=f"GPU-{index + 1:08d}-0000-0000-0000-000000000000",
        pci_address=text_of(gpu, "pci/pci_bus_id")[4:].lower(),
        pci_device_id=f"{text_of(gpu, 'pci/pci_device_id')[4:]}:{text_of(gpu, 'pci/pci_device_id')[:4]}".lower(),
        minor_number=number_of(gpu, "minor_number"),
        compute_capability="9.0",
        memory_total_bytes=number_of(gpu, "fb_memory_usage/total") << 20,
        memory_used_bytes=number_of(gpu, "fb_memory_usage/used") << 20,
        mig_enabled=text_of(gpu, "mig_mode/current_mig") == "Enabled",
        mig_pending=text_of(gpu, "mig_mode/pending_mig") == "Enabled",
        ecc_enabled=text_of(gpu, "ecc_mode/current_ecc") == "Enabled",
        ecc_pending=text_of(gpu, "ecc_mode/pending_ecc") == "Enabled",
        ecc=EccCounters(
            volatile_uncorrected=ecc_sum(gpu, "volatile", "uncorrectable"),
            volatile_corrected=ecc_sum(gpu, "volatile", "correctable"),
            aggregate_uncorrected=ecc_sum(gpu, "aggregate", "uncorrectable"),
            aggregate_corrected=ecc_sum(gpu, "aggregate", "correctable"),
            sram_threshold_exceeded=text_of(gpu, "ecc_errors/aggregate/sram_threshold_exceeded") == "Yes",
        ),
        remapped_rows=RemappedRows(
            correctable=number_of(gpu, "remapped_rows/remapped_row_corr"),
            uncorrectable=number_of(gpu, "remapped_rows/remapped_row_unc"),
            pending=text_of(gpu, "remapped_rows/remapped_row_pending") == "Yes",
            failure=text_of(gpu, "remapped_rows/remapped_row_failure") == "Yes",
        ),
        recovery_action={"None": 0}[text_of(gpu, "gpu_recovery_action")],
        sm_clock_mhz=number_of(gpu, "clocks/sm_clock"),
        sm_clock_max_mhz=number_of(gpu, "max_clocks/sm_clock"),
        memory_clock_mhz=number_of(gpu, "clocks/mem_clock"),
        memory_clock_max_mhz=number_of(gpu, "max_clocks/mem_clock"),
        clock_event_reasons=tuple(tag.removeprefix("clocks_event_reason_") for tag in reasons),
        temperature_c=number_of(gpu, "temperature/gpu_temp"),
        temperature_margin_c=number_of(gpu, "temperature/gpu_temp_tlimit"),
        memory_temperature_c=number_of(gpu, "temperature/memory_temp"),
        power_w=float(text_of(power, "average_power_draw").split()[0]),
        power_limit_w=float(text_of(power, "current_power_limit").split()[0]),
        power_default_limit_w=float(text_of(power, "default_power_limit").split()[0]),
        persistence_mode=text_of(gpu, "persistence_mode") == "Enabled",
        compute_mode={"Default": 0}[text_of(gpu, "compute_mode")],
        performance_state=int(text_of(gpu, "performance_state").removeprefix("P")),
        utilization_percent=number_of(gpu, "utilization/gpu_util"),
        pcie=PcieLink(
            generation=number_of(gpu, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
            width=number_of(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
            max_generation=number_of(gpu, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
            max_width=number_of(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
            replay_count=number_of(gpu, "pci/replay_counter"),
        ),
        nvlinks=links,
        fabric=FabricState(
            state=text_of(gpu, "fabric/state").lower(),
            status=text_of(gpu, "fabric/status"),
            status_code=0,
            cluster_uuid=text_of(gpu, "fabric/clusterUuid"),
            clique_id=number_of(gpu, "fabric/cliqueId"),
        ),
        processes=(),
        vbios_version=text_of(gpu, "vbios_version"),
        inforom_version=text_of(gpu, "inforom_version/img_version"),
        gsp_firmware=text_of(gpu, "gsp_firmware_version"),
        board_part_number=text_of(gpu, "board_part_number"),
        virtualization_mode={"Pass-Through": "passthrough"}[text_of(gpu, "gpu_virtualization_mode/virtualization_mode")],
        missing={"numa_node": Missing(State.ABSENT, "the kernel knows no NUMA node of this GPU")},
    )


def ecc_sum(gpu: ElementTree.Element, scope: str, kind: str) -> int:
    """All counters of one kind, as NVML's total counts them."""
    counters = gpu.findall(f"ecc_errors/{scope}/*")
    wanted = [item for item in counters if re.fullmatch(rf"(sram|dram)_{kind}(_\w+)?", item.tag)]
    assert wanted
    return sum(int((item.text or "").strip()) for item in wanted)


def nvlinks_of(status: str, errors: str) -> list[tuple[NvLink, ...]]:
    """The links of every GPU: `nvidia-smi nvlink -s` says which are up, and `nvlink -e` what they counted."""
    gpus = []
    for up, counted in zip(
        re.split(r"^GPU \d+:.*\n", status, flags=re.MULTILINE)[1:], re.split(r"^GPU \d+:.*\n", errors, flags=re.MULTILINE)[1:]
    ):
        found = re.findall(r"Link (\d+): ([\d.]+) GB/s", up)
        counts = {(int(link), kind): int(number) for link, kind, number in re.findall(r"Link (\d+): (\w+) Errors: (\d+)", counted)}
        gpus.append(
            tuple(
                NvLink(
                    index=int(link),
                    active=True,
                    speed_mb_per_s=round(float(speed) * 1000),
                    remote="switch",
                    replay_errors=counts[int(link), "Replay"],
                    recovery_errors=counts[int(link), "Recovery"],
                    crc_errors=counts[int(link), "CRC"],
                )
                for link, speed in found
            )
        )
    return gpus


def options_of(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/params."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def cpu_of(topology: str, like: Cpu) -> Cpu:
    """The processors that `nvidia-smi topo -m` names as those of every GPU."""
    cpus = re.findall(r"^GPU\d.*?\t(\d+-\d+)\t", topology, flags=re.MULTILINE)
    last = int(cpus[0].partition("-")[2])
    return replace(like, logical_cpus=last + 1, usable_cpus=last + 1, numa_nodes=(NumaNode(index=0, cpus=cpus[0]),))


def pci_devices_of(listing: str) -> tuple[PciDevice, ...]:
    """GPUs and network cards of a listing of /sys/bus/pci/devices."""
    kinds = {"0x030200": "gpu", "0x020000": "nic"}
    found = []
    for line in listing.splitlines():
        match = re.search(r"devices/(\S+) /sys/devices/(pci\S+?)/\S+ vendor=0x(\w+) device=0x(\w+) class=(\w+)", line)
        if match is None or match[5] not in kinds:
            continue
        speed, width = re.search(r"speed=32\.0 GT/s PCIe/32\.0 GT/s PCIe", line), re.search(r"width=(\d+)/(\d+)", line)
        is_gpu = kinds[match[5]] == "gpu"
        found.append(
            PciDevice(
                address=match[1],
                kind=kinds[match[5]],
                vendor_id=match[3],
                device_id=match[4],
                driver="nvidia" if is_gpu else "virtio-pci",
                root=match[2],
                link=PcieLink(generation=5, width=int(width[1]), max_generation=5, max_width=int(width[2])) if speed and width else None,
                interfaces=() if is_gpu else ("eth0",),
            )
        )
    return tuple(found)


# --- edits: another kind of machine -----------------------------------------------------------------------------------

BRANCH_DRIVER = "580.159.04"
"""The driver of the recordings."""
KERNEL = "6.8.0-87-generic"
MODULE = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst"
SYSTEM_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SERVICES = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm", "nvlsm")


def on_bare_metal(sections: Sections) -> Sections:
    """The same software on a plain Ubuntu host instead of a container in a virtual machine.

    The driver's libraries lie where Ubuntu's packages put them, the module file and the services of the host can be seen, and the variables
    that the container toolkit sets are gone. The limit on open files is the one systemd gives. NVLink is not switched off: that option belongs
    to the virtual machine of the recording.
    """
    platform = value_of(sections.platform)
    driver: KernelDriver = value_of(sections.kernel_driver)
    libraries = [replace(copy, found_via="ld.so.cache") for copy in value_of(sections.driver_libraries) if copy.kind == "driver"]
    path = next(item.value for item in value_of(sections.environment) if item.name == "PATH")
    sections = with_variable(without_variables(sections, "NVIDIA_.*|LD_LIBRARY_PATH"), "PATH", path.replace("/usr/local/nvidia/bin:", ""))
    moved = replace(
        sections,
        platform=with_value(sections.platform, replace(platform, kernel_release=KERNEL, boot_id="", uptime_s=260000.0)),
        container=absent("no marker file, variable, cgroup or root mount of a container", "/proc/self/cgroup, /proc/self/mountinfo"),
        virtualization=absent("no sign of a hypervisor", "/proc/cpuinfo, /sys/class/dmi/id"),
        limits=with_value(sections.limits, {**value_of(sections.limits), "nofile": Limit(soft=1048576, hard=1048576)}),
        kernel_driver=with_value(sections.kernel_driver, replace(driver, options={**driver.options, "NvLinkDisable": "0"})),
        driver_module_file=known(DriverModuleFile(path=MODULE, version=driver.version, signed=True, signer="DKMS module signing key")),
        driver_libraries=with_value(sections.driver_libraries, tuple(libraries)),
        services=known(tuple(Service(name=name, state="not-installed", found_via="systemctl") for name in SERVICES), "systemctl, /proc"),
    )
    return reworded(moved, {"/usr/local/nvidia/lib64": SYSTEM_LIBRARIES}, ("driver_libraries", "mapped_libraries", "nvml_start"))


HGX_GPUS = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")
HGX_SWITCHES = ("83", "84", "85", "86")
"""Bus numbers of GPUs and NVSwitches of an HGX board, from a public lspci listing of a machine with eight H100."""


def on_an_hgx_board(sections: Sections) -> Sections:
    """Eight GPUs with four NVSwitches on an HGX board, where the recording has four GPUs of one.

    Addresses, bridges and NUMA nodes are those of a public lspci listing of an HGX H100. Fabric Manager of the driver's version runs, the
    GPUs have joined the fabric, and torch sees all of them.
    """
    model = value_of(sections.gpus)[0]
    gpus = tuple(hgx_gpu(model, index, bus) for index, bus in enumerate(HGX_GPUS))
    runtime: TorchRuntime = value_of(sections.torch_runtime)
    node = next(node for node in value_of(sections.device_nodes) if node.path == "/dev/nvidia0")
    files = (
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        *(f"/dev/nvidia{gpu.index}" for gpu in gpus),
        *(f"/dev/nvidia-nvswitch{n}" for n in range(4)),
    )
    halves = tuple(NumaNode(index=index, cpus=cpus, memory_bytes=1 << 40) for index, cpus in enumerate(("0-55,112-167", "56-111,168-223")))
    return replace(
        sections,
        cpu=known(
            Cpu(
                model="Intel(R) Xeon(R) Platinum 8480C",
                vendor="GenuineIntel",
                logical_cpus=224,
                usable_cpus=224,
                sockets=2,
                numa_nodes=halves,
            )
        ),
        memory=known(Memory(total_bytes=2 << 40, available_bytes=2000 << 30, swap_bytes=0)),
        shared_memory=known(
            SharedMemory(path="/dev/shm", total_bytes=1 << 40, free_bytes=1 << 40, mount_options=("rw", "nosuid", "nodev"))
        ),
        smoke=not_asked("the smoke tests were not run"),
        gpus=with_value(sections.gpus, gpus),
        nvml_versions=with_value(sections.nvml_versions, replace(value_of(sections.nvml_versions), gpu_count=len(gpus))),
        pci_devices=with_value(sections.pci_devices, hgx_bus()),
        device_nodes=with_value(sections.device_nodes, tuple(replace(node, path=path) for path in files)),
        services=with_value(sections.services, fabric_manager(value_of(sections.services), "active", BRANCH_DRIVER)),
        kernel_log=known(KernelLog(), "/dev/kmsg"),
        torch_runtime=with_value(
            sections.torch_runtime,
            replace(runtime, device_count=len(gpus), device_capabilities=(model.compute_capability,) * len(gpus)),
        ),
    )


def hgx_gpu(model: Gpu, index: int, bus: str) -> Gpu:
    """A GPU like the recorded one, at its place on the board."""
    return replace(
        model,
        index=index,
        minor_number=index,
        uuid=f"GPU-{index + 1:08d}-0000-0000-0000-000000000000",
        pci_address=f"0000:{bus}:00.0",
        numa_node=index // 4,
        virtualization_mode="none",
        missing={name: why for name, why in model.missing.items() if name != "numa_node"},
    )


def hgx_bus() -> tuple[PciDevice, ...]:
    """GPUs, NVSwitches and one network card, with the bridges above the GPUs."""
    full = PcieLink(generation=5, width=16, max_generation=5, max_width=16)
    devices = [PciDevice(address="0000:6f:00.0", kind="nic", vendor_id="8086", device_id="1563", driver="ixgbe", root="pci0000:6d",
                         numa_node=0, interfaces=("eth0",))]  # fmt: skip
    for index, bus in enumerate(HGX_GPUS):
        number = int(bus, 16)
        above = (f"0000:{number - 2:02x}:01.0", f"0000:{number - 3:02x}:00.0", f"0000:{number - 4:02x}:01.0")
        here: dict[str, Any] = {"root": f"pci0000:{number - 4:02x}", "numa_node": index // 4}
        devices.append(PciDevice(address=f"0000:{bus}:00.0", kind="gpu", vendor_id="10de", device_id="2335", driver="nvidia", parents=above,
                                 link=full, **here))  # fmt: skip
        for depth, address in enumerate(above):
            vendor, device = ("1000", "c030") if depth < 2 else ("8086", "352a")
            devices.append(PciDevice(address=address, kind="bridge", vendor_id=vendor, device_id=device, driver="pcieport",
                                     parents=above[depth + 1 :], link=full, acs_redirect=False, **here))  # fmt: skip
    for bus in HGX_SWITCHES:
        devices.append(PciDevice(address=f"0000:{bus}:00.0", kind="nvswitch", vendor_id="10de", device_id="22a3", driver="nvidia-nvswitch",
                                 root="pci0000:80", numa_node=1))  # fmt: skip
    return tuple(sorted(devices, key=lambda device: device.address))


def fabric_manager(services: Iterable[Service], state: str, version: str) -> tuple[Service, ...]:
    """The services, with Fabric Manager in this state."""
    return tuple(
        replace(service, state=state, version=version) if service.name == "nvidia-fabricmanager" else service for service in services
    )


# --- edits: faults ----------------------------------------------------------------------------------------------------

OLD_DRIVER = "535.129.03"
LACKING_IN_535 = Missing(State.UNREADABLE, "Function Not Found (NVML code 13)")
FIELD_UNKNOWN_TO_535 = Missing(State.UNREADABLE, "Invalid Argument (NVML code 2)")
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading and installing a new version "
    "from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a PyTorch version that has been "
    "compiled with your version of the CUDA driver."
)


def driver_too_old(sections: Sections) -> Sections:
    """The host's driver is 535.129.03, which has CUDA 12.2; torch in the container is built for CUDA 13.0.

    Everything of the driver carries that version: module, libraries handed into the container, GSP firmware, NVML. That NVML has no margin
    temperature, no SRAM threshold and no recovery action yet. torch asks NVML for the number of GPUs, so it counts one and can use none. The
    image's own compat libraries lie there unused, as in the recording.
    """
    sections = reworded(
        sections,
        {BRANCH_DRIVER: OLD_DRIVER, f'so.{BRANCH_DRIVER.partition(".")[0]}"': f'so.{OLD_DRIVER.partition(".")[0]}"', '"13.580': '"12.535'},
        ("kernel_driver", "driver_libraries", "kernel_log", "nvml_start", "nvml_versions", "gpus", "mapped_libraries"),
    )
    gpus = tuple(
        replace(
            gpu,
            recovery_action=None,
            temperature_margin_c=None,
            ecc=replace(gpu.ecc, sram_threshold_exceeded=None) if gpu.ecc else None,
            missing={
                **gpu.missing,
                "recovery_action": FIELD_UNKNOWN_TO_535,
                "temperature_margin_c": LACKING_IN_535,
                "ecc.sram_threshold_exceeded": LACKING_IN_535,
            },
        )
        for gpu in value_of(sections.gpus)
    )
    sections = replace(
        sections,
        gpus=with_value(sections.gpus, gpus),
        nvml_versions=with_value(sections.nvml_versions, replace(value_of(sections.nvml_versions), cuda_driver="12.2")),
    )
    return without_cuda(sections, TOO_OLD, driver_cuda="12.2", device_count=1)


LOADED_DRIVER = "570.133.20"
MISMATCH = "Driver/library version mismatch"


def driver_upgraded_not_rebooted(sections: Sections) -> Sections:
    """Module 570.133.20 is still loaded; packages brought libraries and module file of 580.159.04 since.

    NVML refuses to start (18), so nothing is known of the GPUs from it, and CUDA answers 803. The bus, the device files and what pip
    installed look as on a healthy node. Processes that were started before the upgrade would go on.
    """
    driver: KernelDriver = value_of(sections.kernel_driver)
    log: KernelLog = value_of(sections.kernel_log)
    mismatch = KernelLogLine(
        text=f"NVRM: API mismatch: the client has the version {BRANCH_DRIVER}, but NVRM: this kernel module has the version {LOADED_DRIVER}.",
        seconds_since_boot=259871.2,
    )
    loading = [replace(line, text=line.text.replace(BRANCH_DRIVER, LOADED_DRIVER)) for line in log.lines]
    nothing = unreadable(f"NVML did not start: {MISMATCH} (NVML code 18)", value_of(sections.nvml_start).library)
    sections = replace(
        sections,
        kernel_driver=with_value(sections.kernel_driver, replace(driver, version=LOADED_DRIVER)),
        kernel_log=with_value(sections.kernel_log, replace(log, lines=(*loading, mismatch))),
        nvml_start=with_value(sections.nvml_start, replace(value_of(sections.nvml_start), error_code=18, error_text=MISMATCH)),
        nvml_versions=nothing,
        gpus=nothing,
    )
    error = CUDA_GAVE.format("803: system has unsupported display driver / cuda driver combination")
    return without_cuda(sections, error, cuda_error_code=803, device_count=0)


NO_LIBRARY = "NVML Shared Library Not Found: libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)


def no_driver(sections: Sections) -> Sections:
    """A GPU on the bus of a freshly installed host, and no NVIDIA driver: no module, no libraries, no device files.

    No kernel driver is bound to the GPU, since nouveau is kept from loading on most server images. NVML's library is not found (12), and
    torch says that it found no driver.
    """
    nothing = unreadable(f"NVML did not start: {NO_LIBRARY} (NVML code 12)", "libnvidia-ml.so.1")
    devices = [replace(device, driver="") if device.kind == "gpu" else device for device in value_of(sections.pci_devices)]
    sections = replace(
        sections,
        device_nodes=absent("no device file of NVIDIA, InfiniBand or WSL under /dev", "/dev"),
        kernel_driver=absent("no nvidia kernel module is loaded", "/proc/modules"),
        driver_module_file=absent(f"no nvidia module for kernel {KERNEL}", f"/lib/modules/{KERNEL}/modules.dep"),
        loaded_modules=with_value(sections.loaded_modules, LoadedModules(names=())),
        driver_libraries=absent(
            "no user-space driver library (libcuda.so.1, libnvidia-ml.so.1 …) in any place where the loader or an installer puts it"
        ),
        services=known(tuple(Service(name=name, state="not-installed", found_via="systemctl") for name in SERVICES), "systemctl, /proc"),
        kernel_log=known(KernelLog(), "/dev/kmsg"),
        nvml_start=known(NvmlStart(library="libnvidia-ml.so.1", error_code=12, error_text=NO_LIBRARY), "NVML"),
        nvml_versions=nothing,
        gpus=nothing,
        pci_devices=with_value(sections.pci_devices, tuple(devices)),
    )
    sections = without_mapped(
        without_cuda(sections, NO_DRIVER, driver_cuda="", device_count=0), "cuda", "nvidia-ml", "nvidia-ptxjitcompiler"
    )
    return replace(sections, smoke=absent("no NVIDIA GPU (NVML: NVML Shared Library Not Found)"))


NVIDIA_WHEELS_OF_TORCH = re.compile(r"nvidia-(?!ml-py).*|cuda-toolkit|cuda-bindings|triton")


def torch_cpu_build(sections: Sections) -> Sections:
    """torch 2.11.0+cpu is installed where the recording has 2.11.0+cu130, as another index or a lock file of a laptop brings it.

    A CPU build needs neither NVIDIA's wheels nor Triton, so they are not there; torchvision and torchaudio are the CPU builds as well. torch
    imports without complaint, and is_available() is False. Driver, GPU and toolkit are untouched.
    """
    build: TorchBuild = value_of(sections.torch_build)
    runtime: TorchRuntime = value_of(sections.torch_runtime)
    companions = ("torchvision", "torchaudio")

    def on_cpu(package: Package) -> Package | None:
        if package.name == "torch":
            return replace(
                package, version="2.11.0+cpu", requires=tuple(line for line in package.requires if not NVIDIA_WHEELS_OF_TORCH.match(line))
            )
        if package.name in companions:
            return replace(package, version=f"{package.version.partition('+')[0]}+cpu")
        return None if NVIDIA_WHEELS_OF_TORCH.fullmatch(package.name) else package

    sections = replaced_packages(sections, on_cpu)
    extensions = [
        replace(
            extension,
            package_version=f"{extension.package_version.partition('+')[0]}+cpu",
            needed=tuple(name for name in extension.needed if not re.match(r"lib(c10_cuda|torch_cuda|cu|nv)", name)),
            cuda_major=None,
        )
        for extension in value_of(sections.extensions)
        if not re.search(r"lib(torch_cuda|c10_cuda)\.so", extension.path)
    ]
    copies = [copy for copy in value_of(sections.cuda_libraries) if copy.origin not in ("wheel", "bundled")]
    return replace(
        sections,
        torch_build=with_value(sections.torch_build, replace(build, version="2.11.0+cpu", cuda=None)),
        torch_runtime=with_value(
            sections.torch_runtime,
            TorchRuntime(imported=True, cuda_available=False, import_s=runtime.import_s),
        ),
        mapped_libraries=with_value(sections.mapped_libraries, ()),
        cuda_libraries=with_value(sections.cuda_libraries, tuple(copies)),
        loader_hits=with_value(sections.loader_hits, ()),
        extensions=with_value(sections.extensions, tuple(extensions)),
        cuda_toolkits=with_value(
            sections.cuda_toolkits, tuple(item for item in value_of(sections.cuda_toolkits) if "/triton/" not in item.path)
        ),
        smoke=absent("torch 2.11.0+cpu is a build without CUDA", "children of the target interpreter"),
    )


OTHER_MANAGER = "580.126.20"
NOT_INITIALISED = CUDA_GAVE.format("802: system not yet initialized")


def fabric_manager_version(sections: Sections) -> Sections:
    """Fabric Manager is 580.126.20 and the driver 580.159.04: the driver was upgraded and its companion package was held back.

    Fabric Manager ends at once, the GPUs wait for the fabric, and CUDA answers 802. nvidia-smi looks healthy: it counts eight GPUs, and the
    NVLinks of Hopper train by themselves, so that they show as up.
    """
    waiting = tuple(replace(gpu, fabric=FabricState(state="in-progress")) for gpu in value_of(sections.gpus))
    sections = replace(
        sections,
        gpus=with_value(sections.gpus, waiting),
        services=with_value(sections.services, fabric_manager(value_of(sections.services), "failed", OTHER_MANAGER)),
    )
    return without_cuda(sections, NOT_INITIALISED, cuda_error_code=802)


FALLEN = "0000:9b:00.0"


def gpu_fell_off_the_bus(sections: Sections) -> Sections:
    """The GPU at 0000:9b:00.0 fell off the bus under load (Xid 79): eight on the PCI bus, seven in NVML.

    Its link in sysfs reads as nothing (all bits set), the driver is still bound to it, and the indices of the GPUs behind it have moved up by
    one, so that GPU 4 is another card than before.
    """
    left = [gpu for gpu in value_of(sections.gpus) if gpu.pci_address != FALLEN]
    gpus = tuple(replace(gpu, index=index) for index, gpu in enumerate(left))
    devices = [replace(device, link=None) if device.address == FALLEN else device for device in value_of(sections.pci_devices)]
    where = FALLEN[:-2]
    at_s = 187412.6
    log = KernelLog(
        xids=(
            Xid(code=79, pci_address=FALLEN, text=f"NVRM: Xid (PCI:{where}): 79, GPU has fallen off the bus.", seconds_since_boot=at_s),
            Xid(
                code=154,
                pci_address=FALLEN,
                text=f"NVRM: Xid (PCI:{where}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
                seconds_since_boot=at_s,
            ),
        ),
        lines=(KernelLogLine(text=f"NVRM: GPU {FALLEN}: GPU has fallen off the bus.", seconds_since_boot=at_s),),
    )
    runtime: TorchRuntime = value_of(sections.torch_runtime)
    return replace(
        sections,
        gpus=with_value(sections.gpus, gpus),
        nvml_versions=with_value(sections.nvml_versions, replace(value_of(sections.nvml_versions), gpu_count=len(gpus))),
        pci_devices=with_value(sections.pci_devices, tuple(devices)),
        kernel_log=known(log, "/dev/kmsg"),
        torch_runtime=with_value(
            sections.torch_runtime, replace(runtime, device_count=len(gpus), device_capabilities=("9.0",) * len(gpus))
        ),
    )


OTHER_NCCL = "2.28.7"


def two_nccl_wheels(sections: Sections) -> Sections:
    """nvidia-nccl-cu12 2.28.7 was installed after torch, as a dependency of XGBoost, and its libnccl.so.2 replaced that of nvidia-nccl-cu13.

    Both wheels own the file nvidia/nccl/lib/libnccl.so.2. pip lists both, and what torch maps now is the older library of the CUDA 12 wheel.
    """
    own = next(copy for copy in value_of(sections.cuda_libraries) if copy.package == "nvidia-nccl-cu13")
    wheel = next(package for package in value_of(sections.packages) if package.name == "nvidia-nccl-cu13")

    def overwritten(copy: CudaLibrary) -> CudaLibrary:
        return replace(copy, version=OTHER_NCCL, package="nvidia-nccl-cu12", cuda_major=12) if copy is own else copy

    def with_other_version(item: Any) -> Any:
        return replace(item, version=OTHER_NCCL) if item.path == own.path else item

    sections = replaced_packages(
        sections,
        lambda package: package,
        replace(wheel, name="nvidia-nccl-cu12", version=OTHER_NCCL, installer="pip"),
        Package(name="xgboost", version="3.1.2", location=wheel.location),
    )
    conflict = FileConflict(path=own.path, packages=("nvidia-nccl-cu12", "nvidia-nccl-cu13"))
    mapped: tuple[MappedLibrary, ...] = value_of(sections.mapped_libraries)
    return replace(
        sections,
        file_conflicts=with_value(sections.file_conflicts, (conflict,)),
        cuda_libraries=with_value(sections.cuda_libraries, tuple(overwritten(copy) for copy in value_of(sections.cuda_libraries))),
        loader_hits=with_value(sections.loader_hits, tuple(with_other_version(hit) for hit in value_of(sections.loader_hits))),
        mapped_libraries=with_value(sections.mapped_libraries, tuple(with_other_version(item) for item in mapped)),
        torch_runtime=with_value(sections.torch_runtime, replace(value_of(sections.torch_runtime), nccl_loaded=OTHER_NCCL)),
    )


# --- the examples -----------------------------------------------------------------------------------------------------

ON_THE_NODE = "recorded with dsdoctor in a container on a virtual machine with one NVIDIA H200, and redacted"

RECORDED: Mapping[str, Recorded] = {
    "h200-healthy": Recorded(label="one H200 in a container on a virtual machine, healthy", made_by=f"{ON_THE_NODE}; nothing edited"),
    "h200x2-healthy": Recorded(
        label="two H200 of an NVSwitch board in a container on a virtual machine, healthy",
        made_by="recorded with dsdoctor in a container on a virtual machine with two NVIDIA H200, and redacted; nothing edited",
    ),
    "cuda-visible-devices-out-of-range": Recorded(
        label="CUDA_VISIBLE_DEVICES names GPU 7 where one GPU is visible",
        made_by=f"{ON_THE_NODE}, with CUDA_VISIBLE_DEVICES=7 in the environment; nothing edited",
    ),
    "cudnn-shadowed-by-ld-library-path": Recorded(
        label="LD_LIBRARY_PATH puts the system's older cuDNN before torch's own",
        made_by=f"{ON_THE_NODE}, with /usr/lib/x86_64-linux-gnu first in LD_LIBRARY_PATH; nothing edited",
    ),
    "stub-libcuda": Recorded(
        label="LD_LIBRARY_PATH leads to the stub libcuda of the CUDA toolkit",
        made_by=f"{ON_THE_NODE}, with a folder first in LD_LIBRARY_PATH whose libcuda.so.1 is a link to the toolkit's stub; nothing edited",
    ),
}

BUILT: Mapping[str, Recorded] = {
    "h200x4-healthy": Recorded(
        label="four H200 of an NVSwitch board in a virtual machine, healthy",
        made_by=(
            "made by tests/make_examples.py: GPUs, NVLinks, fabric, PCI devices and driver options from what nvidia-smi and sysfs said on that "
            "node (recordings/h200x4); software from example:h200-healthy, recorded from the same image; what was not recorded there is not_asked"
        ),
    ),
}

EDITED: Mapping[str, Edited] = {
    "driver-too-old": Edited(
        label="driver 535 on the host, torch for CUDA 13 in the container", base="h200-healthy", edits=(driver_too_old,)
    ),
    "driver-upgraded-not-rebooted": Edited(
        label="the driver was upgraded under a running kernel module",
        base="h200-healthy",
        edits=(on_bare_metal, driver_upgraded_not_rebooted),
    ),
    "no-driver": Edited(label="a GPU, and no NVIDIA driver on the host", base="h200-healthy", edits=(on_bare_metal, no_driver)),
    "torch-cpu-build": Edited(label="a CPU build of torch on a GPU node", base="h200-healthy", edits=(torch_cpu_build,)),
    "two-nccl-wheels": Edited(label="NCCL wheels of two CUDA majors own one file", base="h200-healthy", edits=(two_nccl_wheels,)),
    "fabric-manager-version": Edited(
        label="eight GPUs with NVSwitches, Fabric Manager of another version than the driver",
        base="h200x4-healthy",
        edits=(on_bare_metal, on_an_hgx_board, fabric_manager_version),
    ),
    "gpu-fell-off-the-bus": Edited(
        label="eight GPUs, and one of them fell off the bus",
        base="h200x4-healthy",
        edits=(on_bare_metal, on_an_hgx_board, gpu_fell_off_the_bus),
    ),
}


def main() -> None:
    """Take in a real recording, or build the others again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("import", "story"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("smoke", nargs="?", type=Path)
    given = parser.parse_args()
    if given.what:
        if given.name is None or given.file is None:
            parser.error(f"{given.what} takes a name and a file")
        if given.what == "story":
            write_story(given.name, given.file)
            return
        if given.name not in RECORDED:
            parser.error(f"the examples that were recorded are {', '.join(sorted(RECORDED))}")
        write(given.name, import_recording(given.name, given.file, given.smoke))
        return
    for name in (*(BUILT if FOUR_GPUS.is_dir() else ()), *EDITED):
        write(name, build(name))
    if not FOUR_GPUS.is_dir():
        print(f"left as they are, for want of {FOUR_GPUS}: {', '.join(BUILT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
