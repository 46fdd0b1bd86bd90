"""Command lines of the stack, and what container manifests and commands tell: engines, launchers, docker, Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsdoctor.facts import Command
from dsdoctor.sources.triage.fact import Fact, Found, Parser, package
from dsdoctor.sources.triage.lines import Line

FORMAT = "command"
CONTINUED_LINES = 60
TEXT_LIMIT = 2000
OPTION_LIMIT = 100

_PROGRAM = re.compile(
    r"\b(vllm serve|vllm bench|python3? -m vllm\.[\w.]{1,60}|python3? -m sglang\.launch_server|sglang serve|python3? -m sglang\.[\w.]{1,60}|torchrun"
    r"|(?:docker|podman|nerdctl) run|docker compose up|ray start|(?:uv )?pip3? install|deepspeed|accelerate launch|mpirun|srun|kubectl (?:apply|run|describe|exec)"
    r"|python3? -m torch\.distributed\.\w{1,20})(?=\s|$)"
)
_START = re.compile(
    r"\s{0,12}(?:[$#>] |sudo |exec |command: |CMD |RUN |ENTRYPOINT |- |(?:export )?(?:[A-Z_]{2,60}=\S{0,400}\s{1,4}){1,40}|nohup |env ){0,6}"
)
_ASSIGNED = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]{1,60})=(\S{0,400})(?=\s)")
_IMAGE = re.compile(
    r"(?<![\w/.-])((?:[\w.-]{1,80}(?::\d{1,5})?/){0,4}[\w.-]{1,80}:[\w.-]{1,80}|(?:vllm/vllm-openai|lmsysorg/sglang)\b(?::[\w.-]{1,80})?)"
)
_IMAGE_LINE = re.compile(r"\s{0,40}(?:- )?(?:image|Image|FROM|container image):?\s{1,8}[\"']?([\w./:@-]{3,200})[\"']?\s*(?:AS \w{1,40})?$")
_ENGINE_TAG = re.compile(r"(vllm/vllm-openai|lmsysorg/sglang|rocm/vllm):v(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?(?:post|rc)\d{1,3})?)(?:-\S*)?$")
_ENGINES = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang", "rocm/vllm": "vllm"}
_KUBERNETES = re.compile(
    r"\s{0,40}(?:hostNetwork: \w|apiVersion: \S|kind: (?:Pod|Deployment|StatefulSet|Job|DaemonSet)\b|nvidia\.com/gpu: |hostIPC: |emptyDir: )|Node-Selectors:|Warning\s{2,10}Failed"
)


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    skip_to = 0
    for index, line in enumerate(lines):
        text = line.text
        if index < skip_to or not text:
            continue
        image = _IMAGE_LINE.match(text) if "mage" in text or "FROM" in text else None
        if image:
            yield from _of_image(image[1], line)
            continue
        kubernetes = _KUBERNETES.match(text) if ":" in text else None
        if kubernetes:
            yield Fact("container", "kubernetes", True, line, format="kubernetes")
            yield Fact("container", "evidence", text.strip()[:80], line, format="kubernetes")
            continue
        start = _START.match(text)
        found = _PROGRAM.match(text, start.end() if start else 0)
        if not found:
            continue
        joined, skip_to = _joined(lines, index)
        yield from _command(found[1], joined.lstrip("$#> "), line)


def _joined(lines: Sequence[Line], index: int) -> tuple[str, int]:
    """A command with the lines that a backslash joins to it."""
    parts = []
    end = min(len(lines), index + CONTINUED_LINES)
    position = index
    while position < end:
        text = lines[position].text.strip()
        parts.append(text.removesuffix("\\").strip())
        position += 1
        if not text.endswith("\\"):
            break
    return " ".join(parts)[:TEXT_LIMIT], position


def _command(program: str, text: str, line: Line) -> Iterator[Found]:
    arguments = text.partition(program)[2].split(" #")[0].split()
    options = parse_options(arguments)
    if program == "vllm serve" and arguments and not arguments[0].startswith("-"):
        options = {"model": arguments[0], **options}
    if program.endswith(" run") and not program.startswith("kubectl"):
        image = _IMAGE.search(text.partition(program)[2])
        if image:
            options = {"image": image[1], **options}
            yield from _engine(image[1], line)
        yield Fact("container", "runtime", program.split()[0].replace("nerdctl", "containerd"), line, format=FORMAT)
        yield Fact("container", "evidence", text[:80], line, format=FORMAT)
    yield Fact(
        "commands", "", Command(program=_name(program), text=text, options=options, where=line.where), line, line.where or text, FORMAT
    )


def _name(program: str) -> str:
    return re.sub(r"^python3? -m ", "", program).replace("pip3", "pip").removeprefix("uv ")


def _of_image(image: str, line: Line) -> Iterator[Found]:
    command = Command(program="image", text=image, options={"image": image}, where=line.where)
    yield Fact("commands", "", command, line, line.where or image, FORMAT)
    yield from _engine(image, line)


def _engine(image: str, line: Line) -> Iterator[Found]:
    """The engine's own images carry its version in their tag."""
    found = _ENGINE_TAG.search(image)
    if found:
        yield from package(_ENGINES[found[1]], found[2], line, FORMAT)


def parse_options(arguments: Sequence[str]) -> Mapping[str, str]:
    """Options by name: `--tensor-parallel-size 8`, `--tp=8`, `-tp 8`; those without a value are empty."""
    options: dict[str, str] = {}
    position = 0
    while position < len(arguments) and len(options) < OPTION_LIMIT:
        word = arguments[position]
        position += 1
        if not word.startswith("-") or word in ("-", "--"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and position < len(arguments) and not arguments[position].startswith("-"):
            value = arguments[position]
            position += 1
        options[name] = value.strip("\"'")
    return options


PARSERS = (
    Parser(
        FORMAT,
        ("vllm serve", "vllm bench", "-m vllm.", "-m sglang", "sglang serve", "torchrun", "docker run", "podman run", "nerdctl run", "ray start", "pip install",
         "pip3 install", "deepspeed ", "accelerate launch", "mpirun", "srun", "kubectl", "image:", "Image:", "FROM ", "hostNetwork:", "apiVersion:", "nvidia.com/gpu",
         "emptyDir:", "torch.distributed."),
        _parse,
    ),
)  # fmt: skip
