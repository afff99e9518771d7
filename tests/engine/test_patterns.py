"""Patterns: RabbitMQ's syntax as far as it goes, in linear time, with clear refusals beyond."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine import patterns
from tallymark.engine.patterns import PatternRefused, compile_pattern, problem_of
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", "anything", "amq.gen-1"], []),
        (".*", ["", "anything"], []),
        ("^$", [""], ["a", "\n"]),
        ("orders", ["orders", "my.orders.eu"], ["order"]),
        ("^orders$", ["orders"], ["my.orders", "orders.eu", "orders\n"]),
        (r"^amq\.", ["amq.gen-1"], ["amqp", "x.amq.y"]),
        ("[[:alpha:]]{3}", ["abc"], ["ab1"]),
        (r"^(a|b)+\d$", ["ab1"], ["abc"]),
        ("(?i)^Orders", ["oRDERS.1"], ["x"]),
        ("é", ["café"], ["cafe"]),
        ("^.$", ["\ud800", "é", "日"], ["", "ab"]),
        (r"^(?!amq\.)", ["orders", ""], ["amq.gen-1"]),
        (r"^(?!amq\.).*", ["orders", ""], ["amq.gen-1"]),
        (r"^(?!amq\.|tmp[)|])(?=.*eu$)o", ["orders.eu"], ["amq.eu", "orders", "tmp).eu"]),
        (r"^(?!\Qa)\E)[^]b]", ["ab", "c"], ["a)", "b", "]"]),
        (r"^(?!x)(a|b)", ["a", "b"], ["xa", "c"]),
    ],
)
def test_what_a_pattern_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in yes if not compiled.matches(name)] == []
    assert [name for name in no if compiled.matches(name)] == []


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(", "missing )"),
        ("[", "missing ]"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?<=a)b", "(?<="),
        ("a(?!b)", "(?!"),
        ("^(?!a)b|c", "(?!"),
        ("^(?!a)*b", "(?!"),
        ("^(?!a", "(?!"),
        ("^(?!a(?=b))", "(?="),
        ("(?>a+)b", "(?>"),
        ("a++", "++"),
        (r"\Z", r"\Z"),
        ("((x{99}){99}){99}", "{99}"),
        ("(x{1,999}y{1,999}z{1,999}[α-ω]{1,999}){1}" * 99, "too large"),
        ("(" * 5000, "missing )"),
    ],
)
def test_what_is_refused_is_shown_and_named(pattern: str, told: str) -> None:
    with pytest.raises(PatternRefused) as refused:
        compile_pattern(pattern)
    text = str(refused.value)
    assert told in text
    assert "expected RE2's syntax" in text
    assert len(text) < 700
    assert problem_of(pattern) == text


def test_case_is_told_apart_unless_it_is_not_wanted() -> None:
    assert not compile_pattern("^Abc").matches("aBC")
    assert compile_pattern("^Abc", ignores_case=True).matches("aBC")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "(a*)*b", "^(?!(a+)+$)x"])
def test_repetition_within_repetition_costs_what_any_pattern_costs(pattern: str) -> None:
    """Python's `re` takes hours for these."""
    compiled = compile_pattern(pattern)
    for _ in range(1000):
        assert not compiled.matches("a" * 255 + "!")


def test_patterns_of_strangers_do_not_pile_up() -> None:
    for number in range(3 * patterns.REMEMBERED):
        compile_pattern(f"^q{number}$")
    assert len(patterns._known) <= patterns.REMEMBERED


names = st.text("ab.|", max_size=8)
pieces = st.sampled_from(
    ["a", "b", r"\.", "[ab]", "[^a]", "(a|b)", "a*", "b?", ".", "(?:ab)+", "$"]
)


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["=", "!"]), st.lists(pieces, min_size=1, max_size=3))),
    st.lists(pieces, max_size=4),
    names,
)
def test_what_is_taken_means_what_it_means_in_a_backtracking_engine(
    anchored: bool, ahead: list[tuple[str, list[str]]], rest: list[str], name: str
) -> None:
    look = "".join(f"(?{sign}{''.join(inner)})" for sign, inner in ahead)
    text = ("^" + look if anchored or look else "") + "".join(rest)
    assert compile_pattern(text).matches(name) == (re.search(text, name) is not None)


WITHOUT_RE2 = """
import sys
sys.modules["re2"] = None
from tallymark.engine.patterns import PatternRefused, compile_pattern
from tallymark.engine.policies import Policy
assert compile_pattern(".*").matches("a")
try:
    compile_pattern("^a")
except PatternRefused as error:
    print(error)
for was_stored in (False, True):
    try:
        Policy("p", "^a", {"max-length": 1}, was_stored=was_stored)
    except Exception as error:
        print(type(error).__name__)
"""


def test_without_its_package_a_pattern_is_refused_and_no_stored_policy_is_left_out() -> None:
    """As after an upgrade below a running broker. A start does not go on without its policies."""
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_RE2], capture_output=True, text=True, check=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    refused, *kinds = found.stdout.splitlines()
    assert refused.startswith("'^a': no pattern can be read, since re2 cannot be loaded: ")
    assert kinds == ["PreconditionFailed", "PatternsUnavailable"]
