"""What the smoke-test scripts share: the plan they are handed, the events they say, timing, locks and provoked faults.

Run by the patient's interpreter: standard library and torch only, Python 3.9 and newer. A script says one JSON line before and after each
test, at once, so that a crash or a hang names the test that was running and leaves the results before it.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

GIB = 1 << 30
SPARE_BYTES = 1 << 30
"""What stays free on the GPU beside a test's own need."""
LOCK_WAIT_S = 30.0
CONTEXTS_AT_ONCE = 2
"""Children that use one GPU at the same time: a CUDA context alone takes about 0.55 GiB of it, and a node that works must not be crowded.

How a run stays small. All children import torch and their libraries at once, without a context. Then each takes a place on every GPU it uses,
and keeps it until it ends. Of the children that need several GPUs at once only one has places: first the ranks of the collectives, since their
conductor starts no CUDA and is the first to ask; the others follow as places become free. The probe `torch` takes such a place too, and gives it
back after its first operation. So a GPU has two contexts, while the tests of what is right need at most 0.15 GiB. Rates come last: their tensors,
at most 0.3 GiB, live only while their child has the GPU alone. One H200 stays at 1.6 GiB. Where collectives run it is 2.8 GiB, of which a rank takes
2.1: its context, and what NCCL 2.28.9 wants for its own kernels and buffers. Smaller buffers would measure another NCCL than the one that serves.
"""
RUN_S = 0.03
"""Shortest run of a timed call: long enough for the clocks to rise and to be read."""
IMPORT_DEADLINE_S = 100.0

BROKEN = re.compile(
    r"CUDA error|CUDA driver error|no kernel image|device-side assert|unspecified launch failure|illegal memory access"
    r"|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED|ALLOC_FAILED|ARCH_MISMATCH)|uncorrectable ECC"
)
"""Texts of a RuntimeError that mean a failure; every other one is an entry point that says what it does not do here."""

_result = os.environ.pop("DSDOCTOR_RESULT_FD", None)
RESULT_FD = None if _result is None else int(_result)


class Skip(Exception):
    """The test is not tried here, and nothing is wrong for that."""


class Refused(Exception):
    """This implementation cannot run here, in its own words."""


class Broken(Exception):
    """Something failed, in its own words."""


# --- events -----------------------------------------------------------------------------------------------------------


def say(event, **fields):
    """Write one event as a JSON line: to the doctor, or to standard output when a person runs the script."""
    data = json.dumps(dict(event=event, **fields), default=str).encode() + b"\n"
    descriptor = 1 if RESULT_FD is None else RESULT_FD
    while data:
        data = data[os.write(descriptor, data) :]


def text_of(error):
    """An exception in one line: its message, with the type where that is not a plain RuntimeError."""
    message = " ".join(str(error).split())
    name = type(error).__name__
    return message if message and name in ("RuntimeError", "Skip", "Refused", "Broken") else "%s: %s" % (name, message) if message else name


def numbers(values):
    """Values that JSON can carry; what is not finite becomes a text under the same name."""
    finite, odd = {}, {}
    for name, value in values.items():
        number = float(value)
        if math.isfinite(number):
            finite[name] = number
        else:
            odd[name] = str(number)
    return finite, odd


# --- the plan ---------------------------------------------------------------------------------------------------------


def read_plan():
    """The arguments of the script, whether the doctor's bootstrap or a person runs it."""
    arguments = sys.argv[2:] if sys.argv[0] == "-c" else sys.argv[1:]
    parser = argparse.ArgumentParser(prog="smoke", description="One group of dsdoctor's smoke tests; says JSON lines.")
    parser.add_argument("--tests", default="", help="names, comma-separated; all of this script when empty")
    parser.add_argument("--level", default="default", choices=("default", "full"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpus", default="", help="INDEX@PCI_ADDRESS, comma-separated; all visible ones when empty")
    parser.add_argument("--no-rates", default="{}", help='why rates are not measured, by index: {"0": "in use by another process"}')
    parser.add_argument("--deadlines", default="{}", help='seconds by test: {"fp8-gemm": 20}')
    parser.add_argument("--scratch", default="", help="private directory for locks and JIT caches; removed by the caller")
    parser.add_argument("--places", type=int, default=CONTEXTS_AT_ONCE, help="children that may use one GPU at a time")
    parser.add_argument("--meet", default="", help="HOST:PORT of the first node, where the collectives of several nodes meet")
    parser.add_argument("--node", default="0/1", help="K/N: this is node K of N, from 0")
    parser.add_argument("--until", type=float, default=float("inf"), help="with --meet: when all must be over, on the monotonic clock")
    plan = parser.parse_args(arguments)
    plan.node, plan.nodes = (int(part) for part in plan.node.split("/"))
    plan.tests = [name for name in plan.tests.split(",") if name]
    plan.gpus = [tuple(item.partition("@")[::2]) for item in plan.gpus.split(",") if item]
    plan.no_rates = {int(index): why for index, why in json.loads(plan.no_rates).items()}
    plan.deadlines = json.loads(plan.deadlines)
    plan.own_scratch = "" if plan.scratch else tempfile.mkdtemp(prefix="dsdoctor-")
    plan.scratch = plan.scratch or plan.own_scratch
    # A copy of standard error: tests may catch what compilers write there, and a stack must come out all the same.
    plan.stacks = os.fdopen(os.dup(2), "w")
    faulthandler.enable(file=plan.stacks)
    plan.faults = read_faults(os.environ.get("DSDOCTOR_SMOKE_FAULT", ""))
    return plan


def read_faults(text):
    """The documented switch for tests of the doctor: DSDOCTOR_SMOKE_FAULT="fp8-gemm=wrong,pcie=hang" misbehaves on purpose.

    wrong: results are altered; slow: times are multiplied; raise, hang, segfault: as named.
    """
    return dict(item.split("=", 1) for item in text.split(",") if "=" in item)


# --- torch and the GPUs -----------------------------------------------------------------------------------------------


class Gpu:
    """One GPU as this process sees it: NVML's index, the ordinal CUDA gives it here, and what it is."""

    def __init__(self, index, ordinal, address, name, capability):
        self.index, self.ordinal, self.address, self.name, self.capability = index, ordinal, address, name, capability


def open_torch(plan):
    """Import torch and find the GPUs of the plan: (torch, [Gpu], {index: why not}); says `unavailable` and ends when that fails."""
    torch, import_s = import_torch(plan)
    return (torch, *open_gpus(plan, torch, import_s))


def import_torch(plan):
    """(torch, seconds its import took). CUDA is not touched and no thread is started, so that the process may fork afterwards."""
    faulthandler.dump_traceback_later(IMPORT_DEADLINE_S, exit=True, file=plan.stacks)
    say("stage", at=time.monotonic(), name="importing torch")
    started = time.monotonic()
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ImportError) and getattr(error, "name", None) == "torch"
        unavailable(plan, "no_torch" if missing else "import_error", traceback.format_exception_only(type(error), error)[-1].strip())
    faulthandler.cancel_dump_traceback_later()
    # What is alive now stays alive: the collections after each test need not look at it.
    gc.freeze()
    return torch, time.monotonic() - started


def open_gpus(plan, torch, import_s):
    """Start CUDA and find the GPUs of the plan: ([Gpu], {index: why not}); says `ready`, or `unavailable` and ends."""
    faulthandler.dump_traceback_later(IMPORT_DEADLINE_S, exit=True, file=plan.stacks)
    started = time.monotonic()
    # References are computed on a few cores: every GPU of the node has children at the same time.
    torch.set_num_threads(min(4, torch.get_num_threads()))
    if plan.device == "cpu":
        gpus, hidden = [Gpu(None, None, "", "cpu", (0, 0))], {}
    else:
        gpus, hidden = find_gpus(torch, plan)
    say("ready", at=time.monotonic(), torch=str(torch.__version__), import_s=import_s, init_s=time.monotonic() - started)
    faulthandler.cancel_dump_traceback_later()
    return gpus, hidden


def unavailable(plan, kind, reason):
    """Say why nothing can be tested (no_torch, import_error, no_cuda_build, no_gpu, cuda_error) and end the process."""
    say("unavailable", kind=kind, reason=reason)
    leave(plan, 0)


def leave(plan, status):
    """End without the interpreter's farewell: a crash in some library's destructor is no answer to a question asked here."""
    if plan.own_scratch:
        shutil.rmtree(plan.own_scratch, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def find_gpus(torch, plan):
    """The visible GPUs that the plan names, each under its NVML index, and why the others are not there."""
    if getattr(torch.version, "cuda", None) is None:
        unavailable(plan, "no_cuda_build", "torch %s is a build without CUDA" % torch.__version__)
    say("stage", at=time.monotonic(), name="initialising CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()
            count = torch.cuda.device_count()
        except Exception as error:
            unavailable(plan, "no_gpu" if "No CUDA GPUs are available" in str(error) else "cuda_error", text_of(error))
    if count == 0:
        unavailable(plan, "no_gpu", "torch sees no GPU")
    visible = [describe(torch, ordinal) for ordinal in range(count)]
    if not plan.gpus:
        return visible, {}
    by_address = {gpu.address: gpu for gpu in visible}
    found, hidden = [], {}
    for index, address in plan.gpus:
        gpu = by_address.get(address) if address else next((gpu for gpu in visible if gpu.ordinal == int(index)), None)
        if gpu is None:
            setting = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden[int(index)] = "CUDA does not show it%s" % ("" if setting is None else " (CUDA_VISIBLE_DEVICES=%s)" % setting)
        else:
            gpu.index = int(index)
            found.append(gpu)
    return found, hidden


def describe(torch, ordinal):
    """A visible GPU; its index is its ordinal until the plan says better."""
    properties = torch.cuda.get_device_properties(ordinal)
    return Gpu(ordinal, ordinal, pci_address(ordinal), properties.name, (properties.major, properties.minor))


def pci_address(ordinal):
    """Domain:bus:device.function in lower case from the driver, since older torch does not tell; empty when it does not answer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        text = ctypes.create_string_buffer(32)
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetPCIBusId(text, 32, device):
            return ""
    except (OSError, AttributeError):
        return ""
    return text.value.decode("ascii", "replace").lower()


def near_cpus(address):
    """CPUs of the GPU's NUMA node that this process may use; empty when unknown."""
    try:
        with open("/sys/bus/pci/devices/%s/local_cpulist" % address) as file:
            ranges = [part.partition("-") for part in file.read().strip().split(",")]
        return {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)} & os.sched_getaffinity(0)
    except (OSError, ValueError):
        return set()


# --- running ----------------------------------------------------------------------------------------------------------


class Context:
    """What a test body gets: torch, a device, the GPU it is on, and the means to time, lock and report."""

    def __init__(self, torch, plan, test, gpu, gpus):
        self.torch, self.plan, self.test, self.gpu, self.gpus = torch, plan, test, gpu, gpus
        self.fault = plan.faults.get(test, "")
        self.on_gpu = plan.device == "cuda"
        self.device = "cpu" if not self.on_gpu else None if gpu is None else "cuda:%d" % gpu.ordinal
        self.capability = (0, 0) if gpu is None else gpu.capability
        self.full = plan.level == "full"
        self.span = None

    # what a body yields

    def ran(self, path, values, **notes):
        """A result with numbers."""
        return self.result("ran", path, "", values, notes)

    def refused(self, path, reason, **notes):
        """This implementation cannot run here; `reason` is its own text."""
        return self.result("refused", path, reason, {}, notes)

    def skipped(self, reason, path="", **notes):
        """Not tried, and why."""
        return self.result("skipped", path, reason, {}, notes)

    def error(self, path, reason, **notes):
        """It failed; `reason` is its own text."""
        return self.result("error", path, reason, {}, notes)

    def result(self, outcome, path, reason, values, notes):
        """Any result; `began` and `ended` of the last timed span go along so that clocks and power of that moment can be added."""
        finite, odd = numbers(values)
        texts = {name: str(value) for name, value in dict(odd, **notes).items()}
        found = {"outcome": outcome, "path": path, "reason": reason, "values": finite, "notes": texts}
        if self.span is not None:
            found["began"], found["ended"] = self.span
            self.span = None
        return found

    def attempt(self, path, body, **notes):
        """The result of `body()`, which returns values or (values, notes); what it raises becomes refused, skipped or error."""
        try:
            said = body()
        except Exception as error:
            return self.raised(path, error, notes)
        values, more = said if isinstance(said, tuple) else (said, {})
        return self.ran(path, values, **dict(notes, **more))

    def raised(self, path, error, notes=None):
        """The result for an exception: the entry point's own refusal, a lack of memory (not tried), or a failure."""
        return self.result(outcome_of(error), path, text_of(error), {}, notes or {})

    # data

    def generator(self, seed=20):
        """A generator on the device with a fixed seed."""
        return self.torch.Generator(device=self.device).manual_seed(seed)

    def normal(self, *shape, generator=None, dtype=None):
        """Normal data on the device, the same for one seed on one product."""
        return self.torch.randn(*shape, device=self.device, dtype=dtype or self.torch.float32, generator=generator or self.generator())

    def observed(self, output):
        """A kernel's output on its way to the comparison; the provoked fault `wrong` alters it here."""
        if self.fault == "wrong":
            output = output.clone(memory_format=self.torch.contiguous_format)
            output.view(-1)[::7] += 1 if output.dtype == self.torch.uint8 else output.abs().max() / 2
        return output

    # time and room

    def need(self, own_bytes):
        """Skip unless the GPU has that much free and a GiB to spare."""
        if not self.on_gpu:
            return
        free = self.torch.cuda.mem_get_info(self.device)[0]
        if free < own_bytes + SPARE_BYTES:
            raise Skip("%.1f GiB of GPU memory free, %.1f needed" % (free / GIB, (own_bytes + SPARE_BYTES) / GIB))

    def has_room(self, own_bytes):
        """Whether `need` would let that much through."""
        return not self.on_gpu or self.torch.cuda.mem_get_info(self.device)[0] >= own_bytes + SPARE_BYTES

    def rates_allowed(self):
        """Skip where a rate would say nothing about the GPU: it is busy, or a MIG slice."""
        reason = next((self.plan.no_rates[index] for index in self.indices() if index in self.plan.no_rates), "")
        if reason:
            raise Skip(reason)

    def indices(self):
        """NVML indices of the GPUs this test uses."""
        return [gpu.index for gpu in (self.gpus if self.gpu is None else [self.gpu]) if gpu.index is not None]

    @contextlib.contextmanager
    def alone(self, *extra):
        """Hold the GPU (and each named thing, such as 'host-links') against the other children while a rate is measured.

        Large tensors belong inside, and must be dropped before the end: their memory is given back before another child goes on.
        """
        names = sorted("gpu-%d" % index for index in self.indices()) + sorted(extra)
        with contextlib.ExitStack() as held:
            # Waiting for another test is not this test's fault.
            faulthandler.cancel_dump_traceback_later()
            for name in names:
                held.enter_context(lock(self.plan.scratch, name))
            self.watch()
            yield
            self.synchronize()
            give_back_memory()

    def watch(self):
        """Start the time of this test (again): past its deadline the process writes its stack and is gone."""
        deadline_s = float(self.plan.deadlines.get(self.test, 60.0))
        faulthandler.dump_traceback_later(deadline_s, exit=True, file=self.plan.stacks)

    def synchronize(self):
        """Wait for the device."""
        if self.on_gpu:
            for gpu in self.gpus if self.gpu is None else [self.gpu]:
                self.torch.cuda.synchronize(gpu.ordinal)

    def seconds(self, body):
        """Wall time of one call, the device's work included."""
        self.synchronize()
        started = time.perf_counter()
        body()
        self.synchronize()
        return time.perf_counter() - started

    def first_seconds(self, body):
        """As `seconds`, for a first call: libraries are loaded and kernels compiled in it, and others may measure their rates meanwhile."""
        with apart(self.plan.scratch):
            elapsed = self.seconds(body)
            # Waiting for another test is not this test's fault.
            faulthandler.cancel_dump_traceback_later()
        self.watch()
        return elapsed

    def best_call_s(self, body, calls=20, repeats=3, warm_up=3, limit_s=1.5):
        """Seconds of one call: the best of `repeats` runs between two events. A run is `calls` calls: more where they are so short
        that the clocks could not be read meanwhile, fewer where one is slow."""
        first_s = self.seconds(body)
        one_s = max(min(self.seconds(body) for _ in range(max(1, warm_up - 1))), 1e-6)
        calls = max(1, min(max(calls, int(RUN_S / one_s)), int(limit_s / repeats / one_s)))
        began = time.monotonic()
        best_s = min(self.run_s(body, calls) for _ in range(repeats)) / calls
        self.span = (began, time.monotonic())
        self.first_call_s = first_s
        self.calls = calls
        return best_s * 3 if self.fault == "slow" else best_s

    def run_s(self, body, calls):
        """Device time of several calls."""
        if not self.on_gpu:
            return self.seconds(lambda: [body() for _ in range(calls)])
        with self.torch.cuda.device(self.device):
            before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(calls):
                body()
            after.record()
            after.synchronize()
        return before.elapsed_time(after) / 1e3


@contextlib.contextmanager
def standard_error():
    """Catch what this process and its children write to standard error: yields a list that holds the text afterwards. It is passed on."""
    text = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said = file.read()
            text.append(said.decode("utf-8", "replace"))
            os.write(2, said[-8192:])


def unusable_directory(path):
    """Why compiled code cannot be kept in a directory, or empty: a file is written and run in it, or in its nearest parent that exists."""
    nearest = path
    while not os.path.isdir(nearest) and os.path.dirname(nearest) != nearest:
        if os.path.lexists(nearest):
            return "%s: %s is not a directory" % (path, nearest)
        nearest = os.path.dirname(nearest)
    try:
        with tempfile.TemporaryDirectory(prefix="dsdoctor-", dir=nearest) as folder:
            script = os.path.join(folder, "probe")
            with open(script, "w") as file:
                file.write("#!/bin/sh\nexit 0\n")
            os.chmod(script, 0o700)
            if os.statvfs(folder).f_flag & os.ST_NOEXEC:
                return "%s is mounted noexec" % path
            subprocess.run([script], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        return "%s: %s" % (path, error.strerror or error)
    except subprocess.SubprocessError as error:
        return "%s: a file in it does not run (%s)" % (path, error)
    return ""


_LOCK_FILES = {}
"""One open file a lock: a lock of flock(2) belongs to the open file, so its mode can be changed but not doubled."""
_SHARED = set()
_EXCLUSIVE = set()


def take(scratch, name, mode):
    """Take a lock that all children of one run share; skip the test when others keep it too long. The kernel frees it with its process."""
    if name not in _LOCK_FILES:
        _LOCK_FILES[name] = open(os.path.join(scratch, name + ".lock"), "w")
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(_LOCK_FILES[name], mode | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise Skip("another test held %s for %.0f s" % (name, LOCK_WAIT_S)) from None
            time.sleep(0.002)


def release(name):
    fcntl.flock(_LOCK_FILES[name], fcntl.LOCK_UN)


def take_turns(plan, indices):
    """Wait until fewer than two other children use each of these GPUs, and no other several; kept until this process and its forks end."""
    wanted = sorted(set(indices) - {None})
    if len(wanted) > 1:
        take_place(plan, "several GPUs", 1)
    for index in wanted:
        take_place(plan, "GPU %d" % index, plan.places)


def take_place(plan, name, count):
    """Take one of some places, unless this process has one. All children ask in the same order, and nothing waits for ever."""
    if name in _PLACES:
        return
    say("stage", at=time.monotonic(), name="waiting for a place on %s" % name)
    stem = os.path.join(plan.scratch, name.lower().replace(" ", "-"))
    places = [open("%s-place-%d.lock" % (stem, number), "w") for number in range(count)]
    deadline = time.monotonic() + LOCK_WAIT_S
    while not any(taken(place) for place in places) and time.monotonic() < deadline:
        time.sleep(0.005)
    _PLACES[name] = places
    say("stage", at=time.monotonic(), name="between tests")


def taken(file):
    """Whether the lock on an open file could be had at once."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_PLACES = {}
"""By name, kept open: closing one would free the place."""


@contextlib.contextmanager
def beside_others(scratch, names):
    """Use GPUs together with other children, but not while one of them measures a rate."""
    for name in names:
        take(scratch, name, fcntl.LOCK_SH)
        _SHARED.add(name)
    try:
        yield
    finally:
        for name in names:
            _SHARED.discard(name)
            release(name)


@contextlib.contextmanager
def apart(scratch):
    """Let go what this child shares, while it computes next to nothing; afterwards it waits for the end of others' rates."""
    shared = sorted(_SHARED - _EXCLUSIVE)
    for name in shared:
        release(name)
    try:
        yield
    finally:
        for name in shared:
            take(scratch, name, fcntl.LOCK_SH)


@contextlib.contextmanager
def lock(scratch, name):
    """Hold one thing against all other children. What this child shares is let go first, so that two that wait cannot wait for each other."""
    for shared in _SHARED - _EXCLUSIVE:
        release(shared)
    take(scratch, name, fcntl.LOCK_EX)
    _EXCLUSIVE.add(name)
    try:
        yield
    finally:
        _EXCLUSIVE.discard(name)
        release(name)
        if not _EXCLUSIVE:
            for shared in sorted(_SHARED):
                take(scratch, shared, fcntl.LOCK_SH)


def outcome_of(error):
    """refused, skipped or error for an exception of a test body."""
    if isinstance(error, Skip) or type(error).__name__ == "OutOfMemoryError":
        return "skipped"
    if isinstance(error, Broken):
        return "error"
    if isinstance(error, (Refused, NotImplementedError, AttributeError)):
        return "refused"
    if isinstance(error, (RuntimeError, ValueError, TypeError)) and not BROKEN.search(str(error)):
        return "refused"
    return "error"


def compiled_outcome(error):
    """As outcome_of, for libraries that compile: what they raise is a failure unless they say that it is not for this GPU."""
    outcome = outcome_of(error)
    return "error" if outcome == "refused" and not isinstance(error, (Refused, NotImplementedError)) else outcome


def main(gpu_tests, node_tests=None, load=None, last_first=False):
    """Run the plan: `gpu_tests` (name to body(context), once for each GPU), then `node_tests` (once, with context.gpus). Ends the process.

    With `last_first` the last GPU is the first: slow compilations go where the fewest others begin. A body yields results. What it raises beside that is the result of the test. `load(context)` imports what the tests need beside torch,
    before this process takes a place on a GPU; what fails there is told by the test that meets it again.
    """
    plan = read_plan()
    torch, gpus, hidden = open_torch(plan)
    gpus = gpus[::-1] if last_first else gpus
    wanted = plan.tests or [*gpu_tests, *(node_tests or {})]
    if load is not None and gpus:
        load_libraries(load, Context(torch, plan, wanted[0], gpus[0], gpus))
    for name in wanted:
        if name in gpu_tests:
            for index, why in hidden.items():
                report_skip(name, index, why)
            for gpu in gpus:
                take_turns(plan, [gpu.index])
                run_one(gpu_tests[name], Context(torch, plan, name, gpu, gpus))
        elif node_tests and name in node_tests:
            take_turns(plan, [gpu.index for gpu in gpus])
            run_one(node_tests[name], Context(torch, plan, name, None, gpus))
    say("done", at=time.monotonic())
    leave(plan, 0)


def load_libraries(load, context):
    """Import what the tests need, within the time of the first of them."""
    say("stage", at=time.monotonic(), name="importing what the tests need")
    context.watch()
    with contextlib.suppress(Exception):
        load(context)
    faulthandler.cancel_dump_traceback_later()
    say("stage", at=time.monotonic(), name="between tests")


def report_skip(test, gpu, why):
    """A test that is not tried on a GPU."""
    say("start", at=time.monotonic(), test=test, gpu=gpu)
    say("result", test=test, gpu=gpu, outcome="skipped", reason=why)
    say("end", at=time.monotonic(), test=test, gpu=gpu)


def run_one(body, context):
    """One test on one GPU, between its start and its end."""
    who = {"test": context.test, "gpu": None if context.gpu is None else context.gpu.index}
    say("start", at=time.monotonic(), **who)
    last = time.monotonic()
    poison, plan = "", context.plan
    try:
        with beside_others(plan.scratch, ["gpu-%d" % index for index in context.indices()]):
            context.watch()
            last = time.monotonic()
            if context.on_gpu and context.gpu is not None:
                context.torch.cuda.set_device(context.gpu.ordinal)
            misbehave(context.fault)
            for found in body(context):
                now = time.monotonic()
                say("result", **{**who, "elapsed_s": round(now - last, 4), **found})
                last = now
            context.synchronize()
    except Exception as error:
        traceback.print_exc()
        found = context.raised("", error)
        say("result", **dict(who, elapsed_s=round(time.monotonic() - last, 4), **found))
    try:
        context.synchronize()
        del context
        gc.collect()
        give_back_memory()
    except Exception as error:
        poison = text_of(error)
    faulthandler.cancel_dump_traceback_later()
    say("end", at=time.monotonic(), **who)
    if poison:
        # After such an error every later call of the process fails with the same text: a new child goes on.
        say("poisoned", reason=poison, **who)
        leave(plan, 3)


def give_back_memory():
    """Return what the allocator keeps, so that the children together stay small."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def misbehave(fault):
    """The provoked faults that need no number."""
    if fault == "raise":
        raise Broken("provoked by DSDOCTOR_SMOKE_FAULT")
    if fault == "segfault":
        ctypes.string_at(0)
    while fault == "hang":
        time.sleep(0.05)


# --- judging numbers --------------------------------------------------------------------------------------------------


def compare(torch, output, reference):
    """rel_error and calc_diff of a kernel's output against the reference, in FP64; nonfinite counts what is neither number."""
    x, y = output.double(), reference.double()
    bad = int((~torch.isfinite(x)).sum())
    found = {"nonfinite": bad}
    if not bad:
        norm_y = float(y.norm())
        total = float((x * x).sum() + (y * y).sum())
        found["rel_error"] = float((x - y).norm()) / norm_y if norm_y else math.inf
        found["calc_diff"] = 1.0 - 2.0 * float((x * y).sum()) / total if total else math.inf
        found["max_error"] = float((x - y).abs().max())
    return found


# --- FP8 data ---------------------------------------------------------------------------------------------------------

E4M3_MAX = 448.0
"""Largest number of FP8 E4M3."""
BLOCK = 128


def float8(torch):
    """E4M3 of this torch, or a refusal."""
    kind = getattr(torch, "float8_e4m3fn", None)
    if kind is None:
        raise Refused("torch %s has no float8_e4m3fn" % torch.__version__)
    return kind


def factor_of(torch, amax, rounding="float"):
    """Multiply-back factors for the largest magnitudes of some groups; `power_of_two` rounds them up, as E8M0 scales are."""
    factor = amax.clamp(min=1e-4) / E4M3_MAX
    return torch.exp2(torch.ceil(torch.log2(factor))) if rounding == "power_of_two" else factor


def to_float8(torch, scaled):
    """Clamp and cast: above 448 releases differ (NaN or 448)."""
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(float8(torch))


def by_tensor(torch, x):
    """(FP8 tensor, factor of shape ())."""
    factor = factor_of(torch, x.abs().amax())
    return to_float8(torch, x / factor), factor


def by_row(torch, x):
    """(FP8 tensor, factors of shape (rows, 1))."""
    factor = factor_of(torch, x.abs().amax(dim=1, keepdim=True))
    return to_float8(torch, x / factor), factor


def by_row_block(torch, x, rounding="float", width=BLOCK):
    """(FP8 tensor, factors of shape (rows, columns/width)): the recipe of activations."""
    rows, columns = x.shape
    blocks = x.view(rows, columns // width, width)
    factor = factor_of(torch, blocks.abs().amax(dim=2), rounding)
    return to_float8(torch, blocks / factor[:, :, None]).view(rows, columns), factor


def by_tile(torch, x, rounding="float"):
    """(FP8 tensor, factors of shape (rows/128, columns/128)): the recipe of weights."""
    rows, columns = x.shape
    tiles = x.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    factor = factor_of(torch, tiles.abs().amax(dim=(1, 3)), rounding)
    return to_float8(torch, tiles / factor[:, None, :, None]).view(rows, columns), factor


def spread(factor, shape):
    """Factors repeated over the elements they belong to, in FP64 on the CPU."""
    factor = factor.detach().cpu().double()
    if factor.dim() == 0:
        return factor
    for dimension in (0, 1):
        factor = factor.repeat_interleave(shape[dimension] // factor.shape[dimension], dim=dimension)
    return factor


def product_of(a, factor_a, b, factor_b):
    """The exact product a @ b.T of the very FP8 numbers, in FP64 on the CPU: nothing of the GPU under test is in it."""
    plain_a = a.detach().cpu().float().double() * spread(factor_a, a.shape)
    plain_b = b.detach().cpu().float().double() * spread(factor_b, b.shape)
    return plain_a @ plain_b.t()


def judged_product(context, output, exact, unquantised):
    """Numbers of an FP8 product: against the dequantised operands (the kernel) and against the unquantised ones (the recipe)."""
    torch = context.torch
    output = context.observed(output).detach().cpu()
    values = compare(torch, output, exact)
    recipe = compare(torch, output, unquantised)
    values.update({name + "_unquantised": recipe[name] for name in ("rel_error", "calc_diff") if name in recipe})
    return values
