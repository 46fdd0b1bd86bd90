"""Versions of drivers, CUDA, libraries and GPUs as small ordered values.

`parse` takes whatever a user, a log or a library prints and answers None for anything it does not understand; it never raises.
Python packages are not here: they follow PEP 440 and are compared with `packaging`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_DRIVER = re.compile(r"\s*[rR]?(\d{3,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?\s*", re.ASCII)
_CUDA = re.compile(r"\s*(?:cuda|CUDA)?\s*[vV]?(\d{1,2})\.(\d{1,2})(?:[.\- ][^+]{0,40})?\s*", re.ASCII)
_CUDA_TAG = re.compile(r"(?:.{0,60}[^A-Za-z0-9])?cu(\d{2})(\d)(?:[^0-9].{0,20})?", re.ASCII)
_DOTTED = re.compile(r"\s*[vV]?(\d{1,9}(?:\.\d{1,9}){0,5})(?:[+\-].{0,40})?\s*", re.ASCII)
_CAPABILITY = re.compile(r"\s*(\d{1,2})\.(\d)\s*", re.ASCII)
_TARGET = re.compile(r"\s*(sm|compute)_(\d{1,2})(\d)([af]?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class DriverVersion:
    """An NVIDIA driver version, such as 580.159.04, or a bare branch, such as 580 (which sorts before every release of it)."""

    numbers: tuple[int, ...]

    @staticmethod
    def parse(text: object) -> DriverVersion | None:
        """Read '580.159.04', '580', 'R580' or the integer 580."""
        found = _DRIVER.fullmatch(text) if isinstance(text, str) else None
        if isinstance(text, int) and not isinstance(text, bool) and 100 <= text <= 9999:
            return DriverVersion((text,))
        return DriverVersion(tuple(int(part) for part in found.groups() if part is not None)) if found else None

    @property
    def branch(self) -> int:
        """The number before the first dot: 580."""
        return self.numbers[0]

    @property
    def is_branch(self) -> bool:
        """Whether only the branch is known."""
        return len(self.numbers) == 1

    def __str__(self) -> str:
        return ".".join(str(part) if position == 0 else f"{part:02d}" for position, part in enumerate(self.numbers))


@dataclass(frozen=True, slots=True, order=True)
class CudaVersion:
    """A CUDA version as far as compatibility rules look at it: major and minor."""

    major: int
    minor: int

    @staticmethod
    def parse(text: object) -> CudaVersion | None:
        """Read '13.0', '13.0.88', 'CUDA 12.8', the driver API's 13000 or '12040', and wheel tags: 'cu130', '2.11.0+cu130'."""
        if isinstance(text, bool) or not isinstance(text, (str, int)):
            return None
        if isinstance(text, int) or (text.strip().isascii() and text.strip().isdecimal() and len(text.strip()) < 10):
            return CudaVersion.from_code(int(text))
        found = _CUDA_TAG.fullmatch(text) or _CUDA.fullmatch(text)
        return CudaVersion(int(found[1]), int(found[2])) if found else None

    @staticmethod
    def from_code(code: int) -> CudaVersion | None:
        """Read the integer of cuDriverGetVersion and CUDART_VERSION: major * 1000 + minor * 10."""
        return CudaVersion(code // 1000, code % 1000 // 10) if 1000 <= code < 100_000 else None

    @property
    def tag(self) -> str:
        """The wheel tag: cu130."""
        return f"cu{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, slots=True, order=True)
class LibraryVersion:
    """A dotted version of a library: cuDNN 9.10.2.21, NCCL 2.27.5, glibc 2.28, gcc 13.2."""

    numbers: tuple[int, ...]

    @staticmethod
    def parse(text: object) -> LibraryVersion | None:
        """Read dotted numbers; what follows a plus or a dash is left out ('2.27.5+cuda12.9')."""
        found = _DOTTED.fullmatch(text) if isinstance(text, str) else None
        return LibraryVersion(tuple(int(part) for part in found[1].split("."))) if found else None

    @staticmethod
    def from_cudnn_code(code: int) -> LibraryVersion | None:
        """Read the integer of cudnnGetVersion: 91002 is 9.10.2, and 8907 is 8.9.7 (cudnn_version.h)."""
        if 90_000 <= code < 1_000_000:
            return LibraryVersion((code // 10_000, code // 100 % 100, code % 100))
        return LibraryVersion((code // 1000, code // 100 % 10, code % 100)) if 1000 <= code < 9000 else None

    @staticmethod
    def from_nccl_code(code: int) -> LibraryVersion | None:
        """Read the integer of ncclGetVersion: 22705 is 2.27.5, and 2804 is 2.8.4 (nccl.h)."""
        if 10_000 <= code < 1_000_000:
            return LibraryVersion((code // 10_000, code // 100 % 100, code % 100))
        return LibraryVersion((code // 1000, code // 100 % 10, code % 100)) if 1000 <= code < 10_000 else None

    @property
    def major(self) -> int:
        """The first number."""
        return self.numbers[0]

    @property
    def minor(self) -> int:
        """The second number, 0 where there is none."""
        return self.numbers[1] if len(self.numbers) > 1 else 0

    def same_as(self, other: LibraryVersion) -> bool:
        """Whether both agree as far as the shorter one goes: 9.10.2 and 9.10.2.21."""
        return all(mine == theirs for mine, theirs in zip(self.numbers, other.numbers))

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))


@dataclass(frozen=True, slots=True, order=True)
class ComputeCapability:
    """The compute capability of a GPU: 9.0."""

    major: int
    minor: int

    @staticmethod
    def parse(value: object) -> ComputeCapability | None:
        """Read '9.0', 'sm_90a', 'compute_90' or (9, 0)."""
        if isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(part, int) and 0 <= part < 100 for part in value):
            return ComputeCapability(int(value[0]), int(value[1]))
        if not isinstance(value, str):
            return None
        if found := _CAPABILITY.fullmatch(value):
            return ComputeCapability(int(found[1]), int(found[2]))
        target = GpuTarget.parse(value)
        return target.capability if target else None

    @property
    def sm(self) -> str:
        """The name of its compiler target: sm_90."""
        return f"sm_{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What a kernel was compiled for: machine code (sm_90, sm_90a, sm_100f) or PTX (compute_90)."""

    capability: ComputeCapability
    is_ptx: bool
    suffix: str = ""
    """'a': this capability only; 'f': its family; empty: see `runs_on`."""

    @staticmethod
    def parse(text: object) -> GpuTarget | None:
        """Read 'sm_90a' or 'compute_120'."""
        return _parse_target(text) if isinstance(text, str) else None

    def runs_on(self, capability: ComputeCapability) -> bool:
        """Whether a GPU of that capability can run it (PTX ISA: target suffixes; PTX also needs a driver that knows its version)."""
        if self.suffix == "a":
            return capability == self.capability
        if self.is_ptx and not self.suffix:
            return capability >= self.capability
        return capability.major == self.capability.major and capability.minor >= self.capability.minor

    def __str__(self) -> str:
        kind = "compute" if self.is_ptx else "sm"
        return f"{kind}_{self.capability.major}{self.capability.minor}{self.suffix}"


@lru_cache(maxsize=512)
def _parse_target(text: str) -> GpuTarget | None:
    found = _TARGET.fullmatch(text)
    return GpuTarget(ComputeCapability(int(found[2]), int(found[3])), found[1] == "compute", found[4]) if found else None


def runs_on(target: str, capability: ComputeCapability) -> bool | None:
    """Whether a kernel for this target runs on a GPU of that capability; None when the target is not understood."""
    parsed = GpuTarget.parse(target)
    return parsed.runs_on(capability) if parsed else None
