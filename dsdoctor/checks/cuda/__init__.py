"""Checks of the CUDA libraries that torch brings with it."""
