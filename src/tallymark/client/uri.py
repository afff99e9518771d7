"""Addresses of brokers: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS; over AMQP
0-9-1 `amqp091://` and `amqps091://`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"amqp": 5672, "amqps": 5671, "amqp091": 5672, "amqps091": 5671}
"""Default ports by scheme. amqp and amqps are AMQP 1.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address of one broker, and in whose name to connect to it."""

    host: str = "localhost"
    port: int = 5672
    is_tls: bool = False
    is_091: bool = False
    """Over AMQP 0-9-1, not 1.0."""
    user: str | None = None
    """User name; None: anonymous, unless a certificate identifies the client."""
    password: str = field(default="", repr=False)
    vhost: str = ""
    """"": the broker's default."""

    @property
    def hostname(self) -> str:
        """Value of open.hostname, in which brokers with virtual hosts expect `vhost:NAME`
        [rabbitmq]."""
        return f"vhost:{self.vhost}" if self.vhost else self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = ("amqps" if self.is_tls else "amqp") + ("091" if self.is_091 else "")
        return f"{scheme}://{host}:{self.port}"


def parse(url: str) -> Endpoint:
    """The parts of an address. Percent-escapes are decoded in user, password and vhost (`%2F` is
    the vhost `/`). Raises ValueError, which never shows the password."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in PORTS:
        raise ValueError(
            f"an address that begins with {scheme.rpartition('@')[2][:20]!r}, "
            "expected amqp:// or amqps://, or amqp091:// or amqps091://"
        )
    scheme = scheme.lower()
    parts = urlsplit(url)
    shown = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.query or parts.fragment:
        raise ValueError(f"{shown}: options in an address are not read, pass them to connect()")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown}: the port is not a number from 0 to 65535") from error
    return Endpoint(
        host=parts.hostname or "localhost",
        port=PORTS[scheme] if port is None else port,
        is_tls=scheme.startswith("amqps"),
        is_091=scheme.endswith("091"),
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
        vhost=unquote(parts.path[1:]),
    )
