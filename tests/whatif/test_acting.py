"""Changes that can act on nothing are refused: the answer would be yes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tallymark.whatif.acting import Known, check_acts, known_of
from tallymark.whatif.changes import ChangeRefused, changes_of
from tests.whatif.test_worlds import plain

BEGIN, END = 1_795_176_000_000, 1_795_179_600_000
KNOWN = Known(
    frozenset({("/", "orders"), ("/", "mail"), ("shop", "order")}),
    frozenset({("/", ""), ("/", "shop"), ("/", "amq.topic"), ("shop", "market")}),
    frozenset({("/", "orders")}),
    frozenset({("/", "shop", "order.new"), ("/", "", "mail")}),
    frozenset({("/", "limits")}),
    frozenset({"kind"}),
    (BEGIN, END),
    bindings=frozenset({
        (("/", "orders"), "shop", "order.new", "{}"), (("/", "mail"), "shop", "", '{"kind":"x"}'),
    }),
)  # fmt: skip


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"queue": [{"name": "order", "max-length": 3}]}, "order: .* expected orders$"),
        ({"remove-queue": [{"name": "order"}]}, "order: .* expected orders$"),
        ({"bind": [{"queue": "order", "exchange": "shop"}]}, "order: .* expected orders$"),
        ({"consumers": [{"queue": "order", "times": 2}]}, "order: .* expected orders$"),
        ({"new-queue": [{"name": "mail"}]}, "new-queue.* mail: .* expected a name that is free"),
        ({"bind": [{"queue": "orders", "exchange": "shp"}]}, "exchange shp .* expected shop$"),
        ({"unbind": [{"queue": "orders", "exchange": "market"}]}, "no durable exchange market"),
        (
            {"unbind": [{"queue": "orders", "exchange": "shop", "key": "order.nw"}]},
            "orders: .* the exchange shop with the key 'order.nw', expected 'order.new'$",
        ),
        (
            {"unbind": [{"queue": "mail", "exchange": "shop"}]},
            'mail: .* with the key \'\' and the arguments {}, expected {"kind":"x"}$',
        ),
        (
            {"unbind": [{"queue": "mail", "exchange": "amq.topic"}]},
            "the exchange amq.topic with the key '', expected none: there are none$",
        ),
        (
            {"bind": [{"queue": "mail", "exchange": "shop", "arguments": {"knd": 1}}]},
            "the header knd was not read, expected kind",
        ),
        ({"consumers": [{"queue": "mail", "times": 2}]}, "no consumers .* expected orders$"),
        (
            {"policy": [{"name": "p", "pattern": "^ordrs$", "definition": {"max-length": 3}}]},
            r"the pattern \^ordrs\$ applies to no .* expected one for orders$",
        ),
        (
            {"policy": [{"name": "p", "apply-to": "streams", "definition": {"message-ttl": 3}}]},
            "message-ttl has no effect on streams",
        ),
        (
            {"policy": [{"name": "p", "definition": {"max-lenght": 3}}]},
            r"\[\[policy\]\] p: .*max-lenght",
        ),
        ({"policy": [{"name": "limit"}]}, "no policy .* to take away, expected limits"),
        ({"publishers": [{"exchange": "amq.topic", "rate": 2}]}, "nothing was published to"),
        (
            {"publishers": [{"exchange": "shop", "key": "order.nw", "rate": 2}]},
            "with the key order.nw, expected order.new$",
        ),
        ({"publishers": [{"vhost": "shop", "rate": 2}]}, "nothing was published in vhost 'shop'"),
        (
            {"from": at(END + 1000), "queue": [{"name": "orders", "max-length": 3}]},
            "from is 2026-11-20T13:00:01Z, expected a time between 2026-11-20T12:00:00Z and "
            "2026-11-20T13:00:00Z",
        ),
        ({"restart": [{"at": at(BEGIN - 1000)}]}, "restart.*: at is 2026-11-20T11:59:59Z"),
        (
            {"consumers": [{"queue": "orders", "away": {"from": at(END + 1), "for": "1h"}}]},
            "away from is",
        ),
        (
            {"consumers": [{"queue": "orders", "away": {"from": at(BEGIN - 9000), "for": "9s"}}]},
            "away from is",
        ),
        ({"consumers": [{"queue": "orders", "late": "2h"}]}, "late is 7200 s, expected less than"),
    ],
)
def test_what_would_change_nothing_is_refused_with_the_nearest_names(
    said: dict[str, object], expected: str
) -> None:
    [change] = changes_of("change", said)
    with pytest.raises(ChangeRefused, match=expected):
        check_acts(change, KNOWN)


@pytest.mark.parametrize(
    "said",
    [
        {"new-queue": [{"name": "audit"}], "bind": [{"queue": "audit", "exchange": "shop"}]},
        {"bind": [{"queue": "mail", "exchange": "amq.topic", "arguments": {"kind": "x"}}]},
        {"policy": [{"name": "p", "pattern": "^ord", "definition": {"max-length": 3}}]},
        {"unbind": [{"queue": "orders", "exchange": "shop", "key": "order.new"}]},
        {"unbind": [{"queue": "mail", "exchange": "shop", "arguments": {"kind": "x"}}]},
        {"policy": [{"name": "limits"}]},
        {"publishers": [{"exchange": "shop", "key": "order.new", "rate": 2}]},
        {"publishers": [{"rate": 2}]},
        {"from": at(BEGIN - 1000), "queue": [{"name": "orders", "max-length": 3}]},
        {"consumers": [{"queue": "orders", "away": {"from": at(BEGIN - 9000), "for": "1h"}}]},
        {"restart": [{"at": at(END)}]},
    ],
)
def test_what_can_act_is_taken(said: dict[str, object]) -> None:
    [change] = changes_of("change", said)
    check_acts(change, KNOWN)


AWAY = {"queue": "orders", "away": {"from": at(BEGIN + 1000), "for": "1s"}}
LATER = {"queue": "orders", "away": {"from": at(BEGIN + 9000), "for": "1s"}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"queue": [{"name": "orders", "max-length": 3}, {"name": "orders", "max-length": 9}]},
            r"^\[\[queue\]\] orders: max-length is said twice, expected one section",
        ),
        ({"new-queue": [{"name": "audit"}, {"name": "audit"}]}, "audit: is said twice"),
        (
            {"policy": [{"name": "p", "definition": {"max-length": n}} for n in (3, 9)]},
            r"^\[\[policy\]\] p: is said twice",
        ),
        (
            {"consumers": [{"queue": "orders", "times": 2}, {"queue": "orders", "speed": 2}]},
            r"^\[\[consumers\]\] orders: is said twice",
        ),
        ({"consumers": [AWAY, {"queue": "orders", "speed": 2}]}, "orders: is said twice"),
        (
            {"publishers": [{"rate": 2}, {"exchange": "shop", "rate": 3}]},
            r"^\[\[publishers\]\] exchange shop, key None: a section before it says",
        ),
    ],
)
def test_what_another_section_says_otherwise_is_refused(
    said: dict[str, object], expected: str
) -> None:
    [change] = changes_of("change", said)
    with pytest.raises(ChangeRefused, match=expected):
        check_acts(change, KNOWN)


@pytest.mark.parametrize(
    "said",
    [
        {"queue": [{"name": "orders", "max-length": 3}, {"name": "orders", "message-ttl": 9}]},
        {"queue": [{"name": "orders", "max-length": 3}, {"name": "mail", "max-length": 9}]},
        {"consumers": [AWAY, LATER]},
        {"publishers": [{"exchange": "shop", "rate": 3}, {"rate": 2}]},
    ],
)
def test_sections_that_add_to_each_other_are_taken(said: dict[str, object]) -> None:
    [change] = changes_of("change", said)
    check_acts(change, KNOWN)


def test_a_policy_applies_to_a_queue_that_the_change_declares() -> None:
    policy = {"name": "p", "pattern": "^audit$", "definition": {"max-length": 3}}
    [change] = changes_of("change", {"new-queue": [{"name": "audit"}], "policy": [policy]})
    check_acts(change, KNOWN)


def test_what_there_was_is_known_of_a_recording() -> None:
    recording = plain()
    known = known_of(recording)
    assert known.queues == {("/", "orders"), ("/", "parked")}
    assert known.consumed == {("/", "orders")}
    assert known.routes == {("/", "", "orders")}
    assert ("/", "amq.topic") in known.exchanges
    assert known.stretch == (recording.begin_ms, recording.end_ms)
