"""Checks of attention kernels."""
