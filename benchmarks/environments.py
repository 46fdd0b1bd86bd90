#!/usr/bin/env python3
"""Install real wheels that do not fit together, and compare what their headers say with what importing them says.

    python benchmarks/environments.py [--directory DIR] [--only NAME …]

Downloads some gigabytes through pip (single wheels, no resolver, so that no other torch is pulled in) and makes one virtual environment a
story. For each compiled extension it prints whether both agree, and it exits with 1 when any pair does not. Needs no GPU: a library or a
symbol that is missing shows without one. Run it when a release of one of these packages changes how it is built.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import venv
from pathlib import Path

from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.target import locate

PURE = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "numpy", "packaging", "einops")
CUDA_13 = (
    "torch==2.11.0", "triton==3.6.0", "nvidia-cublas==13.1.0.3", "nvidia-cuda-runtime==13.0.96", "nvidia-cufft==12.0.0.61",
    "nvidia-cufile==1.15.1.6", "nvidia-cuda-cupti==13.0.85", "nvidia-curand==10.4.0.35", "nvidia-cusolver==12.0.4.66",
    "nvidia-cusparse==12.6.3.3", "nvidia-nvjitlink==13.0.88", "nvidia-cuda-nvrtc==13.0.88", "nvidia-nvtx==13.0.85",
    "nvidia-cudnn-cu13==9.19.0.56", "nvidia-cusparselt-cu13==0.8.0", "nvidia-nccl-cu13==2.28.9", "nvidia-nvshmem-cu13==3.4.5",
)  # fmt: skip
STORIES = {
    "fa3-fwd-cuda-12-beside-13": (*CUDA_13, "fa3-fwd==0.0.1"),
    "fa3-fwd-that-fits": (*CUDA_13, "fa3-fwd==0.0.3"),
    "sglang-kernel-under-sgl-kernel": (*CUDA_13, "sglang-kernel==0.4.10", "sgl-kernel==0.3.21"),
    "torchvision-of-another-torch": (*CUDA_13, "torchvision==0.20.0"),
    "two-nccl-wheels": (*CUDA_13, "nvidia-nccl-cu12==2.27.5"),
    "kernels-of-many-releases": (*CUDA_13, "xformers==0.0.35", "torchao==0.18.0", "sgl-flash-mla==1.0.0", "sgl-deep-gemm==0.2.5"),
}
"""Wheels by story, installed in this order: the later one writes over the earlier one."""


def install(directory: Path, wheels: tuple[str, ...]) -> None:
    """Make the environment, unless it is there."""
    if (directory / "done").exists():
        return
    venv.create(directory, with_pip=True)
    pip = [str(directory / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, *PURE], check=True)
    for wheel in wheels:
        subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", wheel], check=True)
    (directory / "done").touch()


def compare(directory: Path) -> int:
    """Print each extension with both answers; how many pairs differ."""
    libraries, torch = (importlib.import_module(f"dsdoctor.probes.{name}") for name in ("libraries", "torch"))
    reading = importlib.import_module("dsdoctor.checks._reading")
    host, scope = Host(), Scope(target=locate(Host(), str(directory)))
    began = time.perf_counter()
    extensions = libraries.collect(host, scope)["extensions"].value or ()
    headers_s = time.perf_counter() - began
    imports = torch.collect(host, scope)["module_imports"]
    print(f"\n{directory.name}: headers in {headers_s:.2f} s, all in {time.perf_counter() - began:.2f} s")
    tried = {path for item in imports.value or () for path in (item.module, *item.loaded)}
    different = 0
    for early, late in zip(extensions, reading.as_imported(extensions, imports)):
        if early.path not in tried:
            continue
        misses = [*early.missing_libraries, *(symbol.symbol for symbol in early.missing_symbols)]
        agree = bool(misses) == bool(late.import_error or late.missing_libraries or late.missing_symbols)
        different += not agree
        print(f"  {'agree ' if agree else 'DIFFER'} {early.package} {'/'.join(early.path.split('/')[-2:])} {' '.join(early.gpu_targets)}")
        print(f"         header: {', '.join(misses[:3]) or 'misses nothing'}")
        print(f"         import: {late.import_error or 'loaded'}")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/dsdoctor-environments"))
    parser.add_argument("--only", nargs="*", choices=sorted(STORIES), default=sorted(STORIES))
    options = parser.parse_args()
    different = 0
    for name in options.only:
        install(options.directory / name, STORIES[name])
        different += compare(options.directory / name)
    print(f"\n{different} of the answers differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
