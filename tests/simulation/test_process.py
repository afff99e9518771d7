"""What the world notes of its broker, and what of its remains does not count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tallymark.server import logs
from tallymark.server.config.settings import Config
from tallymark.simulation import playing
from tallymark.simulation.drawing import draw
from tallymark.simulation.network import Network, Weather
from tallymark.simulation.process import Broker
from tallymark.simulation.run import Result
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


class Failing:
    """A request that logs its failure when it is given up."""

    def __del__(self) -> None:
        logs.log_of("http").error("request.failed", error="GeneratorExit")


class Remains:
    """A world of which a request is left, that nothing but a collection of garbage finds."""

    def __init__(self, plan: Any, folder: Path) -> None:
        self.plan = plan
        self.graves = [self, Failing()]

    def play(self) -> Result:
        return Result(self.plan)


@pytest.mark.parametrize("is_in_a_cycle", [True, False])
def test_what_a_dead_process_logs_as_its_remains_are_collected_is_no_mistake(
    is_in_a_cycle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remains(plan: Any, folder: Path) -> Remains:
        made = Remains(plan, folder)
        if not is_in_a_cycle:
            made.graves.pop(0)
        return made

    monkeypatch.setattr(playing, "Run", remains)
    monkeypatch.setattr(playing, "COLLECT_EVERY", 1)
    assert playing.run(draw(1, pairs=False)).failure == ""
