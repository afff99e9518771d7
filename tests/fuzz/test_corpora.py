"""Inputs that fuzzing has found interesting, and all that was ever found, stay readable or refused
in the one way that callers expect."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import CORPUS, NAMES
from tests.fuzz.targets import TARGETS


def test_each_reader_has_a_corpus() -> None:
    assert set(NAMES) == set(TARGETS) == {path.name for path in CORPUS.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_corpus(name: str) -> None:
    for path in sorted((CORPUS / name).iterdir()):
        try:
            TARGETS[name](path.read_bytes())
        except BaseException as error:
            error.add_note(f"python -m tests.fuzz {name} --play {path}")
            raise
