"""The container has no GPU device files, although the node has a GPU.

What it looks at
    The device files in the container (/dev/nvidia0 …, /dev/nvidiactl, /dev/nvidia-uvm; /dev/dxg under WSL), whether the node has a GPU (its PCI
    devices, or the loaded kernel driver, both of which shine through into a container), and the variable that tells the container runtime
    which GPUs to pass in (NVIDIA_VISIBLE_DEVICES).

Why it matters
    Without the files CUDA says "no CUDA-capable device" or "No CUDA GPUs are available", and a framework quietly computes on the CPU. Nothing on
    the node needs mending: the container was started without GPUs. nvidia-ctk being installed is not enough, the runtime must use it too. A file
    that is there but may not be opened because of its mode is judged here as well; one that a device cgroup refuses is container.cgroup-revoked.

Sources
    NVIDIA Container Toolkit, "Specialized Configurations with Docker"; enroot's hook 98-nvidia.sh does nothing when NVIDIA_VISIBLE_DEVICES is
    void or missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import (
    Container,
    DeviceNode,
    EnvironmentVariable,
    KernelDriver,
    PciDevice,
    Section,
    State,
    Wsl,
    absent,
)
from dsdoctor.findings import Disruption, Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status, Verify
from dsdoctor.remedies import Remedies

SOURCE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"
GPU_FILE = re.compile(r"/dev/nvidia\d+")
PERMISSION_DENIED = "permission denied"
INJECTS_NOTHING = {"": "is empty", "void": "is 'void'", "none": "is 'none' (driver libraries, but no GPU)"}

LET_THE_USER_IN = Remedy(
    summary="Let the user of the job open the device files",
    steps=(
        "where the files belong to a group (often video or render): start the container with that group added (--group-add, supplementalGroups)",
        "on the host the driver's option NVreg_DeviceFileMode gives the mode (0666 unless somebody changed it); it takes effect when the module "
        "is loaded again",
        "rootless engines: keep the groups of the user (podman: --group-add keep-groups)",
    ),
    inspect=("ls -l /dev/nvidia*", "id", "grep -i DeviceFile /proc/driver/nvidia/params"),
    verify=Verify(command="nvidia-smi -L", prints="the GPUs"),
    disruption=Disruption.RESTART_PROCESS,
    sources=(SOURCE,),
)

A_GPU = PciDevice(address="0000:17:00.0", kind="gpu", vendor_id="10de", device_id="2330", driver="nvidia")
FILES = tuple(DeviceNode(path=f"/dev/{name}", openable=True) for name in ("nvidia0", "nvidiactl", "nvidia-uvm"))

CASES = (
    Case(
        title="docker run without --gpus on a GPU node",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": absent("no /dev/nvidia*"),
            "pci_devices": (A_GPU,),
            "kernel_driver": KernelDriver(version="580.159.04"),
        },
        status=Status.FAIL,
        says="no GPU device file",
    ),
    Case(
        title="a plain image under enroot: the hook passes nothing in",
        sections={
            "container": Container(runtime="enroot"),
            "device_nodes": (),
            "kernel_driver": KernelDriver(version="580.159.04"),
            "environment": (EnvironmentVariable(name="NVIDIA_VISIBLE_DEVICES", value="void"),),
        },
        status=Status.FAIL,
        says="NVIDIA_VISIBLE_DEVICES is 'void'",
    ),
    Case(
        title="nvidia_uvm was not loaded on the host when the container started",
        sections={"container": Container(runtime="apptainer"), "device_nodes": FILES[:2]},
        status=Status.FAIL,
        says="/dev/nvidia-uvm",
    ),
    Case(
        title="the device files belong to a group the user is not in",
        sections={
            "container": Container(runtime="podman"),
            "device_nodes": tuple(DeviceNode(path=file.path, openable=False, mode="0660", why="Permission denied") for file in FILES),
        },
        status=Status.FAIL,
        says="Permission denied",
    ),
    Case(
        title="two of eight GPUs passed in is a choice, not a fault",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": (*FILES, DeviceNode(path="/dev/nvidia5", openable=True)),
            "pci_devices": tuple(PciDevice(address=f"0000:{bus:02x}:00.0", kind="gpu", vendor_id="10de") for bus in range(8)),
        },
        status=Status.PASS,
    ),
    Case(
        title="WSL needs /dev/dxg only",
        sections={
            "container": Container(runtime="docker"),
            "wsl": Wsl(version=2),
            "device_nodes": (DeviceNode(path="/dev/dxg", openable=True),),
        },
        status=Status.PASS,
    ),
    Case(
        title="a container on a node without any NVIDIA device",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": (),
            "pci_devices": (),
            "kernel_driver": absent("no module is loaded"),
        },
        status=Status.NOT_APPLICABLE,
        says="no NVIDIA GPU and no driver show on this node",
    ),
    Case(
        title="no device files, and nothing says whether the node has a GPU",
        sections={"container": Container(runtime="docker"), "device_nodes": ()},
        status=Status.UNKNOWN,
        says="whether the node has a GPU",
    ),
    Case(
        title="nobody looked at /dev",
        sections={"container": Container(runtime="docker"), "kernel_driver": KernelDriver(version="580.159.04")},
        status=Status.UNKNOWN,
        says="device files",
    ),
    Case(title="not in a container", sections={"container": absent("a plain host")}, status=Status.NOT_APPLICABLE),
)


@check(
    "container.no-gpu-access",
    Severity.ERROR,
    explains=("driver.absent", "torch.cuda-unavailable", "smoke.*"),
    settle="ls -l /dev/nvidia*",
    cases=CASES,
)
def no_gpu_access(
    container: Container,
    device_nodes: Section[tuple[DeviceNode, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    kernel_driver: Section[KernelDriver],
    environment: Section[tuple[EnvironmentVariable, ...]],
    wsl: Section[Wsl],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find GPU device files that are not there, or that the user may not open."""
    if device_nodes.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject=_subject(container), reason=f"the device files are not known ({device_nodes.why or 'nobody looked'})")
        return
    nodes = device_nodes.value or ()
    wanted: tuple[str, ...]
    if wsl.state is State.KNOWN:
        wanted, gpu_files = ("/dev/dxg",), [node for node in nodes if node.path == "/dev/dxg"]
    else:
        wanted, gpu_files = ("/dev/nvidiactl", "/dev/nvidia-uvm"), [node for node in nodes if GPU_FILE.fullmatch(node.path)]
    if not gpu_files:
        yield from _without_gpu_files(container, pci_devices, kernel_driver, environment, wsl, remedies)
        return
    refused = [node for node in nodes if node.openable is False and PERMISSION_DENIED in node.why.lower()]
    if refused and not any(node.openable for node in gpu_files):
        yield Finding(
            subject=_subject(container),
            summary=f"This user may not open {_list([node.path for node in refused])}: {refused[0].why}.",
            cause="The device files are in the container, but their owner and mode shut this user out. CUDA then sees no GPU.",
            evidence=tuple(
                Evidence(where=f"device_nodes[{node.path}]", value=f"mode {node.mode or 'unknown'}: {node.why}") for node in refused
            ),
            expected="device files that the user of the job may open for reading and writing (mode 0666, or a group of the user)",
            remedies=(LET_THE_USER_IN,),
            sources=(SOURCE,),
        )
        return
    missing = [path for path in wanted if path not in {node.path for node in nodes}]
    if missing:
        yield Finding(
            subject=_subject(container),
            summary=f"{_list([node.path for node in gpu_files])} is in the container, but {_list(missing)} is not.",
            cause="CUDA opens these files beside that of the GPU. /dev/nvidia-uvm exists only once the module nvidia_uvm is loaded on the host; "
            "a container started before that never gets it.",
            evidence=(Evidence(where="device_nodes", value=", ".join(node.path for node in nodes)),),
            expected=f"{_list(missing)} in the container as well",
            remedies=remedies.of("driver.absent", "uvm-not-loaded") or remedies.of("driver.absent", "not-loaded"),
            sources=(SOURCE,),
        )


def _without_gpu_files(
    container: Container,
    pci_devices: Section[tuple[PciDevice, ...]],
    kernel_driver: Section[KernelDriver],
    environment: Section[tuple[EnvironmentVariable, ...]],
    wsl: Section[Wsl],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    evidence = tuple(_node_has_a_gpu(pci_devices, kernel_driver, wsl))
    if not evidence:
        if State.NOT_ASKED in (pci_devices.state, kernel_driver.state) or State.UNREADABLE in (pci_devices.state, kernel_driver.state):
            yield Doubt(
                subject=_subject(container),
                reason="it has no GPU device files, and whether the node has a GPU at all is not known",
                settle="nvidia-smi -L    # on the host, outside the container",
            )
        else:
            yield NotApplicable(reason="no NVIDIA GPU and no driver show on this node")
        return
    requested = next((item for item in environment.value or () if item.name == "NVIDIA_VISIBLE_DEVICES"), None)
    cause = "The container was started without GPUs, or its runtime does not use the NVIDIA Container Toolkit."
    if requested is not None:
        nothing = INJECTS_NOTHING.get(requested.value.strip().lower())
        cause = (
            f"NVIDIA_VISIBLE_DEVICES {nothing}, which tells the container runtime to pass no GPU in."
            if nothing
            else f"NVIDIA_VISIBLE_DEVICES asks for {requested.value!r}, but nothing was passed in: the runtime that started this container does "
            "not act on the variable (the NVIDIA runtime or hook is not configured)."
        )
        evidence += (Evidence(where="environment[NVIDIA_VISIBLE_DEVICES]", value=repr(requested.value)),)
    elif environment.state is State.KNOWN and container.runtime == "enroot":
        cause = "NVIDIA_VISIBLE_DEVICES is not set, and enroot's hook passes no GPU in without it."
    yield Finding(
        subject=_subject(container),
        summary="The node has an NVIDIA GPU, but there is no GPU device file in this container.",
        cause=cause,
        evidence=(Evidence(where="device_nodes", value="no /dev/nvidia0 …" if wsl.state is not State.KNOWN else "no /dev/dxg"), *evidence),
        expected="/dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU of the job",
        remedies=_remedies(remedies, asked=requested is not None and requested.value.strip().lower() not in INJECTS_NOTHING),
        sources=(SOURCE,),
        explains=("gpu.lost",),
    )


def _remedies(remedies: Remedies, *, asked: bool) -> tuple[Remedy, ...]:
    """GPUs that were asked for and did not come point to the toolkit; else the container was started without them."""
    toolkit = remedies("toolkit-missing")[:1] if asked else ()
    return (toolkit + remedies("not-requested"))[:3] or remedies()


def _node_has_a_gpu(
    pci_devices: Section[tuple[PciDevice, ...]], kernel_driver: Section[KernelDriver], wsl: Section[Wsl]
) -> Iterator[Evidence]:
    gpus = [device for device in pci_devices.value or () if device.kind == "gpu" and device.vendor_id.lower().removeprefix("0x") == "10de"]
    if gpus:
        yield Evidence(where="pci_devices", value=f"NVIDIA GPU at {_list([device.address for device in gpus])}")
    # A bus that can be seen and holds no GPU settles it: containers see the bus of their host.
    if kernel_driver.value is not None and (gpus or not pci_devices.value):
        yield Evidence(where="kernel_driver.version", value=kernel_driver.value.version)
    if wsl.value is not None and wsl.value.libcuda_directory:
        yield Evidence(where="wsl.libcuda_directory", value=wsl.value.libcuda_directory)


def _subject(container: Container) -> str:
    return f"the {container.runtime} container" if container.runtime not in ("", "unknown") else "the container"


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} …" if len(names) > 4 else shown
