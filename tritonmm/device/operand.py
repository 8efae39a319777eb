"""An operand of a product as device functions pass it: one value with named fields."""

from typing import Any, NamedTuple


class Operand(NamedTuple):
    """A or B from one element on, as lines along K: rows of A, or columns of B."""

    at: Any  # pointer to the element
    stride_line: Any  # elements from a line to the next
    stride_k: Any  # elements from one index of K to the next
