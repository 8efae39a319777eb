"""The portable kernel computes the product: ragged everywhere, any strides, any order, guarded and poisoned outputs."""

import itertools

import pytest
import torch
from bounds import assert_product
from pairs import all_pairs
from promises import assert_adds_before_it_rounds, assert_every_byte_has_its_value, assert_right, assert_same_bits

from tritonmm import orders
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, FLOATS, INPUTS
from tritonmm.plan import plan_for
from tritonmm.problem import Problem
from tritonmm.torch_ops.dense import matmul

BLOCKS = {"block_m": 32, "block_n": 16, "block_k": 32, "num_stages": 2, "num_warps": 4}
EDGES = [(31, 15, 31), (32, 16, 32), (33, 17, 33), (64, 31, 65), (1, 1, 1), (95, 33, 7)]


def exact(problem, device):
    """Operands of small integers, whose product every kernel must get exactly, in every summation order."""
    shapes = (problem.batch, problem.m, problem.k), (problem.batch, problem.k, problem.n)
    return (torch.randint(-4, 5, shape, device=device).to(DTYPES[problem.dtype]) for shape in shapes)


@pytest.mark.parametrize(("size", "dtype", "layout"), all_pairs(EDGES, list(INPUTS), ["nn", "nt", "tn", "tt"]), ids=str)
def test_within_the_bound_at_block_edges(size, dtype, layout, device):
    m, n, k = size
    problem = Problem(m=m, n=n, k=k, dtype=dtype, layout=layout, a_alignment=1, b_alignment=1)
    assert_right(problem, Config(**BLOCKS), device)


@pytest.mark.parametrize(
    ("size", "fields", "kind"),
    all_pairs(
        [(31, 15, 32), (32, 16, 64), (33, 17, 96), (64, 31, 256), (1, 1, 128), (95, 33, 70)],
        [{"scales": ""}, {"scales": "row", "layout": "tt"}, {"scales": "group"}, {"scales": "group", "layout": "nn"}],
        [("bf16", "int4", 32), ("fp16", "int4", 128), ("bf16", "int8p", 16), ("fp16", "int8p", 64)],
    ),
    ids=str,
)  # fmt: skip
def test_packed_weights_within_the_bound_at_block_edges(size, fields, kind, device):
    (m, n, k), (dtype, b_dtype, group) = size, kind
    fields = {"layout": "nt"} | fields
    if b_dtype == "int8p":  # its rows are contiguous
        fields["layout"] = fields["layout"][0] + "t"
    fields |= {"b_dtype": b_dtype, "group": group, "a_alignment": 2, "b_alignment": 1}
    blocks = BLOCKS | {"block_k": min(BLOCKS["block_k"], group)} if fields["scales"] == "group" else BLOCKS
    assert_right(Problem(m=m, n=n, k=k, dtype=dtype, **fields), Config(**blocks), device)


@pytest.fixture(scope="module")
def in_row_major_order(device):
    """a, b and their product, of 5 x 5 tiles in two batches."""
    a, b = torch.randn(2, 150, 40, device=device).bfloat16(), torch.randn(2, 40, 70, device=device).bfloat16()
    found = matmul(a, b, config=Config(**BLOCKS, order=orders.RowMajor()))
    assert_product(found, a, b)
    return a, b, found


@pytest.mark.parametrize("persistent", [False, True], ids=["plain", "persistent"])
@pytest.mark.parametrize(
    "spelling",
    ["row-major", "column-major", "split-merge:3", "split-merge:2@n", "swizzle-merge:3", "swizzle-merge:3,2@n",
     "serpentine:2", "morton", "hilbert", "dies:8/swizzle-merge:2", "dies:2,3/hilbert"],
)  # fmt: skip
def test_every_order_gives_the_same_bits(spelling, persistent, in_row_major_order):
    a, b, expected = in_row_major_order
    assert_same_bits(a, b, expected, Config(**BLOCKS, order=orders.parse(spelling), persistent=persistent))


def test_a_users_table_gives_the_same_bits(device):
    a, b = torch.randn(90, 40, device=device), torch.randn(40, 50, device=device)
    tiles = list(itertools.product(range(3), range(4)))
    config = Config(**BLOCKS, order=orders.Table(tiles[::-1]))
    assert torch.equal(matmul(a, b, config=config), matmul(a, b, config=Config(**BLOCKS)))


@pytest.mark.parametrize("dtype", INPUTS)
def test_small_integers_are_exact(dtype, device):
    problem = Problem(m=70, n=33, k=100, batch=3, dtype=dtype)
    a, b = exact(problem, device)
    out = torch.empty(3, 70, 33, dtype=DTYPES[problem.out_dtype], device=device)
    plan_for(Problem.of(a, b, out), Config(**BLOCKS), device)(a, b, out)
    assert torch.equal(out, (a.double() @ b.double()).to(out.dtype))


@pytest.mark.parametrize("c_shape", [(2, 70, 33), (1, 33), (70, 1), (2, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_epilogue_adds_before_it_rounds(dtype, c_shape, device):
    a, b = exact(Problem(m=70, n=33, k=40, batch=2, dtype=dtype), device)
    c = torch.randint(-9, 10, c_shape, device=device).to(a.dtype)
    bias = torch.randint(-9, 10, (33,), device=device).to(a.dtype)
    assert_adds_before_it_rounds(a, b, c, bias, Config(**BLOCKS), a.dtype)


def test_strides_of_every_kind(device):
    """Sliced, stepped, expanded, transposed and misaligned views are read in place."""
    x = torch.randn(80, 160, device=device)
    views = {
        "sliced": x[3:43, 5:69],
        "stepped": x[::2, 1:128:2],
        "expanded rows": x[:1, :64].expand(40, 64),
        "expanded columns": x[:40, :1].expand(40, 64),
        "transposed": x[:64, :40].t(),
        "misaligned": torch.randn(40 * 64 + 1, device=device)[1:].view(40, 64),
    }
    config = Config(**BLOCKS)
    names = list(views)
    for i, name_a in enumerate(names):
        for name_b in (name_a, names[i - 1]):
            a, b = views[name_a], views[name_b].t()
            expected = matmul(a.contiguous(), b.contiguous(), config=config)
            assert torch.equal(matmul(a, b, config=config), expected), f"{name_a} @ {name_b}.t()"


@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_offsets_beyond_32_bits(operand, device):
    """Rows 2**29 elements apart: the fifth begins beyond 2**31. Only the pages that are touched take memory."""
    rows = 40
    far = torch.empty(rows * 2**29 // 4, dtype=torch.bfloat16, device=device).as_strided((10, 24), (2**29, 1))
    values = torch.randn(10, 24, device=device).bfloat16()
    near = torch.randn(24, 24, device=device).bfloat16()
    config = Config(block_m=16, block_n=16, block_k=16, num_stages=1, num_warps=4)
    if operand == "a":
        far.copy_(values)
        assert torch.equal(matmul(far, near, config=config), matmul(values, near, config=config))
    elif operand == "b":
        far.copy_(values)
        a = near[:, :10]
        assert torch.equal(matmul(a, far, config=config), matmul(a, values, config=config))
    else:
        matmul(values, near, out=far, config=config)
        assert torch.equal(far, matmul(values, near, config=config))


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # NumPy, in the interpreter
@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_nans_stay_in_their_rows_and_columns(dtype, device):
    a = torch.randn(40, 40, device=device).to(DTYPES[dtype])
    b = torch.randn(40, 40, device=device).to(DTYPES[dtype])
    a[3, 39], b[39, 7] = float("nan"), float("inf")
    found = matmul(a, b, config=Config(**BLOCKS)).isfinite()
    assert not found[3].any()
    assert not found[:, 7].any()
    found[3], found[:, 7] = True, True
    assert found.all()


@pytest.mark.parametrize(
    ("blocks", "b_dtype", "dtype"),
    all_pairs([(16, 64, 64, 2, 4), (64, 64, 64, 2, 4)], ["int8", "fp8e4m3", "fp8e5m2"], ["bf16", "fp16"]),
    ids=str,
)
def test_every_byte_has_its_value(blocks, b_dtype, dtype, device):
    """By mma.sync and by wgmma."""
    assert_every_byte_has_its_value(Config("tile", *blocks), b_dtype, dtype, device)
