"""Read YAML that a site writes (waivers, expectations) node by node, so that every slip is named with its file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING

from dsdoctor.errors import InputError

if TYPE_CHECKING:
    import yaml

SIZE_LIMIT_BYTES = 1 << 20


def read_text(path: str, what: str) -> str:
    """The text of a file; `what` is what it should hold. Raises InputError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not UTF-8 text").lower()
        raise InputError(f"{path}: {reason}; expected a YAML file of {what}") from None
    if len(text) > SIZE_LIMIT_BYTES:
        raise InputError(f"{path}: larger than 1 MiB; expected a YAML file of {what}")
    return text


def compose(text: str, name: str) -> yaml.Node | None:
    """The root node of a YAML text, None when it is empty; `name` is what errors call it. Raises InputError."""
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name}: not YAML: {str(error).partition(chr(10))[0] or 'nested too deeply'}") from None


def entries(name: str, node: yaml.MappingNode, keys: Collection[str] | None, path: str = "") -> dict[str, yaml.Node]:
    """The values of a mapping by key, each key once and one of `keys` (None: any); `path` leads to the mapping."""
    found: dict[str, yaml.Node] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        if keys is not None and key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(keys)}"
            raise wrong(name, key_node, f"unknown key '{key}': {hint}", path)
        if key in found:
            raise wrong(name, key_node, f"the key '{key}' stands twice", path)
        found[key] = value_node
    return found


def text_of(name: str, node: yaml.Node, key: str) -> str:
    """The text of a scalar, on one line."""
    import yaml

    if not isinstance(node, yaml.ScalarNode) or is_null(node) or not str(node.value).strip():
        raise wrong(name, node, f"{key}: expected text")
    return " ".join(str(node.value).split())


def is_null(node: yaml.Node) -> bool:
    """Whether a key stands there without a value."""
    return bool(node.tag == "tag:yaml.org,2002:null")


def nearest(word: str, known: Collection[str]) -> str:
    """': did you mean a or b?' with the nearest names that exist; empty when none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(near)}?" if near else ""


def wrong(name: str, node: yaml.Node, problem: str, path: str = "") -> InputError:
    """The error about a node: file, line, key and what is wrong."""
    return InputError(f"{name}:{node.start_mark.line + 1}: {f'{path}: ' if path else ''}{problem}")
