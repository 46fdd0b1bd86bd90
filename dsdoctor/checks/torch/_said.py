"""Messages of others, put so that they can stand inside a sentence."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A message in one line, without the full stop at its end."""
    return " ".join(text.split()).rstrip(".")
