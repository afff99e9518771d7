"""How /management is asked to undo a binding: the one that was bound with these arguments."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tallymark.client.amqp10.management import Reply, conversation
from tallymark.client.topology import Unbind
from tallymark.wire.amqp10.types import ULong

VALUES: list[object] = [
    1.0, True, 1, "1", None, [1, {"a": True}], [1, {"a": 1}], {"a": [2.0]}, {"a": [2]},
]  # fmt: skip
"""Values by which bindings differ, though Python takes some of them for equal."""


def deleted(arguments: dict[str, object], there: list[object]) -> str | None:
    """Return the path that is deleted where such bindings are there; None: nothing is."""
    asking = conversation(Unbind("e", "q", False, "k", arguments))
    assert isinstance(asking, Generator)
    assert next(asking).method == "GET"
    rows = [{"arguments": {"n": n}, "location": f"/{i}"} for i, n in enumerate(there)]
    try:
        asked = asking.send(Reply(200, rows))
    except StopIteration:
        return None
    assert asked.method == "DELETE"
    return asked.path


@pytest.mark.parametrize("at", range(len(VALUES)))
def test_a_binding_is_found_by_its_exact_arguments(at: int) -> None:
    assert deleted({"n": VALUES[at]}, VALUES) == f"/{at}"
    others = VALUES[:at] + VALUES[at + 1 :]
    assert deleted({"n": VALUES[at]}, others) is None


def test_the_width_of_a_number_does_not_matter() -> None:
    assert deleted({"n": 7}, [ULong(7)]) == "/0"
    assert deleted({"n": (7, "x")}, [[ULong(7), "x"]]) == "/0"
