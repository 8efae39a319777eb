"""The pipeline of two CTAs of a cluster: what only clusters need of the Hopper kernel.

The CTAs divide the tile along one axis and share one operand. Its blocks are multicast: read from L2 once,
written to the same place of both CTAs' shared memory, and counted by the `full` barrier in the same place of
each. Each CTA loads half of them for both, which spreads the work over both producers.

    full[s]     in each CTA, one arrival, its own producer's expect; completes when all bytes that this CTA
                receives have come, whichever CTA issued them
    empty[s]    in each CTA, one arrival of every consumer warp of both CTAs, when the warp's own wgmma is done:
                its producer writes for all of them

Use u of the pipeline is stage u % S; both CTAs walk the same items and K steps, so they agree on u. A producer waits
for phase u // S - 1 of its own `empty`, expects the bytes of both operands on its own `full`, then loads.

No live data is overwritten. A producer writes use u after its `empty` says that every warp that it writes for has
finished reading use u - S.

No byte is counted in a wrong phase. A warp releases use u - S after its own CTA's `full` completed that phase, so
in each CTA to which a producer writes use u, `full` has completed it as well. The bytes of use u may come to the peer
before the peer's producer expects them: the count of bytes is then negative for a while, which mbarriers allow, and
the phase cannot complete, since that expect is also its one pending arrival.

No release is counted in a wrong phase, in whatever order the releases of different warps land. A warp that
releases use u in a CTA has read bytes of use u that this CTA's producer wrote, after phase u // S - 1 of the CTA's
`empty`.

No waiter is lapped (a parity tells only neighbouring phases apart). `empty` cannot complete use u + S before its
producer has written it, after its wait for use u. `full` cannot complete use u + S before its producer's expect,
hence before every consumer warp of the CTA released use u, which it did after its wait for use u.

No deadlock. As in one CTA: filling use u needs releases of use u - S only, releasing use u needs the fills of u and
u + 1, and the epilogue waits for no other CTA.

No CTA ends while the other may still write to it. Bytes: all that a CTA receives are awaited by its consumers.
Arrivals: its producer, after its last item, waits until the last use of every stage has been released, so the
peer's last arrivals have landed (`drain`). A cluster barrier at the end does not rely on either.
Before the first use, a cluster barrier makes the initial barriers visible to the peer.

`tests/device/test_cluster.py` replays this in random interleavings.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.gluon_compat import cluster_barrier, inline_asm


@gluon.constexpr_function
def load_half_ptx(operand, k_first, boxes):
    """PTX by which a CTA loads its half, `boxes` boxes of 64 rows of A or columns of B, into both CTAs.

    $0 the operand's stage, $1 its barrier, $2 batch, $3 first row or column, $4 first k. The tensor map is the kernel's
    own parameter, which PTX names gemm_param_<index>: each descriptor is its tensor map and then the sizes and the
    strides of its three dimensions, and A's and B's are the kernel's first two arguments. A shared buffer comes as its
    address in CTA 0: mapa makes it that of the CTA of a given rank.
    """
    tensor_map = {"a": "gemm_param_0", "b": "gemm_param_7"}[operand]
    box_bytes = 64 * 64 * 2
    coordinates = "line, k" if k_first else "k, line"
    multicast = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    copy = f"@one {multicast} [dst], [map, {{{coordinates}, $2}}], [bar], both;"
    step = f"add.u32 dst, dst, {box_bytes}; add.u32 line, line, 64;"
    return f"""{{
.reg .pred one;
.reg .b16 both;
.reg .b32 any, rank, dst, bar, line, k;
.reg .b64 map;
elect.sync any|one, 0xffffffff;
mov.u32 rank, %cluster_ctarank;
mad.lo.u32 dst, rank, {boxes * box_bytes}, $0;
mapa.shared::cluster.u32 dst, dst, rank;
mapa.shared::cluster.u32 bar, $1, rank;
mad.lo.u32 line, rank, {boxes * 64}, $3;
mov.u32 k, $4;
mov.b16 both, 3;
mov.b64 map, {tensor_map};
cvta.param.u64 map, map;
{step.join([copy] * boxes)}
}}"""


# Lane r of a warp arrives at the barrier $0 in the CTA of rank r, if $1. The scope of the arrival is the default one:
# with .release.cluster, ptxas puts a MEMBAR.GPU before each, which cost a third of the throughput on an H200
# (2026-11-21). There is nothing to make visible: the warp has only read, and its wgmma is done.
RELEASE_PTX = gl.constexpr("""{
.reg .pred here;
.reg .b32 lane, bar;
mov.u32 lane, %laneid;
setp.lt.u32 here, lane, 2;
setp.ne.and.b32 here, $1, 0, here;
min.u32 lane, lane, 1;
mapa.shared::cluster.u32 bar, $0, lane;
@here mbarrier.arrive.shared::cluster.b64 _, [bar];
}""")


@gluon.jit
def load_half(bufs, bar, batch, line, k, OPERAND: gl.constexpr, K_FIRST: gl.constexpr, LINES: gl.constexpr):
    """This CTA's half of the shared operand's `LINES` rows or columns from `line` on, to both CTAs' `bufs` and `bar`.

    The descriptor's box is 64 x 64, which lies in one piece in shared memory, whichever dimension is contiguous;
    LINES is a multiple of 128.
    """
    PTX: gl.constexpr = load_half_ptx(OPERAND, K_FIRST, LINES // 128)
    inline_asm(PTX, "r,r,r,r,r,~{memory}", [bufs, bar, batch, line, k])


@gluon.jit
def release(bar, pred):
    """Every warp of the calling warpgroup arrives at `bar` in both CTAs, if `pred`."""
    inline_asm(RELEASE_PTX, "r,r,~{memory}", [bar, gl.where(pred, 1, 0)])


@gluon.jit
def drain(empty, stage, phase, STAGES: gl.constexpr):
    """Waits, from the position after a producer's last use, until the last use of every stage has been released."""
    for _ in gl.static_range(STAGES):
        mbarrier.wait(empty.index(stage), phase)
        stage += 1
        wraps = stage == STAGES
        phase = gl.where(wraps, phase ^ 1, phase)
        stage = gl.where(wraps, 0, stage)


@gluon.jit
def publish_barriers():
    """Makes the barriers that this CTA has initialised visible to the peer, and waits for the peer's."""
    inline_asm("fence.mbarrier_init.release.cluster;", "~{memory}")
    cluster_barrier()


@gluon.jit
def leave_together():
    """Waits for the peer: its shared memory can be written to until both have come here."""
    cluster_barrier()


@gluon.jit
def rank():
    """Which of the cluster's CTAs this is."""
    return inline_asm("mov.u32 $0, %cluster_ctarank;", "=r", [], gl.int32, is_pure=True)
