"""The host probe on recorded machines, on machines that say nothing, and on machines that talk nonsense."""

import importlib
import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.facts import Limit, State
from dsdoctor.plain import to_plain
from dsdoctor.sources import texts
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope

probe = importlib.import_module("dsdoctor.probes.host")

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
RECORDING = SHARED / "recordings" / "h200"
needs_recording = pytest.mark.skipif(not RECORDING.is_dir(), reason="recordings are not here")
GIB = 1 << 30


def plant(root, files):
    """Write a tree of files under root and return root as a text."""
    for path, content in files.items():
        file = Path(f"{root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(root)


def examined(root, files, **environment):
    return probe.collect(Host(root=plant(root, files), environment=environment, commands={}), Scope(target=None))


def recorded(name):
    return (RECORDING / name).read_text()


STATUS = "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-15\n"
MEMINFO = "MemTotal:       131072000 kB\nMemFree:  100 kB\nMemAvailable:   130000000 kB\nSwapTotal:       0 kB\nHugePages_Total:       0\n"
PLAIN_ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
XEON = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu vme {}\n\nprocessor\t: 1\n"


# --- machines ---------------------------------------------------------------------------------------------------------


@needs_recording
def test_h200_virtual_machine(tmp_path):
    flags = re.search(r"^Flags:\s+(.*)$", recorded("lscpu.txt"), re.MULTILINE)[1]
    device_paths = re.findall(r"(/dev/nvidia\S+)$", recorded("dev.txt"), re.MULTILINE)
    files = {
        "/etc/os-release": recorded("os-release.txt"),
        "/proc/sys/kernel/osrelease": recorded("uname.txt").split()[2] + "\n",
        "/proc/sys/kernel/arch": "x86_64\n",
        "/proc/sys/kernel/random/boot_id": "7b1b4ff4-0d7e-4f2c-9d38-08a8b9f0a4ff\n",
        "/proc/uptime": "512.34 8000.00\n",
        "/proc/cpuinfo": XEON.format(flags),
        "/sys/devices/system/cpu/online": "0-15\n",
        "/sys/devices/system/node/node0/cpulist": recorded("nodes.txt").splitlines()[-1],
        "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       131072000 kB\n",
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock \n",
        "/proc/meminfo": MEMINFO,
        "/proc/self/limits": recorded("limits.txt"),
        "/proc/self/status": STATUS,
        "/proc/self/mountinfo": PLAIN_ROOT,
        "/proc/self/cgroup": "0::/\n",
        "/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF\0GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.9) stable release version 2.39.\n\0",
        **dict.fromkeys(device_paths, ""),
    }
    environment = dict(line.split("=", 1) for line in recorded("env.txt").splitlines())
    found = examined(tmp_path, files, **environment)
    platform = found["platform"].value
    assert (platform.os_id, platform.os_version, platform.os_id_like) == ("ubuntu", "24.04", ("debian",))
    assert (platform.kernel_release, platform.architecture, platform.uptime_s) == ("6.18.44", "x86_64", 512.34)
    assert re.fullmatch("[0-9a-f]{12}", platform.boot_id)
    assert (found["libc"].value.family, found["libc"].value.version) == ("glibc", "2.39")
    cpu = found["cpu"].value
    assert (cpu.model, cpu.logical_cpus, cpu.usable_cpus) == ("Intel(R) Xeon(R) Processor", 16, 16)
    assert [(node.index, node.cpus, node.memory_bytes) for node in cpu.numa_nodes] == [(0, "0-15", 131072000 * 1024)]
    assert found["memory"].value.cgroup_limit_bytes is None
    limits = found["limits"].value
    assert limits["memlock"] == Limit(soft=None, hard=None)
    assert limits["nofile"] == Limit(soft=20000, hard=20000)
    assert limits["stack"] == Limit(soft=8388608, hard=None)
    assert (found["identity"].value.uid, found["identity"].value.effective_capabilities) == (1000, 0xA80425FB)
    assert found["container"].state is State.ABSENT
    assert found["wsl"].state is State.ABSENT
    assert found["virtualization"].value.hypervisor == "kvm"
    nodes = found["device_nodes"].value
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} <= {node.path for node in nodes}
    assert all(node.openable and node.mode for node in nodes)
    variables = {variable.name: variable.value for variable in found["environment"].value}
    assert variables["CUDA_HOME"] == "/usr/local/cuda"
    assert variables["NVIDIA_REQUIRE_CUDA"].startswith("cuda>=13.0")
    assert variables["TORCH_CUDA_ARCH_LIST"] == "9.0a"
    assert "PYTHONUNBUFFERED" not in variables


def test_kubernetes_pod_with_cgroup_v2(tmp_path):
    layers = "lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/8/fs,upperdir=/u,workdir=/w"
    files = {
        "/etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
        "/proc/sys/kernel/osrelease": "5.15.0-1053-azure\n",
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": f"700 600 0:300 / / rw,relatime - overlay overlay rw,{layers}\n",
        "/proc/self/status": STATUS.replace("0-15", "0-95"),
        "/proc/cpuinfo": XEON.format("hypervisor"),
        "/proc/meminfo": MEMINFO,
        "/sys/fs/cgroup/memory.max": str(64 * GIB) + "\n",
        "/sys/fs/cgroup/cpu.max": "1250000 100000\n",
        "/sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
        "/sys/class/dmi/id/product_name": "Virtual Machine\n",
    }
    found = examined(tmp_path, files, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert (found["container"].value.runtime, found["container"].value.kubernetes) == ("containerd", True)
    assert found["memory"].value.cgroup_limit_bytes == 64 * GIB
    assert found["cpu"].value.usable_cpus == 13
    assert found["virtualization"].value.hypervisor == "hyperv"
    assert found["wsl"].state is State.ABSENT


def test_container_with_cgroup_v1_sees_the_smallest_limit_above_it(tmp_path):
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/status": STATUS,
        "/proc/cpuinfo": XEON.format(""),
        "/proc/self/cgroup": "4:memory:/docker/0123456789abcdef\n1:cpu,cpuacct:/docker/0123456789abcdef\n0::/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        "/sys/fs/cgroup/memory/docker/0123456789abcdef/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    found = examined(tmp_path, files)
    assert found["memory"].value.cgroup_limit_bytes == 8 * GIB
    assert found["cpu"].value.usable_cpus == 2
    assert found["container"].value.runtime == "docker"


@pytest.mark.parametrize(
    ("path", "content"), [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), ("/sys/fs/cgroup/memory.max", "max\n")]
)
def test_no_cgroup_limit_is_none(tmp_path, path, content):
    assert examined(tmp_path, {"/proc/meminfo": MEMINFO, path: content})["memory"].value.cgroup_limit_bytes is None


def test_wsl2(tmp_path):
    files = {
        "/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n",
        "/proc/cpuinfo": XEON.format("hypervisor"),
        "/proc/self/mountinfo": PLAIN_ROOT,
        "/usr/lib/wsl/lib/libcuda.so.1": "",
        "/run/systemd/container": "wsl\n",
        "/dev/dxg": "",
    }
    found = examined(tmp_path, files)
    assert (found["wsl"].value.version, found["wsl"].value.libcuda_directory) == (2, "/usr/lib/wsl/lib")
    assert found["virtualization"].value.hypervisor == "hyperv"
    assert found["container"].state is State.ABSENT
    assert [node.path for node in found["device_nodes"].value] == ["/dev/dxg"]


@pytest.mark.parametrize(
    ("release", "version"), [("4.4.0-19041-Microsoft", 1), ("4.19.84-microsoft-standard", 2), ("6.6.36.3-microsoft-standard-WSL2+", 2)]
)
def test_wsl_versions(tmp_path, release, version):
    assert examined(tmp_path, {"/proc/sys/kernel/osrelease": release})["wsl"].value.version == version


def test_rhel_on_bare_metal(tmp_path):
    files = {
        "/usr/lib/os-release": 'ID=\'rhel\'\nID_LIKE="fedora"\nVERSION_ID="9.4"\n# comment\n',
        "/proc/sys/kernel/osrelease": "5.14.0-427.13.1.el9_4.x86_64\n",
        "/proc/cpuinfo": XEON.format("sse2"),
        "/proc/self/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n",
        "/proc/1/cgroup": "0::/init.scope\n",
        "/proc/1/comm": "systemd\n",
        "/proc/self/mountinfo": "60 1 253:0 / / rw - xfs /dev/mapper/rhel-root rw\n",
        "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        "/sys/class/dmi/id/product_name": "PowerEdge XE9680\n",
        "/sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
        "/sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
        "/sys/devices/system/node/node10/cpulist": "48-95,144-191\n",
        "/sys/devices/system/node/node2/cpulist": "0-47,96-143\n",
        "/lib64/libc-2.34.so": "",
        "/dev/null": "",
    }
    root = plant(tmp_path, files)
    os.symlink("libc-2.34.so", f"{root}/lib64/libc.so.6")
    found = examined(tmp_path, {})
    assert (found["platform"].value.os_id, found["platform"].value.os_version) == ("rhel", "9.4")
    assert found["libc"].value.version == "2.34"
    assert found["cpu"].value.sockets == 2
    assert [node.index for node in found["cpu"].value.numa_nodes] == [2, 10]
    assert found["container"].state is State.ABSENT
    assert found["virtualization"].state is State.ABSENT
    assert found["device_nodes"].state is State.ABSENT


def test_alpine_has_musl(tmp_path):
    files = {"/lib/ld-musl-x86_64.so.1": "", "/lib/apk/db/installed": "P:busybox\nV:1.36\n\nC:Q1\nP:musl\nV:1.2.4-r2\n"}
    libc = examined(tmp_path, files)["libc"].value
    assert (libc.family, libc.version) == ("musl", "1.2.4")


def test_grace_is_recognised_by_its_code(tmp_path):
    cpuinfo = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\nFeatures\t: fp asimd\n"
    files = {
        "/proc/cpuinfo": cpuinfo,
        "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
        "/lib/ld-linux-aarch64.so.1": "",
        "/etc/os-release": "ID=x",
    }
    found = examined(tmp_path, files)
    assert (found["cpu"].value.vendor, found["cpu"].value.model) == ("ARM", "Neoverse-V2")
    assert found["cpu"].value.logical_cpus == 1
    assert found["platform"].value.architecture == "aarch64"
    assert found["virtualization"].state is State.ABSENT


# --- hypervisors and containers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "vendor", "product", "flag", "expected"),
    [
        ("6.8.0-1021-aws", "Amazon EC2", "p5.48xlarge", "hypervisor", "nitro"),
        ("6.8.0-1021-aws", "Amazon EC2", "c5.metal", "", "absent"),
        ("5.15.0", "QEMU", "Standard PC (Q35 + ICH9, 2009)", "hypervisor", "kvm"),
        ("5.15.0", "Google", "Google Compute Engine", "hypervisor", "kvm"),
        ("5.15.0", "VMware, Inc.", "VMware7,1", "hypervisor", "vmware"),
        ("5.15.0", "innotek GmbH", "VirtualBox", "hypervisor", "unknown"),
        ("5.15.0", "Some Cloud", "Some Machine", "hypervisor", "unknown"),
        ("5.15.0", "Supermicro", "SYS-821GE-TNHR", "", "absent"),
        ("6.1.0-fc-v12", "", "", "hypervisor", "firecracker"),
        ("6.5.6-300.fc39.x86_64", "", "", "hypervisor", "unknown"),
        ("6.5.6-300.fc39.x86_64", "Dell Inc.", "PowerEdge", "", "absent"),
        ("4.4.0", "", "", "", "gvisor"),
    ],
)
def test_hypervisor(tmp_path, kernel, vendor, product, flag, expected):
    files = {"/proc/sys/kernel/osrelease": kernel, "/proc/cpuinfo": XEON.format(flag)}
    if vendor:
        files |= {"/sys/class/dmi/id/sys_vendor": vendor + "\n", "/sys/class/dmi/id/product_name": product + "\n"}
    if expected == "gvisor":
        files["/proc/version"] = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"
    found = examined(tmp_path, files)["virtualization"]
    assert (found.value.hypervisor if found.value else found.state.value) == expected


CGROUP_V2 = {"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": PLAIN_ROOT}


@pytest.mark.parametrize(
    ("files", "environment", "runtime"),
    [
        ({"/run/.containerenv": 'engine="podman-4.9.4"\n'}, {}, "podman"),
        ({"/run/.containerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "unknown"),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc"),
        ({"/run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"APPTAINER_CONTAINER": "/images/x.sif"}, "apptainer"),
        ({}, {"SINGULARITY_CONTAINER": "/images/x.sif"}, "apptainer"),
        ({"/proc/self/mountinfo": "9 1 0:9 /data/enroot/pyxis_12.0 / rw - ext4 /dev/md0 rw\n"}, {}, "enroot"),
        ({"/proc/self/mountinfo": "9 1 0:9 / / rw - overlay overlay rw,lowerdir=/l\n", "/proc/1/comm": "bash\n"}, {}, "unknown"),
        ({"/proc/self/mountinfo": "9 1 0:9 / / rw - overlay overlay rw,lowerdir=/l\n", "/proc/1/comm": "systemd\n"}, {}, None),
        ({"/run/systemd/container": "wsl\n"}, {}, None),
        ({}, {"APPTAINER_CACHEDIR": "/scratch", "ENROOT_CACHE_PATH": "/scratch", "container": "garbage"}, None),
    ],
)
def test_container(tmp_path, files, environment, runtime):
    found = examined(tmp_path, {**CGROUP_V2, **files}, **environment)["container"]
    assert (found.value.runtime if found.value else None) == runtime
    assert found.state is (State.KNOWN if runtime else State.ABSENT)


# --- device files -----------------------------------------------------------------------------------------------------


def test_device_that_does_not_open_keeps_the_error_text(tmp_path):
    (tmp_path / "dev" / "nvidia0").mkdir(parents=True)
    nodes = examined(tmp_path, {"/dev/nvidiactl": "", "/dev/infiniband/uverbs0": "", "/dev/nvidia-caps/nvidia-cap1": ""})[
        "device_nodes"
    ].value
    by_path = {node.path: node for node in nodes}
    assert by_path["/dev/nvidia0"].openable is False
    assert by_path["/dev/nvidia0"].why == "Is a directory"
    assert by_path["/dev/nvidiactl"].openable is True
    assert {"/dev/infiniband/uverbs0", "/dev/nvidia-caps/nvidia-cap1"} <= set(by_path)


# --- environment ------------------------------------------------------------------------------------------------------


def test_secrets_are_never_collected(tmp_path):
    environment = {
        "HF_TOKEN": "hf_abc",
        "VLLM_API_KEY": "sk-abc",
        "RAY_REDIS_PASSWORD": "abc",
        "NCCL_AUTH_COOKIE": "abc",
        "SGLANG_Api_Key": "abc",
        "AWS_SECRET_ACCESS_KEY": "abc",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"WANDB_API_KEY": "abc"}}}',
        "http_proxy": "http://user:abc@proxy:3128",
        "HF_ENDPOINT": "https://user:abc@mirror.example/hf",
        "NCCL_DEBUG": "INFO",
    }
    found = {variable.name: variable.value for variable in examined(tmp_path, {}, **environment)["environment"].value}
    assert found == {"HF_ENDPOINT": "https://…@mirror.example/hf", "NCCL_DEBUG": "INFO"}


def test_long_and_undecodable_values_are_mended(tmp_path):
    found = examined(tmp_path, {}, LD_LIBRARY_PATH="/a:" * 5000, CUDA_HOME="/caf\udce9")["environment"].value
    values = {variable.name: variable.value for variable in found}
    assert len(values["LD_LIBRARY_PATH"]) == 4096
    assert values["CUDA_HOME"] == "/caf?"


@pytest.mark.skipif(not (SHARED / "facts" / "env_vars.yaml").is_file(), reason="facts are not here")
def test_every_variable_of_the_facts_is_collected():
    names = re.findall(r"^-? +name: ([A-Z_0-9]+)$", (SHARED / "facts" / "env_vars.yaml").read_text(), re.MULTILINE)
    names += re.findall(r"^- name: ([A-Z_0-9]+)$", (SHARED / "facts" / "env_vars.yaml").read_text(), re.MULTILINE)
    assert len(names) > 100
    assert [name for name in names if not probe.matters(name) and not probe.SECRET_WORDS.search(name)] == []


# --- network ----------------------------------------------------------------------------------------------------------

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
{}"""
COUNTERS = "       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n"
NIC = "/sys/devices/pci0000:00/0000:00:03.0"


def net_dev(*names):
    return NET_DEV.format("".join(f"{name:>6}:{COUNTERS}" for name in names))


def interface(folder, flags, state, kind, speed):
    values = {"flags": flags, "operstate": state, "type": kind, "speed": speed}
    return {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}


def linked(root, *folders):
    """The class folders, whose entries are links to the devices."""
    for folder in folders:
        link = Path(f"{root}/sys/class/{folder.split('/')[-2]}/{folder.rpartition('/')[2]}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../{folder.lstrip('/')}")


def network(found):
    section = found["network_interfaces"]
    return {item.name: (item.kind, item.up, item.loopback, item.speed_mbit_per_s) for item in section.value}


def test_interfaces_and_adapters(tmp_path):
    folders = {
        f"{NIC}/net/eth0": ("0x1003", "up", "1", "400000"),
        f"{NIC}/net/ib0": ("0x1003", "down", "32", "-1"),
        "/sys/devices/virtual/net/lo": ("0x9", "unknown", "772", ""),
        "/sys/devices/virtual/net/docker0": ("0x1003", "down", "1", ""),
    }
    files = {path: text for folder, told in folders.items() for path, text in interface(folder, *told).items()}
    files |= {f"{NIC}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", f"{NIC}/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n"}
    files |= {f"{NIC}/infiniband/mlx5_1/ports/1/state": "1: DOWN\n"}
    files |= {"/sys/class/net/bonding_masters": "bond0\n", "/proc/self/net/dev": net_dev("lo", "eth0", "ib0", "docker0")}
    linked(tmp_path, *folders, f"{NIC}/infiniband/mlx5_0", f"{NIC}/infiniband/mlx5_1")
    assert network(examined(tmp_path, files)) == {
        "docker0": ("virtual", False, False, None),
        "eth0": ("ethernet", True, False, 400_000),
        "ib0": ("infiniband", False, False, None),
        "lo": ("virtual", True, True, None),
        "mlx5_0": ("rdma", True, False, 400_000),
        "mlx5_1": ("rdma", False, False, None),
    }


def test_names_are_those_of_this_processs_namespace(tmp_path):
    """/sys was mounted for the host, and the process has left the host's network."""
    files = interface("/sys/class/net/enp90s0np0", "0x1003", "up", "1", "100000")
    found = examined(tmp_path, {**files, "/proc/self/net/dev": net_dev("lo", "net1")})
    assert network(found) == {"lo": ("other", None, True, None), "net1": ("other", None, False, None)}


def test_without_proc_the_names_come_from_sys(tmp_path):
    assert list(network(examined(tmp_path, interface("/sys/class/net/eth0", "0x1003", "up", "1", "100000")))) == ["eth0"]


@given(st.text(max_size=300))
def test_net_dev_takes_any_text(text):
    assert all(name and not name.isspace() for name in probe.parse_net_dev(text))


# --- nothing and nonsense ---------------------------------------------------------------------------------------------


def test_machine_that_says_nothing(tmp_path):
    found = examined(tmp_path, {})
    assert {name for name, section in found.items() if section.state is not State.UNREADABLE} == {"environment"}
    assert all(section.why for name, section in found.items() if name != "environment")


READ_FILES = (
    "/etc/os-release", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/arch", "/proc/sys/kernel/random/boot_id", "/proc/uptime",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/self/limits", "/proc/self/status", "/proc/self/cgroup", "/proc/self/mountinfo",
    "/proc/1/environ", "/proc/1/cgroup", "/proc/1/comm", "/proc/version", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/devices/system/cpu/online", "/sys/devices/system/node/node0/meminfo",
    "/sys/devices/system/cpu/cpu0/topology/physical_package_id", "/sys/devices/system/node/node0/cpulist", "/lib64/libc.so.6",
    "/sys/class/dmi/id/sys_vendor", "/sys/hypervisor/type", "/proc/self/net/dev", "/sys/class/net/eth0/flags", "/sys/class/net/eth0/speed",
    "/sys/class/infiniband/mlx5_0/ports/1/rate", "/sys/class/infiniband/mlx5_0/ports/1/state", "/run/systemd/container", "/run/.containerenv", "/lib/apk/db/installed",
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=len(READ_FILES), max_size=len(READ_FILES)))
def test_nonsense_in_every_file_is_survived(contents):
    with tempfile.TemporaryDirectory() as root:
        found = examined(root, dict(zip(READ_FILES, contents)))
    plain = json.loads(json.dumps({name: to_plain(section) for name, section in found.items()}))
    assert read_sections(plain).keys() == found.keys()
    assert all((section.state is State.KNOWN) == (section.value is not None) for section in found.values())


def test_directories_where_files_should_be_are_survived(tmp_path):
    for path in READ_FILES:
        Path(f"{tmp_path}{path}").mkdir(parents=True)
    found = examined(tmp_path, {})
    assert found["memory"].state is State.UNREADABLE
    assert found["limits"].state is State.UNREADABLE


# --- parsers ----------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'\\$`"), max_size=20)


@given(st.dictionaries(NAMES, VALUES), st.sampled_from(["", '"', "'"]))
def test_os_release_reads_what_was_written(pairs, quote):
    text = "# comment\n\n" + "".join(f"{name}={quote}{value}{quote}\n" for name, value in pairs.items())
    assert probe.parse_os_release(text) == pairs


def test_os_release_escapes():
    assert probe.parse_os_release('NAME="A \\"B\\" \\$C"\n=x\nno value\n') == {"NAME": 'A "B" $C'}


BOUND = st.one_of(st.none(), st.integers(0, 1 << 63))


@given(st.dictionaries(st.sampled_from(sorted(texts.LIMIT_NAMES)), st.tuples(BOUND, BOUND)))
def test_limits_read_what_the_kernel_writes(limits):
    def word(bound):
        return "unlimited" if bound is None else str(bound)

    rows = "".join(f"{name:<25} {word(soft):<20} {word(hard):<20} bytes     \n" for name, (soft, hard) in limits.items())
    text = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} Units     \n" + rows
    assert probe.parse_limits(text) == {texts.LIMIT_NAMES[name]: Limit(soft=soft, hard=hard) for name, (soft, hard) in limits.items()}


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_lists_count_what_they_name(cpus):
    assert probe.count_cpus(",".join(str(cpu) for cpu in sorted(cpus)) + "\n") == len(cpus)


def test_cpu_lists():
    assert probe.count_cpus("0-47,96-143") == 96
    assert probe.count_cpus("") == 0
    assert probe.count_cpus("0-99999999999") == 0


@given(st.dictionaries(st.sampled_from(["memory", "cpu", "devices", ""]), st.from_regex(r"(/[a-z0-9.:_-]{1,9}){1,4}", fullmatch=True)))
def test_cgroups_read_what_the_kernel_writes(paths):
    text = "".join(f"{number}:{name}:{path}\n" for number, (name, path) in enumerate(paths.items()))
    assert probe.parse_cgroups(text) == paths


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000", None), ("200000 100000\n", 2.0), ("-1 100000", None), ("0 0", None), ("", None), ("a b", None), ("1 2 3", None)],
)
def test_cpu_max(text, cpus):
    assert probe.parse_cpu_max(text) == cpus


@given(st.text())
def test_parsers_take_any_text(text):
    probe.parse_os_release(text)
    probe.parse_limits(text)
    probe.parse_cgroups(text)
    probe.parse_cpu_max(text)
    probe.parse_cpuinfo(text)
    probe.parse_meminfo(text)
    assert probe.count_cpus(text) >= 0
    assert len(probe.told_value(text)) <= 4096
