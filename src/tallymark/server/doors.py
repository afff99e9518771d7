"""The limit of connections, over all listeners and protocols together.

Who is one too many is closed at once, unless somebody can go in his place: a connection that is
over and waits for its peer, one whose TLS handshake is not through, or one of HTTP on which nothing
is under way. So silent connections keep nobody out. A few of HTTP are let in beyond the limit:
whoever looks after the broker can do so while clients have taken all there is.
"""

from __future__ import annotations

from typing import Final, Protocol

from tallymark.server.logs import log_of

RESERVED: Final = 16
"""Connections of HTTP that are let in whatever else is open."""

log = log_of("server")


class Line(Protocol):
    """An open connection."""

    peer: str

    def drop(self) -> None:
        """Close the socket now."""


class Doors:
    """The open connections, each counted from `enter` to `leave`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[Line, bool] = {}
        """Open connections; True: of HTTP."""
        self._http = 0
        self._expendable: dict[Line, None] = {}
        """Connections that may be closed for a new one, the first before the others."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def clients(self) -> int:
        """Number of open connections that are not of HTTP."""
        return len(self._open) - self._http

    def has_room(self) -> bool:
        """Return whether a new client would be let in, once the requests of HTTP that are under way
        have their answers."""
        return self.clients < self.limit

    def enter(self, line: Line, is_http: bool = False) -> bool:
        """Count a new connection, unless a place was passed on to it. False: there is no room, and
        it must be closed."""
        if line in self._open:
            return True
        if len(self._open) >= self.limit and not (is_http and self._http < RESERVED):
            if not self._expendable:
                log.warning("connection.refused", peer=line.peer, limit=self.limit)
                return False
            first = next(iter(self._expendable))
            self.leave(first)
            log.debug("connection.dropped", peer=first.peer, limit=self.limit)
            first.drop()
        self._open[line] = is_http
        self._http += is_http
        return True

    def leave(self, line: Line) -> None:
        """The connection is gone, or about to be."""
        self._expendable.pop(line, None)
        if line in self._open:
            self._http -= self._open.pop(line)

    def pass_on(self, line: Line, to: Line) -> None:
        """Have what was counted be known as another one, which enters in its place."""
        self._expendable.pop(line, None)
        if line in self._open:
            self._open[to] = self._open.pop(line)

    def may_go(self, line: Line) -> None:
        """Mark a connection as expendable: no request is under way on it."""
        if line in self._open and line not in self._expendable:
            self._expendable[line] = None

    def must_stay(self, line: Line) -> None:
        """Mark a connection as not expendable: a request is under way on it."""
        self._expendable.pop(line, None)
