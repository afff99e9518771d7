"""The overview and the list of queues, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.page.browser import Browser
from tests.server.management import FULL, connect, done
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("overview")) / "data") as running:
        done(running, "PUT", "vhosts/other", {})
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        done(running, "PUT", "queues/other/z-far", {"durable": True})
        for n in range(120):
            done(running, "PUT", f"queues/%2F/q{n:03d}", {"durable": True})
        yield running


@pytest.fixture
def browser(broker: BrokerProcess) -> Browser:
    found = Browser(broker)
    found.login()
    return found


def names(text: str) -> list[str]:
    """Names of the queues in a list, in its order."""
    return [part.split('"')[0] for part in text.split('href="/ui/queues/%2F/')[1:]]


def test_the_list_is_sorted_and_cut_into_pages_by_the_server(browser: Browser) -> None:
    first = browser.get("/ui/queues?sort=name").text
    assert names(first) == [f"q{n:03d}" for n in range(50)]
    assert 'aria-sort="ascending"' in first
    last = browser.get("/ui/queues?sort=name&page=3").text
    assert names(last)[-1] == "q119"
    assert names(browser.get("/ui/queues?sort=-name&page=2").text)[-1] == "q021"
    for page in ("99", "0", "x", "-1", "1" * 50):
        assert browser.get(f"/ui/queues?sort=name&page={page}").status == 200


def test_a_search_finds_parts_of_names_whatever_the_case(browser: Browser) -> None:
    text = browser.get("/ui/queues?sort=name&q=Q11").text
    assert names(text) == [f"q{n:03d}" for n in range(110, 120)]
    assert "10 of 121" in text
    assert "Nothing found" in browser.get("/ui/queues?q=" + quote("<script>")).text
    assert "<script>" not in browser.get("/ui/queues?q=" + quote("<script>")).text


def test_names_are_text(broker: BrokerProcess, browser: Browser) -> None:
    name = "<img src=x onerror=alert(1)>\"'/%2F"
    done(broker, "PUT", f"queues/%2F/{quote(name, safe='')}", {})
    text = browser.get("/ui/queues?q=" + quote("<img")).text
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text
    done(broker, "DELETE", f"queues/%2F/{quote(name, safe='')}")


def test_the_account_is_one_line(broker: BrokerProcess, browser: Browser) -> None:
    assert "Balanced:" in browser.get("/").text


def test_charts_show_what_the_user_may_see(broker: BrokerProcess, browser: Browser) -> None:
    def chart(who: Browser, name: str) -> dict[str, list[object]]:
        answer = who.get(f"/?data={name}&span=minutes")
        assert answer.headers["content-type"].startswith("application/json")
        found: dict[str, list[object]] = json.loads(answer.body)
        return found

    ann = Browser(broker)
    ann.login("ann", "ann")
    assert chart(browser, "moving")["names"] == ["entered queues", "settled", "confirmed"]
    assert chart(ann, "moving")["names"] == ["entered queues", "settled"]
    assert chart(browser, "memory")["names"] == ["bodies in memory"]
    assert chart(ann, "memory")["names"] == chart(ann, "disk")["names"] == []
    assert "Memory of bodies" in browser.get("/").text
    assert "Memory of bodies" not in ann.get("/").text


def test_a_queue_whose_consumers_are_at_their_limit_says_so(
    broker: BrokerProcess, browser: Browser
) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("q007", lambda *_: None)
        for _ in range(3):
            channel.basic_publish("", "q007", b"x")
        with browser.live("/ui/queues?q=q007") as live:
            live.until("at its prefetch limit, with 2 unsettled")
    with browser.live("/ui/queues?q=q007") as live:
        live.until("No consumer takes its messages.")
    assert names(browser.get("/ui/queues?state=no+consumer").text) == ["q007"]
    done(broker, "DELETE", "queues/%2F/q007/contents")


def test_confirms_are_counted(broker: BrokerProcess, browser: Browser) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "q008", b"x")

    def rates() -> list[float | None]:
        found = json.loads(browser.get("/?data=moving&span=minutes").body)
        confirmed: list[float | None] = found["values"][2]
        return confirmed

    # Samples are five seconds apart; whatever slots they fall into, three were confirmed.
    with browser.live("/") as live:  # an update for each slot: it has the time
        while round(sum(rate or 0 for rate in rates()) * 5) != 3:
            assert live.next()[0] == "live"
