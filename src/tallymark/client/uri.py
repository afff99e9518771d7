"""Where to connect: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address of one broker, and in whose name to connect to it."""

    host: str = "localhost"
    port: int = 5672
    is_tls: bool = False
    user: str | None = None
    """None: nobody in particular (ANONYMOUS, unless a certificate speaks for us)."""
    password: str = field(default="", repr=False)
    vhost: str = ""
    """"": the broker's default."""

    @property
    def hostname(self) -> str:
        """For open.hostname: brokers with virtual hosts read `vhost:name` there [rabbitmq]."""
        return f"vhost:{self.vhost}" if self.vhost else self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.is_tls else 'amqp'}://{host}:{self.port}"


def parse(url: str) -> Endpoint:
    """The parts of an address. Percent-escapes are decoded in user, password and vhost (`%2F` is
    the vhost `/`). Raises ValueError, which never shows the password."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in PORTS:
        raise ValueError(
            f"an address that begins with {scheme.rpartition('@')[2][:20]!r}, "
            "expected amqp:// or amqps://"
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
        is_tls=scheme == "amqps",
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
        vhost=unquote(parts.path[1:]),
    )
