"""Wall time of records: conversion of engine time for what is stored and sent.

Needed only where the wall clock has jumped since the start (clock.py). A restart reads stored times
as they are: engine time begins there, with wall time.
"""

from __future__ import annotations

import json
from array import array

from tallymark.engine import records
from tallymark.engine.message import Pack, Payload, closed, opened
from tallymark.engine.records import Record

_ANNOTATED = (
    records.ENTERED,
    records.LIVE,
    records.LEASED,
    records.RETURNED,
    records.DEFERRED,
)
"""Kinds of record whose blob is annotations."""


def in_wall_time(told: list[Record], ahead_ms: int) -> list[Record]:
    """Return the records with all times moved by `ahead_ms`. The same list is returned and its
    records are altered, unless ahead_ms is 0. O(records) then."""
    if ahead_ms == 0:
        return told
    blobs: dict[bytes, bytes] = {}
    packed: dict[int, Payload] = {}
    for record in told:
        kind = record.kind
        if record.time_ms:
            record.time_ms = _moved_time(record.time_ms, ahead_ms)
        payload = record.payload
        if payload is not None and payload.pack is not None:
            if id(payload) not in packed:
                packed[id(payload)] = _moved_pack(payload, ahead_ms)
            record.payload = packed[id(payload)]
        if kind in (records.DEFERRED, records.SINK_STAGED):
            record.other = _moved_time(record.other, ahead_ms)
        if record.blob:
            if kind in _ANNOTATED:
                if record.blob not in blobs:
                    blobs[record.blob] = _moved_annotations(record.blob, ahead_ms)
                record.blob = blobs[record.blob]
            elif kind == records.PENDING:
                record.blob = _moved_letter(record.blob, ahead_ms)
            elif kind == records.SINK_STAGED:
                record.blob = _moved_staging(record.blob, ahead_ms)
            elif kind == records.DEFINITION:
                record.blob = _moved_definition(record.blob, ahead_ms)
    return told


def _moved_time(time_ms: int, ahead_ms: int) -> int:
    """Return a stored time moved by `ahead_ms`, at least 1: a clock may be set back to a time
    before 1970."""
    return max(1, time_ms + ahead_ms)


def _moved_pack(payload: Payload, ahead_ms: int) -> Payload:
    """Return a copy of a packed payload for the records; the times of the original stay in engine
    time."""
    pack = payload.pack
    assert pack is not None
    copy = Payload(
        payload.format, payload.raw, payload.cuts, payload.route, payload.routes,
        payload.first_id, _moved_time(payload.arrived_ms, ahead_ms), payload.persistent,
        payload.largest_frame,
    )  # fmt: skip
    copy.position = payload.position
    arrivals = array("Q", [_moved_time(time_ms, ahead_ms) for time_ms in pack.arrivals])
    annotations = [
        closed([_moved_annotations(blob, ahead_ms) if blob else b"" for blob in opened(part)])
        for part in pack.annotations
    ]
    copy.pack = Pack(pack.positions, pack.ids, arrivals, annotations)
    copy.pack.sums = pack.sums
    return copy


def _moved_annotations(blob: bytes, ahead_ms: int) -> bytes:
    said: object = json.loads(blob)
    assert isinstance(said, dict), said
    return _encoded(_moved(said, ("due", "since"), ahead_ms))


def _moved_letter(blob: bytes, ahead_ms: int) -> bytes:
    said: object = json.loads(blob)
    assert isinstance(said, dict), said
    known: object = said["letter"]
    if isinstance(known, dict):
        _moved(known, ("due", "since"), ahead_ms)
    return _encoded(said)


def _moved_staging(blob: bytes, ahead_ms: int) -> bytes:
    said: object = json.loads(blob)
    assert isinstance(said, dict), said
    known: object = said.get("known", "")
    if isinstance(known, str) and known:
        said["known"] = _moved_annotations(known.encode(), ahead_ms).decode()
    return _encoded(said)


def _moved_definition(blob: bytes, ahead_ms: int) -> bytes:
    """Return a definition with its times moved; only a sink's has any."""
    said: object = json.loads(blob)
    assert isinstance(said, dict), said
    return _encoded(_moved(said, ("forget_ms",), ahead_ms)) if said.get("op") == "sink" else blob


def _moved(said: dict[str, object], keys: tuple[str, ...], ahead_ms: int) -> dict[str, object]:
    """Return the object with the times under these keys moved. A missing time, or 0, means none."""
    for key in keys:
        time_ms = said.get(key, 0)
        assert isinstance(time_ms, int), (key, time_ms)
        if time_ms:
            said[key] = _moved_time(time_ms, ahead_ms)
    return said


def _encoded(said: dict[str, object]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
