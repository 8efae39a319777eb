"""Offsets of elements within a tile: 32 bits where they suffice, 64 where strides are so large that they do not."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.plan import bind
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops.dense import matmul
from tritonmm.torch_ops.quantized import int_mm, weight_only_linear

TILE = Config(block_m=16, block_n=32, block_k=64, num_stages=2, num_warps=4)
SKINNY = Config("skinny", 16, 64, 64, 2, 4)
GEMV = Config("skinny", 1, 64, 128, 2, 4)
CAPABILITY = gpus.default().capability
CONFIGS = {
    "tile": TILE,
    "skinny": SKINNY,
    "skinny-swapped": replace(SKINNY, block_m=64, block_n=16),
    "gemv": GEMV,
    "gemv-swapped": replace(GEMV, block_m=64, block_n=1),
}
# Around 2**31 / (a multiple of a block), where offsets just fit or just do not.
STRIDES = st.one_of(
    st.integers(0, 2**31 - 1),
    st.builds(lambda part, more: 2**31 // part + more, st.integers(1, 256), st.integers(-2, 2)),
)
PAIRS = st.tuples(STRIDES, STRIDES)


def in_32_bits(block, spans):
    """The offsets in a tile as a kernel computes them, where each stride is passed as 32 bits if it has no more."""
    index = [np.arange(size, dtype=np.int32) for size in block]
    first, second = (i * (np.int32(x) if x < 2**31 else np.int64(x)) for i, x in zip(index, spans, strict=True))
    return first[:, None] + second[None, :]


def exactly(block, spans):
    first, second = (np.arange(size, dtype=np.int64) * x for size, x in zip(block, spans, strict=True))
    return first[:, None] + second[None, :]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(a=PAIRS, b=PAIRS, out=PAIRS, c=PAIRS)
@example(a=(2**31 // 70, 2**31 // 70), b=(1, 1), out=(1, 1), c=(1, 1))
@example(a=(1, 1), b=(1, 1), out=(2**31 // 70, 2**31 // 70), c=(1, 1))
def test_offsets_fit_32_bits_unless_the_plan_says_they_need_64(config, a, b, out, c):
    m, n, k = config.block_m, config.block_n, config.block_k
    alignments = {"a_alignment": 2, "b_alignment": 2, "out_alignment": 2}
    problem = Problem(m, n, k, layout="ss", epilogue=Epilogue(c=True), **alignments)
    plan = bind(problem, config, gpus.default(), torch.device("cpu"))
    operands = {"a": ((m, k), a), "b": ((k, n), b), "out": ((m, n), out), "c": ((m, n), c)}
    tensors = {
        name: torch.empty_strided(block, spans, dtype=torch.bfloat16, device="meta")
        for name, (block, spans) in operands.items()
    }
    arguments, _ = plan.arguments(**tensors)
    if arguments[-1].wide:
        return
    for name, (block, spans) in operands.items():
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(in_32_bits(block, spans), exactly(block, spans), err_msg=name)


@pytest.mark.parametrize("batch", [2**31 - 1, 2**40])
def test_batches_far_apart_leave_offsets_at_32_bits(batch):
    """A batch is added in 64 bits, outside of the tile."""
    problem = Problem(64, 64, 64, batch=2)
    plan = bind(problem, TILE, gpus.default(), torch.device("cpu"))
    x = torch.empty_strided((2, 64, 64), (batch, 64, 1), dtype=torch.bfloat16, device="meta")
    assert not plan.arguments(x, x, x)[0][-1].wide


def far_apart(values, step):
    """The rows + columns values as a Hankel matrix: element (i, j) is values[i + j], `step` elements from the next.

    Only the pages that hold a value take memory.
    """

    def matrix(rows, cols):
        assert rows + cols <= len(values) + 1
        x = torch.empty((len(values) - 1) * step + 1, dtype=values.dtype, device=values.device)
        x[::step] = values
        return x.as_strided((rows, cols), (step, step))

    return matrix


def test_both_axes_of_a_tile_far_apart(device):
    """Neither rows nor columns alone are 2**31 elements from the first of a tile, but both together are."""
    values = torch.randint(-128, 128, (16 + 64 - 1,), dtype=torch.int8, device=device)
    a = far_apart(values, 2**31 // 70)(16, 64)
    b = torch.randint(-128, 128, (64, 32), dtype=torch.int8, device=device)
    out = torch.empty(16, 32, dtype=torch.int32, device=device)
    problem = Problem.of(a, b, out)
    bind(problem, TILE, gpus.default(), device)(a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())
    assert torch.equal(int_mm(a, b), out)


@pytest.mark.parametrize("rows", [1, 16])
def test_both_axes_of_streamed_weights_far_apart(rows, device):
    config = CONFIGS["gemv" if rows == 1 else "skinny"]
    values = torch.randint(-128, 128, (config.block_n + config.block_k - 1,), dtype=torch.int8, device=device)
    weight = far_apart(values, 2**31 // (config.block_n + config.block_k - 20))(config.block_n, config.block_k)
    scale = torch.randint(1, 4, (len(weight),), device=device).float()
    x = torch.randint(-2, 3, (rows, config.block_k), device=device).bfloat16()
    out = torch.empty(rows, len(weight), dtype=torch.bfloat16, device=device)
    problem = Problem.of(x, weight.t(), out, scales="row")
    bind(problem, config, gpus.default(), device)(x, weight.t(), out, scales=(None, scale[None]))
    assert torch.equal(out, (x.double() @ weight.t().double() * scale.double()).bfloat16())
    assert torch.equal(weight_only_linear(x, weight, scale), out)


@pytest.mark.parametrize(
    "kernel",
    ["tile", pytest.param("hopper", marks=[pytest.mark.gpu, pytest.mark.skipif(CAPABILITY != 90, reason="sm_90")])],
)
@pytest.mark.parametrize("scales", ["row", "1x128*1x128"])
def test_scales_far_apart(scales, kernel, device):
    """The last scale lies more than 2**31 elements behind the first: that of a row, or that of a group of K. 9 GB."""
    rows, cols, depth = 64, 64, 384
    steps = (2**31 // 60, 1) if scales == "row" else (1, 2**30)
    config = replace(TILE, block_k=128) if kernel == "tile" else Config("hopper", 64, 64, 128, 3, 4, persistent=True)
    groups = 1 if scales == "row" else depth // 128
    a = torch.randint(-4, 5, (rows, depth), device=device).to(torch.float8_e4m3fn)
    b = torch.randint(-4, 5, (cols, depth), device=device).to(torch.float8_e4m3fn).t()
    memory = torch.empty((rows - 1) * steps[0] + (groups - 1) * steps[1] + 1, device=device)
    scale_a = memory.as_strided((rows, groups), steps)
    scale_a.copy_(2.0 ** torch.randint(-2, 3, scale_a.shape, device=device))
    scale_b = 2.0 ** torch.randint(-2, 3, (groups, cols), device=device)
    out = torch.empty(rows, cols, dtype=torch.float32, device=device)
    problem = Problem.of(a, b, out, scales=scales)
    bind(problem, config, gpus.default(), device)(a, b, out, scales=(scale_a, scale_b))
    left = a.double() * scale_a.double().repeat_interleave(depth // groups, 1)
    right = b.double() * scale_b.double().repeat_interleave(depth // groups, 0)
    assert torch.equal(out.double(), left @ right)


@pytest.mark.gpu
@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_far_lines_of_exact_fp32(operand, device):
    """The last of 64 lines begins more than 2**31 elements behind the first: 11 GB."""
    if gpus.of_device(device.index).capability != 90:
        pytest.skip("the exact kernel needs sm_90")
    config, step = Config("exact", 64, 64, 16, 4, 2), 2**31 // 50
    operands = [torch.randint(-4, 5, (64, 64), device=device).float() for _ in range(2)]
    expected = operands[0] @ operands[1]
    far = torch.empty(63 * step + 64, device=device).as_strided((64, 64), (step, 1))
    if operand == "out":
        matmul(*operands, out=far, config=config)
        assert torch.equal(far, expected)
    else:
        i = "ab".index(operand)
        operands[i] = (far.t() if operand == "b" else far).copy_(operands[i])
        assert torch.equal(matmul(*operands, config=config), expected)
