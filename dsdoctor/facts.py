"""What can be known about a node: the sections of a snapshot and the records in them.

Facts only: nothing here judges, probes or prints. Every record is frozen plain data, written to and read from JSON by
`dsdoctor.plain`. Units are in the names; sizes are bytes, times are seconds, temperatures are degrees Celsius, powers are watts.

A fact that is missing is never a zero or an empty text. A whole section that is missing says so in its `state`; a single value that is
missing inside a record is `None`, and the record's `missing` says why where the source told us.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar

from dsdoctor.record import dataclass

SCHEMA = "dsdoctor.snapshot/1"

T = TypeVar("T")


class State(enum.Enum):
    """How much is known of a section or value."""

    KNOWN = "known"
    ABSENT = "absent"
    """Looked for, and not there (no torch in this environment)."""
    UNREADABLE = "unreadable"
    """It may be there, but it could not be read (no permission, an error, a deadline passed)."""
    NOT_ASKED = "not_asked"
    """Nobody looked, or the evidence does not say."""


@dataclass(frozen=True, slots=True)
class Section(Generic[T]):
    """One group of facts with its state; `value` is set exactly when the state is known."""

    state: State
    value: T | None = None
    why: str = ""
    found_via: str = ""
    elapsed_s: float = 0.0


def known(value: T, found_via: str = "") -> Section[T]:
    """A section whose facts were found."""
    return Section(State.KNOWN, value, "", found_via)


def absent(why: str, found_via: str = "") -> Section[Any]:
    """A section whose subject does not exist on this node."""
    return Section(State.ABSENT, None, why, found_via)


def unreadable(why: str, found_via: str = "") -> Section[Any]:
    """A section that could not be read, and why."""
    return Section(State.UNREADABLE, None, why, found_via)


def not_asked(why: str = "not asked") -> Section[Any]:
    """A section nobody looked for, and why."""
    return Section(State.NOT_ASKED, None, why)


NOT_ASKED: Section[Any] = not_asked()


@dataclass(frozen=True, slots=True)
class Missing:
    """Why one value of a record is None."""

    state: State
    why: str


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Operating system and processor architecture (`os-release`, `uname`)."""

    os_id: str = ""
    """`ID` of os-release: ubuntu, debian, rhel, rocky, sles …"""
    os_id_like: tuple[str, ...] = ()
    os_version: str = ""
    os_name: str = ""
    """`PRETTY_NAME` of os-release."""
    kernel_release: str = ""
    architecture: str = ""
    """x86_64 or aarch64."""
    boot_id: str = ""
    """Hashed; tells whether two snapshots come from one boot."""
    uptime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Libc:
    """The C library of the node or container."""

    family: str
    """glibc or musl."""
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Libstdcxx:
    """One libstdc++.so.6 that a process here may load."""

    path: str
    highest_glibcxx: str
    """Highest symbol version it provides, such as 3.4.30."""
    origin: str
    """system, conda or wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    index: int
    cpus: str
    """Kernel list format: 0-47,96-143."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    model: str = ""
    vendor: str = ""
    logical_cpus: int | None = None
    usable_cpus: int | None = None
    """What the affinity mask and the cgroup quota leave to this process."""
    sockets: int | None = None
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory in bytes."""

    total_bytes: int
    available_bytes: int | None = None
    swap_bytes: int | None = None
    cgroup_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One resource limit; None means unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who runs the doctor (numbers only, no names)."""

    uid: int
    effective_capabilities: int | None = None
    """`CapEff` of /proc/self/status as a bit mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The file system at /dev/shm, in bytes."""

    path: str
    total_bytes: int
    free_bytes: int
    mount_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory that the stack writes to: a cache, a temporary directory, the home directory."""

    purpose: str
    """triton-cache, torch-extensions, huggingface-cache, vllm-cache, cuda-cache, tmp, home …"""
    path: str
    configured_by: str = ""
    """The environment variable that names it, or empty for the default."""
    exists: bool
    writable: bool | None = None
    """Of the directory, or of its nearest existing parent."""
    free_bytes: int | None = None
    free_inodes: int | None = None
    total_bytes: int | None = None
    file_system: str = ""
    mount_options: tuple[str, ...] = ()
    why: str = ""
    """Why something is unknown or refused: 'the file system gave no answer …' (`exists` says nothing then), '… is not a directory'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """One file system that this process can reach; where it comes from (server, device) is never collected."""

    path: str
    file_system: str
    """ext4, xfs, nfs4, lustre, fuse.juicefs …"""
    options: tuple[str, ...] = ()
    """Without those that name servers, users or directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container this process runs in (the section is absent on a plain host)."""

    runtime: str
    """docker, containerd, podman, enroot, apptainer, lxc, systemd-nspawn or unknown."""
    kubernetes: bool = False
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wsl:
    version: int
    kernel_release: str = ""
    libcuda_directory: str = ""
    """/usr/lib/wsl/lib where it exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtualization:
    """The hypervisor under this machine (the section is absent on bare metal)."""

    hypervisor: str
    """kvm, firecracker, vmware, hyperv, xen, gvisor, nitro or unknown."""
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """One /dev file that CUDA or RDMA needs."""

    path: str
    openable: bool | None
    """Whether this process may open it for reading and writing."""
    mode: str = ""
    why: str = ""
    """The error text when it is not openable: 'Operation not permitted' is a device cgroup, 'Permission denied' is file mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    name: str
    value: str
    """The value as the process sees it; secrets are never collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """One network interface or RDMA adapter that this process can use; addresses are never collected."""

    name: str
    kind: str
    """ethernet, infiniband, virtual (loopback, bridge, bond, tunnel …), rdma (an adapter such as mlx5_0) or other."""
    up: bool | None = None
    """Up and with a carrier; of an adapter: some port is active."""
    loopback: bool = False
    speed_mbit_per_s: int | None = None


# --- the driver -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDriver:
    """The loaded NVIDIA kernel module (the section is absent when none is loaded)."""

    version: str
    flavour: str = ""
    """open, proprietary or empty."""
    options: Mapping[str, str] = field(default_factory=dict)
    """/proc/driver/nvidia/params: NvLinkDisable, RegistryDwords …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverModuleFile:
    """The nvidia kernel module on disk, that the next load or boot would take."""

    path: str
    version: str | None = None
    signed: bool | None = None
    signer: str = ""
    missing: Mapping[str, Missing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureBoot:
    enabled: bool
    lockdown: str = ""
    """none, integrity or confidentiality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModules:
    """Names of loaded kernel modules that matter here (nvidia*, nouveau, nova_core, vfio_pci, ib_*, mlx5_*, gdrdrv, nv_peer_mem …)."""

    names: tuple[str, ...]
    asked_for: tuple[str, ...] = ()
    """Where only some names were asked for (`lsmod | grep`): those; the absence of any other name then means nothing."""
    complete: bool = False
    """Every loaded module is among the names; otherwise only those that matter here are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLibrary:
    """One copy of a user-space driver library."""

    soname: str
    """libcuda.so.1, libnvidia-ml.so.1, libnvidia-ptxjitcompiler.so.1 …"""
    path: str
    """Where it really is, links followed."""
    version: str = ""
    """From the file name or the library; empty when it carries none."""
    kind: str
    """driver, compat (cuda-compat), stub or wsl."""
    found_via: str
    """LD_LIBRARY_PATH, ld.so.cache, ld.so.conf, default-directory or search."""
    loaded_first: bool = False
    """The copy that a process started now would load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One system service: nvidia-fabricmanager, nvidia-persistenced, nvidia-imex, nvidia-dcgm."""

    name: str
    state: str
    """active, activating, inactive, failed, not-installed or unknown."""
    version: str = ""
    found_via: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One Xid event of the kernel log."""

    code: int
    pci_address: str
    text: str
    seconds_since_boot: float | None = None
    where: str = ""
    """File and line, for pasted logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogLine:
    """A kernel log line about the driver or the bus that is not an Xid."""

    text: str
    seconds_since_boot: float | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the kernel log of this boot says about GPUs."""

    xids: tuple[Xid, ...] = ()
    lines: tuple[KernelLogLine, ...] = ()
    """NVRM, AER and nouveau lines, newest last, at most a few hundred."""


# --- NVML -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlStart:
    """What nvmlInit answered; known whenever the library could be tried."""

    library: str
    """Path of the libnvidia-ml that was loaded, or the name that was not found."""
    error_code: int | None = None
    """NVML return code, None when it started; 12 library not found, 9 driver not loaded, 18 library/driver mismatch."""
    error_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlVersions:
    driver: str
    nvml: str = ""
    cuda_driver: str = ""
    """Highest CUDA version of the libcuda that NVML found: 13.0."""
    gpu_count: int | None = None
    """How many GPUs NVML counts, also when only some of them were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EccCounters:
    """Uncorrected and corrected ECC errors."""

    volatile_uncorrected: int | None = None
    volatile_corrected: int | None = None
    aggregate_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    sram_threshold_exceeded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemappedRows:
    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredPages:
    """Memory pages that were taken out of use; GPUs before Ampere, which cannot remap rows."""

    single_bit: int | None = None
    """Pages retired for several corrected errors."""
    double_bit: int | None = None
    """Pages retired for an uncorrectable error."""
    pending: bool | None = None
    """Pages wait for the next reset to be retired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link; generation as 1 to 6, width in lanes."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    replay_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One NVLink of one GPU."""

    index: int
    active: bool
    version: int | None = None
    speed_mb_per_s: int | None = None
    remote: str = ""
    """PCI address of the other end, or a kind such as switch."""
    replay_errors: int | None = None
    recovery_errors: int | None = None
    crc_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricState:
    """The GPU's registration with the NVSwitch fabric."""

    state: str
    """not-supported, not-started, in-progress or completed."""
    status: str = ""
    """NVML text of the registration's result."""
    status_code: int | None = None
    cluster_uuid: str = ""
    clique_id: int | None = None
    health_mask: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    kind: str
    """compute or graphics."""
    used_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    index: int
    uuid: str = ""
    name: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML (or pasted nvidia-smi output) describes it. None = not known; see `missing`."""

    index: int
    name: str = ""
    uuid: str = ""
    pci_address: str = ""
    """Lower case domain:bus:device.function, such as 0000:00:06.0."""
    pci_device_id: str = ""
    """Vendor and device: 10de:2335."""
    minor_number: int | None = None
    compute_capability: str = ""
    """9.0, 10.0, 12.0 …"""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    ecc_enabled: bool | None = None
    ecc_pending: bool | None = None
    ecc: EccCounters | None = None
    remapped_rows: RemappedRows | None = None
    retired_pages: RetiredPages | None = None
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset …"""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    """Decoded bits: gpu_idle, sw_power_cap, hw_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, sw_thermal_slowdown …"""
    temperature_c: int | None = None
    temperature_margin_c: int | None = None
    """Degrees left to the slowdown threshold."""
    memory_temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_limit_w: float | None = None
    persistence_mode: bool | None = None
    compute_mode: int | None = None
    """0 default, 2 prohibited, 3 exclusive process."""
    performance_state: int | None = None
    utilization_percent: int | None = None
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: FabricState | None = None
    processes: tuple[GpuProcess, ...] | None = None
    vbios_version: str = ""
    inforom_version: str = ""
    gsp_firmware: str = ""
    board_part_number: str = ""
    numa_node: int | None = None
    virtualization_mode: str = ""
    """none, passthrough, vgpu …"""
    lost: bool = False
    """NVML answered 'GPU is lost' for it."""
    where: str = ""
    """File and line, for pasted output."""
    missing: Mapping[str, Missing] = field(default_factory=dict)


# --- the PCI bus ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AerCounters:
    """Errors that a device reported through PCIe Advanced Error Reporting since boot (`aer_dev_*` of sysfs)."""

    correctable: int | None = None
    nonfatal: int | None = None
    fatal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """A GPU, NVSwitch, NIC, NVMe disk or a bridge above one of them."""

    address: str
    kind: str
    """gpu, nvswitch, nic, nvme, bridge or other."""
    vendor_id: str = ""
    device_id: str = ""
    driver: str = ""
    """Bound kernel driver (nvidia, nouveau, nova_core, vfio-pci, mlx5_core, pcieport …), empty when none."""
    parents: tuple[str, ...] = ()
    """Addresses of the bridges above, nearest first."""
    root: str = ""
    """Host bridge, such as pci0000:00."""
    numa_node: int | None = None
    link: PcieLink | None = None
    iommu_group: int | None = None
    acs_redirect: bool | None = None
    """Request or completion redirect on, read from configuration space (root only)."""
    interfaces: tuple[str, ...] = ()
    """Network or InfiniBand names of a NIC: mlx5_0, eth0."""
    aer: AerCounters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """One port of an RDMA adapter (`/sys/class/infiniband`)."""

    adapter: str
    """mlx5_0, bnxt_re0, efa_0 …"""
    port: int = 1
    link_layer: str = ""
    """InfiniBand or Ethernet (RoCE)."""
    state: str = ""
    """down, init, armed or active."""
    physical_state: str = ""
    """linkup, polling, disabled …"""
    rate_gbit_per_s: float | None = None
    link_downed: int | None = None
    """How often the link went down since the adapter was started."""
    firmware: str = ""
    board_id: str = ""
    """The board that the firmware was made for; two boards have two firmwares."""
    adapter_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iommu:
    enabled: bool
    mode: str = ""
    """translated, passthrough or empty when unknown."""
    evidence: str = ""


# --- toolchain --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaToolkit:
    """One CUDA toolkit or one wheel that carries nvcc or ptxas."""

    path: str
    version: str = ""
    """Of the toolkit (version.json) or its nvcc: 13.0.88 is the build of CUDA 13.0."""
    cuda_version: str = ""
    """major.minor."""
    nvcc: str = ""
    ptxas: str = ""
    is_cuda_home: bool = False
    is_first_on_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCompiler:
    name: str
    """gcc, g++, cc, clang, nvcc's -ccbin …"""
    path: str
    version: str = ""
    chosen_by: str = ""
    """CC, CXX, NVCC_CCBIN, CUDAHOSTCXX or PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonHeaders:
    """Where Python.h of the target interpreter should be."""

    include_directory: str
    present: bool


# --- the target interpreter -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The patient's Python."""

    path: str
    chosen_by: str
    """--python, VIRTUAL_ENV, CONDA_PREFIX or own."""
    version: str = ""
    implementation: str = ""
    prefix: str = ""
    base_prefix: str = ""
    kind: str = ""
    """venv, conda, uv, system."""
    site_packages: tuple[str, ...] = ()
    abi_tag: str = ""
    """cp312, cp314t …"""
    externally_managed: bool = False
    start_error: str = ""
    """Why the interpreter did not start or did not answer; the rest then comes from files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed distribution, read from its dist-info."""

    name: str
    """Normalised name (PEP 503)."""
    version: str
    location: str = ""
    installer: str = ""
    requires: tuple[str, ...] = ()
    """Requires-Dist lines, kept for packages of the stack only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConflict:
    """Two distributions that own the same file, so that the last one installed won."""

    path: str
    packages: tuple[str, ...]
    holder: str = ""
    """The one of them whose recorded size and content the file has now; empty where neither or both fit, or the file is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """What torch/version.py says, without an import."""

    version: str
    """2.11.0+cu130."""
    cuda: str | None = None
    """13.0; None for a CPU build."""
    hip: str | None = None
    git_version: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRuntime:
    """What torch said when a child of the target interpreter imported it."""

    imported: bool
    import_error: str = ""
    """Last line of the traceback, such as an undefined symbol."""
    cuda_available: bool | None = None
    cuda_error: str = ""
    """Exact text of torch.cuda.init() when it failed."""
    cuda_error_code: int | None = None
    device_count: int | None = None
    device_capabilities: tuple[str, ...] = ()
    arch_list: tuple[str, ...] = ()
    """torch.cuda.get_arch_list(): sm_90, compute_90 …"""
    driver_cuda: str = ""
    """cuDriverGetVersion of the libcuda that was really loaded: 13.0."""
    runtime_cuda: str = ""
    cudnn_version: str = ""
    """Version of the library that was loaded at run time."""
    cudnn_error: str = ""
    operation_error: str = ""
    """What the first small operations on the GPU said when one failed."""
    nccl_compiled: str = ""
    """torch.cuda.nccl.version(): the headers torch was built with, not the loaded library."""
    nccl_loaded: str = ""
    """ncclGetVersion of the mapped libnccl."""
    import_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLibrary:
    """One copy of a CUDA library on disk."""

    family: str
    """cudart, cublas, cublaslt, cudnn, nccl, nvshmem, nvrtc, cusparselt …"""
    soname: str
    path: str
    version: str = ""
    origin: str
    """wheel, system, toolkit, conda or bundled (inside another package)."""
    package: str = ""
    """Owning distribution or OS package."""
    cuda_major: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderHit:
    """Where the dynamic loader, started in the target environment, finds a soname."""

    family: str
    soname: str
    path: str
    via: str
    """LD_PRELOAD, ld.so.preload, RPATH, LD_LIBRARY_PATH, RUNPATH, ld.so.cache, default-directory or site-packages."""
    asked_by: str = ""
    """Name of the file whose RPATH or RUNPATH it is, else of the library that asks."""
    configured_by: str = ""
    """Of what the loader's cache holds: the file of /etc/ld.so.conf.d that names its folder; empty for the system's own folders."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedLibrary:
    """A library that was really mapped: in the child that used torch, or in the process that is examined (/proc/PID/maps)."""

    family: str
    soname: str
    path: str
    version: str = ""
    origin: str = ""
    """wheel, system, toolkit, conda, bundled or driver; empty: not known."""
    package: str = ""
    """Owning distribution or OS package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSymbol:
    symbol: str
    """As the loader names it in its error."""
    provider: str = ""
    """Library that should provide it: libc10, libtorch_cuda, libcuda, libcudart, libc, libstdc++."""
    readable: str = ""
    """The C++ name without arguments, such as c10::cuda::SetDevice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A compiled extension of a package of the stack, read from its ELF header."""

    package: str
    package_version: str = ""
    path: str
    needed: tuple[str, ...] = ()
    missing_libraries: tuple[str, ...] = ()
    """NEEDED sonames found neither beside it, nor in torch, nor in any NVIDIA wheel, nor by the loader."""
    missing_symbols: tuple[MissingSymbol, ...] = ()
    """Undefined symbols that the installed torch or driver does not export."""
    highest_glibc: str = ""
    highest_glibcxx: str = ""
    cuda_major: int | None = None
    """From libcudart.so.N in NEEDED."""
    gpu_targets: tuple[str, ...] = ()
    """sm_90a, sm_100 … when its fatbin was read."""
    import_error: str = ""
    """What importing it said, where a log or another tool tells; what our own child said is in `module_imports`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleImport:
    """What a child said that imported a package of the stack, or opened one of its extensions, after torch."""

    package: str
    """Normalised name of the distribution."""
    module: str
    """Module that was imported, or path of the extension that was opened where the import did not load it."""
    outcome: str
    """imported, failed, crashed or hung."""
    error: str = ""
    """Last line of the traceback, name of the signal, or how long it was waited for."""
    callables: tuple[str, ...] = ()
    """Public functions and classes of the module, sorted, at most 100."""
    loaded: tuple[str, ...] = ()
    """Extensions of the package that were mapped after the import."""
    elapsed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """How fast the files of a model directory were read, in a test of a few seconds."""

    path: str
    files: int
    """How many files there were to read from."""
    direct: bool
    """Whether the sequential and random tests went past the page cache (O_DIRECT); where they did not, cached data was read faster."""
    cached_share: float | None = None
    """Share of the files that lay in the page cache before, from 0 to 1; None where the kernel does not tell."""
    sequential_bytes_per_s: float
    """Blocks of 8 MiB, four readers."""
    mapped_bytes_per_s: float
    """Through a mapping of the files, one reader, with the page cache."""
    random_read_s: float
    """Median time to read 4 KiB at a random place, one reader."""
    read_bytes: int
    elapsed_s: float


# --- smoke tests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """One GPU test through one implementation on one GPU (or pair, or all of them), as its child reported it."""

    test: str
    """fp8-gemm, fp8-block, fa3, attention, triton, bf16-rate, fp8-rate, memory-copy, pcie, p2p, collectives …"""
    path: str = ""
    """Which implementation ran: torch._scaled_mm, torch.nn.functional.scaled_mm, triton, deepgemm, fa3-fwd, sdpa-cudnn …"""
    gpu: int | None = None
    """NVML index; None when the test concerns several GPUs or none."""
    outcome: str
    """ran (numbers are there), refused (this path cannot run here), error (it raised), crash (killed by a signal), hang (deadline passed)
    or skipped (not tried)."""
    reason: str = ""
    """Exact text of the refusal or error, signal name, or why it was skipped."""
    values: Mapping[str, float] = field(default_factory=dict)
    """rel_error, calc_diff, tflops, gb_per_s, first_call_s, sm_clock_mhz, power_w …; units are in the names."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Texts that belong to the numbers: shape, dtype, clock_event_reasons, backend, versions."""
    stderr_tail: str = ""
    elapsed_s: float = 0.0


# --- looking twice ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterGrowth:
    """One counter at two moments."""

    gpu: int | None = None
    """NVML index; None for a counter of another device."""
    device: str = ""
    """PCI address, for counters of the bus."""
    counter: str
    """Path of the value in its record: pcie.replay_count, ecc.volatile_uncorrected, nvlinks.crc_errors (all links), nvlinks[3].crc_errors."""
    before: int
    after: int

    @property
    def grown(self) -> int:
        """By how much; 0 when it fell, as a reset makes it."""
        return max(0, self.after - self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How counters grew between two readings."""

    seconds: float
    under_load: bool = False
    """Whether the GPU tests ran in between."""
    counters: tuple[CounterGrowth, ...] = ()

    def of_gpu(self, index: int, counter: str) -> CounterGrowth | None:
        """A counter of a GPU."""
        return next((item for item in self.counters if item.gpu == index and item.counter == counter), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """How long states that settle by themselves were waited for (`--settle`)."""

    waited_s: float
    settled: tuple[str, ...] = ()
    """What was in motion and came to rest: 'fabric of GPU 0', 'nvidia-imex'."""
    unsettled: tuple[str, ...] = ()
    """What was still in motion at the end."""


# --- pasted logs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of the stack in pasted text: what was started, and how."""

    program: str
    """vllm serve, sglang.launch_server, torchrun, docker run, pip install …"""
    text: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Long options by name, the last value of each; `model` or `image` for the main argument."""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """A line of a pasted log that a row of matrices/log-signatures describes."""

    signature: str
    """Id of the row."""
    text: str
    where: str = ""
    """File and line."""
    order: int = 0
    """Position among all lines that were read."""
    captures: Mapping[str, str] = field(default_factory=dict)
    """What the pattern's named groups hold: versions, paths, symbols."""
    times: int = 1
    """How often lines of this signature stood in the text; only the first ones are kept."""


# --- what the user named ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """A checkpoint directory that the user named, by its configuration and the headers of its shards."""

    name: str
    """The last part of its path."""
    shards: int
    bytes_on_disk: int
    problems: tuple[str, ...] = ()
    """What contradicts what, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What one request brought."""

    path: str
    status: int | None = None
    """None: no answer."""
    error: str = ""
    """Why there is no answer, or why it could not be read whole."""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the models endpoint."""

    id: str
    max_model_len: int | None = None
    """Tokens of the longest request that the engine takes."""
    root: str = ""
    """What the engine loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswers:
    """What the service said that the user named."""

    url: str
    health: HttpAnswer
    listing: HttpAnswer
    """Of the models endpoint."""
    models: tuple[ServedModel, ...] | None = None
    """None: the answer was not a list of models."""
    server: str = ""
    """As the engine calls itself in its answers: uvicorn, vllm …"""


# --- the snapshot -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """Every section of a snapshot, in the order of a report. A section nobody filled is `not_asked`."""

    platform: Section[Platform] = NOT_ASKED
    libc: Section[Libc] = NOT_ASKED
    libstdcxx: Section[tuple[Libstdcxx, ...]] = NOT_ASKED
    cpu: Section[Cpu] = NOT_ASKED
    memory: Section[Memory] = NOT_ASKED
    limits: Section[Mapping[str, Limit]] = NOT_ASKED
    """Keys: memlock, nofile, stack, nproc, core, as; bytes or counts."""
    identity: Section[Identity] = NOT_ASKED
    shared_memory: Section[SharedMemory] = NOT_ASKED
    directories: Section[tuple[Directory, ...]] = NOT_ASKED
    mounts: Section[tuple[MountPoint, ...]] = NOT_ASKED
    """Without the kernel's own file systems and the layers and private mounts of container engines."""
    container: Section[Container] = NOT_ASKED
    wsl: Section[Wsl] = NOT_ASKED
    virtualization: Section[Virtualization] = NOT_ASKED
    device_nodes: Section[tuple[DeviceNode, ...]] = NOT_ASKED
    environment: Section[tuple[EnvironmentVariable, ...]] = NOT_ASKED
    network_interfaces: Section[tuple[NetworkInterface, ...]] = NOT_ASKED
    kernel_driver: Section[KernelDriver] = NOT_ASKED
    driver_module_file: Section[DriverModuleFile] = NOT_ASKED
    secure_boot: Section[SecureBoot] = NOT_ASKED
    loaded_modules: Section[LoadedModules] = NOT_ASKED
    driver_libraries: Section[tuple[DriverLibrary, ...]] = NOT_ASKED
    services: Section[tuple[Service, ...]] = NOT_ASKED
    kernel_log: Section[KernelLog] = NOT_ASKED
    nvml_start: Section[NvmlStart] = NOT_ASKED
    nvml_versions: Section[NvmlVersions] = NOT_ASKED
    gpus: Section[tuple[Gpu, ...]] = NOT_ASKED
    pci_devices: Section[tuple[PciDevice, ...]] = NOT_ASKED
    rdma_ports: Section[tuple[RdmaPort, ...]] = NOT_ASKED
    iommu: Section[Iommu] = NOT_ASKED
    cuda_toolkits: Section[tuple[CudaToolkit, ...]] = NOT_ASKED
    host_compilers: Section[tuple[HostCompiler, ...]] = NOT_ASKED
    python_headers: Section[PythonHeaders] = NOT_ASKED
    interpreter: Section[Interpreter] = NOT_ASKED
    packages: Section[tuple[Package, ...]] = NOT_ASKED
    file_conflicts: Section[tuple[FileConflict, ...]] = NOT_ASKED
    torch_build: Section[TorchBuild] = NOT_ASKED
    torch_runtime: Section[TorchRuntime] = NOT_ASKED
    cuda_libraries: Section[tuple[CudaLibrary, ...]] = NOT_ASKED
    loader_hits: Section[tuple[LoaderHit, ...]] = NOT_ASKED
    mapped_libraries: Section[tuple[MappedLibrary, ...]] = NOT_ASKED
    extensions: Section[tuple[Extension, ...]] = NOT_ASKED
    module_imports: Section[tuple[ModuleImport, ...]] = NOT_ASKED
    disk: Section[DiskRates] = NOT_ASKED
    smoke: Section[tuple[SmokeResult, ...]] = NOT_ASKED
    growth: Section[Growth] = NOT_ASKED
    settling: Section[Settling] = NOT_ASKED
    commands: Section[tuple[Command, ...]] = NOT_ASKED
    log_events: Section[tuple[LogEvent, ...]] = NOT_ASKED
    checkpoints: Section[tuple[CheckpointFolder, ...]] = NOT_ASKED
    service: Section[ServiceAnswers] = NOT_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """How one probe went; a probe that crashed, hung or printed nonsense is a fact with a name."""

    probe: str
    outcome: str
    """ok, crashed, timed_out, killed_by_signal or garbage."""
    detail: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    kind: str
    """live, replay or triage."""
    label: str
    """What was examined, in words a user gave or would recognise."""
    made_by: str = ""
    """For shipped examples: how it was made from which recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything known about one node at one moment: the only input of judgement, and the file that `record` writes."""

    schema: str
    dsdoctor: str = ""
    taken_at: str
    """RFC 3339, UTC."""
    origin: Origin
    redacted: bool = False
    sections: Sections
    probe_runs: tuple[ProbeRun, ...] = ()
