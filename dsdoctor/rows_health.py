"""The rows of matrices/nvlink-xids and matrices/fleet-words: how Xids of NVLink 5 are decoded, and what fleet tools call a finding."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from dsdoctor.record import dataclass
from dsdoctor.rows import Basis, Source

WORD_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvlinkXidRule:
    """What one pattern of an NVLink 5 Xid asks for."""

    code: int
    units: tuple[str, ...]
    """Names of the unit, as a line may have them."""
    bits: str
    """Interrupt information of drivers before the new layout, bit 31 first; `-` is any."""
    bits_new: str
    error_status: tuple[int, ...] = ()
    """The second word; empty: any."""
    bucket: str
    """RESET_GPU, IGNORE, or XID_154: the Xid 154 that comes with it tells."""
    basis: Basis

    def fits(self, unit: str, information: int, status: int, new_layout: bool | None) -> bool:
        """Whether a line is of this kind; without a known layout either may fit."""
        layouts = {True: (self.bits_new,), False: (self.bits,), None: (self.bits_new, self.bits)}[new_layout]
        return (
            any(name in self.units for name in (unit, *unit.split("/")))
            and (not self.error_status or status in self.error_status)
            and any(_match(pattern, information) for pattern in layouts)
        )


def _match(pattern: str, word: int) -> bool:
    return all(bit == "-" or bit == found for bit, found in zip(pattern, f"{word:0{WORD_BITS}b}"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvlinkXids:
    """How the lines of Xid 144 to 150 (NVLink 5) are decoded."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    new_layout_from_branch: int
    """First driver branch that lays out the bits in the new way."""
    rules: tuple[NvlinkXidRule, ...]

    def codes(self) -> frozenset[int]:
        """The Xids that have rules."""
        return frozenset(rule.code for rule in self.rules)

    def rule(self, code: int, unit: str, information: int, status: int, branch: int | None) -> NvlinkXidRule | None:
        """The rule of a line; None where no rule, or rules that ask for different things, fit it. `branch`: of the driver, where known."""
        new_layout = None if branch is None else branch >= self.new_layout_from_branch
        found = [rule for rule in self.rules if rule.code == code and rule.fits(unit, information, status, new_layout)]
        return found[0] if len({rule.bucket for rule in found}) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetVocabularyWord:
    """A word that a fleet tool understands."""

    word: str
    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetWord:
    """What fleet tools call a finding of a check."""

    check: str
    """Id or glob."""
    case: str = ""
    """Which of several findings of the check (a bucket of the Xid catalogue, a recovery action); empty: any."""
    severity: str = ""
    """Only findings of this severity; empty: any."""
    dcgm: str
    """Severity in DCGM's words."""
    action: str
    """recommendedAction in NVSentinel's words."""
    basis: Basis

    def describes(self, check: str, case: str, severity: str) -> bool:
        """Whether it is for such a finding."""
        return fnmatchcase(check, self.check) and self.case in ("", case) and self.severity in ("", severity)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetWords:
    """What DCGM and NVSentinel call what this doctor finds; the first row that describes a finding holds."""

    matrix: str
    schema: int
    seen: str
    sources: Mapping[str, Source]
    dcgm_severities: tuple[FleetVocabularyWord, ...]
    recommended_actions: tuple[FleetVocabularyWord, ...]
    findings: tuple[FleetWord, ...]

    def of(self, check: str, case: str, severity: str) -> FleetWord | None:
        """The words for a finding of a check."""
        return next((row for row in self.findings if row.describes(check, case, severity)), None)

    def rows_of(self, check: str) -> tuple[FleetWord, ...]:
        """Every row that may describe a finding of a check, without those that an earlier row hides."""
        found: list[FleetWord] = []
        for row in self.findings:
            if fnmatchcase(check, row.check) and not any(
                other.case in ("", row.case) and other.severity in ("", row.severity) for other in found
            ):
                found.append(row)
        return tuple(found)
