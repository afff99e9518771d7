"""Hooks of mkdocs: the site has the pages of docs/, and those of the repository's root.

The pages are written for GitHub, where they are read too. Here their links are turned: to a page of
the site, or, where they lead to a file that is none, to nothing. And lists are indented as
Python-Markdown wants them: by four, with an empty line before the first item.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository's root, and what they are called on the site."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```")
ITEM = re.compile(r"^( *)([-*]|\d+\.)( +)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for name, called in OUTSIDE.items():
        files.append(File.generated(config, called, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    return "\n".join(indented(turned(markdown, page.file.src_uri, files).split("\n")))


def place_of(source: str) -> str:
    """The path in the repository of a page of the site."""
    found = {called: name for name, called in OUTSIDE.items()}
    return found.get(source, f"docs/{source}")


def turned(markdown: str, source: str, files: Files) -> str:
    """The text with its links as they have to be on the site; those in fenced blocks stay."""
    here = place_of(source)

    def turn(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        path, mark, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        named = OUTSIDE.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(named) is not None and place_of(named) == place:
            relative = posixpath.relpath(named, posixpath.dirname(source) or ".")
            return f"{image}[{text}]({relative}{mark}{anchor})"
        return text if (ROOT / place).exists() else found[0]

    parts = re.split(r"(^ *```.*?^ *```)", markdown, flags=re.S | re.M)
    return "".join(part if i % 2 else LINK.sub(turn, part) for i, part in enumerate(parts))


def indented(lines: list[str]) -> Iterator[str]:
    """The lines, with those of list items moved to where Python-Markdown looks for them."""
    levels: list[int] = []
    """Columns at which the text of each open item begins."""
    is_code, before = False, ""
    for line in lines:
        if FENCE.match(line) and not levels:
            is_code = not is_code
        item = None if is_code else ITEM.match(line)
        column = len(line) - len(line.lstrip(" "))
        if not is_code and line.strip():
            while levels and column < levels[-1]:
                levels.pop()
            depth = len(levels)
            if item is not None:
                if not depth and before.strip() and not ITEM.match(before) and before[0] != " ":
                    yield ""
                levels.append(len(item[0]))
            if depth:
                line = "    " * depth + line[levels[depth - 1] :]
        before = line
        yield line
