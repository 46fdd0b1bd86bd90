"""What a comparison of nodes wants of one report, as SQL over its JSON: read by DuckDB, many reports at once.

Only the fields of `_STRUCTURE` are taken from a report: what else it says is passed over, what it does not say is NULL. So reports of other
dsdoctor versions are read as far as they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REPORT, NO_REPORT = "dsdoctor.report/1", "dsdoctor.no-report/1"


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a node that should be the same on its like."""

    id: str
    title: str
    sql: str
    """Text, or NULL where the report does not say."""


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of which every node has its own selection; where the section is known, a missing one is a value too."""

    id: str
    title: str
    section: str
    sql: str
    """List of structs of fact and value."""
    absent: str
    """The value in words of a fact that a node has not."""


def _each_gpu(expression: str) -> str:
    """The distinct values over the GPUs of a node, as one text; NULL when none is known."""
    values = f"list_sort(list_distinct([v FOR v IN [{expression} FOR g IN f.gpus.value] IF v <> '']))"
    return f"nullif(array_to_string({values}, ', '), '')"


def _service(text: str) -> str:
    return f"concat_ws(' ', {text}.state, {text}.version)"


def _count(kind: str, word: str) -> str:
    devices = f"len([p FOR p IN f.pci_devices.value IF p.kind = '{kind}'])"
    return f"CASE WHEN {devices} > 0 THEN '{word}: ' || {devices} END"


_GIB = "(1024 * 1024 * 1024)"
_LINKS = "CASE WHEN g.nvlinks IS NOT NULL THEN len([l FOR l IN g.nvlinks IF l.active])::VARCHAR END"
_NUMA = "array_to_string(list_sort([g.numa_node FOR g IN f.gpus.value IF g.numa_node IS NOT NULL]), ' ')"
_RDMA = "[i FOR i IN f.network_interfaces.value IF i.kind = 'rdma']"

FACTS = (
    Fact("driver", "Driver", "coalesce(f.nvml_versions.value.driver, f.kernel_driver.value.version)"),
    Fact("driver-flavour", "Kernel module", "f.kernel_driver.value.flavour"),
    Fact("cuda-driver", "CUDA of the driver", "f.nvml_versions.value.cuda_driver"),
    Fact("vbios", "VBIOS", _each_gpu("g.vbios_version")),
    Fact("gsp-firmware", "GSP firmware", _each_gpu("g.gsp_firmware")),
    Fact("inforom", "InfoROM", _each_gpu("g.inforom_version")),
    Fact("board", "GPU board", _each_gpu("g.board_part_number")),
    Fact("gpu-memory", "GPU memory", _each_gpu(f"round(g.memory_total_bytes / {_GIB})::BIGINT || ' GiB'")),
    Fact("ecc", "ECC", _each_gpu("CASE g.ecc_enabled WHEN true THEN 'on' WHEN false THEN 'off' END")),
    Fact("mig", "MIG", _each_gpu("CASE g.mig_enabled WHEN true THEN 'on' WHEN false THEN 'off' END")),
    Fact("persistence", "Persistence mode", _each_gpu("CASE g.persistence_mode WHEN true THEN 'on' WHEN false THEN 'off' END")),
    Fact("compute-mode", "Compute mode", _each_gpu("g.compute_mode::VARCHAR")),
    Fact("power-limit", "Power limit", _each_gpu("g.power_limit_w::BIGINT || ' W'")),
    Fact("pcie", "PCIe of the GPUs", _each_gpu("'Gen' || g.pcie.max_generation || ' x' || g.pcie.max_width")),
    Fact(
        "topology",
        "Topology",
        "CASE WHEN f.gpus.value IS NOT NULL THEN concat_ws(', ', 'GPUs: ' || len(f.gpus.value),"
        f" 'NUMA: ' || nullif({_NUMA}, ''), 'NVLinks of each: ' || {_each_gpu(_LINKS)},"
        f" {_count('nvswitch', 'NVSwitches')}, {_count('nic', 'NICs')}, {_count('nvme', 'NVMe')}) END",
    ),
    Fact(
        "rdma",
        "RDMA adapters",
        f"CASE WHEN f.network_interfaces.value IS NOT NULL THEN concat_ws(', ', len({_RDMA})::VARCHAR,"
        f" nullif(array_to_string(list_sort(list_distinct([i.speed_mbit_per_s // 1000 || ' Gb/s' FOR i IN {_RDMA}"
        " IF i.speed_mbit_per_s IS NOT NULL])), '/'), ''),"
        f" len([i FOR i IN {_RDMA} IF i.up]) || ' up') END",
    ),
    Fact("kernel", "Linux kernel", "f.platform.value.kernel_release"),
    Fact("os", "Operating system", "f.platform.value.os_name"),
    Fact("architecture", "Architecture", "f.platform.value.architecture"),
    Fact("libc", "C library", "f.libc.value.family || ' ' || f.libc.value.version"),
    Fact("cpu", "Processors", "concat_ws(', ', f.cpu.value.sockets || ' × ' || f.cpu.value.model, 'CPUs: ' || f.cpu.value.logical_cpus)"),
    Fact("memory", "Memory", f"round(f.memory.value.total_bytes / {_GIB} / 8)::BIGINT * 8 || ' GiB'"),
    Fact("shared-memory", "/dev/shm", f"round(f.shared_memory.value.total_bytes / {_GIB})::BIGINT || ' GiB'"),
    Fact(
        "memlock",
        "Limit memlock",
        "CASE WHEN f.limits.value.memlock IS NOT NULL THEN coalesce(f.limits.value.memlock.soft::VARCHAR, 'unlimited') END",
    ),
    Fact(
        "nofile",
        "Limit nofile",
        "CASE WHEN f.limits.value.nofile IS NOT NULL THEN coalesce(f.limits.value.nofile.soft::VARCHAR, 'unlimited') END",
    ),
    Fact("iommu", "IOMMU", "CASE f.iommu.value.enabled WHEN true THEN coalesce(nullif(f.iommu.value.mode, ''), 'on') WHEN false THEN 'off' END"),
    Fact("container", "Container", "coalesce(f.container.value.runtime, CASE f.container.state WHEN 'absent' THEN 'none' END)"),
    Fact("hypervisor", "Hypervisor", "coalesce(f.virtualization.value.hypervisor, CASE f.virtualization.state WHEN 'absent' THEN 'none' END)"),
    Fact("cuda-home", "CUDA toolkit", "[t.version FOR t IN f.cuda_toolkits.value IF t.is_cuda_home][1]"),
    Fact("python", "Python", "f.interpreter.value.version"),
    Fact("torch", "torch", "f.torch_build.value.version"),
    Fact(
        "nccl",
        "NCCL",
        "coalesce(regexp_extract([s.notes.nccl FOR s IN f.smoke.value IF s.notes.nccl IS NOT NULL][1], '^[0-9.]+'),"
        " nullif(f.torch_runtime.value.nccl_loaded, ''), [m.version FOR m IN f.mapped_libraries.value IF m.family = 'nccl'][1],"
        " [p.version FOR p IN f.packages.value IF starts_with(p.name, 'nvidia-nccl-cu')][1])",
    ),
    Fact("cudnn", "cuDNN", "coalesce(nullif(f.torch_runtime.value.cudnn_version, ''), [m.version FOR m IN f.mapped_libraries.value IF m.family = 'cudnn'][1])"),
)  # fmt: skip
"""In the order in which they are shown."""

FAMILIES = (
    Family("service", "Service", "services", f"[{{'fact': s.name, 'value': {_service('s')}}} FOR s IN f.services.value]", "not there"),
    Family("package", "Package", "packages", "[{'fact': p.name, 'value': p.version} FOR p IN f.packages.value IF list_contains($packages, p.name)]", "not installed"),
    Family("env", "Variable", "environment", "[{'fact': e.name, 'value': e.value} FOR e IN f.environment.value IF NOT regexp_full_match(e.name, $of_one_node)]", "not set"),
    Family("module", "Kernel module", "loaded_modules", "[{'fact': m, 'value': 'loaded'} FOR m IN f.loaded_modules.value.names]", "not loaded"),
    Family("option", "Driver option", "kernel_driver", "[{'fact': o.key, 'value': o.value} FOR o IN map_entries(f.kernel_driver.value.options)]", "not there"),
)  # fmt: skip

_TEXT, _NUMBER, _COUNT, _FLAG = "VARCHAR", "DOUBLE", "BIGINT", "BOOLEAN"
_CONSEQUENCE = {"check": _TEXT, "severity": _TEXT, "subject": _TEXT, "summary": _TEXT}


def _section(value: object) -> Mapping[str, object]:
    return {"state": _TEXT, "value": value}


_STRUCTURE: Mapping[str, object] = {
    "schema": _TEXT,
    "dsdoctor": _TEXT,
    "taken_at": _TEXT,
    "received_at": _TEXT,
    "label": _TEXT,
    "reason": _TEXT,
    "verdict": _TEXT,
    "origin": {"kind": _TEXT, "label": _TEXT},
    "counts": {"errors": _COUNT, "warnings": _COUNT, "infos": _COUNT, "unknown": _COUNT, "crashed": _COUNT},
    "knowledge": {"digest": _TEXT, "date": _TEXT},
    "diagnosis": [{**_CONSEQUENCE, "cause": _TEXT, "expected": _TEXT, "remedies": ["JSON"], "explains": [_CONSEQUENCE]}],
    "facts": {
        "platform": _section({"os_name": _TEXT, "kernel_release": _TEXT, "architecture": _TEXT}),
        "libc": _section({"family": _TEXT, "version": _TEXT}),
        "cpu": _section({"model": _TEXT, "sockets": _COUNT, "logical_cpus": _COUNT}),
        "memory": _section({"total_bytes": _COUNT}),
        "limits": _section({"memlock": {"soft": _COUNT}, "nofile": {"soft": _COUNT}}),
        "shared_memory": _section({"total_bytes": _COUNT}),
        "container": _section({"runtime": _TEXT}),
        "virtualization": _section({"hypervisor": _TEXT}),
        "environment": _section([{"name": _TEXT, "value": _TEXT}]),
        "network_interfaces": _section([{"kind": _TEXT, "up": _FLAG, "speed_mbit_per_s": _COUNT}]),
        "kernel_driver": _section({"version": _TEXT, "flavour": _TEXT, "options": "MAP(VARCHAR, VARCHAR)"}),
        "loaded_modules": _section({"names": [_TEXT]}),
        "services": _section([{"name": _TEXT, "state": _TEXT, "version": _TEXT}]),
        "nvml_versions": _section({"driver": _TEXT, "cuda_driver": _TEXT}),
        "gpus": _section(
            [
                {
                    "name": _TEXT, "vbios_version": _TEXT, "gsp_firmware": _TEXT, "inforom_version": _TEXT, "board_part_number": _TEXT,
                    "memory_total_bytes": _COUNT, "ecc_enabled": _FLAG, "mig_enabled": _FLAG, "persistence_mode": _FLAG, "compute_mode": _COUNT,
                    "power_limit_w": _NUMBER, "numa_node": _COUNT, "pcie": {"max_generation": _COUNT, "max_width": _COUNT},
                    "nvlinks": [{"active": _FLAG}], "fabric": {"cluster_uuid": _TEXT, "clique_id": _COUNT},
                }
            ]
        ),
        "pci_devices": _section([{"kind": _TEXT}]),
        "iommu": _section({"enabled": _FLAG, "mode": _TEXT}),
        "cuda_toolkits": _section([{"version": _TEXT, "is_cuda_home": _FLAG}]),
        "interpreter": _section({"version": _TEXT, "path": _TEXT}),
        "packages": _section([{"name": _TEXT, "version": _TEXT}]),
        "torch_build": _section({"version": _TEXT}),
        "torch_runtime": _section({"nccl_loaded": _TEXT, "cudnn_version": _TEXT}),
        "mapped_libraries": _section([{"family": _TEXT, "version": _TEXT}]),
        "smoke": _section(
            [
                {
                    "test": _TEXT, "path": _TEXT, "gpu": _COUNT, "outcome": _TEXT,
                    "values": {"tflops": _NUMBER, "gb_per_s": _NUMBER, "bus_gb_per_s": _NUMBER}, "notes": {"nccl": _TEXT},
                }
            ]
        ),
    },
}  # fmt: skip

_VARIABLE = "[e.value FOR e IN f.environment.value IF e.name = '{}'][1]"
_FINDING = "'check': d.check, 'severity': d.severity, 'subject': d.subject, 'summary': d.summary"
_RATE = "coalesce(s.values.tflops, s.values.bus_gb_per_s, s.values.gb_per_s)"

COLUMNS: Mapping[str, tuple[str, str]] = {
    "source": ("VARCHAR", "source"),
    "kind": ("VARCHAR", f"CASE r.schema WHEN '{REPORT}' THEN 'report' WHEN '{NO_REPORT}' THEN 'no-report' END"),
    "name": (
        "VARCHAR",
        f"coalesce(nullif(CASE WHEN r.schema = '{NO_REPORT}' THEN r.label WHEN r.origin.kind = 'live' AND r.origin.label <> 'this machine'"
        " THEN r.origin.label END, ''), stem)",
    ),
    "reason": ("VARCHAR", "r.reason"),
    "dsdoctor": ("VARCHAR", "r.dsdoctor"),
    "knowledge": ("VARCHAR", "r.knowledge.date"),
    "taken_at": ("VARCHAR", "r.taken_at"),
    "taken_s": ("DOUBLE", "epoch(TRY_CAST(r.taken_at AS TIMESTAMPTZ))"),
    "received_s": ("DOUBLE", "epoch(TRY_CAST(r.received_at AS TIMESTAMPTZ))"),
    "verdict": ("VARCHAR", "r.verdict"),
    "unknown": ("BIGINT", "r.counts.unknown"),
    "crashed": ("BIGINT", "r.counts.crashed"),
    "product": ("VARCHAR", _each_gpu("g.name")),
    "gpus": ("BIGINT", "len(f.gpus.value)"),
    "image": (
        "VARCHAR",
        f"nullif(concat_ws(', ', f.platform.value.os_name, {_VARIABLE.format('NVIDIA_PRODUCT_NAME')}, {_VARIABLE.format('NVIDIA_BUILD_ID')},"
        f" 'CUDA ' || {_VARIABLE.format('CUDA_VERSION')}, f.interpreter.value.path), '')",
    ),
    "domain": (
        "VARCHAR",
        "[g.fabric.cluster_uuid || '.' || coalesce(g.fabric.clique_id, 0) FOR g IN f.gpus.value IF starts_with(g.fabric.cluster_uuid, 'fabric-')][1]",
    ),
    **{fact.id: ("VARCHAR", fact.sql) for fact in FACTS},
    "others": (
        "STRUCT(fact VARCHAR, value VARCHAR)[]",
        "flatten(["
        + ", ".join(f"[{{'fact': '{family.id}.' || x.fact, 'value': x.value}} FOR x IN coalesce({family.sql}, [])]" for family in FAMILIES)
        + "])",
    ),
    "families": (
        "VARCHAR[]",
        "[v FOR v IN [" + ", ".join(f"CASE WHEN f.{family.section}.state = 'known' THEN '{family.id}' END" for family in FAMILIES)
        + "] IF v IS NOT NULL]",
    ),
    "findings": (
        "STRUCT(\"check\" VARCHAR, severity VARCHAR, subject VARCHAR, summary VARCHAR, root VARCHAR, cause VARCHAR, expected VARCHAR, remedy VARCHAR)[]",
        f"[{{{_FINDING}, 'root': '', 'cause': d.cause, 'expected': d.expected, 'remedy': d.remedies[1]::VARCHAR}} FOR d IN r.diagnosis]"
        f" || flatten([[{{{_FINDING}, 'root': o.check, 'cause': '', 'expected': '', 'remedy': NULL}} FOR d IN coalesce(o.explains, [])] FOR o IN r.diagnosis])",
    ),
    "rates": (
        "STRUCT(test VARCHAR, path VARCHAR, gpu BIGINT, rate DOUBLE, unit VARCHAR)[]",
        f"[{{'test': s.test, 'path': s.path, 'gpu': s.gpu, 'rate': {_RATE}, 'unit': CASE WHEN s.values.tflops IS NOT NULL THEN 'TFLOP/s' ELSE 'GB/s' END}}"
        f" FOR s IN f.smoke.value IF s.outcome = 'ran' AND {_RATE} > 0]",
    ),
}  # fmt: skip
"""Column of a node → its type and the SQL that takes it from `r`, the report, and `f`, its facts."""

TABLE = ", ".join(f'"{name}" {kind}' for name, (kind, _) in COLUMNS.items())


def _type(structure: object) -> str:
    """What this part of `_STRUCTURE` is to DuckDB."""
    if isinstance(structure, Mapping):
        fields = [f'"{name}" {_type(part)}' for name, part in structure.items()]
        return f"STRUCT({', '.join(fields)})"
    return f"{_type(structure[0])}[]" if isinstance(structure, list) else str(structure)


LINE = b'{"source":%b,"stem":%b,"r":%b}\n'
"""One document among many in the file that `ADD` reads; whatever is not a report makes a line that is passed over."""
ADD = (
    f"INSERT INTO digest SELECT {', '.join(sql for _, sql in COLUMNS.values())} FROM (SELECT source, stem, r, r.facts AS f FROM"
    " read_json($path, format = 'newline_delimited', ignore_errors = true, maximum_object_size = $longest,"
    f" columns = {{'source': 'VARCHAR', 'stem': 'VARCHAR', 'r': '{_type(_STRUCTURE)}'}}) WHERE r.schema IN ('{REPORT}', '{NO_REPORT}'))"
)
"""Takes $path, a file of lines, none longer than $longest, and $packages and $of_one_node, what is compared of packages and variables."""
