"""Checks of NCCL: which copy is loaded, how many there are, and known faults of its release."""
