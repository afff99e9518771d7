"""Patterns from outside: regular expressions on names, searched for in linear time.

Policies, permissions, queues that are made when they are attached to, the answers of NSQ's auth
servers and the filters of lists all take patterns from clients, operators or remote servers. An
engine that backtracks takes 27 s for `^(a+)+$` and a name of 27 letters. RE2 goes through a name
once, whatever the pattern is, and a pattern that needs too much memory is refused.

A pattern is found anywhere in a name; `^` and `$` are the name's beginning and end. The syntax is
RE2's, which is that of RabbitMQ's PCRE without look-around, references to what a group matched,
atomic groups and possessive repetition. Of look-around there is what RabbitMQ's own examples have:
look-ahead right behind `^`, as in `^(?!amq\\.)`, in a pattern that has no alternatives outside of
groups.
"""

from __future__ import annotations

from typing import Any, Final, final

from tallymark.engine.table_values import wire_bytes

MEMORY_BYTES: Final = 1 << 20
"""Memory limit for one pattern, which also bounds the length of a search."""
REMEMBERED: Final = 1024
"""Number of compiled patterns that are cached."""
SHOWN: Final = 200
"""Number of letters of a pattern shown in an error."""
EVERYTHING: Final = ("", ".*", "^.*$", "^", "^.*")
"""Patterns that match every name and need no engine."""
EMPTY: Final = "^$"
AHEAD: Final = ("(?=", "(?!")


class PatternRefused(Exception):
    """The text is no regular expression, or none that can be searched for in linear time."""


class PatternsUnavailable(PatternRefused):
    """No text can be read as a regular expression."""


@final
class Pattern:
    """A compiled pattern. Immutable."""

    def __init__(
        self, text: str, expression: Any, required: list[Any], excluded: list[Any], is_empty: bool
    ) -> None:
        self.text = text
        self._expression = expression
        """Compiled expression; None: everything matches."""
        self._required = required
        self._excluded = excluded
        self._is_empty = is_empty
        """True if the pattern matches the empty name only."""

    def matches(self, name: str) -> bool:
        """Return whether the pattern is found in the name. O(length of the name)."""
        if self._is_empty:
            return name == ""
        expression = self._expression
        if expression is None:
            return True
        octets = wire_bytes(name)
        for one in self._excluded:
            if one.search(octets) is not None:
                return False
        for one in self._required:
            if one.search(octets) is None:
                return False
        return expression.search(octets) is not None


_known: Final[dict[tuple[str, bool], Pattern]] = {}


def compile_pattern(text: str, ignores_case: bool = False) -> Pattern:
    """Return the compiled pattern, from the cache if it is there.

    Raises:
        PatternRefused: the text begins with the pattern and says what is wrong with it.
    """
    key = (text, ignores_case)
    found = _known.get(key)
    if found is None:
        found = _compile(text, ignores_case)
        if len(_known) >= REMEMBERED:
            _known.clear()
        _known[key] = found
    return found


def problem_of(text: str) -> str:
    """Return why a text is no pattern; empty: it is one."""
    try:
        compile_pattern(text)
    except PatternRefused as error:
        return str(error)
    return ""


def _compile(text: str, ignores_case: bool) -> Pattern:
    if text in EVERYTHING or text == EMPTY:
        return Pattern(text, None, [], [], text == EMPTY)
    try:
        import re2  # a broker without patterns starts without it
    except ImportError as error:  # its package was removed, or replaced, below a running broker
        raise PatternsUnavailable(
            f"{_shown(text)}: no pattern can be read, since re2 cannot be loaded: {error}"
        ) from error
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES
    options.case_sensitive = not ignores_case
    conditions, rest = _conditions(text)
    required: list[Any] = []
    excluded: list[Any] = []
    try:
        for is_required, inner in conditions:
            one = re2.compile(wire_bytes(f"^(?:{inner})"), options)
            (required if is_required else excluded).append(one)
        return Pattern(text, re2.compile(wire_bytes(rest), options), required, excluded, False)
    except re2.error as error:
        raise PatternRefused(f"{_shown(text)}: {_reason(error)}") from None


def _shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if len(said) > SHOWN:
        said = said[:SHOWN] + "..."
    return (
        f"{said}, expected RE2's syntax: no look-ahead but right behind a leading '^', no "
        "look-behind, back references, atomic groups or possessive repetition"
    )


def _conditions(text: str) -> tuple[list[tuple[bool, str]], str]:
    """Split off look-ahead at a pattern's beginning: (whether it is required, pattern), and the
    rest.

    None where it is not understood: RE2 refuses it then.
    """
    found: list[tuple[bool, str]] = []
    at = 1
    while text[:1] == "^" and text[at : at + 3] in AHEAD:
        end = _end_of_group(text, at)
        if end < 0 or text[end : end + 1] in ("*", "+", "?", "{"):
            return [], text
        found.append((text[at + 2] == "=", text[at + 3 : end - 1]))
        at = end
    if not found or _has_alternatives(text, at):
        return [], text
    return found, "^" + text[at:]


def _end_of_group(text: str, start: int) -> int:
    """Return the place behind the group that begins at `start`; -1: it does not end."""
    depth = 0
    at = start
    while at < len(text):
        if text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if depth == 0:
                return at + 1
        at = _behind(text, at)
    return -1


def _has_alternatives(text: str, start: int) -> bool:
    """Return whether there is a `|` outside of groups."""
    at = start
    while at < len(text):
        if text[at] == "|":
            return True
        end = _end_of_group(text, at) if text[at] == "(" else _behind(text, at)
        if end < 0:
            return True
        at = end
    return False


def _behind(text: str, at: int) -> int:
    """Return the place behind what begins at `at`: a letter, an escape, a quotation, a class."""
    if text[at] == "\\":
        if text[at : at + 2] == "\\Q":
            end = text.find("\\E", at)
            return len(text) if end < 0 else end + 2
        return at + 2
    if text[at] != "[":
        return at + 1
    at += 2 if text[at + 1 : at + 2] == "^" else 1
    if text[at : at + 1] == "]":  # a plain letter in the first position
        at += 1
    while at < len(text) and text[at] != "]":
        if text[at] == "\\":
            at += 2
        elif text[at : at + 2] == "[:" and text.find(":]", at) > 0:
            at = text.find(":]", at) + 2
        else:
            at += 1
    return at + 1
