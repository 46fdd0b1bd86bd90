"""Answers that several checks read out of the same sections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from dsdoctor.facts import DriverLibrary, Extension, Gpu, KernelDriver, ModuleImport, NvmlVersions, Section, State
from dsdoctor.findings import Doubt, Evidence, NotApplicable
from dsdoctor.versions import DriverVersion

LIBCUDA = "libcuda.so.1"

NO_LIBCUDA = NotApplicable(reason="the loader finds no libcuda.so.1")
NO_CUDA_BUILD = NotApplicable(reason="torch is built without CUDA")
NOT_FOUND = re.compile(r"(lib[\w.+-]+\.so[.\d]*): cannot open shared object file")
"""The loader's words for a library that it does not find."""

NO_EXTENSIONS = NotApplicable(reason="no compiled extension of this stack is installed")


def driver_version(kernel_driver: Section[KernelDriver], nvml_versions: Section[NvmlVersions]) -> tuple[DriverVersion, Evidence] | None:
    """The version of the loaded driver and where it was read; None when neither the kernel nor NVML said it."""
    said = (
        ("kernel_driver.version", kernel_driver.value.version if kernel_driver.value else ""),
        ("nvml_versions.driver", nvml_versions.value.driver if nvml_versions.value else ""),
    )
    for where, text in said:
        version = DriverVersion.parse(text)
        if version is not None:
            return version, Evidence(where=where, value=text)
    return None


def no_driver_version(kernel_driver: Section[KernelDriver]) -> Doubt | NotApplicable:
    """What to say when the version of the driver was not read: there is none, or nobody knows it."""
    if kernel_driver.state is State.ABSENT:
        return NotApplicable(reason=kernel_driver.why or "no driver is loaded")
    return Doubt(subject="driver", reason="the version of the driver is not known")


def no_gpu(gpus: Section[tuple[Gpu, ...]]) -> NotApplicable:
    """What to say to a question about GPUs where there is none."""
    return NotApplicable(reason=gpus.why or "there is no NVIDIA GPU")


def first_libcuda(libraries: Iterable[DriverLibrary]) -> DriverLibrary | None:
    """The copy of libcuda that a process started now would load."""
    return next((library for library in libraries if library.loaded_first and library.soname == LIBCUDA), None)


def as_imported(extensions: Iterable[Extension], module_imports: Section[tuple[ModuleImport, ...]]) -> tuple[Extension, ...]:
    """The extensions with what importing them said: one that was loaded misses nothing, whatever its header asks for.

    Opened by its path, an extension may miss a library that lies in the environment and that its package opens first: that is no fault.
    """
    tried = module_imports.value or ()
    loaded = {path for item in tried for path in item.loaded} | {item.module for item in tried if item.outcome == "imported"}
    errors = {item.module: item.error for item in tried if item.outcome != "imported"}

    def error_of(extension: Extension) -> str:
        error = errors.get(extension.path, extension.import_error)
        library = NOT_FOUND.search(error)
        there = library is not None and library[1] in extension.needed and library[1] not in extension.missing_libraries
        return "" if there else error

    return tuple(
        replace(extension, missing_libraries=(), missing_symbols=(), highest_glibc="", highest_glibcxx="", import_error="")
        if extension.path in loaded
        else replace(extension, import_error=error_of(extension))
        for extension in extensions
    )
