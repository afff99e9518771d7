"""Messages as an answer, sent from where they lie in the journal: none of their bytes come by here.

An answer is one block whose tables are made for it, followed by its raw: stretches of segment
files, sent by sendfile where the connection is plain. What is in the page cache is sent by the
loop, two MiB in one go; what is not is first read in by a thread, so that a disk that has to turn
holds up the reader alone. What is in the cache is asked once for 8 MiB: to touch a page for that
costs up to as much as to send it. Small stretches that lie apart are gathered by a thread.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from aiohttp import web

from tallymark.engine.extents import Span
from tallymark.journal.journal import Journal
from tallymark.server.config.kinds import is_loopback
from tallymark.server.logs import log_of
from tallymark.units import Position

ANSWER_BYTES: Final = 16 << 20
"""Raw bytes of an answer where the reader does not say."""
MOST_ANSWER_BYTES: Final = 64 << 20
NEXT: Final = "Tallymark-Next"
"""Header of an answer: the offset, or lease sequence, to go on from."""
SMALL: Final = 16 * 1024
"""Bytes: stretches below are copied together, others are sent by sendfile."""
GATHERED: Final = 1 << 20
"""Bytes that are gathered at a time."""
CHUNK: Final = 2 << 20
"""Bytes that sendfile is asked for at a time: what the loop does for one reader in one go, which
takes it half a millisecond."""
AHEAD: Final = 8 << 20
"""Bytes that the page cache is asked about at a time, and a disk is asked for; of the latter a
reader waits for the first CHUNK."""
GAP: Final = 4096
"""Stretches that are further apart are read by calls of their own."""
AT_ONCE: Final = 512
"""Buffers in one call, two for each stretch; the kernel takes 1024."""
NEAR_BUFFER: Final = 4 << 20
"""Bytes that a socket to this machine is asked to hold, of which the kernel makes twice as many and
no more than it allows: the loop is woken less often for a reader that is busy with the last answer.
An answer costs an eighth less with them."""
STALLED_S: Final = 60.0
"""A reader that takes nothing for so long is dropped."""

log = log_of("http")


def are_written(journal: Journal, spans: list[Span]) -> bool:
    """Return whether the journal's files have these stretches; else they will when the disk has all
    that was committed, and may lie elsewhere by then."""
    return all(journal.reader.is_written(span.position) for span in spans)


async def send_apart(
    request: web.Request,
    journal: Journal,
    head: bytes,
    spans: list[Span],
    padding: int,
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Answer with `head`, the stretches, and so many zeros. An answer that cannot be ended is cut
    off: it has a length, so that the reader notices.

    Raises BytesLost, OSError before anything is sent.
    """
    size = len(head) + sum([span.size for span in spans]) + padding
    files = _Files(journal, spans)
    try:
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream", "Content-Length": str(size), **headers
            }
        )  # fmt: skip
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        try:
            out: _Out
            if _is_plain(transport):
                out = await _Plain.over(transport)
            else:
                out = _Encrypted(response)
            with out:
                await out.write(head)
                await _send_spans(out, files, spans)
                await out.write(bytes(padding))
        except (OSError, TimeoutError) as error:
            log.info("answer.cut_off", path=request.path, error=str(error) or "timed out")
            transport.abort()
            return response
        await response.write_eof()
        return response
    finally:
        files.close()


def _is_plain(transport: asyncio.Transport) -> bool:
    """Return whether bytes may go to the transport's socket itself, which it has."""
    get = transport.get_extra_info
    return get("sslcontext") is None and get("socket") is not None


class _Files:
    """Descriptors of the segments that spans are in."""

    def __init__(self, journal: Journal, spans: list[Span]) -> None:
        self._open: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        try:
            for span in spans:
                number = span.position >> 32
                if number not in self._open:
                    self._open[number] = journal.reader.file_of(span.position)
                end = (span.position & 0xFFFFFFFF) + span.size
                self._ends[number] = max(self._ends.get(number, 0), end)
        except BaseException:
            self.close()
            raise

    def of(self, span: Span) -> int:
        return self._open[span.position >> 32]

    def end_of(self, span: Span) -> int:
        """Return the end of the last of all spans in this span's file."""
        return self._ends[span.position >> 32]

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class _Out:
    """Destination of an answer."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    async def write(self, data: bytes | bytearray) -> None:
        raise NotImplementedError

    async def send(self, fd: int, offset: int, size: int, wanted: int) -> None:
        """Bytes of a file, of which more may be sent next, up to `wanted`."""
        raise NotImplementedError


class _Encrypted(_Out):
    """A connection whose bytes have to come through here."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def write(self, data: bytes | bytearray) -> None:
        if data:
            await self._response.write(data)

    async def send(self, fd: int, offset: int, size: int, wanted: int) -> None:
        while size:
            some = min(size, CHUNK)
            await self.write(await asyncio.to_thread(_read, fd, offset, some))
            offset += some
            size -= some


class _Plain(_Out):
    """A connection's socket itself, while its transport has nothing to write."""

    def __init__(self, own: socket.socket, is_near: bool) -> None:
        """own: the same socket under a descriptor of ours. is_near: it leads to this machine."""
        self._socket = own
        self._fd = own.fileno()
        if is_near:
            # Pacing, such as bbr's, halves the bytes that sendfile moves in a second of CPU, and
            # there is no network here to be shared. reno is in every kernel.
            with suppress(OSError):
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BUFFER)
        self._loop = asyncio.get_running_loop()
        self._read: dict[int, int] = {}
        """End of the bytes that are in memory, by file, from the last one sent on."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in_one_go = 0
        """Bytes that were sent since the loop had its turn."""
        self._waits = 0
        """Number of times that the socket was full so far; and its value at the last look."""
        self._waits_then = 0

    @staticmethod
    async def over(transport: asyncio.Transport) -> _Plain:
        """Wait until the transport has written its buffer, which holds the headers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STALLED_S
        pause = 0.0
        while transport.get_write_buffer_size():
            if loop.time() > deadline:
                raise TimeoutError(f"the reader took nothing for {STALLED_S:.0f} s")
            await asyncio.sleep(pause)
            pause = min(pause + 0.001, 0.05)
        if transport.is_closing():
            raise ConnectionResetError("the reader is gone")
        own = os.dup(transport.get_extra_info("socket").fileno())
        peer = transport.get_extra_info("peername")
        return _Plain(socket.socket(fileno=own), is_loopback(str(peer[0]) if peer else ""))

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()

    async def write(self, data: bytes | bytearray) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left[:CHUNK]) :]
            except BlockingIOError:
                await self._writable()

    async def send(self, fd: int, offset: int, size: int, wanted: int) -> None:
        end = offset + size
        ready = self._read.get(fd, 0)
        while offset < end:
            if self._in_one_go >= CHUNK:
                self._in_one_go = 0
                await asyncio.sleep(0)
            if offset >= ready:
                ready = await self._have(fd, offset, wanted)
            try:
                sent = os.sendfile(self._fd, fd, offset, min(ready, end, offset + CHUNK) - offset)
            except BlockingIOError:
                await self._writable()
                continue
            if not sent:
                raise OSError(f"a segment ends at {offset}, expected {end} bytes")
            offset += sent
            self._in_one_go += sent

    async def _have(self, fd: int, offset: int, wanted: int) -> int:
        """Return when the bytes of a file from `offset` on, some of those before `wanted`, are in
        memory; where these end."""
        ready = min(wanted, offset + AHEAD)
        if not _is_cached(fd, ready - 1):
            ready = min(wanted, offset + CHUNK)
            if not _is_cached(fd, ready - 1):
                await self._loop.run_in_executor(None, _read_in, fd, offset, ready, wanted)
        self._read[fd] = ready
        return ready

    async def _writable(self) -> None:
        """Return when the socket takes more. Raises TimeoutError when it has not for STALLED_S, or
        twice that: one timer serves a whole answer."""
        self._waiter = waiter = self._loop.create_future()
        self._waits += 1
        if self._timer is None:
            self._timer = self._loop.call_later(STALLED_S, self._look)
        self._loop.add_writer(self._fd, self._wake)
        try:
            await waiter
        finally:
            self._loop.remove_writer(self._fd)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """Fail the answer if nothing was sent since the last look."""
        waiter = self._waiter
        if self._waits == self._waits_then and waiter is not None and not waiter.done():
            waiter.set_exception(TimeoutError(f"the reader took nothing for {STALLED_S:.0f} s"))
        self._waits_then = self._waits
        self._timer = self._loop.call_later(STALLED_S, self._look)


async def _send_spans(out: _Out, files: _Files, spans: list[Span]) -> None:
    at = 0
    while at < len(spans):
        span = spans[at]
        if span.size >= SMALL:
            offset = span.position & 0xFFFFFFFF
            await out.send(files.of(span), offset, span.size, files.end_of(span))
            at += 1
            continue
        size = 0
        end = at
        fd = files.of(span)
        while end < len(spans) and spans[end].size < SMALL and size < GATHERED:
            if files.of(spans[end]) != fd:
                break
            size += spans[end].size
            end += 1
        await out.write(await asyncio.to_thread(_gather, fd, spans[at:end], size))
        at = end


def _is_cached(fd: int, offset: int) -> bool:
    """Return whether a byte of a file is in memory, as far as the file system says. What lies
    before it and is wanted too was read ahead, or will be."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # not on this file system
        return True
    return True


def _read_in(fd: int, offset: int, until: int, wanted: int) -> None:
    """Have the kernel read a file from `offset` on, to `wanted` or AHEAD bytes of it, and return
    when it has the byte before `until`. What lies before that one it has too, or nearly."""
    os.posix_fadvise(fd, offset, min(wanted - offset, AHEAD), os.POSIX_FADV_WILLNEED)
    os.preadv(fd, [bytearray(1)], until - 1)


def _read(fd: int, offset: int, size: int) -> bytes:
    """Raises OSError where the file is shorter."""
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
    data = os.pread(fd, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    have = len(data)
    while have < size:
        more = os.pread(fd, size - have, offset + have)
        if not more:
            raise OSError(f"a segment ends at {offset + have}, expected {offset + size} bytes")
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def _gather(fd: int, spans: list[Span], size: int) -> bytearray:
    """The bytes of small stretches of one file, end to end: those that lie near each other by one
    call, which reads what is between them into nowhere. Raises OSError."""
    found = bytearray(size)
    into = memoryview(found)
    nowhere = memoryview(bytearray(GAP))
    at = 0
    done = 0
    while at < len(spans):
        begin = spans[at].position
        here = begin
        buffers: list[memoryview] = []
        while at < len(spans) and len(buffers) < AT_ONCE:
            span = spans[at]
            gap = span.position - here
            if not 0 <= gap <= GAP:
                break
            if gap:
                buffers.append(nowhere[:gap])
            buffers.append(into[done : done + span.size])
            done += span.size
            here = Position(span.position + span.size)
            at += 1
        wanted = here - begin
        if os.preadv(fd, buffers, begin & 0xFFFFFFFF) != wanted:
            raise OSError(f"a segment ends before {here & 0xFFFFFFFF}, expected {wanted} bytes")
    return found
