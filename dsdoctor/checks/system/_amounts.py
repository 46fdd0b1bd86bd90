"""Amounts of bytes in words."""

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))


def in_words(size_bytes: int) -> str:
    """1.5 GiB, 64 MiB, 12 KiB: one decimal at most."""
    for unit, scale in _UNITS:
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes // 1024} KiB"
