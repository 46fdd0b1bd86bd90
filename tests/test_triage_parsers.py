"""Each format that people paste fills the sections that the live probes fill; what a text does not say stays unknown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.facts import Sections, State
from dsdoctor.plain import to_plain
from dsdoctor.sources import triage
from dsdoctor.sources.triage.capability import with_capabilities

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
RECORDINGS = SHARED / "recordings"
FIXTURES = SHARED / "fixtures"
needs_recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the shared recordings are not here")
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the shared fixtures are not here")


def read(*texts: str) -> triage.Parsed:
    return triage.read([triage.document(f"{number}.txt", text) for number, text in enumerate(texts, 1)])


def sections(*texts: str) -> Sections:
    return read(*texts).snapshot.sections


def files(*paths: Path) -> Sections:
    return triage.read([triage.open_document(str(path)) for path in paths]).snapshot.sections


def names(found: Any, name: str = "name") -> list[Any]:
    return [getattr(item, name) for item in found.value or ()]


TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.126.20             Driver Version: 580.126.20     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA A100 80GB PCIe          On  |   00000000:9C:00.0 Off |                   12 |
| N/A   39C    P0            127W /  300W |      11MiB /  81920MiB |      7%   E. Process |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM...             Off |   00000000:9D:00.0 Off |                  N/A |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A            1234      C   python                                 1234MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table_of_nvidia_smi() -> None:
    found = sections(TABLE)
    assert found.nvml_versions.value is not None
    assert (found.nvml_versions.value.driver, found.nvml_versions.value.cuda_driver) == ("580.126.20", "13.0")
    first, second = found.gpus.value or ()
    assert (first.name, first.pci_address, first.persistence_mode, first.compute_mode) == ("NVIDIA A100 80GB PCIe", "0000:9c:00.0", True, 3)
    assert (first.memory_total_bytes, first.mig_enabled, first.where) == (81920 << 20, False, "1.txt:6")
    assert first.ecc is not None
    assert first.ecc.volatile_uncorrected == 12
    assert (second.name, second.ecc, second.compute_capability) == ("", None, "")  # a name cut off with dots is no name
    assert found.kernel_driver.state is State.NOT_ASKED


@pytest.mark.parametrize("keep", range(0, len(TABLE), 97))
def test_a_table_cut_anywhere_tells_the_same_or_less(keep: int) -> None:
    whole, part = to_plain(sections(TABLE)), to_plain(sections(TABLE[:keep]))
    for gpu in part.get("gpus", {}).get("value", []):
        full = whole["gpus"]["value"][gpu["index"]]
        assert {
            key: value
            for key, value in gpu.items()
            if key != "ecc" and full.get(key) != value and not str(full.get(key)).startswith(str(value))
        } == {}


QUERY = """\
    Product Name                          : NVIDIA A100 80GB PCIe
    Remapped Rows
        Uncorrectable Error               : 12
        Pending                           : Yes
    Fabric
        State                             : In Progress
        Status                            : N/A
"""


def test_parts_of_nvidia_smi_q_belong_to_the_only_gpu_there_is() -> None:
    found = sections(QUERY, "|   2  NVIDIA A100 80GB PCIe          On | 00000000:9C:00.0")
    (gpu,) = found.gpus.value or ()
    assert gpu.index == 2
    assert gpu.remapped_rows is not None
    assert gpu.fabric is not None
    assert (gpu.remapped_rows.uncorrectable, gpu.remapped_rows.pending, gpu.fabric.state, gpu.fabric.status) == (
        12,
        True,
        "in-progress",
        "",
    )


def test_xml_cut_in_the_middle_is_read_as_far_as_it_goes() -> None:
    text = '<nvidia_smi_log>\n<driver_version>535.54.03</driver_version>\n<gpu id="00000000:01:00.0">\n<product_name>Tesla T4</product_name>\n<pci>\n<pci_gpu_lin'
    found = sections(text)
    assert [(gpu.name, gpu.pci_address) for gpu in found.gpus.value or ()] == [("Tesla T4", "0000:01:00.0")]


def test_csv_of_queries_with_and_without_a_header() -> None:
    command = "$ nvidia-smi --query-gpu=name,compute_cap,memory.total --format=csv,noheader\nNVIDIA L20, 8.9, 46068 MiB\nNVIDIA L20, 8.9, 46068 MiB"
    header = "index, name, driver_version, pcie.link.gen.current\n3, NVIDIA L20, 570.124.06, 2"
    assert [(gpu.index, gpu.compute_capability, gpu.memory_total_bytes) for gpu in sections(command).gpus.value or ()] == [
        (0, "8.9", 46068 << 20),
        (1, "8.9", 46068 << 20),
    ]
    found = sections(header)
    assert names(found.gpus, "index") == [3]
    assert found.nvml_versions.value is not None
    (gpu,) = sections("gpu_name, gpu_uuid, pid, used_memory\nNVIDIA L20, GPU-1, 42, 1 MiB").gpus.value or ()
    assert (gpu.name, gpu.uuid, gpu.memory_used_bytes) == ("NVIDIA L20", "", None)  # of a table of processes, no more than the name


def test_lists_of_gpus_and_their_mig_instances() -> None:
    (gpu,) = sections("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 2g.20gb     Device  0: (UUID: MIG-2)\n").gpus.value or ()
    assert (gpu.mig_enabled, gpu.uuid, [item.name for item in gpu.mig_instances]) == (True, "GPU-1", ["MIG 2g.20gb"])
    assert sections("No devices were found").gpus.state is State.ABSENT


def test_links_and_their_counters_from_two_outputs_are_one_list() -> None:
    status = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    errors = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n\t Link 0: Replay Errors: 7\n\t Link 0: CRC Errors: 1\n"
    (gpu,) = sections(status, errors).gpus.value or ()
    assert [(link.active, link.speed_mb_per_s, link.replay_errors, link.crc_errors) for link in gpu.nvlinks or ()] == [
        (True, 26562, 7, 1),
        (False, None, None, None),
    ]


# --- reports and packages ---------------------------------------------------------------------------------------------

COLLECT_ENV = """\
PyTorch version: 2.4.0+cu121
CUDA used to build PyTorch: 12.1
ROCM used to build PyTorch: N/A
OS: Ubuntu 20.04.3 LTS (x86_64)
GCC version: (Ubuntu 9.3.0-17ubuntu1~20.04) 9.3.0
Libc version: glibc-2.31
Python version: 3.10.15 (64-bit runtime)
Is CUDA available: True
CUDA runtime version: 11.4.120
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-40GB
GPU 1: NVIDIA A100-SXM4-40GB
Nvidia driver version: 535.54.03
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.2.4
[pip3] numpy==1.26.4
[pip3] triton==3.0.0
[conda] torch                     2.4.0                    pypi_0    pypi
"""


def test_collect_env() -> None:
    found = sections(COLLECT_ENV)
    build, libc, platform = found.torch_build.value, found.libc.value, found.platform.value
    assert build is not None
    assert libc is not None
    assert platform is not None
    assert (build.version, build.cuda, libc.version, platform.os_id, platform.os_version) == (
        "2.4.0+cu121",
        "12.1",
        "2.31",
        "ubuntu",
        "20.04",
    )
    assert {item.name: item.version for item in found.packages.value or ()} == {"torch": "2.4.0", "numpy": "1.26.4", "triton": "3.0.0"}
    assert names(found.gpus) == ["NVIDIA A100-SXM4-40GB"] * 2
    assert [(item.version, item.origin) for item in found.cuda_libraries.value or ()] == [("8.2.4", "system")]
    assert found.torch_build.found_via.startswith("1.txt:1")
    assert found.loader_hits.state is State.NOT_ASKED


@pytest.mark.parametrize(
    "layout", ["{key:<29}: {value}", "{key}: {value}", "> {key}: {value}", "- {key}: {value}", "**{key}**: {value}", "{key} ...... {value}"]
)
def test_layouts_of_reports_make_no_difference(layout: str) -> None:
    lines = [
        ("PyTorch version", "2.8.0+cu128"),
        ("Libc version", "glibc-2.34"),
        ("Is CUDA available", "False"),
        ("Nvidia driver version", "535.104.05"),
    ]
    found = sections("\n".join(layout.format(key=key, value=value) for key, value in lines))
    assert found.torch_build.value is not None
    assert found.torch_runtime.value is not None
    assert found.nvml_versions.value is not None
    assert (found.torch_build.value.cuda, found.torch_runtime.value.cuda_available, found.nvml_versions.value.driver) == (
        "12.8",
        False,
        "535.104.05",
    )


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("torch 2.9.1+cpu", None),
        ("torch==2.4.0+cu121", "12.1"),
        ("Name: torch\nVersion: 2.7.0+cu128", "12.8"),
        ("Torch version: 2.11.0+cu130", "13.0"),
        ("torch version .................... 1.12.0+cu113", "11.3"),
    ],
)
def test_the_cuda_of_a_build_is_in_its_version(text: str, cuda: str | None) -> None:
    found = sections(text)
    assert found.torch_build.value is not None
    assert found.torch_build.value.cuda == cuda


def test_a_torch_whose_build_is_not_told_is_no_build_for_the_processor() -> None:
    found = sections("torch   2.9.1\nvllm 0.20.1")
    assert names(found.packages) == ["torch", "vllm"]
    assert found.torch_build.state is State.NOT_ASKED


def test_the_version_of_a_package_asked_for_in_a_session() -> None:
    found = sections(">>> torchvision.__version__\n'0.14.0'\n>>> torch.__version__\n'1.14.0.dev20221110'")
    assert {one.name: one.version for one in found.packages.value or ()} == {"torchvision": "0.14.0", "torch": "1.14.0.dev20221110"}


def test_lines_of_logs_are_no_packages() -> None:
    assert sections("step 100\nloss 2.34\nvllm 0.9\nINFO torch 2.0 is great").packages.value is not None
    assert sections("step 100.5\nGPU 0\nrank 0.1\ncuda 12.8\nepoch 1.0 done").packages.state is State.NOT_ASKED


def test_sglang_and_flashinfer_tell_of_the_toolkit_below_cuda_home() -> None:
    found = sections(
        "CUDA_HOME: /usr/local/cuda\nNVCC: Cuda compilation tools, release 12.9, V12.9.86\nCUDA Driver Version: 580.95.05\nsgl_kernel: 0.3.21"
    )
    (toolkit,) = found.cuda_toolkits.value or ()
    assert (toolkit.path, toolkit.version, toolkit.is_cuda_home) == ("/usr/local/cuda", "12.9.86", True)
    assert names(found.packages) == ["sgl-kernel"]
    distro = sections(
        "CUDA_HOME: /usr\nCUDA_VERSION: 11.5",
        "$ which nvcc\n/usr/bin/nvcc\n$ ls -d /usr/local/cuda*\n/usr/local/cuda  /usr/local/cuda-13.0",
    )
    assert [(item.path, item.cuda_version, item.is_first_on_path) for item in distro.cuda_toolkits.value or ()] == [
        ("/usr", "11.5", True),
        ("/usr/local/cuda-13.0", "13.0", False),
    ]


# --- the rest of a node -----------------------------------------------------------------------------------------------


def test_variables_from_every_place_they_are_set() -> None:
    text = (
        "LD_LIBRARY_PATH=/a:/b\nexport CUDA_VISIBLE_DEVICES=3,6\nNCCL_P2P_DISABLE=1  timeout 600 all_reduce_perf\nHF_TOKEN=hf_secret\nFOO=bar\n"
        "docker run -e VLLM_USE_V1=0 --env NCCL_DEBUG=INFO image\n- name: GLOO_SOCKET_IFNAME\n  value: eth0\n"
        "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\nos.environ['TRITON_CACHE_DIR'] = '/tmp/t'\nNCCL_SOCKET_IFNAME=\n"
    )
    assert {item.name: item.value for item in sections(text).environment.value or ()} == {
        "LD_LIBRARY_PATH": "/a:/b", "CUDA_VISIBLE_DEVICES": "3,6", "NCCL_P2P_DISABLE": "1", "VLLM_USE_V1": "0", "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0", "TRITON_CACHE_DIR": "/tmp/t", "NCCL_SOCKET_IFNAME": "",
    }  # fmt: skip


def test_lspci_with_links_drivers_and_acs() -> None:
    text = (
        "e3:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2bb1] (rev a1)\n"
        "\t\tLnkCap: Port #0, Speed 32GT/s, Width x16\n\t\tLnkSta: Speed 5GT/s (downgraded), Width x16\n\tKernel driver in use: vfio-pci\n"
        "00:03.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] GPP Bridge\n\t\tACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+\n"
        "00:1f.0 ISA bridge: Intel Corporation Device\n\tKernel driver in use: other\n"
    )
    gpu, bridge = sections(text).pci_devices.value or ()
    assert gpu.link is not None
    assert (gpu.kind, gpu.address, gpu.device_id, gpu.driver, gpu.link.generation, gpu.link.max_generation) == (
        "gpu", "0000:e3:00.0", "2bb1", "vfio-pci", 2, 5,
    )  # fmt: skip
    assert (bridge.kind, bridge.acs_redirect) == ("bridge", True)


@pytest.mark.parametrize(
    ("text", "index", "link"),
    [
        ("    GPU1 gen=3/4 width=4/16 (sampled under load)", 1, (3, 4, 4, 16)),
        ("- **GPU 2:** NVIDIA L4 | 23034 MiB | driver 580.95.05\n  - **PCIe:** x8 lanes negotiated (GPU max x16, Gen up to 4) | bus 00000000:41:00.0", 2, (None, None, 8, 16)),
        ("GPU 0: NVIDIA L4\n  PCIe link: Gen3 x4 (max Gen4 x16)", 0, (3, 4, 4, 16)),
        ("Bus Interface: PCIe x16 4.0 @ x8 3.0", 0, (3, 4, 8, 16)),
    ],
)  # fmt: skip
def test_links_in_reports_of_other_tools(text: str, index: int, link: tuple[int | None, ...]) -> None:
    found = next(gpu for gpu in sections(text).gpus.value or () if gpu.index == index)
    assert found.pcie is not None
    assert (found.pcie.generation, found.pcie.max_generation, found.pcie.width, found.pcie.max_width) == link


@pytest.mark.parametrize("text", ["Slots: PCIe 4.0 x16, PCIe 3.0 x4", "image size width=8/16", "GPU0 gen=4/4 width=70/80"])
def test_what_describes_a_board_or_a_picture_is_no_link(text: str) -> None:
    assert all(gpu.pcie is None for gpu in sections(text).gpus.value or ())


PEERS = """\
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 912.00  14.20
     1  14.10 911.10
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 911.00   1.40
     1   1.50 912.50
Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)
   D\\D     0      1
     0 911.00   9.90
     1   9.90 912.50
Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 910.00  20.20
     1  20.10 911.10
"""


def test_the_matrices_of_copies_between_gpus_are_paired() -> None:
    found = {result.notes["pair"]: dict(result.values) for result in sections(PEERS).smoke.value or ()}
    assert found == {"0>1": {"gb_per_s": 1.4, "host_gb_per_s": 14.2}, "1>0": {"gb_per_s": 1.5, "host_gb_per_s": 14.1}}
    assert sections(PEERS.partition("Unidirectional P2P=Enabled")[0]).smoke.state is State.NOT_ASKED


def test_a_filtered_list_of_modules_says_what_was_asked_for() -> None:
    modules = sections("$ lsmod | grep -E 'mlx5_ib|ib_umad'\n$ ls /sys/class/infiniband").loaded_modules.value
    assert modules is not None
    assert (modules.names, modules.asked_for) == ((), ("mlx5_ib", "ib_umad"))
    rows = "".join(f"snd_{number} 16384 0\n" for number in range(40))
    whole = sections(f"Module                  Size  Used by\nnvidia_peermem         16384  0\n{rows}").loaded_modules.value
    assert whole is not None
    assert (whole.names, whole.asked_for) == (("nvidia_peermem",), ())


def test_kernel_logs_keep_their_time_and_place() -> None:
    log = sections("x\n[  201.9] y\n[  201.910514] NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off the bus.\n").kernel_log.value
    assert log is not None
    assert [(xid.code, xid.pci_address, xid.seconds_since_boot, xid.where) for xid in log.xids] == [
        (79, "0000:9c:00.0", 201.910514, "1.txt:3")
    ]
    assert sections("Please blacklist nouveau before you install the driver").kernel_log.state is State.NOT_ASKED


def test_services_and_drivers_of_packages() -> None:
    services = (
        sections("$ systemctl status nvidia-fabricmanager\nUnit nvidia-fabricmanager.service could not be found.").services.value or ()
    )
    assert [(item.name, item.state) for item in services] == [("nvidia-fabricmanager", "not-installed")]
    found = sections(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.56.06  Thu Oct  6 21:38:55 UTC 2022",
        "ii  nvidia-smi     525.85.12-1  amd64  x",
    )
    assert found.kernel_driver.value is not None
    assert (found.kernel_driver.value.version, names(found.driver_libraries, "version")) == ("520.56.06", ["525.85.12"])


def test_limits_file_systems_and_the_kernel() -> None:
    found = sections(
        "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   64M   0% /dev/shm\noverlay         100G  100G     0 100% /\n",
        "$ ulimit -l\n8192\n",
        "microsoft-standard-WSL2 x86_64",
    )
    assert found.shared_memory.value is not None
    assert found.limits.value is not None
    assert found.wsl.value is not None
    assert (found.shared_memory.value.total_bytes, found.limits.value["memlock"].soft, found.wsl.value.version) == (64 << 20, 8192 << 10, 2)
    assert [(item.path, item.free_bytes) for item in found.directories.value or ()] == [("/", 0)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("prlimit64(0, RLIMIT_MEMLOCK, NULL, {rlim_cur=8192*1024, rlim_max=RLIM64_INFINITY}) = 0", (8192 << 10, None)),
        ("[pid  4711] getrlimit(RLIMIT_MEMLOCK, {rlim_cur=64*1024, rlim_max=64*1024}) = 0", (64 << 10, 64 << 10)),
        ("prlimit64(0, RLIMIT_MEMLOCK, {rlim_cur=64*1024, rlim_max=64*1024}, NULL) = 0", None),
    ],
)
def test_strace_shows_the_limits_that_a_process_reads(line: str, told: tuple[int, int | None] | None) -> None:
    limit = (sections(line).limits.value or {}).get("memlock")
    assert told == ((limit.soft, limit.hard) if limit else None)


def test_loader_output_tells_compat_from_driver() -> None:
    text = (
        "\tlibcuda.so.1 (libc6,AArch64) => /usr/local/cuda/compat/libcuda.so.1\n\tlibcuda.so.1 (libc6,AArch64) => /usr/lib64/libcuda.so.1\n"
    )
    assert [(item.kind, item.loaded_first) for item in sections(text).driver_libraries.value or ()] == [("compat", True), ("driver", False)]


def test_commands_and_images() -> None:
    found = sections(
        "$ CUDA_VISIBLE_DEVICES=0 vllm serve deepseek-ai/DeepSeek-V3 \\\n    --tensor-parallel-size 8 \\\n    --dtype=half\n"
        "docker run --gpus all --shm-size 32g vllm/vllm-openai:v0.10.0\n"
    )
    serve, run = found.commands.value or ()
    assert (serve.program, dict(serve.options)) == (
        "vllm serve",
        {"model": "deepseek-ai/DeepSeek-V3", "tensor-parallel-size": "8", "dtype": "half"},
    )
    assert run.options["image"] == "vllm/vllm-openai:v0.10.0"
    assert [(item.name, item.version) for item in found.packages.value or ()] == [("vllm", "0.10.0")]
    assert found.container.value is not None
    assert found.container.value.runtime == "docker"


def test_questions_typed_into_python() -> None:
    found = sections(
        "$ python -c 'import torch;print(torch.__version__, torch.version.cuda, torch.cuda.is_available())'\n2.9.1+cpu None False"
    )
    assert found.torch_build.value is not None
    assert found.torch_runtime.value is not None
    assert (found.torch_build.value.version, found.torch_build.value.cuda, found.torch_runtime.value.cuda_available) == (
        "2.9.1+cpu",
        None,
        False,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU 3090", ["NVIDIA GeForce RTX 3090"]),
        ("GPU: 2*4090D", ["NVIDIA GeForce RTX 4090 D"] * 2),
        ("RTX5080 16G GPU", ["NVIDIA GeForce RTX 5080"]),
        ("GPU: GTX1080Ti 11GB x 2", ["NVIDIA GeForce GTX 1080 Ti"] * 2),
        ("GPU: 2x A10 24GB", ["NVIDIA A10"] * 2),
        ("RTX A6000 48G", ["NVIDIA RTX A6000"]),
        ("  Device 1: NVIDIA GeForce RTX 3060, compute capability 8.6, VMM: yes", ["NVIDIA GeForce RTX 3060"]),
        ("4090", None),
        ("step 3090", None),
    ],
)
def test_gpus_are_known_however_they_are_written(text: str, found: list[str] | None) -> None:
    gpus = sections(text).gpus.value
    assert (gpus and [gpu.name for gpu in gpus]) == found


def test_notes_by_hand_are_believed_only_in_short_texts() -> None:
    note = "CentOS 8 derivative, glibc 2.28, Python 3.12, NVIDIA A100, CUDA 12.6\n16 x NVIDIA L40  46068MiB (2 nodes)\n"
    assert len(sections(note).gpus.value or ()) == 16
    assert sections(note + "filler\n" * 500).libc.state is State.NOT_ASKED


@pytest.mark.parametrize(
    ("note", "gpus"),
    [
        ("We run it on an NVIDIA RTX PRO 6000 Blackwell (sm_120) with CUDA 12.8", [("NVIDIA RTX PRO 6000 Blackwell", "12.0")]),
        ("- Hardware: 2x NVIDIA L40S (Ada, compute capability 8.9, 48 GB each)", [("NVIDIA L40S", "8.9")] * 2),
        ("- **Hardware**: 2 x NVIDIA H100", [("NVIDIA H100", "")] * 2),
        ("it works on an NVIDIA H100 (sm_90) but not on an NVIDIA A100 (sm_80)", []),
    ],
)
def test_a_gpu_of_a_sentence_counts_with_what_it_can_do(note: str, gpus: list[tuple[str, str]]) -> None:
    assert [(gpu.name, gpu.compute_capability) for gpu in sections(note + "\n").gpus.value or ()] == gpus


# --- contradictions, gaps and what was understood ---------------------------------------------------------------------


def test_the_first_evidence_counts_and_the_other_is_told() -> None:
    found = read("Nvidia driver version: 535.54.03\nNvidia driver version: 550.54.15")
    assert found.snapshot.sections.nvml_versions.value is not None
    assert found.snapshot.sections.nvml_versions.value.driver == "535.54.03"
    assert found.conflicts == ("nvml_versions.driver: 535.54.03 (1.txt:1) and 550.54.15 (1.txt:2); the first was taken",)


def test_clocks_and_temperatures_that_changed_are_no_contradiction() -> None:
    hotter = TABLE.replace("39C", "71C").replace("  7% ", " 99% ").replace("11MiB /", "99MiB /")
    assert read(TABLE, hotter).conflicts == ()


def test_every_line_that_was_understood_is_named() -> None:
    found = read("hello\n" + COLLECT_ENV, "nothing here\n")
    assert {block.file for block in found.understood} == {"1.txt"}
    covered = {number for block in found.understood for number in range(block.first, block.last + 1)}
    assert covered == set(range(2, 2 + COLLECT_ENV.count("\n")))
    assert found.snapshot.origin.kind == "triage"
    assert read("nothing").understood == ()


def test_a_parser_that_fails_is_told_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lines: object) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(triage, "PARSERS", (triage.fact.Parser("broken", ("PyTorch",), broken), *triage.PARSERS))
    found = read(COLLECT_ENV)
    assert found.failures == ("the parser for broken failed on 1.txt: RuntimeError: boom",)
    assert found.snapshot.sections.torch_build.value is not None


def test_the_capability_follows_from_the_name_of_a_known_product() -> None:
    from dsdoctor.matrix import Knowledge

    gpus = Knowledge().matrix("gpus")
    completed = with_capabilities(read("GPU 0: NVIDIA L20 (UUID: GPU-1)\nGPU 1: NVIDIA X9000 (UUID: GPU-2)").snapshot, gpus)
    assert names(completed.sections.gpus, "compute_capability") == ["8.9", ""]


# --- recordings of real machines --------------------------------------------------------------------------------------

MOMENTARY = {
    "memory_used_bytes", "sm_clock_mhz", "memory_clock_mhz", "clock_event_reasons", "temperature_c", "temperature_margin_c", "memory_temperature_c",
    "power_w", "performance_state", "utilization_percent", "replay_count", "uuid", "where",
}  # fmt: skip


def same(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two plain values differ, in fields that both have and that do not change from moment to moment."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [found for key in one if key in other and key not in MOMENTARY for found in same(one[key], other[key], f"{path}.{key}")]
    return [] if one == other else [f"{path}: {one} and {other}"]


@needs_recordings
def test_text_and_xml_of_nvidia_smi_give_the_same_gpus() -> None:
    folder = RECORDINGS / "h200x4"
    text, xml, table = (to_plain(files(folder / name).gpus)["value"] for name in ("q.txt", "q.xml", "smi.txt"))
    assert [gpu["index"] for gpu in text] == [0, 1, 2, 3]
    assert [found for one, other in zip(text, xml) for found in same(one, other)] == []
    assert [found for one, other in zip(table, text) for found in same(one, other)] == []
    assert text[0]["fabric"]["state"] == "completed"


@needs_recordings
def test_the_parts_of_a_recording_agree_about_the_machine() -> None:
    folder = RECORDINGS / "h200"
    paths = [folder / name for name in sorted(os.listdir(folder)) if name.endswith((".txt", ".xml"))]
    found = triage.read([triage.open_document(str(path)) for path in paths])
    assert [conflict for conflict in found.conflicts if "kernel_release" not in conflict] == []
    known = found.snapshot.sections
    assert known.kernel_driver.value is not None
    assert known.limits.value is not None
    assert known.platform.value is not None
    assert (known.kernel_driver.value.version, known.kernel_driver.value.flavour) == ("580.159.04", "open")
    assert known.kernel_driver.value.options["NvLinkDisable"] == "1"
    assert (known.platform.value.os_version, known.platform.value.architecture) == ("24.04", "x86_64")
    assert known.limits.value["memlock"].soft is None
    assert known.shared_memory.value is not None
    assert known.shared_memory.value.total_bytes == 128 << 30


@needs_recordings
def test_what_nvml_said_live_and_what_nvidia_smi_printed_agree() -> None:
    example = Path(__file__).resolve().parents[1] / "dsdoctor" / "examples"
    import gzip

    live = next((json.loads(gzip.decompress(path.read_bytes())) for path in sorted(example.glob("*h200*healthy*.json.gz"))), None)
    if live is None:
        pytest.skip("no example of a healthy H200")
    pasted = to_plain(files(RECORDINGS / "h200" / "nvidia-smi-q.txt").gpus)["value"][0]
    recorded = live["sections"]["gpus"]["value"][0]
    differing = [found for found in same(pasted, recorded) if "pci_address" not in found and "board_part_number" not in found]
    assert differing == []


@needs_fixtures
@pytest.mark.parametrize("name", ["a100-sxm4-v12.xml", "rtx-3080-v13.xml", "rtx-4000-sff-ada-v13.xml", "tesla-t4.xml"])
def test_xml_of_other_products_and_drivers(name: str) -> None:
    found = files(FIXTURES / "telegraf" / name)
    (gpu,) = found.gpus.value or ()
    assert gpu.name
    assert gpu.pcie is not None
    assert gpu.memory_total_bytes is not None
    assert gpu.memory_total_bytes >= 10 << 30
    assert found.nvml_versions.value is not None


@needs_fixtures
def test_captures_of_many_commands_in_one_file_are_one_machine() -> None:
    for path in (FIXTURES / "nvidia_gpu_exporter").glob("*.txt"):
        found = triage.read([triage.open_document(str(path))])
        assert len(found.snapshot.sections.gpus.value or ()) == 1
        assert found.conflicts == ()
