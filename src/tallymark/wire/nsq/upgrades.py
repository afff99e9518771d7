"""Layers between transport and connection, and the order in which they are put there [NQ-6]."""

from __future__ import annotations

from typing import Final

from tallymark.wire.nsq.identify import Identify

TLS: Final = "tls"
SNAPPY: Final = "snappy"
DEFLATE: Final = "deflate"

PIECE_MAX: Final = 65_536
"""Maximum number of bytes that a decoder returns at a time, since a small input can decode to a
very large output."""


class LayerError(Exception):
    """The input is malformed for the layer. The text is for logs: nsqd only closes."""


def due_layers(identify: Identify) -> list[str]:
    """Return the layers to add: TLS first, compression inside it."""
    layers: list[str] = []
    if identify.tls_v1:
        layers.append(TLS)
    if identify.snappy:
        layers.append(SNAPPY)
    if identify.deflate:
        layers.append(DEFLATE)
    return layers
