"""The table of smoke tests: what each one is called, which script runs it, at which level, and what it needs. Pure data, cheap to import."""

from __future__ import annotations

from dataclasses import dataclass

ONE_PER_GPU = "one_per_gpu"
ONE_FOR_ALL = "one_for_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script of `in_target/`: the tests in it share a child, so that they share one import of torch."""

    name: str
    children: str
    """one_per_gpu (all GPUs at once, each in a child of its own) or one_for_all (one child that is handed every GPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTest:
    """One smoke test."""

    name: str
    script: str
    about: str
    """What it does and what it proves, in a line."""
    level: str = "default"
    """default, or full: only with --full or by name."""
    deadline_s: float = 20.0
    """After that long the child that runs it is ended; JIT compilers need more."""
    modules: tuple[str, ...] = ()
    """Top-level modules of which one must be installed; empty when torch is enough or the script finds out itself."""
    minimum_gpus: int = 1


SCRIPTS: tuple[Script, ...] = (
    Script(name="smoke_shared.py", children=ONE_PER_GPU),
    Script(name="smoke_fa3.py", children=ONE_FOR_ALL),
    Script(name="smoke_triton.py", children=ONE_FOR_ALL),
    Script(name="smoke_deepgemm.py", children=ONE_FOR_ALL),
    Script(name="smoke_links.py", children=ONE_FOR_ALL),
    Script(name="smoke_collectives.py", children=ONE_FOR_ALL),
    Script(name="smoke_numerics.py", children=ONE_PER_GPU),
)

# Within a script the tests run in this order: what is right comes before what is fast, since rates wait until their GPU is quiet.
SMOKE_TESTS: tuple[SmokeTest, ...] = (
    SmokeTest(
        name="fp8-cast", script="smoke_shared.py", about="cast to FP8 E4M3 and back: values, subnormals, NaN, what happens above 448"
    ),
    SmokeTest(name="fp8-gemm", script="smoke_shared.py", about="FP8 matrix product, scaled per tensor and per row"),
    SmokeTest(
        name="fp8-block",
        script="smoke_shared.py",
        about="FP8 matrix product with the model's own scales (1x128 activations, 128x128 weights), float and power-of-two",
    ),
    SmokeTest(name="mxfp8", script="smoke_shared.py", about="MXFP8 matrix product (1x32, E8M0 scales) on Blackwell"),
    SmokeTest(
        name="fp8-accumulation",
        script="smoke_shared.py",
        about="how precisely FP8 products accumulate, fast against accurate",
        level="full",
    ),
    SmokeTest(
        name="attention", script="smoke_shared.py", about="torch's attention, each back end against FP64; split-KV merge", deadline_s=40
    ),
    SmokeTest(name="silent-corruption", script="smoke_shared.py", about="one BF16 product many times, bit for bit the same", deadline_s=30),
    SmokeTest(name="bf16-rate", script="smoke_shared.py", about="BF16 matrix product, TFLOP/s"),
    SmokeTest(name="fp8-rate", script="smoke_shared.py", about="FP8 matrix product, TFLOP/s"),
    SmokeTest(name="memory-copy", script="smoke_shared.py", about="copy inside GPU memory, GB/s read and written"),
    SmokeTest(
        name="pcie", script="smoke_shared.py", about="pinned copies between host and GPU, with the link read under load", deadline_s=60
    ),
    SmokeTest(
        name="fa3", script="smoke_fa3.py", about="every FlashAttention-3 provider: import, odd shapes against FP64, FP8", deadline_s=60
    ),
    SmokeTest(name="fa3-rate", script="smoke_fa3.py", about="attention forward, TFLOP/s: tells FA3 from FA2", deadline_s=30),
    SmokeTest(
        name="flashmla",
        script="smoke_fa3.py",
        about="FlashMLA dense decode against FP64",
        modules=("flash_mla", "sgl_kernel"),
        deadline_s=40,
    ),
    SmokeTest(
        name="triton",
        script="smoke_triton.py",
        about="block-scaled FP8 product in a Triton kernel of our own: compiler, headers, ptxas, libcuda, cache",
        modules=("triton",),
        deadline_s=90,
    ),
    SmokeTest(
        name="deepgemm",
        script="smoke_deepgemm.py",
        about="DeepGEMM's block-scaled FP8 product (one routed expert)",
        modules=("deep_gemm",),
        deadline_s=120,
    ),
    SmokeTest(
        name="p2p",
        script="smoke_links.py",
        about="copies between every pair of GPUs, values compared, GB/s",
        minimum_gpus=2,
        deadline_s=60,
    ),
    SmokeTest(
        name="pcie-together",
        script="smoke_links.py",
        about="pinned copies of all GPUs at once: who shares an uplink",
        level="full",
        minimum_gpus=2,
        deadline_s=60,
    ),
    SmokeTest(
        name="collectives",
        script="smoke_collectives.py",
        about="NCCL all-reduce, all-to-all, all-gather and reduce-scatter, GB/s of the bus",
        minimum_gpus=2,
        deadline_s=90,
    ),
    SmokeTest(
        name="numerics",
        script="smoke_numerics.py",
        about="softmax, logsumexp, RoPE, gate, ring window, paged KV, MoE round trip on this GPU's maths",
        level="full",
        deadline_s=60,
    ),
)

NAMES: tuple[str, ...] = tuple(test.name for test in SMOKE_TESTS)


def chosen(names: tuple[str, ...], level: str) -> tuple[SmokeTest, ...]:
    """The tests of these names, or without names all of the level (full includes default), in the order of the table."""
    if names:
        return tuple(test for test in SMOKE_TESTS if test.name in names)
    return tuple(test for test in SMOKE_TESTS if level == "full" or test.level == "default")
