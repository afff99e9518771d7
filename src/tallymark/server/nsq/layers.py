"""Layers between an NSQ client's socket and its bridge: TLS, snappy, deflate, stacked [NQ-6].

    socket -> TLS -> snappy or deflate -> bridge

What comes in is fed to the outermost layer and read from the innermost, a share at a time, so that
a small input which stands for a huge output can be read as slowly as it is worked on.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final, Protocol

from tallymark.server.access.tls import common_name
from tallymark.wire.nsq.deflate import DeflateDecoder, DeflateEncoder
from tallymark.wire.nsq.snappy import SnappyDecoder, SnappyEncoder
from tallymark.wire.nsq.upgrades import PIECE_MAX, SNAPPY, TLS, LayerError

__all__ = ["Compression", "Layer", "LayerError", "Layers", "TlsLayer", "compression"]

TLS_PIECE: Final = 16_384
"""Bytes that one TLS record can hold."""
INPUT_SHARE: Final = 16_384
"""Bytes of input, beyond those that they stand for, after which a share ends: decoding costs,
too."""


class Layer(Protocol):
    def feed(self, data: bytes) -> None:
        """Add input from outside the layer."""

    def read(self) -> bytes | None:
        """Decode a part of the input. Return up to PIECE_MAX bytes, or none that it
        stands for; None: feed more. Raises LayerError."""

    def held_bytes(self) -> int:
        """Bytes of input that are not decoded yet."""

    def encode(self, data: bytes) -> bytes:
        """Return `data` as it is sent."""


class TlsLayer:
    """A server's end of TLS, in memory. Nothing can be read or encoded before the handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done. Raises LayerError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise LayerError(f"tls: {error}") from None
        return True

    def output(self) -> bytes:
        """Return output beside encoded data: handshake, alerts."""
        return self._outgoing.read()

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def read(self) -> bytes | None:
        try:
            return self._tls.read(PIECE_MAX) or None
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return None  # closed inside TLS: the socket's end follows
        except ssl.SSLError as error:
            raise LayerError(f"tls: {error}") from None

    def held_bytes(self) -> int:
        return self._incoming.pending

    def encode(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:TLS_PIECE]) :]
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the bytes that end the layer for the peer."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own word is not waited for
            self._tls.unwrap()
        return self._outgoing.read()

    def version(self) -> str:
        return self._tls.version() or ""

    def cipher(self) -> str:
        found = self._tls.cipher()
        return found[0] if found else ""

    def common_name(self) -> str:
        """Return the common name of the client's certificate; empty: it showed none."""
        return common_name(self._tls.getpeercert())


class Compression:
    """Snappy or deflate."""

    def __init__(
        self, encoder: SnappyEncoder | DeflateEncoder, decoder: SnappyDecoder | DeflateDecoder
    ) -> None:
        self._encoder = encoder
        self._decoder = decoder

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)

    def read(self) -> bytes | None:
        return self._decoder.read()

    def held_bytes(self) -> int:
        return self._decoder.held_bytes()

    def encode(self, data: bytes) -> bytes:
        return self._encoder.encode(data)


def compression(name: str, level: int) -> Compression:
    """The layer of that name [wire.nsq.upgrades]; `level` is deflate's."""
    assert name != TLS
    if name == SNAPPY:
        return Compression(SnappyEncoder(), SnappyDecoder())
    return Compression(DeflateEncoder(level), DeflateDecoder())


class Layers:
    """Layers in place, the outermost first."""

    def __init__(self) -> None:
        self._layers: list[Layer] = []

    def __bool__(self) -> bool:
        return bool(self._layers)

    def add(self, layer: Layer) -> None:
        """Put one inside the others."""
        self._layers.append(layer)

    def feed(self, data: bytes) -> None:
        """Add input from the socket."""
        self._layers[0].feed(data)

    def held_bytes(self) -> int:
        """Bytes of input that are not decoded yet."""
        return sum(layer.held_bytes() for layer in self._layers)

    def read_share(self, pieces: list[bytes]) -> bool:
        """Add the next share of input for the bridge to `pieces`; return whether there may be more:
        else feed more. A share is less than 2 * PIECE_MAX bytes, see also INPUT_SHARE. Raises
        LayerError; what was decoded before is in `pieces`."""
        innermost = len(self._layers) - 1
        held = self.held_bytes()
        size = 0
        while size < PIECE_MAX and held - self.held_bytes() - size < INPUT_SHARE:
            piece = self._read(innermost)
            if piece is None:
                return False
            if piece:
                pieces.append(piece)
                size += len(piece)
        return True

    def _read(self, at: int) -> bytes | None:
        layer = self._layers[at]
        piece = layer.read()
        if piece is not None or at == 0:
            return piece
        outer = self._read(at - 1)
        if outer:
            layer.feed(outer)
            return layer.read() or b""
        return outer

    def encode(self, data: bytes) -> bytes:
        """Return the bridge's output as the socket sends it."""
        for layer in reversed(self._layers):
            data = layer.encode(data)
        return data
