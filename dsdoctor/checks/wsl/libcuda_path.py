"""WSL's own libcuda is not the one that programs load, or is not found at all.

What it looks at
    Under WSL: whether the loader finds libcuda.so.1, and whether that copy is the one in /usr/lib/wsl/lib, which Windows maps into the machine.

Why it matters
    The GPU driver of WSL is the Windows driver; its libcuda lives in /usr/lib/wsl/lib. A libcuda from a Linux driver package that was installed
    inside WSL hides it and finds no kernel module: "no CUDA-capable device". When the folder is on no search path, packages that open
    libcuda.so themselves (Triton, bitsandbytes) say "libcuda.so: cannot open shared object file". The loader's remark that libcuda.so.1
    "is not a symbolic link" is harmless, and the files in that folder belong to Windows: relinking them does not last.

Sources
    NVIDIA, "CUDA on WSL User Guide".
"""

from __future__ import annotations

from collections.abc import Iterator

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import DriverLibrary, Section, State, Wsl, absent
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = "https://docs.nvidia.com/cuda/wsl-user-guide/index.html"
WSL2 = Wsl(version=2, kernel_release="6.6.87.2-microsoft-standard-WSL2", libcuda_directory="/usr/lib/wsl/lib")
MAPPED = DriverLibrary(soname="libcuda.so.1", path="/usr/lib/wsl/lib/libcuda.so.1", kind="wsl", found_via="search")
LINUX = DriverLibrary(
    soname="libcuda.so.1",
    path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    kind="driver",
    found_via="ld.so.cache",
    loaded_first=True,
)

DPKG = "dpkg -l"

CASES = (
    Case(
        title="a list of packages shows a Linux driver (pasted text)",
        sections={
            "wsl": Wsl(version=2),
            "driver_libraries": (
                DriverLibrary(
                    soname="libnvidia-ml.so.1",
                    path="package libnvidia-compute-550",
                    version="550.90.07",
                    kind="driver",
                    found_via=DPKG,
                    loaded_first=True,
                ),
            ),
        },
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="libnvidia-compute-550",
    ),
    Case(
        title="/usr/lib/wsl/lib is on no search path",
        sections={"wsl": WSL2, "driver_libraries": (MAPPED,)},
        status=Status.FAIL,
        says="/usr/lib/wsl/lib",
    ),
    Case(
        title="a Linux driver package hides the mapped library",
        sections={"wsl": WSL2, "driver_libraries": (LINUX, MAPPED)},
        status=Status.FAIL,
        says="hides",
    ),
    Case(
        title="Windows maps no driver into this WSL",
        sections={"wsl": Wsl(version=2), "driver_libraries": absent("no libcuda.so.1")},
        status=Status.FAIL,
        says="Windows",
    ),
    Case(
        title="the mapped library comes first",
        sections={
            "wsl": WSL2,
            "driver_libraries": (
                DriverLibrary(
                    soname="libcuda.so.1",
                    path="/usr/lib/wsl/lib/libcuda.so.1",
                    kind="wsl",
                    found_via="ld.so.cache",
                    loaded_first=True,
                ),
            ),
        },
        status=Status.PASS,
    ),
    Case(
        title="the search path of the loader is not known",
        sections={"wsl": WSL2},
        status=Status.UNKNOWN,
        says="which libcuda",
    ),
    Case(title="not WSL", sections={"wsl": absent("not WSL")}, status=Status.NOT_APPLICABLE),
)


@check(
    "wsl.libcuda-path",
    Severity.ERROR,
    explains=("driver.absent", "driver.library-mismatch", "smoke.*"),
    settle="ldconfig -p | grep libcuda; ls -l /usr/lib/wsl/lib/libcuda*",
    cases=CASES,
)
def libcuda_path(wsl: Wsl, driver_libraries: Section[tuple[DriverLibrary, ...]], remedies: Remedies) -> Iterator[Finding | Doubt]:
    """Find a libcuda that is not the one Windows maps in."""
    if driver_libraries.state not in (State.KNOWN, State.ABSENT):
        yield Doubt(subject="libcuda.so.1", reason=f"which libcuda a program loads is not known ({driver_libraries.why})")
        return
    copies = [library for library in driver_libraries.value or () if library.soname.startswith("libcuda.so")]
    first = next((library for library in copies if library.loaded_first), None)
    package = next((library for library in driver_libraries.value or () if library.found_via == DPKG), None)
    if not copies and package is not None and not wsl.libcuda_directory:
        yield Finding(
            subject=package.path,
            summary=f"A Linux driver ({package.path}, {package.version}) is installed inside WSL: its libcuda can hide the one that Windows maps into /usr/lib/wsl/lib.",
            cause="The GPU driver of WSL is the Windows driver. There is no Linux kernel module here for the package.",
            evidence=(Evidence(where=f"driver_libraries ({DPKG})", value=f"{package.path} {package.version}"),),
            expected="no Linux driver package inside WSL",
            remedies=remedies("general"),
            sources=(SOURCE,),
            severity=Severity.WARNING,
        )
        return
    if first is not None and (first.kind == "wsl" or (wsl.libcuda_directory and first.path.startswith(wsl.libcuda_directory))):
        return
    evidence = (
        Evidence(where="wsl.libcuda_directory", value=wsl.libcuda_directory or "not there"),
        *(Evidence(where="driver_libraries", value=f"{copy.path} (found by {copy.found_via})") for copy in copies),
    )
    expected = "libcuda.so.1 in /usr/lib/wsl/lib is the copy that programs load"
    if first is not None and wsl.libcuda_directory:
        yield Finding(
            subject=first.path,
            summary=f"A Linux driver library, {first.path}, hides WSL's libcuda in {wsl.libcuda_directory}.",
            cause="A Linux NVIDIA driver package (libnvidia-compute-…, libcuda1) is installed inside WSL. There is no Linux kernel module here for it.",
            evidence=evidence,
            expected=expected,
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
    elif wsl.libcuda_directory:
        yield Finding(
            subject="libcuda.so.1",
            summary=f"libcuda is in {wsl.libcuda_directory}, but that folder is on no search path of the loader.",
            cause="Neither LD_LIBRARY_PATH nor the loader's cache names the folder (automount option `ldconfig` in /etc/wsl.conf, or a cache that was "
            "written without it).",
            evidence=evidence,
            expected=expected,
            remedies=remedies("general"),
            sources=(SOURCE,),
        )
    else:
        yield Finding(
            subject="WSL",
            summary="Windows maps no GPU driver into this WSL: there is no /usr/lib/wsl/lib with libcuda.",
            cause="The Windows driver is missing or too old, or WSL itself is; the driver for WSL is installed in Windows, never inside WSL.",
            evidence=evidence,
            expected=expected,
            remedies=remedies.of("wsl.unsupported", "too-old"),
            sources=(SOURCE,),
        )
