"""torch cannot be imported.

What it looks at
    What the target interpreter said when a child of it imported torch: the last line of the traceback, or how the child ended. The line
    is read for causes that can be recognised: a missing library, a missing symbol, a C or C++ library that is too old, NumPy of another
    ABI, a damaged or half-made installation.

Why it matters
    Nothing of the stack runs then. The last line names the library that failed, not always the one at fault: "libcusparse.so.12:
    undefined symbol: __nvJitLinkComplete_12_4" is an older libnvJitLink that came first, not a broken cuSPARSE. Where another finding
    names the root cause, this one stands under it.

Sources
    Messages of the dynamic loader (glibc), of Python's import system and of NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.torch._said import quoted, says_nothing
from dsdoctor.facts import Section, TorchBuild, TorchRuntime, absent, not_asked, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Severity, Status
from dsdoctor.remedies import Remedies
from dsdoctor.versions import CudaVersion

LOADER = "ld.so(8): the dynamic linker — https://man7.org/linux/man-pages/man8/ld.so.8.html"
IMPORT = "Python: the import system — https://docs.python.org/3/reference/import.html"

CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"undefined symbol: p?nccl"),
        "The NCCL that is loaded is older than the one torch was compiled with: another copy comes first, or the wheel was replaced.",
    ),
    (
        re.compile(r"undefined symbol: (?:__nvJitLink|nvJitLink)"),
        "The libnvJitLink that is loaded is older than the library that calls it: a toolkit's folder in LD_LIBRARY_PATH comes first, or the wheel was replaced.",
    ),
    (
        re.compile(r"undefined symbol: (?:cu(?:blas|sparse|dnn|fft|solver|rand|da[A-Z])|nvrtc|nvshmem)"),
        "The CUDA library that is loaded is older than the one torch was compiled with: another copy comes first, or its wheel was replaced.",
    ),
    (
        re.compile(r"undefined symbol: cu[A-Z]"),
        "A function of libcuda is missing: the driver (or a stub of it) is older than this torch needs.",
    ),
    (
        re.compile(r"undefined symbol: iJIT_"),
        "The Intel MKL of the conda environment no longer carries this symbol: torch of conda was built with an older MKL.",
    ),
    (
        re.compile(r"undefined symbol: _Z\w*(?:3c10|2at|5torch)"),
        "The files of torch itself do not belong together: two installations were mixed, or an upgrade was broken off.",
    ),
    (re.compile(r"undefined symbol"), "A library that is loaded does not provide what another one calls: two versions are mixed."),
    (re.compile(r"GLIBC_\d[\d.]*'? not found"), "glibc on this system is older than the wheel was built for."),
    (re.compile(r"(?:GLIBCXX|CXXABI)_\d[\d.]*'? not found"), "The libstdc++ that is loaded is older than the wheel was built for."),
    (
        re.compile(r"lib(?:cuda|nvidia-ml)\.so\S*: cannot open shared object"),
        "The driver's library is not visible here: no driver, or a container that was started without GPUs.",
    ),
    (
        re.compile(r"lib(?:cu|nv|nccl)\S*\.so\S*: cannot open shared object"),
        "A CUDA library that torch links to is not there: its wheel is not installed (pip --no-deps, a removed nvidia-* package), or it is of another CUDA major.",
    ),
    (
        re.compile(r"cannot open shared object file"),
        "A library that torch links to is not there.",
    ),
    (
        re.compile(r"file too short|invalid ELF header|invalid magic|truncated"),
        "A file of the installation is damaged: the disk was full, or the copy was broken off.",
    ),
    (
        re.compile(r"wrong ELF class|cannot execute|Exec format"),
        "A library is for another processor architecture.",
    ),
    (
        re.compile(r"numpy\.core\.multiarray|_ARRAY_API not found|NumPy 1\.x cannot be run|numpy\.dtype size changed"),
        "NumPy has another ABI than the one the package was compiled with (1.x against 2.x).",
    ),
    (
        re.compile(r"partially initialized module 'torch'|module 'torch' has no attribute"),
        "A file or folder called torch comes before the installed one (in the working directory or PYTHONPATH), or the installation is incomplete.",
    ),
    (
        re.compile(r"No module named 'torch\._C'|No module named 'torch\.[\w.]+'"),
        "The installation is incomplete, for another Python version, or a source tree of torch comes first.",
    ),
    (re.compile(r"No module named '(?P<name>[\w.]+)'"), "A package that torch needs is not installed."),
    (re.compile(r"SIGILL|signal 4\b|[Ii]llegal instruction"), "The processor lacks instructions that this build uses."),
    (
        re.compile(r"timed out|no answer|deadline"),
        "The import did not end in time: a slow or hanging network file system is the usual reason (a healthy import takes 2 to 10 seconds).",
    ),
    (
        re.compile(r"signal \d+|SIG[A-Z]+|killed"),
        "The process died while it loaded torch's libraries: mixed or damaged libraries, or too little memory.",
    ),
)
"""What the last line tells about the cause; the first that fits counts."""

TORCH = TorchBuild(version="2.5.1+cu124", cuda="12.4")


def _failed(text: str) -> TorchRuntime:
    return TorchRuntime(imported=False, import_error=text)


CASES = (
    Case(
        title="an older libnvJitLink comes first",
        sections={
            "torch_build": TORCH,
            "torch_runtime": _failed(
                "ImportError: /v/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
                "__nvJitLinkComplete_12_4, version libnvJitLink.so.12"
            ),
        },
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="older than the library that calls it",
    ),
    Case(
        title="a CUDA wheel is missing",
        sections={
            "torch_build": TORCH,
            "torch_runtime": _failed("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        },
        status=Status.FAIL,
        says="libcudnn.so.9",
    ),
    Case(
        title="the traceback alone",
        sections={"torch_runtime": _failed("ModuleNotFoundError: No module named 'typing_extensions'")},
        status=Status.FAIL,
        says="typing_extensions",
    ),
    Case(
        title="NumPy 2 under a torch built with NumPy 1",
        sections={"torch_build": TORCH, "torch_runtime": _failed("ImportError: numpy.core.multiarray failed to import")},
        status=Status.FAIL,
        says="NumPy",
    ),
    Case(
        title="the child died",
        sections={"torch_build": TORCH, "torch_runtime": _failed("killed by signal 11 (SIGSEGV) while importing torch")},
        status=Status.FAIL,
        says="SIGSEGV",
    ),
    Case(
        title="a message that nobody knows",
        sections={"torch_build": TORCH, "torch_runtime": _failed("RuntimeError: the moon is in the wrong phase")},
        status=Status.FAIL,
        says="the moon",
    ),
    Case(title="it imports", sections={"torch_build": TORCH, "torch_runtime": TorchRuntime(imported=True)}, status=Status.PASS),
    Case(
        title="the child gave no answer",
        sections={"torch_build": TORCH, "torch_runtime": unreadable("the target interpreter did not answer")},
        status=Status.UNKNOWN,
        says="did not answer",
    ),
    Case(
        title="no torch, and nobody started it",
        sections={"torch_build": absent("torch is not installed"), "torch_runtime": not_asked("not looked at with --quick")},
        status=Status.NOT_APPLICABLE,
        says="torch is not installed",
    ),
    Case(title="nobody asked", sections={}, status=Status.UNKNOWN),
    Case(title="no torch", sections={"torch_runtime": absent("torch is not installed")}, status=Status.NOT_APPLICABLE),
)


@check(
    "torch.import-fails",
    Severity.ERROR,
    explains=("torch.cuda-unavailable", "smoke.*"),
    settle="python -c 'import torch'",
    cases=CASES,
)
def import_fails(
    torch_runtime: Section[TorchRuntime],
    torch_build: Section[TorchBuild],
    remedies: Remedies,
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Say what the import said, and what that means."""
    runtime = torch_runtime.value
    if runtime is None:
        yield says_nothing(torch_build, torch_runtime)
        return
    if runtime.imported:
        return
    build = torch_build.value
    name = f"torch {build.version}" if build else "torch"
    text = runtime.import_error or "no message"
    evidence = [Evidence(where="torch_runtime.import_error", value=text)]
    cause = next((words for pattern, words in CAUSES if pattern.search(text)), "")
    if build is not None:
        evidence.append(Evidence(where="torch_build", value=f"{build.version} in {build.location}" if build.location else build.version))
    yield Finding(
        subject=name,
        summary=f"{name} cannot be imported: {quoted(text)}.",
        cause=cause or "The message is not one that this check knows; the whole traceback says more.",
        evidence=tuple(evidence),
        expected="import torch, without a message",
        remedies=remedies("general", **_fill(build)),
        sources=(LOADER,) if "shared object" in text or "symbol" in text else (IMPORT,),
    )


def _fill(build: TorchBuild | None) -> dict[str, str]:
    cuda = CudaVersion.parse(build.cuda or "") if build else None
    fill = {"torch_version": build.version.partition("+")[0]} if build else {}
    return {**fill, "cu": cuda.tag} if cuda else fill
