"""What a queue's arguments and a policy come to [DL-2], row by row."""

from __future__ import annotations

import pytest

from tallymark.engine.arguments import QUEUE_CHECKS
from tallymark.engine.policies import KEYS
from tallymark.engine.restore import snapshot
from tallymark.engine.settings import DEFAULT_HOPS, OFF, Settings
from tests.support.engine_rig import Rig

QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
SMALLER = (
    ("message-ttl", "ttl_ms"),
    ("expires", "expires_ms"),
    ("max-length", "max_length"),
    ("max-length-bytes", "max_bytes"),
    ("delivery-limit", "delivery_limit"),
    ("acquired-limit", "acquired_limit"),
    ("consumer-timeout", "consumer_timeout_ms"),
    ("message-deduplication", "dedup_ms"),
)


def test_a_queue_that_was_told_nothing() -> None:
    settings = Settings({}, {})
    for _, attribute in SMALLER:
        assert getattr(settings, attribute) == OFF, attribute
    assert (settings.hop_limit, settings.max_priority) == (OFF, 0)
    assert (settings.overflow, settings.dead_letter_exchange) == ("drop-head", None)
    assert settings.dead_letter_key is None
    flags = ("is_quorum", "at_least_once", "single_active", "bounded", "guarded")
    assert not any(getattr(settings, flag) for flag in flags)


@pytest.mark.parametrize(("key", "attribute"), SMALLER)
@pytest.mark.parametrize(
    ("argument", "policy", "outcome"),
    [(5, None, 5), (None, 5, 5), (5, 7, 5), (7, 5, 5), (5, 5, 5), (0, 7, 0), (7, 0, 0)],
)
def test_dl_2_the_smaller_number_wins(
    key: str, attribute: str, argument: int | None, policy: int | None, outcome: int
) -> None:
    own: dict[str, object] = {} if argument is None else {"x-" + key: argument}
    given: dict[str, object] = {} if policy is None else {key: policy}
    if key == "consumer-timeout" and 0 in (argument, policy):
        outcome = 7  # 0 is no end there, see test_lc_4_no_end_is_longer_than_any_time
    for kind in ({}, QUORUM):
        assert getattr(Settings({**own, **kind}, given), attribute) == outcome


@pytest.mark.parametrize(
    ("argument", "policy", "outcome"),
    [(-1, 5, 5), (5, -1, 5), (0, -1, 0), (-1, None, OFF), (None, -1, OFF), (-1, -7, OFF)],
)
def test_dl_2_of_delivery_limits_a_negative_one_is_none_and_the_larger_wins(
    argument: int | None, policy: int | None, outcome: int
) -> None:
    own: dict[str, object] = {} if argument is None else {"x-delivery-limit": argument}
    given: dict[str, object] = {} if policy is None else {"delivery-limit": policy}
    assert Settings(own, given).delivery_limit == outcome


@pytest.mark.parametrize(
    ("argument", "policy", "classic", "quorum"),
    [
        (None, None, "drop-head", "drop-head"),
        ("reject-publish", None, "reject-publish", "reject-publish"),
        (None, "reject-publish", "reject-publish", "reject-publish"),
        ("reject-publish", "drop-head", "reject-publish", "drop-head"),
        ("drop-head", "reject-publish", "drop-head", "reject-publish"),
        ("drop-head", "reject-publish-dlx", "drop-head", "drop-head"),
        ("reject-publish-dlx", None, "reject-publish-dlx", "drop-head"),
        ("reject-publish-dlx", "reject-publish", "reject-publish-dlx", "reject-publish"),
    ],
)
def test_dl_2_overflow_the_argument_wins_on_classic_the_policy_on_quorum(
    argument: str | None, policy: str | None, classic: str, quorum: str
) -> None:
    own: dict[str, object] = {} if argument is None else {"x-overflow": argument}
    given: dict[str, object] = {} if policy is None else {"overflow": policy}
    assert Settings(own, given).overflow == classic
    assert Settings({**own, **QUORUM}, given).overflow == quorum


def test_dl_2_arguments_win_for_the_dead_letter_keys_one_by_one() -> None:
    policy: dict[str, object] = {
        "dead-letter-exchange": "policy-x",
        "dead-letter-routing-key": "policy-k",
        "dead-letter-strategy": "at-least-once",
    }
    given = Settings({}, policy)
    assert (given.dead_letter_exchange, given.dead_letter_key) == ("policy-x", "policy-k")
    assert given.at_least_once
    own = Settings({"x-dead-letter-exchange": ""}, policy)
    assert (own.dead_letter_exchange, own.dead_letter_key) == ("", "policy-k")
    both = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": ""}
    settings = Settings({**both, "x-dead-letter-strategy": "at-most-once"}, policy)
    assert (settings.dead_letter_exchange, settings.dead_letter_key) == ("x", "")
    assert not settings.at_least_once


def test_a_strategy_without_an_exchange_is_none() -> None:
    assert not Settings({"x-dead-letter-strategy": "at-least-once"}, {}).at_least_once
    exchange: dict[str, object] = {"dead-letter-exchange": "x"}
    assert Settings({"x-dead-letter-strategy": "at-least-once"}, exchange).at_least_once


@pytest.mark.parametrize(
    ("argument", "policy", "outcome"),
    [
        (None, True, DEFAULT_HOPS),
        (None, 7, 7),
        (None, False, OFF),
        (0, 7, 0),
        (9, 7, 9),
        (True, 7, DEFAULT_HOPS),
        (False, 7, OFF),
        (None, None, OFF),
    ],
)
def test_dl_d1_the_hop_limit_is_a_number_or_a_switch_and_the_argument_wins(
    argument: object, policy: object, outcome: int
) -> None:
    assert DEFAULT_HOPS == 32
    own = {} if argument is None else {"x-dead-letter-hop-limit": argument}
    given = {} if policy is None else {"dead-letter-hop-limit": policy}
    assert Settings(own, given).hop_limit == outcome


def test_priorities_and_the_single_active_consumer_are_arguments_only() -> None:
    settings = Settings({"x-max-priority": 9, "x-single-active-consumer": True}, {})
    assert (settings.max_priority, settings.single_active) == (9, True)
    policy: dict[str, object] = {"max-priority": 9, "single-active-consumer": True}
    settings = Settings({}, policy)
    assert (settings.max_priority, settings.single_active) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "bounded", "guarded"),
    [
        ({"x-message-ttl": 0}, True, False),
        ({"x-max-length": 0}, True, False),
        ({"x-max-length-bytes": 0, "x-overflow": "reject-publish"}, True, True),
        ({"x-max-length": 1, "x-overflow": "reject-publish-dlx"}, True, True),
        ({"x-overflow": "reject-publish"}, False, False),
        ({"x-message-ttl": 1, "x-overflow": "reject-publish"}, True, False),
        ({"x-message-deduplication": 1}, False, True),
    ],
)
def test_what_has_to_be_looked_after_and_what_may_refuse(
    arguments: dict[str, object], bounded: bool, guarded: bool
) -> None:
    settings = Settings(arguments, {})
    assert (settings.bounded, settings.guarded) == (bounded, guarded)


# -- delayed retry


def retry(argument: dict[str, object], policy: dict[str, object]) -> tuple[str, int, int]:
    """Type, minimum and maximum in effect; of the keys the part behind delayed-retry-."""
    own = {"x-delayed-retry-" + key: value for key, value in argument.items()}
    given = {"delayed-retry-" + key: value for key, value in policy.items()}
    found = Settings(own, given)
    assert found.same(Settings({**own, **QUORUM}, given)) == found.is_quorum
    return found.delayed_retry, found.delayed_retry_min_ms, found.delayed_retry_max_ms


@pytest.mark.parametrize(
    ("argument", "policy", "outcome"),
    [
        ({"type": "all", "min": 10, "max": 50}, {}, ("all", 10, 50)),
        ({}, {"type": "failed", "min": 10, "max": 50}, ("failed", 10, 50)),
        ({"type": "all", "min": 10}, {"type": "returned"}, ("returned", 10, 10)),
        ({"type": "all", "min": 10}, {"type": "disabled"}, ("disabled", 10, 10)),
        ({"type": "disabled"}, {"type": "all", "min": 10}, ("all", 10, 10)),
        ({"type": "all", "min": 10, "max": 50}, {"min": 7, "max": 90}, ("all", 7, 50)),
        ({"type": "all", "min": 10, "max": 50}, {"min": 20, "max": 40}, ("all", 10, 40)),
        ({"type": "all"}, {"min": 10}, ("all", 10, 10)),
        ({"type": "all"}, {}, ("disabled", 0, 0)),
        ({"type": "all", "max": 50}, {}, ("disabled", 0, 50)),
        ({"min": 10, "max": 50}, {}, ("disabled", 10, 50)),
        ({}, {}, ("disabled", 0, 0)),
    ],
)
def test_delayed_retry_by_argument_and_policy(
    argument: dict[str, object], policy: dict[str, object], outcome: tuple[str, int, int]
) -> None:
    """The policy's type wins, the smaller times do; without a maximum it is the minimum, and
    without a minimum nothing waits [rabbitmq 4.3 get_delayed_retry_config]."""
    assert retry(argument, policy) == outcome


@pytest.mark.parametrize(
    ("kind", "failed", "returned"),
    [("all", True, True), ("failed", True, False), ("returned", False, True)],
)
def test_delayed_retry_waits_longer_with_each_failure_up_to_the_maximum(
    kind: str, failed: bool, returned: bool
) -> None:
    arguments: dict[str, object] = {
        "x-delayed-retry-type": kind, "x-delayed-retry-min": 10, "x-delayed-retry-max": 25,
    }  # fmt: skip
    settings = Settings(arguments, {})
    waits = [10, 20, 25, 25]
    assert [settings.retry_delay_ms(n, True) for n in (1, 2, 3, 99)] == (
        waits if failed else [0, 0, 0, 0]
    )
    assert [settings.retry_delay_ms(n, False) for n in (0, 1, 2, 3)] == (
        [10, 10, 20, 25] if returned else [0, 0, 0, 0]
    )
    assert Settings({}, {}).retry_delay_ms(1, True) == 0


EXAMPLES: dict[str, object] = {
    "message-ttl": 5, "expires": 5, "max-length": 5, "max-length-bytes": 5,
    "overflow": "reject-publish", "dead-letter-exchange": "x", "dead-letter-routing-key": "k",
    "dead-letter-hop-limit": 5, "delivery-limit": 5, "acquired-limit": 5, "consumer-timeout": 5,
    "message-deduplication": 5, "delayed-retry-min": 5, "delayed-retry-max": 5,
    "delivery-limit-counts": "failures",
}  # fmt: skip


@pytest.mark.parametrize("key", sorted(EXAMPLES))
def test_settings_that_differ_in_anything_are_not_the_same(key: str) -> None:
    plain, told = Settings({}, {}), Settings({}, {key: EXAMPLES[key]})
    assert not told.same(plain)
    assert told.same(Settings({"x-" + key: EXAMPLES[key]}, {}))


def test_settings_differ_by_strategy_kind_priority_and_single_active_too() -> None:
    exchange: dict[str, object] = {"x-dead-letter-exchange": "x", "x-delayed-retry-min": 1}
    for more in (
        {"x-dead-letter-strategy": "at-least-once"},
        {"x-delayed-retry-type": "all"},
        QUORUM,
        {"x-max-priority": 1},
        {"x-single-active-consumer": True},
    ):
        assert not Settings({**exchange, **more}, {}).same(Settings(exchange, {}))


def test_every_key_of_a_policy_is_an_argument_too() -> None:
    # What is too slow is not for the slow one to say.
    of_others = {"x-" + key for key in KEYS if key.startswith("slow-consumer-")}
    of_others |= {"x-alternate-exchange", "x-auto-create", "x-default-queue-type"}
    of_others.add("x-ledger")  # nor what is kept of it
    queue_keys = {"x-" + key for key in KEYS} - of_others
    assert queue_keys <= set(QUEUE_CHECKS)
    of_streams = {"x-max-age", "x-stream-max-segment-size-bytes"}
    others = {"x-dead-letter-strategy", "x-delayed-retry-type", "x-deliver-after"} | of_streams
    assert {"x-" + key for key in EXAMPLES} | others == queue_keys


def test_what_is_said_of_streams_is_in_effect_for_streams_only() -> None:
    said: dict[str, object] = {
        "max-age": "1h", "stream-max-segment-size-bytes": 5, "max-length-bytes": 7,
        "message-ttl": 1, "max-length": 1, "overflow": "reject-publish", "delivery-limit": 1,
        "dead-letter-exchange": "x", "expires": 1, "message-deduplication": 1,
        "delivery-limit-counts": "failures",
    }  # fmt: skip
    stream = Settings({"x-queue-type": "stream"}, said)
    assert (stream.max_age_ms, stream.segment_bytes, stream.retain_bytes) == (3_600_000, 5, 7)
    only = {key: said[key] for key in list(said)[:3]}
    assert stream.same(Settings({"x-queue-type": "stream"}, only))
    assert not stream.bounded
    assert not stream.guarded
    other = Settings({}, said)
    assert (other.max_age_ms, other.retain_bytes, other.max_bytes) == (-1, -1, 7)


def test_queues_without_arguments_or_a_policy_share_their_settings() -> None:
    """They were computed twice for each queue that was declared, and made half of its cost."""
    rig = Rig()
    one, other = rig.declare("a"), rig.declare("b")
    assert one.settings is other.settings
    typed = [rig.declare(name, {"queue-type": "quorum"}) for name in ("c", "d")]
    assert typed[0].settings is typed[1].settings
    assert typed[0].settings.is_quorum
    assert rig.declare("e", {"queue-type": "quorum", "max-length": 1}).settings.max_length == 1
    rig.set_policy("a", {"max-length": 5})
    assert (one.settings.max_length, other.settings.max_length) == (5, OFF)
    rig.set_policy("a", {"max-length": 6})
    rig.set_policy("a", {})
    assert one.settings.same(other.settings)


def test_the_definition_of_a_queue_is_encoded_once_for_all_checkpoints() -> None:
    rig = Rig()
    queue = rig.declare("a", {"max-length": 1})
    first, second = ([record.blob for record in snapshot(rig.broker, False)] for _ in range(2))
    assert first == second
    assert any(blob is queue.definition for blob in first)
    assert any(blob is queue.definition for blob in second)
