"""torch's own attention, one back end after the other, against FP64; the split-KV merge; FlashMLA where it is installed.

Run by the patient's interpreter: standard library, torch and what the tests are named after; Python 3.9 and newer. smoke_shared.py runs
torch's own attention with the other tests of torch, smoke_fa3.py FlashMLA with the other extensions; alone this script runs both.
"""

import collections
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
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

BACKENDS = (
    ("sdpa-math", "MATH"),
    ("sdpa-flash", "FLASH_ATTENTION"),
    ("sdpa-efficient", "EFFICIENT_ATTENTION"),
    ("sdpa-cudnn", "CUDNN_ATTENTION"),
)
PARTS = 4
"""Into how many pieces the keys are cut for the merge."""

Shape = collections.namedtuple("Shape", "name batch queries keys heads key_heads dim value_dim causal")
"""An attention problem; tensors are (batch, sequence, heads, dim)."""


def shape(name, batch=1, queries=512, keys=None, heads=8, key_heads=None, dim=128, value_dim=None, causal=True):
    """A shape whose missing sizes follow from the others."""
    return Shape(name, batch, queries, keys or queries, heads, key_heads or heads, dim, value_dim or dim, causal)


# --- what is right ----------------------------------------------------------------------------------------------------


def operands(context, what, dtype=None):
    """Normal query, key and value of a shape, BF16 unless told otherwise."""
    generator = context.generator()
    dtype = dtype or context.torch.bfloat16
    sizes = (
        (what.batch, what.queries, what.heads, what.dim),
        (what.batch, what.keys, what.key_heads, what.dim),
        (what.batch, what.keys, what.key_heads, what.value_dim),
    )
    return [context.normal(*size, generator=generator).to(dtype) for size in sizes]


def scores_of(torch, q, k, causal):
    """Scaled scores (batch, heads, queries, keys) in the type of the operands; the causal mask is aligned to the last key."""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(1 + keys - queries)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores


def plain_attention(torch, q, k, v, causal):
    """Attention by its definition in the type of the operands."""
    weights = scores_of(torch, q, k, causal).softmax(-1)
    v = v.transpose(1, 2).repeat_interleave(weights.shape[1] // v.shape[2], dim=1)
    return (weights @ v).transpose(1, 2)


def exact_attention(torch, q, k, v, causal):
    """Attention in FP64 on the CPU: nothing of the GPU under test is in it."""
    return plain_attention(torch, *(tensor.detach().cpu().double() for tensor in (q, k, v)), causal)


def judged(context, output, exact, plain):
    """Numbers of an output: its distance from FP64, and its share of what FlashAttention's own tests allow.

    They allow twice the error of plain attention in the same type, plus twice what adding and taking away 0.3 costs there.
    """
    torch = context.torch
    found = common.compare(torch, context.observed(output.contiguous()).detach().cpu(), exact)
    if "max_error" in found:
        rounded = exact.to(plain.dtype)
        floor = float(((rounded + 0.3 - 0.3) - rounded).abs().max())
        allowed = 2 * float((plain.detach().cpu().double() - exact).abs().max()) + 2 * floor
        found.update(allowed_error=allowed, error_share=found["max_error"] / max(allowed, 1e-30))
    return found


# --- torch's attention ------------------------------------------------------------------------------------------------


def sdpa(context, backend, q, k, v, causal):
    """scaled_dot_product_attention on one back end alone; a refusal carries torch's reasons, which it gives as warnings."""
    torch = context.torch
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise common.Refused("torch %s has no torch.nn.attention to choose a back end with" % torch.__version__) from None
    if not hasattr(SDPBackend, backend):
        raise common.Refused("torch %s has no back end %s" % (torch.__version__, backend))
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([getattr(SDPBackend, backend)]):
                output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)
        except RuntimeError as error:
            if common.outcome_of(error) != "refused":
                raise
            reasons = [" ".join(str(item.message).split()).partition(" (Triggered internally")[0] for item in said]
            raise common.Refused(" ".join([" ".join(str(error).split()), *reasons])) from None
    return output.transpose(1, 2)


def sdpa_results(context, what):
    """One result for each back end on one shape."""
    torch = context.torch
    q, k, v = operands(context, what)
    exact = exact_attention(torch, q, k, v, what.causal)
    plain = plain_attention(torch, q, k, v, what.causal)
    for path, backend in BACKENDS:

        def body(backend=backend):
            outputs = []
            first_s = context.first_seconds(lambda: outputs.append(sdpa(context, backend, q, k, v, what.causal)))
            return dict(judged(context, outputs[0], exact, plain), first_call_s=first_s)

        yield context.attempt(path, body, shape=what.name, dtype="bfloat16")


# --- the merge of split keys ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_precision(torch):
    """FP32 products without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def plain_with_sums(torch, q, k, v):
    """(output, logsumexp of the scores), both (batch, heads, queries, ...), without a mask."""
    scores = scores_of(torch, q, k, False)
    return scores.softmax(-1) @ v.transpose(1, 2), scores.logsumexp(-1)


def flash_with_sums(torch, q, k, v):
    """The same from torch's flash kernel."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    operators = torch.ops.aten
    if q.is_cuda:
        found = operators._scaled_dot_product_flash_attention(q, k, v, 0.0, False, return_debug_mask=False)
    else:
        found = operators._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    return found[0], found[1]


def merged(torch, parts):
    """One output of outputs over parts of the keys, weighted by their sums."""
    outputs, sums = zip(*parts)
    sums = torch.stack([item.float() for item in sums])
    weights = (sums - sums.logsumexp(0)).exp()
    return sum(weight[..., None] * output.float() for weight, output in zip(weights, outputs))


def merge_result(context, path, with_sums, dtype):
    """Attention over the keys at once and over their pieces merged must be the same."""
    torch = context.torch

    def body():
        q, k, v = operands(context, shape("", queries=64, keys=512, heads=4), dtype)
        with full_precision(torch):
            whole, _ = with_sums(torch, q, k, v)
            pieces = [with_sums(torch, q, *pair) for pair in zip(k.chunk(PARTS, 1), v.chunk(PARTS, 1))]
            together = context.observed(merged(torch, pieces).contiguous())
        found = common.compare(torch, together.cpu(), whole.cpu())
        return {"merge_rel_error" if name == "rel_error" else name: value for name, value in found.items() if name != "calc_diff"}

    return context.attempt(path, body, dtype=str(dtype).rpartition(".")[2], parts=PARTS)


def attention(context):
    """Each back end on one shape (with --full on three), then the merge in FP32 and with a kernel's own sums."""
    shapes = [shape("1x512 heads 8 dim 128 causal")]
    if context.full:
        shapes += [shape("1x512 heads 8 dim 64 causal", dim=64), shape("2x200 heads 8 dim 128", batch=2, queries=200, causal=False)]
    for what in shapes:
        yield from sdpa_results(context, what)
    torch = context.torch
    yield merge_result(context, "split-kv float32", plain_with_sums, torch.float32)
    yield merge_result(context, "split-kv flash", flash_with_sums, torch.bfloat16)


# --- FlashMLA ---------------------------------------------------------------------------------------------------------

PAGE = 64
LATENT, ROPE = 512, 64


def mla_providers():
    """Modules here that offer FlashMLA's dense decoding."""
    names = (("flash_mla", "flash_mla"), ("sgl-kernel", "sgl_kernel.flash_mla"))
    return [(path, name) for path, name in names if importlib.util.find_spec(name.partition(".")[0]) is not None]


def decode(context, module, q, cache, table, lengths):
    """One decoding step; old releases plan with the arguments, newer ones ignore them."""
    planned = module.get_mla_metadata(lengths, q.shape[1] * q.shape[2], 1)
    wanted = inspect.signature(module.flash_mla_with_kvcache).parameters
    more = {"use_legacy": True} if "use_legacy" in wanted and context.capability[0] == 9 else {}
    output = module.flash_mla_with_kvcache(q, cache, table, lengths, LATENT, planned[0], planned[1], causal=True, **more)
    return output[0] if isinstance(output, (tuple, list)) else output


def mla_body(context, name):
    """Values of one decoding step over pages in shuffled order, against FP64 over the same keys in a row."""
    torch = context.torch
    module = importlib.import_module(name)
    for needed in ("get_mla_metadata", "flash_mla_with_kvcache"):
        if not hasattr(module, needed):
            raise common.Refused("%s has no %s: releases from 2026-09-30 on dropped dense decoding" % (name, needed))
    lengths = [200, 513]
    pages = [-(-length // PAGE) for length in lengths]
    generator = context.generator()
    q = context.normal(len(lengths), 1, 64, LATENT + ROPE, generator=generator).to(torch.bfloat16)
    cache = (context.normal(sum(pages), PAGE, 1, LATENT + ROPE, generator=generator) / 10).to(torch.bfloat16)
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(20)).tolist()
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    exact = []
    for number, (length, count) in enumerate(zip(lengths, pages)):
        own = [order.pop() for _ in range(count)]
        table[number, :count] = torch.tensor(own, dtype=torch.int32)
        keys = cache[own].reshape(1, count * PAGE, 1, LATENT + ROPE)[:, :length]
        exact.append(exact_attention(torch, q[number : number + 1], keys, keys[..., :LATENT], True))
    outputs = []
    arguments = (q, cache, table.to(context.device), torch.tensor(lengths, dtype=torch.int32, device=context.device))
    first_s = context.first_seconds(lambda: outputs.append(decode(context, module, *arguments)))
    found = common.compare(torch, context.observed(outputs[0].contiguous()).cpu(), torch.cat(exact))
    return dict(found, first_call_s=first_s)


def flashmla(context):
    """Dense decoding of the absorbed form (576/512, pages of 64), which Hopper alone has."""
    found = mla_providers()
    if not found:
        yield context.skipped("FlashMLA is not installed (looked for flash_mla and sgl_kernel)")
    for path, name in found:
        if context.on_gpu and context.capability != (9, 0):
            yield context.refused(path, "dense decoding is for compute capability 9.0, this GPU has %d.%d" % context.capability)
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            nested = isinstance(error, ModuleNotFoundError) and error.name == name and "." in name
            found_out = (
                context.refused(path, common.text_of(error)) if nested else context.error(path, import_failure(error), stage="import")
            )
            yield found_out
            continue
        yield context.attempt(path, lambda name=name: mla_body(context, name), shape="lengths 200 and 513, pages of 64, 64 heads, 576/512")


def import_failure(error):
    """The last line of a failed import, and what lay under it where a package hid that."""
    under = error.__cause__ or error.__context__
    while under is not None and (under.__cause__ or under.__context__) is not None:
        under = under.__cause__ or under.__context__
    text = "%s: %s" % (type(error).__name__, " ".join(str(error).split()))
    return text if under is None else "%s (under it: %s: %s)" % (text, type(under).__name__, " ".join(str(under).split()))


if __name__ == "__main__":
    common.main({"attention": attention, "flashmla": flashmla})
