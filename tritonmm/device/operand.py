"""Operands, addends and output of a product as device functions pass them: values with named fields."""

from typing import Any, NamedTuple


class Operand(NamedTuple):
    """A or B from one element on, as lines along K: rows of A, or columns of B."""

    at: Any  # pointer to the element
    stride_line: Any  # elements from a line to the next
    stride_k: Any  # elements from one index of K to the next


class Addends(NamedTuple):
    """What the epilogue multiplies by and adds."""

    c: Any  # a pointer, or None
    stride_cb: Any
    stride_cm: Any
    stride_cn: Any
    bias: Any  # a pointer, or None
    alpha: Any
    beta: Any


class Output(NamedTuple):
    """Where the output is."""

    pointer: Any
    stride_b: Any
    stride_m: Any
    stride_n: Any
