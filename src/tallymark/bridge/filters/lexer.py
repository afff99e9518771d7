"""The words of filter expressions: SQL filters [filtex §6.4] and selectors [JMS 2.0 §3.8.1.1].

kind        SQL filter                              selector
STRING      between ' or ", doubled inside          between ', doubled inside
BINARY      0x48656C                                -
INTEGER     12                                      12, 12L, 0x1F, 017 (octal)
DOUBLE      1.5 1.5E3 5E2                           also 5. .5 1.5F 7D
NAME        a letter, then letters, digits, _       a letter, _ or $, then also digits and .
            between [ and ], doubled inside         between ", doubled inside
SECTION     p. header. ...                          -
KEYWORD     whatever case; a name between brackets or quotes is never one
"""

from __future__ import annotations

import re
from typing import Final, final

from tallymark.bridge.filters.errors import FilterError, shown

LONGEST: Final = 4096
"""Maximum number of characters in an expression [filtex §7.1, as RabbitMQ]."""
MOST_WORDS: Final = 200
"""Maximum number of words in an expression."""

END: Final = 0
STRING: Final = 1
BINARY: Final = 2
INTEGER: Final = 3
DOUBLE: Final = 4
NAME: Final = 5
SECTION: Final = 6
KEYWORD: Final = 7
SIGN: Final = 8

LOGIC: Final = ("AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE")
SQL_KEYWORDS: Final = frozenset(
    (*LOGIC, "EXISTS", "UTC", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE")
)
"""Keywords reserved by the specification, including those of functions that are not offered."""
SELECTOR_KEYWORDS: Final = frozenset((*LOGIC, "BETWEEN"))

_SPACE: Final = re.compile(r"[ \t\f\n\r]+")
_SIGN: Final = re.compile(r"<>|!=|>=|<=|[=<>+\-*/%(),]")
_SQL_STRING: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_SQL_BINARY: Final = re.compile(r"0x([0-9A-Fa-f]*)")
_SQL_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SQL_SECTION: Final = re.compile(
    r"([A-Za-z][A-Za-z_]*|application-properties|message-annotations|delivery-annotations)\."
)
_SQL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SQL_DELIMITED: Final = re.compile(r"\[((?:[^\[\]\x00-\x1f\x7f]|\[\[|\]\])*)\](?!\])")
_JMS_STRING: Final = re.compile(r"'(?:[^']|'')*'")
_JMS_NUMBER: Final = re.compile(
    r"0[xX][0-9A-Fa-f]+[lL]?|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?"
)
_JMS_NAME: Final = re.compile(r"[^\W\d][\w$.]*|\$[\w$.]*")
_JMS_DELIMITED: Final = re.compile(r'"((?:[^"\x00-\x1f\x7f]|"")*)"')
_WORD: Final = re.compile(r"[\w$]")


@final
class Token:
    __slots__ = ("at", "kind", "text", "value")

    def __init__(self, kind: int, at: int, text: str, value: object = None) -> None:
        self.kind = kind
        self.at = at
        """Offset of the word in the expression, from 0."""
        self.text = text
        """Text of the word: keywords in capitals, names without quotes or brackets."""
        self.value = value
        """Value of a constant."""

    def described(self) -> str:
        if self.kind == END:
            return "the end"
        return shown(self.text) if self.kind != NAME else f"the name {shown(self.text)}"


def wrong(at: int, what: str) -> FilterError:
    """Return an error at an offset. In the text characters are counted from 1, as editors do."""
    return FilterError(f"at character {at + 1}: {what}")


def words(text: str, sql: bool) -> list[Token]:
    """Return the expression's words, END last. Raises FilterError."""
    if len(text) > LONGEST:
        raise FilterError(f"{len(text)} characters, at most {LONGEST} are taken")
    found: list[Token] = []
    at = _past_space(text, 0)
    while at < len(text):
        if len(found) == MOST_WORDS:
            raise wrong(at, f"more than {MOST_WORDS} words, constants and signs")
        end = _sql_word(text, at, found) if sql else _selector_word(text, at, found)
        at = _past_space(text, end)
    found.append(Token(END, len(text), ""))
    return found


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _sql_word(text: str, at: int, found: list[Token]) -> int:
    """Append the word that begins here; return its end."""
    first = text[at]
    if first in "'\"":
        return _string(_SQL_STRING, text, at, found)
    if text.startswith("0x", at):
        return _binary(text, at, found)
    if "0" <= first <= "9":
        return _sql_number(text, at, found)
    if first == "[":
        return _delimited(_SQL_DELIMITED, "[", "]", text, at, found)
    section = _SQL_SECTION.match(text, at)
    if section is not None:
        found.append(Token(SECTION, at, section.group(1)))
        return section.end()
    behind_section = bool(found) and found[-1].kind == SECTION
    return _name(_SQL_NAME, SQL_KEYWORDS, behind_section, text, at, found)


def _selector_word(text: str, at: int, found: list[Token]) -> int:
    first = text[at]
    if first == "'":
        return _string(_JMS_STRING, text, at, found)
    if first == '"':
        return _delimited(_JMS_DELIMITED, '"', '"', text, at, found)
    if "0" <= first <= "9" or (first == "." and "0" <= text[at + 1 : at + 2] <= "9"):
        return _selector_number(text, at, found)
    return _name(_JMS_NAME, SELECTOR_KEYWORDS, False, text, at, found)


def _string(kind: re.Pattern[str], text: str, at: int, found: list[Token]) -> int:
    match = kind.match(text, at)
    if match is None:
        raise wrong(at, f"the string {shown(text[at:])} has no end, expected {text[at]}")
    quote = text[at]
    inside = match.group()[1:-1].replace(quote + quote, quote)
    found.append(Token(STRING, at, match.group(), inside))
    return match.end()


def _delimited(
    kind: re.Pattern[str], opening: str, closing: str, text: str, at: int, found: list[Token]
) -> int:
    match = kind.match(text, at)
    if match is None:
        raise wrong(
            at,
            f"the name {shown(text[at:])} has no end or a control character in it, "
            f"expected {closing}",
        )
    name = match.group(1).replace(opening + opening, opening)
    if closing != opening:
        name = name.replace(closing + closing, closing)
    found.append(Token(NAME, at, name))
    return match.end()


def _binary(text: str, at: int, found: list[Token]) -> int:
    match = _SQL_BINARY.match(text, at)
    assert match is not None, text
    digits = match.group(1)
    _refuse_word_at(text, at, match.end())
    if not digits or len(digits) % 2:
        raise wrong(
            at, f"{shown(match.group())} has {len(digits)} digits, expected two for each byte"
        )
    found.append(Token(BINARY, at, match.group(), bytes.fromhex(digits)))
    return match.end()


def _sql_number(text: str, at: int, found: list[Token]) -> int:
    match = _SQL_NUMBER.match(text, at)
    assert match is not None, text
    _refuse_word_at(text, at, match.end())
    whole = match.group(1) is None and match.group(2) is None
    found.append(_number(match.group(), at, whole))
    return match.end()


def _selector_number(text: str, at: int, found: list[Token]) -> int:
    match = _JMS_NUMBER.match(text, at)
    assert match is not None, text
    _refuse_word_at(text, at, match.end())
    word = match.group()
    if word[:2] in ("0x", "0X"):
        value = int(word.rstrip("lL"), 16)
        found.append(Token(INTEGER, at, word, value))
        return match.end()
    suffix = word[-1].lower()
    whole = not any(sign in word for sign in ".eE") and suffix not in "fd"
    if suffix == "l" and not whole:
        raise wrong(at, f"{shown(word)} is no integer, expected no L behind it")
    digits = word[:-1] if suffix in "lfd" else word
    if whole and len(digits) > 1 and digits[0] == "0":
        if digits.strip("01234567"):
            raise wrong(at, f"{shown(word)} begins with 0, expected octal digits")
        found.append(Token(INTEGER, at, word, int(digits, 8)))
    else:
        found.append(_number(digits, at, whole))
    return match.end()


def _number(digits: str, at: int, whole: bool) -> Token:
    if whole:
        return Token(INTEGER, at, digits, int(digits))
    value = float(digits)
    if value - value != 0.0:
        raise wrong(at, f"{shown(digits)} is too large, expected what fits 64 bits of a double")
    return Token(DOUBLE, at, digits, value)


def _refuse_word_at(text: str, at: int, end: int) -> None:
    """Refuse a constant directly before a name: `1st`, `0x1G`, `5.`."""
    if end < len(text) and (_WORD.match(text, end) is not None or text[end] == "."):
        raise wrong(at, f"{shown(text[at : end + 1])} is neither a number nor a name")


def _name(
    kind: re.Pattern[str],
    keywords: frozenset[str],
    behind_section: bool,
    text: str,
    at: int,
    found: list[Token],
) -> int:
    """Append a name, a keyword or a sign; return its end."""
    match = kind.match(text, at)
    if match is not None:
        word = match.group()
        capitals = word.upper()
        if not behind_section and capitals in keywords:
            found.append(Token(KEYWORD, at, capitals))
        else:
            found.append(Token(NAME, at, word))
        return match.end()
    sign = _SIGN.match(text, at)
    if sign is None:
        raise wrong(at, f"{shown(text[at])} begins nothing that is known here")
    found.append(Token(SIGN, at, "<>" if sign.group() == "!=" else sign.group()))
    return sign.end()
