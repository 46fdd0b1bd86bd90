"""The installed cuDNN wheel is not one that this torch can run with.

What it looks at
    The cuDNN wheel that is installed, the one that torch asks for (its own requirements, else the pins known for its release), and what
    torch said when it started cuDNN.

Why it matters
    A later `pip install` of another package may replace torch's cuDNN. An older minor than torch was compiled with is refused at run
    time; another CUDA major calls libraries that torch does not load. A newer minor of the same major is allowed, and is not reported.

Often said, and not so
    "CUDA 12.4 goes with cuDNN 8.9.7 and NCCL 2.19.3, CUDA 12.2 with cuDNN 8.9.2 and NCCL 2.18.1": no such pairs exist. NVIDIA's own
    image of CUDA 12.4.1 carries cuDNN 9.1.0.70 and NCCL 2.21.5; cuDNN 8.9.7 was built for 12.2; torch 2.1.2 pairs 8.9.2 and 2.18.1 with
    CUDA 12.1. (CUDA 11.8 with cuDNN 8.6.0.163 is right; its image has NCCL 2.15.5, not 2.14.3.)

    "The three are bound by one strict matrix": they are not. cuDNN serves a whole CUDA major (12.0 to 12.x), NCCL ships builds per
    CUDA, and a newer patch of one minor works both ways. What is strict are the pins of each torch release: `dsdoctor matrix show torch
    2.11.0`. Sources: cuDNN support matrix; tags of NVIDIA's CUDA images; torch metadata.

    "The header at build time must not be newer than the library": true for the minor within one major; patches may differ, another
    major never works. Source: cuDNN, API compatibility.

Sources
    NVIDIA cuDNN: forward compatibility; requirements of the published torch wheels.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import SMOKE_OF_LIBRARIES, Case, check
from dsdoctor.checks._reading import NO_CUDA_BUILD
from dsdoctor.checks.cuda._loading import relation
from dsdoctor.checks.cudnn.shadowed import REFUSED
from dsdoctor.checks.package._requirements import target_environment, torch_pin
from dsdoctor.facts import Interpreter, Package, Platform, Section, TorchBuild, TorchRuntime, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Cudnn, Torch
from dsdoctor.versions import CudaVersion, LibraryVersion

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
ASKS = Package(name="torch", version="2.11.0+cu130", requires=('nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"',))


def _wheel(version: str, name: str = "nvidia-cudnn-cu13") -> Package:
    return Package(name=name, version=version)


CASES = (
    Case(
        title="another package brought an older minor",
        sections={"torch_build": TORCH, "packages": (ASKS, _wheel("9.14.0.64"))},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="9.14.0.64",
    ),
    Case(
        title="torch refuses the wheel at run time",
        sections={
            "torch_build": TORCH,
            "packages": (ASKS, _wheel("9.14.0.64")),
            "torch_runtime": TorchRuntime(
                imported=True,
                cudnn_error="PyTorch was compiled against (9, 19, 0) but found runtime version (9, 14, 0). PyTorch already comes bundled",
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="compiled against",
    ),
    Case(
        title="torch started with a good one in spite of the wheel",
        sections={
            "torch_build": TORCH,
            "packages": (ASKS, _wheel("9.14.0.64")),
            "torch_runtime": TorchRuntime(imported=True, cuda_available=True, cudnn_version="9.19.0"),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
    ),
    Case(
        title="the wheel of another CUDA major",
        sections={"torch_build": TORCH, "packages": (ASKS, _wheel("9.19.0.56", "nvidia-cudnn-cu12"))},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="nvidia-cudnn-cu12",
    ),
    Case(
        title="requirements were not read: the pins of the release are known",
        sections={"torch_build": TORCH, "packages": (Package(name="torch", version="2.11.0+cu130"), _wheel("9.10.2.21"))},
        status=Status.FAIL,
        says="9.19.0.56",
    ),
    Case(title="a newer minor is allowed", sections={"torch_build": TORCH, "packages": (ASKS, _wheel("9.24.0.43"))}, status=Status.PASS),
    Case(
        title="a patch of the same minor, older",
        sections={"torch_build": TORCH, "packages": (ASKS, _wheel("9.19.0.11"))},
        status=Status.PASS,
    ),
    Case(title="as pinned", sections={"torch_build": TORCH, "packages": (ASKS, _wheel("9.19.0.56"))}, status=Status.PASS),
    Case(
        title="no wheel of cuDNN: torch takes it from elsewhere",
        sections={"torch_build": TORCH, "packages": (Package(name="torch", version="2.11.0+cu130"),)},
        status=Status.NOT_APPLICABLE,
        says="no wheel of cuDNN is installed",
    ),
    Case(
        title="a torch that nothing is known about",
        sections={
            "torch_build": TorchBuild(version="2.99.0+cu130", cuda="13.0"),
            "packages": (Package(name="torch", version="2.99.0+cu130"), _wheel("9.19.0.56")),
        },
        status=Status.UNKNOWN,
        says="asks for",
    ),
    Case(title="the packages are not known", sections={"torch_build": TORCH}, status=Status.UNKNOWN, says="packages"),
    Case(title="no torch", sections={"torch_build": absent("torch is not installed"), "packages": ()}, status=Status.NOT_APPLICABLE),
)


@check(
    "cudnn.version-mismatch",
    Severity.ERROR,
    explains=("cudnn.mixed-sublibraries", "torch.cuda-unavailable", "package.pin-conflict", *SMOKE_OF_LIBRARIES),
    settle='pip list | grep -i cudnn; python -c "import torch; print(torch.backends.cudnn.version())"',
    cases=CASES,
)
def version_mismatch(
    torch_build: TorchBuild,
    packages: tuple[Package, ...],
    torch_runtime: Section[TorchRuntime],
    interpreter: Section[Interpreter],
    platform: Section[Platform],
    cudnn_matrix: Cudnn,
    torch_matrix: Torch,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the installed cuDNN wheel with what torch asks for."""
    wheels = [package for package in packages if package.name == "nvidia-cudnn" or package.name.startswith("nvidia-cudnn-cu")]
    cuda = CudaVersion.parse(torch_build.cuda or "")
    if not wheels or cuda is None:
        yield NO_CUDA_BUILD if cuda is None else NotApplicable(reason="no wheel of cuDNN is installed")
        return
    pin = torch_pin("cudnn", packages, torch_build, target_environment(interpreter.value, platform.value), torch_matrix)
    if pin is None:
        yield Doubt(subject=f"torch {torch_build.version}", reason="which cuDNN it asks for is not known")
        return
    runtime = torch_runtime.value
    said = REFUSED.search(runtime.cudnn_error) if runtime else None
    installed = next((package for package in wheels if package.name == pin.name), None)
    wanted = LibraryVersion.parse(pin.version)
    rule = next((rule for rule in cudnn_matrix.rules if rule.id == "minor"), None)
    asked = Evidence(where=pin.where, value=pin.text)
    if installed is None:
        other = wheels[0]
        yield Finding(
            subject=other.name,
            severity=Severity.WARNING,
            summary=f"torch {torch_build.version} asks for {pin.name} {pin.version}; installed is {other.name} {other.version}, built for another CUDA major.",
            cause=f"Both fill the folder nvidia/cudnn/lib. This one calls the cuBLAS and NVRTC of its own CUDA major, torch brings those of CUDA {cuda.major}.",
            evidence=(Evidence(where=f"packages[{other.name}].version", value=other.version), asked),
            expected=f"{pin.name} {pin.version}",
            remedies=remedies("wheels", major=str(cuda.major), version=pin.version),
            sources=pin.sources,
        )
        return
    have = LibraryVersion.parse(installed.version)
    if wanted is None or have is None:
        yield Doubt(subject=installed.name, reason=f"its version {installed.version} or the pin {pin.text} is not understood")
        return
    evidence = [Evidence(where=f"packages[{installed.name}].version", value=installed.version), asked]
    if said and runtime and relation(installed.version, ".".join(said.groups()[3:])) == "same":
        evidence.insert(0, Evidence(where="torch_runtime.cudnn_error", value=runtime.cudnn_error))
    elif cudnn_matrix.runs_with(wanted, have):
        return
    works = runtime is not None and bool(runtime.cudnn_version) and not runtime.cudnn_error
    if works and runtime is not None:
        evidence.append(Evidence(where="torch_runtime.cudnn_version", value=runtime.cudnn_version))
    grave = not works and rule is not None and rule.basis.may_carry_error
    what = "an older minor" if have.major == wanted.major else "another major"
    yield Finding(
        subject=f"{installed.name} {installed.version}",
        severity=Severity.ERROR if grave else Severity.WARNING,
        summary=f"{installed.name} {installed.version} is installed; torch {torch_build.version} was compiled against {pin.version}.",
        cause=f"{installed.version} is {what}, and cuDNN guarantees nothing to a program that was compiled against a newer one"
        + ("; torch has loaded another copy, so this run works." if works else ": torch refuses to start it."),
        evidence=tuple(evidence),
        expected=f"{pin.name} {pin.version}, or a newer minor of cuDNN {wanted.major}",
        remedies=remedies("wheels", major=str(cuda.major), version=pin.version),
        sources=(*(rule.basis.sources if rule else ()), *pin.sources),
    )
