"""The container has the GPU's device files, but not the driver libraries that CUDA needs.

What it looks at
    Which driver libraries (libcuda.so.1 for CUDA, libnvidia-ml.so.1 for nvidia-smi and NVML) can be found in the container; and, where that is
    not known, what NVIDIA_DRIVER_CAPABILITIES asks for under the runtime in use.

Why it matters
    The container runtime mounts the host's driver libraries by groups: `compute` brings libcuda, `utility` brings NVML. The defaults differ: the
    NVIDIA runtime of Docker gives both when the variable is not set, enroot (and with it Pyxis) gives `utility` only, so nvidia-smi works
    and CUDA does not. CDI and `apptainer --nv` do not look at the variable at all, so libraries that are there count for more than
    what the variable says.

Sources
    NVIDIA Container Toolkit, "Specialized Configurations with Docker"; the enroot hook 98-nvidia.sh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.container._reading import NO_DEVICE_FILES
from dsdoctor.facts import Container, DeviceNode, DriverLibrary, EnvironmentVariable, Section, State, Wsl, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

SOURCES = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
    "https://github.com/NVIDIA/enroot/blob/master/conf/hooks/98-nvidia.sh",
)
VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
READS_THE_VARIABLE = frozenset({"docker", "containerd", "podman", "enroot"})
DEFAULT_CAPABILITIES = {"enroot": frozenset({"utility"})}
USUAL_DEFAULT = frozenset({"compute", "utility"})
GPU_FILE = re.compile(r"/dev/nvidia\d+")

GPU_FILES = (DeviceNode(path="/dev/nvidia0", openable=True), DeviceNode(path="/dev/nvidiactl", openable=True))
NVML = DriverLibrary(
    soname="libnvidia-ml.so.1",
    path="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04",
    kind="driver",
    found_via="ld.so.cache",
    loaded_first=True,
)
CUDA = DriverLibrary(
    soname="libcuda.so.1",
    path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
    kind="driver",
    found_via="ld.so.cache",
    loaded_first=True,
)
STUB = DriverLibrary(soname="libcuda.so.1", path="/usr/local/cuda/lib64/stubs/libcuda.so", kind="stub", found_via="search")

CASES = (
    Case(
        title="Pyxis with a plain image: nvidia-smi works, CUDA does not",
        sections={
            "container": Container(runtime="enroot"),
            "device_nodes": GPU_FILES,
            "environment": (EnvironmentVariable(name="NVIDIA_VISIBLE_DEVICES", value="all"),),
            "driver_libraries": (NVML, STUB),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="libcuda.so.1",
    ),
    Case(
        title="a Dockerfile that asks for utility alone",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": GPU_FILES,
            "environment": (EnvironmentVariable(name=VARIABLE, value="utility"),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="compute",
    ),
    Case(
        title="compute without utility: CUDA works, nvidia-smi and NVML do not",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": GPU_FILES,
            "environment": (EnvironmentVariable(name=VARIABLE, value="compute,video"),),
            "driver_libraries": (CUDA,),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="utility",
    ),
    Case(
        title="Docker's own default is enough",
        sections={"container": Container(runtime="docker"), "device_nodes": GPU_FILES, "environment": ()},
        status=Status.PASS,
    ),
    Case(
        title="CDI mounts everything whatever the variable says",
        sections={
            "container": Container(runtime="podman"),
            "device_nodes": GPU_FILES,
            "environment": (EnvironmentVariable(name=VARIABLE, value="utility"),),
            "driver_libraries": (NVML, CUDA),
        },
        status=Status.PASS,
    ),
    Case(
        title="no GPU was passed in: then libraries are not the problem",
        sections={"container": Container(runtime="enroot"), "device_nodes": (), "environment": (), "driver_libraries": ()},
        status=Status.NOT_APPLICABLE,
        says="the container has no GPU device file",
    ),
    Case(
        title="a runtime that does not read the variable, and nobody looked for libraries",
        sections={"container": Container(runtime="apptainer"), "device_nodes": GPU_FILES, "environment": ()},
        status=Status.UNKNOWN,
        says="driver libraries",
    ),
    Case(title="not in a container", sections={"container": absent("a plain host")}, status=Status.NOT_APPLICABLE),
    Case(
        title="a message names the version of one library",
        sections={
            "container": Container(runtime="docker"),
            "device_nodes": GPU_FILES,
            "driver_libraries": (replace(NVML, path="loaded by nvidia-smi"),),
        },
        status=Status.UNKNOWN,
        says="neither its driver libraries",
    ),
)


@check(
    "container.missing-capability",
    Severity.ERROR,
    explains=("driver.absent", "torch.cuda-unavailable", "torch.import-fails", "smoke.*"),
    settle="ldconfig -p | grep -E 'libcuda.so.1|libnvidia-ml.so.1'",
    cases=CASES,
)
def missing_capability(
    container: Container,
    device_nodes: Section[tuple[DeviceNode, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    driver_libraries: Section[tuple[DriverLibrary, ...]],
    wsl: Section[Wsl],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find driver libraries that the container runtime did not mount."""
    no_gpu_files = device_nodes.state is State.ABSENT or (
        device_nodes.state is State.KNOWN and not any(GPU_FILE.fullmatch(node.path) for node in device_nodes.value or ())
    )
    if no_gpu_files or wsl.state is State.KNOWN:
        yield NotApplicable(reason="under WSL the driver libraries come from Windows") if wsl.state is State.KNOWN else NO_DEVICE_FILES
        return
    asked = {item.name: item.value for item in environment.value or ()}.get(VARIABLE)
    lacking, evidence = _lacking(container, asked, environment, driver_libraries)
    if lacking is None:
        yield Doubt(subject="the container", reason="neither its driver libraries nor the capabilities it was started with are known")
        return
    if asked is not None:
        evidence += (Evidence(where=f"environment[{VARIABLE}]", value=repr(asked)),)
        said = f"{VARIABLE} is {asked!r}, which leaves out '{' and '.join(sorted(lacking))}'."
        if not lacking - _capabilities(asked, container.runtime):
            said = f"{VARIABLE} asks for it ({asked!r}), so the runtime that started this container did not act on the variable."
    elif container.runtime in DEFAULT_CAPABILITIES:
        said = f"{VARIABLE} is not set, and {container.runtime} then gives 'utility' alone."
    else:
        said = f"The runtime mounted no library of the group '{' and '.join(sorted(lacking))}'."
    if "compute" in lacking:
        yield Finding(
            subject="libcuda.so.1",
            summary="The container has the GPU's device files but no libcuda.so.1 of the driver (the capability 'compute' is missing).",
            cause=f"{said} nvidia-smi may work here; CUDA cannot start.",
            evidence=evidence,
            expected="libcuda.so.1 of the host's driver in the container",
            remedies=remedies("general") or remedies.of("container.no-gpu-access"),
            sources=SOURCES,
        )
    elif "utility" in lacking:
        yield Finding(
            subject="libnvidia-ml.so.1",
            summary="The container has CUDA but no libnvidia-ml.so.1 (the capability 'utility' is missing).",
            cause=f"{said} nvidia-smi and NVML do not work; serving engines use NVML to recognise GPUs and their links.",
            evidence=evidence,
            expected="libnvidia-ml.so.1 of the host's driver in the container",
            remedies=remedies("general") or remedies.of("container.no-gpu-access"),
            sources=SOURCES,
            severity=Severity.WARNING,
        )


def _lacking(
    container: Container,
    asked: str | None,
    environment: Section[tuple[EnvironmentVariable, ...]],
    driver_libraries: Section[tuple[DriverLibrary, ...]],
) -> tuple[frozenset[str] | None, tuple[Evidence, ...]]:
    """The capabilities that did not arrive, None when that cannot be told; by the libraries found, else by the variable."""
    libraries = driver_libraries.value or ()
    # A message that names the version of one library is no list of those that are there.
    listed = not libraries or any(library.path.startswith("/") for library in libraries)
    if driver_libraries.state in (State.KNOWN, State.ABSENT) and listed:
        real = {library.soname for library in libraries if library.kind != "stub"}
        lacking = {
            capability
            for capability, soname in (("compute", "libcuda.so.1"), ("utility", "libnvidia-ml.so.1"))
            if not any(name.startswith(soname.removesuffix(".1")) for name in real)
        }
        return frozenset(lacking), (Evidence(where="driver_libraries", value=", ".join(sorted(real)) or "none found"),)
    if environment.state is State.KNOWN and container.runtime in READS_THE_VARIABLE:
        return USUAL_DEFAULT - _capabilities(asked, container.runtime), (Evidence(where="container.runtime", value=container.runtime),)
    return None, ()


def _capabilities(asked: str | None, runtime: str) -> frozenset[str]:
    if not asked:
        return DEFAULT_CAPABILITIES.get(runtime, USUAL_DEFAULT)
    words = frozenset(word.strip() for word in asked.split(","))
    return USUAL_DEFAULT | words if "all" in words else words
