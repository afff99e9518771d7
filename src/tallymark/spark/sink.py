"""format("tallymark") as a sink: a DataFrame's rows as messages, each batch whole and once.

Where things run: `write` runs in tasks and stages its rows with the broker, on disk and unseen;
`commit` and `abort` run on the driver's side. A commit names everything that was staged; the broker
publishes it in one step and remembers (sink, checkpoint, batch), so that a batch which Spark writes
again after a crash, as it must where it cannot know, is published once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tallymark.spark.client import (
    BrokerRefused,
    BrokerUnreachable,
    Client,
    Endpoint,
    api_path,
    json_of,
)
from tallymark.spark.frames import Encoder
from tallymark.spark.sink_options import ONCE_FORGET_MS, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


class SinkClient(Client):
    """A client that also hands over frames."""

    def stage(self, path: str, query: dict[str, object], frames: bytes) -> int:
        """Stage frames and return the staging's id. A call made again after a lost answer leaves
        something behind that the sink's commit ends. Raises as `call`."""

        def attempt() -> int:
            with self._request("POST", f"{path}?{urlencode(query)}", frames, 0) as response:
                return int(json_of(response.read(), path)["staging"])

        return self._retried(path, attempt)


@dataclass
class Staged(WriterCommitMessage):
    """Messages that one task staged."""

    ids: list[int]
    rows: int


_clients: dict[Endpoint, SinkClient] = {}


class Batches:
    """Common part of the writers of batches and of streams."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a partition; they are on the broker's disk when this returns."""
        options = self._options
        client = _clients.setdefault(options.endpoint, SinkClient(options.endpoint))
        encoder = Encoder(options.exchange, options.routing_key, options.mandatory)
        staged = Staged([], 0)
        try:
            for frames, count in encoder.chunks(iterator):
                query: dict[str, object] = {"count": count}
                if options.expire_ms:
                    query["expires_ms"] = options.expire_ms
                staged.ids.append(client.stage(self._path("stage"), query, frames))
                staged.rows += count
        except Exception:
            self._drop(client, staged.ids)
            raise
        return staged

    def _commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batch: int,
        forget_ms: int = 0,
        target: str = "",
    ) -> None:
        """forget_ms: how long the broker is to know of it; 0: always. target: with which the batch
        is to be known, where a query may write several."""
        client = Client(self._options.endpoint)
        body: dict[str, object] = {
            "identity": self._options.identity, "batch": batch, "staging": _ids(messages),
            "forget_ms": forget_ms, "target": target,
        }  # fmt: skip
        try:
            client.call("POST", self._path("commit"), body)
        finally:
            client.close()

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        client = Client(self._options.endpoint)
        try:
            self._drop(client, _ids(messages))
        finally:
            client.close()

    def _drop(self, client: Client, ids: list[int]) -> None:
        # Stagings that cannot be dropped now end with the sink's next commit, or expire. The
        # failure that led here is the one to raise.
        if ids:
            with suppress(BrokerRefused, BrokerUnreachable):
                client.call("POST", self._path("abort"), {"staging": ids})

    def _path(self, operation: str) -> str:
        return api_path("sinks", self._options.vhost, self._options.sink, operation)


class BatchWriter(Batches, DataSourceArrowWriter):
    """df.write: whole or not at all; once per batchId where one is given."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        batch = self._options.batch
        # A function for foreachBatch may write a batch to two queues, by one name for both.
        self._commit(
            messages, batch or 0, ONCE_FORGET_MS if batch is None else 0, self._options.target
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(Batches, DataSourceStreamArrowWriter):
    """df.writeStream: each batch whole and once."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _ids(messages: Sequence[Any]) -> list[int]:
    return [id for message in messages if isinstance(message, Staged) for id in message.ids]
