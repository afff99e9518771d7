"""The pages of a broker in trouble: what an operator finds there, over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.page.browser import Browser
from tests.page.scene import BEHIND, POISON, Scene
from tests.server.management import FULL, done
from tests.support.patience import until
from tests.support.process import BrokerProcess

PAGES = (
    "/ui/messages", "/ui/dead-letters", "/ui/dead-letters/%2F/parked", "/ui/consumers",
    "/ui/connections", "/ui/streams", "/ui/exchanges", "/ui/exchanges/%2F/orders",
    "/ui/exchanges/%2F/amq.default", "/ui/policies", "/ui/users", "/ui/features", "/ui/nsq",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("pages")) / "data"
    with BrokerProcess(folder) as running, Scene(running):
        done(running, "PUT", "vhosts/other", {})
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "permissions/other/ann", FULL)
        yield running


@pytest.fixture
def browser(broker: BrokerProcess) -> Browser:
    found = Browser(broker)
    assert found.login().status == 303
    return found


def words(browser: Browser, path: str) -> str:
    """The text of a page, without its tags."""
    answer = browser.get(path)
    assert answer.status == 200, (path, answer.text)
    main = answer.text.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_shown_to_an_administrator_and_says_nothing_to_a_stranger(
    broker: BrokerProcess, browser: Browser, path: str
) -> None:
    assert words(browser, path)
    stranger = Browser(broker)
    stranger.login("ann", "ann")
    text = stranger.get(path).text
    for name in ("work", "parked", "ticker", "orders", "guest"):
        assert not re.search(rf">{name}\b", text), (path, name)


def test_a_message_is_found_by_its_correlation_id(browser: Browser) -> None:
    text = words(browser, "/ui/messages?q=c-4711")
    assert "1 message found" in text
    for part in (
        "dead-lettered in work",
        "order-11",
        "Header tenant t-1",
        "from work",
        "ready in parked",
        "eu.paid",
    ):
        assert part in text
    assert "No message found" in words(browser, "/ui/messages?q=c-9999")
    for query, problem in (
        ({"q": "c"}, "'c': expected at least 3 letters"),
        ({"q": "x", "in": "number"}, "'x': expected a whole number"),
        ({"q": "c-4711", "since": "x"}, "From: 'x', expected as 2026-11-22T20:30"),
    ):
        assert problem in words(browser, f"/ui/messages?{urlencode(query)}")


def test_a_search_is_not_made_again_and_again(browser: Browser) -> None:
    with browser.live("/ui/messages?q=c-4711") as live:
        assert live.status == 400
    assert "data-live" not in browser.get("/ui/messages?q=c-4711").text
    assert "data-live" in browser.get("/ui/dead-letters").text


def test_the_graph_of_dead_letters_says_what_died_where_and_marks_cycles(browser: Browser) -> None:
    text = words(browser, "/ui/dead-letters")
    assert f"{POISON} died" in text
    assert "1 cycle attempts → retry → attempts." in text
    assert "nowhere" in text


def test_letters_are_moved_as_they_were_chosen(browser: Browser) -> None:
    """Those of another reason, or another queue, stay."""
    page = "/ui/dead-letters/%2F/retry"
    text = words(browser, f"{page}?reason=expired")
    assert "No dead letter like that" in text
    text = words(browser, f"{page}?source=attempts&reason=rejected")
    assert "Move 3 messages back" in text
    assert "3 of 3 would go back" in text
    kept = browser.act(page, "redrive", source="nowhere", reason="", day="", upto="9")
    assert "0 messages of retry moved back." in words(browser, kept.to)
    moved = browser.act(page, "redrive", source="attempts", reason="rejected", day="", upto="2")
    assert moved.to.startswith("/ui/dead-letters?said=")
    assert "2 messages of retry moved back." in words(browser, moved.to)
    assert "Move 1 message back to where it was" in words(browser, page)


def test_a_slow_consumer_is_told_of_before_its_policy_acts(browser: Browser) -> None:
    said = (
        f"dashboard of ticker is near its limit {BEHIND} of 100 messages.",
        "it is disconnected and its queue deleted.",
        "near its limit, 88% of a limit",
    )

    def told() -> bool:
        text = words(browser, "/ui/consumers")
        return all(part in text for part in said)

    until(told, what="a look at all of its messages")


def test_a_connection_is_shown_with_its_channels(browser: Browser) -> None:
    found = re.findall(r'href="(/ui/connections/[^"]+)"', browser.get("/ui/consumers").text)
    text = words(browser, unescape(found[0]))
    assert "Protocol" in text
    assert "Channels" in text
    gone = browser.get("/ui/connections/nobody")
    assert gone.status == 404


def test_a_stream_is_shown_with_the_lag_of_its_readers(browser: Browser) -> None:
    text = words(browser, "/ui/streams")
    assert "events / 20 " in text
    assert "history" in text


def test_of_two_tables_each_is_searched_by_itself(browser: Browser) -> None:
    assert 'name="sq"' in browser.get("/ui/streams").text
    text = words(browser, "/ui/streams?sq=none")
    assert "Nothing found." in text
    assert "history" in text
