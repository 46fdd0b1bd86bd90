"""There is no nvcc for packages that compile CUDA kernels when they run.

What it looks at
    Whether any CUDA toolkit (of the system, of conda, or in wheels) has an nvcc, and which installed packages compile kernels with it when they
    are first used.

Why it matters
    Wheels of torch and of the engines bring the CUDA libraries, so a node without a toolkit is normal and no fault in itself. DeepGEMM, DeepEP V2,
    TileLang and FlashInfer (for kernels it does not carry ready-made) do need a compiler at run time: they stop at the import or at the first
    kernel, long after the weights were loaded. CUDA 12 wheels carry ptxas and headers, but no nvcc; CUDA 13 wheels do.

Sources
    DeepGEMM csrc/jit/compiler.hpp, DeepEP README, FlashInfer and TileLang documentation; rows of matrices/system-needs.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import no_gpu
from dsdoctor.checks.toolchain._reading import NOTHING_COMPILES
from dsdoctor.facts import CudaToolkit, EnvironmentVariable, Gpu, Package, Section, State, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import RuntimeCompiler, SystemNeeds
from dsdoctor.versions import CudaVersion

DEEPGEMM = frozenset({"deep-gemm", "sgl-deep-gemm"})

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
DEEP_GEMM = (Package(name="deep-gemm", version="2.5.0"), Package(name="torch", version="2.11.0+cu130"))
NO_NVCC = (CudaToolkit(path="/venv/nvidia/cu12", cuda_version="12.9", ptxas="/venv/nvidia/cu12/bin/ptxas"),)
WITH_NVCC = (CudaToolkit(path="/usr/local/cuda-13.0", cuda_version="13.0", nvcc="/usr/local/cuda-13.0/bin/nvcc"),)

CASES = (
    Case(
        title="DeepGEMM in a runtime image",
        sections={"packages": DEEP_GEMM, "cuda_toolkits": absent("no toolkit"), "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="deep-gemm",
    ),
    Case(
        title="ptxas alone, in a CUDA 12 wheel",
        sections={"packages": (Package(name="tilelang", version="0.1.12"),), "cuda_toolkits": NO_NVCC, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="no nvcc",
    ),
    Case(
        title="vLLM alone: worth knowing",
        sections={"packages": (Package(name="vllm", version="0.33.0"),), "cuda_toolkits": (), "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="vllm",
    ),
    Case(
        title="DeepGEMM with NVRTC",
        sections={
            "packages": DEEP_GEMM,
            "cuda_toolkits": (),
            "environment": (EnvironmentVariable(name="DG_JIT_USE_NVRTC", value="1"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="FlashInfer with its ready-made kernels",
        sections={
            "packages": (Package(name="flashinfer-python", version="0.7.2"), Package(name="flashinfer-jit-cache", version="0.7.2+cu130")),
            "cuda_toolkits": (),
        },
        status=Status.PASS,
    ),
    Case(title="a toolkit with nvcc", sections={"packages": DEEP_GEMM, "cuda_toolkits": WITH_NVCC}, status=Status.PASS),
    Case(
        title="torch from wheels needs no toolkit",
        sections={"packages": (Package(name="torch", version="2.11.0+cu130"),), "cuda_toolkits": absent("no toolkit")},
        status=Status.NOT_APPLICABLE,
        says="nothing that is installed compiles when it runs",
    ),
    Case(title="nobody looked for toolkits", sections={"packages": DEEP_GEMM}, status=Status.UNKNOWN, says="nvcc"),
)


@check("toolchain.no-nvcc", Severity.WARNING, explains=("deepgemm.requirements", "smoke.fp8-block"), settle="nvcc --version", cases=CASES)
def no_nvcc(
    packages: tuple[Package, ...],
    cuda_toolkits: Section[tuple[CudaToolkit, ...]],
    torch_build: Section[TorchBuild],
    environment: Section[tuple[EnvironmentVariable, ...]],
    gpus: Section[tuple[Gpu, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Find packages that compile CUDA code at run time without nvcc."""
    installed = {package.name for package in packages}
    settings = {f"{item.name}={item.value.strip()}" for item in environment.value or ()}
    compiling = system_needs_matrix.compile_here(installed, "nvcc")
    users = [row for row in compiling if row.spared_by_variable not in settings and row.spared_by_package not in installed]
    if not compiling or gpus.state is State.ABSENT:
        yield no_gpu(gpus) if compiling else NOTHING_COMPILES
        return
    if not users:
        return
    if cuda_toolkits.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject="nvcc", reason=f"whether there is an nvcc is not known ({cuda_toolkits.why or 'nobody looked'})")
        return
    toolkits = cuda_toolkits.value or ()
    if any(toolkit.nvcc for toolkit in toolkits):
        return
    names = ", ".join(row.package for row in users)
    yield Finding(
        subject="nvcc",
        summary=f"There is no nvcc on this node, and {names} {'needs' if len(users) == 1 else 'need'} one at run time.",
        cause=users[0].text,
        evidence=(
            Evidence(where="packages", value=names),
            Evidence(
                where="cuda_toolkits",
                value=", ".join(f"{item.path} ({item.cuda_version or 'version unknown'}, no nvcc)" for item in toolkits) or "none",
            ),
        ),
        expected="an nvcc of torch's CUDA major",
        remedies=_remedies(users, torch_build.value, remedies),
        sources=users[0].basis.sources,
        severity=Severity(users[0].severity),
    )


def _remedies(users: list[RuntimeCompiler], torch: TorchBuild | None, remedies: Remedies) -> tuple[Remedy, ...]:
    cuda = CudaVersion.parse(torch.cuda) if torch else None
    fill = {"major": str(cuda.major), "minor": str(cuda.minor)} if cuda else {}
    found = remedies("general", **fill)
    if all(row.package in DEEPGEMM for row in users):
        found += remedies("deepgemm-only")
    return found[:3]
