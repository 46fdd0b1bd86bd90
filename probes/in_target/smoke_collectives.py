"""Collectives over all GPUs in bounded time: one process a GPU, values compared, bus rates; and again without left-over switches.

Over the GPUs of one node, or with --meet of several: then each node runs this script, and the first rank of the first node opens the store.

Run by the patient's interpreter: standard library and torch only, Python 3.9 and newer. The conductor imports torch and never touches CUDA, so
that it can fork the ranks, which start CUDA themselves. It passes the store's port on, watches how far each one is, and names the one that others
wait for.
"""

import contextlib
import ctypes
import datetime
import faulthandler
import fcntl
import importlib.util
import json
import os
import re
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings


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
TEST = "collectives"
PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when the one that forked it ends."""
CPU_RANKS = 2
NEEDED_BYTES = 9 << 28
"""Of each GPU: a quarter of a GiB for one buffer, a GiB for CUDA's and NCCL's own, and a GiB to spare."""
SHARE_OF_DEADLINE = 0.85
"""The rest is for ending the ranks and telling, before the doctor ends this process."""
SHARE_FOR_MEETING = 0.6
"""Of the time that is left, for nodes that come late to the meeting; with the rest those that came tell who did not."""
FAREWELL_S = 2.0
"""For the other nodes to read who is missing before the store closes."""
TAIL_BYTES = 3000
CALLS = 5
REPEATS = 3

LEFT_OVER = {"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}
"""Switches that make NCCL slow without a word, and the value that undoes each."""
HARMLESS = {
    "NCCL_P2P_DISABLE": ("", "0"),
    "NCCL_SHM_DISABLE": ("", "0"),
    "NCCL_P2P_LEVEL": ("", "NVL", "PIX", "PXB", "PHB", "SYS", "1", "2", "3", "4", "5"),
}
CONFIGURATIONS = ("/etc/nccl.conf", "~/.nccl.conf")


# --- the conductor ----------------------------------------------------------------------------------------------------


class Forked:
    """A forked process that reads lines from this one."""

    def __init__(self, pid, orders):
        self.pid, self.orders = pid, orders
        self.status = None

    def poll(self):
        """None while it runs, then its exit status, or its signal as a negative number."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.status

    def kill(self):
        """End it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        """Wait for its end, but not for ever."""
        deadline = time.monotonic() + 5
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)

    def tell(self, text):
        """Write a line; it may be gone already."""
        with contextlib.suppress(OSError):
            os.write(self.orders, text.encode() + b"\n")


class Rank:
    """One process of the group, as the conductor sees it."""

    def __init__(self, number, process, descriptor, log, errors):
        self.number, self.process, self.descriptor, self.log, self.errors = number, process, descriptor, log, errors
        self.rest = b""
        self.stage = "starting"
        self.results = {}
        # (outcome, text) once it said why it cannot go on.
        self.failed = None
        # Numbers of nodes that did not come to the meeting, comma-separated.
        self.missing = ""
        self.done = False

    def ended(self):
        """Whether the process is gone, and how."""
        status = self.process.poll()
        if status is None:
            return ""
        if status < 0:
            try:
                return signal.Signals(-status).name
            except ValueError:
                return "signal %d" % -status
        return "exit status %d" % status


class Trouble(Exception):
    """The group did not finish: outcome, stage, reason and notes of the result that says so, and what the rank wrote."""

    def __init__(self, outcome, stage, reason, said="", **notes):
        super().__init__(reason)
        self.outcome, self.stage, self.reason, self.said, self.notes = outcome, stage, reason, said, notes


class Unavailable(Exception):
    """A rank found no torch or no GPU: kind and reason."""


def collectives(context):
    """The sequence as the environment is, then without the switches that were left in it, and the factor between the two."""
    plan = context.plan
    world = len(plan.gpus) if plan.device != "cpu" else 1 if plan.meet else CPU_RANKS
    if world < 2 and not plan.meet:
        yield context.skipped("one GPU has no peer")
        return
    rates_why = next((plan.no_rates[int(index)] for index, _ in plan.gpus if int(index) in plan.no_rates), "")
    deadline = time.monotonic() + SHARE_OF_DEADLINE * float(plan.deadlines.get(TEST, 90.0))
    found = {}
    plan.until = deadline = min(deadline, plan.until)
    across = " across %d nodes" % plan.nodes if plan.meet else ""
    about = {"node": plan.node} if plan.meet else {}
    # Nodes with other environments would go through another number of runs.
    for switches in runs(os.environ) if plan.device == "cuda" and not plan.meet else [{}]:
        suffix = across + (" without " + ", ".join(sorted(switches)) if switches else "")
        try:
            results, notes = conduct(context, world, switches, deadline, rates_why)
        except Trouble as trouble:
            if plan.meet:
                about["place"] = STAGES.index(trouble.stage) if trouble.stage in STAGES else -1
            notes = dict(trouble.notes, stage=trouble.stage, **about)
            failed = context.result(trouble.outcome, suffix.strip(), trouble.reason, {}, notes)
            yield dict(failed, stderr_tail=trouble.said)
            return
        for path, (values, more) in results.items():
            if "refused" in more:
                yield context.refused(path + suffix, more["refused"], **dict(notes, **about))
                continue
            if switches and found.get(path, {}).get("bus_gb_per_s") and "bus_gb_per_s" in values:
                values["faster_by"] = values["bus_gb_per_s"] / found[path]["bus_gb_per_s"]
            found.setdefault(path, values)
            yield context.ran(path + suffix, values, **dict(notes, **more, **about))
    if rates_why:
        yield context.skipped(rates_why, "rates")


def visible_gpus():
    """How many GPUs the driver shows, where NVML did not say. A process of its own asks: who has started CUDA cannot fork."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(count_of_driver())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def count_of_driver():
    """The driver's count of GPUs."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def runs(environment):
    """The environments to try: as it is, and with what slows NCCL down switched back."""
    set_now = {**configured(), **{name: environment[name] for name in LEFT_OVER if name in environment}}
    slow = {name for name, value in set_now.items() if value.strip().upper() not in HARMLESS[name]}
    return [{}] + ([{name: LEFT_OVER[name] for name in slow}] if slow else [])


def configured():
    """The same switches where NCCL's own files set them; the environment comes before those."""
    found = {}
    for path in CONFIGURATIONS:
        try:
            with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
                lines = file.read(1 << 16).splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition("#")[0].partition("=")
            if name.strip() in LEFT_OVER:
                found.setdefault(name.strip(), value.strip())
    return found


def conduct(context, world, switches, deadline, rates_why):
    """Run the group once: ({path: (values, notes)}, notes of the run). Raises Trouble; no process of the group survives."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dsdoctor-", dir=context.plan.scratch or None))
        ranks = []
        stack.callback(end, ranks)
        # The thread that watches the time would be missing in the ranks, which would then wait for it.
        faulthandler.cancel_dump_traceback_later()
        for number in range(world):
            ranks.append(start_rank(context, number, world, switches, scratch, rates_why, ranks))
        context.watch()
        watch(context, ranks, deadline, stack)
        logs = {rank.number: read_tail(rank.log, 1 << 20) for rank in ranks}
        return combined(context, ranks), notes_of(logs)


def start_rank(context, number, world, switches, scratch, rates_why, ranks):
    """Fork one rank with a pipe for what it says, one for what it is told, and files for NCCL's log and its standard error."""
    log, errors = (os.path.join(scratch, "rank-%d.%s" % (number, kind)) for kind in ("nccl.log", "stderr"))
    said, say_end = os.pipe()
    orders, order_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads; those that libraries start at import are made for forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            for descriptor in [said, order_end] + [one for rank in ranks for one in (rank.descriptor, rank.process.orders)]:
                os.close(descriptor)
            settle(context.plan, say_end, orders, errors, dict(switches, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log))
            be_rank(context, number, world, bool(rates_why))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(say_end)
    os.close(orders)
    os.set_blocking(said, False)
    return Rank(number, Forked(pid, order_end), said, log, errors)


def settle(plan, say_end, orders, errors, environment):
    """In a rank that was just forked: streams and environment of its own, and an end with the conductor. It stays in the conductor's group."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.dup2(orders, 0)
    sys.stdin = os.fdopen(0)
    common.RESULT_FD = say_end
    plan.stacks = sys.stderr
    plan.own_scratch = ""
    faulthandler.enable(file=plan.stacks)
    os.environ.update(environment)
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)


def end(ranks):
    """Kill what is left of the group."""
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()
        os.close(rank.process.orders)
        os.close(rank.descriptor)


def watch(context, ranks, deadline, stack):
    """Follow the group until all ranks are done; Trouble when one cannot go on, ends, or does not get there in time."""
    waiting = set()
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.descriptor, selectors.EVENT_READ, rank)
        while not all(rank.done for rank in ranks):
            for key, _ in selector.select(0.05):
                for event in events_of(key.data, selector):
                    deadline += follow(context, key.data, event, ranks, waiting, stack)
            failed = next((rank for rank in ranks if rank.failed), None)
            gone = next((rank for rank in ranks if not rank.done and not rank.failed and rank.ended() and not more(rank)), None)
            if failed is not None:
                raise trouble_of(ranks, failed)
            if gone is not None:
                killed = gone.ended().startswith("SIG")
                raise Trouble(
                    "crash" if killed else "error",
                    gone.stage,
                    "rank %d: %s while %s" % (gone.number, gone.ended(), gone.stage),
                    **told(ranks, gone),
                )
            if time.monotonic() > deadline:
                raise hang(ranks)


def events_of(rank, selector):
    """The events in what a rank wrote since the last look."""
    try:
        chunk = os.read(rank.descriptor, 1 << 16)
    except BlockingIOError:
        return []
    if not chunk:
        selector.unregister(rank.descriptor)
        return []
    *lines, rank.rest = (rank.rest + chunk).split(b"\n")
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def more(rank):
    """Whether a rank that ended left something to read."""
    try:
        chunk = os.read(rank.descriptor, 1 << 16)
    except (BlockingIOError, OSError):
        return False
    rank.rest += chunk
    return bool(chunk)


def follow(context, rank, event, ranks, waiting, stack):
    """Act on one event of a rank; returns the seconds for which other tests kept the GPUs."""
    kind = event.get("event")
    if kind == "stage":
        rank.stage = event["name"]
    elif kind == "ready" and rank.number == 0:
        common.say("ready", at=time.monotonic(), torch=event["torch"], import_s=event["import_s"], init_s=event["init_s"])
    elif kind == "unavailable":
        raise Unavailable(event["kind"], event["reason"])
    elif kind == "port":
        for other in ranks[1:]:
            other.process.tell(str(event["port"]))
    elif kind in ("meeting", "timing"):
        waiting.add((kind, rank.number))
        if all((kind, other.number) in waiting for other in ranks):
            started = time.monotonic()
            hold_gpus(context, stack, fcntl.LOCK_SH if kind == "meeting" else fcntl.LOCK_EX)
            for other in ranks:
                other.process.tell("go")
            return time.monotonic() - started
    elif kind == "result":
        rank.results[event["path"]] = event
    elif kind == "failed":
        rank.failed = (event["outcome"], event["reason"])
        rank.missing = event.get("missing", "")
    elif kind == "done":
        rank.done = True
    return 0.0


def hold_gpus(context, stack, mode):
    """Use the GPUs beside other tests, or alone. All are let go first, so that two that wait cannot wait for each other."""
    names = sorted("gpu-%s" % index for index, _ in context.plan.gpus)
    # Waiting for another test is not this test's fault.
    faulthandler.cancel_dump_traceback_later()
    let_go(names)
    stack.callback(let_go, names)
    for name in names:
        common.take(context.plan.scratch, name, mode)
    context.watch()


def let_go(names):
    """Release the GPUs that are held."""
    for name in names:
        with contextlib.suppress(KeyError):
            common.release(name)


def trouble_of(ranks, failed):
    """The result for a rank that said why it cannot go on; a time-out of one that waits names the one it waits for."""
    outcome, reason = failed.failed
    behind = late(ranks)
    if outcome == "error" and re.search(r"timed?[ -]?out", reason, re.IGNORECASE) and behind:
        return hang(ranks)
    return Trouble(outcome, failed.stage, "rank %d while %s: %s" % (failed.number, failed.stage, reason), **told(ranks, failed))


def late(ranks):
    """The ranks that are behind the others; none when all are at the same stage."""
    order = {name: place for place, name in enumerate(STAGES)}
    places = {rank.number: len(STAGES) if rank.done else order.get(rank.stage, -1) for rank in ranks}
    last = min(places.values())
    return [rank for rank in ranks if places[rank.number] == last] if last < max(places.values()) else []


def hang(ranks):
    """The result for a group that did not get there in time, with the ranks that the others wait for."""
    behind = late(ranks)
    if behind:
        where = " and ".join("rank %d is at '%s'" % (rank.number, rank.stage) for rank in behind[:4])
        others = next(rank.stage for rank in ranks if rank not in behind)
        return Trouble("hang", others, "%s while the others wait at '%s'" % (where, others), **told(ranks, behind[0]))
    return Trouble("hang", ranks[0].stage, "all ranks are at '%s' and none goes on" % ranks[0].stage, **told(ranks, ranks[0]))


def told(ranks, rank):
    """About a failure: which rank, NCCL's first warning of all ranks, the end of what the rank wrote."""
    logs = {one.number: read_tail(one.log, 1 << 20) + read_tail(one.errors, 1 << 18) for one in ranks}
    missing = {"missing": rank.missing} if rank.missing else {}
    return dict(notes_of(logs), rank=rank.number, said=read_tail(rank.errors, TAIL_BYTES).strip(), **missing)


def read_tail(path, limit):
    """The last bytes of a file as text; empty when it is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - limit))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


WARNING = re.compile(r"(?:^\[([-\d :]+)\] )?[^\n]*?NCCL WARN (.*)", re.MULTILINE)
TRANSPORT = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[[^\]]*\] -> \d+\[[^\]]*\](?: \[[a-z]+\])? via (\S+)")
VERSION = re.compile(r"NCCL version (\S+)")
CHANNELS = re.compile(r"(\d+) coll channels, \d+ (?:collnet|tree) channels, (\d+) nvls channels")


def notes_of(logs):
    """What NCCL's logs say: version, transports, channels, and the warning that came first."""
    notes = {}
    text = "\n".join(logs.values())
    warnings = [(found[1] or "9", number, found[2].strip()) for number, log in sorted(logs.items()) for found in WARNING.finditer(log)]
    if warnings:
        _, number, said = min(warnings, key=lambda item: item[:2])
        notes["first_warning"] = "rank %d: %s" % (number, said)
    transports = sorted(set(TRANSPORT.findall(text)))
    if transports:
        notes["transport"] = ", ".join(transports)
    version = VERSION.search(text)
    if version:
        notes["nccl"] = version[1]
    channels = CHANNELS.search(text)
    if channels:
        notes.update(channels=channels[1], nvls_channels=channels[2])
    return notes


def combined(context, ranks):
    """One result for each path from those of all ranks: the wrong elements together, the slowest rank's time."""
    found = {}
    for path, event in ranks[0].results.items():
        world = event["world"]
        events = [rank.results[path] for rank in ranks if path in rank.results]
        refused = next((one["refused"] for one in events if one.get("refused")), "")
        if refused:
            found[path] = ({}, {"refused": refused, "ranks": world})
            continue
        values = {"wrong": sum(one["wrong"] for one in events)}
        notes = {"ranks": world, "bytes": event["bytes"], "backend": event["backend"]}
        if "call_s" in event:
            call_s = max(one["call_s"] for one in events) * (3 if context.fault == "slow" else 1)
            factor = {"all-reduce": 2.0}.get(path, 1.0) * (world - 1) / world
            values.update(call_s=call_s, bus_gb_per_s=event["bytes"] / call_s * factor / 1e9)
        if "first_call_s" in event:
            values["first_call_s"] = max(one["first_call_s"] for one in events)
        found[path] = (values, notes)
    return found


# --- a rank -----------------------------------------------------------------------------------------------------------

STAGES = (
    "starting",
    "initialising CUDA",
    "ready to join",
    "meeting the other nodes",
    "joining the group",
    "barrier",
    "all-reduce of 4 bytes",
    "all-to-all",
    "all-gather and reduce-scatter",
    "waiting for a quiet moment",
    "timing all-reduce",
    "timing all-to-all",
    "timing all-gather",
    "timing reduce-scatter",
    "leaving",
)
"""In the order in which a rank goes through them."""


def stage(name):
    """Say what comes next."""
    common.say("stage", name=name, at=time.monotonic())


class Group:
    """What a rank works with."""

    def __init__(self, torch, number, world, device, backend, wrong, correct_only):
        self.torch, self.number, self.world, self.device, self.backend = torch, number, world, device, backend
        self.wrong, self.correct_only = wrong, correct_only
        self.distributed = torch.distributed

    def synchronize(self):
        """Wait for the device."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def barrier(self):
        """Wait for all ranks."""
        if self.device.type == "cuda":
            self.distributed.barrier(device_ids=[self.device.index])
        else:
            self.distributed.barrier()


def be_rank(context, number, world, correct_only):
    """Join the group and go through the sequence; what goes wrong is said, and the process ends."""
    torch, plan, fault = context.torch, context.plan, context.fault
    gpus, hidden = common.open_gpus(plan, torch, plan.import_s)
    stage("ready to join")
    try:
        if hidden:
            raise common.Skip("GPU %d: %s" % next(iter(hidden.items())))
        if not torch.distributed.is_available():
            raise common.Skip("torch %s was built without torch.distributed" % torch.__version__)
        group = join(torch, plan, gpus, number, world, fault, correct_only)
        sequence(group)
        if not group.correct_only:
            rates(group)
        stage("leaving")
        group.barrier()
    except Exception as error:
        outcome = "error" if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError) else common.outcome_of(error)
        if isinstance(error, Missing):
            common.say("failed", outcome="hang", reason=str(error), missing=",".join(map(str, error.nodes)))
        else:
            common.say("failed", outcome="skipped" if isinstance(error, common.Skip) else outcome, reason=common.text_of(error))
        # Whoever waits for this rank in a collective is ended by the conductor.
        common.leave(plan, 1)
    common.say("done")
    # Destroying the group talks to the others once more; the conductor ends them all.
    common.leave(plan, 0)


def join(torch, plan, gpus, number, world, fault, correct_only):
    """Rank 0 opens the store on a free port of this machine and tells it, or all nodes meet at the first; then the group is formed."""
    common.say("meeting")
    sys.stdin.readline()
    while fault == "absent-rank" and number == world - 1:
        time.sleep(0.05)
    patience = datetime.timedelta(seconds=300)
    distributed = torch.distributed
    own_number = number
    if plan.meet:
        stage("meeting the other nodes")
        store, number, world, correct_only = meet(distributed, plan, number, world, correct_only)
    stage("joining the group")
    if not plan.meet:
        store = open_store(distributed, number, world, patience)
    backend = "nccl" if plan.device == "cuda" else "gloo"
    settings = {"backend": backend, "store": store, "rank": number, "world_size": world, "timeout": patience}
    if plan.device == "cpu":
        device = torch.device("cpu")
        distributed.init_process_group(**settings)
    else:
        device = torch.device("cuda", gpus[own_number].ordinal)
        torch.cuda.set_device(device)
        free = torch.cuda.mem_get_info(device)[0]
        if free < NEEDED_BYTES:
            raise common.Skip(
                "GPU %s: %.1f GiB of memory free, %.1f needed" % (gpus[own_number].index, free / common.GIB, NEEDED_BYTES / common.GIB)
            )
        try:
            distributed.init_process_group(device_id=device, **settings)
        except TypeError:
            distributed.init_process_group(**settings)
    return Group(torch, number, world, device, backend, fault == "wrong", correct_only)


def open_store(distributed, number, world, patience):
    """The store of this node's ranks, on a free port."""
    if number == 0:
        store = distributed.TCPStore("127.0.0.1", 0, world, True, timeout=patience, wait_for_workers=False)
        common.say("port", port=store.port)
        return store
    return distributed.TCPStore("127.0.0.1", int(sys.stdin.readline()), world, False, timeout=patience, wait_for_workers=False)


class Missing(Exception):
    """Numbers of nodes that did not come to the meeting, and the reason in words."""

    def __init__(self, nodes, reason):
        super().__init__(reason)
        self.nodes = nodes


def meet(distributed, plan, number, world, correct_only):
    """The store of the first node, and what this rank is among the ranks of all nodes: (store, number, world, whether rates are left out).

    The first rank of each node says how many ranks it has. That of the first node waits for all, and tells all who came: they agree on who is
    missing. Nothing waits in the store itself, because an older torch loses its connection when such a wait ends by time.
    """
    host, _, port = plan.meet.rpartition(":")
    opens = plan.node == 0 and number == 0
    until = time.monotonic() + SHARE_FOR_MEETING * (plan.until - time.monotonic())
    patience = datetime.timedelta(seconds=max(1.0, until - time.monotonic()))
    try:
        store = distributed.TCPStore(host.strip("[]"), int(port), None, opens, timeout=patience, wait_for_workers=False)
    except Exception as error:
        if opens:
            raise
        raise Missing([0], "node 0 does not answer at %s (%s)" % (plan.meet, common.text_of(error))) from None
    if number == 0:
        store.set("node/%d" % plan.node, json.dumps({"ranks": world, "correct_only": correct_only}))
        store.add("here/%d" % plan.node, 1)
    if opens:
        missing = [node for node in range(plan.nodes) if not came(store, "here/%d" % node, until)]
        nodes = [] if missing else [json.loads(store.get("node/%d" % node)) for node in range(plan.nodes)]
        store.set("verdict", json.dumps({"missing": missing, "nodes": nodes}))
        store.add("told", 1)
        if missing:
            time.sleep(FAREWELL_S)
    elif not came(store, "told", until + FAREWELL_S):
        raise Missing([0], "node 0 did not say who came to %s" % plan.meet)
    verdict = json.loads(store.get("verdict"))
    if verdict["missing"]:
        missing = verdict["missing"]
        named = "%s %s" % ("nodes" if len(missing) > 1 else "node", ", ".join(map(str, missing[:20])))
        raise Missing(missing, "%s of %d never came to %s" % (named, plan.nodes, plan.meet))
    ranks = [node["ranks"] for node in verdict["nodes"]]
    return store, sum(ranks[: plan.node]) + number, sum(ranks), any(node["correct_only"] for node in verdict["nodes"])


def came(store, key, until):
    """Whether somebody has counted this key up before it is too late."""
    while not store.add(key, 0):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def sequence(group):
    """Values first: each collective on data that tells where it came from."""
    torch, distributed, number, world = group.torch, group.distributed, group.number, group.world
    stage("barrier")
    started = time.monotonic()
    group.barrier()
    group.synchronize()
    first_s = time.monotonic() - started
    stage("all-reduce of 4 bytes")
    one = torch.full((1,), number + 1, dtype=torch.int32, device=group.device)
    distributed.all_reduce(one)
    wrong = int(int(one.item()) + (1 if group.wrong else 0) != world * (world + 1) // 2)
    say_result(group, "all-reduce small", 4, wrong, first_call_s=first_s)
    stage("all-to-all")
    attempt(group, "all-to-all values", all_to_all_wrong)
    stage("all-gather and reduce-scatter")
    attempt(group, "all-gather and reduce-scatter values", gather_scatter_wrong)


def is_lacking(error):
    """Whether a back end says that it has no such collective."""
    lacking = re.search(r"does not support|no support for|not implemented|unsupported", str(error), re.IGNORECASE)
    return isinstance(error, (NotImplementedError, AttributeError)) or lacking is not None


def attempt(group, path, body):
    """A collective that this back end may not have; every rank then refuses alike and the sequence goes on."""
    try:
        size, wrong = body(group)
    except (NotImplementedError, AttributeError, RuntimeError) as error:
        if not is_lacking(error):
            raise
        common.say("result", path=path, refused=common.text_of(error), world=group.world)
        return
    say_result(group, path, size, wrong)


def say_result(group, path, size, wrong, **more):
    """One result of this rank."""
    common.say("result", path=path, bytes=size, wrong=wrong, backend=group.backend, world=group.world, **more)


def words(group, sender, receiver, count):
    """What one rank sends to another: no two messages are alike."""
    torch = group.torch
    return torch.arange(count, dtype=torch.int32, device=group.device) * 64 + (sender * group.world + receiver) * 1_000_003


def all_to_all_wrong(group):
    """Equal shares of 1 MiB, then shares that grow with the receiver's number; words that differ are counted."""
    torch, number, world = group.torch, group.number, group.world
    equal = [MIB // 4] * world
    growing = [1000 + 37 * receiver for receiver in range(world)]
    wrong = 0
    for counts, received in ((equal, equal), (growing, [growing[number]] * world)):
        source = torch.cat([words(group, number, receiver, count) for receiver, count in enumerate(counts)])
        target = torch.zeros(sum(received), dtype=torch.int32, device=group.device)
        group.distributed.all_to_all_single(target, source, received, counts)
        expected = torch.cat([words(group, sender, number, count) for sender, count in enumerate(received)])
        if group.wrong:
            target[::7] += 1
        wrong += int((target != expected).sum())
    return MIB * world, wrong


def gather_scatter_wrong(group):
    """The pair that engines use in place of all-to-all."""
    torch, number, world = group.torch, group.number, group.world
    count = MIB // 4
    gathered = torch.zeros(count * world, dtype=torch.int32, device=group.device)
    group.distributed.all_gather_into_tensor(gathered, words(group, number, 0, count))
    expected = torch.cat([words(group, sender, 0, count) for sender in range(world)])
    if group.wrong:
        gathered[::7] += 1
    wrong = int((gathered != expected).sum())
    scattered = torch.zeros(count, dtype=torch.int32, device=group.device)
    group.distributed.reduce_scatter_tensor(scattered, expected + number)
    own = words(group, number, 0, count) * world + world * (world - 1) // 2
    return MIB * world, wrong + int((scattered != own).sum())


def rates(group):
    """Time each collective when the conductor has the GPUs for this group alone, and give the memory back before others go on."""
    stage("waiting for a quiet moment")
    common.say("timing")
    sys.stdin.readline()
    time_all(group)
    common.give_back_memory()


def time_all(group):
    """256 MiB through each collective, 128 through all-to-all.

    One buffer serves all: in place as NCCL defines that (a rank's own part lies where it belongs in the whole), all-to-all from one half to the other.
    """
    torch, distributed, number, world = group.torch, group.distributed, group.number, group.world
    # Gloo knows no BF16 in older torch.
    most, dtype = (256 * MIB, torch.bfloat16) if group.device.type == "cuda" else (MIB, torch.float32)
    size = most // (world * 512) * world * 512
    whole = torch.randn(size // (2 if dtype is torch.bfloat16 else 4), device=group.device, dtype=dtype)
    one, other = whole.chunk(2)
    part = whole.chunk(world)[number]
    calls = (
        ("all-reduce", size, lambda: distributed.all_reduce(whole)),
        ("all-to-all", size // 2, lambda: distributed.all_to_all_single(other, one)),
        ("all-gather", size, lambda: distributed.all_gather_into_tensor(whole, part)),
        ("reduce-scatter", size, lambda: distributed.reduce_scatter_tensor(part, whole)),
    )
    for path, own_size, call in calls:
        stage("timing " + path)
        attempt_rate(group, path, call, own_size)


def attempt_rate(group, path, call, size):
    """Seconds of one call: the best of a few runs, after calls that set the transport up."""
    try:
        started = time.monotonic()
        call()
        group.synchronize()
        first_s = time.monotonic() - started
        call()
        best = float("inf")
        for _ in range(REPEATS):
            group.barrier()
            group.synchronize()
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            group.synchronize()
            best = min(best, (time.perf_counter() - started) / CALLS)
    except (NotImplementedError, AttributeError, RuntimeError) as error:
        if not is_lacking(error):
            raise
        common.say("result", path=path, refused=common.text_of(error), world=group.world)
        return
    say_result(group, path, size, 0, call_s=best, first_call_s=first_s)


def heeded(context, unavailable):
    """The results of the test; what makes all tests impossible is kept for after its end."""
    try:
        yield from collectives(context)
    except Unavailable as found:
        unavailable.append(found)


def main():
    """The conductor: one test, once for all GPUs."""
    plan = common.read_plan()
    torch, plan.import_s = common.import_torch(plan)
    if plan.device == "cuda" and not plan.gpus:
        plan.gpus = [(str(ordinal), "") for ordinal in range(visible_gpus())]
    # On behalf of the ranks; the conductor holds no GPU itself, so the context has none to synchronise.
    common.take_turns(plan, [int(index) for index, _ in plan.gpus])
    common.say("stage", at=time.monotonic(), name="starting the ranks")
    unavailable = []
    common.run_one(lambda context: heeded(context, unavailable), common.Context(torch, plan, TEST, None, []))
    if unavailable:
        common.unavailable(plan, *unavailable[0].args)
    common.say("done", at=time.monotonic())
    common.leave(plan, 0)


if __name__ == "__main__":
    main()
