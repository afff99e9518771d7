"""Layers: TLS, then compression; OK goes out inside each [NQ-6]. And what the layers read."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from cramjam import snappy
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq import deflate
from tallymark.wire.nsq import snappy as snappy_layer
from tallymark.wire.nsq.commands import MAGIC, NOP, identify, pub
from tallymark.wire.nsq.connection import Connection
from tallymark.wire.nsq.deflate import DeflateDecoder, DeflateEncoder
from tallymark.wire.nsq.events import IdentifyReceived, PeerClosed, UpgradeDue
from tallymark.wire.nsq.frames import split_frames
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.snappy import (
    IDENTIFIER,
    SnappyDecoder,
    SnappyEncoder,
    masked_checksum,
)
from tallymark.wire.nsq.states import State
from tallymark.wire.nsq.upgrades import DEFLATE, PIECE_MAX, SNAPPY, TLS, LayerError
from tests.support.nsq import bodies_of, connected, flatten

OFFERED = Limits(tls_available=True)


def asking(**fields: bool) -> bytes:
    named = "".join(f',"{name}":true' for name in fields)
    return identify(b'{"feature_negotiation":true' + named.encode() + b"}")


def layers_of(connection: Connection) -> list[str]:
    """Add every layer that is due; returns them, each with what was written before it."""
    found = []
    while (event := connection.next_event()) is not None:
        assert isinstance(event, UpgradeDue)
        frames, _ = split_frames(b"".join(connection.take_output(0)))
        found.append(f"{len(frames)} frame, {event.layer}")
        assert connection.state is State.UPGRADING
        connection.upgraded()
    return found


@pytest.mark.parametrize(
    ("asked", "layers"),
    [
        ({}, []),
        ({"tls_v1": True}, [TLS]),
        ({"snappy": True}, [SNAPPY]),
        ({"deflate": True}, [DEFLATE]),
        ({"snappy": True, "tls_v1": True}, [TLS, SNAPPY]),
        ({"deflate": True, "tls_v1": True}, [TLS, DEFLATE]),
    ],
)
def test_nq_6_layers_in_their_order(asked: dict[str, bool], layers: list[str]) -> None:
    connection = connected(OFFERED).connection
    connection.receive_data(asking(**asked), 0)
    assert isinstance(connection.next_event(), IdentifyReceived)
    assert connection.next_event() is None
    connection.send_identify()
    assert layers_of(connection) == [f"1 frame, {layer}" for layer in layers]
    last = split_frames(b"".join(connection.take_output(0)))[0]
    assert len(last) == 1
    assert (last[0] == (0, b"OK")) == bool(layers)
    assert connection.layers == layers
    assert connection.state is State.INIT


def test_nothing_is_read_before_the_layer_is_there() -> None:
    server = connected(OFFERED)
    connection = server.connection
    connection.receive_data(asking(tls_v1=True) + b"client hello", 0)
    assert isinstance(connection.next_event(), IdentifyReceived)
    connection.send_identify()
    assert isinstance(connection.next_event(), UpgradeDue)
    assert connection.take_unread() == b"client hello"
    assert connection.take_unread() == b""
    connection.upgraded()
    assert flatten(server.feed(pub("t", b"x"))) == [("PUB", "t", 0, b"x")]


def test_a_second_identify_inside_a_layer() -> None:
    server = connected(OFFERED)
    server.feed(asking(tls_v1=True), asking())
    assert server.sent()[2:] == [(1, b"E_INVALID cannot IDENTIFY in current state")]


@pytest.mark.parametrize("raw", [NOP, pub("t", b"x"), b"FIN 0123456789abcdef\n", b"ASDF\n"])
def test_nq_6_tls_required(raw: bytes) -> None:
    limits = Limits(tls_available=True, tls_required=True)
    verb = raw.split()[0]
    for first in (b"", asking(), asking(snappy=True)):
        server = connected(limits)
        server.feed(first)
        server.sent()
        server.feed(raw)
        text = b"E_INVALID cannot " + verb + b" in current state (TLS required)"
        assert server.sent() == [(1, text)]
    server = connected(limits)
    server.feed(asking(tls_v1=True), pub("t", b"x"))
    assert server.sent()[1:] == [(0, b"OK"), (0, b"OK")]


def test_a_layer_that_breaks() -> None:
    server = connected()
    server.connection.receive_broken("deflate: invalid block type")
    server.drain()
    assert flatten(server.events) == [("CLOSED", "deflate: invalid block type", False)]
    assert server.sent() == []
    server = connected(OFFERED)
    connection = server.connection
    connection.receive_data(asking(tls_v1=True), 0)
    assert connection.next_event() is not None
    connection.send_identify()
    assert connection.next_event() is not None
    connection.receive_eof()
    assert isinstance(connection.next_event(), PeerClosed)


# The layers themselves

Decoder = SnappyDecoder | DeflateDecoder
Encoder = SnappyEncoder | DeflateEncoder
LAYERS: list[tuple[Callable[[], Encoder], Callable[[], Decoder]]] = [
    (SnappyEncoder, SnappyDecoder),
    (lambda: DeflateEncoder(6), DeflateDecoder),
]
both = pytest.mark.parametrize(("encoder", "decoder"), LAYERS, ids=["snappy", "deflate"])


def read_all(decoder: Decoder) -> bytes:
    pieces = []
    while (piece := decoder.read()) is not None:
        assert len(piece) <= PIECE_MAX
        pieces.append(piece)
    return b"".join(pieces)


def read_in_pieces(decoder: Decoder, raw: bytes, size: int) -> None:
    for pos in range(0, len(raw), size):
        decoder.feed(raw[pos : pos + size])
        read_all(decoder)


@both
@given(
    writes=st.lists(st.binary(max_size=300), max_size=6),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_what_was_written_can_be_read_at_once(
    encoder: Callable[[], Encoder],
    decoder: Callable[[], Decoder],
    writes: list[bytes],
    sizes: list[int],
) -> None:
    writer = encoder()
    reader = decoder()
    for data in writes:
        encoded = writer.encode(data)
        found = b""
        pos = 0
        while pos < len(encoded):
            size = sizes[pos % len(sizes)]
            reader.feed(encoded[pos : pos + size])
            pos += size
            found += read_all(reader)
        assert found == data


@both
def test_large_writes(encoder: Callable[[], Encoder], decoder: Callable[[], Decoder]) -> None:
    rng = random.Random(5)
    for data in (b"", b"x" * 300_000, rng.randbytes(200_000), b"y" * PIECE_MAX):
        reader = decoder()
        reader.feed(encoder().encode(data))
        assert read_all(reader) == data


def test_a_small_input_swells_in_pieces() -> None:
    """Ten thousand to one and the memory of one piece."""
    bomb = DeflateEncoder(9).encode(b"\0" * 30_000_000)
    assert len(bomb) < 40_000
    reader = DeflateDecoder()
    reader.feed(bomb)
    total = 0
    while (piece := reader.read()) is not None:
        assert len(piece) <= PIECE_MAX
        total += len(piece)
    assert total == 30_000_000


EMPTY_BLOCK = b"\0\0\0\xff\xff"
EMPTY_CHUNK = b"\xfe\0\0\0"


@pytest.mark.parametrize(
    ("reader", "raw", "most"),
    [
        (DeflateDecoder(), EMPTY_BLOCK * 100_000, deflate.SLICE),
        (SnappyDecoder(), IDENTIFIER + EMPTY_CHUNK * 100_000, snappy_layer.CHUNKS * 4 + 10),
    ],
)
def test_what_stands_for_nothing_is_decoded_a_part_at_a_time(
    reader: Decoder, raw: bytes, most: int
) -> None:
    reader.feed(raw)
    held = reader.held_bytes()
    assert held == len(raw)
    while (piece := reader.read()) is not None:
        assert piece == b""
        assert held - most <= reader.held_bytes() < held
        held = reader.held_bytes()
    assert reader.held_bytes() == 0


def chunk(kind: int, content: bytes) -> bytes:
    return bytes((kind,)) + len(content).to_bytes(3, "little") + content


def test_snappy_chunks_that_carry_nothing_are_passed_over() -> None:
    plain = masked_checksum(b"data") + b"data"
    raw = IDENTIFIER + chunk(0xFE, b"\0" * 70_000) + chunk(0x80, b"") + chunk(0xFD, b"x")
    raw += IDENTIFIER + chunk(1, masked_checksum(b"")) + chunk(1, plain) + chunk(0x90, b"abc")
    for size in (1, 3, 1000, len(raw)):
        reader = SnappyDecoder()
        found = b""
        for pos in range(0, len(raw), size):
            reader.feed(raw[pos : pos + size])
            found += read_all(reader)
            assert reader._inbox.size() < 1000
        assert found == b"data"


def test_deflate_blocks_that_carry_nothing_are_passed_over() -> None:
    writer = DeflateEncoder(6)
    raw = writer.encode(b"a") + b"\0\0\0\xff\xff" * 20_000 + writer.encode(b"b")
    reader = DeflateDecoder()
    reader.feed(raw)
    assert read_all(reader) == b"ab"


def test_snappy_as_others_write_and_read_it() -> None:
    noise = random.Random(3).randbytes(100_000)
    for data in (b"ab", b"x" * 200_000, noise):
        assert bytes(snappy.decompress(SnappyEncoder().encode(data))) == data
        framed = bytes(snappy.compress(data))
        reader = SnappyDecoder()
        reader.feed(framed + framed)  # pynsq begins anew with every write
        assert read_all(reader) == data + data


def test_snappy_data_that_does_not_shrink_is_left_plain() -> None:
    noise = random.Random(1).randbytes(1000)
    assert SnappyEncoder().encode(noise) == IDENTIFIER + chunk(1, masked_checksum(noise) + noise)
    assert SnappyEncoder().encode(b"a" * 1000)[10] == 0


def test_the_checksum_is_that_of_the_framing_format() -> None:
    """crc32c of 123456789 is e3069283; masked as the format describes it."""
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_checksum(b"123456789") == masked.to_bytes(4, "little")


TOO_MUCH = b"x" * (PIECE_MAX + 1)
GOOD = masked_checksum(b"data") + b"data"


@pytest.mark.parametrize(
    "raw",
    [
        chunk(1, GOOD),
        chunk(0xFE, b""),
        chunk(0xFF, b"sNaPpy"),
        chunk(0xFF, b"sNaPpY!"),
        IDENTIFIER + chunk(2, GOOD),
        IDENTIFIER + chunk(0x7F, b""),
        IDENTIFIER + chunk(1, b"\0\0\0\0data"),
        IDENTIFIER + chunk(1, b"abc"),
        IDENTIFIER + chunk(0, b"abc"),
        IDENTIFIER + chunk(0, b"\0\0\0\0"),
        IDENTIFIER + chunk(0, b"\0\0\0\0\xff\xff\xff\xff\x0f"),
        IDENTIFIER + chunk(0, b"\0\0\0\0\x81\x80\x04"),
        IDENTIFIER + chunk(0, GOOD),
        IDENTIFIER + chunk(0, masked_checksum(TOO_MUCH) + bytes(snappy.compress_raw(TOO_MUCH))),
        IDENTIFIER + b"\x01\xff\xff\xff",
        IDENTIFIER + b"\x00\xff\xff\xff",
    ],
)
def test_what_is_not_snappy(raw: bytes) -> None:
    for size in (1, len(raw)):
        reader: Decoder = SnappyDecoder()
        with pytest.raises(LayerError, match="snappy: "):
            read_in_pieces(reader, raw, size)


def test_what_is_not_deflate() -> None:
    for raw in (b"\xff\xff", zlib.compress(b"with a header") * 2, b"\x03\x00more"):
        reader: Decoder = DeflateDecoder()
        with pytest.raises(LayerError, match="deflate: "):
            read_in_pieces(reader, raw, 3)


@both
@given(
    noise=st.binary(max_size=300), changes=st.lists(st.tuples(st.integers(), st.integers(0, 255)))
)
def test_any_bytes_give_bytes_or_a_layer_error(
    encoder: Callable[[], Encoder],
    decoder: Callable[[], Decoder],
    noise: bytes,
    changes: list[tuple[int, int]],
) -> None:
    good = bytearray(encoder().encode(b"abc" * 50 + noise))
    for at, value in changes:
        good[at % len(good)] = value
    for raw in (noise, bytes(good)):
        with suppress(LayerError):
            read_in_pieces(decoder(), raw, 7)


@both
def test_a_whole_conversation_inside(
    encoder: Callable[[], Encoder], decoder: Callable[[], Decoder]
) -> None:
    client_out, client_in = encoder(), decoder()
    server_out, server_in = encoder(), decoder()
    kind = "snappy" if encoder is SnappyEncoder else "deflate"
    connection = Connection(Limits())
    connection.receive_data(MAGIC + asking(**{kind: True}), 0)
    assert connection.next_event() is not None
    connection.send_identify()
    assert connection.next_event() is not None
    assert len(connection.take_output(0)) == 1
    connection.upgraded()
    bodies = [b"x" * size for size in (1, 1000, 1_000_000)]
    found = []
    for body in bodies:
        server_in.feed(client_out.encode(pub("t", body)))
        while piece := server_in.read():
            connection.receive_data(piece, 0)
            while (event := connection.next_event()) is not None:
                found += bodies_of(event)  # type: ignore[arg-type]
                connection.send_ok()
    assert found == bodies
    client_in.feed(server_out.encode(b"".join(connection.take_output(0))))
    assert split_frames(read_all(client_in))[0] == [(0, b"OK")] * 4
