"""What setup.py compiles again: its own text of libraries that call each other by tables."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[1]
USES = "x = exports_flow.CPyDef_b(); CPyDef_own();"
COPIES = "memcpy(&exports_flow, pexports_flow, sizeof(exports_flow));"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of setup.py, in a folder where nothing was built."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.chdir(tmp_path)
    return runpy.run_path(str(ROOT / "setup.py"))


def generate(*names: str) -> None:
    """As mypyc: a library `flow` with these functions, its table in their order."""
    folder = Path("build/c")
    folder.mkdir(parents=True, exist_ok=True)
    declared = "".join(f"    CPyTagged (*CPyDef_{name})(PyObject *self);\n" for name in names)
    filled = "".join(f"    &CPyDef_{name},\n" for name in names)
    own = "".join(f"extern CPyTagged CPyDef_{name}(PyObject *self);\n" for name in names)
    table = f"struct export_table_flow {{\n    PyObject **CPyStatic_g;\n{declared}}};\n"
    (folder / "__native_flow.h").write_text(f"typedef int kept;\n{own}{table}")
    (folder / "__native_flow.c").write_text(
        f"static struct export_table_flow exports = {{\n    &CPyStatic_g,\n{filled}}};\n"
    )


def table(setup: dict[str, Any]) -> list[str]:
    """The names of the table that is compiled; where it is filled, each is given its own."""
    folder = Path("build/stable")
    (found,) = setup["TABLE"].findall((folder / "__native_flow.h").read_text())
    names = list(setup["members"](found))
    text = (folder / "__native_flow.c").read_text()
    assert all(f".{name} = &{name}," in text for name in names if not name.startswith("gone_"))
    return names


def seen(setup: dict[str, Any], text: str) -> str:
    setup["declared"].cache_clear()
    names = {"CPyDef_b", "CPyDef_own"} if text == USES else set()
    found: str = setup["used_of"]("build/stable/__native_flow.h", names, text == COPIES)
    return found


def test_what_was_there_keeps_its_place(setup: dict[str, Any]) -> None:
    generate("a", "b", "c")
    setup["keep_places"]()
    assert table(setup) == ["CPyStatic_g", "CPyDef_a", "CPyDef_b", "CPyDef_c"]
    generate("new", "b", "c")
    setup["keep_places"]()
    assert table(setup) == ["CPyStatic_g", "gone_1", "CPyDef_b", "CPyDef_c", "CPyDef_new"]
    generate("a", "b")
    setup["keep_places"]()
    assert table(setup) == ["CPyStatic_g", "gone_1", "CPyDef_b", "gone_3", "gone_4", "CPyDef_a"]


def test_a_new_function_is_seen_by_those_who_use_it_or_copy_the_table(
    setup: dict[str, Any],
) -> None:
    generate("a", "b")
    setup["keep_places"]()
    before = {text: seen(setup, text) for text in (USES, COPIES)}
    generate("a", "added", "b")
    setup["keep_places"]()
    assert seen(setup, USES) == before[USES]
    assert seen(setup, COPIES) != before[COPIES]
    assert "typedef int kept;" in before[USES]


def test_what_moves_or_is_declared_anew_is_seen(setup: dict[str, Any]) -> None:
    generate("a", "b")
    setup["keep_places"]()
    header = Path("build/stable/__native_flow.h")
    before, text = seen(setup, USES), header.read_text()
    assert "CPyDef_b" in before
    assert "CPyDef_a" not in before
    for changed in (
        text.replace("    PyObject **CPyStatic_g;\n", ""),  # a place before it is gone
        text.replace("CPyTagged (*CPyDef_b)", "char (*CPyDef_b)"),
        text.replace("extern CPyTagged CPyDef_b", "extern char CPyDef_b"),
        text.replace("typedef int kept", "typedef char kept"),
    ):
        assert changed != text
        header.write_text(changed)
        assert seen(setup, USES) != before


@pytest.mark.parametrize("line", ["    int odd[3];\n", "    &CPyDef_odd + 1,\n"])
def test_a_table_that_is_not_understood_stays_as_it_is(setup: dict[str, Any], line: str) -> None:
    generate("a", "b")
    setup["keep_places"]()
    generate("new", "a", "b")
    changed = Path("build/c/__native_flow.h" if "odd[" in line else "build/c/__native_flow.c")
    changed.write_text(changed.read_text().replace("};\n", f"{line}}};\n"))
    setup["keep_places"]()
    header = Path("build/c/__native_flow.h").read_text()
    assert Path("build/stable/__native_flow.h").read_text() == header


def test_a_call_of_what_is_in_no_table_has_both_sides_translated_anew(
    setup: dict[str, Any],
) -> None:
    generate("a", "b")
    user = Path("build/c/__native_user.c")
    user.write_text(USES)
    assert setup["unknown_calls"]() == set()
    user.write_text("exports_flow.CPyDef_constructor();")
    assert setup["unknown_calls"]() == {user, Path("build/c/__native_flow.h")}


def test_a_header_of_the_compiler_is_no_reason_to_compile_again(setup: dict[str, Any]) -> None:
    """It is copied after a first build has looked for it, and goes by the compiler's version."""
    from distutils.ccompiler import new_compiler  # setuptools' own, from Python 3.12 on

    command = setup["CompileListed"](setuptools.Distribution())
    command.compiler = new_compiler()
    source, runtime = Path("one.c"), Path("build/stable/CPy.h")
    generate("a")
    setup["keep_places"]()
    source.write_text(USES)
    runtime.write_text("typedef int more;\n")
    ours = "build/stable/__native_flow.h"

    def made_of(*depends: str) -> str:
        setup["declared"].cache_clear()
        extension = setuptools.Extension("one", [str(source)], depends=list(depends))
        digest: str = command._made_of(str(source), extension)
        return digest

    assert made_of(ours) == made_of(str(runtime), ours) == made_of(ours, str(runtime))
    before = made_of(ours)
    Path(ours).write_text("typedef long kept;\n")
    assert made_of(ours) != before


def test_where_translating_the_changes_does_not_settle_everything_is_translated(
    setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that calls what is in no table, for as long as the findings are there."""
    asked: list[bool] = []

    def mypycify(*_: object, **__: object) -> list[str]:
        is_first = not setup["FINDINGS"].exists()
        asked.append(is_first)
        setup["FINDINGS"].mkdir(parents=True, exist_ok=True)
        generate("a", *(["b"] if is_first else []))
        Path("build/c/__native_other.c").write_text(USES)
        return ["extension"]

    monkeypatch.setattr("mypyc.build.mypycify", mypycify)
    setup["FINDINGS"].mkdir(parents=True)
    assert setup["translate"]([], []) == ["extension"]
    assert asked == [False] * setup["ATTEMPTS"] + [True]
