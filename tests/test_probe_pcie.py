"""The PCI probe: trees of real and built machines, link states, access control and the IOMMU."""

from __future__ import annotations

import importlib
import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import PcieLink, State
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
pcie = importlib.import_module("dsdoctor.probes.pcie")


def plant_device(root: Path, path: str, kind: str, ids: str, **more: str | bytes) -> Path:
    """One device at `path` below /sys/devices; `driver`, `iommu_group` and `physfn` become links, everything else a file."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    vendor, _, device = ids.partition(":")
    files = {"class": f"0x{kind}\n", "vendor": f"0x{vendor}\n", "device": f"0x{device}\n", **more}
    for name, content in files.items():
        if name in ("driver", "iommu_group", "physfn"):
            (folder / name).symlink_to(f"../../../bus/pci/drivers/{content}")
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(os.path.relpath(folder, bus))
    return folder


def plant_recording(root: Path, text: str) -> None:
    """The tree that a line for each device describes."""
    for line in text.splitlines():
        _, path, rest = line.split(" ", 2)
        fields = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", rest))
        now_speed, max_speed = re.split(r"/(?=\d|$)", fields["speed"])
        now_width, max_width = fields["width"].split("/")
        links = {"driver": os.path.basename(fields["driver"])} if fields.get("driver") else {}
        ids = f"{fields['vendor'][2:]}:{fields['device'][2:]}"
        states = {
            "current_link_speed": now_speed,
            "max_link_speed": max_speed,
            "current_link_width": now_width,
            "max_link_width": max_width,
        }
        plant_device(root, path.removeprefix("/sys/devices/"), fields["class"][2:], ids, numa_node=fields["numa"], **states, **links)


def examine(root: Path):
    found = pcie.collect(Host(root=str(root), environment={}, commands={}), Scope(target=None))
    return {device.address: device for device in found["pci_devices"].value or ()}, found


def config_space(*capabilities: tuple[int, int, bytes], size: int = 4096) -> bytes:
    """Configuration space with these extended capabilities (offset, id, body), in order."""
    data = bytearray(size)
    for index, (offset, identity, body) in enumerate(capabilities):
        following = capabilities[index + 1][0] if index + 1 < len(capabilities) else 0
        data[offset : offset + 4] = struct.pack("<I", following << 20 | 1 << 16 | identity)
        data[offset + 4 : offset + 4 + len(body)] = body
    return bytes(data)


def acs(control: int) -> bytes:
    return config_space((0x100, 0x0001, b""), (0x148, 0x000D, struct.pack("<HH", 0x1F, control)), (0x200, 0x0019, b""))


# --- stories ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared recordings")
@pytest.mark.parametrize(("recording", "gpus"), [("h200", 1), ("h200x2", 2), ("h200x4", 4)])
def test_h200_virtual_machines(tmp_path, recording, gpus):
    plant_recording(tmp_path, (SHARED / "recordings" / recording / "sys_pci.txt").read_text())
    devices, found = examine(tmp_path)
    assert [device.kind for device in devices.values()] == ["nic"] + ["gpu"] * gpus
    gpu = devices["0000:00:06.0"]
    assert (gpu.vendor_id, gpu.device_id) == ("10de", "2335")
    assert gpu.link == PcieLink(generation=5, width=16, max_generation=5, max_width=16)
    assert (gpu.parents, gpu.root, gpu.numa_node, gpu.iommu_group) == ((), "pci0000:00", None, None)
    assert devices["0000:00:03.0"].link is None
    assert found["iommu"].state is State.UNREADABLE
    if recording == "h200":
        assert gpu.driver == "nvidia"
        assert devices["0000:00:03.0"].driver == "virtio-pci"


def test_two_gpus_and_a_nic_behind_switches(tmp_path):
    plant_device(tmp_path, "pci0000:15/0000:15:01.0", "060400", "8086:352a", driver="pcieport", numa_node="0", config=acs(0x1D))
    plant_device(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0", "060400", "1000:c030", driver="pcieport", config=acs(0x01))
    for slot, bus in enumerate((0x17, 0x18, 0x19)):
        plant_device(tmp_path, f"pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:{slot:02x}.0", "060400", "1000:c030", config=bytes(64))
        folder = f"pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:{slot:02x}.0/0000:{bus + 1:02x}:00.0"
        link = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
        width = {"current_link_width": "8", "max_link_width": "16"}
        if slot < 2:
            plant_device(tmp_path, folder, "030200", "10de:2330", driver="nvidia", iommu_group="41", numa_node="0", **link, **width)
        else:
            names = {"net/ens1np0/mtu": "1500", "infiniband/mlx5_0/node_type": "1: CA"}
            plant_device(tmp_path, folder, "020700", "15b3:1021", driver="mlx5_core", numa_node="0", **names)
    plant_device(tmp_path, "pci0000:00/0000:00:1c.0", "060400", "8086:a33c")  # a bridge with nothing of ours below it
    plant_device(tmp_path, "pci0000:00/0000:00:1c.0/0000:02:00.0", "030000", "1a03:2000")  # the screen of the BMC
    devices, _ = examine(tmp_path)
    assert list(devices) == [
        "0000:15:01.0",
        "0000:16:00.0",
        "0000:17:00.0",
        "0000:17:01.0",
        "0000:17:02.0",
        "0000:18:00.0",
        "0000:19:00.0",
        "0000:1a:00.0",
    ]
    gpu = devices["0000:18:00.0"]
    assert gpu.kind == "gpu"
    assert gpu.parents == ("0000:17:00.0", "0000:16:00.0", "0000:15:01.0")
    assert gpu.root == "pci0000:15"
    assert gpu.numa_node == 0
    assert gpu.iommu_group == 41
    assert gpu.link == PcieLink(generation=4, width=8, max_generation=5, max_width=16)
    nic = devices["0000:1a:00.0"]
    assert (nic.kind, nic.interfaces, nic.driver) == ("nic", ("mlx5_0", "ens1np0"), "mlx5_core")
    assert [devices[f"0000:{where}"].acs_redirect for where in ("15:01.0", "16:00.0", "17:00.0")] == [True, False, None]
    assert gpu.acs_redirect is None


@pytest.mark.parametrize("driver", ["nouveau", "nova_core", "vfio-pci", ""])
def test_who_holds_the_gpu(tmp_path, driver):
    plant_device(tmp_path, "pci0000:00/0000:00:06.0", "030000", "10de:2204", **({"driver": driver} if driver else {}))
    devices, _ = examine(tmp_path)
    assert devices["0000:00:06.0"].driver == driver


def test_nvswitch_nvme_and_virtual_functions(tmp_path):
    plant_device(tmp_path, "pci0000:00/0000:00:01.0", "068000", "10de:22a3")
    plant_device(tmp_path, "pci0000:00/0000:00:02.0", "010802", "144d:a808")
    plant_device(tmp_path, "pci0000:00/0000:00:03.0", "020000", "15b3:101e", physfn="0000:00:09.0")
    plant_device(tmp_path, "pci0000:00/0000:00:04.0", "020000", "15b3:101e", physfn="0000:00:09.0", **{"net/eth1/mtu": "1500"})
    plant_device(tmp_path, "pci0000:00/0000:00:05.0", "020000", "1af4:1041", **{"virtio3/net/eth0/mtu": "1500"})
    plant_device(tmp_path, "pci0000:00/0000:00:06.0", "040300", "10de:22ba")  # the sound device of a graphics card
    devices, _ = examine(tmp_path)
    assert [(device.kind, device.interfaces) for device in devices.values()] == [
        ("nvswitch", ()), ("nvme", ()), ("nic", ("eth1",)), ("nic", ("eth0",)),
    ]  # fmt: skip


def test_devices_behind_a_volume_controller_and_on_hyper_v(tmp_path):
    plant_device(tmp_path, "pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "010802", "8086:0a54")
    plant_device(tmp_path, "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500/pci0001:00/0001:00:00.0", "030200", "10de:2330")
    devices, _ = examine(tmp_path)
    assert devices["10000:01:00.0"].parents == ("10000:00:02.0", "0000:64:05.5")
    assert devices["10000:01:00.0"].root == "pci0000:64"
    assert devices["0001:00:00.0"].root == "pci0001:00"


def test_a_gpu_that_does_not_answer(tmp_path):
    dead = {"current_link_speed": "Unknown", "current_link_width": "63", "max_link_speed": "", "max_link_width": "255"}
    plant_device(tmp_path, "pci0000:00/0000:00:01.0", "060400", "ffff:ffff", config=b"\xff" * 4096)
    plant_device(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", "030200", "10de:2330", numa_node="garbage", **dead)
    devices, _ = examine(tmp_path)
    assert devices["0000:01:00.0"].link is None
    assert devices["0000:01:00.0"].numa_node is None
    assert devices["0000:00:01.0"].acs_redirect is None


def test_without_sysfs_nothing_is_claimed(tmp_path):
    _, found = examine(tmp_path)
    assert found["pci_devices"].state is State.UNREADABLE
    assert found["iommu"].state is State.UNREADABLE


def test_a_bus_without_devices_is_known_to_be_empty(tmp_path):
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/nonsense").mkdir()
    _, found = examine(tmp_path)
    assert found["pci_devices"].value == ()


# --- the IOMMU --------------------------------------------------------------------------------------------------------


def plant_iommu(root: Path, command_line: str, groups: dict[int, str], unit: str = "dmar0") -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cmdline").write_text(command_line + "\n")
    (root / "sys/class/iommu").mkdir(parents=True)
    if unit:
        (root / "sys/class/iommu" / unit).mkdir()
    for number, kind in groups.items():
        folder = root / f"sys/kernel/iommu_groups/{number}"
        folder.mkdir(parents=True)
        if kind:
            (folder / "type").write_text(kind + "\n")


@pytest.mark.parametrize(
    ("command_line", "groups", "mode"),
    [
        ("quiet", {7: "DMA-FQ", 8: "identity"}, "translated"),
        ("quiet intel_iommu=on iommu=pt", {7: "identity", 8: "DMA"}, "passthrough"),
        ("iommu=pt amd_iommu=on", {7: ""}, "passthrough"),
        ("iommu.passthrough=0", {7: ""}, "translated"),
        ("quiet", {7: ""}, ""),
    ],
)
def test_iommu_mode_is_that_of_the_gpu_groups(tmp_path, command_line, groups, mode):
    plant_device(tmp_path, "pci0000:00/0000:00:06.0", "030200", "10de:2330", iommu_group="7")
    plant_iommu(tmp_path, command_line, groups)
    _, found = examine(tmp_path)
    value = found["iommu"].value
    assert (value.enabled, value.mode) == (True, mode)
    assert "1 units in /sys/class/iommu" in value.evidence
    assert ("kernel command line" in value.evidence) == ("iommu" in command_line)


def test_no_iommu(tmp_path):
    plant_iommu(tmp_path, "ro quiet amd_iommu=off", {}, unit="")
    _, found = examine(tmp_path)
    assert found["iommu"].value.enabled is False
    assert found["iommu"].value.evidence.endswith("amd_iommu=off")


# --- parsers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1), ("5.0 GT/s PCIe", 2), ("5 GT/s", 2), ("8.0 GT/s PCIe", 3), ("16.0 GT/s PCIe", 4), ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6), ("Unknown", None), ("Unknown speed", None), ("", None), ("7.0 GT/s", None), ("116.0 GT/s", None),
    ],
)  # fmt: skip
def test_link_speeds(text, generation):
    assert pcie.generation_of(text) == generation


@given(st.text(max_size=30))
def test_link_parsers_never_raise(text):
    assert pcie.generation_of(text) in {None, 1, 2, 3, 4, 5, 6}
    assert pcie.width_of(text) is None or 1 <= pcie.width_of(text) <= 32
    assert pcie.kind_of(text, text) in {"gpu", "nvswitch", "nic", "nvme", ""}


@given(st.integers(0, 0xFFFF), st.integers(0, 60))
def test_acs_is_found_wherever_it_stands(control, others):
    offsets = [0x100 + 16 * index for index in range(others + 1)]
    chain = [(offset, 0x0001, b"") for offset in offsets[:-1]] + [(offsets[-1], 0x000D, struct.pack("<HH", 0xFFFF, control))]
    data = config_space(*chain)
    assert pcie.acs_redirect(data) == bool(control & 0b1100)
    assert pcie.acs_redirect(data[:256]) is None


@given(st.binary(max_size=4096))
def test_config_space_of_garbage_never_raises_or_hangs(data):
    assert pcie.acs_redirect(data) in {None, True, False}


def test_config_space_that_points_in_a_circle():
    data = bytearray(config_space((0x100, 0x0001, b""), (0x140, 0x0002, b"")))
    data[0x140:0x144] = struct.pack("<I", 0x100 << 20 | 1 << 16 | 0x0002)
    assert pcie.acs_redirect(bytes(data)) is None
    assert pcie.acs_redirect(config_space((0x100, 0x0001, b""))) is False
