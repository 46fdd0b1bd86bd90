"""A checkpoint directory by its configuration and the headers of its safetensors files: what is in it, and what contradicts what.

Weights are never read: of each shard only the header, whose length stands in its first eight bytes. All sizes are bounded, because a
directory may hold anything. Sources: the safetensors format description; DeepSeek-V3 README_WEIGHTS.md (block scales).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dsdoctor.errors import InputError

MAX_HEADER_BYTES = 100_000_000
MAX_JSON_BYTES = 64 * 1024 * 1024
MAX_SHARDS = 4096
MAX_TENSORS = 4_000_000
INDEX = "model.safetensors.index.json"
OTHER_QUANTISATION = "hf_quant_config.json"
"""ModelOpt describes its formats (NVFP4, FP8 per tensor) here; the rules of block scales do not apply then."""
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8,
    "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
SCALE_ENDS = (".weight_scale_inv", ".scale")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.ASCII)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,5})\.", re.ASCII)
_ROUTED = re.compile(r"\.experts\.\d+\.", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor as a header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    shard: str

    @property
    def routed(self) -> bool:
        """Whether it belongs to a routed expert."""
        return _ROUTED.search(self.name) is not None

    @property
    def layer(self) -> int | None:
        """The number of its layer."""
        found = _LAYER.search(self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One contradiction, with how often it occurs and an example."""

    kind: str
    where: str
    text: str
    count: int = 1

    @property
    def told(self) -> str:
        """In one line."""
        return f"{self.kind}: {self.where} {self.text}{f' (and {self.count - 1} more)' if self.count > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a directory holds."""

    directory: str
    config: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    shards: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


class _Refused(Exception):
    """A file that cannot be what it should be."""


def read(directory: Path) -> Checkpoint:
    """Read a checkpoint directory; InputError when it is none, problems for what is wrong in it."""
    config = _config(directory)
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror or error}") from None
    if len(names) > MAX_SHARDS:
        raise InputError(f"{directory}: {len(names)} safetensors files; more than {MAX_SHARDS} are no checkpoint of one model")
    tensors: list[Tensor] = []
    problems: list[Problem] = []
    for name in names:
        try:
            tensors += header(directory / name)
        except _Refused as error:
            problems.append(Problem(kind="broken-shard", where=name, text=str(error)))
        if len(tensors) > MAX_TENSORS:
            raise InputError(f"{directory}: more than {MAX_TENSORS} tensors")
    unreadable = {problem.where for problem in problems}
    problems += _missing_shards(names)
    problems += _twice(tensors)
    problems += _index(directory, names, tensors, unreadable)
    if not (directory / OTHER_QUANTISATION).exists():
        problems += quantisation(config, tensors)
    problems += _missing_layers(config, tensors)
    if not names:
        problems.append(Problem(kind="no-weights", where=str(directory), text="holds no safetensors file; sizes cannot be read"))
    return Checkpoint(
        directory=str(directory), config=config, tensors=tuple(tensors), shards=tuple(names), problems=tuple(_gathered(problems))
    )


def header(path: Path) -> list[Tensor]:
    """The tensors that the header of one safetensors file names."""
    size, head = _start(path)
    try:
        entries = _json(head)
    except ValueError as error:
        raise _Refused(f"its header is no JSON: {error}") from None
    if not isinstance(entries, dict):
        raise _Refused("its header is no JSON object")
    room = size - 8 - len(head)
    return [_tensor(name, entry, path.name, room) for name, entry in entries.items() if name != "__metadata__"]


def _start(path: Path) -> tuple[int, bytes]:
    """Size of a file and its header."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise _Refused("is no regular file")
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8:
                raise _Refused(f"has {len(first)} bytes; a header starts with 8 for its length")
            if length > MAX_HEADER_BYTES:
                raise _Refused(f"says that its header has {length} bytes; the format allows {MAX_HEADER_BYTES}")
            if length > state.st_size - 8:
                raise _Refused(f"is cut off: its header should have {length} bytes, and {state.st_size - 8} follow")
            return state.st_size, file.read(length)
    except OSError as error:
        raise _Refused(f"cannot be read: {error.strerror or error}") from None


def _tensor(name: str, entry: object, shard: str, room: int) -> Tensor:
    if not isinstance(entry, dict):
        raise _Refused(f"describes '{_short(name)}' by no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(shape) > 16 or len(offsets) != 2:
        raise _Refused(f"describes '{_short(name)}' without dtype, shape and two offsets")
    start, end = offsets
    if not start <= end <= room:
        raise _Refused(f"is cut off: '{_short(name)}' ends at byte {end} of the data, and the file has {max(room, 0)}")
    if dtype in BITS and (math.prod(shape) * BITS[dtype] + 7) // 8 != end - start:
        raise _Refused(
            f"gives '{_short(name)}' {end - start} bytes; {dtype} of {_shape(shape)} takes {math.prod(shape) * BITS[dtype] // 8}"
        )
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), bytes=end - start, shard=shard)


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _json(data: bytes) -> Any:
    """JSON without names that occur twice, huge numbers or deep nesting; ValueError otherwise."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ValueError(f"'{_short(name)}' occurs twice")
        return found

    def number(text: str) -> int:
        if len(text) > 19:
            raise ValueError("a number has more than 19 digits")
        return int(text)

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_int=number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _document(path: Path) -> dict[str, Any]:
    """A JSON object in a file of bounded size; ValueError or OSError otherwise."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    found = _json(data)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _config(directory: Path) -> dict[str, Any]:
    try:
        return _document(directory / "config.json")
    except OSError as error:
        raise InputError(f"{directory / 'config.json'}: {error.strerror or error}; a checkpoint directory has this file") from None
    except ValueError as error:
        raise InputError(f"{directory / 'config.json'}: {error}") from None


# --- what contradicts what --------------------------------------------------------------------------------------------


def _missing_shards(names: Sequence[str]) -> Iterator[Problem]:
    counts: dict[tuple[str, int], set[int]] = defaultdict(set)
    for name in names:
        if found := _SHARD.fullmatch(name):
            counts[found["stem"], int(found["count"])].add(int(found["number"]))
    for (stem, count), numbers in counts.items():
        if count > MAX_SHARDS:
            yield Problem(kind="broken-shard", where=stem, text=f"claims {count} shards")
            continue
        for number in sorted(set(range(1, count + 1)) - numbers):
            yield Problem(kind="missing-shard", where=f"{stem}-{number:05}-of-{count:05}.safetensors", text="is missing")
    if len({count for _, count in counts}) > 1:
        yield Problem(
            kind="mixed-shards", where=", ".join(sorted({stem for stem, _ in counts})),
            text=f"shards of {' and '.join(str(count) for count in sorted({count for _, count in counts}))} lie together",
        )  # fmt: skip


def _twice(tensors: Iterable[Tensor]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for tensor in tensors:
        other = first.setdefault(tensor.name, tensor.shard)
        if other != tensor.shard:
            yield Problem(kind="duplicate-tensor", where=tensor.name, text=f"is in {other} and in {tensor.shard}")


def _index(directory: Path, names: Sequence[str], tensors: Sequence[Tensor], unreadable: set[str]) -> Iterator[Problem]:
    try:
        weight_map = _document(directory / INDEX).get("weight_map")
    except FileNotFoundError:
        if len(names) > 1:
            yield Problem(kind="no-index", where=INDEX, text=f"is missing beside {len(names)} shards")
        return
    except (OSError, ValueError) as error:
        yield Problem(kind="broken-index", where=INDEX, text=f"cannot be read: {error}")
        return
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        yield Problem(kind="broken-index", where=INDEX, text="has no weight_map of tensor to file")
        return
    outside = {name for name in weight_map.values() if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name}
    for name in sorted(outside):
        yield Problem(kind="index-outside", where=INDEX, text=f"names the file '{_short(name)}', which is not in this directory")
    for name in sorted(set(weight_map.values()) - set(names) - outside):
        yield Problem(kind="missing-shard", where=name, text="is named by the index and missing")
    for name in sorted(set(names) - set(weight_map.values())):
        yield Problem(kind="stray-shard", where=name, text="is not named by the index")
    held = {(tensor.name, tensor.shard) for tensor in tensors}
    for tensor, shard in weight_map.items():
        if shard in names and shard not in unreadable and (tensor, shard) not in held:
            yield Problem(kind="index-disagrees", where=tensor, text=f"should be in {shard} by the index, and is not")
    for held_tensor in tensors:
        if held_tensor.name not in weight_map:
            yield Problem(kind="index-disagrees", where=held_tensor.name, text=f"is in {held_tensor.shard} and not in the index")


def quantisation(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[Problem]:
    """Where dtypes and scale shapes of the tensors contradict the quantization_config, or one another."""
    told = config.get("quantization_config")
    told = told if isinstance(told, dict) else {}
    by_name = {tensor.name: tensor for tensor in tensors}
    weights = [tensor for tensor in tensors if tensor.dtype == "F8_E4M3" and tensor.name.endswith(".weight")]
    if not told and weights:
        yield Problem(kind="quantisation", where="config.json", text=f"has no quantization_config, but {len(weights)} tensors are F8_E4M3")
    if told.get("quant_method") == "fp8" and tensors and not weights:
        yield Problem(kind="quantisation", where="config.json", text="says fp8, and no tensor is F8_E4M3")
    block = told.get("weight_block_size")
    if block is not None:
        if _counts(block) and len(block) == 2 and all(block):
            yield from _scales(by_name, weights, (block[0], block[1]), str(told.get("scale_fmt") or ""))
        else:
            yield Problem(kind="quantisation", where="config.json", text="has a weight_block_size that is not two positive numbers")
    yield from _odd_dtypes(tensors)


def _scales(by_name: Mapping[str, Tensor], weights: Sequence[Tensor], block: tuple[int, int], scale_fmt: str) -> Iterator[Problem]:
    allowed = ("F32", "F8_E8M0") if scale_fmt == "ue8m0" else ("F32",)
    for weight in weights:
        if len(weight.shape) != 2:
            continue
        stem = weight.name.removesuffix(".weight")
        scale = next((by_name[stem + end] for end in SCALE_ENDS if stem + end in by_name), None)
        if scale is None:
            yield Problem(kind="scale-missing", where=weight.name, text="is F8_E4M3 and has no scale beside it")
            continue
        expected = tuple(-(-size // step) for size, step in zip(weight.shape, block, strict=True))
        if scale.shape != expected:
            yield Problem(
                kind="scale-shape", where=scale.name,
                text=f"is {_shape(scale.shape)}; {_shape(weight.shape)} in blocks of {_shape(block)} needs {_shape(expected)}",
            )  # fmt: skip
        if scale.dtype not in allowed:
            told = f"scale_fmt {scale_fmt}" if scale_fmt else "no scale_fmt"
            yield Problem(kind="scale-dtype", where=scale.name, text=f"is {scale.dtype}; with {told} it is {' or '.join(allowed)}")
    for name in by_name:
        if not name.endswith(".weight_scale_inv"):
            continue
        weight_or_none = by_name.get(name.removesuffix("_scale_inv"))
        if weight_or_none is None:
            yield Problem(kind="scale-alone", where=name, text="has no weight beside it")
        elif weight_or_none.dtype != "F8_E4M3":
            yield Problem(kind="wrong-dtype", where=weight_or_none.name, text=f"is {weight_or_none.dtype}; its scale says F8_E4M3")


def _odd_dtypes(tensors: Sequence[Tensor]) -> Iterator[Problem]:
    """Tensors whose dtype differs from that of nearly all others with the same role in other layers and experts."""
    roles: dict[str, list[Tensor]] = defaultdict(list)
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        roles[re.sub(r"\.\d+\.", ".N.", re.sub(r"\.\d+\.", ".N.", tensor.name))].append(tensor)
    for group in roles.values():
        (usual, count), *others = Counter(tensor.dtype for tensor in group).most_common()
        if others and len(group) >= 3 and count * 10 >= len(group) * 6:
            for tensor in group:
                if tensor.dtype != usual and f"{tensor.name}_scale_inv" not in names:
                    yield Problem(kind="wrong-dtype", where=tensor.name, text=f"is {tensor.dtype}; {count} others of its role are {usual}")


def _missing_layers(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[Problem]:
    layers = config.get("num_hidden_layers")
    there = {tensor.layer for tensor in tensors} - {None}
    if type(layers) is int and 0 < layers <= 10_000 and there:
        for number in sorted(set(range(layers)) - {item for item in there if item is not None}):
            yield Problem(kind="missing-layer", where=f"layer {number}", text=f"has no tensor; config.json says {layers} layers")


def _gathered(problems: Sequence[Problem]) -> Iterator[Problem]:
    """One problem of each kind and text pattern, with how many there are: a bad conversion makes thousands."""
    groups: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.kind, re.sub(r"\d+", "N", problem.text)].append(problem)
    for group in groups.values():
        yield Problem(kind=group[0].kind, where=_short(group[0].where), text=group[0].text, count=len(group))


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "a scalar"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
