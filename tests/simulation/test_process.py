"""What the world notes of its broker between two rounds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tallymark.server.config.settings import Config
from tallymark.simulation.network import Network, Weather
from tallymark.simulation.process import Broker
from tallymark.simulation.world import SECOND_NS, World


def test_the_time_in_which_publishers_were_held_is_granted(tmp_path: Path) -> None:
    """What they sent enters when they are read again, and lives from then on."""
    world = World(1)
    broker = Broker(world, Network(world, Weather()), tmp_path, Config(data_dir=tmp_path))
    node: Any = SimpleNamespace(alarms=SimpleNamespace(is_holding=False))
    broker.node = node
    began_ns = world.now_ns
    for is_holding in [False, True, True, False, False]:
        node.alarms.is_holding = is_holding
        broker._rounds = 2  # no look at the account
        broker.look()
        world.now_ns += SECOND_NS
    assert world.troubles.within_ns(began_ns, world.now_ns) == 2 * SECOND_NS
