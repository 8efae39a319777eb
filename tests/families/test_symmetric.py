"""Symmetric products by every family that has them: exact, exactly symmetric, of any size, with C as the output."""

import itertools

import pytest
import torch
from compile_cases import SYMMETRIC, symmetric_config
from pairs import all_pairs

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring.verify import Check
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.families.exact.rules import HAS_FP64
from tritonmm.plan import plan_for
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.torch_ops.dense import matmul
from tritonmm.torch_ops.symmetric import gram, symmetric_mm

EVERYTHING = Epilogue(scaled=True, bias=True, c=True)
GUARD = 256

HAS_SM_90 = torch.cuda.is_available() and gpus.default().capability == 90
on_hopper = [pytest.mark.gpu, pytest.mark.skipif(not HAS_SM_90, reason="the kernel needs sm_90")]


def assert_exact(config, n, k, device, dtype="bf16", batch=1, layout="nt", epilogue=EVERYTHING, kind="gram", **fields):
    """Small integers give the exact result; C is the output, and nothing around it is written. True if it is legal."""
    stored = (batch, n, k) if layout == "nt" else (batch, k, n)
    a = torch.randint(-4, 5, stored, device=device).to(DTYPES[dtype])
    a = a if layout == "nt" else a.mT
    board = torch.full((GUARD + batch * n * n + GUARD,), float("nan"), dtype=a.dtype, device=device)
    out = board[GUARD:-GUARD].view(batch, n, n)
    problem = Problem.of(a, a.mT, out, epilogue=epilogue, symmetric=kind, **fields)
    if not config.fits(problem, gpus.of_device(device.index) if device.type == "cuda" else gpus.default()):
        return False
    expected = a.double() @ a.double().mT
    given = {}
    if epilogue.scaled:
        given["alpha"], expected = 0.5, 0.5 * expected
    if epilogue.bias:
        given["bias"] = torch.randint(-9, 10, (n,), device=device).to(a.dtype)
        expected = expected + given["bias"].double()
    if epilogue.c:
        c = torch.randint(-9, 10, out.shape, device=device)
        given |= {"c": out.copy_(c + c.mT if kind == "output" else c), "beta": -2.0}
        expected = expected - 2 * out.double()
    plan_for(problem, config, device)(a, a.mT, out, **given)
    assert torch.equal(out, expected.to(a.dtype)), f"{problem} {epilogue} {config}"
    assert board[:GUARD].isnan().all()
    assert board[-GUARD:].isnan().all()
    return True


TILES = [(16, 16), (32, 16), (16, 32), (16, 64), (64, 16)]


@pytest.mark.parametrize(
    ("dtype", "blocks"), [*(("fp32", tile) for tile in TILES), ("bf16", (32, 16)), ("fp64", (16, 32))], ids=str
)
def test_the_portable_kernel(dtype, blocks, device):
    for i, n in enumerate((1, 15, 16, 17, 33, 70)):
        config = symmetric_config("tile", (*blocks, 16, 2, 4), factor=1 + i % 3, persistent=i % 2 == 1)
        layout, batch = ("nt", "tn")[i % 2], 1 + i % 3
        assert assert_exact(config, n, 5 + 7 * i, device, dtype, batch, layout, EVERYTHING)
        assert assert_exact(config, n, 40, device, dtype, batch, layout, Epilogue(), kind="known")
        assert assert_exact(config, n, 40, device, dtype, batch, layout, Epilogue(c=True), kind="output")


@pytest.mark.gpu  # NumPy sums a block and its mirror image in different orders
def test_the_bits_are_those_of_the_product_in_full(device):
    a = torch.randn(2, 83, 50, device=device)
    config = {"block_m": 16, "block_n": 32, "block_k": 16, "num_stages": 2, "num_warps": 4}
    full = matmul(a, a.mT, config=Config("tile", **config))
    found = gram(a, config=Config("tile", **config, order=orders.Triangular(2, aspect=(1, 2))))
    assert torch.equal(found, full)
    assert torch.equal(found, found.mT)


def test_only_one_half_is_computed(device):
    """Of a product that is said to be symmetric and is not, the half above the diagonal is never read."""
    a, b = torch.randn(48, 20, device=device), torch.randn(20, 48, device=device)
    found = symmetric_mm(a, b, config=symmetric_config("tile", (16, 16, 16, 2, 4)))
    full = matmul(a, b, config=Config("tile", 16, 16, 16, 2, 4))
    assert torch.equal(found, full.tril() + full.tril(-1).mT)


def test_of_nan_only_its_row_and_column(device):
    a = torch.randn(70, 20, device=device)
    a[41, 3] = float("nan")
    found = gram(a, config=symmetric_config("tile", (32, 16, 16, 2, 4)))
    expected = torch.zeros(70, 70, dtype=torch.bool, device=device)
    expected[41] = expected[:, 41] = True
    assert torch.equal(found.isnan(), expected)


@pytest.mark.parametrize(
    ("config", "fields", "said"),
    [
        (Config("tile"), {}, "order is swizzle-merge:8; a symmetric product in these tiles needs one such as"),
        (Config("tile", order=orders.Triangular(4, aspect=(2, 1))), {}, "order is triangular:4@2x1"),
        (Config("tile", 16, 256, 32, 2, 4, order=orders.Triangular(4)), {}, "no side of the ratio can be above 8"),
        (Config("skinny", order=orders.Triangular(4)), {}, "the skinny kernel does not write symmetric products"),
        (Config("persistent", order=orders.Triangular(4)), {}, "kernel does not write symmetric products"),
        (
            Config("hopper", 256, 128, order=orders.Triangular(4, aspect=(2, 1)), cluster="m"),
            {},
            "clusters do not mirror the elements of a symmetric product",
        ),
        (Config("tile", order=orders.Triangular(4)), {"symmetric": ""}, "it does not visit all tiles of an output"),
    ],
)
def test_illegal_configs_say_why(config, fields, said):
    problem = Problem.dense(512, 512, 64, **{"symmetric": "gram"} | fields)
    assert said in config.fits(problem, gpus.spec("h200")).reason


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": 48}, "m, n are 64, 48; a symmetric product is square"),
        ({"symmetric": "yes"}, "symmetric is 'yes'; it must be gram, known, output or ''"),
        ({"dtype": "fp8e4m3", "scales": "tensor"}, "fp8e4m3; of a symmetric product both are one of"),
        ({"dtype": "bf16", "b_dtype": "int8", "scales": "row"}, "bf16 and int8; of a symmetric product both are"),
    ],
)
def test_problems_that_are_not_symmetric(fields, said):
    with pytest.raises(ValueError, match=said):
        Problem(**{"m": 64, "n": 64, "k": 32, "symmetric": "gram"} | fields)


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "mi300x", "rtx4090"])
def test_every_gpu_has_a_config(name):
    from tritonmm.selection import choose

    gpu = gpus.spec(name)
    kinds = "bf16", "fp16", "fp32", "tf32", "fp64"
    sizes = (0, 33), (1, 4096), (100, 0), (1001, 33), (4096, 4096)
    others = list(itertools.product((Epilogue(), EVERYTHING), ("any", "invariant")))
    for kind, (n, k), (epilogue, accumulation) in all_pairs(kinds, sizes, others):
        for layout in ("nt", "tn"):
            fields = {"layout": layout, "epilogue": epilogue, "accumulation": accumulation} | KINDS[kind]
            problem = Problem.dense(n, n, k, symmetric="gram", **fields)
            assert isinstance(choose(problem, gpu).order, orders.Triangular), problem


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_SM_90, reason="the kernel needs sm_90")
class TestHopper:
    @pytest.mark.long  # 20 to 31 kernels each
    @pytest.mark.parametrize("blocks", sorted(SYMMETRIC), ids=str)
    def test_every_size_with_every_tile(self, blocks, device):
        """Exactly symmetric, exact, and nothing else is written: every size up to 300."""
        config = symmetric_config("hopper", blocks, factor=2)
        for n in range(2, 301):  # a matrix of one element has lines that TMA cannot address
            done = assert_exact(config, n, 136, device, epilogue=Epilogue())
            assert done or n % 8  # large tiles are written by TMA alone

    @pytest.mark.parametrize("blocks", [(128, 256, 64, 4, 8), (128, 128, 64, 6, 8), (64, 64, 128, 6, 4)], ids=str)
    @pytest.mark.parametrize("layout", ["nt", "tn"])
    def test_epilogues_splits_and_batches(self, layout, blocks, device):
        for n, split in itertools.product((72, 333, 1000), ({}, {"split_k": 2}, {"split_tail": 3})):
            if n % 8 and layout == "tn":
                continue  # TMA cannot address the operand
            config = symmetric_config("hopper", blocks, factor=3, **split)
            for dtype, batch in (("bf16", 1), ("fp16", 3)):
                assert_exact(config, n, 1024, device, dtype, batch, layout)
                assert_exact(config, n, 1024, device, dtype, batch, layout, Epilogue(), kind="known")
                assert_exact(config, n, 1024, device, dtype, batch, layout, Epilogue(True, False, True), kind="output")

    def test_tf32(self, device):
        for n, epilogue in itertools.product((64, 333, 1000), (Epilogue(), EVERYTHING)):
            config = symmetric_config("hopper", (128, 256, 32, 4, 8))
            assert_exact(config, n, 320, device, "fp32", epilogue=epilogue, precision="tf32")

    @pytest.mark.parametrize("kind", ["bf16", "fp16", "tf32", "bf16-fp32"])
    def test_within_the_bound(self, kind, device):
        size = DTYPES[KINDS[kind]["dtype"]].itemsize
        for blocks, n, k in itertools.product(((128, 256, 64, 4, 8), (64, 128, 64, 8, 4)), (1000, 1001), (520, 4096)):
            problem = Problem.dense(n, n, k, layout="nt", symmetric="gram", **KINDS[kind])
            config = symmetric_config("hopper", (*blocks[:2], 128 // size, *blocks[3:]))
            assert Check(problem, device).error_ratio(plan_for(problem, config, device)) <= 1

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_invariant_bits_are_those_of_the_product_in_full(self, dtype, device):
        for n, k in ((300, 512), (1000, 2048), (520, 16_384)):
            a = torch.randn(n, k, device=device, dtype=dtype)
            found = gram(a, accumulation="invariant")
            other = a.clone()  # not the same memory: the product in full
            assert torch.equal(found, matmul(a, other.mT, accumulation="invariant"))


class TestExact:
    pytestmark = on_hopper

    @pytest.mark.parametrize("blocks", [(64, 64, 16, 3, 4), (64, 32, 16, 3, 4), (32, 64, 16, 3, 4)], ids=str)
    @pytest.mark.parametrize("dtype", ["fp32", *(["fp64"] if HAS_FP64 else [])])
    def test_of_any_size(self, dtype, blocks, device):
        for n, layout in itertools.product((2, 7, 64, 131, 1001, 1024), ("nt", "tn")):
            config = symmetric_config("exact", blocks)
            assert_exact(config, n, 200, device, dtype, 2, layout)
            assert_exact(config, n, 200, device, dtype, 1, layout, Epilogue())

    def test_split(self, device):
        for n, layout in ((64, "tn"), (1001, "nt"), (1004, "tn")):
            config = symmetric_config("exact", (64, 64, 16, 3, 4), split_k=4)
            assert assert_exact(config, n, 520, device, "fp32", layout=layout)
