"""Paths that end in a slash, and methods that a path does not take: for both HTTP listeners.

RabbitMQ's management answers `/api/queues/` as `/api/queues`; nsqd redirects to the path without
the slash. A method that is not offered is answered with those that are [RFC 9110 §15.5.6].
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

NO_SUCH_PATH = 404


@web.middleware
async def answer_with_slash(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Have a path that is none be answered as the one without its slash; the innermost middleware:
    whatever asks who sent the request has done so."""
    missing = request.match_info.http_exception
    if missing is None or missing.status != NO_SUCH_PATH:
        return await handler(request)
    other = _without_slash(request)
    if other is None:
        return await handler(request)
    found = await request.app.router.resolve(other)
    if found.http_exception is not None and found.http_exception.status == NO_SUCH_PATH:
        return await handler(request)
    found.add_app(request.app)
    found.current_app = request.app
    other._match_info = found
    return await found.handler(other)


async def known_without_slash(request: web.Request) -> str:
    """The request's path and query without its slash, for a path that there is, whatever the
    method; empty: there is none."""
    other = _without_slash(request)
    if other is None:
        return ""
    found = (await request.app.router.resolve(other)).http_exception
    return "" if found is not None and found.status == NO_SUCH_PATH else other.raw_path


def _without_slash(request: web.Request) -> web.Request | None:
    """Return the request with the path's final slash removed; None: the path has none."""
    path, mark, query = request.raw_path.partition("?")
    if len(path) < 2 or not path.endswith("/"):
        return None
    return request.clone(rel_url=path[:-1] + mark + query)


def allowed_methods(error: web.HTTPException, unsaid: str = "") -> str:
    """Return the header Allow of a 405: the methods of the path without `unsaid`, and OPTIONS.
    Empty for any other error."""
    if not isinstance(error, web.HTTPMethodNotAllowed):
        return ""
    return ", ".join(sorted({*error.allowed_methods, "OPTIONS"} - {unsaid}))
