"""Names of files, folders, tests, classes, rules and targets of make in ARCHITECTURE.md,
docs/guarantees.md and docs/internals/ are those of the sources; arguments and keys of policies are
described in docs/."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tallymark.engine.arguments import QUEUE_CHECKS
from tallymark.engine.policies import KEYS
from tests.docs.page import ROOT

PAGES = (
    ROOT / "ARCHITECTURE.md",
    ROOT / "docs/guarantees.md",
    *sorted((ROOT / "docs/internals").glob("*.md")),
)
BASES = (ROOT / "src/tallymark", ROOT / "src", ROOT)
"""Folders that a path may begin in."""
IS_PATH = re.compile(r"[\w.-][\w./{},-]*(\.(py|md|toml)|/)")
IS_TEST = re.compile(r"(test_\w+)(\.\.\.)?")
IS_ATTRIBUTE = re.compile(r"([A-Z]\w+)\.(\w+)")
IS_NAMED_IN = re.compile(r"`([\w.]+)`[\w ]* in `([\w/]+\.py)`")
"""A name, and the file that it is said to be in."""
IS_RULE = re.compile(r"\b(DL|FC|LC|NQ|SC|TX)-([A-Z]?\d+)\b")
IS_TARGET = re.compile(r"make ([a-z-]+)")


def quoted(page: Path) -> Iterator[list[str]]:
    """Each row, list item and paragraph of a page, as what stands in backquotes in it."""
    for part in re.split(r"\n(?=\||- |\d+\. |\n)", page.read_text()):
        yield re.findall(r"`([^`]+)`", part)


def spelled_out(path: str) -> list[str]:
    """Return the paths that a path with braces means: `a/{b,c}.py` two."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    return ["".join(choice) for choice in product(*parts)]


def lost_paths(words: list[str]) -> Iterator[str]:
    """The paths that lead nowhere. One may be short where it is in the folder of one before it."""
    beside: list[Path] = []
    for word in words:
        if not IS_PATH.fullmatch(word):
            continue
        for path in spelled_out(word):
            found = [base / path for base in BASES if (base / path).exists()]
            found = found or [folder / path for folder in beside if (folder / path).exists()]
            if not found:
                yield path
            for place in found:
                beside.append(place if place.is_dir() else place.parent)


@cache
def text_of_tests() -> str:
    return "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))


@cache
def names_of_tests() -> frozenset[str]:
    return frozenset(re.findall(r"def (test_\w+)", text_of_tests()))


@cache
def texts_of_sources() -> list[str]:
    return [path.read_text() for path in (ROOT / "src").rglob("*.py")]


@cache
def names_of_class(name: str) -> set[str]:
    """Return the names in the classes of the sources that are called so: of methods, and of what
    they assign."""
    found: set[str] = set()
    for text in texts_of_sources():
        if re.search(rf"^ *class {name}\b", text, re.M):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    found.update(names_in(node))
    return found


def names_in(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_each_path_is_there(page: Path) -> None:
    assert [path for words in quoted(page) for path in lost_paths(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_each_test_class_and_target_is_there(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    lost = []
    for word in [word for words in quoted(page) for word in words]:
        if test := IS_TEST.fullmatch(word):
            name, is_cut = test.groups()
            is_there = any(
                one.startswith(name) if is_cut else one == name for one in names_of_tests()
            )
        elif IS_PATH.fullmatch(word):
            continue
        elif attribute := IS_ATTRIBUTE.fullmatch(word):
            is_there = attribute[2] in names_of_class(attribute[1])
        elif target := IS_TARGET.fullmatch(word):
            is_there = re.search(rf"^{target[1]}:", makefile, re.M) is not None
        else:
            continue
        if not is_there:
            lost.append(word)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_each_name_is_in_the_file_that_is_said_to_have_it(page: Path) -> None:
    lost = []
    for name, path in IS_NAMED_IN.findall(page.read_text()):
        text = (ROOT / "src/tallymark" / path).read_text()
        if not all(re.search(rf"\b{part}\b", text) for part in name.split(".")):
            lost.append(f"{name} in {path}")
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_each_rule_has_tests_that_cite_it(page: Path) -> None:
    text = text_of_tests()
    cited = {match[0] for match in IS_RULE.finditer(page.read_text())}
    in_names = {f"{part}-{n}".upper() for part, n in re.findall(r"_([a-z]{2})_([ad]?\d+)", text)}
    cited -= in_names | {match[0] for match in IS_RULE.finditer(text)}
    assert cited == set()


def test_a_path_that_is_not_there_is_found() -> None:
    words = ["server/nsq/http.py", "stats.py", "quantiles.py", "engine/{queue,gone}.py", "a word"]
    assert list(lost_paths(words)) == ["quantiles.py", "engine/gone.py"]


def test_each_argument_of_a_queue_and_key_of_a_policy_is_described() -> None:
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("policies.md", "streams.md"))
    words = set(re.findall(r"`([a-z-]+)`", pages))
    words |= {f"slow-consumer{word}" for word in words if word.startswith("-")}
    assert (set(QUEUE_CHECKS) | set(KEYS)) - words == set()
