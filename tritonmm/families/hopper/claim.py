"""SM-assigned tiles: a program of the Hopper kernel takes the tile assigned to its SM, not the one of its number.

Programs of a grid that starts before the previous one has ended run on the SMs that become free, in any order.
`sm_affinity.py` says which grids assign their tiles to SMs instead. Such a grid has one program for each SM, and at
most one tile for each program. SMs are numbered TPC by TPC, and TPCs across the GPCs, so there are two assignments:

    "pairs"     tile i to SM i: the two SMs of a TPC get neighbouring tiles
    "singles"   the first half of the tiles to even SMs, the others to odd ones: tiles spread over all TPCs and GPCs

The assignment is a preference: an SM that another grid keeps busy gets no program, and another SM two. So every tile
has a flag, and is claimed by setting it.

1. The producer and the consumer begin with the tile assigned to their SM, without waiting for a claim.
2. Meanwhile the claim warp claims that tile. If it is taken, the warp claims the first tile that is not. There are as
   many flags as programs, so it finds one.
3. If the claimed tile is another one, producer and consumer compute it too. The first tile was computed for nothing:
   the program that claimed it writes the same bits. (Hence no C in the epilogue: it may be the output.)
4. The last claim warp resets the claims. It lets the next grid start.

Flags: one counts the claim warps that are done, as `device/split_k.py` counts parts; then one for each tile, bit 0.
The top bit of every flag is the phase of split tiles that may use the flag later, and is left as it is.
Measurements: docs/notebook/hopper.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.gluon_compat import barrier, let_next_grid_start, wait_for_previous_grid
from tritonmm.device.split_k import arrive


@gluon.jit
def assigned_tile(TILING: gl.constexpr):
    """The tile assigned to this SM. Outside of warp specialisation: all warps of the program get the same."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, 128, LANES)
    sm = gl.inline_asm_elementwise("mov.u32 $0, %smid; // $1", "=r,r", [lanes], gl.int32, is_pure=False, pack=1)
    programs = gl.num_programs(0)
    tile = gl.minimum(gl.max(sm, 0), programs - 1)
    if TILING.affinity == "singles":
        half = (programs + 1) // 2
        tile = tile // 2 + tile % 2 * half
    barrier()  # the maximum was in memory that Triton 3.6 gives to the partitions' arguments next
    return tile


@gluon.jit
def claim_tile(flags, claim):
    """The claim warp's partition: claims the assigned tile or another, publishes it, and lets the next grid start."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    programs = gl.num_programs(0)
    wait_for_previous_grid()  # which may use the same flags
    tile = claim.assigned
    taken = gl.atomic_or(flags + 1 + tile, 1, sem="relaxed", scope="gpu") & 1
    if taken != 0:
        tile = -1
        while taken != 0:
            tile += 1
            taken = gl.atomic_or(flags + 1 + tile, 1, sem="relaxed", scope="gpu") & 1
    claim.buffer.store(gl.full([32], 0, gl.int32, LANES) + tile)
    mbarrier.arrive(claim.ready, count=1)
    last, _ = arrive(flags, gl.program_id(0) == 0, 1, programs)
    if last:
        lanes = gl.arange(0, 32, LANES)
        for first in range(1, programs + 1, 32):
            inside = first + lanes <= programs
            gl.atomic_and(flags + first + lanes, lanes * 0 - 2, mask=inside, sem="relaxed", scope="gpu")
    let_next_grid_start()


@gluon.jit
def claimed_tile(claim, WARPS: gl.constexpr):
    """Waits for the tile that the claim warp claims, in a partition of WARPS warps."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    mbarrier.wait(claim.ready, 0)
    return gl.max(claim.buffer.load(LANES), 0)


@gluon.jit
def first_tile(tiles, claim, WARPS: gl.constexpr):
    """The tile that this program begins with: the assigned one, if there is one."""
    tile = claim.assigned
    if claim.assigned >= tiles:
        tile = claimed_tile(claim, WARPS)
    return tile


@gluon.jit
def next_tile(tile, tiles, claim, WARPS: gl.constexpr):
    """The tile that follows `tile` in this program: the claimed one, if it is another; or `tiles`, for none."""
    claimed = claimed_tile(claim, WARPS)
    return gl.where(claimed == tile, tiles, claimed)
