"""The commands that install a stack, for pip and for uv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsdoctor.advise.catalogue import Candidate, Shelf, version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Commands of one tool, to be run in this order."""

    tool: str
    """pip or uv."""
    commands: tuple[str, ...]


def commands(
    parts: Sequence[Candidate], chosen: Mapping[str, Candidate], wanted: frozenset[str] | set[str], shelf: Shelf
) -> tuple[Install, ...]:
    """The commands for what was asked for and torch; what they bring follows from their own pins."""
    torch = next((item for item in parts if item.name == "torch"), None)
    from_source = {row.package: row for item in parts for row in shelf.needs.built_from_source(item.name) if item.version in row.releases}
    plain = [item for item in parts if item.name not in from_source and item.name != "torch" and not item.source_only]
    compiled_here = [item for item in parts if item.source_only and item.name not in from_source]
    with_torch = [item for item in plain if item.name in ("torchvision", "torchaudio")]
    others = [item for item in plain if item not in with_torch]
    previews = any(
        (parsed := version_of(item.version)) is not None and parsed.is_prerelease and name not in wanted for name, item in chosen.items()
    )
    return tuple(
        Install(tool=tool, commands=(
            *_wheels(prefix, torch, with_torch, others, shelf, " --prerelease=allow" if tool == "uv" and previews else ""),
            *[f"{prefix} {_pin(item)} --no-build-isolation" for item in compiled_here],
            *[line.replace("pip install -v", prefix) for row in from_source.values() for line in row.install],
        ))
        for tool, prefix in (("pip", "pip install"), ("uv", "uv pip install"))
    )  # fmt: skip


def _wheels(
    prefix: str, torch: Candidate | None, with_torch: Sequence[Candidate], others: Sequence[Candidate], shelf: Shelf, option: str
) -> list[str]:
    if torch is None:
        return [f"{prefix} {' '.join(map(_pin, others))}{option}"] if others else []
    together = [torch, *with_torch]
    if torch.index:
        first = f"{prefix} {' '.join(map(_pin, together))} --index-url {shelf.torch.index_url}{torch.index}"
        return [first, *([f"{prefix} {' '.join(map(_pin, [*others, torch]))}{option}"] if others else [])]
    return [f"{prefix} {' '.join(map(_pin, [*others, *together]))}{option}"]


def _pin(item: Candidate) -> str:
    return f"{item.name}=={item.version}" if item.version else item.name
