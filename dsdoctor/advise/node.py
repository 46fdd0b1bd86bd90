"""The node that a stack is sought for: what is known of it, from options or from facts."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsdoctor.errors import UsageError, unknown_name
from dsdoctor.rows import DriverBranches, GpuProduct, Gpus, Torch
from dsdoctor.versions import ComputeCapability, DriverVersion, LibraryVersion

if TYPE_CHECKING:
    from dsdoctor.facts import Sections

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_PYTHON = re.compile(r"(?:cp|py|python)?3\.?(\d{1,2})(?:\.\d+)?(t?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as far as it matters for a stack; None or empty: not known, and then no constraint."""

    gpu: str = ""
    """Name of the product, or of the capability where no product is known."""
    capability: ComputeCapability | None = None
    product_class: str = ""
    driver: DriverVersion | None = None
    glibc: LibraryVersion | None = None
    python: str = ""
    """3.12, or 3.13t for a free-threaded one."""
    architecture: str = ""
    """x86_64 or aarch64; empty: x86_64 is assumed."""
    wsl: bool = False
    forward_compat: bool = False
    """Whether a cuda-compat package is put beside the driver."""
    notes: tuple[str, ...] = ()
    """What was assumed, or could not be read."""


def python_of(text: str, torch: Torch) -> str:
    """The Python version in a text such as 3.12, cp312 or 3.13.5; UsageError for what no wheel was ever built for."""
    found = _PYTHON.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--python takes a version such as 3.12, or the path of an interpreter; '{text}' is neither")
    version = f"3.{int(found[1])}{found[2]}"
    newest = max(int(tag[3:].rstrip("t")) for row in torch.releases for tag in (row.x86_64.pythons if row.x86_64 else ()))
    if int(found[1]) > newest:
        raise UsageError(f"Python {version} is newer than this knowledge ({torch.seen}); the newest with wheels is 3.{newest}")
    return version


def driver_of(text: str) -> DriverVersion:
    """The driver version in a text such as 535.129.03 or R580."""
    driver = DriverVersion.parse(text)
    if driver is None:
        raise UsageError(f"--driver takes a version such as 580.159.04, or a branch such as 580; '{text}' is none")
    return driver


def glibc_of(text: str) -> LibraryVersion:
    """The glibc version in a text such as 2.31."""
    version = LibraryVersion.parse(text.strip().removeprefix("glibc").strip())
    if version is None or version.major != 2:
        raise UsageError(f"--glibc takes a version such as 2.31; '{text}' is none")
    return version


def architecture_of(text: str) -> str:
    """x86_64 or aarch64, by whatever name."""
    if text.lower() not in ARCHITECTURES:
        raise unknown_name("processor architecture", text, ("x86_64", "aarch64"))
    return ARCHITECTURES[text.lower()]


def gpu_of(text: str, gpus: Gpus) -> tuple[str, ComputeCapability, str]:
    """Name, capability and product class of a GPU that a user names: 'H100 SXM', 'RTX 4090', '9.0', sm_90."""
    bare = " ".join(text.split()).removeprefix("NVIDIA ")
    capability = ComputeCapability.parse(bare.lower())
    if capability is not None:
        return _by_capability(text, capability, gpus)
    product = find_product(bare, gpus)
    if product is None or product.capability is None:
        names = {row.product.lower(): row.product for row in gpus.products}
        words = re.findall(r"[a-z]*\d+[a-z]*", bare.lower())
        near = [names[name] for name in difflib.get_close_matches(bare.lower(), names, n=3, cutoff=0.5)]
        near += [row.product for row in gpus.products if any(word in row.product.lower().split() for word in words)]
        hint = f"did you mean {' or '.join(dict.fromkeys(near[:3]))}?" if near else "a compute capability such as 9.0 does as well."
        raise UsageError(f"unknown GPU '{text}': {hint} It may be newer than this knowledge ({gpus.seen})")
    return bare, product.capability, product.product_class


def find_product(name: str, gpus: Gpus) -> GpuProduct | None:
    """The product of a name as NVML prints it, or as people shorten it."""
    for form in (name, f"GeForce {name}", f"Tesla {name}"):
        found = next((row for row in gpus.products if re.fullmatch(row.name_regex, form, re.IGNORECASE)), None)
        if found:
            return found
    starts = [row for row in gpus.products if row.product.lower().startswith((f"{name.lower()} ", f"{name.lower()}-"))]
    inside = [row for row in gpus.products if f"({name.lower()})" in row.product.lower() or row.product.lower() == name.lower()]
    return next(iter([*inside, *starts]), None)


def _by_capability(text: str, capability: ComputeCapability, gpus: Gpus) -> tuple[str, ComputeCapability, str]:
    known = sorted({found for row in gpus.targets if (found := ComputeCapability.parse(row.target.rstrip("af")))})
    if capability not in known:
        if capability > known[-1]:
            raise UsageError(f"compute capability {capability} is newer than this knowledge ({gpus.seen}), whose newest is {known[-1]}")
        raise unknown_name("compute capability", text, [str(item) for item in known])
    return f"GPU of compute capability {capability}", capability, ""


def node_from_facts(sections: Sections, gpus: Gpus) -> Node:
    """The node that facts describe; of several kinds of GPU the oldest counts."""
    notes: list[str] = []
    platform, libc, interpreter = sections.platform.value, sections.libc.value, sections.interpreter.value
    architecture = ARCHITECTURES.get(platform.architecture if platform else "", "")
    driver_text = next(
        (text for text in (
            sections.nvml_versions.value.driver if sections.nvml_versions.value else "",
            sections.kernel_driver.value.version if sections.kernel_driver.value else "",
        ) if text), "",
    )  # fmt: skip
    driver = DriverVersion.parse(driver_text)
    if driver is None:
        notes.append("no NVIDIA driver was found here: the answer holds for any driver that meets `needs`; name one with --driver")
    cards = [(capability, gpu.name) for gpu in sections.gpus.value or () if (capability := ComputeCapability.parse(gpu.compute_capability))]
    name, capability, product_class = "", None, ""
    if cards:
        capability, name = min(cards)
        name = name.removeprefix("NVIDIA ")
        product = gpus.product(name)
        product_class = product.product_class if product else ""
        if len({card for card, _ in cards}) > 1:
            notes.append(f"GPUs of several kinds are here; the answer is for the oldest, {name}")
    else:
        notes.append("no GPU could be read here: the answer holds for any GPU; name one with --gpu")
    glibc = LibraryVersion.parse(libc.version) if libc and libc.family == "glibc" else None
    if libc and libc.family != "glibc":
        notes.append(f"the C library here is {libc.family}, for which no wheels of the stack exist; the answer is for a glibc image")
    python = ""
    if interpreter is not None:
        found = _PYTHON.fullmatch(interpreter.abi_tag) or _PYTHON.match(interpreter.version)
        python = f"3.{int(found[1])}{found[2]}" if found else ""
    return Node(
        gpu=name, capability=capability, product_class=product_class, driver=driver, glibc=glibc, python=python,
        architecture=architecture, wsl=sections.wsl.value is not None, notes=tuple(notes),
    )  # fmt: skip


def is_python_version(text: str) -> bool:
    """Whether a text names a version, not the path of an interpreter."""
    return "/" not in text and _PYTHON.fullmatch(text.strip()) is not None


def node_from_options(gpu: str, driver: str, glibc: str, architecture: str, gpus: Gpus) -> Node:
    """The node that a user describes; what is not said is no constraint."""
    name, capability, product_class = gpu_of(gpu, gpus) if gpu else ("", None, "")
    return Node(
        gpu=name, capability=capability, product_class=product_class, driver=driver_of(driver) if driver else None,
        glibc=glibc_of(glibc) if glibc else None, architecture=architecture_of(architecture) if architecture else "",
    )  # fmt: skip


def with_python(node: Node, version: str) -> Node:
    """The node with this Python, where one is known."""
    return replace(node, python=version) if version else node


def described(node: Node, branches: DriverBranches) -> str:
    """The node in one line."""
    native = branches.native_cuda(node.driver) if node.driver else None
    parts = [
        f"{node.gpu}{f' ({node.capability})' if node.capability and str(node.capability) not in node.gpu else ''}"
        if node.gpu
        else "any GPU",
        f"driver {node.driver}{f' (CUDA {native})' if native else ''}" if node.driver else "any driver",
        f"Python {node.python}" if node.python else "any Python",
        f"glibc {node.glibc}" if node.glibc else "any glibc",
        node.architecture or "x86_64 (assumed)",
        *(["WSL"] if node.wsl else []),
    ]
    return ", ".join(parts)
