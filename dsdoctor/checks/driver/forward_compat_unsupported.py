"""A forward-compatibility libcuda is loaded on a GPU that does not support it.

What it looks at
    Whether a compat libcuda newer than the driver is loaded first, the product class of the GPUs, and whether CUDA answered 804.

Why it matters
    Forward compatibility works on data-centre GPUs, some RTX cards that are certified for it, and Jetson. On GeForce and most RTX cards CUDA
    answers 804 (forward compatibility was attempted on non supported HW), so an image with a newer CUDA than the driver does not start there,
    although the same image works on the cluster.

Sources
    NVIDIA CUDA Compatibility: forward compatibility; CUDA runtime error 804.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_LIBCUDA, driver_version, first_libcuda
from dsdoctor.facts import DriverLibrary, Gpu, KernelDriver, NvmlVersions, Section, TorchRuntime
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ForwardCompat, Gpus
from dsdoctor.versions import DriverVersion

NOT_SUPPORTED = 804
"""cudaErrorCompatNotSupportedOnDevice."""

COMPAT = (DriverLibrary(soname="libcuda.so.1", path="/usr/local/cuda/compat/libcuda.so.580.65.06", version="580.65.06", kind="compat",
                        found_via="LD_LIBRARY_PATH", loaded_first=True),)  # fmt: skip
OLDER = KernelDriver(version="535.129.03")

CASES = (
    Case(
        title="a GeForce with a compat library",
        sections={"driver_libraries": COMPAT, "kernel_driver": OLDER, "gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 4090"),)},
        status=Status.FAIL,
        says="GeForce RTX 4090",
    ),
    Case(
        title="CUDA answered 804",
        sections={
            "driver_libraries": COMPAT,
            "kernel_driver": OLDER,
            "torch_runtime": TorchRuntime(
                imported=True, cuda_available=False, cuda_error="Error 804: forward compatibility", cuda_error_code=804
            ),
        },
        status=Status.FAIL,
        says="804",
    ),
    Case(
        title="an H100 may use it",
        sections={"driver_libraries": COMPAT, "kernel_driver": OLDER, "gpus": (Gpu(index=0, name="NVIDIA H100 80GB HBM3"),)},
        status=Status.PASS,
    ),
    Case(
        title="no compat library",
        sections={"driver_libraries": (), "kernel_driver": OLDER, "gpus": (Gpu(index=0, name="NVIDIA GeForce RTX 4090"),)},
        status=Status.NOT_APPLICABLE,
        says="the loader finds no libcuda.so.1",
    ),
    Case(
        title="a compat library on a product that no row knows",
        sections={"driver_libraries": COMPAT, "kernel_driver": OLDER, "gpus": (Gpu(index=0, name="NVIDIA Z9000"),)},
        status=Status.UNKNOWN,
        says="NVIDIA Z9000",
    ),
)


@check(
    "driver.forward-compat-unsupported",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*"),
    settle='python -c "import torch; torch.cuda.init()"',
    cases=CASES,
)
def forward_compat_unsupported(
    driver_libraries: tuple[DriverLibrary, ...],
    gpus: Section[tuple[Gpu, ...]],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    torch_runtime: Section[TorchRuntime],
    gpus_matrix: Gpus,
    forward_compat_matrix: ForwardCompat,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A compat libcuda in use needs a GPU of an eligible class."""
    libcuda = first_libcuda(driver_libraries)
    runtime = torch_runtime.value
    answered = runtime is not None and runtime.cuda_error_code == NOT_SUPPORTED
    reading = driver_version(kernel_driver, nvml_versions)
    in_use = libcuda is not None and libcuda.kind == "compat" and _newer(libcuda.version, reading)
    if not answered and (not in_use or (runtime is not None and runtime.cuda_available)):
        if libcuda is None:
            yield NO_LIBCUDA
        return
    names = sorted({gpu.name for gpu in gpus.value or () if gpu.name})
    classes = {name: product.product_class if (product := gpus_matrix.product(name)) else "" for name in names}
    refused = [name for name, product_class in classes.items() if product_class and forward_compat_matrix.eligible(product_class) is False]
    if not answered and not refused:
        for name in names:
            if forward_compat_matrix.eligible(classes[name]) is None:
                yield Doubt(subject=name, reason="whether it supports forward compatibility is not in this knowledge")
        if not names:
            yield Doubt(subject="GPU", reason="a compat libcuda is loaded; which GPU this is, is not known")
        return
    evidence = [Evidence(where="gpus.name", value=", ".join(names))] if names else []
    if libcuda is not None:
        evidence.append(Evidence(where="driver_libraries", value=f"{libcuda.path} is loaded first ({libcuda.found_via})"))
    if answered and runtime is not None:
        evidence.append(Evidence(where="torch_runtime.cuda_error", value=runtime.cuda_error))
    yield Finding(
        subject=refused[0] if refused else (names[0] if names else "GPU"),
        summary=f"A forward-compatibility libcuda is loaded, which {' and '.join(refused) or 'this GPU'} does not support (CUDA error 804).",
        cause=(
            "Forward compatibility (cuda-compat, a libcuda newer than the kernel driver) works on data-centre GPUs only. "
            "The program's CUDA is newer than this driver provides by itself."
        ),
        evidence=tuple(evidence),
        expected="a driver that is new enough by itself, or a program built for an older CUDA",
        remedies=remedies(),
    )


def _newer(version: str, reading: tuple[DriverVersion, Evidence] | None) -> bool:
    own = DriverVersion.parse(version)
    return own is None or reading is None or own > reading[0]
