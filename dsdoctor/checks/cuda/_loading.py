"""Which copy of a CUDA library torch takes, whether it is its own, and what led the loader to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsdoctor.facts import CudaLibrary, EnvironmentVariable, LoaderHit, MappedLibrary, Section
from dsdoctor.findings import Evidence
from dsdoctor.record import dataclass
from dsdoctor.versions import LibraryVersion

LD_SO = "ld.so(8): the order of the dynamic linker — https://man7.org/linux/man-pages/man8/ld.so.8.html"
SITE = re.compile(r".*/(?:site|dist)-packages/")
PYTHON = re.compile(r"python[\d.]*t?")
SYSTEM_FOLDER = re.compile(r"(?:/usr)?/lib(?:64|/[a-z0-9_]+-linux-gnu)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A library that torch loaded or would load."""

    soname: str
    path: str
    version: str
    via: str
    asked_by: str
    is_mapped: bool
    configured_by: str = ""

    @property
    def folder(self) -> str:
        """The directory of the file."""
        return self.path.rpartition("/")[0]

    @property
    def verb(self) -> str:
        """How sure it is: 'is loaded' was seen, 'would be loaded' follows from the order of the loader."""
        return "is loaded" if self.is_mapped else "would be loaded"

    @property
    def evidence(self) -> Evidence:
        """Where it was read."""
        how = f" (through {self.via}{f', asked for by {self.asked_by}' if self.asked_by else ''})" if self.via else ""
        section = "mapped_libraries" if self.is_mapped else "loader_hits"
        return Evidence(where=f"{section}[{self.soname}]", value=f"{self.path}{f' = {self.version}' if self.version else ''}{how}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What led the loader to a folder."""

    text: str
    case: str
    """The case of the remedies: variable, preload, ldconfig, rpath or conda; empty when it is not known."""
    folder: str


def own_copies(copies: Iterable[CudaLibrary]) -> tuple[CudaLibrary, ...]:
    """The copies that belong to torch: those of NVIDIA's wheels and of torch/lib; where there are none, those of conda."""
    found = tuple(copies)
    wheels = tuple(copy for copy in found if copy.origin == "wheel" or (copy.origin == "bundled" and copy.package == "torch"))
    return wheels or tuple(copy for copy in found if copy.origin == "conda")


def used_libraries(
    family: str, loader_hits: Section[tuple[LoaderHit, ...]], mapped_libraries: Section[tuple[MappedLibrary, ...]]
) -> tuple[Used, ...]:
    """The copies that torch takes: as mapped where they were, else as the loader would find them."""
    hits = {hit.soname: hit for hit in loader_hits.value or () if hit.family == family}
    mapped = [item for item in mapped_libraries.value or () if item.family == family]
    seen = []
    for item in mapped:
        hit = hits.get(item.soname)
        same = hit is not None and hit.path == item.path
        seen.append(
            Used(
                soname=item.soname,
                path=item.path,
                version=item.version or (hit.version if same and hit else ""),
                via=hit.via if same and hit else "",
                asked_by=hit.asked_by if same and hit else "",
                configured_by=hit.configured_by if same and hit else "",
                is_mapped=True,
            )
        )
    names = {item.soname for item in mapped}
    for soname, hit in hits.items():
        if soname not in names:
            seen.append(
                Used(
                    soname=soname,
                    path=hit.path,
                    version=hit.version,
                    via=hit.via,
                    asked_by=hit.asked_by,
                    is_mapped=False,
                    configured_by=hit.configured_by,
                )
            )
    return tuple(seen)


def is_own(used: Used, own: Sequence[CudaLibrary], copies: Iterable[CudaLibrary]) -> bool:
    """Whether a copy that torch takes is one of its own.

    /proc/self/maps has links followed, so the folder of an environment may have another name there: then the part below site-packages
    and the version decide.
    """
    exact = next((copy for copy in copies if copy.path == used.path), None)
    if exact is not None:
        return exact in own
    for copy in own:
        below = SITE.sub("", copy.path)
        if below != copy.path and used.path.endswith(f"/{below}") and relation(copy.version, used.version) in ("same", "unknown"):
            return True
    return False


def relation(wanted: str, found: str) -> str:
    """How the second version stands to the first: same, older, newer or unknown; equal as far as the shorter one goes is the same."""
    first, second = LibraryVersion.parse(wanted), LibraryVersion.parse(found)
    if first is None or second is None:
        return "unknown"
    if first.same_as(second):
        return "same"
    return "older" if second < first else "newer"


def entry_of(used: Used, environment: Section[tuple[EnvironmentVariable, ...]]) -> Entry:
    """The variable, search path or configuration that led to this copy."""
    variables = {item.name: item.value for item in environment.value or ()}
    for preload in re.split(r"[\s:]+", variables.get("LD_PRELOAD", "")):
        if preload and (used.via == "LD_PRELOAD" or preload == used.path) and preload.rpartition("/")[2].partition(".so")[0] in used.path:
            return Entry(text=f"LD_PRELOAD={preload}", case="preload", folder=preload.rpartition("/")[0])
    listed = [item for item in variables.get("LD_LIBRARY_PATH", "").split(":") if item.startswith("/")]
    named = next((item for item in listed if _plain(item) == _plain(used.folder)), "")
    if not named and used.via == "LD_LIBRARY_PATH" and len(listed) == 1:
        named = listed[0]
    if named and used.via in ("", "LD_LIBRARY_PATH"):
        return Entry(text=f"{named} in LD_LIBRARY_PATH", case="variable", folder=named)
    if used.via in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        value = variables.get(used.via, "")
        case = "preload" if used.via == "LD_PRELOAD" else "variable"
        return Entry(text=f"{used.via}{f'={value}' if value else ''}", case=case, folder=used.folder)
    if used.via == "ld.so.preload":
        return Entry(text="/etc/ld.so.preload", case="preload", folder=used.folder)
    if used.via == "RPATH" and PYTHON.fullmatch(used.asked_by):
        return Entry(text=f"the RPATH of {used.asked_by}, as conda builds it,", case="conda", folder=used.folder)
    if used.via in ("RPATH", "RUNPATH"):
        return Entry(text=f"the {used.via} of {used.asked_by or 'the library that asks'}", case="rpath", folder=used.folder)
    if used.via in ("ld.so.cache", "default-directory") or SYSTEM_FOLDER.fullmatch(used.folder):
        named_in = f"{used.configured_by} (read by ldconfig)" if used.configured_by else ""
        return Entry(text=named_in or "the configuration of the system's loader (ldconfig)", case="ldconfig", folder=used.folder)
    return Entry(text="", case="", folder=used.folder)


def naming_variable(path: str, environment: Section[tuple[EnvironmentVariable, ...]]) -> str:
    """'LD_LIBRARY_PATH' or 'LD_PRELOAD' when it names the folder of a copy, else empty."""
    variables = {item.name: item.value for item in environment.value or ()}
    if path in re.split(r"[\s:]+", variables.get("LD_PRELOAD", "")):
        return "LD_PRELOAD"
    folder = _plain(path.rpartition("/")[0])
    return "LD_LIBRARY_PATH" if folder in map(_plain, variables.get("LD_LIBRARY_PATH", "").split(":")) else ""


def copy_evidence(copy: CudaLibrary) -> Evidence:
    """A copy on disk: path, version, and whose it is."""
    whose = copy.package or copy.origin
    return Evidence(where=f"cuda_libraries[{copy.soname}]", value=f"{copy.path} = {copy.version or 'version not known'} ({whose})")


def described(copy: CudaLibrary) -> str:
    """'9.19.0.56 (nvidia-cudnn-cu13)'."""
    whose = copy.package or copy.origin
    return f"{copy.version} ({whose})" if copy.version else f"that of {whose}"


def _plain(folder: str) -> str:
    """A folder without what merged-/usr systems write in two ways."""
    bare = folder.rstrip("/")
    return bare.removeprefix("/usr") if bare.startswith("/usr/lib") else bare
