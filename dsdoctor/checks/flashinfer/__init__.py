"""Checks of FlashInfer."""
