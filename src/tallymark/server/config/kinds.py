"""Kinds of setting: how a value from a file, the environment or a flag becomes a typed one.

A kind accepts the text of a flag or variable as well as the value TOML already typed, and says in
words what it expects, so that a refusal can name both the value and the expectation.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from tallymark.engine.patterns import problem_of
from tallymark.journal.postgresql.url import shown

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
DAY_MS: Final = 86_400_000
LOCALHOST: Final = "localhost"
"""Listening address that stands for the loopback of each address family that the machine has [RFC
6761]."""

LOCAL: Final = "local"
"""Journal in the data folder, and nowhere else."""

T = TypeVar("T")

_SIZES: Final = {
    "": 1, "B": 1,
    "K": 1024, "KB": 1000, "KIB": 1024,
    "M": 1024**2, "MB": 1000**2, "MIB": 1024**2,
    "G": 1024**3, "GB": 1000**3, "GIB": 1024**3,
    "T": 1024**4, "TB": 1000**4, "TIB": 1024**4,
}  # fmt: skip
_TIMES: Final = {
    "": 1,
    "MS": 1,
    "S": 1000,
    "M": 60_000,
    "MIN": 60_000,
    "H": 3_600_000,
    "D": 86_400_000,
}
_POSTGRESQL: Final = re.compile(r"postgres(ql)?://")
_A_JOURNAL: Final = "local, or a URL postgresql://..."
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

TLS_VERSIONS: Final = {
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
"""Words of the configuration. Older ones are spoken by nobody who can do otherwise [RFC 8996]."""


class Wrong(ValueError):
    """A value of several parts is refused; the text says which of them, and why."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """parse raises ValueError, for whatever is not `expects`; Wrong where more is to be said."""

    expects: str
    parse: Callable[[object], T]
    show: Callable[[T], str] = str
    many: bool = False
    """Several values, with commas between; as a flag it may also be given several times."""


def integer(low: int, high: int, unit: str = "") -> Kind[int]:
    """A whole number from low to high, both allowed."""

    def parse(value: object) -> int:
        if isinstance(value, str):
            value = int(value.replace("_", ""))
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"a whole number{' of ' + unit if unit else ''} from {low} to {high}", parse)


def words(*valid: str) -> Kind[tuple[str, ...]]:
    """Some of these, each once at most."""

    def parse(value: object) -> tuple[str, ...]:
        found = _names(value)
        if len(set(found)) < len(found) or not set(found) <= set(valid):
            raise ValueError
        return found

    return Kind(f"some of {', '.join(valid)}, separated by commas", parse, ",".join, many=True)


def _quantity(value: object, units: dict[str, int], low: int, high: int) -> int:
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value)
        if found is None or found[2].upper() not in units:
            raise ValueError
        count = float(found[1]) * units[found[2].upper()]
        if count > high:
            raise ValueError
        value = int(count)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError
    return value


def size(low: int, high: int = 1 << 50) -> Kind[int]:
    """Bytes: a plain number, or one with KiB, MiB, GiB, TiB (or kB, MB, GB, TB of 1000)."""
    return Kind(
        f"a size such as 512MiB, from {show_size(low)} to {show_size(high)}",
        lambda value: _quantity(value, _SIZES, low, high),
        show_size,
    )


def duration(low: int, high: int) -> Kind[int]:
    """Milliseconds: a plain number, or one with ms, s, m, h, d."""
    return Kind(
        f"a time such as 500ms, 10s, 2h or 7d, from {show_ms(low)} to {show_ms(high)}",
        lambda value: _quantity(value, _TIMES, low, high),
        show_ms,
    )


def show_size(count: int) -> str:
    """Bytes in the largest unit that divides them."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _SIZES[unit.upper()] == 0:
            return f"{count // _SIZES[unit.upper()]}{unit}"
    return str(count)


def show_ms(ms: int) -> str:
    """Milliseconds in the largest unit that divides them."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _TIMES[unit.upper()] == 0:
            return f"{ms // _TIMES[unit.upper()]}{unit}"
    return f"{ms}ms"


def choice(*words: str) -> Kind[str]:
    """One of a few words; the empty one, if it is among them, is none of the others."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    expects = "one of " + ", ".join(word for word in words if word)
    return Kind(expects + (", or empty for none" if "" in words else ""), parse)


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise Wrong(f"is {str(value)!r}, expected a path: ~ is of a user who has no home") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _journal(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    if value != LOCAL and not _POSTGRESQL.match(value):
        raise Wrong(f"is {shown(value)!r}, expected {_A_JOURNAL}")
    return value


def _pattern(value: object) -> str:
    text = _text(value)
    problem = problem_of(text)
    if problem:
        raise Wrong(f"is {text!r}, expected a regular expression: {problem}")
    return text


def _flag(value: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise ValueError
    return value


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    if not all(isinstance(part, str) and part for part in value):
        raise ValueError
    return tuple(value)


def _addresses(value: object) -> tuple[str, ...]:
    if value in ("", [], ()):
        return ()
    found = _names(value)
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise Wrong(f"has {address!r}, expected HOST:PORT")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise Wrong(f"has {address!r}, expected [HOST]:PORT around an IPv6 address")
    return found


def _quantiles(value: object) -> tuple[float, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        value = [value]
    found = []
    for part in value:
        if isinstance(part, bool) or not isinstance(part, int | float | str):
            raise ValueError
        quantile = float(part)
        if not 0 < quantile <= 1:
            raise ValueError
        found.append(quantile)
    return tuple(found)


def pairs(keys: tuple[str, ...], words: tuple[str, ...]) -> Kind[dict[str, str]]:
    """A table key -> word; as text `key=word,key=word`."""

    def parse(value: object) -> dict[str, str]:
        if isinstance(value, str):
            value = dict(part.strip().split("=", 1) for part in value.split(",") if part.strip())
        if not isinstance(value, dict):
            raise ValueError
        if not all(key in keys and word in words for key, word in value.items()):
            raise ValueError
        return value

    return Kind(
        f"key=level pairs; keys: {', '.join(keys)}; levels: {', '.join(words)}",
        parse,
        lambda value: ",".join(f"{key}={word}" for key, word in value.items()),
    )


PATH: Final = Kind("a path", _path)
OPTIONAL_PATH: Final[Kind[Path | None]] = Kind(
    "a path, or empty for none",
    lambda value: None if value == "" else _path(value),
    lambda value: "" if value is None else str(value),
)
JOURNAL: Final[Kind[str]] = Kind(_A_JOURNAL, _journal, shown)
"""Place of the journal; shown without its passwords."""
TEXT: Final[Kind[str]] = Kind("a text", _text)
PATTERN: Final[Kind[str]] = Kind("a regular expression, or empty for none", _pattern)
FLAG: Final = Kind("true or false", _flag, lambda value: str(value).lower())
NAMES: Final = Kind("a name, or several separated by commas", _names, ",".join, many=True)
ADDRESSES: Final = Kind(
    "HOST:PORT, or several separated by commas, or empty for none",
    _addresses,
    ",".join,
    many=True,
)
NO_OR_NAMES: Final = Kind(
    "a name, or several separated by commas, or empty for none",
    lambda value: () if value in ("", [], ()) else _names(value),
    ",".join,
    many=True,
)
LINKS: Final = Kind(
    "HOST:PORT or a URL, or several separated by commas, or empty for none",
    lambda value: () if value in ("", [], ()) else _names(value),
    ",".join,
    many=True,
)
QUANTILES: Final = Kind(
    "numbers above 0 and up to 1 separated by commas, or empty for none",
    _quantiles,
    lambda value: ",".join(f"{quantile:g}" for quantile in value),
    many=True,
)


@lru_cache(maxsize=256)  # each request over HTTP asks it, of few clients' addresses
def is_loopback(host: str) -> bool:
    """Return whether a listening address can be reached from this machine only."""
    if host == LOCALHOST:
        return True
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def setting(default: T, kind: Kind[T], help: str, live: bool = False) -> T:
    """Declare a setting, a field of a dataclass: settings.py says what follows from it. live: a
    running broker takes a new value [reload.py]."""
    about = {"kind": kind, "help": help, "live": live}
    declared: Any = (
        field(default_factory=lambda: dict(default), metadata=about)
        if isinstance(default, dict)
        else field(default=default, metadata=about)
    )
    return declared  # type: ignore[no-any-return]  # a dataclass field stands for its value
