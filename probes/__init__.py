"""The code that touches a machine: one source of facts per file, listed here in the order of a report."""

from dsdoctor.sources.probe import Probe

PROBES: tuple[Probe, ...] = (
    Probe(
        name="host",
        module="dsdoctor.probes.host",
        cost="instant",
        timeout_s=5,
        provides=(
            "platform",
            "libc",
            "cpu",
            "memory",
            "limits",
            "identity",
            "container",
            "wsl",
            "virtualization",
            "device_nodes",
            "environment",
            "network_interfaces",
            "rdma_ports",
        ),
    ),
    Probe(
        name="filesystems",
        module="dsdoctor.probes.filesystems",
        cost="instant",
        timeout_s=10,
        provides=("shared_memory", "directories", "mounts"),
    ),
    Probe(
        name="driver",
        module="dsdoctor.probes.driver",
        cost="instant",
        timeout_s=10,
        provides=("kernel_driver", "driver_module_file", "secure_boot", "loaded_modules", "driver_libraries"),
    ),
    Probe(name="services", module="dsdoctor.probes.services", cost="process", timeout_s=10, provides=("services",), whole_node=True),
    Probe(name="kernel_log", module="dsdoctor.probes.kernel_log", cost="process", timeout_s=10, provides=("kernel_log",), whole_node=True),
    Probe(
        name="nvml",
        module="dsdoctor.probes.nvml",
        cost="instant",
        timeout_s=20,
        provides=("nvml_start", "nvml_versions", "gpus"),
        whole_node=True,
    ),
    Probe(name="pcie", module="dsdoctor.probes.pcie", cost="instant", timeout_s=10, provides=("pci_devices", "iommu"), whole_node=True),
    Probe(name="toolchain", module="dsdoctor.probes.toolchain", cost="process", timeout_s=15, provides=("cuda_toolkits", "host_compilers")),
    Probe(
        name="interpreter",
        module="dsdoctor.probes.interpreter",
        cost="process",
        where="target",
        timeout_s=30,
        provides=("interpreter", "packages", "file_conflicts", "torch_build", "python_headers"),
    ),
    Probe(
        name="libraries",
        module="dsdoctor.probes.libraries",
        cost="process",
        where="target",
        timeout_s=30,
        provides=("libstdcxx", "cuda_libraries", "loader_hits", "extensions"),
    ),
    Probe(
        name="torch",
        module="dsdoctor.probes.torch",
        cost="process",
        where="target",
        timeout_s=120,
        quick=False,
        provides=("torch_runtime", "mapped_libraries", "module_imports"),
    ),
    Probe(
        name="smoke",
        module="dsdoctor.probes.smoke",
        cost="gpu",
        where="target",
        timeout_s=300,
        quick=False,
        provides=("smoke",),
    ),
)

PROCESS_PROBE = Probe(
    name="process",
    module="dsdoctor.probes.process",
    cost="instant",
    timeout_s=20,
    provides=("mapped_libraries", "torch_runtime", "commands"),
)
"""For a running process (`--pid`), in place of the probes that start children of the interpreter."""

STARTS_CHILDREN = ("torch", "smoke")
"""The probes whose place it takes."""

ENDPOINT_PROBE = Probe(
    name="endpoint", module="dsdoctor.probes.endpoint", cost="process", timeout_s=15, provides=("service",), whole_node=True
)
"""For a service that the user names (`--service`)."""

DISK_PROBE = Probe(name="disk", module="dsdoctor.probes.disk", cost="process", timeout_s=15, provides=("disk",), quick=False)
"""For a model directory that the user names; a file system that does not answer costs its timeout, and nothing else."""
