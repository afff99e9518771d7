"""The consumers of a world, told what those of the recording did."""

from __future__ import annotations

from tallymark.engine.session import RELEASES
from tallymark.whatif import recording as told
from tallymark.whatif.changes import AS_IT_WAS
from tallymark.whatif.crowd import Crowd
from tallymark.whatif.declaring import Declaring
from tallymark.whatif.recording import Recording, Terms
from tests.support.engine_rig import Rig

OWNER = 63


class Known(Declaring):
    """The queues of a rig."""

    def name_of(self, queue: int) -> tuple[str, str, int]:
        return ("/", "orders", 0)


def crowded(rig: Rig) -> Crowd:
    """Return a crowd of one consumer of the queue `orders`, with a window of one message."""
    crowd = Crowd(rig.broker, Recording(), Known(rig.broker, {}, AS_IT_WAS), AS_IT_WAS, 1)
    crowd.come(Terms(OWNER, 62, "/", "orders", "old", 1, -1, True, False, 0, 1000, RELEASES), 0)
    return crowd


def test_a_link_had_asked_together_for_what_it_was_given_in_one_block() -> None:
    """Its credit was renewed as messages came back by time-out, more than its window as it was last
    told. Turns of a world come after all that a block says; nothing it was given may be left."""
    rig = Rig()
    queue = rig.declare("orders")
    crowd = crowded(rig)
    [consumer] = queue.consumers
    for upto in (9, 10, 11, 12):
        crowd.grant(OWNER, 1, upto, block=7)
    assert consumer.limit == 4
    crowd.grant(OWNER, 1, 13, block=8)
    assert consumer.limit == 1, "what nobody was given then is not saved for later"


def test_a_consumer_that_kept_a_message_for_too_long_is_given_nothing_until_it_goes() -> None:
    rig = Rig()
    queue = rig.declare("orders")
    crowd = crowded(rig)
    assert len(queue.consumers) == 1
    crowd.bar(OWNER)
    assert not queue.consumers
    crowd.go(OWNER, told.LOST)
    crowd.bar(OWNER)  # of a consumer that has gone: nothing
