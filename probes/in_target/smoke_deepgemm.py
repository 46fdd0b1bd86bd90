"""DeepGEMM's block-scaled FP8 product at the size of one routed expert, through whichever of its names this release has.

Run by the patient's interpreter in a process of its own: the library compiles at first use. Python 3.9 and newer.
"""

import importlib.util
import os
import shutil
import sys


def load_common():
    """smoke_common.py of this folder under a name nobody else has: the folder itself must not come onto sys.path."""
    path = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "smoke_common.py")
    spec = importlib.util.spec_from_file_location("_dsdoctor_smoke_common", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = load_common()
ROWS, COLUMNS, INNER = 256, 4096, 7168
PRODUCT_NAMES = ("fp8_gemm_nt", "gemm_fp8_fp8_bf16_nt")
"""Newest first."""
ALIGN_NAMES = ("get_mn_major_tma_aligned_tensor", "get_col_major_tma_aligned_tensor")
VENDORED = ("vllm", "third_party", "deep_gemm")


def import_deep_gemm():
    """(module, where it is from): the package itself, else the copy inside vLLM, without importing vLLM."""
    if importlib.util.find_spec("deep_gemm") is not None:
        return importlib.import_module("deep_gemm"), "deep_gemm"
    owner = importlib.util.find_spec(VENDORED[0])
    folders = list(getattr(owner, "submodule_search_locations", None) or ())
    for folder in folders:
        path = os.path.join(folder, *VENDORED[1:])
        if os.path.exists(os.path.join(path, "__init__.py")):
            sys.path.append(os.path.dirname(path))
            return importlib.import_module("deep_gemm"), "copy inside vllm"
    raise common.Skip("deep_gemm is not installed")


def toolchain_notes():
    """What DeepGEMM compiles with: it looks for CUDA_HOME, CUDA_PATH, nvcc on PATH and /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    nvcc = os.path.join(home, "bin", "nvcc") if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return {
        "cuda_home": home or "not set",
        "nvcc": nvcc if os.path.exists(nvcc) else "missing: %s" % nvcc,
        "nvrtc": os.environ.get("DG_JIT_USE_NVRTC", "0"),
    }


def product_of_library(library):
    """The product under its newest name, and what brings activation factors into the layout that the old name wants."""
    name = next((name for name in PRODUCT_NAMES if hasattr(library, name)), "")
    if not name:
        raise common.Refused("deep_gemm has none of %s" % ", ".join(PRODUCT_NAMES))
    align = next((getattr(library, each) for each in ALIGN_NAMES if hasattr(library, each)), None)
    return name, getattr(library, name), align if name == PRODUCT_NAMES[1] else None


def measure(context, name, product, align):
    """Errors, the compiling first call and a warm one. Power-of-two factors, which every generation's kernels take without a loss."""
    torch, generator = context.torch, context.generator()
    context.need(1 << 29)
    plain_a = context.normal(ROWS, INNER, generator=generator)
    plain_b = context.normal(COLUMNS, INNER, generator=generator)
    a, factor_a = common.by_row_block(torch, plain_a, "power_of_two")
    b, factor_b = common.by_tile(torch, plain_b, "power_of_two")
    output = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device=context.device)
    left = (a, factor_a if align is None else align(factor_a))

    def call():
        product(left, (b, factor_b), output)

    first_s = context.first_seconds(call)
    second_s = context.seconds(call)
    part = slice(0, 512)
    exact = common.product_of(a, factor_a, b[part], factor_b[:4])
    unquantised = plain_a.cpu().double() @ plain_b[part].cpu().double().t()
    values = common.judged_product(context, output[:, part].contiguous(), exact, unquantised)
    values.update(first_call_s=first_s, second_call_s=second_s, columns_written=int((output != 0).any(dim=0).sum()))
    return values


def deepgemm(context):
    """One product; the library's own words where it does not run."""
    if context.on_gpu and context.capability[0] not in (9, 10, 12):
        yield context.skipped(
            "DeepGEMM is for Hopper and Blackwell, this GPU has compute capability %d.%d" % context.capability, "deepgemm"
        )
        return
    cache = os.environ.get("DG_JIT_CACHE_DIR") or os.path.join(os.path.expanduser("~"), ".deep_gemm")
    problem = common.unusable_directory(cache)
    os.environ["DG_JIT_CACHE_DIR"] = os.path.join(context.plan.scratch, "deepgemm")
    notes = dict(toolchain_notes(), shape="%dx%dx%d" % (ROWS, COLUMNS, INNER), scaling="1x128 / 128x128")
    if problem:
        notes["configured_cache"] = problem
    said = []
    try:
        with common.standard_error() as said:
            library, origin = import_deep_gemm()
            notes.update(origin=origin, version=getattr(library, "__version__", ""))
            name, product, align = product_of_library(library)
            notes["entry"] = name
            values = measure(context, name, product, align)
        yield context.ran("deepgemm", values, **notes)
    except Exception as error:
        errors = [line.strip() for line in "".join(said).splitlines() if "error" in line.lower()]
        if errors:
            notes["compiler_said"] = errors[0]
        yield context.result(common.compiled_outcome(error), "deepgemm", common.text_of(error), {}, notes)


if __name__ == "__main__":
    common.main({"deepgemm": deepgemm})
