"""Checks of FlashMLA."""
