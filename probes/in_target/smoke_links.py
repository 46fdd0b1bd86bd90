"""Copies between every pair of GPUs with the values compared, and pinned copies between host and all GPUs at once.

Run by the patient's interpreter: standard library and torch only, Python 3.9 and newer.
"""

import contextlib
import importlib.util
import os
import sys
import time


def load_common():
    """smoke_common.py of this folder under a name nobody else has: the folder itself must not come onto sys.path."""
    path = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "smoke_common.py")
    spec = importlib.util.spec_from_file_location("_dsdoctor_smoke_common", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = load_common()
MIB = 1 << 20
COPY_BYTES = 128 * MIB
"""Of the source and of the target: large enough for the full rate of the links."""
CALLS = 8
REPEATS = 2
SLOW_COPY_S = 0.005
"""Slower copies need no second one to be timed well."""
STEP = 0x5851F42D4C957F2D
"""An odd number of 63 bits: multiples of it look like noise, and each product computes the same."""


# --- GPU to GPU -------------------------------------------------------------------------------------------------------


def pattern(torch, device, seed, size):
    """The same words on every device for one seed, different at each place."""
    return words_of(torch, device, seed, 0, size // 8)


def words_of(torch, device, seed, first, count):
    """Some words of the pattern, made in place."""
    return torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device).mul_(STEP).add_(seed)


def wrong_words(torch, target, seed):
    """How many words differ from the pattern, compared in parts: the whole pattern would take as much memory again."""
    wrong, first = 0, 0
    for part in target.split(2 * MIB):
        wrong += int((part != words_of(torch, part.device, seed, first, part.numel())).sum())
        first += part.numel()
    return wrong


def room(torch, gpu, needed):
    """Skip unless a GPU has that much free and a GiB to spare."""
    free = torch.cuda.mem_get_info(gpu.ordinal)[0]
    if free < needed + common.SPARE_BYTES:
        raise common.Skip(
            "GPU %d: %.1f GiB of memory free, %.1f needed" % (gpu.index, free / common.GIB, (needed + common.SPARE_BYTES) / common.GIB)
        )


def copy_s(context, source, target, gpu):
    """Seconds of one copy between two GPUs, timed on the source's stream: the best of a few runs."""
    torch = context.torch
    best = float("inf")
    with torch.cuda.device(gpu.ordinal):
        one_s = min(context.seconds(lambda: target.copy_(source, non_blocking=True)) for _ in range(2))
        calls = CALLS if one_s < SLOW_COPY_S else 1
        began = time.monotonic()
        for _ in range(REPEATS):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(calls):
                target.copy_(source, non_blocking=True)
            after.record()
            after.synchronize()
            best = min(best, before.elapsed_time(after) / 1e3 / calls)
        context.span = (began, time.monotonic())
    return best * 3 if context.fault == "slow" else best


def pair_result(context, sources, one, other, rates):
    """One ordered pair: what CUDA says about peer access, whether the words arrive, and how fast."""
    torch = context.torch
    path = "%d>%d" % (one.index, other.index)
    notes = {"bytes": COPY_BYTES}

    def body():
        # Without peer access the copy goes through the host and says nothing, so the flag is asked first.
        access = bool(torch.cuda.can_device_access_peer(one.ordinal, other.ordinal))
        source = sources[one.index]
        target = torch.zeros_like(source, device="cuda:%d" % other.ordinal)
        target.copy_(source)
        context.synchronize()
        if context.fault == "wrong":
            target[::7] += 1
        values = {"peer_access": float(access), "wrong_words": wrong_words(torch, target, one.index)}
        if rates:
            call_s = copy_s(context, source, target, one)
            values.update(gb_per_s=COPY_BYTES / call_s / 1e9, call_s=call_s)
        return values

    return context.attempt(path, body, **notes)


def p2p(context):
    """Every ordered pair, one after the other."""
    torch, gpus = context.torch, context.gpus
    if not context.on_gpu or len(gpus) < 2:
        yield context.skipped("one GPU has no peer")
        return
    try:
        context.rates_allowed()
        rates, why = True, ""
    except common.Skip as skip:
        rates, why = False, str(skip)
    for gpu in gpus:
        room(torch, gpu, 2 * COPY_BYTES)
    with context.alone("host-links") if rates else contextlib.nullcontext():
        sources = {gpu.index: pattern(torch, "cuda:%d" % gpu.ordinal, gpu.index, COPY_BYTES) for gpu in gpus}
        context.synchronize()
        for one in gpus:
            for other in gpus:
                if one is not other:
                    yield pair_result(context, sources, one, other, rates)
        del sources
    if why:
        yield context.skipped(why, "rates")


# --- host and all GPUs at once ----------------------------------------------------------------------------------------


def pinned_near(torch, gpu):
    """Pinned host memory on the GPU's NUMA node, which the kernel takes where the thread runs."""
    before = os.sched_getaffinity(0)
    cpus = common.near_cpus(gpu.address)
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
        return torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    finally:
        os.sched_setaffinity(0, before)


def together(context, pairs):
    """Copy on all GPUs at the same time: seconds of each GPU for one copy, by events on its own stream."""
    torch, gpus = context.torch, context.gpus
    marks = {}
    for _ in range(2):
        # The first round warms up.
        context.synchronize()
        for gpu, (target, source) in zip(gpus, pairs):
            with torch.cuda.device(gpu.ordinal):
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
                for _ in range(CALLS * 2):
                    target.copy_(source, non_blocking=True)
                after.record()
                marks[gpu.index] = (before, after)
        context.synchronize()
    return {index: before.elapsed_time(after) / 1e3 / (CALLS * 2) for index, (before, after) in marks.items()}


def pcie_together(context):
    """Pinned copies of all GPUs at once, which shows who shares an uplink."""
    torch, gpus = context.torch, context.gpus
    if not context.on_gpu or len(gpus) < 2:
        yield context.skipped("one GPU shares its link with none")
        return
    context.rates_allowed()
    for gpu in gpus:
        room(torch, gpu, COPY_BYTES)
    host = [pinned_near(torch, gpu) for gpu in gpus]
    for path in ("pinned d2h", "pinned h2d"):

        def body(path=path):
            with context.alone("host-links"):
                device = [torch.ones(COPY_BYTES, dtype=torch.uint8, device="cuda:%d" % gpu.ordinal) for gpu in gpus]
                seconds = together(context, list(zip(host, device) if path == "pinned d2h" else zip(device, host)))
                del device
            rates = {index: COPY_BYTES / value / 1e9 for index, value in seconds.items()}
            by_gpu = ", ".join("GPU %d: %.1f" % pair for pair in sorted(rates.items()))
            return {"gb_per_s_total": sum(rates.values()), "gb_per_s_slowest": min(rates.values())}, {"gb_per_s_by_gpu": by_gpu}

        yield context.attempt(path, body, bytes=COPY_BYTES)


if __name__ == "__main__":
    common.main({}, node_tests={"p2p": p2p, "pcie-together": pcie_together})
