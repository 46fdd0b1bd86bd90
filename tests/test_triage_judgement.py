"""What pasted logs prove: stories of engineers who pasted a few lines, and what they must and must not be told."""

from __future__ import annotations

import datetime
import fnmatch
import os
import random
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS, select
from dsdoctor.diagnose import diagnose
from dsdoctor.findings import Report, Severity, Status, Verdict
from dsdoctor.matrix import Knowledge
from dsdoctor.sources.triage import read
from dsdoctor.sources.triage.events import load_matcher
from dsdoctor.sources.triage.lines import document

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
OWN_CASES = Path(__file__).parent / "cases"
KNOWLEDGE = Knowledge()
TODAY = datetime.date(2026, 11, 29)

TOO_OLD = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update"
SYMBOL = "ImportError: /opt/env/vllm/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled"
E803 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination"
)
E802 = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
NOMEM = "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
LOAD_FAILED = "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory"
NOT_LOADED = "ERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when this kernel module was built against the wrong sources"
COMPANION_SYMBOL = (
    "OSError: /opt/env/lib/python3.11/site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameE"
)
OOM = "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacty of 79.19 GiB of which 15.06 MiB is free."
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
TRITON_KEY = "ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler'"


def triage(*texts: str) -> Report:
    parsed = read([document(f"{number}.txt", text + "\n") for number, text in enumerate(texts, 1)], load_matcher(KNOWLEDGE))
    return diagnose(parsed.snapshot, KNOWLEDGE, CHECKS, today=TODAY)


def checks(report: Report) -> list[str]:
    return [item.check for item in report.diagnosis]


def errors(report: Report) -> set[str]:
    return {item.check for item in report.diagnosis if item.severity is Severity.ERROR}


def words(report: Report) -> str:
    first = report.diagnosis[0]
    return f"{first.summary} {first.cause} {first.expected}"


def test_a_missing_driver_symbol_is_an_old_driver_and_no_abi_mismatch() -> None:
    report = triage("PyTorch version: 2.4.0+cu121\nCUDA used to build PyTorch: 12.1", f"{SYMBOL}\n{TOO_OLD}")
    assert checks(report)[0] == "driver.too-old-for-cuda"
    assert "package.abi-mismatch" not in checks(report)
    assert "11.4" in words(report)
    assert [item.where for item in report.diagnosis[0].evidence if "cuTensorMap" in item.value] == ["2.txt:1"]


def test_803_under_a_new_driver_never_asks_for_a_newer_one() -> None:
    report = triage("| NVIDIA-SMI 580.105.08   Driver Version: 580.105.08   CUDA Version: 13.0 |", E803)
    assert checks(report)[0] == "driver.compat-library-shadows"
    assert not any("upgrade the driver" in remedy.summary.lower() for remedy in report.diagnosis[0].remedies)


def test_803_beside_a_library_mismatch_is_the_mismatch() -> None:
    report = triage(f"Failed to initialize NVML: Driver/library version mismatch\n{E803}")
    assert errors(report) == {"driver.library-mismatch"}


@pytest.mark.parametrize(
    ("beside", "check"),
    [
        ("Unit nvidia-fabricmanager.service could not be found.", "fabric.manager-not-running"),
        (
            "fabric manager NVIDIA GPU driver interface version 550.54.14 don't match with driver version 550.54.15.",
            "fabric.manager-version-mismatch",
        ),
        ("", "fabric.not-initialized"),
    ],
)
def test_802_is_told_by_what_stands_beside_it(beside: str, check: str) -> None:
    assert check in errors(triage(f"{beside}\n{E802}"))


def test_a_second_device_under_mig_after_ray_and_alone() -> None:
    mig = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb     Device  0: (UUID: MIG-1)"
    assert "gpu.mig-limits" in errors(triage(mig, ORDINAL))
    assert checks(triage("ray start --head\nexport CUDA_VISIBLE_DEVICES=3,6", ORDINAL))[0] == "env.cuda-visible-devices"
    assert errors(triage(ORDINAL)) == set()  # it may be either: never an error on suspicion


@pytest.mark.parametrize(("torch", "triton", "wanted"), [("2.8.0", "3.5.0", "3.4"), ("2.8.0", "3.3.0", "3.4")])
def test_triton_too_new_and_too_old_have_one_message(torch: str, triton: str, wanted: str) -> None:
    report = triage(f"torch     {torch}\ntriton    {triton}", TRITON_KEY)
    assert checks(report)[0] == "package.triton-torch-mismatch"
    assert triton in words(report)
    assert wanted in words(report)


NO_IMAGE = "CUDA error ({}): no kernel image is available for execution on the device"
MLA_FILE, FA3_FILE, OTHER_FILE = "/w/.deps/flashmla-src/csrc/mla.cu:7", "/w/hopper/flash_fwd_launch_template.h:9", "/w/ext/rope.cu:3"


@pytest.mark.parametrize(
    ("file", "gpu", "check"),
    [
        (MLA_FILE, "A100-SXM4-80GB", "flashmla.requirements"),
        (FA3_FILE, "GeForce RTX 5090", "attention.fa3-unusable"),
        (FA3_FILE, "H200", "torch.lacks-gpu-arch"),
        (OTHER_FILE, "A100-SXM4-80GB", "torch.lacks-gpu-arch"),
    ],
)
def test_the_file_that_has_no_kernel_says_whose_it_is(file: str, gpu: str, check: str) -> None:
    report = triage(f"GPU 0: NVIDIA {gpu} (UUID: GPU-1)", NO_IMAGE.format(file))
    assert errors(report) == {check}
    assert gpu in words(report)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("AttributeError: type object 'CompiledKernel' has no attribute 'launch_enter_hook'", ("3.4", "2.7")),
        ("InductorError: AttributeError: 'KernelMetadata' object has no attribute 'cluster_dims'", ("3.6", "2.9")),
        ("TypeError: ASTSource.__init__() got an unexpected keyword argument 'constants'", ("constants",)),
        ("TypeError: jit() got an unexpected keyword argument 'launch_metadata'", ("launch_metadata",)),
    ],
)
def test_inner_interfaces_of_triton_tell_which_way_the_versions_differ(line: str, told: Sequence[str]) -> None:
    report = triage(line)
    assert errors(report) == {"package.triton-torch-mismatch"}
    assert all(word in words(report) for word in told)
    known = triage("torch     2.7.1\ntriton    3.5.0", line)
    assert "triton 3.3.1" in words(known)


def test_what_pip_says_of_a_broken_pin_is_a_warning_of_the_check_that_judges_it() -> None:
    said = (
        "torch 2.8.0 requires triton==3.4.0; platform_system == 'Linux', but you have triton 3.2.0 which is incompatible.",
        "torchvision 0.20.1+cu124 has requirement torch==2.5.1, but you have torch 2.6.0.",
        "vllm 0.8.5 requires torch==2.6.0, but you have torch 2.7.1 which is incompatible.",
        "tensorflow 2.19.0 requires numpy<2.2.0, but you have numpy 2.3.1 which is incompatible.",
    )
    found = triage(*said)
    assert errors(found) == set()
    assert sorted(checks(found)) == ["package.torch-companion-mismatch", "package.triton-torch-mismatch"]
    assert "triton==3.4.0" in words(triage(said[0]))
    assert checks(triage(said[2])) == ["package.pin-conflict"]  # alone; beside the others it follows from them
    assert checks(triage(said[3])) == []


@pytest.mark.parametrize("columns", [72, 80, 400])
def test_two_cudas_of_torch_and_its_companion_are_named(columns: int) -> None:
    source = '    raise RuntimeError("Detected that PyTorch and torchvision were compiled with different CUDA versions. "'
    said = (
        "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA versions. PyTorch has CUDA Version=12.4 "
        "and torchvision has CUDA Version=11.8. Please reinstall the torchvision that matches your PyTorch install."
    )
    minor = "UserWarning: The detected CUDA version (11.8) has a minor version mismatch with the version that was used to compile PyTorch (12.4)."
    report = triage(source, textwrap.fill(said, columns), minor)
    assert errors(report) == {"package.torch-companion-mismatch"}  # torch itself calls a minor mismatch of the toolkit no problem
    assert "11.8" in words(report)
    assert "12.4" in words(report)


@pytest.mark.parametrize(
    "line", ["RuntimeError: No such operator torchvision::nms", "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend."]
)
def test_a_missing_operator_names_the_pair_that_belongs_together(line: str) -> None:
    report = triage("torch==1.12.1+cu113\ntorchvision==0.11.2", line)
    assert checks(report)[0] == "package.torch-companion-mismatch"
    assert "0.11.2" in words(report)
    assert any("torchvision==0.13.1" in command for remedy in report.diagnosis[0].remedies for command in remedy.commands)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "The model's max seq len (65536) is larger than the maximum number of tokens that can be stored in KV cache (9120).",
            ("65536", "9120"),
        ),
        (
            "To serve at least one request with the models's max seq len (65536), (4.50 GiB KV cache is needed, which is larger than the available "
            "KV cache memory (1.25 GiB). Based on the available memory, the estimated maximum model length is 18192.",
            ("65536", "4.50 GiB", "1.25 GiB", "--max-model-len 18192"),
        ),
        ("INFO [gpu_worker.py:298] Available KV cache memory: -3.86 GiB", ("-3.86",)),
        ("# GPU blocks: 0, # CPU blocks: 512", ("KV cache",)),
        ("RuntimeError: Executor creation failed due to insufficient GPU memory.", ("TensorRT-LLM",)),
        (
            "ValueError: Free memory on device (7.10/23.64 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB).",
            ("7.10", "21.28"),
        ),
    ],
)
def test_the_memory_that_is_missing_is_told_in_figures(line: str, told: Sequence[str]) -> None:
    report = triage(line)
    assert errors(report) == {"capacity.does-not-fit"}
    assert all(word in words(report) for word in told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.20 GiB is free.",
            ("1.75 GiB", "1.20 GiB of 23.64 GiB"),
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; 14.56 GiB already allocated; 3.44 MiB free; 14.8 GiB reserved)",
            ("20.00 MiB", "3.44 MiB of 15.78 GiB"),
        ),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8849.72 MiB on device 0: cudaMalloc failed: out of memory",
            ("8849.72 MiB",),
        ),
        ("[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory", ("NVIDIA GeForce RTX 2080",)),
    ],
)
def test_memory_that_ran_out_is_told_with_what_was_asked_for(line: str, told: Sequence[str]) -> None:
    report = triage("  Device 0: NVIDIA GeForce RTX 2080, compute capability 7.5, VMM: yes", line)
    assert (checks(report)[0], errors(report)) == ("capacity.does-not-fit", set())
    assert all(word in words(report) for word in told)


def test_an_engine_without_a_cache_and_one_with_room_are_no_fault() -> None:
    assert errors(triage("# GPU blocks: 0, # CPU blocks: 0\nAvailable KV cache memory: 3.86 GiB")) == set()


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: Device compute capability 8.9 or higher required for FP8 execution.",
        "FP8 models require a GPU with Compute Capability 8.9 or higher (e.g., RTX 4090).",
        "AssertionError: Float8 dynamic activation quantization is only supported on CUDA>=8.9 and MI300+",
        "ptxas /tmp/k.ptx, line 31; error   : Feature 'cvt with .e4m3x2/.e5m2x2' requires .target sm_89 or higher",
        "API Usage Error (Networks with FP8 Q/DQ layers require hardware with FP8 support.)",
    ],
)
@pytest.mark.parametrize("gpu", ["GPU: 2x RTX3090 24G", "Device: cuda:0 NVIDIA GeForce RTX 3090 : cudaMallocAsync", "GPU 3090"])
def test_fp8_is_refused_in_many_words_and_the_gpu_is_named(line: str, gpu: str) -> None:
    report = triage(gpu, line)
    assert errors(report) == {"gpu.no-fp8"}
    assert "NVIDIA GeForce RTX 3090" in words(report)
    assert "8.6 (sm_86)" in words(report)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89. Current capability: 75.",
            "7.5",
        ),
        (
            "ValueError: FP8 quantized models is only supported on GPUs with compute capability >= 8.9 (e.g 4090/H100), actual = `8.0`",
            "8.0 (sm_80)",
        ),
    ],
)
def test_a_refusal_of_fp8_that_names_the_capability_is_quoted(line: str, told: str) -> None:
    assert told in triage(line).diagnosis[0].summary


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: vllm_flashmla_C is not available, likely was not compiled due to insufficient nvcc version",
        "RuntimeError: Dense decode MLA is only supported on SM90a architecture",
        "Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. Reason: ['compute capability not supported']",
    ],
)
def test_refusals_of_flashmla(line: str) -> None:
    assert errors(triage(line)) == {"flashmla.requirements"}


def test_pip_that_finds_no_set_names_both_wishes() -> None:
    report = triage('    The user requested triton==3.2.0\n    torch 2.8.0 depends on triton==3.4.0; platform_system == "Linux"')
    assert checks(report) == ["package.triton-torch-mismatch"]
    assert "triton==3.2.0" in words(report)


def test_no_space_left_is_shared_memory_where_the_line_says_so() -> None:
    shm = "NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 33030532 bytes, error: No space left on device (28)"
    assert errors(triage(shm)) == {"system.shm-too-small"}
    assert errors(triage("OSError: [Errno 28] No space left on device: '/data/model.bin'")) == {"system.disk-full"}
    torn = shm.replace("error: No", "error:\nNo")
    assert "system.disk-full" not in errors(triage(torn))


def test_registration_fails_for_other_reasons_than_memlock() -> None:
    assert "system.memlock-limited" in errors(triage("$ ulimit -l\n64", NOMEM))
    assert errors(triage("NCCL_BUFFSIZE=4294967296", NOMEM)) == {"env.invalid-value"}
    report = triage("max locked memory           (kbytes, -l) unlimited", NOMEM)
    assert "system.memlock-limited" not in checks(report)


NVML_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
NVRM_535 = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"
UNDEFINED_NCCL = "ImportError: /opt/env/torch/lib/libtorch_cuda.so: undefined symbol: ncclMemFree"
CUDNN_8 = "Could not load library libcudnn_cnn_infer.so.8. Error: libcudnn_cnn_infer.so.8: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("texts", "check", "said"),
    [
        (("   [[ System not yet initialized (error 802) ]]",), "fabric.not-initialized", ("802",)),
        (("cuda driver library init failure: 802",), "fabric.not-initialized", ("802",)),
        (("cudaGetDeviceCount returned 803\n-> unknown",), "driver.compat-library-shadows", ("803",)),
        (("   [[ Forward compatibility was attempted on non supported HW (error 804) ]]", "GPU: RTX 2080 Ti"),
         "driver.forward-compat-unsupported", ("804", "2080 Ti")),
        (("ImportError: /v/site-packages/grouped_mm.cpython-312-x86_64-linux-gnu.so: undefined symbol: cudaLibraryGetKernel, version libcudart.so.12",),
         "package.abi-mismatch", ("grouped", "libcudart.so.12")),
        (("OSError: /v/site-packages/torchaudio/lib/_torchaudio.abi3.so: undefined symbol: aoti_torch_abi_version",),
         "package.torch-companion-mismatch", ("torchaudio",)),
        (("RuntimeError: CUDA error: no kernel image is available for execution on the device",
          "NVIDIA GeForce RTX 5070 Ti with CUDA capability sm_120 is not compatible with the current PyTorch installation."),
         "torch.lacks-gpu-arch", ("5070 Ti", "sm_120")),
        (("error creating nvml.Device 5: nvml: GPU is lost",
          "Unable to determine the device handle for GPU 0000:A1:00.0: GPU is lost.  Reboot the system to recover this GPU"),
         "gpu.lost", ("A1:00.0",)),
        (("| NVIDIA-SMI 550.76.01              Driver Version: 552.22         CUDA Version: 12.4     |\n[1]    77 segmentation fault  nvidia-smi",),
         "wsl.unsupported", ("WSL", "552.22")),
        ((f"{NVML_MISMATCH}\nNVML library version: 550.90\n{NVRM_535}",), "driver.library-mismatch", ("550.90", "535.183.01")),
        (("NVRM: API mismatch: the client has the version 550.90.07, but\nNVRM: this kernel module has the version 535.183.01.",),
         "driver.library-mismatch", ("client of version 550.90.07", "535.183.01")),
        (("Error: API mismatch: the NVIDIA kernel module has version 535.183.01,\nbut this NVIDIA driver component has version 550.90.07.",),
         "driver.library-mismatch", ("client of version 550.90.07", "535.183.01")),
        ((NVML_MISMATCH, "nvidia-driver-NVML-550.90.07-1.el9.x86_64", NVRM_535), "driver.library-mismatch", ("550.90.07", "535.183.01")),
        (("    The detected CUDA version (11.8) mismatches the version that was used to compile\n    PyTorch (12.6). Please make sure to use the same CUDA versions.",),
         "toolchain.cuda-home-mismatch", ("11.8", "12.6")),
        ((UNDEFINED_NCCL, "nvidia-nccl-cu11==2.14.3\nnvidia-nccl-cu12==2.26.2"),
         "nccl.duplicate", ("nvidia-nccl-cu11 2.14.3 and nvidia-nccl-cu12 2.26.2", "ncclMemFree")),
        ((CUDNN_8, "nvidia-cudnn-cu12==9.10.2.21"), "cudnn.version-mismatch", ("cuDNN 8", "9.10.2.21 (nvidia-cudnn-cu12)")),
        ((CUDNN_8, "nvidia-cudnn-cu11==8.9.6.50"), "cudnn.version-mismatch", ("cuDNN 8", "in no folder", "8.9.6.50")),
        (("Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}",
          "ldconfig -p\n\tlibcudnn.so.8 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn.so.8"), "cudnn.version-mismatch", ("cuDNN 9", "8 (/usr/lib")),
        (("ncclSocketInit: connecting to address  with family 9 is neither AF_INET(2) nor AF_INET6(10)", "export NCCL_SOCKET_IFNAME=ens9"),
         "network.wrong-interface", ("NCCL_SOCKET_IFNAME is set to ens9",)),
        (("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ^lo",),
         "network.wrong-interface", ("^lo", "GLOO_SOCKET_IFNAME")),
        (("[gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:5311: Connection refused", "$ cat /etc/hosts\n127.0.0.1 localhost\n127.0.1.1 node-a"),
         "network.wrong-interface", ("resolves to 127.0.1.1", "GLOO_SOCKET_IFNAME")),
        (("CUDA SETUP: WARNING! libcuda.so not found! Do you have a CUDA driver installed?", "Linux pc 5.15.90.1-microsoft-standard-WSL2"),
         "wsl.libcuda-path", ("WSL", "libcuda")),
        (("RuntimeError: Found no NVIDIA driver on your system.", "Linux pc 5.15.90.1-microsoft-standard-WSL2", "libnvidia-compute-535:amd64   install"),
         "wsl.libcuda-path", ("libnvidia-compute-535", "hides")),
        (("E cuda_diagnostics.cc:313] kernel version 535.183.1 does not match DSO version 550.90.7 -- cannot find working devices",),
         "driver.library-mismatch", ("535.183.1", "550.90.7")),
        (("Installed CUDA version 11.8 does not match the version torch was compiled with 12.6, unable to compile cuda/cpp extensions",),
         "toolchain.cuda-home-mismatch", ("11.8", "12.6")),
        (("Every node should have a unique IP address. Got 2 nodes with node ids ['0a', '0b'] and 1 unique IP addresses {'127.0.0.1'}.",),
         "network.wrong-interface", ("VLLM_HOST_IP",)),
        (("UCX  WARN  network device 'eth7' is not available, please use one or more of: 'lo'(tcp)\nUCX  ERROR   no active messages transport to <no debug data>",),
         "network.wrong-interface", ("eth7", "UCX_NET_DEVICES")),
        ((LOAD_FAILED, "$ snap list docker\nName    Version\ndocker  27.2.0"), "container.no-gpu-access", ("snap", "libnvidia-ml.so.1")),
        ((LOAD_FAILED, "[nvidia-container-cli]\n  root = \"/run/nvidia/driver\""), "container.no-gpu-access", ("/run/nvidia/driver",)),
        ((LOAD_FAILED, "unix:///home/user/.docker/desktop/docker.sock"), "container.no-gpu-access", ("Docker Desktop",)),
        ((LOAD_FAILED, "| NVIDIA-SMI 570.124.06   Driver Version: 570.124.06   CUDA Version: 12.8 |"), "container.no-gpu-access", ("570.124.06",)),
        ((LOAD_FAILED,), "driver.absent", ("snap",)),
        (("Failed to initialize NVML: Unknown Error", "[nvidia-container-cli]\nno-cgroups=true"), "container.no-gpu-access", ("no-cgroups",)),
        (("Failed to initialize NVML: Unknown Error", "[nvidia-container-cli]\n#no-cgroups = false"), "container.cgroup-revoked", ("lost",)),
        (("UCX ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",),
         "system.memlock-limited", ("64 KiB",)),
        (("depmod: WARNING: /lib/modules/5.4.0-1.el8.x86_64/extra/nv_peer_mem.ko needs unknown symbol ib_register_peer_memory_client",),
         "rdma.peermem-missing", ("nv_peer_mem", "ib_register_peer_memory_client")),
        (("nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
          "lrwxrwxrwx 1 root root 16 Jan 1 10:00 default -> 5.15.0-90-generic"), "rdma.peermem-missing", ("5.15.0-90-generic", "nvidia_peermem")),
        (("NVSHMEM host library version (3.2.5) does not match with NVSHMEM device library version (3.3.9)",), "deepep.requirements", ("3.2.5 and 3.3.9",)),
        ((ORDINAL, "GPU: NVIDIA A100-SXM4-40GB MIG 2g.10gb"), "gpu.mig-limits", ("one MIG device",)),
        ((NOT_LOADED, "SecureBoot enabled"), "driver.module-unsigned", ("Secure Boot",)),
        ((NOT_LOADED, "The nouveau driver is still loaded"), "driver.wrong-module-bound", ("nouveau",)),
        (("Error 500: named symbol not found", "Server: Docker Desktop 4.30.0"), "wsl.unsupported", ("500", "Docker Desktop")),
        (("OSError: libcuda.so: cannot open shared object file: No such file or directory", "Microsoft Windows [Version 10.0.26100.1742]"),
         "wsl.libcuda-path", ("/usr/lib/wsl/lib",)),
        (("PermissionError: [Errno 13] Permission denied: '/.cache'",), "system.cache-not-writable", ("/.cache", "HOME")),
        (("OSError: [Errno 30] Read-only file system: '/.local'",), "system.cache-not-writable", ("/.local", "HOME")),
        (("KeyError: 'getpwuid(): uid not found: 1000650000'",), "system.cache-not-writable", ("1000650000",)),
        (("OSError: [Errno 28] No space left on device", "TMPDIR is /tmp, which is a tmpfs"), "system.disk-full", ("tmpfs", "/tmp")),
        ((NO_DRIVER, "Linux pc 5.15.90.1-microsoft-standard-WSL2"), "wsl.unsupported", ("Windows hands no GPU",)),
        (("Error: stat nvidia.com/gpu=all: no such file or directory",), "container.no-gpu-access", ("CDI",)),
        (('Error: setting up CDI devices: failed to inject devices: failed to stat CDI host device "/dev/dri/card7": no such file or directory',),
         "container.no-gpu-access", ("/dev/dri/card7", "CDI")),
        (("FAILED: fp8.cuda.o\n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nninja: build stopped: subcommand failed.",), "toolchain.no-nvcc", ("build",)),
        (("NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.8.3", "Linux pc 5.15.90.1-microsoft-standard-WSL2"),
         "wsl.unsupported", ("NCCL 2.8.3", "WSL")),
        (("OSError: libtorch_hip.so: cannot open shared object file: No such file or directory\n----> 1 import torchaudio", "torch==2.4.0+cu121"),
         "package.torch-companion-mismatch", ("torchaudio", "ROCm", "2.4.0+cu121")),
        (("NCCL INFO NET : Using interface docker0:172.17.0.1<0>\ninclude/socket.h:361 NCCL WARN Call to connect timeout : Connection refused",),
         "network.wrong-interface", ("docker0:172.17.0.1",)),
        (("sock.c:323  UCX  ERROR   connect(fd=42, dest_addr=172.17.0.1:54351) failed: Connection refused",), "network.wrong-interface", ("172.17.0.1",)),
        (("nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err -22)",), "rdma.peermem-missing", ("NVIDIA driver", "nvidia_p2p_get_pages")),
        (("depmod: WARNING: /lib/modules/5.4.0/extra/nv_peer_mem.ko needs unknown symbol ib_register_peer_memory_client",),
         "rdma.peermem-missing", ("ib_core", "ib_register_peer_memory_client")),
        (("docker run -p 8000:8000 \\\n  example/image:1 serve\nNo platform detected, vLLM is running on UnspecifiedPlatform",),
         "container.no-gpu-access", ("--gpus",)),
        ((COMPANION_SYMBOL, "* torch 2.4.1\n* torchaudio-2.1.0"), "package.torch-companion-mismatch", ("2.4.1", "2.1.0")),
        ((COMPANION_SYMBOL, "Successfully installed torch-2.3.0\nSuccessfully installed numpy-1.26.4 torch-2.4.1 torchaudio-2.1.0"),
         "package.torch-companion-mismatch", ("2.4.1", "2.1.0")),
        (("RuntimeError: cannot cache function 'scan': no locator available for file '/opt/env/lib/python3.11/site-packages/example/scan.py'",),
         "system.cache-not-writable", ("Numba", "NUMBA_CACHE_DIR")),
        (('Server error: Not enough memory to handle 32000 total tokens with 8192 prefill tokens. You need to decrease `--max-batch-total-tokens`',),
         "capacity.does-not-fit", ("32000 total tokens", "8192 prefill tokens")),
        (("RuntimeError: Failed: Assertion error /src/csrc/deep_ep.cpp:48 'num_ranks % LEGACY_NUM_MAX_NVL_PEERS == 0'",),
         "deepep.requirements", ("8 GPUs", "NVLink")),
        (("Failed: Assertion error deep_ep.cpp:30 'num_ranks <= NUM_MAX_NVL_PEERS * NUM_MAX_RDMA_PEERS or low_latency_mode'",),
         "deepep.requirements", ("more ranks", "160")),
        (("ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory",), "torch.cpu-only-build", ("CPU build", "libtorch_cuda.so")),
        (("ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory", "torch==2.4.0+cu121"),
         "package.abi-mismatch", ("libtorch_cuda.so",)),
        (("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",), "torch.cpu-only-build", ("CPU-only",)),
        ((" - torch==2.4.0+cu121\n + torch==2.4.0+cpu\nImportError: libc10_cuda.so: cannot open shared object file: No such file or directory",),
         "torch.cpu-only-build", ("2.4.0+cpu",)),
        (("Could not run 'aten::empty.memory_format' with arguments from the 'CUDA' backend.",), "torch.cpu-only-build", ("CPU-only",)),
        (("cuda driver library init failure: 500", "Windows 11, wsl2"), "wsl.unsupported", ("500", "toolkit")),
        (("Error 500: named symbol not found", "docker run --gpus all -v D:/models:/models example/image:1"), "wsl.unsupported", ("Windows", "toolkit")),
        (("docker run --gpus '\"device=4,5\"' -e \"CUDA_VISIBLE_DEVICES=4,5\" example/image:1",), "env.cuda-visible-devices", ("device=4,5", "or 0,1")),
        (("podman run --device nvidia.com/gpu=3 --env CUDA_VISIBLE_DEVICES=3 example/image:1",), "env.cuda-visible-devices", ("nvidia.com/gpu=3", "or 0")),
        (("PyTorch version: 1.4.0\nCUDA used to build PyTorch: 10.1\nIs CUDA available: No\nNvidia driver version: 410.79",),
         "driver.too-old-for-cuda", ("410.79", "10.1", "418.39")),
        (("ImportError: libnccl.so.2: cannot open shared object file: No such file or directory", "torch==2.11.0+cu130"),
         "nccl.missing", ("NCCL", "2.11.0+cu130", "nvidia-nccl-cu13")),
        (("ValueError: Cannot find libnccl.so.2 in the system.",), "nccl.missing", ("libnccl.so.2",)),
        (("Failed: CUDA error /opt/src/DeepEP/csrc/kernels/layout.cu:12 'named symbol not found'", "GPU: NVIDIA L20"),
         "deepep.requirements", ("DeepEP", "sm_89", "9.0")),
        (("enqueue.cc:58 NCCL WARN Cuda failure 500 'named symbol not found'", "NCCL version 2.21.5+cuda11.8"),
         "torch.lacks-gpu-arch", ("2.21.5", "no kernels")),
        (("NCCL WARN Cuda failure 500 'named symbol not found'", "Linux pc 5.15.90.1-microsoft-standard-WSL2"), "wsl.unsupported", ("WSL",)),
        (("Error named symbol not found at line 74 in file /opt/src/csrc/ops.cu",), "torch.lacks-gpu-arch", ("/opt/src/csrc/ops.cu",)),
        (("ImportError: /opt/env/deep_ep_cpp.abi3.so: undefined symbol: _ZN7deep_ep12internode_ll7combineEPv",),
         "deepep.requirements", ("without NVSHMEM", "undefined symbol")),
        (("Assertion error /opt/src/csrc/deep_ep.cpp:32 'num_rdma_ranks == 1 and \"NVSHMEM is disabled during compilation\"'",),
         "deepep.requirements", ("built without NVSHMEM",)),
        (("ImportError: /opt/env/deep_ep_cpp.abi3.so: undefined symbol: __cudaRegisterLinkedBinary_1f_9_layout_cu_2b",),
         "deepep.requirements", ("-dlink", "NVSHMEM")),
        (("ImportError: /opt/env/example_ext.abi3.so: undefined symbol: __cudaRegisterLinkedBinary_1f_9_layout_cu_2b",),
         "package.abi-mismatch", ("-rdc=true",)),
        (("nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",),
         "pcie.iommu-translation", ("0000:81:00.0", "IO_PAGE_FAULT", "iommu=pt")),
        (("ibrc.cpp:nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.", "nvidia_peermem         16384  0"),
         "rdma.peermem-missing", ("although it is loaded", "memory_peers")),
        (("ibrc.cpp:nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",),
         "rdma.peermem-missing", ("mostly nvidia_peermem is not loaded",)),
    ],
)  # fmt: skip
def test_the_error_names_what_stands_elsewhere_in_the_text(texts: Sequence[str], check: str, said: Sequence[str]) -> None:
    report = triage(*texts)
    assert checks(report)[0] == check
    assert check in errors(report)
    assert [item for item in said if item not in words(report)] == []


@pytest.mark.parametrize(
    ("texts", "check", "said"),
    [
        (("vllm serve example/Example-70B-Instruct", OOM), "capacity.does-not-fit", ("70 billion", "140 GB", "one GPU of 79.19 GiB")),
        (("vllm serve example/Example-70B-Instruct --tensor-parallel-size 4", OOM), "capacity.does-not-fit", ("140 GB", "shared by 4 GPUs")),
        (("vllm serve example/Example-33B --dtype float32", OOM), "capacity.does-not-fit", ("132 GB", "float32")),
        (("loading example/Example-70B-Chat", OOM), "capacity.does-not-fit", ("70 billion", "140 GB", "one GPU of 79.19 GiB")),
        (("加载Example-13B-Chat时出异常，CUDA out of memory. Tried to allocate 50.00 MiB",), "capacity.does-not-fit", ("Example-13B-Chat has 13", "26 GB")),
        (("GPU 0: NVIDIA L40S-24Q", "running Example-34B-Chat: CUDA out of memory"), "capacity.does-not-fit", ("L40S-24Q", "24 GB", "68 GB")),
        (("srun ./train\nmax locked memory       (kbytes, -l) 64",), "system.memlock-limited", ("64 KiB", "slurmd")),
        (("simpleP2P starts and then hangs",), "pcie.p2p-broken", ("P2P", "IOMMU", "ACS")),
        ((">>> t = torch.ones(3, device=cuda1)\n>>> t.to(cuda0)\ntensor([0., 0., 0.], device='cuda:0')",), "pcie.p2p-broken", ("zeros", "IOMMU")),
        (("the second GPU is running at PCIe 3.0 x4",), "pcie.link-degraded", ("3.0 x4",)),
        (("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 500: named symbol not found",), "wsl.unsupported", ("500", "Docker Desktop")),
        (("Failed to create a completion queue (CQ):\n\nRequested CQE: 4096\nError:    Cannot allocate memory",), "system.memlock-limited", ("memlock",)),
        (("/opt/src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.",), "deepep.requirements", ("GID",)),
        (("cat: /sys/kernel/mm/memory_peers/nv_mem/version: No such file or directory",), "rdma.peermem-missing", ("nvidia_peermem", "OFED")),
        (("RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 1024 vs 918",), "system.disk-full", ("disk is full",)),
        (("both root ports report ACSCtl: ReqRedir+ CmpltRedir+",), "pcie.acs-redirect", ("ACS", "IOMMU")),
        (('CUDA_VISIBLE_DEVICES="4,5" python train.py\nCall to cuInit results in CUDA_ERROR_NO_DEVICE',), "env.cuda-visible-devices", ("4,5",)),
        (("torch 2.4.1 has requirement triton==3.0.0; platform_system == \"Linux\", but you'll have triton 3.1.0 which is incompatible.",),
         "package.triton-torch-mismatch", ("triton 3.1.0", "triton==3.0.0")),
        (("Because torch==2.4.1 depends on triton{sys_platform == 'linux'}==3.0.0 and you require triton==3.1.0, we can conclude that",),
         "package.triton-torch-mismatch", ("torch 2.4.1", "triton==3.0.0")),
        (("The package `torch` requires `triton==3.0.0 ; sys_platform == 'linux'`, but `3.1.0` is installed",),
         "package.triton-torch-mismatch", ("triton 3.1.0", "triton==3.0.0")),
        (("services:\n  one:\n    image: example/image:1\n    environment:\n      NVIDIA_VISIBLE_DEVICES: \"2,3\"\n      CUDA_VISIBLE_DEVICES: \"2,3\"",),
         "env.cuda-visible-devices", ("counts them from 0", "or 0,1")),
        (("environment:\n  - CUDA_VISIBLE_DEVICES=1\n  device_ids: ['1']",), "env.cuda-visible-devices", ("device_ids: 1",)),
        (("the pod holds two MIG instances, and torch.cuda.device_count() returns 1",), "gpu.mig-limits", ("one MIG device",)),
        (("World size (2) is larger than the number of available GPUs (1) in this node.", "    nvidia.com/mig-2g.20gb: 2"), "gpu.mig-limits", ("single MIG device",)),
        (("8[0] -> 0[0] [send] via NET/IBext/0/GDRDMA\n8[0] -> 0[0] [receive] via NET/IBext/1",), "rdma.peermem-missing", ("one side", "nvidia-peermem")),
        (("why is there no GDRDMA?\n8[0] -> 0[0] [receive] via NET/IB/1",), "rdma.peermem-missing", ("not used", "nvidia-peermem")),
        (('DriverError(CUDA_ERROR_NOT_FOUND, "named symbol not found")', "in WSL2"), "wsl.unsupported", ("WSL", "kernel of that name")),
        (("NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",), "pcie.acs-redirect", ("GPUDirect", "error 81")),
        (("NET/IB: Got completion from peer 10.0.0.5<4001> with status=IBV_WC_LOC_PROT_ERR(4) opcode=0",), "pcie.acs-redirect", ("ACS", "ReqRedir")),
        (("creating CUDA Ctx\n Completion with error at client\n Failed status 4: wr_id 0 syndrom 0x51",), "pcie.acs-redirect", ("GPU memory",)),
        (("NCCL WARN NET/IB : Got completion with error 12, opcode 32594, len 1, vendor err 129",), "network.wrong-interface", ("status 12",)),
        (("NCCL version 2.18.1+cuda12.1\nNCCL version 2.20.5+cuda12.4\nNCCL WARN Message truncated : received 256 bytes instead of 4",),
         "nccl.version-differs", ("2.18.1 and 2.20.5", "256 bytes")),
        (("NCCL version 2.18.1+cuda12.1\nNCCL version 2.20.5+cuda12.4\nconnecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",),
         "nccl.version-differs", ("2.18.1 and 2.20.5", "on all ranks")),
        (("nvidia-nccl-cu12==2.27.1 hangs at the first collective\nnvidia-nccl-cu12==2.26.5 works",), "nccl.known-bad", ("2.27.1", "with 2.26.5")),
        (("| 2.27.1 | libnccl2 2.27.1-1+cuda12.9 | ❌ |\n| 2.26.5 | libnccl2 2.26.5-1+cuda12.9 | ✅ |",), "nccl.known-bad", ("2.27.1", "with 2.26.5")),
        (("Warning: `NVSHMEM_DIR` is not specified, and the NVSHMEM module is not installed. All internode and low-latency features are disabled",),
         "deepep.requirements", ("NVSHMEM",)),
    ],
)  # fmt: skip
def test_what_fits_well_and_is_not_proved_is_a_warning(texts: Sequence[str], check: str, said: Sequence[str]) -> None:
    report = triage(*texts)
    assert checks(report) == [check]
    assert errors(report) == set()
    assert [item for item in said if item not in words(report)] == []


def test_a_driver_that_is_not_loaded_under_secure_boot_names_the_signature_too() -> None:
    assert "driver.module-unsigned" in checks(triage(NO_DRIVER, "SecureBoot enabled"))
    assert "driver.module-unsigned" not in checks(triage(NO_DRIVER, "SecureBoot disabled"))


@pytest.mark.parametrize(("built_for", "first"), [("6.8.0-90-generic", "driver.module-unsigned"), ("6.8.0-88-generic", "driver.absent")])
def test_a_module_of_the_running_kernel_that_secure_boot_keeps_out_is_the_root(built_for: str, first: str) -> None:
    built = f"nvidia/580.95.05, {built_for}, x86_64: installed"
    report = triage("Kernel: 6.8.0-90-generic\nSecureBoot enabled", NO_DRIVER, built)
    assert next(item.check for item in report.diagnosis if item.severity is Severity.ERROR) == first
    assert errors(report) == {first}


def test_weights_of_quantised_models_are_not_reckoned_by_their_name() -> None:
    assert "billion" not in words(triage("vllm serve example/Example-70B-AWQ", OOM))
    assert "billion" not in words(triage("vllm serve example/Example-70B --quantization fp8", OOM))


@pytest.mark.parametrize(
    "texts",
    [
        ("$ python3 -m sglang.check_env\n/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nNVCC: Not Available",),
        ("bash: nvcc: command not found",),
        ("UserWarning: The detected CUDA version (12.1) has a minor version mismatch with the version that was used to compile PyTorch (12.4).",),
        ("Installed CUDA version 12.1 does not match the version torch was compiled with 12.4 but since the APIs are compatible, accepting this combination",),
        ("UCX  WARN  network device 'eth7' is not available, please use one or more of: 'lo'(tcp)",),
        ("Linux pc 5.15.90.1-microsoft-standard-WSL2\nii  libnvidia-compute-550:amd64   550.90.07-0ubuntu1  amd64  NVIDIA libcompute package",),
        ("AttributeError: /lib/x86_64-linux-gnu/libcuda.so: undefined symbol: undef",),
        ("ii  libnvidia-compute-550:amd64   550.90.07-0ubuntu1  amd64  NVIDIA libcompute package",),
        ("$ cat /etc/hosts\n127.0.0.1 localhost\n127.0.1.1 node-a",),
        ("[W tensorpipe_agent.cpp:180] Failed to look up the IP address for the hostname (EAI_NONAME: unknown node or service), defaulting to 127.0.0.1",),
        ("EFA internal error: (4112) Failure to post internal receive buffers",),
        ("Bootstrap : Using ens7:10.2.0.3<0>\nconnecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)", "export NCCL_SOCKET_IFNAME=ens7"),
        ("tensor([0., 0., 0.], device='cuda:1')",),
        ("Max locked memory         65536                65536                bytes",),
        ("srun ./train\nMax locked memory         65536                65536                bytes",),
        (NOT_LOADED,),
        ("RuntimeError: CUDA error: named symbol not found",),
        ("NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found",),
        ("NCCL WARN NET/IB : Got completion with error 5, opcode 32594, len 1, vendor err 249",),
        ("Failed status 4: wr_id 0 syndrom 0x51",),
        ("ahci 0000:02:00.1: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",),
        ("NCCL version 2.20.5+cuda12.4", "NCCL WARN Message truncated : received 256 bytes instead of 4"),
        ("NCCL version 2.18.5+cuda12.1", "NCCL version 2.20.5+cuda12.4"),
        ("NCCL 2.27.1 hangs with peer-to-peer.\nNCCL 2.27.1 works with NCCL_P2P_DISABLE set.",),
        ("NCCL 2.27.1 hangs on two nodes.",),
        ("the NVMe drive beside the GPU runs at x4",),
        ("the card runs at x8 instead of x16",),
        ("ib_md.c:1193 UCX WARN RDMA transports are disabled because max locked memory limit (64 kbytes) is too low.",),
        ("UserWarning: WARNING: No libcuda.so found! Install CUDA or the cudatoolkit (anaconda)!",),
        ("docker run \\\n  --gpus all \\\n  example/image:1 serve\nNo platform detected, vLLM is running on UnspecifiedPlatform",),
        ("There was a problem when trying to write in your cache folder (/.cache/huggingface/hub). You should set the environment variable",),
        ("Some attention backends are not valid for cuda. Reasons: {FLASHMLA: [compute capability not supported]}",),
        ("libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n    This will severely limit memory registrations.",),
        ("nouveau 0000:3b:00.0: DRM: VRAM: 8192 MiB", "services.xserver.videoDrivers = [ \"nvidia\" ];", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14"),
        ("|   0  NVIDIA A40                    TCC   |   00000000:3B:00.0 Off |                    0 |",),
        ("cuda graph capture of 802 batches, 0 failed, status ok in 803 ms", "HTTP error 802", "CUDA kernels returned after 804 steps"),
        ("| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |\nSegmentation fault (core dumped)",),
        ("Max locked memory         8388608              8388608              bytes",),
        ("RuntimeError: cannot cache function 'scan': no locator available for file '<stdin>'",),
        ("EP_HOST_ASSERT(num_ranks > NUM_MAX_NVL_PEERS or low_latency_mode);",),
        ("docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=2,3 -e CUDA_VISIBLE_DEVICES=2,3 example/image:1",),
        ("CUDA_VISIBLE_DEVICES=2,3 docker run --gpus '\"device=2,3\"' example/image:1",),
        ("8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n0[0] -> 8[0] [send] via NET/IB/1",),
        ("8[0] -> 0[0] [receive] via NET/IB/1",),
        ("nvidia.com/mig.capable=true\nonly one GPU is used",),
        ("PyTorch version: 1.4.0\nCUDA used to build PyTorch: 10.0\nIs CUDA available: No\nNvidia driver version: 410.79",),
        ("LnkCap:\tPort #0, Speed 16GT/s, Width x16\n\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)",),
    ],
)  # fmt: skip
def test_a_line_that_does_not_prove_the_fault_is_no_error(texts: Sequence[str]) -> None:
    assert errors(triage(*texts)) == set()


def test_a_narrow_link_in_lspci_is_judged_without_nvml() -> None:
    lspci = "41:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:27b8]\n\t\tLnkCap: Port #0, Speed 16GT/s, Width x16\n\t\tLnkSta: Speed 16GT/s, Width {}\n"
    assert checks(triage(lspci.format("x4 (downgraded)"))) == ["pcie.link-degraded"]
    assert checks(triage(lspci.format("x16"))) == []
    asked = "$ sudo lspci -vv -s 41:00.0 | grep Lnk\n" + lspci.format("x4 (downgraded)").partition("\n")[2]
    assert checks(
        triage(
            asked,
            "GPU 00000000:41:00.0\n    Product Name                          : NVIDIA L4\n    PCI\n        Bus Id                            : 00000000:41:00.0",
        )
    ) == ["pcie.link-degraded"]


def test_the_first_error_in_time_leads_and_what_follows_is_no_finding() -> None:
    report = triage(
        "INFO 11-29 13:00:00 loading\n"
        "/tmp/x/main.c:5:10: fatal error: Python.h: No such file or directory\n"
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc']' returned non-zero exit status 1.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
        "ncclSystemError: unhandled system error (run with NCCL_DEBUG=INFO for details)"
    )
    assert checks(report) == ["toolchain.no-python-headers"]
    assert report.diagnosis[0].evidence[0].where == "1.txt:2"


def test_what_only_logs_show_is_explained_and_filtered_like_any_other_check() -> None:
    line = "init.cc:1030 NCCL WARN Mismatched NCCL version detected : rank 0 version 22805 rank 8 version 23004"
    assert errors(triage(line)) == {"nccl.version-differs"}
    parsed = read([document("1.txt", line)], load_matcher(KNOWLEDGE))
    report = diagnose(parsed.snapshot, KNOWLEDGE, select(CHECKS, ignore=["nccl"]), today=TODAY)
    assert report.diagnosis == ()
    assert not any(item.check.startswith("nccl.") for item in report.outcomes)


def test_consequences_alone_are_no_diagnosis() -> None:
    report = triage("RuntimeError: Engine core initialization failed.\nWatchdog caught collective operation timeout: WorkNCCL(SeqNum=2)")
    assert report.diagnosis == ()
    assert report.verdict is Verdict.UNKNOWN


def test_several_causes_are_named_in_order_with_what_tells_them_apart() -> None:
    report = triage("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)")
    doubted = [item for item in report.outcomes if any("causes that fit" in doubt.reason for doubt in item.doubts)]
    assert {item.check for item in doubted} == {"gpu.lost", "driver.open-module-required", "driver.too-old-for-gpu"}
    assert all(item.status is Status.UNKNOWN and item.settle for item in doubted)
    assert report.verdict is Verdict.UNKNOWN  # the kernel log holds no Xid, and yet nothing is healthy


def test_lines_join_the_evidence_of_what_facts_show() -> None:
    report = triage(
        "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   64M   0% /dev/shm",
        "NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637888 bytes",
    )
    found = [item for item in report.diagnosis if item.check == "system.shm-too-small"]
    assert len(found) == 1
    assert any(item.where == "2.txt:1" for item in found[0].evidence)
    assert found[0].severity is Severity.ERROR


def test_ordinary_lines_prove_nothing() -> None:
    report = triage(
        "NCCL version 2.28.9+cuda13.0\nNET/IB : No device found.\nUsing network Socket\n"
        "NVLS multicast support is not available on dev 0\nChannel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nInit COMPLETE"
    )
    assert report.diagnosis == ()


def test_what_stands_in_a_line_enters_no_command_unquoted() -> None:
    report = triage("ImportError: /x/evil$(reboot)_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi")
    assert not any("$(reboot)" in command for item in report.diagnosis for remedy in item.remedies for command in remedy.commands)


# --- cases ------------------------------------------------------------------------------------------------------------


def cases() -> list[Any]:
    folders = [OWN_CASES, SHARED / "cases"]
    paths = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yaml"))]
    return [pytest.param(yaml.safe_load(path.read_text(encoding="utf-8")), id=path.stem) for path in paths]


def accepted() -> Mapping[str, Sequence[str]]:
    sys.path.insert(0, str(SHARED / "tools"))
    try:
        return pytest.importorskip("score_cases").ACCEPTED
    finally:
        sys.path.pop(0)


def patterns_of(case: Mapping[str, Any]) -> list[str]:
    also = case.get("also") or []
    classes = [case.get("class", "healthy"), *([also] if isinstance(also, str) else also)]
    return [pattern for name in classes for pattern in accepted().get(name, ())]


COARSER = {"nouveau-secureboot": ("driver.absent",)}
"""What is also true, and all that can be said, when the lines that tell more are missing."""


def foreign_errors(case: Mapping[str, Any], report: Report) -> set[str]:
    right = [*patterns_of(case), *COARSER.get(case.get("class", "healthy"), ())]
    return {check for check in errors(report) if not any(fnmatch.fnmatch(check, pattern) for pattern in right)}


@pytest.mark.parametrize("case", cases())
def test_a_case_raises_no_other_error(case: Mapping[str, Any]) -> None:
    assert foreign_errors(case, triage(*(block["text"] for block in case["evidence"]))) == set()


def rewrapped(text: str, columns: int) -> str:
    """As a mail program wraps it: at spaces, words stay whole."""
    wrap = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(part for line in text.split("\n") for part in wrap.wrap(line) or [""])


@given(st.sampled_from(cases()), st.integers(60, 100))
@settings(max_examples=60, deadline=None)
def test_rewrapped_evidence_never_becomes_another_error(parameter: Any, columns: int) -> None:
    case = parameter.values[0]
    assert foreign_errors(case, triage(*(rewrapped(block["text"], columns) for block in case["evidence"]))) == set()


@pytest.mark.parametrize("columns", [60, 72, 80, 100])
def test_a_message_that_was_wrapped_is_read_as_one(columns: int) -> None:
    lines = f"INFO 11-29 13:00:00 loading the model\n{SYMBOL}\n{E803}\n{NOMEM}"
    whole, wrapped = triage(lines), triage(rewrapped(lines, columns))
    assert checks(wrapped) == checks(whole)
    assert [item.value for item in wrapped.diagnosis[0].evidence] == [item.value for item in whole.diagnosis[0].evidence]


def test_a_wrapped_message_is_told_with_the_line_on_which_its_meaning_begins() -> None:
    report = triage(f"some words in front\n\n{rewrapped(E803, 60)}")
    assert report.diagnosis[0].evidence[0].where == "1.txt:4"
    assert report.diagnosis[0].evidence[0].value.startswith("Error 803")


def test_an_option_on_the_next_line_of_a_wrapped_command_counts() -> None:
    command = "docker run --gpus all --network host --shm-size 64g --ulimit memlock=-1 --privileged example/image:1.0 serve"
    failure = "/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar"
    report = triage(rewrapped(command, 72), failure)
    assert "with --privileged it has" not in words(report)


@given(st.sampled_from(cases()), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_cut_shuffled_and_prefixed_evidence_never_becomes_another_error(parameter: Any, chance: random.Random) -> None:
    case = parameter.values[0]
    blocks = [block["text"] for block in case["evidence"]]
    change = chance.choice(("drop", "cut", "prefix", "shuffle"))
    if change == "drop":
        blocks.pop(chance.randrange(len(blocks)))
    elif change == "cut":
        blocks = [text[: chance.randrange(len(text) + 1)] for text in blocks]
    elif change == "prefix":
        blocks = ["\n".join(f"(EngineCore_DP0 pid=123) {line}" for line in text.split("\n")) for text in blocks]
    else:
        chance.shuffle(blocks)
    assert foreign_errors(case, triage(*blocks or [""])) == set()


SKIPPED = "WARN: device {} is not enumerated as an mlx5 device. Skipping..."
NO_IBGDA = "/opt/src/nvshmem/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA"


@pytest.mark.parametrize(
    ("alone", "beside", "check"),
    [
        ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", "nouveau 0000:3b:00.0: DRM: VRAM", "driver.wrong-module-bound"),
        ("Kernel module load error: Operation not permitted", "SecureBoot enabled", "driver.module-unsigned"),
        (
            "factory.go:101] Incompatible strategy detected auto",
            "GPU 0: NVIDIA L40S (UUID: GPU-11111111-2222-3333-4444-555555555555)",
            "container.no-gpu-access",
        ),
        ("Error getting device: nvml: Insufficient Permissions", '"migStrategy": "single",', "gpu.mig-limits"),
        (SKIPPED.format("rocep3s0f0"), NO_IBGDA, "deepep.requirements"),
        ("nouveau 0000:3b:00.0: DRM: VRAM: 8192 MiB", 'videoDrivers = [ "nvidia" ];', "driver.wrong-module-bound"),
        ("ValueError: No GPU memory values found.", "We serve it on a MIG slice", "gpu.mig-limits"),
        (
            "CUDA error (/build/hopper/flash_fwd_launch_template.h:176): invalid argument",
            "GPU: NVIDIA L40S",
            "attention.fa3-unusable",
        ),
        (
            "|   0  NVIDIA L40S                   TCC   |   00000000:3B:00.0 Off |                    0 |\nWSL2",
            "Failed to initialize NVML: GPU access blocked by the operating system",
            "wsl.unsupported",
        ),
        (
            "/opt/env/bin/serve: error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file: No such file",
            "docker run -it --user 1001 example/image:2",
            "system.python-unreadable",
        ),
    ],
)
def test_a_line_that_others_print_in_health_is_an_error_only_beside_what_settles_it(alone: str, beside: str, check: str) -> None:
    assert (errors(triage(alone)), checks(triage(alone))) == (set(), [check])
    assert check in errors(triage(f"{beside}\n{alone}"))


def test_the_graver_of_two_lines_leads() -> None:
    report = triage(f"{SKIPPED.format('irdma0')}\n/opt/src/ibgda/ibgda.cpp:18: NULL value cannot allocate mlx5dv_devx_uar\n{NO_IBGDA}")
    assert "no access to the NIC's DEVX objects" in report.diagnosis[0].summary
    assert any("irdma0" in item.value for item in report.diagnosis[0].evidence)


def test_a_gpu_for_a_virtual_machine_is_no_error() -> None:
    bound = "NVRM: GPU 0000:3b:00.0 is already bound to vfio-pci.\nNVRM: The NVIDIA probe routine was not called for 1 device(s)."
    assert (errors(triage(bound)), checks(triage(bound))) == (set(), ["driver.wrong-module-bound"])


SCRIPT = "import torch\nprint(torch.__version__)\nprint(torch.cuda.is_available())\n{version}\nFalse\nGPU: NVIDIA GeForce RTX 3060"
CLIENT = (
    "kernel: NVRM: API mismatch: the client has the version 384.81, but\nkernel: NVRM: this kernel module has the version 384.90.  Please"
)
HOPPER_KERNEL = "CUDA error (/opt/src/flash-attention/hopper/flash_fwd_launch_template.h:188): invalid argument"
TRACED = "ioctl(31, RDMA_VERBS_IOCTL, 0x7ffd00000000) = -1 ENOMEM (Cannot allocate memory)\n"
DEVICE_1 = 'Invalid CUDA device index "1" from device string ,1,2, there are 1 visible CUDA devices.'
NO_GPUS = "RuntimeError: No CUDA GPUs are available"


@pytest.mark.parametrize(
    ("text", "check", "told"),
    [
        ("unable to execute ':/usr/local/cuda-12.4/bin/nvcc': No such file or directory", "toolchain.cuda-home-mismatch", "no folder"),
        ("FileNotFoundError: No such file or directory: '/opt/cuda/bin/bin/nvcc'", "toolchain.cuda-home-mismatch", "/opt/cuda/bin"),
        ("[1/9] :/opt/cuda/bin/nvcc -isystem :/opt/cuda/include -c a.cu", "toolchain.cuda-home-mismatch", ":/opt/cuda"),
        ("MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)", "toolchain.no-nvcc", "nvcc"),
        (CLIENT, "driver.library-mismatch", "384.90 refuses a client of version 384.81"),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.158", "driver.library-mismatch", "570.158"),
        ("Found GPU0 Quadro GV100 which is of compute capability (CC) 7.0.", "torch.lacks-gpu-arch", "7.0"),
        ('undefined symbol: "ncclCommWindowRegister"', "nccl.shadowed", "ncclCommWindowRegister"),
        ("import failed with GLIBC_2.34 not found\nglibc 2.31", "system.glibc-too-old", "2.34"),
        ("ModuleNotFoundError: No module named 'triton. common'", "package.triton-torch-mismatch", "Triton 3 took away"),
        (SCRIPT.format(version="2.1.0+cpu"), "torch.cpu-only-build", "2.1.0+cpu"),
        (f"{HOPPER_KERNEL}\n- GPU: NVIDIA RTX 5090 (Blackwell, sm_120)", "attention.fa3-unusable", "12.0"),
        (f"{HOPPER_KERNEL}\nit fails on my RTX 5090", "attention.fa3-unusable", "12.0"),
        (f'os.environ["CUDA_VISIBLE_DEVICES"] = "2"\n{NO_GPUS}', "env.cuda-visible-devices", "set to 2"),
        (
            "warning: failed to mlock 4096000-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
            "system.memlock-limited",
            "4096000",
        ),
        ("Try increasing RLIMIT_MEMLOCK ('ulimit -l' as root).", "system.memlock-limited", "may not lock"),
        ("panic: io_uring_setup: cannot allocate memory", "system.memlock-limited", "may not lock"),
        ("vfio_pin_pages_remote: RLIMIT_MEMLOCK (65536) exceeded", "system.memlock-limited", "64 KiB"),
        (
            f"{TRACED}prlimit64(0, RLIMIT_MEMLOCK, NULL, {{rlim_cur=64*1024, rlim_max=RLIM64_INFINITY}}) = 0",
            "system.memlock-limited",
            "64 KiB",
        ),
        ("NCCL WARN Error: failed to extend /dev/shm/nccl-AbC123 to 33030532 bytes, error: No space", "system.shm-too-small", "33030532"),
        ("Failed to start nvml with error:  could not load NVML library", "container.no-gpu-access", "NVML"),
        (
            "export CUDA_VISIBLE_DEVICES=1,4,7\nopenmm.OpenMMException: Illegal value for DeviceIndex: 7",
            "env.cuda-visible-devices",
            "device 2.",
        ),
        ("ValueError: No slot '4' specified on host 'localhost'", "env.cuda-visible-devices", "(4)"),
        ("MisconfigurationException: You requested gpu: [1]\n But your machine only has: [0]", "env.cuda-visible-devices", "does not see"),
        ("ValueError: Invalid CUDA 'device=3' requested.", "env.cuda-visible-devices", "(3)"),
        (
            "InvalidArgumentError: Device id must be less than GPU count, but received id is: 1. GPU count is: 1.",
            "env.cuda-visible-devices",
            "(1)",
        ),
        ('CUDA_VISIBLE_DEVICES=5,2 python a.py\ndevice = torch.device("cuda:2")', "env.cuda-visible-devices", "it is cuda:1."),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "5"\nmodel.to("cuda:1")', "env.cuda-visible-devices", "process 1"),
        ("Attempting to deserialize object on CUDA device 6 but torch.cuda.device_count() is 2.", "env.cuda-visible-devices", "cuda:6"),
        ("export CUDA_VISIBLE_DEVICES=2\nException: No GPU found, cannot train", "env.cuda-visible-devices", "set to 2"),
        ("export CUDA_VISIBLE_DEVICES=1\ntorch.cuda.is_available() is FALSE", "env.cuda-visible-devices", "set to 1"),
        (f"we booked three MIG instances\n{DEVICE_1}", "gpu.mig-limits", "one MIG device only"),
        (f"train --gpu MIG-11111111-2222-3333-4444-555555555555\n{ORDINAL}", "gpu.mig-limits", "one MIG device only"),
        (f"our cluster uses multi-instance GPUs\n{ORDINAL}", "gpu.mig-limits", "one MIG device only"),
        (
            "it runs on a MIG slice\nWorld size (2) is larger than the number of available GPUs (1) in this node.",
            "gpu.mig-limits",
            "single MIG device",
        ),
        ("export CUDA_VISIBLE_DEVICES=2\nfailed call to cuInit: CUDA_ERROR_NO_DEVICE", "env.cuda-visible-devices", "set to 2"),
        ("AssertionError: Invalid device id", "env.cuda-visible-devices", "does not see"),
        ("RuntimeError: /job:localhost/replica:0/task:0/device:GPU:1 unknown device.", "env.cuda-visible-devices", "(1)"),
        ("rdma_create_qp: Cannot allocate memory", "system.memlock-limited", "memlock"),
        ("Unable to initialize shared memory key 'region_1' to requested size (67108864 bytes).", "system.shm-too-small", "67108864"),
        (
            "A system call failed during shared memory initialization that should\nnot have.\n\n  Error:  No space left on device (errno 28)",
            "system.shm-too-small",
            "MPI",
        ),
        ("NCCL INFO Bootstrap : Using [0]ip6tnl0:fe80::1:2%ip6tnl0<0> [1]eth0:10.0.0.4<0>", "network.wrong-interface", "ip6tnl0"),
    ],
)
def test_one_fault_is_known_by_each_of_its_texts(text: str, check: str, told: str) -> None:
    finding = next(finding for finding in triage(text).diagnosis if finding.check == check)
    assert told in f"{finding.summary} {finding.cause}"
    assert finding.remedies


@pytest.mark.parametrize(
    "text",
    [
        "[1/9] /usr/local/cuda/bin/nvcc -isystem /usr/local/cuda/include -c a.cu\nexport PATH=/opt/bin:/usr/local/cuda/bin:$PATH",
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        SCRIPT.format(version="2.5.1+cu124").replace("False", "True"),
        f"{HOPPER_KERNEL}\nGPU: NVIDIA H100",
        "works on my RTX 4090 and on an H100; the wheel needs GLIBC_2.34",
        "Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.",
        "$ nvcc --version\nCuda compilation tools, release 12.4, V12.4.131\nexport CUDA_HOME=/usr/local/cuda",
        'export CUDA_VISIBLE_DEVICES=4,5\ndevice = torch.device("cuda:1")',
        'CUDA_VISIBLE_DEVICES=0 python a.py\nCUDA_VISIBLE_DEVICES=0,1 python b.py\nmodel.to("cuda:1")',
        "CUDA_VISIBLE_DEVICES=$1 python a.py --gpu_id 3",
        "CUDA_VISIBLE_DEVICES=$A,$B python a.py\nCUDA_VISIBLE_DEVICES={i} python a.py\nCUDA_VISIBLE_DEVICES=$(seq 2) python a.py",
        "CUDA_VISIBLE_DEVICES=${GPUS:-0} python a.py\nCUDA_VISIBLE_DEVICES=<id> python a.py",
        f"{TRACED}getrlimit(RLIMIT_MEMLOCK, {{rlim_cur=RLIM64_INFINITY, rlim_max=RLIM64_INFINITY}}) = 0",
    ],
)
def test_what_only_resembles_a_fault_is_none(text: str) -> None:
    assert not [finding for finding in triage(text).diagnosis if finding.severity is not Severity.INFO]


SETPCI = "for port in $(lspci | grep PLX | cut -d' ' -f1); do sudo setpci -s $port {register}; done"
BARE_QP = "node-a:31:77 [2] misc/ibvwrap.cc:280 NCCL WARN Call to ibv_create_qp failed"
API_MISMATCH = (
    "[    8.1] NVRM: API mismatch: the client 'nvidia-smi' (pid 811)\n"
    "               NVRM: has the version 580.95.05, but this kernel module has\n"
    "               NVRM: the version 580.82.07.  Please make sure that this"
)
OLD_NCCL = "Last error:\nInvalid config blocking attribute value -2147483648"
MESH = "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] {said}"


@pytest.mark.parametrize(
    ("text", "check", "told"),
    [
        (API_MISMATCH, "driver.library-mismatch", ("580.82.07", "user space (nvidia-smi) is 580.95.05")),
        (API_MISMATCH.replace("[    8.1]", "node-a kernel:"), "driver.library-mismatch", ("580.82.07", "580.95.05")),
        (" ".join(API_MISMATCH.replace("NVRM: has", "has").replace("NVRM: the", "the").split()), "driver.library-mismatch", ("580.82.07", "580.95.05")),
        ("NVRM: API mismatch: the client has the version 580.95.05, but#012NVRM: this kernel module has the version 580.82.07.  Please#012NVRM: make",
         "driver.library-mismatch", ("580.82.07", "580.95.05")),
        ("# NVRM: API mismatch: client version 580.95.05, kernel module version 580.82.07", "driver.library-mismatch", ("580.82.07", "580.95.05")),
        (f"{NVML_MISMATCH}\n$ cat /sys/module/nvidia/version\n580.82.07\n$ modinfo nvidia | grep ^version\nversion:        580.95.05",
         "driver.library-mismatch", ("580.82.07", "the one on disk is 580.95.05")),
        (f"{OLD_NCCL}\ntorch==2.4.0\nNCCL version 2.16.5+cuda11.8", "nccl.shadowed", ("2.16.5", "2.20.5", "torch 2.4.0")),
        (f"{OLD_NCCL.replace('blocking', 'splitShare')}\nnvidia-nccl-cu11==2.14.3\nnvidia-nccl-cu12==2.20.5", "nccl.duplicate", ("nvidia-nccl-cu11 2.14.3",)),
        (SETPCI.format(register="f2a.w") + "\n0000\n001d", "pcie.acs-redirect", ("001d", "P2P")),
        ("sudo setpci -v -s 03:08.0 ECAP_ACS+0x6.w\n0000:03:08.0 (ecap 0d @f24) @f2a = 005f", "pcie.acs-redirect", ("005f",)),
        (MESH.format(said="no error"), "network.wrong-interface", ("Gloo", "interface")),
        (MESH.format(said="SO_ERROR: Connection timed out, remote=[10.8.0.7]:20411"), "network.wrong-interface", ("a peer at 10.8.0.7",)),
        (MESH.format(said="SO_ERROR: Connection refused, remote=[127.0.1.1]:20411"), "network.wrong-interface", ("loopback",)),
        (MESH.format(said="\n  timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:20411"), "network.wrong-interface", ("loopback",)),
        ("[../gloo/transport/tcp/pair.cc:799] connect [10.8.0.7]:31882: No route to host", "network.wrong-interface", ("10.8.0.7",)),
        ("NCCL INFO NET/Socket : Using [0]eno1:10.8.0.4<0> [1]docker0:172.17.0.1<0>", "network.wrong-interface", ("docker0 (172.17.0.1)",)),
        ("NCCL INFO Bootstrap : Using [0]eno1:10.8.0.4<0> [1]eno2:fe80::1:2%eno2<0>", "network.wrong-interface", ("eno2 (fe80::1:2)",)),
        ("RuntimeError: Failed to connect to GCS at address 172.17.0.2:6379 within 5 seconds.", "network.wrong-interface", ("172.17.0.2, port 6379",)),
        (f"{BARE_QP}\nRunning\n```srun bash -c \"ulimit -l\"```\nI get 64.", "system.memlock-limited", ("64 KiB in the Slurm job",)),
        (f"{BARE_QP}\n`ulimit -l` in the container returns 8192", "system.memlock-limited", ("8192 KiB",)),
        (f"{BARE_QP}\nulimit -l:\n65536", "system.memlock-limited", ("65536 KiB",)),
        ("RuntimeError: Sparse Attention Forward Kernel is only supported on SM90a and SM100f architectures.\n- GPU: NVIDIA RTX 5090",
         "flashmla.requirements", ("RTX 5090", "SM120")),
        ("RuntimeError: Unsupported architecture for sparse decode fwd", "flashmla.requirements", ("SM100f",)),
        ("RuntimeError: Dense decode MLA is only supported on SM90a architecture", "flashmla.requirements", ("dense decode",)),
        ("enqueue.cc:58 NCCL WARN Cuda failure 'invalid device function'\nNCCL version 2.4.8\nGPU: NVIDIA GeForce RTX 3090",
         "torch.lacks-gpu-arch", ("2.4.8", "RTX 3090")),
        ("torch 2.6.0 requires nvidia-nccl-cu12==2.21.5; platform_system == \"Linux\", but you have nvidia-nccl-cu12 2.19.3 which is incompatible.",
         "nccl.shadowed", ("2.21.5", "2.19.3")),
        ("training hangs on two cards, but works when I set NCCL_P2P_DISABLE=1", "pcie.p2p-broken", ("NCCL_P2P_DISABLE=1",)),
        ("Setting `NCCL_P2P_DISABLE=1` solved it, at half the speed.", "pcie.p2p-broken", ("ACS",)),
        ("[c10d] The client socket has failed to connect to any network address of (node-a, 29500).", "network.wrong-interface", ("node-a, port 29500",)),
        (f"{NVML_MISMATCH}\n$ dkms status\nnvidia/580.95.05, 6.8.0-90-generic, x86_64: installed\n{NVRM_535}", "driver.library-mismatch",
         ("535.183.01", "580.95.05")),
        (f"{NVML_MISMATCH}\nnvidia-utils 580.95.05-1\n{NVRM_535}", "driver.library-mismatch", ("535.183.01", "580.95.05")),
        (f"{NVML_MISMATCH}\n{NVRM_535}", "driver.library-mismatch", ("535.183.01",)),
        ("ib_iface.c:988  UCX  ERROR iface=0x1: failed to create UD QP TX wr:256 sge:6: Cannot allocate memory\n$ ulimit -l\n64",
         "system.memlock-limited", ("64 KiB",)),
        ("Couldn't allocate MR\nfailed to create mr\n$ ulimit -l\n64", "system.memlock-limited", ("64 KiB",)),
        ("UserWarning: The NVIDIA driver on your system is too old (found version 11040).\nDriver Version: 470.223.02   CUDA Version: 11.4 NVIDIA-SMI",
         "driver.too-old-for-cuda", ("470.223.02", "11.4")),
    ],
)  # fmt: skip
def test_the_summary_names_what_the_text_tells(text: str, check: str, told: tuple[str, ...]) -> None:
    finding = next(finding for finding in triage(text).diagnosis if finding.check == check)
    said = f"{finding.summary} {finding.cause}"
    assert all(word in said for word in told), said
    assert finding.remedies


@pytest.mark.parametrize(
    "text",
    [
        SETPCI.format(register="f2a.w") + "\n0000\n0000\n0011",
        SETPCI.format(register="f2a.w=0000") + "\n001d",
        "001d\n000c",
        f"{BARE_QP}\nulimit -l unlimited",
        f"{BARE_QP}\nulimit -l is unlimited here",
        "ulimit -l 64",
        "docker run --gpus all -e CUDA_VISIBLE_DEVICES=\"$gpus\" -e NCCL_ALGO=${ALGO:-Ring} -e NCCL_DEBUG=<level> pytorch/pytorch",
        "docker run --gpus all ubuntu nvidia-smi\nNVML library version: 580.95.05",
        "NCCL INFO NET/Socket : Using [0]eno1:10.8.0.4<0> [1]docker0:172.17.0.1<0>\ncomm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "Invalid config blocking attribute value 5",
        "It does not work with NCCL_P2P_DISABLE=1 either.",
        "It runs fine without NCCL_P2P_DISABLE=1.",
        "Use NCCL_P2P_DISABLE=1 to switch P2P off. Everything works here.",
        "The client socket has timed out after 60000ms while trying to connect to (localhost, 29500).",
        "Couldn't allocate MR\nfailed to create mr",
        "NCCL INFO NET/Socket : Using [0]eno1:10.8.0.4<0> [1]eno2:10.9.0.4<0>",
    ],
)  # fmt: skip
def test_what_tells_nothing_wrong_is_no_finding(text: str) -> None:
    assert not checks(triage(text))


@pytest.mark.parametrize("said", ["MIG mode is Disabled", "we are not using MIG", "|  MIG M. |", "with MIG disabled"])
def test_a_device_that_is_not_there_is_no_matter_of_mig_that_is_off(said: str) -> None:
    assert checks(triage(f"{said}\n{ORDINAL}")) == ["env.cuda-visible-devices"]
