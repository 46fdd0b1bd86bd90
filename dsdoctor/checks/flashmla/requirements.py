"""FlashMLA does not fit the GPUs or torch of this node.

What it looks at
    FlashMLA where it is installed by itself (flash-mla built from upstream, sgl-flash-mla), the compute capability of the GPUs, the GPU targets in its fat binaries and the version of torch. In
    pasted logs: refusals that name it.

Why it matters
    Its kernels are for Hopper (9.0) and data-centre Blackwell (10.x), and not every kernel for both: dense decoding is for Hopper, dense prefill for Blackwell. Upstream dropped Hopper and the
    models V3 to V4.0 on 2026-09-30; its version does not tell on which side of that day a build stands, its GPU targets do. vLLM and SGLang build forks of their own: beside them, a top-level flash_mla means nothing.

Sources
    FlashMLA README (before and after 2026-09-30); package pages of sgl-flash-mla; matrices/kernel-libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._kernel_library import ENGINES, Said, installed, not_installed, of_an_unknown_line, on_gpus, on_torch
from dsdoctor.facts import Extension, Gpu, LogEvent, Package, Section, SmokeResult, TorchBuild
from dsdoctor.findings import NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.rows_stack import KernelLibraries

LIBRARY = "FlashMLA"
UPSTREAM = "flash-mla"
DISTRIBUTIONS = (UPSTREAM, "sgl-flash-mla")

FLASH_MLA = Package(name=UPSTREAM, version="1.0.0+ba89a34")
SGLANG_FORK = Package(name="sgl-flash-mla", version="1.0.0")
B200 = (Gpu(index=0, name="NVIDIA B200", compute_capability="10.0"),)
A100 = (Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),)
H200 = (Gpu(index=0, name="NVIDIA H200", compute_capability="9.0"),)
TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")


def _built(*targets: str) -> tuple[Extension, ...]:
    return (Extension(package=UPSTREAM, package_version=FLASH_MLA.version, path="/s/flash_mla/cuda.abi3.so", gpu_targets=targets),)


CASES = (
    Case(
        title="a wheel for torch 2.14 beside torch 2.11",
        sections={"packages": (SGLANG_FORK,), "gpus": B200, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="2.14.1",
    ),
    Case(
        title="the same, and its test ran",
        sections={
            "packages": (SGLANG_FORK,),
            "gpus": H200,
            "torch_build": TORCH,
            "smoke": (SmokeResult(test="flashmla", path="flash_mla", gpu=0, outcome="ran", values={"rel_error": 2.2e-3}),),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
        says="ran on this node all the same",
    ),
    Case(
        title="installed on Ampere",
        sections={"packages": (FLASH_MLA,), "gpus": A100, "torch_build": TORCH},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="8.0",
    ),
    Case(
        title="a log that says which GPUs it wants",
        sections={
            "log_events": (
                LogEvent(
                    signature="flashmla-unsupported", text="ValueError: FlashMLA is only supported on Hopper devices.", where="serve.log:12"
                ),
            )
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="only supported on Hopper",
    ),
    Case(
        title="Hopper, and the installed build is of the line that dropped it",
        sections={"packages": (FLASH_MLA,), "gpus": H200, "torch_build": TORCH, "extensions": _built("sm_100a", "sm_103a")},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="sm_100a sm_103a",
    ),
    Case(
        title="Hopper, and the installed build has code for it",
        sections={"packages": (FLASH_MLA,), "gpus": H200, "torch_build": TORCH, "extensions": _built("sm_90a", "sm_100a")},
        status=Status.PASS,
    ),
    Case(
        title="Blackwell, which every line of releases serves",
        sections={"packages": (FLASH_MLA,), "gpus": B200, "torch_build": TORCH},
        status=Status.PASS,
    ),
    Case(
        title="Hopper: the releases from 2026-09-30 on dropped it",
        sections={"packages": (FLASH_MLA,), "gpus": H200, "torch_build": TORCH},
        status=Status.UNKNOWN,
        says="2026-09-30",
    ),
    Case(title="the packages are not known", sections={"gpus": B200}, status=Status.UNKNOWN, says="packages"),
    Case(
        title="upstream's build beside an engine that has its own",
        sections={"packages": (FLASH_MLA, Package(name="vllm", version="0.30.0")), "gpus": A100},
        status=Status.NOT_APPLICABLE,
        says="vllm",
    ),
    Case(title="not installed", sections={"packages": ()}, status=Status.NOT_APPLICABLE, says="not installed"),
)


@check(
    "flashmla.requirements",
    Severity.WARNING,
    settle="pip list | grep -i flash.mla; nvidia-smi --query-gpu=compute_cap --format=csv,noheader",
    cases=CASES,
)
def requirements(
    packages: tuple[Package, ...],
    gpus: Section[tuple[Gpu, ...]],
    torch_build: Section[TorchBuild],
    smoke: Section[tuple[SmokeResult, ...]],
    extensions: Section[tuple[Extension, ...]],
    kernel_libraries_matrix: KernelLibraries,
    remedies: Remedies,
) -> Iterator[Said]:
    """Compare an installed FlashMLA with the GPUs and torch."""
    engine = next((package.name for package in packages if package.name in ENGINES), "")
    found = installed(packages, LIBRARY, kernel_libraries_matrix, DISTRIBUTIONS, extensions.value or (), smoke.value or ())
    judged = [one for one in found if one.package.name != UPSTREAM or not engine]
    if not judged:
        yield NotApplicable(reason=f"{engine} uses its own fork of FlashMLA") if found else not_installed(packages, LIBRARY)
    for one in judged:
        if not one.lines:
            yield of_an_unknown_line(one)
            continue
        yield from on_gpus(one, gpus, remedies, "engine")
        yield from on_torch(one, torch_build, remedies, "build")
