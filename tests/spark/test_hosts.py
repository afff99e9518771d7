"""A list of hosts in one URL: the brokers of one journal, of which whichever leads is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from tallymark.client.arguments import parse
from tallymark.spark.broker_options import endpoints_of
from tallymark.spark.client import BrokerRefused, BrokerUnreachable, Client, Endpoint
from tests.support.http_server import HttpServer

STANDS_BY = {"error": "standby", "reason": "this broker stands by, b:7 leads"}


class One(HttpServer):
    """A broker that answers with its name while it leads."""

    def __init__(self, name: str, leads: bool) -> None:
        super().__init__()
        self.name = name
        self.leads = leads
        self.asked = 0

    def respond(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        self.asked += 1
        if not self.leads:
            return 503, {}, json.dumps(STANDS_BY).encode()
        return 200, {}, json.dumps({"name": self.name}).encode()


def of(*servers: One, retry_ms: int | None = None) -> Client:
    hosts = ",".join(one.address for one in servers)
    return Client(Endpoint.from_url(f"http://{hosts}", retry_ms=retry_ms))


def test_one_that_stands_by_is_passed_over_and_then_not_asked_again() -> None:
    with One("a", leads=False) as a, One("b", leads=True) as b:
        client = of(a, b)
        assert [client.call("GET", "/x")["name"] for _ in range(3)] == ["b", "b", "b"]
        assert (a.asked, b.asked) == (1, 3)
        client.close()


def test_another_takes_over_between_two_calls() -> None:
    with One("b", leads=False) as b:
        with One("a", leads=True) as a:
            client = of(a, b)
            assert client.call("GET", "/x")["name"] == "a"
        b.leads = True
        client.close()  # as its server's end does, which here lets connections be
        assert client.call("GET", "/x")["name"] == "b"
        client.close()


def test_each_is_asked_once_where_nothing_is_tried_again() -> None:
    with One("a", leads=False) as a, One("b", leads=False) as b:
        client = of(a, b, retry_ms=0)
        with pytest.raises(BrokerUnreachable, match="b:7 leads"):
            client.call("GET", "/x")
        assert (a.asked, b.asked) == (1, 1)


def test_hosts_of_an_url() -> None:
    found = Endpoint.from_url("https://me:secret@a:1,b,[::1]:3")
    assert found.hosts == (("a", 1), ("b", 15671), ("::1", 3))
    assert (found.user, found.password) == ("me", "secret")
    assert str(found) == "https://a:1,b:15671,[::1]:3"
    assert Endpoint.from_url(str(found)).hosts == found.hosts
    assert Endpoint.from_url("b").hosts == (("b", 15672),)


def test_user_and_password_are_decoded_as_in_urls_of_the_client_and_of_shovels() -> None:
    """With signs that an URL has for itself, and of another alphabet; a plus is a plus."""
    found = Endpoint.from_url("http://a%40b:pla%2Fnted%23%3A+%C3%A9@[::1]:3,b")
    assert (found.user, found.password) == ("a@b", "pla/nted#:+é")
    assert found.hosts == (("::1", 3), ("b", 15672))
    login = parse("amqp://a%40b:pla%2Fnted%23%3A+%C3%A9@host")
    assert (login.user, login.password) == (found.user, found.password)
    (one, other) = endpoints_of({"urls": "http://me:a%2Cb%7Cc@a|b,http://c"})
    assert (one.password, other.password) == ("a,b|c", "guest")
    assert Endpoint.from_url("http://me:100%@a").password == "100%"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a,a", "each host once"),
        ("http://a,,b", "got ''"),
        ("http://a,b:x", "http://a,b:x"),
        ("http://a/x,b", "no path"),
        ("http://a,b:0", "a port from 1 to 65535"),
    ],
)
def test_hosts_that_are_none(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Endpoint.from_url(url)


def test_several_brokers_each_with_one_that_stands_by() -> None:
    a, b = endpoints_of({"urls": "http://a1|a2, http://me@b1:9|b2:9"})
    assert a.hosts == (("a1", 15672), ("a2", 15672))
    assert (b.hosts, b.user) == ((("b1", 9), ("b2", 9)), "me")
    with pytest.raises(ValueError, match="each broker once"):
        endpoints_of({"urls": "http://a1|a2,http://a2"})


class Proxy(HttpServer):
    """What stands in front of a broker and answers in its place."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__()
        self.answer = status, headers, b"<html>a page</html>"

    def respond(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        return self.answer


@pytest.mark.parametrize("method", ["call", "get"])
def test_one_that_sends_elsewhere_is_no_broker(method: str) -> None:
    with Proxy(302, Location="https://b:15671/x") as proxy:
        client = Client(Endpoint.from_url(f"http://{proxy.address}", retry_ms=0))
        with pytest.raises(BrokerRefused, match=r"sent on to 'https://b:15671/x'.*HTTP 302"):
            client.call("GET", "/x") if method == "call" else client.get("/x", {})
        client.close()


def test_a_page_in_place_of_an_answer_is_told_as_such() -> None:
    with Proxy(200) as proxy:
        client = Client(Endpoint.from_url(f"http://{proxy.address}", retry_ms=0))
        with pytest.raises(BrokerRefused, match="/x: expected JSON, got '<html>a page</html>'"):
            client.call("GET", "/x")
        client.close()


class Closing(HttpServer):
    """A broker behind what closes its connection after each answer, which comes late."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.late_s = late_s
        self.asked = 0

    def respond(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        self.asked += 1
        time.sleep(self.late_s)
        return 200, {"Connection": "close"}, b"{}"


def test_a_new_connection_waits_for_a_long_poll_as_the_first_one() -> None:
    with Closing(late_s=0.5) as broker:
        client = Client(Endpoint.from_url(f"http://{broker.address}", timeout_ms=200))
        for _ in range(2):
            client.call("GET", "/x", wait_ms=10_000)
        assert broker.asked == 2
        client.close()
