"""Read the findings that a site accepts: a YAML file of waivers, each with a reason and, better, an expiry.

```yaml
waivers:
  - check: driver.branch-eol        # an id, or a glob such as pcie.*
    subject: "driver 535*"          # optional: only findings about this subject (glob)
    reason: the upgrade is planned for the next maintenance window
    until: 2027-01-31               # optional: last day on which it holds
```
"""

from __future__ import annotations

import datetime
import difflib
import fnmatch
from collections.abc import Collection
from typing import TYPE_CHECKING

from dsdoctor.diagnose import Waiver
from dsdoctor.errors import InputError

if TYPE_CHECKING:
    import yaml

KEYS = ("check", "subject", "reason", "until")
SIZE_LIMIT_BYTES = 1 << 20


def load(path: str, *, known: Collection[str]) -> tuple[Waiver, ...]:
    """The waivers in a file; `known` are the ids that exist. Raises InputError with file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SIZE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not UTF-8 text").lower()
        raise InputError(f"{path}: {reason}; expected a YAML file of waivers") from None
    if len(text) > SIZE_LIMIT_BYTES:
        raise InputError(f"{path}: larger than 1 MiB; expected a YAML file of waivers")
    return parse(text, path, known=known)


def parse(text: str, name: str, *, known: Collection[str]) -> tuple[Waiver, ...]:
    """The waivers in a YAML text; `name` is what errors call it."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name}: not YAML: {str(error).partition(chr(10))[0] or 'nested too deeply'}") from None
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise _wrong(name, root, "expected 'waivers:' with a list under it")
    entries = _entries(name, root, ("waivers",))
    listed = entries.get("waivers")
    if listed is None or _is_null(listed):
        return ()
    if not isinstance(listed, yaml.SequenceNode):
        raise _wrong(name, listed, "waivers: expected a list")
    return tuple(_waiver(name, node, known) for node in listed.value)


def _waiver(name: str, node: yaml.Node, known: Collection[str]) -> Waiver:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise _wrong(name, node, "expected a waiver with the keys check and reason")
    entries = _entries(name, node, KEYS)
    for key in ("check", "reason"):
        if key not in entries:
            raise _wrong(name, node, f"the waiver has no {key}{': say why this finding is accepted' if key == 'reason' else ''}")
    check = _text(name, entries["check"], "check")
    reason = _text(name, entries["reason"], "reason")
    if not any(fnmatch.fnmatchcase(item, check) for item in known):
        raise _wrong(name, entries["check"], f"no check is called '{check}'{_nearest(check, known)}")
    return Waiver(
        check=check,
        reason=reason,
        subject=_text(name, entries["subject"], "subject") if "subject" in entries else "*",
        until=_date(name, entries["until"]) if "until" in entries else None,
    )


def _entries(name: str, node: yaml.MappingNode, keys: Collection[str]) -> dict[str, yaml.Node]:
    found: dict[str, yaml.Node] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(keys)}"
            raise _wrong(name, key_node, f"unknown key '{key}': {hint}")
        if key in found:
            raise _wrong(name, key_node, f"the key '{key}' stands twice")
        found[key] = value_node
    return found


def _text(name: str, node: yaml.Node, key: str) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode) or _is_null(node) or not str(node.value).strip():
        raise _wrong(name, node, f"{key}: expected text")
    return " ".join(str(node.value).split())


def _date(name: str, node: yaml.Node) -> datetime.date | None:
    if _is_null(node):
        return None
    try:
        return datetime.datetime.strptime(str(node.value).strip(), "%Y-%m-%d").date()
    except ValueError:
        raise _wrong(name, node, f"until: expected a date such as 2027-01-31, found '{str(node.value)[:40]}'") from None


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _nearest(check: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(check, sorted(known), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(near)}?" if near else " (see dsdoctor list checks)"


def _wrong(name: str, node: yaml.Node, problem: str) -> InputError:
    return InputError(f"{name}:{node.start_mark.line + 1}: {problem}")
