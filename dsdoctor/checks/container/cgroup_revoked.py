"""The container lost its GPUs while it was running: a device cgroup refuses files that are there.

What it looks at
    GPU device files that exist in the container but answer "Operation not permitted" when opened, and NVML's start ("Unknown Error").

Why it matters
    When systemd manages the cgroups and reloads (systemctl daemon-reload, also run by package upgrades), it writes the device rules of a container
    again, without the GPUs that a hook of the container toolkit had added behind its back. Programs that hold a GPU go on, new ones get "Failed to
    initialize NVML: Unknown Error". The host is healthy: neither a reboot nor a new driver is called for. A batch scheduler that
    refuses some GPUs while others can be opened is doing its work, and is not reported.

Sources
    NVIDIA Container Toolkit, troubleshooting: "Containers losing access to GPUs with error: Failed to initialize NVML: Unknown Error".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.container._reading import NO_DEVICE_FILES
from dsdoctor.facts import Container, DeviceNode, NvmlStart, Section, State, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCES = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
    "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
)
NVML_UNKNOWN_ERROR = 999
REFUSED_BY_CGROUP = "operation not permitted"
GPU_FILE = re.compile(r"/dev/nvidia\d+")


def _node(path: str, *, refused: bool) -> DeviceNode:
    return DeviceNode(path=path, openable=not refused, mode="0666", why="Operation not permitted" if refused else "")


CASES = (
    Case(
        title="after systemctl daemon-reload on the host",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": tuple(_node(path, refused=True) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=999, error_text="Unknown Error"),
        },
        status=Status.FAIL,
        says="Operation not permitted",
    ),
    Case(
        title="only NVML's words are known",
        sections={
            "container": Container(runtime="containerd", kubernetes=True),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=999, error_text="Unknown Error"),
        },
        status=Status.FAIL,
        says="Unknown Error",
    ),
    Case(
        title="a scheduler refuses the GPUs of other jobs",
        sections={
            "container": Container(runtime="enroot"),
            "device_nodes": (
                _node("/dev/nvidia0", refused=False),
                _node("/dev/nvidia1", refused=True),
                _node("/dev/nvidiactl", refused=False),
            ),
        },
        status=Status.PASS,
    ),
    Case(
        title="a file mode that shuts the user out is another problem",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": (DeviceNode(path="/dev/nvidia0", openable=False, mode="0660", why="Permission denied"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="NVML fails with an unknown error although every file can be opened",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": (_node("/dev/nvidia0", refused=False), _node("/dev/nvidiactl", refused=False)),
            "nvml_start": NvmlStart(library="libnvidia-ml.so.1", error_code=999, error_text="Unknown Error"),
        },
        status=Status.UNKNOWN,
        says="another reason",
    ),
    Case(
        title="neither /dev nor NVML could be asked",
        sections={"container": Container(runtime="docker"), "device_nodes": unreadable("no answer within 5 s")},
        status=Status.UNKNOWN,
        says="no answer within 5 s",
    ),
    Case(title="not in a container", sections={"container": absent("a plain host")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a container without GPU device files",
        sections={"container": Container(runtime="docker"), "device_nodes": ()},
        status=Status.NOT_APPLICABLE,
        says="no GPU device file",
    ),
)


@check(
    "container.cgroup-revoked",
    Severity.ERROR,
    explains=("driver.absent", "driver.library-mismatch", "gpu.lost", "torch.cuda-unavailable", "smoke.*"),
    settle="sh -c ': < /dev/nvidiactl' && nvidia-smi -L",
    cases=CASES,
)
def cgroup_revoked(
    container: Container,
    device_nodes: Section[tuple[DeviceNode, ...]],
    nvml_start: Section[NvmlStart],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find GPU device files that a device cgroup refuses."""
    nodes = device_nodes.value or ()
    gpu_files = [node for node in nodes if GPU_FILE.fullmatch(node.path)]
    refused = [
        node for node in nodes if node.path.startswith("/dev/nvidia") and node.openable is False and REFUSED_BY_CGROUP in node.why.lower()
    ]
    control_refused = any(node.path == "/dev/nvidiactl" for node in refused)
    all_gpus_refused = bool(gpu_files) and all(node in refused for node in gpu_files)
    nvml = nvml_start.value
    nvml_unknown = nvml is not None and nvml.error_code == NVML_UNKNOWN_ERROR
    evidence = tuple(Evidence(where=f"device_nodes[{node.path}]", value=f"mode {node.mode}: {node.why}") for node in refused)
    if nvml is not None and nvml_unknown:
        evidence += (Evidence(where="nvml_start.error_text", value=nvml.error_text or "Unknown Error"),)
    if control_refused or all_gpus_refused or (nvml_unknown and device_nodes.state is not State.KNOWN):
        first = f"{refused[0].path} is there, but opening it says: {refused[0].why}" if refused else "NVML does not start: Unknown Error"
        yield Finding(
            subject="the container",
            summary=f"The device rules (cgroup) of this container no longer let it use its GPU: {first}.",
            cause="Most often systemctl daemon-reload on the host rewrote the device rules without the GPUs that the container toolkit's hook had "
            "added. CDI, or device files that the container engine itself knows of, survive a reload. The host and its driver are not at fault.",
            evidence=evidence,
            expected="device files that can be opened, also after a daemon-reload on the host",
            remedies=remedies() or remedies.of("container.no-gpu-access"),
            sources=SOURCES,
        )
    elif nvml_unknown and not refused:
        yield Doubt(
            subject="NVML",
            reason="it says Unknown Error although the device files can be opened: another reason than a device cgroup",
            settle="dmesg | grep -iE 'NVRM|Xid' | tail -20    # on the host",
        )
    elif device_nodes.state in (State.KNOWN, State.ABSENT) and not any(node.path.startswith("/dev/nvidia") for node in nodes):
        yield NO_DEVICE_FILES
    elif device_nodes.state not in (State.KNOWN, State.ABSENT) and nvml is None:
        yield Doubt(subject="the container", reason=f"the device files are not known ({device_nodes.why or 'nobody looked'})")
