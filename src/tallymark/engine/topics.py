"""Topic patterns as a trie: finding the bindings for a routing key costs the same among ten
bindings or a million.

A routing key is words between dots; in a pattern `*` stands for exactly one word and `#` for any
number of them, none included [amqp-0.9.1 topic exchange]. The empty key has no words: only patterns
made of `#` (and the empty pattern) match it. An empty word between dots is a word like any other.

Matching walks all positions the key can have reached at once, word by word, each node at most once
per word. So its cost is bounded by words x nodes reached, also for patterns such as `#.a.#.b.#`,
which a backtracking matcher tries in exponentially many ways.
"""

from __future__ import annotations

from typing import Generic, TypeVar, final

T = TypeVar("T")


def words_of(key: str) -> list[str]:
    """Return the words of a routing key or pattern; the empty string has none."""
    return key.split(".") if key else []


@final
class TopicNode(Generic[T]):
    """A node after some words of a pattern: its children, and the values of the patterns that end
    here."""

    __slots__ = ("any_words", "loops", "one_word", "parent", "seen", "values", "word", "words")

    def __init__(self, parent: TopicNode[T] | None, word: str) -> None:
        self.parent = parent
        self.word = word
        """Word of the pattern that leads here from the parent."""
        self.loops = word == "#"
        """True for a node reached by `#`: any further word may stay here."""
        self.words: dict[str, TopicNode[T]] = {}
        self.one_word: TopicNode[T] | None = None
        self.any_words: TopicNode[T] | None = None
        self.values: dict[T, None] = {}
        self.seen = -1
        """Step of the last match that reached this node, so that the node is followed once."""

    def child(self, word: str) -> TopicNode[T] | None:
        if word == "*":
            return self.one_word
        if word == "#":
            return self.any_words
        return self.words.get(word)

    def grow(self, word: str) -> TopicNode[T]:
        """Return the child for a word, made if it is missing."""
        node = self.child(word)
        if node is None:
            node = TopicNode(self, word)
            if word == "*":
                self.one_word = node
            elif word == "#":
                self.any_words = node
            else:
                self.words[word] = node
        return node

    def cut(self, word: str) -> None:
        if word == "*":
            self.one_word = None
        elif word == "#":
            self.any_words = None
        else:
            del self.words[word]

    def is_bare(self) -> bool:
        """Return whether no pattern ends here or passes through."""
        return not (self.values or self.words or self.one_word or self.any_words)


@final
class TopicTrie(Generic[T]):
    """Patterns with values. A value (hashable) may be under many patterns, once under each."""

    __slots__ = ("root", "step")

    def __init__(self) -> None:
        self.root: TopicNode[T] = TopicNode(None, "")
        self.step = 0

    def add(self, pattern: str, value: T) -> None:
        node = self.root
        for word in words_of(pattern):
            node = node.grow(word)
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Remove the value from the pattern; does nothing if it is not there. Empty branches are
        removed."""
        node = self.root
        for word in words_of(pattern):
            child = node.child(word)
            if child is None:
                return
            node = child
        node.values.pop(value, None)
        parent = node.parent
        while parent is not None and node.is_bare():
            parent.cut(node.word)
            node = parent
            parent = node.parent

    def match(self, key: str) -> list[T]:
        """Return the values of all patterns that match. A value under several of them is returned
        several times."""
        reached: list[TopicNode[T]] = []
        self._reach(self.root, reached)
        for word in words_of(key):
            self.step += 1
            before = reached
            reached = []
            for node in before:
                following = node.words.get(word)
                if following is not None:
                    self._arrive(following, reached)
                if node.one_word is not None:
                    self._arrive(node.one_word, reached)
                if node.loops:
                    self._arrive(node, reached)
            if not reached:
                break
        self.step += 1
        found: list[T] = []
        for node in reached:
            if node.values:
                found.extend(node.values)
        return found

    def _arrive(self, node: TopicNode[T], reached: list[TopicNode[T]]) -> None:
        if node.seen != self.step:
            self._reach(node, reached)

    def _reach(self, node: TopicNode[T], reached: list[TopicNode[T]]) -> None:
        """Note the node, and the nodes behind it after a `#` that stands for no word."""
        node.seen = self.step
        reached.append(node)
        after = node.any_words
        while after is not None and after.seen != self.step:
            after.seen = self.step
            reached.append(after)
            after = after.any_words
