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
import fnmatch
from collections.abc import Collection
from typing import TYPE_CHECKING

from dsdoctor.diagnose import Waiver
from dsdoctor.site_file import compose, entries, is_null, nearest, read_text, text_of, wrong

if TYPE_CHECKING:
    import yaml

KEYS = ("check", "subject", "reason", "until")


def load(path: str, *, known: Collection[str]) -> tuple[Waiver, ...]:
    """The waivers in a file; `known` are the ids that exist. Raises InputError with file and line."""
    return parse(read_text(path, "waivers"), path, known=known)


def parse(text: str, name: str, *, known: Collection[str]) -> tuple[Waiver, ...]:
    """The waivers in a YAML text; `name` is what errors call it."""
    import yaml

    root = compose(text, name)
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise wrong(name, root, "expected 'waivers:' with a list under it")
    listed = entries(name, root, ("waivers",)).get("waivers")
    if listed is None or is_null(listed):
        return ()
    if not isinstance(listed, yaml.SequenceNode):
        raise wrong(name, listed, "waivers: expected a list")
    return tuple(_waiver(name, node, known) for node in listed.value)


def _waiver(name: str, node: yaml.Node, known: Collection[str]) -> Waiver:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise wrong(name, node, "expected a waiver with the keys check and reason")
    found = entries(name, node, KEYS)
    for key in ("check", "reason"):
        if key not in found:
            raise wrong(name, node, f"the waiver has no {key}{': say why this finding is accepted' if key == 'reason' else ''}")
    check = text_of(name, found["check"], "check")
    reason = text_of(name, found["reason"], "reason")
    if not any(fnmatch.fnmatchcase(item, check) for item in known):
        raise wrong(name, found["check"], f"no check is called '{check}'{nearest(check, known) or ' (see dsdoctor list checks)'}")
    return Waiver(
        check=check,
        reason=reason,
        subject=text_of(name, found["subject"], "subject") if "subject" in found else "*",
        until=_date(name, found["until"]) if "until" in found else None,
    )


def _date(name: str, node: yaml.Node) -> datetime.date | None:
    if is_null(node):
        return None
    try:
        return datetime.datetime.strptime(str(node.value).strip(), "%Y-%m-%d").date()
    except ValueError:
        raise wrong(name, node, f"until: expected a date such as 2027-01-31, found '{str(node.value)[:40]}'") from None
