"""Consumers that share a limit, beside gets, leases, looks and time to live, against a naive model.

What it must find was seen to be found: with each of these defects put back, one at a time, it fails
within 300 examples with each of three seeds: messages delivered after their time behind a head that
lives longer [DL-4], to consumers or leases; one queue taking all of a shared limit; a message that
was asked for counting toward it; a consumer without acknowledgements ignoring it; a get, a purge, a
count or a deletion that overtakes a delivery; basic.nack that no delivery limit counts [DL-5].
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymark.engine.outcomes import ACCEPTED, FAILED, NACKED, REJECTED, RETURNED
from tests.engine.consumer_model import Client, Spec

queues = st.integers(0, 2)
specs = st.builds(
    Spec,
    durable=st.booleans(),
    no_ack=st.sampled_from([False, False, False, True]),
    prefetch=st.sampled_from([0, 0, 0, 2]),
    ttl=st.sampled_from([None, None, 50]),
    limit=st.sampled_from([None, 0, 1]),
    counts=st.sampled_from(["returns", "returns", "failures"]),
)
publishes = st.tuples(
    st.just("publish"), queues, st.integers(1, 12), st.sampled_from([None, None, 0, 10, 200])
)
looks = st.one_of(
    st.tuples(st.just("get"), queues, st.booleans()),
    st.tuples(st.just("declare"), queues),
    st.tuples(st.just("purge"), queues),
    st.tuples(st.just("delete"), queues),
    st.tuples(st.just("lease"), queues, st.integers(1, 6)),
)
settles = st.tuples(
    st.just("settle"),
    st.integers(0, 9),
    st.sampled_from([ACCEPTED, ACCEPTED, NACKED, NACKED, FAILED, RETURNED, REJECTED]),
)


def behind_long(q: int) -> list[tuple]:
    """Messages of a short time to live between such as live on."""
    return [("publish", q, 2, None), ("publish", q, 2, 10), ("publish", q, 9, None)]


segments = st.one_of(
    st.lists(st.one_of(publishes, publishes, looks), min_size=1, max_size=4),
    st.tuples(publishes, looks).map(list),
    st.lists(publishes, min_size=2, max_size=4),
    queues.map(behind_long),
    queues.map(lambda q: [*behind_long(q), ("wait", 10), ("lease", q, 6)]),
    settles.map(lambda one: [one]),
    st.integers(1, 12).map(lambda n: [("work", n)]),
    st.sampled_from([5, 10, 50, 200]).map(lambda ms: [("wait", ms)]),
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(specs, min_size=1, max_size=3),
    st.integers(0, 4),
    st.lists(segments, min_size=10, max_size=30),
)
def test_dl_4_dl_5_lc_3_what_the_naive_model_says(
    of_queues: list[Spec], limit: int, history: list[list[tuple]]
) -> None:
    client = Client(of_queues, limit)
    for segment in history:
        if segment[0][0] == "work":
            for _ in range(segment[0][1]):
                client.play([("settle", 0, ACCEPTED)])
        else:
            client.play(segment)
