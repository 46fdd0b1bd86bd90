"""How nodes are wired, read from facts, matrices, NCCL files and hwloc, and what follows from it."""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.errors import InputError, UsageError
from dsdoctor.facts import Cpu, Gpu, NumaNode, NvLink, PciDevice, PcieLink, Platform, Sections, Virtualization, known, unreadable
from dsdoctor.matrix import Knowledge
from dsdoctor.sources import topo_matrix
from dsdoctor.topology import advice, from_facts, nccl, picture, read, reference
from dsdoctor.topology.graph import Topology, cpus_of_mask, list_of, mask_of_cpus, natural, numbers_in

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
LIMITS = Knowledge().matrix("gpu-limits")
REFERENCES = Knowledge().matrix("topologies")
H100 = "NVIDIA H100 80GB HBM3"
GEN5 = PcieLink(generation=5, width=16, max_generation=5, max_width=16)


def shared(path: str) -> Path:
    file = SHARED / path
    if not file.exists():
        pytest.skip(f"{path} is not here")
    return file


def load(path: str) -> Topology:
    return read.load(str(shared(path)))


def cells(topology: Topology) -> dict[str, str]:
    """The matrix as `GPU0 NIC1` to path."""
    devices = (*topology.gpus, *topology.nics)
    return {f"{one.name} {other.name}": topology.path(one, other) for one in devices for other in devices}


def near(topology: Topology, gpu: str, path: str) -> list[str]:
    """Names of the adapters that a GPU reaches over this path."""
    found = next(device for device in topology.gpus if device.name == gpu)
    return [nic.model for nic in topology.nics if topology.path(found, nic) == path]


# --- an 8-GPU server, from its public lspci ---------------------------------------------------------------------------


def hgx_server() -> Sections:
    """Sections of a Dell server with 8 H100 and ConnectX adapters, from the lspci that gpud published; NVLinks as NVML reports them there."""
    text = gzip.decompress(shared("fixtures/gpud/lspci-vvv-8xh100.txt.gz").read_bytes()).decode()
    blocks = [block for block in re.split(r"\n(?=[0-9a-f]{2}:[0-9a-f]{2}\.\d )", text) if block.strip()]
    bridges: dict[str, tuple[str, str]] = {}
    for block in blocks:
        if found := re.search(r"Bus: primary=(\w+), secondary=(\w+)", block):
            bridges[found[2]] = (block[:7], found[1])
    devices = []
    kinds = {"3D controller: NVIDIA": "gpu", "Bridge: NVIDIA": "nvswitch", "Ethernet controller: Mellanox": "nic"}
    for block in blocks:
        kind = next((kind for words, kind in kinds.items() if words in block.split("\n")[0]), "")
        if kind:
            parents, bus = [], block[:2]
            while bus in bridges:
                parents.append(f"0000:{bridges[bus][0]}")
                bus = bridges[bus][1]
            numa = re.search(r"NUMA node: (\d+)", block)
            device_id = {"MT2910": "1021", "MT2892": "101d"}.get("".join(re.findall(r"MT\d{4}", block.split("\n")[0])), "")
            link = GEN5 if "Speed 32GT/s (ok), Width x16 (ok)" in block else None
            devices.append(PciDevice(
                address=f"0000:{block[:7]}", kind=kind, parents=tuple(parents), root=f"pci0000:{bus}", link=link,
                numa_node=int(numa[1]) if numa else None, driver="mlx5_core" if kind == "nic" else "", device_id=device_id,
            ))  # fmt: skip
    nics = [device for device in devices if device.kind == "nic"]
    named = [dataclasses.replace(device, interfaces=(f"mlx5_{nics.index(device)}",)) if device in nics else device for device in devices]
    gpus = [
        Gpu(index=index, name=H100, pci_address=device.address, compute_capability="9.0", pcie=device.link, nvlinks=tuple(
            NvLink(index=number, active=True, speed_mb_per_s=26562, remote="switch") for number in range(18)
        ))
        for index, device in enumerate(device for device in named if device.kind == "gpu")
    ]  # fmt: skip
    return Sections(
        platform=known(Platform(architecture="x86_64")),
        cpu=known(Cpu(vendor="GenuineIntel", numa_nodes=(NumaNode(index=0, cpus="0-55,112-167"), NumaNode(index=1, cpus="56-111,168-223")))),
        pci_devices=known(tuple(named)), gpus=known(tuple(gpus)),
    )  # fmt: skip


def with_gpus(sections: Sections, change: dict[int, dict[str, object]]) -> Sections:
    gpus = tuple(dataclasses.replace(gpu, **change.get(gpu.index, {})) for gpu in sections.gpus.value or ())  # type: ignore[arg-type]
    return dataclasses.replace(sections, gpus=known(gpus))


def test_a_server_with_a_switch_for_each_gpu() -> None:
    topology = from_facts.topology(hgx_server(), "server")
    found = cells(topology)
    assert len(topology.gpus) == 8
    assert {found[f"GPU{i} GPU{j}"] for i in range(8) for j in range(8) if i != j} == {"NV18"}
    assert near(topology, "GPU0", "PIX") == ["mlx5_0", "mlx5_1", "mlx5_2"]
    assert near(topology, "GPU1", "PIX") == ["mlx5_3"]
    assert near(topology, "GPU7", "PIX") == ["mlx5_11"]
    assert found["GPU0 NIC3"] == "NODE"
    assert found["GPU0 NIC11"] == "SYS"
    assert len(topology.switches) == 9  # eight with a GPU, one with the NVSwitches
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    pci = {topology.pci_path(one, other) for one in topology.gpus[:4] for other in topology.gpus[:4] if one is not other}
    assert pci == {"NODE"}


def test_its_suggestions_and_its_reference() -> None:
    shown = picture.of(from_facts.topology(hgx_server(), "server"), LIMITS, REFERENCES)
    by_size = {grouping.size: grouping for grouping in shown.advice.groupings}
    assert [group.gpus for group in by_size[4].groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert all(group.gb_per_s == 450 for group in by_size[2].groups)
    assert shown.advice.nccl_ib_hca == "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"
    assert shown.advice.remarks == (
        "Left out of NCCL_IB_HCA, since they are of another kind and near some GPUs only: mlx5_1, mlx5_2, mlx5_7, mlx5_8.",
    )
    assert shown.advice.bindings[5].commands[0] == "CUDA_VISIBLE_DEVICES=5 numactl --cpunodebind=1 --membind=1 COMMAND"
    assert shown.advice.bindings[5].commands[1] == "CUDA_VISIBLE_DEVICES=5 taskset -c 56-111,168-223 COMMAND"
    assert shown.comparison is not None
    assert shown.comparison.reference.id == "hgx-h100-dell"
    assert shown.comparison.differences == ()
    assert shown.degraded == {}


def test_dead_nvlinks_are_marked_and_differ() -> None:
    links = tuple(NvLink(index=number, active=number > 1, remote="switch") for number in range(18))
    topology = from_facts.topology(with_gpus(hgx_server(), {3: {"nvlinks": links}}), "server")
    shown = picture.of(topology, LIMITS, REFERENCES)
    assert cells(topology)["GPU3 GPU5"] == "NV16"
    assert cells(topology)["GPU4 GPU5"] == "NV18"
    assert shown.degraded == {"GPU3": "16 of 18 NVLinks active"}
    assert shown.comparison is not None
    (difference,) = shown.comparison.differences
    assert difference.devices == ("GPU3",)
    assert difference.found == "GPU3 has NV16 to all others"
    assert ("GPU3", "GPU5") in shown.differing_pairs
    assert ("GPU4", "GPU5") not in shown.differing_pairs
    pairs = {group.gpus: group.path for grouping in shown.advice.groupings if grouping.size == 2 for group in grouping.groups}
    assert sorted(pairs.values()) == ["NV16", "NV18", "NV18", "NV18"]


def test_missing_lanes_are_degraded_and_a_resting_link_is_not() -> None:
    slow = dataclasses.replace(GEN5, width=8)
    resting = dataclasses.replace(GEN5, generation=1)
    topology = from_facts.topology(with_gpus(hgx_server(), {0: {"pcie": slow}, 1: {"pcie": resting}}), "server")
    shown = picture.of(topology, LIMITS, REFERENCES)
    assert shown.degraded == {"GPU0": "x8 of x16 lanes"}
    assert shown.link_words["GPU1"].text == "Gen1 x16 now, Gen5 possible"
    assert shown.comparison is not None
    assert [item.devices for item in shown.comparison.differences] == [("GPU0",)]


def test_an_adapter_on_the_wrong_switch_differs() -> None:
    sections = hgx_server()
    devices = sections.pci_devices.value or ()
    home = next(device for device in devices if device.interfaces == ("mlx5_3",))
    moved = tuple(
        dataclasses.replace(device, parents=home.parents, root=home.root) if device.interfaces == ("mlx5_4",) else device
        for device in devices
    )
    topology = from_facts.topology(dataclasses.replace(sections, pci_devices=known(moved)), "server")
    shown = picture.of(topology, LIMITS, REFERENCES, "hgx-h100-dell")
    assert shown.comparison is not None
    assert [(item.what, item.found) for item in shown.comparison.differences] == [
        ("adapters on the PCIe switches of a GPU (PIX or PXB)", "GPU2 0")
    ]
    assert shown.differing == {"GPU2"}


def test_links_that_nvml_did_not_read_are_not_called_missing() -> None:
    topology = from_facts.topology(with_gpus(hgx_server(), {2: {"nvlinks": None}}), "server")
    assert not topology.nvlinks_known
    assert any("NVLinks of GPU 2 are not known" in note for note in topology.notes)
    shown = picture.of(topology, LIMITS, REFERENCES)
    assert shown.advice.groupings == ()
    assert shown.comparison is not None
    assert not [item for item in shown.comparison.differences if item.what == "NVLinks"]


def test_gpus_of_the_bus_when_nvml_does_not_start() -> None:
    topology = from_facts.topology(dataclasses.replace(hgx_server(), gpus=unreadable("driver not loaded")), "server")
    assert [gpu.name for gpu in topology.gpus] == [f"GPU{number}" for number in range(8)]
    assert not topology.nvlinks_known
    assert any("driver not loaded" in note for note in topology.notes)


def test_a_container_with_two_of_eight_gpus() -> None:
    sections = hgx_server()
    mine = tuple((sections.gpus.value or ())[:2])
    topology = from_facts.topology(dataclasses.replace(sections, gpus=known(mine)), "container")
    shown = picture.of(topology, LIMITS, REFERENCES)
    assert [device.name for device in shown.columns if device.kind == "gpu"] == ["GPU0", "GPU1"]
    assert len(topology.hidden_gpus) == 6
    assert shown.comparison is not None
    assert shown.comparison.differences == ()
    assert any("6 more are on the bus" in text for text in shown.comparison.not_compared)


def test_the_memory_of_a_grace_gpu_may_be_a_numa_node() -> None:
    sections = dataclasses.replace(hgx_server(), platform=known(Platform(architecture="aarch64")))
    assert {gpu.gpu_numa_id for gpu in from_facts.topology(sections, "grace").gpus} == {"?"}


def test_nothing_to_draw_is_an_error_with_its_reason() -> None:
    with pytest.raises(InputError, match="no permission"):
        from_facts.topology(Sections(pci_devices=unreadable("no permission")), "nothing")


# --- direct NVLinks, several switches ---------------------------------------------------------------------------------


def bridged_cards() -> Sections:
    """Four PCIe cards behind two levels of switches; cards 0-2 and 1-3 have an NVLink bridge."""
    addresses = [f"0000:{number + 1}0:00.0" for number in range(4)]
    partner = {0: 2, 2: 0, 1: 3, 3: 1}
    devices = [
        PciDevice(
            address=address, kind="gpu", root="pci0000:00", numa_node=0, link=GEN5,
            parents=(f"0000:0{4 + number}:00.0", f"0000:03:0{number // 2}.0", f"0000:02:0{number // 2}.0", "0000:01:00.0", "0000:00:01.0"),
        )
        for number, address in enumerate(addresses)
    ]  # fmt: skip
    gpus = [
        Gpu(index=number, name="NVIDIA H100 PCIe", pci_address=address, pcie=GEN5, nvlinks=tuple(
            NvLink(index=link, active=True, remote=addresses[partner[number]]) for link in range(12)
        ))
        for number, address in enumerate(addresses)
    ]  # fmt: skip
    return Sections(
        pci_devices=known(tuple(devices)), gpus=known(tuple(gpus)), cpu=known(Cpu(numa_nodes=(NumaNode(index=0, cpus="0-31"),)))
    )


def test_bridged_cards_are_paired_by_their_bridge() -> None:
    topology = from_facts.topology(bridged_cards(), "cards")
    found = cells(topology)
    assert (found["GPU0 GPU2"], found["GPU0 GPU1"], found["GPU0 GPU3"]) == ("NV12", "PIX", "PXB")
    advised = advice.advise(topology, LIMITS)
    pairs = next(grouping for grouping in advised.groupings if grouping.size == 2)
    assert [group.gpus for group in pairs.groups] == [(0, 2), (1, 3)]
    assert {group.gb_per_s for group in pairs.groups} == {300}
    quads = next(grouping for grouping in advised.groupings if grouping.size == 4)
    assert (quads.groups[0].path, quads.groups[0].gb_per_s) == ("PXB", 63)


# --- inside a virtual machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("example", "recording"), [("h200x4-healthy", "h200x4"), ("h200-healthy", "h200")])
def test_the_matrix_of_a_recorded_node_is_that_of_nvidia_smi(example: str, recording: str) -> None:
    said = topo_matrix.parse(shared(f"recordings/{recording}/topo-m.txt").read_text().splitlines())
    assert said is not None
    topology = read.load(f"example:{example}")
    assert [gpu.name for gpu in topology.gpus] == list(said.names)
    assert topology.matrix(topology.gpus) == tuple(row.cells for row in said.rows)
    ours = [(gpu.cpus, gpu.numa_affinity, gpu.gpu_numa_id) for gpu in topology.gpus]
    assert ours == [(row.cpu_affinity, row.numa_affinity, row.gpu_numa_id) for row in said.rows]


def test_nothing_false_is_said_in_a_virtual_machine() -> None:
    topology = read.load("example:h200x4-healthy")
    shown = picture.of(topology, LIMITS, REFERENCES)
    assert topology.hypervisor == "firecracker"
    assert "not the wiring of the host" in topology.notes[-1]
    assert topology.nics == ()  # eth0 is paravirtual
    assert shown.advice.nccl_ib_hca == ""
    assert all(binding.commands == () for binding in shown.advice.bindings)
    assert shown.comparison is not None
    assert (shown.comparison.reference.id, shown.comparison.differences) == ("hgx-h200", ())
    assert "given 4 of 8" in shown.comparison.not_compared[0]


def test_a_flat_virtual_tree_is_not_compared_with_switches() -> None:
    topology = load("fixtures/azhpc-images/ndv5-topo.xml")
    devices = tuple(
        dataclasses.replace(device, switches=(), root=device.address, model=H100 if device.kind == "gpu" else "")
        for device in topology.devices
    )
    flat = dataclasses.replace(topology, devices=devices, switches=(), source="facts", hypervisor="hyperv")
    compared = reference.choose(flat, REFERENCES)
    assert compared is not None
    assert (compared.reference.id, compared.differences) == ("azure-nd-v5", ())
    assert sum("virtual PCI tree" in text for text in compared.not_compared) == 2
    assert "virtual PCI tree" in advice.advise(dataclasses.replace(flat, devices=tuple(
        dataclasses.replace(device, model=device.model or f"mlx5_{device.name[3:]}") for device in flat.devices
    )), LIMITS).remarks[-1]  # fmt: skip


def test_a_paravirtual_adapter_is_near_nothing() -> None:
    gpu = PciDevice(address="0000:00:06.0", kind="gpu", root="pci0000:00")
    nic = PciDevice(address="0000:00:03.0", kind="nic", vendor_id="1af4", root="pci0000:00", interfaces=("eth0",))
    sections = Sections(pci_devices=known((nic, gpu)), virtualization=known(Virtualization(hypervisor="kvm")))
    topology = from_facts.topology(sections, "vm")
    assert topology.path(topology.gpus[0], topology.of_kind("ethernet")[0]) == "?"


# --- NCCL files -------------------------------------------------------------------------------------------------------


def shape(node: ElementTree.Element) -> tuple[object, ...]:
    """Tag, what identifies the element, and its children in any order."""
    keep = ("busid", "numaid", "class", "vendor", "device", "link_speed", "sm", "target", "count", "tclass", "arch", "name")
    names = {name: node.get(name) for name in keep if node.get(name)}
    if node.tag == "gpu":
        names["dev"] = node.get("dev")
    return (node.tag, tuple(sorted(names.items())), tuple(sorted(map(shape, node), key=repr)))


def test_the_file_for_nccl_has_the_structure_of_its_own_dump() -> None:
    written = ElementTree.fromstring(nccl.write(read.load("example:h200x4-healthy")))
    assert shape(written) == shape(ElementTree.parse(shared("recordings/h200x4/nccl-topo.xml")).getroot())


@pytest.mark.parametrize("recording", ["h200x2", "h200x4"])
def test_a_dump_of_nccl_survives_reading_and_writing(recording: str) -> None:
    dump = shared(f"recordings/{recording}/nccl-topo.xml")
    written = ElementTree.fromstring(nccl.write(read.load(str(dump))))
    assert shape(written) == shape(ElementTree.parse(dump).getroot())
    said = topo_matrix.parse(shared(f"recordings/{recording}/topo-m.txt").read_text().splitlines())
    topology = read.load(str(dump))
    assert said is not None
    assert topology.matrix(topology.gpus) == tuple(row.cells for row in said.rows)


@pytest.mark.parametrize("file", ["azhpc-images/ndv5-topo.xml", "azhpc-images/ndv4-topo.xml", "aws-ofi-nccl/p4d-24xl-topo.xml"])
def test_vendor_files_keep_their_tree(file: str) -> None:
    topology = load(f"fixtures/{file}")
    again = read.parse(nccl.write(topology).encode(), "again")
    assert cells(again) == cells(topology)
    assert [node.cpus for node in again.numa_nodes] == [node.cpus for node in topology.numa_nodes]
    assert [switch.address for switch in again.switches] == [switch.address for switch in topology.switches]


def test_ranks_and_hosts_are_left_to_nccl() -> None:
    text = nccl.write(from_facts.topology(hgx_server(), "server"))
    assert "rank=" not in text
    assert "host_hash" not in text
    assert '<cpu numaid="1" affinity="ffffffff,ff000000,00000000,00000000,ffffffff,ff000000,00000000"' not in text  # words, highest first
    root = ElementTree.fromstring(text)
    assert [cpu.get("numaid") for cpu in root] == ["0", "1"]
    assert cpus_of_mask(root[1].get("affinity", "")) == "56-111,168-223"
    # NCCL reads the family of an Intel processor only above adapters that it finds itself: none are named here.
    assert root.find(".//net") is None
    amd = dataclasses.replace(
        from_facts.topology(hgx_server(), "server"), processor=nccl.Processor(architecture="x86_64", vendor="AuthenticAMD")
    )
    assert len(ElementTree.fromstring(nccl.write(amd)).findall(".//net")) == 12


def test_a_matrix_cannot_become_a_file_for_nccl() -> None:
    topology = load("recordings/h200x2/topo-m.txt")
    with pytest.raises(UsageError, match="PCI addresses"):
        nccl.write(topology)


@pytest.mark.parametrize(
    ("file", "id", "per_gpu"), [("azhpc-images/ndv5-topo.xml", "azure-nd-v5", 1), ("azhpc-images/ndv4-topo.xml", "azure-nd-v4", 2), ("aws-ofi-nccl/p4d-24xl-topo.xml", "aws-p4d", 1)]
)  # fmt: skip
def test_public_files_are_as_their_reference(file: str, id: str, per_gpu: int) -> None:
    topology = load(f"fixtures/{file}")
    compared = reference.choose(topology, REFERENCES)
    assert compared is not None
    assert (compared.reference.id, compared.differences) == (id, ())
    assert all(len(near(topology, gpu.name, "PIX")) == per_gpu for gpu in topology.gpus)
    assert advice.advise(topology, LIMITS).groupings == ()  # such files list no NVLinks


def test_a_gpu_on_the_wrong_numa_node_differs() -> None:
    text = shared("fixtures/azhpc-images/ndv4-topo.xml").read_text().replace('busid="0003:00:00.0"', 'busid="x"')
    text = text.replace('busid="0001:00:00.0"', 'busid="0003:00:00.0"').replace('busid="x"', 'busid="0001:00:00.0"')
    compared = reference.choose(read.parse(text.encode(), "swapped"), REFERENCES)
    assert compared is not None
    assert [item.what for item in compared.differences] == ["GPUs by NUMA node", "GPUs by PCIe switch"]
    assert compared.differences[0].found == "0 3 | 1 2 | 4 5 | 6 7"


# --- hwloc ------------------------------------------------------------------------------------------------------------


def test_dgx2_of_hwloc() -> None:
    topology = load("fixtures/hwloc/nvidiaDGX2.xml")
    assert (len(topology.gpus), len(topology.of_kind("nvswitch")), len(topology.numa_nodes)) == (16, 12, 2)
    assert {path for pair, path in cells(topology).items() if len(set(pair.split())) == 2} == {"NV6"}
    one, *others = topology.gpus
    assert [topology.pci_path(one, others[number - 1]) for number in (1, 2, 4, 8)] == ["PIX", "PXB", "NODE", "SYS"]
    compared = reference.choose(topology, REFERENCES)
    assert compared is not None
    assert (compared.reference.id, compared.differences, compared.not_compared) == ("dgx-2", (), ())
    quads = next(grouping for grouping in advice.advise(topology, LIMITS).groupings if grouping.size == 4)
    assert [group.gpus for group in quads.groups] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]


# --- matrices ---------------------------------------------------------------------------------------------------------


def test_switches_and_nodes_follow_from_a_matrix() -> None:
    text = (
        "\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV12\tPIX\tPXB\tSYS\t0-15\t0\t\tN/A\nGPU1\tNV12\t X \tPXB\tPIX\tSYS\t0-15\t0\t\tN/A\n"
        "NIC0\tPIX\tPXB\t X \tPXB\tSYS\nNIC1\tPXB\tPIX\tPXB\t X \tSYS\nNIC2\tSYS\tSYS\tSYS\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_2\n"
    )
    topology = read.parse(text.encode(), "paste")
    by_name = {device.name: device for device in topology.devices}
    assert by_name["GPU0"].switches == by_name["NIC0"].switches
    assert by_name["GPU0"].switches[0] != by_name["GPU1"].switches[0]
    assert by_name["GPU0"].switches[1] == by_name["GPU1"].switches[1]
    assert (by_name["NIC1"].numa_node, by_name["NIC2"].numa_node) == (0, None)
    assert topology.pci_path(by_name["GPU0"], by_name["GPU1"]) == "?"  # NV12 hides it
    advised = advice.advise(topology, LIMITS)
    assert advised.nccl_ib_hca == "=mlx5_0,mlx5_1"


# --- files that are no topology ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no topology in it"),
        (b"hello", "no topology in it"),
        (b"\x1f\x8b\x08nonsense", "no topology in it"),
        (b"<system version='1'>", "broken XML"),
        (b"<system version='1'></system>", "without any device"),
        (b"<system version='7'><cpu numaid='0'/></system>", "version 7"),
        (b"<topology/>", "without NUMA nodes"),
        (b"<root><system/></root>", "unknown kind"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><system version='1'/>", "document type"),
        (b"<system version='1'><cpu>" + b"<pci busid='a' class='0x060400'>" * 50 + b"</pci>" * 50 + b"</cpu></system>", "nested"),
        (b"{}", "schema"),
    ],
)
def test_other_files_are_refused_in_one_sentence(content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read.parse(content, "file")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read.load(str(tmp_path / "none.xml"))


# --- number lists -----------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 300)))
def test_lists_and_masks_say_the_same(numbers: set[int]) -> None:
    text = list_of(numbers)
    assert set(numbers_in(text)) == numbers
    assert set(numbers_in(cpus_of_mask(mask_of_cpus(text)))) == numbers


def test_masks_of_nccl() -> None:
    assert cpus_of_mask("000000ff,ffff0000,00ffffff") == "0-23,48-71"
    assert cpus_of_mask("0x03000003") == "0-1,24-25"
    assert cpus_of_mask("zz") == ""


def test_mlx5_10_comes_after_mlx5_9() -> None:
    assert sorted(["mlx5_10", "mlx5_9", "mlx5_1"], key=natural) == ["mlx5_1", "mlx5_9", "mlx5_10"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.booleans()), min_size=2, max_size=6))
def test_paths_are_the_same_both_ways(seats: list[tuple[int, int, int, bool]]) -> None:
    devices = tuple(
        PciDevice(
            address=f"0000:{number:02x}:00.0", kind="gpu", root=f"pci{root}", numa_node=root % 2,
            parents=(f"d{number}", f"s{root}{one}{two}", f"t{root}{one}", f"u{root}", f"r{root}") if deep else (f"r{root}{number}",),
        )
        for number, (root, one, two, deep) in enumerate(seats)
    )  # fmt: skip
    topology = from_facts.topology(
        Sections(pci_devices=known(devices), cpu=known(Cpu(numa_nodes=(NumaNode(index=0, cpus="0"), NumaNode(index=1, cpus="1"))))), "x"
    )
    matrix = topology.matrix(topology.gpus)
    assert all(matrix[i][j] == matrix[j][i] for i in range(len(matrix)) for j in range(len(matrix)))
    assert all(matrix[i][i] == "X" for i in range(len(matrix)))
