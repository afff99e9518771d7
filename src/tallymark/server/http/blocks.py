"""Messages as an answer: blocks of the journal's own layout, made and sent a few MiB at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from tallymark.engine.clock import in_wall_time
from tallymark.engine.errors import BrokerError
from tallymark.engine.extents import Excerpts
from tallymark.journal import packer
from tallymark.server.http.requests import Refused
from tallymark.server.logs import log_of
from tallymark.units import Ms

log = log_of("http")


async def send_blocks(
    request: web.Request,
    queue_id: int,
    low: int,
    high: int,
    take: Callable[[int, Excerpts], int],
    ahead_ms: int,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer rows low..high-1 of a queue as application/octet-stream.

    take(at, excerpts) adds rows from `at` on and returns where to go on, beyond `at`. ahead_ms:
    how far wall time is ahead of engine time. A refusal after the first block cuts the answer off,
    which is chunked, so that the reader notices.
    """
    excerpts = Excerpts(queue_id)
    at = take(low, excerpts) if low < high else high
    said = {"Content-Type": "application/octet-stream", **(headers or {})}
    response = web.StreamResponse(headers=said)
    if at >= high:
        body = _packed(excerpts, ahead_ms) if excerpts.rows else b""
        return web.Response(body=body, headers=said)
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(_packed(excerpts, ahead_ms))
    while at < high:
        excerpts = Excerpts(queue_id)
        try:
            at = take(at, excerpts)
        except (BrokerError, Refused) as error:
            log.info("answer.cut_off", path=request.path, error=str(error))
            if request.transport is not None:
                request.transport.abort()
            return response
        if excerpts.rows:
            await response.write(_packed(excerpts, ahead_ms))
    await response.write_eof()
    return response


def _packed(excerpts: Excerpts, ahead_ms: int) -> bytes:
    return packer.pack(in_wall_time(excerpts.rows, Ms(ahead_ms)))
