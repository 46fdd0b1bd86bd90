"""A stub libcuda would be loaded instead of the driver's.

What it looks at
    The copy of libcuda.so.1 that a process started now would load, and whether CUDA answered 34 (CUDA driver is a stub library).

Why it matters
    The toolkit ships empty copies of libcuda in .../lib64/stubs, for linking on machines without a GPU. In LD_LIBRARY_PATH or ld.so.conf they come
    before the real one, and every CUDA program then says "CUDA driver is a stub library" (34) or "No CUDA GPUs are available", while nvidia-smi works.

Sources
    CUDA runtime error 34 (cudaErrorStubLibrary).
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import NO_LIBCUDA, first_libcuda
from dsdoctor.facts import DriverLibrary, EnvironmentVariable, Section, TorchBuild, TorchRuntime
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import ErrorCodes

STUB_LIBRARY = 34
"""cudaErrorStubLibrary."""


def libcuda_at(path: str, kind: str, via: str) -> DriverLibrary:
    """A copy of libcuda that is loaded first."""
    return DriverLibrary(soname="libcuda.so.1", path=path, kind=kind, found_via=via, loaded_first=True)


CASES = (
    Case(
        title="the stubs folder is in LD_LIBRARY_PATH",
        sections={"driver_libraries": (libcuda_at("/usr/local/cuda/lib64/stubs/libcuda.so.1", "stub", "LD_LIBRARY_PATH"),)},
        status=Status.FAIL,
        says="LD_LIBRARY_PATH",
    ),
    Case(
        title="torch was told that the driver is a stub",
        sections={
            "driver_libraries": (),
            "torch_runtime": TorchRuntime(
                imported=True, cuda_available=False, cuda_error="Error 34: CUDA driver is a stub library", cuda_error_code=34
            ),
        },
        status=Status.FAIL,
        says="34",
    ),
    Case(
        title="a stub lies about, but the driver's copy is loaded",
        sections={
            "driver_libraries": (
                libcuda_at("/usr/lib/libcuda.so.580.95.05", "driver", "ld.so.cache"),
                DriverLibrary(soname="libcuda.so.1", path="/usr/local/cuda/lib64/stubs/libcuda.so", kind="stub", found_via="search"),
            )
        },
        status=Status.PASS,
    ),
    Case(title="nobody looked", sections={}, status=Status.UNKNOWN),
    Case(title="the loader finds no libcuda", sections={"driver_libraries": ()}, status=Status.NOT_APPLICABLE, says="no libcuda"),
)


@check(
    "driver.stub-library",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*"),
    settle="ldconfig -p | grep libcuda.so.1; echo $LD_LIBRARY_PATH",
    cases=CASES,
)
def stub_library(
    driver_libraries: tuple[DriverLibrary, ...],
    torch_runtime: Section[TorchRuntime],
    torch_build: Section[TorchBuild],
    environment: Section[tuple[EnvironmentVariable, ...]],
    error_codes_matrix: ErrorCodes,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """The libcuda that is loaded first must not be a stub."""
    libcuda = first_libcuda(driver_libraries)
    runtime = torch_runtime.value
    answered = runtime is not None and runtime.cuda_error_code == STUB_LIBRARY
    is_stub = libcuda is not None and libcuda.kind == "stub"
    if not is_stub and not answered:
        if libcuda is None:
            yield NO_LIBCUDA
        return
    evidence = []
    if is_stub and libcuda is not None:
        evidence.append(Evidence(where="driver_libraries", value=f"{libcuda.path} is loaded first ({libcuda.found_via})"))
    search_path = next((item.value for item in environment.value or () if item.name == "LD_LIBRARY_PATH"), "")
    if search_path:
        evidence.append(Evidence(where="environment[LD_LIBRARY_PATH]", value=search_path))
    if answered and runtime is not None:
        evidence.append(Evidence(where="torch_runtime.cuda_error", value=runtime.cuda_error))
    where = f": {libcuda.path}, found through {libcuda.found_via}" if is_stub and libcuda is not None else " (CUDA error 34)"
    error = error_codes_matrix.cuda_error(STUB_LIBRARY)
    yield Finding(
        subject="libcuda.so.1",
        summary=f"A stub libcuda is loaded instead of the driver's{where}.",
        cause="Stubs are for linking only. A process that loads one has no CUDA driver: error 34, or no GPU at all, while nvidia-smi works.",
        evidence=tuple(evidence),
        expected="the libcuda.so.1 of the installed driver first",
        remedies=remedies(**_fill(search_path, torch_build.value)),
        sources=error.basis.sources if error else (),
    )


def _fill(search_path: str, build: TorchBuild | None) -> dict[str, str]:
    """What the remedy can name. A folder that only links to a stub elsewhere has any name, so that it is left to the reader."""
    cuda = {"cuda": build.cuda} if build and build.cuda else {}
    return cuda if search_path and "/stubs" not in search_path else {**cuda, "folder": "/stubs"}
