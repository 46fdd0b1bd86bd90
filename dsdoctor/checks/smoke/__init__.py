"""Checks that judge what the smoke tests measured."""
