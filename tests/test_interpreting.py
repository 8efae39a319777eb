"""The faster interpreter of the tests: what is remembered is what Triton would work out anew, and every error stays."""

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

from tritonmm.launch.interpreter import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")

MODULES = tl, core, tl.math, tl.tensor, tl.dtype, core.tensor_descriptor_base


@triton.jit
def largest(x, SIZE: tl.constexpr):
    """Reductions are device functions of another module."""
    return tl.max(x, 0) + tl.sum(tl.zeros((SIZE,), tl.int32), 0)


@triton.jit
def add_kernel(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    values = tl.load(x + at)
    tl.store(out + at, values + largest(values, SIZE))


def added(x):
    out = torch.zeros_like(x)
    add_kernel[(1,)](x, out, len(x))
    return out


def test_sums_are_right():
    x = torch.arange(16, dtype=torch.int32)
    for _ in range(2):
        assert torch.equal(added(x), x + 15)


def test_a_launch_leaves_triton_as_it_was():
    before = [dict(vars(module)) for module in MODULES]
    for _ in range(2):
        added(torch.arange(16, dtype=torch.int32))
        for module, values in zip(MODULES, before, strict=True):
            now = vars(module)
            assert [name for name in now if now[name] is not values.get(name)] == [], module


def test_it_does_so_after_an_error_too():
    before = dict(vars(tl))
    with pytest.raises(interpreter.InterpreterError):
        added(torch.arange(15, dtype=torch.int32))  # no power of 2
    assert [name for name in before if vars(tl)[name] is not before[name]] == []
    x = torch.arange(16, dtype=torch.int32)
    assert torch.equal(added(x), x + 15)


def test_what_was_changed_meanwhile_is_seen(monkeypatch):
    x = torch.arange(16, dtype=torch.int32)
    expected = added(x)
    load, seen = tl.load, []

    @core.builtin
    def spied(*args, **options):
        seen.append(args)
        return load(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tl, "load", spied)
        assert torch.equal(added(x), expected)
    assert len(seen) == 1
    assert torch.equal(added(x), expected)
    assert len(seen) == 1


@pytest.mark.parametrize("debug", [False, True])
def test_overflow_is_an_error_where_triton_looks_for_it(debug, monkeypatch):
    monkeypatch.setattr(interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(debug=debug))
    x = torch.full((16,), 2**30, dtype=torch.int32)
    if debug:
        with pytest.raises(interpreter.InterpreterError, match="overflow"):
            added(x)
    else:
        assert added(x).eq(-(2**31)).all()


ELEMENTS = tl.int1, tl.int32, tl.bfloat16, tl.float8e4nv, tl.pointer_type(tl.float32)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_types_and_tensors_are_the_same_the_second_time(element):
    for shape in ([4], [tl.constexpr(2), 8], core.tuple([1, 2, 4])):
        types = [tl.block_type(element, shape) for _ in range(2)]
        assert types[0] == types[1]
        assert str(types[0]) == str(types[1])
        sizes = [getattr(x, "value", x) for x in shape]
        assert [list(each.shape) for each in types] == [sizes] * 2
        assert [interpreter._get_np_dtype(each) for each in types] == [interpreter._get_np_dtype(element)] * 2
        for made in (tl.tensor(handle, each) for each in types for handle in "xy"):
            assert (made.type, made.dtype, [x.value for x in made.shape]) == (types[0], element, sizes)
        assert [tl.tensor(handle, types[0]).handle for handle in "xy"] == ["x", "y"]
    scalar = tl.tensor("x", element)
    assert (scalar.type, scalar.dtype, list(scalar.shape), scalar.numel.value) == (element, element, [], 1)


@pytest.mark.parametrize("shape", [[3], [4, 6], [2**11, 2**10], [], (4, 2)], ids=str)
def test_shapes_that_no_block_has_are_errors_each_time(shape):
    for _ in range(2):
        with pytest.raises((ValueError, TypeError, AssertionError)):
            tl.block_type(tl.int32, shape)


FLOATS = tl.float8e4nv, tl.float8e5, tl.float16, tl.bfloat16, tl.float32


@pytest.mark.parametrize(
    ("dtype", "to"),
    [x for x in itertools.permutations(FLOATS, 2) if x[0].primitive_bitwidth != x[1].primitive_bitwidth],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinity and NaN
def test_every_float_is_converted_as_triton_does(dtype, to):
    bits = dtype.primitive_bitwidth
    codes = getattr(np, f"uint{bits}")
    values = np.arange(0, 2**bits, max(1, 2**bits // 2**16), dtype=codes)
    for shaped in (values, values.reshape(16, -1).T, values[5], values[5:6, None]):
        for rounding in (None, interpreter._ir.ROUNDING_MODE.RTNE) * 2:
            given = np.asarray(shaped), dtype, to, rounding
            found = interpreter._convert_float(*given)
            expected = interpreter._convert_float.__wrapped__(*given)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert (found == expected).all()


def test_what_need_not_be_broadcast_or_cast_is_returned_as_it_is():
    semantic = interpreter.interpreter_semantic

    def made(element, *shape):
        data = np.ones(shape, interpreter._get_np_dtype(element))
        return tl.tensor(interpreter.TensorHandle(data, element), tl.block_type(element, list(shape)))

    a, b, row = made(tl.float32, 4, 8), made(tl.int32, 4, 8), made(tl.int32, 1, 8)
    assert semantic.broadcast_impl_value(a, b) == (a, b)
    found = semantic.broadcast_impl_value(a, row)
    assert found[0] is a
    assert list(found[1].type.shape) == [4, 8]
    assert semantic.cast(a, tl.float32) is a
    assert semantic.cast(b, tl.float32).dtype == tl.float32


def test_operands_are_computed_in_the_dtypes_of_triton():
    semantic = interpreter.interpreter_semantic
    dtypes = tl.int1, tl.int8, tl.uint8, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float64
    flags = list(itertools.product((False, True), repeat=3))
    for a, b, (a_is_scalar, b_is_scalar, div_or_mod) in itertools.product(dtypes, dtypes, flags):
        given = a, a_is_scalar, b, b_is_scalar, div_or_mod
        try:
            expected = type(semantic).computation_type_impl(semantic, *given)
        except TypeError:  # integers of both signs are not divided
            for _ in range(2):
                with pytest.raises(TypeError):
                    semantic.computation_type_impl(*given)
        else:
            assert [semantic.computation_type_impl(*given) for _ in range(2)] == [expected] * 2, given


def test_constexprs_are_unwrapped_wherever_they_are():
    inner = tl.constexpr(3)
    for _ in range(2):
        assert core._unwrap_if_constexpr(inner) == 3
        assert core._unwrap_if_constexpr([inner, (inner, "x")]) == [3, (3, "x")]
        assert core._unwrap_if_constexpr(core.tuple([inner])).values == [3]
        assert core._unwrap_if_constexpr(None) is None
