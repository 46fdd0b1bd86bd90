#!/usr/bin/env python3
"""Time the analysis of a large environment by its files alone, cold and warm, beside `pip list` of the same tree.

    python benchmarks/environment_size.py [--packages N] [--gigabytes N] [--runs N] [--keep DIR]

It makes a site-packages tree of 250 packages and 15 GB of libraries: real ELF files (dynamic symbols, GNU hash table, symbol versions, fat
binaries of many containers), whose bulk is holes, so that the disk holds a few megabytes. Before each cold run the page cache is dropped: all
of it where that is allowed (root), else that of these files. The runs take turns with `pip list`, and the ratio is printed. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ANALYSE = """
import importlib, sys, time
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope, Target
began = time.perf_counter()
interpreter, libraries = (importlib.import_module(f"dsdoctor.probes.{name}") for name in ("interpreter", "libraries"))
prefix = sys.argv[1]
site = f"{prefix}/lib/python3.12/site-packages"
target = Target(path=f"{prefix}/bin/python", chosen_by="--python", prefix=prefix, base_prefix="/usr", python_version="3.12", site_packages=(site,))
host, scope = Host(environment={}), Scope(target=target)
found = {**interpreter.collect(host, scope), **libraries.collect(host, scope)}
elapsed = time.perf_counter() - began
read = [line.split()[1] for line in open("/proc/self/io") if line.startswith("read_bytes")][0]
counts = {name: len(found[name].value) for name in ("packages", "extensions", "cuda_libraries", "file_conflicts")}
print(elapsed, time.process_time(), read, *(f"{name.replace('_', '-')}={count}" for name, count in counts.items()))
"""

TORCH_LIBRARIES = {"libc10": 3_000, "libc10_cuda": 500, "libtorch_cpu": 60_000, "libtorch_cuda": 30_000, "libtorch_python": 5_000}
NVIDIA = {
    "cublas": ("libcublas.so.13", "libcublasLt.so.13"),
    "cuda_runtime": ("libcudart.so.13",),
    "cudnn": ("libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9", "libcudnn_adv.so.9"),
    "nccl": ("libnccl.so.2",),
    "nvrtc": ("libnvrtc.so.13",),
    "nvjitlink": ("libnvJitLink.so.13",),
    "nvshmem": ("libnvshmem_host.so.3",),
}
EXTENSIONS = {
    "vllm": (
        "vllm/_C.abi3.so",
        "vllm/_moe_C.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
    ),
    "sglang-kernel": ("sgl_kernel/flash_ops.abi3.so", "sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/sm100/common_ops.abi3.so"),
    "flash-attn": ("flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so",),
    "fa3-fwd": ("fa3_fwd/_C.abi3.so",),
    "flash-mla": ("flash_mla/cuda.abi3.so",),
    "deep-gemm": ("deep_gemm/_C.so",),
    "deep-ep": ("deep_ep/_C.so",),
    "xformers": ("xformers/_C.so",),
    "torchvision": ("torchvision/_C.so",),
    "transformer-engine-cu13": ("transformer_engine/wheel_lib/libtransformer_engine.so",),
}
CONTAINERS, TARGETS = 100, (80, 89, 90, 100, 120)


def compiled(path: Path, exported: int, undefined: int, *needed: Path) -> None:
    """A library with many dynamic symbols, named as those of torch are."""
    lines = [f"int _ZN2at3op{number}E{path.stem.partition('.')[0].replace('-', '_')};" for number in range(exported)]
    asked = random.Random(path.name).sample([f"_ZN2at3op{number}Elibtorch_cpu" for number in range(6_000)], undefined)
    lines += [f"extern int {name};" for name in asked]
    lines += [f"int *use[] = {{{', '.join(f'&{name}' for name in asked)}}};"] if asked else []
    lines.append('__attribute__((section(".nv_fatbin"))) char fat[16] = {1};')
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-O0",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
        f"-Wl,-soname,{path.name}",
        "-Wl,--hash-style=gnu",
    ]
    command += ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-x", "none", *map(str, needed)]
    subprocess.run(command, input="\n".join(lines), text=True, check=True)


def enlarged(path: Path, size: int) -> None:
    """Move the fat binary of a library behind its end and spread its containers over a file of this size, with holes for the code."""
    data = bytearray(path.read_bytes())
    sections, width, count, names = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HHH", data, 58)
    strings = struct.unpack_from("<Q", data, sections + names * width + 24)[0]
    start = -(-len(data) // 4096) * 4096
    code = max(64, (size - start) // (CONTAINERS * len(TARGETS)) // 64 * 64 - 128)
    for index in range(count):
        header = sections + index * width
        name = strings + struct.unpack_from("<I", data, header)[0]
        if data[name : data.index(0, name)] == b".nv_fatbin":
            struct.pack_into("<QQ", data, header + 24, start, CONTAINERS * (16 + len(TARGETS) * (64 + code)))
    with path.open("wb") as file:
        file.write(data)
        place = start
        for _ in range(CONTAINERS):
            file.seek(place)
            file.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(TARGETS) * (64 + code)))
            place += 16
            for target in TARGETS:
                file.seek(place)
                file.write(struct.pack("<HHIQ12xI8xQ16x", 2, 257, 64, code, target, 0x11))
                place += 64 + code
        file.truncate(max(place, size))


def make(prefix: Path, packages: int, total_bytes: int) -> None:
    """Write the tree."""
    site = prefix / "lib/python3.12/site-packages"
    torch = [site / f"torch/lib/{name}.so" for name in TORCH_LIBRARIES]
    for path, exported in zip(torch, TORCH_LIBRARIES.values()):
        compiled(path, exported, 0)
    nvidia = [site / f"nvidia/{folder}/lib/{name}" for folder, names in NVIDIA.items() for name in names]
    for path in nvidia:
        compiled(path, 500, 0)
    compiled(torch[3], TORCH_LIBRARIES["libtorch_cuda"], 0, *nvidia)
    kernels = [(name, site / place) for name, places in EXTENSIONS.items() for place in places]
    for _, path in kernels:
        compiled(path, 200, 1_500, *torch[:4], nvidia[2])
    large = [*torch[2:4], *nvidia, *(path for _, path in kernels)]
    for path in large:
        enlarged(path, total_bytes // len(large))
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
    dice = random.Random(1)
    names = ["torch", "triton", "transformers", *EXTENSIONS, *(f"nvidia-{folder.replace('_', '-')}-cu13" for folder in NVIDIA)]
    names += [f"package-{number}" for number in range(packages - len(names))]
    for name in names:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        requires = "".join(f"Requires-Dist: package-{dice.randrange(200)}>=0.{number}\n" for number in range(30))
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{requires}\n{'A description. ' * 2000}")
        own = [path for owner, path in kernels if owner == name] or [path for path in nvidia if name[7:-5].replace("-", "_") in str(path)]
        entries = [f"{path.relative_to(site)},sha256=x,{path.stat().st_size}\n" for path in own]
        files = 12_000 if name in ("torch", "transformers") else dice.randrange(20, 400)
        entries += [f"{name.replace('-', '_')}/module_{number}.py,sha256={number:043d},{number}\n" for number in range(files)]
        (info / "RECORD").write_text("".join(entries))


def drop_caches(prefix: Path) -> str:
    """Forget what was read of the tree; how, in words."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return "the page cache of the machine was dropped"
    except OSError:
        for folder, _, names in os.walk(prefix):
            for name in names:
                descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
        return "the pages of these files were dropped"


def analysed(prefix: Path) -> list[str]:
    """Seconds, processor seconds, bytes read from the disk and counts of one analysis in a fresh process."""
    return subprocess.run([sys.executable, "-c", ANALYSE, str(prefix)], capture_output=True, text=True, check=True).stdout.split()


def pip_list_s(prefix: Path) -> float:
    """Seconds that `pip list` needs for the tree, its own start taken off."""
    import time

    def run(*arguments: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"], capture_output=True, check=True)
        return time.perf_counter() - began

    listed = run("list", "--path", str(prefix / "lib/python3.12/site-packages"))
    return max(0.0, listed - run("--version"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--packages", type=int, default=250)
    parser.add_argument("--gigabytes", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="make the tree here, or use the one that is there")
    options = parser.parse_args()
    prefix = options.keep or Path(tempfile.mkdtemp(prefix="dsdoctor-environment-"))
    try:
        if not (prefix / "lib").is_dir():
            make(prefix, options.packages, round(options.gigabytes * 1e9))
        files = [path for path in prefix.rglob("*") if path.is_file()]
        apparent, held = sum(path.stat().st_size for path in files), sum(path.stat().st_blocks * 512 for path in files)
        print(f"{len(files)} files, {apparent / 1e9:.1f} GB, of which {held / 1e6:.0f} MB are on the disk")
        cold, warm, pip, cpu, read, counts, how = [], [], [], [], [], [], ""
        for _ in range(options.runs):
            how = drop_caches(prefix)
            seconds, cpu_seconds, read_bytes, *counts = analysed(prefix)
            cpu.append(float(cpu_seconds))
            cold.append(float(seconds))
            read.append(int(read_bytes))
            warm.append(float(analysed(prefix)[0]))
            drop_caches(prefix)
            pip.append(pip_list_s(prefix))
        print(f"found: {' '.join(counts)}; {how} before each cold run")
        for name, times in (("analysis, cold", cold), ("analysis, warm", warm), ("pip list, cold", pip)):
            print(f"{name:<16} median {statistics.median(times):6.3f} s   fastest {min(times):6.3f} s   slowest {max(times):6.3f} s")
        print(
            f"read from the disk, cold: {statistics.median(read) / 1e6:.1f} MB, {statistics.median(read) / apparent:.3%} of the libraries"
        )
        print(f"processor time of a cold analysis, with the start of Python: {statistics.median(cpu):.3f} s")
        print(f"ratio to pip list: {statistics.median(cold) / max(statistics.median(pip), 1e-9):.2f}; budget: cold under 1 s")
        return 0
    finally:
        if options.keep is None:
            shutil.rmtree(prefix, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
