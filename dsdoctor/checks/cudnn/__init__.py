"""Checks of cuDNN: which copy torch loads, and whether its parts belong together."""
