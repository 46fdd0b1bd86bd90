"""Import torch, use it a little, and say what happened, one JSON line a step. Standard library only, Python 3.6 and newer.

Every line is {"stage": ...} before a step or {"facts": {...}} after it, so that a crash or a hang leaves what was learnt before.
"""

import ctypes
import fcntl
import importlib
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings

RESULT = int(os.environ.pop("DSDOCTOR_RESULT_FD"))


def say(**line):
    """Write one line of the answer."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(RESULT, data) :]


def stage(name):
    """Name what comes next."""
    say(stage=name)


def facts(**found):
    """Add facts."""
    say(facts=found)


def text_of(error):
    """One line for an exception: its type is left out where the message says enough."""
    return " ".join(str(error).split()) or type(error).__name__


def last_line(error):
    """The last line of a traceback."""
    return traceback.format_exception_only(type(error), error)[-1].strip()


def attempt(step, field):
    """Run a step; what it raises becomes the fact `field`."""
    try:
        step()
    except Exception as error:
        if field:
            facts(**{field: text_of(error)})


def main():
    """All steps, the riskier ones last."""
    stage("importing torch")
    started = time.time()
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ImportError) and getattr(error, "name", None) == "torch"
        facts(imported=False, import_error=last_line(error), not_installed=missing)
        mapped()
        return
    facts(imported=True, import_s=round(time.time() - started, 3))
    importers = start_importers(json.loads(sys.argv[2]) if len(sys.argv) > 2 else [])
    stage("reading how torch was built")
    attempt(lambda: facts(arch_list=list(torch._C._cuda_getArchFlags().split())), None)
    attempt(lambda: facts(nccl_compiled=dotted(torch.cuda.nccl.version())), None)
    built_for_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    stage("asking whether CUDA is available")
    attempt(lambda: ask_available(torch), "cuda_error")
    if built_for_cuda:
        stage("initialising CUDA")
        attempt(lambda: torch.cuda.init(), "cuda_error")
        stage("counting devices")
        attempt(lambda: facts(device_count=torch.cuda.device_count()), None)
    stage("loading cuDNN")
    attempt(lambda: facts(cudnn_version=dotted(torch.backends.cudnn.version())), "cudnn_error")
    stage("reading the mapped libraries")
    mapped()
    if built_for_cuda and is_initialised(torch):
        stage("reading device properties")
        attempt(lambda: facts(device_capabilities=capabilities(torch)), None)
        stage("waiting for a place on the GPU")
        attempt(lambda: take_place(sys.argv[3] if len(sys.argv) > 3 else ""), None)
        stage("running a first operation on the GPU")
        attempt(lambda: operate(torch), "operation_error")
        stage("reading the mapped libraries")
        mapped()
    stage("asking the mapped libraries for their versions")
    ask_versions()
    if built_for_cuda and is_initialised(torch):
        stage("giving the GPU back")
        attempt(lambda: give_back(torch), None)
    stage("importing kernel libraries")
    for importer in importers:
        pass_on(importer)


# --- kernel libraries -------------------------------------------------------------------------------------------------


def start_importers(packages):
    """Fork a few children that import the packages, each package in a child of its own, while this process goes on.

    Forked before CUDA is initialised, since a forked process cannot use it afterwards. Returns the pipes of their answers.
    """
    return [start_importer(packages[first::IMPORTERS]) for first in range(min(IMPORTERS, len(packages)))]


def start_importer(packages):
    """Fork a child that imports packages one after another; returns the pipe of its answers."""
    global RESULT
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return read_end
    os.close(read_end)
    RESULT = write_end
    scratch = tempfile.mkdtemp(prefix="dsdoctor-")
    try:
        # Some packages make cache directories when they are imported: not in the user's home.
        os.environ.update(HOME=scratch, XDG_CACHE_HOME=scratch, TRITON_CACHE_DIR=scratch, FLASHINFER_WORKSPACE_BASE=scratch)
        left_s = IMPORTS_TIMEOUT_S
        for package in packages:
            started = time.time()
            examine(package, left_s)
            left_s = max(0.0, left_s - (time.time() - started))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(0)


def pass_on(answers):
    """Hand on what the importer said, line by line, until it ends."""
    with os.fdopen(answers, "rb") as lines:
        for line in lines:
            say(**json.loads(line.decode()))


def examine(package, left_s):
    """Import one package; then open those of its extensions that the import did not load."""
    loaded = []
    if package["module"]:
        answer = apart(lambda: import_module(package), min(left_s, IMPORT_TIMEOUT_S))
        loaded = answer.get("loaded", [])
        say(facts={"import " + package["module"]: dict(answer, package=package["package"], module=package["module"])})
    for path in package["extensions"]:
        if path not in loaded:
            answer = apart(lambda path=path: open_library(path), min(left_s, IMPORT_TIMEOUT_S))
            say(facts={"import " + path: dict(answer, package=package["package"], module=path)})


def import_module(package):
    """Import a module and say what it has."""
    module = importlib.import_module(package["module"])
    names = sorted(name for name in dir(module) if name[:1] != "_" and callable(getattr(module, name, None)))
    mapped = set(mapped_paths())
    return {
        "outcome": "imported",
        "callables": names[:100],
        "loaded": [path for path in package["extensions"] if os.path.realpath(path) in mapped],
    }


def open_library(path):
    """Open an extension as an import does: every symbol at once."""
    ctypes.CDLL(path)
    return {"outcome": "imported"}


def apart(step, timeout_s):
    """The answer of a step that runs in a child: an exception, a crash and a hang are answers too. Its output goes nowhere."""
    started = time.time()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            try:
                answer = step()
            except BaseException as error:
                answer = {"outcome": "failed", "error": innermost(error)[:1000]}
            os.write(write_end, json.dumps(answer).encode()[:60000])
        finally:
            os._exit(0)
    os.close(write_end)
    text = b""
    while select.select([read_end], [], [], max(0.0, timeout_s - (time.time() - started)))[0]:
        chunk = os.read(read_end, 65536)
        if not chunk:
            break
        text += chunk
    else:
        text = json.dumps({"outcome": "hung", "error": "no end within %.0f s" % timeout_s}).encode()
    os.close(read_end)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    status = os.waitpid(child, 0)[1]
    if not text:
        how = "killed by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "it ended the process"
        text = json.dumps({"outcome": "crashed", "error": how}).encode()
    return dict(json.loads(text.decode()), elapsed_s=round(time.time() - started, 3))


def innermost(error):
    """The line of the loader where an exception or what caused it holds one, else the exception's own last line."""
    seen = error
    while seen is not None:
        for line in last_line(seen).splitlines():
            if re.search(LOADER_SAID, line):
                return line.strip(" -")
        seen = seen.__cause__ or seen.__context__
    return " ".join(last_line(error).split())


LOADER_SAID = r"undefined symbol|cannot open shared object file|version `?\S+ not found"
IMPORT_TIMEOUT_S = 20.0
IMPORTS_TIMEOUT_S = 60.0
IMPORTERS = 4


def ask_available(torch):
    """torch.cuda.is_available() with the warnings it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    facts(cuda_available=available, cuda_warnings=[text_of(item.message) for item in caught])


def is_initialised(torch):
    """Whether CUDA was initialised, so that an operation can be tried."""
    try:
        return bool(torch.cuda.is_initialized())
    except Exception:
        return False


def capabilities(torch):
    """Compute capability of each visible device."""
    return ["%d.%d" % tuple(torch.cuda.get_device_capability(index)) for index in range(torch.cuda.device_count())]


def operate(torch):
    """A small matrix product and a small convolution: they load cuBLAS and the sub-libraries of cuDNN."""
    square = torch.ones(64, 64, device="cuda")
    total = float((square @ square).sum())
    if total != 64.0**3:
        raise ValueError("a product of 64x64 ones summed to %r" % total)
    image = torch.ones(1, 1, 8, 8, device="cuda")
    float(torch.nn.functional.conv2d(image, image[:, :, :3, :3]).sum())


def take_place(folder):
    """Take a place on the first visible GPU among the smoke tests (take_place in smoke_common.py); nothing waits for ever."""
    if not folder:
        return
    mode = ctypes.c_int()
    failed = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, 0)
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    stem = os.path.join(folder, "gpu-%s-place-" % (index if index.isdigit() else "0"))
    PLACES.extend(open("%s%d.lock" % (stem, number), "w") for number in range(1 if not failed and mode.value == EXCLUSIVE else 2))
    deadline = time.time() + PLACE_WAIT_S
    while not any(is_free(place) for place in PLACES) and time.time() < deadline:
        time.sleep(0.005)


def is_free(place):
    """Whether the lock on an open file could be had at once."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


PLACES = []
"""Open files: closing one frees the place."""
PLACE_WAIT_S = 30.0
COMPUTE_MODE, EXCLUSIVE = 20, 3
"""CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, and its value for one process at a time."""


def give_back(torch):
    """End this process's use of the GPU, its last one: smoke tests need the memory while other imports are waited for."""
    device = ctypes.c_int()
    cuda = ctypes.CDLL("libcuda.so.1")
    if not cuda.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()):
        cuda.cuDevicePrimaryCtxReset_v2(device)
    while PLACES:
        PLACES.pop().close()


def dotted(version):
    """9.14.0 from (9, 14, 0), 91400 or 8902; 2.28.9 from (2, 28, 9); nothing from None."""
    if version is None:
        return ""
    if isinstance(version, (tuple, list)):
        return ".".join(str(part) for part in version[:3])
    number = int(version)
    major_unit = 10000 if number >= 90000 else 1000
    return "%d.%d.%d" % (number // major_unit, number % major_unit // 100, number % 100)


def mapped_paths():
    """Shared objects of this process, in the order of their addresses."""
    with open("/proc/self/maps", "rb") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    fields = [line.split(None, 5) for line in lines]
    paths = [field[5] for field in fields if len(field) == 6 and ".so" in field[5] and field[5].startswith("/")]
    return list(dict.fromkeys(paths))


def mapped():
    """The shared objects that are mapped now."""
    attempt(lambda: facts(mapped=mapped_paths()), None)


def ask_versions():
    """Versions in the words of the libraries that are mapped already; nothing is loaded that was not."""
    answers = {}
    for path in mapped_paths():
        name = os.path.basename(path)
        for pattern, ask in ASKERS:
            if re.match(pattern, name):
                try:
                    answers[path] = ask(ctypes.CDLL(path))
                except (OSError, AttributeError, ValueError):
                    pass
    facts(versions=answers)


def through_pointer(function, spell):
    """An asker for libraries whose function writes one integer, that `spell` writes out."""

    def ask(library):
        number = ctypes.c_int()
        if getattr(library, function)(ctypes.byref(number)) != 0:
            return ""
        return spell(number.value)

    return ask


def nccl(number):
    """2.28.9 from 22809; 2.8.3 from 2803."""
    unit = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // unit, number % unit // 100, number % 100)


def cuda(number):
    """13.0 from 13000."""
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def cudnn(library):
    """cudnnGetVersion returns the number itself."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return dotted(library.cudnnGetVersion())


def nvrtc(library):
    """nvrtcVersion writes major and minor."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    return "" if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) else "%d.%d" % (major.value, minor.value)


ASKERS = (
    (r"libcuda\.so", through_pointer("cuDriverGetVersion", cuda)),
    (r"libcudart[-.\w]*\.so", through_pointer("cudaRuntimeGetVersion", cuda)),
    (r"libnccl\.so", through_pointer("ncclGetVersion", nccl)),
    # libcudnn.so.9 passes the question on, so that its answer is that of another file.
    (r"libcudnn_graph\.so|libcudnn\.so\.8", cudnn),
    (r"libnvrtc\.so", nvrtc),
)

if __name__ == "__main__":
    main()
    stage("done")
    # Leaving without the interpreter's farewell: a crash in some library's destructor is not an answer to any question asked here.
    sys.stdout.flush()
    os._exit(0)
