"""What a line of Xid 144 to 150 (NVLink 5) says, read by the rows of matrices/nvlink-xids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsdoctor.facts import Xid
from dsdoctor.record import dataclass

if TYPE_CHECKING:
    from dsdoctor.rows_health import NvlinkXids

LINE = re.compile(
    r"Xid \([^)]*\): (?P<code>\d{3}),(?: pid=[^,]*, name=[^,]*,)? (?P<unit>[A-Z][A-Za-z0-9_/ ]{1,60}?) (?P<severity>Nonfatal|Fatal) "
    r"XC\d i\d+ Link (?P<link>-?\d+) \((?P<information>0x[0-9a-fA-F]{1,8}) (?P<status>0x[0-9a-fA-F]{1,8})"
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded line."""

    unit: str
    link: int
    """-1: no single link."""
    is_fatal: bool
    """What the driver itself calls it."""
    bucket: str
    """What the catalogue asks for; empty where no row fits the line."""

    @property
    def words(self) -> str:
        """'NETIR_LINK_EVT, link 8'."""
        return self.unit + (f", link {self.link}" if self.link >= 0 else "")


def decode(event: Xid, rules: NvlinkXids, branch: int | None) -> Decoded | None:
    """What the line of an event says; None where it has no details (an older driver, a line that was cut short). `branch`: of the driver."""
    found = LINE.search(event.text)
    if not found or int(found["code"]) != event.code:
        return None
    rule = rules.rule(event.code, found["unit"], int(found["information"], 16), int(found["status"], 16), branch)
    return Decoded(found["unit"], int(found["link"]), found["severity"] == "Fatal", rule.bucket if rule else "")
