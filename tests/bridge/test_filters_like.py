"""LIKE against a table, against an oracle, and against patterns that are made to take long."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.bridge.filters.errors import FilterError
from tallymark.bridge.filters.like import LOOKS, Pattern

TABLE = [
    ("", "", True),
    ("", "a", False),
    ("%", "", True),
    ("%", "anything", True),
    ("%%", "", True),
    ("%%%", "a", True),
    ("_", "", False),
    ("_", "a", True),
    ("_", "ab", False),
    ("_", "🥕", True),
    ("__%", "a", False),
    ("__%", "ab", True),
    ("%_%", "", False),
    ("%_%", "a", True),
    ("abc", "abc", True),
    ("abc", "abcd", False),
    ("a%", "abc", True),
    ("a%", "ba", False),
    ("%c", "abc", True),
    ("%c", "cab", False),
    ("a%c", "ac", True),
    ("a%c", "abcabc", True),
    ("a%a", "a", False),
    ("a%a", "aa", True),
    ("%b%", "abc", True),
    ("%b%", "ac", False),
    ("a_c", "abc", True),
    ("a_c", "ac", False),
    ("%ab_ab%", "abcab", True),
    ("%ab_ab%", "ababab", False),
    ("%aab%", "aaab", True),
    ("%a_b%c_d%", "xaabxaxbc_dcxd", True),
    ("a%b%c", "abbc", True),
    ("a%b%c", "acb", False),
    ("%a%a%a%", "aa", False),
    ("a%_b", "ab", False),
    ("a%_b", "axb", True),
    ("_%_%_", "ab", False),
    ("_%_%_", "abc", True),
    (".*[a]?$^\\", ".*[a]?$^\\", True),
    (".*", "anything", False),
    ("a\nb", "a\nb", True),
    ("a%b", "a\n\r\nb", True),
    ("a_b", "a\nb", True),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), TABLE)
def test_table(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern, "").matches(text) is expected


ESCAPES = [
    ("a!%", "!", "a%", True),
    ("a!%", "!", "ab", False),
    ("!_b", "!", "_b", True),
    ("!_b", "!", "ab", False),
    ("!!", "!", "!", True),
    ("!a", "!", "a", True),
    ("%!%%", "!", "5%off", True),
    ("%!%%", "!", "5 off", False),
    ("%%", "%", "%", True),  # the escape is stronger
    ("%%", "%", "a", False),
    ("a__", "_", "a_", True),
    ("a🥕%", "🥕", "a%", True),
]


@pytest.mark.parametrize(("pattern", "escape", "text", "expected"), ESCAPES)
def test_escapes(pattern: str, escape: str, text: str, expected: bool) -> None:
    assert Pattern(pattern, escape).matches(text) is expected


@pytest.mark.parametrize("pattern", ["!", "abc!", "%!", "!!!"])
def test_nothing_behind_the_escape(pattern: str) -> None:
    with pytest.raises(FilterError, match="ends in its escape character '!', expected the"):
        Pattern(pattern, "!")


def oracle(pattern: str, text: str) -> bool:
    """The definition, word by word."""

    @lru_cache(None)
    def rest(p: int, t: int) -> bool:
        if p == len(pattern):
            return t == len(text)
        if pattern[p] == "%":
            return any(rest(p + 1, at) for at in range(t, len(text) + 1))
        return t < len(text) and pattern[p] in ("_", text[t]) and rest(p + 1, t + 1)

    return rest(0, 0)


@settings(max_examples=600)
@given(st.text("ab_%", max_size=12), st.text("ab_%", max_size=14))
def test_as_defined(pattern: str, text: str) -> None:
    assert Pattern(pattern, "").matches(text) is oracle(pattern, text)


@settings(max_examples=300)
@given(st.text("abc", max_size=6), st.lists(st.sampled_from(["%", "_", "a", "b"]), max_size=8))
def test_long_texts_of_a_few_letters(seed: str, parts: list[str]) -> None:
    text = seed * 5
    pattern = "%".join(parts)
    assert Pattern(pattern, "").matches(text) is oracle(pattern, text)


def test_many_percents_take_no_longer_than_few() -> None:
    """A matcher that tries again what it passed would be busy for ages."""
    text = "a" * 100_000
    assert Pattern("%a" * 2_000 + "%b", "").matches(text) is False
    assert Pattern("%a" * 2_000 + "%", "").matches(text) is True
    assert Pattern("%_" * 2_000 + "X", "").matches(text) is False


def test_a_text_that_takes_too_long_has_no_answer() -> None:
    pattern = Pattern("%a_b%", "")
    assert pattern.matches("a" * (LOOKS // 2 - 2)) is False
    assert pattern.matches("a" * (LOOKS // 2 - 2) + "ab") is True
    assert pattern.matches("a" * LOOKS) is None
    assert pattern.matches("a" * LOOKS + "b") is None
    assert Pattern("%ab%", "").matches("a" * 10 * LOOKS + "b") is True  # needs no looks
