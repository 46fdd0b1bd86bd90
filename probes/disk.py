"""How fast a model directory can be read: a few seconds of reading, nothing is ever written.

Three ways, as engines read: large sequential blocks past the page cache (O_DIRECT), pages of 4 KiB at random places, and through a mapping
of the file, as safetensors does it. What is in the page cache already is told beside the rates, since it makes them those of memory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsdoctor.facts import DiskRates, Section, absent, known, not_asked, unreadable
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

BLOCK_BYTES = 8 << 20
PAGE_BYTES = 4096
READERS = 4
"""Threads of the sequential test: as many ranks of an engine load at once, and one reader does not fill a fast disk."""
SAMPLED_PAGES = 256
SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
"""Files with weights; where there are none, the largest files of the directory are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be read, whatever the disk: the first limit that is reached ends a test."""

    sequential_bytes: int = 4 << 30
    sequential_s: float = 2.0
    mapped_bytes: int = 1 << 30
    mapped_s: float = 1.0
    random_reads: int = 2000
    random_s: float = 0.5


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Section disk: the rates of the directory that the user named."""
    if not scope.model_directory:
        return {"disk": not_asked("no model directory was named")}
    try:
        rates = measure(scope.model_directory, Limits(), host)
    except OSError as error:
        return {"disk": unreadable(f"{scope.model_directory}: {error.strerror or error}")}
    return {
        "disk": known(rates, "reading the files") if rates else absent(f"{scope.model_directory} holds no file of {BLOCK_BYTES >> 20} MiB")
    }


def measure(path: str, limits: Limits | None = None, host: Host | None = None) -> DiskRates | None:
    """Read rates of the largest weight files of a directory; None when it holds no file of at least one block. Raises OSError."""
    limits, host = limits or Limits(), host or Host()
    files = weight_files(host, path)
    if not files:
        return None
    started = time.monotonic()
    with contextlib.ExitStack() as opened:
        cached_files = [opened.enter_context(_opened(host, name, 0)) for name, _ in files]
        sizes = [size for _, size in files]
        cached = cached_share(cached_files, sizes)
        try:
            direct_files = [opened.enter_context(_opened(host, name, os.O_DIRECT)) for name, _ in files]
            os.preadv(direct_files[0], [mmap.mmap(-1, PAGE_BYTES)], 0)
            direct = True
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            direct_files, direct = cached_files, False
        pages, latency = random_reads(direct_files, sizes, limits)
        read, sequential = sequential_rate(direct_files, sizes, limits)
        mapped_bytes, mapped = mapped_rate(cached_files, sizes, limits)
    return DiskRates(
        path=path,
        files=len(files),
        direct=direct,
        cached_share=cached,
        sequential_bytes_per_s=sequential,
        mapped_bytes_per_s=mapped,
        random_read_s=latency,
        read_bytes=read + mapped_bytes + pages * PAGE_BYTES,
        elapsed_s=round(time.monotonic() - started, 3),
    )


def weight_files(host: Host, path: str) -> tuple[tuple[str, int], ...]:
    """The files to read, with their sizes in bytes, the largest first: those with weights, else any that hold a block. Raises OSError."""
    sizes = {}
    for name in host.list_directory(path):
        with contextlib.suppress(OSError):
            status = host.status(f"{path}/{name}")
            if os.path.isfile(host.local(f"{path}/{name}")) and status.st_size >= BLOCK_BYTES:
                sizes[f"{path}/{name}"] = status.st_size
    weights = {name: size for name, size in sizes.items() if name.endswith(SUFFIXES)}
    return tuple(sorted((weights or sizes).items(), key=lambda item: (-item[1], item[0])))


def cached_share(files: Sequence[int], sizes: Sequence[int]) -> float | None:
    """Share of pages at random places that are in the page cache; None where the kernel does not tell (RWF_NOWAIT)."""
    buffer = mmap.mmap(-1, PAGE_BYTES)
    hits = 0
    for file, place in _places(files, sizes, SAMPLED_PAGES):
        try:
            os.preadv(file, [buffer], place, os.RWF_NOWAIT)
            hits += 1
        except BlockingIOError:
            continue
        except OSError:
            return None
    return hits / SAMPLED_PAGES


def random_reads(files: Sequence[int], sizes: Sequence[int], limits: Limits) -> tuple[int, float]:
    """How many pages were read at random places, one after another, and the median time of one in seconds."""
    buffer = mmap.mmap(-1, PAGE_BYTES)
    times: list[float] = []
    end = time.monotonic() + limits.random_s
    for file, place in _places(files, sizes, limits.random_reads):
        began = time.perf_counter()
        os.preadv(file, [buffer], place)
        times.append(time.perf_counter() - began)
        if time.monotonic() > end:
            break
    return len(times), statistics.median(times)


def sequential_rate(files: Sequence[int], sizes: Sequence[int], limits: Limits) -> tuple[int, float]:
    """Bytes that were read in large blocks by several readers, and their rate in bytes a second. Raises OSError."""
    blocks = iter([(file, block * BLOCK_BYTES) for file, size in zip(files, sizes) for block in range(size // BLOCK_BYTES)])
    taking = threading.Lock()
    read = [0] * READERS
    errors: list[OSError] = []
    began = time.monotonic()
    end = began + limits.sequential_s

    def reader(number: int) -> None:
        buffer = mmap.mmap(-1, BLOCK_BYTES)
        try:
            while time.monotonic() < end and sum(read) < limits.sequential_bytes:
                with taking:
                    file, place = next(blocks, (-1, 0))
                if file < 0:
                    return
                read[number] += os.preadv(file, [buffer], place)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(read), sum(read) / max(time.monotonic() - began, 1e-9)


def mapped_rate(files: Sequence[int], sizes: Sequence[int], limits: Limits) -> tuple[int, float]:
    """Bytes that were read through mappings, one block after another from the end of each file, and their rate in bytes a second."""
    began = time.monotonic()
    read = 0
    for file, size in zip(files, sizes):
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as mapped:
            for place in range(size - size % BLOCK_BYTES - BLOCK_BYTES, -1, -BLOCK_BYTES):
                if read >= limits.mapped_bytes or time.monotonic() - began > limits.mapped_s:
                    return read, read / max(time.monotonic() - began, 1e-9)
                read += len(mapped[place : place + BLOCK_BYTES])
    return read, read / max(time.monotonic() - began, 1e-9)


def _places(files: Sequence[int], sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Files and offsets of pages at random, larger files more often; the same ones for the same sizes."""
    dice = random.Random(sum(sizes))
    for index in dice.choices(range(len(files)), sizes, k=count):
        yield files[index], dice.randrange(sizes[index] // PAGE_BYTES) * PAGE_BYTES


@contextlib.contextmanager
def _opened(host: Host, path: str, flag: int) -> Iterator[int]:
    descriptor = os.open(host.local(path), os.O_RDONLY | os.O_CLOEXEC | flag)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
