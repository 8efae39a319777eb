"""A plan is used again only for calls of the Problem that it was made for."""

from typing import NamedTuple

import pytest
import torch
from bounds import assert_product
from hypothesis import given, settings
from hypothesis import strategies as st
from strided import strided

import tritonmm
from tritonmm.dtypes import PRECISIONS
from tritonmm.problem import SCALES
from tritonmm.torch_ops import product as products
from tritonmm.torch_ops.product import BARE, How

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
MEMORY = {dtype: torch.empty(10_000, dtype=dtype) for dtype in DTYPES}
SIZES = st.sampled_from((1, 2, 3, 8, 16))
LAYOUTS = st.sampled_from(("rows", "columns", "padded rows", "padded columns", "every other"))
OFFSETS = st.sampled_from((0, 1, 2, 3, 4, 8))
"""Of the first element from an address that is a multiple of 16 bytes, in elements."""


class Call(NamedTuple):
    """All that a call may differ in.

    sizes: m, n, k and batch, 0 for none; out: whether it is given; how: precision, whether out is fp32, scales, group.
    """

    sizes: tuple[int, int, int, int]
    layouts: tuple[str, str, str]
    offsets: tuple[int, int, int]
    dtype: torch.dtype
    epilogue: tuple[bool, bool, bool]
    out: bool
    how: tuple[str, bool, str, int] | None
    fp32_precision: str


def asked(call: Call) -> tuple:
    """What the call is remembered by, and its Problem."""
    m, n, k, batch = call.sizes
    stack = (batch,) if batch else ()
    a, b, out = (
        strided(MEMORY[call.dtype], (*stack, *shape), layout, offset)
        for shape, layout, offset in zip(((m, k), (k, n), (m, n)), call.layouts, call.offsets, strict=True)
    )
    how, given_out = None, out if call.out else None
    if call.how:
        precision, wide, scales, group = call.how
        how = How(precision, torch.float32 if wide and call.dtype.itemsize == 2 else None, scales=scales, group=group)
        given_out = products.new_output(a, b, how.out_dtype)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = call.fp32_precision
        about = products.about(a, b, given_out, call.epilogue, how)
        written = products.new_output(a, b, None) if given_out is None else given_out
        return about, products.problem_of(a, b, written, call.epilogue, how)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


OF_ANY_DTYPE = tuple(scales for scales in SCALES if scales != "group-zero")  # which is for int4
HOWS = st.tuples(
    st.sampled_from(("", *PRECISIONS["fp32"])), st.booleans(), st.sampled_from(OF_ANY_DTYPE), st.sampled_from((32, 128))
)
ASPECTS = {
    "sizes": st.tuples(SIZES, SIZES, SIZES, st.sampled_from((0, 0, 1, 3))),
    "layouts": st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    "offsets": st.tuples(OFFSETS, OFFSETS, OFFSETS),
    "dtype": st.sampled_from(DTYPES),
    "epilogue": st.tuples(st.booleans(), st.booleans(), st.booleans()) | st.just(BARE),
    "out": st.booleans(),
    "how": st.none() | HOWS,
    "fp32_precision": st.sampled_from(("ieee", "tf32")),
}


@settings(max_examples=200)
@given(st.fixed_dictionaries(ASPECTS).map(lambda found: Call(**found)), st.data())
def test_calls_of_different_problems_have_different_keys(first, data):
    aspect = data.draw(st.sampled_from(sorted(ASPECTS)))
    second = first._replace(**{aspect: data.draw(ASPECTS[aspect])})
    (about, problem), (other_about, other_problem) = asked(first), asked(second)
    if problem != other_problem:
        assert about != other_about, f"{aspect}: {problem!r} and {other_problem!r} share a key"
    if first == second:
        assert about == other_about


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_that_change_places_have_another_key(dtype):
    aligned, unaligned = (strided(MEMORY[dtype], (16, 16), "rows", offset) for offset in (0, 1))
    assert products.about(aligned, unaligned, None) != products.about(unaligned, aligned, None)


@pytest.mark.gpu
@pytest.mark.parametrize("multiply", [tritonmm.mm, tritonmm.matmul, torch.mm], ids=["mm", "matmul", "torch"])
def test_operands_that_change_places_are_multiplied(multiply, device):
    """Sizes that the Hopper kernel does, which takes what TMA cannot read from a copy of the one operand."""
    n = 1024
    memory = torch.randn(2, n * n + 8, device=device, dtype=torch.bfloat16)
    x, y = memory[0, : n * n].view(n, n), memory[1, 1 : 1 + n * n].view(n, n)
    with tritonmm.use("always"):
        for a, b in ((x, y), (y, x), (y, y), (x, x)):
            assert_product(multiply(a, b), a, b)
