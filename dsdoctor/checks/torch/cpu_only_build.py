"""torch is a build without CUDA on a node with an NVIDIA GPU.

What it looks at
    What torch/version.py says about CUDA, and whether the node has an NVIDIA GPU, seen by the driver or on the PCI bus.

Why it matters
    A CPU build imports and runs, slowly, and says "Torch not compiled with CUDA enabled" only when a tensor goes to the GPU. It comes
    from the cpu index, from a mirror, from a build machine without a GPU, or as the dependency of another package. On a node without a
    GPU it is the right build.

Sources
    PyTorch: torch/version.py; the published torch wheels.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks._reading import driver_version
from dsdoctor.checks.package._requirements import architecture_of, exact
from dsdoctor.checks.torch._gpus import fitting_builds, gpus_here, surely_none
from dsdoctor.facts import Gpu, KernelDriver, NvmlVersions, PciDevice, Platform, Section, TorchBuild, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Companions, CudaToolkits, Torch
from dsdoctor.versions import ComputeCapability

CPU = TorchBuild(version="2.11.0+cpu")
H100 = (Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability="9.0"),)
ON_THE_BUS = (PciDevice(address="0000:3b:00.0", kind="gpu", vendor_id="10de", device_id="2330"),)

CASES = (
    Case(
        title="a CPU build beside an H100",
        sections={"torch_build": CPU, "gpus": H100, "kernel_driver": KernelDriver(version="580.95.05")},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="without CUDA",
    ),
    Case(
        title="a GPU on the bus, whose driver does not work",
        sections={"torch_build": CPU, "gpus": unreadable("NVML: driver not loaded"), "pci_devices": ON_THE_BUS},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="0000:3b:00.0",
    ),
    Case(
        title="a ROCm build beside an NVIDIA GPU",
        sections={"torch_build": TorchBuild(version="2.11.0+rocm7.0", hip="7.0.51831"), "gpus": H100},
        status=Status.FAIL,
        says="ROCm",
    ),
    Case(
        title="a CPU build on a machine without a GPU: as it should be",
        sections={"torch_build": CPU, "gpus": absent("NVML finds no GPU"), "pci_devices": ()},
        status=Status.NOT_APPLICABLE,
        says="there is no NVIDIA GPU",
    ),
    Case(
        title="an AMD GPU on the bus",
        sections={
            "torch_build": CPU,
            "gpus": unreadable("no NVML"),
            "pci_devices": (PciDevice(address="0000:3b:00.0", kind="gpu", vendor_id="1002"),),
        },
        status=Status.NOT_APPLICABLE,
        says="there is no NVIDIA GPU",
    ),
    Case(
        title="a CUDA build",
        sections={"torch_build": TorchBuild(version="2.11.0+cu130", cuda="13.0"), "gpus": H100},
        status=Status.PASS,
    ),
    Case(title="whether there is a GPU is not known", sections={"torch_build": CPU}, status=Status.UNKNOWN, says="GPU"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed"), "gpus": H100}, status=Status.NOT_APPLICABLE),
)


@check(
    "torch.cpu-only-build",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "package.torch-companion-mismatch", "package.abi-mismatch", "smoke.*"),
    settle='nvidia-smi -L; python -c "import torch; print(torch.__version__, torch.version.cuda)"',
    cases=CASES,
)
def cpu_only_build(
    torch_build: TorchBuild,
    gpus: Section[tuple[Gpu, ...]],
    pci_devices: Section[tuple[PciDevice, ...]],
    kernel_driver: Section[KernelDriver],
    nvml_versions: Section[NvmlVersions],
    platform: Section[Platform],
    torch_matrix: Torch,
    cuda_toolkits_matrix: CudaToolkits,
    companions_matrix: Companions,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """A node with an NVIDIA GPU needs a torch that was built with CUDA."""
    if torch_build.cuda:
        return
    seen = gpus_here(gpus, pci_devices)
    if seen is None:
        if not surely_none(gpus, pci_devices):
            yield Doubt(
                subject=f"torch {torch_build.version}",
                reason="it is built without CUDA; whether this node has an NVIDIA GPU is not known",
                settle="nvidia-smi -L",
            )
        else:
            yield NotApplicable(reason="there is no NVIDIA GPU")
        return
    driver = driver_version(kernel_driver, nvml_versions)
    capability = next((ComputeCapability.parse(gpu.compute_capability) for gpu in gpus.value or ()), None)
    builds = fitting_builds(
        torch_build.version, architecture_of(platform.value), capability, driver[0] if driver else None, torch_matrix, cuda_toolkits_matrix
    )
    best = next(builds, None)
    public = torch_build.version.partition("+")[0]
    fill = {"torch_version": best[0] if best else public}
    if best is not None:
        fill |= {"cu": best[1].tag, "cuda": str(best[1])}
    pair = companions_matrix.pair(fill["torch_version"])
    for name, wanted in (("torchvision_version", pair.torchvision), ("torchaudio_version", pair.torchaudio)) if pair else ():
        if exact(wanted):
            fill[name] = exact(wanted)
    release = torch_matrix.release(public)
    is_default_cpu = (
        architecture_of(platform.value) == "aarch64" and release is not None and release.aarch64 is not None and not release.aarch64.cuda
    )
    default = (
        " The default aarch64 wheel of this release is a CPU build; --index-url of PyTorch's own index brings the CUDA one."
        if is_default_cpu
        else ""
    )
    kind = f"for ROCm ({torch_build.hip})" if torch_build.hip else "without CUDA"
    yield Finding(
        subject=f"torch {torch_build.version}",
        severity=Severity.ERROR if seen.through_driver else Severity.WARNING,
        summary=f"torch {torch_build.version} is built {kind}, and this node has an NVIDIA GPU ({seen.evidence.value}).",
        cause='It never uses the GPU: torch.cuda.is_available() is False, and a tensor sent there says "Torch not compiled with CUDA enabled".'
        + default,
        evidence=(Evidence(where="torch_build.cuda", value=f"none (version {torch_build.version})"), seen.evidence),
        expected=f"a CUDA build, such as torch {best[0]}+{best[1].tag}" if best else "a CUDA build of torch",
        remedies=remedies("general", **fill),
        sources=_sources(torch_matrix, best[0] if best else public),
    )


def _sources(torch_matrix: Torch, version: str) -> tuple[str, ...]:
    return (torch_matrix.release(version) or torch_matrix.releases[0]).basis.sources
