"""What the checks of a profile have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsdoctor.facts import Sections
from dsdoctor.findings import NotApplicable

if TYPE_CHECKING:
    from dsdoctor.purpose import Purpose


def nobody_asked(purpose: Purpose, sections: Sections) -> NotApplicable:
    """What to say where no profile was chosen: what is installed, and how to choose."""
    found = purpose.fitness(sections).profiles
    if found:
        return NotApplicable(reason=f"no profile was chosen; by what is installed it could be {', '.join(found)} (--profile {found[0]})")
    return NotApplicable(reason="no profile was chosen (dsdoctor list profiles)")
