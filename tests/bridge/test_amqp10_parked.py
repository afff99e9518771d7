"""Tags settled under a transaction of AMQP 1.0, against a plain dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp10.parked import ParkedTags

ranges = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1]))
outcomes = st.sampled_from([b"", b"accepted", b"rejected", None])


@given(st.lists(st.tuples(outcomes, ranges), max_size=30), ranges)
def test_tx_15_each_tag_has_the_outcome_that_was_noted_last(
    history: list[tuple[bytes | None, tuple[int, int]]], window: tuple[int, int]
) -> None:
    parked, plain = ParkedTags(), {}
    for outcome, (low, high) in history:
        if outcome is None:
            parked.remove(low, high)
            for tag in range(low, high):
                plain.pop(tag, None)
        else:
            parked.put(low, high, (outcome, None))
            plain |= dict.fromkeys(range(low, high), outcome)
        found = {tag: said for a, b, (said, _) in parked for tag in range(a, b)}
        assert found == plain
    low, high = window
    inside = {tag: said for a, b, (said, _) in parked.overlap(low, high) for tag in range(a, b)}
    assert inside == {tag: said for tag, said in plain.items() if low <= tag < high}
