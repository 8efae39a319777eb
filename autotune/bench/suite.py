"""Suites: lists of GEMMs to measure, each in a family."""

import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from tritonmm.autotune.measuring import group_sizes, space
from tritonmm.problem import MOST_GROUPS, RAGGED, Problem, kind_name

_SHIPPED = Path(__file__).parents[1] / "suites"

MAX_BYTES = 4 * 2**20
"""The most bytes of a suite, some 30,000 GEMMs. Reading stops there, because a device file may have no end."""

MAX_SIZE = 2**31 - 1


class SuiteError(ValueError):
    """A suite cannot be read. The message names the file, the entry and the field."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One GEMM of a suite, with densely stored operands as `space.problem` makes them.

    family: a group of similar GEMMs; means are taken over each.
    m, n, k, batch: from 1 to 2^31 - 1. m and k are those of all groups together.
    layout, dtype: as `space.problem` takes them.
    ragged, groups: of a grouped GEMM, as in `Problem`.
    sizes: of its groups, a distribution as `group_sizes` spells it, by default `group_sizes.TYPICAL`; else "".

    Raises ValueError, naming the field, for other values.
    """

    family: str
    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype: str
    ragged: str = ""
    groups: int = 0
    sizes: str = ""

    def __post_init__(self):
        for name in ("family", "layout", "dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(r"[\w.+-]+", value):
                raise ValueError(f"{name} is {value!r:.40}; it must be a word of letters, digits and any of . + - _")
        for name in ("m", "n", "k", "batch", "groups"):
            value = getattr(self, name)
            least, most = (0, MOST_GROUPS) if name == "groups" else (1, MAX_SIZE)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} is {value!r:.40}; it must be a whole number from {least} to {most}")
        if self.ragged not in ("", *RAGGED):
            raise ValueError(f"ragged is {self.ragged!r:.40}; it must be {' or '.join(RAGGED)}, or '' without groups")
        if self.ragged:
            sizes = group_sizes.TYPICAL if self.sizes == "" else self.sizes
            object.__setattr__(self, "sizes", group_sizes.checked(sizes))
        elif self.sizes != "":
            raise ValueError(f"sizes is {self.sizes!r:.40}; without groups it must be ''")
        self.problem()
        object.__setattr__(self, "dtype", kind_name(self.dtype))

    def problem(self) -> Problem:
        """The entry as a `Problem`."""
        given = {name: getattr(self, name) for name in ("batch", "dtype", "layout", "ragged", "groups")}
        return space.problem(self.m, self.n, self.k, **given)

    def __str__(self) -> str:
        return f"{self.problem()} {self.sizes}".rstrip()


_FIELDS = tuple(field.name for field in fields(Entry))
_REQUIRED = tuple(field.name for field in fields(Entry) if field.default is MISSING)


def names() -> tuple[str, ...]:
    """Names of the shipped suites."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def load(suite: str | Path) -> tuple[Entry, ...]:
    """The entries of a suite.

    suite: the name of a shipped suite, or a file with a JSON list of objects with the fields of `Entry`. Those that
        have a default may be left out.

    Raises SuiteError for anything else.

    >>> load("public")[0].family
    'square'
    """
    path = _SHIPPED / f"{suite}.json" if str(suite) in names() else Path(suite)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SuiteError(f"suite {suite}: more than {MAX_BYTES} bytes, which no suite has")
        found = json.loads(content.decode(), object_pairs_hook=_once)
    except SuiteError:
        raise
    except FileNotFoundError:
        raise SuiteError(f"suite {str(suite)!r}: no such file; shipped are {', '.join(names())}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SuiteError(f"suite {suite}: not a readable JSON file: {error}") from None
    if not isinstance(found, list) or not found:
        raise SuiteError(f"suite {suite}: must be a JSON list of at least one GEMM")
    return tuple(_entry(given, f"suite {suite}: entry {i}") for i, given in enumerate(found, 1))


def of_families(entries: Sequence[Entry], families: Sequence[str]) -> tuple[Entry, ...]:
    """The entries of those families. Raises SuiteError for a family without entries."""
    known = dict.fromkeys(entry.family for entry in entries)
    for family in families:
        if family not in known:
            raise SuiteError(f"family {family!r} is not in the suite; it has {', '.join(known)}")
    return tuple(entry for entry in entries if entry.family in families)


def _entry(given: object, where: str) -> Entry:
    if not isinstance(given, dict):
        raise SuiteError(f"{where} is {given!r:.40}; it must be an object with {', '.join(_REQUIRED)}")
    for name in _REQUIRED:
        if name not in given:
            raise SuiteError(f"{where} has no {name}")
    for name in given:
        if name not in _FIELDS:
            raise SuiteError(f"{where} has an unknown field {name!r:.40}; known are {', '.join(_FIELDS)}")
    try:
        return Entry(**given)
    except ValueError as error:
        raise SuiteError(f"{where}: {error}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has {name!r:.40} twice")
        found[name] = value
    return found
