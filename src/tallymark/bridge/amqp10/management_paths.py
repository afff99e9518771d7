"""Targets of management requests: paths, queries, and the segment that identifies a binding.

    /bindings/src=e1;dstq=q2;key=my%2Fkey;args=

Names are percent-encoded [rfc3986 §2.1]. `args` is empty for a binding without arguments, else a
hash of them, found in the `location` of listed bindings.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from typing import Final, final
from urllib.parse import quote, unquote_to_bytes

from tallymark.engine.table_json import canonical
from tallymark.engine.table_values import wire_bytes

_MALFORMED: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_BINDING: Final = re.compile(
    r"src=([^;]+);dst([eq])=([^;]+);key=([^;]*);args=([0-9A-Za-z_-]*)", re.ASCII
)


@final
class Refusal(Exception):
    """A request is refused."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@final
class Request:
    """A management request."""

    __slots__ = ("body", "method", "queries", "segments", "target")

    def __init__(self, method: str, target: str, body: object) -> None:
        self.method = method
        self.target = target
        self.body = body
        self.segments: list[str] = []
        """Segments of the path, still encoded; at least one."""
        self.queries: list[dict[str, str]] = []
        """Query, decoded, with a second reading if it is ambiguous."""

    def name(self) -> str:
        """Return the decoded second segment. Raises Refusal."""
        return decoded(self.segments[1])


def path_of(target: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the segments of the path, encoded, and the readings of the query, decoded. Raises
    Refusal.

    A + in a query is a space to RabbitMQ and most of its clients, and a + to its Java client.
    """
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise Refusal(400, f"bad path '{path}': expected a / in front")
    queries = [_query(query.replace("+", " "))]
    if "+" in query:
        queries.append(_query(query))
    return path[1:].split("/"), queries


def _query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split("&") if text else ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise Refusal(400, f"bad query '{text}': expected a value behind '{name}'")
        found[decoded(name)] = decoded(value)
    return found


def decoded(text: str) -> str:
    """Return the percent-decoded text. Raises Refusal."""
    if "%" not in text:
        return text
    if _MALFORMED.search(text):
        raise Refusal(400, f"bad name '{text}': expected two hexadecimal digits after each %")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise Refusal(400, f"bad name '{text}': expected percent-encoded UTF-8") from None


def encoded(name: str) -> str:
    return quote(wire_bytes(name), safe="")


@final
class BindingPath:
    """A binding's identity, from a path segment."""

    __slots__ = ("arguments", "destination", "is_queue", "key", "source")

    def __init__(self, segment: str) -> None:
        """Parse the segment. Raises Refusal."""
        match = _BINDING.fullmatch(segment)
        if match is None:
            raise Refusal(
                400,
                f"bad binding '{segment}': expected src=:exchange;dstq=:queue;key=:key;args= or, "
                "for an exchange, dste in the place of dstq",
            )
        self.source = decoded(match.group(1))
        self.is_queue = match.group(2) == "q"
        self.destination = decoded(match.group(3))
        self.key = decoded(match.group(4))
        self.arguments = match.group(5)
        """Hash of the arguments, see `arguments_hash`."""


def binding_location(
    source: str, is_queue: bool, destination: str, key: str, arguments: dict[str, object]
) -> str:
    """Return the target of requests about a binding."""
    kind = "q" if is_queue else "e"
    return (
        f"/bindings/src={encoded(source)};dst{kind}={encoded(destination)};key={encoded(key)}"
        f";args={arguments_hash(arguments)}"
    )


def arguments_hash(arguments: dict[str, object]) -> str:
    """Return a hash that distinguishes a binding from others with the same ends and key; "" without
    arguments."""
    if not arguments:
        return ""
    digest = hashlib.blake2b(canonical(arguments).encode(), digest_size=6).digest()
    return urlsafe_b64encode(digest).decode("ascii")
