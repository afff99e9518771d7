"""The consumers of a world, told what those of the recording did."""

from __future__ import annotations

from tallymark.engine.session import RELEASES
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


def test_a_link_had_asked_together_for_what_it_was_given_in_one_block() -> None:
    """Its credit was renewed as messages came back by time-out, more than its window as it was last
    told. Turns of a world come after all that a block says; nothing it was given may be left."""
    rig = Rig()
    queue = rig.declare("orders")
    crowd = Crowd(rig.broker, Recording(), Known(rig.broker, {}, AS_IT_WAS), AS_IT_WAS, 1)
    crowd.come(Terms(OWNER, 62, "/", "orders", "old", 1, -1, True, False, 0, 1000, RELEASES), 0)
    [consumer] = queue.consumers
    for upto in (9, 10, 11, 12):
        crowd.grant(OWNER, 1, upto, block=7)
    assert consumer.limit == 4
    crowd.grant(OWNER, 1, 13, block=8)
    assert consumer.limit == 1, "what nobody was given then is not saved for later"
