"""Which NCCL the stack runs, for the checks that depend on its release."""

from __future__ import annotations

from dsdoctor.facts import Package, Section, TorchRuntime
from dsdoctor.versions import LibraryVersion


def loaded_nccl(packages: Section[tuple[Package, ...]], torch_runtime: Section[TorchRuntime]) -> LibraryVersion | None:
    """The NCCL that was really loaded, else the newest NCCL wheel; None when neither is known.

    Never the version that torch was compiled with: `torch.cuda.nccl.version()` is a constant of torch's source.
    """
    loaded = LibraryVersion.parse(torch_runtime.value.nccl_loaded) if torch_runtime.value else None
    wheels = [LibraryVersion.parse(item.version) for item in packages.value or () if item.name.startswith("nvidia-nccl-cu")]
    return loaded or max((version for version in wheels if version is not None), default=None)
