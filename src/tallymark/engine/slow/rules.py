"""Rules for slow consumers: limits on a subscription's backlog, and the action on one that exceeds
them [SC-2, SC-5].

A *rule* need not set all limits: one that it does not set is inherited from the rule before it. For
one subscription these rules apply, each overriding those before it:

    the general rule
    the topic rule whose key pattern matches a binding key most closely (`stocks.us.*`)
    the policy of its queue (keys slow-consumer-*)
    the rule for its queue by name
    the rule for the subscription by name, then the one by name and topic
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.matching import TopicTrie, words_of

UNSAID: Final = -1
DEPTH: Final = "depth"
AGE: Final = "age"
COUNT: Final = "count"
RATE: Final = "rate"
LIMITS: Final = (DEPTH, AGE, COUNT, RATE)
"""Names of the limits: bytes of bodies; milliseconds since the oldest message arrived; messages;
messages settled per second, where a lower value is slow."""

FASTEST: Final = 1_000_000_000
"""Highest limit on the rate, messages settled per second."""
POLICY_PREFIX: Final = "slow-consumer-"
"""Prefix of policy keys, followed by the name of a limit, `policy` or `options`."""


@final
class Rule:
    """One section of the configuration, or several sections combined. Immutable."""

    __slots__ = ("age", "count", "depth", "options", "policy", "rate")

    def __init__(
        self,
        depth: int = UNSAID,
        age: int = UNSAID,
        count: int = UNSAID,
        rate: float = UNSAID,
        policy: str = "",
        options: dict[str, object] | None = None,
    ) -> None:
        """limits: UNSAID, 0 for no limit, or above. options: options of the policy."""
        self.depth = depth
        self.age = age
        self.count = count
        self.rate = rate
        self.policy = policy
        """Name of the action; "": not set by this rule."""
        self.options = options or {}

    @property
    def has_limit(self) -> bool:
        """Return whether the rule has any limit that can be exceeded, or undercut for the rate."""
        return self.depth > 0 or self.age > 0 or self.count > 0 or self.rate > 0

    def values(self) -> tuple[object, ...]:
        """Return all fields, for comparison."""
        return self.depth, self.age, self.count, self.rate, self.policy, self.options

    def limits(self) -> dict[str, object]:
        """Return the limits that are set, by name."""
        found: dict[str, object] = {}
        if self.depth > 0:
            found[DEPTH] = self.depth
        if self.age > 0:
            found[AGE] = self.age
        if self.count > 0:
            found[COUNT] = self.count
        if self.rate > 0:
            found[RATE] = self.rate
        return found

    def followed_by(self, later: Rule) -> Rule:
        """Return this rule overridden by `later`. A field that `later` leaves unset keeps its value
        here; options belong to the policy they are given with."""
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
    """A rule for a subscription by name; with a topic, only where the subscription is bound to that
    topic."""

    __slots__ = ("name", "rule", "topic")

    def __init__(self, name: str, topic: str, rule: Rule) -> None:
        self.name = name
        self.topic = topic
        """Key pattern of the topic; "": any binding."""
        self.rule = rule


@final
class Rules:
    """A whole configuration; replaced as a whole when it changes."""

    __slots__ = ("_by_key", "_by_name", "general", "queues", "subscriptions", "topics")

    def __init__(
        self,
        general: Rule | None = None,
        topics: dict[str, Rule] | None = None,
        queues: dict[str, Rule] | None = None,
        subscriptions: list[SubscriptionRule] | None = None,
    ) -> None:
        self.general = general
        self.topics = topics or {}
        """Rules by key pattern: `*` stands for one word, `#` for any number of words."""
        self.queues = queues or {}
        """Rules by queue name."""
        self.subscriptions = subscriptions or []
        self._by_key: TopicTrie[str] = TopicTrie()
        for pattern in self.topics:
            self._by_key.add(pattern, pattern)
        self._by_name: dict[str, list[SubscriptionRule]] = {}
        for one in self.subscriptions:
            self._by_name.setdefault(one.name, []).append(one)

    def rule_of(self, queue: str, by_policy: Rule | None, keys: list[str]) -> Rule | None:
        """Return the rule for a subscription, by the name of its queue, the rule that the queue's
        policy sets, and its binding keys; None if no limit applies."""
        found = self.general
        for later in (self._of_topic(keys), by_policy, self.queues.get(queue)):
            if later is not None:
                found = later if found is None else found.followed_by(later)
        for one in self._of_subscription(queue, keys):
            found = one.rule if found is None else found.followed_by(one.rule)
        return found if found is not None and found.has_limit else None

    def _of_topic(self, keys: list[str]) -> Rule | None:
        """Return the most specific topic rule whose pattern covers one of the keys [SC-A5]."""
        best = ""
        closest = NOT_CLOSE
        if self.topics:
            for key in keys:
                bound = in_order(words_of(key))
                for pattern in self._by_key.match(".".join(bound)):
                    closeness = _closeness(pattern)
                    if closeness > closest and covers(in_order(words_of(pattern)), bound):
                        best, closest = pattern, closeness
        return None if closest == NOT_CLOSE else self.topics[best]

    def _of_subscription(self, name: str, keys: list[str]) -> list[SubscriptionRule]:
        """Return the rules that apply to a subscription by name, the rule for the closest topic
        last."""
        found: list[SubscriptionRule] = []
        for one in self._by_name.get(name, ()):
            if not one.topic:
                found.insert(0, one)
                continue
            topic = in_order(words_of(one.topic))
            if any(covers(topic, in_order(words_of(key))) for key in keys):
                found.append(one)
        found.sort(key=_topic_closeness)
        return found


NOT_CLOSE: Final = (-1, 0, 0, "")


def _topic_closeness(one: SubscriptionRule) -> tuple[int, int, int, str]:
    return _closeness(one.topic) if one.topic else NOT_CLOSE


def _closeness(pattern: str) -> tuple[int, int, int, str]:
    """Return a sort key that is greater for the more specific pattern: words first, then fewer `#`,
    then length."""
    words = words_of(pattern)
    plain = len([word for word in words if word not in ("*", "#")])
    return plain, -words.count("#"), len(words), pattern


def in_order(words: list[str]) -> list[str]:
    """Return an equivalent pattern with each run of wildcards in one form: `*`s before a single
    `#`."""
    out: list[str] = []
    many = False
    for word in words:
        if word == "#":
            many = True
            continue
        if many and word != "*":
            out.append("#")
            many = False
        out.append(word)
    if many:
        out.append("#")
    return out


def covers(pattern: list[str], bound: list[str]) -> bool:
    """Return whether `pattern` matches every routing key that `bound` matches; both are in the form
    of in_order. True is always right; False may be wrong for patterns with several `#`."""
    end = len(pattern)
    reached = _with_skips(pattern, [0])
    for word in bound:
        after: list[int] = []
        for at in reached:
            if at == end:
                continue
            if pattern[at] == "#":
                after.append(at)
            elif word != "#" and pattern[at] in ("*", word):
                after.append(at + 1)
        reached = _with_skips(pattern, after)
    return end in reached


def _with_skips(pattern: list[str], places: list[int]) -> list[int]:
    """Return these positions in the pattern, and those behind a `#`, which may match no word."""
    found: list[int] = []
    for at in places:
        if at not in found:
            found.append(at)
        if at < len(pattern) and pattern[at] == "#" and at + 1 not in found:
            found.append(at + 1)
    return found


def slow_policy_of(definition: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Return the policy named in a checked definition, and its options; "" if it names none."""
    name = definition.get(POLICY_PREFIX + "policy")
    options = definition.get(POLICY_PREFIX + "options")
    return (
        name if isinstance(name, str) else "",
        options if isinstance(options, dict) else {},
    )


def rule_of_definition(definition: dict[str, object]) -> Rule | None:
    """Return the rule for slow consumers in a policy's checked definition; None if it has none."""
    if not definition:
        return None
    depth, age, count, rate = [definition.get(POLICY_PREFIX + limit) for limit in LIMITS]
    policy, options = slow_policy_of(definition)
    if depth is None and age is None and count is None and rate is None and not policy:
        return None
    return Rule(
        _whole(depth), _whole(age), _whole(count),
        float(rate) if isinstance(rate, (int, float)) else UNSAID, policy, options,
    )  # fmt: skip


def _whole(value: object) -> int:
    return value if isinstance(value, int) else UNSAID
