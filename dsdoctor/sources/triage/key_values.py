"""Reports of `name: value` lines: torch and vLLM collect_env, SGLang check_env, FlashInfer show-config, xformers.info, ds_report.

All of them are read by one table, so that a report that is cut, shuffled or mixed with others still tells what its lines say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dsdoctor.facts import CudaLibrary, HostCompiler
from dsdoctor.sources.texts import DRIVER_VERSION, STACK, family_of, normalised, soname_in_name, version_in_name
from dsdoctor.sources.triage.fact import Fact, Found, Parser, Said, package, torch_build
from dsdoctor.sources.triage.lines import Line
from dsdoctor.sources.triage.system import kernel, size_bytes, toolkit

FORMAT = "environment report"
LINE_LIMIT = 1000

Handler = Callable[[str, Line], Iterator[Found]]

_ENTRY = re.compile(
    r"\s{0,8}(?:[-*] |\|\s?)?(?:\*\*)?([A-Za-z][\w ,./()#-]{1,60}?)(?:\*\*)?\s{0,60}(?::(?!/)(?:\*\*)?|\s\.{3,60}|\s\|)\s{0,60}(\S.{0,600})?$"
)
_VERSION = re.compile(r"v?(\d{1,4}\.[A-Za-z0-9.!+_-]{1,80})")
_GPU_LINE = re.compile(r"\s{0,4}GPU (\d{1,4}(?:,\s?\d{1,4}){0,80}): (\S[^()]{0,80}?)\s*$")
_GPU_CAPABILITY = re.compile(r"\s{0,4}GPU (\d{1,4}(?:,\s?\d{1,4}){0,80}) Compute Capability: (\d{1,2}\.\d)\s*$")
_DEVICE = re.compile(r"\s{0,4}Device (\d{1,4}): (NVIDIA [\w -]{2,60}), compute capability (\d{1,2}\.\d)\b")
_CUDNN_PATH = re.compile(r"\s{0,8}(/\S{1,300}/libcudnn[\w]{0,60}\.so(?:\.\d{1,5}){1,4})\s*$")
_XFORMERS_TORCH = re.compile(r"\s{2,8}PyTorch (\S{1,60}) with CUDA \w{1,8} \(you have (\S{1,60})\)")
_XFORMERS_PYTHON = re.compile(r"\s{2,8}Python\s{1,8}\S{1,20} \(you have (\d\.\d{1,2}\.\d{1,3})\)")
_XFORMERS = re.compile(r"xFormers (\d\S{1,60})\s*$")
_CARDS = re.compile(
    r"(?:(?P<before>\d{1,3}) ?[x×*] ?)?(?:NVIDIA )?"
    r"(?:(?:GeForce )?(?:[RG]TX[ -]?)?(?P<number>10[5-8]0|[2-5]0[5-9]0)[ -]?(?P<variant>Ti|SUPER|D)?(?P<laptop> Laptop(?: GPU)?)?"
    r"|(?:RTX |Tesla )?(?P<model>A(?:[1-4]0|100|800|[4-6]000)|H(?:20|100|200|800)|L(?:4|20|40S?)|B(?:200|300)|V100|T4|P100|P40))"
    r"(?:[ ,/-]{1,2}\d{1,3} ?G(?:i?B)?)?(?: ?[x×*] ?(?P<behind>\d{1,3}))?(?: GPUs?)?",
    re.IGNORECASE,
)
_VARIANTS = {"ti": " Ti", "super": " SUPER", "d": " D"}
_NOTHING = frozenset({"", "none", "n/a", "could not collect", "not found", "unknown", "no cuda", "false", "[n/a]"})


def _version_of(text: str) -> str:
    found = _VERSION.match(text)
    return found[1] if found else ""


def _torch_version(text: str, line: Line) -> Iterator[Found]:
    version = _version_of(text)
    if version:
        yield from package("torch", version, line, FORMAT)


def _torch_cuda(text: str, line: Line) -> Iterator[Found]:
    """`CUDA used to build PyTorch`: none means a build for the processor alone. Where GPU, driver or nvcc is found, collect_env writes it otherwise."""
    if re.fullmatch(r"\d{1,2}\.\d{1,2}(?:\.\d{1,3})?", text):
        yield Fact("torch_build", "cuda", ".".join(text.split(".")[:2]), line, format=FORMAT)
    elif text in ("None", "Could not collect"):
        yield Fact("torch_build", "cuda", None, line, format=FORMAT)


def _rocm(text: str, line: Line) -> Iterator[Found]:
    if re.match(r"\d+\.\d", text):
        yield Fact("torch_build", "hip", text, line, format=FORMAT)


def _cuda_available(text: str, line: Line) -> Iterator[Found]:
    if text in ("True", "False"):
        yield Fact("torch_runtime", "imported", True, line, format=FORMAT)
        yield Fact("torch_runtime", "cuda_available", text == "True", line, format=FORMAT)


def _driver(text: str, line: Line) -> Iterator[Found]:
    found = re.match(rf"({DRIVER_VERSION})\b", text)
    if found:
        yield Fact("nvml_versions", "driver", found[1], line, format=FORMAT)


def _os(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"([^()]{2,60}?)(?: \([^()]{1,40}\)){0,2}\s*$", text)
    architecture = next((name for name in ("x86_64", "aarch64") if f"({name})" in text), "")
    if found and found[1].lower() != "linux":
        yield Fact("platform", "os_name", found[1], line, format=FORMAT)
        yield from distribution(found[1], line, FORMAT)
    if architecture:
        yield Fact("platform", "architecture", architecture, line, format=FORMAT)


_DISTRIBUTIONS = (
    (r"Ubuntu", "ubuntu"), (r"Debian", "debian"), (r"Rocky Linux", "rocky"), (r"AlmaLinux", "almalinux"), (r"CentOS", "centos"),
    (r"Red Hat", "rhel"), (r"RHEL", "rhel"), (r"Amazon Linux", "amzn"), (r"SUSE", "sles"), (r"Fedora", "fedora"), (r"Oracle Linux", "ol"),
)  # fmt: skip


def distribution(text: str, line: Line, format: str) -> Iterator[Found]:
    """The id and version of a distribution in its name: Ubuntu 22.04.5 LTS."""
    for words, name in _DISTRIBUTIONS:
        found = re.search(rf"{words}[A-Za-z ]{{0,20}}?\s?(\d{{1,2}}(?:\.\d{{1,2}})?)?(?:[\s.(]|$)", text)
        if found:
            yield Fact("platform", "os_id", name, line, format=format)
            if found[1]:
                yield Fact("platform", "os_version", found[1], line, format=format)
            return


def _gcc(text: str, line: Line) -> Iterator[Found]:
    found = re.search(r"(?:^|\) |\s)(\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)(?=\s|$)", text)
    if found:
        record = HostCompiler(name="gcc", path="gcc", version=found[1], chosen_by="PATH")
        yield Fact("host_compilers", "", record, line, "gcc", FORMAT)


def _libc(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"(glibc|musl)-(\d\.\d{1,3})", text)
    if found:
        yield Fact("libc", "family", found[1], line, format=FORMAT)
        yield Fact("libc", "version", found[2], line, format=FORMAT)


def _kernel(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"(?:Linux )?(\d\.\d{1,3}\.\d{1,3}-[\w.+~-]{1,60})(?:\s|$)", text)
    if found:
        yield from kernel(found[1], line, FORMAT)


def _python(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"(\d\.\d{1,2}\.\d{1,3}\S{0,8})", text)
    if found:
        yield Fact("interpreter", "version", found[1], line, format=FORMAT)


def _python_platform(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"Linux-(\d\S{1,100}?)-(x86_64|aarch64)-with-glibc(\d\.\d{1,3})", text)
    if found:
        yield from kernel(found[1], line, FORMAT, found[2])
        yield Fact("libc", "version", found[3], line, format=FORMAT)


def _cuda_runtime(text: str, line: Line) -> Iterator[Found]:
    """collect_env asks the nvcc on PATH."""
    found = re.match(r"(\d{1,2}\.\d{1,2})\.\d{1,4}\s*$", text)
    if found:
        yield from toolkit("nvcc", text.strip(), found[1], line, FORMAT)
        yield Fact("cuda_toolkits", "is_first_on_path", True, line, "nvcc", FORMAT)


def _first_gpu(text: str, line: Line) -> Iterator[Found]:
    yield from _gpus(Line(text, line.file, line.number))


def _gpus(line: Line) -> Iterator[Found]:
    capability = _GPU_CAPABILITY.match(line.text)
    found = capability or _GPU_LINE.match(line.text)
    if not found or (not capability and "MIG " in line.text[:12]):
        return
    for index in found[1].split(","):
        field = "compute_capability" if capability else "name"
        yield Fact("gpus", field, found[2].strip(), line, str(int(index)), FORMAT)


def _capability(text: str, line: Line) -> Iterator[Found]:
    found = re.match(r"\(?(\d{1,2})(?:, |\.)(\d)\)?\s*(?:\([^()]{0,60}\)\s*)?$", text) or re.match(r"(?:sm_?)(\d{1,2})(\d)[a-z]?\s*$", text)
    if found:
        yield Fact("gpus", "compute_capability", f"{found[1]}.{found[2]}", line, "0", FORMAT)


def cards(text: str) -> tuple[int, str] | None:
    """How many of which GPU somebody means by `2x RTX3090 24G`, `4090D` or `A10 24GB`, named as NVML names it; None for other texts."""
    found = _CARDS.fullmatch(text.strip())
    if not found:
        return None
    number, variant, model = found["number"], (found["variant"] or "").lower(), (found["model"] or "").upper()
    if model:
        name = f"RTX {model}" if re.fullmatch(r"A\d000", model) else model
    else:
        name = f"GeForce {'GTX' if number.startswith('10') else 'RTX'} {number}{_VARIANTS.get(variant, '')}"
        name += " Laptop GPU" if found["laptop"] else ""
    return int(found["before"] or found["behind"] or 1), f"NVIDIA {name}"


def _gpu_name(text: str, line: Line) -> Iterator[Found]:
    if known := cards(text) or cards(re.split(r"\s?[,(|]", text, maxsplit=1)[0]):
        for index in range(min(known[0], 256)):
            yield Fact("gpus", "name", known[1], line, str(index), FORMAT)
        return
    found = re.match(
        r"(?:(\d{1,3})\s?[x×]\s?)?((?:NVIDIA|Tesla|GeForce|Quadro|RTX|GTX|[ABHLTV]\d{2,3})\b[\w -]{0,60}?)(?:\s?[x×]\s?(\d{1,3}))?\s*(?:[(,|].{0,200})?$",
        text,
    )
    if found:
        for index in range(min(int(found[1] or found[3] or 1), 256)):
            yield Fact("gpus", "name", found[2].strip(), line, str(index), FORMAT)


def _torch_device(text: str, line: Line) -> Iterator[Found]:
    """`cuda:0 NVIDIA GeForce RTX 3090 : cudaMallocAsync`, as programs print the device that they chose."""
    found = re.match(r"cuda:(\d{1,3}) (NVIDIA [\w -]{2,50}?)(?:\s{0,2}[:(,].{0,80})?$", text)
    if found:
        yield Fact("gpus", "name", found[2].strip(), line, str(int(found[1])), FORMAT)


def _variable(name: str) -> Handler:
    def handle(text: str, line: Line) -> Iterator[Found]:
        if text and text.lower() not in ("none", "unset", "not set", "n/a"):
            yield Fact("environment", "value", text.strip(), line, name, FORMAT)

    return handle


def _shared_memory(text: str, line: Line) -> Iterator[Found]:
    size = size_bytes(text.replace(" ", ""))
    if size:
        yield Fact("shared_memory", "total_bytes", size, line, format=FORMAT)
        yield Fact("shared_memory", "free_bytes", size, line, format=FORMAT)


def _open_files(text: str, line: Line) -> Iterator[Found]:
    if text.isdecimal() and len(text) < 16:
        yield Fact("limits", "soft", int(text), line, "nofile", FORMAT)
        yield Fact("limits", "hard", int(text), line, "nofile", FORMAT)


def _named(name: str) -> Handler:
    def handle(text: str, line: Line) -> Iterator[Found]:
        version = _version_of(text)
        if version:
            yield from package(name, version, line, FORMAT)

    return handle


HANDLERS: dict[str, Handler] = {
    # torch.utils.collect_env and vLLM's
    "pytorch version": _torch_version,
    "torch version": _torch_version,
    "pytorch": _torch_version,
    "torch": _torch_version,
    "pytorch.version": _torch_version,
    "cuda used to build pytorch": _torch_cuda,
    "torch cuda version": _torch_cuda,
    "torch cuda": _torch_cuda,
    "torch.version.cuda": _torch_cuda,
    "rocm used to build pytorch": _rocm,
    "is cuda available": _cuda_available,
    "cuda available": _cuda_available,
    "pytorch.cuda": lambda text, line: _cuda_available({"available": "True", "not available": "False"}.get(text, text), line),
    "torch.cuda.is_available()": _cuda_available,
    "nvidia driver version": _driver,
    "nvidia driver": _driver,
    "cuda driver version": _driver,
    "host driver": _driver,
    "driver": _driver,
    "driver version": _driver,
    "os": _os,
    "kernel": _kernel,
    "kernel version": _kernel,
    "linux kernel": _kernel,
    "gcc version": _gcc,
    "gcc": _gcc,
    "libc version": _libc,
    "python version": _python,
    "python": _python,
    "python platform": _python_platform,
    "cuda runtime version": _cuda_runtime,
    "gpu models and configuration": _first_gpu,
    "torchvision version": _named("torchvision"),
    "torchaudio version": _named("torchaudio"),
    "triton version": _named("triton"),
    "vllm version": _named("vllm"),
    "sglang version": _named("sglang"),
    "flashinfer version": _named("flashinfer-python"),
    "flashinfer": _named("flashinfer-python"),
    "flashinfer_python": _named("flashinfer-python"),
    "xformers": _named("xformers"),
    # SGLang check_env
    "ulimit soft": _open_files,
    # ds_report
    "shared memory (/dev/shm) size": _shared_memory,
    # written by hand
    "gpu": _gpu_name,
    "gpus": _gpu_name,
    "gpu name": _gpu_name,
    "gpu.name": _gpu_name,
    "gpu model": _gpu_name,
    "model": lambda text, line: _gpu_name(text, line) if text.startswith(("NVIDIA ", "GeForce ", "Tesla ")) else iter(()),
    "device": _torch_device,
    "cuda capability": _capability,
    "compute capability": _capability,
    "gpu.compute_capability": _capability,
}
_PACKAGE_NAMES = frozenset({"sgl_kernel", "sglang", "vllm", "triton", "transformers", "flashinfer_cubin", "flashinfer_jit_cache", "torchao", "numpy", "flash_attn",
    "flash-attn", "xgrammar", "torchvision", "torchaudio", "deep_gemm", "deep_ep", "flash_mla", "tokenizers", "ray", "deepspeed", "sgl-kernel",
    "compressed-tensors", "outlines", "lmcache", "nvidia-nccl-cu12", "nvidia-nccl-cu13"})  # fmt: skip


_NAMES = frozenset({*HANDLERS, "cuda_home", "cuda home", "cuda_version", "nvcc", "nvcc version"})


def _parse(lines: Sequence[Line]) -> Iterator[Found]:
    cuda_home: tuple[str, Line] | None = None
    for line in lines:
        text = line.text
        if not text or len(text) > LINE_LIMIT:
            continue
        if text[0] == "/" or text[:2] == "  ":
            cudnn = _CUDNN_PATH.match(text)
            if cudnn:
                yield _cudnn(cudnn[1], line)
                continue
            yield from _xformers(text, line)
        if "compute capability" in text and (device := _DEVICE.match(text)):
            yield Fact("gpus", "name", device[2].strip(), line, str(int(device[1])), FORMAT)
            yield Fact("gpus", "compute_capability", device[3], line, str(int(device[1])), FORMAT)
            continue
        if "GPU " in text[:8] and text.lstrip().startswith("GPU "):
            yield from _gpus(line)
            if "Compute Capability" in text:
                continue
        entry = _ENTRY.match(text) if _may_be_entry(text) else None
        if not entry:
            if text.startswith("xFormers ") and (told := _XFORMERS.match(text)):
                yield from package("xformers", told[1], line, "xformers.info")
            continue
        name, value = " ".join(entry[1].lower().split()), (entry[2] or "").strip().strip("`").strip()
        if name in ("cuda_home", "cuda home"):
            cuda_home = (value, line) if value.startswith("/") else None
            yield from _variable("CUDA_HOME")(value, line) if cuda_home else ()
        elif name in ("cuda_version", "nvcc", "nvcc version"):
            yield from _nvcc(name, value, line, cuda_home)
        elif name in HANDLERS and not (name == "driver version" and "  :" in text):
            found = tuple(HANDLERS[name](value, line))
            yield from found or ((Said(line, FORMAT),) if value.lower() in _NOTHING else ())
        elif name in _PACKAGE_NAMES or (name.startswith("nvidia-") and " " not in name and STACK.fullmatch(normalised(name))):
            yield from _named(name)(value, line)


def _may_be_entry(text: str) -> bool:
    """A cheap first look: most lines of a log have no colon after a name that is known here."""
    name, colon, _ = text[:80].partition(":")
    if colon:
        name = name.strip(" -*|\t").lower()
        return name in _NAMES or name in _PACKAGE_NAMES or name.startswith("nvidia-") or "  " in name or " ..." in text
    return " ..." in text or " |" in text


def _nvcc(name: str, value: str, line: Line, cuda_home: tuple[str, Line] | None) -> Iterator[Found]:
    """The toolkit that a report found below CUDA_HOME."""
    found = re.search(r"release (\d{1,2}\.\d{1,2})(?:, V(\d{1,2}\.\d{1,2}\.\d{1,4}))?", value) or re.match(
        r"(\d{1,2}\.\d{1,2})()\s*$", value
    )
    if not found:
        return
    path = cuda_home[0].rstrip("/") or "/" if cuda_home else "nvcc"
    yield from toolkit(path, found[2] or "", found[1], line, FORMAT)
    if cuda_home:
        yield Fact("cuda_toolkits", "nvcc", f"{path}/bin/nvcc", line, path, FORMAT)
        yield Fact("cuda_toolkits", "is_cuda_home", True, line, path, FORMAT)


def _cudnn(path: str, line: Line) -> Fact:
    name = path.rpartition("/")[2]
    record = CudaLibrary(
        family=family_of(name) or "cudnn", soname=soname_in_name(name), path=path, version=version_in_name(name), origin="system"
    )
    return Fact("cuda_libraries", "", record, line, path, FORMAT)


def _xformers(text: str, line: Line) -> Iterator[Found]:
    """What the warning of xformers tells of the installed torch and Python."""
    torch = _XFORMERS_TORCH.match(text)
    if torch:
        yield Fact("packages", "version", torch[2].rstrip(")"), line, "torch", "xformers.info")
        yield from torch_build(torch[2].rstrip(")"), line, "xformers.info")
    python = _XFORMERS_PYTHON.match(text)
    if python:
        yield Fact("interpreter", "version", python[1], line, format="xformers.info")


PARSERS = (
    Parser(
        FORMAT,
        ("Torch version", "torch version", "used to build PyTorch", "PyTorch", "CUDA available", "driver version", "Driver Version", "driver:", "Libc version", "Kernel:", "Kernel version",
         "GPU models", "GPU 0", "GPU:", "GPUs:", "Device: cuda", "CUDA_HOME", "sgl_kernel", "FlashInfer", "xFormers", "pytorch.version", "shared memory (/dev/shm)",
         "Capability", "capability", "torch:", "torch CUDA", "libcudnn", "GCC version", "Python version", "Python:", "vLLM Version", "vLLM version"),
        _parse,
    ),
)  # fmt: skip
