"""Logging in over HTTP: each request says who sends it."""

from __future__ import annotations

from aiohttp import web

from tallymark.server.access import audit
from tallymark.server.access.user import UsersError
from tallymark.server.access.users import Users
from tallymark.server.http.guard import credentials
from tallymark.server.http.requests import USER, Refused, told_path
from tallymark.server.logs import log_of

log = log_of("http")


async def log_in(request: web.Request, users: Users) -> None:
    """Note the user that sent a request in it. Raises Refused 401."""
    given = credentials(request.headers.get("Authorization", ""))
    if given is None or (given[0] == "Bearer" and users.tokens is None):
        raise Refused(401, "not_authorized", "expected Basic authentication (user:password)")
    scheme, name, secret = given
    try:
        user = await users.check(name, secret, request.remote or "")
    except UsersError as error:
        log.error("login.impossible", error=str(error))
        user = None
    if user is None:
        audit.login_refused("HTTP", request.remote or "", name, scheme)
        raise Refused(401, "not_authorized", "user name and password do not match")
    request[USER] = user
    log.debug("request", method=request.method, path=told_path(request), user=user.name)
