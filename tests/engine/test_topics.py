"""Topic patterns: the trie against a matcher that tries everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.matching import TopicTrie, words_of

WORDS = st.sampled_from(["a", "b", "c", "", "*", "#"])
KEYS = st.lists(WORDS, max_size=6).map(".".join)


def matches_naively(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches_naively(pattern[1:], words[n:]) for n in range(len(words) + 1))
    if not words:
        return False
    return pattern[0] in ("*", words[0]) and matches_naively(pattern[1:], words[1:])


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("usd.stock", "usd.stock", True),
        ("*.stock", "usd.stock", True),
        ("*.stock", "stock", False),
        ("#.stock", "stock", True),
        ("#.stock", "a.b.stock", True),
        ("usd.#", "usd", True),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("#.#", "", True),
        ("*.#", "", False),
        ("*", ".", False),
        ("*.*", ".", True),
        ("a.*", "a.", True),
        ("a.*.#.c", "a.b.c", True),
        ("#.a.#.b", "x.a.y.z.b", True),
        ("#.a.#.b", "x.a.y.z", False),
    ],
)
def test_pattern(pattern: str, key: str, expected: bool) -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, "q")
    assert (trie.match(key) == ["q"]) is expected


@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=8), st.data())
def test_trie_agrees_with_naive_matching_while_patterns_come_and_go(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[str] = TopicTrie()
    standing = set(patterns)
    for pattern in patterns:
        trie.add(pattern, pattern)
    gone = data.draw(st.lists(st.sampled_from(patterns))) if patterns else []
    for pattern in gone:
        trie.remove(pattern, pattern)
        standing.discard(pattern)
    for key in keys:
        found = trie.match(key)
        assert len(found) == len(set(found))
        assert set(found) == {
            pattern for pattern in standing if matches_naively(words_of(pattern), words_of(key))
        }
    for pattern in standing:
        trie.remove(pattern, pattern)
    assert trie.root.is_bare()


def test_value_under_two_patterns_leaves_with_the_second() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.#", "q")
    trie.add("*.b", "q")
    assert trie.match("a.b") == ["q", "q"]
    trie.remove("a.#", "q")
    assert trie.match("a.b") == ["q"]
    trie.remove("a.#", "q")
    trie.remove("never.there", "q")
    assert trie.match("a.b") == ["q"]


def test_many_hashes_do_not_explode() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(".".join(["#", "a"] * 60), "q")
    assert trie.match(".".join(["a"] * 200)) == ["q"]
    assert trie.match(".".join(["a"] * 200) + ".b") == []
