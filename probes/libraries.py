"""Which CUDA and C++ libraries lie on this node, which of them the patient's torch would load, and what its compiled extensions ask for."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsdoctor.facts import CudaLibrary, Extension, Libstdcxx, LoaderHit, MissingSymbol, Section, absent, known, not_asked
from dsdoctor.sources.host import Host
from dsdoctor.sources.loader import Cache, architecture_of, configuration, expand, library_path_directories, read_cache, search
from dsdoctor.sources.probe import Scope, Target
from dsdoctor.sources.texts import family_of, soname_in_name, version_in_name

from .elf import Elf, ElfError, highest
from .fatbin import gpu_targets
from .interpreter import MAY_SHARE_FILES, Distribution, distributions, record_of

SYMBOLS_PER_EXTENSION = 20


EXTENSIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("torch",), ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch_python.so", "torch/lib/libc10_cuda.so")),
    (("torchvision",), ("torchvision/_C*.so", "torchvision/image*.so")),
    (("torchaudio",), ("torchaudio/lib/libtorchaudio.so", "torchaudio/lib/_torchaudio.so")),
    (("torchao",), ("torchao/*.so",)),
    (("vllm",), ("vllm/*.so", "vllm/vllm_flash_attn/*.so")),
    (("sglang-kernel", "sgl-kernel"), ("sgl_kernel/*.so", "sgl_kernel/sm*/*.so")),
    (("flash-attn",), ("flash_attn_2_cuda*.so",)),
    (("flash-attn-3", "flash-attn"), ("flash_attn_3/*.so", "flash_attn_3_cuda*.so")),
    (("fa3-fwd",), ("fa3_fwd/*.so",)),
    (("flash-mla", "sgl-flash-mla"), ("flash_mla/*.so", "flash_mla_cuda*.so")),
    (("flashinfer-jit-cache", "flashinfer-python"), ("flashinfer/*.so", "flashinfer_jit_cache/*.so")),
    (("xformers",), ("xformers/*.so", "xformers/flash_attn_3/*.so")),
    (("deep-gemm", "sgl-deep-gemm"), ("deep_gemm/*.so", "deep_gemm_cpp*.so")),
    (("deep-ep", "sgl-deep-ep"), ("deep_ep/*.so", "deep_ep_cpp*.so")),
    (
        ("transformer-engine-torch", "transformer-engine-cu13", "transformer-engine-cu12", "transformer-engine"),
        ("transformer_engine_torch*.so", "transformer_engine/*.so", "transformer_engine/wheel_lib/libtransformer_engine.so"),
    ),
    (("tilelang",), ("tilelang/lib/libtilelang.so", "tilelang/lib/libtvm_*.so")),
)
"""Packages with compiled code for GPUs (the first installed name owns the files) and where it lies in site-packages.

Parts that a package can do without are left out (torchaudio's sox, torchvision's video reader): what they miss stops nobody."""

TORCH_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
TORCH_LOAD_ORDER = (
    "libtorch_global_deps.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libc10_cuda.so",
    "libcaffe2_nvrtc.so", "libtorch_nvshmem.so",
)  # fmt: skip

TORCH_SYMBOL = re.compile(r"_Z(?:T[VTIS]|GV)?N?[KVRO]*(?:3c10|2at|5torch|6caffe2)|aoti_torch_|torch_[a-z]|_Z\d+THP|THP[A-Z]")
CUDA_SYMBOLS = (
    (re.compile(r"cu[A-Z]"), "libcuda"),
    (re.compile(r"cuda[A-Z]|__cuda[A-Z]"), "libcudart"),
    (re.compile(r"p?nccl[A-Z]"), "libnccl"),
    (re.compile(r"cudnn[A-Z]"), "libcudnn"),
    (re.compile(r"cublasLt[A-Z]"), "libcublasLt"),
    (re.compile(r"cublas[A-Z]"), "libcublas"),
    (re.compile(r"nvrtc[A-Z]"), "libnvrtc"),
    (re.compile(r"nvshmem[a-z_]"), "libnvshmem_host"),
    (re.compile(r"(?:__)?nvJitLink"), "libnvJitLink"),
)
"""Which library a C symbol belongs to."""


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Sections libstdcxx, cuda_libraries, loader_hits and extensions."""
    with contextlib.ExitStack() as opened:
        node = survey(host, scope.target, opened)
        copies = tuple(cuda_libraries(node))
        hits = tuple(loader_hits(node, copies))
        return {
            "libstdcxx": libstdcxx(node),
            "cuda_libraries": known(copies, "file names, RECORD files of wheels"),
            "loader_hits": _of_torch(node, known(hits, "ELF headers of torch and the search order of ld.so")),
            "extensions": _of_target(node, known(tuple(extensions(node, hits)), "ELF headers")),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What every question of this probe needs: the target's directories and the state of the loader."""

    host: Host
    target: Target | None
    environment: Mapping[str, str]
    cache: Cache
    architecture: str
    configuration: Mapping[str, str]
    """Directories of /etc/ld.so.conf, with the file that names each."""
    installed: Mapping[str, Distribution]
    torch_lib: str
    """torch/lib of the first torch in site-packages, or empty."""
    wheel_files: Mapping[str, str]
    """File name to path, of what torch/lib, the NVIDIA wheels and bundled *.libs directories carry."""
    opened: contextlib.ExitStack
    files: dict[str, Elf | None] = field(default_factory=dict)
    of_torch: dict[str, bool] = field(default_factory=dict)
    """Symbols that were looked up in torch, and whether it has them: its extensions ask for the same ones."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The site-packages directories of the target."""
        return self.target.site_packages if self.target else ()

    def elf(self, path: str) -> Elf | None:
        """The opened ELF file, or None when it cannot be read as one."""
        if path not in self.files:
            try:
                self.files[path] = self.opened.enter_context(Elf(self.host, path))
            except (OSError, ElfError):
                self.files[path] = None
        return self.files[path]

    def find(self, soname: str, rpath: Sequence[str] = (), runpath: Sequence[str] = ()) -> tuple[str, str]:
        """Path and way by which the loader finds a soname, or two empty texts."""
        preloaded = self._preloaded(soname)
        if preloaded:
            return preloaded, "LD_PRELOAD"
        hits = search(
            self.host, soname, self.environment, rpath, runpath=runpath, cache=self.cache, architecture=self.architecture
        )  # fmt: skip
        return (hits[0].path, hits[0].via) if hits else ("", "")

    def _preloaded(self, soname: str) -> str:
        """A library of LD_PRELOAD answers to the soname inside it, whatever its file is called."""
        for entry in re.split(r"[\s:]+", self.environment.get("LD_PRELOAD", "")):
            if entry.startswith("/") and (library := self.elf(entry)) and library.soname == soname:
                return entry
        return ""


def survey(host: Host, target: Target | None, opened: contextlib.ExitStack) -> Node:
    """Read the loader's cache and list what is installed for the target."""
    architecture = architecture_of(host)
    sites = target.site_packages if target else ()
    torch_lib = next((f"{site}/torch/lib" for site in sites if host.is_directory(f"{site}/torch/lib")), "")
    return Node(
        host=host,
        target=target,
        environment=host.environment,
        cache=read_cache(host, architecture),
        architecture=architecture,
        configuration=configuration(host),
        installed={distribution.name: distribution for distribution in distributions(host, sites)},
        torch_lib=torch_lib,
        wheel_files={
            os.path.basename(path): path for directory in reversed(wheel_directories(host, sites)) for path in _files(host, directory)
        },
        opened=opened,
    )


def wheel_directories(host: Host, sites: Iterable[str]) -> tuple[str, ...]:
    """Library directories inside site-packages."""
    patterns = ("torch/lib", "nvidia/*/lib", "nvidia/*/lib64", "*.libs", "tensorrt_libs")
    return tuple(found for site in sites for pattern in patterns for found in host.glob(f"{site}/{pattern}"))


# --- copies on disk ---------------------------------------------------------------------------------------------------


def cuda_libraries(node: Node) -> Iterator[CudaLibrary]:
    """Every copy of a CUDA library in wheels, toolkits, system directories, conda environments and LD_LIBRARY_PATH."""
    host = node.host
    owners = dict(_owned_files(node))
    seen: set[str] = set()
    for directory, origin in _library_directories(node):
        for path in _files(host, directory):
            if not family_of(os.path.basename(path)):
                continue
            real = host.real_path(path)
            if real in seen:
                continue
            seen.add(real)
            yield _library(node, path, real, origin, owners)


def owned_copies(host: Host, target: Target) -> dict[str, CudaLibrary]:
    """Each CUDA library on disk, by its real path."""
    with contextlib.ExitStack() as opened:
        return {host.real_path(copy.path): copy for copy in cuda_libraries(survey(host, target, opened))}


def _library_directories(node: Node) -> Iterator[tuple[str, str]]:
    host = node.host
    for directory in wheel_directories(host, node.sites):
        yield directory, "wheel" if "/nvidia/" in directory else "bundled"
    for prefix in dict.fromkeys([node.target.prefix, node.target.base_prefix] if node.target else []):
        if host.is_directory(f"{prefix}/conda-meta"):
            yield f"{prefix}/lib", "conda"
    homes = [node.environment.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in dict.fromkeys([*(home.rstrip("/") for home in homes if home.startswith("/")), *host.glob("/usr/local/cuda*")]):
        yield f"{home}/lib64", "toolkit"
        for directory in host.glob(f"{home}/targets/*/lib"):
            yield directory, "toolkit"
    triplet = f"{node.architecture}-linux-gnu"
    for directory in (f"/usr/lib/{triplet}", f"/lib/{triplet}", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"):
        yield directory, "system"
    for directory in library_path_directories(node.environment, node.architecture):
        yield directory, "toolkit" if re.search(r"/cuda[^/]*/", f"{directory}/") else "system"


def _library(node: Node, path: str, real: str, origin: str, owners: Mapping[str, Sequence[tuple[str, str, int | None]]]) -> CudaLibrary:
    name, real_name = os.path.basename(path), os.path.basename(real)
    package, version = _owner(node.host, real, owners.get(real) or owners.get(path) or ())
    if origin == "bundled":
        package = _bundling_package(node, path)
    elif origin == "system":
        package = _debian_package(node.host, real_name)
    return CudaLibrary(
        family=family_of(name),
        soname=soname_in_name(real_name),
        path=_shown(node, path),
        version=version or version_in_name(real_name),
        origin=origin,
        package=package,
        cuda_major=_cuda_major(real, real_name, package),
    )


def _owned_files(node: Node) -> Iterator[tuple[str, list[tuple[str, str, int | None]]]]:
    """Libraries that NVIDIA wheels say they own: path to (package, version, size in bytes) of each owner."""
    owners: dict[str, list[tuple[str, str, int | None]]] = {}
    for distribution in node.installed.values():
        if distribution.name.startswith("nvidia-"):
            for entry in record_of(node.host, distribution):
                if family_of(os.path.basename(entry.path)):
                    path = os.path.normpath(f"{distribution.site}/{entry.path}")
                    owners.setdefault(path, []).append((distribution.name, distribution.version, entry.size_bytes))
    yield from owners.items()


def _owner(host: Host, path: str, claims: Sequence[tuple[str, str, int | None]]) -> tuple[str, str]:
    """Package and version that a wheel's library comes from, by the recorded size; a file of another size was replaced by somebody."""
    try:
        size = host.status(path).st_size
    except OSError:
        size = -1
    fitting = [claim for claim in claims if claim[2] in (size, None)]
    if len(fitting) == 1:
        return fitting[0][0], fitting[0][1]
    return ", ".join(claim[0] for claim in claims), ""


def _bundling_package(node: Node, path: str) -> str:
    site = next((site for site in node.sites if path.startswith(f"{site}/")), "")
    top = path[len(site) + 1 :].partition("/")[0].removesuffix(".libs").removesuffix("_libs")
    return re.sub(r"[-_.]+", "-", top).lower()


def _debian_package(host: Host, real_name: str) -> str:
    """The Debian package of a system library, by its file list; looked for only under the names such packages have."""
    stem = re.sub(r"_\w+$", "", real_name.partition(".so")[0])
    for listing in host.glob(f"/var/lib/dpkg/info/{stem.lower()}[0-9]*.list"):
        try:
            if f"/{real_name}\n" in host.read_text(listing):
                return os.path.basename(listing).removesuffix(".list").partition(":")[0]
        except OSError:
            continue
    return ""


def _cuda_major(real: str, real_name: str, package: str) -> int | None:
    """The CUDA major version that a copy belongs to, where a name tells it."""
    by_soname = re.fullmatch(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)(?:[-.][0-9a-f]{8})?\.so\.(\d+)[.\d]*", real_name)
    named = by_soname or re.search(r"-(?:cu|cuda-)(\d+)$", package) or re.search(r"/(?:cu|cuda-)(\d+)(?:\.\d+)?/", real)
    return int(named[1]) if named else None


# --- what the loader would take ---------------------------------------------------------------------------------------


def loader_hits(node: Node, copies: Iterable[CudaLibrary]) -> Iterator[LoaderHit]:
    """Where each CUDA library that torch's own libraries need would be found, and each sub-library that cuDNN opens by itself.

    torch's wheels carry DT_RPATH, that beats LD_LIBRARY_PATH; libcudnn.so.9 of many releases carries DT_RUNPATH, that does not: then the
    front comes from the wheel and its sub-libraries from the system (seen on an H200 node with LD_DEBUG=libs).
    """
    versions = {node.host.real_path(copy.path): copy.version for copy in copies}
    interpreter = node.elf(node.target.path) if node.target else None
    base = _expanded(node, interpreter.rpath, node.target.path) if interpreter and node.target else ()
    seen: set[str] = set()
    for name in TORCH_LOAD_ORDER if node.torch_lib else ():
        asker = node.elf(f"{node.torch_lib}/{name}")
        for soname in _needed(asker):
            family = family_of(soname)
            if asker is None or not family or soname in seen:
                continue
            seen.add(soname)
            hit = _hit(node, asker, soname, base, versions)
            if hit is None:
                continue
            yield hit
            if family == "cudnn":
                yield from _opened_by_cudnn(node, hit, base, versions)


def _opened_by_cudnn(node: Node, cudnn: LoaderHit, base: tuple[str, ...], versions: Mapping[str, str]) -> Iterator[LoaderHit]:
    front = node.elf(cudnn.path)
    major = cudnn.soname.rpartition(".")[2]
    if front is None:
        return
    for path in node.host.glob(f"{os.path.dirname(cudnn.path)}/libcudnn_*.so.{major}"):
        hit = _hit(node, front, os.path.basename(path), base, versions)
        if hit is not None:
            yield hit


def _hit(node: Node, asker: Elf, soname: str, base: tuple[str, ...], versions: Mapping[str, str]) -> LoaderHit | None:
    rpath, runpath = _search_paths(node, asker)
    path, via = node.find(soname, (*rpath, *base), runpath)
    is_of_python = via == "RPATH" and node.target is not None and os.path.dirname(path) in base and os.path.dirname(path) not in rpath
    if not path and soname in node.wheel_files:
        path, via = node.wheel_files[soname], "site-packages"  # torch opens the wheels' libraries itself when the loader fails
    if not path:
        return None
    real = node.host.real_path(path)
    return LoaderHit(
        family=family_of(soname),
        soname=soname,
        path=_shown(node, path),
        via=via,
        asked_by=os.path.basename(node.target.path if is_of_python and node.target else asker.path),
        configured_by=node.configuration.get(os.path.dirname(path), "") if via == "ld.so.cache" else "",
        version=versions.get(real) or version_in_name(os.path.basename(real)),
    )


def _search_paths(node: Node, asker: Elf) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """RPATH and RUNPATH of the library that asks, expanded; its RPATH counts only when it has no RUNPATH."""
    try:
        rpath, runpath = asker.rpath, asker.runpath
    except ElfError:
        return (), ()
    return (() if runpath else _expanded(node, rpath, asker.path)), _expanded(node, runpath, asker.path)


def _expanded(node: Node, entries: Iterable[str], path: str) -> tuple[str, ...]:
    origin = os.path.dirname(path)
    return tuple(os.path.normpath(expand(entry, origin=origin, architecture=node.architecture)) for entry in entries)


# --- compiled extensions ----------------------------------------------------------------------------------------------


def extensions(node: Node, hits: Iterable[LoaderHit]) -> Iterator[Extension]:
    """Each compiled extension of an installed kernel package, with what it asks for and does not get."""
    loaded = {hit.soname: hit.path for hit in hits}
    sees_libc = bool(node.find("libc.so.6")[0])
    for names, paths in extension_files(node.host, node.sites):
        owner = next((node.installed[name] for name in names if name in node.installed), None) or _holder(node, paths)
        for path in paths:
            library = node.elf(path)
            if library is not None:
                with contextlib.suppress(ElfError):
                    yield _extension(node, library, owner.name if owner else names[0], owner.version if owner else "", loaded, sees_libc)


def extension_files(host: Host, sites: Iterable[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The compiled extensions that are there, by the names of the packages that may own them."""
    for names, patterns in EXTENSIONS:
        paths = tuple(path for site in sites for pattern in patterns for path in _matching(host, site, pattern))
        if paths:
            yield names, paths


def _holder(node: Node, paths: Sequence[str]) -> Distribution | None:
    """The installed package that says it owns one of these files under another name: SGLang's kernels bring a deep_gemm along."""
    for distribution in node.installed.values():
        if MAY_SHARE_FILES.fullmatch(distribution.name) and not distribution.name.startswith("nvidia-"):
            owned = {entry.path for entry in record_of(node.host, distribution) if ".so" in entry.path}
            if any(path.removeprefix(f"{distribution.site}/") in owned for path in paths):
                return distribution
    return None


def _matching(host: Host, site: str, pattern: str) -> tuple[str, ...]:
    if "*" in pattern:
        return host.glob(f"{site}/{pattern}")
    return (f"{site}/{pattern}",) if host.exists(f"{site}/{pattern}") else ()


def _extension(node: Node, library: Elf, package: str, version: str, loaded: Mapping[str, str], sees_libc: bool) -> Extension:
    providers = {soname: _provider(node, library, soname, loaded) for soname in library.needed}
    versions = [name for _, name in library.versions_needed()]
    cudart = next((match for soname in library.needed if (match := re.fullmatch(r"libcudart[.\w]*\.so\.(\d+)[.\d]*", soname))), None)
    # Where not even the C library is found, the loader's configuration is unknown and nothing can be called missing.
    missing = tuple(soname for soname, path in providers.items() if not path) if sees_libc else ()
    return Extension(
        package=package,
        package_version=version,
        path=library.path,
        needed=library.needed,
        missing_libraries=missing,
        missing_symbols=tuple(_missing_symbols(node, library, package, providers)),
        highest_glibc=highest(versions, "GLIBC"),
        highest_glibcxx=highest(versions, "GLIBCXX"),
        cuda_major=int(cudart[1]) if cudart else None,
        gpu_targets=() if package == "torch" else _gpu_targets(library),  # torch says its own when it is imported
    )


def _gpu_targets(library: Elf) -> tuple[str, ...]:
    try:
        return gpu_targets(library)
    except ElfError:
        return ()


def _provider(node: Node, library: Elf, soname: str, loaded: Mapping[str, str]) -> str:
    """Path of the library that would answer to a needed soname once torch is loaded, or empty."""
    beside = f"{os.path.dirname(library.path)}/{soname}"
    in_torch = f"{node.torch_lib}/{soname}"
    if soname.startswith(("libtorch", "libc10")) and node.torch_lib:
        return in_torch if node.host.exists(in_torch) else beside if node.host.exists(beside) else ""
    if soname in loaded:
        return loaded[soname]
    rpath, runpath = _search_paths(node, library)
    found, _ = node.find(soname, rpath, runpath)
    return found or node.wheel_files.get(soname, "") or (beside if node.host.exists(beside) else "")


def _missing_symbols(node: Node, library: Elf, package: str, providers: Mapping[str, str]) -> Iterator[MissingSymbol]:
    """Undefined symbols of torch or CUDA that the library which would be loaded does not export, the first twenty."""
    torch = [] if package == "torch" else [node.elf(f"{node.torch_lib}/{name}") for name in TORCH_LIBRARIES if node.torch_lib]
    torch_libraries = [opened for opened in torch if opened is not None]
    # libtorch_cpu first: most symbols are its own.
    torch_libraries.sort(key=lambda opened: "libtorch_cpu" not in opened.path)
    left = SYMBOLS_PER_EXTENSION
    for symbol in library.undefined():
        provider = _missing_from(node, symbol, torch_libraries, providers)
        if provider:
            yield MissingSymbol(symbol=symbol, provider=provider, readable=readable(symbol))
            left -= 1
            if not left:
                return


def _missing_from(node: Node, symbol: str, torch_libraries: Sequence[Elf], providers: Mapping[str, str]) -> str:
    """The library that should export the symbol and does not, or empty; a library that was not found says nothing."""
    if TORCH_SYMBOL.match(symbol):
        if not torch_libraries:
            return ""
        if symbol not in node.of_torch:
            node.of_torch[symbol] = any(opened.exports(symbol) for opened in torch_libraries)
        return "" if node.of_torch[symbol] else torch_provider(symbol)
    stem = next((stem for pattern, stem in CUDA_SYMBOLS if pattern.match(symbol)), "")
    path = next((path for soname, path in providers.items() if stem and soname.startswith(f"{stem}.so") and path), "")
    opened = node.elf(path) if path else None
    return stem if opened is not None and not opened.exports(symbol) else ""


def torch_provider(symbol: str) -> str:
    """The library of torch that a symbol belongs to, by its namespace."""
    if "THP" in symbol:
        return "libtorch_python"
    if "3c104cuda" in symbol:
        return "libc10_cuda"
    if re.match(r"_Z(?:T[VTIS]|GV)?N?[KVRO]*3c10", symbol):
        return "libc10"
    return "libtorch_cuda" if "2at4cuda" in symbol or symbol.startswith("aoti_torch_cuda") else "libtorch_cpu"


def readable(symbol: str) -> str:
    """The nested name inside an Itanium-mangled symbol (c10::cuda::SetDevice), or empty where it has another form."""
    start = re.match(r"_Z(?:T[VTIS]|GV)?N[KVRO]*(?=\d)", symbol)
    parts = []
    place = start.end() if start else len(symbol)
    while length := re.match(r"\d+", symbol[place:]):
        place += length.end()
        parts.append(symbol[place : place + int(length[0])])
        place += int(length[0])
    return "::".join(parts)


# --- the C++ library --------------------------------------------------------------------------------------------------


def libstdcxx(node: Node) -> Section[tuple[Libstdcxx, ...]]:
    """The copies of libstdc++.so.6 that a process here may load, the one a plain process takes first."""
    hits = search(node.host, "libstdc++.so.6", node.environment, cache=node.cache, architecture=node.architecture)
    prefixes = [node.environment.get("CONDA_PREFIX", ""), *([node.target.prefix, node.target.base_prefix] if node.target else [])]
    conda = [prefix for prefix in dict.fromkeys(prefixes) if prefix.startswith("/") and node.host.is_directory(f"{prefix}/conda-meta")]
    candidates = [(hit.path, "conda" if any(hit.path.startswith(f"{prefix}/") for prefix in conda) else "system") for hit in hits]
    candidates += [(f"{prefix}/lib/libstdc++.so.6", "conda") for prefix in conda]
    candidates += [(path, "wheel") for name, path in node.wheel_files.items() if name.startswith("libstdc++")]
    found: dict[str, Libstdcxx] = {}
    for path, origin in candidates:
        library = node.elf(path)
        if library is not None:
            with contextlib.suppress(ElfError):
                version = highest(library.versions_defined(), "GLIBCXX")
                found.setdefault(node.host.real_path(path), Libstdcxx(path=path, highest_glibcxx=version, origin=origin))
    return known(tuple(found.values()), "ELF headers") if found else absent("no libstdc++.so.6 was found")


# --- small parts ------------------------------------------------------------------------------------------------------


def _shown(node: Node, path: str) -> str:
    """The real file; inside site-packages the path there, since package managers may link it from a cache."""
    return path if any(path.startswith(f"{site}/") for site in node.sites) else node.host.real_path(path)


def _of_target(node: Node, section: Section[Any]) -> Section[Any]:
    if node.target is None:
        return not_asked("no target interpreter")
    return section if node.sites else not_asked("the site-packages directory of the target was not found")


def _of_torch(node: Node, section: Section[Any]) -> Section[Any]:
    if node.target is not None and node.sites and not node.torch_lib:
        return absent("torch is not installed for this interpreter")
    return _of_target(node, section)


def _needed(library: Elf | None) -> tuple[str, ...]:
    try:
        return library.needed if library else ()
    except ElfError:
        return ()


def _files(host: Host, directory: str) -> tuple[str, ...]:
    try:
        return tuple(f"{directory}/{name}" for name in host.list_directory(directory) if ".so" in name)
    except OSError:
        return ()
