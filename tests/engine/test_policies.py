"""Policies: what is refused, which one holds, and what a queue has of it [DL-2]."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine import definitions
from tallymark.engine.broker import Broker
from tallymark.engine.clock import Clock
from tallymark.engine.errors import NotFound, PreconditionFailed
from tallymark.engine.ledger import Ledger
from tallymark.engine.policies import (
    CLASSIC_QUEUES,
    EXCHANGES,
    KEYS,
    QUORUM_QUEUES,
    STREAMS,
    WITHOUT_EFFECT,
    Policy,
    check_definition,
    in_effect,
    known_keys,
    merged,
    policy_from,
    without_effect,
)
from tallymark.engine.queue import Queue
from tallymark.engine.vhost import VirtualHost
from tallymark.stored import records
from tests.support.engine_rig import Rig

ME = 1
LIMITS = {
    "expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit",
    "consumer-timeout", "acquired-limit", "delayed-retry-type", "delayed-retry-min",
    "delayed-retry-max",
}  # fmt: skip


class Host:
    """A virtual host with short calls for tests."""

    def __init__(self) -> None:
        self.ledger = Ledger(Clock())
        ids = count(1)
        self.vhost = VirtualHost("/", Clock(), self.ledger, lambda: next(ids))

    def queue(self, name: str, **arguments: object) -> Queue:
        renamed = {word.replace("_", "-"): value for word, value in arguments.items()}
        return self.vhost.declare_queue(name, True, False, False, renamed, ME, False)

    def exchange(self, name: str, **arguments: object) -> None:
        renamed = {word.replace("_", "-"): value for word, value in arguments.items()}
        self.vhost.declare_exchange(name, "direct", True, False, False, renamed, False)

    def set(self, policy: Policy, operator: bool = False) -> list[str]:
        """Names of the queues that came out of it with other settings."""
        self.vhost.set_policy(policy, operator)
        return self.taken()

    def delete(self, name: str, operator: bool = False) -> list[str]:
        self.vhost.delete_policy(name, operator)
        return self.taken()

    def taken(self) -> list[str]:
        names = [queue.name for queue in self.vhost.updated_queues]
        self.vhost.updated_queues.clear()
        return names

    def route(self, exchange: str, key: str) -> list[str]:
        return [queue.name for queue in self.vhost.route(exchange, [key], None).queues]

    def replayed(self, snapshot: bool) -> Host:
        """The host that a restart makes of its records, or of a checkpoint."""
        blobs = [record.blob for record in self.ledger.rows if record.kind == records.DEFINITION]
        other = Host()
        for blob in self.vhost.topology.definitions() if snapshot else blobs:
            other.vhost.topology.apply(blob)
        return other


@pytest.fixture
def host() -> Host:
    return Host()


def length(name: str, limit: int, **more: object) -> Policy:
    value = {"pattern": "", "definition": {"max-length": limit}, **more}
    return policy_from(name, {field.replace("_", "-"): part for field, part in value.items()})


# -- what is refused


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"definition": {"max-length": 1}}, "pattern should be a binary, actually was undefined"),
        ({"pattern": 1, "definition": {"max-length": 1}}, "actually was 1: expected text"),
        (
            {"pattern": "(", "definition": {"max-length": 1}},
            "pattern should be regular expression but is invalid: '(': missing )",
        ),
        (
            {"pattern": "^(?<=a)b$", "definition": {"max-length": 1}},
            "'^(?<=a)b$': invalid perl operator: (?<=, expected RE2's syntax",
        ),
        ({"pattern": ""}, "definition must be a dictionary: undefined, expected an object"),
        ({"pattern": "", "definition": []}, "definition must be a dictionary: []"),
        ({"pattern": "", "definition": {}}, "no policy provided"),
        (
            {"pattern": "", "definition": {"max-length": 1}, "priority": "high"},
            'priority should be a number, actually was <<"high">>, expected a whole one',
        ),
        ({"pattern": "", "definition": {"max-length": 1}, "priority": 1.5}, "actually was 1.5"),
        ({"pattern": "", "definition": {"max-length": 1}, "priority": True}, "actually was true"),
        (
            {"pattern": "", "definition": {"max-length": 1}, "apply-to": "rivers"},
            "apply-to 'rivers' unrecognised; should be one of: 'queues', 'classic_queues', "
            "'quorum_queues', 'streams', 'exchanges', or 'all'",
        ),
        ({"pattern": "", "definition": {"max-length": 1}, "apply-to": None}, "apply-to is undef"),
        (
            {"pattern": "", "definition": {"max-length": 1}, "apply_to": "all"},
            "Unrecognised terms [apply_to] in policy, expected pattern, definition, priority, "
            "apply-to",
        ),
    ],
)
def test_a_bad_policy_is_refused_with_the_reason(value: dict[str, object], told: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        policy_from("p", value)
    assert told in str(refused.value)


def test_a_policy_needs_a_name() -> None:
    with pytest.raises(PreconditionFailed, match="policy name is empty"):
        Policy("", "", {"max-length": 1})


GOOD: list[tuple[str, object]] = [
    ("message-ttl", 0), ("expires", 1), ("max-length", 0), ("max-length-bytes", 0),
    ("message-ttl", 315_360_000_000), ("expires", 315_360_000_000),
    ("overflow", "drop-head"), ("overflow", "reject-publish"), ("overflow", "reject-publish-dlx"),
    ("dead-letter-exchange", ""), ("dead-letter-routing-key", ""),
    ("dead-letter-strategy", "at-most-once"), ("dead-letter-strategy", "at-least-once"),
    ("dead-letter-hop-limit", 0), ("dead-letter-hop-limit", 255), ("dead-letter-hop-limit", True),
    ("dead-letter-hop-limit", False), ("delivery-limit", 0), ("delivery-limit", -1),
    ("delivery-limit-counts", "returns"), ("delivery-limit-counts", "failures"),
    ("acquired-limit", 0), ("consumer-timeout", 0), ("message-deduplication", 1),
    ("consumer-timeout", 315_360_000_000), ("message-deduplication", 315_360_000_000),
    ("slow-consumer-age", 315_360_000_000), ("slow-consumer-rate", 1_000_000_000),
    ("ledger", "account"), ("deliver-after", "written"), ("deliver-after", "synced"),
    ("alternate-exchange", ""), ("max-length", (1 << 63) - 1), ("delayed-retry-type", "disabled"),
    ("delayed-retry-min", 1), ("delayed-retry-max", 1), ("delayed-retry-max", 315_360_000_000),
    ("max-age", "1s"), ("max-age", "99999999Y"), ("stream-max-segment-size-bytes", 0),
    ("stream-max-segment-size-bytes", 3_000_000_000), ("default-queue-type", "classic"),
    ("default-queue-type", "quorum"), ("default-queue-type", "stream"),
    ("auto-create", True), ("auto-create", False),
    ("slow-consumer-depth", 0), ("slow-consumer-age", 0), ("slow-consumer-count", 0),
    ("slow-consumer-rate", 0), ("slow-consumer-rate", 0.5), ("slow-consumer-policy", "x"),
    ("slow-consumer-options", {}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_the_ends_of_every_range_are_accepted(key: str, value: object) -> None:
    check_definition({key: value}, False)


BAD: list[tuple[str, object, str]] = [
    ("message-ttl", -1, "-1 is not a valid message TTL"),
    ("message-ttl", "60000", '<<"60000">> is not a valid message TTL'),
    ("message-ttl", True, "true is not a valid message TTL"),
    ("message-ttl", 1.0, "1.0 is not a valid message TTL"),
    ("message-ttl", 1 << 63, "9223372036854775808 is not a valid message TTL"),
    ("message-ttl", 315_360_000_001, "315360000001 is not a valid message TTL"),
    ("expires", 315_360_000_001, "315360000001 is not a valid queue expiry"),
    ("expires", 0, "0 is not a valid queue expiry"),
    ("max-length", -1, "-1 is not a valid maximum length"),
    ("max-length-bytes", -1, "-1 is not a valid maximum length in bytes"),
    ("overflow", "spill", '<<"spill">> is not a valid overflow value'),
    ("dead-letter-exchange", 1, "1 is not a valid dead letter exchange name"),
    ("dead-letter-routing-key", None, "undefined is not a valid dead letter routing key"),
    (
        "dead-letter-routing-key",
        "k" * 256,
        f'<<"{"k" * 256}">> is not a valid dead letter routing key',
    ),
    ("dead-letter-strategy", "never", '<<"never">> is not a valid dead letter strategy'),
    ("dead-letter-hop-limit", 256, "256 is not a valid dead letter hop limit"),
    ("dead-letter-hop-limit", -1, "-1 is not a valid dead letter hop limit"),
    ("delivery-limit", True, "true is not a valid delivery limit"),
    (
        "delivery-limit-counts", "nacks",
        '<<"nacks">> is not a valid reading of the delivery limit',
    ),
    ("acquired-limit", -1, "-1 is not a valid acquired limit"),
    ("consumer-timeout", -1, "-1 is not a valid consumer timeout"),
    ("consumer-timeout", 315_360_000_001, "315360000001 is not a valid consumer timeout"),
    ("message-deduplication", 315_360_000_001,
     "315360000001 is not a valid deduplication window"),
    ("slow-consumer-age", 315_360_000_001, "315360000001 is not a valid slow consumer age"),
    ("slow-consumer-rate", 1_000_000_001, "1000000001 is not a valid slow consumer rate"),
    ("slow-consumer-rate", 1e300, "1e+300 is not a valid slow consumer rate"),
    ("slow-consumer-depth", 1 << 63, "9223372036854775808 is not a valid slow consumer depth"),
    ("deliver-after", "now", '<<"now">> is not a valid deliver-after'),
    ("ledger", "some", '<<"some">> is not a valid extent of the ledger'),
    ("message-deduplication", 0, "0 is not a valid deduplication window"),
    ("alternate-exchange", 1, "1 is not a valid alternate exchange name"),
    ("delayed-retry-type", "some", '<<"some">> is not a valid delayed retry type'),
    ("delayed-retry-type", 1, "1 is not a valid delayed retry type"),
    ("delayed-retry-min", 0, "0 is not a valid delayed retry minimum delay"),
    ("delayed-retry-min", True, "true is not a valid delayed retry minimum delay"),
    ("delayed-retry-max", -1, "-1 is not a valid delayed retry maximum delay"),
    ("auto-create", 1, "1 is not a valid auto-create"),
    ("delayed-retry-max", 315_360_000_001,
     "315360000001 is not a valid delayed retry maximum delay"),
    ("max-age", "7", '<<"7">> is not a valid max age'),
    ("max-age", "0D", '<<"0D">> is not a valid max age'),
    ("max-age", 7, "7 is not a valid max age"),
    ("stream-max-segment-size-bytes", -1, "-1 is not a valid segment size"),
    ("stream-max-segment-size-bytes", 3_000_000_001, "3000000001 is not a valid segment size"),
    ("default-queue-type", "lazy", '<<"lazy">> is not a valid queue type'),
    ("slow-consumer-depth", -1, "-1 is not a valid slow consumer depth"),
    ("slow-consumer-age", 1.5, "1.5 is not a valid slow consumer age"),
    ("slow-consumer-count", True, "true is not a valid slow consumer count"),
    ("slow-consumer-rate", -0.5, "-0.5 is not a valid slow consumer rate"),
    ("slow-consumer-rate", True, "true is not a valid slow consumer rate"),
    ("slow-consumer-policy", "", '<<>> is not a valid slow consumer policy'),
    ("slow-consumer-options", 1, "1 is not a valid set of slow consumer options"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "told"), BAD)
def test_a_value_out_of_range_is_refused_in_rabbitmqs_words_and_with_what_was_expected(
    key: str, value: object, told: str
) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_definition({"max-length": 1, key: value}, False)
    assert str(refused.value) == f"{told}: {key} must be {KEYS[key].expected}"


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        (
            {"delayed-retry-type": "all"},
            "delayed-retry-min is required when delayed-retry-type is all",
        ),
        (
            {"delayed-retry-min": 5, "delayed-retry-max": 4},
            "delayed-retry-max (4) must not be smaller than delayed-retry-min (5)",
        ),
    ],
)
def test_delayed_retry_that_makes_no_sense_is_refused_in_rabbitmqs_words(
    definition: dict[str, object], told: str
) -> None:
    for operator in (False, True):
        with pytest.raises(PreconditionFailed) as refused:
            check_definition(definition, operator)
        assert str(refused.value) == told
    check_definition({"delayed-retry-min": 5, "delayed-retry-max": 5}, False)
    check_definition({"delayed-retry-type": "all", "delayed-retry-min": 5}, False)


def test_options_without_the_policy_they_are_of_are_refused() -> None:
    with pytest.raises(PreconditionFailed, match="slow-consumer-policy is required"):
        check_definition({"slow-consumer-options": {"delete-persistent": True}}, False)


def nested(levels: int) -> dict[str, object]:
    """Each level has a name that takes several levels of JSON to store."""
    value: dict[str, object] = {"$": 1}
    for _ in range(levels - 1):
        value = {"$": value}
    return value


@pytest.mark.parametrize("key", ["ha-params", "slow-consumer-options"])
def test_what_cannot_be_stored_is_refused_before_anything_changes(host: Host, key: str) -> None:
    """A value without an effect, or of another package, has no check of its own. One that was too
    deep was in effect, and not in the journal."""
    base: dict[str, object] = {"slow-consumer-policy": "notify"}
    host.set(Policy("p", "", {**base, key: nested(64)}))
    kept = host.vhost.policies["p"].definition
    for value, told in (
        (nested(65), f"{key} is nested deeper than 64 levels"),
        (nested(400), f"{key} is nested deeper than 64 levels"),
        ({"a": [1 << 64]}, f"{key} has the number 18446744073709551616, expected numbers"),
    ):
        with pytest.raises(PreconditionFailed, match=told):
            host.set(Policy("p", "", {**base, key: value}))
        assert host.vhost.policies["p"].definition is kept
    assert host.replayed(snapshot=False).vhost.policies["p"].definition == kept


def test_every_key_has_an_example_in_and_out_of_range() -> None:
    assert {key for key, _ in GOOD} == set(KEYS)
    assert {key for key, _, _ in BAD} == set(KEYS)


def test_an_unknown_key_is_refused_by_name_with_the_list_of_the_known() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_definition({"max-length": 1, "max-lenght": 2}, False)
    told = str(refused.value)
    assert told.startswith('[{<<"max-lenght">>,2}] are not recognised policy settings, expected ')
    for key in (*KEYS, *WITHOUT_EFFECT):
        assert key in told


def test_an_operator_policy_holds_limits_and_delayed_retry_only() -> None:
    for key, value in GOOD:
        if key in LIMITS:
            check_definition({key: value}, True)
            continue
        with pytest.raises(PreconditionFailed, match="not recognised operator policy settings"):
            check_definition({key: value}, True)
    for idle in ("max-in-memory-length", "ha-mode", "ha-params", "queue-master-locator"):
        check_definition({idle: 5}, True)  # RabbitMQ 3.12 has all of these
    with pytest.raises(PreconditionFailed, match="not recognised operator policy settings"):
        check_definition({"ha-promote-on-failure": "always"}, True)
    assert set(known_keys(True)) - set(WITHOUT_EFFECT) == LIMITS


def test_keys_without_effect_are_accepted_and_named() -> None:
    for key in WITHOUT_EFFECT:
        policy = policy_from("p", {"pattern": "", "definition": {key: [1], "max-length": 1}})
        assert without_effect(policy) == [key]
    both: dict[str, object] = {"max-length": 1, "alternate-exchange": "x"}
    assert without_effect(Policy("p", "", both)) == []
    assert without_effect(Policy("p", "", both, apply_to="exchanges")) == ["max-length"]
    for kind in ("queues", "classic_queues", "quorum_queues"):
        assert without_effect(Policy("p", "", both, apply_to=kind)) == ["alternate-exchange"]


def test_keys_that_say_nothing_of_what_a_policy_applies_to_are_named() -> None:
    stream: dict[str, object] = {
        "max-age": "1h", "stream-max-segment-size-bytes": 1, "max-length-bytes": 1,
    }  # fmt: skip
    for kind in ("all", "queues", "streams"):
        assert without_effect(Policy("p", "", stream, apply_to=kind)) == []
    for kind in ("classic_queues", "quorum_queues"):
        found = without_effect(Policy("p", "", stream, apply_to=kind))
        assert found == ["max-age", "stream-max-segment-size-bytes"]
    other: dict[str, object] = {"max-length": 1, "message-ttl": 1, "default-queue-type": "stream"}
    assert without_effect(Policy("p", "", other, apply_to="streams")) == list(other)
    assert without_effect(Policy("p", "", other, apply_to="queues")) == []


def test_a_routing_key_without_an_exchange_may_rely_on_an_argument(host: Host) -> None:
    host.set(Policy("p", "", {"dead-letter-routing-key": "k"}))
    settings = host.queue("q", x_dead_letter_exchange="x").settings
    assert (settings.dead_letter_exchange, settings.dead_letter_key) == ("x", "k")


# -- which one holds


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("^orders", ["orders", "orders.eu"], ["my-orders"]),
        ("orders", ["my-orders-1"], ["order"]),
        ("", ["", "x"], []),
        (r"^\d+$", ["12"], ["\u0661", "x1"]),
        (r"^(?!amq\.).*", ["x"], ["amq.gen-1"]),
        ("(?i)^ABC$", ["abc"], ["abcd"]),
    ],
)
def test_a_pattern_is_searched_for_in_the_name(
    pattern: str, fits: list[str], not_: list[str]
) -> None:
    policy = Policy("p", pattern, {"max-length": 1})
    for name in fits:
        assert policy.fits(CLASSIC_QUEUES, name), name
    for name in not_:
        assert not policy.fits(CLASSIC_QUEUES, name), name


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS, EXCHANGES}),
        ("queues", {CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS}),
        ("streams", {STREAMS}),
        ("classic_queues", {CLASSIC_QUEUES}),
        ("quorum_queues", {QUORUM_QUEUES}),
        ("exchanges", {EXCHANGES}),
    ],
)
def test_what_a_policy_applies_to(apply_to: str, kinds: set[str]) -> None:
    policy = Policy("p", "", {"max-length": 1}, apply_to=apply_to)
    found = {k for k in (CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS, EXCHANGES) if policy.fits(k, "x")}
    assert found == kinds


priorities = st.integers(-3, 3)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), priorities, st.sampled_from(["", "q", "^x"]),
            st.sampled_from(["all", "queues", "quorum_queues", "exchanges"]),
        ),
        unique_by=lambda one: one[0],
    ),
    st.sampled_from([CLASSIC_QUEUES, QUORUM_QUEUES, EXCHANGES]),
    st.sampled_from(["q", "xq", "z"]),
)  # fmt: skip
def test_the_highest_priority_that_fits_holds_and_ties_go_by_name(
    made: list[tuple[str, int, str, str]], kind: str, name: str
) -> None:
    policies = {one[0]: Policy(one[0], one[2], {"max-length": 1}, one[1], one[3]) for one in made}
    fitting = [policy for policy in policies.values() if policy.fits(kind, name)]
    fitting.sort(key=lambda policy: (-policy.priority, policy.name))
    assert in_effect(policies, kind, name) is (fitting[0] if fitting else None)


def test_a_definition_is_never_put_together_from_two_policies(host: Host) -> None:
    host.set(length("low", 5, priority=1))
    host.set(Policy("high", "", {"message-ttl": 60}, 2))
    queue = host.queue("q")
    assert (queue.settings.ttl_ms, queue.settings.max_length) == (60, -1)
    assert host.vhost.policy_table.of_queue(queue, False) is host.vhost.policies["high"]


# -- operator policies


@pytest.mark.parametrize(
    ("user", "operator", "outcome"),
    [
        ({"max-length": 5}, {"max-length": 7}, {"max-length": 5}),
        ({"max-length": 7}, {"max-length": 5}, {"max-length": 5}),
        ({"overflow": "reject-publish"}, {"max-length": 5},
         {"overflow": "reject-publish", "max-length": 5}),
        ({"delivery-limit": -1}, {"delivery-limit": 5}, {"delivery-limit": 5}),
        ({"delivery-limit": 3}, {"delivery-limit": -1}, {"delivery-limit": 3}),
        ({"delayed-retry-type": "all"}, {"delayed-retry-type": "failed"},
         {"delayed-retry-type": "failed"}),
        ({"delayed-retry-min": 5, "delayed-retry-max": 90},
         {"delayed-retry-min": 7, "delayed-retry-max": 60},
         {"delayed-retry-min": 7, "delayed-retry-max": 60}),
        ({"delayed-retry-min": 9}, {"delayed-retry-min": 7}, {"delayed-retry-min": 9}),
        (None, {"max-length": 5}, {"max-length": 5}),
        ({"max-length": 5}, None, {"max-length": 5}),
        (None, None, {}),
    ],
)  # fmt: skip
def test_of_a_policy_and_an_operator_policy_the_tighter_limit_is_taken(
    user: dict[str, object] | None, operator: dict[str, object] | None, outcome: dict[str, object]
) -> None:
    policies = [None if one is None else Policy("p", "", dict(one)) for one in (user, operator)]
    assert merged(policies[0], policies[1]) == outcome
    assert [None if one is None else one.definition for one in policies] == [user, operator]


def test_an_operators_limit_binds_arguments_and_policies_alike(host: Host) -> None:
    queue = host.queue("q", x_max_length=100, x_delivery_limit=-1)
    assert host.set(length("p", 50)) == ["q"]
    capped = Policy("cap", "", {"max-length": 10, "delivery-limit": 3})
    assert host.set(capped, operator=True) == ["q"]
    assert (queue.settings.max_length, queue.settings.delivery_limit) == (10, 3)
    assert host.vhost.policy_table.of_queue(queue, True) is capped
    assert host.vhost.policy_table.of_queue(queue, False) is host.vhost.policies["p"]
    assert host.delete("cap", operator=True) == ["q"]
    assert (queue.settings.max_length, queue.settings.delivery_limit) == (50, -1)


# -- changes


def test_dl_a11_a_policy_set_after_the_declaration_takes_effect_and_an_argument_beats_it(
    host: Host,
) -> None:
    plain, own = host.queue("plain"), host.queue("own", x_dead_letter_exchange="mine")
    assert host.set(Policy("p", "", {"dead-letter-exchange": "x"})) == ["plain"]
    assert plain.settings.dead_letter_exchange == "x"
    assert own.settings.dead_letter_exchange == "mine"
    later = host.queue("later", x_dead_letter_exchange="mine")
    assert later.settings.dead_letter_exchange == "mine"
    assert host.delete("p") == ["plain"]
    assert plain.settings.dead_letter_exchange is None


def test_a_queue_declared_later_has_the_policy_from_its_first_moment(host: Host) -> None:
    host.set(length("p", 5))
    assert host.queue("q").settings.max_length == 5
    quorum = Policy("z", "", {"max-length": 2}, 9, "quorum_queues")
    assert host.set(quorum) == []
    assert host.queue("quorum", x_queue_type="quorum").settings.max_length == 2
    assert host.taken() == []


def test_exclusive_and_server_named_queues_have_policies_too(host: Host) -> None:
    host.set(length("p", 5))
    queue = host.vhost.declare_queue("", False, True, False, {}, ME, False)
    assert queue.settings.max_length == 5


def test_only_queues_whose_settings_really_changed_are_told(host: Host) -> None:
    for name, limit in (("tight", 3), ("wide", 9)):
        host.queue(name, x_max_length=limit)
    host.queue("none")
    assert host.set(length("p", 5)) == ["wide", "none"]
    assert host.set(length("p", 4)) == ["wide", "none"]
    assert host.set(length("other", 4, priority=1)) == []
    assert host.delete("p") == []
    settings = host.vhost.queues["tight"].settings
    assert host.delete("other") == ["wide", "none"]
    assert host.vhost.queues["tight"].settings is settings


def test_a_policy_asks_nothing_of_queues_that_it_does_not_fit(host: Host) -> None:
    """Hundreds of policies are set in one go, each of a few among thousands of queues."""
    other = host.queue("other")
    other.arguments["x-max-length"] = 7  # nobody changes arguments: who looks at them shows it
    host.queue("mail.in")
    assert host.set(Policy("mail", "^mail", {"max-length": 2})) == ["mail.in"]
    assert host.set(Policy("mail", "^mail", {"max-length": 1}), operator=True) == ["mail.in"]
    assert host.delete("mail", operator=True) == ["mail.in"]
    assert host.set(Policy("mail", "other", {"max-length": 9})) == ["other", "mail.in"]


def test_a_policy_with_another_pattern_leaves_what_it_fitted_before(host: Host) -> None:
    before, after = host.queue("before"), host.queue("after")
    host.set(Policy("p", "before", {"max-length": 1}))
    assert host.set(Policy("p", "after", {"max-length": 1})) == ["before", "after"]
    assert (before.settings.max_length, after.settings.max_length) == (-1, 1)


def test_the_same_policy_again_changes_nothing_and_leaves_no_record(host: Host) -> None:
    host.set(length("p", 5))
    written, generation = len(host.ledger.rows), host.vhost.generation
    assert host.set(length("p", 5)) == []
    assert (len(host.ledger.rows), host.vhost.generation) == (written, generation)
    host.set(Policy("p", "", {"dead-letter-hop-limit": 1}))
    host.set(Policy("p", "", {"dead-letter-hop-limit": True}))
    assert len(host.ledger.rows) == written + 2


def test_every_change_ends_cached_routes(host: Host) -> None:
    before = host.vhost.generation
    host.set(length("p", 5))
    after = host.vhost.generation
    host.delete("p")
    assert before < after < host.vhost.generation


def test_a_refused_policy_leaves_the_old_one(host: Host) -> None:
    queue = host.queue("q")
    host.set(length("p", 5))
    written = len(host.ledger.rows)
    with pytest.raises(PreconditionFailed):
        host.vhost.set_policy(Policy("p", "", {"max-length": -1}), False)
    with pytest.raises(PreconditionFailed):
        host.vhost.set_policy(Policy("p", "", {"overflow": "drop-head"}), True)
    assert (host.vhost.policies["p"].definition, queue.settings.max_length) == (
        {"max-length": 5},
        5,
    )
    assert (host.vhost.operator_policies, host.taken(), len(host.ledger.rows)) == ({}, [], written)


def test_deleting_what_is_not_there_is_told(host: Host) -> None:
    host.set(length("p", 5), operator=True)
    with pytest.raises(NotFound, match=r"^no policy 'p' in vhost '/'$"):
        host.vhost.delete_policy("p", False)
    with pytest.raises(NotFound, match=r"^no operator policy 'x' in vhost '/'$"):
        host.vhost.delete_policy("x", True)


# -- exchanges


def test_an_alternate_exchange_by_policy_comes_and_goes(host: Host) -> None:
    host.exchange("e")
    host.queue("rest")
    host.exchange("spare")
    host.vhost.bind_queue("rest", "spare", "k", {}, ME)
    assert host.route("e", "k") == []
    host.set(Policy("p", "^e$", {"alternate-exchange": "spare"}, apply_to="exchanges"))
    assert host.route("e", "k") == ["rest"]
    assert host.vhost.policy_table.of_exchange(host.vhost.exchange("e")) is host.vhost.policies["p"]
    host.delete("p")
    assert host.route("e", "k") == []


def test_an_argument_beats_the_policys_alternate_exchange(host: Host) -> None:
    host.exchange("own", alternate_exchange="mine")
    host.set(Policy("p", "", {"alternate-exchange": "spare"}))
    host.exchange("late", alternate_exchange="mine")
    host.exchange("plain")
    alternates = {name: one.alternate for name, one in host.vhost.exchanges.items()}
    assert (alternates["own"], alternates["late"]) == ("mine", "mine")
    assert (alternates["plain"], alternates["amq.topic"]) == ("spare", "spare")
    host.delete("p")
    assert host.vhost.exchange("own").alternate == "mine"


def test_a_policy_of_queues_says_nothing_of_exchanges(host: Host) -> None:
    host.set(Policy("p", "", {"alternate-exchange": "spare"}, apply_to="queues"))
    host.exchange("e")
    assert host.vhost.exchange("e").alternate is None


# -- what outlives a restart


@pytest.mark.parametrize("snapshot", [False, True])
def test_policies_outlive_a_restart(host: Host, snapshot: bool) -> None:
    host.queue("q")
    host.queue("quorum", x_queue_type="quorum")
    host.set(length("gone", 1))
    host.set(length("gone", 1), operator=True)
    host.set(length("p", 5, priority=-2, apply_to="quorum_queues"))
    host.set(Policy("cap", "^q", {"message-ttl": 9, "max-in-memory-length": 1}), operator=True)
    host.set(Policy("e", "^e$", {"alternate-exchange": "spare", "ha-mode": "all"}, 7, "exchanges"))
    host.exchange("e")
    host.delete("gone")
    host.delete("gone", operator=True)
    other = host.replayed(snapshot)
    for name, queue in host.vhost.queues.items():
        assert other.vhost.queues[name].settings.same(queue.settings), name
    assert other.vhost.queues["quorum"].settings.max_length == 5
    assert other.vhost.queues["q"].settings.ttl_ms == 9
    assert other.vhost.exchange("e").alternate == "spare"
    for mine, found in (
        (host.vhost.policies, other.vhost.policies),
        (host.vhost.operator_policies, other.vhost.operator_policies),
    ):
        assert {n: one.value() for n, one in mine.items()} == {
            n: one.value() for n, one in found.items()
        }
    assert (other.taken(), other.ledger.rows) == ([], [])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_broker_that_crashed_has_its_policies_again(checkpoint: bool) -> None:
    rig = Rig()
    rig.queue("q")
    rig.broker.registry.set_policy("/", length("p", 5))
    rig.broker.registry.set_policy("/", length("p", 3), operator=True)
    rig.broker.registry.set_policy("/", length("gone", 1, priority=1))
    rig.turn()
    if checkpoint:
        rig.checkpoint()
    rig.broker.registry.delete_policy("/", "gone")
    rig.turn()
    after = rig.restart()
    assert (list(after.vhost.policies), list(after.vhost.operator_policies)) == (["p"], ["p"])
    assert after.vhost.queues["q"].settings.max_length == 3
    after.broker.registry.delete_policy("/", "p", operator=True)
    assert after.vhost.queues["q"].settings.max_length == 5


def test_a_stored_policy_that_is_not_understood_is_not_guessed_at(host: Host) -> None:
    record = definitions.of_policy("/", length("p", 5), False)
    for field, value in (("apply_to", "moons"), ("priority", "1")):
        with pytest.raises(ValueError, match=field.split("_")[0]):
            host.vhost.topology.apply(definitions.encode({**record, field: value}))
    assert host.vhost.policies == {}


def test_a_stored_pattern_that_is_refused_today_fits_nothing_and_is_told_of(host: Host) -> None:
    """It was taken by a version with another engine: a start must not fail for it."""
    record = definitions.of_policy("/", length("p", 5), False)
    host.vhost.topology.apply(definitions.encode({**record, "pattern": "(?<=a)b"}))
    host.vhost.declare_queue("ab", True, False, False, {}, ME, False)
    assert host.vhost.queues["ab"].settings.max_length == -1
    [(name, why)] = host.vhost.policy_table.problems()
    assert name == "p"
    assert "(?<=" in why


def test_the_broker_looks_after_queues_whose_settings_changed() -> None:
    broker = Broker(lambda payload: b"")
    vhost = broker.registry.add_vhost("/")
    vhost.declare_queue("q", True, False, False, {}, ME, False)
    broker.turn(1)
    broker.registry.set_policy("/", length("p", 5))
    assert broker.has_work()
    assert vhost.updated_queues == []
    broker.registry.delete_policy("/", "p")
    assert vhost.queues["q"].settings.max_length == -1
    with pytest.raises(NotFound, match="vhost nowhere not found"):
        broker.registry.set_policy("nowhere", length("p", 5))
    with pytest.raises(NotFound, match="no operator policy 'p'"):
        broker.registry.delete_policy("/", "p", operator=True)


# -- streams, and the type of queues


def test_a_policy_of_streams_holds_for_streams_only(host: Host) -> None:
    stream, other = host.queue("s", x_queue_type="stream"), host.queue("q")
    policy = Policy("p", "", {"max-age": "1h", "max-length-bytes": 7}, apply_to="streams")
    assert host.set(policy) == ["s"]
    assert (stream.settings.max_age_ms, stream.settings.retain_bytes) == (3_600_000, 7)
    assert host.vhost.policy_table.of_queue(stream, False) is policy
    assert host.vhost.policy_table.of_queue(other, False) is None
    assert host.set(Policy("p", "", {"max-age": "1h"}, apply_to="classic_queues")) == ["s"]
    assert stream.settings.max_age_ms == -1


def test_the_shorter_age_of_policy_and_argument_is_taken(host: Host) -> None:
    stream = host.queue("s", x_queue_type="stream", x_max_age="2h")
    for age, expected in (("1h", 3_600_000), ("3h", 7_200_000)):
        host.set(Policy("p", "", {"max-age": age}))
        assert stream.settings.max_age_ms == expected


def typed(host: Host, name: str, given: dict[str, object] | None = None, **flags: bool) -> object:
    """The type a client's declaration comes to; None: none is said."""
    durable, exclusive = flags.get("durable", True), flags.get("exclusive", False)
    found = host.vhost.with_type(name, durable, exclusive, flags.get("auto", False), given or {})
    return found.get("x-queue-type")


@pytest.mark.parametrize("by_policy", [True, False])
def test_a_queue_whose_declaration_says_no_type_has_the_default_one(
    host: Host, by_policy: bool
) -> None:
    old = host.queue("old")
    assert typed(host, "s") is None
    if by_policy:
        host.set(Policy("p", "", {"default-queue-type": "stream"}, apply_to="queues"))
    else:
        host.vhost.topology.default_queue_type = "stream"
    assert typed(host, "s") == "stream"
    assert typed(host, "s", {"x-queue-type": "classic"}) == "classic"
    assert typed(host, "") is None
    assert typed(host, "s", durable=False) is None
    assert typed(host, "s", exclusive=True) is None
    assert typed(host, "s", auto=True) is None
    assert typed(host, old.name) is None  # it is there, and fits
    host.queue("quorum", x_queue_type="quorum")
    assert typed(host, "quorum") == "quorum"


def test_a_policys_default_type_goes_before_the_virtual_hosts(host: Host) -> None:
    host.vhost.topology.default_queue_type = "quorum"
    host.set(Policy("p", "^s", {"default-queue-type": "stream"}))
    host.set(Policy("no", "^n", {"default-queue-type": "stream"}, apply_to="streams"))
    assert [typed(host, name) for name in ("s", "n", "x")] == ["stream", "quorum", "quorum"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_default_queue_type_outlives_a_restart(checkpoint: bool) -> None:
    rig = Rig()
    rig.broker.registry.set_default_queue_type(rig.vhost, "stream")
    with pytest.raises(PreconditionFailed, match="unsupported queue type 'lazy', expected one of"):
        rig.broker.registry.set_default_queue_type(rig.vhost, "lazy")
    rig.settle_down()
    if checkpoint:
        rig.checkpoint()
    after = rig.restart()
    assert after.vhost.topology.default_queue_type == "stream"
    after.broker.registry.set_default_queue_type(after.vhost, "")
    after.settle_down()
    assert after.restart().vhost.topology.default_queue_type == ""
