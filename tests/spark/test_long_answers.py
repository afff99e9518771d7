"""Long answers, however they come: in small pieces, cut off, and followed by short ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tallymark.spark.client import BULK, Client, Endpoint, _BulkSocket

BODY = bytes(range(251)) * (3 * BULK // 251 + 1)


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def served(*connections: list[list[bytes]]) -> Iterator[Client]:
    """A server that answers each request of each connection with pieces, the next of which is sent
    when the last was received; it closes a connection that was not asked for all."""

    def serve() -> None:
        for requests in connections:
            peer, _ = listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer:
                for pieces in requests:
                    seen = b""
                    while b"\r\n\r\n" not in seen:
                        seen += peer.recv(1000)
                    for piece in pieces:
                        peer.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(Endpoint(port=listener.getsockname()[1], timeout_ms=10_000, retry_ms=5_000))
        yield client
        client.close()
        thread.join()


def cut(data: bytes, *at: int) -> list[bytes]:
    return [data[a:b] for a, b in zip((0, *at), (*at, len(data)), strict=True)]


@pytest.mark.parametrize("size", [0, 1, 8191, BULK // 8 + 1, BULK - 1, BULK, BULK + 1, len(BODY)])
@pytest.mark.parametrize("step", [1000, 70_001, 1 << 30])
def test_a_long_answer_in_pieces_is_whole_and_a_short_one_follows(size: int, step: int) -> None:
    body = BODY[:size]
    long, short = answer(body), answer(b'{"a": 1}')
    with served([cut(long, *range(step, len(long), step)), [short], cut(long, 20, 100)]) as client:
        assert client.get("/x", {}) == body
        assert client.call("GET", "/y") == {"a": 1}
        assert client.get("/x", {}) == body


@pytest.mark.parametrize("kept", [100, 9000, BULK, len(BODY) - 1])
def test_a_long_answer_that_is_cut_off_is_asked_for_again(kept: int) -> None:
    whole = answer(BODY)
    end = len(whole) - len(BODY) + kept
    with served([[whole[:end]]], [[whole]]) as client:
        assert client.get("/x", {}) == BODY


def test_a_reader_of_a_long_answer_is_woken_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    receive = _BulkSocket.recv_into

    def counted(one: _BulkSocket, *rest: int) -> int:
        reads.append(receive(one, *rest))
        return reads[-1]

    monkeypatch.setattr(_BulkSocket, "recv_into", counted)
    whole = answer(BODY)
    with served([cut(whole, *range(4000, len(whole), 4000))]) as client:
        assert client.get("/x", {}) == BODY
    assert sum(reads) == len(whole)
    assert len(reads) < 10, reads
