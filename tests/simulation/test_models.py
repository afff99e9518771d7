"""The reference models find what they are there for, and nothing in what is right."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tallymark.simulation.history import NEVER, Delivered, History, Line, Published
from tallymark.simulation.http import answer_in
from tallymark.simulation.models.leases import Leases
from tallymark.simulation.models.permissions import READ, WRITE, Permissions
from tallymark.simulation.models.streams import Stream
from tallymark.simulation.plan import Plan, QueuePlan, StreamPlan
from tallymark.simulation.rot import turn_bits
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

LOG = StreamPlan("log")


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def history(world: World) -> History:
    found = History(world, Plan(1, 1.0, queues=(QueuePlan("q"),), streams=(LOG,)))
    for queue in ("q", "log"):
        for n in range(4):
            message = Published(f"{queue}{n}", (queue,), f"{queue}{n} ".encode(), 0, "p.0", n)
            found.publishes(message)
    return found


def row(n: int, is_flagged: bool = False) -> tuple[int, str, bytes, bool]:
    """Lease sequence n, which is message n."""
    return n, f"q{n}", f"q{n} ".encode(), is_flagged


def attached(model: Leases, fence: int, floor: int = 0, next: int = 0) -> None:
    model.attached(model.attaches(), model.known(), 1, fence, floor, next)


@pytest.fixture
def leases(history: History) -> Leases:
    """Two messages leased and read under fence 1."""
    model = Leases(history, "q", "s")
    attached(model, 1)
    model.leased(model.known(), 1, 0, 2, 10)
    model.has_read(0, 2, [row(0), row(1)])
    return model


class TestLeases:
    def test_a_batch_that_is_read_settled_and_taken_over_is_right(self, leases: Leases) -> None:
        leases.has_read(0, 2, [row(0), row(1)])
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        attached(leases, 2, floor=2, next=2)
        assert leases.is_stale(1)
        leases.refused(1)
        leases.passed(2, leases.is_stale(2), "lease")

    def test_a_lease_sequence_means_one_message(self, leases: Leases) -> None:
        with pytest.raises(Violated, match="0 was q0, and is q1"):
            leases.has_read(0, 1, [(0, "q1", b"q1 ", False)])

    def test_leases_are_not_lost(self, leases: Leases) -> None:
        with pytest.raises(Violated, match="leases were lost"):
            attached(leases, 2, next=1)

    def test_a_settlement_is_not_lost(self, leases: Leases) -> None:
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        with pytest.raises(Violated, match="floor 0"):
            attached(leases, 2, next=2)

    def test_a_fenced_reader_is_not_let_through(self, leases: Leases) -> None:
        attached(leases, 2, next=2)
        with pytest.raises(Violated, match="fenced reader"):
            leases.passed(1, leases.is_stale(1), "settle")

    def test_nobody_is_fenced_for_nothing(self, leases: Leases) -> None:
        with pytest.raises(Violated, match="nobody attached"):
            leases.refused(1)

    def test_an_answer_that_was_overtaken_is_of_its_time(self, leases: Leases) -> None:
        known = leases.known()
        leases.leased(known, 1, 2, 9, 10)
        leases.leased(known, 1, 2, 4, 10)
        with pytest.raises(Violated, match="ends at 4, 9 were leased"):
            leases.leased(leases.known(), 1, 2, 4, 10)

    def test_an_attach_whose_answer_was_lost_may_have_fenced(self, leases: Leases) -> None:
        leases.attaches()
        leases.refused(1)

    def test_what_is_leased_is_given_to_nobody_else(self, leases: Leases, history: History) -> None:
        line = history.connected("c", 1)
        with pytest.raises(Violated, match="twice at once"):
            history.delivered(line, "q", "q0", b"q0 ", True)

    def test_what_was_accepted_does_not_come_again(self, leases: Leases, history: History) -> None:
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        with pytest.raises(Violated, match="settled twice"):
            history.delivered(history.connected("c", 1), "q", "q0", b"q0 ", True)

    def test_what_was_released_comes_again_with_a_flag(
        self, leases: Leases, history: History
    ) -> None:
        leases.judged(1, [(0, 1, "released")])
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        line = history.connected("c", 1)
        with pytest.raises(Violated, match="no flag"):
            history.delivered(line, "q", "q0", b"q0 ", False)
        history.delivered(line, "q", "q0", b"q0 ", True)

    def test_verdicts_that_nobody_answered_may_have_been_taken(
        self, leases: Leases, history: History
    ) -> None:
        """The next holder settles before the one that sent them hears of them."""
        leases.judges([(0, 1, "released")])
        attached(leases, 2, next=2)
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        line = history.connected("c", 1)
        history.delivered(line, "q", "q0", b"q0 ", True)
        with pytest.raises(Violated, match="settled twice: q1"):
            history.delivered(line, "q", "q1", b"q1 ", True)

    def test_an_answer_to_verdicts_counts_after_the_next_holders_settlement(
        self, leases: Leases, history: History
    ) -> None:
        leases.judges([(0, 2, "released")])
        attached(leases, 2, next=2)
        leases.settles(2)
        leases.judged(1, [(0, 2, "released")])
        leases.settled(leases.known(), 2, 2)
        history.delivered(history.connected("c", 1), "q", "q0", b"q0 ", True)

    def test_verdicts_of_an_earlier_holder_are_forgotten(
        self, leases: Leases, history: History
    ) -> None:
        leases.judged(1, [(0, 1, "released")])
        attached(leases, 2, next=2)
        leases.begins(2, 0)
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        with pytest.raises(Violated, match="settled twice"):
            history.delivered(history.connected("c", 1), "q", "q0", b"q0 ", True)

    def test_a_late_answer_to_verdicts_does_not_bring_back_what_is_forgotten(
        self, leases: Leases, history: History
    ) -> None:
        """Seed 8201788: it came after the next holder had begun, and before it settled."""
        leases.judges([(0, 1, "released")])
        attached(leases, 2, next=2)
        leases.begins(2, 0)
        leases.judged(1, [(0, 1, "released")])
        leases.settles(2)
        leases.settled(leases.known(), 2, 2)
        with pytest.raises(Violated, match="settled twice"):
            history.delivered(history.connected("c", 1), "q", "q0", b"q0 ", True)


class TestStreams:
    def test_an_offset_means_one_message(self, history: History) -> None:
        model = Stream(history, LOG)
        model.read(0, 2, [(0, "log0", b"log0 "), (1, "log1", b"log1 ")])
        with pytest.raises(Violated, match="offset 0 was log0, and is log2"):
            model.read(0, 1, [(0, "log2", b"log2 ")])

    def test_a_confirmed_message_is_not_lost(self, history: History) -> None:
        model = Stream(history, LOG)
        history.confirmed("log1")
        model.read(0, 1, [(0, "log0", b"log0 ")])
        with pytest.raises(Violated, match="lost: log1"):
            model.check_end(0, 1)

    def test_order_is_the_publishers(self, history: History) -> None:
        model = Stream(history, LOG)
        model.read(0, 2, [(0, "log1", b"log1 "), (1, "log0", b"log0 ")])
        with pytest.raises(Violated, match="out of order"):
            model.check_end(0, 2)

    def test_an_answer_is_never_silently_shorter(self, history: History) -> None:
        rows = [(1, "log1", b"log1 ")]
        Stream(history, LOG, is_numbered=True).read(0, 2, rows)
        with pytest.raises(Violated, match="0 to 2 was read as 1 messages"):
            Stream(history, LOG).read(0, 2, rows)

    def test_without_retention_nothing_goes(self, history: History) -> None:
        with pytest.raises(Violated, match="may lose"):
            Stream(history, LOG).begins_at(1, "reader", 1)


class TestTimeOuts:
    """A message that was held for a second too long comes again, on the same line."""

    @staticmethod
    def late(world: World, history: History, is_answered: bool) -> tuple[Line, Delivered]:
        """Return a line and its second delivery, of a message whose first one was held too long."""
        line = history.connected("c", 1)
        first = history.delivered(line, "q", "q0", b"q0 ", False)
        first.void_ns = first.at_ns + SECOND_NS
        world.now_ns = first.void_ns
        if is_answered:
            history.answers(first, "release")
        return line, history.delivered(line, "q", "q0", b"q0 ", True)

    def test_an_answer_that_crosses_the_next_delivery_may_be_one_to_it(
        self, world: World, history: History
    ) -> None:
        line, second = self.late(world, history, is_answered=True)
        second.void_ns = second.at_ns
        history.delivered(line, "q", "q0", b"q0 ", True)

    def test_one_that_was_under_way_for_too_long_is_not(
        self, world: World, history: History
    ) -> None:
        line, _ = self.late(world, history, is_answered=True)
        assert history.answered_late_ns(line, "q", "q0", SECOND_NS) == world.now_ns
        world.now_ns += SECOND_NS
        assert history.answered_late_ns(line, "q", "q0", SECOND_NS) == NEVER

    def test_a_delivery_that_a_late_answer_gave_back_may_arrive_behind_the_next_ones_end(
        self, world: World, history: History
    ) -> None:
        line, second = self.late(world, history, is_answered=True)
        second.void_ns = second.at_ns
        world.now_ns += 1
        other = history.connected("d", 1)
        history.answers(history.delivered(other, "q", "q0", b"q0 ", True), "accept")
        world.now_ns += 1
        late_ns = history.answered_late_ns(line, "q", "q0", SECOND_NS)
        history.delivered(line, "q", "q0", b"q0 ", True, late_ns=late_ns)
        with pytest.raises(Violated, match="settled twice: q0"):
            history.delivered(other, "q", "q0", b"q0 ", True)

    def test_where_nobody_answered_the_next_delivery_is_held(
        self, world: World, history: History
    ) -> None:
        line, _ = self.late(world, history, is_answered=False)
        assert history.answered_late_ns(line, "q", "q0", SECOND_NS) == NEVER
        with pytest.raises(Violated, match="delivered twice at once: q0"):
            history.delivered(line, "q", "q0", b"q0 ", True)


class TestTimeToLive:
    @staticmethod
    def delivered(waited_s: float | None, hangs_s: float = 0.0) -> None:
        """Have a message that lives for 500 ms delivered 3.6 s after it was published, to a client
        that had nothing to take that long before; None: it takes each at once. hangs_s: time for
        which something hung meanwhile."""
        world = World(1)
        world.troubles.add(world.now_ns, hangs_s)
        history = History(world, Plan(1, 1.0, queues=(QueuePlan("q", ttl_ms=500),)))
        history.publishes(Published("q0", ("q",), b"q0 ", world.now_ns, "p.0", 0))
        line = history.connected("c", 1)
        world.now_ns += SECOND_NS * 36 // 10
        if waited_s is not None:
            line.waited_ns = world.now_ns - int(waited_s * SECOND_NS)
        history.delivered(line, "q", "q0", b"q0 ", False)

    @pytest.mark.parametrize("waited_s", [None, 0.0, 0.05])
    def test_what_lived_too_long_is_not_delivered(self, waited_s: float | None) -> None:
        with pytest.raises(Violated, match="expired: q0"):
            self.delivered(waited_s)

    def test_what_something_held_up_may_be_older(self) -> None:
        self.delivered(None, hangs_s=0.2)
        with pytest.raises(Violated, match="expired: q0"):
            self.delivered(None, hangs_s=0.05)

    def test_what_is_sent_again_lives_anew(self, world: World) -> None:
        history = History(world, Plan(1, 1.0, queues=(QueuePlan("q", ttl_ms=500),)))
        message = Published("q0", ("q",), b"q0 ", world.now_ns, "p.0", 0)
        for _ in range(2):
            history.publishes(message)
            world.now_ns += 3 * SECOND_NS
        history.delivered(history.connected("c", 1), "q", "q0", b"q0 ", False)

    def test_what_waited_at_its_client_may_be_older(self) -> None:
        """As where each commit of a client takes a second (seed 9200379)."""
        self.delivered(3.0)


class TestAnswers:
    @pytest.mark.parametrize(("hangs_s", "is_certain"), [(0.0, True), (0.5, False)])
    def test_an_answer_takes_effect_while_nothing_hangs(
        self, world: World, history: History, hangs_s: float, is_certain: bool
    ) -> None:
        line = history.connected("c", 1)
        history.answers(history.delivered(line, "q", "q0", b"q0 ", False), "accept")
        world.troubles.add(world.now_ns, hangs_s)
        world.now_ns += SECOND_NS * 6 // 10
        history.disconnected(line)
        other = history.connected("d", 1)
        if not is_certain:
            history.delivered(other, "q", "q0", b"q0 ", True)
            return
        with pytest.raises(Violated, match="settled twice: q0"):
            history.delivered(other, "q", "q0", b"q0 ", True)


class TestTroubles:
    def test_a_time_overlaps_with_some(self) -> None:
        troubles = World(1).troubles
        assert (troubles.end_ns(), troubles.within_ns(0, 9 * SECOND_NS)) == (0, 0)
        troubles.add(2 * SECOND_NS, 3.0)
        troubles.add(4 * SECOND_NS, 2.0)
        assert troubles.end_ns() == 6 * SECOND_NS
        assert troubles.within_ns(0, 9 * SECOND_NS) == 5 * SECOND_NS
        assert troubles.within_ns(3 * SECOND_NS, 4 * SECOND_NS) == SECOND_NS
        assert troubles.within_ns(6 * SECOND_NS, 9 * SECOND_NS) == 0


class TestPermissions:
    def test_a_right_that_was_taken_forbids_what_comes_after(self, world: World) -> None:
        model = Permissions(world, "bob")
        model.confirmed("bob", world.now_ns, "m")
        model.taken(WRITE)
        model.confirmed("bob", world.now_ns, "sent before")
        model.confirmed("ann", world.now_ns + 1, "m")
        with pytest.raises(Violated, match="no right to write"):
            model.confirmed("bob", world.now_ns + 1, "m")
        model.gives(WRITE)
        model.confirmed("bob", world.now_ns + 1, "m")

    def test_a_right_may_be_gone_before_the_broker_says_so(self, world: World) -> None:
        permissions = Permissions(world, "worker")
        permissions.takes(READ)
        assert permissions.is_being_taken(READ)
        assert not permissions.is_being_taken(WRITE)
        permissions.taken(READ)
        assert not permissions.is_being_taken(READ)
        permissions.takes(READ)
        permissions.gives(READ)
        assert not permissions.is_being_taken(READ)

    def test_a_delivery_may_have_been_under_way(self, world: World) -> None:
        model = Permissions(world, "bob")
        model.taken(READ)
        model.delivered("bob", "m")
        world.now_ns += 60 * SECOND_NS
        with pytest.raises(Violated, match="no right to read"):
            model.delivered("bob", "m")


def test_what_nobody_committed_is_seen_by_nobody(history: History) -> None:
    history.publishes(Published("t", ("q",), b"t ", 0, "p.1", 0, work="tx"))
    history.works["tx"] = "open"
    with pytest.raises(Violated, match="published in tx"):
        history.delivered(history.connected("c", 1), "q", "t", b"t ", False)


def test_a_transaction_of_which_somebody_got_a_message_is_whole(history: History) -> None:
    for n in range(2):
        history.publishes(Published(f"t{n}", ("q",), b"t ", 0, "p.1", n, work="tx"))
    history.works["tx"] = "unknown"
    history.check_end()
    history.delivered(history.connected("c", 1), "q", "t0", b"t ", False)  # and never again
    with pytest.raises(Violated, match="half a transaction: tx, 0 of 2"):
        history.check_end()


def test_a_failed_delivery_is_counted_for_ever(history: History) -> None:
    first, second, third = (history.connected("drain q", 1) for _ in range(3))
    history.answers(history.delivered(first, "q", "q0", b"q0 ", False, failures=0), "fail")
    with pytest.raises(Violated, match=r"failure forgotten: q0 .* failed 1 times, not 0"):
        history.delivered(second, "q", "q0", b"q0 ", True, failures=0)
    history.delivered(third, "q", "q0", b"q0 ", True, failures=1)


def test_an_answer_is_whole_when_its_body_is() -> None:
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert answer_in(sized) == (200, {"content-length": "3"}, b"abc")
    assert all(answer_in(sized[:n]) is None for n in range(len(sized)))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    found = answer_in(chunked)
    assert found is not None
    assert found[2] == b"abc"
    assert all(answer_in(chunked[:n]) is None for n in range(len(chunked)))


def test_turned_bits_change_what_is_stored_and_nothing_else(tmp_path: Path) -> None:
    stored = {"1.segment": b"abc" + bytes(100), "2.checkpoint": b"defg", "users.json": b"{}"}
    for name, data in stored.items():
        (tmp_path / name).write_bytes(data)
    assert turn_bits(tmp_path, Random(1))
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found != stored
    assert found["users.json"] == b"{}"
    assert found["1.segment"][3:] == bytes(100)


def test_where_stored_bytes_changed_a_body_is_still_the_one_that_was_published(
    history: History,
) -> None:
    """A message may come twice then, and without a flag; never with other bytes."""
    history.is_damaged = True
    line = history.connected("c", 1)
    for _ in range(2):
        history.delivered(line, "q", "q0", b"q0 ", False)
    with pytest.raises(Violated, match="corrupt: q0"):
        history.delivered(line, "q", "q0", b"q1 ", False)
