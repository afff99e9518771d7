"""Deep backlogs of messages of each of which something else is known: a TTL, a death."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import REJECTED
from tallymark.engine.packing import UNPACK, Packing
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import START_MS, Held, Rig

MANY = 5 * UNPACK + 3
GROUP = 2 * UNPACK
LONG_MS = 1 << 30


def packing(rig: Rig, after: int = 10) -> Rig:
    rig.broker.backlogs.packing = Packing(after=after, group=GROUP, fresh=2)
    return rig


def deep_in_letters(n: int, after: int = 10) -> Rig:
    """A queue of letters, each of which died a millisecond after the one before it; every third
    has a TTL of its own as well, which its death tells."""
    rig = packing(Rig(), after)
    rig.declare("waiting", {"message-ttl": LONG_MS})
    rig.declare("work", {"dead-letter-exchange": "", "dead-letter-routing-key": "waiting"})
    session = rig.session()
    for number in range(n):
        rig.send("work", number, ttl=LONG_MS + number if number % 3 == 0 else -1)
        rig.turn()
        got = rig.take(session, "work")
        assert got is not None
        rig.broker.settlement.settle(session, got[1], got[1], REJECTED)
        rig.turn()
    return rig


def packed_messages(rig: Rig, name: str) -> int:
    """How many messages of the queue are packed with annotations of their own."""
    fresh = rig.vhost.queues[name].lanes.lowest.fresh
    packs = [(piece, piece.payload.pack) for piece in fresh]
    return sum(len(piece) for piece, pack in packs if pack is not None and pack.annotations)


def drained(rig: Rig, name: str) -> list[Held]:
    """Every message, in order, by basic.get."""
    session, found = rig.session(), []
    while (got := rig.take(session, name, no_ack=True)) is not None:
        found.append(got[0])
        rig.turn()
    return found


def stored(messages: list[Held]) -> list[tuple[int, bytes]]:
    known = [(message.number, message.annotations) for message in messages]
    return [(number, b"" if one is None else one.to_bytes()) for number, one in known]


def check_histories(messages: list[Held], n: int) -> None:
    """Each has died once, a while after the one before it, with the TTL it had."""
    assert [message.number for message in messages] == list(range(n))
    times = []
    for message in messages:
        assert message.annotations is not None
        (death,) = message.annotations.deaths
        assert (death.queue, death.reason, death.count) == ("work", "rejected", 1)
        own = LONG_MS + message.number if message.number % 3 == 0 else -1
        assert (death.ttl_ms, message.annotations.ttl_ms) == (own, -1)
        assert message.place == ("", "waiting")
        assert message.annotations.since_ms == death.first_ms
        times.append(death.first_ms)
    assert times == sorted(set(times))


def test_histories_that_all_differ_are_packed_and_come_out_as_they_were() -> None:
    rig = deep_in_letters(MANY)
    assert packed_messages(rig, "waiting") > MANY / 2
    rig.broker.check()
    check_histories(drained(rig, "waiting"), MANY)
    rig.broker.check()


def test_dl_20_packed_histories_survive_a_checkpoint_and_a_restart() -> None:
    rig = deep_in_letters(MANY)
    taken = rig.session()
    for _ in range(UNPACK // 2):
        assert rig.take(taken, "waiting", no_ack=True)
    rig.turn()
    assert packed_messages(rig, "waiting") > MANY / 3
    rig.checkpoint()
    after = packing(rig.restart())
    after.broker.pack_all(after.log.end)
    assert packed_messages(after, "waiting") > MANY / 3
    again = after.restart()
    unpacked = stored(drained(deep_in_letters(MANY, after=10 * MANY), "waiting"))
    for life in (after, again):
        assert stored(drained(life, "waiting")) == unpacked[UNPACK // 2 :]


@pytest.mark.parametrize("pattern", ["..a", "a..", "aab", "abc", "ab.", "a"])
def test_what_is_known_stays_with_its_message(pattern: str) -> None:
    """Runs of messages, of which some share what is known of them and of some nothing is (.)."""
    known = {letter: Annotations(ttl_ms=LONG_MS + ord(letter)) for letter in pattern}
    rig = packing(Rig())
    rig.declare("q")
    expected: list[int] = []
    for number in range(MANY):
        letter = pattern[number // 7 % len(pattern)]
        rig.send("q", number, annotations=None if letter == "." else known[letter])
        rig.turn()
        expected.append(-1 if letter == "." else known[letter].ttl_ms)
    fresh = rig.vhost.queues["q"].lanes.lowest.fresh
    assert len(fresh) < MANY / 2, "nothing is packed"
    found = drained(rig, "q")
    assert [message.number for message in found] == list(range(MANY))
    ttls = [-1 if m.annotations is None else m.annotations.ttl_ms for m in found]
    assert ttls == expected


def test_messages_of_one_history_share_it_again_when_they_are_taken_out() -> None:
    rig = packing(Rig())
    rig.declare("q")
    shared = [Annotations(ttl_ms=LONG_MS), Annotations(ttl_ms=LONG_MS + 1)]
    for number in range(MANY):
        rig.send("q", number, annotations=shared[number // UNPACK % 2])
        rig.turn()
    assert packed_messages(rig, "q") > MANY / 3
    kept = [message.annotations for message in drained(rig, "q")]
    assert len({id(one) for one in kept}) <= 2 * (MANY // UNPACK + 1)


def test_dl_4_packed_letters_expire_when_each_of_them_is_due() -> None:
    rig = packing(Rig())
    rig.tick_ms = 0
    rig.declare("end")
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "end"})
    for number in range(MANY):
        rig.send("q", number, ttl=1000 + number)
        rig.turn()
    assert packed_messages(rig, "q") > MANY / 2
    for number in range(0, MANY, 10):
        rig.advance(START_MS + 999 + number - rig.now_ms)
        assert rig.vhost.queues["end"].ready == number
    rig.advance(MANY)
    assert [message.number for message in drained(rig, "end")] == list(range(MANY))
    rig.broker.check()
