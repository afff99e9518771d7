"""Options that name a broker and who asks it, for reading and writing alike.

Secrets may be given in files and in the environment of the driver, which reads them when a query is
planned; executors get them with the reader that is sent to them, and no text has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tallymark.environment import USER
from tallymark.spark.client import DEFAULT_PORT, Endpoint, host_and_port, shown_url
from tallymark.spark.option_values import number, truth

DEFAULT_ENDPOINT: Final = Endpoint()
OF_BROKER: Final = {
    "url": "http[s]://[user:password@]host:port of the broker's HTTP interface, user and password "
    "percent-encoded; with commas, hosts of those that stand by for it",
    "host": "its host, where no url is given (127.0.0.1)",
    "port": f"its port, where no url is given ({DEFAULT_PORT})",
    "user": f"user of the broker (environment: {USER}=NAME:PASSWORD; guest)",
    "password": f"its password (environment: {USER}; guest)",
    "passwordFile": "file on the driver's machine with the password",
    "token": "OAuth 2 token to log in with, in place of user and password",
    "tokenFile": "file with the token, on every machine; read at each call, for tokens that expire",
    "caFile": "with https: certificates of those who may sign the broker's (the system's)",
    "certFile": "with https: certificate to show, on every machine",
    "keyFile": "its key (in certFile)",
    "verify": "with https: whether the broker has to show a certificate of its host (true)",
    "vhost": "virtual host (/)",
    "retryMs": "how long a broker that cannot be reached is tried again (60000)",
}
_FILES: Final = {"tokenFile": "token_file", "caFile": "ca_file", "certFile": "cert_file"}


def endpoints_of(options: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The brokers, of which only `urls` names several; each may have hosts that stand by for it,
    after "|". Raises ValueError."""
    if not (urls := options.get("urls")):
        return (_endpoint(options),)
    rest = {name: value for name, value in options.items() if name != "urls"}
    each = [url.strip().replace("|", ",") for url in urls.split(",")]
    found = tuple(_endpoint({**rest, "url": url}) for url in each)
    addresses = [host_and_port(*host) for one in found for host in one.hosts]
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"option urls: expected each broker once, got {', '.join(addresses)}")
    return found


def options_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the options that name a broker and who asks it, as `endpoints_of` reads them."""
    files = {name: getattr(endpoint, ours) for name, ours in _FILES.items()}
    found = {
        "url": str(endpoint),
        "retryMs": str(endpoint.retry_ms),
        "verify": str(endpoint.verify).lower(),
        "token": endpoint.token,
        **files,
        "keyFile": endpoint.key_file,
    }
    if not (endpoint.token or endpoint.token_file):
        found |= {"user": endpoint.user, "password": endpoint.password}
    return {name: value for name, value in found.items() if value or name == "password"}


def _endpoint(options: Mapping[str, str]) -> Endpoint:
    given = {
        **{ours: options.get(name) for name, ours in _FILES.items()},
        "key_file": options.get("keyFile"),
        "verify": truth(options, "verify", True),
        "retry_ms": number(options, "retryMs", 60_000, 0),
        **_login(options),
    }
    if url := options.get("url"):
        if "host" in options or "port" in options:
            raise ValueError(f"url {shown_url(url)} says host and port: leave these options out")
        return Endpoint.from_url(url, **given)
    port = number(options, "port", DEFAULT_PORT, 1, 65_535)
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Endpoint(host=options.get("host", "127.0.0.1"), port=port, **values)


def _login(options: Mapping[str, str]) -> dict[str, str | None]:
    """User and password, or a token; what nobody said is None. Raises ValueError."""
    ways = [name for name in ("token", "tokenFile", "password", "passwordFile") if name in options]
    if len(ways) > 1:
        raise ValueError(f'options "{ways[0]}" and "{ways[1]}" exclude each other')
    user, password = options.get("user"), options.get("password")
    if ways and ways[0].startswith("token"):
        if user is not None:
            raise ValueError(f'options "{ways[0]}" and "user" exclude each other')
        return {"token": options.get("token")}
    if file := options.get("passwordFile"):
        password = _text_in("passwordFile", file)
    if user is None and password is None and not _has_user(options.get("url", "")):
        user, colon, password = os.environ.get(USER, "").partition(":")
        if not colon:
            return {}
    return {"user": user, "password": password}


def _has_user(url: str) -> bool:
    return "@" in url


def _text_in(option: str, file: str) -> str:
    """The text of a file, without the end of its last line. Raises ValueError."""
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"option {option}={file!r} cannot be read: {reason}") from None
