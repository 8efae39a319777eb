"""Families of orders: orders that differ only in their factors, with their names and colours in figures."""

from tritonmm.orders import Dies, RowMajor, SwizzleMerge, parse

COLOURS = {  # Okabe and Ito's palette, and a violet
    "grouped": "#0072b2",
    "serpentine": "#009e73",
    "split-merge": "#d55e00",
    "two-level": "#6a3d9a",
    "hilbert": "#cc79a7",
    "morton": "#e69f00",
    "column-major": "#56b4e9",
    "row-major": "#222222",
    "dies": "#999933",
}
"""Colours by family, in the order of a legend. `@n` orders have the same colours."""


def family(text: str) -> str:
    """The family of a spelled order. One factor is "grouped", several are "two-level", factor 1 is "row-major", and
    all orders of dies are "dies".

    Raises ValueError for text that spells no order.
    """
    order = parse(text)
    if order in (RowMajor(), SwizzleMerge(1)):
        return "row-major"
    if isinstance(order, Dies):
        return "dies"
    name = order.name
    if isinstance(order, SwizzleMerge):
        name = "grouped" if len(order.factors) == 1 else "two-level"
    return name + ("@n" if order.along == "n" else "")


def colour(name: str) -> str:
    """The colour of a family."""
    return COLOURS[name.removesuffix("@n")]
