"""Adds what a product's name implies: the compute capability of a GPU whose evidence names it and says no more."""

from __future__ import annotations

from dataclasses import replace

from dsdoctor.facts import Gpu, Snapshot
from dsdoctor.rows import Gpus


def with_capabilities(snapshot: Snapshot, gpus: Gpus) -> Snapshot:
    """The snapshot, with the capability of each GPU that a row of matrices/gpus knows by its name."""
    section = snapshot.sections.gpus
    if section.value is None:
        return snapshot
    completed = tuple(_completed(gpu, gpus) for gpu in section.value)
    return replace(snapshot, sections=replace(snapshot.sections, gpus=replace(section, value=completed)))


def _completed(gpu: Gpu, gpus: Gpus) -> Gpu:
    product = gpus.product(gpu.name) if gpu.name and not gpu.compute_capability else None
    return replace(gpu, compute_capability=product.compute_capability) if product else gpu
