"""Whether a container image starts on a node: by the condition that NVIDIA's images carry, or by the CUDA version in its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dsdoctor.advise.catalogue import Catalogue, Ground, Shelf
from dsdoctor.advise.node import Node
from dsdoctor.errors import UsageError
from dsdoctor.versions import ComputeCapability, CudaVersion, DriverVersion

BRANDS = {"datacenter": ("tesla",), "geforce": ("geforce", "geforcertx"), "rtx-pro": ("quadro", "quadrortx", "nvidiartx", "titan")}
_TERM = re.compile(r"(!?)(cuda|driver|arch|brand)(>=|<=|!=|=|<|>)([A-Za-z0-9.]{1,30})", re.ASCII)
_CUDA_IN_NAME = re.compile(r"(?:cuda[:/_-]?|cu|[:/_-])(\d{2}\.\d{1,2}(?:\.\d{1,2})?|1\d{2})(?![\d.])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAnswer:
    """Whether an image starts, and what that rests on."""

    image: str
    starts: bool | None
    """None: cannot be told."""
    reason: str
    grounds: tuple[Ground, ...] = ()
    steps: tuple[str, ...] = ()


_Ordered: TypeAlias = CudaVersion | DriverVersion | ComputeCapability


def starts(image: str, node: Node, shelf: Shelf) -> ImageAnswer:
    """Judge an image name, a CUDA version or the text of NVIDIA_REQUIRE_CUDA. UsageError for what is none of them."""
    if node.driver is None:
        return ImageAnswer(image=image, starts=None, reason="the driver is not known: name it with --driver")
    condition = image.partition("NVIDIA_REQUIRE_CUDA=")[2].strip("\"' ") if "NVIDIA_REQUIRE_CUDA=" in image else image
    if _TERM.search(condition):
        return _by_condition(image, condition, node, shelf)
    cuda = _cuda_in(image)
    if cuda is None:
        raise UsageError(
            f"--image takes an image name with its CUDA version, or the text of NVIDIA_REQUIRE_CUDA; no CUDA version is in '{image}'"
        )
    return _by_cuda(image, cuda, node, shelf)


def _cuda_in(image: str) -> CudaVersion | None:
    found = _CUDA_IN_NAME.search(image)
    text = found[1] if found else image
    return CudaVersion.parse(f"cu{text}" if text.isdecimal() else text)


def _by_condition(image: str, condition: str, node: Node, shelf: Shelf) -> ImageAnswer:
    """Alternatives are separated by spaces, terms of one by commas; one alternative whose terms all hold is enough."""
    driver = node.driver
    native = shelf.driver_branches.native_cuda(driver) if driver else None
    verdicts: list[tuple[bool | None, str]] = []
    for alternative in condition.split():
        terms = [_term(found.groups(), node, native) for found in _TERM.finditer(alternative)]
        if terms:
            verdict = False if False in terms else None if None in terms else True
            verdicts.append((verdict, alternative))
    met = next((text for verdict, text in verdicts if verdict), "")
    unsure = next((text for verdict, text in verdicts if verdict is None), "")
    here = f"driver {driver}{f', CUDA {native}' if native else ''}{f', {node.gpu}' if node.gpu else ''}"
    cuda = _asked_cuda(condition)
    if met:
        grounds = tuple(_how(cuda, node, shelf)) if cuda else ()
        return ImageAnswer(
            image=image,
            starts=True,
            reason=f"its condition '{met}' holds here ({here})",
            grounds=grounds,
            steps=_compat_steps(met, cuda, native),
        )
    if unsure:
        return ImageAnswer(image=image, starts=None, reason=f"whether '{unsure}' holds cannot be told from what is known ({here})")
    return ImageAnswer(
        image=image, starts=False, reason=f"none of its {len(verdicts)} conditions holds here ({here}): the NVIDIA container runtime refuses it",
        steps=tuple(_way_out(cuda, node, shelf)),
    )  # fmt: skip


def _term(parts: tuple[str, ...], node: Node, native: CudaVersion | None) -> bool | None:
    negated, key, operator, wanted = parts
    verdict: bool | None
    if key == "brand":
        brands = BRANDS.get(node.product_class, ())
        verdict = None if not brands else (wanted.lower() in brands) == (operator != "!=")
    elif key == "cuda":
        verdict = None if native is None else _compare(native, operator, CudaVersion.parse(wanted))
    elif key == "driver":
        asked = DriverVersion.parse(wanted)
        mine = DriverVersion((node.driver.branch,)) if node.driver and asked and node.driver.is_branch else node.driver
        verdict = None if mine is None else _compare(mine, operator, asked)
    else:
        verdict = None if node.capability is None else _compare(node.capability, operator, ComputeCapability.parse(wanted))
    return None if verdict is None else verdict != bool(negated)


def _compare(mine: _Ordered, operator: str, wanted: _Ordered | None) -> bool | None:
    if wanted is None:
        return None
    left, right = _numbers(mine), _numbers(wanted)
    return {
        ">=": left >= right, "<=": left <= right, ">": left > right, "<": left < right, "=": left == right, "!=": left != right,
    }[operator]  # fmt: skip


def _numbers(version: _Ordered) -> tuple[int, ...]:
    return version.numbers if isinstance(version, DriverVersion) else (version.major, version.minor)


def _asked_cuda(condition: str) -> CudaVersion | None:
    found = re.search(r"cuda>=(\d{1,2}\.\d{1,2})", condition)
    return CudaVersion.parse(found[1]) if found else None


def _by_cuda(image: str, cuda: CudaVersion, node: Node, shelf: Shelf) -> ImageAnswer:
    driver = node.driver
    native = shelf.driver_branches.native_cuda(driver) if driver else None
    if driver is None or (native is None and driver.branch <= shelf.driver_branches.newest):
        return ImageAnswer(image=image, starts=None, reason=f"driver branch R{driver.branch if driver else '?'} is not in this knowledge")
    if native is None or native >= cuda:
        runs, ground = Catalogue(shelf, node).driver_runs(cuda)
        return ImageAnswer(image=image, starts=True if runs else None, reason=ground.text, grounds=(ground,))
    compat = Catalogue(shelf, node).compat_rule(cuda)
    if compat is not None:
        return ImageAnswer(image=image, starts=True, reason=compat.text, grounds=(compat,), steps=_compat_steps("driver", cuda, native))
    runs, ground = Catalogue(shelf, node).driver_runs(cuda)
    eligible = shelf.forward_compat.eligible(node.product_class)
    why = f"driver {driver} provides CUDA {native}, the image wants CUDA {cuda}"
    if eligible is False:
        why += f"; forward compatibility is not for {node.gpu or 'this GPU'} (error 804)"
    elif node.wsl:
        why += "; in WSL the driver is that of Windows, and cuda-compat does not help"
    elif shelf.forward_compat.rule(cuda) is not None:
        why += f"; branch R{driver.branch} is not among those that the CUDA {cuda} images accept"
    else:
        why += f"; no rule of a CUDA {cuda} image is known here"
    known = shelf.forward_compat.rule(cuda) is not None or eligible is False
    return ImageAnswer(
        image=image,
        starts=False if known else None,
        reason=why,
        grounds=(ground,) if runs else (),
        steps=tuple(_way_out(cuda, node, shelf)),
    )


def _how(cuda: CudaVersion, node: Node, shelf: Shelf) -> Iterator[Ground]:
    catalogue = Catalogue(shelf, node)
    runs, ground = catalogue.driver_runs(cuda)
    compat = catalogue.compat_rule(cuda)
    if runs:
        yield ground
    if compat and not (runs and ground.kind == "native"):
        yield compat


def _compat_steps(met: str, cuda: CudaVersion | None, native: CudaVersion | None) -> tuple[str, ...]:
    if cuda is None or native is None or native >= cuda or not met.partition("driver")[1]:
        return ()
    return (
        f"it runs through the cuda-compat library that the image carries; see in the container that /usr/local/cuda-{cuda}/compat comes first",
    )


def _way_out(cuda: CudaVersion | None, node: Node, shelf: Shelf) -> Iterator[str]:
    if cuda is None:
        return
    runs, ground = Catalogue(shelf, node).driver_runs(cuda)
    if runs and ground.kind == "minor-version":
        yield f"{ground.text}: with NVIDIA_DISABLE_REQUIRE=1 the container starts all the same"
    native = shelf.driver_branches.native_cuda(node.driver) if node.driver else None
    if native:
        yield f"or take an image of CUDA {native} or older"
    branches = [row for row in shelf.driver_branches.supported() if row.cuda and row.cuda >= cuda]
    if branches:
        yield f"or install driver R{branches[0].branch} or newer{' in Windows' if node.wsl else ''}, which provides CUDA {branches[0].native_cuda}"
