"""A connection that breaks is a defect while the broker lives, and expected when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.soak.stage import NAMES, Actor, HungUp, Repeated, Stage
from tests.support.patience import until


class Breaking(Actor):
    """Does something, then loses its connection."""

    def __init__(self, stage: Stage, before: Callable[[], object]) -> None:
        super().__init__(stage, "breaking")
        self._before = before

    def work(self) -> None:
        self._before()
        raise ConnectionResetError("gone")


def test_a_connection_that_breaks_while_the_broker_lives_fails(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    actor = Breaking(stage, lambda: None)
    actor.start()
    stage.rise()
    actor.join()
    assert isinstance(actor.failure, HungUp)
    assert "breaking: ConnectionResetError('gone')" in str(actor.failure)


def test_a_connection_that_a_kill_breaks_is_made_anew(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    actor = Breaking(stage, stage.fall)
    actor.start()
    for life in range(1, 4):
        stage.rise()
        until(lambda life=life: actor.connections == life)  # type: ignore[misc]
        until(lambda: not stage.up.is_set())
    stage.closed.set()
    actor.join()
    assert (actor.failure, stage.life) == (None, 3)


def test_a_loss_that_is_noticed_after_the_restart_was_the_kill(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    def kill_and_restart() -> None:
        stage.fall()
        if stage.life == 1:
            stage.rise()
        else:
            stage.closed.set()

    stage.rise()
    actor = Breaking(stage, kill_and_restart)
    actor.run()
    assert (actor.failure, actor.connections, stage.life) == (None, 2, 2)


def test_a_wrong_answer_is_a_failure_but_where_the_broker_is_gone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    rounds: list[int] = []

    def once() -> None:
        rounds.append(stage.life)
        if len(rounds) == 2:
            stage.fall()  # half an answer
        if len(rounds) > 1:
            raise AssertionError("wrong")

    actor = Repeated(stage, "repeated", 0.0, once)
    actor.start()
    stage.rise()
    until(lambda: len(rounds) == 2)
    until(lambda: not stage.up.is_set())
    assert actor.failure is None
    stage.rise()
    actor.join()
    assert str(actor.failure) == "wrong"
    assert rounds == [1, 1, 2]


def test_the_ports_of_a_stage_are_its_own_for_all_lives(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = Stage(tmp_path), Stage(tmp_path / "other")
    ports = [stage.broker.flags[name] for stage in (one, other) for name in NAMES]
    assert len(set(ports)) == 2 * len(NAMES)
    assert "0" not in ports
