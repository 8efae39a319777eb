"""Kernel families, one folder each with everything that knows about its kernel, and their registry.

This module imports no family: each is imported when it is first used.
"""

import functools
import importlib
from collections.abc import Iterator

from tritonmm.families.family import Family

BUILT_IN = {
    "tile": "tritonmm.families.tile",
    "persistent": "tritonmm.families.persistent",
    "hopper": "tritonmm.families.hopper",
    "grouped": "tritonmm.families.grouped",
    "skinny": "tritonmm.families.skinny",
    "exact": "tritonmm.families.exact",
    "mixed_input": "tritonmm.families.mixed_input",
}
"""The families that ship, and their packages. The first computes every problem on every GPU."""

FORMER_NAMES = {"sliced": "exact", "weights": "mixed_input"}
"""Earlier names of families, in tables, stores and results files."""

_REGISTERED: dict[str, Family] = {}


def register(family: Family) -> None:
    """Adds a family for this process. Raises ValueError if its name is taken."""
    if family.name in BUILT_IN or family.name in FORMER_NAMES or _REGISTERED.get(family.name, family) is not family:
        raise ValueError(f"the kernel family {family.name!r} is registered already")
    _REGISTERED[family.name] = family


def names() -> tuple[str, ...]:
    """The names of all families, the portable one first."""
    return (*BUILT_IN, *_REGISTERED)


def portable() -> str:
    """The name of the family that computes every problem on every GPU."""
    return next(iter(BUILT_IN))


def family(name: str) -> Family:
    """The family of a name or former name, or the portable one for "". Raises ValueError for an unknown name."""
    name = FORMER_NAMES.get(name, name) or portable()
    if name in BUILT_IN:
        return _built_in(name)
    if name in _REGISTERED:
        return _REGISTERED[name]
    raise ValueError(f"Config: kernel is {name!r}; it must be one of {', '.join(names())}")


def each() -> Iterator[Family]:
    """All families, in the order of `names`."""
    return map(family, names())


@functools.cache
def _built_in(name: str) -> Family:
    return importlib.import_module(BUILT_IN[name])
