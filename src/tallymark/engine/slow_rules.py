"""What a subscription may leave lying, and what is to happen to one that leaves more [SC-2, SC-5].

A *rule* says as much as its writer wanted: a limit it does not name is left to the rule before it.
For one subscription the rules that apply are, each overriding what those before it say:

    the general rule
    the topic rule whose key pattern matches a binding key most closely (`stocks.us.*`)
    the policy of its queue (keys slow-consumer-*)
    the rule for its queue by name
    the rule for the subscription by name, then the one by name and topic
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine.topics import TopicTrie, words_of

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue

UNSAID: Final = -1
DEPTH: Final = "depth"
AGE: Final = "age"
COUNT: Final = "count"
RATE: Final = "rate"
LIMITS: Final = (DEPTH, AGE, COUNT, RATE)
"""Bytes of bodies; milliseconds since the oldest message arrived; messages; messages settled per
second, and here less is slow."""

POLICY_PREFIX: Final = "slow-consumer-"
"""A policy's keys are this and the name of a limit, or `policy`."""


@final
class Rule:
    """One section of the configuration, or what several come to."""

    __slots__ = ("age", "count", "depth", "options", "policy", "rate")

    def __init__(
        self,
        depth: int = UNSAID,
        age: int = UNSAID,
        count: int = UNSAID,
        rate: int = UNSAID,
        policy: str = "",
        options: dict[str, object] | None = None,
    ) -> None:
        """Limits: UNSAID, 0 for none, or above. options: of the policy."""
        self.depth = depth
        self.age = age
        self.count = count
        self.rate = rate
        self.policy = policy
        """Name of what is done; "": unsaid."""
        self.options = options or {}

    @property
    def has_limit(self) -> bool:
        """Whether anything can be above, or for the rate below, what is allowed."""
        return self.depth > 0 or self.age > 0 or self.count > 0 or self.rate > 0

    def over(self, later: Rule) -> Rule:
        """This rule where `later` says nothing."""
        return Rule(
            self.depth if later.depth == UNSAID else later.depth,
            self.age if later.age == UNSAID else later.age,
            self.count if later.count == UNSAID else later.count,
            self.rate if later.rate == UNSAID else later.rate,
            later.policy or self.policy,
            later.options if later.policy else self.options,
        )


@final
class SubscriptionRule:
    """A rule for a subscription by name; with a topic only where it is bound so."""

    __slots__ = ("name", "rule", "topic")

    def __init__(self, name: str, topic: str, rule: Rule) -> None:
        self.name = name
        self.topic = topic
        self.rule = rule


@final
class Rules:
    """A whole configuration; replaced as a whole when it changes."""

    __slots__ = ("_by_key", "general", "queues", "subscriptions", "topics")

    def __init__(
        self,
        general: Rule | None = None,
        topics: dict[str, Rule] | None = None,
        queues: dict[str, Rule] | None = None,
        subscriptions: list[SubscriptionRule] | None = None,
    ) -> None:
        self.general = general
        self.topics = topics or {}
        """By key pattern: `*` one word, `#` any number."""
        self.queues = queues or {}
        """By name."""
        self.subscriptions = subscriptions or []
        self._by_key: TopicTrie[str] = TopicTrie()
        for pattern in self.topics:
            self._by_key.add(pattern, pattern)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of any queue; its policies may."""
        return not (self.general or self.topics or self.queues or self.subscriptions)

    def rule_of(self, queue: Queue, keys: list[str]) -> Rule | None:
        """What holds for a subscription that is bound with these keys; None: nothing does."""
        found: Rule | None = self.general
        topic = self._closest(keys)
        for later in (topic, _policy_rule(queue), self.queues.get(queue.name)):
            if later is not None:
                found = later if found is None else found.over(later)
        named = [one for one in self.subscriptions if one.name == queue.name]
        for one in [*(n for n in named if not n.topic), *(n for n in named if n.topic in keys)]:
            found = one.rule if found is None else found.over(one.rule)
        return found if found is not None and found.has_limit else None

    def _closest(self, keys: list[str]) -> Rule | None:
        """Of the topic rules that match any of the keys, the one that says most of it [SC-A5]."""
        best: tuple[tuple[int, int, int, str], Rule] | None = None
        for key in keys:
            for pattern in self._by_key.match(key):
                closeness = _closeness(pattern)
                if best is None or closeness > best[0]:
                    best = (closeness, self.topics[pattern])
        return None if best is None else best[1]


def _closeness(pattern: str) -> tuple[int, int, int, str]:
    """Greater for the pattern that says more: words first, then fewer `#`, then length."""
    words = words_of(pattern)
    plain = sum(1 for word in words if word not in ("*", "#"))
    return plain, -words.count("#"), len(words), pattern


def _policy_rule(queue: Queue) -> Rule | None:
    return queue.settings.slow_rule


def rule_of_definition(definition: dict[str, object]) -> Rule | None:
    """What a policy's definition, checked, says of slow consumers; None: nothing."""
    values: dict[str, int] = {}
    for limit in LIMITS:
        value = definition.get(POLICY_PREFIX + limit)
        values[limit] = value if isinstance(value, int) else UNSAID
    policy = definition.get(POLICY_PREFIX + "policy")
    options = definition.get(POLICY_PREFIX + "options")
    name = policy if isinstance(policy, str) else ""
    if not name and all(value == UNSAID for value in values.values()):
        return None
    return Rule(
        values[DEPTH], values[AGE], values[COUNT], values[RATE], name,
        options if isinstance(options, dict) else None,
    )  # fmt: skip
