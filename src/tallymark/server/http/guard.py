"""Protection against web pages: checks that both HTTP listeners make before anything else.

A page in a browser on this machine, or in its network, can send requests here. Two rules keep it
out, whoever the browser's user is:

- The name in `Host` is one of ours. Under a name of its own, which it has point here (DNS
  rebinding), a page could read the answers. Addresses are no names; neither a name without a dot
  nor one below `localhost` can be bought; others are this machine's and the configuration's.
- `Origin`, where there is one, is that same place: a form or script of another page sends a POST
  without asking first. `Sec-Fetch-Site: cross-site` says the same; only following a link is fine.

Also here: the header `Server`, without versions, which would help to find vulnerable brokers.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import shlex
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web, web_response

from tallymark.server.config.settings import Config

CHALLENGE: Final = 'Basic realm="tallymark", charset="UTF-8"'
ANY: Final = "*"
LOCAL: Final = ".localhost"
MISDIRECTED: Final = 421
FORBIDDEN: Final = 403

# aiohttp puts this into every answer, its own to what cannot be parsed included.
web_response.SERVER_SOFTWARE = "Tallymark"  # type: ignore[attr-defined]


class Turned(Exception):
    """The request is answered with this status, and nothing else happens. The text says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """The guard of one listener."""

    def __init__(self, names: Iterable[str], configured: tuple[str, ...] = ()) -> None:
        """names: by which it may be asked, beside addresses, names without dots and this machine's.
        `*`: any; `.example.org`: those that end so."""
        known = [name.lower().rstrip(".") for name in (*names, socket.gethostname())]
        self._configured = configured
        self._any = ANY in known
        self._names = frozenset(known)
        self._endings = (LOCAL, *(name for name in known if name.startswith(".")))

    def check(self, request: web.Request) -> None:
        """Raises Turned."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) > 1:
            raise Turned(MISDIRECTED, f"{len(hosts)} Host headers, expected one")
        host = hosts[0].strip().lower() if hosts else ""
        name = name_of(host)
        if host and not self._is_ours(name):
            raise Turned(
                MISDIRECTED,
                f"Host is {name[:200]!r}, expected an address, this machine's name or one of "
                f"http_names: if it is the broker's, start it with {self._with(name[:200])}",
            )
        origin = request.headers.get("Origin")
        if origin is not None and (not host or urlsplit_netloc(origin) != host):
            raise Turned(FORBIDDEN, f"Origin is {origin[:200]!r}, expected none or {host!r}")
        is_link = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not is_link:
            raise Turned(FORBIDDEN, "a page of another site sent this request")

    def _with(self, name: str) -> str:
        """The setting that makes a name one of ours, as the command line and the environment take
        it."""
        names = shlex.quote(",".join((*self._configured, name)))
        return f"--http-names {names} (or TALLYMARK_HTTP_NAMES={names})"

    def _is_ours(self, name: str) -> bool:
        if self._any or "." not in name or name in self._names or name.endswith(self._endings):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def guard_of(config: Config) -> Guard:
    """Return the guard for the configured listeners."""
    return Guard(
        (
            *config.http_names, *config.host, *config.nsq_http_host, *config.nsq_https_host,
            config.nsq_broadcast_address,
        ),
        config.http_names,
    )  # fmt: skip


def name_of(host: str) -> str:
    """Return the name in a Host header, without the port and an address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].partition("%")[0]
    return host.rpartition(":")[0].rstrip(".") if ":" in host else host.rstrip(".")


def urlsplit_netloc(origin: str) -> str:
    """Host and port of an Origin; "" where it is none, as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def credentials(header: str) -> tuple[str, str, str] | None:
    """Return the scheme, user and secret of an Authorization header: Basic, or Bearer, whose token
    names the user itself [RFC 6750 §2.1]. None: it is neither."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return "Bearer", "", token.strip()
    given = basic_credentials(header)
    return None if given is None else ("Basic", *given)


def basic_credentials(header: str) -> tuple[str, str] | None:
    """Return user and password of an Authorization header; None: it is not Basic authentication."""
    scheme, _, encoded = header.partition(" ")
    try:
        pair = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, colon, password = pair.partition(":")
    if scheme.lower() != "basic" or not colon:
        return None
    return name, password
