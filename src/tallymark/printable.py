"""Text of others on a terminal: names, tags and bodies that clients chose."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with what is not printable as Python writes it: with escape sequences in a name
    or a body, whoever chose it could hide or forge other lines of a terminal.

    >>> print(printable("paid" + chr(27) + "[2J"))
    paid\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else ascii(one)[1:-1] for one in text])


def literal(text: str) -> str:
    """Return what shows such a text in one of rich's, where brackets are marks."""
    from rich.markup import escape

    return escape(printable(text))
