"""Checks of what a chosen profile asks for."""
