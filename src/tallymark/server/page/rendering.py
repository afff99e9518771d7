"""Templates: where they are, and how numbers, sizes and times are written in them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tallymark.server.page.view import ROOT, at

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
TYPES: Final = {
    ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain",
}  # fmt: skip
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400


class Assets:
    """The static files, in memory."""

    def __init__(self) -> None:
        self._files = {
            file.name: file.read_bytes() for file in sorted(STATIC.iterdir()) if file.is_file()
        }

    def found(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes and content type of a file."""
        content = self._files.get(name)
        return None if content is None else (content, TYPES[Path(name).suffix])

    def address(self, name: str) -> str:
        """Return a file's address, which is another one when the file has changed. Raises KeyError:
        there is no such file."""
        digest = hashlib.blake2b(self._files[name], digest_size=6).hexdigest()
        return f"{ROOT}static/{name}?v={digest}"


def environment(assets: Assets) -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters |= {
        "number": number, "rate": rate, "size": size, "lasting": lasting, "time": time_text,
        "iso": iso, "plural": plural,
        "milliseconds": milliseconds,
    }  # fmt: skip
    made.globals |= {"at": at, "asset": assets.address}
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def number(value: float | None) -> str:
    """Return a count with its thousands apart: 1 234 567, by narrow spaces that do not break."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Return a number per second, with as many digits as matter."""
    if value is None:
        return "–"
    return number(value) if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    """Return a number of bytes with three digits and its unit."""
    if value is None:
        return "–"
    unit = 0
    while abs(value) >= 1000 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    digits = 0 if unit == 0 or abs(value) >= 100 else 1
    return f"{value:.{digits}f}\u202f{UNITS[unit]}"


def lasting(value_ms: float | None) -> str:
    """Return a length of time in its two largest units: 3 min 20 s."""
    if value_ms is None:
        return "–"
    if value_ms < 1000:
        return f"{value_ms:.0f}\u202fms"
    seconds = int(value_ms // 1000)
    if seconds < MINUTE_S:
        return f"{seconds}\u202fs"
    for whole, part, names in (
        (MINUTE_S, 1, ("min", "s")), (HOUR_S, MINUTE_S, ("h", "min")), (DAY_S, HOUR_S, ("d", "h")),
    ):  # fmt: skip
        if seconds < whole * (60 if whole < HOUR_S else 24) or whole == DAY_S:
            rest = seconds % whole // part
            text = f"{seconds // whole}\u202f{names[0]}"
            return f"{text} {rest}\u202f{names[1]}" if rest else text
    raise AssertionError(value_ms)


def milliseconds(value_ms: float | None) -> str:
    """Return a short time with three digits."""
    return "–" if value_ms is None else f"{value_ms:.3g}\u202fms"


def iso(value_ms: float) -> str:
    """Return a wall time in milliseconds as machines read it."""
    return datetime.fromtimestamp(value_ms / 1000, UTC).isoformat(timespec="milliseconds")


def time_text(value_ms: float | None) -> str:
    """Return a wall time in milliseconds for people; in UTC, as the page's foot says."""
    if value_ms is None:
        return "–"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: 1 queue, 2 queues."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
