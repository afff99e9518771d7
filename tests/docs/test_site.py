"""The documentation as a site: every page is in its navigation, and no link of it is dead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.page import ROOT
from tests.support.long import long
from tests.support.patience import PATIENCE_S

NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
FROM_ROOT = {"index.md", "architecture.md", "changelog.md", "security.md"}
"""Pages of the repository's root: OUTSIDE in tools/site.py."""


def test_each_page_is_in_the_navigation_once() -> None:
    named = re.findall(r": (\S+\.md)$", NAVIGATION, re.M)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages | FROM_ROOT), "mkdocs.yml names others than docs/ has"


@long  # 4 s; a dead link between pages is found by test_links.py
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="pip install mkdocs-material: make site")
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?(https?:[^\"'> ]+)", text)
        assert loaded == [], page.name
    quick = (tmp_path / "from-qpid.html").read_text()
    assert quick.count("<ol>") == 1, "its list is one list"
