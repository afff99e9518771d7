"""Statistics of nsqd's /stats, as JSON and as text: topics, channels, clients, latencies [NQ-21].

Field names and line forms are nsqd's, so nsqadmin, nsq_stat and whoever else reads them can. What
has no counterpart here:

    backend_depth   everything but what is ephemeral is on disk, so it is the depth
    memory          heap_in_use_bytes is the process's resident memory, gc_total_runs Python's;
                    the others are 0
    clients         has AMQP consumers of a channel's queue as well, their version is "0-9-1"
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, final

from tallymark.bridge.nsq.topic import Topic
from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.queue import Queue
from tallymark.server.quantiles import Window, merged, quantiles
from tallymark.units import EngineMs, WallMs
from tallymark.wire.nsq.names import is_ephemeral

NS_PER_MS: Final = 1_000_000
CHUNK: Final = 100
"""Channels that are looked at in a row, about two milliseconds of work."""
STATE_CONNECTED: Final = 2
STATE_SUBSCRIBED: Final = 3
STATE_CLOSING: Final = 4


@dataclass(slots=True, kw_only=True)
class ClientRow:
    """One client as /stats shows it."""

    queue: Queue | None
    """Queue of the channel it subscribed to."""
    client_id: str
    hostname: str
    version: str
    """Version of its protocol: V2."""
    remote_address: str
    """HOST:PORT."""
    state: int = STATE_SUBSCRIBED
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    """Seconds since 1970."""
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    published: dict[str, int] = field(default_factory=dict)
    """Messages by topic; who has any is a producer."""
    topology_region: str = ""
    topology_zone: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": self.version,
            "remote_address": self.remote_address,
            "state": self.state,
            "ready_count": self.ready_count,
            "in_flight_count": self.in_flight_count,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connect_ts,
            "sample_rate": self.sample_rate,
            "deflate": self.deflate,
            "snappy": self.snappy,
            "user_agent": self.user_agent,
        }
        if self.authed:
            row["authed"] = True
        if self.auth_identity:
            row["auth_identity"] = self.auth_identity
        if self.auth_identity_url:
            row["auth_identity_url"] = self.auth_identity_url
        if self.published:
            row["pub_counts"] = [
                {"topic": topic, "count": count} for topic, count in self.published.items()
            ]
        if self.topology_region:
            row["topology_region"] = self.topology_region
        if self.topology_zone:
            row["topology_zone"] = self.topology_zone
        row["tls"] = self.tls
        row["tls_cipher_suite"] = self.tls_cipher_suite
        row["tls_version"] = self.tls_version
        row["tls_negotiated_protocol"] = ""
        row["tls_negotiated_protocol_is_mutual"] = self.tls  # as Go has it: always of TLS
        return row

    def as_line(self, now_ms: WallMs) -> str:
        port = self.remote_address.rpartition(":")[2]
        named = f"{self.hostname}:{port} {self.user_agent}"
        seconds = max(0, now_ms // 1000 - self.connect_ts)
        connected = go_duration(seconds * 1000)
        if self.published:
            topics = ",".join(f"{topic}={count}" for topic, count in self.published.items())
            return (
                f"[{self.version} {named:<21}] msgs: {sum(self.published.values()):<8} "
                f"topics: {topics} connected: {connected}"
            )
        return (
            f"[{self.version} {named:<21}] state: {self.state} inflt: {self.in_flight_count:<4} "
            f"rdy: {self.ready_count:<4} fin: {self.finish_count:<8} "
            f"re-q: {self.requeue_count:<8} msgs: {self.message_count:<8} connected: {connected}"
        )


@final
class Latencies:
    """End-to-end latency by queue, from a message's publish to its FIN, over a window of time."""

    def __init__(self, percentiles: Sequence[float], window_ms: int) -> None:
        self.percentiles = tuple(percentiles)
        """Empty: nothing is measured."""
        self._window_ms = window_ms
        self._windows: dict[int, Window] = {}
        """Windows of latencies by queue id."""

    def on_finish(
        self, queue: Queue, arrived_ms: EngineMs, now_ms: EngineMs, count: int = 1
    ) -> None:
        """`count` messages of the queue that came at `arrived_ms` were finished."""
        if not self.percentiles:
            return
        window = self._windows.get(queue.id)
        if window is None:
            window = self._windows[queue.id] = Window(self._window_ms, now_ms)
        window.add(now_ms - arrived_ms, now_ms, count)

    def forget_all_but(self, ids: Iterable[int]) -> None:
        """Queues that are no more need no latencies."""
        for gone in self._windows.keys() - set(ids):
            del self._windows[gone]

    def result(self, queues: Iterable[Queue], now_ms: EngineMs) -> dict[str, Any]:
        """Return the latencies of all these queues together, as nsqd shows them: nanoseconds."""
        if not self.percentiles:
            return {"count": 0, "percentiles": None}
        windows = [self._windows[queue.id] for queue in queues if queue.id in self._windows]
        counts = merged(window.counts(now_ms) for window in windows)
        values = quantiles(counts, self.percentiles)
        return {
            "count": sum(counts.values()),
            "percentiles": [
                {"quantile": quantile, "value": value * NS_PER_MS}
                for quantile, value in zip(self.percentiles, values, strict=True)
            ],
        }


@final
class Stats:
    """Everything /stats reads."""

    def __init__(self, topics: Topics, latencies: Latencies) -> None:
        self._topics = topics
        self._latencies = latencies
        self._before = {
            queue.id: queue.entered
            for topic in topics.topics()
            for queue in topic.channels.values()
        }
        """Messages that had entered each queue when the broker started: nsqd counts from there."""

    def collect(
        self,
        clients: Sequence[ClientRow],
        now_ms: EngineMs,
        topic: str = "",
        channel: str = "",
        with_clients: bool = True,
    ) -> Iterator[dict[str, Any] | None]:
        """Topics by name, or the one of that name; with all channels or the one of that name.
        Again and again None, where a caller that has other things to do may do them."""
        self._latencies.forget_all_but(self._topics.broker.queues)
        by_queue: dict[int, list[ClientRow]] = {}
        for client in clients:
            if client.queue is not None:
                by_queue.setdefault(client.queue.id, []).append(client)
        shown = 0
        for one in sorted(self._topics.topics(), key=_name_of):
            if topic and one.name != topic:
                continue
            if channel and channel not in one.channels:
                continue
            rows = []
            for name, queue in sorted(one.channels.items()):
                if channel and name != channel:
                    continue
                of_it = by_queue.get(queue.id, [])
                rows.append(self._channel(name, queue, of_it, now_ms, with_clients))
                shown += 1
                if shown % CHUNK == 0:
                    yield None
            yield self._topic(one, rows, now_ms)

    def _topic(
        self, topic: Topic, channels: list[dict[str, Any]], now_ms: EngineMs
    ) -> dict[str, Any]:
        depth = topic.backlog.ready + topic.backlog.deferred
        return {
            "topic_name": topic.name,
            "channels": channels,
            "depth": depth,
            "backend_depth": 0 if topic.ephemeral else depth,
            "message_count": topic.message_count,
            "message_bytes": topic.message_bytes,
            "paused": topic.paused,
            "e2e_processing_latency": self._latencies.result(topic.channels.values(), now_ms),
        }

    def _channel(
        self,
        name: str,
        queue: Queue,
        clients: list[ClientRow],
        now_ms: EngineMs,
        with_clients: bool,
    ) -> dict[str, Any]:
        return {
            "channel_name": name,
            "depth": queue.ready,
            "backend_depth": 0 if is_ephemeral(name) else queue.ready,
            "in_flight_count": queue.acquired + queue.account.staged,
            "deferred_count": queue.deferred,
            "message_count": queue.entered - self._before.get(queue.id, 0),
            "requeue_count": queue.requeued,
            "timeout_count": queue.timed_out,
            "client_count": len(queue.consumers),
            "clients": clients if with_clients else None,
            "paused": queue.paused,
            "e2e_processing_latency": self._latencies.result([queue], now_ms),
        }


def _name_of(topic: Topic) -> str:
    return topic.name


def memory() -> dict[str, int]:
    """Return this process's memory figures under nsqd's names."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "heap_objects": 0,
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": pages * resource.getpagesize(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One answer of /stats."""

    version: str
    built: str
    """Compiler and version that it was built with, for the first line."""
    health: str
    started_ms: int
    now_ms: WallMs
    memory: dict[str, int] | None
    producers: list[ClientRow] | None

    def as_json(self, topics: Sequence[object]) -> dict[str, Any]:
        """topics: each as `topic_json` made it, or that encoded."""
        found: dict[str, Any] = {
            "version": self.version,
            "health": self.health,
            "start_time": self.started_ms // 1000,
            "topics": topics,
        }
        if self.memory is not None:
            found["memory"] = self.memory
        producers = self.producers
        found["producers"] = None if producers is None else [row.as_json() for row in producers]
        return found

    def as_text(self, topics: Sequence[str]) -> str:
        """topics: each as `topic_text` made it."""
        started = datetime.fromtimestamp(self.started_ms // 1000).astimezone()
        lines = [
            f"nsqd v{self.version} (built w/{self.built})",
            f"start_time {started.isoformat().replace('+00:00', 'Z')}",
            f"uptime {go_duration(self.now_ms - self.started_ms)}",
            "",
            f"Health: {self.health}",
        ]
        if self.memory is not None:
            lines += ["", "Memory:"]
            lines += [f"   {name:<25}\t{value}" for name, value in self.memory.items()]
        lines += ["", "Topics:" if topics else "Topics: None"]
        if topics:
            lines.append("\n\n".join(topics))
        lines += ["", "Producers:" if self.producers else "Producers: None"]
        lines += [f"   {producer.as_line(self.now_ms)}" for producer in self.producers or []]
        return "\n".join(lines) + "\n"


def topic_json(topic: dict[str, Any]) -> dict[str, Any]:
    """A topic of Stats.collect as JSON shows it."""
    return {**topic, "channels": [_with_rows(channel) for channel in topic["channels"]]}


def topic_text(topic: dict[str, Any], now_ms: WallMs) -> str:
    """The lines of a topic of Stats.collect."""
    lines = [_topic_line(topic)]
    for channel in topic["channels"]:
        lines.append(_channel_line(channel))
        lines += [f"        {client.as_line(now_ms)}" for client in channel["clients"] or []]
    return "\n".join(lines)


def _with_rows(channel: dict[str, Any]) -> dict[str, Any]:
    clients = channel["clients"]
    return {**channel, "clients": clients and [row.as_json() for row in clients]}


def _topic_line(topic: dict[str, Any]) -> str:
    mark = "*P " if topic["paused"] else "   "
    return (
        f"{mark}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} "
        f"e2e%: {_latency_text(topic)}"
    )


def _channel_line(channel: dict[str, Any]) -> str:
    mark = "   *P " if channel["paused"] else "      "
    return (
        f"{mark}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
        f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
        f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
        f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
        f"e2e%: {_latency_text(channel)}"
    )


def _latency_text(row: dict[str, Any]) -> str:
    percentiles = row["e2e_processing_latency"]["percentiles"] or []
    return ", ".join(_human(one["value"]) for one in percentiles)


def _human(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def go_duration(ms: int) -> str:
    """Return a duration as Go writes it: 47m49.229s, 5ms, 0s."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    seconds, rest = divmod(max(0, ms), 1000)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    fraction = f".{rest:03}".rstrip("0") if rest else ""
    text = f"{seconds % 60}{fraction}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
