"""Which rule holds for a subscription: sections over sections, value by value [SC-2, SC-5]."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.matching import TopicTrie, words_of
from tallymark.engine.settings import Settings
from tallymark.engine.slow.rules import (
    Rule,
    Rules,
    SubscriptionRule,
    covers,
    in_order,
)


def policy(**values: object) -> Rule | None:
    """The rule in a queue's settings, of a policy's keys; slow-consumer- left out."""
    return Settings({}, {f"slow-consumer-{key}": value for key, value in values.items()}).slow_rule


def test_sc_5_a_later_section_overrides_an_earlier_one_value_by_value() -> None:
    rules = Rules(
        general=Rule(depth=1000, age=60_000, count=50, policy="delete", options={"x": 1}),
        topics={"stocks.#": Rule(count=40, rate=2.5)},
        queues={"q": Rule(depth=0)},
        subscriptions=[SubscriptionRule("q", "", Rule(age=5, policy="notify"))],
    )
    found = rules.rule_of("q", policy(), ["stocks.us"])
    assert found is not None
    assert found.values() == (0, 5, 40, 2.5, "notify", {})
    elsewhere = rules.rule_of("other", policy(), ["news"])
    assert elsewhere is not None
    assert elsewhere.values() == (1000, 60_000, 50, -1, "delete", {"x": 1})


def test_sc_5_the_policy_of_a_queue_stands_between_topic_and_queue_section() -> None:
    rules = Rules(
        general=Rule(count=1, policy="delete"),
        topics={"a": Rule(count=2, depth=2)},
        queues={"named": Rule(count=4)},
    )
    by_policy = rules.rule_of("q", policy(count=3), ["a"])
    assert by_policy is not None
    assert (by_policy.count, by_policy.depth, by_policy.policy) == (3, 2, "delete")
    by_name = rules.rule_of("named", policy(count=3, depth=3), ["a"])
    assert by_name is not None
    assert (by_name.count, by_name.depth) == (4, 3)


def test_a_policy_alone_is_a_rule() -> None:
    found = Rules().rule_of(
        "q", policy(age=7, rate=0.5, policy="Delete", options={"delete-persistent": True}), ["k"]
    )
    assert found is not None
    assert found.values() == (-1, 7, -1, 0.5, "Delete", {"delete-persistent": True})
    assert found.limits() == {"age": 7, "rate": 0.5}


def test_sc_2_a_limit_of_zero_or_none_at_all_is_off() -> None:
    assert Rules().rule_of("q", policy(), ["k"]) is None
    assert Rules(general=Rule(policy="delete")).rule_of("q", policy(), ["k"]) is None
    assert Rules(general=Rule(count=5)).rule_of("q", policy(count=0), ["k"]) is None


def test_sc_a5_a_binding_matches_a_pattern_and_the_most_specific_topic_wins() -> None:
    rules = Rules(
        topics={
            "#": Rule(count=1),
            "stocks.#": Rule(count=2),
            "stocks.*.ibm": Rule(count=3),
            "stocks.us.*": Rule(count=4),
            "stocks.us.ibm": Rule(count=5),
        }
    )

    def count(*keys: str) -> int:
        found = rules.rule_of("q", policy(), list(keys))
        return 0 if found is None else found.count

    assert count("news") == 1
    assert count("stocks.eu.sap") == 2
    assert count("stocks.eu.ibm") == 3
    assert count("stocks.us.sap") == 4
    assert count("stocks.us.ibm") == 5
    assert count("news", "stocks.eu.sap") == 2  # any of its bindings
    assert count("stocks.us.*") == 4
    assert count("stocks.us.#") == 2  # more than stocks.us.* says
    assert count("stocks.*.*") == 2
    assert count("#") == 1
    assert count() == 0


def test_sc_a5_a_subscription_beats_its_topic_and_with_a_topic_itself_without() -> None:
    rules = Rules(
        topics={"stocks.us.*": Rule(count=39, policy="topicDelete")},
        subscriptions=[
            SubscriptionRule("client:sub", "stocks.us.*", Rule(count=9)),
            SubscriptionRule("client:sub", "stocks.#", Rule(count=19, age=3)),
            SubscriptionRule("client:sub", "", Rule(count=29, depth=2)),
            SubscriptionRule("client:sub", "news", Rule(count=49)),
        ],
    )
    found = rules.rule_of("client:sub", policy(), ["stocks.us.ibm"])
    assert found is not None
    assert found.values() == (2, 3, 9, -1, "topicDelete", {})
    elsewhere = rules.rule_of("client:sub", policy(), ["weather"])
    assert elsewhere is not None
    assert elsewhere.count == 29
    other = rules.rule_of("client:other", policy(), ["stocks.us.ibm"])
    assert other is not None
    assert other.count == 39


KEYS = ["", *(".".join(words) for n in (1, 2, 3) for words in itertools.product("ab", repeat=n))]
patterns = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=4).map(".".join)


def matched(pattern: str) -> set[str]:
    """The keys of up to three words that a pattern matches, by the broker's own routing."""
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, pattern)
    return {key for key in KEYS if trie.match(key)}


@given(patterns, patterns)
def test_sc_d3_a_pattern_covers_only_what_has_no_match_beside_it(pattern: str, bound: str) -> None:
    said = covers(in_order(words_of(pattern)), in_order(words_of(bound)))
    is_so = matched(bound) <= matched(pattern)
    if said:
        assert is_so
    elif pattern.count("#") <= 1 and bound.count("#") == 0 and len(words_of(bound)) <= 3:
        assert not is_so


@given(patterns)
def test_the_form_that_patterns_are_compared_in_means_the_same(pattern: str) -> None:
    assert matched(".".join(in_order(words_of(pattern)))) == matched(pattern)


@pytest.mark.parametrize("pattern", ["", "*", "#", "a.*", "#.a", "*.#", "#.*", "a.#.b", "#.a.#"])
def test_every_pattern_covers_itself(pattern: str) -> None:
    words = in_order(words_of(pattern))
    assert covers(words, words)
