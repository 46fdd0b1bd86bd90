"""A block-scaled FP8 product in a Triton kernel of our own, and each thing that Triton's compiler needs, by name.

Run by the patient's interpreter in a process of its own, since a compiler may crash. Python 3.9 and newer. With --device cpu the kernel
runs in Triton's interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile


def load_common():
    """smoke_common.py of this folder under a name nobody else has: the folder itself must not come onto sys.path."""
    path = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "smoke_common.py")
    spec = importlib.util.spec_from_file_location("_dsdoctor_smoke_common", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = load_common()
tl = None
"""triton.language, set when it is imported: the kernel compiler looks the names in a kernel up among those of its module."""
SHAPE = (256, 512, 1024)
INTERPRETED_SHAPE = (64, 256, 512)
"""The interpreter needs a second for the larger one."""
TILE_ROWS, TILE_COLUMNS, BLOCK = 64, 128, 128


# --- what the compiler needs ------------------------------------------------------------------------------------------


def compiler():
    """CC, else gcc, else clang, as Triton looks for it."""
    chosen = os.environ.get("CC")
    if chosen is not None:
        if shutil.which(chosen.split()[0] if chosen.split() else ""):
            return True, "%s (CC)" % chosen
        return False, "CC=%r names no program that runs" % chosen
    found = shutil.which("gcc") or shutil.which("clang")
    return (True, found) if found else (False, "no C compiler: CC is not set, neither gcc nor clang is on PATH")


def python_headers():
    """Python.h where Triton tells the compiler to look."""
    scheme = sysconfig.get_default_scheme() if hasattr(sysconfig, "get_default_scheme") else sysconfig._get_default_scheme()
    # Debian's scheme for pip points to /usr/local; Triton takes that of the interpreter, and so must this.
    folder = sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]
    path = os.path.join(folder, "Python.h")
    return (True, path) if os.path.exists(path) else (False, "no Python.h in %s" % folder)


def ptxas(triton, capability):
    """The assembler that Triton runs: TRITON_PTXAS_PATH, else its own."""
    name, variable = ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH") if capability[0] >= 10 else ("ptxas", "TRITON_PTXAS_PATH")
    folders = [
        os.path.join(os.path.dirname(triton.__file__), *parts)
        for parts in (("backends", "nvidia", "bin"), ("common", "..", "third_party", "cuda", "bin"))
    ]
    candidates = [os.environ.get(variable, "")] + [os.path.join(folder, name) for folder in folders]
    problem = "no %s: %s is not set and Triton brought none" % (name, variable)
    for path in candidates:
        if path and os.path.exists(path):
            try:
                said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10)
            except (OSError, subprocess.SubprocessError) as error:
                problem = "%s does not run: %s" % (path, error)
                continue
            if said.returncode == 0:
                release = [line for line in said.stdout.decode("utf-8", "replace").splitlines() if "release" in line]
                return True, "%s (%s)" % (path, release[0].strip() if release else "no release named")
            problem = "%s --version ended with status %d" % (path, said.returncode)
    return False, problem


def libcuda():
    """libcuda.so.1 for the linker: TRITON_LIBCUDA_PATH, else ldconfig, else LD_LIBRARY_PATH."""
    chosen = os.environ.get("TRITON_LIBCUDA_PATH")
    if chosen:
        there = os.path.exists(os.path.join(chosen, "libcuda.so.1"))
        return there, chosen if there else "TRITON_LIBCUDA_PATH=%s holds no libcuda.so.1" % chosen
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10).stdout.decode(
            "utf-8", "replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return False, "/sbin/ldconfig -p does not run: %s" % error
    folders = [os.path.dirname(line.split()[-1]) for line in listed.splitlines() if "libcuda.so.1" in line]
    folders = folders or os.environ.get("LD_LIBRARY_PATH", "").split(":")
    found = next((folder for folder in folders if folder and os.path.exists(os.path.join(folder, "libcuda.so.1"))), "")
    return (True, found) if found else (False, "neither ldconfig -p nor LD_LIBRARY_PATH leads to a libcuda.so.1")


def temporary_directory():
    """Where the compiler's input is written."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return True, os.path.dirname(folder)
    except OSError as error:
        return False, str(error)


def needs_of(context, triton):
    """Each need with whether it is met and where or why not."""
    if not context.on_gpu:
        return {}
    return {
        "compiler": compiler(),
        "python_headers": python_headers(),
        "ptxas": ptxas(triton, context.capability),
        "libcuda": libcuda(),
        "temporary_directory": temporary_directory(),
    }


def configured_cache():
    """The directory that Triton would use, by its own rules."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")
    return os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")


# --- the kernel -------------------------------------------------------------------------------------------------------


def block_product(
    a,
    b,
    factor_a,
    factor_b,
    c,
    columns,
    K: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """c = (a * factor_a) @ (b * factor_b).T for FP8 a (M, K) and b (N, K), factors by 1x128 and 128x128, FP32 sum after each 128."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for block in range(K // TILE_K):
        left = tl.load(a + rows[:, None] * K + block * TILE_K + inner[None, :])
        right = tl.load(b + cols[None, :] * K + block * TILE_K + inner[:, None])
        scale_left = tl.load(factor_a + rows * (K // TILE_K) + block)
        scale_right = tl.load(factor_b + tl.program_id(1) * (K // TILE_K) + block)
        total += tl.dot(left, right) * scale_left[:, None] * scale_right
    tl.store(c + rows[:, None] * columns + cols[None, :], total)


def import_triton(context):
    """Import Triton with a cache of this run only; an old cubin would hide a broken compiler."""
    private = os.path.join(context.plan.scratch, "triton")
    os.environ["TRITON_CACHE_DIR"] = private
    if not context.on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    global tl
    import triton
    import triton.language

    tl = triton.language
    return triton


def shape_of(context):
    """Rows, columns and inner size of the product."""
    return SHAPE if context.on_gpu else INTERPRETED_SHAPE


def run_kernel(context, triton):
    """Values of the product, its first call (compiled) and its second."""
    torch, (rows, columns, inner), generator = context.torch, shape_of(context), context.generator()
    plain_a = context.normal(rows, inner, generator=generator)
    plain_b = context.normal(columns, inner, generator=generator)
    a, factor_a = common.by_row_block(torch, plain_a)
    b, factor_b = common.by_tile(torch, plain_b)
    output = torch.zeros(rows, columns, dtype=torch.float32, device=context.device)
    kernel = triton.jit(block_product)

    def call():
        grid = (rows // TILE_ROWS, columns // TILE_COLUMNS)
        kernel[grid](a, b, factor_a, factor_b, output, columns, K=inner, TILE_M=TILE_ROWS, TILE_N=TILE_COLUMNS, TILE_K=BLOCK)

    first_s = context.first_seconds(call)
    second_s = context.seconds(call)
    unquantised = plain_a.cpu().double() @ plain_b.cpu().double().t()
    values = common.judged_product(context, output, common.product_of(a, factor_a, b, factor_b), unquantised)
    return dict(values, first_call_s=first_s, second_call_s=second_s)


def kernel_result(context, triton):
    """The result of the kernel, with the needs that are not met beside whatever it said."""
    needs = needs_of(context, triton)
    notes = {"need_" + name: found for name, (met, found) in needs.items() if met}
    notes.update(version=triton.__version__, scaling="1x128 / 128x128", shape="%dx%dx%d" % shape_of(context), output="float32")
    missing = {name: why for name, (met, why) in needs.items() if not met}
    if missing:
        notes.update(missing=", ".join(missing), **{"need_" + name: "missing: " + why for name, why in missing.items()})
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        notes["interpreted"] = "TRITON_INTERPRET=%s: nothing was compiled" % os.environ["TRITON_INTERPRET"]
    said = []
    try:
        with common.standard_error() as said:
            values = run_kernel(context, triton)
        return context.ran("triton", values, **notes)
    except Exception as error:
        text = common.text_of(error)
        errors = [line.strip() for line in "".join(said).splitlines() if "error" in line]
        if errors:
            notes["compiler_said"] = errors[0]
        if "fp8e4nv" in text:
            return context.refused("triton", text, **notes)
        return context.result(common.compiled_outcome(error), "triton", text, {}, notes)


def triton_test(context):
    """The configured cache once, then the kernel on this GPU."""
    if context.gpu is context.gpus[0]:
        cache = configured_cache()
        problem = common.unusable_directory(cache)
        found = context.error("configured cache", problem) if problem else context.ran("configured cache", {}, directory=cache)
        yield dict(found, gpu=None)
    try:
        triton = import_triton(context)
    except Exception as error:
        missing = isinstance(error, ImportError) and getattr(error, "name", "") == "triton"
        say = (
            context.skipped("triton is not installed", "triton")
            if missing
            else context.error("triton", common.text_of(error), stage="import")
        )
        yield say
        return
    yield kernel_result(context, triton)


def load(context):
    """Import Triton; its interpreter is chosen by a switch that the test sets before."""
    if context.on_gpu:
        importlib.import_module("triton.language")


if __name__ == "__main__":
    common.main({"triton": triton_test}, load=load, last_first=True)
