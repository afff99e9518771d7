"""Arguments that the application passes in: how each is checked, at the call that it is passed to,
and the options of a connection, a receiver and a sender, which are kept as they are here, because a
connection that comes back must be asked the same again.

A check raises TypeError for a value of the wrong type, ValueError for one out of range, with the
argument's name, the value and what was expected. Times are in milliseconds unless a name says
seconds.
"""

from __future__ import annotations

import math
import ssl as tls
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from tallymark.wire.amqp091.fields import encode_table
from tallymark.wire.amqp10.writer import encode_symbol_map

T = TypeVar("T")


def _shown(name: str, value: object) -> str:
    return f"{name}={value!r:.80}"


def check_type(name: str, value: object, kinds: type[T] | tuple[type[T], ...], expected: str) -> T:
    """Check that the value is of one of these types; a bool is no number. Return it."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
        raise TypeError(f"{_shown(name, value)}, expected {expected}")
    return value


def check_flag(name: str, value: object) -> None:
    check_type(name, value, bool, "True or False")


def check_text(name: str, value: object, *, optional: bool = False) -> None:
    """Check that the value is text that has a form in UTF-8."""
    if value is None and optional:
        return
    text = check_type(name, value, str, "text or None" if optional else "text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{_shown(name, value)}, expected text that has UTF-8: {error}") from error


def check_int(name: str, value: object, least: int, most: int | None = None) -> None:
    """Check that the value is a whole number from `least` to `most`."""
    expected = f"{least} or more" if most is None else f"{least} to {most}"
    number = check_type(name, value, int, f"a whole number, {expected}")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{_shown(name, value)}, expected {expected}")


def check_number(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Check that the value is a number from `least` to `most`, of any real type, as numpy's."""
    expected = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{_shown(name, value)}, expected a number, {expected}")
    if value < least or not value <= most:  # not a number is neither
        raise ValueError(f"{_shown(name, value)}, expected {expected}")


def check_timeout(name: str, value: float | None) -> None:
    """Check that the value is a number of seconds, or None for no limit. A time-out below 0 has
    passed, and is allowed: callers compute what remains of one."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{_shown(name, value)}, expected seconds or None")
    if value != value:  # not a number
        raise ValueError(f"{_shown(name, value)}, expected seconds or None")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check that the value is one of these. Text may be of a subclass of str, as that of an enum;
    True is not 1."""
    if not any(value == choice and isinstance(value, type(choice)) for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{_shown(name, value)}, expected one of {listed}")


def check_call(name: str, value: object, *, optional: bool = False) -> None:
    """Check that the value can be called."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{_shown(name, value)}, expected a function{' or None' * optional}")


def check_fields(name: str, value: object, *, optional: bool = True) -> None:
    """Check that the value is a mapping whose keys are text."""
    if value is None and optional:
        return
    check_type(name, value, Mapping, f"a mapping{' or None' * optional}")
    assert isinstance(value, Mapping)
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{name} with the key {key!r:.80}, expected text")


def check_texts(name: str, value: object) -> None:
    """Check that the value is a collection of texts, which can be read again and again."""
    is_one = isinstance(value, (str, bytes, bytearray))
    if is_one or not isinstance(value, Collection) or not all(isinstance(i, str) for i in value):
        raise TypeError(f"{_shown(name, value)}, expected a tuple of texts")


def listed(name: str, value: Iterable[T], expected: str) -> list[T]:
    """Return the items; text and bytes, which have items too, are one value."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        raise TypeError(f"{_shown(name, value)}, expected {expected}")
    return list(value)


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
    """Return the parts of an address. Percent-escapes are decoded in user, password and vhost
    (`%2F` is the vhost `/`). Raises ValueError, which never shows the password."""
    check_type("url", url, str, "text such as 'amqp://localhost'")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in PORTS:
        raise ValueError(
            f"an address that begins with {scheme.rpartition('@')[2][:20]!r}, "
            "expected amqp:// or amqps://, or amqp091:// or amqps091://"
        )
    scheme = scheme.lower()
    # Behind the last @, wherever the host ends: a password may have signs that end it.
    shown = f"{scheme}://{url.partition('://')[2].rpartition('@')[2]}"
    try:
        parts = urlsplit(url)
    except ValueError:  # its text has the user and the password
        raise ValueError(f"{shown}: expected a host's name, or an address in brackets") from None
    if parts.query or parts.fragment:
        raise ValueError(
            f"{shown}: options in an address are not read, pass them to connect(); "
            "signs such as # in a password are percent-encoded"
        )
    try:
        port = parts.port
    except ValueError:
        raise ValueError(
            f"{shown}: the port is not a number from 0 to 65535; "
            "signs such as / in a password are percent-encoded"
        ) from None
    return Endpoint(
        host=parts.hostname or "localhost",
        port=PORTS[scheme] if port is None else port,
        is_tls=scheme.startswith("amqps"),
        is_091=scheme.endswith("091"),
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
        vhost=unquote(parts.path[1:]),
    )


CreditMode: TypeAlias = Literal["auto", "manual"]
CreditOn: TypeAlias = Literal["settlement", "handover"]
ReceiverSettleMode: TypeAlias = Literal["first", "second"]
SenderSettleMode: TypeAlias = Literal["unsettled", "settled", "mixed"]
OnError: TypeAlias = Literal["release", "reject", "modify", "ignore", "raise"]
OnSuccess: TypeAlias = Literal["accept"] | None
Sasl: TypeAlias = Literal["PLAIN", "ANONYMOUS", "EXTERNAL", "none"]

CREDIT_MAX: Final = 0x7FFF_FFFF
"""Largest link-credit announced: half the number circle, so that serial arithmetic has room."""
UINT_MAX: Final = 0xFFFF_FFFF
FRAME_MIN: Final = 512
"""Bytes of the smallest frame size that may be asked for [amqp-1.0 §2.7.1]."""
FRAME_MIN_091: Final = 4096
"""Bytes of the smallest frame size over AMQP 0-9-1, where 0 means no limit [amqp-0.9.1
connection.tune]."""
ANSWER_S: Final = 30.0
"""Seconds that a peer may take to answer an open, begin, attach, detach, end or close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """See `connect`."""

    endpoints: tuple[Endpoint, ...]
    sasl: Sasl | None = None
    ssl: tls.SSLContext | None = None
    timeout_s: float = ANSWER_S
    container_id: str = ""
    hostname: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)
    idle_timeout_ms: int = 60_000
    max_frame_size: int = 131_072
    session_window: int = 5_000
    max_message_size: int = 0

    @property
    def handshake_timeout_ms(self) -> int:
        """Milliseconds for the handshake; many where `timeout_s` is without limit."""
        return max(1, int(min(self.timeout_s, UINT_MAX) * 1000))

    def __post_init__(self) -> None:
        check_choice("sasl", self.sasl, ("PLAIN", "ANONYMOUS", "EXTERNAL", "none", None))
        if self.ssl is not None:
            check_type("ssl", self.ssl, tls.SSLContext, "an ssl.SSLContext or None")
        check_number("timeout", self.timeout_s, 0.001)
        check_text("container_id", self.container_id)
        check_text("hostname", self.hostname, optional=True)
        check_fields("properties", self.properties)
        for endpoint in self.endpoints:
            _check_sent_by(endpoint, self.properties)
        check_int("idle_timeout_ms", self.idle_timeout_ms, 0, UINT_MAX)
        check_int("max_frame_size", self.max_frame_size, 0, UINT_MAX)
        if self.max_frame_size or not all(endpoint.is_091 for endpoint in self.endpoints):
            over_091 = any(endpoint.is_091 for endpoint in self.endpoints)
            least = FRAME_MIN_091 if over_091 else FRAME_MIN
            check_int("max_frame_size", self.max_frame_size, least, UINT_MAX)
        check_int("session_window", self.session_window, 1, CREDIT_MAX)
        check_int("max_message_size", self.max_message_size, 0, (1 << 63) - 1)


def _check_sent_by(endpoint: Endpoint, properties: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError for properties that the endpoint's protocol has no types
    for."""
    try:
        if endpoint.is_091:
            encode_table(dict(properties))
        else:
            encode_symbol_map(dict[object, object](properties.items()), 0)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"properties, expected what {endpoint} has types for: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """See `Session.receiver`."""

    address: str | None
    name: str
    credit: int = 1
    credit_mode: CreditMode = "auto"
    credit_on: CreditOn = "settlement"
    rcv_mode: ReceiverSettleMode | None = None
    snd_mode: SenderSettleMode | None = None
    browse: bool = False
    dynamic: bool = False
    durable: bool = False
    exclusive: bool = False
    filter: Mapping[str, object] | None = None
    capabilities: tuple[str, ...] = ()
    properties: Mapping[str, object] | None = None
    max_unsettled_age: int | Literal["lock"] | None = None
    release_overdue: bool = True
    stall_warning_ms: int = 60_000

    def __post_init__(self) -> None:
        _check_link(self.address, self.name, self.capabilities, self.properties)
        for name in ("browse", "dynamic", "durable", "exclusive", "release_overdue"):
            check_flag(name, getattr(self, name))
        check_fields("filter", self.filter)
        check_choice("credit_mode", self.credit_mode, ("auto", "manual"))
        check_choice("credit_on", self.credit_on, ("settlement", "handover"))
        check_choice("rcv_mode", self.rcv_mode, (None, "first", "second"))
        check_choice("snd_mode", self.snd_mode, (None, "unsettled", "settled", "mixed"))
        check_int("stall_warning_ms", self.stall_warning_ms, 0)
        check_type("credit", self.credit, int, "a whole number")
        if self.credit_mode == "auto" and not 1 <= self.credit <= CREDIT_MAX:
            raise ValueError(f"credit={self.credit}, expected a window of 1 to {CREDIT_MAX}")
        if self.credit_mode == "manual" and self.credit_on != "settlement":
            raise ValueError("credit_on belongs to credit_mode='auto': by hand, you decide")
        age = self.max_unsettled_age
        is_age = isinstance(age, int) and not isinstance(age, bool) and age >= 1
        if age is not None and age != "lock" and not is_age:
            raise ValueError(f"max_unsettled_age={age!r}, expected milliseconds above 0, or 'lock'")
        if self.dynamic and self.address is not None:
            raise ValueError(
                f"dynamic with address {self.address!r}: the peer makes the address, pass None"
            )
        if self.exclusive and self.browse:
            raise ValueError(
                "exclusive with browse: a browser takes no messages, so it cannot be exclusive"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    """See `Session.sender`."""

    address: str | None
    name: str
    settle_mode: SenderSettleMode | None = None
    rcv_mode: ReceiverSettleMode | None = None
    dynamic: bool = False
    durable: bool = False
    capabilities: tuple[str, ...] = ()
    properties: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        _check_link(self.address, self.name, self.capabilities, self.properties)
        for name in ("dynamic", "durable"):
            check_flag(name, getattr(self, name))
        check_choice("settle_mode", self.settle_mode, (None, "unsettled", "settled", "mixed"))
        check_choice("rcv_mode", self.rcv_mode, (None, "first", "second"))
        if self.dynamic and self.address is not None:
            raise ValueError(
                f"dynamic with address {self.address!r}: the peer makes the address, pass None"
            )


def _check_link(address: object, name: object, capabilities: object, properties: object) -> None:
    check_text("address", address, optional=True)
    check_text("name", name)
    check_texts("capabilities", capabilities)
    check_fields("properties", properties)
