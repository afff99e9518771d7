"""JSON texts that others wrote: a byte order mark in front, which PowerShell and Excel write, is
passed over [RFC 8259 §8.1]."""

from __future__ import annotations

import codecs


def unmarked(raw: bytes) -> bytes:
    """Return the text without a byte order mark in front."""
    return raw.removeprefix(codecs.BOM_UTF8)
