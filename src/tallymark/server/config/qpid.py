"""Qpid's configuration of slow consumers, as a `[slow_consumers]` section [SC-5, SC-6].

    <consumer>                       depth, messageAge, messageCount, policy: the general section
    <queue name="..."> <consumer>    of one queue; without a name it is the general section
    <topic key="..."> <consumer>     of the topics that the pattern matches
    <queues>, <topics>               around several of these

A file need not have one root. The published example spells messageAge `<maessageAge>` and ends it
with `</messageAge>`: that is read as it was meant, with a warning. Any other element that is not
known is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from tallymark.server.config import slow_consumers as config_slow
from tallymark.server.config.kinds import Wrong

MISSPELT: Final = re.compile(r"<(/?)maessageAge\b")
PROLOG: Final = re.compile(r"\s*<\?xml[^>]*\?>")
ROOT: Final = "tallymark-import"
LIMITS: Final = {
    "depth": "depth", "messageAge": "message_age", "messageCount": "message_count",
}  # fmt: skip
"""Element and the key that says the same: bytes, milliseconds, messages."""


class QpidRefused(Exception):
    """The file is malformed; the text names the line, the element, and what was expected there."""


@dataclass(slots=True)
class Imported:
    """Definitions that were read."""

    value: dict[str, Any]
    """A [slow_consumers] section, checked."""
    warnings: list[str]


@dataclass(slots=True)
class Element:
    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def refuse(self, why: str) -> QpidRefused:
        return QpidRefused(f"line {self.line}: <{self.name}>: {why}")

    def allow(self, *names: str) -> list[Element]:
        """The children, all of which must have one of these names. Raises QpidRefused."""
        for child in self.children:
            if child.name not in names:
                where = "the file" if self.name == ROOT else f"<{self.name}>"
                raise QpidRefused(
                    f"line {child.line}: unknown element <{child.name}> in {where}, expected "
                    f"{', '.join(f'<{name}>' for name in names) or 'none'}"
                )
        if self.children and self.text.strip():
            raise self.refuse(f"{self.text.strip()!r} beside its elements, expected no text")
        return self.children

    def attribute(self, *names: str) -> str:
        """The only attribute it may have, under one of these names; "" where it has none. Raises
        QpidRefused."""
        for name in self.attributes:
            if name not in names:
                raise self.refuse(f"unknown attribute {name!r}, expected {' or '.join(names)}")
        return next(iter(self.attributes.values()), "")


def read_qpid(text: str) -> Imported:
    """Raises QpidRefused."""
    warnings: list[str] = []
    section = _Section()
    section.read(_parsed(_corrected(text, warnings)))
    if not section.value:
        raise QpidRefused("no <consumer> in it, expected one, or several in <queue> or <topic>")
    try:
        config_slow.parse(section.value)
    except Wrong as error:
        raise QpidRefused(str(error)) from error
    return Imported(section.value, warnings)


def _corrected(text: str, warnings: list[str]) -> str:
    """Return the lines with the published example's misspelling corrected."""
    for found in MISSPELT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        warnings.append(f"line {line}: <{found[1]}maessageAge> is read as <{found[1]}messageAge>")
    text = MISSPELT.sub(r"<\1messageAge", text)
    return PROLOG.sub(lambda prolog: "\n" * prolog[0].count("\n"), text, count=1)


def _parsed(text: str) -> Element:
    """Raises QpidRefused."""
    root = Element(ROOT, {}, 1)
    path = [root]
    parser = expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        if name != ROOT:
            made = Element(name, attributes, parser.CurrentLineNumber)
            path[-1].children.append(made)
            path.append(made)

    def end(name: str) -> None:
        if name != ROOT:
            path.pop()

    def data(found: str) -> None:
        path[-1].text += found

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = data
    try:
        # Inside a root a DOCTYPE is an error, and with it entities that expand without end.
        parser.Parse(f"<{ROOT}>{text}</{ROOT}>", True)
    except expat.ExpatError as error:
        raise QpidRefused(
            f"line {error.lineno}: not well-formed: {expat.errors.messages[error.code]}"
        ) from error
    return root


class _Section:
    """A [slow_consumers] section as it comes together."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}

    def read(self, root: Element) -> None:
        for one in root.allow("consumer", "queue", "topic", "queues", "topics"):
            if one.name == "consumer":
                self._general(one)
            elif one.name == "queue":
                self._queue(one)
            elif one.name == "topic":
                self._topic(one)
            else:
                one.attribute()
                for inner in one.allow(one.name.removesuffix("s")):
                    self._queue(inner) if one.name == "queues" else self._topic(inner)

    def _general(self, consumer: Element) -> None:
        if any(name in self.value for name in config_slow.RULE):
            raise consumer.refuse("a second general section, expected one")
        self.value |= _rule(consumer)

    def _queue(self, queue: Element) -> None:
        name = queue.attribute("name")
        for consumer in queue.allow("consumer"):
            if name:
                self._add("queues", {"name": name, **_rule(consumer)})
            else:
                self._general(consumer)

    def _topic(self, topic: Element) -> None:
        key = topic.attribute("key", "name")
        if not key:
            raise topic.refuse("no attribute 'key', expected a pattern such as stocks.us.*")
        for consumer in topic.allow("consumer"):
            self._add("topics", {"key": key, **_rule(consumer)})

    def _add(self, section: str, rule: dict[str, Any]) -> None:
        self.value.setdefault(section, []).append(rule)


def _rule(consumer: Element) -> dict[str, Any]:
    """Raises QpidRefused."""
    consumer.attribute()
    rule: dict[str, Any] = {}
    for one in consumer.allow(*LIMITS, "policy"):
        key = LIMITS.get(one.name, "policy")
        if key in rule:
            raise one.refuse("there twice, expected once")
        if key == "policy":
            rule |= _policy(one)
        else:
            rule[key] = _number(one)
    return rule


def _policy(policy: Element) -> dict[str, Any]:
    name = policy.attribute("name")
    if not name:
        raise policy.refuse("no attribute 'name', expected a policy such as Delete")
    options: dict[str, Any] = {}
    for group in policy.allow("options"):
        for option in group.allow("option"):
            option.allow()
            for given in option.attributes:
                if given not in ("name", "value"):
                    raise option.refuse(f"unknown attribute {given!r}, expected name and value")
            if len(option.attributes) != 2:
                raise option.refuse("expected the attributes name and value")
            if option.attributes["name"] in options:
                raise option.refuse(f"{option.attributes['name']!r} twice, expected once")
            options[option.attributes["name"]] = _word(option.attributes["value"])
    return {"policy": name, "options": options} if options else {"policy": name}


def _word(text: str) -> bool | str:
    """An option's value, true and false as such [SC-D2]."""
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _number(one: Element) -> int:
    one.attribute()
    one.allow()
    text = one.text.strip()
    if not (text.isascii() and text.isdigit()):
        raise one.refuse(f"{text!r}, expected a whole number, 0 or more")
    return int(text)


# -- as TOML


def as_toml(value: dict[str, Any]) -> str:
    """Return the section as TOML, for a configuration file."""
    lines = ["[slow_consumers]"]
    lines += [_line(key, one) for key, one in value.items() if key not in config_slow.SECTIONS]
    for section in config_slow.SECTIONS:
        for table in value.get(section, ()):
            lines += ["", f"[[slow_consumers.{section}]]"]
            lines += [_line(key, one) for key, one in table.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_quoted(name)} = {_scalar(one)}" for name, one in value.items())
        return f"{key} = {{ {inner} }}"
    return f"{key} = {_scalar(value)}"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _scalar(name)


def _scalar(value: Any) -> str:
    """JSON's texts, numbers, true and false are TOML's too, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
