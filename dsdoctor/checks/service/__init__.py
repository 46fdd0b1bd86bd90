"""Checks of a running service."""
