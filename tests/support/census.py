"""What a thing holds, counted: every container that can be reached from it, by who has it.

    before = census(broker)
    ... play something that leaves nothing behind, often ...
    assert not grown(before, census(broker), 20)

A container's name is that of its owner's class and attribute, `State.queues`, with `[]` for each
step into it; objects are counted by class. So what a cycle leaves behind is named, wherever it is.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Collection, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)

LEAVES = (
    type, ModuleType, CodeType, BuiltinFunctionType, int, float, bool, str, bytes, bytearray,
    type(None), memoryview,
)  # fmt: skip
SIZED = (list, tuple, dict, set, frozenset, deque)
OPAQUE = (FunctionType, MethodType, CellType, GeneratorType, CoroutineType, FrameType)
"""Gone through without a name of their own."""


def census(*roots: object, leaves_out: Collection[object] = ()) -> Counter[str]:
    """Return the lengths of all containers that can be reached, summed by name, and the number of
    objects of each class.

    leaves_out: objects that are not gone into.
    """
    found: Counter[str] = Counter()
    seen = {id(one) for one in leaves_out}
    line: deque[tuple[str, object]] = deque()
    for root in roots:
        line.append((type(root).__qualname__, root))
    while line:
        name, one = line.popleft()
        if id(one) in seen or isinstance(one, LEAVES):
            if isinstance(one, (bytearray, bytes)) and id(one) not in seen:
                found[f"{name} bytes"] += len(one)
            continue
        seen.add(id(one))
        if isinstance(one, SIZED):
            found[name] += len(one)
            line.extend((f"{name}[]", part) for part in _parts(one))
        else:
            if isinstance(one, OPAQUE):
                line.extend(_inside(name, one))
                continue
            own = type(one).__qualname__
            found[own] += 1
            line.extend((f"{own}.{what}", part) for what, part in _attributes(one))
    return found


def _parts(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from list(one)
        yield from list(one.values())
    else:
        yield from list(one)  # type: ignore[call-overload]


def _inside(name: str, one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            yield f"{name}()", cell
        for value in one.__defaults__ or ():
            yield f"{name}()", value
        return
    for part in gc.get_referents(one):
        if not isinstance(part, dict) or "__builtins__" not in part:
            yield name, part


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    named = set()
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            value = getattr(one, f"_{kind.__name__.lstrip('_')}{slot}" if private else slot, None)
            named.add(id(value))
            yield slot, value
    for what, value in list(getattr(one, "__dict__", {}).items()):
        named.add(id(value))
        yield str(what), value
    for part in gc.get_referents(one):
        if id(part) not in named and part is not getattr(one, "__dict__", None):
            yield "?", part


def grown(before: Counter[str], after: Counter[str], least: int) -> dict[str, int]:
    """Return what has grown by so much and more."""
    return {
        name: n - before[name] for name, n in sorted(after.items()) if n - before[name] >= least
    }
