"""torch needs NCCL, and there is none.

What it looks at
    What the import of torch said, and which NCCL wheels and copies of libnccl are there.

Why it matters
    The torch of the public index is linked against libnccl.so.2 and takes it from the wheel nvidia-nccl-cuNN of its CUDA major; without it
    not even `import torch` works, on one GPU as on many. It is absent after pip --no-deps, after a lock file or an installer that left it
    out, and after another nvidia-nccl wheel was removed, because both own the same file. A torch of a distribution, of a Jetson or of
    one's own takes the system's libnccl2.

Sources
    Contents and metadata of the published wheels; ld.so(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.cuda._loading import LD_SO, copy_evidence
from dsdoctor.facts import CudaLibrary, Package, Section, TorchBuild, TorchRuntime
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.rows import Torch
from dsdoctor.versions import CudaVersion

NOT_FOUND = re.compile(r"libnccl\.so\S*: cannot open shared object")

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
LOST = TorchRuntime(imported=False, import_error="ImportError: libnccl.so.2: cannot open shared object file: No such file or directory")

CASES = (
    Case(
        title="installed without its dependencies",
        sections={"torch_build": TORCH, "torch_runtime": LOST, "packages": (Package(name="torch", version="2.11.0+cu130"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="nvidia-nccl-cu13",
    ),
    Case(
        title="the wheel is listed, and its file went with another wheel",
        sections={"torch_build": TORCH, "torch_runtime": LOST, "packages": (Package(name="nvidia-nccl-cu13", version="2.28.9"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="its file is gone",
    ),
    Case(title="the traceback alone", sections={"torch_runtime": LOST}, status=Status.FAIL, says="libnccl.so.2"),
    Case(title="it imports", sections={"torch_build": TORCH, "torch_runtime": TorchRuntime(imported=True)}, status=Status.PASS),
    Case(
        title="the import fails for another reason",
        sections={"torch_build": TORCH, "torch_runtime": TorchRuntime(imported=False, import_error="ImportError: libcudnn.so.9: gone")},
        status=Status.UNKNOWN,
        says="another reason",
    ),
    Case(title="nobody imported torch", sections={"torch_build": TORCH}, status=Status.UNKNOWN),
)


@check("nccl.missing", Severity.ERROR, explains=("torch.import-fails", "smoke.*"), settle="python -c 'import torch'", cases=CASES)
def missing(
    torch_runtime: TorchRuntime,
    torch_build: Section[TorchBuild],
    packages: Section[tuple[Package, ...]],
    cuda_libraries: Section[tuple[CudaLibrary, ...]],
    torch_matrix: Torch,
    remedies: Remedies,
) -> Iterator[Finding | Doubt]:
    """Tell an NCCL that is not installed from one that lost its file."""
    if torch_runtime.imported:
        return
    if not NOT_FOUND.search(torch_runtime.import_error):
        yield Doubt(subject="libnccl.so.2", reason="torch does not import, for another reason")
        return
    build = torch_build.value
    cuda = CudaVersion.parse(build.cuda or "") if build else None
    release = torch_matrix.release(build.version) if build else None
    pinned = release.x86_64.pinned("nccl") if release and release.x86_64 else ""
    wheel = f"nvidia-nccl-cu{cuda.major}" if cuda else "nvidia-nccl"
    listed = [package for package in packages.value or () if package.name.startswith("nvidia-nccl-cu")]
    copies = [copy for copy in cuda_libraries.value or () if copy.family == "nccl"]
    if any(package.name == wheel for package in listed):
        why = f"{wheel} is listed by pip, and its file is gone: another nvidia-nccl wheel that owned the same file was removed, or the environment was copied in part."
    elif listed:
        names = " and ".join(f"{package.name} {package.version}" for package in listed)
        why = f"{names} is installed, which torch for CUDA {cuda} does not look for." if cuda else f"{names} is installed, and not found."
    elif packages.value is not None:
        why = f"{wheel}, which brings it, is not installed."
    else:
        why = f"{wheel}, which brings it, is not installed, or lost its file to the removal of another nvidia-nccl wheel."
    yield Finding(
        subject="libnccl.so.2",
        summary=f"{f'torch {build.version}' if build else 'torch'} cannot be imported: NCCL (libnccl.so.2) is not found.",
        cause=why + (f" There is a copy that the loader does not search: {copies[0].path}." if copies else ""),
        evidence=(
            Evidence(where="torch_runtime.import_error", value=torch_runtime.import_error),
            *(Evidence(where=f"packages[{package.name}].version", value=package.version) for package in listed),
            *map(copy_evidence, copies[:1]),
        ),
        expected=f"{wheel} {pinned}".strip(),
        remedies=remedies("general", **({"major": str(cuda.major)} if cuda else {}), **({"version": pinned} if pinned else {})),
        sources=(LD_SO,),
    )
