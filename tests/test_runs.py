"""Which tests are part of which run (`tests/support/long.py`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.long import ALL, BRIEF, CI, DEAR, MODES, REST, is_wanted, long, longer

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def plain() -> Callable[[], None]:
    def test() -> None:
        pass

    return test


@given(st.integers())
def with_examples(number: int) -> None:
    pass


@longer(ci=False)
@given(st.integers())
def with_examples_and_not_for_ci(number: int) -> None:
    pass


PARTS: dict[Callable[..., None], set[str]] = {
    plain(): {BRIEF, REST},
    with_examples: {BRIEF, CI, ALL},
    with_examples_and_not_for_ci: {BRIEF, REST, ALL},
    long(plain()): {CI, ALL},
    long(ci=False)(plain()): {ALL},
    longer(plain()): {BRIEF, CI, ALL},
    longer(ci=False)(plain()): {BRIEF, REST, ALL},
    longer(others=True)(plain()): {BRIEF, REST, CI, ALL},
}


@pytest.mark.parametrize("test", PARTS)
def test_each_run_has_its_tests_and_ci_all_of_make_test(
    test: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="test", callobj=test)
    parts = {mode for mode in MODES if is_wanted(item, mode)}
    assert parts == PARTS[test]
    assert parts & {REST, CI} or BRIEF not in parts


def test_those_that_are_dear_are_there_and_none_of_them_is_tested_interpreted() -> None:
    """CI would not run it interpreted at all."""
    patterns = [
        line.partition("#")[0].strip()
        for line in (TESTS / "interpreted.txt").read_text().splitlines()
    ]
    interpreted = {path for one in patterns if one for path in ROOT.glob(one)}
    for name in DEAR:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), name
        assert not interpreted & {ROOT / path, *(ROOT / path).parents}, name
