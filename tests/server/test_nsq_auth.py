"""AUTH over HTTP: what is asked, what an answer means, and how none of it can go wrong silently."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tallymark.bridge.nsq.auth import AuthAnswerError, decode_answer
from tallymark.server import logs
from tallymark.server.nsq.auth import ANSWER_MAX, Authorities, AuthUnavailable
from tests.support.ports import reserved

GOOD: dict[str, Any] = {
    "ttl": 60,
    "identity": "shop",
    "identity_url": "http://shop.example",
    "authorizations": [
        {"topic": "^orders$", "channels": [".*"], "permissions": ["subscribe", "publish"]},
        {"topic": "^log\\.", "channels": ["^archive$"], "permissions": ["subscribe"]},
    ],
}


def decoded(**changes: Any) -> Any:
    return decode_answer(json.dumps({**GOOD, **changes}).encode(), 1000)


# -- what an answer means


@pytest.mark.parametrize(
    ("topic", "channel", "allowed"),
    [
        ("orders", "", True),
        ("orders", "billing", True),
        ("orders2", "", False),
        ("log.web", "archive", True),
        ("log.web", "archive2", False),
        ("log.web", "", False),  # subscribe is not publish
        ("other", "archive", False),
    ],
)
def test_patterns_and_permissions_decide(topic: str, channel: str, allowed: bool) -> None:
    state = decoded()
    assert state.allows(topic, channel) is allowed
    assert state.allows(topic, channel) is allowed  # and again, out of what is known
    assert (state.identity, state.identity_url) == ("shop", "http://shop.example")
    assert state.permission_count == 2


def test_a_pattern_without_anchors_matches_anywhere_as_in_nsqd() -> None:
    state = decoded(authorizations=[{"topic": "der", "channels": [""], "permissions": ["publish"]}])
    assert state.allows("orders", "")
    assert not state.allows("orders", "c")


def test_a_publish_needs_a_channel_pattern_that_matches_the_empty_text() -> None:
    state = decoded(
        authorizations=[{"topic": ".*", "channels": ["^c$"], "permissions": ["publish"]}]
    )
    assert not state.allows("orders", "")


def test_an_answer_holds_for_its_ttl() -> None:
    state = decoded(ttl=2)
    assert not state.is_expired(2999)
    assert state.is_expired(3000)


def test_more_names_than_are_remembered_change_nothing() -> None:
    state = decoded(
        authorizations=[{"topic": "[02468]$", "channels": [".*"], "permissions": ["publish"]}]
    )
    for _ in range(2):
        for number in range(3000):
            assert state.allows(f"t{number}", "") is (number % 2 == 0)


def test_what_is_left_out_is_empty() -> None:
    state = decode_answer(b'{"ttl": 1}', 0)
    assert (state.identity, state.identity_url, state.authorizations) == ("", "", [])
    assert not state.allows("t", "")
    state = decode_answer(b'{"ttl": 1, "authorizations": [{}], "identity": null}', 0)
    assert not state.allows("t", "")
    assert not state.allows("t", "c")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected an object"),
        (b"{}", r"invalid TTL 0 \(must be >0\)"),
        (b'{"ttl": -1}', "invalid TTL -1"),
        (b'{"ttl": 1.5}', "expected whole seconds"),
        (b'{"ttl": true}', "expected whole seconds"),
        (b'{"ttl": 1, "identity": 5}', "identity is 5, expected a text"),
        (b'{"ttl": 1, "authorizations": {}}', "authorizations is {}, expected a list"),
        (b'{"ttl": 1, "authorizations": [1]}', "expected an object"),
        (b'{"ttl": 1, "authorizations": [{"topic": "("}]}', r"unable to compile topic '\('"),
        (b'{"ttl": 1, "authorizations": [{"channels": ["*"]}]}', "unable to compile channel"),
        (b'{"ttl": 1, "authorizations": [{"channels": "c"}]}', "expected a list"),
        (b'{"ttl": 1, "authorizations": [{"channels": [1]}]}', "expected texts"),
        (b'{"ttl": 1, "authorizations": [{"permissions": ["all"]}]}', "unknown permission all"),
    ],
)
def test_anything_else_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(AuthAnswerError, match=told):
        decode_answer(body, 0)


# -- asking

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AuthServer:
    """An auth server in the test's loop."""

    def __init__(self, answer: Any = GOOD, status: int = 200, handler: Handler | None = None):
        self.requests: list[web.Request] = []
        self.answer = answer
        self.status = status
        self._handler = handler
        self.address = ""

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self._handler is not None:
            return await self._handler(request)
        return web.json_response(self.answer, status=self.status)

    async def __aenter__(self) -> AuthServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()


def first(count: int) -> int:
    return 0


async def ask(*addresses: str, choose: Any = first, timeout_ms: int = 5000, **more: Any) -> Any:
    authorities = Authorities(addresses, 2000, timeout_ms, choose)
    values = {"remote_ip": "10.0.0.1", "tls": False, "common_name": "", "secret": b"s", **more}
    try:
        return await authorities.query(**values)
    finally:
        await authorities.close()


def test_what_is_asked() -> None:
    async def test() -> None:
        async with AuthServer() as server:
            state = await ask(
                server.address, tls=True, common_name="box 1", secret="gehé im&x=y".encode()
            )
            assert state.identity == "shop"
            (request,) = server.requests
            assert (request.method, request.path) == ("GET", "/auth")
            assert dict(request.query) == {
                "remote_ip": "10.0.0.1", "tls": "true", "common_name": "box 1",
                "secret": "gehé im&x=y",
            }  # fmt: skip
            assert request.headers["Accept"] == "application/vnd.nsq; version=1.0"
            await ask(server.address)
            assert server.requests[1].query["tls"] == "false"

    asyncio.run(test())


def test_an_address_with_a_scheme_is_the_whole_url() -> None:
    async def test() -> None:
        async with AuthServer() as server:
            await ask(f"http://{server.address}/check/nsq")
            assert server.requests[0].path == "/check/nsq"

    asyncio.run(test())


def test_another_one_is_asked_when_one_fails() -> None:
    async def test() -> None:
        async with AuthServer(status=500) as bad, AuthServer() as good:
            state = await ask(bad.address, good.address)
            assert state.identity == "shop"
            assert (len(bad.requests), len(good.requests)) == (1, 1)
            await ask(bad.address, good.address, choose=lambda count: count - 1)
            assert (len(bad.requests), len(good.requests)) == (1, 2)

    asyncio.run(test())


def test_none_left_is_an_error_that_names_all_and_shows_no_secret() -> None:
    async def test() -> None:
        async with AuthServer(status=403) as bad, AuthServer({"ttl": 0}) as worse:
            closed = f"127.0.0.1:{reserved()}"
            with pytest.raises(AuthUnavailable) as refused:
                await ask(bad.address, worse.address, closed, secret=b"topsecret")
            told = str(refused.value)
            assert f"failed to auth against {bad.address} - got response 403" in told
            assert f"{worse.address} - invalid TTL 0" in told
            assert f"{closed} - cannot be asked" in told
            assert "topsecret" not in told

    asyncio.run(test())


def test_who_does_not_answer_in_time_is_given_up() -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def test() -> None:
        async with AuthServer(handler=never) as server:
            with pytest.raises(AuthUnavailable, match=r"no answer within 0\.05 s"):
                await ask(server.address, timeout_ms=50)

    asyncio.run(test())


def test_an_endless_answer_is_refused() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    async def test() -> None:
        async with AuthServer(handler=endless) as server:
            with pytest.raises(AuthUnavailable, match=f"more than {ANSWER_MAX} bytes"):
                await ask(server.address)

    asyncio.run(test())


def test_the_log_shows_no_secret() -> None:
    stream = io.StringIO()
    logs.configure("debug", {}, "json", stream)

    async def test() -> None:
        async with AuthServer(status=500) as server:
            with pytest.raises(AuthUnavailable):
                await ask(server.address, "not a host:1", secret=b"topsecret")

    try:
        asyncio.run(test())
    finally:
        logs.configure("info", {}, "console")
    logged = stream.getvalue()
    assert "auth.failed" in logged
    assert "topsecret" not in logged
