"""The NVIDIA driver: the module that is loaded, the one on disk, and every copy of its user-space libraries.

That these three differ is the commonest reason why a node that worked yesterday does not work today.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsdoctor.facts import (
    DriverLibrary,
    DriverModuleFile,
    KernelDriver,
    LoadedModules,
    Missing,
    Section,
    SecureBoot,
    State,
    absent,
    known,
    not_asked,
    unreadable,
)
from dsdoctor.sources import loader
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import parse_plain_version, parse_version, version_of

from .services import container_evidence

MODINFO_TIMEOUT_S = 3.0
VERSION_FILE = "/proc/driver/nvidia/version"
SECURE_BOOT_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

LIBRARY_SONAMES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libcudadebugger.so.1",
)
FATBINARY_LOADER = "libnvidia-fatbinaryloader.so"
"""Of drivers before 450; its soname carries the version of the driver."""
STUB_NAME = "libcuda.so"
STUB_LIMIT_BYTES = 200_000
"""A real libcuda has tens of megabytes, the stub to link against about a hundred kilobytes, and an image that was saved badly an empty file."""
LIBRARY_DIRECTORIES = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers/*",
    "/usr/local/lib",
    "/usr/local/cuda*/compat",
    "/usr/local/cuda*/compat/lib*",
    "/usr/local/cuda*/lib64/stubs",
    "/usr/local/cuda*/targets/*/lib/stubs",
    "/run/nvidia/driver/usr/lib/*-linux-gnu",
    "/run/opengl-driver/lib",
)
"""Where installers, containers and distributions put them (patterns)."""
CONDA_DIRECTORIES = ("lib", "cuda-compat", "lib/stubs", "targets/*/lib/stubs")


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Read the driver from /proc, /sys, /lib/modules and the directories of its libraries."""
    modules = loaded_module_names(host)
    return {
        "kernel_driver": kernel_driver(host, modules),
        "driver_module_file": driver_module_file(host),
        "secure_boot": secure_boot(host),
        "loaded_modules": _loaded_modules(modules),
        "driver_libraries": _driver_libraries(host, scope),
    }


# --- loaded modules ---------------------------------------------------------------------------------------------------


def loaded_module_names(host: Host) -> Section[tuple[str, ...]]:
    """Names of all loaded modules, from /proc/modules, or from /sys/module where that is missing."""
    try:
        lines = host.read_text("/proc/modules").splitlines()
    except OSError as error:
        if host.is_directory("/sys/module"):
            # Built-in code has a directory there too; only a loadable module has a state.
            return known(tuple(path.split("/")[3] for path in host.glob("/sys/module/*/initstate")), "/sys/module")
        return unreadable(f"/proc/modules: {error.strerror}, and /sys/module is not there")
    return known(tuple(sorted(line.split(maxsplit=1)[0] for line in lines if line.strip())), "/proc/modules")


def _loaded_modules(modules: Section[tuple[str, ...]]) -> Section[LoadedModules]:
    if modules.value is None:
        return unreadable(modules.why)
    return known(LoadedModules(names=modules.value, complete=True), modules.found_via)


def kernel_driver(host: Host, modules: Section[tuple[str, ...]]) -> Section[KernelDriver]:
    """The loaded nvidia module."""
    version, flavour, found_via = "", "", VERSION_FILE
    problem = ""
    try:
        version, flavour = parse_version(host.read_text(VERSION_FILE, 1 << 16))
        problem = "" if version else f"{VERSION_FILE} holds no version"
    except FileNotFoundError:
        pass
    except OSError as error:
        problem = f"{VERSION_FILE}: {error.strerror}"
    if not version:
        version, found_via = parse_plain_version(host.first_line("/sys/module/nvidia/version") or ""), "/sys/module/nvidia/version"
    if version:
        return known(KernelDriver(version=version, flavour=flavour, options=module_options(host)), found_via)
    if problem:
        return unreadable(problem)
    if modules.value is None:
        return unreadable(modules.why)
    if "nvidia" in modules.value:
        return unreadable(f"the nvidia module is loaded ({modules.found_via}), but {VERSION_FILE} is not visible here")
    if "dxgkrnl" in modules.value or host.exists("/dev/dxg"):
        return absent("WSL: the driver is the one of Windows; no nvidia module is loaded here", modules.found_via)
    return absent("no nvidia kernel module is loaded", modules.found_via)


def module_options(host: Host) -> dict[str, str]:
    """What the module was loaded with: /proc/driver/nvidia/params, else /sys/module/nvidia/parameters."""
    try:
        lines = host.read_text("/proc/driver/nvidia/params", 1 << 18).splitlines()
    except OSError:
        found = {path.rpartition("/")[2]: host.first_line(path) for path in host.glob("/sys/module/nvidia/parameters/*")}
        return {name.removeprefix("NVreg_"): value for name, value in found.items() if value is not None}
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


# --- the module on disk -----------------------------------------------------------------------------------------------


def driver_module_file(host: Host) -> Section[DriverModuleFile]:
    """The nvidia module that the running kernel would load next."""
    release = host.first_line("/proc/sys/kernel/osrelease")
    if not release:
        return unreadable("/proc/sys/kernel/osrelease cannot be read")
    directory = f"/lib/modules/{release}"
    if not host.is_directory(directory):
        container = container_evidence(host)
        if container:
            return not_asked(f"in a container ({container}): the modules of the host's kernel cannot be seen from here")
        return unreadable(f"{directory} is not there")
    path, found_via = _module_path(host, directory)
    if not path:
        return absent(f"no nvidia module for kernel {release}", found_via)
    fields, why = _modinfo(host, path)
    dkms = _dkms_version(host, release)
    version = fields.get("version") or dkms or None
    missing = {} if version else {"version": Missing(State.UNREADABLE, why)}
    if not fields:
        missing["signed"] = Missing(State.UNREADABLE, why)
    signed = any(fields.get(name) for name in ("signer", "sig_id", "sig_key", "signature")) if fields else None
    return known(DriverModuleFile(path=path, version=version, signed=signed, signer=fields.get("signer", ""), missing=missing), found_via)


_MODULE_NAME = re.compile(r"nvidia(?:-current|-tesla-\d+|-legacy-[\w-]+)?\.ko(?:\.xz|\.zst|\.gz)?")


def _module_path(host: Host, directory: str) -> tuple[str, str]:
    """Path of the module and where that was found; modules.dep names the copy that is loaded when there are several."""
    index = f"{directory}/modules.dep"
    try:
        lines = host.read_text(index, 16 << 20).splitlines()
    except OSError:
        places = ("updates/dkms", "updates", "extra", "extra/nvidia", "weak-updates/nvidia", "kernel/drivers/video", "kernel/nvidia-*")
        found = [path for place in places for path in host.glob(f"{directory}/{place}/nvidia*.ko*") if _is_module(path)]
        return (found[0] if found else "", directory)
    path = next((name for line in lines if _is_module(name := line.partition(":")[0])), "")
    return (path if path.startswith("/") or not path else f"{directory}/{path}", index)


def _is_module(path: str) -> bool:
    return _MODULE_NAME.fullmatch(path.rpartition("/")[2]) is not None


def _modinfo(host: Host, path: str) -> tuple[dict[str, str], str]:
    """The fields that `modinfo` prints for a module, or no fields and why."""
    why = ""
    for program in ("modinfo", "/usr/sbin/modinfo", "/sbin/modinfo"):
        ended = host.run((program, path), MODINFO_TIMEOUT_S)
        if ended.ok:
            return parse_modinfo(ended.stdout), ""
        why = f"modinfo: {ended.said()}"
        if ended.outcome != "not_found":
            break
    return {}, why


def parse_modinfo(text: str) -> dict[str, str]:
    """The first value of each field of `modinfo` output."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"^([a-z_]+):[ \t]*(.*)$", text, re.MULTILINE):
        fields.setdefault(name, value.strip())
    return fields


def _dkms_version(host: Host, release: str) -> str:
    """The version that DKMS built for this kernel, when it built exactly one."""
    versions = {parse_plain_version(path.split("/")[5]) for path in host.glob(f"/var/lib/dkms/nvidia*/*/{release}")}
    return versions.pop() if len(versions) == 1 else ""


# --- Secure Boot ------------------------------------------------------------------------------------------------------


def secure_boot(host: Host) -> Section[SecureBoot]:
    """Whether the firmware checks signatures, and how far the kernel is locked down."""
    lockdown = _lockdown(host)
    try:
        variable = host.read_bytes(SECURE_BOOT_VARIABLE, 64)
    except OSError as error:
        if host.is_directory("/sys/firmware/efi"):
            return unreadable(f"{SECURE_BOOT_VARIABLE}: {error.strerror}")
        try:
            firmware = host.list_directory("/sys/firmware")
        except OSError:
            firmware = ()
        # Container runtimes hide /sys/firmware behind an empty directory; a machine that booted without EFI has other entries there.
        if firmware:
            return known(SecureBoot(enabled=False, lockdown=lockdown), "/sys/firmware without efi")
        return unreadable("/sys/firmware is empty or hidden (usual in a container)")
    # Four bytes of attributes, then the value: UEFI specification, SecureBoot; Linux Documentation/filesystems/efivarfs.rst.
    if len(variable) < 5 or variable[-1] > 1:
        return unreadable(f"{SECURE_BOOT_VARIABLE} holds {len(variable)} bytes that are not understood")
    return known(SecureBoot(enabled=variable[-1] == 1, lockdown=lockdown), SECURE_BOOT_VARIABLE)


def _lockdown(host: Host) -> str:
    match = re.search(r"\[(none|integrity|confidentiality)\]", host.first_line("/sys/kernel/security/lockdown") or "")
    return match[1] if match else ""


# --- libraries --------------------------------------------------------------------------------------------------------


def _driver_libraries(host: Host, scope: Scope) -> Section[tuple[DriverLibrary, ...]]:
    conda = host.environment.get("CONDA_PREFIX", "")
    target = scope.target.prefix if scope.target is not None and scope.target.kind == "conda" else ""
    found = driver_libraries(host, tuple(dict.fromkeys(prefix for prefix in (conda, target) if prefix)))
    if not found:
        return absent(
            "no user-space driver library (libcuda.so.1, libnvidia-ml.so.1 …) in any place where the loader or an installer puts it"
        )
    return known(found, "loader and known directories")


def driver_libraries(host: Host, conda_prefixes: Sequence[str] = ()) -> tuple[DriverLibrary, ...]:
    """Every copy of the user-space driver libraries, each file once; for each soname the copies the loader reaches come first."""
    architecture = loader.architecture_of(host)
    cache = loader.read_cache(host, architecture)
    places = _directories(host, conda_prefixes)
    found: dict[tuple[str, str], DriverLibrary] = {}

    def add(soname: str, path: str, via: str, loaded_first: bool) -> None:
        real = host.real_path(path)
        if (soname, real) not in found:
            kind, version = kind_of(host, path, real), version_of(real)
            found[soname, real] = DriverLibrary(
                soname=soname, path=real, version=version, kind=kind, found_via=via, loaded_first=loaded_first
            )

    for soname in (*LIBRARY_SONAMES, STUB_NAME):
        hits = loader.search(host, soname, host.environment, cache=cache, architecture=architecture)
        for hit in hits:
            # A plain libcuda.so is a link for compilers; only a stub under that name is worth a word.
            if soname != STUB_NAME or _is_stub_directory(hit.path):
                add(soname, hit.path, hit.via, hit is hits[0])
        for directory, via in places if soname != STUB_NAME else ():
            path = f"{directory}/{soname}"
            if host.exists(path) and not loader.is_other_architecture(host, path, architecture):
                add(soname, path, via, False)
    for directory, via in places:
        for path in host.glob(f"{directory}/{FATBINARY_LOADER}.*"):
            add(FATBINARY_LOADER, path, via, False)
    return tuple(found.values())


def _directories(host: Host, conda_prefixes: Sequence[str]) -> list[tuple[str, str]]:
    """Existing directories to look into, and how each is known; a directory reached by two names is kept once."""

    def named() -> Iterator[tuple[str, str]]:
        for directory in loader.configured_directories(host):
            yield directory, "ld.so.conf"
        patterns = LIBRARY_DIRECTORIES + tuple(f"{prefix}/{place}" for prefix in conda_prefixes for place in CONDA_DIRECTORIES)
        for pattern in patterns:
            for directory in host.glob(pattern):
                yield directory, "search"

    unique: dict[str, tuple[str, str]] = {}
    for directory, via in named():
        if host.is_directory(directory):
            unique.setdefault(host.real_path(directory), (directory, via))
    return list(unique.values())


def kind_of(host: Host, path: str, real_path: str) -> str:
    """driver, compat, stub or wsl, by the directory a copy is reached through or lies in, and by the size of libcuda."""
    parts = {part for where in (path, real_path) for part in os.path.dirname(where).split("/")}
    if "stubs" in parts:
        return "stub"
    if any(part == "compat" or part.startswith("cuda-compat") for part in parts):
        return "compat"
    if any(where.startswith("/usr/lib/wsl/") for where in (path, real_path)):
        return "wsl"
    if os.path.basename(path).startswith("libcuda.so") and not version_of(real_path) and _size(host, real_path) < STUB_LIMIT_BYTES:
        return "stub"
    return "driver"


def _is_stub_directory(path: str) -> bool:
    return "stubs" in os.path.dirname(path).split("/")


def _size(host: Host, path: str) -> int:
    try:
        return host.status(path).st_size
    except OSError:
        return STUB_LIMIT_BYTES
