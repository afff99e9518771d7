"""Starting points of stream receivers: the filter `rabbitmq:stream-offset-spec`.

    value        of AMQP type        begins
    first        string, symbol      with the oldest message that is kept
    last         string, symbol      with what was stored last
    next         string, symbol      with what is to come; so does a source that says nothing
    5m, 2h, 7D   string, symbol      with what arrived so long ago
    number       any integer         at that offset, or the first behind it that is kept
    time         timestamp           with what arrived then or later

RabbitMQ treats any other value as `next`; here the link is refused, so that no reader starts at an
unintended place. On a queue that is no stream the filter is not offered: the answer leaves it out.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.filters.errors import FilterError, shown
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.streams import NEXT, TIME, Start, start_of
from tallymark.wire.amqp10.types import Described, Timestamp

OFFSET_SPEC: Final = "rabbitmq:stream-offset-spec"


def start_of_source(
    asked: dict[object, object] | None, supported: dict[object, object], queue: Queue
) -> Start:
    """Return the starting point in a source's filter map; the filter that sets it is added to
    `supported`.

    Raises:
        FilterError: it says nothing that has a meaning.
    """
    for name, value in (asked or {}).items():
        if isinstance(value, Described):
            if value.descriptor != OFFSET_SPEC:
                continue
            said = value.value
        elif name == OFFSET_SPEC:  # as RabbitMQ's own clients for .NET had it at first
            said = value
        else:
            continue
        supported[name] = value
        return _start(said, name, queue)
    return Start(NEXT)


def _start(said: object, name: object, queue: Queue) -> Start:
    if isinstance(said, Timestamp):
        return Start(TIME, int(said))
    if said is not None:
        try:
            return start_of(said, named("queue", queue.name, queue.vhost))
        except PreconditionFailed:
            pass
    raise FilterError(
        f"filter '{name}' ({OFFSET_SPEC}): {shown(said)} found, expected first, last, next, an "
        "offset, a timestamp or an interval such as 5m"
    )
