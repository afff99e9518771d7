"""Docstrings of src say what a thing is: the first sentence has the concept's noun as its subject,
or begins with a verb ("Return whether ..."). An attribute gets a noun phrase.

A first sentence such as "What is left of it" or "Whether it must" is understood only by a reader
who knows the code already. The test reads modules, classes, functions, and the strings below
assignments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCES: Final = Path(__file__).resolve().parents[1] / "src"
WORDS: Final = re.compile(
    r"(What|Who|Whose|Whoever|Whether|Those|Which|Of|As|How|Where|When|Why|It|They|The same|Nobody"
    r"|Nothing|Everybody|Somebody|Up to where|For|By|At|Since|Until|Also|None:|Told|Has|Is|Was)"
    r"(?!\w)"
)


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is a statement of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def offences_in(text: str) -> list[int]:
    return [line for line, text in docstrings_of(ast.parse(text)) if WORDS.match(text.strip())]


def test_no_docstring_begins_with_one_of_these_words() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line in offences_in(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What a queue does."""',
        'class Queue:\n    """Of one virtual host."""',
        'def is_open():\n    """Whether it is open."""',
        'def start(queue):\n    queue.at = 0\n    """Where it begins."""',
        'LIMIT = 3\n"""\n    How many there may be.\n"""',
        'LIMIT = 3\n"""Up to where it reaches."""',
        'def context():\n    """None: there is no certificate."""',
        'LIMIT_S = 3\n"""The same in seconds."""',
    ],
)
def test_the_check_finds_each_kind(source: str) -> None:
    assert len(offences_in(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Whatever is published."""',
        'def is_open():\n    """Return whether it is open."""',
        'NAME = "What"\n"""Asynchronous name; what it is."""',
        'print("How are you?")',
    ],
)
def test_the_check_leaves_other_texts_alone(source: str) -> None:
    assert offences_in(source) == []
