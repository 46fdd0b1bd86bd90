"""What files and commands of a Linux node print, read by pure functions: the probes use them on this machine, triage on pasted text."""

from __future__ import annotations

import re

from dsdoctor.facts import Limit

# --- system -----------------------------------------------------------------------------------------------------------


def parse_os_release(text: str) -> dict[str, str]:
    """Names and values of an os-release file, shell quotes removed (os-release(5))."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*?)\s*$", line)
        if match:
            name, value = match.groups()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[name] = re.sub(r"\\([\"'$`\\])", r"\1", value)
    return found


LIMIT_NAMES = {
    "Max locked memory": "memlock",
    "Max open files": "nofile",
    "Max stack size": "stack",
    "Max processes": "nproc",
    "Max core file size": "core",
    "Max address space": "as",
}


def parse_limits(text: str) -> dict[str, Limit]:
    """Limits by short name from a text of /proc/PID/limits; bytes or counts."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(unlimited|[0-9]{1,20})\s+(unlimited|[0-9]{1,20})(\s|$)", line)
        if match and match[1] in LIMIT_NAMES:
            found[LIMIT_NAMES[match[1]]] = Limit(soft=_amount(match[2]), hard=_amount(match[3]))
    return found


def _amount(text: str) -> int | None:
    return None if text == "unlimited" else int(text)


# --- environment ------------------------------------------------------------------------------------------------------

PREFIXES = (
    "CUDA_", "NCCL_", "NVIDIA_", "NV_CUDA", "NV_CUDNN", "NV_LIBNCCL", "NVSHMEM_", "NVCC_", "CUBLAS_", "CUBLASLT_", "CUDNN_",
    "TRITON_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_",
    "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "FLASH_ATTENTION_", "FLASH_MLA_",
    "DEEP_", "DEEPEP_", "DEEPGEMM_", "DG_", "DJ_", "EP_", "GIN_", "MC_", "GDRCOPY_",
    "UCX_", "FI_", "OMPI_", "IBV_", "MLX5_", "GLOO_", "TP_", "RAY_",
)  # fmt: skip
NAMES = frozenset(
    {
        "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
        "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_OVERRIDE_CUDA",
        "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAHOSTCXX", "CUDAARCHS", "MAX_JOBS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "HOME", "TMPDIR", "XDG_CACHE_HOME",
        "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DISABLE_XET",
        "HF_XET_HIGH_PERFORMANCE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE",
        "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
        "SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND",
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES",
        "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "ENROOT_ROOTFS", "GPU_DEVICE_ORDINAL",
    }
)  # fmt: skip
SECRET_WORDS = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
SECRET_IN_VALUE = re.compile(r"[\"'][^\"']*(token|key|secret|passw|credential|auth|cookie)[^\"']*[\"']\s*:|\bBearer ", re.IGNORECASE)
"""Structured values, such as Ray's job configuration, carry whole environments."""
LOGIN_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
VALUE_LIMIT = 4096


def matters(name: str) -> bool:
    """Whether a variable bears on the stack and cannot hold a secret by its name."""
    return (name in NAMES or name.startswith(PREFIXES)) and not SECRET_WORDS.search(name)


def told_value(value: str) -> str:
    """A value as it is reported: logins in addresses left out, undecodable bytes replaced, cut to a page."""
    return LOGIN_IN_ADDRESS.sub("…@", readable(value))[:VALUE_LIMIT]


def readable(text: str) -> str:
    """Text of the system (a path, a variable) with a ? for each byte that is not UTF-8, so that it can be written everywhere."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- driver -----------------------------------------------------------------------------------------------------------

DRIVER_VERSION = r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"
"""A pattern for the driver's version: 580.159.04, 580.178, 535.54.03."""

RELEVANT_MODULES = (
    "nvidia", "nouveau", "nova", "vfio", "dxgkrnl", "ib_", "mlx", "rdma_", "iw_cm", "efa", "bnxt_re", "irdma", "gdrdrv", "nv_peer_mem",
    "amdgpu", "i915",
)  # fmt: skip


def parse_version(text: str) -> tuple[str, str]:
    """Version and flavour (open or proprietary) from /proc/driver/nvidia/version; two empty texts when it says neither."""
    match = re.search(r"^NVRM version:.*?\b(Open )?Kernel Module\b.*?\s(\d{2,4}\.\d+(?:\.\d+)?)(?=\s|$)", text, re.MULTILINE)
    return (match[2], "open" if match[1] else "proprietary") if match else ("", "")


def parse_plain_version(text: str) -> str:
    """The text itself where it is a driver version, else an empty text."""
    return text if re.fullmatch(r"\d{2,4}\.\d+(\.\d+)?", text) else ""


def version_of(path: str) -> str:
    """The driver version at the end of a library's file name, or an empty text."""
    match = re.search(r"\.so\.(\d{2,4}\.\d+(?:\.\d+)?)$", path)
    return match[1] if match else ""


# --- toolchain --------------------------------------------------------------------------------------------------------


def parse_tool_version(text: str) -> tuple[str, str]:
    """Build and CUDA release that nvcc or ptxas print: ("13.0.88", "13.0"); empty texts when they do not say."""
    match = re.search(r"release ([0-9]+\.[0-9]+), V([0-9]+(?:\.[0-9]+)+)", text)
    return (match[2], match[1]) if match else ("", "")


def parse_compiler_version(text: str) -> str:
    """Version in the first lines that `--version` of gcc, clang or nvc++ prints, empty when they do not say."""
    for line in text.splitlines()[:3]:
        match = re.search(r"clang version ([0-9]+(?:\.[0-9]+)+)", line) or re.match(
            r"\S+ \(.*\) ([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?=\s|$)", line
        )
        match = match or re.match(r"\S+ ([0-9]+\.[0-9]+)(?=[-\s]|$)", line)
        if match:
            return match[1]
    return ""


# --- the PCI bus ------------------------------------------------------------------------------------------------------

NVIDIA = "10de"
GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}
"""Transfer rate in GT/s to generation (PCI Express Base Specification)."""
WIDEST_LINK = 32


def kind_of(class_text: str, vendor_id: str) -> str:
    """gpu, nvswitch, nic or nvme by PCI class (`0x030200`) and vendor; empty for everything else."""
    code = class_text.lower().removeprefix("0x")[:4]
    if vendor_id == NVIDIA:
        kind = {"0300": "gpu", "0302": "gpu", "0680": "nvswitch"}.get(code)
        if kind:
            return kind
    return {"0200": "nic", "0207": "nic", "0108": "nvme"}.get(code, "")


def generation_of(text: str) -> int | None:
    """The PCIe generation of a link speed such as `32.0 GT/s PCIe`; None for `Unknown` and anything else."""
    match = re.match(r"\s*([0-9]{1,3}(?:\.[0-9])?) GT/s", text)
    return GENERATIONS.get(match[1]) if match else None


def width_of(text: str) -> int | None:
    """The number of lanes; None for 0 (no link), for the 63 or 255 of a device that does not answer, and for anything else."""
    width = int(text) if re.fullmatch(r"[0-9]{1,3}", text or "") else None
    return width if width is not None and 0 < width <= WIDEST_LINK else None


# --- libraries and packages -------------------------------------------------------------------------------------------

CUDA_LIBRARY = re.compile(
    r"lib(?P<name>cudart|cublasLt|cublas|cudnn(?:_\w+)?|nccl|nvshmem_host|nvrtc|cusparseLt|cusparse|nvJitLink)"
    r"(?:[-.][0-9a-f]{8})?\.so(?:\.(?P<version>\d+(?:\.\d+)*))?"
)
"""File names of the libraries that matter; auditwheel puts eight hexadecimal digits into the names of copies it bundles."""


def family_of(file_name: str) -> str:
    """cudart, cublas, cublaslt, cudnn, nccl, nvshmem, nvrtc, cusparselt, cusparse or nvjitlink; empty for other files."""
    match = CUDA_LIBRARY.fullmatch(file_name)
    return match["name"].lower().split("_")[0] if match else ""


def version_in_name(file_name: str) -> str:
    """The full version that a real file name carries (libcudnn.so.9.14.0); a single number is a soname, not a version."""
    match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", file_name)
    return match[1] if match else ""


def soname_in_name(file_name: str) -> str:
    """libcudart.so.13 for libcudart.so.13.0.96."""
    return re.sub(r"(\.so\.\d+)[.\d]*$", r"\1", file_name)


STACK = re.compile(
    r"torch|torchvision|torchaudio|torchao|torchdata|triton|pytorch-triton|triton-kernels|vllm|sglang|sgl-.*|sglang-kernel|flash-attn.*|flash-mla"
    r"|fa3-fwd|flashinfer.*|xformers|transformer-engine.*|deep-gemm|deep-ep|nvidia-.*|cuda-.*|tilelang|transformers|tokenizers|accelerate"
    r"|deepspeed|numpy|ray|compressed-tensors|xgrammar|outlines.*|lmcache|nixl.*|mooncake-.*|cupy-.*|apache-tvm-ffi|quack-kernels|kernels"
    r"|bitsandbytes|megablocks|grouped-gemm|causal-conv1d|mamba-ssm|apex|tensorrt.*|huggingface-hub|safetensors|packaging|setuptools"
)
"""Packages of the stack (normalised names): what the probe reads in full, and what a bare `name version` line is believed to be."""


def normalised(name: str) -> str:
    """The name by which indexes compare distributions (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
