"""FlashAttention-3 from every provider that an environment may hold, on odd shapes against FP64, and the rate that tells it from FlashAttention-2;
FlashMLA too.

Run by the patient's interpreter in a process of its own: these extensions may end it. Python 3.9 and newer.
"""

import collections
import contextlib
import glob
import importlib
import importlib.util
import os
import sys
import types


def load_attention():
    """smoke_attention.py of this folder under a name nobody else has: the folder itself must not come onto sys.path."""
    path = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "smoke_attention.py")
    spec = importlib.util.spec_from_file_location("_dsdoctor_smoke_attention", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reference = load_attention()
common = reference.common
shape = reference.shape

EVEN = shape("512x512 heads 8 dim 128 causal")
SHAPES = (
    EVEN,
    shape("113x203 heads 4 dim 128 causal", queries=113, keys=203, heads=4),
    shape("113x203 heads 4 dim 80", queries=113, keys=203, heads=4, dim=80, causal=False),
    shape("239x239 heads 4 dim 96 causal", queries=239, heads=4, dim=96),
    shape("256x256 heads 8/2 dim 128 causal", queries=256, key_heads=2),
    shape("256x256 heads 4 dim 192/128 causal", queries=256, heads=4, dim=192, value_dim=128),
)
"""Neither lengths of 113 and 203 nor dims of 80 and 96 are multiples of 64: kernels take them."""
MORE_SHAPES = (
    shape("1x1 heads 4 dim 128", queries=1, heads=4, causal=False),
    shape("799x3 heads 4 dim 64", queries=799, keys=3, heads=4, dim=64, causal=False),
    shape("2x256x256 heads 4 dim 256 causal", batch=2, queries=256, heads=4, dim=256),
)
HEAD_MAJOR = "512x512 heads 8 dim 128 causal, head-major strides"

Provider = collections.namedtuple("Provider", "path generation open shapes late")
"""One source of attention: `open(context)` is a context manager of attend(q, k, v, causal, descale); `late`: only with --full."""


# --- providers --------------------------------------------------------------------------------------------------------


def installed(name):
    """Whether a top-level module is there, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def folder_of(package, *parts):
    """A folder inside an installed package, without importing that; empty when there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(place, *parts)
        if os.path.isdir(path):
            return path
    return ""


def first(output):
    """The output alone: some releases return the sums with it."""
    return output[0] if isinstance(output, (tuple, list)) else output


def scales(descale):
    """The three factors under the names that all FlashAttention-3 interfaces share."""
    return {} if descale is None else dict(zip(("q_descale", "k_descale", "v_descale"), descale))


def batched(function):
    """An attend of flash_attn_func."""
    return lambda q, k, v, causal, descale=None: first(function(q, k, v, causal=causal, **scales(descale)))


def packed(torch, function, **fixed):
    """An attend of flash_attn_varlen_func, for which all sequences of the batch stand in a row."""

    def attend(q, k, v, causal, descale=None):
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        starts_q, starts_k = (torch.arange(batch + 1, dtype=torch.int32, device=q.device) * length for length in (queries, keys))
        output = function(
            q.flatten(0, 1),
            k.flatten(0, 1),
            v.flatten(0, 1),
            cu_seqlens_q=starts_q,
            cu_seqlens_k=starts_k,
            max_seqlen_q=queries,
            max_seqlen_k=keys,
            causal=causal,
            **dict(fixed, **scales(descale)),
        )
        return first(output).unflatten(0, (batch, queries))

    return attend


def module_opener(name, function="flash_attn_func"):
    """Opens flash_attn_func of a module."""

    @contextlib.contextmanager
    def opened(context):
        yield batched(getattr(importlib.import_module(name), function))

    return opened


def vllm_opener(folder):
    """Opens vLLM's copy without importing vLLM, which would take seconds; says what vLLM knows about why it is not used."""

    @contextlib.contextmanager
    def opened(context):
        package = types.ModuleType("_dsdoctor_vllm_flash_attn")
        package.__path__ = [folder]
        sys.modules[package.__name__] = package
        module = importlib.import_module(package.__name__ + ".flash_attn_interface")
        reason = getattr(module, "FA3_UNAVAILABLE_REASON", None)
        if reason:
            raise common.Broken("vLLM falls back to FlashAttention-2: %s" % reason)
        ask = getattr(module, "fa_version_unsupported_reason", None)
        reason = ask(3) if ask is not None and context.on_gpu else None
        if reason:
            raise common.Refused(str(reason))
        yield packed(context.torch, module.flash_attn_varlen_func, fa_version=3)

    return opened


@contextlib.contextmanager
def sgl_kernel(context):
    """Opens SGLang's kernels."""
    module = importlib.import_module("sgl_kernel.flash_attn")
    yield packed(context.torch, module.flash_attn_varlen_func)


@contextlib.contextmanager
def torch_hook(context):
    """Switches torch's own flash back end to FlashAttention-3, and back afterwards: the switch is for the whole process."""
    torch = context.torch
    import torch.nn.attention as module

    activate = getattr(module, "activate_flash_attention_impl", None)
    restore = getattr(module, "restore_flash_attention_impl", None)
    if activate is None or restore is None:
        raise common.Refused("torch %s has no activate_flash_attention_impl that can be undone" % torch.__version__)
    try:
        activate("FA3")
    except ModuleNotFoundError as error:
        if error.name != "flash_attn_interface":
            raise
        raise common.Refused("%s (fa3-fwd and the engines' copies do not serve this hook)" % error) from None
    try:
        yield lambda q, k, v, causal, descale=None: reference.sdpa(context, "FLASH_ATTENTION", q, k, v, causal)
    finally:
        restore()


def providers():
    """What is installed here, FlashAttention-3 first, found without importing anything."""
    found = []
    if installed("flash_attn_interface"):
        found.append(Provider("flash-attn-3", "FA3", module_opener("flash_attn_interface"), SHAPES, False))
    elif installed("flash_attn_3"):
        found.append(Provider("flash-attn-3", "FA3", module_opener("flash_attn_3.flash_attn_interface"), SHAPES, False))
    if installed("fa3_fwd_interface"):
        found.append(Provider("fa3-fwd", "FA3", module_opener("fa3_fwd_interface"), SHAPES, False))
    folder = folder_of("vllm", "vllm_flash_attn")
    if folder:
        found.append(Provider("vllm", "FA3", vllm_opener(folder), SHAPES, False))
    folder = folder_of("sgl_kernel")
    if folder and glob.glob(os.path.join(glob.escape(folder), "flash_ops*.so")):
        found.append(Provider("sgl-kernel", "FA3", sgl_kernel, SHAPES, False))
    if found:
        found.append(Provider("torch hook", "FA3", torch_hook, (EVEN,), False))
    if folder_of("flash_attn", "cute"):
        found.append(Provider("flash-attn-4", "FA4", module_opener("flash_attn.cute"), SHAPES, True))
    folder = folder_of("flash_attn")
    if folder and os.path.exists(os.path.join(folder, "flash_attn_interface.py")):
        found.append(Provider("flash-attn-2", "FA2", module_opener("flash_attn"), SHAPES[:-1], bool(found)))
    return found


def not_for(context, generation):
    """Why a generation does not run on this GPU; empty when it does. FlashAttention-3 asks nothing itself and then ends the process."""
    if not context.on_gpu:
        return ""
    capability = context.capability
    fits = {"FA3": capability == (9, 0), "FA4": capability[0] >= 9, "FA2": capability >= (8, 0)}[generation]
    wants = {"FA3": "9.0 (Hopper)", "FA4": "9.0 and later", "FA2": "8.0 and later"}[generation]
    return "" if fits else "%s is for compute capability %s, this GPU has %d.%d" % (generation, wants, capability[0], capability[1])


# --- correctness ------------------------------------------------------------------------------------------------------


def fa3(context):
    """Each provider: import, shapes, FP8."""
    found = providers()
    if not any(provider.generation == "FA3" for provider in found):
        why = not_for(context, "FA3")
        looked = "no FlashAttention-3 is installed (looked for flash_attn_interface, flash_attn_3, fa3_fwd_interface, vllm, sgl_kernel)"
        yield context.refused("FA3", why) if why else context.skipped(looked, "FA3", provider="none")
    for provider in found:
        yield from results_of(context, provider)


def results_of(context, provider):
    """The results of one provider: why it does not run, or its numbers."""
    notes = {"generation": provider.generation}
    why = not_for(context, provider.generation)
    if why:
        yield context.refused(provider.path, why, **notes)
        return
    if provider.late and not context.full:
        yield context.skipped("only with --full (it is not what a FlashAttention-3 stack runs)", provider.path, **notes)
        return
    with contextlib.ExitStack() as stack:
        try:
            attend = stack.enter_context(provider.open(context))
        except Exception as error:
            yield not_opened(context, provider, error)
            return
        yield shapes_result(context, provider, attend, notes)
        if provider.generation == "FA3" and provider.path != "torch hook":
            path = provider.path + " fp8"
            yield context.attempt(path, lambda: fp8_values(context, attend), dtype="float8_e4m3fn", shape=FP8.name, **notes)


def not_opened(context, provider, error):
    """The result for a provider that did not import: its own refusal, or the exact text of the failure."""
    if isinstance(error, (common.Refused, common.Broken)):
        return context.raised(provider.path, error, {"generation": provider.generation, "stage": "import"})
    return context.error(provider.path, reference.import_failure(error), generation=provider.generation, stage="import")


def shapes_result(context, provider, attend, notes):
    """One result over all shapes: the worst numbers, which shape they belong to, and what the build refuses."""
    torch = context.torch
    found, refusals, first_s, exact = {}, [], None, {}
    wanted = list(provider.shapes) + list(MORE_SHAPES if context.full and provider.shapes is SHAPES else ())
    for what in wanted + ([EVEN._replace(name=HEAD_MAJOR)] if len(wanted) > 1 else []):
        q, k, v = reference.operands(context, what)
        same = what._replace(name="")
        if what.name == HEAD_MAJOR:
            q, k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v))
        try:
            output, seconds = called(context, attend, q, k, v, what.causal, timed=context.first_seconds if first_s is None else None)
        except Exception as error:
            text = "%s: %s" % (what.name, common.text_of(error))
            if common.outcome_of(error) == "skipped":
                return context.skipped(text, provider.path, **notes)
            # An assertion is how these interfaces refuse a shape in Python.
            if common.outcome_of(error) == "error" and not isinstance(error, AssertionError):
                return context.error(provider.path, text, **notes)
            refusals.append(text)
            continue
        first_s = seconds if first_s is None else first_s
        if same not in exact:
            exact[same] = reference.exact_attention(torch, q, k, v, what.causal)
        plain = reference.plain_attention(torch, q, k, v, what.causal)
        found[what.name] = reference.judged(context, output, exact[same], plain)
    if not found:
        return context.refused(provider.path, refusals[0], **notes)
    if refusals:
        notes = dict(notes, refused="; ".join(refusals))
    values = worst_of(found.values())
    values.update(shapes=len(found), refused_shapes=len(refusals), first_call_s=first_s)
    worst = max(found, key=lambda name: (found[name]["nonfinite"], found[name].get("error_share", 0.0)))
    return context.ran(provider.path, values, shape="; ".join(found), worst=worst, dtype="bfloat16", **notes)


def called(context, attend, *arguments, timed=None):
    """(output, seconds) of one call without gradients."""
    outputs = []
    with context.torch.no_grad():
        seconds = (timed or context.seconds)(lambda: outputs.append(attend(*arguments)))
    return outputs[0], seconds


def worst_of(results):
    """The largest of each number over several results."""
    largest = {}
    for result in results:
        for name, value in result.items():
            largest[name] = max(value, largest.get(name, value))
    return largest


FP8 = shape("256x256 heads 8 dim 128, factors by batch and head", queries=256, causal=False)


def fp8_values(context, attend):
    """FP8 operands with their factors against FP64 over the very numbers, and over the numbers before the cast."""
    torch = context.torch
    tensors = reference.operands(context, FP8)
    quantised, factors, restored = [], [], []
    for tensor in tensors:
        factor = common.factor_of(torch, tensor.float().abs().amax(dim=(1, 3)))
        small = common.to_float8(torch, tensor.float() / factor[:, None, :, None])
        quantised.append(small)
        factors.append(factor.contiguous())
        restored.append(small.float() * factor[:, None, :, None])
    output, first_s = called(context, attend, *quantised, FP8.causal, factors)
    output = context.observed(output.contiguous()).detach().cpu()
    found = common.compare(torch, output, reference.exact_attention(torch, *restored, FP8.causal))
    before = common.compare(torch, output, reference.exact_attention(torch, *tensors, FP8.causal))
    values = {"nonfinite": found["nonfinite"], "first_call_s": first_s}
    if "rel_error" in found:
        values.update(fp8_rel_error=found["rel_error"], fp8_rel_error_unquantised=before["rel_error"])
    return values


# --- rate -------------------------------------------------------------------------------------------------------------


def rate_shape(context):
    """The shape whose rate is known for both generations, smaller where memory is short."""
    if not context.on_gpu:
        return shape("", queries=128, heads=2, dim=64, causal=False)
    for length in (8192, 4096, 2048):
        what = shape("", batch=1, queries=length, heads=32, causal=False)
        if context.has_room(5 * 2 * what.batch * length * what.heads * what.dim):
            return what
    raise common.Skip("too little GPU memory is free for a rate")


def rate_operands(context, what):
    """Query, key and value made in BF16 at once: the detour over FP32 would take as much memory again."""
    generator, size = context.generator(), (what.batch, what.queries, what.heads, what.dim)
    return [context.normal(*size, generator=generator, dtype=context.torch.bfloat16) for _ in range(3)]


def rate_result(context, path, generation, attend, what):
    """TFLOP/s of one forward."""
    torch = context.torch

    def timed():
        tensors = rate_operands(context, what)
        return context.best_call_s(lambda: attend(*tensors, what.causal), calls=10, repeats=2)

    def body():
        # Kernels are loaded or compiled on a short sequence here, so that nobody waits for that.
        short = what._replace(queries=min(512, what.queries))
        _, first_s = called(context, attend, *rate_operands(context, short), what.causal, timed=context.first_seconds)
        with torch.no_grad(), context.alone():
            call_s = timed()
        operations = 4.0 * what.batch * what.heads * what.queries * what.keys * what.dim
        return {"tflops": operations / call_s / 1e12, "call_s": call_s, "first_call_s": first_s}, {"calls": context.calls}

    size = "batch %d, %d tokens, %d heads, dim %d, not causal" % (what.batch, what.queries, what.heads, what.dim)
    return context.attempt(path, body, generation=generation, shape=size, dtype="bfloat16")


def fa3_rate(context):
    """Every FlashAttention-3 that opens, beside what torch runs without it (its flash back end is FlashAttention-2)."""
    context.rates_allowed()
    what = rate_shape(context)
    chosen = [provider for provider in providers() if not provider.late or context.full]
    for provider in chosen:
        if not_for(context, provider.generation):
            continue
        with contextlib.ExitStack() as stack:
            try:
                attend = stack.enter_context(provider.open(context))
            except Exception:
                # The test fa3 has told why.
                continue
            yield rate_result(context, provider.path, provider.generation, attend, what)
    backends = (("sdpa-flash", "FLASH_ATTENTION"),) + ((("sdpa-cudnn", "CUDNN_ATTENTION"),) if context.full else ())
    for path, backend in backends:

        def attend(q, k, v, causal, backend=backend):
            return reference.sdpa(context, backend, q, k, v, causal)

        yield rate_result(context, path, "FA2" if backend == "FLASH_ATTENTION" else "cuDNN", attend, what)


def load(context):
    """Import what the tests open; several of these libraries are large."""
    for provider in providers():
        if provider.open is not torch_hook and not not_for(context, provider.generation) and (context.full or not provider.late):
            with contextlib.suppress(Exception), provider.open(context):
                pass


if __name__ == "__main__":
    common.main({"fa3": fa3, "fa3-rate": fa3_rate, "flashmla": reference.flashmla}, load=load)
