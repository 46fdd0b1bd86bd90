"""The smoke tests of torch itself: FP8 cast and products, attention, silent corruption, rates, copies. One process for a GPU, one import of torch.

Run by the patient's interpreter: standard library and torch only, Python 3.9 and newer.
"""

import importlib.util
import math
import os
import sys


def load_attention():
    """smoke_attention.py of this folder under a name nobody else has: the folder itself must not come onto sys.path."""
    path = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "smoke_attention.py")
    spec = importlib.util.spec_from_file_location("_dsdoctor_smoke_attention", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


torch_attention = load_attention()
common = torch_attention.common
MIB = 1 << 20
ROWS, COLUMNS, INNER = 256, 512, 1024
"""Shape of the correctness products; the inner size is a multiple of 512 since torch 2.9 pads block scales wrongly otherwise."""
DOUBLE_OFFSET = 127


# --- FP8 cast ---------------------------------------------------------------------------------------------------------


def e4m3_value(bits):
    """The number that an E4M3FN byte stands for, by its definition (OCP 8-bit floating point, E4M3)."""
    exponent, mantissa = bits >> 3 & 15, bits & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if bits & 128 else magnitude


def fp8_cast(context):
    """All 256 bytes decode to their definition and encode back; what happens above 448 is told, not judged."""
    torch = context.torch

    def body():
        kind = common.float8(torch)
        expected = torch.tensor([e4m3_value(bits) for bits in range(256)], dtype=torch.float32)
        every_byte = torch.arange(256, dtype=torch.uint8, device=context.device)
        decoded = context.observed(every_byte.view(kind).float()).cpu()
        number = ~expected.isnan()
        encoded = expected.to(context.device).to(kind).view(torch.uint8).cpu()
        above = torch.tensor([464.0, 480.0, 1e4, math.inf], device=context.device).to(kind).float().cpu()
        values = {
            "decode_mismatches": int((decoded[number] != expected[number]).sum() + (~decoded[~number].isnan()).sum()),
            "encode_mismatches": int((encoded[number] != torch.arange(256, dtype=torch.uint8)[number]).sum()),
            "smallest_subnormal": float(torch.tensor(2.0**-9, device=context.device).to(kind).float()),
            "largest": float(torch.tensor(448.0, device=context.device).to(kind).float()),
            "saturates": float(not bool(above.isnan().any())),
        }
        return values, {"above_448": ", ".join("%g -> %g" % pair for pair in zip((464, 480, 1e4, math.inf), above.tolist()))}

    yield context.attempt("torch cast", body)


# --- FP8 products -----------------------------------------------------------------------------------------------------


def operands(context):
    """Normal data for a (rows, inner) x (columns, inner) product, and their exact product."""
    generator = context.generator()
    a = context.normal(ROWS, INNER, generator=generator)
    b = context.normal(COLUMNS, INNER, generator=generator)
    return a, b, a.cpu().double() @ b.cpu().double().t()


def private_scaled_mm(torch, a, b, scale_a, scale_b, out_dtype=None, **more):
    """torch._scaled_mm of a (M, K) and b (N, K); a tuple in old releases."""
    entry = getattr(torch, "_scaled_mm", None)
    if entry is None:
        raise common.Refused("torch %s has no _scaled_mm" % torch.__version__)
    output = entry(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype or torch.bfloat16, **more)
    return output[0] if isinstance(output, tuple) else output


def timed_product(context, multiply, quantised_a, quantised_b, unquantised):
    """Values of one product: errors and the time of its first call, in which libraries are loaded and kernels chosen."""
    (a, factor_a), (b, factor_b) = quantised_a, quantised_b
    outputs = []
    first_s = context.seconds(lambda: outputs.append(multiply(a, b, factor_a, factor_b)))
    values = common.judged_product(context, outputs[0], common.product_of(a, factor_a, b, factor_b), unquantised)
    return dict(values, first_call_s=first_s)


def fp8_gemm(context):
    """Per tensor and per row through torch._scaled_mm."""
    torch = context.torch
    a, b, unquantised = operands(context)
    shape = "%dx%dx%d" % (ROWS, COLUMNS, INNER)

    def per_tensor():
        return timed_product(
            context,
            lambda a, b, sa, sb: private_scaled_mm(torch, a, b, sa, sb),
            common.by_tensor(torch, a),
            common.by_tensor(torch, b),
            unquantised,
        )

    def per_row():
        return timed_product(
            context,
            lambda a, b, sa, sb: private_scaled_mm(torch, a, b, sa, sb.t()),
            common.by_row(torch, a),
            common.by_row(torch, b),
            unquantised,
        )

    yield context.attempt("torch._scaled_mm", per_tensor, scaling="per tensor", shape=shape)
    yield context.attempt("torch._scaled_mm", per_row, scaling="per row", shape=shape)


def row_major_columns(factor):
    """Factors (M, K/128) with the strides (1, M) that cuBLASLt wants."""
    return factor.t().contiguous().t()


def private_block(torch, a, b, factor_a, factor_b):
    """torch._scaled_mm that infers the recipe from the shapes of the factors."""
    return private_scaled_mm(torch, a, b, row_major_columns(factor_a), factor_b.contiguous().t())


def public_scaled_mm(torch):
    """torch.nn.functional.scaled_mm, or a refusal."""
    entry = getattr(torch.nn.functional, "scaled_mm", None)
    if entry is None:
        raise common.Refused("torch %s has no torch.nn.functional.scaled_mm" % torch.__version__)
    return entry


def public_block(torch, a, b, factor_a, factor_b):
    """torch.nn.functional.scaled_mm with the recipe by name; the weights' factors are padded to a multiple of four along K."""
    entry, kinds = public_scaled_mm(torch), torch.nn.functional.ScalingType
    tiles, blocks = factor_b.shape
    padded = factor_b.new_zeros(tiles, -(-blocks // 4) * 4)
    padded[:, :blocks] = factor_b
    return entry(
        a, b.t(), row_major_columns(factor_a), kinds.BlockWise1x128, padded.t(), kinds.BlockWise128x128, output_dtype=torch.bfloat16
    )


def fp8_block(context):
    """The model's recipe, 1x128 activations and 128x128 weights, through each entry of torch, with float and power-of-two factors."""
    torch = context.torch
    a, b, unquantised = operands(context)
    for path, multiply in (("torch.nn.functional.scaled_mm", public_block), ("torch._scaled_mm", private_block)):
        for rounding in ("float", "power_of_two"):

            def body(multiply=multiply, rounding=rounding):
                return timed_product(
                    context,
                    lambda a, b, sa, sb: multiply(torch, a, b, sa, sb),
                    common.by_row_block(torch, a, rounding),
                    common.by_tile(torch, b, rounding),
                    unquantised,
                )

            scales = rounding.replace("_", " ") + (" (UE8M0)" if rounding == "power_of_two" else "")
            yield context.attempt(path, body, scaling="1x128 / 128x128", scales=scales, shape="%dx%dx%d" % (ROWS, COLUMNS, INNER))


def swizzle_32_4_4(factor):
    """Factors (rows, K/32) in the order that Blackwell's tensor cores read: tiles of 128x4, in each the rows 32 apart side by side."""
    rows, columns = factor.shape
    tiles = factor.view(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().view(-1)


def e8m0(torch, factor):
    """Powers of two as E8M0: the byte is the exponent with its offset."""
    kind = getattr(torch, "float8_e8m0fnu", None)
    if kind is None:
        raise common.Refused("torch %s has no float8_e8m0fnu" % torch.__version__)
    return (torch.log2(factor).round() + DOUBLE_OFFSET).to(torch.uint8).view(kind)


def mxfp8_public(torch, a, b, factor_a, factor_b):
    """MXFP8 through torch.nn.functional.scaled_mm."""
    entry, kinds, orders = public_scaled_mm(torch), torch.nn.functional.ScalingType, torch.nn.functional.SwizzleType
    scales = [e8m0(torch, swizzle_32_4_4(factor)) for factor in (factor_a, factor_b)]
    swizzles = {"swizzle_a": orders.SWIZZLE_32_4_4, "swizzle_b": orders.SWIZZLE_32_4_4}
    return entry(a, b.t(), scales[0], kinds.BlockWise1x32, scales[1], kinds.BlockWise1x32, output_dtype=torch.bfloat16, **swizzles)


def mxfp8_private(torch, a, b, factor_a, factor_b):
    """MXFP8 through torch._scaled_mm, by the type of the factors."""
    scales = [e8m0(torch, swizzle_32_4_4(factor)) for factor in (factor_a, factor_b)]
    return private_scaled_mm(torch, a, b, scales[0], scales[1])


def mxfp8(context):
    """1x32 blocks with E8M0 factors, which Blackwell multiplies by itself."""
    torch = context.torch
    if context.on_gpu and context.capability[0] != 10:
        yield context.skipped("MXFP8 needs compute capability 10.x, this GPU has %d.%d" % context.capability, "torch._scaled_mm")
        return
    a, b, unquantised = operands(context)
    for path, multiply in (("torch.nn.functional.scaled_mm", mxfp8_public), ("torch._scaled_mm", mxfp8_private)):

        def body(multiply=multiply):
            return timed_product(
                context,
                lambda a, b, sa, sb: multiply(torch, a, b, sa, sb),
                common.by_row_block(torch, a, "power_of_two", 32),
                common.by_row_block(torch, b, "power_of_two", 32),
                unquantised,
            )

        yield context.attempt(path, body, scaling="1x32", scales="E8M0", shape="%dx%dx%d" % (ROWS, COLUMNS, INNER))


def fp8_accumulation(context):
    """How much the tensor cores' short accumulators lose, by comparing fast and accurate accumulation with FP32 output."""
    torch = context.torch
    for inner in (4096, 16384):
        generator = context.generator()
        a, factor_a = common.by_tensor(torch, context.normal(128, inner, generator=generator))
        b, factor_b = common.by_tensor(torch, context.normal(128, inner, generator=generator))
        exact = common.product_of(a, factor_a, b, factor_b)

        def body(a=a, b=b, factor_a=factor_a, factor_b=factor_b, exact=exact):
            values = {}
            for name, fast in (("fast", True), ("accurate", False)):
                output = private_scaled_mm(torch, a, b, factor_a, factor_b, torch.float32, use_fast_accum=fast)
                found = common.compare(torch, context.observed(output).cpu(), exact)
                values.update({"%s_%s" % (key, name): found[key] for key in ("rel_error", "nonfinite") if key in found})
            if values.get("rel_error_accurate"):
                values["fast_over_accurate"] = values["rel_error_fast"] / values["rel_error_accurate"]
            return values

        yield context.attempt("torch._scaled_mm", body, inner=inner, output="float32")


# --- silent corruption ------------------------------------------------------------------------------------------------


def checksum(torch, tensor):
    """A number that any changed bit or swapped element of a BF16 tensor changes, made of integers only."""
    total, first = 0, 0
    for part in tensor.contiguous().view(torch.int16).view(-1).split(MIB):
        weights = torch.arange(first, first + part.numel(), device=part.device) % 65521 + 1
        total += int((part.to(torch.int64) * weights).sum())
        first += part.numel()
    return "%016x" % (total & (1 << 64) - 1)


def silent_corruption(context):
    """The same product again and again must give the same bits; cuBLAS promises that for one stream on one GPU."""
    torch = context.torch
    size, runs = (4096 if context.on_gpu else 192), (50 if context.full else 20)

    def body():
        context.need(512 * MIB)
        generator = context.generator()
        a, b = (context.normal(size, size, generator=generator, dtype=torch.bfloat16) for _ in range(2))
        first = a @ b
        differing_runs = differing_elements = 0
        for run in range(1, runs):
            again = context.observed(a @ b) if run == 3 else a @ b
            if not torch.equal(again, first):
                differing_runs += 1
                differing_elements = max(differing_elements, int((again != first).sum()))
        values = {"runs": runs, "differing_runs": differing_runs, "differing_elements": differing_elements}
        corner = slice(0, 64)
        exact = a[corner].cpu().double() @ b[:, corner].cpu().double()
        found = common.compare(torch, first[corner, corner].cpu(), exact)
        values.update({key: found[key] for key in ("rel_error", "nonfinite") if key in found})
        return values, {"checksum": checksum(torch, first), "input_checksum": checksum(torch, torch.stack((a[0], b[0])))}

    yield context.attempt("torch.matmul", body, shape="%dx%dx%d" % (size, size, size), dtype="bfloat16", product=context.gpu.name)


# --- rates ------------------------------------------------------------------------------------------------------------


def rate_edge(context):
    """Edge of the larger operand: 8192, or less where memory is short. The other has half the rows: as fast, and all fits in 256 MiB."""
    if not context.on_gpu:
        return 256
    for edge in (8192, 4096, 2048):
        if context.has_room(4 * edge * edge):
            return edge
    context.need(4 * 2048 * 2048)
    return 2048


def rate_of(context, path, prepare, dtype):
    """TFLOP/s of a (edge/2, edge) x (edge, edge) product; random data, since zeros run faster."""

    def body():
        context.rates_allowed()
        with context.alone():
            edge = rate_edge(context)
            call_s = context.best_call_s(prepare(edge // 2, edge))
        values = {"tflops": 2.0 * (edge // 2) * edge**2 / call_s / 1e12, "call_s": call_s, "first_call_s": context.first_call_s}
        return values, {"shape": "%dx%dx%d" % (edge // 2, edge, edge), "calls": context.calls}

    return context.attempt(path, body, dtype=dtype)


def bf16_rate(context):
    """Dense BF16 product."""
    torch = context.torch

    def prepare(rows, edge):
        generator = context.generator()
        a, b = (context.normal(count, edge, generator=generator, dtype=torch.bfloat16) for count in (rows, edge))
        output = torch.empty(rows, edge, device=context.device, dtype=torch.bfloat16)
        return lambda: torch.mm(a, b, out=output)

    if context.on_gpu and context.capability < (8, 0):
        yield context.skipped("BF16 needs compute capability 8.0, this GPU has %d.%d" % context.capability, "torch.mm")
        return
    yield rate_of(context, "torch.mm", prepare, "bfloat16")


def fp8_rate(context):
    """Dense FP8 product scaled per tensor, fast accumulation, BF16 output."""
    torch = context.torch

    def prepare(rows, edge):
        generator, kind = context.generator(), common.float8(torch)
        factor = torch.tensor(0.01, device=context.device)
        # In place, since copies would double the memory.
        plain = (context.normal(count, edge, generator=generator, dtype=torch.bfloat16) for count in (rows, edge))
        a, b = (tensor.mul_(64).clamp_(-common.E4M3_MAX, common.E4M3_MAX).to(kind) for tensor in plain)
        return lambda: private_scaled_mm(torch, a, b, factor, factor, use_fast_accum=True)

    yield rate_of(context, "torch._scaled_mm", prepare, "float8_e4m3fn")


def same_bytes(torch, one, other):
    """Whether two tensors of bytes are equal, compared in parts: at once it would take as much memory again."""
    return all(bool(torch.equal(*parts)) for parts in zip(one.split(16 * MIB), other.split(16 * MIB)))


def copy_size(context):
    """Bytes to copy: at least twice the cache of the GPU."""
    if not context.on_gpu:
        return MIB
    cache = getattr(context.torch.cuda.get_device_properties(context.device), "L2_cache_size", 0)
    return (128 if cache <= 64 * MIB else 256) * MIB


def memory_copy(context):
    """A copy inside GPU memory much larger than its cache; bytes read and bytes written both count."""
    torch, size = context.torch, copy_size(context)

    def timed():
        source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=context.device, generator=context.generator())
        target = torch.empty_like(source)
        call_s = context.best_call_s(lambda: target.copy_(source))
        return call_s, same_bytes(torch, context.observed(target), source)

    def body():
        context.rates_allowed()
        with context.alone():
            context.need(2 * size)
            call_s, same = timed()
        return {"gb_per_s": 2 * size / call_s / 1e9, "call_s": call_s, "wrong_bytes": float(not same)}

    yield context.attempt("copy_", body, bytes=size)


def pcie(context):
    """Copies between pinned host memory near the GPU and the GPU, one GPU at a time; the doctor reads the link meanwhile."""
    torch = context.torch
    # Large enough for the full rate, small enough to be pinned in a moment.
    size = 64 * MIB if context.on_gpu else MIB
    path = "pinned" if context.on_gpu else "pageable"
    before = os.sched_getaffinity(0)
    results = []

    def copy_rate(target, source):
        # About half a second a direction is enough to read the link several times, also on a slow one.
        call_s = context.best_call_s(lambda: target.copy_(source, non_blocking=True), calls=8, warm_up=2, limit_s=0.5)
        return {"gb_per_s": size / call_s / 1e9, "call_s": call_s}

    def measure():
        context.rates_allowed()
        cpus = common.near_cpus(context.gpu.address)
        if cpus:
            os.sched_setaffinity(0, cpus)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=context.on_gpu)
        notes = {"bytes": size, "near_cpus": "bound" if cpus else "unknown"}
        with context.alone("host-links"):
            context.need(2 * size)
            there = torch.randint(0, 256, (size,), dtype=torch.uint8, device=context.device, generator=context.generator())
            back = torch.empty_like(there)
            down = copy_rate(host, there)
            results.append(context.ran(path + " d2h", down, **notes))
            up = copy_rate(back, host)
            wrong = float(not same_bytes(torch, context.observed(back), there))
            del there, back
            results.append(context.ran(path + " h2d", dict(up, wrong_bytes=wrong), **notes))

    try:
        measure()
    except Exception as error:
        results.append(context.raised(path, error))
    finally:
        os.sched_setaffinity(0, before)
    yield from results


TESTS = {
    "fp8-cast": fp8_cast,
    "fp8-gemm": fp8_gemm,
    "fp8-block": fp8_block,
    "mxfp8": mxfp8,
    "fp8-accumulation": fp8_accumulation,
    "attention": torch_attention.attention,
    "silent-corruption": silent_corruption,
    "bf16-rate": bf16_rate,
    "fp8-rate": fp8_rate,
    "memory-copy": memory_copy,
    "pcie": pcie,
}

if __name__ == "__main__":
    common.main(TESTS)
