"""Checks of DeepEP."""
