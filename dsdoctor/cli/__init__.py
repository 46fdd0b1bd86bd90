"""The command line: arguments → source → diagnose → render → exit code. No logic of its own; everything is imported where it is used.

A run has one command, so `main` builds the parser of that command alone: building all of them costs more than most answers.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from dsdoctor.cli.light import LightCommand, LightGroup
from dsdoctor.cli.steps import leave_broken_pipe, print_text

COMMANDS = {
    "check": "node",
    "record": "node",
    "replay": "node",
    "triage": "node",
    "smoke": "node",
    "diff": "node",
    "topo": "topology",
    "advise": "stack",
    "plan": "stack",
    "fleet": "fleet",
    "explain": "knowledge",
    "list": "knowledge",
    "matrix": "matrix",
    "expect": "expect",
}
"""Command → the module of this package that has it, in the order of `--help`. A module with `app` is a group of commands."""


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The parser of these commands; of all without names."""
    app = typer.Typer(
        cls=LightGroup,
        name="dsdoctor",
        help="Can this node run this stack, and if not, what exactly do I do?",
        epilog="Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 usage error or unreadable input, 3 the doctor itself failed.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_options)
    for name in names:
        module = importlib.import_module(f"dsdoctor.cli.{COMMANDS[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, cls=LightCommand)(getattr(module, f"{name}_command"))
    return app


def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from dsdoctor import __version__

        print_text(f"dsdoctor {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command `dsdoctor`; without a command it is `dsdoctor check`."""
    # A run is short and makes many small records that all stay alive: looking for garbage among them is a twentieth of its time.
    gc.set_threshold(200_000, 50, 50)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "check")
    asked = arguments[:1] if arguments[0] in COMMANDS else COMMANDS
    try:
        command_line(asked)(args=arguments, prog_name="dsdoctor")
    except SystemExit as ended:
        if ended.code != 2 or isinstance(ended.__context__, typer.Exit):  # then the command ended, in its own style
            raise
        raise SystemExit(_refused(arguments, ended.__context__)) from None
    except BrokenPipeError:
        leave_broken_pipe(0)
    finally:
        # All of it goes with the process: the collections at its end need not look at it.
        gc.freeze()


def _refused(arguments: Sequence[str], error: BaseException | None) -> int:
    """The exit code for arguments that the parser refused; in the style that they ask for, with its line."""
    styles = [word.partition("=")[2] or after for word, after in zip(arguments, [*arguments[1:], ""]) if word.startswith("--exit-style")]
    if not styles or styles[0] not in ("nagios", "npd", "nhc"):
        return 2
    from dsdoctor import exit_styles
    from dsdoctor.render import formats

    text = formats.failure(styles[0], getattr(error, "format_message", lambda: "wrong usage")(), 2)
    if text:
        print_text(text)
    return exit_styles.of_failure(styles[0], 2)
