"""Checks of torch itself: its build, its import, and whether it reaches the GPU."""
