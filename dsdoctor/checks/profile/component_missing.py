"""Something that the chosen profile needs is not installed, or in a release that does not serve.

What it looks at
    The components of each profile that was chosen with `--profile` (matrices/profiles), and the distributions that are installed. A
    component may come in several ways: FlashAttention-3 as fa3-fwd, built from source, or inside vLLM or SGLang's kernels.

Why it matters
    Without a profile nobody knows what the node is for, and a package that is not there is no fault. With one, it stops the work. What
    engines bundle counts: from 0.30 on the wheels of vLLM carry FlashMLA, DeepGEMM and DeepSelect, and no package of that name is needed.
    A list that was pasted may be a part: what it does not name is not known to be missing.

Sources
    matrices/profiles, each row with its own; the commands are those of `dsdoctor advise` for this node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsdoctor.checks._check import Case, check
from dsdoctor.checks.profile._reading import nobody_asked
from dsdoctor.facts import Package, Section, Sections, State, absent, known
from dsdoctor.findings import Doubt, Evidence, Finding, NotApplicable, Remedy, Severity, Status
from dsdoctor.remedies import Remedies

if TYPE_CHECKING:
    from dsdoctor.advise.for_checks import NodeAdvice
    from dsdoctor.purpose import Chosen, Purpose
    from dsdoctor.rows_profile import Component, Provider

PASTED = re.compile(r":\d+(?:,| |$)")
"""File and line, by which a section says that it was pasted: such a list may be a part."""
KEPT = ("vllm", "sglang", "torch")
"""What an installation should leave as it is, where it can."""

TORCH = (Package(name="torch", version="2.11.0"),)

CASES = (
    Case(
        title="FlashAttention-3 is wanted, and FlashAttention-2 is there",
        sections={"packages": (*TORCH, Package(name="flash-attn", version="2.8.3"))},
        profiles=("fa3",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="FlashAttention-3 is not installed",
    ),
    Case(
        title="the empty placeholder of the public index",
        sections={"packages": (*TORCH, Package(name="flash-attn-3", version="0.0.0"))},
        profiles=("fa3",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="flash-attn-3 0.0.0",
    ),
    Case(
        title="a vLLM that the recipe of V4 rules out",
        sections={"packages": (Package(name="vllm", version="0.27.1"), Package(name="tilelang", version="0.1.12"))},
        profiles=("deepseek-v4",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="vllm 0.27.1",
    ),
    Case(
        title="DeepGEMM inside vLLM counts",
        sections={"packages": (Package(name="vllm", version="0.33.0"),)},
        profiles=("deepseek-v3.2",),
        status=Status.PASS,
    ),
    Case(
        title="nothing is installed: one finding, not one for each part that an engine brings",
        sections={"packages": TORCH},
        profiles=("deepseek-v4.1",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="vLLM or SGLang is not installed",
    ),
    Case(
        title="an older vLLM for V3.2, without DeepGEMM",
        sections={"packages": (Package(name="vllm", version="0.20.0"),)},
        profiles=("deepseek-v3.2",),
        status=Status.FAIL,
        severity=Severity.WARNING,
        says="DeepGEMM",
    ),
    Case(
        title="FlashAttention-3 as fa3-fwd",
        sections={"packages": (*TORCH, Package(name="fa3-fwd", version="0.0.3"))},
        profiles=("fa3",),
        status=Status.PASS,
    ),
    Case(
        title="what is installed is not known",
        sections={},
        profiles=("fa3",),
        status=Status.UNKNOWN,
        says="packages",
    ),
    Case(
        title="a pasted list that may be a part",
        sections={"packages": known(TORCH, "collect_env.txt:105, collect_env.txt:82")},
        profiles=("vllm",),
        status=Status.UNKNOWN,
        says="does not list it",
    ),
    Case(
        title="no Python environment at all",
        sections={"packages": absent("no site-packages directory")},
        profiles=("vllm",),
        status=Status.FAIL,
        severity=Severity.ERROR,
        says="vLLM is not installed",
    ),
    Case(title="no profile was chosen", sections={"packages": TORCH}, status=Status.NOT_APPLICABLE, says="no profile was chosen"),
    Case(
        title="no profile was chosen, and vLLM is there",
        sections={"packages": (Package(name="vllm", version="0.33.0"),)},
        status=Status.NOT_APPLICABLE,
        says="--profile vllm",
    ),
)


@check("profile.component-missing", Severity.ERROR, explains=("profile.smoke-not-run",), settle="pip list", cases=CASES)
def component_missing(
    packages: Section[tuple[Package, ...]], purpose: Purpose, advice: NodeAdvice, remedies: Remedies
) -> Iterator[Finding | Doubt | NotApplicable]:
    """Look for each component of the chosen profiles among what is installed."""
    if not purpose.profiles:
        yield nobody_asked(purpose, Sections(packages=packages))
    elif packages.value is None and packages.state is not State.ABSENT:
        yield Doubt(subject="packages", reason=f"what is installed is not known (packages: {packages.why or 'not asked'})")
    else:
        installed = {package.name: package.version for package in packages.value or ()}
        is_whole = not PASTED.search(packages.found_via)
        for chosen in purpose.profiles:
            for component in chosen.profile.components:
                if chosen.holds(component.only_as) and (not component.beside or installed.keys() & set(component.beside)):
                    yield from _component(chosen, component, installed, is_whole, advice, remedies)


def _component(
    chosen: Chosen, component: Component, installed: Mapping[str, str], is_whole: bool, advice: NodeAdvice, remedies: Remedies
) -> Iterator[Finding | Doubt]:
    here = [provider for provider in component.provided_by if provider.package in installed]
    if any(_serves(provider, installed[provider.package]) for provider in here):
        return
    if not here and not is_whole:
        yield Doubt(
            subject=component.name,
            reason=f"the profile {chosen.asked} needs it, and the text does not list it; whether the text lists everything is not known",
        )
        return
    wanted = " or ".join(_told(provider) for provider in component.provided_by)
    names = " and ".join(f"{provider.package} {installed[provider.package]}" for provider in here)
    summary = (
        f"{names} {'does' if len(here) == 1 else 'do'} not serve the profile {chosen.asked}, which needs {wanted}."
        if here
        else f"{component.name} is not installed, which the profile {chosen.asked} needs."
    )
    named = [
        Evidence(where=f"packages[{provider.package}]", value=installed.get(provider.package, "not installed"))
        for provider in component.provided_by
    ]
    severity = Severity(component.severity)
    if severity is Severity.ERROR and not component.basis.may_carry_error:
        severity = Severity.WARNING
    yield Finding(
        subject=component.name if not here else names,
        summary=summary,
        cause=component.text,
        evidence=tuple(named),
        expected=wanted,
        remedies=_remedies(chosen, component, here, installed, advice, remedies),
        sources=component.basis.sources,
        severity=severity,
    )


def _serves(provider: Provider, version: str) -> bool:
    """Whether a release is in the range; one whose version cannot be read is left to other checks."""
    if not provider.specifiers:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        parsed = Version(version)
    except InvalidVersion:
        return True
    return SpecifierSet(provider.specifiers).contains(parsed, prereleases=True)


def _told(provider: Provider) -> str:
    return f"{provider.package} {provider.specifiers}".strip()


def _remedies(
    chosen: Chosen, component: Component, unfit: Sequence[Provider], installed: Mapping[str, str], advice: NodeAdvice, remedies: Remedies
) -> tuple[Remedy, ...]:
    """The commands that install it here, with the engine and the torch that are there where those can stay."""
    fill = {"component": component.name, "want": component.want, "profile": chosen.asked}
    replaced = {component.want, *(provider.package for provider in unfit)}
    usual = [provider for provider in component.provided_by if provider.package == component.want]
    kept = [f"{name}=={installed[name].partition('+')[0]}" for name in KEPT if name in installed and name not in replaced]
    for want in (*(f"{provider.package}{provider.specifiers}" for provider in (*unfit, *usual)), *([] if usual else [component.want])):
        for others in (kept, kept[-1:], []):
            commands, told = advice.installing(want, *others)
            if commands:
                (first, *_) = remedies("install", **fill)
                return (replace(first, summary=f"{first.summary}: {told}", commands=commands),)
    return remedies("no-stack", **fill)
