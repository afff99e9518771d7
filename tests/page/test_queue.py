"""The page of one queue: its equation, settings, a look at messages, and what is done to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.page.browser import Answer, Browser
from tests.server.management import call, connect, done, get
from tests.support.patience import until
from tests.support.process import BrokerProcess

STARTED_S = 1_700_000_000
"""A time before any broker of these tests began, seconds since 1970."""
READER = {"configure": "", "write": "", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("queue")) / "data") as running:
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "permissions/%2F/ann", READER)
        done(running, "PUT", "users/mon", {"password": "mon", "tags": "monitoring"})
        yield running


@pytest.fixture
def browser(broker: BrokerProcess) -> Browser:
    found = Browser(broker)
    found.login()
    return found


def fill(broker: BrokerProcess, queue: str, count: int, **arguments: Any) -> str:
    """Make a queue with messages; return the address of its page."""
    done(broker, "PUT", f"queues/%2F/{queue}", {"durable": True, "arguments": arguments})
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for n in range(count):
            properties = pika.BasicProperties(
                message_id=f"id-{n}", headers={"odd": "<b>"}, delivery_mode=2
            )
            channel.basic_publish("", queue, b"body <i>%d" % n, properties)
    return f"/ui/queues/%2F/{queue}"


def equation(answer: Answer) -> dict[str, int]:
    """Return the terms of a page's equation."""
    found = re.findall(r"<b>([^<]*)</b><small>([^<]*)</small>", answer.text)
    return {word: int(count.replace("\u202f", "")) for count, word in found}


def ready(broker: BrokerProcess, queue: str) -> int:
    found: int = get(broker, f"queues/%2F/{queue}")["messages_ready"]
    return found


def test_the_account_is_an_equation(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "sum", 5)
    terms = equation(browser.get(page))
    assert terms.pop("entered") == sum(terms.values()) == terms["ready"] == 5


def test_settings_say_where_they_come_from(broker: BrokerProcess, browser: Browser) -> None:
    policy = {"pattern": "^set$", "definition": {"max-length": 50, "expires": 900_000}}
    done(broker, "PUT", "policies/%2F/short", policy)
    page = fill(broker, "set", 0, **{"x-max-length": 70, "x-message-ttl": 60_000})
    text = " ".join(re.sub(r"<[^>]+>", " ", browser.get(page).text).split())
    assert "max-length 50 policy short declaration: 70" in text
    assert "message-ttl 60000 declaration" in text
    assert "expires 900000 policy short" in text


def test_a_look_takes_nothing(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "look", 25)
    first = browser.get(f"{page}?look=0")
    assert "body &lt;i&gt;0" in first.text
    assert "body &lt;i&gt;19" in first.text
    assert "body &lt;i&gt;20" not in first.text
    assert "<i>" not in first.text
    assert "body &lt;i&gt;24" in browser.get(f"{page}?look=20").text
    assert "None is ready beyond that" in browser.get(f"{page}?look=99").text
    assert ready(broker, "look") == 25
    assert not get(broker, "queues/%2F/look").get("message_stats", {}).get("ack")


def test_a_look_at_a_message_whose_headers_cannot_be_read(
    broker: BrokerProcess, browser: Browser
) -> None:
    page = fill(broker, "deep", 1)
    headers: dict[str, Any] = {}
    for _ in range(70):  # not read at publish
        headers = {"a": headers}
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "deep", b"below", pika.BasicProperties(headers=headers))
    found = browser.get(f"{page}?look=0")
    assert found.status == 200
    assert "cannot be read: tables nested deeper than 64" in found.text
    assert "below" in found.text


def test_who_may_not_read_sees_no_message(broker: BrokerProcess) -> None:
    page = fill(broker, "kept", 1)
    watcher = Browser(broker)
    watcher.login("mon", "mon")
    assert equation(watcher.get(page))["ready"] == 1
    refused = watcher.get(f"{page}?look=0")
    assert refused.status == 403
    assert "&lt;i&gt;" not in refused.text


def test_a_purge_asks_first_and_drops_once(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "purged", 4)
    asked = browser.get(f"{page}?ask=purge")
    assert "Drop all 4 messages" in asked.text
    assert ready(broker, "purged") == 4
    answer = browser.act(page, "purge")
    assert answer.status == 303
    assert "4 messages of purged dropped." in browser.get(answer.to).text
    assert "4 messages of purged dropped." not in browser.get(answer.to).text
    assert ready(broker, "purged") == 0


def test_a_question_counts_all_that_would_be_gone(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "purged-whole", 2)
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        later = pika.BasicProperties(headers={"x-delay": 3_600_000}, delivery_mode=2)
        channel.basic_publish("", "purged-whole", b"later", later)
    asked = browser.get(f"{page}?ask=purge").text
    assert "Drop all 3 messages that nobody holds?" in asked
    assert "2 are ready; 1 are deferred" in asked
    assert "3 messages are gone for good" in browser.get(f"{page}?ask=delete").text
    answer = browser.act(page, "purge")
    assert "3 messages of purged-whole dropped." in browser.get(answer.to).text


def test_what_is_done_asks_for_the_permissions_of_amqp(broker: BrokerProcess) -> None:
    page = fill(broker, "guarded", 2)
    done(broker, "PUT", "queues/%2F/guarded-target", {})
    ann = Browser(broker)
    ann.login("ann", "ann")  # may read, and nothing else
    for action in ("delete", "pause", "resume"):
        assert ann.act(page, action).status == 403, action
    tried = ann.act(page, "move", to="guarded-target", count="2")
    assert "0 messages moved" in ann.get(tried.to).text
    assert ready(broker, "guarded") == 2
    token = ann.get(page).form_token()
    assert ann.send("POST", page, {"form_token": token, "action": "none"}).status == 400
    assert ann.send("POST", page, {"form_token": "x", "action": "purge"}).status == 403
    assert ready(broker, "guarded") == 2
    assert ann.act(page, "purge").status == 303
    assert ready(broker, "guarded") == 0


def test_a_queue_is_paused_and_goes_on(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "paused", 1)
    browser.act(page, "pause")
    got: list[bytes] = []
    with connect(broker) as connection:
        channel = connection.channel()
        channel.basic_consume("paused", lambda *found: got.append(found[3]), auto_ack=True)
        with browser.live(page) as live:
            live.until("Paused by an operator")
        assert not got
        browser.act(page, "resume")
        until(lambda: connection.process_data_events(0.1) or got)
    assert got == [b"body <i>0"]


def test_a_paused_queue_goes_on_for_who_asks_for_a_message(
    broker: BrokerProcess, browser: Browser
) -> None:
    page = fill(broker, "paused-get", 1)
    asked = browser.get(f"{page}?ask=pause").text
    assert "basic.get and durable subscriptions (Spark) go on" in asked
    browser.act(page, "pause")
    with connect(broker) as connection:
        _, _, body = connection.channel().basic_get("paused-get", auto_ack=True)
        assert body == b"body <i>0"


def test_messages_move_whole_after_a_trial(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "from", 5)
    done(broker, "PUT", "queues/%2F/to", {"durable": True})
    tried = browser.act(page, "try", to="to", count="3")
    assert "3 messages would move to to." in tried.text
    assert (ready(broker, "from"), ready(broker, "to")) == (5, 0)
    answer = browser.act(page, "move", to="to", count="3")
    assert "3 messages moved to to." in browser.get(answer.to).text
    assert (ready(broker, "from"), ready(broker, "to")) == (2, 3)
    for to, count in (("none", "1"), ("from", "1"), ("to", "0"), ("to", "x"), ("", "1")):
        assert browser.act(page, "move", to=to, count=count).status in (400, 404)
    assert (ready(broker, "from"), ready(broker, "to")) == (2, 3)


def test_a_queue_that_is_deleted_is_gone_from_its_live_page(
    broker: BrokerProcess, browser: Browser
) -> None:
    page = fill(broker, "ended", 1)
    with browser.live(page) as live:
        assert live.next()[0] == "live"
        answer = browser.act(page, "delete")
        assert answer.to.startswith("/ui/queues?said=")
        assert "Queue ended deleted." in browser.get(answer.to).text
        while (event := live.next())[0] == "live":
            pass
        assert event == ("end", "gone")
    assert browser.get(page).status == 404
    assert call(broker, "GET", "queues/%2F/ended")[0] == 404


def test_an_unknown_queue_is_said_to_be_none(browser: Browser) -> None:
    answer = browser.get("/ui/queues/%2F/none<x>")
    assert answer.status == 404
    assert "no queue" in unescape(answer.text)
    assert "none<x>" not in answer.text


def test_the_chart_of_a_queue(broker: BrokerProcess, browser: Browser) -> None:
    page = fill(broker, "drawn", 3)

    def drawn() -> bool:
        found = json.loads(browser.get(f"{page}?data=chart").body)
        assert found["names"] == ["ready", "in flight"]
        assert all(len(one) == len(found["times"]) for one in found["values"])
        assert found["times"][-1] > STARTED_S, "also before the first sample"
        return bool(found["values"][0][-1] == 3)

    with browser.live(page) as live:  # an update for each slot: it has the time
        while not drawn():
            assert live.next()[0] == "live"
