"""The spelling of orders, in configs, tables and on the command line."""

import re
from typing import Any

from tritonmm.orders.curves import Hilbert, Morton
from tritonmm.orders.dies import Dies
from tritonmm.orders.grouped import Grouped
from tritonmm.orders.groups_of_tiles import Factored, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.orders.order import ColumnMajor, Order, RowMajor
from tritonmm.orders.triangular import Triangular

ORDERS = (RowMajor, ColumnMajor, SplitMerge, SwizzleMerge, Serpentine, Triangular, Morton, Hilbert)
_SPELLED: dict[str, Any] = {order.name: order for order in ORDERS}
_SPELLING = re.compile(
    r"(?P<name>[a-z]+(?:-[a-z]+)*)(?::(?P<factors>-?\d+(?:,-?\d+)*))?(?:@(?:(?P<along>[mn])|(?P<aspect>\d+x\d+)))?"
)


def parse(text: str) -> Order:
    """The order that `text` spells: the inverse of str(order). Raises ValueError for any other text. A `Table` has no
    spelling.

    >>> parse("swizzle-merge:16,8@n")
    SwizzleMerge(16, 8, along="n")
    """
    if isinstance(text, str) and "/" in text:
        return _composed(text)
    match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    cls = _SPELLED.get(match["name"]) if match else None
    if match is None or cls is None:
        known = ", ".join(name + (":8" if issubclass(o, Factored | Triangular) else "") for name, o in _SPELLED.items())
        raise ValueError(
            f"unknown order {text!r}; the spellings are {known}, also swizzle-merge:16,8 and ...@n, groups/ORDER"
            " and dies:8/ORDER"
        )
    factors = [int(f) for f in match["factors"].split(",")] if match["factors"] else []
    if not issubclass(cls, Factored | Triangular):
        if factors or match["along"] or match["aspect"]:
            raise ValueError(f"order {text!r}: {cls.name} takes neither factors nor @m/@n")
        return cls()
    several = cls in (SwizzleMerge, Triangular)
    if not factors or (len(factors) > 1 and not several):
        wants = "one or more factors" if several else "exactly one factor"
        raise ValueError(f"order {text!r}: {cls.name} takes {wants}, as in {cls.name}:8")
    if match["along" if cls is Triangular else "aspect"]:
        wants = "an aspect, as in triangular:8@2x1" if cls is Triangular else f"an axis, as in {cls.name}:8@n"
        raise ValueError(f"order {text!r}: {cls.name} takes {wants}")
    if cls is Triangular:
        height, width = map(int, (match["aspect"] or "1x1").split("x"))
        return Triangular(*factors, aspect=(height, width))
    return cls(*factors, along=match["along"] or "m")


def _composed(text: str) -> Grouped | Dies:
    """The order that `text` spells, with the order it composes: joined-largest-groups/swizzle-merge:8, or
    dies:8,64/swizzle-merge:8."""
    name, _, inner = text.strip().partition("/")
    if match := re.fullmatch(r"dies:(?P<dies>-?\d+)(?:,(?P<chunk>-?\d+))?", name):
        return Dies(int(match["dies"]), parse(inner), chunk=int(match["chunk"]) if match["chunk"] else None)
    if name.partition(":")[0] == "dies":
        raise ValueError(
            f"order {text!r}: dies takes how many there are and a chunk, as in dies:8/... or dies:8,64/..."
        )
    match = re.fullmatch(r"(?P<joined>joined-)?(?P<largest>largest-)?groups", name)
    if match is None:
        raise ValueError(
            f"unknown order {text!r}; before the slash it may have groups, largest-groups, joined-groups,"
            " joined-largest-groups or dies:8"
        )
    return Grouped(parse(inner), largest_first=bool(match["largest"]), joined=bool(match["joined"]))
