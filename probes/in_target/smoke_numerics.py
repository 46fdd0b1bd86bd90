"""Numeric building blocks of a DeepSeek-class model, each against FP64: they show what this GPU's maths library and compiler compute.

Run by the patient's interpreter: standard library and torch only, Python 3.9 and newer.
"""

import importlib.util
import math
import os
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
ROPE_LENGTHS = (4096, 32768, 131072, 163840)


def largest(tensor):
    """The largest magnitude."""
    return float(tensor.abs().max())


def softmax(context):
    """Against FP64 on the same rounded logits; then logits so large that a softmax without a shift overflows."""
    torch = context.torch
    logits = context.normal(64, 8192) * 8
    values = {}
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        rounded = logits.to(kind)
        output = context.observed(torch.softmax(rounded, dim=-1))
        values["softmax_error_" + name] = largest(output.double() - torch.softmax(rounded.double(), dim=-1))
    huge = torch.softmax(logits * 1e4, dim=-1)
    values["softmax_nonfinite"] = int((~torch.isfinite(huge)).sum())
    return values


def chunked_logsumexp(context):
    """A running maximum and sum over chunks against one pass in FP64; the largest logits come first, where a wrong merge overflows."""
    torch = context.torch
    logits = context.normal(131072)
    spike = logits.clone()
    spike[:8] += 200.0
    values = {}
    for width in (64, 256, 1024):
        merged = merge_chunks(torch, logits.view(-1, width))
        values["logsumexp_error_chunk_%d" % width] = abs(float(merged.double() - torch.logsumexp(logits.double(), dim=0)))
    merged = merge_chunks(torch, spike.view(-1, 1024))
    values["logsumexp_error_spike"] = abs(float(merged.double() - torch.logsumexp(spike.double(), dim=0)))
    return values


def merge_chunks(torch, chunks):
    """logsumexp of all elements, one chunk after the other, as attention over a split cache does."""
    high = torch.full((), -math.inf, device=chunks.device)
    total = torch.zeros((), device=chunks.device)
    for maximum, row in zip(chunks.amax(dim=1), chunks):
        new = torch.maximum(high, maximum)
        total = total * torch.exp(high - new) + torch.exp(row - new).sum()
        high = new
    return high + torch.log(total)


def reorder(context):
    """(batch, sequence, 3, heads, dim) to three (batch, heads, sequence, dim): a copy must be exact, so it is checked by computed indices."""
    torch = context.torch
    batch, length, heads, dim = 2, 257, 8, 64
    packed = context.normal(batch, length, 3, heads, dim, dtype=torch.bfloat16)
    moved = packed.permute(2, 0, 3, 1, 4).contiguous()
    which, one, head, step, part = torch.meshgrid(
        *(torch.arange(size, device=context.device) for size in (3, batch, heads, length, dim)), indexing="ij"
    )
    index = (((one * length + step) * 3 + which) * heads + head) * dim + part
    return {"reorder_mismatches": int((moved != packed.view(-1)[index]).sum())}


def gate(context):
    """Sigmoid and the best 8 of 256 experts: the share of tokens whose set is that of FP64, by precision of the scores."""
    torch = context.torch
    logits = context.normal(4096, 256).double()
    exact = torch.sigmoid(logits).topk(8, dim=-1).indices.sort(dim=-1).values
    values = {}
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        found = torch.sigmoid(logits.to(kind)).topk(8, dim=-1).indices.sort(dim=-1).values
        values["gate_same_set_" + name] = float((found == exact).all(dim=-1).double().mean())
    return values


def rope(context):
    """Angles in FP32 at long positions against FP64, and scores that must not change when all positions shift."""
    torch = context.torch
    exponents = torch.arange(0, 64, 2, device=context.device)
    slow, fine = 10000.0 ** (-exponents.float() / 64), 10000.0 ** (-exponents.double() / 64)
    values = {}
    for length in ROPE_LENGTHS:
        # The last thousand positions have the largest angles, so that they hold the largest error.
        positions = torch.arange(max(0, length - 1024), length, device=context.device)
        error = torch.cos(positions.float()[:, None] * slow) - torch.cos(positions.double()[:, None] * fine)
        values["rope_error_%d" % length] = largest(error)
    generator = context.generator()
    query, key = (torch.nn.functional.normalize(context.normal(256, 64, generator=generator), dim=-1) for _ in range(2))
    steps = torch.arange(256, device=context.device, dtype=torch.float32)
    near = rotate(torch, query, steps, slow) @ rotate(torch, key, steps, slow).t()
    far = rotate(torch, query, steps + 1e5, slow) @ rotate(torch, key, steps + 1e5, slow).t()
    values["rope_shift_error"] = largest(near - far)
    return values


def rotate(torch, x, positions, frequencies):
    """Rotary embedding of pairs (first half, second half)."""
    angle = positions[:, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()), dim=-1)


def attend(torch, query, keys, values):
    """One query (heads, dim) over keys and values (heads, length, dim)."""
    scores = (keys @ query[:, :, None]).squeeze(-1) / math.sqrt(query.shape[-1])
    return (torch.softmax(scores, dim=-1)[:, None, :] @ values).squeeze(1)


def ring_window(context):
    """A ring buffer of the last 48 tokens, filled step by step, against masked attention over the whole sequence in FP64."""
    torch, (heads, length, dim, window) = context.torch, (4, 160, 64, 48)
    generator = context.generator()
    query, key, value = (context.normal(heads, length, dim, generator=generator) for _ in range(3))
    ring_key, ring_value = (torch.zeros(heads, window, dim, device=context.device) for _ in range(2))
    outputs = []
    for step in range(length):
        ring_key[:, step % window], ring_value[:, step % window] = key[:, step], value[:, step]
        kept = min(step + 1, window)
        outputs.append(attend(torch, query[:, step], ring_key[:, :kept], ring_value[:, :kept]))
    steps = torch.arange(length, device=context.device)
    visible = (steps[None, :] <= steps[:, None]) & (steps[None, :] > steps[:, None] - window)
    scores = (query.double() @ key.double().transpose(1, 2) / math.sqrt(dim)).masked_fill(~visible, -math.inf)
    exact = torch.softmax(scores, dim=-1) @ value.double()
    return {"ring_window_error": largest(torch.stack(outputs, dim=1).double() - exact)}


def paged_cache(context):
    """Attention through a shuffled table of 64-token pages against the same cache in one piece."""
    torch, (heads, dim, page, lengths) = context.torch, (4, 64, 64, (1, 63, 64, 65, 500))
    generator = context.generator()
    total = sum(-(-length // page) for length in lengths)
    order = torch.randperm(total, generator=generator, device=context.device)
    pages_key, pages_value = (torch.zeros(total, page, heads, dim, device=context.device) for _ in range(2))
    worst, first = 0.0, 0
    for length in lengths:
        query = context.normal(heads, dim, generator=generator)
        key, value = (context.normal(length, heads, dim, generator=generator) for _ in range(2))
        table = order[first : first + -(-length // page)]
        first += len(table)
        steps = torch.arange(length, device=context.device)
        where = (table[steps // page], steps % page)
        pages_key[where], pages_value[where] = key, value
        gathered = [cache[table].view(-1, heads, dim)[:length].transpose(0, 1) for cache in (pages_key, pages_value)]
        exact = attend(torch, query.double(), key.transpose(0, 1).double(), value.transpose(0, 1).double())
        worst = max(worst, largest(attend(torch, query, *gathered).double() - exact))
    return {"paged_cache_error": worst}


def moe_round_trip(context):
    """Tokens sorted to their experts, worked on there, sent back and summed by weight, against the dense sum in FP64."""
    torch, (tokens, experts, chosen, dim) = context.torch, (1024, 64, 8, 128)
    generator = context.generator()
    x = context.normal(tokens, dim, generator=generator)
    weight, expert = torch.sigmoid(context.normal(tokens, experts, generator=generator)).topk(chosen, dim=-1)
    weight = weight / weight.sum(dim=-1, keepdim=True)
    gain = 1.0 + torch.arange(experts, device=context.device) / experts
    flat = expert.reshape(-1)
    order = torch.argsort(flat)
    counts = torch.bincount(flat, minlength=experts)
    sent = x[order // chosen]
    worked = torch.cat([part * gain[number] for number, part in enumerate(sent.split(counts.tolist()))])
    back = torch.empty_like(worked)
    back[order] = worked
    combined = (back.view(tokens, chosen, dim) * weight[:, :, None]).sum(dim=1)
    exact = x.double() * (gain.double()[expert] * weight.double()).sum(dim=-1, keepdim=True)
    return {"moe_error": largest(combined.double() - exact), "moe_lost_rows": tokens * chosen - len(worked)}


STEPS = (softmax, chunked_logsumexp, reorder, gate, rope, ring_window, paged_cache, moe_round_trip)


def numerics(context):
    """All steps in one result."""

    def body():
        values = {}
        for step in STEPS:
            values.update(step(context))
        return values

    yield context.attempt("torch", body, steps=", ".join(step.__name__ for step in STEPS))


if __name__ == "__main__":
    common.main({"numerics": numerics})
