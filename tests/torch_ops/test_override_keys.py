"""A route is that of all calls with its key: so calls of two problems never share one."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonmm.torch_ops import aten, aten_quantized
from tritonmm.torch_ops.routes import Demand

HALF = (torch.bfloat16, torch.float16, torch.float32)


def routed(kernel, switch, calls) -> tuple[list, int]:
    """The problems that a policy is asked about by these calls, None for each that asks nothing; how many routes."""
    asked = []

    def refusal(problem, gpu):
        asked[-1] = problem
        return "asked"

    switch.forget()
    switch.turn_on(Demand(), refusal)
    for args, kwargs in calls:
        asked.append(None)
        with contextlib.suppress(Exception):  # what torch's kernel says of it
            kernel(*args, **kwargs)
    return asked, len(switch.routes)


def assert_alike_or_apart(kernel, switch, first, second):
    """Where both calls have one route they are of the same problem."""
    (before,), _ = routed(kernel, switch, [first])
    (after,), _ = routed(kernel, switch, [second])
    _, count = routed(kernel, switch, [first, second])
    assert count == 2 or before == after, f"{switch.operator}: {after!r} takes the route of {before!r}"


KERNELS = {switch.operator: (kernel, switch) for op in aten.ATEN_OPS for switch, kernel in aten.kernels(op, "CPU")}
QUANTIZED = {switch.operator: (kernel, switch) for switch, kernel in aten_quantized.kernels("CPU")}
MEMORY = torch.zeros(65_536, dtype=torch.uint8)
SIZES = st.sampled_from((1, 2, 8))
LAYOUTS = st.sampled_from(("rows", "columns", "padded rows", "padded columns", "every other"))
OFFSETS = st.sampled_from((0, 1, 2, 8))
"""Of the first element from an address that is a multiple of 16 bytes, in elements."""


def view(shape, layout, offset, dtype):
    """A tensor of zeros with such strides and at such an address."""
    dims = range(len(shape)) if "columns" in layout else range(len(shape) - 1, -1, -1)
    stride, strides = 2 if layout == "every other" else 1, [0] * len(shape)
    for dim in dims:
        strides[dim] = stride
        stride = stride * shape[dim] + ("padded" in layout)
    return MEMORY.view(dtype).as_strided(shape, strides, offset)


def two_calls(aspects):
    """What two calls are made of; the second differs from the first in one aspect."""

    def changed(first):
        return st.sampled_from(sorted(aspects)).flatmap(
            lambda aspect: aspects[aspect].map(lambda value: (first, {**first, aspect: value}))
        )

    return st.fixed_dictionaries(aspects).flatmap(changed)


DENSE = {
    "sizes": st.tuples(SIZES, SIZES, SIZES, SIZES),
    "dtypes": st.tuples(*[st.sampled_from((torch.bfloat16, torch.float16, torch.float32))] * 2),
    "layouts": st.tuples(LAYOUTS, LAYOUTS, LAYOUTS, LAYOUTS),
    "offsets": st.tuples(OFFSETS, OFFSETS, OFFSETS, OFFSETS),
    "beta": st.sampled_from((0, 1, 2)),
    "alpha": st.sampled_from((1, 3)),
    "c": st.sampled_from(("a matrix", "a row", "the output")),
}


def dense(operator, sizes, dtypes, layouts, offsets, beta, alpha, c):
    """The arguments of a call of `operator`; dtypes: of C and of all others."""
    name, (batch, m, n, k) = operator.removesuffix(".out").removesuffix("_"), sizes
    c_shape, *shapes = {
        "mm": ((), (m, k), (k, n), (m, n)), "bmm": ((), (batch, m, k), (batch, k, n), (batch, m, n)),
        "dot": ((), (k,), (k,), ()), "vdot": ((), (k,), (k,), ()),
        "addmm": ((m, n), (m, k), (k, n), (m, n)), "addmv": ((m,), (m, k), (k,), (m,)),
        "baddbmm": ((batch, m, n), (batch, m, k), (batch, k, n), (batch, m, n)),
        "addbmm": ((m, n), (batch, m, k), (batch, k, n), (m, n)),
    }[name]  # fmt: skip
    a, b, out = (view(*each, dtypes[1]) for each in zip(shapes, layouts[1:], offsets[1:], strict=True))
    args, kwargs = (a, b), {"out": out} if operator.endswith(".out") else {}
    if c_shape:
        shape = c_shape[-1:] if c == "a row" and not operator.endswith("_") else c_shape
        args = (out if c == "the output" else view(shape, layouts[0], offsets[0], dtypes[0]), *args)
        kwargs |= {"beta": beta, "alpha": alpha}
    return args, kwargs


@pytest.mark.parametrize("operator", KERNELS)
@settings(max_examples=40)
@given(calls=two_calls(DENSE))
def test_calls_of_two_problems_share_no_route(operator, calls):
    assert_alike_or_apart(*KERNELS[operator], *(dense(operator, **call) for call in calls))


FP8 = st.sampled_from((torch.float8_e4m3fn, torch.float8_e5m2))
LINES = st.sampled_from(("rows", "padded rows"))  # torch takes no others
ONE_BYTE = {
    "sizes": st.tuples(st.sampled_from((17, 24)), st.sampled_from((16, 32)), st.sampled_from((16, 48, 144))),
    "dtypes": st.tuples(FP8, FP8),
    "out_dtype": st.sampled_from((torch.bfloat16, torch.float32)),
    "layouts": st.tuples(LINES, LINES, LAYOUTS, LAYOUTS, LAYOUTS, LAYOUTS),
    "offsets": st.tuples(*[OFFSETS] * 6),
    "scales": st.sampled_from(("tensor", "row", "1x128*128x128", "1x128*1x128")),
    "bias": st.booleans(),
    "fast": st.booleans(),
}


def one_byte(operator, sizes, dtypes, out_dtype, layouts, offsets, scales, bias, fast):
    """The arguments of a call of `operator`."""
    m, n, k = sizes
    integers, groups = operator.startswith("_int_mm"), -(-k // 128)
    rows, cols, groups = {"tensor": (1, 1, 1), "row": (m, n, 1), "1x128*128x128": (m, -(-n // 128), groups)}.get(
        scales, (m, n, groups)
    )
    dtypes, out_dtype = ((torch.int8, torch.int8), torch.int32) if integers else (dtypes, out_dtype)
    a, b, scale_a, scale_b, row, out = (
        view(*each)
        for each in zip(
            ((m, k), (n, k), (rows, groups), (groups, cols), (n,), (m, n)), layouts, offsets,
            (*dtypes, torch.float32, torch.float32, torch.bfloat16, out_dtype), strict=True,
        )
    )  # fmt: skip
    kwargs = {"out": out} if operator.endswith(".out") else {}
    if integers:
        return (a, b.t()), kwargs
    kwargs |= {"bias": row if bias else None, "out_dtype": out_dtype, "use_fast_accum": fast}
    return (a, b.t(), scale_a, scale_b), kwargs


@pytest.mark.parametrize("operator", [name for name in QUANTIZED if "v2" not in name])
@settings(max_examples=60)
@given(calls=two_calls(ONE_BYTE))
def test_calls_of_two_problems_of_one_byte_share_no_route(operator, calls):
    assert_alike_or_apart(*QUANTIZED[operator], *(one_byte(operator, **call) for call in calls))


@pytest.mark.parametrize("operator", ["addmm.out", "baddbmm.out"])
def test_c_that_is_out_has_a_route_of_its_own(operator):
    """It is added as a matrix, and a row of a C that is not the output as a bias."""
    shape = (1, 8) if operator == "addmm.out" else (1, 1, 8)
    c, a, b, out = (torch.zeros(*shape[:-2], *x) for x in ((1, 8), (1, 16), (16, 8), (1, 8)))
    problems, _ = routed(*KERNELS[operator], [((c, a, b), {"out": out}), ((c, a, b), {"out": c})])
    assert [problem.epilogue.bias for problem in problems] == [True, False]
    assert [problem.epilogue.c for problem in problems] == [False, True]


@pytest.mark.parametrize("operator", ["_int_mm.out", "_scaled_mm.out"])
def test_the_policy_is_asked_about_the_output_that_is_given(operator):
    """Its alignment decides how it is stored, and so how long that takes."""
    integers = operator == "_int_mm.out"
    a, b = (torch.zeros(32, 48).to(torch.int8 if integers else torch.float8_e4m3fn) for _ in "ab")
    memory = torch.zeros(32 * 32 + 8, dtype=torch.int32 if integers else torch.bfloat16)
    outs = [memory[skipped : skipped + 32 * 32].view(32, 32) for skipped in (0, 1)]
    scales = () if integers else (torch.ones(1), torch.ones(1))
    options = {} if integers else {"out_dtype": torch.bfloat16}
    problems, _ = routed(*QUANTIZED[operator], [((a, b.t(), *scales), {**options, "out": out}) for out in outs])
    assert [problem.out_alignment for problem in problems] == [16, memory.itemsize]
