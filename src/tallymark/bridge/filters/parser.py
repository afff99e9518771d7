"""Parser of expressions: from words to nodes, by recursive descent with one method for each level
of precedence.

    condition       and-part OR and-part ...
    and-part        not-part AND not-part ...
    not-part        NOT not-part | test
    test            sum [ = <> != < <= > >= sum
                        | [NOT] LIKE 'pattern' [ESCAPE 'c'] | [NOT] IN (sum, ...)
                        | [NOT] BETWEEN sum AND sum | IS [NOT] NULL ]
    sum             product + - product ...
    product         factor * / % factor ...
    factor          + - factor | constant | field | (condition) | EXISTS(field) | UTC()

BETWEEN is the selector's, %, EXISTS, UTC() and binary constants are the SQL filter's. Integers
divide to integers in selectors (which follow Java), to doubles in SQL filters (as RabbitMQ).
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.filters.errors import FilterError, shown
from tallymark.bridge.filters.fields import Fields
from tallymark.bridge.filters.lexer import (
    BINARY,
    DOUBLE,
    END,
    INTEGER,
    KEYWORD,
    NAME,
    SECTION,
    SIGN,
    STRING,
    Token,
    words,
    wrong,
)
from tallymark.bridge.filters.like import Pattern
from tallymark.bridge.filters.nodes import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    DeliveryMode,
    FieldValue,
    In,
    IsNull,
    JmsId,
    Like,
    Node,
    Not,
    Now,
    Or,
    Signed,
)
from tallymark.bridge.filters.values import (
    ADD,
    DIVIDE,
    EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    LESS,
    LESS_OR_EQUAL,
    MODULO,
    MULTIPLY,
    SUBTRACT,
    UNEQUAL,
)

DEEPEST: Final = 32
"""Maximum nesting of parentheses, NOT and signs."""
_COMPARISONS: Final = {
    "=": EQUAL,
    "<>": UNEQUAL,
    "<": LESS,
    "<=": LESS_OR_EQUAL,
    ">": GREATER,
    ">=": GREATER_OR_EQUAL,
}
_SUMS: Final = {"+": ADD, "-": SUBTRACT}
_PRODUCTS: Final = {"*": MULTIPLY, "/": DIVIDE, "%": MODULO}


@final
class Parser:
    """The parser of one expression."""

    __slots__ = ("_at", "_depth", "_fields", "_sql", "_words", "reads_time")

    def __init__(self, text: str, fields: Fields, sql: bool) -> None:
        """sql: True for an SQL filter, False for a selector. Raises FilterError."""
        self._words = words(text, sql)
        self._at = 0
        self._depth = 0
        self._fields = fields
        self._sql = sql
        self.reads_time = False
        """True if the result depends on the time."""

    def parse(self) -> Node:
        """Return the node of the whole expression. Raises FilterError."""
        found = self._condition()
        if self._next.kind != END:
            raise self._expected("an operator or the end")
        return found

    # -- words

    @property
    def _next(self) -> Token:
        return self._words[self._at]

    def _take(self) -> Token:
        token = self._words[self._at]
        self._at += 1
        return token

    def _is(self, kind: int, text: str) -> bool:
        token = self._words[self._at]
        return token.kind == kind and token.text == text

    def _accept(self, kind: int, text: str) -> bool:
        if not self._is(kind, text):
            return False
        self._at += 1
        return True

    def _expect(self, kind: int, text: str) -> None:
        if not self._accept(kind, text):
            raise self._expected(text)

    def _expected(self, what: str) -> FilterError:
        token = self._next
        return wrong(token.at, f"{token.described()} found, expected {what}")

    def _nest(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise wrong(self._next.at, f"nested deeper than {DEEPEST}")

    # -- levels

    def _condition(self) -> Node:
        parts = [self._and_part()]
        while self._accept(KEYWORD, "OR"):
            parts.append(self._and_part())
        return parts[0] if len(parts) == 1 else Or(parts)

    def _and_part(self) -> Node:
        parts = [self._not_part()]
        while self._accept(KEYWORD, "AND"):
            parts.append(self._not_part())
        return parts[0] if len(parts) == 1 else And(parts)

    def _not_part(self) -> Node:
        if not self._accept(KEYWORD, "NOT"):
            return self._test()
        self._nest()
        found = Not(self._not_part())
        self._depth -= 1
        return found

    def _test(self) -> Node:
        left = self._sum()
        token = self._next
        if token.kind == SIGN and token.text in _COMPARISONS:
            self._take()
            return Comparison(_COMPARISONS[token.text], left, self._sum())
        if self._accept(KEYWORD, "IS"):
            if not isinstance(left, (FieldValue, DeliveryMode, JmsId)):
                raise wrong(token.at, "IS NULL asks about a field, expected its name before it")
            negative = self._accept(KEYWORD, "NOT")
            self._expect(KEYWORD, "NULL")
            return Not(IsNull(left)) if negative else IsNull(left)
        negative = self._accept(KEYWORD, "NOT")
        found = self._matching(left)
        if found is None:
            if negative:
                raise self._expected("LIKE or IN" if self._sql else "LIKE, IN or BETWEEN")
            return left
        return Not(found) if negative else found

    def _matching(self, left: Node) -> Node | None:
        """Return a LIKE, IN or BETWEEN test if one is next; otherwise None."""
        if self._accept(KEYWORD, "LIKE"):
            return Like(left, self._pattern())
        if self._accept(KEYWORD, "IN"):
            self._expect(SIGN, "(")
            items = [self._sum()]
            while self._accept(SIGN, ","):
                items.append(self._sum())
            self._expect(SIGN, ")")
            return In(left, items)
        if self._accept(KEYWORD, "BETWEEN"):
            low = self._sum()
            self._expect(KEYWORD, "AND")
            high = self._sum()
            return And(
                [Comparison(GREATER_OR_EQUAL, left, low), Comparison(LESS_OR_EQUAL, left, high)]
            )
        return None

    def _pattern(self) -> Pattern:
        token = self._next
        pattern = self._string("a pattern: a string")
        escape = ""
        if self._accept(KEYWORD, "ESCAPE"):
            at = self._next.at
            escape = self._string("a string of one character")
            if len(escape) != 1:
                raise wrong(
                    at,
                    f"the escape {shown(escape)} has {len(escape)} characters, expected one",
                )
        try:
            return Pattern(pattern, escape)
        except FilterError as error:
            raise wrong(token.at, error.text) from None

    def _string(self, what: str) -> str:
        token = self._next
        text = token.value
        if token.kind != STRING or not isinstance(text, str):
            raise self._expected(what)
        self._take()
        return text

    def _sum(self) -> Node:
        found = self._product()
        while self._next.kind == SIGN and self._next.text in _SUMS:
            op = _SUMS[self._take().text]
            found = Arithmetic(op, found, self._product(), not self._sql)
        return found

    def _product(self) -> Node:
        found = self._factor()
        while self._next.kind == SIGN and self._next.text in _PRODUCTS:
            if self._next.text == "%" and not self._sql:
                raise self._expected("an operator of selectors")
            op = _PRODUCTS[self._take().text]
            found = Arithmetic(op, found, self._factor(), not self._sql)
        return found

    def _factor(self) -> Node:
        token = self._next
        if token.kind == SIGN:
            if token.text in _SUMS:
                self._take()
                self._nest()
                signed = Signed(self._factor(), token.text == "-")
                self._depth -= 1
                return signed
            if token.text == "(":
                self._take()
                self._nest()
                inside = self._condition()
                self._expect(SIGN, ")")
                self._depth -= 1
                return inside
        elif token.kind in (STRING, BINARY, INTEGER, DOUBLE):
            self._take()
            return Constant(token.value)
        elif token.kind in (NAME, SECTION):
            return self._field()
        elif token.kind == KEYWORD:
            return self._named_constant(token)
        raise self._expected("a field, a constant or (")

    def _named_constant(self, token: Token) -> Node:
        if token.text in ("TRUE", "FALSE"):
            self._take()
            return Constant(token.text == "TRUE")
        if token.text == "UTC":
            self._take()
            self._expect(SIGN, "(")
            self._expect(SIGN, ")")
            self.reads_time = True
            return Now()
        if token.text == "EXISTS":
            self._take()
            self._expect(SIGN, "(")
            if self._next.kind not in (NAME, SECTION):
                raise self._expected("a field")
            field = self._field()
            self._expect(SIGN, ")")
            return Not(IsNull(field))
        if token.text in ("LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE"):
            raise wrong(token.at, f"the function {token.text} is not offered, expected UTC()")
        raise self._expected("a field, a constant or (")

    def _field(self) -> Node:
        """Return the field of the name that is next."""
        token = self._take()
        section = ""
        name = token
        if token.kind == SECTION:
            section = token.text
            if self._next.kind != NAME:
                raise self._expected(f"a field of {section}")
            name = self._take()
        try:
            if self._sql:
                return self._fields.sql(section, name.text)
            return self._fields.selector(name.text)
        except FilterError as error:
            raise wrong(token.at, error.text) from None
