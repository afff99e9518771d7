"""The modules that pyproject.toml has compiled, and those that stay interpreted beside them."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tallymark"
LAYERS = ("stored", "wire", "engine", "bridge", "journal", "server")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED = [
    module
    for group in PROJECT["tool"]["tallymark"]["compiled"].values()
    for module in group["modules"]
]
OPEN = "allow_interpreted_subclasses"


def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())


def every_module() -> list[str]:
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths if path.name != "__init__"]


def names_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """By the name in this module: which module of ours it is from, and its name there."""
    return {
        alias.asname or alias.name: (node.module.removeprefix("tallymark."), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tallymark.")
        for alias in node.names
        if node.module is not None
    }


def test_each_listed_module_is_there_once_and_in_a_layer_that_may_be_compiled() -> None:
    assert [module for module, count in Counter(LISTED).items() if count > 1] == []
    found = set(every_module())
    assert [module for module in LISTED if module not in found] == []
    assert {module.partition(".")[0] for module in LISTED} == set(LAYERS)


def test_what_is_compiled_needs_nothing_that_pip_does_not_have_when_it_builds() -> None:
    """Where pip builds by itself, the tools are installed and the dependencies are not. mypy then
    refuses a module that imports one of them, and everything stays interpreted."""
    tools = {"mypy_extensions", "librt", "typing_extensions"}
    (ignored,) = (
        one["module"] for one in PROJECT["tool"]["mypy"]["overrides"] if "uvloop.*" in one["module"]
    )
    known = tools | {name.removesuffix(".*") for name in ignored} | set(sys.stdlib_module_names)
    wrong = [
        (module, name)
        for module in LISTED
        for node in ast.walk(tree_of(module))
        for name in imported(node)
        if name not in known | {"tallymark"}
    ]
    assert wrong == []
    assert "--follow-imports=silent" in (ROOT / "setup.py").read_text()


def imported(node: ast.AST) -> set[str]:
    """The packages that a statement imports from."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return set()


def test_no_interpreted_class_extends_a_compiled_one() -> None:
    """mypyc lays a class out for good: a class of a compiled module raises TypeError when an
    interpreted one extends it, unless it says that it allows that."""
    compiled = set(LISTED)
    closed = {
        (module, node.name)
        for module in compiled
        for node in tree_of(module).body
        if isinstance(node, ast.ClassDef)
        and OPEN not in "".join(map(ast.unparse, node.decorator_list))
    }
    wrong = [
        (module, base)
        for module in every_module()
        if module not in compiled and module.partition(".")[0] in LAYERS
        for base in bases_in(module)
        if base in closed
    ]
    assert wrong == []


def test_no_compiled_class_extends_an_interpreted_one() -> None:
    """Each call of what it has from there would look the method up by its name: a turn of one
    message took 10 % more instructions."""
    compiled = set(LISTED)
    wrong = [
        (module, base) for module in LISTED for base in bases_in(module) if base[0] not in compiled
    ]
    assert wrong == []


def bases_in(module: str) -> Iterator[tuple[str, str]]:
    """What the classes of a module extend, where that is ours: its module, and its name there."""
    tree = tree_of(module)
    names = names_of(tree)
    for node in tree.body:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            first, _, rest = ast.unparse(base).partition(".")
            where = names.get(first)
            if where is not None:
                yield where if not rest else (f"{where[0]}.{where[1]}", rest)


def test_no_attribute_is_asked_for_after_the_none_that_a_method_gave_it() -> None:
    """mypy takes it for None until this function assigns it anew, whatever a call has done to it
    meanwhile; and compiled, anything else there is a TypeError."""
    wrong = [
        f"{module}.{function.name}: {name} in line {line}"
        for module in LISTED
        for function in ast.walk(tree_of(module))
        if isinstance(function, ast.FunctionDef)
        for name, line in asked_after_none(function)
    ]
    assert wrong == []


def asked_after_none(function: ast.FunctionDef) -> list[tuple[str, int]]:
    """Attributes that are read below the last assignment of them, which is None; with the line."""
    is_none: dict[str, bool] = {}
    found: list[tuple[str, int]] = []
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.stmt | ast.Attribute)]
    for node in sorted(nodes, key=lambda node: (node.lineno, isinstance(node, ast.stmt))):
        if isinstance(node, ast.Assign):
            value = node.value
            given = isinstance(value, ast.Constant) and value.value is None
            is_none.update((ast.unparse(one), given) for one in node.targets)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = ast.unparse(node)
            if is_none.get(name):
                found.append((name, node.lineno))
    return found


def test_what_is_asked_for_after_a_none_is_found() -> None:
    text = """
def look(self):
    self.timer = None
    self.call()
    if self.timer is None:
        self.timer = later()
    return self.timer
"""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert asked_after_none(function) == [("self.timer", 5)]
