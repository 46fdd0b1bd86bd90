"""Stories of the NVML probe: the real nvidia-ml-py on a stand-in library, run as the doctor runs it."""

from __future__ import annotations

import ctypes.util
import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dsdoctor.facts import Gpu, GpuProcess, MigInstance, Missing, Snapshot, State
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

from .nvml_stand_in import LIBRARY, Profile, build, environment, examine, node

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))

# What libnvidia-ml of the 470 branch does not export, of what the probe asks for.
OLD_DRIVER_LACKS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGspFirmwareVersion",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetTemperatureV",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory)


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs of a snapshot, after looking that no value is missing without a reason."""
    section = snapshot.sections.gpus
    assert section.state is State.KNOWN, section.why
    assert section.value is not None
    for gpu in section.value:
        assert unexplained(gpu) == []
    return section.value


def unexplained(gpu: Gpu) -> list[str]:
    values = {field.name: getattr(gpu, field.name) for field in dataclasses.fields(gpu) if field.name != "where"}
    return [name for name, value in values.items() if value in (None, "") and name not in gpu.missing]


def one_gpu(library: Path, profile: Profile) -> Gpu:
    (gpu,) = gpus_of(examine(environment(library, profile)))
    return gpu


def recorded(path: str) -> dict[str, str]:
    """`nvidia-smi -q` of the first GPU as heading/heading/name -> value."""
    file = SHARED / "recordings" / path
    if not file.exists():
        pytest.skip(f"no recording {file}")
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        name, colon, value = line.partition(" : ")
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        while above and above[-1][0] >= depth:
            above.pop()
        if not colon:
            above.append((depth, line.strip()))
            continue
        inside = [heading for _, heading in above if not heading.startswith("GPU 0")]
        found.setdefault("/".join([*inside, name.strip()]), value.strip())
    return found


def test_a_healthy_h200_reads_as_nvidia_smi_shows_it(library: Path) -> None:
    said = recorded("h200/nvidia-smi-q.txt")
    snapshot = examine(environment(library, node("h200")))
    (gpu,) = gpus_of(snapshot)
    versions = snapshot.sections.nvml_versions.value
    assert versions is not None
    assert (versions.driver, versions.cuda_driver) == (said["Driver Version"], said["CUDA Version"])
    assert gpu.ecc is not None
    assert gpu.pcie is not None
    assert gpu.remapped_rows is not None
    assert gpu.memory_total_bytes is not None
    assert {
        "Product Name": gpu.name,
        "GPU UUID": gpu.uuid,
        "Minor Number": str(gpu.minor_number),
        "VBIOS Version": gpu.vbios_version,
        "Board Part Number": gpu.board_part_number,
        "GSP Firmware Version": gpu.gsp_firmware,
        "Inforom Version/Image Version": gpu.inforom_version,
        "GPU Virtualization Mode/Virtualization Mode": {"passthrough": "Pass-Through"}[gpu.virtualization_mode],
        "PCI/Bus Id": f"0000{gpu.pci_address}".upper(),
        "PCI/Device Id": f"0x{gpu.pci_device_id[5:]}{gpu.pci_device_id[:4]}".upper().replace("0X", "0x"),
        "PCI/GPU Link Info/PCIe Generation/Current": str(gpu.pcie.generation),
        "PCI/GPU Link Info/PCIe Generation/Max": str(gpu.pcie.max_generation),
        "PCI/GPU Link Info/Link Width/Current": f"{gpu.pcie.width}x",
        "PCI/GPU Link Info/Link Width/Max": f"{gpu.pcie.max_width}x",
        "PCI/Replays Since Reset": str(gpu.pcie.replay_count),
        "Persistence Mode": {True: "Enabled"}[bool(gpu.persistence_mode)],
        "Compute Mode": {0: "Default"}[gpu.compute_mode or 0],
        "Performance State": f"P{gpu.performance_state}",
        "MIG Mode/Current": {False: "Disabled"}[bool(gpu.mig_enabled)],
        "ECC Mode/Current": {True: "Enabled"}[bool(gpu.ecc_enabled)],
        "ECC Mode/Pending": {True: "Enabled"}[bool(gpu.ecc_pending)],
        "ECC Errors/Aggregate/DRAM Uncorrectable": str(gpu.ecc.aggregate_uncorrected),
        "ECC Errors/Volatile/DRAM Correctable": str(gpu.ecc.volatile_corrected),
        "ECC Errors/Aggregate/SRAM Threshold Exceeded": {False: "No"}[bool(gpu.ecc.sram_threshold_exceeded)],
        "Remapped Rows/Uncorrectable Error": str(gpu.remapped_rows.uncorrectable),
        "Remapped Rows/Pending": {False: "No"}[gpu.remapped_rows.pending],
        "FB Memory Usage/Total": f"{gpu.memory_total_bytes >> 20} MiB",
        "FB Memory Usage/Used": f"{gpu.memory_used_bytes} MiB",
        "Utilization/GPU": f"{gpu.utilization_percent} %",
        "Temperature/GPU Current Temp": f"{gpu.temperature_c} C",
        "Temperature/GPU T.Limit Temp": f"{gpu.temperature_margin_c} C",
        "Temperature/Memory Current Temp": f"{gpu.memory_temperature_c} C",
        "GPU Power Readings/Average Power Draw": f"{gpu.power_w:.2f} W",
        "GPU Power Readings/Current Power Limit": f"{gpu.power_limit_w:.2f} W",
        "GPU Power Readings/Default Power Limit": f"{gpu.power_default_limit_w:.2f} W",
        "Clocks/SM": f"{gpu.sm_clock_mhz} MHz",
        "Clocks/Memory": f"{gpu.memory_clock_mhz} MHz",
        "Max Clocks/SM": f"{gpu.sm_clock_max_mhz} MHz",
        "Max Clocks/Memory": f"{gpu.memory_clock_max_mhz} MHz",
        "Clocks Event Reasons/Idle": {("gpu_idle",): "Active"}[gpu.clock_event_reasons or ()],
        "GPU Recovery Action": {0: "None"}[gpu.recovery_action if gpu.recovery_action is not None else -1],
        "Processes": {(): "None"}[gpu.processes if gpu.processes is not None else (GpuProcess(pid=0, kind=""),)],
    } == {
        name: said[name]
        for name in (
            "Product Name", "GPU UUID", "Minor Number", "VBIOS Version", "Board Part Number", "GSP Firmware Version",
            "Inforom Version/Image Version", "GPU Virtualization Mode/Virtualization Mode", "PCI/Bus Id", "PCI/Device Id",
            "PCI/GPU Link Info/PCIe Generation/Current", "PCI/GPU Link Info/PCIe Generation/Max", "PCI/GPU Link Info/Link Width/Current",
            "PCI/GPU Link Info/Link Width/Max", "PCI/Replays Since Reset", "Persistence Mode", "Compute Mode", "Performance State",
            "MIG Mode/Current", "ECC Mode/Current", "ECC Mode/Pending", "ECC Errors/Aggregate/DRAM Uncorrectable",
            "ECC Errors/Volatile/DRAM Correctable", "ECC Errors/Aggregate/SRAM Threshold Exceeded", "Remapped Rows/Uncorrectable Error",
            "Remapped Rows/Pending", "FB Memory Usage/Total", "FB Memory Usage/Used", "Utilization/GPU", "Temperature/GPU Current Temp",
            "Temperature/GPU T.Limit Temp", "Temperature/Memory Current Temp", "GPU Power Readings/Average Power Draw",
            "GPU Power Readings/Current Power Limit", "GPU Power Readings/Default Power Limit", "Clocks/SM", "Clocks/Memory",
            "Max Clocks/SM", "Max Clocks/Memory", "Clocks Event Reasons/Idle", "GPU Recovery Action", "Processes",
        )
    }  # fmt: skip


def test_what_a_virtual_h200_does_not_have_is_absent_not_healthy(library: Path) -> None:
    gpu = one_gpu(library, node("h200"))
    assert gpu.nvlinks is None
    assert gpu.fabric is None
    assert gpu.missing["nvlinks"] == Missing(State.ABSENT, "Not Supported (NVML code 3)")
    assert gpu.missing["fabric"].state is State.ABSENT
    assert set(gpu.missing) <= {"nvlinks", "fabric", "numa_node", "retired_pages"}


def test_the_library_that_was_really_loaded_is_named(library: Path) -> None:
    start = examine(environment(library, node("h200"))).sections.nvml_start.value
    assert start is not None
    assert start.library == os.path.realpath(library / LIBRARY)
    assert start.error_code is None


def test_eight_gpus_on_nvswitches_show_their_links_and_fabric(library: Path) -> None:
    profile = node("h200", "nvswitch", gpus=8)
    profile["5"]["nvmlDeviceGetNvLinkState/4"] = 0
    profile["5"]["nvmlDeviceGetFieldValues/161/3"] = 12
    gpus = gpus_of(examine(environment(library, profile)))
    assert [gpu.pci_address for gpu in gpus] == [f"0000:00:{6 + index:02x}.0" for index in range(8)]
    links = gpus[0].nvlinks
    assert links is not None
    recorded_speeds = [line for line in read_recording("h200x4/nvlink-s.txt").split("GPU 1")[0].splitlines() if "Link " in line]
    assert [f"Link {link.index}: {(link.speed_mb_per_s or 0) / 1000:.3f} GB/s" for link in links] == [
        line.strip() for line in recorded_speeds
    ]
    assert {(link.active, link.remote, link.replay_errors) for link in links} == {(True, "switch", 0)}
    said = recorded("h200x4/q.txt")
    fabric = gpus[0].fabric
    assert fabric is not None
    assert (fabric.state.title(), fabric.status, str(fabric.clique_id)) == (
        said["Fabric/State"],
        said["Fabric/Status"],
        said["Fabric/CliqueId"],
    )
    assert fabric.cluster_uuid == said["Fabric/ClusterUUID"]
    assert gpus[5].nvlinks is not None
    assert [link.index for link in gpus[5].nvlinks if not link.active] == [4]
    assert gpus[5].nvlinks[3].replay_errors == 12


def read_recording(path: str) -> str:
    file = SHARED / "recordings" / path
    if not file.exists():
        pytest.skip(f"no recording {file}")
    return file.read_text()


def test_a_direct_link_names_the_other_gpu(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {
        "nvmlDeviceGetNvLinkState/0-1": 1,
        "nvmlDeviceGetNvLinkRemoteDeviceType/0-1": 0,
        "nvmlDeviceGetNvLinkRemotePciInfo_v2/0": [1, 0x3B, 0],
        "nvmlDeviceGetNvLinkRemotePciInfo_v2/1": "error 999",
    }
    links = one_gpu(library, profile).nvlinks
    assert links is not None
    assert [(link.remote, link.speed_mb_per_s, link.crc_errors) for link in links] == [("0001:3b:00.0", None, None), ("", None, None)]


@pytest.mark.parametrize(("state", "expected"), [(1, "not-started"), (2, "in-progress"), (0, "not-supported"), (9, "state 9")])
def test_a_fabric_that_is_not_ready_says_how_far_it_is(library: Path, state: int, expected: str) -> None:
    profile = node("h200", "nvswitch")
    profile["0"]["nvmlDeviceGetGpuFabricInfoV"] = [state, 0, 7, 0]
    fabric = one_gpu(library, profile).fabric
    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.status_code, fabric.clique_id) == (expected, "", None, None)


def test_a_fabric_that_failed_keeps_code_and_words(library: Path) -> None:
    profile = node("h200", "nvswitch")
    profile["0"]["nvmlDeviceGetGpuFabricInfoV"] = [3, 999, 2, 0x15]
    fabric = one_gpu(library, profile).fabric
    assert fabric is not None
    assert (fabric.status, fabric.status_code, fabric.clique_id, fabric.health_mask) == ("Unknown Error", 999, 2, 0x15)


def test_one_lost_gpu_of_eight_is_still_a_gpu(library: Path) -> None:
    profile = node("h200", gpus=8)
    profile["3"]["nvmlDeviceGetHandleByIndex_v2"] = "error 15"
    gpus = gpus_of(examine(environment(library, profile)))
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert [gpu.index for gpu in gpus if gpu.lost] == [3]
    assert gpus[3].missing["name"] == Missing(State.UNREADABLE, "GPU is lost (NVML code 15)")
    assert gpus[3].missing["ecc"] == gpus[3].missing["name"]
    assert gpus[4].name == "NVIDIA H200"


def test_a_gpu_that_is_lost_while_it_is_read_keeps_what_it_said(library: Path) -> None:
    profile = node("h200", "nvswitch", gpus=2)
    profile["1"]["lost_after_calls"] = 12
    first, second = gpus_of(examine(environment(library, profile)))
    assert not first.lost
    assert second.lost
    assert (second.name, second.pci_address) == ("NVIDIA H200", "0000:00:07.0")
    assert second.recovery_action is None
    assert "lost" in second.missing["recovery_action"].why


def test_a_lost_gpu_is_asked_no_more(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {"nvmlDeviceGetMinorNumber": "error 15", "nvmlDeviceGetVbiosVersion": "hang"}
    gpu = one_gpu(library, profile)
    assert gpu.lost
    assert gpu.missing["vbios_version"] == gpu.missing["minor_number"]


def test_a_gpu_lost_among_its_links_is_lost_at_whatever_call(library: Path) -> None:
    profile = node("h200", "nvswitch", gpus=60)
    for index in range(60):
        profile[str(index)]["lost_after_calls"] = 45 + 2 * index
    gpus = gpus_of(examine(environment(library, profile)))
    assert {gpu.lost for gpu in gpus} == {True, False}
    for gpu in gpus:
        assert gpu.lost is (gpu.nvlinks is None)
        assert all(link.remote and link.crc_errors == 0 and link.speed_mb_per_s for link in gpu.nvlinks or ())


@pytest.mark.parametrize(("code", "words"), [(999, "Unknown Error"), (4, "Insufficient Permissions"), (17, "blocked")])
def test_a_gpu_without_a_handle_is_not_called_lost(library: Path, code: int, words: str) -> None:
    profile = node("h200", gpus=2)
    profile["0"]["nvmlDeviceGetHandleByIndex_v2"] = f"error {code}"
    refused, other = gpus_of(examine(environment(library, profile)))
    assert not refused.lost
    assert refused.missing["uuid"].state is State.UNREADABLE
    assert words in refused.missing["uuid"].why
    assert f"NVML code {code}" in refused.missing["uuid"].why
    assert other.name == "NVIDIA H200"


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "Driver Not Loaded"), (18, "version mismatch"), (999, "Unknown Error"), (17, "blocked"), (4242, "Unknown Error")],
)
def test_nvml_that_does_not_start_is_a_fact_with_its_code(library: Path, code: int, words: str) -> None:
    profile = node("h200")
    profile["system"]["nvmlInitWithFlags"] = f"error {code}"
    sections = examine(environment(library, profile)).sections
    assert sections.nvml_start.value is not None
    assert sections.nvml_start.value.error_code == code
    assert words in sections.nvml_start.value.error_text
    assert sections.nvml_start.value.library.endswith(LIBRARY)
    for section in (sections.nvml_versions, sections.gpus):
        assert section.state is State.UNREADABLE
        assert words in section.why
        assert f"code {code}" in section.why


def test_a_library_that_the_loader_refuses_keeps_the_loaders_reason(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("not a library at all, but long enough for the loader to look at its first bytes\n" * 20)
    sections = examine(environment(tmp_path, node("h200"))).sections
    assert sections.nvml_start.value is not None
    assert sections.nvml_start.value.error_code == 12
    assert "NVML Shared Library Not Found" in sections.nvml_start.value.error_text
    assert "invalid ELF header" in sections.nvml_start.value.error_text
    assert sections.gpus.state is State.UNREADABLE
    assert "invalid ELF header" in sections.gpus.why


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has a real NVML")
def test_no_library_is_code_12_and_gpus_are_absent_only_where_the_bus_has_none(tmp_path: Path) -> None:
    sections = examine(environment(tmp_path, node("h200"))).sections
    assert sections.nvml_start.value is not None
    assert (sections.nvml_start.value.error_code, sections.nvml_start.value.library) == (12, LIBRARY)
    assert "No such file" in sections.nvml_start.value.error_text
    vendors = [path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/vendor")]
    assert sections.gpus.state is (State.ABSENT if vendors and "0x10de" not in vendors else State.UNREADABLE)


def test_nvml_without_any_gpu_is_absent_not_unreadable(library: Path) -> None:
    sections = examine(environment(library, node("h200", gpus=0))).sections
    assert (sections.gpus.state, sections.gpus.why) == (State.ABSENT, "NVML runs and finds no GPU")
    assert sections.nvml_start.value is not None
    assert sections.nvml_start.value.error_code is None
    assert sections.nvml_versions.state is State.KNOWN


def test_versions_and_count_that_cannot_be_read_say_so(library: Path) -> None:
    profile = node("h200")
    profile["system"] |= {"nvmlSystemGetDriverVersion": "error 999", "nvmlDeviceGetCount_v2": "error 4"}
    sections = examine(environment(library, profile)).sections
    assert sections.nvml_versions.state is State.UNREADABLE
    assert "Unknown Error (NVML code 999)" in sections.nvml_versions.why
    assert sections.gpus.state is State.UNREADABLE
    assert "Insufficient Permissions (NVML code 4)" in sections.gpus.why


def test_no_libcuda_leaves_the_cuda_version_empty(library: Path) -> None:
    profile = node("h200")
    profile["system"]["nvmlSystemGetCudaDriverVersion_v2"] = "error 12"
    versions = examine(environment(library, profile)).sections.nvml_versions.value
    assert versions is not None
    assert (versions.driver, versions.cuda_driver) == ("580.159.04", "")


def test_an_old_driver_answers_what_it_can(tmp_path_factory: pytest.TempPathFactory) -> None:
    profile = node("h200", "nvswitch", "old_driver")
    profile["0"]["nvmlDeviceGetComputeRunningProcesses_v2"] = [4242, 1 << 30]
    gpu = one_gpu(build(tmp_path_factory, without=OLD_DRIVER_LACKS), profile)
    assert gpu.temperature_c == 39
    assert gpu.memory_used_bytes == 644939776, "an old driver counts its own reserve as used"
    assert gpu.clock_event_reasons == ("gpu_idle",)
    assert gpu.processes == (GpuProcess(pid=4242, kind="compute", used_memory_bytes=1 << 30),)
    lacking = Missing(State.UNREADABLE, "Function Not Found (NVML code 13)")
    assert {gpu.missing[name] for name in ("fabric", "gsp_firmware", "temperature_margin_c", "ecc.sram_threshold_exceeded")} == {lacking}
    assert gpu.recovery_action is None
    assert gpu.missing["recovery_action"].state is State.UNREADABLE
    assert gpu.ecc is not None
    assert (gpu.ecc.volatile_uncorrected, gpu.ecc.sram_threshold_exceeded) == (0, None)
    assert gpu.nvlinks is not None
    assert len(gpu.nvlinks) == 18


def test_fabric_falls_back_to_the_older_getter(tmp_path_factory: pytest.TempPathFactory) -> None:
    fabric = one_gpu(build(tmp_path_factory, without=("nvmlDeviceGetGpuFabricInfoV",)), node("h200", "nvswitch")).fabric
    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.health_mask) == ("completed", "Success", None)


def test_no_permission_is_unreadable_not_absent(library: Path) -> None:
    profile = node("h200")
    refused = {"nvmlDeviceGetComputeRunningProcesses_v3": "processes", "nvmlDeviceGetRemappedRows": "remapped_rows"}
    profile["0"] |= dict.fromkeys(refused, "error 4")
    gpu = one_gpu(library, profile)
    for name in refused.values():
        assert gpu.missing[name] == Missing(State.UNREADABLE, "Insufficient Permissions (NVML code 4)")
        assert getattr(gpu, name) is None


def test_a_product_without_ecc_has_no_counters_rather_than_zeros(library: Path) -> None:
    profile = node("h200")
    profile["0"] = {question: answer for question, answer in profile["0"].items() if "Ecc" not in question}
    gpu = one_gpu(library, profile)
    assert gpu.ecc is None
    assert gpu.ecc_enabled is None
    assert gpu.missing["ecc"].state is gpu.missing["ecc_enabled"].state is State.ABSENT
    assert not [name for name in gpu.missing if name.startswith("ecc.")]


def test_ecc_counters_are_not_mixed_up(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {
        "nvmlDeviceGetTotalEccErrors/1/0": 1,
        "nvmlDeviceGetTotalEccErrors/0/0": 20,
        "nvmlDeviceGetTotalEccErrors/1/1": 300,
        "nvmlDeviceGetTotalEccErrors/0/1": 5_000_000_000,
        "nvmlDeviceGetSramEccErrorStatus": 1,
        "nvmlDeviceGetRemappedRows": [4, 5, 1, 1],
    }
    gpu = one_gpu(library, profile)
    assert dataclasses.astuple(gpu.ecc) == (1, 20, 300, 5_000_000_000, True)
    assert dataclasses.astuple(gpu.remapped_rows) == (4, 5, True, True)


def test_mig_instances_are_listed_and_the_gap_is_no_error(library: Path) -> None:
    profile = node("h200", "mig")
    profile["0.4"] = profile.pop("0.1")
    gpu = one_gpu(library, profile)
    assert (gpu.mig_enabled, gpu.mig_pending) == (True, True)
    assert gpu.mig_instances == (
        MigInstance(
            index=0, uuid="MIG-00000000-0000-0000-0000-000000000000", name="NVIDIA H200 MIG 3g.71gb", memory_bytes=74759274496
        ),
        MigInstance(
            index=4, uuid="MIG-00000000-0000-0000-0000-000000000001", name="NVIDIA H200 MIG 1g.18gb", memory_bytes=17179869184
        ),
    )  # fmt: skip
    assert gpu.missing["utilization_percent"].state is State.ABSENT


def test_a_call_that_never_returns_leaves_a_complete_snapshot(library: Path) -> None:
    profile = node("h200", gpus=8)
    profile["6"]["nvmlDeviceGetPowerUsage"] = "hang"
    snapshot = examine(environment(library, profile), timeout_s=0.5)
    (run,) = snapshot.probe_runs
    assert run.outcome == "timed_out"
    for section in (snapshot.sections.nvml_start, snapshot.sections.nvml_versions, snapshot.sections.gpus):
        assert section.state is State.UNREADABLE
        assert "no answer" in section.why
    assert snapshot.sections.platform.state is State.NOT_ASKED


def test_a_crash_inside_the_library_is_a_fact_with_a_name(library: Path) -> None:
    profile = node("h200")
    profile["0"]["nvmlDeviceGetRemappedRows"] = "crash"
    snapshot = examine(environment(library, profile))
    (run,) = snapshot.probe_runs
    assert (run.outcome, run.detail) == ("killed_by_signal", "was killed by SIGSEGV")
    assert snapshot.sections.gpus.state is State.UNREADABLE


def test_a_crash_at_the_start_is_a_fact_too(library: Path) -> None:
    profile = node("h200")
    profile["system"]["nvmlInitWithFlags"] = "crash"
    assert examine(environment(library, profile)).probe_runs[0].outcome == "killed_by_signal"


def test_a_garbled_name_survives_and_cannot_paint_the_terminal(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {
        "nvmlDeviceGetName": b"NVIDIA \xff\xfe\x1b[31mH200",
        "nvmlDeviceGetGspFirmwareVersion": b"\xc3",
        "nvmlDeviceGetVbiosVersion": "",
    }
    gpu = one_gpu(library, profile)
    assert gpu.name == "NVIDIA \ufffd\ufffd\ufffd[31mH200"
    assert gpu.gsp_firmware == "\ufffd"
    assert gpu.missing["vbios_version"].state is State.ABSENT


def test_processes_keep_kind_and_unknown_memory(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": [4242, 1 << 30, 4243, 0],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [77, 4096],
    }
    assert one_gpu(library, profile).processes == (
        GpuProcess(pid=4242, kind="compute", used_memory_bytes=1 << 30),
        GpuProcess(pid=4243, kind="compute", used_memory_bytes=None),
        GpuProcess(pid=77, kind="graphics", used_memory_bytes=4096),
    )


def test_a_gpu_without_graphics_still_lists_compute_processes(library: Path) -> None:
    profile = node("h200")
    profile["0"] |= {"nvmlDeviceGetComputeRunningProcesses_v3": [1, 2], "nvmlDeviceGetGraphicsRunningProcesses_v3": "error 3"}
    assert one_gpu(library, profile).processes == (GpuProcess(pid=1, kind="compute", used_memory_bytes=2),)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, ()),
        (0x04, ("sw_power_cap",)),
        (0xE8, ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")),
        (1 << 40, ("bit_40",)),
    ],
)
def test_clock_event_reasons_have_names(library: Path, mask: int, names: tuple[str, ...]) -> None:
    profile = node("h200")
    profile["0"]["nvmlDeviceGetCurrentClocksEventReasons"] = mask
    assert one_gpu(library, profile).clock_event_reasons == names


def test_only_the_gpus_asked_for_are_read(library: Path) -> None:
    profile = node("h200", gpus=4)
    profile["0"]["nvmlDeviceGetName"] = "crash"
    gpus = gpus_of(examine(environment(library, profile), gpu_indices=(3, 1)))
    assert [(gpu.index, gpu.minor_number) for gpu in gpus] == [(1, 1), (3, 3)]


def test_gpus_asked_for_that_do_not_exist_are_absent(library: Path) -> None:
    section = examine(environment(library, node("h200", gpus=2)), gpu_indices=(7,)).sections.gpus
    assert section.state is State.ABSENT
    assert "0 to 1" in section.why


def test_bindings_that_cannot_be_imported_are_unreadable_with_the_reason(library: Path, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('cut short by a full disk')\n")
    snapshot = examine(environment(library, node("h200")) | {"PYTHONPATH": str(tmp_path)})
    assert snapshot.probe_runs[0].outcome == "ok"
    for section in (snapshot.sections.nvml_start, snapshot.sections.nvml_versions, snapshot.sections.gpus):
        assert section.state is State.UNREADABLE
        assert "cut short by a full disk" in section.why


QUESTIONS = sorted({**node("h200", "nvswitch")["0"], "nvmlDeviceGetHandleByIndex_v2": ""})
ANSWERS = st.one_of(
    st.sampled_from([1, 2, 3, 4, 6, 7, 10, 13, 15, 16, 22, 25, 27, 999, 123456]).map(lambda code: f"error {code}"),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**64 - 1), max_size=6),
    st.binary(max_size=12).map(lambda raw: bytes(byte for byte in raw if byte not in b"\0\t\n")),
)


@given(st.lists(st.dictionaries(st.sampled_from(QUESTIONS), ANSWERS, max_size=12), min_size=1, max_size=12))
@settings(
    max_examples=12, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)  # each example starts an interpreter: no shrinking
def test_no_answer_makes_the_probe_ill(library: Path, nonsense: list[dict[str, Any]]) -> None:
    profile = node("h200", "nvswitch", gpus=len(nonsense))
    for index, answers in enumerate(nonsense):
        profile[str(index)] |= answers
    snapshot = examine(environment(library, profile))
    assert snapshot.probe_runs[0].outcome == "ok", snapshot.probe_runs[0].detail
    gpus = gpus_of(snapshot)
    assert [gpu.index for gpu in gpus] == list(range(len(nonsense)))


# --- on recorded trees, without a library -----------------------------------------------------------------------------

probe = importlib.import_module("dsdoctor.probes.nvml")


def test_a_recorded_tree_has_no_nvml_to_ask(tmp_path: Path) -> None:
    sections = probe.collect(Host(root=str(tmp_path), environment={}, commands={}), Scope(target=None))
    assert {name: section.state for name, section in sections.items()} == dict.fromkeys(
        ("nvml_start", "nvml_versions", "gpus"), State.NOT_ASKED
    )


def driver_tree(root: Path, *addresses: str) -> Host:
    for address in addresses:
        (root / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    return Host(root=str(root), environment={}, commands={})


LOST = Gpu(index=1, lost=True, missing={"pci_address": Missing(State.UNREADABLE, "GPU is lost (NVML code 15)")})


def test_the_only_address_left_is_that_of_the_lost_gpu(tmp_path: Path) -> None:
    host = driver_tree(tmp_path, "0000:00:06.0", "0000:00:07.0", "0000:00:08.0")
    gpus = (Gpu(index=0, pci_address="0000:00:06.0"), LOST, Gpu(index=2, pci_address="0000:00:08.0"))
    named = probe._with_address_of_lost(host, gpus)
    assert [gpu.pci_address for gpu in named] == ["0000:00:06.0", "0000:00:07.0", "0000:00:08.0"]
    assert named[1].lost
    assert "pci_address" not in named[1].missing


def test_two_addresses_left_name_nobody(tmp_path: Path) -> None:
    host = driver_tree(tmp_path, "0000:00:06.0", "0000:00:07.0", "0000:00:08.0")
    gpus = (Gpu(index=0, pci_address="0000:00:06.0"), LOST)
    assert probe._with_address_of_lost(host, gpus) == gpus


@pytest.mark.parametrize(("content", "node_index"), [("1\n", 1), ("-1\n", None), ("junk", None), (None, None)])
def test_the_numa_node_comes_from_the_kernel(tmp_path: Path, content: str | None, node_index: int | None) -> None:
    directory = tmp_path / "sys/bus/pci/devices/0000:00:06.0"
    directory.mkdir(parents=True)
    if content is not None:
        (directory / "numa_node").write_text(content)
    answers = probe.Answers(found={"pci_address": "0000:00:06.0"})
    probe._add_numa_node(Host(root=str(tmp_path), environment={}, commands={}), answers)
    assert answers.found.get("numa_node") == node_index
    assert ("numa_node" in answers.missing) is (node_index is None)
