"""torch is built with CUDA and cannot use the GPU that is there.

What it looks at
    What torch said when a child imported it and asked for the GPU: is_available(), the number of devices, the exact text of
    torch.cuda.init(), and the first small operations on the GPU.

Why it matters
    This is what the user sees, and nearly always the consequence of something else: a driver that is too old, a stub or compat libcuda,
    CUDA_VISIBLE_DEVICES, a fabric that is not ready, a container without access. Where one of those was found, this finding stands
    under it. Alone it means that no known cause was recognised: the text and its number are the place to start.

Sources
    CUDA runtime error codes; texts recorded on an H200 with each fault made on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.torch._gpus import gpus_here, surely_none
from dsdoctor.checks.torch._said import quoted, says_nothing
from dsdoctor.facts import EnvironmentVariable, Gpu, PciDevice, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCode, ErrorCodes

CUDA_ERRORS = "CUDA Runtime API: error codes — https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
CU130 = TorchBuild(version="2.11.0+cu130", cuda="13.0")
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)

CASES = (
    Case(
        title="No CUDA GPUs are available, and NVML sees one",
        sections={
            "torch_build": CU130,
            "gpus": H200,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=False, device_count=0, cuda_error="No CUDA GPUs are available"),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="No CUDA GPUs are available",
    ),
    Case(
        title="error 802 in the text",
        sections={
            "torch_build": CU130,
            "gpus": H200,
            "torch_runtime": TorchRuntime(
                imported=True,
                cuda_available=False,
                cuda_error="Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
                cuda_error_code=802,
            ),
        },
        status=Status.FAIL,
        says="802",
    ),
    Case(
        title="a pasted traceback alone",
        sections={"torch_runtime": TorchRuntime(imported=True, cuda_error="No CUDA GPUs are available")},
        status=Status.FAIL,
        says="No CUDA GPUs",
    ),
    Case(
        title="CUDA starts, but the first product fails",
        sections={
            "torch_build": CU130,
            "gpus": H200,
            "torch_runtime": TorchRuntime(
                imported=True,
                cuda_available=True,
                device_count=1,
                operation_error="CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            ),
        },
        status=Status.FAIL,
        says="CUBLAS_STATUS_NOT_INITIALIZED",
    ),
    Case(
        title="it works",
        sections={
            "torch_build": CU130,
            "gpus": H200,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, device_count=1),
        },
        status=Status.PASS,
    ),
    Case(
        title="no GPU in this machine",
        sections={
            "torch_build": CU130,
            "gpus": absent("NVML runs and finds no GPU"),
            "pci_devices": (PciDevice(address="0000:00:02.0", kind="nic"),),
            "torch_runtime": TorchRuntime(imported=True, cuda_available=False, device_count=0, cuda_error="No CUDA GPUs are available"),
        },
        status=Status.NOT_APPLICABLE,
        says="there is no NVIDIA GPU",
    ),
    Case(
        title="a CPU build: another check says so",
        sections={
            "torch_build": TorchBuild(version="2.11.0+cpu"),
            "gpus": H200,
            "torch_runtime": TorchRuntime(imported=True, cuda_available=False, cuda_error="Torch not compiled with CUDA enabled"),
        },
        status=Status.NOT_APPLICABLE,
        says="torch is built without CUDA",
    ),
    Case(
        title="torch did not even import: another check says so",
        sections={"torch_build": CU130, "gpus": H200, "torch_runtime": TorchRuntime(imported=False, import_error="ImportError: x")},
        status=Status.NOT_APPLICABLE,
        says="torch cannot be imported",
    ),
    Case(
        title="torch sees no GPU, and nobody knows whether there is one",
        sections={"torch_build": CU130, "torch_runtime": TorchRuntime(imported=True, cuda_available=False, device_count=0)},
        status=Status.UNKNOWN,
        says="whether",
    ),
    Case(title="torch was not asked", sections={"torch_build": CU130, "gpus": H200}, status=Status.UNKNOWN),
    Case(title="no torch", sections={"torch_runtime": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
)


@check(
    "torch.cuda-unavailable",
    Severity.ERROR,
    explains=("smoke.*",),
    settle="python -c 'import torch; torch.cuda.init(); print(torch.cuda.device_count())'; nvidia-smi -L",
    cases=CASES,
)
def cuda_unavailable(
    torch_runtime: Section[TorchRuntime],
    torch_build: Section[TorchBuild],
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    environment: Section[tuple[EnvironmentVariable, ...]],
    error_codes_matrix: ErrorCodes,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """torch with CUDA must reach the GPUs that are there."""
    runtime = torch_runtime.value
    if torch_build.value is not None and not torch_build.value.cuda:
        yield NO_CUDA_BUILD
        return
    if runtime is None:
        yield says_nothing(torch_build, torch_runtime)
        return
    if not runtime.imported:
        yield NotApplicable(reason="torch cannot be imported")
        return
    said = runtime.cuda_error or runtime.operation_error
    unavailable = runtime.cuda_available is False or runtime.device_count == 0
    if not said and not unavailable:
        return
    seen = gpus_here(gpus, pci_devices)
    if seen is None and (not said or surely_none(gpus, pci_devices)):
        if not surely_none(gpus, pci_devices):
            yield Doubt(subject="torch", reason="it sees no GPU; whether this node has one is not known", settle="nvidia-smi -L")
        else:
            yield NotApplicable(reason="there is no NVIDIA GPU")
        return
    name = f"torch {torch_build.value.version}" if torch_build.value else "torch"
    code = runtime.cuda_error_code
    row = error_codes_matrix.cuda_error(code) if code is not None else None
    first_use = not runtime.cuda_error and bool(runtime.operation_error)
    visible = next((item for item in environment.value or () if item.name == "CUDA_VISIBLE_DEVICES"), None)
    what = "sees the GPU, and its first operation there fails" if first_use else "cannot use the GPU"
    yield Finding(
        subject=name,
        summary=f"{name} {what}: {quoted(said) or 'torch.cuda.is_available() is False, without a message'}.",
        cause=_cause(row, said),
        evidence=(
            *_evidence(runtime),
            *((seen.evidence,) if seen else ()),
            *((Evidence(where="environment.CUDA_VISIBLE_DEVICES", value=repr(visible.value)),) if visible else ()),
        ),
        expected="torch.cuda.is_available() is True, and an operation on each GPU works",
        remedies=remedies("general"),
        sources=row.basis.sources if row else (CUDA_ERRORS,),
    )


def _evidence(runtime: TorchRuntime) -> Iterator[Evidence]:
    answers = (
        ("cuda_available", runtime.cuda_available),
        ("device_count", runtime.device_count),
        ("cuda_error", runtime.cuda_error or None),
        ("cuda_error_code", runtime.cuda_error_code),
        ("operation_error", runtime.operation_error or None),
        ("driver_cuda", runtime.driver_cuda or None),
    )
    for field, value in answers:
        if value is not None:
            yield Evidence(where=f"torch_runtime.{field}", value=str(value))


def _cause(row: ErrorCode | None, said: str) -> str:
    if row is not None:
        causes = f" Usual causes: {'; '.join(row.likely_causes)}." if row.likely_causes else ""
        return f"CUDA error {row.code} ({row.name}): {row.meaning.rstrip('.')}.{causes}"
    if "out of memory" in said:
        return "A few kilobytes were asked for: other processes hold the memory of the GPU."
    if "No CUDA GPUs are available" in said:
        return "CUDA started and found no device: CUDA_VISIBLE_DEVICES hides them, the container has no access, or the driver lost them."
    return "If no other finding explains it, the message is the place to start; the driver's own view is in nvidia-smi and the kernel log."
