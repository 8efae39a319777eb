"""Parsers of option values."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import click

MOST_TILES = 2**20
"""The most tiles, programs or elements that a command prints or draws one by one."""

DTYPES_HELP = "bf16, fp16, fp32, tf32, fp64, int8, fp8, bf16-int8, bf16-int4, ...; a wrong name lists all."
"""The help of --dtype: some of `problem.KINDS`."""


class Parsed(click.ParamType):
    """An option value that `parse` makes from text. Its ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], object]):
        self.name = name
        self._parse = parse

    def convert(self, value, param, ctx):
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def output(text: str) -> Path:
    """A file to write. An unwritable file, and a store of trials, is refused before anything is measured."""
    from tritonmm.tuned import files

    if not text:
        raise ValueError("it is empty; it must name a file")
    try:
        files.check_writable(text)
        if Path(text).is_file():
            with Path(text).open("rb") as file:
                if file.read(16) == b"SQLite format 3\0":
                    raise ValueError(f"{text} is a SQLite file, such as a store of trials; name another file")
    except OSError as error:
        raise ValueError(str(error)) from None
    return Path(text)


def size(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise ValueError(f"{text.strip()!r} is not a whole number above 0")
    if len(text.strip()) > 10 or int(text) >= 2**31:
        raise ValueError(f"{text.strip()!r} is too large; it must be below 2**31")
    return int(text)


def sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(size(part) for part in text.split(",")))


def group_sizes(text: str) -> str:
    from tritonmm.autotune.measuring import group_sizes

    return group_sizes.checked(text)


def minutes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{text.strip()!r} is not a number of minutes above 0")
    return found


def grid(text: str) -> tuple[int, int]:
    return _rows_and_columns(text, "a grid; it must be rows x columns of tiles, as in 8x5")


def tile(text: str) -> tuple[int, int]:
    return _rows_and_columns(text, "a tile; it must be rows x columns of elements, as in 8x64")


def _rows_and_columns(text: str, what: str) -> tuple[int, int]:
    """what: what `text` should be, for the error."""
    m, by, n = text.partition("x")
    if not by:
        raise ValueError(f"{text!r} is not {what}")
    rows, cols = size(m), size(n)
    if rows * cols > MOST_TILES:
        raise ValueError(f"{text!r} has {rows * cols} places; at most {MOST_TILES} are shown")
    return rows, cols


def order(text: str):
    from tritonmm import orders

    return orders.parse(text)


def dtype(text: str) -> str:
    from tritonmm.problem import kind_name

    return kind_name(text)


def tile_orders(text: str):
    from tritonmm.autotune.measuring import space

    return space.tile_orders(text)


def blocks(text: str):
    from tritonmm.autotune.measuring import space

    return tuple(space.blocks(part) for part in text.split(","))


def words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def shape(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = text.split("x")
    except ValueError:
        raise ValueError(f"{text!r} is not a shape; it must be M x N x K, as in 4096x4096x4096") from None
    return size(m), size(n), size(k)


def config(text: str):
    from tritonmm.config import Config

    try:
        return Config.from_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f'{text[:60]!r} is not JSON, as \'{{"kernel": "hopper"}}\' is: {error}') from None
    except (TypeError, RecursionError):
        raise ValueError(f"{text[:60]!r} is not a config") from None


def layout(text: str):
    from tritonmm.layouts import Swizzle, show

    found = show.parse(text)
    if isinstance(found, Swizzle) and found.b + found.m + abs(found.s) > 30:
        raise ValueError(f"{found} has a period of more than 2**30 elements, which no tile has")
    return found


def address(text: str) -> str:
    found = re.fullmatch(r"((tcp|tls)://)?[^/\s]+:(\d{1,5})", text)
    if not found or int(found[3]) >= 2**16:
        raise ValueError(f"{text!r} is not the address of a scheduler, as in tls://10.0.0.1:8786")
    return text if found[1] else f"tls://{text}"


def gpu(text: str):
    from tritonmm import gpu

    return gpu.spec(text)
