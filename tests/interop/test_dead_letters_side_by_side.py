"""Dead letters, settings and streams beside RabbitMQ 3.10: same topology and traffic, same letters.

Skipped where RabbitMQ is not installed. Where ours differs on purpose the topology says so, with
the rule; everything else has to be the same, headers and their types included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop import (
    cycle_topologies,
    dead_letter_topologies,
    queue_life_topologies,
    queue_setting_topologies,
    stream_topologies,
)
from tests.interop.side_by_side import Difference, Notes, Topology, as_ours, observe
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

TOPOLOGIES = [
    *dead_letter_topologies.TOPOLOGIES,
    *cycle_topologies.TOPOLOGIES,
    *queue_life_topologies.TOPOLOGIES,
    *queue_setting_topologies.TOPOLOGIES,
    *stream_topologies.TOPOLOGIES,
]

pytestmark = pytest.mark.skipif("INTEROP_PORT" in os.environ, reason="starts both brokers itself")


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitProcess]:
    """A private RabbitMQ for this module."""
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed")
    with RabbitProcess(script, tmp_path_factory.mktemp("rabbitmq")) as process:
        if not process.version.startswith("3.10."):
            pytest.skip(f"compared is RabbitMQ 3.10, installed is {process.version}")
        yield process


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that has only these queues: its names are those of the topologies."""
    with BrokerProcess(tmp_path_factory.mktemp("side-by-side") / "data") as process:
        yield process


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=[topology.name for topology in TOPOLOGIES])
def test_same_letters(topology: Topology, rabbit: RabbitProcess, ours: BrokerProcess) -> None:
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(observe, topology, rabbit.port)
        seen = observe(topology, ours.amqp_port).seen
        expected = as_ours(topology, theirs.result())
    assert expected
    for number, (note, wanted) in enumerate(zip(seen, expected, strict=False)):
        assert note == wanted, f"note {number} of {len(expected)}"
    assert len(seen) == len(expected)


def test_a_difference_that_makes_none_is_an_error() -> None:
    """So that no excuse outlives what it excuses."""
    nothing = Topology("nothing", lambda stage: None, (Difference("DL-0", "", lambda seen: None),))
    with pytest.raises(AssertionError, match="DL-0"):
        as_ours(nothing, Notes([{"depths": {"q": 1}}], {}))
