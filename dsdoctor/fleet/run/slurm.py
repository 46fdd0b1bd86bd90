"""Slurm: one srun a node, so that a node that is down or busy holds up no other."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence

from dsdoctor.errors import UsageError
from dsdoctor.fleet.run.engine import Engine, Node, one_line
from dsdoctor.fleet.run.process import Processes

ANSWER_S = 60.0
DOWN = ("down", "drain", "drng", "fail", "maint", "boot", "pow", "unk", "inval", "reboot", "no_respond")
"""Beginnings of node states in which Slurm starts nothing."""
SILENT = "*"
"""Follows the state of a node that does not answer the controller."""


def engine(named: Sequence[Node], options: Sequence[str]) -> Engine:
    """srun with the user's options; the nodes are those named, else those of the job it runs in, else all of the partition."""
    partition, listed, own = _understood(options)
    inside = "SLURM_JOB_ID" in os.environ

    def nodes() -> tuple[Node, ...]:
        wanted = listed or (os.environ.get("SLURM_JOB_NODELIST", "") if inside and not named else "")
        names = [node.name for node in named] or (hosts_of(wanted) if wanted else None)
        if inside and names is not None:
            return tuple(Node(name=name, address=name, number=number) for number, name in enumerate(names))
        return _by_state(names, partition)

    def argv_of(node: Node, command: Sequence[str]) -> list[str]:
        # Beside other steps of the same job, and all GPUs of the node in any case that the job has them.
        beside = ["--overlap"] if inside else []
        return [
            "srun",
            *own,
            *beside,
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node.name}",
            "--input=none",
            "--job-name=dsdoctor",
            *command,
        ]

    return Processes(nodes, argv_of, "srun")


def hosts_of(text: str) -> list[str]:
    """The names in Slurm's own notation, by Slurm."""
    return _ask("scontrol", "show", "hostnames", text).split()


def _understood(options: Sequence[str]) -> tuple[str, str, list[str]]:
    """Partition and node list among srun's options, and the options to hand on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-p", "--partition", default="")
    parser.add_argument("-w", "--nodelist", default="")
    parser.add_argument("-N", "--nodes", default="")
    parser.add_argument("-n", "--ntasks", default="")
    try:
        known, rest = parser.parse_known_args(list(options))
    except argparse.ArgumentError as error:
        raise UsageError(f"--slurm: {error}") from None
    if known.nodes or known.ntasks:
        raise UsageError(
            "--slurm starts one task on each node and takes no number of them: name nodes with --hosts or -w, "
            "or run it inside a job (salloc -N 4 dsdoctor fleet run --slurm)"
        )
    return known.partition, known.nodelist, [*(("--partition", known.partition) if known.partition else ()), *rest]


def _by_state(names: Sequence[str] | None, partition: str) -> tuple[Node, ...]:
    """The nodes with what Slurm says of their state; a name that Slurm does not know is a node that cannot be asked."""
    states: dict[str, str] = {}
    for line in _ask("sinfo", "-h", "-N", "-o", "%N|%t|%E", *(("-p", partition) if partition else ())).splitlines():
        name, state, reason = [*line.split("|", 2), "", ""][:3]
        silent = state.endswith(SILENT)
        down = state.startswith(DOWN) or silent
        said = "" if reason in ("", "none") else f": {reason}"
        states[name] = (
            f"Slurm starts nothing on it, its state is {state.rstrip(SILENT)}{' and it does not answer' if silent else ''}{said}"
            if down
            else ""
        )
    if not states and names is None:
        raise UsageError(f"--slurm: sinfo lists no node{f' of partition {partition}' if partition else ''}; name nodes with --hosts")
    chosen = list(states) if names is None else names
    elsewhere = f"Slurm has no node of that name{f' in partition {partition}' if partition else ''}"
    return tuple(
        Node(name=name, address=name, number=number, unreachable=one_line(states.get(name, elsewhere)))
        for number, name in enumerate(chosen)
    )


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError(f"--slurm: {argv[0]} is not on this machine; run it where Slurm's commands are") from None
    except subprocess.SubprocessError:
        raise UsageError(f"--slurm: {argv[0]} gave no answer within {ANSWER_S:.0f} s; is the controller up (scontrol ping)?") from None
    if done.returncode:
        raise UsageError(f"--slurm: {one_line(done.stderr or done.stdout) or f'{argv[0]} failed with {done.returncode}'}")
    return done.stdout
