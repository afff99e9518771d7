"""Compiles the hot layers with mypyc: all or, where that fails, none (TALLYMARK_PURE=1: none)."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext


class AllOrNone(build_ext):
    """All modules are one extension of many C files, so that they call each other directly; the
    files are compiled side by side."""

    def build_extension(self, ext: Any) -> None:
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], *args: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_one([source], *args, **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # whatever a missing or failing compiler raises
            print(f"tallymark: built without compiled modules: {error}", file=sys.stderr)
            for made in Path(self.build_lib).rglob("*.so"):
                made.unlink()
            self.extensions.clear()


extensions = []
if os.environ.get("TALLYMARK_PURE", "") in ("", "0"):
    from mypyc.build import mypycify

    roots = [Path("src/tallymark", name) for name in ("wire", "engine", "bridge", "journal")]
    modules = [str(p) for root in roots for p in root.rglob("*.py") if p.stem != "__init__"]
    try:
        extensions = mypycify(sorted(modules), debug_level="0", multi_file=True)
    except SystemExit as error:  # mypyc leaves so on a type error
        print(f"tallymark: built without compiled modules: {error}", file=sys.stderr)
setup(ext_modules=extensions, cmdclass={"build_ext": AllOrNone})
