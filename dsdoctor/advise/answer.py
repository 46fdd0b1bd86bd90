"""The answer: the stack as the node stands, the stack after each change, and why nothing newer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dsdoctor.advise import install
from dsdoctor.advise.catalogue import (
    ENGINES,
    FACTS_OF_NODE,
    Catalogue,
    Ground,
    Requirement,
    Shelf,
    range_of,
    version_of,
    wanted_package,
    within,
)
from dsdoctor.advise.node import Node, described
from dsdoctor.advise.search import Failed, Found, direct_clashes, search, smallest_clash
from dsdoctor.errors import UsageError, unknown_name
from dsdoctor.findings import Disruption
from dsdoctor.rows import DriverBranch
from dsdoctor.versions import CudaVersion, DriverVersion

SCHEMA = "dsdoctor.advice/1"
_WANT = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package of a stack."""

    name: str
    version: str
    """Empty: one that this knowledge does not list."""
    build: str = ""
    """CUDA build of torch: cu128."""
    asked_by: str = ""
    """The package that brings it; empty: the user."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Versions that go together on a node."""

    pins: tuple[Pin, ...]
    """What was asked for, torch, then what they bring."""
    python: str
    cuda: str
    cudnn: str = ""
    nccl: str = ""
    needs: tuple[str, ...] = ()
    """What the node must have: driver, glibc."""
    commands: tuple[install.Install, ...] = ()
    rests_on: tuple[Ground, ...] = ()

    def pin(self, name: str) -> Pin | None:
        """The pin of a package."""
        return next((item for item in self.pins if item.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the node, and the stack that works after it."""

    id: str
    """python, image, forward-compat, driver or all."""
    summary: str
    disruption: Disruption
    steps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Newer releases of a package, and the one constraint that rules them out."""

    package: str
    versions: tuple[str, ...]
    """Oldest first."""
    fact: str
    """What refuses: driver, gpu, python, glibc, architecture, or a package."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Wants of which no stack meets all, and none can be left out."""

    wants: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that `dsdoctor advise` says."""

    schema: str = SCHEMA
    node: str
    wants: tuple[str, ...]
    stack: Stack | None = None
    newer_build: Stack | None = None
    """A newer torch from PyTorch's own index, where the default wheel of an older one is the answer."""
    rejected: tuple[Rejected, ...] = ()
    changes: tuple[Change, ...] = ()
    clash: Clash | None = None
    instead: tuple[str, ...] = ()
    """What serves this node in place of what was asked for."""
    notes: tuple[str, ...] = ()
    knowledge_date: str


def advise(node: Node, wants: Sequence[str], shelf: Shelf) -> Advice:
    """What runs on a node: the newest stack as it stands, after each change, and why nothing newer. UsageError for unknown names."""
    asked = _asked(wants, shelf)
    catalogue = Catalogue(shelf, node, frozenset(item.name for item in asked))
    found = search(catalogue, asked)
    base = _stack(catalogue, found, asked) if isinstance(found, Found) else None
    clash = _clash(catalogue, asked, found) if isinstance(found, Failed) else None
    contradictory = clash is not None and len(clash.wants) > 1
    return Advice(
        node=described(node, shelf.driver_branches),
        wants=tuple(want_text(item) for item in asked),
        stack=base,
        newer_build=_newer_build(catalogue, asked, found) if isinstance(found, Found) else None,
        changes=tuple(_changes(catalogue, asked, base)),
        rejected=tuple(_rejected(catalogue, asked, found)) if not contradictory else (),
        clash=clash,
        instead=_instead(catalogue, asked) if base is None else (),
        notes=(*node.notes, *_notes(catalogue, asked, found)),
        knowledge_date=shelf.seen,
    )


def best_stack(node: Node, shelf: Shelf, wants: Sequence[str] = ("torch",)) -> Stack | None:
    """The newest stack that works on a node as it stands; for remedies of checks."""
    asked = _asked(wants, shelf)
    catalogue = Catalogue(shelf, node, frozenset(item.name for item in asked))
    found = search(catalogue, asked)
    return _stack(catalogue, found, asked) if isinstance(found, Found) else None


def newest_torch_sentence(node: Node, shelf: Shelf) -> str:
    """For remedies: 'on this driver the newest torch is 2.10.0+cu128; or install driver >= 580.65.06, then 2.15.0'; empty: nothing known."""
    asked = [read_want("torch", shelf)]
    catalogue = Catalogue(shelf, node, frozenset({"torch"}))
    found = search(catalogue, asked)
    base = _stack(catalogue, found, asked) if isinstance(found, Found) else None
    torch = base.pin("torch") if base else None
    parts = [
        f"on this driver the newest torch is {torch.version}+{torch.build}" if torch else "no torch of this knowledge runs on this driver"
    ]
    change = next(_driver_changes(catalogue, asked, base), None)
    after = change.stack.pin("torch") if change else None
    if change is not None and after is not None:
        minimum = _floor(shelf, CudaVersion.parse(change.stack.cuda))
        parts.append(f"or install driver >= {minimum}, then {after.version}")
    return "; ".join(parts)


# --- wants ------------------------------------------------------------------------------------------------------------


def _asked(wants: Sequence[str], shelf: Shelf) -> list[Requirement]:
    """The wants of a user; who names no package, or only CUDA, wants torch."""
    asked = [read_want(text, shelf) for text in wants]
    return asked if any(item.name != "cuda" for item in asked) else [*asked, read_want("torch", shelf)]


def read_want(text: str, shelf: Shelf) -> Requirement:
    """The requirement in a want such as vllm, "sglang>=0.5" or fa3; UsageError with the nearest names or versions otherwise."""
    parsed = _WANT.fullmatch(text)
    name = re.sub(r"[-_.]+", "-", parsed[1]).lower() if parsed else ""
    try:
        specifiers = SpecifierSet(parsed[2] if parsed else "?")
    except InvalidSpecifier:
        raise UsageError(f"--want takes a package such as vllm or \"torch>=2.9\"; '{text}' is not understood") from None
    name = shelf.needs.aliases.get(name, name)
    known = _known_versions(name, shelf)
    if known is None:
        names = {"torch", "cuda", "torchvision", "torchaudio", *shelf.companions.packages, *shelf.needs.aliases}
        names |= {row.package for row in shelf.needs.sources_only}
        raise UsageError(f"{unknown_name('package', name, names)} (this knowledge is of {shelf.seen})")
    wanted = ",".join(f"{part.operator}{part.version.partition('+')[0]}" for part in specifiers)
    if wanted and known and not any(within(version, wanted) for version in known):
        raise UsageError(_no_such_version(name, wanted, known, shelf))
    return wanted_package(name, wanted, f"{name}{wanted}")


def want_text(want: Requirement) -> str:
    """A want as it was asked."""
    return want.text.removeprefix("you ask for ")


def _known_versions(name: str, shelf: Shelf) -> list[str] | None:
    """The versions of a name, newest first; None where the name is not known."""
    if name == "torch":
        return [row.version for row in shelf.torch.releases]
    if name == "cuda" or name in ("torchvision", "torchaudio"):
        return [item.version for item in Catalogue(shelf, Node()).listed(name)]
    if rows := shelf.needs.built_from_source(name):
        return [version for row in rows for version in row.releases]
    package = shelf.companions.package(name)
    return [row.version for row in package.releases] if package else None


def _no_such_version(name: str, wanted: str, known: Sequence[str], shelf: Shelf) -> str:
    import difflib

    bounds = [
        found for part in range_of(wanted) if part.operator in ("==", ">=", ">", "~=") and (found := version_of(part.version.rstrip(".*")))
    ]
    newest, oldest = version_of(known[0]), version_of(known[-1])
    if newest and any(bound > newest for bound in bounds):
        return f"{name}{wanted} is newer than this knowledge ({shelf.seen}), whose newest {name} is {known[0]}"
    if oldest and (not bounds or all(bound < oldest for bound in bounds)):
        return f"{name}{wanted} is older than this knowledge, whose oldest {name} is {known[-1]}"
    near = difflib.get_close_matches(wanted.lstrip("=<>~!"), known, n=3, cutoff=0.3) or list(known[:3])
    return f"no release of {name} is {wanted}: did you mean {' or '.join(near)}?"


# --- one stack --------------------------------------------------------------------------------------------------------


def _stack(catalogue: Catalogue, found: Found, asked: Sequence[Requirement]) -> Stack:
    chosen, shelf = found.chosen, catalogue.shelf
    names = list(dict.fromkeys([item.name for item in asked if item.name != "cuda"]))
    wanted = set(names)
    if "torch" in chosen and "torch" not in names:
        names.append("torch")
    names += sorted(name for name in chosen if name not in names and name not in FACTS_OF_NODE and name != "cuda")
    pins = []
    for name in names:
        item = chosen[name]
        note = {"older": "an older release than this knowledge lists", "any": "any release"}.get(item.unlisted, "")
        if item.unlisted and not shelf.companions.package(name):
            note = ""
        if name not in wanted and name != "torch" and not item.version and not shelf.companions.package(name):
            continue
        pins.append(
            Pin(name=name, version=item.version, build=item.cuda.tag if item.cuda else "", asked_by=found.asked_by.get(name, ""), note=note)
        )
    torch = chosen.get("torch")
    cuda = torch.cuda if torch else None
    pair = shelf.companions.pair(torch.version) if torch else None
    if torch is not None and pair is not None:
        for name in ("torchvision", "torchaudio"):
            wanted_range = getattr(pair, name)
            if name not in chosen and wanted_range:
                pins.append(Pin(name=name, version="", asked_by="torch", note=wanted_range))
    grounds = list(torch.grounds if torch else ())
    for name in names:
        if name in ENGINES and torch is not None:
            row = shelf.companions.release(name, chosen[name].version)
            if row is not None and row.requires.get("torch"):
                grounds.append(
                    Ground(text=f"{name} {row.version} asks for torch{row.requires['torch']}", kind="pins", sources=row.basis.sources)
                )
        if name in wanted and name != "torch":
            grounds += [
                Ground(text=row.text, kind="need", sources=row.basis.sources)
                for row in shelf.needs.of(name)
                if within(chosen[name].version, row.versions)
            ]
    return Stack(
        pins=tuple(pins),
        python=chosen["python"].version if "python" in chosen else catalogue.node.python or shelf.needs.usual_python,
        cuda=str(cuda) if cuda else "",
        cudnn=torch.cudnn if torch else "",
        nccl=torch.nccl if torch else "",
        needs=tuple(_node_needs(catalogue, cuda, found)),
        commands=install.commands([chosen[name] for name in names if name in wanted or name == "torch"], chosen, wanted, shelf),
        rests_on=tuple(grounds),
    )


def _node_needs(catalogue: Catalogue, cuda: CudaVersion | None, found: Found) -> Iterator[str]:
    """What the node must have where nothing is known of it."""
    if cuda is not None and catalogue.node.driver is None:
        yield f"driver {_floor(catalogue.shelf, cuda)} or newer"
    needed = needed_glibc(catalogue, found)
    if needed and catalogue.node.glibc is None:
        yield f"glibc {needed} or newer"


def needed_glibc(catalogue: Catalogue, found: Found) -> str:
    """The glibc that the wheels of a stack ask for; empty: none is known."""
    from dsdoctor.advise.catalogue import glibc_of_tag
    from dsdoctor.versions import LibraryVersion

    shelf, versions = catalogue.shelf, []
    for name, item in found.chosen.items():
        if name == "torch":
            wheel = shelf.torch.default_wheel(item.version, catalogue.architecture)
            versions.append(LibraryVersion.parse(wheel.glibc) if wheel else None)
        elif row := shelf.companions.release(name, item.version):
            versions.append(LibraryVersion.parse(glibc_of_tag(row.tags.get(catalogue.architecture, ""))))
    return str(max((item for item in versions if item), default=""))


def _floor(shelf: Shelf, cuda: CudaVersion | None) -> str:
    floor = shelf.cuda_toolkits.floor(cuda) if cuda else None
    return floor.min_driver if floor else ""


def _newer_build(catalogue: Catalogue, asked: Sequence[Requirement], found: Found) -> Stack | None:
    """A newer torch from PyTorch's own index that the wants allow as well."""
    torch = found.chosen.get("torch")
    if torch is None or torch.index:
        return None
    newer = search(catalogue, [*asked, wanted_package("torch", f">{torch.version}", "a newer torch")])
    return _stack(catalogue, newer, asked) if isinstance(newer, Found) else None


# --- changes ----------------------------------------------------------------------------------------------------------


def _rank(stack: Stack | None, asked: Sequence[Requirement]) -> tuple[tuple[object, ...], ...]:
    """How new a stack is: what was asked for in its order, then torch."""
    if stack is None:
        return ()
    versions = [pin.version for want in (*[item.name for item in asked], "torch") if (pin := stack.pin(want))]
    parsed = [version_of(text) for text in versions]
    return tuple((item is not None, item) for item in parsed)


def _solved(catalogue: Catalogue, asked: Sequence[Requirement]) -> tuple[Stack, Found] | None:
    found = search(catalogue, asked)
    return (_stack(catalogue, found, asked), found) if isinstance(found, Found) else None


def _changes(catalogue: Catalogue, asked: Sequence[Requirement], base: Stack | None) -> Iterator[Change]:
    """Changes that bring something newer, the least disruptive first."""
    node, best = catalogue.node, _rank(base, asked)
    found: list[Change] = []
    unbound = _solved(catalogue.changed(python="", glibc=None, driver=None), asked)
    if unbound is None or _rank(unbound[0], asked) <= best:
        return
    if node.python and (solved := _solved(catalogue.changed(python=""), asked)) and _rank(solved[0], asked) > best:
        found.append(Change(
            id="python", summary=f"another Python: {solved[0].python} in an environment of its own", disruption=Disruption.NONE, stack=solved[0],
        ))  # fmt: skip
    if node.glibc and (solved := _solved(catalogue.changed(glibc=None), asked)) and _rank(solved[0], asked) > best:
        needed = needed_glibc(catalogue, solved[1])
        found.append(Change(
            id="image", summary=f"a newer image or operating system, with glibc {needed} or newer", disruption=Disruption.RESTART_PROCESS,
            steps=("a container image is enough: the driver and the kernel of the node stay",), stack=solved[0],
        ))  # fmt: skip
    if change := _forward_compat(catalogue, asked, best):
        found.append(change)
    found += _driver_changes(catalogue, asked, base)
    top = max((_rank(item.stack, asked) for item in found), default=best)
    relaxed = catalogue.changed(python="", glibc=None, driver=_newest_supported(catalogue.shelf) if node.driver else None)
    if len({"python" if node.python else "", "glibc" if node.glibc else "", "driver" if node.driver else ""} - {""}) > 1:
        solved = _solved(relaxed, asked)
        if solved and _rank(solved[0], asked) > max(top, best):
            found.append(_everything(catalogue, solved))
    order = list(Disruption)
    yield from sorted(found, key=lambda item: order.index(item.disruption))


def _forward_compat(catalogue: Catalogue, asked: Sequence[Requirement], best: tuple[tuple[object, ...], ...]) -> Change | None:
    """A cuda-compat package beside the driver, in a newer image where that is needed as well."""
    node = catalogue.node
    if node.driver is None or node.forward_compat:
        return None
    for changes in ({}, {"glibc": None}) if node.glibc else ({},):
        solved = _solved(catalogue.changed(forward_compat=True, **changes), asked)
        cuda = CudaVersion.parse(solved[0].cuda) if solved else None
        ground = catalogue.compat_rule(cuda) if cuda else None
        if solved is None or cuda is None or ground is None or _rank(solved[0], asked) <= best:
            continue
        image = f", in an image with glibc {needed_glibc(catalogue, solved[1])} or newer" if changes else ""
        return Change(
            id="forward-compat", summary=f"cuda-compat-{cuda.major}-{cuda.minor} beside driver {node.driver} (forward compatibility){image}",
            disruption=Disruption.RESTART_PROCESS, steps=(
                f"run in a CUDA {cuda} image that carries it, or install the package and put /usr/local/cuda-{cuda}/compat first in LD_LIBRARY_PATH",
                "the rule was read from NVIDIA's images, not from its table: try it on one node first",
            ), sources=ground.sources, stack=solved[0],
        )  # fmt: skip
    return None


def _driver_changes(catalogue: Catalogue, asked: Sequence[Requirement], base: Stack | None) -> Iterator[Change]:
    """A newer driver: each supported branch that brings something newer than the one before."""
    node, shelf, best = catalogue.node, catalogue.shelf, _rank(base, asked)
    if node.driver is None:
        return
    known = catalogue.gpu_and_driver()[0]
    product = shelf.gpus.product(node.gpu) if node.gpu else None
    unbound = _solved(catalogue.changed(driver=None), asked)
    newest = _rank(unbound[0] if unbound else None, asked)
    for row in shelf.driver_branches.supported():
        if newest <= best:
            return
        if row.branch == node.driver.branch or (row.branch < node.driver.branch and known):
            continue
        solved = _solved(catalogue.changed(driver=DriverVersion((row.branch,))), asked)
        if solved is None or _rank(solved[0], asked) <= best:
            continue
        best = _rank(solved[0], asked)
        cuda = CudaVersion.parse(solved[0].cuda)
        least = _least_driver(row, DriverVersion.parse(_floor(shelf, cuda)), DriverVersion.parse(product.min_driver) if product else None)
        ends = f", supported until {row.end_of_life}" if row.end_of_life else ""
        span = f"driver {least} or newer" if row.branch > node.driver.branch else "an older driver,"
        place = "in Windows (never a Linux driver inside WSL)" if node.wsl else "and a reboot"
        yield Change(
            id="driver", summary=f"{span} (R{row.branch}{ends}) {place}", disruption=Disruption.REBOOT,
            steps=() if node.wsl else ("drain the node; commands for each distribution: dsdoctor explain driver.too-old-for-cuda",),
            sources=row.basis.sources, stack=solved[0],
        )  # fmt: skip


def _least_driver(row: DriverBranch, *minima: DriverVersion | None) -> DriverVersion:
    """The oldest driver of a branch that CUDA and the GPU allow, as far as rows name one."""
    inside = [minimum for minimum in minima if minimum is not None and minimum.branch == row.branch]
    return max(inside, default=None) or DriverVersion.parse(row.first_version) or DriverVersion((row.branch,))


def _newest_supported(shelf: Shelf) -> DriverVersion:
    return DriverVersion((shelf.driver_branches.supported()[-1].branch,))


def _everything(catalogue: Catalogue, solved: tuple[Stack, Found]) -> Change:
    """Several changes at once, named by what the stack really needs."""
    stack, found = solved
    node, parts, disruption = catalogue.node, [], Disruption.NONE
    cuda = CudaVersion.parse(stack.cuda)
    if node.python and stack.python != node.python:
        parts.append(f"Python {stack.python}")
    needed = needed_glibc(catalogue, found)
    if node.glibc and needed and not within(str(node.glibc), f">={needed}"):
        parts.append(f"an image with glibc {needed} or newer")
        disruption = Disruption.RESTART_PROCESS
    if node.driver and cuda and not catalogue.driver_runs(cuda)[0]:
        parts.append(f"driver {_floor(catalogue.shelf, cuda)} or newer")
        disruption = Disruption.REBOOT
    return Change(id="all", summary="together: " + ", ".join(parts or ["a newer node"]), disruption=disruption, stack=stack)


# --- why not ----------------------------------------------------------------------------------------------------------


def _rejected(catalogue: Catalogue, asked: Sequence[Requirement], found: Found | Failed) -> Iterator[Rejected]:
    """For each newer release of what was asked for first, the one constraint that rules it out; neighbours with one reason together."""
    name = next((item.name for item in asked if item.name in ENGINES), next(item.name for item in asked if item.name != "cuda"))
    want = next(item for item in asked if item.name == name)
    have = found.chosen[name].version if isinstance(found, Found) else ""
    groups: list[tuple[str, str, list[str]]] = []
    for version in _known_versions(name, catalogue.shelf) or ():
        if version == have or not within(version, want.range):
            if version == have:
                break
            continue
        cause = _why_not(catalogue, asked, want, version)
        if cause is None:
            continue
        reason, fact = _without_version(cause.text, name, version), cause.name
        if groups and groups[-1][1] == reason:
            groups[-1][2].append(version)
        else:
            groups.append((fact, reason, [version]))
    for fact, reason, versions in groups:
        yield Rejected(package=name, versions=tuple(reversed(versions)), fact=fact, reason=reason)


def _why_not(catalogue: Catalogue, asked: Sequence[Requirement], want: Requirement, version: str) -> Requirement | None:
    """The constraint that rules out this version of a want; None where it is possible after all."""
    tried = wanted_package(want.name, f"=={version}", f"{want.name}=={version}")
    refusals = [catalogue.refusal(item) for item in catalogue.listed(want.name) if tried.accepts(item)]
    if refusals and refusals[0] is not None and None not in refusals:
        return refusals[0]
    result = search(catalogue, [tried if item is want else item for item in asked])
    if isinstance(result, Found):
        return None
    return next((item for item in result.causes if item.text != tried.text), result.decisive)


def _without_version(reason: str, name: str, version: str) -> str:
    """The reason without the version that it stands beside, so that neighbours can share it."""
    return reason.replace(f"{name} {version} ", "it ", 1).replace(f"{name} {version}+", f"{name}+", 1)


def _clash(catalogue: Catalogue, asked: Sequence[Requirement], failed: Failed) -> Clash:
    """The smallest set of wants that cannot be met together on this node, and what stands between them."""
    smallest = smallest_clash(catalogue, asked)
    if len(smallest) == 1:
        again = failed if len(asked) == 1 else search(catalogue, smallest)
        causes = again.causes if isinstance(again, Failed) else failed.causes
        on_node = [item.text for item in causes if item.name in FACTS_OF_NODE][:1]
        return Clash(wants=(want_text(smallest[0]),), reasons=tuple(on_node or _opposed(catalogue, causes, smallest)))
    newest = [_newest_alone(catalogue, item) for item in smallest]
    releases = [item for want in newest for item in catalogue.listed(want.name) if want.accepts(item)]
    refused = [
        item.text for release in releases for item in release.requires for want in newest
        if want.name == item.name != release.name and not catalogue.any_meets(item, want)
    ]  # fmt: skip
    if refused:
        return Clash(wants=tuple(map(want_text, smallest)), reasons=tuple(dict.fromkeys(refused))[:3])
    pairs = [pair for one, other in itertools.combinations(releases, 2) for pair in direct_clashes(catalogue, one, other)]
    if pairs and len(releases) == len(newest):
        return Clash(wants=tuple(map(want_text, smallest)), reasons=tuple(f"{left.text}, {right.text}" for left, right in pairs[:3]))
    again = search(catalogue, newest)
    causes = again.causes if isinstance(again, Failed) else failed.causes
    return Clash(wants=tuple(map(want_text, smallest)), reasons=tuple(_opposed(catalogue, causes, newest)))


def _newest_alone(catalogue: Catalogue, want: Requirement) -> Requirement:
    """The want, narrowed to the newest release that meets it by itself: its pins are the ones to show."""
    found = search(catalogue, [want])
    version = found.chosen[want.name].version if isinstance(found, Found) else ""
    return wanted_package(want.name, f"=={version}", f"{want.name}=={version}") if version else want


def _opposed(catalogue: Catalogue, causes: Sequence[Requirement], wants: Sequence[Requirement]) -> list[str]:
    """Of the causes those that exclude another cause or a want, in words; all of them where none stands out."""
    own = {item.text for item in wants}
    everything = [*wants, *causes]
    opposed = [
        item.text
        for item in causes
        if item.text not in own and any(
            other is not item and other.name == item.name and not catalogue.matching(item.name, [item, other]) for other in everything
        )
    ]  # fmt: skip
    return list(dict.fromkeys(opposed or [item.text for item in causes if item.text not in own]))[:4]


def _instead(catalogue: Catalogue, asked: Sequence[Requirement]) -> tuple[str, ...]:
    """Packages that serve this GPU in place of one that does not, and ways around a need."""
    found = []
    for want in asked:
        for row in catalogue.shelf.needs.of(want.name):
            for other in row.instead:
                alone = Catalogue(catalogue.shelf, catalogue.node, frozenset({other}))
                requirement = wanted_package(other, "", other)
                if isinstance(search(alone, [requirement]), Found):
                    found.append(f"{other} serves this GPU")
            if row.otherwise and isinstance(search(replace_needs(catalogue, want.name), asked), Found):
                found.append(row.otherwise)
    return tuple(dict.fromkeys(found))


def replace_needs(catalogue: Catalogue, name: str) -> Catalogue:
    """The catalogue without what rows of stack-needs ask for a package."""
    return Catalogue(catalogue.shelf, catalogue.node, catalogue.wanted - {name})


def _notes(catalogue: Catalogue, asked: Sequence[Requirement], found: Found | Failed) -> Iterator[str]:
    node, shelf = catalogue.node, catalogue.shelf
    if node.driver and node.driver.branch > shelf.driver_branches.newest:
        yield f"driver {node.driver} is newer than this knowledge ({shelf.driver_branches.seen})"
    row = shelf.driver_branches.branch(node.driver.branch) if node.driver else None
    if row is not None and row.status == "end-of-life":
        yield f"driver branch R{row.branch} has reached its end of life{f' ({row.end_of_life})' if row.end_of_life else ''}"
    product = shelf.gpus.product(node.gpu) if node.gpu else None
    least = DriverVersion.parse(product.min_driver) if product else None
    if node.driver and least and not node.driver.is_branch and node.driver < least:
        yield f"the first driver whose list names {product.product if product else ''} is {least}; {node.driver} may not know it"
    if isinstance(found, Found):
        for want in asked:
            package = shelf.companions.package(want.name)
            if package is not None and package.note:
                yield f"{want.name}: {package.note}"
            for source in shelf.needs.built_from_source(want.name):
                if found.chosen[want.name].version in source.releases and source.note:
                    yield f"{want.name}: {source.note}"
        unlisted = [name for name, item in found.chosen.items() if item.unlisted == "pinned" and shelf.companions.package(name)]
        if unlisted:
            yield f"pinned by others, but not among the releases listed here, so that their own requirements are not known: {', '.join(sorted(unlisted))}"
