"""Dynamic shovels of RabbitMQ as tables of the configuration: they are parameters there, in
definitions, too.

A table says what the parameter said. What a table cannot say is named beside it, and a shovel of
which no table can be made is named alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import quote, urlsplit

from tallymark.shovels.plan import BATCH_MAX, Plan, PlanRefused

COMPONENT: Final = "shovel"
AMQP10: Final = "amqp10"
MEANT: Final = {
    "src-protocol", "src-uri", "src-queue", "src-address", "src-prefetch-count", "prefetch-count",
    "dest-protocol", "dest-uri", "dest-queue", "dest-exchange", "dest-exchange-key",
    "dest-address", "ack-mode", "reconnect-delay", "src-delete-after", "delete-after",
}  # fmt: skip
"""Keys that a table speaks of, or that need no word there."""
FORWARD_HEADERS: Final = {"add-forward-headers", "dest-add-forward-headers"}
"""Keys that ask for the header which each message gets here."""
DEFAULTS: Final = {"ack-mode": "on-confirm", "src-delete-after": "never", "delete-after": "never"}


@final
@dataclass(slots=True)
class Translated:
    """A dynamic shovel in words of the configuration."""

    name: str
    table: dict[str, object] | None
    """The configuration's table, if one can be made."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what is not as it was, or is to be filled in."""

    def lines(self) -> list[str]:
        """Return lines for the configuration file."""
        notes = [f"# {line}" for note in self.notes for line in note.splitlines()]
        if self.table is None:
            return [f"# shovel {self.name!r} has no table:", *notes]
        fields = [f"{key} = {_toml(value)}" for key, value in self.table.items()]
        return [*notes, "[[shovels]]", *fields]


def shovels_in(definitions: Mapping[str, object], here: str) -> list[Translated]:
    """Return the dynamic shovels of definitions. here: address of the broker that takes the
    definitions in, without a virtual host: a shovel's own broker becomes that."""
    found: list[Translated] = []
    names: set[str] = set()
    parameters = definitions.get("parameters")
    for entry in parameters if isinstance(parameters, list) else []:
        if isinstance(entry, dict) and entry.get("component") == COMPONENT:
            name, vhost = str(entry.get("name")), str(entry.get("vhost", "/"))
            if name in names:  # RabbitMQ's are of a virtual host each
                name = f"{name} of {vhost}"
            names.add(name)
            value = entry.get("value")
            found.append(_translated(name, value if isinstance(value, dict) else {}, here, vhost))
    return found


def _translated(name: str, value: dict[str, object], here: str, vhost: str) -> Translated:
    notes = list(_notes(value))
    table: dict[str, object] = {"name": name}
    table["from"] = _address(value, "src", here, vhost, notes)
    table["queue"] = value.get("src-queue", value.get("src-address"))
    table["to"] = _address(value, "dest", here, vhost, notes)
    if "dest-exchange" in value:
        table["to-exchange"] = value["dest-exchange"]
        if "dest-exchange-key" in value:
            table["to-key"] = value["dest-exchange-key"]
    else:
        table["to-queue"] = value.get("dest-queue", value.get("dest-address"))
    if table.get("to-queue", "") is None:
        del table["to-queue"]
        notes.append("it published as the messages were published at first: add to-exchange")
    count = value.get("src-prefetch-count", value.get("prefetch-count"))
    if isinstance(count, int) and 1 <= count <= BATCH_MAX:
        table["batch"] = count
    try:
        Plan.from_table(table)
    except PlanRefused as error:
        reason = str(error)
        if "src-exchange" in value:
            reason = (
                f"it took from exchange {value['src-exchange']!r} by a queue of its own: declare a "
                "queue that is bound to it, and name that"
            )
        return Translated(name, None, [*notes, reason])
    return Translated(name, table, notes)


def _notes(value: dict[str, object]) -> Iterator[str]:
    for key, default in DEFAULTS.items():
        if value.get(key, default) != default:
            if key == "ack-mode":
                yield f"ack-mode was {value[key]!r}: here it is on-confirm"
            else:
                yield f"{key} was {value[key]!r}: this one goes on; `tallymark move` ends"
    for key in sorted(
        value.keys() - MEANT - FORWARD_HEADERS - {"src-exchange", "src-exchange-key"}
    ):
        yield f"{key} = {json.dumps(value[key])} has no place here"


def _address(value: dict[str, object], side: str, here: str, vhost: str, notes: list[str]) -> str:
    """Return the address of a side. RabbitMQ's may be several, and may be the broker itself."""
    given = value.get(f"{side}-uri")
    uris = [str(one) for one in given] if isinstance(given, list) else [str(given or "")]
    if len(uris) > 1:
        notes.append(f"{side}-uri had {len(uris)} addresses: only the first is named")
    uri, _, query = uris[0].partition("?")
    if query:
        notes.append(f"{side}-uri had ?{query}, which has no place here")
    if not urlsplit(uri).hostname:
        return here + (urlsplit(uri).path or "/" + quote(vhost, safe=""))
    scheme, slashes, rest = uri.partition("://")
    return (f"{scheme}10" if value.get(f"{side}-protocol") == AMQP10 else scheme) + slashes + rest


def _toml(value: object) -> str:
    """JSON's texts and numbers are TOML's too, but for surrogates and one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
