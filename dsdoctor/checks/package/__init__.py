"""Checks of the installed Python packages against one another."""
