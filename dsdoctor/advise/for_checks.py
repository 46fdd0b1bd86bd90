"""Advice for checks: which torch runs on the node that a snapshot describes; matrices and search are loaded only when a check asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsdoctor.advise.answer import Pin
    from dsdoctor.advise.catalogue import Shelf
    from dsdoctor.advise.node import Node
    from dsdoctor.facts import Sections
    from dsdoctor.versions import ComputeCapability


@dataclass(frozen=True, slots=True)
class NodeAdvice:
    """What `dsdoctor advise` would say about this node; what is not known of it is no constraint."""

    sections: Sections
    matrix: Callable[[str], Any] = field(repr=False)
    gpu: str = ""
    """Name of the one GPU to serve; empty: what the snapshot says."""
    capability: ComputeCapability | None = None

    def for_gpu(self, name: str, capability: ComputeCapability) -> NodeAdvice:
        """The advice where this GPU is the one to serve, whatever others there are."""
        return replace(self, gpu=name.removeprefix("NVIDIA "), capability=capability)

    def newest_torch(self) -> Pin | None:
        """The newest torch whose default wheel, or else some build, runs here; None where there is none."""
        return self._torch("torch")

    def torch_build(self, version: str) -> Pin | None:
        """The build of this torch release (2.11.0) that runs here; None where there is none, or the release is not known."""
        return self._torch(f"torch=={version}")

    def newest_torch_sentence(self) -> str:
        """'on this driver the newest torch is 2.10.0+cu128; or install driver >= 580.65.06, then 2.15.0'; empty where no driver is known."""
        from dsdoctor.advise.answer import newest_torch_sentence

        node, shelf = self._ground()
        return newest_torch_sentence(node, shelf) if node.driver is not None else ""

    def installing(self, *wants: str) -> tuple[tuple[str, ...], str]:
        """The commands of pip for the newest stack with these packages, and the stack in words; empty where there is none.

        A package that this knowledge does not list makes none.
        """
        from dsdoctor.advise.answer import best_stack
        from dsdoctor.errors import UsageError

        node, shelf = self._ground()
        try:
            stack = best_stack(node, shelf, wants)
        except UsageError:
            return (), ""
        if stack is None:
            return (), ""
        pins = [pin for pin in stack.pins if not pin.asked_by]
        told = ", ".join(f"{pin.name} {pin.version}{f'+{pin.build}' if pin.build else ''}" for pin in pins)
        return next((install.commands for install in stack.commands if install.tool == self._tool()), ()), told

    def _tool(self) -> str:
        """uv where uv made the environment, else pip."""
        interpreter = self.sections.interpreter.value
        return "uv" if interpreter is not None and interpreter.kind == "uv" else "pip"

    def _torch(self, want: str) -> Pin | None:
        from dsdoctor.advise.answer import best_stack
        from dsdoctor.errors import UsageError

        node, shelf = self._ground()
        try:
            stack = best_stack(node, shelf, (want,))
        except UsageError:  # a release that this knowledge does not list
            return None
        return stack.pin("torch") if stack else None

    def _ground(self) -> tuple[Node, Shelf]:
        from dsdoctor.advise.catalogue import Shelf
        from dsdoctor.advise.node import node_from_facts

        shelf = Shelf.of(self.matrix)
        node = node_from_facts(self.sections, shelf.gpus)
        if self.capability is None:
            return node, shelf
        product = shelf.gpus.product(self.gpu)
        product_class = product.product_class if product else ""
        return replace(node, gpu=self.gpu, capability=self.capability, product_class=product_class), shelf
