"""Dead letters, settings and streams beside RabbitMQ 3.10: same topology and traffic, same letters.

Skipped where RabbitMQ is not installed. Where ours differs on purpose the topology says so, with
the rule; everything else has to be the same, headers and their types included.
"""

from __future__ import annotations

import pytest

from tests.interop import (
    cycle_topologies,
    dead_letter_topologies,
    queue_life_topologies,
    queue_setting_topologies,
    stream_topologies,
)
from tests.interop.side_by_side import Difference, Notes, Topology, as_ours, compare
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess

TOPOLOGIES = [
    *dead_letter_topologies.TOPOLOGIES,
    *cycle_topologies.TOPOLOGIES,
    *queue_life_topologies.TOPOLOGIES,
    *queue_setting_topologies.TOPOLOGIES,
    *stream_topologies.TOPOLOGIES,
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=[topology.name for topology in TOPOLOGIES])
def test_same_letters(topology: Topology, rabbit: RabbitProcess, ours: BrokerProcess) -> None:
    compare(topology, ours.amqp_port, rabbit.port)


def test_a_difference_that_makes_none_is_an_error() -> None:
    """So that no excuse outlives what it excuses."""
    nothing = Topology("nothing", lambda stage: None, (Difference("DL-0", "", lambda seen: None),))
    with pytest.raises(AssertionError, match="DL-0"):
        as_ours(nothing, Notes([{"depths": {"q": 1}}], {}))
