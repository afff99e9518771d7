"""Streams take each numbered message of a publisher once."""

from __future__ import annotations

import pytest

from tallymark import is_compiled
from tallymark.bridge.names import PUBLISHER_NAME, PUBLISHING_ID
from tallymark.engine import admission
from tallymark.engine.streams import FIRST, Start
from tallymark.stored.records import PUBLISHERS
from tests.engine.test_streams import STREAM, reader, seen
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import manual


def numbered(rig: Rig, first: int, name: str, *ids: int) -> list[int]:
    """Messages first, first + 1, ... that a publisher gave these numbers."""
    found = list(range(first, first + len(ids)))
    for message, id in zip(found, ids, strict=True):
        rig.says[message] = Said(headers={PUBLISHER_NAME: name, PUBLISHING_ID: id})
    return found


def test_what_was_taken_is_confirmed_and_passed_over() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    session = rig.session()
    session.confirming = True
    rig.send("s", *numbered(rig, 1, "p", 1, 2, 3), session=session)
    rig.send("s", *numbered(rig, 4, "p", 2, 3, 4, 4, 9), session=session)
    rig.send("s", *numbered(rig, 9, "p", 5), session=session)
    rig.settle_down()
    assert rig.ready("s") == [1, 2, 3, 6, 8]
    assert rig.confirmed[session.id] == 9
    assert rig.refused == []
    assert rig.dropped("s") == {"duplicate": 4}
    assert queue.deduplication.numbers == {"p": 9}
    rig.broker.check()
    reader(rig, "s", Start(FIRST))
    assert seen(rig) == [1, 2, 3, 6, 8]


def test_publishers_and_streams_do_not_know_of_each_other() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.declare("t", STREAM)
    rig.send("s", *numbered(rig, 1, "p", 7))
    rig.send("s", *numbered(rig, 2, "q", 7))
    rig.send("t", *numbered(rig, 3, "p", 7))
    rig.send("s", 4, 5)
    rig.says[6] = Said(headers={PUBLISHER_NAME: "p"})
    rig.says[7] = Said(headers={PUBLISHING_ID: 7})
    rig.send("s", 6, 7)
    assert rig.ready("s") == [1, 2, 4, 5, 6, 7]
    assert rig.ready("t") == [3]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_highest_number_outlives_a_restart_and_what_was_kept(checkpoint: bool) -> None:
    rig = manual()
    rig.declare("s", {**STREAM, "max-age": "1s"})
    rig.send("s", *numbered(rig, 1, "p", 1, 2, 3))
    rig.send("s", *numbered(rig, 4, "q", 1))
    rig.settle_down()
    rig.advance(5_000)
    assert rig.ready("s") == []
    if checkpoint:
        rig.checkpoint()
    after = rig.restart()
    assert after.vhost.queues["s"].deduplication.numbers == {"p": 3, "q": 1}
    after.send("s", *numbered(after, 5, "p", 3, 4))
    assert after.ready("s") == [6]
    after.broker.check()


def test_number_and_message_are_kept_together_or_not_at_all() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", *numbered(rig, 1, "p", 1))
    rig.settle_down()
    rig.send("s", *numbered(rig, 2, "p", 2))
    rig.settle_down()
    for blocks in range(len(rig.log.blocks) + 1):
        cut = rig.reopened(rig.log.upto(blocks))
        if "s" in cut.vhost.queues:
            ready = cut.ready("s")
            assert cut.vhost.queues["s"].deduplication.numbers == (
                {"p": len(ready)} if ready else {}
            )


def test_the_same_message_to_a_stream_and_to_a_queue() -> None:
    rig = manual()
    stream, queue = rig.declare("s", STREAM), rig.declare("q")
    rig.exchange("both", "fanout", ("s", ""), ("q", ""))
    for first in (1, 3):
        rig.send("", *numbered(rig, first, "p", 1, 2), exchange="both", persistent=False)
    rig.settle_down()
    assert (rig.ready("s"), rig.ready("q")) == ([1, 2], [1, 2, 3, 4])
    rig.checkpoint()
    after = rig.restart()
    assert (after.ready("s"), after.ready("q")) == ([1, 2], [])
    assert (stream.entered, queue.entered) == (4, 4)
    rig.broker.check()
    after.broker.check()


def test_dead_letters_are_never_passed_over() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "s"})
    messages = numbered(rig, 1, "p", 1)
    rig.send("s", *messages)
    rig.send("q", *numbered(rig, 2, "p", 1), ttl=10)
    rig.advance(10)
    assert rig.ready("s") == [1, 2]


@pytest.mark.skipif(is_compiled(), reason="a compiled module has its constants built in")
def test_publishers_that_are_silent_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_PUBLISHERS", 3)
    rig = manual()
    queue = rig.declare("s", STREAM)
    message = 1
    for name in ("a", "b", "c", "a", "d", "e"):
        number = queue.deduplication.numbers.get(name, 0) + 1
        rig.send("s", *numbered(rig, message, name, number))
        message += 1
    assert list(queue.deduplication.numbers) == ["a", "d", "e"]
    rig.settle_down()
    after = rig.restart()
    assert list(after.vhost.queues["s"].deduplication.numbers)[-3:] == ["a", "d", "e"]


def test_a_record_says_only_what_changed() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", *numbered(rig, 1, "p", 1, 2))
    rig.send("s", *numbered(rig, 3, "q", 1))
    rig.send("s", *numbered(rig, 4, "p", 1))
    rig.settle_down()
    kept = [r.blob for block in rig.log.blocks for r in block if r.kind == PUBLISHERS]
    assert kept == [b'{"p":2}', b'{"q":1}']
