"""The credit rule, alone and beside the rules it replaces [FC-15, FC-16, FC-17]."""

from __future__ import annotations

from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.client.arguments import CREDIT_MAX
from tallymark.client.link import NOTHING, Window


class Rule(Protocol):
    def due(self, credit: int, unsettled: int, settled: int) -> int: ...


class Rule2021:
    """FC-15: a flow when `credit + unsettled <= window/2`, with new credit `window - unsettled`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def due(self, credit: int, unsettled: int, settled: int) -> int:
        return self.size - unsettled if 2 * (credit + unsettled) <= self.size else NOTHING


class RuleToday:
    """FC-16: a flow when settlements since the last one are > 0 and >= credit, adding them."""

    def __init__(self, size: int) -> None:
        self.since = 0

    def due(self, credit: int, unsettled: int, settled: int) -> int:
        self.since += settled
        if self.since > 0 and self.since >= credit:
            due = credit + self.since
            self.since = 0
            return due
        return NOTHING


class RuleOurs:
    """FC-17"""

    def __init__(self, size: int) -> None:
        self.window = Window(size)

    def due(self, credit: int, unsettled: int, settled: int) -> int:
        self.window.held = unsettled
        return self.window.grant(credit)


class Link:
    """A receiver that reads at once, and a sender that always has more."""

    def __init__(self, rule: Rule, size: int) -> None:
        self.rule = rule
        self.credit = size
        self.unsettled = 0
        self.delivered = 0
        self.flows = 0

    def deliver(self) -> None:
        while self.credit:
            self.credit -= 1
            self.unsettled += 1
            self.delivered += 1
            self.look(0)

    def settle(self) -> None:
        self.unsettled -= 1
        self.look(1)

    def look(self, settled: int) -> None:
        due = self.rule.due(self.credit, self.unsettled, settled)
        if due != NOTHING:
            self.credit = due
            self.flows += 1


def throughput(rule: Rule, size: int, leaked: int, rounds: int) -> Link:
    """What gets through when `leaked` messages are never settled and all others are, as they
    come."""
    link = Link(rule, size)
    link.deliver()
    for _ in range(rounds):
        for _ in range(link.unsettled - leaked):
            link.settle()
        link.deliver()
    return link


def test_fc_15_stops_for_good_when_more_than_half_a_window_leaks() -> None:
    stopped = throughput(Rule2021(10), 10, leaked=6, rounds=50)
    assert stopped.delivered == 10  # 6 never settled, 4 settled, and that was it [FC-A3]
    assert throughput(Rule2021(10), 10, leaked=4, rounds=50).delivered > 100


@pytest.mark.parametrize("leaked", range(10))
def test_fc_a3_fc_17_goes_on_with_the_slots_that_are_left(leaked: int) -> None:
    link = throughput(RuleOurs(10), 10, leaked, rounds=50)
    assert link.delivered == 10 + 50 * (10 - leaked)
    assert throughput(RuleOurs(10), 10, 10, rounds=50).delivered == 10


def test_fc_16_is_a_flow_per_message_at_zero_credit_fc_17_is_one_per_turn() -> None:
    """A hundred settled in one turn, and a sender that uses each credit at once."""

    def settled_one_by_one(rule: Rule) -> Link:
        link = Link(rule, 100)
        link.deliver()
        link.flows = 0
        for _ in range(100):
            link.settle()
            link.deliver()
        return link

    assert settled_one_by_one(RuleToday(100)).flows == 100
    link = Link(RuleOurs(100), 100)
    link.deliver()
    link.flows = 0
    link.unsettled = 0  # all of them, before the rule is asked
    link.look(100)
    assert (link.flows, link.credit) == (1, 100)


def test_fc_17_trace() -> None:
    """The table of the rule, W = 4: (buffered, with the application, credit) -> flow."""
    window = Window(4)
    steps = [
        (0, 0, 0, 4),  # attach
        (3, 0, 1, NOTHING),  # 3 arrive
        (1, 2, 1, NOTHING),  # 2 are read
        (1, 1, 1, 2),  # 1 is accepted: 1 <= 2/2
        (3, 1, 0, NOTHING),  # 2 more arrive
        (0, 0, 0, 4),  # 3 are read and settled, with the one that was held, in one turn
    ]
    for buffered, held, credit, due in steps:
        window.buffered, window.held = buffered, held
        assert window.grant(credit) == due


def test_fc_17_window_of_one() -> None:
    window = Window(1)
    assert window.grant(0) == 1
    assert window.grant(1) == NOTHING
    window.held = 1
    assert window.grant(0) == NOTHING


@given(
    st.integers(1, CREDIT_MAX), st.integers(0, 1 << 31), st.integers(0, 1 << 31), st.integers(0, 64)
)
def test_fc_17_never_grants_more_than_is_free_and_never_stalls(
    size: int, buffered: int, held: int, credit: int
) -> None:
    window = Window(size)
    window.buffered, window.held = buffered, held
    due = window.grant(credit)
    free = size - buffered - held
    if due == NOTHING:
        assert credit > 0 or free <= 0  # with no credit and a free slot there is always a flow
    else:
        assert credit < due == free
        assert due + buffered + held <= size


def test_a_window_is_checked() -> None:
    with pytest.raises(ValueError, match="a window of -1, expected 0 to 2147483647"):
        Window(-1)
    with pytest.raises(ValueError, match="2147483648"):
        Window(1 << 31)


def test_handover_forgets_what_the_application_holds() -> None:
    window = Window(4, on_handover=True)
    window.buffered, window.held = 1, 100
    assert window.grant(0) == 3
