"""Compiles the modules listed in pyproject.toml with mypyc: all or, where that fails, none.

TALLYMARK_PURE=1 leaves them interpreted. What is generated stays under build/: mypy's findings and
the C text, and an object for each C file. An object is made again only when its C text, what it
uses of a header or the compiler's flags have changed, so that a build after a small change compiles
what follows from it and no more. With ccache on the PATH the compiler is called through it.
"""

import hashlib
import os
import platform
import re
import shutil
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

GENERATED = Path("build/c")
NATIVE = {
    "tallymark.journal.native": "src/tallymark/journal/native.c",
    "tallymark.wire.native": "src/tallymark/wire/native.c",
}
"""Modules in C, and their sources: the queue from the loop to the journal's writer, and frames
around messages."""
FINDINGS = Path("build/mypy")
"""What mypy found in each module, by which it knows which have changed."""
STABLE = Path("build/stable")
"""C text that is compiled: mypyc's, but for the order of the tables by which libraries call each
other. What the build before had keeps its place there, and what is new comes last."""
TABLE = re.compile(r"^struct export_table_\w+ \{\n(.*?)^\};", re.M | re.S)
FILLED = re.compile(r"^static struct export_table_\w+ exports = \{\n(.*?)^\};", re.M | re.S)
CALLED = re.compile(r"\bexports_(\w+)\.(CPy\w+)")
MEMBER = re.compile(r"^ +\w[^;(]*?(?:\(\*(CPy\w+)\)\(.*|(\bCPy\w+|\bgone_\d+));$", re.M)
EXTERN = re.compile(r"^extern [^;(]*?\b(CPy\w+)(?:\(.*|\[\d*\])?;\n", re.M)
"""Lines of generated C: the table that a library gives, where it is filled, what is called by one
of another library, a member of a table, what a library declares for itself."""
FLAGS_OF_MYPY = ["--follow-imports=silent"]
"""Where pip builds, nothing is installed but what pyproject.toml names for that: a module that is
compiled may import others, which import what is not there."""
ATTEMPTS = 3
"""How often to translate what has changed until no text calls what is not there."""
FLAGS = ["-fcommon", "-fvisibility=hidden"]
"""Every C file of a library names the tables of the libraries it calls, which are to be one; and
nothing but the way in is called from outside, so that calls within go straight."""


class CannotCompile(Exception):
    """There is no compiler, or a module has an error; the text says which."""


def modules_to_compile() -> dict[str, dict[str, Any]]:
    """The groups of pyproject.toml by name. Each is one shared library."""
    with open("pyproject.toml", "rb") as file:
        return tomllib.load(file)["tool"]["tallymark"]["compiled"]


def path_of(module: str) -> str:
    return f"src/tallymark/{module.replace('.', '/')}.py"


def translate(paths: list[str], libraries: list[tuple[list[str], str]]) -> list[Extension]:
    """Translate modules to C. Raises CannotCompile on a type error.

    A module that mypyc did not read anew is taken for one whose classes all have a constructor in
    C. Those that extend a class of Python (`UInt`, an int) have none, and the C text that calls it
    is wrong. Then both are read anew, as mypyc does where a file that it made is not there; and
    where that does not help, all modules are.
    """
    for _ in range(ATTEMPTS):
        extensions = _translate_changed(paths, libraries)
        wrong = unknown_calls()
        if not wrong:
            return extensions
        for file in wrong:
            file.unlink()
    shutil.rmtree(GENERATED)
    shutil.rmtree(FINDINGS)
    GENERATED.mkdir()
    extensions = _translate_changed(paths, libraries)
    wrong = unknown_calls()
    if wrong:
        raise CannotCompile(f"mypyc calls what is not there, in {sorted(map(str, wrong))}")
    return extensions


def _translate_changed(paths: list[str], libraries: list[tuple[list[str], str]]) -> list[Extension]:
    """Translate what has changed since the last time. Raises CannotCompile on a type error."""
    from mypyc.build import mypycify

    try:
        return mypycify(
            [f"--cache-dir={FINDINGS}", *FLAGS_OF_MYPY, *paths],
            debug_level="0",
            multi_file=True,
            separate=libraries,
            target_dir=str(GENERATED),
        )
    except SystemExit as error:  # mypyc leaves so on a type error
        raise CannotCompile(f"mypyc: {error}") from None


def unknown_calls() -> set[Path]:
    """Return new C files that name what is in no table, and the headers with these tables."""
    found: set[Path] = set()
    tables: dict[str, set[str]] = {}
    headers = {file.stem.removeprefix("__native_"): file for file in GENERATED.glob("__native_*.h")}
    for library, header in headers.items():
        if (table := TABLE.search(header.read_text())) is not None:
            tables[library] = set(re.findall(r"\bCPy\w+", table[1]))
    for file in filter(is_new, GENERATED.glob("__native_*.c")):
        for library, name in set(CALLED.findall(file.read_text())):
            if name not in tables.get(library, {name}):
                found |= {file, headers[library]}
    return found


def generated_extensions() -> list[Extension]:
    """Extensions of the listed modules' C text. Raises CannotCompile on a type error."""
    groups = modules_to_compile()
    libraries = [
        ([path_of(module) for module in group["modules"]], f"tallymark_{name}")
        for name, group in groups.items()
    ]
    paths = sorted(path for paths, _ in libraries for path in paths)
    GENERATED.mkdir(parents=True, exist_ok=True)
    extensions = translate(paths, libraries)
    _complete(extensions)
    keep_places()
    levels = {f"tallymark_{name}__mypyc": group["optimise"] for name, group in groups.items()}
    for extension in extensions:
        level = levels.get(extension.name, 1)
        if extension.name in levels:
            for paths in (extension.sources, extension.depends, extension.include_dirs):
                paths[:] = [str(stable(Path(path))) for path in paths]
        # mypyc gives all of them one list
        more = FLAGS if os.name == "posix" else []
        extension.extra_compile_args = [*extension.extra_compile_args, *more]
        extension.extra_compile_args = [
            f"-O{level}" if flag.startswith("-O") else flag for flag in extension.extra_compile_args
        ]
    for name, source in NATIVE.items():
        extensions.append(Extension(name, [source], extra_compile_args=["-O2", *FLAGS[1:]]))
    return extensions


def _complete(extensions: list[Extension]) -> None:
    """Give every library the runtime's optional parts: mypycify names those only that modules
    translated anew ask for, not those of modules whose C text it found still valid."""
    from mypyc.build import include_dir

    runtime = [folder for folder in Path(include_dir()).iterdir() if folder.is_dir()]
    parts = sorted(
        str(file)
        for file in GENERATED.rglob("*.c")
        if not file.name.startswith("__native") and GENERATED / "tallymark" not in file.parents
    )
    for extension in extensions:
        if extension.name.endswith("__mypyc"):
            extension.include_dirs += [str(folder) for folder in runtime]
            extension.sources += [part for part in parts if part not in extension.sources]


def stable(path: Path) -> Path:
    """The copy of a generated file that is compiled; any other path as it is."""
    is_ours = GENERATED in (path, *path.parents)
    return STABLE / path.relative_to(GENERATED) if is_ours else path


def is_new(file: Path) -> bool:
    """Return whether a generated file is no copy of what was compiled; one with a table is none."""
    copy = stable(file)
    return not copy.exists() or copy.read_bytes() != file.read_bytes()


def keep_places() -> None:
    """Copy the generated C text, with tables whose members stand where they stood before."""
    for file in filter(is_new, GENERATED.rglob("*.[ch]")):
        if GENERATED / "tallymark" in file.parents:
            continue  # a shim
        text, copy = file.read_text(), stable(file)
        table, filler = TABLE.search(text), file.with_suffix(".c")
        if file.suffix == ".h" and table is not None and is_filled(table[1], filler):
            before = TABLE.search(copy.read_text()) if copy.exists() else None
            lines = in_places(members(before[1] if before else ""), members(table[1]))
            text = text[: table.start(1)] + "".join(lines) + text[table.end(1) :]
        filled = FILLED.search(text) if file.suffix == ".c" else None
        if filled is not None:
            by_name = re.sub(r"^( +)&(\w+),$", r"\1.\2 = &\2,", filled[1], flags=re.M)
            text = text[: filled.start(1)] + by_name + text[filled.end(1) :]
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)


def members(table: str) -> dict[str, str]:
    """The lines of a table by the names that they declare."""
    return {found[1] or found[2]: f"{found[0]}\n" for found in MEMBER.finditer(table)}


def is_filled(table: str, file: Path) -> bool:
    """Return whether the lines of a table are read, and a file fills all of its members by name."""
    filled = FILLED.search(file.read_text()) if file.exists() else None
    names = re.findall(r"^ +&(\w+),$", filled[1], re.M) if filled else []
    count = len(table.splitlines())
    return names == list(members(table)) and len(names) == count == len(filled[1].splitlines())


def in_places(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The lines of a table. Of a member that is gone its place stays."""
    kept = [now.get(name, f"    void *gone_{place};\n") for place, name in enumerate(before)]
    return kept + [line for name, line in now.items() if name not in before]


@cache
def declared(header: str) -> tuple[str, dict[str, str]]:
    """A header without what single lines declare, and these lines by name: functions and variables
    of a library, and the members of its table, each with its place."""
    text = Path(header).read_text()
    lines = {found[1]: found[0] for found in EXTERN.finditer(text)}
    text = EXTERN.sub(lambda found: "" if lines[found[1]] == found[0] else found[0], text)
    table = TABLE.search(text)
    if table is not None and len(members(table[1])) == len(table[1].splitlines()):
        text = text[: table.start(1)] + text[table.end(1) :]
        for place, (name, line) in enumerate(members(table[1]).items()):
            lines[name] = f"{lines.get(name, '')} {place}: {line}"
    return text, lines


def used_of(header: str, names: set[str], has_tables: bool) -> str:
    """What a C file that has these names sees of a header. has_tables: it copies or fills tables,
    and must know their length."""
    text, lines = declared(header)
    seen = lines if has_tables else sorted(names.intersection(lines))
    return text + "".join(lines[name] for name in seen)


def in_parallel(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


class CompileListed(build_ext):
    """mypyc gives one library for each group and one *shim* for each module: an extension of that
    module's name, which calls the library. The shims are one C file for as many modules as have
    different last names, compiled once and copied to the name of each."""

    def run(self) -> None:
        try:
            self._find_compiler()
            self.distribution.ext_modules = generated_extensions()
            self.swig_opts = None  # or it would be split a second time
            self.finalize_options()
            super().run()
        except Exception as error:  # whatever a missing or failing compiler raises
            print(f"tallymark: built without compiled modules: {error}", file=sys.stderr)
            for made in Path(self.build_lib).rglob("*.so"):
                made.unlink()
            self.extensions.clear()

    def _find_compiler(self) -> None:
        """Fail before mypyc has worked for nothing."""
        from distutils.ccompiler import new_compiler
        from distutils.sysconfig import customize_compiler

        compiler: Any = new_compiler()
        customize_compiler(compiler)
        if compiler.compiler_type == "unix" and shutil.which(compiler.compiler_so[0]) is None:
            raise CannotCompile(f"no C compiler: {compiler.compiler_so[0]} not found")

    def build_extensions(self) -> None:
        compiler: Any = self.compiler
        if shutil.which("ccache") and "ccache" not in compiler.compiler_so[0]:
            compiler.set_executable("compiler_so", ["ccache", *compiler.compiler_so])
        libraries = [e for e in self.extensions if e.name.endswith("__mypyc") or e.name in NATIVE]
        shims = [e for e in self.extensions if e not in libraries]
        jobs = {source: library for library in libraries for source in library.sources}
        in_parallel(lambda job: self._object(*job), jobs.items())
        in_parallel(self._link_library, libraries)
        self._build_shims(shims)

    def _object_path(self, source: str) -> Path:
        return Path(self.build_temp, Path(source).with_suffix(".o"))

    def _object(self, source: str, extension: Extension) -> str:
        """Compile one C file, unless its object was made of the same text by the same command."""
        compiler: Any = self.compiler
        target = self._object_path(source)
        stamp, made_of = target.with_suffix(".made-of"), self._made_of(source, extension)
        if target.exists() and stamp.exists() and stamp.read_text() == made_of:
            return str(target)
        stamp.unlink(missing_ok=True)
        compiler.compile(
            [source],
            output_dir=self.build_temp,
            include_dirs=extension.include_dirs,
            extra_postargs=extension.extra_compile_args,
        )
        stamp.write_text(made_of)
        return str(target)

    def _made_of(self, source: str, extension: Extension) -> str:
        """Digest of all that an object depends on. Headers of mypyc's own go by its version: in a
        first build they are not there yet when mypyc looks for them, and are no dependencies."""
        compiler: Any = self.compiler
        flags = [*compiler.compiler_so, *extension.extra_compile_args]
        text = Path(source).read_text()
        names = set(re.findall(r"\bCPy\w+", text))
        has_tables = "sizeof(exports_" in text or FILLED.search(text) is not None
        digest = hashlib.sha256(repr((flags, sys.version, platform.machine())).encode())
        digest.update(version("mypy").encode())
        digest.update(text.encode())
        for file in sorted(extension.depends):
            if not file.endswith(".h") or Path(file).name.startswith("__native"):
                digest.update(used_of(file, names, has_tables).encode())
        return digest.hexdigest()

    def _link(self, objects: list[str], target: str, name: str) -> None:
        compiler: Any = self.compiler
        compiler.link_shared_object(
            objects, target, export_symbols=[f"PyInit_{name}"], build_temp=self.build_temp
        )

    def _link_library(self, library: Extension) -> None:
        objects = [str(self._object_path(source)) for source in library.sources]
        self._link(objects, self.get_ext_fullpath(library.name), library.name)

    def _build_shims(self, shims: list[Extension]) -> None:
        """Python looks for PyInit_NAME by the last part of a module's name only."""
        together: dict[int, list[Extension]] = defaultdict(list)
        seen: dict[str, int] = defaultdict(int)
        for shim in shims:
            last = shim.name.rpartition(".")[2]
            together[seen[last]].append(shim)
            seen[last] += 1
        for number, some in together.items():
            name = f"shims_{number}"
            source = GENERATED.parent / f"{name}.c"
            source.write_text(
                "".join(
                    f"#define PyInit___init__ PyInit_init_of_{number}_{place}\n"
                    f'#include "{os.path.relpath(shim.sources[0], source.parent)}"\n'
                    "#undef PyInit___init__\n"
                    for place, shim in enumerate(some)
                )
            )
            whole = Extension(
                name,
                [str(source)],
                depends=[shim.sources[0] for shim in some],
                extra_compile_args=some[0].extra_compile_args,
            )
            built = str(Path(self.build_temp, f"{name}.so"))
            self._link([self._object(str(source), whole)], built, name)
            for shim in some:
                target = Path(self.get_ext_fullpath(shim.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(built, target)


is_pure = os.environ.get("TALLYMARK_PURE", "") not in ("", "0")
# A name to build; what it stands for is known only when it is built. Its source goes into an sdist.
placeholder = [] if is_pure else [Extension("tallymark._compiled", [*NATIVE.values()])]
setup(ext_modules=placeholder, cmdclass={"build_ext": CompileListed})
