"""Checks of what a node can hold."""
