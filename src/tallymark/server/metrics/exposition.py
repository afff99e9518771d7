"""The text that Prometheus reads: all metrics of a node, of queues together or each by itself.

At `/metrics` the queues are added up, so that a scrape of 10,000 queues is as small as one of ten.
At `/metrics/per-object` each queue has samples of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tallymark.server.metrics.broker import of_broker
from tallymark.server.metrics.queues import Totals, of_queues, of_subscriptions
from tallymark.server.metrics.rabbitmq import of_node
from tallymark.server.parts import cut

if TYPE_CHECKING:
    from tallymark.server.node import Node

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SUMMED_AT_ONCE: Final = 500
"""Number of queues that are added up in one part: about a millisecond."""

Turn = Callable[[], Awaitable[None]]
"""Function that waits until the caller may make one part."""


async def render(node: Node, turn: Turn) -> bytes:
    """Return all metrics in the text format, queues added up: those of every virtual host, whoever
    asks, since no sum names one."""
    totals = Totals(node.deleted_queues.since_start())
    for part in cut(node.broker.queues.values(), SUMMED_AT_ONCE):
        await turn()
        totals.add(part)
    found = [_text([*_of_whole(node), *totals.families()]), _of_process()]
    return b"".join(found)


async def render_per_object(node: Node, sees: Callable[[str], bool], turn: Turn) -> bytes:
    """Return all metrics in the text format, those of queues for each by itself. Queues are named
    only in virtual hosts that who asks `sees`; what counts the whole broker counts all."""
    seen = {name: sees(name) for name in node.broker.vhosts}
    found = [_text([*_of_whole(node), *of_subscriptions(node, seen)])]
    samples: dict[bytes, list[bytes]] = {}
    """Samples by the two lines that begin a metric."""
    queues = [queue for queue in node.broker.queues.values() if seen.get(queue.vhost)]
    for part in cut(queues):
        await turn()
        for family in of_queues(part):
            text = _text([family])
            begin = text.index(b"\n", text.index(b"\n") + 1) + 1
            samples.setdefault(text[:begin], []).append(text[begin:])
    for head, of_head in samples.items():
        found += (head, *of_head)
    found.append(_of_process())
    return b"".join(found)


def _of_whole(node: Node) -> Iterable[Metric]:
    yield from of_broker(node)
    yield from of_node(node)


def _text(families: Iterable[Metric]) -> bytes:
    return generate_latest(_Families(families))


def _of_process() -> bytes:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families(Collector):
    """Metrics in the form that the library takes them in."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
