"""Something in use here does not exist under WSL.

What it looks at
    The version of WSL, the number of GPUs, the installed NCCL, and packages that need kernel interfaces which WSL does not have.

Why it matters
    WSL1 has no GPU. WSL2 runs CUDA on the Windows driver, without GPUDirect RDMA, nvidia-peermem, IBGDA, MIG, GPU reset and much of NVML.
    One GPU works well; several work without P2P between them, slowly. NCCL before 2.10 cannot read the PCI topology there and stops with a
    system error.

Sources
    NVIDIA, "CUDA on WSL User Guide" (known limitations); NCCL issue 442.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._loaded_nccl import loaded_nccl
from dsdoctor.facts import Gpu, Package, Section, TorchRuntime, Wsl, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import SystemNeeds
from dsdoctor.versions import LibraryVersion

SOURCE = "CUDA on WSL User Guide — https://docs.nvidia.com/cuda/wsl-user-guide/index.html"
NEEDS_RDMA = frozenset({"deep-ep", "sgl-deep-ep", "nixl", "mooncake-transfer-engine"})

CASES = (
    Case(title="WSL1 has no GPU", sections={"wsl": Wsl(version=1)}, status=Status.FAIL, severity=Severity.ERROR, says="WSL1"),
    Case(
        title="DeepEP needs RDMA from the GPU",
        sections={"wsl": Wsl(version=2), "packages": (Package(name="deep-ep", version="2.1.0"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="deep-ep",
    ),
    Case(
        title="an NCCL from before WSL2",
        sections={"wsl": Wsl(version=2), "packages": (Package(name="nvidia-nccl-cu11", version="2.8.3"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="2.8.3",
    ),
    Case(
        title="several GPUs: slow between them",
        sections={"wsl": Wsl(version=2), "packages": (), "gpus": (Gpu(index=0), Gpu(index=1))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="P2P",
    ),
    Case(
        title="one GPU and a current NCCL",
        sections={"wsl": Wsl(version=2), "packages": (Package(name="nvidia-nccl-cu13", version="2.28.9"),), "gpus": (Gpu(index=0),)},
        status=Status.PASS,
    ),
    Case(
        title="WSL2, and the packages could not be read",
        sections={"wsl": Wsl(version=2), "packages": unreadable("permission denied")},
        status=Status.UNKNOWN,
        says="packages",
    ),
    Case(title="not WSL", sections={"wsl": absent("not WSL")}, status=Status.NOT_APPLICABLE),
)


@check(
    "wsl.unsupported",
    Severity.ERROR,
    explains=("driver.absent", "rdma.*", "deepep.requirements", "gpu.mig-limits"),
    settle="uname -r; pip list",
    cases=CASES,
)
def unsupported(
    wsl: Wsl,
    packages: Section[tuple[Package, ...]],
    torch_runtime: Section[TorchRuntime],
    gpus: Section[tuple[Gpu, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Find what WSL does not offer."""
    kernel = Evidence(where="wsl", value=f"WSL{wsl.version} {wsl.kernel_release}".rstrip())
    if wsl.version < 2:
        yield Finding(
            subject="WSL1",
            summary="This is WSL1, which gives no access to a GPU.",
            cause="Only WSL2 runs a Linux kernel, into which Windows maps its GPU driver.",
            evidence=(kernel,),
            expected="WSL2",
            remedies=remedies("too-old"),
            sources=(SOURCE,),
        )
        return
    installed = {package.name: package.version for package in packages.value or ()}
    for name in sorted(NEEDS_RDMA & installed.keys()):
        yield Finding(
            subject=f"{name} {installed[name]}",
            summary=f"{name} is installed; it needs RDMA from the GPU, which WSL2 does not have.",
            cause="WSL2 has neither GPUDirect RDMA nor nvidia-peermem, IBGDA or RDMA devices.",
            evidence=(kernel, Evidence(where=f"packages[{name}]", value=installed[name])),
            expected="native Linux",
            remedies=remedies("unsupported-feature"),
            sources=(SOURCE,),
        )
    need = system_needs_matrix.version("nccl-on-wsl2")
    least = LibraryVersion.parse(need.version)
    nccl = loaded_nccl(packages, torch_runtime)
    if nccl is not None and least is not None and nccl < least:
        yield Finding(
            subject=f"NCCL {nccl}",
            summary=f"NCCL {nccl} does not run under WSL2; {need.version} or newer does.",
            cause=need.text,
            evidence=(kernel, Evidence(where="packages", value=f"NCCL {nccl}")),
            expected=f"NCCL {need.version} or newer",
            remedies=remedies.of("nccl.known-bad", "general") or remedies("unsupported-feature"),
            sources=need.basis.sources,
        )
    if gpus.value is not None and len(gpus.value) > 1:
        yield Finding(
            subject=f"{len(gpus.value)} GPUs",
            summary=f"{len(gpus.value)} GPUs under WSL2: they cannot reach each other's memory (no P2P), so work on several of them is slow.",
            cause="Data between the GPUs goes through main memory; MIG and full NVML are missing as well.",
            evidence=(kernel, Evidence(where="gpus", value=str(len(gpus.value)))),
            expected="one GPU for each job, or native Linux",
            remedies=remedies("unsupported-feature"),
            sources=(SOURCE,),
            severity=Severity.WARNING,
        )
    if packages.value is None:
        yield Doubt(
            subject="WSL2", reason=f"whether something here needs what WSL2 lacks is not known: the packages are not ({packages.why})"
        )
