"""Random expressions over random messages, against a second evaluator that is as plain as can be:
truth tables, exact fractions, definitions word by word."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp10.types import Byte, Float, Symbol, UInt, ULong
from tests.bridge.filter_rig import message, selector, sql
from tests.bridge.test_filters_like import oracle as like_oracle

NAMES = ["a", "b", "c", "d"]
AND = {
    (True, True): True, (True, False): False, (True, None): None,
    (False, True): False, (False, False): False, (False, None): False,
    (None, True): None, (None, False): False, (None, None): None,
}  # fmt: skip
OR = {
    (True, True): True, (True, False): True, (True, None): True,
    (False, True): True, (False, False): False, (False, None): None,
    (None, True): True, (None, False): None, (None, None): None,
}  # fmt: skip
NOT = {True: False, False: True, None: None}


@dataclass
class Tree:
    op: str
    parts: list[Any]

    def text(self) -> str:
        op, parts = self.op, self.parts
        if op == "field":
            return str(parts[0])
        if op == "constant":
            return literal(parts[0])
        words = [part.text() if isinstance(part, Tree) else part for part in parts]
        if op == "NOT":
            return f"(NOT {words[0]})"
        if op == "minus":
            return f"(-{words[0]})"
        if op == "IS NULL":
            return f"({words[0]} IS NULL)"
        if op == "IN":
            return f"({words[0]} IN ({', '.join(words[1:])}))"
        if op == "LIKE":
            return f"({words[0]} LIKE {literal(words[1])})"
        if op == "BETWEEN":
            return f"({words[0]} BETWEEN {words[1]} AND {words[2]})"
        return f"({words[0]} {op} {words[1]})"


def literal(value: object) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"({value!r})" if isinstance(value, (int, float)) and value < 0 else repr(value)


def truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def number(value: object) -> Fraction | None:
    if isinstance(value, (int, float, Fraction)) and not isinstance(value, bool):
        return Fraction(value)
    return None


def evaluate(tree: Tree, fields: dict[str, object], java: bool) -> Any:
    op = tree.op
    if op == "field":
        return fields.get(tree.parts[0])
    if op == "constant":
        return tree.parts[0]
    if op == "IS NULL":
        return evaluate(tree.parts[0], fields, java) is None
    if op == "LIKE":
        value = evaluate(tree.parts[0], fields, java)
        return like_oracle(tree.parts[1], value) if isinstance(value, str) else None
    values = [evaluate(part, fields, java) for part in tree.parts]
    if op == "NOT":
        return NOT[truth(values[0])]
    if op == "AND":
        return AND[truth(values[0]), truth(values[1])]
    if op == "OR":
        return OR[truth(values[0]), truth(values[1])]
    if op == "IN":
        if values[0] is None:
            return None
        return any(other is not None and equal(values[0], other) for other in values[1:])
    if op == "BETWEEN":
        return AND[compared(">=", values[0], values[1]), compared("<=", values[0], values[2])]
    if op in ("=", "<>", "<", "<=", ">", ">="):
        return compared(op, values[0], values[1])
    return calculated(op, values, java)


def equal(a: object, b: object) -> bool:
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return x == y
    return type(a) is type(b) and a == b


def compared(op: str, a: object, b: object) -> bool | None:
    if a is None or b is None:
        return None
    if op == "=":
        return equal(a, b)
    if op == "<>":
        return not equal(a, b)
    left: Any
    right: Any
    left, right = number(a), number(b)
    if left is None or right is None:
        if not (isinstance(a, str) and isinstance(b, str)):
            return False
        left, right = a.encode(), b.encode()
    return bool({"<": left < right, "<=": left <= right, ">": left > right}.get(op, left >= right))


def calculated(op: str, values: list[object], java: bool) -> object:
    numbers = [number(value) for value in values]
    whole = all(isinstance(value, int) for value in values)
    left = numbers[0]
    if left is None or None in numbers:
        return None
    if op == "minus":
        return -values[0]  # type: ignore[operator]
    right = numbers[1]
    assert right is not None
    if op in ("/", "%") and right == 0:
        return None
    if op == "%" or (op == "/" and java and whole):
        if not whole:
            return None
        quotient = int(abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if op == "/" else int(left - quotient * right)
    exact = {"+": left + right, "-": left - right, "*": left * right}.get(op)
    if exact is None:
        exact = left / right
        whole = False
    return int(exact) if whole else float(exact)


# Quarters below 2^20 or so: what is added and multiplied of these is exact in a double.
numbers = st.one_of(st.integers(-20, 20), st.integers(-80, 80).map(lambda n: n / 4))
texts = st.text("ab'%_", max_size=4)
values = st.one_of(numbers, texts, st.booleans())
messages = st.dictionaries(st.sampled_from(NAMES), st.one_of(values, st.none()), max_size=4)
fields = st.sampled_from(NAMES).map(lambda name: Tree("field", [name]))
leaves = st.one_of(fields, values.map(lambda value: Tree("constant", [value])))


def grown(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    two = st.tuples(children, children).map(list)
    return st.one_of(
        st.builds(Tree, st.sampled_from(["AND", "OR"]), two),
        st.builds(Tree, st.just("NOT"), st.tuples(children).map(list)),
        st.builds(Tree, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), two),
        st.builds(Tree, st.sampled_from(["+", "-", "*", "/", "%"]), two),
        st.builds(Tree, st.just("minus"), st.tuples(children).map(list)),
        st.builds(Tree, st.just("IN"), st.lists(children, min_size=2, max_size=4)),
        st.builds(Tree, st.just("IS NULL"), st.tuples(fields).map(list)),
        st.builds(Tree, st.just("LIKE"), st.tuples(children, texts).map(list)),
    )


trees = st.recursive(leaves, grown, max_leaves=8)
betweens = st.builds(Tree, st.just("BETWEEN"), st.tuples(leaves, leaves, leaves).map(list))


def has(tree: Tree, *ops: str) -> bool:
    return tree.op in ops or any(has(p, *ops) for p in tree.parts if isinstance(p, Tree))


def on_the_wire(value: object, narrow: bool) -> object:
    """The same value as another type of AMQP 1.0, which must make no difference."""
    if not narrow or isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return Symbol(value) if value.isascii() else value
    if isinstance(value, float):
        return Float(value)  # quarters are exact in 32 bits
    assert isinstance(value, int)
    return Byte(value) if value < 0 else UInt(value) if value % 2 else ULong(value)


@settings(max_examples=800, deadline=None)
@given(trees, messages, st.booleans())
def test_sql_filters_answer_as_defined(tree: Tree, said: dict[str, object], narrow: bool) -> None:
    cell = message({name: on_the_wire(value, narrow) for name, value in said.items()})
    expected = evaluate(tree, said, False)
    assert sql(tree.text(), cell) is (expected is True), tree.text()
    assert sql(f"NOT {tree.text()}", cell) is (expected is False)


@settings(max_examples=400, deadline=None)
@given(st.one_of(trees, betweens), messages)
def test_selectors_answer_as_defined(tree: Tree, said: dict[str, object]) -> None:
    if has(tree, "%"):
        return
    expected = evaluate(tree, said, True)
    assert selector(tree.text(), message(dict(said))) is (expected is True), tree.text()
    assert selector(f"NOT {tree.text()}", message(dict(said))) is (expected is False)


PRECEDENCE = ["OR", "AND", "NOT", "=", "+", "*"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "1", "2"]), min_size=4, max_size=8),
    st.lists(st.sampled_from([" OR ", " AND ", " = ", "+", "-", "*"]), min_size=7, max_size=7),
    messages,
)
def test_precedence_without_parentheses(
    operands: list[str], operators: list[str], said: dict[str, object]
) -> None:
    """Of a flat expression, against one that is put in parentheses by splitting at the weakest
    operator first."""
    found, compares = [operands[0]], 0
    for operator, operand in zip(operators, operands[1:], strict=False):
        if operator == " = ":
            compares += 1
        if operator in (" OR ", " AND "):
            compares = 0
        if compares > 1:
            operator, compares = "+", 1  # a = b = c is not allowed
        found += [operator, operand]
    cell = message(dict(said))
    assert sql("".join(found), cell) is sql(_bracketed(found), cell), found


def _bracketed(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    for level in ([" OR "], [" AND "], [" = "], ["+", "-"], ["*"]):
        for at in range(len(words) - 2, 0, -2):
            if words[at] in level:
                return f"({_bracketed(words[:at])}){words[at]}({_bracketed(words[at + 1 :])})"
    raise AssertionError(words)
