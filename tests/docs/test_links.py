"""Links between the pages of the documentation lead to a file, and to a heading in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.page import ROOT

PAGES = sorted(
    (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")), key=lambda path: path.as_posix()
)


def prose(page: Path) -> str:
    """Return a page's text without fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them of the text."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (anchor if not number else f"{anchor}-{number}") in found:
            number += 1
        found.add(anchor if not number else f"{anchor}-{number}")
    return found


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    lost = []
    for link in links(page):
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert {page for page in PAGES if page not in reached} == set()
