"""The target interpreter does not start, or its files may not be read.

What it looks at
    Whether the Python that the stack runs on could be found and started, what starting it said, and whether its packages could be read.

Why it matters
    Nothing can run on an interpreter that does not start: a virtual environment that was moved, whose base interpreter was removed, or that belongs to
    another user. What the doctor then says about packages comes from files alone, and may be incomplete.

Sources
    Python documentation, "venv": environments are not portable, and refer to the interpreter they were made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsdoctor.checks._check import Case, check
from dsdoctor.facts import Interpreter, Package, Section, State, absent, unreadable
from dsdoctor.findings import Doubt, Evidence, Finding, Severity, Status
from dsdoctor.remedies import Remedies

SOURCE = "Python documentation: venv — https://docs.python.org/3/library/venv.html"
NO_ANSWER = "no answer"
REFUSED = ("permission denied", "not permitted", "errno 13")

CASES = (
    Case(
        title="the base interpreter of the virtual environment is gone",
        sections={
            "interpreter": Interpreter(
                path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", start_error="/opt/venv/bin/python: No such file or directory"
            )
        },
        status=Status.FAIL,
        says="No such file or directory",
    ),
    Case(
        title="it belongs to another user",
        sections={"interpreter": unreadable("/root/venv/bin/python: Permission denied")},
        status=Status.FAIL,
        says="Permission denied",
    ),
    Case(
        title="it starts, but its packages may not be read",
        sections={
            "interpreter": Interpreter(path="/opt/venv/bin/python", chosen_by="--python", version="3.12.3"),
            "packages": unreadable("/opt/venv/lib/python3.12/site-packages: Permission denied"),
        },
        status=Status.FAIL,
        says="packages",
    ),
    Case(
        title="it starts and its packages are known",
        sections={
            "interpreter": Interpreter(path="/opt/venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3"),
            "packages": (Package(name="torch", version="2.11.0"),),
        },
        status=Status.PASS,
    ),
    Case(
        title="the probe gave no answer in time: that says nothing about the interpreter",
        sections={"interpreter": unreadable("probe interpreter gave no answer within 30 s")},
        status=Status.UNKNOWN,
        says="no answer",
    ),
    Case(
        title="a slow file system: it did not answer in time",
        sections={"interpreter": Interpreter(path="/nfs/venv/bin/python", chosen_by="VIRTUAL_ENV", start_error="no answer within 10 s")},
        status=Status.UNKNOWN,
        says="no answer",
    ),
    Case(title="nobody looked for an interpreter", sections={}, status=Status.UNKNOWN, says="interpreter"),
    Case(title="no Python on this node", sections={"interpreter": absent("no Python")}, status=Status.UNKNOWN, says="no Python"),
)


@check(
    "system.python-unreadable",
    Severity.ERROR,
    explains=("smoke.*",),
    settle="python -c 'import sys; print(sys.executable, sys.version)'",
    cases=CASES,
)
def python_unreadable(
    interpreter: Section[Interpreter], packages: Section[tuple[Package, ...]], remedies: Remedies
) -> Iterator[Finding | Doubt]:
    """Find an interpreter that does not start or may not be read."""
    target = interpreter.value
    if target is None:
        if _was_refused(interpreter):
            yield _finding(
                "the target interpreter",
                f"The target interpreter may not be read: {interpreter.why}.",
                "interpreter",
                interpreter.why,
                remedies,
            )
        else:
            yield Doubt(subject="the target interpreter", reason=f"the interpreter is not known ({interpreter.why or 'nobody looked'})")
        return
    if NO_ANSWER in target.start_error:
        yield Doubt(
            subject=target.path, reason=f"whether it starts is not known ({target.start_error})", settle=f"time {target.path} -c pass"
        )
    elif target.start_error:
        yield _finding(
            target.path, f"{target.path} does not start: {target.start_error}.", "interpreter.start_error", target.start_error, remedies
        )
    elif _was_refused(packages):
        yield _finding(target.path, f"The packages of {target.path} may not be read: {packages.why}.", "packages", packages.why, remedies)


def _was_refused(section: Section[Any]) -> bool:
    """Whether the node itself refused; a probe that crashed or timed out says nothing about it."""
    return section.state is State.UNREADABLE and any(words in section.why.lower() for words in REFUSED)


def _finding(subject: str, summary: str, where: str, said: str, remedies: Remedies) -> Finding:
    case = "permission" if any(words in said.lower() for words in REFUSED) else "broken"
    return Finding(
        subject=subject,
        summary=summary.replace("..", "."),
        cause="The environment belongs to another user, or its rights shut this user out."
        if case == "permission"
        else "The environment was moved, the interpreter it was made from is gone, or it was built for another system.",
        evidence=(Evidence(where=where, value=said),),
        expected="an interpreter that this user can start and whose packages can be read",
        remedies=remedies("general"),
        sources=(SOURCE,),
    )
