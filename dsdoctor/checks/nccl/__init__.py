"""Checks of NCCL: whether there is one, which copy is loaded, how many there are, and known faults of its release."""
