"""What torch says when the patient's interpreter imports and uses it, in a child that may crash or hang."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsdoctor.facts import CudaLibrary, MappedLibrary, ModuleImport, Section, TorchRuntime, absent, known, not_asked, unreadable
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope, Target
from dsdoctor.sources.target import run_script
from dsdoctor.sources.texts import family_of, soname_in_name, version_in_name

from .interpreter import distributions
from .libraries import extension_files, owned_copies

CHILD_TIMEOUT_S = 110.0
SHARE_OF_DEADLINE = 0.9
"""The rest of the user's deadline is left for the answer, so that what the child said before it was killed still arrives."""

FOUND_VIA = "a child of the target interpreter that imported torch"
DRIVER_LIBRARY = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so[.\d]*")

FIELD_OF_STAGE = {
    "importing torch": "import_error",
    "asking whether CUDA is available": "cuda_error",
    "initialising CUDA": "cuda_error",
    "counting devices": "cuda_error",
    "reading device properties": "cuda_error",
    "loading cuDNN": "cudnn_error",
    "running a first operation on the GPU": "operation_error",
}
"""Where it is said that the child did not survive a stage."""


MODULES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("sglang-kernel", "sgl-kernel"), "sgl_kernel"),
    (("flash-attn",), "flash_attn_2_cuda"),
    (("flash-attn-3",), "flash_attn_interface"),
    (("flash-attn-4", "sgl-fa4"), "flash_attn.cute"),
    (("fa3-fwd",), "fa3_fwd_interface"),
    (("flash-mla", "sgl-flash-mla"), "flash_mla"),
    (("flashinfer-python",), "flashinfer"),
    (("deep-gemm", "sgl-deep-gemm"), "deep_gemm"),
    (("deep-ep", "sgl-deep-ep"), "deep_ep"),
    (("transformer-engine-torch",), "transformer_engine.pytorch"),
    (("tilelang",), "tilelang"),
)
"""What to import of an installed package; of the others (torchvision, vllm, xformers) only the extensions are opened, since their imports take long."""

BUILDS_ITSELF = frozenset({"deep_gemm"})
"""Modules that compile their extension into site-packages when it is not there: then they are not imported."""

EXTENSIONS_OPENED = 12
"""Of one package, at most."""


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Sections torch_runtime, mapped_libraries and module_imports."""
    if scope.target is None:
        return _all(not_asked("no target interpreter"))
    if not may_have_torch(host, scope.target):
        return _all(absent("torch is not installed for this interpreter"))
    timeout_s = min(CHILD_TIMEOUT_S, SHARE_OF_DEADLINE * scope.deadline_s)
    # Kernels compiled from PTX on the way would be written into the user's cache.
    environment = {**host.environment, "CUDA_CACHE_DISABLE": "1"}
    packages = json.dumps(to_import(host, scope.target))
    arguments = (packages, scope.scratch)
    ended = run_script(host, scope.target, "torch_facts.py", timeout_s=timeout_s, environment=environment, arguments=arguments)
    stage, facts = read_answer(ended.result)
    if not stage:
        return _all(unreadable(f"the target interpreter did not answer: {ended.said()}", FOUND_VIA))
    if facts.get("not_installed"):
        return _all(absent("torch is not installed for this interpreter", FOUND_VIA))
    broke_off = "" if stage == "done" or (ended.ok and facts.get("imported") is False) else f"{how_it_ended(ended)} while {stage}"
    return {
        "torch_runtime": runtime(facts, stage, broke_off),
        "mapped_libraries": mapped_libraries(facts, broke_off, owned_copies(host, scope.target)),
        "module_imports": module_imports(facts, broke_off),
    }


def to_import(host: Host, target: Target) -> list[dict[str, Any]]:
    """The kernel packages that are installed: name, module to import (or empty) and paths of their extensions."""
    installed = {distribution.name for distribution in distributions(host, target.site_packages)}
    wanted: dict[str, dict[str, Any]] = {}
    groups: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = [(names, module, ()) for names, module in MODULES]
    groups += [(names, "", paths) for names, paths in extension_files(host, target.site_packages) if "torch" not in names]
    for names, module, paths in groups:
        name = next((name for name in names if name in installed), "")
        if name:
            package = wanted.setdefault(name, {"package": name, "module": module, "extensions": []})
            package["extensions"] += paths[: EXTENSIONS_OPENED - len(package["extensions"])]
    for package in wanted.values():
        if package["module"] in BUILDS_ITSELF and not package["extensions"]:
            package["module"] = ""
    return list(wanted.values())


def may_have_torch(host: Host, target: Target) -> bool:
    """Whether anything in site-packages could make `import torch` work; an unknown site-packages could."""
    patterns = ("torch", "torch-*.dist-info", "torch*.egg-link", "__editable__*torch*")
    return not target.site_packages or any(host.glob(f"{site}/{pattern}") for site in target.site_packages for pattern in patterns)


def read_answer(text: str) -> tuple[str, Mapping[str, Any]]:
    """The last stage that was begun and all facts so far; lines that are not of the protocol are passed over."""
    stage, facts = "", dict[str, Any]()
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict) and isinstance(said.get("stage"), str):
            stage = said["stage"]
        if isinstance(said, dict) and isinstance(said.get("facts"), dict):
            facts |= said["facts"]
    return stage, facts


def how_it_ended(ended: Ended) -> str:
    """How a child ended, in words that go before 'while importing torch'."""
    return ended.said().partition(":")[0] if ended.outcome != "exited" else f"ended with status {ended.code}"


def runtime(facts: Mapping[str, Any], stage: str, broke_off: str) -> Section[TorchRuntime]:
    """The record of what torch said; a child that broke off is said where its last stage belongs."""
    errors = {name: _text(facts, name) for name in ("import_error", "cuda_error", "cudnn_error", "operation_error")}
    field = FIELD_OF_STAGE.get(stage)
    if broke_off and field:
        errors[field] = broke_off
    versions = facts.get("versions")
    said = {os.path.basename(path): str(version) for path, version in versions.items()} if isinstance(versions, dict) else {}
    warnings = _texts(facts, "cuda_warnings")
    return known(
        TorchRuntime(
            imported=facts.get("imported") is True,
            import_error=errors["import_error"],
            cuda_available=facts.get("cuda_available") if isinstance(facts.get("cuda_available"), bool) else None,
            cuda_error=errors["cuda_error"],
            cuda_error_code=error_code((errors["cuda_error"], *warnings)),
            device_count=facts.get("device_count") if type(facts.get("device_count")) is int else None,
            device_capabilities=_texts(facts, "device_capabilities"),
            arch_list=_texts(facts, "arch_list"),
            driver_cuda=_version_of(said, "libcuda.so"),
            runtime_cuda=_version_of(said, "libcudart"),
            cudnn_version=_text(facts, "cudnn_version") or _version_of(said, "libcudnn"),
            cudnn_error=errors["cudnn_error"],
            operation_error=errors["operation_error"],
            nccl_compiled=_text(facts, "nccl_compiled"),
            nccl_loaded=_version_of(said, "libnccl"),
            import_s=facts.get("import_s") if isinstance(facts.get("import_s"), float) else None,
        ),
        f"{FOUND_VIA}; {broke_off}" if broke_off else FOUND_VIA,
    )


def error_code(texts: Iterable[str]) -> int | None:
    """The CUDA error number that torch names in a text: 'Error 803: system has unsupported display driver …'."""
    return next((int(match[1]) for text in texts if (match := re.search(r"\b[Ee]rror (\d{1,3}):", text))), None)


def mapped_libraries(facts: Mapping[str, Any], broke_off: str, owned: Mapping[str, CudaLibrary]) -> Section[tuple[MappedLibrary, ...]]:
    """The CUDA and driver libraries that were mapped; `owned` has the copies on disk, by path."""
    if not isinstance(facts.get("mapped"), list):
        return unreadable(broke_off or "the child could not read its own /proc/self/maps", FOUND_VIA)
    versions = facts.get("versions")
    said = versions if isinstance(versions, dict) else {}
    paths = [path for path in _texts(facts, "mapped") if mapped_family(os.path.basename(path))]
    return known(tuple(_mapped(path, str(said.get(path, "")), owned.get(path)) for path in paths), FOUND_VIA)


def module_imports(facts: Mapping[str, Any], broke_off: str) -> Section[tuple[ModuleImport, ...]]:
    """What each import said; not known where torch itself was not imported, or the child ended before all were tried."""
    if facts.get("imported") is not True:
        return unreadable("torch itself could not be imported", FOUND_VIA)
    said = [value for name, value in facts.items() if name.startswith("import ") and isinstance(value, dict)]
    if broke_off and not said:
        return unreadable(broke_off, FOUND_VIA)
    return known(
        tuple(
            ModuleImport(
                package=_text(value, "package"),
                module=_text(value, "module"),
                outcome=_text(value, "outcome"),
                error=_text(value, "error"),
                callables=_texts(value, "callables"),
                loaded=_texts(value, "loaded"),
                elapsed_s=value.get("elapsed_s") if isinstance(value.get("elapsed_s"), float) else None,
            )
            for value in said
        ),
        FOUND_VIA,
    )


def mapped_family(file_name: str) -> str:
    """As family_of, and cuda, nvidia-ml or nvidia-ptxjitcompiler for libraries of the driver."""
    driver = DRIVER_LIBRARY.fullmatch(file_name)
    return driver[1] if driver else family_of(file_name)


def _mapped(path: str, said: str, copy: CudaLibrary | None) -> MappedLibrary:
    name = os.path.basename(path)
    owned = copy.version if copy else ""
    # The wheel's version is longer than the library's own answer; where they disagree, the file was replaced and its answer counts.
    version = version_in_name(name) or (owned if owned.startswith(said) else said)
    return MappedLibrary(
        family=mapped_family(name), soname=soname_in_name(name), path=path, version=version,
        origin=copy.origin if copy else "driver" if DRIVER_LIBRARY.fullmatch(name) else "", package=copy.package if copy else "",
    )  # fmt: skip


def _version_of(said: Mapping[str, str], stem: str) -> str:
    return next((version for name, version in said.items() if name.startswith(stem) and version), "")


def _text(facts: Mapping[str, Any], name: str) -> str:
    return str(facts.get(name) or "")


def _texts(facts: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values: Sequence[Any] = facts[name] if isinstance(facts.get(name), list) else ()
    return tuple(str(value) for value in values)


def _all(section: Section[Any]) -> dict[str, Section[Any]]:
    return {"torch_runtime": section, "mapped_libraries": section, "module_imports": section}
