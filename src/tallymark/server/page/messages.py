"""Search for messages in what the journal still has, and the journeys that it finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tallymark.journeys.messages import BODY, PROPERTIES
from tallymark.journeys.search import END_OF_TIME_MS, Sought
from tallymark.server.http.journeys import LEAST_TEXT, OLDER, Journeys
from tallymark.server.http.requests import Refused
from tallymark.server.page.view import Context, Page, View

KINDS: Final = {
    "text": "Message id, correlation id, or value of a header",
    "body": "A part of the body",
    "number": "The broker's number of it",
}
TONES: Final = {
    "entered": "good", "settled": "good", "dead_lettered": "bad", "dropped": "bad",
    "returned": "warn", "deferred": "warn", "pending": "warn",
}  # fmt: skip
"""Colours of events; others have none."""
MOST_TEXT: Final = 500
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Asked:
    """The form as it was sent."""

    text: str
    kind: str
    since: str
    until: str


async def show(view: View) -> Context:
    kind = view.asked("in", "text")
    asked = Asked(
        view.asked("q")[:MOST_TEXT].strip(), kind if kind in KINDS else "text",
        view.asked("since"), view.asked("until"),
    )  # fmt: skip
    found: dict[str, Any] | None = None
    problem = ""
    if asked.text:
        try:
            found = await Journeys(view.http).find(view.request, _sought(asked))
        except Refused as refused:
            problem = str(refused)
    return {
        "asked": asked, "kinds": KINDS, "tones": TONES, "found": found, "problem": problem,
        "older": OLDER,
    }  # fmt: skip


def _sought(asked: Asked) -> Sought:
    """Return what the form asks for. Raises Refused 400."""
    since_ms = _time("From", asked.since, 0)
    until_ms = _time("until", asked.until, END_OF_TIME_MS - MINUTE_MS) + MINUTE_MS - 1
    if asked.kind == "number":
        if not (asked.text.isascii() and asked.text.isdigit() and len(asked.text) < 19):
            raise Refused(400, "bad_request", f"{asked.text!r}: expected a whole number")
        return Sought(number=int(asked.text), since_ms=since_ms, until_ms=until_ms)
    if len(asked.text.encode("utf-8", "surrogateescape")) < LEAST_TEXT:
        raise Refused(400, "bad_request", f"{asked.text!r}: expected at least {LEAST_TEXT} letters")
    places = (BODY,) if asked.kind == "body" else PROPERTIES
    return Sought(asked.text, places, since_ms=since_ms, until_ms=until_ms)


def _time(name: str, text: str, default: int) -> int:
    """Return a minute in UTC, as a browser's field has it, in ms since 1970. Raises Refused 400."""
    if not text:
        return default
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(
            400, "bad_request", f"{name}: {text!r}, expected as 2026-11-22T20:30"
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


PAGE: Final = Page(
    "/ui/messages", "Where is my message?", "messages.html", show, nav="Messages", is_live=False
)
