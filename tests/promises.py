"""What every kernel promises, as assertions that the tests of all of them share."""

import itertools

import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.verify import GUARD, Check
from tritonmm.dtypes import DTYPES
from tritonmm.plan import plan_for
from tritonmm.problem import Epilogue, Problem
from tritonmm.torch_ops.dense import matmul

EVERYTHING = Epilogue(scaled=True, bias=True, c=True)


def edges(block_m, block_n, block_k):
    """(m, n, k) around one tile and of several, the last ragged: of lines that TMA can address, but for one n."""
    return itertools.product(
        (1, block_m - 1, block_m, block_m + 1, 3 * block_m + 17),
        (8, block_n - 8, block_n, block_n + 8, block_n + 1),
        (8, block_k, block_k + 8, 9 * block_k - 8),
    )


def assert_right(problem, config, device):
    ratio = Check(problem, device).error_ratio(plan_for(problem, config, device))
    assert ratio <= 1, f"{config} on {problem}: error {ratio} times its bound"


def assert_right_if_it_fits(problem, config, device):
    """For the product of all tiles and all problems, some pairs of which are illegal."""
    if config.fits(problem, gpus.of_device(device.index)):
        assert_right(problem, config, device)


def assert_repeatable(multiply):
    """What it returns has the same bits again and again."""
    first = multiply().clone()
    for run in range(50):
        assert torch.equal(multiply(), first), f"run {run} differs"


def assert_exact_and_repeatable(m, n, k, config, device, dtype=torch.bfloat16):
    """Small integers are multiplied exactly, in whatever order they are summed, and anything to the same bits again."""
    a, b = (torch.randint(-4, 5, shape, device=device).to(dtype) for shape in ((m, k), (k, n)))
    assert torch.equal(matmul(a, b, config=config), (a.double() @ b.double()).to(dtype))
    a, b = torch.randn_like(a), torch.randn_like(b)
    assert_repeatable(lambda: matmul(a, b, config=config))


def assert_same_bits(a, b, expected, config):
    """Every element of the product is written, with the bits of `expected`, and nothing before and behind it."""
    board = torch.full((GUARD + expected.numel() + GUARD,), float("nan"), dtype=expected.dtype, device=a.device)
    out = board[GUARD:-GUARD].view(expected.shape)
    assert torch.equal(matmul(a, b, out=out, config=config), expected)
    assert board[:GUARD].isnan().all()
    assert board[-GUARD:].isnan().all()


def assert_adds_before_it_rounds(a, b, c, bias, config, out_dtype):
    """a, b, c and bias hold small integers: the sum of everything is exact until it is rounded to out_dtype."""
    out = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"), dtype=out_dtype, device=a.device)
    problem = Problem.of(a, b, out, epilogue=EVERYTHING)
    plan_for(problem, config, a.device)(a, b, out, alpha=0.5, beta=-2.0, c=c, bias=bias)
    assert torch.equal(out, (0.5 * (a.double() @ b.double()) + bias.double() - 2 * c.double()).to(out_dtype))


def assert_every_byte_has_its_value(config, b_dtype, dtype, device):
    """All 256, infinities and NaN among them, as the weights of one k and zeros of all others, from every place."""
    codes = torch.arange(256, device=device).to(torch.uint8).view(DTYPES[b_dtype])
    if device.type != "cuda":  # the interpreter makes numbers of infinities and NaN
        codes = codes[codes.float().isfinite()]
    scales = None, torch.ones(1, len(codes), device=device)
    for at in (0, 1, 2, 3, 7, 16, 63):
        weights = torch.zeros(len(codes), 64, dtype=torch.uint8, device=device).view(DTYPES[b_dtype])
        weights[:, at] = codes
        x = torch.zeros(1, 64, dtype=DTYPES[dtype], device=device)
        x[0, at] = 1
        out = torch.full((1, len(codes)), 0.5, dtype=DTYPES[dtype], device=device)
        problem = Problem.of(x, weights.t(), out, scales="row")
        plan_for(problem, config, device)(x, weights.t(), out, scales=scales)
        torch.testing.assert_close(out[0], codes.to(out.dtype), rtol=0, atol=0, equal_nan=True, msg=f"k = {at}")


def assert_reads_views_that_tma_can_address(n, config, device):
    x = torch.randn(4, 256, 512, device=device).bfloat16()
    b = torch.randn(128, n, device=device).bfloat16()
    for name, a in {
        "sliced columns": x[1, :, 64:192],
        "every other row": x[2, ::2, :128],
        "one row": x[3, :1, 8:136],
        "broadcast batch": x[:1, :, :128].expand(2, 256, 128),
        "transposed": x[0, :128].t()[:200],
    }.items():
        right = b.expand(2, 128, n) if a.dim() == 3 else b
        assert torch.equal(
            matmul(a, right, config=config), matmul(a.contiguous(), right.contiguous(), config=config)
        ), name


def assert_writes_views_and_nothing_else(a, b, config):
    (m, _), (_, n) = a.shape, b.shape
    expected = matmul(a, b, config=config)
    for view in (
        lambda board: board[3 : m + 3, 8 : n + 8],
        lambda board: board[3 : m + 3, 7 : n + 7],
        lambda board: board[:n, 4 : m + 4].t(),
        lambda board: board[5 : 2 * m + 5 : 2, 16 : n + 16],
    ):
        board = torch.full((640, 400), float("nan"), dtype=a.dtype, device=a.device)
        out = view(board)
        matmul(a, b, out=out, config=config)
        assert torch.equal(out, expected)
        assert board.isnan().sum() == board.numel() - out.numel()
