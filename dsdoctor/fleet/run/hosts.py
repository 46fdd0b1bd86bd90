"""Lists of host names: a file, `node[01-16],gpu7`, or whatever ClusterShell's `nodeset` understands. Names are data: checked here, once."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from dsdoctor.errors import InputError, UsageError
from dsdoctor.fleet.run.engine import Node

NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?")
"""A host name or address, with a user before @; never an option, a path or a word of a shell."""
LIMIT = 1 << 16
NODESET_LIMIT_S = 20.0


def read(text: str) -> tuple[Node, ...]:
    """The nodes that `--hosts` names: a file with names or ranges, one or several a line, else the text itself. Raises UsageError or InputError."""
    if os.path.isfile(text):
        names = list(_of_file(text))
    elif "/" in text:
        raise InputError(f"--hosts {text}: no such file")
    else:
        names = list(_of_text(text, f"--hosts {text}"))
    unique = list(dict.fromkeys(names))
    if not unique:
        raise InputError(f"--hosts {text}: no host in it; one name or range such as node[01-16] a line")
    return tuple(Node(name=name, address=name.rpartition("@")[2], number=number) for number, name in enumerate(unique))


def expand(pattern: str) -> Iterator[str]:
    """The names of `rack[1-2]-node[01-16,20]`, in order; zeros before a number stay, and so does a range that is none."""
    parts = re.split(r"\[([0-9,-]+)\]", pattern)
    choices = [list(_numbers(part)) if place % 2 else [part] for place, part in enumerate(parts)]
    for words in itertools.islice(itertools.product(*choices), LIMIT + 1):
        yield "".join(words)


def _of_file(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(1 << 22).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--hosts {path}: {getattr(error, 'strerror', None) or 'not text'}; expected a list of host names") from None
    for number, line in enumerate(lines, 1):
        # As in the host files of MPI: what follows a name (slots=8) is not a name.
        words = line.partition("#")[0].split()
        for word in [word for place, word in enumerate(words) if not place or "=" not in word]:
            yield from _of_text(word, f"{path}, line {number}")


def _of_text(text: str, where: str) -> Iterator[str]:
    if re.search(r"[@!&^*]", re.sub(r"[\w.-]+@", "", text)) and shutil.which("nodeset"):
        text = _by_nodeset(text, where)
    for pattern in filter(None, re.split(r"[,\s](?![^\[]*\])", text)):
        names = list(expand(pattern))
        if len(names) > LIMIT:
            raise InputError(f"{where}: '{pattern}' names more than {LIMIT} hosts")
        for name in names:
            if not NAME.fullmatch(name):
                raise InputError(f"{where}: '{name}' is no host name; expected names or ranges such as node[01-16]")
            yield name


def _by_nodeset(text: str, where: str) -> str:
    """Groups and set operations, by ClusterShell."""
    try:
        done = subprocess.run(["nodeset", "-e", "--", text], capture_output=True, text=True, timeout=NODESET_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{where}: nodeset: {error}") from None
    if done.returncode:
        raise InputError(f"{where}: {done.stderr.strip() or 'nodeset does not understand it'}")
    return done.stdout


def _numbers(text: str) -> Iterator[str]:
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not dash:
            yield first
        elif first.isdecimal() and last.isdecimal() and 0 <= int(last) - int(first) < LIMIT:
            yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        else:
            yield f"[{part}]"


def numbered(names: Sequence[Node]) -> tuple[Node, ...]:
    """The same nodes with their places in this order."""
    import dataclasses

    return tuple(dataclasses.replace(node, number=number) for number, node in enumerate(names))
