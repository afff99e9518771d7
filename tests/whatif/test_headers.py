"""Exchanges that route by headers: those that bindings ask for are read, and no others."""

from __future__ import annotations

import pytest

from tallymark.engine.exchange import HEADERS
from tallymark.whatif.acting import check_acts, known_of
from tallymark.whatif.changes import ChangeRefused, changes_of
from tallymark.whatif.reading import Reader
from tallymark.whatif.recording import Recording
from tallymark.whatif.rows import FromFile
from tallymark.whatif.world import World
from tests.support.engine_rig import Rig, Said
from tests.support.recorded import BlockLog

KINDS = ("order", "mail", "order", "parcel")
MESSAGES = 40


def lived(*asked: str) -> Recording:
    """Messages of several kinds, of which two queues want one each. asked: headers that are read as
    well."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.exchange("sorted", HEADERS)
    for queue, wanted in (("orders", {"kind": "order"}), ("large", {"size": 3, "x-match": "any"})):
        rig.declare(queue)
        rig.vhost.bind_queue(queue, "sorted", "", dict(wanted), 0)
    rig.settle_down()
    for number in range(1, MESSAGES + 1):
        said: dict[str, object] = {"kind": KINDS[number % 4], "size": number % 5, "to": "nobody"}
        log.says[number] = Said(headers=said)
        rig.send("", number, exchange="sorted")
        rig.advance(10)
    rig.settle_down()
    reader = Reader(asked)
    for block in log.read():
        reader.read(FromFile(block))
    return reader.finish()


def entered(fates: dict[tuple[str, str, int], object]) -> dict[str, list[int]]:
    return {name[1]: list(one.ids) for name, one in fates.items()}  # type: ignore[attr-defined]


def test_messages_are_routed_by_their_headers_as_they_were() -> None:
    recording = lived()
    was = entered(recording.fates)
    assert len(was["orders"]) == MESSAGES // 2
    assert len(was["large"]) == MESSAGES // 5
    assert recording.header_names == {"kind", "size"}
    assert {name for one in recording.publishes.headers.values() for said in one.values()
            for name in said} == {"kind", "size"}, "no other is read"  # fmt: skip
    outcome = World(recording).run()
    assert entered(outcome.fates) == was


def test_a_binding_that_asks_for_a_header_gets_what_has_it() -> None:
    bind = {"queue": "large", "exchange": "sorted", "arguments": {"to": "nobody"}}
    [change] = changes_of("change", {"bind": [bind]})
    assert change.headers() == {"to"}
    recording = lived("to")
    was = entered(recording.fates)
    outcome = World(recording, change).run()
    known = sorted({*was["orders"], *was["large"]})  # what no queue took is not in the ledger
    assert len(known) > len(was["large"])
    assert entered(outcome.fates)["large"] == known


def test_a_binding_is_taken_away_by_its_arguments_and_without_them_none_is() -> None:
    recording = lived()
    known = known_of(recording)
    unbind = {"queue": "orders", "exchange": "sorted"}
    [change] = changes_of("change", {"unbind": [{**unbind, "arguments": {"kind": "order"}}]})
    check_acts(change, known)
    assert entered(World(recording, change).run().fates)["orders"] == []
    [change] = changes_of("change", {"unbind": [unbind]})
    with pytest.raises(ChangeRefused, match=r"the arguments {}, expected {.kind.:.order.}$"):
        check_acts(change, known)


@pytest.mark.parametrize("rate", [2, 0.5])
def test_more_and_fewer_messages_keep_their_headers(rate: float) -> None:
    [change] = changes_of("change", {"publishers": [{"exchange": "sorted", "rate": rate}]})
    recording = lived()
    was = {name: len(ids) for name, ids in entered(recording.fates).items()}
    found = {name: len(ids) for name, ids in entered(World(recording, change).run().fates).items()}
    if rate == 2:
        assert found == {name: 2 * count for name, count in was.items()}
    else:
        assert 0 < found["orders"] < was["orders"]
