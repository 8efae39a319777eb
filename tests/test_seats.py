"""SM-assigned tiles: when there are any, that each is claimed once, on whatever SM a program runs, and their values."""

import pytest
import torch
from promises import assert_exact_and_repeatable, assert_right
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.families.hopper.claim import assigned_tile, claim_tile, claimed_tile
from tritonmm.families.hopper.sm_affinity import affinity
from tritonmm.families.hopper.tiling import Tiling
from tritonmm.families.hopper.values import Claim
from tritonmm.plan import bind, plan_for
from tritonmm.problem import Epilogue, Problem

H200 = gpus.spec("h200")

gpu = pytest.mark.gpu
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or gpus.default().capability != 90, reason="the hopper kernel needs sm_90"
)


def config(block_m=64, block_n=64, order="swizzle-merge:2", **others):
    others = {"block_k": 64, "num_stages": 8, "num_warps": 4} | others
    return Config("hopper", block_m, block_n, order=orders.parse(order), persistent=True, **others)


ASSIGNED = [
    # (m, n, k), config, how: tiles of 64 rows that all share A, all share B, or one of two rows
    ((64, 4352, 1064), config(), "singles"), ((60, 7800, 1032), config(block_k=128, num_stages=6), "singles"),
    ((5120, 64, 1088), config(order="swizzle-merge:1"), "singles"), ((100, 7168, 1032), config(128), "singles"),
    ((64, 5200, 1032), config(block_n=96), "singles"), ((129, 4096, 1032), config(128), "pairs"),
    ((128, 5120, 1032), config(block_n=96), "pairs"),
    ((4096, 200, 1032), config(block_n=128, order="row-major"), "pairs"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "chosen", "how"), ASSIGNED, ids=str)
def test_tiles_of_one_wave_that_share_an_operand_are_assigned(shape, chosen, how, monkeypatch):
    monkeypatch.setattr("tritonmm.plan.INTERPRETED", False)  # else there are no plans of this kernel
    problem = space.problem(*shape, layout="nt")
    assert affinity(chosen, problem, H200) == how
    plan = bind(problem, chosen, H200, torch.device("meta"))
    assert (plan.grid, plan.tiling.affinity) == (132, how)


def test_others_are_not():
    problem = space.problem(64, 5120, 4096, layout="nt")
    assert affinity(config(), problem, H200)
    for other in (
        config(split_tail=2), config(split_k=2), config(128, 128, num_warps=8, num_stages=6),
        config(128, 128, cluster="n"),
    ):  # fmt: skip
        assert not affinity(other, problem, H200)
    for m, n in ((64, 2048), (64, 8192), (64, 10000), (129, 1024), (129, 4500), (192, 2304)):
        assert not affinity(config(), space.problem(m, n, 4096, layout="nt"), H200)
    assert not affinity(config(), Problem.dense(64, 5120, 4096, batch=2), H200)
    assert not affinity(config(), Problem.dense(64, 5120, 1000), H200)
    assert not affinity(config(128, block_k=128, num_stages=4), Problem.dense(64, 5120, 4096), H200)
    assert not affinity(config(), Problem.dense(64, 5120, 4096, epilogue=Epilogue(c=True)), H200)
    # Tiles so small that an SM holds two programs: 128x1152x576 in tf32 took 44 us assigned, and 6.7 in larger tiles.
    small = space.problem(128, 1152, 576, layout="nt", dtype="tf32")
    assert not affinity(config(64, 32, block_k=32), small, H200)
    assert affinity(config(64, 32, block_k=64), small, H200)
    pairs = space.problem(129, 4096, 4096, layout="nt")
    assert affinity(config(128), pairs, H200)
    for order in ("row-major", "swizzle-merge:1", "swizzle-merge:8@n"):
        assert not affinity(config(128, order=order), pairs, H200)


@gluon.jit
def write_tile(out, claim):
    gl.store(out + gl.program_id(0), claimed_tile(claim, 4))


@gluon.jit
def claim_kernel(out, flags, TILING: gl.constexpr):
    SHARED: gl.constexpr = TILING.flat_shared
    buf = gl.allocate_shared_memory(gl.int32, [32], SHARED)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    claim = Claim(assigned=assigned_tile(TILING), buffer=buf, ready=bar)
    gl.warp_specialize([(write_tile, (out, claim)), (claim_tile, (flags, claim))], [1], [24])


@gpu
@hopper
@pytest.mark.parametrize("how", ["singles", "pairs"])
@pytest.mark.parametrize("programs", [1, 67, 132, 500])
def test_each_tile_is_claimed_once(programs, how, device):
    """Most of these programs share SMs with others, and most launches begin before the one before them has ended."""
    tiling = Tiling(64, 64, 64, 8, dtype=gl.bfloat16, out_dtype=gl.bfloat16, affinity=how)
    out = torch.full((200, programs), -1, dtype=torch.int32, device=device)
    flags = torch.zeros(1 + programs, dtype=torch.int32, device=device)
    flags[::3] = -(2**31)  # as split tiles may leave them
    found = flags.clone()
    for row in out:
        claim_kernel[(programs,)](row, flags, tiling, num_warps=4, launch_pdl=True)
    assert torch.equal(out.sort().values, torch.arange(programs, dtype=torch.int32, device=device).expand_as(out))
    assert torch.equal(flags[1:], found[1:])
    assert not flags[0] & 0x7FFFFFFF


@gpu
@hopper
@pytest.mark.parametrize(("shape", "chosen", "how"), ASSIGNED, ids=str)
def test_assigned_tiles_are_right(shape, chosen, how, device):
    assert plan_for(space.problem(*shape, layout="nt"), chosen, device).schedule.affinity == how
    assert_right(space.problem(*shape, layout="nt"), chosen, device)
    assert_exact_and_repeatable(*shape, chosen, device)


@gluon.jit
def hold_kernel(out, microseconds, SHARED: gl.constexpr):
    buf = gl.allocate_shared_memory(gl.int32, [256, 128], SHARED)  # half of an SM's
    start = gl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], gl.int64, is_pure=False, pack=1)
    now = start
    while now - start < microseconds * 1000:
        now = gl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], gl.int64, is_pure=False, pack=1)
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    buf.index(0).store(gl.full([128], 0, gl.int32, LANES) + (now - start).to(gl.int32))
    gl.store(out + gl.program_id(0), gl.max(buf.index(0).load(LANES), 0))


@gpu
@hopper
@pytest.mark.parametrize(("shape", "chosen", "how"), ASSIGNED[:1] + ASSIGNED[5:6], ids=str)
def test_tiles_are_right_on_sms_that_another_grid_has_left(shape, chosen, how, device):
    problem = space.problem(*shape, layout="nt")
    a, b, out = space.operands(problem, device)
    a.copy_(torch.randint(-4, 5, a.shape, device=device))
    b.copy_(torch.randint(-4, 5, b.shape, device=device))
    expected = (a.double() @ b.double()).to(out.dtype)
    plan = plan_for(problem, chosen, device)
    plan(a, b, out)
    outs = [torch.empty_like(out) for _ in range(20)]
    held, other = torch.zeros(100, dtype=torch.int32, device=device), torch.cuda.Stream()
    shared = gl.SwizzledSharedLayout(1, 1, 1, [0])
    for programs in (1, 40, 100):
        for _ in range(5):
            for one in outs:
                one.fill_(float("nan"))
            torch.cuda.synchronize()
            with torch.cuda.stream(other):
                hold_kernel[(programs,)](held, 2000, shared, num_warps=4)
            for one in outs:
                plan(a, b, one)
            torch.cuda.synchronize()
            assert all(torch.equal(one, expected) for one in outs)
