"""The options of a write with format("tallymark"), checked before anything is asked of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from tallymark.spark.broker_options import DEFAULT_ENDPOINT, OF_BROKER, endpoints_of
from tallymark.spark.client import Endpoint
from tallymark.spark.option_values import SECURITY_OF_KAFKA, number, truth, unknown_option
from tallymark.spark.options import OF_A_TABLE, own_options

KNOWN: Final = {
    **OF_BROKER,
    "queue": "the queue to publish to; or",
    "exchange": "the exchange to publish to",
    "routingKey": "the routing key of all rows (the column routing_key)",
    "mandatory": "whether a row that reaches no queue fails the write (true)",
    "sink": "name by which the broker recognises repeated writes; required for streams",
    "checkpoint": "names the one writer of the sink, new with each new checkpoint; required for "
    "streams",
    "batchId": "of a batch: its number; the same one again does nothing",
    "expireMs": "ms after which the broker drops what a killed job staged (21600000)",
}
_SPELLING: Final = {name.lower(): name for name in KNOWN}
OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "url",
    "topic": "queue",
    "kafka.transactional.id": "sink",
    **SECURITY_OF_KAFKA,
}
"""Options of Spark's sink for Kafka, and what serves their purpose here."""
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname")
ONCE_FORGET_MS: Final = 3_600_000
"""Milliseconds for which the broker remembers a write without batchId: for so long its commit may
be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of the sink as plain values."""

    endpoint: Endpoint = DEFAULT_ENDPOINT
    vhost: str = "/"
    exchange: str = ""
    routing_key: str | None = None
    """Routing key of all rows; None: each row has its own."""
    mandatory: bool = True
    sink: str = ""
    identity: str = ""
    batch: int | None = None
    expire_ms: int = 0
    """0: the broker's default."""

    @property
    def target(self) -> str:
        """Queue or exchange that rows are published to, in words."""
        if not self.exchange:
            return f"queue {self.routing_key!r}"
        with_key = "" if self.routing_key is None else f" with routing key {self.routing_key!r}"
        return f"exchange {self.exchange!r}{with_key}"

    @staticmethod
    def parse(given: Mapping[str, str]) -> SinkOptions:
        """Parse the options. Raises ValueError for an unknown option (naming the nearest known
        one), for a value out of range and for options that do not go together."""
        options = _spelled(given)
        queue, exchange = options.get("queue", ""), options.get("exchange", "")
        key = options.get("routingKey")
        if bool(queue) == bool(exchange):
            raise ValueError(
                f"queue={queue!r} and exchange={exchange!r}: expected one of these options, where "
                f"to publish; {OF_A_TABLE}"
            )
        if queue and key is not None:
            raise ValueError("option routingKey goes with exchange, not with queue")
        return SinkOptions(
            endpoint=endpoints_of(options)[0],
            vhost=options.get("vhost", "/"),
            exchange=exchange,
            routing_key=queue or key,
            mandatory=truth(options, "mandatory", True),
            sink=options.get("sink", ""),
            identity=options.get("checkpoint", ""),
            batch=number(options, "batchId", 0, 0) if "batchId" in options else None,
            expire_ms=number(options, "expireMs", 0, 0),
        )

    def for_stream(self) -> SinkOptions:
        """Itself, if it is enough for a stream. Raises ValueError."""
        if self.batch is not None:
            raise ValueError("option batchId is for batches: a stream numbers its own")
        self._check_names()
        return self

    def for_batch(self) -> SinkOptions:
        """Return the options of a batch; without a batchId, with a sink of its own, since the write
        cannot be repeated. Raises ValueError."""
        if self.batch is not None:
            self._check_names()
            return self
        if self.identity:
            raise ValueError(
                "option checkpoint needs batchId: without it a write cannot be told from another"
            )
        once = str(uuid4())
        return SinkOptions(
            endpoint=self.endpoint, vhost=self.vhost, exchange=self.exchange,
            routing_key=self.routing_key, mandatory=self.mandatory,
            sink=f"{self.sink or 'spark'}.{once}", identity=once, expire_ms=self.expire_ms,
        )  # fmt: skip

    def _check_names(self) -> None:
        if not self.sink:
            raise ValueError(
                'option "sink" is missing: a name by which the broker knows what was written, one '
                "per query"
            )
        if not self.identity:
            raise ValueError(
                'option "checkpoint" is missing: it names the one writer of the sink, and has to '
                "be new when the query's checkpoint is: its numbers begin again then"
            )


def _spelled(given: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for name, value in own_options(given).items():
        if name.lower() in _SPARKS_OWN:
            continue
        known = _SPELLING.get(name.lower())
        if known is None:
            raise unknown_option(name, " for writing", KNOWN, OF_KAFKA)
        options[known] = value
    return options
