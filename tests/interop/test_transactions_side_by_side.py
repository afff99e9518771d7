"""Transactions beside RabbitMQ 3.10: same traffic, same observations, but where ours is better."""

from __future__ import annotations

import pytest

from tests.interop.side_by_side import Topology, compare
from tests.interop.transaction_topologies import TOPOLOGIES
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=[topology.name for topology in TOPOLOGIES])
def test_same_transactions(topology: Topology, rabbit: RabbitProcess, ours: BrokerProcess) -> None:
    compare(topology, ours.amqp_port, rabbit.port)
