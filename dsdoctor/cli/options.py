"""Options and formats that several commands share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Format(str, enum.Enum):
    """How an answer is written to standard output."""

    TERMINAL = "terminal"
    JSON = "json"


class ReportFormat(str, enum.Enum):
    """How the judgement of a node is written to standard output."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    PROMETHEUS = "prometheus"
    NAGIOS = "nagios"
    NPD = "npd"
    NHC = "nhc"
    HTML = "html"


class ExitStyle(str, enum.Enum):
    """Whose exit codes a run ends with."""

    DEFAULT = "default"
    NAGIOS = "nagios"
    NPD = "npd"
    NHC = "nhc"


class FailOn(str, enum.Enum):
    """The mildest severity that makes the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="What to print: terminal or json.")]
ReportFormatOption = Annotated[
    ReportFormat, typer.Option("--format", "-f", metavar="NAME", help=f"What to print: {', '.join(item.value for item in ReportFormat)}.")
]
StyledFormatOption = Annotated[
    ReportFormat | None,
    typer.Option(
        "--format", "-f", metavar="NAME",
        help=f"What to print: {', '.join(item.value for item in ReportFormat)}. Default: terminal, or what --exit-style wants.",
    ),
]  # fmt: skip
ExitStyleOption = Annotated[
    ExitStyle,
    typer.Option("--exit-style", help="Exit codes and line of a caller: nagios, npd (node-problem-detector), nhc (Node Health Check)."),
]
ExpectOption = Annotated[str, typer.Option("--expect", metavar="FILE", help="YAML file of what this site wants of a node.")]
OutputOption = Annotated[
    list[str],
    typer.Option(
        "--output", "-o", metavar="FILE",
        help="Also write the report there; by suffix .json .md .xml (JUnit) .sarif .gitlab.json .prom .html .txt. Repeatable.",
    ),
]  # fmt: skip
LabelOption = Annotated[
    str,
    typer.Option("--label", metavar="TEXT", help="What this node is called, in your words; kept as it is, also where names are redacted."),
]
OnlyOption = Annotated[list[str], typer.Option("--only", metavar="ID", help="Run only this check or area. Repeatable, or a comma list.")]
IgnoreOption = Annotated[
    list[str], typer.Option("--ignore", metavar="ID", help="Leave out this check or area. Repeatable, or a comma list.")
]
WaiversOption = Annotated[str, typer.Option("--waivers", metavar="FILE", help="YAML file of accepted findings, with reason and expiry.")]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Exit 1 from this severity on: error, warning, info or never.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Unknown outcomes count as findings.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, sources and timings.")]
PythonOption = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Interpreter or environment to examine. Default: the active one, else this one.")
]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="N,…", help="Look at these GPUs only (NVML indices).")]
FullOption = Annotated[bool, typer.Option("--full", help="Also the slow GPU tests; with --model DIRECTORY, how fast that is read.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="No import of torch, no GPU time.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Give up on any probe after this many seconds.")]
SettleOption = Annotated[
    float, typer.Option("--settle", min=0, metavar="S", help="Wait up to S seconds for what is still starting: fabric, IMEX, services.")
]
WatchOption = Annotated[
    float, typer.Option("--watch", min=0, metavar="S", help="Read the error counters again after S seconds, and judge how they grow.")
]
MatrixOption = Annotated[
    list[str], typer.Option("--matrix", metavar="DIR", help="A folder with matrices of your own; their rows come first. Repeatable.")
]
ProfileOption = Annotated[
    list[str],
    typer.Option(
        "--profile", metavar="NAME", help="What the node is to be fit for; see: dsdoctor list profiles. Repeatable, or a comma list."
    ),
]
ModelOption = Annotated[
    list[str],
    typer.Option("--model", metavar="NAME|DIR", help="A model that has to fit, by name or as a checkpoint directory. Repeatable."),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, max=1024, metavar="N", help="How many nodes like this one serve it together.")]
DiskOption = Annotated[
    float, typer.Option("--disk-gb-s", min=0.0, metavar="GB/S", help="Read rate of the disk with the weights, for the load time.")
]
PidOption = Annotated[
    int,
    typer.Option(
        "--pid", min=0, metavar="PID", help="Examine this running Python process: its interpreter, environment, libraries, limits."
    ),
]
ServiceOption = Annotated[
    str, typer.Option("--service", metavar="URL", help="Also ask a running vLLM or SGLang for its health and models (uses the network).")
]
SourceArgument = Annotated[str, typer.Argument(metavar="FILE", help="A recording, a report, or example:NAME.")]
