"""What the dynamic loader finds: `ldconfig -p`, `ldd`, and `ls -l` of driver libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsdoctor.facts import CudaLibrary, DriverLibrary, LoaderHit
from dsdoctor.sources.loader import CACHE_LABELS, parse_ldconfig
from dsdoctor.sources.texts import family_of, soname_in_name, version_in_name, version_of
from dsdoctor.sources.triage.fact import Fact, Found, Parser
from dsdoctor.sources.triage.lines import Line

DRIVER_SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libcudadebugger.so.1")
_LDD = re.compile(r"\s{0,20}(lib[\w+.-]{1,80}\.so(?:\.\d{1,5}){0,4}) => (/\S{1,400})(?: \(0x[0-9a-f]{1,16}\))?\s*$")
_LISTED = re.compile(
    r"[-l][rwxst-]{9}\S{0,2}\s.{0,120}?((?:/\S{0,300}/)?lib(?:cuda|nvidia-ml)\.so\.1) -> (\S{0,300}lib(?:cuda|nvidia-ml)\.so[.\d]{1,24})\s*$"
)


def _ldconfig(lines: Sequence[Line]) -> Iterator[Found]:
    seen: set[str] = set()
    for line in lines:
        text = line.text
        if "=> /" not in text or " (" not in text:
            continue
        for architecture in CACHE_LABELS:
            for soname, paths in parse_ldconfig(text, architecture).items():
                for path in paths:
                    yield from _library(soname, path, line, "ldconfig -p", "ld.so.cache", is_first=soname not in seen)
                seen.add(soname)


def _ldd(lines: Sequence[Line]) -> Iterator[Found]:
    for line in lines:
        text = line.text
        if " => /" in text and " (libc6" not in text and (found := _LDD.match(text)):
            yield from _library(found[1], found[2], line, "ldd", "ldd", is_first=True)
        elif " -> " in text and (link := _LISTED.match(text)):
            soname, target = link[1].rpartition("/")[2], link[2]
            directory = link[1].rpartition("/")[0]
            path = target if target.startswith("/") or not directory else f"{directory}/{target}"
            yield _driver_library(soname, path, "ls -l", line, is_first=False)


def _library(soname: str, path: str, line: Line, format: str, via: str, *, is_first: bool) -> Iterator[Found]:
    name = path.rpartition("/")[2]
    if soname in DRIVER_SONAMES:
        yield _driver_library(soname, path, via, line, is_first=is_first)
        return
    family = family_of(name) or family_of(soname)
    if not family or "." not in soname.partition(".so")[2]:
        return
    major = int(soname.rpartition(".")[2]) if family in ("cudart", "cublas", "cublaslt", "nvrtc") else None
    copy = CudaLibrary(
        family=family, soname=soname_in_name(soname), path=path, version=version_in_name(name), origin=origin_of(path), cuda_major=major
    )
    yield Fact("cuda_libraries", "", copy, line, path, format)
    if is_first and via == "ldd":
        hit = LoaderHit(family=family, soname=soname_in_name(soname), path=path, via=via, version=version_in_name(name))
        yield Fact("loader_hits", "", hit, line, soname, format)


def _driver_library(soname: str, path: str, via: str, line: Line, *, is_first: bool) -> Fact:
    record = DriverLibrary(soname=soname, path=path, version=version_of(path), kind=kind_of(path), found_via=via, loaded_first=is_first)
    return Fact("driver_libraries", "", record, line, path, "linker")


def kind_of(path: str) -> str:
    """driver, compat, stub or wsl, by the directory of a copy."""
    parts = path.split("/")[:-1]
    if "stubs" in parts:
        return "stub"
    if any(part == "compat" or part.startswith("cuda-compat") for part in parts):
        return "compat"
    return "wsl" if path.startswith("/usr/lib/wsl/") else "driver"


def origin_of(path: str) -> str:
    """wheel, conda, toolkit or system, by the path of a copy."""
    if "/site-packages/" in path or "/dist-packages/" in path:
        return "wheel"
    if re.search(r"/(?:mini|ana|mamba)\w*/|/envs/|/conda/", path):
        return "conda"
    return "toolkit" if re.match(r"/(?:usr/local|opt)/cuda", path) else "system"


PARSERS = (
    Parser("ldconfig -p", ("=> /",), _ldconfig),
    Parser("ldd", (" => /", "libcuda.so.1 -> ", "libnvidia-ml.so.1 -> "), _ldd),
)
