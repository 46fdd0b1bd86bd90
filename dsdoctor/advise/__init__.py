"""What can this node run, what after which change, and why nothing newer: a constraint search over the matrices."""

from dsdoctor.advise.answer import Advice, advise, best_stack, newest_torch_sentence
from dsdoctor.advise.catalogue import Shelf
from dsdoctor.advise.node import Node

__all__ = ["Advice", "Node", "Shelf", "advise", "best_stack", "newest_torch_sentence"]
