"""The CUDA toolkit that builds would take does not fit torch, or the packages that compile with it.

What it looks at
    The toolkit that is taken (CUDA_HOME, else the nvcc that is first on PATH, else /usr/local/cuda), the CUDA version torch was built with, and which
    installed packages compile kernels when they run.

Why it matters
    The toolkit on the node is used for compiling only: torch and the engines bring their own CUDA libraries. Where nothing is compiled, an old toolkit
    harms nobody and is not reported. Where something is, another CUDA major breaks it: extensions link to two CUDA runtimes,
    torch's builder refuses, and a distribution's old nvcc in /usr/bin does not know current GPUs ("No supported CUDA architectures"). DeepGEMM refuses
    an nvcc before 12.3. Another minor of the same major works, as a rule.

Sources
    PyTorch, torch.utils.cpp_extension (order of the search, check of the major); FlashInfer issue 2577; DeepGEMM csrc/jit/compiler.hpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.toolchain._reading import NOTHING_COMPILES
from dsdoctor.facts import CudaToolkit, Package, Section, State, TorchBuild, absent
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.record import dataclass
from dsdoctor.remedies import Remedies
from dsdoctor.rows import RuntimeCompiler, SystemNeeds
from dsdoctor.versions import CudaVersion

SOURCES = (
    "PyTorch: torch.utils.cpp_extension — https://docs.pytorch.org/docs/stable/cpp_extension.html",
    "FlashInfer issue 2577 — https://github.com/flashinfer-ai/flashinfer/issues/2577",
)

TORCH = TorchBuild(version="2.11.0+cu130", cuda="13.0")
FLASHINFER = (Package(name="flashinfer-python", version="0.6.12"), Package(name="torch", version="2.11.0+cu130"))
DISTRIBUTION = CudaToolkit(path="/usr", cuda_version="11.5", version="11.5.119", nvcc="/usr/bin/nvcc", is_first_on_path=True)
RIGHT = CudaToolkit(path="/usr/local/cuda-13.0", cuda_version="13.0", version="13.0.88", nvcc="/usr/local/cuda-13.0/bin/nvcc")


def _home(cuda: str, *, first: bool = True) -> CudaToolkit:
    path = f"/usr/local/cuda-{cuda}"
    return CudaToolkit(path=path, cuda_version=cuda, nvcc=f"{path}/bin/nvcc", is_cuda_home=True, is_first_on_path=first)


CASES = (
    Case(
        title="the distribution's nvcc 11.5 comes before /usr/local/cuda-13.0",
        sections={"cuda_toolkits": (DISTRIBUTION, RIGHT), "torch_build": TORCH, "packages": FLASHINFER},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="/usr/local/cuda-13.0",
    ),
    Case(
        title="DeepGEMM refuses nvcc 12.1",
        sections={
            "cuda_toolkits": (_home("12.1"),),
            "torch_build": TorchBuild(version="2.8.0+cu128", cuda="12.8"),
            "packages": (Package(name="deep-gemm", version="2.1.0"),),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="12.3",
    ),
    Case(
        title="CUDA_HOME and PATH name two toolkits",
        sections={"cuda_toolkits": (_home("13.0", first=False), DISTRIBUTION), "torch_build": TORCH, "packages": FLASHINFER},
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="two toolkits",
    ),
    Case(
        title="another minor of the same major",
        sections={"cuda_toolkits": (_home("13.2"),), "torch_build": TORCH, "packages": FLASHINFER},
        status=Status.FAIL,
        severity=Severity.INFO,
        says="13.2",
    ),
    Case(
        title="an old toolkit beside wheels, and nothing is compiled here",
        sections={
            "cuda_toolkits": (
                CudaToolkit(path="/usr/local/cuda", cuda_version="11.4", nvcc="/usr/local/cuda/bin/nvcc", is_cuda_home=True),
            ),
            "torch_build": TorchBuild(version="2.4.0+cu121", cuda="12.1"),
            "packages": (Package(name="torch", version="2.4.0+cu121"), Package(name="xformers", version="0.0.27")),
        },
        status=Status.NOT_APPLICABLE,
        says="nothing that is installed compiles when it runs",
    ),
    Case(
        title="another major, and only vLLM may compile with it",
        sections={
            "cuda_toolkits": (DISTRIBUTION,),
            "torch_build": TorchBuild(version="2.4.0+cu121", cuda="12.1"),
            "packages": (Package(name="vllm", version="0.6.3"),),
        },
        status=Status.FAIL,
        severity=Severity.INFO,
    ),
    Case(
        title="the same CUDA",
        sections={"cuda_toolkits": (_home("13.0"),), "torch_build": TORCH, "packages": FLASHINFER},
        status=Status.PASS,
    ),
    Case(
        title="another major, and the packages are not known",
        sections={"cuda_toolkits": (DISTRIBUTION,), "torch_build": TORCH},
        status=Status.UNKNOWN,
        says="compiled",
    ),
    Case(
        title="torch is not known, DeepGEMM's own minimum is",
        sections={"cuda_toolkits": (_home("12.1"),), "packages": (Package(name="deep-gemm", version="2.1.0"),)},
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="12.3",
    ),
    Case(
        title="no toolkit: nothing to mix",
        sections={"cuda_toolkits": absent("no toolkit"), "torch_build": TORCH},
        status=Status.NOT_APPLICABLE,
    ),
)


@check(
    "toolchain.cuda-home-mismatch",
    Severity.WARNING,
    explains=("toolchain.host-compiler", "deepgemm.requirements"),
    settle='echo "$CUDA_HOME"; which -a nvcc; nvcc --version',
    cases=CASES,
)
def cuda_home_mismatch(
    cuda_toolkits: tuple[CudaToolkit, ...],
    torch_build: Section[TorchBuild],
    packages: Section[tuple[Package, ...]],
    system_needs_matrix: SystemNeeds,
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Compare the toolkit that builds take with torch and with what compiles here."""
    taken = _taken(cuda_toolkits)
    if taken is None:
        yield NotApplicable(reason="there is no CUDA toolkit that a build would take")
        return
    used = CudaVersion.parse(taken.cuda_version)
    if used is None:
        yield Doubt(subject=taken.path, reason="the version of this CUDA toolkit is not known", settle=f"{taken.nvcc} --version")
        return
    wanted = CudaVersion.parse(torch_build.value.cuda) if torch_build.value else None
    if packages.value is None:
        if wanted is None or used.major != wanted.major:
            built = f"and torch was built with {wanted}" if wanted else "and with which CUDA torch was built is not known"
            yield Doubt(
                subject=taken.path,
                reason=f"it is CUDA {used}, {built}; that matters only where something is compiled here, and the packages are not known",
                settle="pip list",
            )
        return
    users = system_needs_matrix.compile_here([package.name for package in packages.value], "nvcc")
    if not users:
        yield NOTHING_COMPILES
        return
    build = _Build(cuda_toolkits, taken, used, wanted, users, remedies)
    too_old = next((row for row in users if (least := CudaVersion.parse(row.least_nvcc)) is not None and used < least), None)
    if too_old is not None:
        yield build.too_old_for(too_old)
    elif torch_build.value is not None and wanted is not None and used != wanted:
        yield build.differs_from(torch_build.value, wanted)
    elif torch_build.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject=taken.path, reason=f"it is CUDA {used}; with which CUDA torch was built is not known")
    on_path = next((item for item in cuda_toolkits if item.is_first_on_path), None)
    if taken.is_cuda_home and on_path is not None and on_path is not taken and CudaVersion.parse(on_path.cuda_version) not in (None, used):
        yield build.two_toolkits(on_path)


@dataclass(frozen=True, slots=True)
class _Build:
    """What a compilation on this node would take, and who compiles."""

    toolkits: tuple[CudaToolkit, ...]
    taken: CudaToolkit
    used: CudaVersion
    wanted: CudaVersion | None
    """The CUDA version of torch."""
    users: tuple[RuntimeCompiler, ...]
    remedies: Remedies

    def too_old_for(self, package: RuntimeCompiler) -> Finding:
        """The package refuses this nvcc."""
        torch = f" torch.version.cuda ({self.wanted}) says nothing about the nvcc on this node." if self.wanted else ""
        return Finding(
            subject=self.nvcc,
            summary=f"{package.package} needs nvcc {package.least_nvcc} or newer, and {self.nvcc} ({self.how}) is {self.used}.",
            cause=f"{package.text}{self.at_hand()}{torch}",
            evidence=self.evidence(),
            expected=f"nvcc {package.least_nvcc} or newer" + (f", best {self.wanted}" if self.wanted else ""),
            remedies=self.fill_remedies(),
            sources=package.basis.sources,
            severity=Severity.ERROR if package.basis.may_carry_error else Severity.WARNING,
        )

    def differs_from(self, torch: TorchBuild, wanted: CudaVersion) -> Finding:
        """Another CUDA than torch's: a warning for the major, worth knowing for the minor."""
        other_major = self.used.major != wanted.major
        unnamed = "" if self.taken.is_cuda_home else " CUDA_HOME names no toolkit."
        return Finding(
            subject=self.nvcc,
            summary=f"The CUDA toolkit that is taken, {self.nvcc} ({self.how}), is {self.used}; torch {torch.version} was built with {wanted}."
            + ("" if other_major else " As a rule that works."),
            cause=f"Compiled with it at run time: {self.names}. "
            + (
                f"Another CUDA major breaks the build or links two CUDA runtimes.{unnamed}{self.at_hand()}"
                if other_major
                else "A newer minor than the driver's own may produce PTX that the driver refuses."
            ),
            evidence=self.evidence(),
            expected=f"CUDA_HOME naming a toolkit of CUDA {wanted.major}, best {wanted}",
            remedies=self.fill_remedies(),
            sources=SOURCES,
            severity=_severity(self.users) if other_major else Severity.INFO,
        )

    def two_toolkits(self, on_path: CudaToolkit) -> Finding:
        """CUDA_HOME and PATH disagree."""
        return Finding(
            subject="CUDA_HOME",
            summary=f"CUDA_HOME and PATH name two toolkits: {self.taken.path} (CUDA {self.used}) and {on_path.nvcc or on_path.path} "
            f"(CUDA {on_path.cuda_version}).",
            cause=f"Compiled at run time: {self.names}. Builds that take nvcc from PATH and headers from CUDA_HOME mix the two.",
            evidence=(
                *self.evidence(),
                Evidence(where="cuda_toolkits", value=f"{on_path.path}: CUDA {on_path.cuda_version} (first on PATH)"),
            ),
            expected="one toolkit in both",
            remedies=self.fill_remedies(),
            sources=SOURCES,
            severity=_severity(self.users),
        )

    @property
    def nvcc(self) -> str:
        """The nvcc that is taken, or the root of a toolkit without one."""
        return self.taken.nvcc or self.taken.path

    @property
    def how(self) -> str:
        """What chose the toolkit."""
        return "CUDA_HOME" if self.taken.is_cuda_home else "first on PATH" if self.taken.is_first_on_path else "the default"

    @property
    def names(self) -> str:
        """The packages that compile."""
        return ", ".join(dict.fromkeys(row.package for row in self.users))

    def at_hand(self) -> str:
        """A sentence on a toolkit that would fit, where there is one."""
        fits = next((item for item in self.toolkits if item.nvcc and CudaVersion.parse(item.cuda_version) == self.wanted), None)
        return f" {fits.path} has CUDA {self.wanted}, but is not the one taken." if self.wanted and fits and fits is not self.taken else ""

    def evidence(self) -> tuple[Evidence, ...]:
        """The toolkit, torch's CUDA, and who compiles."""
        torch = (Evidence(where="torch_build.cuda", value=str(self.wanted)),) if self.wanted else ()
        return (
            Evidence(where="cuda_toolkits", value=f"{self.taken.path}: CUDA {self.used} ({self.how}; {self.nvcc})"),
            *torch,
            Evidence(where="packages", value=f"compile at run time: {self.names}"),
        )

    def fill_remedies(self) -> tuple[Remedy, ...]:
        """The remedies, for torch's CUDA where it is known."""
        fill = {"major": str(self.wanted.major), "minor": str(self.wanted.minor)} if self.wanted else {}
        return self.remedies("general", **fill)


def _severity(users: tuple[RuntimeCompiler, ...]) -> Severity:
    """A warning where a package depends on the toolkit; worth knowing where one only may."""
    return Severity.INFO if all(row.severity == "info" for row in users) else Severity.WARNING


def _taken(toolkits: tuple[CudaToolkit, ...]) -> CudaToolkit | None:
    """The toolkit that torch's builder takes: CUDA_HOME, the nvcc on PATH, /usr/local/cuda."""
    by_home = next((item for item in toolkits if item.is_cuda_home), None)
    by_path = next((item for item in toolkits if item.is_first_on_path), None)
    by_default = next((item for item in toolkits if item.path == "/usr/local/cuda"), None)
    return by_home or by_path or by_default
