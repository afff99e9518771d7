"""AUTH and what follows from it, the auth server's part played by the test."""

from __future__ import annotations

import json

import pytest

from tallymark.bridge.nsq.auth import AuthState, decode_answer
from tallymark.wire.nsq.frames import RESPONSE
from tallymark.wire.nsq.limits import Limits
from tests.bridge.nsq_rig import OK, NsqPeer, NsqRig, dpub, mpub, pub

LIMITS = Limits(auth_required=True)
AUTH = b"AUTH\n\0\0\0\6secret"


def state(rig: NsqRig, *permissions: str, topic: str = "^t$", ttl: int = 60) -> AuthState:
    entry = {"topic": topic, "channels": ["^c$", "^$"], "permissions": list(permissions)}
    answer = {
        "ttl": ttl, "identity": "somebody", "identity_url": "http://who",
        "authorizations": [entry] if permissions else [],
    }  # fmt: skip
    return decode_answer(json.dumps(answer).encode(), rig.now_ms)


def authorized(rig: NsqRig, *permissions: str, **more: object) -> NsqPeer:
    peer = rig.client()
    assert peer.ask(AUTH) == []
    assert peer.bridge.pending_auth == b"secret"
    peer.bridge.auth_succeeded(state(rig, *permissions, **more))  # type: ignore[arg-type]
    identity = b'{"identity":"somebody","identity_url":"http://who","permission_count":1}'
    assert peer.hear() == [(RESPONSE, identity)]
    return peer


def test_what_is_allowed_is_done() -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", "subscribe")
    assert peer.ask(pub(b"1"), mpub(b"2"), dpub(b"3", 1), b"SUB t c\n") == [OK] * 4
    assert peer.bridge.auth is not None
    assert peer.bridge.auth.identity == "somebody"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (pub(b"x", "u"), 'E_UNAUTHORIZED AUTH failed for PUB on "u" ""'),
        (mpub(b"x", topic="u"), 'E_UNAUTHORIZED AUTH failed for MPUB on "u" ""'),
        (dpub(b"x", 5, "u"), 'E_UNAUTHORIZED AUTH failed for DPUB on "u" ""'),
        (b"SUB t d\n", 'E_UNAUTHORIZED AUTH failed for SUB on "t" "d"'),
    ],
)
def test_what_is_not_allowed_ends_the_connection(command: bytes, text: str) -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", "subscribe")
    assert peer.error(command) == text
    assert peer.bridge.closing
    assert rig.topics.topics() == []


def test_a_secret_that_is_worth_nothing() -> None:
    rig = NsqRig(LIMITS)
    peer = rig.client()
    peer.ask(AUTH, pub(b"x"))
    peer.bridge.auth_succeeded(state(rig))
    assert peer.error() == "E_UNAUTHORIZED AUTH no authorizations found"
    assert peer.bridge.closing
    assert rig.topics.topics() == []


def test_no_auth_server_to_ask() -> None:
    rig = NsqRig(LIMITS)
    peer = rig.client()
    peer.ask(AUTH, pub(b"x"))
    peer.bridge.auth_failed()
    assert peer.error() == "E_AUTH_FAILED AUTH failed"
    assert peer.bridge.closing
    assert rig.topics.topics() == []


def test_without_auth_nothing_is_done() -> None:
    rig = NsqRig(LIMITS)
    assert rig.client().error(pub(b"x")) == "E_AUTH_FIRST AUTH required before PUB"


def test_an_expired_permission_is_asked_for_anew_and_the_command_waits() -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", ttl=10)
    rig.advance(10_000)
    assert peer.ask(pub(b"1"), pub(b"2", "u")) == []
    assert peer.bridge.pending_auth == b"secret"
    assert not peer.bridge.wants_data
    peer.bridge.auth_succeeded(state(rig, "publish", topic=".*"))
    assert peer.hear() == [OK, OK]
    assert peer.bridge.wants_data
    assert peer.ask(pub(b"3")) == [OK]


def test_an_expired_permission_that_was_taken_away() -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", ttl=10)
    rig.advance(10_000)
    peer.ask(pub(b"1"))
    peer.bridge.auth_succeeded(state(rig))
    assert peer.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
    assert rig.topics.topics() == []


def test_an_expired_permission_and_nobody_to_ask() -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", ttl=10)
    rig.advance(10_000)
    peer.ask(pub(b"1"))
    peer.bridge.auth_failed()
    assert peer.error() == "E_AUTH_FAILED AUTH failed"
    assert rig.topics.topics() == []


def test_a_client_that_goes_while_the_server_is_asked_publishes_nothing() -> None:
    rig = NsqRig(LIMITS)
    peer = authorized(rig, "publish", ttl=10)
    rig.advance(10_000)
    peer.ask(pub(b"1"))
    peer.leave()
    peer.bridge.auth_succeeded(state(rig, "publish"))
    assert rig.topics.topics() == []
    assert peer.bridge.closing


def test_a_client_is_not_dead_because_the_auth_server_is_slow() -> None:
    rig = NsqRig(LIMITS)
    peer = rig.client(heartbeat_interval=1000)
    peer.ask(AUTH)
    peer.bridge.auth_succeeded(state(rig, "publish", ttl=1))
    peer.hear()
    rig.advance(1_000)
    peer.ask(pub(b"1"))
    rig.advance(5_000)
    assert not peer.bridge.closing
    peer.bridge.auth_succeeded(state(rig, "publish"))
    assert peer.hear() == [OK]
