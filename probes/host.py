"""Read what kind of machine this is: system, processor, memory, limits, container, hypervisor, device files, environment and network."""

from __future__ import annotations

import glob
import hashlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dsdoctor.facts import (
    Container,
    Cpu,
    DeviceNode,
    EnvironmentVariable,
    Identity,
    Libc,
    Memory,
    NetworkInterface,
    NumaNode,
    Platform,
    RdmaPort,
    Section,
    Virtualization,
    Wsl,
    absent,
    known,
    unreadable,
)
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import SECRET_IN_VALUE, matters, parse_limits, parse_os_release, told_value

from .filesystems import MOUNTINFO, Mount, ask_all, mount_of, read_mounts


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Fill the sections about the machine itself."""
    mounts = read_mounts(host)
    return {
        "platform": _platform(host),
        "libc": _libc(host),
        "cpu": _cpu(host),
        "memory": _memory(host),
        "limits": _limits(host),
        "identity": _identity(host),
        "container": _container(host, mounts),
        "wsl": _wsl(host),
        "virtualization": _virtualization(host),
        "device_nodes": _device_nodes(host),
        "environment": _environment(host),
        "network_interfaces": _network_interfaces(host),
        "rdma_ports": _rdma_ports(host),
    }


def _read(host: Host, path: str, limit_bytes: int = 1 << 20) -> str:
    """The text of a file, empty when it cannot be read."""
    try:
        return host.read_text(path, limit_bytes)
    except OSError:
        return ""


def _number(text: str | None) -> int | None:
    """A whole number, or None."""
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,25}", text) else None


# --- operating system and C library -----------------------------------------------------------------------------------


def _platform(host: Host) -> Section[Any]:
    release = parse_os_release(_read(host, "/etc/os-release") or _read(host, "/usr/lib/os-release"))
    kernel = host.first_line("/proc/sys/kernel/osrelease") or ""
    if not release and not kernel:
        return unreadable("neither os-release nor /proc/sys/kernel/osrelease can be read")
    boot_id = host.first_line("/proc/sys/kernel/random/boot_id")
    uptime = re.match(r"[0-9]+(\.[0-9]+)?", host.first_line("/proc/uptime") or "")
    return known(
        Platform(
            os_id=release.get("ID", ""),
            os_id_like=tuple(release.get("ID_LIKE", "").split()),
            os_version=release.get("VERSION_ID", ""),
            os_name=release.get("PRETTY_NAME", ""),
            kernel_release=kernel,
            architecture=_architecture(host),
            boot_id=hashlib.sha256(boot_id.encode()).hexdigest()[:12] if boot_id else "",
            uptime_s=float(uptime[0]) if uptime else None,
        ),
        "os-release, /proc",
    )


LOADERS = {
    "/lib64/ld-linux-x86-64.so.2": "x86_64",
    "/lib/ld-linux-aarch64.so.1": "aarch64",
    "/lib/ld-musl-x86_64.so.1": "x86_64",
    "/lib/ld-musl-aarch64.so.1": "aarch64",
}


def _architecture(host: Host) -> str:
    told = host.first_line("/proc/sys/kernel/arch")  # Linux 6.1 and later
    if told:
        return told
    if host.root == "/":
        return os.uname().machine
    return next((architecture for loader, architecture in LOADERS.items() if host.exists(loader)), "")


LIBC_PATTERNS = ("/lib/*-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6", "/lib/libc.so.6")


def _libc(host: Host) -> Section[Any]:
    if host.root == "/":
        match = re.fullmatch(r"glibc ([0-9.]+)", _glibc_of_this_process())
        if match:
            return known(Libc(family="glibc", version=match[1]), "confstr")
    for path in (path for pattern in LIBC_PATTERNS for path in host.glob(pattern)):
        version = _glibc_version(host, path)
        if version:
            return known(Libc(family="glibc", version=version), path)
    musl = host.glob("/lib/ld-musl-*.so.1")
    if musl:
        package = re.search(r"^P:musl\nV:([0-9.]+)", _read(host, "/lib/apk/db/installed", 4 << 20), re.MULTILINE)
        return known(Libc(family="musl", version=package[1] if package else ""), musl[0])
    return unreadable("neither libc.so.6 nor the musl loader was found in the usual directories")


def _glibc_of_this_process() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        return ""


def _glibc_version(host: Host, path: str) -> str:
    named = re.search(r"libc-([0-9]+\.[0-9.]*[0-9])\.so$", host.real_path(path))
    if named:
        return named[1]
    told = re.search(r"GNU C Library .*?stable release version ([0-9]+\.[0-9]+(?:\.[0-9]+)?)", _read(host, path, 4 << 20))
    return told[1] if told else ""


# --- processor and memory ---------------------------------------------------------------------------------------------

ARM_IMPLEMENTERS = {"0x41": "ARM", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0xc0": "Ampere"}
ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
}
"""Identification codes of the Arm MIDR register, as in arch/arm64/include/asm/cputype.h of Linux."""


def _cpu(host: Host) -> Section[Any]:
    described = parse_cpuinfo(_read(host, "/proc/cpuinfo", 1 << 16))
    online = host.first_line("/sys/devices/system/cpu/online") or ""
    logical = count_cpus(online) or _read(host, "/proc/cpuinfo", 4 << 20).count("processor\t:") or None
    if not described and logical is None:
        return unreadable("neither /proc/cpuinfo nor /sys/devices/system/cpu can be read")
    implementer, part = described.get("CPU implementer", ""), described.get("CPU part", "")
    packages = {_number(host.first_line(path)) for path in host.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")}
    return known(
        Cpu(
            model=described.get("model name") or ARM_PARTS.get((implementer, part), part),
            vendor=described.get("vendor_id") or ARM_IMPLEMENTERS.get(implementer, implementer),
            logical_cpus=logical,
            usable_cpus=_usable_cpus(host),
            sockets=sum(1 for package in packages if package is not None and package >= 0) or None,
            numa_nodes=tuple(_numa_nodes(host)),
        ),
        "/proc/cpuinfo, /sys/devices/system",
    )


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Names and values of the first processor in a text of /proc/cpuinfo."""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip()}


def count_cpus(cpu_list: str) -> int:
    """How many processors a kernel list such as 0-47,96-143 names; 0 when it is not such a list."""
    count = 0
    for part in cpu_list.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match:
            return 0
        first, last = int(match[1]), int(match[2] or match[1])
        count += max(0, last - first + 1)
    return count


def _usable_cpus(host: Host) -> int | None:
    affinity = count_cpus(_status(host).get("Cpus_allowed_list", ""))
    quotas = [math.ceil(quota) for quota in _cpu_quotas(host)]
    return min([count for count in (affinity, *quotas) if count > 0], default=None)


def _cpu_quotas(host: Host) -> Iterator[float]:
    for folder in cgroup_folders(host, ""):
        quota = parse_cpu_max(_read(host, f"{folder}/cpu.max"))
        if quota:
            yield quota
    for folder in cgroup_folders(host, "cpu"):
        quota = parse_cpu_max(f"{_read(host, f'{folder}/cpu.cfs_quota_us')} {_read(host, f'{folder}/cpu.cfs_period_us')}")
        if quota:
            yield quota


def parse_cpu_max(text: str) -> float | None:
    """Processors that a `quota period` pair of a cgroup leaves; None for no limit (max, -1) or another text."""
    words = text.split()
    if len(words) != 2:
        return None
    quota, period = (_number(word) for word in words)
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _numa_nodes(host: Host) -> Iterator[NumaNode]:
    folders = ((_number(path.rpartition("node")[2]), path) for path in host.glob("/sys/devices/system/node/node[0-9]*"))
    for index, folder in sorted((index, folder) for index, folder in folders if index is not None):
        total = re.search(r"MemTotal:\s+([0-9]{1,15}) kB", _read(host, f"{folder}/meminfo"))
        cpus = host.first_line(f"{folder}/cpulist") or ""
        yield NumaNode(index=index, cpus=cpus, memory_bytes=int(total[1]) * 1024 if total else None)


def _memory(host: Host) -> Section[Any]:
    sizes = parse_meminfo(_read(host, "/proc/meminfo"))
    if "MemTotal" not in sizes:
        return unreadable("/proc/meminfo cannot be read or has no MemTotal")
    return known(
        Memory(
            total_bytes=sizes["MemTotal"],
            available_bytes=sizes.get("MemAvailable"),
            swap_bytes=sizes.get("SwapTotal"),
            cgroup_limit_bytes=_cgroup_memory_limit(host),
        ),
        "/proc/meminfo, /sys/fs/cgroup",
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """Sizes in bytes from a text of /proc/meminfo."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+([0-9]{1,15}) kB\s*$", text, re.MULTILINE)}


CGROUP_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes the largest multiple of the page size for 'no limit'."""


def _cgroup_memory_limit(host: Host) -> int | None:
    """The smallest memory limit of the cgroups that hold this process."""
    files = [f"{folder}/memory.max" for folder in cgroup_folders(host, "")]
    files += [f"{folder}/memory.limit_in_bytes" for folder in cgroup_folders(host, "memory")]
    limits = (_number(host.first_line(path)) for path in files)
    return min((limit for limit in limits if limit is not None and 0 <= limit < CGROUP_NO_LIMIT_BYTES), default=None)


def parse_cgroups(text: str) -> dict[str, str]:
    """Path by controller from a text of /proc/self/cgroup; the unified hierarchy (v2) has the empty name."""
    found = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[0].isdecimal() and fields[2].startswith("/"):
            found.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return found


def cgroup_folders(host: Host, controller: str) -> list[str]:
    """Folders of the cgroup of this process and of those above it, for one v1 controller or, with the empty name, for v2.

    In a container the path may be the one seen by the host; the topmost folder is then the container's own.
    """
    path = parse_cgroups(_read(host, "/proc/self/cgroup")).get(controller, "/")
    parts = [] if ".." in path else [part for part in path.split("/") if part][:64]
    tops = [f"/sys/fs/cgroup/{controller}"] if controller else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
    return ["/".join([top, *parts[:depth]]) for top in tops for depth in range(len(parts), -1, -1)]


# --- limits and identity ----------------------------------------------------------------------------------------------


def _limits(host: Host) -> Section[Any]:
    limits = parse_limits(_read(host, "/proc/self/limits"))
    return known(limits, "/proc/self/limits") if limits else unreadable("/proc/self/limits cannot be read or has another form")


def _status(host: Host) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(host, "/proc/self/status").splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def _identity(host: Host) -> Section[Any]:
    status = _status(host)
    uids = status.get("Uid", "").split()
    uid = _number(uids[1]) if len(uids) == 4 else None
    if uid is None:
        return unreadable("/proc/self/status cannot be read or has no Uid")
    capabilities = status.get("CapEff", "")
    mask = int(capabilities, 16) if re.fullmatch(r"[0-9a-fA-F]{1,32}", capabilities) else None
    return known(Identity(uid=uid, effective_capabilities=mask), "/proc/self/status")


# --- container, WSL, hypervisor ---------------------------------------------------------------------------------------

RUNTIME_BY_PATTERN = (
    (r"/docker[-/][0-9a-f]{12}|/var/lib/docker/", "docker"),
    (r"cri-containerd|/containerd[-/]|io\.containerd\.", "containerd"),
    (r"libpod|/containers/storage/", "podman"),
    (r"enroot|pyxis", "enroot"),
    (r"/lxc[./]|lxc\.payload", "lxc"),
    (r"machine\.slice/machine-", "systemd-nspawn"),
)
"""What cgroup paths and the layers of the root mount are called by each runtime."""
RUNTIME_BY_MANAGER = {
    "docker": "docker",
    "podman": "podman",
    "lxc": "lxc",
    "lxc-libvirt": "lxc",
    "systemd-nspawn": "systemd-nspawn",
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "oci": "unknown",
}
"""Values of the variable `container`, which systemd defines for container managers."""
INIT_NAMES = frozenset({"systemd", "init", "openrc-init", "runit"})


def _container(host: Host, mounts: tuple[Mount, ...]) -> Section[Any]:
    kubernetes = _kubernetes_evidence(host, mounts)
    runtime, evidence = _runtime_evidence(host, mounts)
    if runtime or kubernetes:
        told = "; ".join(text for text in (evidence, kubernetes) if text)
        return known(Container(runtime=runtime or "unknown", kubernetes=bool(kubernetes), evidence=told), told)
    if not mounts and not _read(host, "/proc/self/cgroup"):
        return unreadable("/proc cannot be read, so a container cannot be told from a plain host")
    return absent("no marker file, variable, cgroup or root mount of a container", f"/proc/self/cgroup, {MOUNTINFO}")


def _kubernetes_evidence(host: Host, mounts: Iterable[Mount]) -> str:
    if host.environment.get("KUBERNETES_SERVICE_HOST"):
        return "KUBERNETES_SERVICE_HOST is set"
    if host.exists("/var/run/secrets/kubernetes.io"):
        return "/var/run/secrets/kubernetes.io"
    if "/kubepods" in _read(host, "/proc/self/cgroup"):
        return "kubepods in /proc/self/cgroup"
    if any("/kubelet/pods/" in mount.root and mount.mount_point in ("/etc/hosts", "/dev/termination-log") for mount in mounts):
        return f"kubelet mounts in {MOUNTINFO}"
    return ""


def _runtime_evidence(host: Host, mounts: tuple[Mount, ...]) -> tuple[str, str]:
    """Runtime and how it was recognised, strongest evidence first; two empty texts on a plain host."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if host.environment.get(name):
            return "apptainer", f"{name} is set"
    if host.environment.get("ENROOT_ROOTFS"):
        return "enroot", "ENROOT_ROOTFS is set"
    for manager, where in _container_managers(host):
        if manager in RUNTIME_BY_MANAGER:
            return RUNTIME_BY_MANAGER[manager], where
    if host.exists("/run/.containerenv"):
        engine = re.search(r'^engine="?podman', _read(host, "/run/.containerenv"), re.MULTILINE)
        return "podman" if engine else "unknown", "/run/.containerenv"
    if host.exists("/.singularity.d"):
        return "apptainer", "/.singularity.d"
    root = mount_of("/", mounts)
    layers = " ".join([root.root, root.source, *root.options]) if root else ""
    for text, where in ((_cgroup_texts(host), "/proc/self/cgroup"), (layers, f"root mount in {MOUNTINFO}")):
        for pattern, runtime in RUNTIME_BY_PATTERN:
            if re.search(pattern, text):
                return runtime, where
    if host.exists("/.dockerenv"):
        return "docker", "/.dockerenv"
    first_process = host.first_line("/proc/1/comm")
    if root and root.file_system == "overlay" and first_process and first_process not in INIT_NAMES:
        return "unknown", f"weak: the root is an overlay and process 1 is {first_process}"
    return "", ""


def _container_managers(host: Host) -> Iterator[tuple[str, str]]:
    """What container managers write about themselves: variable `container` here and of process 1, and systemd's note."""
    yield host.environment.get("container", ""), "variable container"
    first_environment = _read(host, "/proc/1/environ").split("\0")
    yield next((item.partition("=")[2] for item in first_environment if item.startswith("container=")), ""), "/proc/1/environ"
    yield host.first_line("/run/systemd/container") or "", "/run/systemd/container"


def _cgroup_texts(host: Host) -> str:
    return _read(host, "/proc/self/cgroup") + _read(host, "/proc/1/cgroup")


WSL_LIBRARIES = "/usr/lib/wsl/lib"


def _wsl(host: Host) -> Section[Any]:
    release = host.first_line("/proc/sys/kernel/osrelease")
    libraries = WSL_LIBRARIES if host.is_directory(WSL_LIBRARIES) else ""
    if release and "microsoft" in release.lower():
        # WSL 1 calls itself 4.4.0-19041-Microsoft, WSL 2 …-microsoft-standard or …-microsoft-standard-WSL2.
        version = 1 if release.endswith("-Microsoft") else 2
        return known(Wsl(version=version, kernel_release=release, libcuda_directory=libraries), "/proc/sys/kernel/osrelease")
    if libraries and host.exists("/dev/dxg"):
        return known(Wsl(version=2, kernel_release=release or "", libcuda_directory=libraries), f"{WSL_LIBRARIES}, /dev/dxg")
    if not release:
        return unreadable("/proc/sys/kernel/osrelease cannot be read")
    return absent("the kernel is not one of WSL", "/proc/sys/kernel/osrelease")


HYPERVISOR_BY_VENDOR = (
    (r"vmware", "vmware"),
    (r"xen", "xen"),
    (r"amazon ec2", "nitro"),
    (r"microsoft corporation.*virtual machine", "hyperv"),
    (
        r"qemu|kvm|google|openstack|nova|red ?hat|ovirt|alibaba|tencent|digitalocean|nutanix|linode|hetzner|scaleway|vultr|cloud hypervisor",
        "kvm",
    ),
    (r"innotek|virtualbox|parallels|bhyve", "unknown"),
)
"""System vendor and product name in the DMI tables, in lower case."""
HYPERVISOR_BY_CLOCK = {"kvm-clock": "kvm", "hyperv_clocksource_tsc_page": "hyperv", "hyperv_clocksource_msr": "hyperv", "xen": "xen"}
CLOCK_SOURCES = "/sys/devices/system/clocksource/clocksource0/available_clocksource"


def _virtualization(host: Host) -> Section[Any]:
    kernel = f"{host.first_line('/proc/sys/kernel/osrelease') or ''} {host.first_line('/proc/version') or ''}"
    cpu = parse_cpuinfo(_read(host, "/proc/cpuinfo", 1 << 16))
    flagged = "hypervisor" in cpu["flags"].split() if "flags" in cpu else None
    vendor = " ".join(host.first_line(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")).strip()

    def under(hypervisor: str, evidence: str) -> Section[Any]:
        return known(Virtualization(hypervisor=hypervisor, evidence=evidence), evidence)

    # gVisor imitates Linux 4.4.0 with one constant build date.
    if "gvisor" in kernel.lower() or "Jan 10 15:06:54 PST 2016" in kernel:
        return under("gvisor", f"/proc/version: {host.first_line('/proc/version') or kernel.strip()}")
    if "microsoft" in (host.first_line("/proc/sys/kernel/osrelease") or "").lower():
        return under("hyperv", "kernel of WSL")
    if vendor and re.search(r"amazon ec2.*\bmetal", vendor.lower()):
        return absent(f"bare metal: DMI says {vendor}", "/sys/class/dmi/id")
    if vendor and flagged is not False:
        for pattern, hypervisor in HYPERVISOR_BY_VENDOR:
            if re.search(pattern, vendor.lower()):
                return under(hypervisor, f"DMI says {vendor}")
    hypervisor_type = host.first_line("/sys/hypervisor/type")
    if hypervisor_type:
        return under("xen" if hypervisor_type == "xen" else "unknown", f"/sys/hypervisor/type: {hypervisor_type}")
    # Firecracker has no DMI tables; its guest kernels carry its initials. Fedora's fc39 is something else.
    if not vendor and flagged is not False and re.search(r"firecracker|[-.]fc(?![0-9a-z])", kernel.lower()):
        return under("firecracker", f"no DMI tables, kernel {kernel.split()[0]}")
    clock = next((name for name in (host.first_line(CLOCK_SOURCES) or "").split() if name in HYPERVISOR_BY_CLOCK), "")
    if clock:
        return under(HYPERVISOR_BY_CLOCK[clock], f"clock source {clock}")
    if flagged:
        return under("unknown", "processor flag hypervisor" + (f", DMI says {vendor}" if vendor else ""))
    if flagged is False:
        return absent("the processor has no hypervisor flag", "/proc/cpuinfo")
    if vendor:
        return absent(f"bare metal: DMI says {vendor}", "/sys/class/dmi/id")
    return unreadable("neither processor flags nor DMI tables can be read")


# --- device files -----------------------------------------------------------------------------------------------------

DEVICE_PATTERNS = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia[0-9]*",
    "/dev/nvidia-caps/*",
    "/dev/nvidia-caps-imex-channels/*",
    "/dev/nvidia-nvswitch*",
    "/dev/infiniband/*",
    "/dev/gdrdrv",
    "/dev/dxg",
)
OPEN_WAIT_S = 2.0


def _device_nodes(host: Host) -> Section[Any]:
    if not host.is_directory("/dev"):
        return unreadable("/dev cannot be read")
    paths = list(dict.fromkeys(path for pattern in DEVICE_PATTERNS for path in host.glob(pattern)))
    if not paths:
        return absent("no device file of NVIDIA, InfiniBand or WSL under /dev", "/dev")
    # The first open of a GPU without persistence may take seconds, and one of a GPU that fell off the bus may never end.
    answers = ask_all([_open_question(host, path) for path in paths], OPEN_WAIT_S)
    late = f"opening gave no answer within {OPEN_WAIT_S:.0f} s"
    return known(tuple(answer or DeviceNode(path=path, openable=None, why=late) for path, answer in zip(paths, answers)), "open")


def _open_question(host: Host, path: str) -> Callable[[], DeviceNode]:
    return lambda: examine_device(host, path)


def examine_device(host: Host, path: str) -> DeviceNode:
    """Mode of a device file and whether it opens. May block in the driver."""
    try:
        mode = stat.filemode(host.status(path).st_mode)
    except OSError as error:
        return DeviceNode(path=path, openable=False, why=error.strerror or str(error))
    if host.rights_differ:
        return DeviceNode(path=path, openable=None, mode=mode, why="only the process that is examined could tell")
    refusal = host.open_error(path)
    return DeviceNode(path=path, openable=refusal is None, mode=mode, why=(refusal.strerror or str(refusal)) if refusal else "")


# --- environment ------------------------------------------------------------------------------------------------------


def _environment(host: Host) -> Section[Any]:
    found = tuple(
        EnvironmentVariable(name=name, value=told_value(value))
        for name, value in sorted(host.environment.items())
        if matters(name) and not SECRET_IN_VALUE.search(value)
    )
    return known(found, "environment of the process that is examined" if host.process else "environment of the doctor")


# --- network ----------------------------------------------------------------------------------------------------------

INTERFACES, ADAPTERS = "/sys/class/net", "/sys/class/infiniband"
NAMES_IN_THIS_NAMESPACE = "/proc/self/net/dev"
UP_FLAG, LOOPBACK_FLAG = 0x1, 0x8
"""IFF_UP and IFF_LOOPBACK of linux/if.h; what `flags` says."""
KIND_BY_TYPE = {"1": "ethernet", "32": "infiniband"}
"""ARPHRD_ETHER and ARPHRD_INFINIBAND of linux/if_arp.h; what `type` says."""


def _network_interfaces(host: Host) -> Section[Any]:
    # A process that left the namespace for which /sys was mounted sees other names there; /proc follows the process.
    names = parse_net_dev(_read(host, NAMES_IN_THIS_NAMESPACE)) or _names_in(host, INTERFACES)
    if not names:
        return unreadable(f"neither {NAMES_IN_THIS_NAMESPACE} nor {INTERFACES} can be read")
    interfaces = (_interface(host, name) for name in names)
    adapters = (_adapter(host, name) for name in _names_in(host, ADAPTERS))
    return known((*interfaces, *adapters), f"{INTERFACES}, {ADAPTERS}")


def _names_in(host: Host, folder: str) -> tuple[str, ...]:
    """The devices of a class; beside them may lie files, such as bonding_masters."""
    try:
        return tuple(name for name in host.list_directory(folder) if host.is_directory(f"{folder}/{name}"))
    except OSError:
        return ()


def parse_net_dev(text: str) -> tuple[str, ...]:
    """The names in a text of /proc/net/dev, sorted."""
    return tuple(sorted(match[1] for line in text.splitlines() if (match := re.match(r" *([^\s:|/]{1,15}): *[0-9]+ ", line))))


def _interface(host: Host, name: str) -> NetworkInterface:
    folder = f"{INTERFACES}/{name}"
    flags_text = host.first_line(f"{folder}/flags") or ""
    flags = int(flags_text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", flags_text) else None
    is_virtual = "/devices/virtual/" in host.real_path(folder)
    speed = _number(host.first_line(f"{folder}/speed"))
    return NetworkInterface(
        name=name,
        kind="virtual" if is_virtual else KIND_BY_TYPE.get(host.first_line(f"{folder}/type") or "", "other"),
        # Drivers that do not tell their carrier (and the loopback) say "unknown" while they work.
        up=None if flags is None else bool(flags & UP_FLAG) and host.first_line(f"{folder}/operstate") in ("up", "unknown"),
        loopback=name == "lo" if flags is None else bool(flags & LOOPBACK_FLAG),
        speed_mbit_per_s=speed if speed is not None and speed > 0 else None,
    )


def _adapter(host: Host, name: str) -> NetworkInterface:
    ports = f"{ADAPTERS}/{glob.escape(name)}/ports/*"
    states = [host.first_line(path) or "" for path in host.glob(f"{ports}/state")]
    rates = [re.match(PORT_RATE, host.first_line(path) or "") for path in host.glob(f"{ports}/rate")]
    return NetworkInterface(
        name=name,
        kind="rdma",
        up=any("ACTIVE" in state for state in states) if states else None,
        speed_mbit_per_s=max((round(float(rate[1]) * 1000) for rate in rates if rate), default=None),
    )


PORT_STATE = r"[0-9]{1,2}: ([A-Za-z_]{1,20})"
"""`state` and `phys_state` of a port: '4: ACTIVE', '5: LinkUp'."""
PORT_RATE = r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec"


def _rdma_ports(host: Host) -> Section[Any]:
    names = _names_in(host, ADAPTERS)
    if not names:
        return (
            absent(f"no RDMA adapter in {ADAPTERS}", ADAPTERS)
            if host.is_directory(INTERFACES)
            else unreadable(f"{INTERFACES} is not there")
        )
    ports = [(name, path) for name in names for path in host.glob(f"{ADAPTERS}/{glob.escape(name)}/ports/*")]
    return known(tuple(_rdma_port(host, name, path) for name, path in ports), ADAPTERS)


def _rdma_port(host: Host, adapter: str, folder: str) -> RdmaPort:
    device = f"{ADAPTERS}/{adapter}"
    state, physical = (re.match(PORT_STATE, host.first_line(f"{folder}/{name}") or "") for name in ("state", "phys_state"))
    rate = re.match(PORT_RATE, host.first_line(f"{folder}/rate") or "")
    return RdmaPort(
        adapter=adapter,
        port=_number(folder.rpartition("/")[2]) or 1,
        link_layer=host.first_line(f"{folder}/link_layer") or "",
        state=state[1].lower() if state else "",
        physical_state=physical[1].lower() if physical else "",
        rate_gbit_per_s=float(rate[1]) if rate else None,
        link_downed=_number(host.first_line(f"{folder}/counters/link_downed")),
        firmware=host.first_line(f"{device}/fw_ver") or "",
        board_id=host.first_line(f"{device}/board_id") or "",
        adapter_type=host.first_line(f"{device}/hca_type") or "",
    )
