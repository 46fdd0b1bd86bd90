"""The kinds of expectation that a site can have of a node: what each looks at, in which form it is wanted, and what usually mends it.

The set is closed: a kind reads one section of the snapshot and yields what it sees there. A new kind is one entry of `KINDS`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsdoctor.expect.want import Form, Value
from dsdoctor.facts import Directory, Gpu, LoadedModules, NetworkInterface, Section
from dsdoctor.findings import Disruption

GIB = 2**30
Sections = Mapping[str, Section[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One value that a kind found."""

    of: tuple[str, ...] = ("",)
    """The names under which an expectation can mean it: the module, the path, the variable."""
    subject: str
    value: Value | None
    """None: it is not known, and `why` says why."""
    where: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of expectation."""

    name: str
    text: str
    """What it looks at, in a few words: 'the VBIOS version of each GPU'."""
    form: Form
    sections: tuple[str, ...]
    """The first one decides: without it the answer is unknown."""
    see: Callable[[Any, Sections, str], Iterable[Seen]]
    """What the value of the first section shows, given all sections and the `of` of the expectation."""
    named: str = ""
    """What `of` names ('kernel module'); empty when there is only one thing to look at."""
    default_of: str = ""
    """What is meant without `of`; empty where `of` is needed."""
    of_gpus: bool = False
    """It asks about GPUs that are there: without a GPU the question does not arise."""
    counts: bool = False
    """Where the section is absent the value is 0."""
    unproven: Callable[[str, Any, bool], str] = lambda of, value, probed: "" if probed else "pasted text need not list everything"
    """Why it does not show that something is absent when it is not listed; empty when it does."""
    remedy: str
    disruption: Disruption
    needs_root: bool = True


def _gpu_field(field: str, value_of: Callable[[Gpu], Value | None]) -> Callable[[Sequence[Gpu], Sections, str], Iterable[Seen]]:
    def see(gpus: Sequence[Gpu], sections: Sections, of: str) -> Iterable[Seen]:
        for position, gpu in enumerate(gpus):
            missing = gpu.missing.get(field)
            value = value_of(gpu)
            yield Seen(
                subject=f"GPU {gpu.index}",
                value=None if value == "" else value,
                where=f"gpus[{position}].{field}",
                why=missing.why if missing else "the GPU is lost" if gpu.lost else "not told",
            )

    return see


def _one(subject: str, where: str, value_of: Callable[[Any], Value | None]) -> Callable[[Any, Sections, str], Iterable[Seen]]:
    def see(record: Any, sections: Sections, of: str) -> Iterable[Seen]:
        value = value_of(record)
        yield Seen(subject=subject, value=None if value == "" else value, where=where, why="not told")

    return see


def _gpu_count(gpus: Sequence[Gpu], sections: Sections, of: str) -> Iterable[Seen]:
    versions = sections["nvml_versions"].value
    if versions is not None and versions.gpu_count is not None:
        yield Seen(subject="this node", value=versions.gpu_count, where="nvml_versions.gpu_count")
    elif sections["gpus"].found_via.startswith("NVML"):
        yield Seen(subject="this node", value=len(gpus), where="gpus")
    else:
        yield Seen(subject="this node", value=None, where="gpus", why="a list of GPUs that need not be complete")


def _chosen(interfaces: Sequence[NetworkInterface], of: str) -> list[tuple[int, NetworkInterface]]:
    """The interfaces of a kind or name, without the loopback."""
    return [
        (position, item)
        for position, item in enumerate(interfaces)
        if not item.loopback and any(fnmatch.fnmatchcase(name, of) for name in (item.kind, item.name))
    ]


def _nic_count(interfaces: Sequence[NetworkInterface], sections: Sections, of: str) -> Iterable[Seen]:
    chosen = [item for _, item in _chosen(interfaces, of)]
    untold = [item.name for item in chosen if item.up is None]
    count = None if untold else sum(item.up is True for item in chosen)
    yield Seen(of=(of,), subject="this node", value=count, where="network_interfaces", why=f"whether {', '.join(untold)} is up is not told")


def _nic_rates(interfaces: Sequence[NetworkInterface], sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in _chosen(interfaces, of):
        if item.up is not False:
            rate = None if item.speed_mbit_per_s is None else item.speed_mbit_per_s / 1000
            where = f"network_interfaces[{position}].speed_mbit_per_s"
            yield Seen(of=(of,), subject=item.name, value=rate, where=where, why="its rate is not told")


def _modules(modules: LoadedModules, sections: Sections, of: str) -> Iterable[Seen]:
    for name in modules.names:
        yield Seen(of=(name,), subject=f"kernel module {name}", value="loaded", where="loaded_modules.names")


def _module_is_unproven(of: str, modules: LoadedModules, probed: bool) -> str:
    from dsdoctor.sources.texts import RELEVANT_MODULES

    if of in modules.asked_for or (probed and not modules.asked_for and (modules.complete or of.startswith(RELEVANT_MODULES))):
        return ""
    return "only some of the loaded modules are known"


def _variable_is_unproven(of: str, variables: Any, probed: bool) -> str:
    from dsdoctor.sources.texts import matters

    if not matters(of):
        return "dsdoctor collects no variable of that name"
    return "" if probed else "pasted text need not list everything"


def _mounts(mounts: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(mounts):
        yield Seen(of=(item.path,), subject=item.path, value=item.file_system, where=f"mounts[{position}].file_system")


def _mount_modes(mounts: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(mounts):
        mode = next((option for option in item.options if option in ("rw", "ro")), None)
        yield Seen(of=(item.path,), subject=item.path, value=mode, where=f"mounts[{position}].options", why="its options are not told")


def _free(directories: Sequence[Directory], sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(directories):
        free = None if item.free_bytes is None else item.free_bytes / GIB
        where = f"directories[{position}].free_bytes"
        yield Seen(of=(item.purpose, item.path), subject=item.path, value=free, where=where, why=item.why or "not told")


def _limits(limits: Mapping[str, Any], sections: Sections, of: str) -> Iterable[Seen]:
    for name, limit in limits.items():
        yield Seen(of=(name,), subject=f"limit {name}", value=math.inf if limit.soft is None else limit.soft, where=f"limits.{name}.soft")


def _services(services: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(services):
        state = None if item.state == "unknown" else item.state
        yield Seen(
            of=(item.name,), subject=f"service {item.name}", value=state, where=f"services[{position}].state", why="its state is not told"
        )


def _variables(variables: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for item in variables:
        yield Seen(of=(item.name,), subject=item.name, value=item.value, where=f"environment.{item.name}")


def _packages(packages: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(packages):
        yield Seen(of=(item.name,), subject=item.name, value=item.version, where=f"packages[{position}].version")


def _devices(nodes: Any, sections: Sections, of: str) -> Iterable[Seen]:
    for position, item in enumerate(nodes):
        openable = None if item.openable is None else item.openable
        yield Seen(
            of=(item.path,), subject=item.path, value=openable, where=f"device_nodes[{position}].openable", why=item.why or "not tried"
        )


def _smoke_rates(results: Any, sections: Sections, of: str) -> Iterable[Seen]:
    """The rate of each result, in the unit that the test reports: TFLOP/s, GB/s, or GB/s on the bus of a collective."""
    for position, item in enumerate(results):
        rate = next((name for name in ("tflops", "gb_per_s", "bus_gb_per_s") if name in item.values), "")
        if item.outcome == "ran" and not rate:
            continue
        names = (item.test, f"{item.test}/{item.path}")
        subject = f"{item.test}{f' ({item.path})' if item.path else ''}{'' if item.gpu is None else f' on GPU {item.gpu}'}"
        yield Seen(
            of=names,
            subject=subject,
            value=item.values.get(rate),
            where=f"smoke[{position}].{f'values.{rate}' if rate else 'outcome'}",
            why=f"the test was {item.outcome}: {item.reason}" if item.outcome != "ran" else "",
        )


_OF_GPU: dict[str, Any] = {"sections": ("gpus",), "of_gpus": True}

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="gpu-count", text="how many GPUs the node has", form=Form.NUMBER, sections=("gpus", "nvml_versions"), see=_gpu_count,
            counts=True, remedy="Find the GPU that is missing: lspci, the kernel log, then the seat of the board.",
            disruption=Disruption.REBOOT,
        ),
        Kind(
            name="gpu-product", text="the product name of each GPU", form=Form.TEXT, see=_gpu_field("name", lambda gpu: gpu.name),
            remedy="Put the node into the group that its GPUs belong to, or exchange the odd one.",
            disruption=Disruption.REPLACE_HARDWARE, **_OF_GPU,
        ),
        Kind(
            name="gpu-memory-gib", text="the memory of each GPU in GiB", form=Form.NUMBER,
            see=_gpu_field("memory_total_bytes", lambda gpu: None if gpu.memory_total_bytes is None else gpu.memory_total_bytes / GIB),
            remedy="Look for MIG and for rows that were taken out of use; else exchange the GPU.",
            disruption=Disruption.REPLACE_HARDWARE, **_OF_GPU,
        ),
        Kind(
            name="gpu-vbios", text="the VBIOS version of each GPU", form=Form.TEXT, see=_gpu_field("vbios_version", lambda gpu: gpu.vbios_version),
            remedy="Bring the GPU firmware to the release that the site runs, with the vendor's update package.",
            disruption=Disruption.REBOOT, **_OF_GPU,
        ),
        Kind(
            name="gpu-ecc", text="whether ECC is on for each GPU", form=Form.TRUTH, see=_gpu_field("ecc_enabled", lambda gpu: gpu.ecc_enabled),
            remedy="Set it with nvidia-smi -e, then reset the GPUs.", disruption=Disruption.RESET_GPU, **_OF_GPU,
        ),
        Kind(
            name="gpu-mig", text="whether MIG is on for each GPU", form=Form.TRUTH, see=_gpu_field("mig_enabled", lambda gpu: gpu.mig_enabled),
            remedy="Set it with nvidia-smi -mig, while no process uses the GPU.", disruption=Disruption.RESET_GPU, **_OF_GPU,
        ),
        Kind(
            name="gpu-persistence", text="whether persistence mode is on for each GPU", form=Form.TRUTH,
            see=_gpu_field("persistence_mode", lambda gpu: gpu.persistence_mode),
            remedy="Start nvidia-persistenced.", disruption=Disruption.NONE, **_OF_GPU,
        ),
        Kind(
            name="gpu-power-limit-w", text="the power limit of each GPU in watts", form=Form.NUMBER,
            see=_gpu_field("power_limit_w", lambda gpu: gpu.power_limit_w),
            remedy="Set it with nvidia-smi -pl.", disruption=Disruption.NONE, **_OF_GPU,
        ),
        Kind(
            name="gpu-pcie-width", text="the PCIe lanes of each GPU", form=Form.NUMBER,
            see=_gpu_field("pcie", lambda gpu: gpu.pcie.width if gpu.pcie else None),
            remedy="Seat the GPU or its riser again; look at dsdoctor explain pcie.link-degraded.",
            disruption=Disruption.REPLACE_HARDWARE, **_OF_GPU,
        ),
        Kind(
            name="gpu-nvlinks", text="how many NVLinks of each GPU are active", form=Form.NUMBER,
            see=_gpu_field("nvlinks", lambda gpu: None if gpu.nvlinks is None else sum(link.active for link in gpu.nvlinks)),
            remedy="Look at dsdoctor explain gpu.nvlink-down.", disruption=Disruption.RESET_GPU, **_OF_GPU,
        ),
        Kind(
            name="driver", text="the version of the loaded driver", form=Form.VERSION, sections=("kernel_driver",),
            see=_one("driver", "kernel_driver.version", lambda driver: driver.version),
            remedy="Install the driver that the site runs, then reboot.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="driver-flavour", text="open or proprietary kernel modules", form=Form.TEXT, sections=("kernel_driver",),
            see=_one("driver", "kernel_driver.flavour", lambda driver: driver.flavour),
            remedy="Install the other flavour of the kernel modules, then reboot.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="driver-option", text="an option of the nvidia module (/proc/driver/nvidia/params)", form=Form.TEXT, named="driver option",
            sections=("kernel_driver",), unproven=lambda of, driver, probed: "" if probed and driver.options else "the options are not known",
            see=lambda driver, sections, of: (
                Seen(of=(name,), subject=f"driver option {name}", value=value, where=f"kernel_driver.options.{name}")
                for name, value in driver.options.items()
            ),
            remedy="Set it in /etc/modprobe.d, build the initial ram disk again and reboot.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="kernel", text="the release of the running kernel", form=Form.TEXT, sections=("platform",),
            see=_one("kernel", "platform.kernel_release", lambda platform: platform.kernel_release),
            remedy="Boot the kernel that the site runs.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="os", text="the operating system as 'ubuntu 24.04'", form=Form.TEXT, sections=("platform",),
            see=_one("operating system", "platform.os_id", lambda platform: f"{platform.os_id} {platform.os_version}".strip()),
            remedy="Install the image that the site runs.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="cpu-count", text="how many logical processors the node has", form=Form.NUMBER, sections=("cpu",),
            see=_one("processors", "cpu.logical_cpus", lambda cpu: cpu.logical_cpus),
            remedy="Look at SMT and the core settings of the firmware.", disruption=Disruption.REBOOT,
        ),
        Kind(
            name="memory-gib", text="the main memory in GiB", form=Form.NUMBER, sections=("memory",),
            see=_one("main memory", "memory.total_bytes", lambda memory: memory.total_bytes / GIB),
            remedy="Find the memory module that is missing or mapped out: dmidecode -t memory.", disruption=Disruption.REPLACE_HARDWARE,
        ),
        Kind(
            name="nic-count", text="how many interfaces are up (of: rdma, ethernet, infiniband, or a name such as mlx5_*)", form=Form.NUMBER,
            sections=("network_interfaces",), see=_nic_count, named="interface", default_of="rdma", counts=True,
            remedy="Look at dsdoctor explain rdma.link-down.", disruption=Disruption.REPLACE_HARDWARE,
        ),
        Kind(
            name="nic-rate-gbit", text="the rate of each interface in Gbit/s", form=Form.NUMBER, sections=("network_interfaces",),
            see=_nic_rates, named="interface", default_of="rdma", remedy="Exchange the cable, or set the port's speed on the switch.",
            disruption=Disruption.REPLACE_HARDWARE,
        ),
        Kind(
            name="module", text="a kernel module", form=Form.TEXT, sections=("loaded_modules",), see=_modules, named="kernel module",
            unproven=_module_is_unproven, remedy="Load it with modprobe, and at boot from /etc/modules-load.d.", disruption=Disruption.NONE,
        ),
        Kind(
            name="service", text="the state of a service", form=Form.TEXT, sections=("services",), see=_services, named="service",
            remedy="Look at systemctl status and the journal of the service.", disruption=Disruption.RESTART_PROCESS,
        ),
        Kind(
            name="device", text="whether a device file can be opened", form=Form.TRUTH, sections=("device_nodes",), see=_devices, named="device file",
            remedy="Load the module that makes it, or give the container the device.", disruption=Disruption.NONE,
        ),
        Kind(
            name="mount", text="the file system mounted at a path", form=Form.TEXT, sections=("mounts",), see=_mounts, named="mount",
            remedy="Mount it; look at the kernel log and /etc/fstab.", disruption=Disruption.NONE,
        ),
        Kind(
            name="mount-mode", text="rw or ro, of the file system mounted at a path", form=Form.TEXT, sections=("mounts",), see=_mount_modes,
            named="mount", remedy="The kernel log says why it was mounted read-only; mount it again when that is mended.",
            disruption=Disruption.NONE,
        ),
        Kind(
            name="free-gib", text="free space in GiB (of: tmp, home, huggingface-cache … or the path)", form=Form.NUMBER, sections=("directories",),
            see=_free, named="directory", unproven=lambda of, value, probed: "dsdoctor looks at no directory of that name",
            remedy="Make room.", disruption=Disruption.NONE, needs_root=False,
        ),
        Kind(
            name="limit", text="a resource limit of the process (of: memlock, nofile, stack …), bytes or counts", form=Form.NUMBER,
            sections=("limits",), see=_limits, named="limit", unproven=lambda of, value, probed: "no such limit is known",
            remedy="Raise it in /etc/security/limits.d, the service's unit or the container's options.", disruption=Disruption.RESTART_PROCESS,
        ),
        Kind(
            name="environment", text="a variable of the environment", form=Form.TEXT, sections=("environment",), see=_variables,
            named="environment variable", unproven=_variable_is_unproven,
            remedy="Set or remove it where the site sets its environment: profile, module file, image or job script.",
            disruption=Disruption.RESTART_PROCESS, needs_root=False,
        ),
        Kind(
            name="package", text="the version of an installed Python package", form=Form.PACKAGE, sections=("packages",), see=_packages,
            named="package", remedy="Install it as the site pins it.", disruption=Disruption.RESTART_PROCESS, needs_root=False,
        ),
        Kind(
            name="smoke-rate", text="what a GPU test reached (of: bf16-rate, memory-copy, 'pcie/pinned h2d' …), TFLOP/s or GB/s", form=Form.NUMBER,
            sections=("smoke",), see=_smoke_rates, named="GPU test", of_gpus=True,
            unproven=lambda of, value, probed: "the test was not run",
            remedy="Look at clocks, power and temperature under load: dsdoctor explain smoke.rate.",
            disruption=Disruption.NONE, needs_root=False,
        ),
    )
}  # fmt: skip
"""Every kind by name, in the order of the documentation."""
